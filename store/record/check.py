"""Checks stored records against their own fields; the loop of recovery and fsck.

Owns the question "is this a whole, good record that belongs at this position"; must not know files.
Deviation: RocketMQ does not compare the embedded physical offset with the real position, so a stale
record that happens to line up passes as valid there (storage-formats 4.7, 11.1). Source: 1.13.
"""

from typing import NamedTuple

from store import format as fmt
from store.errors import RecordFormatError
from store.files.checksum import crc32
from store.record.message import check_property_crc, record_layout


class CheckedRun(NamedTuple):
    """How far a run of bytes is good.

    `end` is the byte after the last good record. `blank_size_bytes` is the size of the blank that
    follows it, 0 without one. `problem` names what is wrong at `end`; None when the bytes simply
    ran out (a cut record, or nothing).
    """

    end: int
    record_count: int
    blank_size_bytes: int
    last_store_unix_ms: int
    problem: RecordFormatError | None


def check_records(data: bytes, position: int, *, require_property_crc: bool = False) -> CheckedRun:
    """Check the records that lie back to back in `data`, whose first byte is at `position`.

    Sizes, magic, body CRC, property CRC if there is one, the embedded physical offset, and no NUL
    byte in topic and properties. With `require_property_crc` every record must carry one: a flipped
    bit in the name of that property would hide it otherwise.
    """
    at, hi, count, store_unix_ms = 0, len(data), 0, 0
    unpack_head, unpack_offsets = fmt.RECORD_HEAD.unpack_from, fmt.OFFSETS.unpack_from
    crc_mark, find = fmt.PROPERTY_CRC_PREFIX, data.find
    view = memoryview(data)
    last_at = -1
    while hi - at >= fmt.RECORD_SIZE_BYTES_MIN:
        size_bytes, magic, crc, queue_id, sys_flag, body_size_bytes = unpack_head(data, at)
        end = at + size_bytes
        if magic == 0xDAA320A7 and not sys_flag & 0x30:
            if end > hi and size_bytes > 0:
                break
            body_hi = at + 88 + body_size_bytes
            if body_size_bytes < 0 or body_hi + 3 > end:
                return _bad(view, at, position, count, last_at)
            topic_hi = body_hi + 1 + data[body_hi]
            if topic_hi + 2 > end or end != (
                topic_hi + 2 + (data[topic_hi] << 8 | data[topic_hi + 1])
            ):
                return _bad(view, at, position, count, last_at)
            if crc32(view[at + 88 : body_hi]) & 0x7FFFFFFF != crc or queue_id < 0:
                return _bad(view, at, position, count, last_at)
            if unpack_offsets(data, at + 20)[1] != at + position:
                return _bad(view, at, position, count, last_at)
            # Neither topic nor properties have a CRC by default. No writer puts a NUL there, and a
            # torn write leaves NULs, so this tells a cut record from a whole one.
            if find(0, body_hi + 1, topic_hi) >= 0 or find(0, topic_hi + 2, end) >= 0:
                return _bad(view, at, position, count, last_at)
            has_crc = require_property_crc or data[end - 20 : end - 11] == crc_mark
            if has_crc and _problem(view, at, position, require_property_crc):
                return _bad(view, at, position, count, last_at, require_property_crc)
        else:
            if magic == fmt.MAGIC_BLANK or (magic in (fmt.MAGIC_V1, fmt.MAGIC_V2) and end > hi > 0):
                break
            if _problem(view, at, position, require_property_crc):
                return _bad(view, at, position, count, last_at, require_property_crc)
        last_at, at = at, end
        count += 1
    if last_at >= 0:
        store_unix_ms = store_timestamp(data, last_at)
    blank_size_bytes = 0
    if hi - at >= fmt.BLANK_SIZE_BYTES_MIN:
        size_bytes, magic = fmt.BLANK.unpack_from(data, at)
        if magic == fmt.MAGIC_BLANK:
            blank_size_bytes = size_bytes
        elif magic not in (fmt.MAGIC_V1, fmt.MAGIC_V2):
            expected = f"{fmt.MAGIC_V1:08X}, {fmt.MAGIC_V2:08X} or {fmt.MAGIC_BLANK:08X}"
            problem = RecordFormatError(at + 4, "magic", expected, f"{magic:08X}")
            return CheckedRun(at, count, 0, store_unix_ms, problem)
    return CheckedRun(at, count, blank_size_bytes, store_unix_ms, None)


def store_timestamp(record: bytes | memoryview, at: int = 0) -> int:
    """Return when the record at byte `at` was stored, in Unix ms."""
    v6 = record[at + fmt.SYS_FLAG_AT + 3] & fmt.SYS_FLAG_BORN_HOST_V6
    store_at = at + fmt.STORE_TIMESTAMP_AT + (fmt.HOST_V6_EXTRA_BYTES if v6 else 0)
    return int(fmt.TIMESTAMP.unpack_from(record, store_at)[0])


def _bad(
    view: memoryview, at: int, position: int, count: int, last_at: int, require_crc: bool = False
) -> CheckedRun:
    problem = _problem(view, at, position, require_crc)
    assert problem is not None, f"position {position + at}: the fast check and the exact one differ"
    return CheckedRun(at, count, 0, store_timestamp(view, last_at) if count else 0, problem)


def _problem(
    view: memoryview, at: int, position: int, require_crc: bool = False
) -> RecordFormatError | None:
    """Check one record exactly; return what is wrong with it, or None."""
    try:
        layout = record_layout(view, at)
        with view[layout.body_at : layout.body_hi] as body:
            expected = crc32(body) & fmt.CRC_MASK
        crc = fmt.INT32.unpack_from(view, at + fmt.BODY_CRC_AT)[0] & 0xFFFFFFFF
        if crc != expected:
            raise RecordFormatError(
                at + fmt.BODY_CRC_AT, "body CRC", f"{expected:08X}", f"{crc:08X}"
            )
        queue_id = fmt.INT32.unpack_from(view, at + fmt.QUEUE_ID_AT)[0]
        if queue_id < 0:
            raise RecordFormatError(at + fmt.QUEUE_ID_AT, "queue id", "0 or more", str(queue_id))
        own = fmt.OFFSETS.unpack_from(view, at + fmt.QUEUE_OFFSET_AT)[1]
        if own != position + at:
            raise RecordFormatError(
                at + fmt.PHYSICAL_OFFSET_AT, "physical offset", str(position + at), str(own)
            )
        properties = bytes(view[layout.properties_at : at + layout.size_bytes])
        if 0 in bytes(view[layout.topic_at : layout.topic_hi]):
            raise RecordFormatError(layout.topic_at, "topic", "no NUL byte", "a NUL byte")
        if 0 in properties:
            nul_at = layout.properties_at + properties.index(0)
            raise RecordFormatError(nul_at, "properties", "no NUL byte", "a NUL byte")
        if require_crc and not properties[-20:].startswith(fmt.PROPERTY_CRC_PREFIX):
            crc_at = at + layout.size_bytes - fmt.PROPERTY_CRC_SIZE_BYTES
            raise RecordFormatError(crc_at, "last property", "__CRC32#", repr(properties[-20:]))
        check_property_crc(view, at, layout.size_bytes, properties)
    except RecordFormatError as problem:
        return problem
    return None
