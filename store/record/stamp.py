"""Checks a batch of encoded records and patches in the fields that only the store knows.

Owns the rules of what may enter the log and the table of next queue offsets; must not know files.
This is the hot loop of every append: no object per record, one pass, in a scratch copy of the
batch, so a refused batch leaves no trace anywhere; reads are from the batch itself, since slices of
bytes are cheaper. The readable twin is `store.record.message`; a record that this loop finds odd is
handed to that one, so that errors name byte and field. Sources: storage-formats 1.2, 1.5, 1.7,
1.12, 1.13.
"""

import struct
import zlib
from typing import Final, NoReturn

from store import format as fmt
from store.config import StoreConfig
from store.errors import LimitExceededError, RecordFormatError
from store.record.columns import integers, is_column, put_column, uniform_count
from store.record.inner_batches import InnerBatches
from store.record.message import check_topic, encode_host, property_crc_digits, record_layout

QueueKey = tuple[bytes, int]  # Topic, queue id.
_STORE_STAMP: Final = struct.Struct(">q8s")
_UNIFORM_TRIES: Final = 2  # Failed searches for uniform records after which a batch has none.


Stamped = tuple[list[int], list[int], dict[QueueKey, int]]
"""Result of stamping a batch: positions of its records, their queue offsets, and the next offsets
to publish once it is in the log. A plain tuple: it is made for every append."""


class Stamper:
    """The stamper of one log, used under its put lock."""

    def __init__(self, config: StoreConfig) -> None:
        self._body_size_bytes_max = config.body_size_bytes_max
        self._property_crc = config.property_crc
        self._store_host = encode_host(config.store_host)
        self._store_v6 = len(self._store_host) == fmt.HOST_V6_SIZE_BYTES
        self._known_topics: set[bytes] = set()  # Names that passed check_topic.
        self.next_offsets: dict[QueueKey, int] = {}
        """Next queue offset of each queue; absent is 0. Rebuilt from the queues at start."""

        self.inner_batches: InnerBatches | None = None
        """Topics that take no records, since those could not be read."""

    def publish(self, updates: dict[QueueKey, int]) -> None:
        """Raise the queue offsets, once the batch is in the log and not before."""
        self.next_offsets.update(updates)

    def stamp(
        self, batch: bytes, scratch: bytearray, lo: int, position: int, now_unix_ms: int
    ) -> Stamped:
        """Check a batch and patch its copy, which begins at `scratch[lo]`, to land at `position`.

        Fills in offsets, store time and host and, if configured, the property CRC. Raises
        RecordFormatError, LimitExceededError or TopicNameError; only the scratch is garbage then.
        """
        stamp = b"" if self._store_v6 else _STORE_STAMP.pack(now_unix_ms, self._store_host)
        found: Stamped = ([], [], {})
        record_positions, queue_offsets, updates = found
        unpack_head, pack_offsets = fmt.RECORD_HEAD.unpack_from, fmt.OFFSETS.pack_into
        crc32, find = zlib.crc32, batch.find
        body_limit, property_crc = self._body_size_bytes_max, self._property_crc
        view, at, hi = memoryview(batch), 0, len(batch)
        topic, queue_id, queue_offset, tries = b"", -1, 0, 0 if property_crc else _UNIFORM_TRIES
        while at < hi or not at:  # An empty batch is refused like a cut record.
            if hi - at < 91:
                self._refuse(batch, at)
            size_bytes, magic, crc, its_queue_id, sys_flag, body_size_bytes = unpack_head(batch, at)
            end = at + size_bytes
            plain = magic == 0xDAA320A7 and not sys_flag & 0xB0 and stamp
            if plain:  # The order of the tests keeps every read inside of the record.
                body_at = at + 88
                body_hi = body_at + body_size_bytes
                if body_size_bytes < 0 or body_hi + 3 > end or end > hi:
                    self._refuse(batch, at)
                topic_at = body_hi + 1
                topic_hi = topic_at + batch[body_hi]
                if topic_hi + 2 > end or end != (
                    topic_hi + 2 + (batch[topic_hi] << 8 | batch[topic_hi + 1])
                ):
                    self._refuse(batch, at)
            else:  # V2, an IPv6 host, an inner batch, or no record.
                body_at, body_hi, topic_at, topic_hi = self._find_parts(batch, at)
            if body_hi - body_at > body_limit or end - topic_hi > 32769:
                self._refuse_size(body_hi - body_at, end - topic_hi - 2)
            if (
                crc32(view[body_at:body_hi]) & 0x7FFFFFFF != crc
                or find(0, topic_hi + 2, end) >= 0  # Only a torn record has a NUL there.
                or its_queue_id < 0
            ):
                self._refuse(batch, at)
            its_topic = batch[topic_at:topic_hi]
            if its_topic != topic or its_queue_id != queue_id:
                if topic:
                    updates[topic, queue_id] = queue_offset
                topic, queue_id = its_topic, its_queue_id
                queue_offset = self._begin_queue((topic, queue_id), updates)
            if tries and plain and not sys_flag & 0x4:
                place = lo, at, size_bytes, body_at, body_hi
                count = _stamp_uniform(batch, scratch, place, queue_offset, position, stamp, found)
                if count:
                    queue_offset, at = queue_offset + count, at + count * size_bytes
                    continue
                tries -= 1
            is_visible = not sys_flag & 0x4  # Neither prepared (0x4) nor rolled back (0xC).
            queue_offsets.append(queue_offset if is_visible else 0)
            pack_offsets(scratch, lo + at + 20, queue_offsets[-1], position + at)
            queue_offset += is_visible
            if plain:
                scratch[lo + at + 56 : lo + at + 72] = stamp
            else:
                self._stamp_hosts(batch, scratch, lo, at, now_unix_ms)
            if property_crc or batch[max(end - 20, topic_hi + 2) : end - 11] == b"__CRC32#\x01":
                self._stamp_property_crc(scratch, lo, at, topic_hi + 2, end)  # Not a body's end.
            record_positions.append(position + at)
            at = end
        updates[topic, queue_id] = queue_offset
        return found

    def _begin_queue(self, key: QueueKey, updates: dict[QueueKey, int]) -> int:
        """Check the topic of a queue; return the queue's next offset."""
        if key[0] not in self._known_topics:
            self._learn_topic(key[0])
        offset = updates.get(key, self.next_offsets.get(key, 0))
        if self.inner_batches is not None:
            self.inner_batches.check(*key, offset)
        return offset

    def _learn_topic(self, topic: bytes) -> None:
        check_topic(topic)
        if len(self._known_topics) >= 100_000:  # A cache, not a registry: start again.
            self._known_topics.clear()
        self._known_topics.add(topic)

    def _find_parts(self, batch: bytes, at: int) -> tuple[int, int, int, int]:
        """Return where body and topic of any record begin and end."""
        try:
            layout = record_layout(memoryview(batch), at)
        except RecordFormatError:
            self._refuse(batch, at)
        found_v6 = bool(layout.sys_flag & fmt.SYS_FLAG_STORE_HOST_V6)
        if found_v6 != self._store_v6:
            raise RecordFormatError(
                at + fmt.SYS_FLAG_AT,
                "store host family",
                "IPv6 (flag 0x20)" if self._store_v6 else "IPv4 (no flag 0x20)",
                "IPv6" if found_v6 else "IPv4",
            )
        if layout.sys_flag & fmt.SYS_FLAG_INNER_BATCH:  # The record would count as several.
            flag = f"{layout.sys_flag & 0xFFFFFFFF:#x}"
            raise RecordFormatError(at + fmt.SYS_FLAG_AT, "sys flag", "no inner batch (0x80)", flag)
        return layout.body_at, layout.body_hi, layout.topic_at, layout.topic_hi

    def _stamp_hosts(
        self, batch: bytes, scratch: bytearray, lo: int, at: int, now_unix_ms: int
    ) -> None:
        """Patch store time and host of a record that is V2 or has an IPv6 host."""
        store_at = lo + record_layout(memoryview(batch), at).store_timestamp_at
        fmt.TIMESTAMP.pack_into(scratch, store_at, now_unix_ms)
        scratch[store_at + 8 : store_at + 8 + len(self._store_host)] = self._store_host

    def _stamp_property_crc(
        self, scratch: bytearray, lo: int, at: int, properties_at: int, end: int
    ) -> None:
        """Fill in the property CRC, the last thing that is patched since it covers the rest."""
        crc_at = end - fmt.PROPERTY_CRC_SIZE_BYTES
        area = bytes(scratch[lo + max(crc_at, properties_at) : lo + end])
        if not self._property_crc:
            raise RecordFormatError(
                crc_at, "last property", "no reserved __CRC32#", "a reserved __CRC32#"
            )
        if len(area) != fmt.PROPERTY_CRC_SIZE_BYTES or area[:9] != fmt.PROPERTY_CRC_PREFIX:
            raise RecordFormatError(
                max(crc_at, properties_at),
                "last property",
                "room for the property CRC (encode with property_crc=True)",
                repr(area),
            )
        with memoryview(scratch) as view:
            digits = property_crc_digits(zlib.crc32(view[lo + at : lo + crc_at]))
        scratch[lo + crc_at + 9 : lo + end] = digits + b"\x02"

    def _refuse_size(self, body_size_bytes: int, properties_size_bytes: int) -> NoReturn:
        if body_size_bytes > self._body_size_bytes_max:
            raise LimitExceededError("message body", body_size_bytes, self._body_size_bytes_max)
        raise LimitExceededError("properties", properties_size_bytes, fmt.PROPERTIES_SIZE_BYTES_MAX)

    def _refuse(self, batch: bytes, at: int) -> NoReturn:
        """Raise the error that names the wrong field of the record at `at`."""
        layout = record_layout(memoryview(batch), at)
        queue_id = fmt.INT32.unpack_from(batch, at + fmt.QUEUE_ID_AT)[0]
        if queue_id < 0:
            raise RecordFormatError(at + fmt.QUEUE_ID_AT, "queue id", "0 or more", str(queue_id))
        found = fmt.INT32.unpack_from(batch, at + fmt.BODY_CRC_AT)[0] & 0xFFFFFFFF
        expected = zlib.crc32(batch[layout.body_at : layout.body_hi]) & fmt.CRC_MASK
        if found != expected:
            raise RecordFormatError(
                at + fmt.BODY_CRC_AT, "body CRC", f"{expected:08X}", f"{found:08X}"
            )
        nul_at = batch.find(0, layout.properties_at, at + layout.size_bytes)
        assert nul_at >= 0, f"byte {at}: the fast check and the exact one differ"
        raise RecordFormatError(nul_at, "properties", "no NUL byte", "a NUL byte")


def _stamp_uniform(
    batch: bytes,
    scratch: bytearray,
    place: tuple[int, int, int, int, int],
    queue_offset: int,
    position: int,
    stamp: bytes,
    found: Stamped,
) -> int:
    """Check and patch a run of records uniform with the one at `place`; return their count.

    Return 0 when there is no such run, or a body in it has another checksum: the loop then reads
    each record. The one at `place` was checked; `place` is (where the batch is in the scratch,
    record, size, body, end of the body)."""
    lo, at, size_bytes, body_at, body_hi = place
    if batch[at + size_bytes - 20 : at + size_bytes - 11] == fmt.PROPERTY_CRC_PREFIX:
        return 0
    count = uniform_count(batch, at, size_bytes, body_hi - at)
    if count == 1:
        return 0
    step, hi, n = size_bytes, body_at + count * size_bytes, body_hi - body_at
    view, crc32 = memoryview(batch), zlib.crc32
    crcs = [crc32(view[k : k + n]) & 0x7FFFFFFF for k in range(body_at, hi, step)]
    if not is_column(batch, at + fmt.BODY_CRC_AT, step, count, "I", crcs):
        return 0
    first = position + at
    offsets = integers(count, "q", range(queue_offset, queue_offset + count))
    positions = integers(count, "q", range(first, first + count * step, step))
    put_column(scratch, lo + at + fmt.QUEUE_OFFSET_AT, step, count, offsets)
    put_column(scratch, lo + at + fmt.PHYSICAL_OFFSET_AT, step, count, positions)
    put_column(scratch, lo + at + fmt.STORE_TIMESTAMP_AT, step, count, stamp * count)
    record_positions, queue_offsets, _ = found
    record_positions += range(first, first + count * step, step)
    queue_offsets += range(queue_offset, queue_offset + count)
    return count
