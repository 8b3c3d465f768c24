"""Walks the message records of a ledger, for the dispatcher, a rebuild and reads by position.

Owns the way from entries to runs of records; must not know the reader. Entry headers, blanks
and entries that hold no records are left out. Headers and body checksums are checked on the way, so
damaged bytes are never dispatched. Sources: storage-formats 7.9; RocketMQ DLedgerCommitLog.
"""

from collections.abc import Iterator
from typing import Final

from store import format as fmt
from store.files.checksum import crc32c
from store.files.mapped_file import MappedFile
from store.ledger.entry import KIND_DATA, EntryProblem, unpack_header
from store.ledger.reader import LedgerReader, corruption

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_READ_SIZE_BYTES: Final = fmt.ENTRY_SIZE_BYTES_MAX  # So that every entry fits into one read.
_SIZES_READ_SIZE_BYTES: Final = 16 * 1024  # Many small records, and not much of a large one.
_BODY_CRC_AT: Final = 40
_BLANK: Final = b"\xff\xff\xff\xff"
_MAGIC: Final = fmt.MAGIC_V1.to_bytes(4, "big")[:3]  # That of version 2 differs in the last byte.
_HEAD: Final = fmt.STORE_TIMESTAMP_AT  # Up to the fields that all records have at the same place.


def record_runs(reader: LedgerReader, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position of the first record, whole records back to back) from `lo` up to `hi`.

    One run an entry, in log order. `lo` is where a record or an entry starts, or the end of one;
    every record ends at or before `hi`. Raises CorruptionError where bytes are not what was
    written: nothing is skipped. PositionRangeError, FileSystemError, ClosedError as reads.
    """
    hi = min(hi, reader.max_position)
    if lo >= hi:
        return
    header = reader.header_at(lo)  # No record begins like a header.
    unit = reader.index.get(header.entry_index) if header is not None else None
    if header is not None and unit is not None and unit.position == lo:
        index, position = header.entry_index, lo  # As in each round of the dispatcher.
    else:
        index = reader.index_at_position(lo)
        position = reader.position_of(index)
    while position < hi:
        file = reader.files.file_at(position)
        room = min(file.end_position, reader.max_position) - position
        data = file.read(position, min(room, _READ_SIZE_BYTES, max(hi - position, _HEADER)))
        at = 0
        while position + at < hi:
            size_bytes = _entry_size_bytes(file, data, at, position, index)
            if size_bytes == 0 or at + size_bytes > len(data):
                break
            yield from _records_of(file, data, at, size_bytes, position, lo, hi)
            at += size_bytes
            index += 1
        if size_bytes == 0:
            position = file.end_position
        elif at:
            position += at
        else:  # Only the beginning of an entry was asked for.
            if size_bytes > room:
                raise corruption(
                    file, position, EntryProblem(4, "size", f"{room}", f"{size_bytes}")
                )
            data = file.read(position, size_bytes)
            yield from _records_of(file, data, 0, size_bytes, position, lo, hi)
            position += size_bytes
            index += 1


def _entry_size_bytes(file: MappedFile, data: bytes, at: int, position: int, index: int) -> int:
    """Return the size of the entry at byte `at`, 0 for a blank. Raises CorruptionError.

    An entry whose header is not all there has the size of a header and more.
    """
    if data[at : at + 4] == _BLANK:
        return 0
    if len(data) - at < _HEADER:
        return len(data) - at + 1
    header = unpack_header(data, at)
    actual = (header.magic, header.entry_index, header.position, header.size_bytes)
    wanted = (1, index, position + at, header.body_size_bytes + _HEADER)
    if actual != wanted or header.body_size_bytes < 0:
        problem = EntryProblem(at, "magic, index, position, size", f"{wanted}", f"{actual}")
        raise corruption(file, position, problem)
    return header.size_bytes


def _records_of(
    file: MappedFile, data: bytes, at: int, size_bytes: int, position: int, lo: int, hi: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the records of one whole entry that lie in [lo, hi), if there are any."""
    header = unpack_header(data, at)
    if header.kind != KIND_DATA:
        return
    body = data[at + _HEADER : at + size_bytes]
    body_crc = crc32c(body)
    if body_crc != header.body_crc:
        problem = EntryProblem(
            at + _BODY_CRC_AT, "body CRC", f"{body_crc:08X}", f"{header.body_crc:08X}"
        )
        raise corruption(file, position, problem)
    first = position + at + _HEADER
    first_at = max(lo - first, 0)
    hi_at = len(body) if first + len(body) <= hi else _last_end(body, first_at, hi - first)
    if first_at < hi_at:
        whole = first_at == 0 and hi_at == len(body)
        yield first + first_at, body if whole else body[first_at:hi_at]


def _last_end(body: bytes, at: int, hi: int) -> int:
    """Return where the last record ends that ends at or before byte `hi` of a checked body."""
    while at < len(body):
        end = at + fmt.INT32.unpack_from(body, at)[0]
        assert at < end <= len(body), f"a record of {end - at} bytes in a body that was checked"
        if end > hi:
            break
        at = end
    return at


def may_begin_at(reader: LedgerReader, position: int) -> bool:
    """Whether a record begins at a position, by the sizes of the records of the entry around it.

    Compares no checksum, and reads little of large records. True, too, where a size is impossible
    or leads to bytes that are no record: no one can tell without a check.
    """
    header = reader.header(reader.index_at_position(position))
    at, hi = header.position + _HEADER, header.position + header.size_bytes
    if header.size_bytes != header.body_size_bytes + _HEADER:
        return True
    at = _record_near(reader, at, position, hi)
    unpack, size_bytes_min = fmt.INT32.unpack_from, fmt.RECORD_SIZE_BYTES_MIN
    while at < position and hi - at >= size_bytes_min:
        data, n = reader.read(at, min(hi - at, _SIZES_READ_SIZE_BYTES)), 0
        n_hi = min(len(data) - fmt.INT32.size, position - at)
        while n < n_hi:
            size_bytes = unpack(data, n)[0]
            if size_bytes < size_bytes_min:
                return True
            n += size_bytes
        at += n
    if at <= position or at >= hi:
        return at != hi
    # The record behind the position shows that the one around it really ends there.
    return fmt.BLANK.unpack(reader.read(at, fmt.BLANK.size))[1] not in (fmt.MAGIC_V1, fmt.MAGIC_V2)


def _record_near(reader: LedgerReader, lo: int, position: int, hi: int) -> int:
    """Return where a record begins, `lo` or one shortly before a position that names its place."""
    lo_read, hi_read = max(lo, position - _SIZES_READ_SIZE_BYTES), min(hi, position + _HEAD)
    if lo_read >= hi_read:
        return lo
    data = reader.read(lo_read, hi_read - lo_read)
    at = data.rfind(_MAGIC, 0, position - lo_read + fmt.INT32.size + len(_MAGIC)) - fmt.INT32.size
    if not 0 <= at <= len(data) - _HEAD:
        return lo
    place = fmt.TIMESTAMP.unpack_from(data, at + fmt.PHYSICAL_OFFSET_AT)[0]
    return place if place == lo_read + at else lo
