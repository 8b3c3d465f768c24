"""Rows of RocketMQ's tables as an import takes them: a fault names the field and what it must be.

Owns the types of what an import reads, and the fields that have no effect here; must not know the
state. As for RocketMQ's reader a field that is null is one that is missing.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from node.state.checkpoint_tables import (
    GROUP_DEFAULTS,
    SETTINGS,
    TOPIC_DEFAULTS,
    Json,
    settings_in,
)
from node.state.state import PERMISSION_ALL
from node.state.tables.group_settings import DEFAULT, SubscriptionSettings
from node.state.tables.topic_types import ATTRIBUTE, TOPIC_TYPES, TopicSettings, type_of_attributes
from quorumlog.foreign_text import shown

_INT32_MAX: Final = (1 << 31) - 1
_OFFSET_MAX: Final = (1 << 63) - 1
_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,8}")
_ENTRY: Final = "the entry"
_SHOWN_LENGTH_MAX: Final = 40
_READ, _WRITTEN = "readQueueNums", "writeQueueNums"
_RETRY_POLICY: Final = "groupRetryPolicy"
_OBEYED: Final = frozenset(SETTINGS.values()) | {_RETRY_POLICY}


def members_of(document: Json, name: str, *, is_needed: bool = True) -> Json:
    """Return an object within another. Raises ValueError."""
    rows = document.get(name)
    if rows is None and not is_needed:
        return {}
    if type(rows) is not dict:
        raise _wrong(name, rows, "an object")
    return rows


def row_of(table: Json, name: str, own_name: str) -> Json:
    """Return the row of a topic or group, which may repeat its name. Raises ValueError."""
    row = members_of({_ENTRY: table[name]}, _ENTRY)
    row = {field: value for field, value in row.items() if value is not None}
    if row.get(own_name, name) != name:
        raise _wrong(own_name, row[own_name], f"{name}, as the entry")
    return row


def number_in(row: Mapping[str, Any], name: str, hi: int = _INT32_MAX, lo: int = 0) -> int:
    """Return a whole number. Raises ValueError."""
    value = row.get(name)
    if type(value) is not int or not lo <= value <= hi:
        raise _wrong(name, value, f"a whole number from {lo} to {hi}")
    return value


def topic_in(row: Json) -> TopicSettings:
    """Return the settings of a topic. Raises ValueError."""
    queue_count = max(number_in(row, "writeQueueNums"), number_in(row, "readQueueNums"))
    attributes = members_of(row, "attributes", is_needed=False)
    permission = number_in(row, "perm") & PERMISSION_ALL
    return TopicSettings(queue_count, permission, type_of_attributes(attributes))


def group_in(row: Json, forbidden: Json) -> SubscriptionSettings:
    """Return the settings of a group; `forbidden` has bits for each topic. Raises ValueError."""
    for ours, theirs in SETTINGS.items():
        if type(getattr(DEFAULT, ours)) is not bool and theirs in row:
            number_in(row, theirs)
        elif theirs in row and type(row[theirs]) is not bool:
            raise _wrong(theirs, row[theirs], "true or false")
    for topic in forbidden:
        number_in(forbidden, topic, lo=-_INT32_MAX - 1)  # All bits are -1.
    return settings_in(row, forbidden)


def offsets_in(table: Json, key: str) -> tuple[str, str, dict[int, int]]:
    """Return group, topic, and the offset of each queue in the row TOPIC@GROUP. Raises
    ValueError."""
    topic, at, group = key.partition("@")
    if not at or "@" in group:
        raise ValueError("it is not TOPIC@GROUP")
    row = members_of({_ENTRY: table[key]}, _ENTRY)
    for queue_id in row:
        if not _QUEUE_ID.fullmatch(queue_id):
            raise ValueError(f"{queue_id[:_SHOWN_LENGTH_MAX]} is no number of a queue")
    return group, topic, {int(one): number_in(row, one, _OFFSET_MAX) for one in row}


def unused_of_topic(row: Mapping[str, Any]) -> str:
    """Return the fields of a topic that have no effect here, as one text for the operator.

    RocketMQ's default values are left out, and a field that is not known here, since its default is
    not known either.
    """
    attributes = dict(row.get("attributes") or {})
    if attributes.get(ATTRIBUTE) in TOPIC_TYPES:
        del attributes[ATTRIBUTE]
    unused = list(_unlike(TOPIC_DEFAULTS, {**row, "attributes": attributes}, ()))
    if row[_READ] != row[_WRITTEN]:
        smaller = min(_READ, _WRITTEN, key=row.__getitem__)
        unused.append(f"{smaller}={row[smaller]}")
    return ", ".join(unused)


def unused_of_group(row: Mapping[str, Any]) -> str:
    """Return the fields of a group that have no effect here, as `unused_of_topic`."""
    unused = list(_unlike(GROUP_DEFAULTS, row, _OBEYED))
    policy = row.get(_RETRY_POLICY) or {}
    kind = policy.get("type", "CUSTOMIZED")
    if kind != "CUSTOMIZED":
        unused.append(f"{_RETRY_POLICY}={_text(policy)}")
    return ", ".join(unused)


def _wrong(name: str, value: object, wanted: str) -> ValueError:
    said = "missing" if value is None else shown(json.dumps(value), _SHOWN_LENGTH_MAX)
    return ValueError(f"{name} is {said}; it must be {wanted}")


def _unlike(
    defaults: Mapping[str, Any], row: Mapping[str, Any], obeyed: Collection[str]
) -> Iterator[str]:
    for name, default in defaults.items():
        value = row.get(name)
        if name not in obeyed and value is not None and value != default:
            yield f"{name}={_text(value)}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
