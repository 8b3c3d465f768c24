"""Offsets and groups that commands under way will change, of all parts of the broker.

Owns the command that stores offsets, and the counts; must not know how a command gets into the log,
or the callers. A part that stores offsets under a condition (`consumed`) has to know the commands
before its own in the log that are not applied yet: while one of them has no condition, the offset
it will leave is unknown. So the way into the log (`own_appends`) notes each command, and not the
features that make them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import ConsumedOffset

_Key = TypeVar("_Key")
OffsetKey = tuple[str, str, int]
"""Consumer group, topic, queue id."""


def commit_command(group: str, rows: Iterable[GroupOffset | ConsumedOffset]) -> Command:
    """Return the command that stores offsets, each under the condition that its row states."""
    command = Command()
    command.commit_offsets.group = group
    for row in rows:
        put = command.commit_offsets.offsets.add(
            topic=row.topic, queue_id=row.queue_id, offset=row.offset
        )
        if isinstance(row, ConsumedOffset):
            put.newest_known = row.expected
        elif row.HasField("newest_known"):
            put.newest_known = row.newest_known
        if row.HasField("move"):
            put.move = row.move
    return command


class CountedSet(Counter[_Key]):
    """What is under way, each key as often as it was begun with `update`."""

    def end(self, keys: Iterable[_Key]) -> None:
        """End keys; none may end more often than it began."""
        for key in keys:
            left = self[key] - 1
            assert left >= 0, f"{key} ends more often than it began"
            if left:
                self[key] = left
            else:
                del self[key]

    @contextmanager
    def noted(self, keys: Iterable[_Key]) -> Iterator[None]:
        """Note keys as under way, for a while."""
        keys = list(keys)
        self.update(keys)
        try:
            yield
        finally:
            self.end(keys)


class Moves(NamedTuple):
    """Changes that some commands may make."""

    offsets: list[OffsetKey]
    groups: list[str]
    """Groups that are created if they do not exist."""
    deleted_groups: list[str]
    deleted_topics: list[str]


class OffsetMoves:
    """Counts the moves of commands under way. One per broker. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self.offsets: Final = CountedSet[OffsetKey]()
        self.groups: Final = CountedSet[str]()
        self.deleted_groups: Final = CountedSet[str]()
        self.deleted_topics: Final = CountedSet[str]()

    def begin(self, commands: Iterable[Command]) -> Moves:
        """Note commands as under way, until the returned value is given to `end`."""
        moves = _moves_of(commands)
        self.offsets.update(moves.offsets)
        self.groups.update(moves.groups)
        self.deleted_groups.update(moves.deleted_groups)
        self.deleted_topics.update(moves.deleted_topics)
        return moves

    def end(self, moves: Moves) -> None:
        """Forget moves whose commands are decided, or could not be written."""
        self.offsets.end(moves.offsets)
        self.groups.end(moves.groups)
        self.deleted_groups.end(moves.deleted_groups)
        self.deleted_topics.end(moves.deleted_topics)


def _moves_of(commands: Iterable[Command]) -> Moves:
    moves = Moves([], [], [], [])
    for command in commands:
        match command.WhichOneof("command"):
            case "commit_offsets":
                commit = command.commit_offsets
                moves.groups.append(commit.group)
                moves.offsets.extend((commit.group, o.topic, o.queue_id) for o in commit.offsets)
            case "pop_take":
                take = command.pop_take
                moves.groups.append(take.group)
                moves.offsets.extend((take.group, take.topic, q.queue_id) for q in take.queues)
            case "pop_settle":
                settle = command.pop_settle
                ids = set(settle.queue_ids)
                moves.offsets.extend((settle.group, settle.topic, number) for number in ids)
            case "put_group":
                moves.groups.append(command.put_group.group)
            case "delete_group":
                moves.deleted_groups.append(command.delete_group.group)
            case "delete_topic":
                moves.deleted_topics.append(command.delete_topic.topic)
            case _:
                pass
    return moves
