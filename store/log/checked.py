"""Remembers which parts of the log were compared with their checksums since the store was opened.

Owns the ranges; must not know how bytes are checked. Bytes that recovery walked, and bytes written
since, count as checked. Older bytes are checked when they are first read (fault-matrix I14), so a
flipped bit of years ago is an error and not a message, and no byte is checked twice.
"""

import threading
from bisect import bisect_left, bisect_right
from typing import Final

RANGE_COUNT_MAX: Final = 4096  # Beyond it all is forgotten: a second check is only slower.


class CheckedRanges:
    """A set of positions, kept as disjoint half-open ranges in order.

    Any thread may call. Asking takes no lock: the list is replaced, never changed.
    """

    def __init__(self) -> None:
        self.trusted_position = 0
        """Position from which on all bytes were checked by recovery, or written since."""
        self.generation = 0
        """Count of removals from the set. A reader that checks bytes notes it before the read."""
        self._edges: list[int] = []  # lo, hi, lo, hi, ... strictly rising.
        self._lock = threading.Lock()  # One change at a time.

    def covers(self, lo: int, hi: int) -> bool:
        """Whether all of [lo, hi) was checked."""
        return self.first_unchecked(lo, hi) >= hi

    def first_unchecked(self, lo: int, hi: int) -> int:
        """Return the first position of [lo, hi) that was not checked, `hi` or more without one."""
        if lo >= self.trusted_position:
            return hi
        edges = self._edges
        at = bisect_right(edges, lo)
        reached = edges[at] if at % 2 == 1 else lo
        return hi if reached >= self.trusted_position else reached

    def add(self, lo: int, hi: int, generation: int) -> None:
        """Note that [lo, hi) was checked, as it was read at a `generation`.

        A check at an older generation is not noted: the bytes may have been read before they were
        found damaged, and a second check costs little.
        """
        with self._lock:
            if generation == self.generation:
                self._add(lo, hi)

    def _add(self, lo: int, hi: int) -> None:
        assert lo < hi, f"range [{lo}, {hi})"
        edges = self._edges
        if len(edges) >= 2 * RANGE_COUNT_MAX:
            edges = []
        first, last = bisect_left(edges, lo), bisect_right(edges, hi)
        merged = [lo] * (first % 2 == 0) + [hi] * (last % 2 == 0)
        self._edges = edges[:first] + merged + edges[last:]

    def forget(self, lo: int, hi: int) -> None:
        """Note that [lo, hi) has to be checked again; what recovery walked stays trusted."""
        with self._lock:
            self._forget(lo, hi)

    def _forget(self, lo: int, hi: int) -> None:
        assert lo < hi, f"range [{lo}, {hi})"
        self.generation += 1
        edges = self._edges
        first, last = bisect_left(edges, lo), bisect_right(edges, hi)
        left = [lo] * (first % 2) + [hi] * (last % 2)
        self._edges = edges[:first] + left + edges[last:]

    def distrust(self, lo: int, hi: int) -> None:
        """Note that [lo, hi) has to be checked again, trusted or not: it was found damaged."""
        with self._lock:
            trusted = self.trusted_position
            if trusted < hi:
                self.trusted_position = hi
                if trusted < lo:
                    self._add(trusted, lo)
            self._forget(lo, hi)

    def cut(self, position: int) -> None:
        """Note that the log is cut at a position. Bytes written there later are trusted, and their
        records begin elsewhere than those before."""
        with self._lock:
            self.generation += 1
            edges = self._edges
            count = bisect_left(edges, position)
            self._edges = edges[:count] + [position] * (count % 2)
            self.trusted_position = min(self.trusted_position, position)
