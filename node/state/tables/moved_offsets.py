"""The last move of a group in each queue: a tool stored an offset there without asking a consumer.

Owns the moves. A tool moves a group while its consumers are away, paused or connected to any node;
what they store from what they knew before must not undo it, not even where the move ends at the
offset that was stored. So a move has a number, a consumer says which one it has followed, and the
number stays until the group or the topic is deleted.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from node.config.limits import Limits
from node.state.tables.table import Table, TableContent, TableImage


class Move(NamedTuple):
    """A move of a group in a queue."""

    number: int
    """Log position of the command that moved it, which no other move of the queue has."""
    is_followed: bool
    """Whether a consumer has stored an offset since that knew of it."""

    def is_news(self, followed: int | None) -> bool:
        """Whether a consumer may not know of it that has followed a move, 0 for none; None: it
        does not say, and is believed where another one has followed this one."""
        return self.number != followed if followed is not None else not self.is_followed


Moves = Mapping[str, list[list[int]]]
"""Of one group, by topic: rows of queue id, number and `is_followed`, in order of queue ids."""


def move_in(moves: Moves, topic: str, queue_id: int) -> Move | None:
    """Return the last move in a queue; None: there was none."""
    rows = moves.get(topic, [])
    at = bisect_left(rows, queue_id, key=lambda row: row[0])
    if at == len(rows) or rows[at][0] != queue_id:
        return None
    return Move(rows[at][1], bool(rows[at][2]))


class MovedOffsetsTable(Table):
    """Groups to their moves. It has no commands: `State` notes what its own do. There are at most
    as many moves as stored offsets."""

    name, file_name = "moved_offsets", "movedOffsets.json"

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        (groups,) = self._parts(image, groups={})
        for topics in groups.values():
            for rows in topics.values():
                if not all(isinstance(row, list) and len(row) == 3 for row in rows):
                    raise ValueError(f"moved offsets of an unknown form: {rows[:3]}")
        self._groups: Final[dict[str, Any]] = dict(groups)
        """Parts of images: replaced, never changed."""
        rows = (row for topics in groups.values() for rows in topics.values() for row in rows)
        self.newest = max((row[1] for row in rows), default=0)
        """Number of the newest move of any group; 0: there is none. All later ones have higher."""

    def of(self, group: str, topic: str, queue_id: int) -> Move | None:
        """Return the last move of a group in a queue; None: there was none."""
        return move_in(self.of_group(group), topic, queue_id)

    def of_group(self, group: str) -> Moves:
        """Return the moves of a group, for `move_in`: they stay as they are now."""
        moves: Moves = self._groups.get(group, {})
        return moves

    def move(self, group: str, queues: Iterable[tuple[str, int]], number: int) -> None:
        """Note that a group was moved in queues."""
        moves = [(topic, queue_id, Move(number, False)) for topic, queue_id in queues]
        if moves:
            self.newest = number
            self._put(group, moves)

    def follow(self, group: str, queues: Iterable[tuple[str, int]]) -> None:
        """Note that a consumer knows of the last move of a group in queues, if there is one."""
        moves = ((topic, queue_id, self.of(group, topic, queue_id)) for topic, queue_id in queues)
        new = [(t, i, Move(move.number, True)) for t, i, move in moves if move and not move[1]]
        self._put(group, new)

    def _put(self, group: str, moves: Iterable[tuple[str, int, Move]]) -> None:
        put: dict[str, dict[int, list[int]]] = {}
        topics = self._groups.get(group, {})
        for topic, queue_id, (number, is_followed) in moves:
            if topic not in put:
                put[topic] = {row[0]: row for row in topics.get(topic, ())}
            put[topic][queue_id] = [queue_id, number, int(is_followed)]
        if put:
            changed = {topic: [rows[i] for i in sorted(rows)] for topic, rows in put.items()}
            self._groups[group] = topics | changed
            self._changed()

    def forget_topic(self, name: str) -> None:
        """Forget the moves in a topic that was deleted."""
        for group in [group for group, topics in self._groups.items() if name in topics]:
            left = {topic: rows for topic, rows in self._groups[group].items() if topic != name}
            if left:
                self._groups[group] = left
            else:
                del self._groups[group]
            self._changed()

    def forget_group(self, name: str) -> None:
        """Forget the moves of a group that was deleted."""
        if self._groups.pop(name, None) is not None:
            self._changed()

    def _copy(self) -> TableContent:
        return {"groups": dict(self._groups)}
