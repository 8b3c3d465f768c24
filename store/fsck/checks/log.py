"""Walks a log of either container from its first byte to its last, and continues after damage.

Owns where a log ends, which bytes in it are no records or entries, and where the next good ones
begin; a good record or entry is defined by the checks of `store.fsck.checks.container`. Must not
repair. `store.ledger.verify` does the same for an open ledger; here there may be no ledger that can
be opened (files missing, short, unreadable), and the records are needed for the derived files in
the same pass. Sources: storage-formats 1.4, 1.13, 7.1, 7.4; fault-matrix D3 to D5, D9, S05.
"""

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.fsck.checks.container import (
    READ_SIZE_BYTES,
    LedgerCheck,
    PlainCheck,
    RecordRun,
    WalkStep,
)
from store.fsck.files import Segments
from store.fsck.types import Finding, Part, Progress, Severity
from store.ledger.entry import EntryProblem

NOWHERE: Final = 1 << 62  # A position behind every log.
SCAN_OVERLAP_BYTES: Final = 256  # More than the parts that `find` looks at.


class Bad(NamedTuple):
    """The positions [lo, hi) of bad bytes. Records may have been there."""

    lo: int
    hi: int


class LogPass:
    """One pass over a log. `events` does it; the other attributes are complete after it."""

    def __init__(
        self,
        segments: Segments,
        check: PlainCheck | LedgerCheck,
        *,
        begin_position: int,
        known_good_position: int,
        progress: Progress,
    ) -> None:
        self._segments, self._check, self._progress = segments, check, progress
        self._known_good_position = known_good_position
        self.begin_position = begin_position
        self.end_position = begin_position
        """End of the last record or entry that is good, torn ones left out."""
        self.dirty_hi = begin_position
        """Byte after the last one that is not zero."""
        self._is_torn = False

    def events(self) -> Iterator[Finding | RecordRun | Bad]:
        """Yield all records in log order, and findings where they are met."""
        segments, check = self._segments, self._check
        position, hi = self.begin_position, segments.end_position
        self.dirty_hi = max(segments.dirty_hi(), position)
        while position < hi and not self._is_torn:
            file_end = segments.file_at(position).position + segments.file_size_bytes
            data = segments.read(position, min(file_end - position, READ_SIZE_BYTES))
            step = check.check(data, position, file_end)
            yield from step.findings
            yield from step.records
            if step.end:
                position += step.end
                self.end_position = position
            elif position >= self.dirty_hi:
                break
            elif step.is_blank and self._is_blank_good(position, file_end):
                position = file_end
                if check.ends_with_blank:
                    self.end_position = position
            else:
                position = yield from self._skip(position, file_end, step)
            self._progress("log", min(position, self.dirty_hi), self.dirty_hi)
        yield from segments.findings

    def _is_blank_good(self, position: int, file_end: int) -> bool:
        if file_end >= self.dirty_hi and not self._check.ends_with_blank:
            return False
        return self._check.check_blank(self._segments, position, file_end) is None

    def _skip(
        self, position: int, file_end: int, step: WalkStep
    ) -> Generator[Finding | Bad, None, int]:
        """Yield the findings at a position, and return where to go on."""
        segments, check = self._segments, self._check
        problem = step.problem
        if step.is_blank:
            problem = check.check_blank(segments, position, file_end)
            problem = problem or EntryProblem(0, "blank", "an entry behind it", "none")
        assert problem is not None, f"position {position}: nothing wrong"
        if position >= self._known_good_position:
            self._is_torn = True
            yield self._finding(position, self._stray(position, problem), Severity.TORN_TAIL)
            return position
        if file_end < self.dirty_hi and check.is_blank_proven(segments, position, file_end):
            yield self._finding(position, problem, Severity.REPAIRABLE)
            if check.ends_with_blank:
                self.end_position = file_end
            return file_end
        yield self._finding(position, problem, Severity.DAMAGE)
        check.lose()
        next_entry = self._find(position, file_end)
        hi = min(file_end, self.dirty_hi) if next_entry is None else next_entry
        yield Bad(position, hi)
        return hi

    def _stray(self, position: int, problem: EntryProblem) -> EntryProblem:
        """Return the problem of the first byte behind zeros that is not zero, else `problem`."""
        dirty = self._segments.first_dirty(position, self.dirty_hi)
        if dirty is None or dirty - position < fmt.BLANK_SIZE_BYTES_MIN:
            return problem
        return EntryProblem(dirty - position, "unused byte", "0", "not 0")

    def _finding(self, position: int, problem: EntryProblem, severity: Severity) -> Finding:
        path, at = self._segments.place(position + problem.at)
        if self._segments.file_at(position).is_missing:
            path, at = self._segments.place(position)
            problem = EntryProblem(0, "file", "present", "missing")
        # A ledger ends with an entry: a cut at the start of a file takes the blank before it, too.
        lo = position
        if not self._check.ends_with_blank and position % self._segments.file_size_bytes == 0:
            lo = min(position, self.end_position)
        expected, actual = problem.expected, problem.actual
        return Finding(path, at, problem.field, expected, actual, severity, Part.LOG, lo)

    def _find(self, position: int, file_end: int) -> int | None:
        """Return where the next good bytes of this file begin, after damage at `position`."""
        segments, check = self._segments, self._check
        lo, hi = position + 1, min(file_end, self.dirty_hi)
        while lo < hi:
            data = segments.read(lo, min(file_end - lo, READ_SIZE_BYTES))
            is_rest = lo + len(data) == file_end
            at = 0
            while (at := check.find(data, at, lo, file_end)) >= 0:
                if not is_rest and at > len(data) - SCAN_OVERLAP_BYTES:
                    break  # The bytes of this candidate may go on behind `data`: read again.
                size_bytes = min(file_end - lo - at, READ_SIZE_BYTES)
                whole = data[at:] if is_rest else segments.read(lo + at, size_bytes)
                if check.is_good(whole, lo + at, file_end):
                    return lo + at
                at += 1
            if is_rest:
                break
            lo += len(data) - SCAN_OVERLAP_BYTES
        return None
