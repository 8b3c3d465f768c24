"""Reads consecutive records of one queue, raw, in as few and as large reads as possible.

Owns the statuses of a pull, its limits and the check that a unit and its record belong together;
must not know the caller, nor when to wait. Records are not decoded here: the client does that.
Sources: RocketMQ DefaultMessageStore#getMessage; storage-formats 2.7. Deviation: a record that is
not the one its unit promises is an error and not a message.
"""

import enum
import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from store import format as fmt
from store.config import KIB, MIB
from store.derived.queues.consume_queue import ConsumeQueue
from store.errors import (
    ClosedError,
    CorruptionError,
    DerivedDamageError,
    DerivedFileError,
    PositionRangeError,
)
from store.log.record_log import RecordLog

SCAN_COUNT_MAX: Final = 800  # Units looked at with a tag filter, at least: 16,000 bytes of them.
_GAP_SIZE_BYTES_MAX: Final = 16 * KIB  # Reading over such a gap is cheaper than a second read.
_READ_SIZE_BYTES_MAX: Final = 8 * MIB
PULL_READ_COUNT_MAX: Final = 256
"""Reads of the log for one pull, which end it as its own limits do: each of many small records may
lie alone, and be a read of its own. So do _READ_SIZE_BYTES_MAX, gaps included."""
_CLUSTER_SIZE_BYTES_MAX: Final = _READ_SIZE_BYTES_MAX + fmt.ENTRY_SIZE_BYTES_MAX
"""Largest size of records that are read at once, with the bytes between them."""
_UNITS_AT_ONCE: Final = 512  # Units of a queue, read with one call where single ones are wanted.
# Size, queue id, queue offset, physical offset.
_IDENTITY: Final = struct.Struct(">i8xi4xqq")
assert _IDENTITY.size == fmt.SYS_FLAG_AT


class PullStatus(enum.Enum):
    """Outcome of a pull; the names are RocketMQ's GetMessageStatus."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no_matched_message"
    MESSAGE_WAS_REMOVING = "message_was_removing"
    OFFSET_OVERFLOW_ONE = "offset_overflow_one"
    OFFSET_OVERFLOW_BADLY = "offset_overflow_badly"
    OFFSET_TOO_SMALL = "offset_too_small"
    NO_MESSAGE_IN_QUEUE = "no_message_in_queue"
    NO_MATCHED_LOGIC_QUEUE = "no_matched_logic_queue"


class PullResult(NamedTuple):
    """Result of one pull.

    `data` holds `record_count` whole records back to back, in queue order; without a filter they
    are the offsets [asked, next_offset). `next_offset` is where to go on, whatever the status.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    record_count: int = 0


class _Chosen(NamedTuple):
    """The records to read: parallel lists in queue order."""

    offsets: list[int]
    positions: list[int]
    sizes_bytes: list[int]


def pull(
    log: RecordLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_count: int,
    max_bytes: int,
    tags_codes: Collection[int] | None = None,
    *,
    verify: bool = False,
) -> PullResult:
    """Return up to `max_count` records, `max_bytes` in all, from `offset` on.

    If there is a record at all, at least one is returned, however large. With `tags_codes` only
    records whose tags code is in it; tags may share a code, so the client compares the tag itself.
    With `verify` they are those of one read, checked even if they were before. Raises
    CorruptionError, DerivedDamageError when queue and log disagree, or FileSystemError.
    """
    assert max_count > 0, f"max_count {max_count}"
    if queue is None:
        return PullResult(PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    lo, hi = queue.min_offset, queue.max_offset
    if hi == 0:
        return PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if offset < lo:
        return PullResult(PullStatus.OFFSET_TOO_SMALL, lo, lo, hi)
    if offset == hi:
        return PullResult(PullStatus.OFFSET_OVERFLOW_ONE, offset, lo, hi)
    if offset > hi:
        return PullResult(PullStatus.OFFSET_OVERFLOW_BADLY, hi, lo, hi)
    scan_count = max_count if tags_codes is None else max(max_count, SCAN_COUNT_MAX)
    scan_hi = min(hi, offset + scan_count)
    # Without a filter each unit is compared with its record, and so needs no other proof.
    is_proof_needed = tags_codes is not None
    # To verify one record costs its whole entry: one read has few entries.
    read_count_max = 1 if verify else PULL_READ_COUNT_MAX
    while True:
        try:
            units = queue.read_units(offset, scan_hi, is_proof_needed=is_proof_needed)
        except PositionRangeError:  # Expired or truncated meanwhile.
            return _moved(log, queue, offset)
        chosen, next_offset = _choose(units, offset, max_count, max_bytes, tags_codes)
        if not chosen.offsets:
            return PullResult(PullStatus.NO_MATCHED_MESSAGE, next_offset, lo, hi)
        try:
            data, count = _read(log, queue, chosen, read_count_max, verify=verify)
        except (PositionRangeError, ClosedError, CorruptionError, DerivedFileError) as error:
            if not is_proof_needed:
                is_proof_needed = True  # The units may be wrong.
                continue
            if isinstance(error, CorruptionError | DerivedFileError):
                raise
            return _moved(log, queue, offset)
        break
    if count < len(chosen.offsets):
        next_offset = chosen.offsets[count]
    return PullResult(PullStatus.FOUND, next_offset, lo, hi, data, count)


def read_at(log: RecordLog, queue: ConsumeQueue, offsets: Sequence[int]) -> bytes:
    """Return the records of these offsets, ascending, back to back.

    Raises PositionRangeError for one that is not there, DerivedFileError, CorruptionError or
    FileSystemError.
    """
    positions: list[int] = []
    sizes_bytes: list[int] = []
    lo = 0
    while lo < len(offsets):
        first, hi = offsets[lo], lo + 1
        while hi < len(offsets) and offsets[hi] - first < _UNITS_AT_ONCE:
            hi += 1
        units = queue.read_units(first, offsets[hi - 1] + 1)
        for offset in offsets[lo:hi]:
            at = (offset - first) * fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES
            position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack_from(units, at)
            positions.append(position)
            sizes_bytes.append(size_bytes)
        lo = hi
    return _read(log, queue, _Chosen(list(offsets), positions, sizes_bytes))[0]


def _moved(log: RecordLog, queue: ConsumeQueue, offset: int) -> PullResult:
    """Return the result of a pull whose records were deleted, or cut off, meanwhile."""
    lo, hi = queue.min_offset, queue.max_offset
    min_position = log.min_position
    lo = queue.search(lo, hi, lambda position, _: position < min_position)
    next_offset = min(max(offset, lo), hi)
    return PullResult(PullStatus.MESSAGE_WAS_REMOVING, next_offset, lo, hi)


def _choose(
    units: bytes,
    offset: int,
    max_count: int,
    max_bytes: int,
    tags_codes: Collection[int] | None,
) -> tuple[_Chosen, int]:
    """Return the records that the limits and the filter leave, and the offset to go on from."""
    offsets: list[int] = []
    positions: list[int] = []
    sizes_bytes: list[int] = []
    left_bytes = max_bytes
    for position, size_bytes, tags_code in fmt.CONSUME_QUEUE_UNIT.iter_unpack(units):
        if tags_codes is None or tags_code in tags_codes:
            left_bytes -= size_bytes
            if positions and (left_bytes < 0 or len(positions) == max_count):
                break
            offsets.append(offset)
            positions.append(position)
            sizes_bytes.append(size_bytes)
        offset += 1
    return _Chosen(offsets, positions, sizes_bytes), offset


def _read(
    log: RecordLog,
    queue: ConsumeQueue,
    chosen: _Chosen,
    read_count_max: int | None = None,
    *,
    verify: bool = False,
) -> tuple[bytes, int]:
    """Read the chosen records and join them; neighbours, and near ones, in one read. Return them
    and how many they are: all, or fewer where a limit of reads is given."""
    parts: list[bytes] = []
    positions, sizes_bytes = chosen.positions, chosen.sizes_bytes
    lo = read_count = read_size_bytes = 0
    while lo < len(positions):
        if read_count_max is not None and (
            read_count == read_count_max or read_size_bytes >= _READ_SIZE_BYTES_MAX
        ):
            break
        hi = _cluster_hi(positions, sizes_bytes, lo)
        first, end = positions[lo], positions[hi - 1] + sizes_bytes[hi - 1]
        is_whole = sum(sizes_bytes[lo:hi]) == end - first
        if not 0 < end - first <= _CLUSTER_SIZE_BYTES_MAX:
            raise _damage(queue, chosen.offsets[lo])
        try:
            data = log.read(first, end - first)
        except PositionRangeError:
            if is_whole:
                raise
            # A gap can hide the end of a log file: read up to it, then beyond.
            hi = lo + 1
            while hi < len(positions) and positions[hi] == positions[hi - 1] + sizes_bytes[hi - 1]:
                hi += 1
            end = positions[hi - 1] + sizes_bytes[hi - 1]
            data, is_whole = log.read(first, end - first), True
        log.check(first, data, again=verify)
        _check(data, queue, chosen, lo, hi)
        if is_whole:
            parts.append(data)
        else:
            for i in range(lo, hi):
                at = positions[i] - first
                parts.append(data[at : at + sizes_bytes[i]])
        lo = hi
        read_count += 1
        read_size_bytes += end - first
    return parts[0] if len(parts) == 1 else b"".join(parts), lo


def _cluster_hi(positions: list[int], sizes_bytes: list[int], lo: int) -> int:
    """Return the end of the records from `lo` on that one read should fetch."""
    end = positions[lo] + sizes_bytes[lo]
    limit = positions[lo] + _READ_SIZE_BYTES_MAX
    for i in range(lo + 1, len(positions)):
        position = positions[i]
        if position - end > _GAP_SIZE_BYTES_MAX or position < end:
            return i
        end = position + sizes_bytes[i]
        if end > limit:
            return i
    return len(positions)


def _check(data: bytes, queue: ConsumeQueue, chosen: _Chosen, lo: int, hi: int) -> None:
    """Compare each record with its unit: size, queue id, queue offset, physical offset."""
    offsets, positions, sizes_bytes = chosen
    unpack, queue_id, first = _IDENTITY.unpack_from, queue.queue_id, positions[lo]
    for i in range(lo, hi):
        position, size_bytes = positions[i], sizes_bytes[i]
        expected = (size_bytes, queue_id, offsets[i], position)
        at = position - first
        fields = unpack(data, at) if size_bytes >= fmt.RECORD_SIZE_BYTES_MIN else (size_bytes,)
        if fields != expected:
            raise _damage(queue, offsets[i])


def _damage(queue: ConsumeQueue, offset: int) -> DerivedDamageError:
    """Return the error for a record that is not what its unit says. Which of the two is wrong is
    for the repair to find."""
    field = f"record of offset {offset}, or its unit,"
    return DerivedDamageError(queue.directory, 0, field, (offset, offset + 1))
