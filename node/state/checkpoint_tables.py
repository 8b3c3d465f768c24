"""The replicated state as the tables of RocketMQ's `config/` directory, and two of our own.

Owns the shapes (storage-formats 8.1 to 8.4) as pure functions between an image of the state and the
text of each file; must not know where the files are or in which order they are written. As fastjson
writes them: keys sorted, tabs, and the integer keys of `consumerOffset.json` without quotes, which
is no strict JSON; both forms are read. Encoding gives the interpreter lock away every few rows,
since it runs beside the loop that serves clients.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from node.state.registry import TABLES, encode_table, load_table
from node.state.retry_policy import policy_of, retry_delays_of
from node.state.state import Member, StateImage
from node.state.tables.group_settings import (
    DEFAULT,
    GroupSettingsTable,
    SubscriptionSettings,
    to_json,
)
from node.state.tables.table import NOTHING, Table, TableContent, TableImage
from node.state.tables.topic_types import (
    ATTRIBUTE,
    MIXED,
    Offsets,
    TopicSettings,
    type_of_attributes,
)

_SYSTEM_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_ONS")
_SYSTEM_GROUPS: Final = frozenset({"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})
_ROWS_AT_ONCE: Final = 16  # Some 50 us of work: the longest wait of the loop for the lock.
GROUP_DEFAULTS: Final[dict[str, Any]] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
"""RocketMQ's values for a group without settings of its own."""
TOPIC_DEFAULTS: Final[dict[str, Any]] = {
    "attributes": {},
    "order": False,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
}
"""Values of a topic here in the fields that only RocketMQ has."""
_FORBIDDEN_READ: Final = 4
SETTINGS: Final = {
    "retry_count_max": "retryMaxTimes",
    "is_consume_enabled": "consumeEnable",
    "is_broadcast_enabled": "consumeBroadcastEnable",
    "is_orderly": "consumeMessageOrderly",
}
"""Our name of a setting to RocketMQ's, where the values are the same."""

Json = dict[str, Any]


class CheckpointTable(NamedTuple):
    """One file: its name, the counter of its changes, and its text."""

    name: str
    version_of: Callable[[StateImage], int]
    encode: Callable[[StateImage, int], str]
    """(image, written_unix_ms) to text."""


def _document(counter: int, written_unix_ms: int, fields: str) -> str:
    version = json.dumps({"counter": counter, "stateVersion": 0, "timestamp": written_unix_ms})
    return f'{{\n\t"dataVersion":{version},\n{fields}\n}}\n'


def _rows(rows: Iterable[str], opening: str, closing: str) -> str:
    """Join one row a line, giving way to other threads in between."""
    every = []
    for number, row in enumerate(rows):
        if number % _ROWS_AT_ONCE == 0:
            time.sleep(0)
        every.append(f"\t\t{row}")
    return f"{opening}\n" + ",\n".join(every) + f"\n\t{closing}" if every else opening + closing


def _row(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _topics(image: StateImage, written_unix_ms: int) -> str:
    rows = (
        f"{_row(name)}:"
        + _row(
            {
                **TOPIC_DEFAULTS,
                "attributes": {}
                if topic.message_type == MIXED
                else {ATTRIBUTE: topic.message_type},
                "perm": topic.permission,
                "readQueueNums": topic.queue_count,
                "topicName": name,
                "writeQueueNums": topic.queue_count,
            }
        )
        for name, topic in sorted(image.topics.items())
    )
    table = _rows(rows, "{", "}")
    return _document(image.versions.topics, written_unix_ms, f'\t"topicConfigTable":{table}')


def _groups(image: StateImage, written_unix_ms: int) -> str:
    settings: Json = dict(image.tables.get(GroupSettingsTable.name, NOTHING).content)
    forbidden: Json = {}
    rows = []
    for name in image.groups:
        own = settings.get(name, {})
        if "forbidden_topics" in own:
            forbidden[name] = dict.fromkeys(own["forbidden_topics"], _FORBIDDEN_READ)
        rows.append(f"{_row(name)}:{_row(group_row(name, own))}")
    table = _rows(rows, "{", "}")
    fields = f'\t"forbiddenTable":{_row(forbidden)},\n\t"subscriptionGroupTable":{table}'
    return _document(_groups_version(image), written_unix_ms, fields)


def _groups_version(image: StateImage) -> int:
    """Return the sum of two counters that only grow: a change of either one changes it."""
    return image.versions.groups + image.tables.get(GroupSettingsTable.name, NOTHING).version


def group_row(name: str, settings: Json) -> Json:
    """Return a group's row as RocketMQ writes it. `settings` are those that differ from the
    defaults, in the form of the table's image."""
    row: Json = {**GROUP_DEFAULTS, "groupName": name}
    row.update({theirs: settings[ours] for ours, theirs in SETTINGS.items() if ours in settings})
    if "retry_delays_ms" in settings:
        row["groupRetryPolicy"] = policy_of(settings["retry_delays_ms"])
    return row


def _offsets(image: StateImage, written_unix_ms: int) -> str:
    table = _rows(_offset_rows(image.groups), "{", "}")
    return _document(image.versions.offsets, written_unix_ms, f'\t"offsetTable":{table}')


def _offset_rows(groups: dict[str, Offsets]) -> Iterator[str]:
    for name, group in groups.items():
        assert "@" not in name, f"group {name!r}"
        for topic, offsets in group.items():
            pairs = ",".join(f"{queue_id}:{offset}" for queue_id, offset in sorted(offsets.items()))
            yield f"{_row(f'{topic}@{name}')}:{{{pairs}}}"


def _producers(image: StateImage, written_unix_ms: int) -> str:
    rows = (
        f'{{"id":"{producer_id:016x}","lastSequence":{last},"positions":{_row(positions)}}}'
        for producer_id, last, positions in image.producers
    )
    fields = f'\t"producers":{_rows(rows, "[", "]")}'
    return _document(image.versions.producers, written_unix_ms, fields)


def _members(image: StateImage, written_unix_ms: int) -> str:
    rows = (
        f'"{node}":{_row({"address": member.address, "peerAddress": member.peer_address})}'
        for node, member in sorted(image.members.items())
    )
    fields = f'\t"memberTable":{_rows(rows, "{", "}")}'
    return _document(image.versions.members, written_unix_ms, fields)


CHECKPOINT_TABLES: Final = (
    CheckpointTable("topics.json", lambda image: image.versions.topics, _topics),
    CheckpointTable("subscriptionGroup.json", _groups_version, _groups),
    CheckpointTable("consumerOffset.json", lambda image: image.versions.offsets, _offsets),
    CheckpointTable("producers.json", lambda image: image.versions.producers, _producers),
    CheckpointTable("members.json", lambda image: image.versions.members, _members),
)


def _file_of(kind: type[Table]) -> CheckpointTable:
    return CheckpointTable(
        kind.file_name,
        lambda image: image.tables.get(kind.name, NOTHING).version,
        lambda image, unix_ms: encode_table(kind, image.tables[kind.name], unix_ms),
    )


_FEATURE_TABLES: Final = tuple(_file_of(kind) for kind in TABLES if kind.file_name)


def files_of(image: StateImage) -> list[CheckpointTable]:
    """Return the files of an image. A feature's table that never changed has none."""
    return [*CHECKPOINT_TABLES, *(table for table in _FEATURE_TABLES if table.version_of(image))]


def decode_topics(text: str) -> dict[str, TopicSettings]:
    """Read `topics.json`. Raises ValueError, KeyError, TypeError, AttributeError or OverflowError
    for another shape."""
    table = load_table(text)["topicConfigTable"]
    return {
        name: TopicSettings(
            row["writeQueueNums"], row["perm"], type_of_attributes(row.get("attributes"))
        )
        for name, row in table.items()
    }


def decode_groups(text: str, offsets_text: str) -> dict[str, Offsets]:
    """Read `subscriptionGroup.json` and `consumerOffset.json`. Errors as `decode_topics`."""
    groups: dict[str, Offsets] = {name: {} for name in load_table(text)["subscriptionGroupTable"]}
    for key, row in load_table(offsets_text)["offsetTable"].items():
        topic, name = key.split("@")
        groups[name][topic] = {int(queue_id): int(offset) for queue_id, offset in row.items()}
    return groups


def decode_group_settings(text: str, groups_version: int) -> TableImage:
    """Read the settings out of `subscriptionGroup.json`. Errors as `decode_topics`.

    `groups_version` is that of the groups alone; the rest of the file's counter is the settings'.
    """
    document = load_table(text)
    forbidden = document.get("forbiddenTable", {})
    content: TableContent = {}
    for name, row in document["subscriptionGroupTable"].items():
        row_settings = to_json(settings_in(row, forbidden.get(name, {})))
        if row_settings:
            content[name] = row_settings
    return TableImage(int(document["dataVersion"]["counter"]) - groups_version, content)


def settings_in(row: Json, forbidden: Mapping[str, int]) -> SubscriptionSettings:
    """Return the settings in a group's row of such a table. Errors as `decode_topics`."""
    settings = DEFAULT
    for ours, theirs in SETTINGS.items():
        settings = settings._replace(**{ours: row.get(theirs, getattr(settings, ours))})
    return settings._replace(
        retry_delays_ms=tuple(retry_delays_of(row.get("groupRetryPolicy")) or ()),
        forbidden_topics=frozenset(t for t, bits in forbidden.items() if bits & _FORBIDDEN_READ),
    )


def decode_producers(text: str) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Read `producers.json`. Errors as `decode_topics`."""
    rows = load_table(text)["producers"]
    return tuple((int(r["id"], 16), r["lastSequence"], tuple(r["positions"])) for r in rows)


def decode_members(text: str) -> dict[int, Member]:
    """Read `members.json`. Errors as `decode_topics`."""
    table = load_table(text)["memberTable"]
    return {int(node): Member(row["address"], row["peerAddress"]) for node, row in table.items()}


def is_system_group(group: str) -> bool:
    """Whether a group in such a table is RocketMQ's own."""
    return group in _SYSTEM_GROUPS or group.startswith(_SYSTEM_GROUP_PREFIXES)
