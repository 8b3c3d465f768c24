"""Queues that others moved under a member of a group, and what its program may still store of them.

The number of the last move that a client has followed goes back to the cluster with each offset, so
a tool's reset is not undone by what was read before it.

Owns which offsets are of messages that were handed out before a move: storing one would undo it, so
it is refused for as long as the message was not handed out again. Must not know how moves are seen.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from quorumlog.errors import ConflictError
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.records.queues import Queue


class Known(NamedTuple):
    """What a client knows of the stored offset of a group's queue, and of the last move there."""

    offset: int
    """-1: none is stored."""
    move: int | None = None
    """0: there was none; None: not known."""
    unanswered: frozenset[int] = frozenset()
    """Offsets that may be stored since: calls that stored them had no answer."""

    @classmethod
    def of(cls, row: GroupOffset) -> Self:
        """Return what an answer says."""
        return cls(row.offset, row.move)

    def is_surely(self, offset: int) -> bool:
        """Whether this offset is stored, and no call without an answer may have changed that."""
        return self.offset == offset and not self.unanswered

    def may_be(self, row: GroupOffset) -> bool:
        """Whether what is stored, as an answer says, is of an own call without an answer."""
        return row.offset in self.unanswered and self.move in (None, row.move)


UNKNOWN: Final = Known(-1)


@dataclass(slots=True)
class _Moved:
    offset: int
    """Where to; reading went on there."""
    lo: int
    hi: int
    """Offsets behind lo and up to hi are of messages that were handed out before."""
    is_seen: bool
    """Whether a call of the program has said so, or need not."""


class Moves:
    """The moves of one member's queues."""

    def __init__(
        self,
        position: Callable[[Queue], int],
        read_again: Callable[[Collection[Queue]], Awaitable[None]],
    ) -> None:
        """`position` returns the offset behind what was handed out of a queue, and `read_again` has
        the member read on at the stored offsets."""
        self._position = position
        self.read_again: Final = read_again
        self._moved: dict[Queue, _Moved] = {}

    def note(self, queue: Queue, offset: int, stored: int) -> None:
        """Note that a queue goes to an offset; so far `stored` was stored, as the member knows."""
        lo, hi = min(stored, offset), self._position(queue)
        before, is_seen = self._moved.get(queue), stored == hi  # Then nothing is in hand.
        if before is not None:
            lo, hi = min(lo, before.lo), max(hi, before.hi)
            is_seen = is_seen and before.is_seen
        if lo < hi:
            self._moved[queue] = _Moved(offset, lo, hi, is_seen)

    def held(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return where those queues are of which an offset must not be stored."""
        not_seen = {}
        for queue, moved in self._moved.items():
            offset = offsets.get(queue, moved.lo)
            is_old = moved.lo < offset <= moved.hi
            if is_old and not moved.offset <= offset <= self._position(queue):
                not_seen[queue] = moved.offset
        return not_seen

    def take_unseen(self) -> dict[Queue, int]:
        """Count all moves so far as seen by the program. Return where those queues are of which it
        does not see the move otherwise: it has no message from after it."""
        unseen = {
            queue: moved.offset
            for queue, moved in self._moved.items()
            if not moved.is_seen and self._position(queue) == moved.offset
        }
        for moved in self._moved.values():
            moved.is_seen = True
        return unseen

    def forget(self, queues: Iterable[Queue]) -> None:
        """Forget queues that the member has lost."""
        for queue in queues:
            self._moved.pop(queue, None)


def moved_conflict(moved: Mapping[Queue, int]) -> ConflictError:
    """Return the error about queues that others moved, given with their offsets."""
    text = ", ".join(f"{queue} is at {offset}" for queue, offset in sorted(moved.items()))
    return ConflictError(
        f"others consumed queues or reset the group while this member was away: {text}; reading "
        f"goes on there, forget what was made of other messages"
    )
