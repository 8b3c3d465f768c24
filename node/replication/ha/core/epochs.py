"""The epochs of a log: which master wrote which bytes.

Owns the list and its three rules (append, consistent point, truncation); must not know files or
roles. Sources: storage-formats 6.7, RocketMQ EpochFileCache. An epoch that begins where its
predecessor begins replaces it: there is no byte of the older one (RocketMQ drops the newer one, and
two masters of one position then look the same).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

from node.replication.ha.core.types import NO_EPOCH, EpochStart

EPOCHS_KEPT_MAX: Final = 1000
"""Count that one handshake carries. Older epochs are forgotten from the front."""


class Rank(NamedTuple):
    """How a fence compares logs: the last epoch counts first, then the length."""

    epoch: int
    end: int


class Epochs:
    """Ascending in number and in start. Methods get the `end` of the log where they need it."""

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries = list(entries)
        for before, after in itertools.pairwise(self._entries):
            assert before.number < after.number, f"{before} then {after}"
            assert before.start < after.start, f"{before} then {after}"

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """Epochs, oldest first."""
        return tuple(self._entries)

    @property
    def last(self) -> EpochStart:
        """The newest epoch; number NO_EPOCH if there is none."""
        return self._entries[-1] if self._entries else EpochStart(NO_EPOCH, 0)

    def append(self, number: int, start: int) -> None:
        """Begin an epoch at `start`, the end of the log."""
        last = self.last
        assert number > last.number, f"epoch {number} after {last.number}"
        if self._entries:
            assert start >= last.start, f"epoch {number} starts at {start}, before {last.start}"
            if start == last.start:
                self._entries.pop()
        self._entries.append(EpochStart(number, start))
        del self._entries[:-EPOCHS_KEPT_MAX]

    def adopt(self, other: Epochs, end: int) -> bool:
        """Append epochs of `other` that this list lacks, up to the end of the log; return whether
        any.

        Call it at a consistent point, so that both lists tell one history.
        """
        changed = False
        for number, start in other._entries:
            if number > self.last.number and start <= end:
                self.append(number, start)
                changed = True
        return changed

    def at(self, position: int) -> EpochStart:
        """Return the epoch of the byte at `position`; NO_EPOCH before the first."""
        start = EpochStart(NO_EPOCH, 0)
        for entry in self._entries:
            if entry.start > position:
                break
            start = entry
        return start

    def end_of(self, number: int, end: int) -> int:
        """Return where an epoch of this list ends; the last ends with the log."""
        for at, entry in enumerate(self._entries):
            if entry.number == number:
                return self._entries[at + 1].start if at + 1 < len(self._entries) else end
        raise AssertionError(f"epoch {number} is not in {self._entries}")

    def consistent_point(self, end: int, other: Epochs, other_end: int) -> int | None:
        """Return the position up to which two logs are equal; None if they have no common epoch."""
        starts = dict(other._entries)
        for number, start in reversed(self._entries):
            if starts.get(number) == start:
                return min(self.end_of(number, end), other.end_of(number, other_end))
        return None

    def truncate(self, point: int, other: Epochs) -> None:
        """Drop the epochs above a consistent point with `other`.

        An epoch that begins at the point itself stays if the other side has it, too.
        """
        theirs = set(other._entries)
        while self._entries and (self.last.start > point or self.last not in theirs):
            self._entries.pop()

    def trim(self, end: int) -> bool:
        """Drop epochs that begin behind the end of the log, after a crash; return whether any."""
        count = len(self._entries)
        self._entries = [entry for entry in self._entries if entry.start <= end]
        return len(self._entries) < count

    def rank(self, end: int) -> Rank:
        """Return the rank of a log that ends at `end`."""
        return Rank(self.last.number, end)
