"""Checks a batch of encoded records and patches in what only the store knows.

Owns the rules of what may enter the log and the table of next queue offsets; must not know files.
This is the hot loop of every append: no object per record, one pass, in a scratch copy of the
batch, so a refused batch leaves no trace anywhere. The readable twin is `store.message`; whatever
this loop finds odd is handed to it, so that errors name byte and field.
Sources: storage-formats 1.2, 1.5, 1.7, 1.12, 1.13.
"""

import struct
import zlib
from typing import Final, NamedTuple, NoReturn

from store import format as fmt
from store.config import StoreConfig
from store.errors import LimitExceededError, RecordFormatError
from store.message import check_topic, encode_host, property_crc_digits, record_layout

QueueKey = tuple[bytes, int]  # Topic, queue id.
_STORE_STAMP: Final = struct.Struct(">q8s")


class Stamped(NamedTuple):
    """What a batch became. `updates` holds the queue offsets to publish once it is in the log."""

    record_positions: list[int]
    queue_offsets: list[int]
    updates: dict[QueueKey, int]


class Stamper:
    """One per log, used under its put lock."""

    def __init__(self, config: StoreConfig) -> None:
        self._body_size_bytes_max = config.body_size_bytes_max
        self._property_crc = config.property_crc
        self._store_host = encode_host(config.store_host)
        self._store_v6 = len(self._store_host) == fmt.HOST_V6_SIZE_BYTES
        self._known_topics: set[bytes] = set()  # Names that passed check_topic.
        self.next_offsets: dict[QueueKey, int] = {}
        """Next queue offset of each queue; absent is 0. Rebuilt from the queues at start."""

    def publish(self, stamped: Stamped) -> None:
        """Raise the queue offsets, once the batch is in the log and not before."""
        self.next_offsets.update(stamped.updates)

    def stamp(
        self, scratch: bytearray, lo: int, hi: int, position: int, now_unix_ms: int
    ) -> Stamped:
        """Check and patch the records in `scratch[lo:hi]`, whose byte `lo` will be at `position`.

        Fills in offsets, store time and host and, if configured, the property CRC. Raises
        RecordFormatError (`at` counts from `lo`), LimitExceededError or TopicNameError; the scratch
        is garbage then, nothing else.
        """
        stamp = b"" if self._store_v6 else _STORE_STAMP.pack(now_unix_ms, self._store_host)
        next_offsets, updates = self.next_offsets, {}
        record_positions, queue_offsets = [], []
        unpack_head, pack_offsets = fmt.RECORD_HEAD.unpack_from, fmt.OFFSETS.pack_into
        crc32, find, known_topics = zlib.crc32, scratch.find, self._known_topics
        body_limit, property_crc = self._body_size_bytes_max, self._property_crc
        key: QueueKey = (b"", -1)
        queue_offset, at, shift = 0, lo, position - lo
        with memoryview(scratch) as view:
            while at < hi or at == lo:  # An empty batch is refused like a cut record.
                if hi - at < 91:
                    self._refuse(view, lo, at, hi)
                size_bytes, magic, crc, queue_id, sys_flag, body_size_bytes = unpack_head(view, at)
                end = at + size_bytes
                plain = magic == 0xDAA320A7 and not sys_flag & 0x30 and stamp
                if plain:  # The order of the tests keeps every read inside of the record.
                    body_at = at + 88
                    body_hi = body_at + body_size_bytes
                    if body_size_bytes < 0 or body_hi + 3 > end or end > hi:
                        self._refuse(view, lo, at, hi)
                    topic_at = body_hi + 1
                    topic_hi = topic_at + scratch[body_hi]
                    if topic_hi + 2 > end or end != (
                        topic_hi + 2 + (scratch[topic_hi] << 8 | scratch[topic_hi + 1])
                    ):
                        self._refuse(view, lo, at, hi)
                else:  # V2, an IPv6 host, or no record.
                    body_at, body_hi, topic_at, topic_hi = self._find_parts(view, lo, at, hi)
                if body_hi - body_at > body_limit or end - topic_hi > 32769:
                    self._refuse_size(body_hi - body_at, end - topic_hi - 2)
                if (
                    crc32(view[body_at:body_hi]) & 0x7FFFFFFF != crc
                    or find(0, topic_hi + 2, end) >= 0  # Only a torn record has a NUL there.
                    or queue_id < 0
                ):
                    self._refuse(view, lo, at, hi)
                topic = bytes(view[topic_at:topic_hi])
                if topic != key[0] or queue_id != key[1]:
                    if topic not in known_topics:
                        self._learn_topic(topic)
                    updates[key] = queue_offset
                    key = (topic, queue_id)
                    queue_offset = updates.get(key, next_offsets.get(key, 0))
                if sys_flag & 0x4:  # Prepared (0x4) or rolled back (0xC).
                    pack_offsets(scratch, at + 20, 0, at + shift)  # Not visible, so not counted.
                    queue_offsets.append(0)
                else:
                    pack_offsets(scratch, at + 20, queue_offset, at + shift)
                    queue_offsets.append(queue_offset)
                    queue_offset += 1
                if plain:
                    scratch[at + 56 : at + 72] = stamp
                else:
                    self._stamp_hosts(view, lo, at, now_unix_ms)
                if property_crc or scratch[end - 20 : end - 11] == b"__CRC32#\x01":
                    self._stamp_property_crc(scratch, lo, at, topic_hi + 2, end)
                record_positions.append(at + shift)
                at = end
        updates[key] = queue_offset
        updates.pop((b"", -1), None)
        return Stamped(record_positions, queue_offsets, updates)

    def _learn_topic(self, topic: bytes) -> None:
        check_topic(topic)
        if len(self._known_topics) >= 100_000:  # A cache, not a registry: start again.
            self._known_topics.clear()
        self._known_topics.add(topic)

    def _find_parts(self, view: memoryview, lo: int, at: int, hi: int) -> tuple[int, int, int, int]:
        """Return where body and topic of any record begin and end."""
        try:
            with view[lo:hi] as batch:
                layout = record_layout(batch, at - lo)
        except RecordFormatError:
            self._refuse(view, lo, at, hi)
        found_v6 = bool(layout.sys_flag & fmt.SYS_FLAG_STORE_HOST_V6)
        if found_v6 != self._store_v6:
            raise RecordFormatError(
                at - lo + fmt.SYS_FLAG_AT,
                "store host family",
                "IPv6 (flag 0x20)" if self._store_v6 else "IPv4 (no flag 0x20)",
                "IPv6" if found_v6 else "IPv4",
            )
        parts = (layout.body_at, layout.body_hi, layout.topic_at, layout.topic_hi)
        return parts[0] + lo, parts[1] + lo, parts[2] + lo, parts[3] + lo

    def _stamp_hosts(self, view: memoryview, lo: int, at: int, now_unix_ms: int) -> None:
        """Patch store time and host of a record that is V2 or has an IPv6 host."""
        with view[lo:] as part:
            store_at = lo + record_layout(part, at - lo).store_timestamp_at
        fmt.TIMESTAMP.pack_into(view, store_at, now_unix_ms)
        view[store_at + 8 : store_at + 8 + len(self._store_host)] = self._store_host

    def _stamp_property_crc(
        self, scratch: bytearray, lo: int, at: int, properties_at: int, end: int
    ) -> None:
        """Fill in the property CRC, the last thing that is patched since it covers the rest."""
        crc_at = end - fmt.PROPERTY_CRC_SIZE_BYTES
        area = scratch[max(crc_at, properties_at) : end]
        if not self._property_crc:
            raise RecordFormatError(
                crc_at - lo, "last property", "no reserved __CRC32#", "a reserved __CRC32#"
            )
        if len(area) != fmt.PROPERTY_CRC_SIZE_BYTES or area[:9] != fmt.PROPERTY_CRC_PREFIX:
            raise RecordFormatError(
                max(crc_at, properties_at) - lo,
                "last property",
                "room for the property CRC (encode with property_crc=True)",
                repr(bytes(area)),
            )
        with memoryview(scratch) as view:
            digits = property_crc_digits(zlib.crc32(view[at:crc_at]))
        scratch[crc_at + 9 : end] = digits + b"\x02"

    def _refuse_size(self, body_size_bytes: int, properties_size_bytes: int) -> NoReturn:
        if body_size_bytes > self._body_size_bytes_max:
            raise LimitExceededError("message body", body_size_bytes, self._body_size_bytes_max)
        raise LimitExceededError("properties", properties_size_bytes, fmt.PROPERTIES_SIZE_BYTES_MAX)

    def _refuse(self, view: memoryview, lo: int, at: int, hi: int) -> NoReturn:
        """Name what is wrong with the record at `at`. Always raises."""
        with view[lo:hi] as batch:
            layout = record_layout(batch, at - lo)
            queue_id = fmt.INT32.unpack_from(batch, at - lo + fmt.QUEUE_ID_AT)[0]
            if queue_id < 0:
                raise RecordFormatError(
                    at - lo + fmt.QUEUE_ID_AT, "queue id", "0 or more", str(queue_id)
                )
            end = at - lo + layout.size_bytes
            nul_at = bytes(batch[layout.properties_at : end]).find(0)
            found = fmt.INT32.unpack_from(batch, at - lo + fmt.BODY_CRC_AT)[0] & 0xFFFFFFFF
            with batch[layout.body_at : layout.body_hi] as body:
                expected = zlib.crc32(body) & fmt.CRC_MASK
        if found == expected:
            assert nul_at >= 0, f"byte {at - lo}: the fast check and the exact one differ"
            raise RecordFormatError(
                layout.properties_at + nul_at, "properties", "no NUL byte", "a NUL byte"
            )
        raise RecordFormatError(
            at - lo + fmt.BODY_CRC_AT, "body CRC", f"{expected:08X}", f"{found:08X}"
        )
