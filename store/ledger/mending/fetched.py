"""Checks the entries that a peer sent for a damaged range of a ledger, and finds their places.

Owns the proof that fetched entries lie between the last good entry and the first good one behind,
as pure functions over bytes, and the directory where damaged bytes are kept for operators. Must not
know files of the log, nor whether the store is open. Source: design 4.5.
"""

import os
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB
from store.errors import ForeignEntryError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX
from store.ledger.entry import chain_of, file_end, place_entry, unpack_header
from store.ledger.mending.damage import DamagedRange
from store.ledger.raw import CheckedEntries, check_entries
from store.ledger.walk import EntryBoundary, Read

KEPT_DIRECTORY: Final = "damaged"
KEPT_COUNT_MAX: Final = 16  # Files kept there; the oldest go first.
KEPT_SIZE_BYTES_MAX: Final = 64 * MIB  # Size of each; the rest of a longer range is not kept.
_KEPT_PREFIX: Final = "entries-"
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES


class RepairReport(NamedTuple):
    """The entries written. `kept_path` has the bytes that were there, "" if there were none.

    `is_cut`: no entry was written; the damaged ones and all behind `last_index` are cut, because
    they were never committed.
    """

    damaged: DamagedRange
    entry_count: int
    last_index: int
    size_bytes: int
    kept_path: str
    is_cut: bool = False

    def __str__(self) -> str:
        damaged, done = (
            self.damaged,
            "cut" if self.is_cut else f"entries written: {self.entry_count}",
        )
        kept = f"; what was there is kept in {self.kept_path}" if self.kept_path else ""
        where = f"from entry {damaged.lo_index} on, at log position {damaged.position}"
        return f"{done}, {where} ({damaged.reason}){kept}"


def check_fetched(
    raw: bytes, point: EntryBoundary, damaged: DamagedRange, file_size_bytes: int
) -> CheckedEntries:
    """Check fetched entries that follow `point`, and that they belong to the damaged range.

    Raises ForeignEntryError.
    """
    checked = check_entries(raw, point.position, point.link, file_size_bytes)
    last = checked.pieces[-1]
    _, position, _, index, _ = fmt.INDEX_UNIT.unpack(last.units[-_UNIT:])
    if index >= damaged.hi_index and damaged.after is not None:
        expected = f"less than {damaged.hi_index}"
        raise ForeignEntryError(index, last.at, "index", expected, str(index))
    if index >= damaged.hi_index and position >= damaged.end_position:
        expected = f"less than {damaged.end_position}"
        raise ForeignEntryError(index, last.at, "position", expected, str(position))
    return checked


def covers(damaged: DamagedRange, point: EntryBoundary) -> bool:
    """Whether all entries of a damaged range come before `point`."""
    if damaged.after is not None:
        return point.link.entry_index == damaged.hi_index - 1
    is_last = point.link.entry_index >= damaged.hi_index - 1
    return is_last and point.position >= damaged.end_position


def blank(position: int, file_size_bytes: int) -> bytes:
    """Return the blank from the end of the last entry of a file to the end of the file."""
    size_bytes = file_end(position, file_size_bytes) - position
    return fmt.ENTRY_BLANK.pack(fmt.ENTRY_MAGIC_BLANK, size_bytes).ljust(size_bytes, b"\0")


def leads_to(
    point: EntryBoundary, damaged: DamagedRange, header: bytes, file_size_bytes: int
) -> bool:
    """Whether the good entry behind a damaged range is the one that must follow `point`."""
    after = damaged.after
    assert after is not None, f"nothing behind {damaged}"
    return (
        place_entry(point.position, after.size_bytes, file_size_bytes) == damaged.end_position
        and unpack_header(header) == after
        and after.entry_index == point.link.entry_index + 1
        and after.term >= point.link.term
        and chain_of(point.link.chain_crc, header) == after.chain_crc
    )


def keep_aside(fs: FileSystem, root: str, read: Read, damaged: DamagedRange, file_size: int) -> str:
    """Copy the bytes of a damaged range to `<root>/damaged/entries-<position>`, durably.

    Return the path, "" when all bytes are zero. At most KEPT_COUNT_MAX are kept. Raises
    StoreFullError, FileSystemError or SyncFailedError; nothing is left behind, or a temporary file
    that the next call replaces.
    """
    directory = os.path.join(root, KEPT_DIRECTORY)
    fs.make_directory(directory)
    path = _free_name(os.path.join(directory, f"{_KEPT_PREFIX}{damaged.position}"))
    temporary = os.path.join(directory, "kept" + TEMPORARY_SUFFIX)
    if os.path.exists(temporary):
        fs.unlink(temporary)
    fd, is_empty = fs.open(temporary, create=True), True
    try:
        position = damaged.position
        hi = min(damaged.end_position, position + KEPT_SIZE_BYTES_MAX)
        while position < hi:
            size_bytes = min(MIB, hi - position, file_end(position, file_size) - position)
            data = read(position, size_bytes)
            is_empty = is_empty and data == bytes(size_bytes)
            fs.write_at(fd, temporary, position - damaged.position, data)
            position += size_bytes
        fs.sync(fd, temporary)
    finally:
        fs.close(fd)
    if is_empty:
        fs.unlink(temporary)
        return ""
    hit("ledger_repair.keep")
    fs.rename(temporary, path)
    _remove_oldest(fs, directory)
    fs.sync_directory(directory)
    return path


def _free_name(path: str) -> str:
    """Return a free name: a repair that was interrupted has kept some bytes before."""
    number, free = 0, path
    while os.path.exists(free):
        number += 1
        free = f"{path}.{number}"
    return free


def _remove_oldest(fs: FileSystem, directory: str) -> None:
    names = [n for n in fs.list_directory(directory) if n.startswith(_KEPT_PREFIX)]
    paths = sorted((os.path.join(directory, n) for n in names), key=os.path.getmtime)
    for path in paths[: max(0, len(paths) - KEPT_COUNT_MAX)]:
        fs.unlink(path)
