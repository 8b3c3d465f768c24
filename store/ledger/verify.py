"""Checks a part of an open ledger byte by byte, for reads and repairs.

Owns the comparison of entries, of the blanks between them, and of their index units; must not
repair anything, and does not look behind the first damage. `store.ledger.entry` has the checks of
single pieces. Source: fault-matrix D5, S04, S14.
"""

from typing import Final

from store import format as fmt
from store.errors import CorruptionError, FileSystemError, StoreError
from store.ledger.entry import ChainLink, EntryProblem, Run
from store.ledger.reader import LedgerReader, corruption
from store.ledger.walk import READ_SIZE_BYTES, EntryBoundary, LedgerWalk

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES


def check_range(ledger: LedgerReader, lo_index: int, hi_index: int) -> None:
    """Raise CorruptionError at the first damage of the entries [lo_index, hi_index).

    Checks headers, chain, bodies, blanks, and the index units against them; a sector that cannot be
    read is damage. May run beside reads and appends, not beside a cut. Raises PositionRangeError
    for entries that are not there, ClosedError.
    """
    start, tail, files = ledger.start, ledger.tail, ledger.files
    point, before = EntryBoundary(start.min_position, start.link), lo_index - 1
    if before > start.link.entry_index:
        link = ChainLink(before, ledger.term_at(before), ledger.chain_crc_at(before))
        point = EntryBoundary(ledger.position_of(lo_index), link)
    walk = LedgerWalk(
        lambda position, size_bytes: files.file_at(position).read_any(position, size_bytes),
        files.file_size_bytes,
    )
    while point.position < tail.end_position and point.link.entry_index + 1 < hi_index:
        file = files.file_at(point.position)
        try:
            size_bytes = _end_by_index(ledger, hi_index - 1) - point.position
            run = walk.next_run(point, min(max(size_bytes, _HEADER), READ_SIZE_BYTES))
            _check_units(ledger, point.link.entry_index + 1, run, hi_index)
        except FileSystemError as error:
            problem = EntryProblem(0, "read", "readable bytes", str(error))
            raise corruption(file, point.position, problem) from error
        if run.problem is not None:
            raise corruption(file, point.position, run.problem)
        point = walk.behind(point, run)


def _end_by_index(ledger: LedgerReader, index: int) -> int:
    """Return where an entry ends by the index, or the end of the log if it has no unit."""
    tail = ledger.tail
    try:
        unit = ledger.index.get(index) if index < tail.link.entry_index else None
    except FileSystemError:
        unit = None
    return tail.end_position if unit is None else unit.position + unit.size_bytes


def _check_units(ledger: LedgerReader, index: int, run: Run, hi_index: int) -> None:
    """Compare the index with a run of good entries from `index` on, up to `hi_index`."""
    units = run.units[: (hi_index - index) * _UNIT]
    differs = ledger.index.first_difference(index, units)
    if differs is None:
        return
    at, position = (differs - index) * _UNIT, differs * _UNIT
    try:
        file = ledger.index.files.file_at(position)
        actual = file.read(position, _UNIT).hex()
        path, byte = file.path, position - file.position
    except StoreError:
        path, byte, actual = ledger.index.files.directory, position, "no such unit"
    expected = units[at : at + _UNIT].hex()
    raise CorruptionError(path, byte, f"index unit of entry {differs}", expected, actual)
