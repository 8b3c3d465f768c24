"""Topics, groups and offsets as the files of RocketMQ: exported, and imported from such files.

Owns the two calls, the types of what an import reads, and the plan of an import: the comparison of
the files with the replicated state as a pure function, which names the commands that it needs and
what forbids it; `checkpoint_tables` owns the shapes. A fault of a row names the field and what it
must be; a field that is null is one that is missing, as for RocketMQ's reader. Each command is
tried on a copy of the state, so that every refusal of the state is known, by name, before anything
is written. All of an import is one entry, so it happens as a whole. A row that is there already
needs no command: the same files twice change nothing the second time.
"""

import asyncio
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.broker.core.offset_moves import commit_command
from node.errors.common import BadRequestError
from node.state.checkpoint_tables import (
    GROUP_DEFAULTS,
    SETTINGS,
    TOPIC_DEFAULTS,
    Json,
    files_of,
    is_system_group,
    settings_in,
)
from node.state.registry import load_table
from node.state.state import PERMISSION_ALL, State, StateImage
from node.state.tables.group_settings import (
    DEFAULT,
    GroupSettingsTable,
    SubscriptionSettings,
    to_pb,
)
from node.state.tables.topic_types import (
    ATTRIBUTE,
    TOPIC_TYPES,
    Offsets,
    TopicSettings,
    type_of_attributes,
)
from quorumlog.foreign_text import shown
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.retry_pb2 import (
    ConfigFile,
    ExportConfigFilesRequest,
    ExportConfigFilesResponse,
    ImportConfigFilesRequest,
    ImportConfigFilesResponse,
)
from quorumlog.pb.state_pb2 import Command
from store.errors import TopicNameError
from store.record.message import check_topic
from store.record.topic_names import is_of_group, is_reserved

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"
NAMES: Final = (TOPICS, GROUPS, OFFSETS, DELAYS)
_INT32_MAX: Final = (1 << 31) - 1
_OFFSET_MAX: Final = (1 << 63) - 1
_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,8}")
_ENTRY: Final = "the entry"
_SHOWN_LENGTH_MAX: Final = 40
_READ, _WRITTEN = "readQueueNums", "writeQueueNums"
_RETRY_POLICY: Final = "groupRetryPolicy"
_OBEYED: Final = frozenset(SETTINGS.values()) | {_RETRY_POLICY}
_SHOWN_MAX: Final = 1_000  # Limit of one answer and kind: what an operator corrects at once.


class ConfigFiles:
    """The calls about RocketMQ's files. One per broker."""

    def __init__(self, context: Context, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._own_appends = own_appends

    async def export_config_files(
        self, _request: ExportConfigFilesRequest
    ) -> ExportConfigFilesResponse:
        """Return the files as of everything that was acknowledged before the call."""
        context = self._context
        context.check_leads()
        image, now_unix_ms = context.machine.image(), context.unix_ms()
        # Not on the loop: many offsets are megabytes of text.
        texts = await asyncio.to_thread(_texts, image, now_unix_ms)
        files = [ConfigFile(name=name, text=text) for name, text in texts.items()]
        return ExportConfigFilesResponse(files=files)

    async def import_config_files(
        self, request: ImportConfigFilesRequest
    ) -> ImportConfigFilesResponse:
        """Create topics, groups and offsets from files; all of it or, with the reasons, nothing.

        Changes by other calls at the same moment may still forbid a part: the reason is among the
        refusals. Raises LimitExceededError for more than one entry can hold, and as
        `OwnAppends.write`.
        """
        context = self._context
        context.check_cluster(request.cluster_id)
        context.check_leads()
        files = {file.name: file.text for file in request.files}
        plan = await asyncio.to_thread(ImportPlan, context, context.machine.image(), files)
        response = ImportConfigFilesResponse(
            refusals=_shown(plan.refusals),
            skipped=_shown(plan.skipped),
            warnings=_shown(plan.warnings),
        )
        if plan.refusals:
            return response
        if plan.commands and not request.is_dry_run:
            written = await self._own_appends.write(b"", plan.commands)
            positions = written.result.record_positions
            refused = map(context.machine.take_refusal, positions)
            response.refusals.extend(str(refusal) for refusal in refused if refusal is not None)
        response.topic_count = plan.topic_count
        response.group_count = plan.group_count
        response.offset_count = plan.offset_count
        return response


def _shown(lines: list[str]) -> list[str]:
    """Return as many as an answer holds; the last one says how many are left out."""
    lines = [shown(line) for line in lines]  # Names of others may have no UTF-8.
    if len(lines) <= _SHOWN_MAX:
        return lines
    left = len(lines) - _SHOWN_MAX + 1
    return [*lines[: _SHOWN_MAX - 1], f"and {left} more"]


def _texts(image: StateImage, unix_ms: int) -> dict[str, str]:
    files = (file for file in files_of(image) if file.name in NAMES)
    texts = {file.name: file.encode(image, unix_ms) for file in files}
    texts.setdefault(DELAYS, '{\n\t"offsetTable":{}\n}\n')
    return texts


class ImportPlan:
    """The commands that an import needs, and the reasons against it."""

    def __init__(self, context: Context, image: StateImage, files: Mapping[str, str]) -> None:
        """Plan for these files, by name; `image` is the state to compare them with."""
        self._state = State(context.limits, image)
        self._context = context
        self.commands: list[Command] = []
        self.refusals: list[str] = []
        self.skipped: list[str] = []
        self.warnings: list[str] = []
        self.topic_count = self.group_count = self.offset_count = 0
        for name in files.keys() - set(NAMES):
            self.refusals.append(f"{name}: not one of {', '.join(NAMES)}")
        for name, read in (
            (TOPICS, self._topics),
            (GROUPS, self._groups),
            (OFFSETS, self._offsets),
        ):
            if name in files:
                try:
                    read(files[name])
                except (ValueError, TypeError) as error:
                    self.refusals.append(f"{name}: not such a table: {error}")
        if DELAYS in files:
            self.skipped.append(f"{DELAYS}: how far deliveries have come is the log's own")

    def _try(self, command: Command, file: str, name: str) -> bool:
        """Add a command, unless the state would refuse it; return whether it was added."""
        refusal = self._state.apply_command(command, 0)
        if refusal is None:
            self.commands.append(command)
            return True
        self.refusals.append(f"{file}: {name}: {refusal}")
        return False

    def _topics(self, text: str) -> None:
        table = _members_of(load_table(text, is_unique=True), "topicConfigTable")
        for name in sorted(table):
            if is_reserved(name) and not is_of_group(name):
                self.skipped.append(f"{TOPICS}: {name} belongs to the cluster")
                continue
            try:
                check_topic(name.encode())
                row = _row_of(table, name, "topicName")
                new = _topic_in(row)
            except (TopicNameError, ValueError) as error:
                self.refusals.append(f"{TOPICS}: {name}: {error}")
                continue
            self._warn(TOPICS, name, _unused_of_topic(row))
            if self._state.topics.get(name) == new:
                continue
            command = self._context.create_command(Command.PutTopic(topic=name, **new._asdict()))
            self.topic_count += self._try(command, TOPICS, name)

    def _groups(self, text: str) -> None:
        document = load_table(text, is_unique=True)
        table = _members_of(document, "subscriptionGroupTable")
        forbidden = _members_of(document, "forbiddenTable", is_needed=False)
        for name in sorted(table):
            if not self._is_ours(GROUPS, name):
                continue
            try:
                row = _row_of(table, name, "groupName")
                new = _group_in(row, _members_of(forbidden, name, is_needed=False))
                for topic in new.forbidden_topics:
                    check_topic(topic.encode())
            except (TopicNameError, ValueError) as error:
                self.refusals.append(f"{GROUPS}: {name}: {error}")
                continue
            self._warn(GROUPS, name, _unused_of_group(row))
            old = self._state.table(GroupSettingsTable).of(name)
            if name in self._state.groups and new == old:
                continue
            put = Command.PutGroup(group=name, settings=to_pb(new))
            self.group_count += self._try(Command(put_group=put), GROUPS, name)

    def _warn(self, file: str, name: str, unused: str) -> None:
        if unused:
            self.warnings.append(f"{file}: {name}: has no effect here: {unused}")

    def _is_ours(self, file: str, name: str) -> bool:
        """Whether a group may be imported; if not, note why."""
        if is_system_group(name):
            self.skipped.append(f"{file}: {name} is a group of RocketMQ's own")
            return False
        try:
            self._context.check_name("group", name)
        except BadRequestError:
            self.refusals.append(f"{file}: {name!r} is no name for a group")
            return False
        return True

    def _offsets(self, text: str) -> None:
        groups: dict[str, Offsets] = {}
        rows = _members_of(load_table(text, is_unique=True), "offsetTable")
        for key in rows:
            try:
                group, topic, offsets = _offsets_in(rows, key)
            except ValueError as error:
                self.refusals.append(f"{OFFSETS}: {key}: {error}")
                continue
            groups.setdefault(group, {})[topic] = offsets
        for name, table in sorted(groups.items()):
            if not self._is_ours(OFFSETS, name):
                continue
            new = list(self._new_offsets(name, table))
            if new and self._try(commit_command(name, new), OFFSETS, name):
                self.offset_count += len(new)

    def _new_offsets(
        self, group: str, table: Mapping[str, Mapping[int, int]]
    ) -> Iterator[GroupOffset]:
        """Yield offsets that differ, and note those behind the end of a queue."""
        stored = self._state.groups.get(group, {})
        for topic, offsets in sorted(table.items()):
            if is_reserved(topic) and not is_of_group(topic):
                self.skipped.append(f"{OFFSETS}: {topic}@{group} belongs to the cluster")
                continue
            for queue_id, offset in sorted(offsets.items()):
                if stored.get(topic, {}).get(queue_id) == offset:
                    continue
                hi = self._context.store.queue_range(topic, queue_id)[1]
                if offset > hi:
                    where = f"{topic}@{group}, queue {queue_id}"
                    text = f"offset {offset} is behind the end of the queue, {hi}"
                    self.refusals.append(f"{OFFSETS}: {where}: {text}")
                else:
                    yield GroupOffset(topic=topic, queue_id=queue_id, offset=offset)


# --- Rows of the tables ---


def _members_of(document: Json, name: str, *, is_needed: bool = True) -> Json:
    """Return an object within another. Raises ValueError."""
    rows = document.get(name)
    if rows is None and not is_needed:
        return {}
    if type(rows) is not dict:
        raise _wrong(name, rows, "an object")
    return rows


def _row_of(table: Json, name: str, own_name: str) -> Json:
    """Return the row of a topic or group, which may repeat its name. Raises ValueError."""
    row = _members_of({_ENTRY: table[name]}, _ENTRY)
    row = {field: value for field, value in row.items() if value is not None}
    if row.get(own_name, name) != name:
        raise _wrong(own_name, row[own_name], f"{name}, as the entry")
    return row


def _number_in(row: Mapping[str, Any], name: str, hi: int = _INT32_MAX, lo: int = 0) -> int:
    value = row.get(name)
    if type(value) is not int or not lo <= value <= hi:
        raise _wrong(name, value, f"a whole number from {lo} to {hi}")
    return value


def _topic_in(row: Json) -> TopicSettings:
    queue_count = max(_number_in(row, "writeQueueNums"), _number_in(row, "readQueueNums"))
    attributes = _members_of(row, "attributes", is_needed=False)
    permission = _number_in(row, "perm") & PERMISSION_ALL
    return TopicSettings(queue_count, permission, type_of_attributes(attributes))


def _group_in(row: Json, forbidden: Json) -> SubscriptionSettings:
    """Return the settings of a group; `forbidden` has bits for each topic. Raises ValueError."""
    for ours, theirs in SETTINGS.items():
        if type(getattr(DEFAULT, ours)) is not bool and theirs in row:
            _number_in(row, theirs)
        elif theirs in row and type(row[theirs]) is not bool:
            raise _wrong(theirs, row[theirs], "true or false")
    for topic in forbidden:
        _number_in(forbidden, topic, lo=-_INT32_MAX - 1)  # All bits are -1.
    return settings_in(row, forbidden)


def _offsets_in(table: Json, key: str) -> tuple[str, str, dict[int, int]]:
    """Return group, topic, and the offset of each queue in the row TOPIC@GROUP. Raises
    ValueError."""
    topic, at, group = key.partition("@")
    if not at or "@" in group:
        raise ValueError("it is not TOPIC@GROUP")
    row = _members_of({_ENTRY: table[key]}, _ENTRY)
    for queue_id in row:
        if not _QUEUE_ID.fullmatch(queue_id):
            raise ValueError(f"{queue_id[:_SHOWN_LENGTH_MAX]} is no number of a queue")
    return group, topic, {int(one): _number_in(row, one, _OFFSET_MAX) for one in row}


def _unused_of_topic(row: Mapping[str, Any]) -> str:
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


def _unused_of_group(row: Mapping[str, Any]) -> str:
    """Return the fields of a group that have no effect here, as `_unused_of_topic`."""
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
