"""The replicated state: topics, consumer groups and their offsets, producers, members' addresses.

Owns what each command does, and nothing else: no clock, file, log or random number, so that equal
commands in equal order give equal states on all replicas, however they were cut into portions
(fault-matrix I8). `machine` reads the commands out of the log, `image` encodes states. Whether a
command is refused is decided here, when it is applied, and only here: the leader's checks before it
writes one are a courtesy, since other commands may be on their way. Log positions stand for time:
they are the same on every replica, and they grow.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from node.config.limits import Limits
from node.errors.common import (
    BadRequestError,
    LimitReachedError,
    NodeError,
    TopicExistsError,
    UnknownCommandError,
    UnknownGroupError,
    UnknownQueueError,
    UnknownTopicError,
)
from node.state.registry import TABLES
from node.state.tables.dead_letters import DeadLettersTable
from node.state.tables.moved_offsets import MovedOffsetsTable
from node.state.tables.pop import PopTable
from node.state.tables.table import NOTHING, Table, TableImage
from node.state.tables.topic_origins import TopicOriginsTable
from node.state.tables.topic_types import MIXED, TOPIC_TYPES, Offsets, TopicSettings
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.state_pb2 import Command
from store import format as fmt
from store.record.topic_names import dead_letter_topic, is_of_group, retry_topic

_P = TypeVar("_P", bound=Table)
_TABLE_OF_COMMAND: Final = {command: kind for kind in TABLES for command in kind.commands}

PERMISSION_WRITE: Final = 2
PERMISSION_READ: Final = 4
PERMISSION_ALL: Final = PERMISSION_READ | PERMISSION_WRITE

COMMAND_TOPIC: Final = fmt.COMMAND_TOPIC
SYSTEM_TOPICS: Final = {
    COMMAND_TOPIC: TopicSettings(1, PERMISSION_READ),
    fmt.HALF_TOPIC: TopicSettings(1, 0),
    fmt.HALF_DONE_TOPIC: TopicSettings(1, 0),
    fmt.HALF_GIVEN_UP_TOPIC: TopicSettings(1, PERMISSION_READ),
    fmt.SCHEDULE_TOPIC: TopicSettings(18, PERMISSION_READ),
    fmt.TIMER_TOPIC: TopicSettings(1, PERMISSION_READ),
    fmt.UNDELIVERABLE_TOPIC: TopicSettings(1, PERMISSION_READ),
    fmt.AUDIT_TOPIC: TopicSettings(1, PERMISSION_READ),
}
"""Topics outside the state: there from the beginning, and for clients at most to read. No client
reads half messages: `DescribeTransaction` shows them."""

INTERNAL_TOPICS: Final = frozenset(
    {COMMAND_TOPIC, fmt.HALF_TOPIC, fmt.HALF_DONE_TOPIC, fmt.SCHEDULE_TOPIC, fmt.TIMER_TOPIC}
)
"""Topics of what the cluster keeps for itself, or does not hand out yet. No group and no client of
RocketMQ reads them, and no look-up finds their records; people pull those with the permission, by
the SDK without a group."""


class Member(NamedTuple):
    """Addresses of a node: host:port of its client service and of its peer link."""

    address: str
    peer_address: str


class ProducerState:
    """The last batches of one idempotent producer."""

    __slots__ = ("frozen_positions", "last_sequence", "positions")

    def __init__(self, last_sequence: int, positions: deque[int]) -> None:
        self.frozen_positions: tuple[int, ...] | None = None
        """Copy for images; None since a change."""
        self.last_sequence = last_sequence
        self.positions = positions
        """Log position of the command record of each of the last batches, in sequence order.
        Invariant: the last one belongs to `last_sequence`."""

    @property
    def first_kept(self) -> int:
        """The oldest sequence whose position is known."""
        return self.last_sequence - len(self.positions) + 1

    def position_of(self, sequence: int) -> int | None:
        """Return the position of a batch's command record; None if it is too old."""
        at = sequence - self.first_kept
        return self.positions[at] if at >= 0 else None


class Versions(NamedTuple):
    """Counts of changes of each table: RocketMQ's dataVersion counters."""

    topics: int = 0
    groups: int = 0
    offsets: int = 0
    producers: int = 0
    members: int = 0


class StateImage(NamedTuple):
    """All of a state at one moment, never changed: for checkpoints, snapshots and comparisons."""

    applied_index: int
    next_command_offset: int
    versions: Versions
    topics: dict[str, TopicSettings]
    groups: dict[str, Offsets]
    producers: tuple[tuple[int, int, tuple[int, ...]], ...]
    """(id, last sequence, positions); the producer silent for longest comes first."""
    members: dict[int, Member]
    refused_count: int
    tables: dict[str, TableImage]
    """By name; a table that was never changed may be missing."""


EMPTY_IMAGE: Final = StateImage(-1, 0, Versions(), {}, {}, (), {}, 0, {})


class State:
    """The tables, and what commands do to them. Belongs to the loop's thread."""

    def __init__(self, limits: Limits, image: StateImage = EMPTY_IMAGE) -> None:
        self._limits = limits
        self.applied_index = image.applied_index
        """Everything up to this entry is in the state; the machine moves it."""
        self.next_command_offset = image.next_command_offset
        """Queue offset of the first command that is not in the state."""
        self.topics: Final = dict(image.topics)
        self.groups: Final = {
            name: {topic: dict(offsets) for topic, offsets in group.items()}
            for name, group in image.groups.items()
        }
        self.producers: Final = OrderedDict(
            (producer_id, ProducerState(last, deque(positions, limits.producer_window_count)))
            for producer_id, last, positions in image.producers
        )
        """By id; the producer silent for longest comes first."""
        self._newest_producer_id = -1
        """The last one in `producers`, which need not be moved there; -1 while it is not known."""
        self._frozen_groups: Final = dict(image.groups)
        """Copies for images; a group that was changed since has none."""
        self.members: Final = dict(image.members)
        self.refused_count = image.refused_count
        """Commands that were applied and changed nothing, because a rule forbids it."""
        self.versions: Final = image.versions._asdict()
        """Counts of changes, by the names of `Versions`."""
        self.queue_total_count = sum(topic.queue_count for topic in self.topics.values())
        self.offset_count = sum(map(_offset_count, self.groups.values()))
        self.digest_command: Command | None = None
        """The last command with a digest point or a digest, until the machine takes it. Such a
        command changes nothing."""
        self._tables: Final = {
            kind: kind(limits, image.tables.get(kind.name, NOTHING)) for kind in TABLES
        }

    def image(self) -> StateImage:
        """Return a copy of everything. Unchanged groups and producers are not copied again."""
        frozen = self._frozen_groups
        for name, group in self.groups.items():
            if name not in frozen:
                frozen[name] = {topic: dict(offsets) for topic, offsets in group.items()}
        producers = []
        for producer_id, producer in self.producers.items():
            positions = producer.frozen_positions
            if positions is None:
                positions = producer.frozen_positions = tuple(producer.positions)
            producers.append((producer_id, producer.last_sequence, positions))
        return StateImage(
            self.applied_index,
            self.next_command_offset,
            Versions(**self.versions),
            dict(self.topics),
            dict(frozen),
            tuple(producers),
            dict(self.members),
            self.refused_count,
            {
                table.name: TableImage(table.version, table.content())
                for table in self._tables.values()
                if table.version
            },
        )

    def table(self, table_class: type[_P]) -> _P:
        """Return the table of a feature."""
        table = self._tables[table_class]
        assert isinstance(table, table_class), f"{table}"
        return table

    def topic(self, name: str) -> TopicSettings | None:
        """Return a topic, one of the system included."""
        return self.topics.get(name) or SYSTEM_TOPICS.get(name)

    # --- Commands ---

    def apply_command(self, command: Command, position: int) -> NodeError | None:
        """Apply a command; return the refusal if it changes nothing, else None.

        `position` is that of its record in the log. Raises UnknownCommandError for a command of a
        newer version: a replica that passed it over would differ from the others permanently.
        """
        batch = command.producer_batch
        # Nearly all commands are such batches. One that is not has the id 0 there.
        which = "producer_batch" if batch.producer_id else command.WhichOneof("command")
        match which:
            case "producer_batch":
                refusal = self._producer_batch(batch.producer_id, batch.sequence, position)
            case "commit_offsets":
                refusal = self._commit_offsets(command.commit_offsets, position)
            case "put_topic":
                refusal = self._put_topic(command.put_topic)
            case "recreate_topic":
                refusal = self._recreate_topic(command.recreate_topic, position)
            case "delete_topic":
                refusal = self._delete_topic(command.delete_topic.topic)
            case "delete_group":
                refusal = self._delete_group(command.delete_group.group, position)
            case "put_member":
                refusal = self._put_member(command.put_member)
                if command.HasField("digest_point") or command.HasField("state_digest"):
                    self.digest_command = command
            case str() if which in _TABLE_OF_COMMAND:
                table = self._tables[_TABLE_OF_COMMAND[which]]
                refusal = table.apply(self, command, position)
            case _:
                raise UnknownCommandError(position)
        if refusal is not None:
            self.refused_count += 1
        return refusal

    def _producer_batch(self, producer_id: int, sequence: int, position: int) -> NodeError | None:
        """Note a batch. The leader has admitted it, so its sequence follows the last one.

        If it does not follow, the records are in the log all the same: a later retry must find the
        newest, so the window begins again; an older one changes nothing.
        """
        producers = self.producers
        producer = producers[producer_id] if producer_id in producers else None  # noqa: SIM401
        self.versions["producers"] += 1
        if producer is None:
            if len(producers) >= self._limits.producer_count_max:
                producers.popitem(last=False)
            window = self._limits.producer_window_count
            producers[producer_id] = ProducerState(sequence, deque((position,), window))
            self._newest_producer_id = producer_id
            return None
        expected = producer.last_sequence + 1
        producer.frozen_positions = None
        if sequence == expected:
            producer.positions += (position,)
            producer.last_sequence = sequence
            if producer_id != self._newest_producer_id:
                producers.move_to_end(producer_id)
                self._newest_producer_id = producer_id
            return None
        if sequence > expected:
            producer.positions.clear()
            producer.positions.append(position)
            producer.last_sequence = sequence
            producers.move_to_end(producer_id)
            self._newest_producer_id = producer_id
        return BadRequestError("sequence", str(expected), str(sequence))

    def _commit_offsets(self, command: Command.CommitOffsets, position: int) -> NodeError | None:
        """Store offsets, all or none; pop messages in flight of these queues are forgotten.

        One that others have moved from what the caller knows stays."""
        rows = [row for row in command.offsets if self.moved_offset(command.group, row) is None]
        if len(rows) < len(command.offsets):
            command = Command.CommitOffsets(group=command.group, offsets=rows)
        moved = self.table(MovedOffsetsTable)
        moving = [row for row in rows if not row.HasField("newest_known")]
        following = [
            row
            for row in rows
            if row.HasField("move") or self._stored(command.group, row) == row.newest_known
        ]
        refusal = self._store_offsets(command)
        if refusal is not None:
            return refusal
        self.table(PopTable).reset(command.group, ((row.topic, row.queue_id) for row in rows))
        moved.follow(command.group, ((row.topic, row.queue_id) for row in following))
        moved.move(command.group, ((row.topic, row.queue_id) for row in moving), position)
        return None

    def _stored(self, group: str, row: "Command.Offset | GroupOffset") -> int | None:
        return self.groups.get(group, {}).get(row.topic, {}).get(row.queue_id)

    def moved_offset(self, group: str, row: "Command.Offset | GroupOffset") -> int | None:
        """Return the stored offset of a queue if others moved it, back or forward, from what a
        member knows to be stored; else None.

        Between that and what the member stores now lies at most what it stored without an answer,
        unless a tool has moved the group since, or may have: a member that does not say which move
        it has followed knows what is stored, or a move that another one has followed.
        """
        stored = self._stored(group, row)
        if stored is None or not row.HasField("newest_known"):
            return None
        newest_known, followed = row.newest_known, row.move if row.HasField("move") else None
        move = self.table(MovedOffsetsTable).of(group, row.topic, row.queue_id)
        is_news = move is not None and move.is_news(followed)
        if is_news and followed is not None:
            return stored
        if stored == row.offset:
            return None
        if is_news:
            return None if newest_known == stored else stored
        return None if newest_known <= stored <= max(row.offset, newest_known) else stored

    def store_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> NodeError | None:
        """Store offsets of queues of one topic, for tables; all or none."""
        if not offsets:
            return None
        command = Command.CommitOffsets(group=group)
        for queue_id, offset in offsets.items():
            command.offsets.add(topic=topic, queue_id=queue_id, offset=offset)
        return self._store_offsets(command)

    def _store_offsets(self, command: Command.CommitOffsets) -> NodeError | None:
        """Store offsets, all or none. The first commit creates the group."""
        limits, group = self._limits, self.groups.get(command.group)
        refusal = self._room_for_group(command.group)
        if refusal is not None:
            return refusal
        for offset in command.offsets:
            refusal = self.queue_refusal(offset.topic, offset.queue_id)
            if refusal is None and offset.offset < 0:
                refusal = BadRequestError("offset", "0 or more", str(offset.offset))
            if refusal is not None:
                return refusal
        new = {
            (o.topic, o.queue_id)
            for o in command.offsets
            if group is None or o.queue_id not in group.get(o.topic, ())
        }
        held = _offset_count(group) if group is not None and new else 0
        if held + len(new) > limits.group_offset_count_max:
            count = held + len(new)
            return LimitReachedError("offsets of a group", count, limits.group_offset_count_max)
        if self.offset_count + len(new) > limits.offset_count_max:
            count = self.offset_count + len(new)
            return LimitReachedError("offsets of all groups", count, limits.offset_count_max)
        if group is None:
            group = self.groups[command.group] = {}
            self.versions["groups"] += 1
        self._frozen_groups.pop(command.group, None)
        for offset in command.offsets:
            group.setdefault(offset.topic, {})[offset.queue_id] = offset.offset
        self.offset_count += len(new)
        self.versions["offsets"] += 1
        return None

    def make_group(self, name: str) -> NodeError | None:
        """Create a group without offsets, unless it exists; for tables."""
        refusal = self._room_for_group(name)
        if refusal is None and name not in self.groups:
            self.groups[name] = {}
            self.versions["groups"] += 1
        return refusal

    def _room_for_group(self, name: str) -> NodeError | None:
        limit = self._limits.group_count_max
        if name in self.groups or len(self.groups) < limit:
            return None
        return LimitReachedError("groups", len(self.groups) + 1, limit)

    def queue_refusal(self, name: str, queue_id: int) -> NodeError | None:
        """Return the refusal of a queue that no topic of clients has; else None."""
        topic = self.topics.get(name)
        if topic is None:
            return UnknownTopicError(name)
        if not 0 <= queue_id < topic.queue_count:
            return UnknownQueueError(name, queue_id, topic.queue_count)
        return None

    def _put_topic(self, command: Command.PutTopic) -> NodeError | None:
        """Create a topic, or change its permission or raise its queue count.

        The retry and dead-letter topic of a group come with the group and share its limit: the
        entry that needs one must not be refused for lack of room.
        """
        limits, name = self._limits, command.topic
        old, queue_count = self.topics.get(name), command.queue_count
        if old is not None and command.must_be_new:
            return TopicExistsError(name, old.queue_count)
        if queue_count > limits.queue_count_max:
            return LimitReachedError("queues of a topic", queue_count, limits.queue_count_max)
        message_type = command.message_type or (MIXED if old is None else old.message_type)
        if message_type not in TOPIC_TYPES:
            expected = f"one of {', '.join(TOPIC_TYPES)}"
            return BadRequestError("message_type", expected, repr(message_type[:64]))
        least = 1 if old is None else old.queue_count
        if queue_count < least:
            expected = f"{least} or more: the number of queues can only grow"
            return BadRequestError("queue_count", expected, str(queue_count))
        is_limited = not is_of_group(name)
        if is_limited and old is None and len(self.topics) >= limits.topic_count_max:
            return LimitReachedError("topics", len(self.topics) + 1, limits.topic_count_max)
        total = self.queue_total_count + queue_count - (old.queue_count if old else 0)
        if is_limited and total > limits.queue_total_count_max:
            return LimitReachedError("queues of all topics", total, limits.queue_total_count_max)
        self.topics[name] = TopicSettings(queue_count, command.permission, message_type)
        self.queue_total_count = total
        self.versions["topics"] += 1
        return None

    def _recreate_topic(self, command: Command.PutTopic, position: int) -> NodeError | None:
        """As `_put_topic`; a topic that is created begins behind the command, not at the records
        that the log has of an older topic of that name."""
        is_created = command.topic not in self.topics
        refusal = self._put_topic(command)
        if is_created and refusal is None:
            self.table(TopicOriginsTable).note(command.topic, position)
        return refusal

    def _delete_topic(self, name: str) -> NodeError | None:
        """Delete a topic and the offsets that groups have stored of it.

        Its records stay in the log until they expire. A topic that gets the name again has none of
        them (`TopicOriginsTable`), and continues the queue offsets behind them. It never begins
        at 0: an offset names one message permanently, and message ids, consumers and the derived
        files rely on it.
        """
        topic = self.topics.pop(name, None)
        if topic is None:
            return UnknownTopicError(name)
        self.queue_total_count -= topic.queue_count
        self.versions["topics"] += 1
        for group_name, group in self.groups.items():
            offsets = group.pop(name, None)
            if offsets is not None:
                self._frozen_groups.pop(group_name, None)
                self.offset_count -= len(offsets)
                self.versions["offsets"] += 1
        for table in self._tables.values():
            table.forget_topic(name)
        return None

    def _delete_group(self, name: str, position: int) -> NodeError | None:
        """Delete a group, its offsets and its own two topics."""
        group = self.groups.pop(name, None)
        if group is None:
            return UnknownGroupError(name)
        if dead_letter_topic(name) in self.topics:
            self.table(DeadLettersTable).note_deleted(name, position)
        for topic in (retry_topic(name), dead_letter_topic(name)):
            if topic in self.topics:
                self._delete_topic(topic)
        self._frozen_groups.pop(name, None)
        self.offset_count -= _offset_count(group)
        self.versions["groups"] += 1
        self.versions["offsets"] += 1
        for table in self._tables.values():
            table.forget_group(name)
        return None

    def _put_member(self, command: Command.PutMember) -> NodeError | None:
        """Store a node's addresses; without any the node is forgotten."""
        node, limit = command.node_id, self._limits.member_count_max
        if not command.address and not command.peer_address:
            self.members.pop(node, None)
        elif node not in self.members and len(self.members) >= limit:
            return LimitReachedError("known nodes", len(self.members) + 1, limit)
        else:
            self.members[node] = Member(command.address, command.peer_address)
        self.versions["members"] += 1
        return None


def _offset_count(group: Offsets) -> int:
    return sum(map(len, group.values()))
