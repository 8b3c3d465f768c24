"""The terms of the entries: the part of the log that a Raft core reads.

Owns the list of (first index, term), immutable and replaced as a whole, so readers on other threads
never see a half-made one. Must not know files. Terms change with elections and not with entries, so
the list is short. Source: Raft thesis 4.2.1 and 10.2.1 (fast back-tracking by terms).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Self


class TermRuns:
    """Terms of the entries from `first_index` on, and of the one before it.

    Invariant: indexes and terms both rise strictly; the first run begins at `first_index - 1`, so
    the term of the entry before the log (a snapshot's last one) is known too.
    """

    __slots__ = ("_firsts", "_terms")

    def __init__(self, firsts: Sequence[int], terms: Sequence[int]) -> None:
        assert len(firsts) == len(terms) > 0, f"{len(firsts)} indexes, {len(terms)} terms"
        self._firsts, self._terms = tuple(firsts), tuple(terms)

    @classmethod
    def starting_after(cls, index: int, term: int) -> Self:
        """Return the runs of an empty log whose last entry was `index`."""
        return cls((index,), (term,))

    @property
    def first_index(self) -> int:
        """Index of the first entry of the log."""
        return self._firsts[0] + 1

    def extended(self, changes: Sequence[tuple[int, int]]) -> "TermRuns":
        """Return the runs with more terms behind; `changes` are (first index, term)."""
        firsts, terms = list(self._firsts), list(self._terms)
        for index, term in changes:
            assert index > firsts[-1], f"index {index} after {firsts[-1]}"
            assert term > terms[-1], f"term {term} after {terms[-1]}"
            firsts.append(index)
            terms.append(term)
        return TermRuns(firsts, terms)

    def cut_from(self, index: int) -> "TermRuns":
        """Return the runs of a log that ends before `index`."""
        count = max(1, bisect_left(self._firsts, index))
        return TermRuns(self._firsts[:count], self._terms[:count])

    def starting_at(self, first_index: int) -> "TermRuns":
        """Return the runs of a log whose oldest entries are gone."""
        number = bisect_right(self._firsts, first_index - 1) - 1
        assert number >= 0, f"index {first_index} is before {self.first_index}"
        firsts = (first_index - 1, *self._firsts[number + 1 :])
        return TermRuns(firsts, self._terms[number:])

    def term_at(self, index: int) -> int:
        """Return the term of an entry from `first_index - 1` on; the caller checks the end."""
        number = bisect_right(self._firsts, index) - 1
        assert number >= 0, f"index {index} is before {self.first_index - 1}"
        return self._terms[number]

    def runs(self, last_index: int) -> list[tuple[int, int]]:
        """Return (first index, term) of each term that has entries up to `last_index`."""
        ends = (*self._firsts[1:], last_index + 1)
        return [
            (max(first, self.first_index), term)
            for first, term, end in zip(self._firsts, self._terms, ends, strict=True)
            if max(first, self.first_index) < min(end, last_index + 1)
        ]
