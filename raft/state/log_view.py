"""The core's view of the log: where it begins, where it ends, and the term of each stretch.

Owns (base, last, term runs); never holds or asks for payload. A log of a million entries written by
three leaders is three pairs of integers, so comparing logs, finding a conflict and backing up cost
a few steps whatever the length. The number of runs equals the number of leaders whose entries the
log still holds; it is bounded by cutting the head of the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from raft.messages import NO_INDEX, NO_TERM, Index, Term, TermRun

UNKNOWN_TERM: Term = -1


class LogView:
    """Indexes (base_index, last_index], each with a term. Mutable, owned by one core."""

    __slots__ = ("_firsts", "_terms", "base_index", "base_term", "last_index", "last_term")

    def __init__(
        self,
        *,
        base_index: Index = NO_INDEX,
        base_term: Term = NO_TERM,
        last_index: Index = NO_INDEX,
        runs: Iterable[TermRun] = (),
    ) -> None:
        self.base_index = base_index
        """The last index that is no longer in the log. Its own term is known, lower ones are
        not."""
        self.base_term = base_term
        self.last_index = last_index
        """Invariant: last_index >= base_index; equal when the log is empty."""
        self.last_term = base_term
        """Term at last_index, kept apart because every vote and most appends ask for it."""
        self._firsts: list[Index] = []
        self._terms: list[Term] = []
        assert base_index > NO_INDEX or base_term == NO_TERM, "the empty prefix has no term"
        for first, term in runs:
            # The base may have been cut out of the middle of a run, so only the first run may
            # repeat its term.
            lowest = self.last_term + 1 if self._firsts else base_term
            assert term >= lowest, f"run at {first}: term {term} after {self.last_term}"
            expected = base_index + 1 if not self._firsts else self._firsts[-1] + 1
            assert first >= expected, f"run at {first}, expected {expected} or later"
            assert self._firsts or first == expected, f"gap between base {base_index} and {first}"
            self._firsts.append(first)
            self._terms.append(term)
            self.last_term = term
        assert not self._firsts or self._firsts[-1] <= last_index, (
            "a run begins after the last entry"
        )
        assert bool(self._firsts) == (last_index > base_index), "runs do not cover the log"

    def term_of(self, index: Index) -> Term:
        """Return the term of the entry at `index`, or UNKNOWN_TERM if compacted or absent.

        Never 0 for a compacted entry: 0 would equal the term of the empty prefix (fault-matrix
        R09)."""
        if index == self.last_index:
            return self.last_term
        if index <= self.base_index:
            return self.base_term if index == self.base_index else UNKNOWN_TERM
        if index > self.last_index:
            return UNKNOWN_TERM
        if index >= self._firsts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._firsts, index) - 1]

    def run_first(self, index: Index) -> Index:
        """Return the first index of the run that holds `index`, which must be in the log."""
        assert self.base_index < index <= self.last_index, f"{index} is not in the log"
        return self._firsts[bisect_right(self._firsts, index) - 1]

    def is_up_to_date(self, last_index: Index, last_term: Term) -> bool:
        """Whether a log that ends so is at least as new as this one (Raft paper 5.4.1)."""
        if last_term != self.last_term:
            return last_term > self.last_term
        return last_index >= self.last_index

    def append(self, term: Term, count: int) -> None:
        """Add `count` entries of `term` at the end."""
        assert count > 0, f"append of {count} entries"
        assert term >= self.last_term, f"term {term} after {self.last_term}"
        if term > self.last_term or not self._firsts:
            self._firsts.append(self.last_index + 1)
            self._terms.append(term)
            self.last_term = term
        self.last_index += count

    def append_runs(self, lo: Index, hi: Index, runs: tuple[TermRun, ...]) -> None:
        """Add entries [lo, hi), where `runs` may begin before `lo`; `lo` is last_index + 1."""
        assert lo == self.last_index + 1, f"append at {lo} after {self.last_index}"
        for number, (run_lo, term) in enumerate(runs):
            run_hi = runs[number + 1][0] if number + 1 < len(runs) else hi
            first = max(run_lo, lo)
            if first < run_hi:
                self.append(term, run_hi - first)
        assert self.last_index == hi - 1, f"runs end at {self.last_index}, range at {hi}"

    def truncate_from(self, lo: Index) -> None:
        """Forget the entry at `lo` and all after it."""
        assert self.base_index < lo <= self.last_index, (
            f"truncate from {lo}, log ends {self.last_index}"
        )
        keep = bisect_right(self._firsts, lo - 1)
        del self._firsts[keep:]
        del self._terms[keep:]
        self.last_index = lo - 1
        self.last_term = self._terms[-1] if self._terms else self.base_term

    def compact_to(self, index: Index) -> None:
        """Forget entries up to and including `index`, which becomes the base. A lower index than
        the base changes nothing."""
        if index <= self.base_index:
            return
        assert index <= self.last_index, f"compact to {index}, log ends at {self.last_index}"
        term = self.term_of(index)
        drop = (
            bisect_right(self._firsts, index + 1) - 1
            if index < self.last_index
            else len(self._firsts)
        )
        del self._firsts[:drop]
        del self._terms[:drop]
        if self._firsts:
            self._firsts[0] = index + 1
        self.base_index, self.base_term = index, term

    def reset(self, index: Index, term: Term) -> None:
        """Become the empty log that follows a snapshot of (index, term)."""
        self._firsts.clear()
        self._terms.clear()
        self.base_index = self.last_index = index
        self.base_term = self.last_term = term

    def runs_of(self, lo: Index, hi: Index) -> tuple[TermRun, ...]:
        """Return the runs that cover exactly [lo, hi), the first one clipped to begin at `lo`."""
        if lo >= hi:
            return ()
        assert lo > self.base_index, f"{lo} is compacted"
        assert hi <= self.last_index + 1, f"{hi} is beyond the log"
        if lo >= self._firsts[-1]:
            return ((lo, self._terms[-1]),)
        at = bisect_right(self._firsts, lo) - 1
        runs = [(lo, self._terms[at])]
        for next_at in range(at + 1, len(self._firsts)):
            if self._firsts[next_at] >= hi:
                break
            runs.append((self._firsts[next_at], self._terms[next_at]))
        return tuple(runs)

    def all_runs(self) -> tuple[TermRun, ...]:
        """Return every run, for transcripts and tests."""
        return tuple(zip(self._firsts, self._terms, strict=True))

    def clip_runs(self, lo: Index, hi: Index, *, count_max: int) -> Index:
        """Return the largest end not above `hi` such that [lo, end) has at most `count_max`
        runs."""
        if lo >= hi or lo >= self._firsts[-1]:
            return hi
        at = bisect_right(self._firsts, lo) - 1 + count_max
        return min(hi, self._firsts[at]) if at < len(self._firsts) else hi

    def first_conflict(self, lo: Index, hi: Index, runs: tuple[TermRun, ...]) -> Index:
        """Return the first index of [lo, hi) that is not in this log with the same term, or `hi`.

        `runs` covers exactly [lo, hi); the entry before `lo` is known to match, so it is here.
        """
        stop = min(hi, self.last_index + 1)
        for position, (first, term) in enumerate(runs):
            run_hi = min(stop, runs[position + 1][0] if position + 1 < len(runs) else hi)
            at = first
            while at < run_hi:
                if self.term_of(at) != term:
                    return at
                next_run = bisect_right(self._firsts, at)
                at = self._firsts[next_run] if next_run < len(self._firsts) else run_hi
        return stop

    def hint(self, at_most: Index, *, count_max: int) -> tuple[Index, tuple[TermRun, ...]]:
        """Return (last, runs): the newest `count_max` runs that end at min(at_most, last_index)."""
        last = min(at_most, self.last_index)
        if last <= self.base_index:
            return self.base_index, ()
        hi_run = bisect_right(self._firsts, last)
        lo_run = max(0, hi_run - count_max)
        return last, tuple(
            zip(self._firsts[lo_run:hi_run], self._terms[lo_run:hi_run], strict=True)
        )

    def agreement(self, hint_last: Index, hint_runs: tuple[TermRun, ...]) -> Index:
        """Return the newest index where this log and the hinted one can agree.

        Equal (index, term) means equal logs up to there, so the first match from the top is the
        last common entry. Where the hint ends without a match the answer is just below it: a guess
        that the next probe tests. Takes one step per run, not per entry."""
        at = min(hint_last, self.last_index)
        for first, term in reversed(hint_runs):
            while at >= first:
                if at < self.base_index:
                    return at
                own = self.term_of(at)
                if own == term:
                    return at
                if own < term:
                    break
                at = self.run_first(at) - 1 if at > self.base_index else at - 1
            at = min(at, first - 1)
        return at
