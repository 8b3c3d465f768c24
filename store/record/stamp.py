"""Checks a batch of encoded records and patches in the fields that only the store knows.

Owns the rules of what may enter the log and the table of next queue offsets; must not know files.
This is the hot loop of every append: no object per record, one pass, in a scratch copy of the
batch, so a refused batch leaves no trace anywhere; reads are from the batch itself, since slices of
bytes are cheaper. The readable twin is `store.record.message`; a record that this loop finds odd is
handed to that one, so that errors name byte and field. Sources: storage-formats 1.2, 1.5, 1.7,
1.12, 1.13.
"""

import struct
from typing import Final, NoReturn

from store import format as fmt
from store.config import StoreConfig
from store.errors import LimitExceededError, RecordFormatError
from store.files.checksum import crc32
from store.record.columns import (
    NO_KEY,
    are_bodies_good,
    fields,
    integers,
    put_column,
    uniform_count,
)
from store.record.encoder import OwnRecords
from store.record.inner_batches import InnerBatches
from store.record.message import check_topic, encode_host, property_crc_digits, record_layout
from store.record.tail import Tail, TailReader
from store.record.units import BatchUnits, UnitRun, flat_units, pack_units

QueueKey = tuple[bytes, int]  # Topic, queue id.
_STORE_STAMP: Final = struct.Struct(">q8s")
_UNIFORM_TRIES: Final = 2  # Failed searches for uniform records after which a batch has none.
_NO_RUN: Final = range(0)
CHECKED_COUNT_MAX: Final = 4_096
"""Records of a batch that are checked one by one, up to 9 us each: those whose topic and properties
are not those of a record before. 4 MiB of messages of 1 KiB."""
KEY_COUNT_MAX: Final = 16_384
"""Keys of a batch, beside unique ones: 0.3 us each until they are in the index."""
_pack_unit: Final = fmt.CONSUME_QUEUE_UNIT.pack
_head_of: Final = fmt.RECORD_HEAD.unpack_from
_put_offsets: Final = fmt.OFFSETS.pack_into
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.


Stamped = tuple[list[int], list[int], dict[QueueKey, int], BatchUnits | None]
"""Result of stamping a batch: positions of its records, their queue offsets, the next offsets to
publish once it is in the log, and what dispatch will write; None where only a walk over the records
can tell that. A plain tuple: it is made for every append."""


class Stamper:
    """The stamper of one log, used under its put lock."""

    def __init__(self, config: StoreConfig) -> None:
        self._body_size_bytes_max = config.body_size_bytes_max
        self._property_crc = config.property_crc
        self._store_host = encode_host(config.store_host)
        self._store_v6 = len(self._store_host) == fmt.HOST_V6_SIZE_BYTES
        self._known_topics: set[bytes] = set()  # Names that passed check_topic.
        self._tails = TailReader()
        """Tails that it remembers whole are of plain records that passed all checks."""
        self._has_odd_unit = False
        """Whether the batch in hand has a record whose unit only a walk can tell."""
        self._checked_count = 0
        """Records of the batch in hand that were checked one by one."""
        self._key_count = 0
        """Keys of the batch in hand, beside unique ones."""
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
        record_positions, queue_offsets, updates = list[int](), list[int](), dict[QueueKey, int]()
        runs, hashes, key_positions = list[UnitRun](), list[int](), list[int]()
        tails, body_limit = self._tails.known, self._body_size_bytes_max
        at, hi, tries = 0, len(batch), 0 if self._property_crc else _UNIFORM_TRIES
        topic, queue_id, queue_offset, first_offset, units = b"", -1, 0, 0, list[int]()
        self._has_odd_unit, self._key_count, self._checked_count = False, 0, 0
        while at < hi or not at:  # An empty batch is refused like a cut record.
            if hi - at < 91:
                self._refuse(batch, at)
            size_bytes, magic, crc, its_queue_id, sys_flag, body_size_bytes = _head_of(batch, at)
            end, body_hi = at + size_bytes, at + 88 + body_size_bytes
            plain = stamp and magic == 0xDAA320A7 and not sys_flag & 0xB4
            tail = tails[key] if plain and (key := batch[body_hi:end]) in tails else None
            is_odd = (
                tail is None  # Else: bytes that passed all checks once pass them again.
                or not 0 <= body_size_bytes <= body_limit
                or end > hi
                or its_queue_id < 0
                or crc32(batch[at + 88 : body_hi]) & 0x7FFFFFFF != crc
            )
            if tail is None or is_odd:
                tail, is_odd = self._check(batch, at)
            its_topic, _, tags_code, its_hashes = tail
            if its_topic != topic or its_queue_id != queue_id:
                if topic:
                    updates[topic, queue_id] = queue_offset
                    packed = pack_units(units) if units[3:] else _pack_unit(*units)
                    runs += ((topic, queue_id, first_offset, packed),)
                topic, queue_id, units = its_topic, its_queue_id, []
                first_offset = queue_offset = self._begin_queue((topic, queue_id), updates)
            if tries and plain and batch[at : at + 8] == batch[end : end + 8]:
                run, keys = self._stamp_run(
                    batch,
                    scratch,
                    (lo, at, size_bytes, body_hi),
                    its_hashes,
                    queue_offset,
                    position,
                    stamp,
                )
                if run:
                    record_positions += run
                    queue_offsets += range(queue_offset, queue_offset + len(run))
                    units += flat_units(run, size_bytes, tags_code)
                    hashes += keys
                    key_positions += run[: len(keys)]
                    queue_offset, at = queue_offset + len(run), run.stop - position
                    continue
                tries -= 1
            is_visible = not sys_flag & 0x4  # Neither prepared (0x4) nor rolled back (0xC).
            offset = queue_offset if is_visible else 0
            record_positions += (position + at,)
            queue_offsets += (offset,)
            _put_offsets(scratch, lo + at + 20, offset, position + at)
            if is_odd:
                self._stamp_odd(batch, scratch, lo, at, now_unix_ms)
            else:
                scratch[lo + at + 56 : lo + at + 72] = stamp
            units += (position + at, size_bytes, tags_code)
            if its_hashes:
                hashes += its_hashes
                key_positions += [position + at] * len(its_hashes)
            queue_offset += is_visible
            at = end
        updates[topic, queue_id] = queue_offset
        packed = pack_units(units) if units[3:] else _pack_unit(*units)  # One record: no call.
        runs += ((topic, queue_id, first_offset, packed),)
        known_units = _new_tuple(BatchUnits, (runs, hashes, key_positions, now_unix_ms))
        return record_positions, queue_offsets, updates, None if self._has_odd_unit else known_units

    def _stamp_run(
        self,
        batch: bytes,
        scratch: bytearray,
        place: tuple[int, int, int, int],
        its_hashes: tuple[int, ...],
        queue_offset: int,
        position: int,
        stamp: bytes,
    ) -> tuple[range, list[int]]:
        """As `_stamp_uniform`, also for records with one key each; return the run and the hashes of
        its keys. `its_hashes` are those of the record at `place`."""
        _, at, size_bytes, body_hi = place
        tail = batch[body_hi : at + size_bytes]
        key = self._tails.key_span(tail) if its_hashes else NO_KEY
        if its_hashes and not key:
            return _NO_RUN, []
        run = _stamp_uniform(batch, scratch, place, key, queue_offset, position, stamp)
        if not run or not key:
            return run, []
        hi = run.stop - position
        keys = fields(batch, body_hi + key.start, len(key), size_bytes, hi)
        return run, self._tails.key_hashes(tail, keys)

    def check_record(self, record: bytes) -> None:
        """Check one record as `stamp` checks a batch. Errors as there."""
        self.stamp(record, bytearray(record), 0, 0, 0)

    def _begin_queue(self, key: QueueKey, updates: dict[QueueKey, int]) -> int:
        """Return the next offset of a queue that may take records."""
        next_offsets = self.next_offsets
        if key in updates:
            offset = updates[key]
        else:
            offset = next_offsets[key] if key in next_offsets else 0  # noqa: SIM401 - No call.
        if self.inner_batches is not None and self.inner_batches.topics:
            self.inner_batches.check(*key, offset)
        return offset

    # --- Records that are not known to be good ---

    def _check(self, batch: bytes, at: int) -> tuple[Tail, bool]:
        """Check the record at `at` in every way; return what its unit and keys follow from, and
        whether it has to be patched as an odd one.

        The tail of a good plain record is remembered: records with equal bytes behind the body
        need not be checked there again. Errors as `stamp`."""
        self._checked_count += 1
        if self._checked_count > CHECKED_COUNT_MAX:
            expected = f"at most {CHECKED_COUNT_MAX} that are not alike in a batch"
            raise RecordFormatError(at, "records", expected, str(self._checked_count))
        size_bytes, magic, crc, queue_id, sys_flag, body_size_bytes = _head_of(batch, at)
        end = at + size_bytes
        if magic == fmt.MAGIC_V1 and not sys_flag & 0xB0 and not self._store_v6:
            body_at = at + fmt.BODY_AT  # The order of the tests keeps reads inside of the record.
            body_hi = body_at + body_size_bytes
            if body_size_bytes < 0 or body_hi + 3 > end or end > len(batch):
                self._refuse(batch, at)
            topic_at = body_hi + 1
            topic_hi = topic_at + batch[body_hi]
            if topic_hi + 2 > end or end != (
                topic_hi + 2 + (batch[topic_hi] << 8 | batch[topic_hi + 1])
            ):
                self._refuse(batch, at)
        else:  # V2, an IPv6 host, an inner batch, or no record.
            body_at, body_hi, topic_at, topic_hi = self._find_parts(batch, at)
        if body_hi - body_at > self._body_size_bytes_max or end - topic_hi > 32769:
            self._refuse_size(body_hi - body_at, end - topic_hi - 2)
        if (
            crc32(batch[body_at:body_hi]) & fmt.CRC_MASK != crc
            or batch.find(0, topic_hi + 2, end) >= 0  # Only a torn record has a NUL there.
            or queue_id < 0
        ):
            self._refuse(batch, at)
        topic = batch[topic_at:topic_hi]
        if topic not in self._known_topics:
            self._learn_topic(topic)
        # A property CRC covers the rest of its record, so such a tail is not remembered.
        is_odd = (
            magic != fmt.MAGIC_V1
            or sys_flag & 0xB4 != 0
            or self._store_v6
            or self._property_crc
            or fmt.PROPERTY_CRC_PREFIX in batch[body_hi:end]
        )
        if b"KEYS\x01" in batch[topic_hi:end]:  # Without a call, as most records have none.
            self._count_keys(batch, batch.rfind(b"KEYS\x01", topic_hi, end))
        tail = None if is_odd else self._tails.read(batch[body_hi:end])
        if tail is None:
            self._has_odd_unit = True
            return (topic, {}, 0, ()), is_odd
        return tail, False

    def _count_keys(self, batch: bytes, at: int) -> None:
        """Count the keys of a record whose KEYS are at `at`. Raises RecordFormatError."""
        hi = batch.find(2, at)
        self._key_count += 1 + batch.count(b" ", at, hi if hi >= 0 else len(batch))
        if self._key_count > KEY_COUNT_MAX:
            raise RecordFormatError(
                at, "KEYS", f"at most {KEY_COUNT_MAX} keys in a batch", str(self._key_count)
            )

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

    def _stamp_odd(
        self, batch: bytes, scratch: bytearray, lo: int, at: int, now_unix_ms: int
    ) -> None:
        """Patch store time, host and property CRC of any record that was checked."""
        layout = record_layout(memoryview(batch), at)
        store_at = lo + layout.store_timestamp_at
        fmt.TIMESTAMP.pack_into(scratch, store_at, now_unix_ms)
        scratch[store_at + 8 : store_at + 8 + len(self._store_host)] = self._store_host
        lo_at, end = layout.properties_at, at + layout.size_bytes
        # Not a body's end: the property is looked for behind the body.
        if self._property_crc or batch[max(end - 20, lo_at) : end - 11] == fmt.PROPERTY_CRC_PREFIX:
            self._stamp_property_crc(scratch, lo, at, lo_at, end)

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
            digits = property_crc_digits(crc32(view[lo + at : lo + crc_at]))
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
        crc = fmt.INT32.unpack_from(batch, at + fmt.BODY_CRC_AT)[0] & 0xFFFFFFFF
        expected = crc32(batch[layout.body_at : layout.body_hi]) & fmt.CRC_MASK
        if crc != expected:
            raise RecordFormatError(
                at + fmt.BODY_CRC_AT, "body CRC", f"{expected:08X}", f"{crc:08X}"
            )
        nul_at = batch.find(0, layout.properties_at, at + layout.size_bytes)
        assert nul_at >= 0, f"byte {at}: the fast check and the exact one differ"
        raise RecordFormatError(nul_at, "properties", "no NUL byte", "a NUL byte")


def _stamp_uniform(
    batch: bytes,
    scratch: bytearray,
    place: tuple[int, int, int, int],
    key: range,
    queue_offset: int,
    position: int,
    stamp: bytes,
) -> range:
    """Check and patch a run of records uniform with the one at `place`; return their positions.

    Return an empty range when there is no such run, or a body in it has another checksum: the loop
    then reads each record. The one at `place` was checked; `place` is (where the batch is in the
    scratch, record, size, end of the body), `key` where its only key lies behind its body."""
    lo, at, step, body_hi = place
    if batch[at + step - 20 : at + step - 11] == fmt.PROPERTY_CRC_PREFIX:
        return _NO_RUN
    tail_at = body_hi - at
    key_at = range(tail_at + key.start, tail_at + key.stop) if key else NO_KEY
    count = uniform_count(batch, at, step, tail_at, key_at)
    if count == 1:
        return _NO_RUN
    is_own = type(batch) is OwnRecords
    if not is_own and not are_bodies_good(batch, at, step, count, body_hi - at - fmt.BODY_AT):
        return _NO_RUN
    run = range(position + at, position + at + count * step, step)
    offsets = integers(count, "q", range(queue_offset, queue_offset + count))
    put_column(scratch, lo + at + fmt.QUEUE_OFFSET_AT, step, count, offsets)
    put_column(scratch, lo + at + fmt.PHYSICAL_OFFSET_AT, step, count, integers(count, "q", run))
    put_column(scratch, lo + at + fmt.STORE_TIMESTAMP_AT, step, count, stamp * count)
    return run
