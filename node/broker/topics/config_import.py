"""Plans an import of topics, groups and offsets: the commands it needs, and what forbids it.

Owns the comparison of the files with the replicated state as a pure function; must not know the
caller or how commands are written. Each command is tried on a copy of the state, so that every
refusal of the state is known, by name, before anything is written. A row that is there already
needs no command: the same files twice change nothing the second time.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from node.broker.core.context import Context
from node.broker.core.offset_moves import commit_command
from node.broker.topics.config_rows import (
    group_in,
    members_of,
    offsets_in,
    row_of,
    topic_in,
    unused_of_group,
    unused_of_topic,
)
from node.errors.common import BadRequestError
from node.state.checkpoint_tables import is_system_group
from node.state.registry import load_table
from node.state.state import State, StateImage
from node.state.tables.group_settings import GroupSettingsTable, to_pb
from node.state.tables.topic_types import Offsets
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.state_pb2 import Command
from store.errors import TopicNameError
from store.record.message import check_topic
from store.record.topic_names import is_of_group, is_reserved

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"
NAMES: Final = (TOPICS, GROUPS, OFFSETS, DELAYS)


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
        table = members_of(load_table(text, is_unique=True), "topicConfigTable")
        for name in sorted(table):
            if is_reserved(name) and not is_of_group(name):
                self.skipped.append(f"{TOPICS}: {name} belongs to the cluster")
                continue
            try:
                check_topic(name.encode())
                row = row_of(table, name, "topicName")
                new = topic_in(row)
            except (TopicNameError, ValueError) as error:
                self.refusals.append(f"{TOPICS}: {name}: {error}")
                continue
            self._warn(TOPICS, name, unused_of_topic(row))
            if self._state.topics.get(name) == new:
                continue
            command = self._context.create_command(Command.PutTopic(topic=name, **new._asdict()))
            self.topic_count += self._try(command, TOPICS, name)

    def _groups(self, text: str) -> None:
        document = load_table(text, is_unique=True)
        table = members_of(document, "subscriptionGroupTable")
        forbidden = members_of(document, "forbiddenTable", is_needed=False)
        for name in sorted(table):
            if not self._is_ours(GROUPS, name):
                continue
            try:
                row = row_of(table, name, "groupName")
                new = group_in(row, members_of(forbidden, name, is_needed=False))
                for topic in new.forbidden_topics:
                    check_topic(topic.encode())
            except (TopicNameError, ValueError) as error:
                self.refusals.append(f"{GROUPS}: {name}: {error}")
                continue
            self._warn(GROUPS, name, unused_of_group(row))
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
        rows = members_of(load_table(text, is_unique=True), "offsetTable")
        for key in rows:
            try:
                group, topic, offsets = offsets_in(rows, key)
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
