"""Checks a ledger, or a part of it, byte by byte, for reads and repairs.

Owns the walk that goes on after damage; must not repair anything. Entries, blanks, the space before
the first entry and the unwritten rest are handed to the pure checks of `store.ledger.entry`; each
byte of each data file goes to exactly one of them.

A finding is damage, or something that damage beside it makes unprovable: the first entry of a file
when the one before it cannot be read, and an entry behind two neighbours with damaged chains.
Source: fault-matrix D5, S04, S14.
"""

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB
from store.errors import CorruptionError, FileSystemError, StoreError
from store.files.mapped_file import MappedFile
from store.ledger.entry import (
    ChainLink,
    EntryProblem,
    Run,
    chain_of,
    check_blank,
    check_run,
    check_zeros,
    unpack_header,
)
from store.ledger.reader import LedgerReader, LedgerTail

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_BLANK_MAGIC: Final = fmt.ENTRY_BLANK.pack(fmt.ENTRY_MAGIC_BLANK, 0)[:4]
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES
_READ_SIZE_BYTES: Final = fmt.ENTRY_SIZE_BYTES_MAX  # So that every entry fits into one read.


class LedgerFinding(NamedTuple):
    """One place that is not as it must be: byte `at` of the file `path`."""

    path: str
    at: int
    field: str
    expected: str
    found: str


class _Point(NamedTuple):
    """A point between two entries: the position of the next one, and the entry before."""

    position: int
    link: ChainLink


def verify_range(
    ledger: LedgerReader,
    lo_index: int | None = None,
    hi_index: int | None = None,
    *,
    check_unwritten: bool = True,
) -> Iterator[LedgerFinding]:
    """Check the entries [lo_index, hi_index), by default all, and yield the findings.

    Headers, chain, bodies, blanks, and the index units against them. When all entries are asked
    for, also that the space before the first one and behind the last one is zero; set
    `check_unwritten` to False while entries are appended. After damage the walk goes on with the
    next entry that can be found. May run beside reads and appends, not beside a cut. Raises
    PositionRangeError for entries that are not there, ClosedError.
    """
    tail, start = ledger.tail, ledger.start
    first_index = start.link.entry_index + 1
    lo = first_index if lo_index is None else lo_index
    hi = tail.link.entry_index + 1 if hi_index is None else hi_index
    if lo_index is None and ledger.files.files:
        file = ledger.files.files[0]
        yield from _zeros(file, file.position, start.min_position)
    point = _Point(start.min_position, start.link)
    if lo > first_index:
        try:
            link = ChainLink(lo - 1, ledger.term_at(lo - 1), ledger.chain_crc_at(lo - 1))
            point = _Point(ledger.position_of(lo), link)
        except CorruptionError as error:
            yield LedgerFinding(error.path, error.at, error.field, error.expected, error.found)
            return
    yield from _entries(ledger, point, hi, tail)
    if hi_index is None and check_unwritten:
        for file in ledger.files.files:
            if file.end_position > tail.end_position:
                yield from _zeros(file, max(file.position, tail.end_position), file.end_position)


def _zeros(file: MappedFile, lo: int, hi: int) -> Iterator[LedgerFinding]:
    """Check the unused bytes [lo, hi) of one file."""
    while lo < hi:
        size_bytes = min(MIB, hi - lo)
        try:
            problem = check_zeros(file.read_any(lo, size_bytes))
        except FileSystemError as error:
            problem = _unreadable(error)
        if problem is not None:
            yield _finding(file, lo, problem)
            return
        lo += size_bytes


def _entries(
    ledger: LedgerReader, point: _Point, hi: int, tail: LedgerTail
) -> Iterator[LedgerFinding]:
    hi_position = _end_by_index(ledger, hi - 1, tail)
    while point.position < tail.end_position and point.link.entry_index + 1 < hi:
        file = ledger.files.file_at(point.position)
        try:
            following = yield from _step(ledger, file, point, tail, hi, hi_position)
        except FileSystemError as error:
            yield _finding(file, point.position, _unreadable(error))
            following = None
        point = following or (yield from _next_file(ledger, file, tail))


def _end_by_index(ledger: LedgerReader, index: int, tail: LedgerTail) -> int:
    """Return where an entry ends by the index, or the end of the log if it has no unit."""
    try:
        unit = ledger.index.get(index) if index < tail.link.entry_index else None
    except FileSystemError:
        unit = None
    return tail.end_position if unit is None else unit.position + unit.size_bytes


def _step(
    ledger: LedgerReader,
    file: MappedFile,
    point: _Point,
    tail: LedgerTail,
    hi: int,
    hi_position: int,
) -> Generator[LedgerFinding, None, _Point | None]:
    """Check one piece of a file; return where to go on, None when that cannot be told.

    `hi` is the first entry that is not asked for; by the index it is at `hi_position`.
    """
    room = min(file.end_position, tail.end_position) - point.position
    for size_bytes in (min(room, hi_position - point.position, _READ_SIZE_BYTES), room):
        # Twice where the index is wrong, so that the entry seems to be cut short.
        data = file.read(point.position, max(min(size_bytes, _READ_SIZE_BYTES), min(room, _HEADER)))
        run = check_run(data, point.position, point.link, file_end_position=file.end_position)
        if run.end or run.problem is not None or run.is_blank:
            break
    index = point.link.entry_index + 1
    yield from _units(ledger, index, run._replace(units=run.units[: (hi - index) * _UNIT]))
    if run.link.entry_index + 1 >= hi:
        return _Point(point.position + run.end, run.link)
    point = _Point(point.position + run.end, run.link)
    problem = run.problem
    if problem is not None:
        problem = problem._replace(at=problem.at - run.end)
    elif run.end == 0 and not run.is_blank:
        problem = EntryProblem(0, "entry", "whole", f"cut short after {len(data)} bytes")
    if problem is not None:
        yield _finding(file, point.position, problem)
        return _after_damage(ledger, file, point, tail)
    if run.is_blank:
        problem = check_blank(file.read_any(point.position, file.end_position - point.position))
        if problem is not None:
            yield _finding(file, point.position, problem)
        return _Point(file.end_position, point.link)
    return point


def _unreadable(error: FileSystemError) -> EntryProblem:
    return EntryProblem(0, "read", "readable bytes", str(error))


def _units(ledger: LedgerReader, index: int, run: Run) -> Iterator[LedgerFinding]:
    """Compare the index with a run of good entries; the first difference is enough."""
    differs = ledger.index.first_difference(index, run.units)
    if differs is None:
        return
    at = (differs - index) * fmt.INDEX_UNIT_SIZE_BYTES
    expected = run.units[at : at + fmt.INDEX_UNIT_SIZE_BYTES]
    position = differs * fmt.INDEX_UNIT_SIZE_BYTES
    try:
        file = ledger.index.files.file_at(position)
        found = file.read(position, fmt.INDEX_UNIT_SIZE_BYTES).hex()
        path, byte = file.path, position - file.position
    except StoreError:
        path, byte, found = ledger.index.files.directory, position, "no such unit"
    yield LedgerFinding(path, byte, f"index unit of entry {differs}", expected.hex(), found)


def _finding(file: MappedFile, position: int, problem: EntryProblem) -> LedgerFinding:
    at = position - file.position + problem.at
    return LedgerFinding(file.path, at, problem.field, problem.expected, problem.found)


# --- Going on after damage ---


def _after_damage(
    ledger: LedgerReader, file: MappedFile, bad: _Point, tail: LedgerTail
) -> _Point | None:
    """Return the point behind the bad entry, if its size can be told; else None.

    The index and both size fields of the entry are tried; the bytes that follow must confirm one.
    """
    if bad.position + _HEADER > min(file.end_position, tail.end_position):
        return None
    index, data = bad.link.entry_index + 1, file.read(bad.position, _HEADER)
    stored, unit = unpack_header(data), ledger.index.get(index)
    recomputed = chain_of(bad.link.chain_crc, data)
    sizes = [stored.size_bytes, stored.body_size_bytes + _HEADER]
    if unit is not None and unit.position == bad.position:
        sizes.insert(0, unit.size_bytes)
    for size_bytes in sizes:
        position = bad.position + size_bytes
        if size_bytes < _HEADER or position > min(file.end_position - 8, tail.end_position):
            continue  # Eight bytes: an entry leaves room for a blank.
        if position == tail.end_position:
            return _Point(position, tail.link)
        is_blank = _is_blank(file, position)
        next_at = file.end_position if is_blank else position
        chain_crc = _chain_before(ledger, index + 1, next_at, (stored.chain_crc, recomputed))
        unit = ledger.index.get(index + 1)
        if chain_crc is None and not is_blank and (unit is None or unit.position != position):
            continue
        chain_crc = stored.chain_crc if chain_crc is None else chain_crc
        return _Point(position, ChainLink(index, bad.link.term, chain_crc))
    return None


def _is_blank(file: MappedFile, position: int) -> bool:
    if file.read_any(position, 4) != _BLANK_MAGIC:  # Most are not; the rest may be long.
        return False
    return check_blank(file.read_any(position, file.end_position - position)) is None


def _chain_before(
    ledger: LedgerReader, index: int, position: int, candidates: tuple[int, int]
) -> int | None:
    """Return which chain the entry `index` at `position` continues; None when it is not there."""
    following = ledger.header_at(position)
    if following is None or following.entry_index != index:
        return None
    header = ledger.files.read(position, _HEADER)
    good = [c for c in candidates if chain_of(c, header) == following.chain_crc]
    return good[0] if good else candidates[0]


def _next_file(
    ledger: LedgerReader, file: MappedFile, tail: LedgerTail
) -> Generator[LedgerFinding, None, _Point]:
    """Leave the rest of a file, which cannot be read as entries, and find where to go on."""
    position = file.end_position
    while position < tail.end_position:
        file = ledger.files.file_at(position)
        try:
            header, link = ledger.header_at(position), ledger.link_before(file)
        except FileSystemError as error:
            yield _finding(file, position, _unreadable(error))
            position = file.end_position
            continue
        if link is not None:
            return _Point(position, link)
        if header is None:
            yield _finding(file, position, EntryProblem(0, "header", "of an entry", "none"))
        else:
            problem = EntryProblem(
                36, "chain CRC", "that of the entry before", "no good entry before"
            )
            yield _finding(file, position, problem)
            if position + header.size_bytes < file.end_position:
                own = ChainLink(header.entry_index, header.term, header.chain_crc)
                return _Point(position + header.size_bytes, own)
        position = file.end_position
    return _Point(tail.end_position, tail.link)
