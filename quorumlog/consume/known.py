"""What a client knows of the stored offset of a group's queue.

Owns the pair. The number of the last move that it has followed goes back to the cluster with each
offset, so a tool's reset is not undone by what was read before it.
"""

from typing import Final, NamedTuple, Self

from quorumlog.pb.consumer_pb2 import GroupOffset


class Known(NamedTuple):
    """A stored offset, and the last move of the group in the queue."""

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
