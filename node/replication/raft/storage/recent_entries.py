"""Positions of the entries that this node wrote last as a leader.

Owns the answer to "where does it lie" for what was just appended, so that the leader does not read
an index that it has just written. Must not know files. Anything that is not an append of a batch
makes it forget all: the log itself has every answer.
"""

from typing import Final

from raft.messages import NO_INDEX, Index

RECENT_ENTRY_COUNT_MAX: Final = 4096
"""Entries whose positions are kept: those in flight to followers that are in step. A power of two.
"""
RECENT_MASK: Final = RECENT_ENTRY_COUNT_MAX - 1


class RecentEntries:
    """Positions of entries [lo, hi), which follow each other, and of the end of the last one."""

    __slots__ = ("hi", "lo", "positions")

    def __init__(self) -> None:
        self.positions = [0] * RECENT_ENTRY_COUNT_MAX
        """Position of entry i of [lo, hi) in place `i & RECENT_MASK`; in that of `hi` the end of
        the last one. Between two of them there may be a blank, at the end of a file."""
        self.lo: Index = NO_INDEX
        self.hi: Index = NO_INDEX - 1
        """The entry after the last one. Below `lo`: nothing is known."""

    def add(self, index: Index, position: int, end_position: int) -> None:
        """Note the place of an entry that was appended."""
        positions = self.positions
        if index != self.hi:
            self.lo = index
        positions[index & RECENT_MASK] = position
        positions[index + 1 & RECENT_MASK] = end_position
        self.hi = index + 1
        if self.hi - self.lo > RECENT_MASK:
            self.lo = self.hi - RECENT_MASK

    def forget(self) -> None:
        """Forget all: entries were written or cut in another way."""
        self.lo, self.hi = NO_INDEX, NO_INDEX - 1
