"""The first boundary of a record or entry in a byte range, found without reading all before it.

Owns the way from any byte to a boundary: a ledger's index, the consume queues of a plain log, or
the beginning of the file, which is always a boundary. Index and queues are derived, so they are
believed only when the log itself confirms them: an entry and a record carry their own position.
"""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from pipeline.segments_log import LogReader
from store import format as fmt
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.errors import FileSystemError
from store.ledger.entry import ChainLink, Header, is_header_at, unpack_header

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_RECORD_HEAD_BYTES: Final = fmt.SYS_FLAG_AT
_QUEUES_MAX: Final = 32
"""Limit of the queues that are asked: each names a record near the byte; a walk does the rest."""


class SegmentBoundary(NamedTuple):
    """An entry or record begins at `position`; `link` is the entry before, None if unknown."""

    position: int
    link: ChainLink | None


def find_boundary(reader: LogReader, lo: int) -> SegmentBoundary | None:
    """Return the first boundary at or behind a position of the log.

    The boundary may be behind the file. None when damage is in the way: the bytes between the
    beginning of the file and `lo` are then left to the task that reads them.
    """
    log = reader.log
    if lo <= log.begin_position:
        return SegmentBoundary(log.begin_position, log.link)
    try:
        boundary = _by_index(reader, lo) if log.is_ledger else None
        return boundary or _by_walk(reader, lo)
    except FileSystemError:
        return None


# --- The index of a ledger ---


def _by_index(reader: LogReader, lo: int) -> SegmentBoundary | None:
    """Return a boundary by the last entry of the index before `lo`; None without a reliable one."""
    log = reader.log
    first = max(log.link.entry_index + 1, log.unit_lo)
    low, high = first, log.unit_hi
    try:
        while low < high:  # Find the first unit that is not of an entry before `lo`.
            middle = (low + high) // 2
            magic, position, _, index, _ = _unit(reader, middle)
            if magic == fmt.ENTRY_MAGIC and index == middle and position < lo:
                low = middle + 1
            else:
                high = middle
        if low == first:
            return None
        _, position, _, index, _ = _unit(reader, low - 1)
    except FileSystemError:  # A file of the index is missing or short.
        return None
    header = _header(reader, position)
    if header is None or header.entry_index != index:
        return None
    return _behind(reader, header, lo)


def _unit(reader: LogReader, number: int) -> tuple[int, int, int, int, int]:
    unit = fmt.INDEX_UNIT_SIZE_BYTES
    magic, position, size_bytes, index, term = fmt.INDEX_UNIT.unpack(
        reader.index(number * unit, unit)
    )
    return magic, position, size_bytes, index, term


def _header(reader: LogReader, position: int) -> Header | None:
    """Return the header at a position; None unless its fields are those of an entry there."""
    log = reader.log
    if not log.begin_position <= position <= log.file_end(position) - _HEADER:
        return None
    header = unpack_header(reader.data(position, _HEADER))
    return header if is_header_at(header, position, log.file_end(position)) else None


def _behind(reader: LogReader, header: Header, lo: int) -> SegmentBoundary | None:
    """Return the boundary after an entry; None if neither it nor a blank reaches `lo`."""
    log, end = reader.log, header.position + header.size_bytes
    link = ChainLink(header.entry_index, header.term, header.chain_crc)
    if end >= lo:
        return SegmentBoundary(end, link)
    file_end = log.file_end(header.position)
    is_blank = reader.data(end, 4) == b"\xff\xff\xff\xff"
    return SegmentBoundary(file_end, link) if is_blank and lo <= file_end else None


# --- From the beginning of the file, or from a record that a queue names ---


def _by_walk(reader: LogReader, lo: int) -> SegmentBoundary | None:
    log = reader.log
    position = max(log.begin_position, lo - lo % log.file_size_bytes)
    link = log.link if position == log.begin_position else None
    if not log.is_ledger:
        return _walk_records(reader, max([position, *_queued(reader, position, lo)]), lo)
    while position < lo:
        header = _header(reader, position)
        if header is None:
            return _blank_end(reader, position, link)
        link = ChainLink(header.entry_index, header.term, header.chain_crc)
        position += header.size_bytes
    return SegmentBoundary(position, link)


def _blank_end(reader: LogReader, position: int, link: ChainLink | None) -> SegmentBoundary | None:
    """Return the end of the file if a blank begins here; None, for damage, otherwise."""
    if reader.data(position, 4) != b"\xff\xff\xff\xff":
        return None
    return SegmentBoundary(reader.log.file_end(position), link)


def _walk_records(reader: LogReader, position: int, lo: int) -> SegmentBoundary | None:
    file_end = reader.log.file_end(position)
    while position < lo:
        size_bytes, magic = fmt.BLANK.unpack(reader.data(position, fmt.BLANK.size))
        if magic == fmt.MAGIC_BLANK:
            return SegmentBoundary(file_end, None)
        if magic not in (fmt.MAGIC_V1, fmt.MAGIC_V2) or size_bytes < fmt.RECORD_SIZE_BYTES_MIN:
            return None
        position += size_bytes
    return SegmentBoundary(position, None)


def _queued(reader: LogReader, file_lo: int, lo: int) -> Iterator[int]:
    """Yield positions of records in [file_lo, lo], the last one of each of some queues."""
    log = reader.log
    top = os.path.join(log.root, "consumequeue")
    for topic, queue_id in _queues(top):
        try:
            position = _last_before(reader, top, topic, queue_id, lo)
        except FileSystemError:  # A file of it is missing or short: use the other queues.
            continue
        if position is not None and file_lo <= position and _is_record(reader, position):
            yield position


def _last_before(reader: LogReader, top: str, topic: str, queue_id: str, lo: int) -> int | None:
    """Return the position of the last record at or before `lo` that a queue names."""
    names = sorted(n for n in os.listdir(os.path.join(top, topic, queue_id)) if n.isdecimal())
    if not names:
        return None
    first = low = int(names[0]) // UNIT_SIZE_BYTES
    high = (int(names[-1]) + reader.log.queue_file_size_bytes) // UNIT_SIZE_BYTES
    while low < high:
        middle = (low + high) // 2
        position, size_bytes = _queue_unit(reader, topic, queue_id, middle)
        is_filler = size_bytes == fmt.CONSUME_QUEUE_FILLER_SIZE
        if size_bytes and (is_filler or position <= lo):
            low = middle + 1
        else:
            high = middle
    return _queue_unit(reader, topic, queue_id, low - 1)[0] if low > first else None


def _queues(top: str) -> list[tuple[str, str]]:
    queues: list[tuple[str, str]] = []
    for topic in sorted(os.listdir(top)) if os.path.isdir(top) else []:
        directory = os.path.join(top, topic)
        for queue_id in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
            if queue_id.isdecimal() and os.path.isdir(os.path.join(directory, queue_id)):
                queues.append((topic, queue_id))
                if len(queues) == _QUEUES_MAX:
                    return queues
    return queues


def _queue_unit(reader: LogReader, topic: str, queue_id: str, number: int) -> tuple[int, int]:
    data = reader.queue(topic, int(queue_id), number * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES)
    position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack(data)
    return position, size_bytes


def _is_record(reader: LogReader, position: int) -> bool:
    """Whether a record at a position carries that position."""
    if position > reader.log.file_end(position) - fmt.RECORD_SIZE_BYTES_MIN:
        return False
    head = reader.data(position, _RECORD_HEAD_BYTES)
    own = fmt.OFFSETS.unpack_from(head, fmt.QUEUE_OFFSET_AT)[1]
    return own == position and fmt.BLANK.unpack_from(head)[1] in (fmt.MAGIC_V1, fmt.MAGIC_V2)
