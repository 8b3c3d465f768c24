"""Opens a ledger after a stop of any kind: finds its end, cuts a torn tail, mends the index.

Owns the difference between a torn tail (above the durable mark: cut) and corruption (below it:
reported with its place, never cut). Must not know where the mark is kept. The data are read with
`pread` in large pieces and never mapped, so a bad sector is an exception.

Deviation: DLedger checks no CRC, takes the first bad entry for the end of the log wherever it is,
and leaves the bytes behind it in place (storage-formats 7.4). Here the rest of the file is zeroed
and synced and later files are deleted before anything is appended, so old bytes never revive.
Sources: design 4.5; fault-matrix S05, S07, S16, D7; storage-formats 7.4.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.errors import CorruptionError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file_queue import FileSource
from store.ledger.entry import ChainLink, EntryProblem, Run
from store.ledger.ledger import Ledger
from store.ledger.reader import LedgerTail, corruption
from store.ledger.term_runs import TermRuns
from store.ledger.walk import EntryBoundary, LedgerWalk

_SCANNED_FILE_COUNT: Final = 3  # As DLedger, when it is not known how much is durable.


class LedgerRecoveryReport(NamedTuple):
    """Findings and actions of an opening.

    `cut_size_bytes` counts from the end of the log to the last byte that was not zero;
    `first_cut_index` is the entry that was, or would have been, there; -1 when nothing was cut.
    """

    scanned_from_position: int
    scanned_size_bytes: int
    entry_count: int
    end_position: int
    last_index: int
    cut_size_bytes: int
    first_cut_index: int
    cut_reason: str
    rewritten_unit_count: int


class _WalkEnd(NamedTuple):
    """The end of a walk. `problem` stopped it, at `stop_position`; None at the last file's
    end. `end_position` is the end of the last entry."""

    link: ChainLink
    end_position: int
    stop_position: int
    scanned_size_bytes: int
    entry_count: int
    term_changes: list[tuple[int, int]]
    problem: EntryProblem | None


def recover_ledger(
    fs: FileSystem,
    root: str,
    config: StoreConfig,
    source: FileSource | None = None,
    *,
    durable_position: int | None = None,
    synced_position: int | None = None,
) -> tuple[Ledger, LedgerRecoveryReport]:
    """Open the ledger below `root`, made if there is none; return it with a report.

    Everything before `durable_position` was once known to be durable.
    The walk begins with the file that holds `durable_position` (None: with the last file but two),
    or earlier where the beginning of that file does not link to what is before it. Entries before
    the walk were durable: the scrubber checks them. What was accepted from `synced_position` on
    (None: since the beginning of the walk) is written again (`MappedFile.rewrite`). So everything
    that was accepted is durable on return. Opening twice gives the same bytes.

    Raises CorruptionError (below the mark something is bad: no data file was changed), LayoutError,
    FileSystemError, StoreFullError or SyncFailedError; nothing stays open then.
    """
    ledger = Ledger(fs, root, config, source)
    try:
        ledger.load()
        report = _recover(ledger, durable_position, synced_position)
    except BaseException:
        ledger.close()
        raise
    return ledger, report


def _recover(
    ledger: Ledger,
    durable_position: int | None,
    synced_position: int | None,
) -> LedgerRecoveryReport:
    begin, durable_position = _choose_begin(ledger, durable_position), durable_position or 0
    difference: list[tuple[EntryBoundary, int]] = []

    def compare(place: EntryBoundary, run: Run) -> None:
        if not difference:
            index = ledger.index.first_difference(place.link.entry_index + 1, run.units)
            if index is not None:
                difference.append((place, index))

    walk = _walk(ledger, begin, compare)
    if walk.end_position < durable_position:
        raise _below_the_mark(ledger, walk, durable_position)
    dirty_hi = ledger.files.dirty_hi(walk.end_position) if ledger.files.files else 0
    hit("ledger_recovery.before_cut")
    if ledger.files.files:
        ledger.files.truncate(walk.end_position, dirty_hi)
        synced = begin.position if synced_position is None else synced_position
        ledger.files.rewrite(max(synced, ledger.files.min_position), walk.end_position)
    hit("ledger_recovery.before_index")
    rewritten = _mend_index(ledger, walk, difference)
    ledger.adopt(LedgerTail(walk.link, walk.end_position), _term_runs(ledger, begin, walk))
    if walk.link == ledger.start.link:
        ledger.restore_start()
    cut_size_bytes, problem = dirty_hi - walk.end_position, walk.problem
    reason = "a blank without an entry behind it"
    if problem is not None:
        reason = f"{problem.field} is {problem.actual}, expected {problem.expected}"
    return LedgerRecoveryReport(
        scanned_from_position=begin.position,
        scanned_size_bytes=walk.scanned_size_bytes,
        entry_count=walk.entry_count,
        end_position=ledger.max_position,
        last_index=walk.link.entry_index,
        cut_size_bytes=cut_size_bytes,
        first_cut_index=walk.link.entry_index + 1 if cut_size_bytes else -1,
        cut_reason=reason if cut_size_bytes else "",
        rewritten_unit_count=rewritten,
    )


def _below_the_mark(ledger: Ledger, walk: _WalkEnd, durable_position: int) -> CorruptionError:
    if walk.problem is None:  # Every byte is good, but there are too few of them.
        end = walk.end_position
        expected = f"bytes up to {durable_position}"
        return CorruptionError(ledger.files.directory, end, "log end", expected, str(end))
    return corruption(ledger.files.file_at(walk.stop_position), walk.stop_position, walk.problem)


# --- Where the walk begins ---


def _choose_begin(ledger: Ledger, from_position: int | None) -> EntryBoundary:
    """Return the start of the last file from which the walk can prove all that it must."""
    files = ledger.files.files
    number = len(files) - _SCANNED_FILE_COUNT
    if from_position is not None and files:
        number = (from_position - files[0].position) // ledger.files.file_size_bytes
    number = min(number, len(files) - 1)
    while number > 0:
        link = ledger.link_before(files[number])
        if link is not None and ledger.index.covers(ledger.first_index, link.entry_index + 1):
            return EntryBoundary(files[number].position, link)
        number -= 1
    return EntryBoundary(ledger.min_position, ledger.start.link)


# --- The walk ---


def _walk(
    ledger: Ledger, begin: EntryBoundary, on_run: Callable[[EntryBoundary, Run], None]
) -> _WalkEnd:
    """Check all entries from `begin` on, up to the first problem or the end of the last file.

    `on_run` gets the place before each run and the run. Changes nothing. Reads the files to their
    ends, whatever is known to be written.
    """
    files = ledger.files
    walk = LedgerWalk(
        lambda position, size_bytes: files.file_at(position).read_any(position, size_bytes),
        files.file_size_bytes,
    )
    lo, hi = (files.files[0].position, files.files[-1].end_position) if files.files else (0, 0)
    point, end, count = EntryBoundary(max(begin.position, lo), begin.link), begin.position, 0
    scanned_from_position, changes = point.position, list[tuple[int, int]]()
    problem: EntryProblem | None = None
    while point.position < hi and problem is None:
        run = walk.next_run(point)
        problem = run.problem
        if run.end:
            on_run(point, run)
            count += run.entry_count
            changes += run.term_changes
            end = point.position + run.end
        if problem is None:
            point = walk.behind(point, run)
    scanned = point.position - scanned_from_position
    return _WalkEnd(point.link, end, point.position, scanned, count, changes, problem)


# --- Index and terms ---


def _mend_index(ledger: Ledger, walk: _WalkEnd, difference: list[tuple[EntryBoundary, int]]) -> int:
    """Rewrite the index from the data, from the first difference on; return how many units.

    The data are walked once more from there: after an ordinary crash that is very little.
    """
    if not difference:
        ledger.index.truncate(walk.link.entry_index + 1)
        return 0
    begin, first_index = difference[0]
    ledger.index.truncate(first_index)

    def rewrite(place: EntryBoundary, run: Run) -> None:
        lo = max(first_index, place.link.entry_index + 1)
        at = (lo - place.link.entry_index - 1) * fmt.INDEX_UNIT_SIZE_BYTES
        units = run.units[at:]
        ledger.index.prepare(lo, len(units) // fmt.INDEX_UNIT_SIZE_BYTES)
        ledger.index.put(lo, units)

    again = _walk(ledger, begin, rewrite)
    assert again.link == walk.link, f"first {walk.link}, then {again.link}"
    ledger.index.files.sync()
    return walk.link.entry_index + 1 - first_index


def _term_runs(ledger: Ledger, begin: EntryBoundary, walk: _WalkEnd) -> TermRuns:
    """Return the terms of the whole log; below the walk only where terms change is looked up."""
    start = ledger.start.link
    runs = TermRuns.starting_after(start.entry_index, start.term)
    ledger.adopt(LedgerTail(walk.link, walk.end_position), runs)
    index, term, hi = ledger.first_index, start.term, begin.link.entry_index + 1
    changes: list[tuple[int, int]] = []
    while index < hi:
        own = ledger.header(index).term
        if own > term:
            changes.append((index, own))
            term = own
        if own == begin.link.term:
            break
        index = bisect_right(range(hi), term, index, key=lambda n: ledger.header(n).term)
    return runs.extended(changes).extended(walk.term_changes)
