"""Puts entries back into a ledger that is open, while it is read and appended to.

Owns the repair of damage that a read found, from bytes that other replicas serve; must not know
peers, nor locks. Sealed files are read with `pread` and the active one through its map; both show
the bytes written in place here, because they share the page cache. `store.replicated.repair` does
the same to a closed store. Source: design 4.5.
"""

import os
from typing import Final

from store import format as fmt
from store.errors import (
    ClosedError,
    CorruptionError,
    DamageWiderError,
    FileSystemError,
    ForeignEntryError,
    PositionRangeError,
)
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.ledger.entry import ChainLink
from store.ledger.ledger import Ledger
from store.ledger.mending.damage import DamagedRange, DamageWalk, Goal, read_around
from store.ledger.mending.fetched import RepairReport, blank, keep_aside, leads_to
from store.ledger.raw import check_entries
from store.ledger.verify import check_range
from store.ledger.walk import EntryBoundary

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES


def damage_of(ledger: Ledger, error: CorruptionError) -> list[DamagedRange]:
    """Return the damaged ranges of the data file that the error of a read names, oldest first.

    Empty when the file is good again, is gone, or is not a data file of this ledger. Damage in
    an older file is listed, too, where the named one cannot be judged without it. An entry that was
    not to be found may be anywhere: then all of the ledger is read. Any thread may call.
    """
    tail, files = ledger.tail, ledger.files
    point, stop_position = start_of(ledger), tail.end_position
    directory, name = os.path.split(error.path)
    if error.path != files.directory and (directory != files.directory or not name.isdecimal()):
        return []
    try:
        if error.path != files.directory:
            file = files.file_at(int(name))
            point, stop_position = begin_of(ledger, file), min(file.end_position, stop_position)
        return list(walk_of(ledger).ranges(point, stop_position))
    except (PositionRangeError, ClosedError):  # Expired, or replaced meanwhile.
        return []


def walk_of(ledger: Ledger) -> DamageWalk:
    """Return a walk through an open ledger, up to its end as of now."""
    tail = ledger.tail
    return DamageWalk(
        lambda position, size_bytes: read_live(ledger, position, size_bytes),
        ledger.files.file_size_bytes,
        Goal(tail.end_position, tail.link.entry_index),
    )


def read_live(ledger: Ledger, position: int, size_bytes: int) -> bytes:
    """Read bytes of an open ledger, as a `Read`."""
    try:
        file = ledger.files.file_at(position)
    except PositionRangeError:
        return bytes(size_bytes)
    return read_around(file.read_any, position, size_bytes)


def start_of(ledger: Ledger) -> EntryBoundary:
    """Return the start of the log."""
    start = ledger.start
    return EntryBoundary(start.min_position, start.link)


def begin_of(ledger: Ledger, file: MappedFile) -> EntryBoundary:
    """Return the start of a file, or of the last one before it, whose first entry is proven."""
    for candidate in reversed(ledger.files.files):
        if candidate.position > file.position or candidate.position <= ledger.min_position:
            continue
        try:
            link = ledger.link_before(candidate)
        except FileSystemError:
            continue
        if link is not None:
            return EntryBoundary(candidate.position, link)
    return start_of(ledger)


def repair_range(
    fs: FileSystem,
    ledger: Ledger,
    lo_index: int,
    hi_index: int,
    raw_entries: bytes,
    visible_position: int,
) -> RepairReport:
    """Put the entries [lo_index, hi_index) of an open ledger back, durably.

    Only entries that readers may see (`visible_position`) are repaired: they are never cut, so any
    thread may call beside the one that appends. The log may expire or be replaced meanwhile: its
    files are gone then, and the bytes with them. Entries must follow the one before and lead to the
    one behind, or to the end of the log.
    Without entries only the blank that must be there is written again. Raises PositionRangeError,
    ForeignEntryError, DamageWiderError (entries behind are damaged, too: fetch the range it names)
    or CorruptionError (the entry before is damaged, too): nothing was written. StoreFullError,
    FileSystemError: repeat it. SyncFailedError: stop.
    """
    if not ledger.first_index <= lo_index <= hi_index <= ledger.last_index + 1:
        raise PositionRangeError("index", lo_index, ledger.first_index, ledger.last_index + 1)
    try:
        files, index_files = ledger.files.files, ledger.index.files.files
        file_size_bytes = ledger.files.file_size_bytes
        damaged = _range_of(ledger, lo_index, hi_index)
        checked, point = None, EntryBoundary(damaged.position, damaged.before)
        if raw_entries or lo_index < hi_index:
            checked = check_entries(raw_entries, *point, file_size_bytes)
            last = checked.pieces[-1]
            point = EntryBoundary(last.position + last.hi - last.at, last.link)
        if point.link.entry_index != hi_index - 1:
            raise ForeignEntryError(hi_index, 0, "entries", f"{hi_index - lo_index}", "other ones")
        if point.position > visible_position:
            lo = ledger.min_position
            raise PositionRangeError("position", point.position, lo, visible_position + 1)
        _prove(ledger, damaged, point)
        root = os.path.dirname(ledger.directory)
        kept_path = keep_aside(
            fs, root, lambda at, size: read_live(ledger, at, size), damaged, file_size_bytes
        )
        if damaged.position < damaged.end_position:
            ledger.checked.forget(damaged.position, damaged.end_position)
        pieces = checked.pieces if checked is not None else ()
        _write(files, damaged, [(p.position, raw_entries[p.at : p.hi]) for p in pieces])
        for piece in pieces:
            index = piece.link.entry_index + 1 - len(piece.units) // _UNIT
            if ledger.index.first_difference(index, piece.units) is not None:
                _overwrite(index_files, index * _UNIT, piece.units)
        check_range(ledger, lo_index, hi_index)
        return RepairReport(damaged, hi_index - lo_index, hi_index - 1, len(raw_entries), kept_path)
    except ClosedError as error:  # Expired, or replaced.
        raise PositionRangeError(
            "index", lo_index, ledger.first_index, ledger.last_index + 1
        ) from error


def mend_index(ledger: Ledger, index: int, units: bytes) -> bool:
    """Put back the units of good entries from `index` on, if one differs; return whether one did.

    Only of entries that readers may see. Raises ClosedError, FileSystemError, SyncFailedError.
    """
    if ledger.index.first_difference(index, units) is None:
        return False
    files, lo = ledger.index.files.files, index * _UNIT
    if not files or lo < files[0].position or lo + len(units) > files[-1].committed_position:
        return False  # Expired, or replaced meanwhile.
    _overwrite(files, lo, units)
    return True


def _range_of(ledger: Ledger, lo_index: int, hi_index: int) -> DamagedRange:
    """Return the range between the entry before, which must be whole, and the one behind."""
    (position, before), before_position = start_of(ledger), -1
    if lo_index > before.entry_index + 1:
        entry = ledger.entry(lo_index - 1)
        before = ChainLink(lo_index - 1, entry.term, entry.chain_crc)
        before_position = entry.position
        position = entry.position + _HEADER + len(entry.body)
    tail, after = ledger.tail, None
    end_position = tail.end_position
    if hi_index <= tail.link.entry_index:
        after = ledger.header(hi_index)
        end_position = after.position
    return DamagedRange(
        lo_index, hi_index, position, end_position, before, before_position, after, "as asked"
    )


def _prove(ledger: Ledger, damaged: DamagedRange, point: EntryBoundary) -> None:
    """Refuse entries that do not lead to the entry behind them."""
    tail, end = ledger.tail, damaged.end_position
    if damaged.after is not None:
        header = read_live(ledger, end, _HEADER)
        if not leads_to(point, damaged, header, ledger.files.file_size_bytes):
            wider = walk_of(ledger).wider(damaged, damaged.hi_index)
            raise DamageWiderError(wider.lo_index, wider.hi_index, wider.end_position)
    elif point != EntryBoundary(tail.end_position, tail.link):
        reached = f"{point.link}, up to {point.position}"
        raise ForeignEntryError(damaged.hi_index, 0, "last entry", f"{tail}", reached)


def _write(
    files: tuple[MappedFile, ...], damaged: DamagedRange, pieces: list[tuple[int, bytes]]
) -> None:
    """Write entries, and the blanks of files that end between them."""
    end, file_size_bytes = damaged.position, files[0].size_bytes
    for position, data in pieces:
        if position != end:
            _overwrite(files, end, blank(end, file_size_bytes))
        _overwrite(files, position, data)
        end = position + len(data)
    if damaged.after is not None and end != damaged.end_position:
        _overwrite(files, end, blank(end, file_size_bytes))


def _overwrite(files: tuple[MappedFile, ...], position: int, data: bytes) -> None:
    """Write bytes into the files that were there when the range was looked at, and in no others.

    Raises ClosedError when one of them is gone.
    """
    done = 0
    for file in files:
        lo = position + done
        if done < len(data) and file.position <= lo < file.end_position:
            hit("ledger_mend.write")
            part = data[done : done + file.end_position - lo]
            file.overwrite(lo, part)
            done += len(part)
    assert done == len(data), f"no file for {position + done}"
