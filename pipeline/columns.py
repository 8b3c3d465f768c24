"""Raw records, back to back, to Arrow columns: by columns and not by records.

Owns the decoding of the record's layout (docs/format.md) with numpy and Arrow; must not know where
the bytes come from. A column that is not asked for costs nothing, except for `body`: without it the
checksums are not checked either.

The speed comes from two calls: an array that steps by one byte over the buffer is indexed with the
first bytes of the records, which reads a field of all records at once; and variable parts are every
second piece of the buffer cut at their ends, which Arrow gathers at once.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.errors import BodyError
from pipeline.properties import Ints, Properties, pieces, text_pieces
from pipeline.schema import COLUMNS, TIMESTAMP, arrow_schema
from quorumlog.errors import QuorumlogError
from quorumlog.records.compression import BODY_SIZE_BYTES_MAX, IS_COMPRESSED, decompress

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
RECORD_SIZE_BYTES_MIN: Final = 91
_BODY_AT: Final = 88
_V6_EXTRA_BYTES: Final = 12
_FLAG_BORN_V6: Final = 0x10
_FLAG_STORE_V6: Final = 0x20
_OF_BODY: Final = ("body", "body_error")
_CHECKED: Final = ("topic", "queue_id", "queue_offset", "body_error")
_CRC_MASK: Final = 0x7FFFFFFF
_PROPERTY_CRC: Final = b"__CRC32#\x01"
_PROPERTY_CRC_SIZE_BYTES: Final = 20
_HEX: Final = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), "S2")


class RecordDamagedError(ValueError):
    """Bytes that should be records are not: `at` is the byte of the buffer."""

    def __init__(self, at: int, detail: str) -> None:
        super().__init__(at, detail)
        self.at, self.detail = at, detail

    def __str__(self) -> str:
        return f"byte {self.at} of the records: {self.detail}; verify the store they come from"


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of records: from record `first_records[i]` on, counted in the buffer, records are
    of the entry `indexes[i]` of `terms[i]`."""

    first_records: Sequence[int]
    indexes: Sequence[int]
    terms: Sequence[int]


def record_batch(
    data: bytes,
    columns: Sequence[str] = COLUMNS,
    *,
    entries: Entries | None = None,
    group: str | None = None,
    topic: str = "",
) -> pa.RecordBatch:
    """Decode records that lie back to back to one batch, as `record_batches` does."""
    batches = list(record_batches(data, columns, entries=entries, group=group, topic=topic))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def record_batches(
    data: bytes,
    columns: Sequence[str] = COLUMNS,
    *,
    entries: Entries | None = None,
    group: str | None = None,
    topic: str = "",
) -> Iterator[pa.RecordBatch]:
    """Yield records that lie back to back, decoded. Raises RecordDamagedError.

    It is one batch, unless compressed bodies become more than BODY_SIZE_BYTES_MAX. A body that
    cannot be unpacked is null, with the reason in `body_error`. `topic`: all records are of this
    one, so it need not be decoded; another one is damage. The columns hold no reference to `data`.
    """
    records, schema = RecordColumns(data), arrow_schema(columns)
    others = {
        name: _column(records, name, entries, group, topic)
        for name in columns
        if name not in _OF_BODY
    }
    if len(others) == len(columns):
        yield pa.RecordBatch.from_arrays(list(others.values()), schema=schema)
        return
    at = 0
    for body, error in records.bodies():
        own = {"body": body, "body_error": error}
        rest = {name: array.slice(at, len(body)) for name, array in others.items()} | own
        at += len(body)
        arrays = [rest[name] for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_checked(columns: Sequence[str]) -> tuple[str, ...]:
    """Return columns and those that `check_bodies` needs."""
    return (*columns, *(name for name in _CHECKED if name not in columns))


def check_bodies(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return some columns of a batch. Raises BodyError if a body cannot be unpacked."""
    faulty = batch.filter(batch.column("body_error").is_valid())
    if faulty.num_rows:
        row = faulty.slice(0, 1).to_pylist()[0]
        raise BodyError(
            "topic {topic}, queue {queue_id}, offset {queue_offset}: {body_error}".format(**row),
            "have it as a row with the column body_error: failOnBodyError=false",
        )
    return batch.select(list(columns))


def _column(
    records: "RecordColumns", name: str, entries: Entries | None, group: str | None, topic: str
) -> pa.Array:
    match name:
        case "topic" if topic:
            records.check_topic(topic)
            return pa.repeat(pa.scalar(topic), records.count)
        case "topic":
            return records.topics()
        case "queue_id":
            return pa.array(records.field(">i4", 12).astype(np.int32))
        case "queue_offset":
            return pa.array(records.field(">i8", 20))
        case "log_position":
            return pa.array(records.field(">i8", 28))
        case "index" | "term" if entries is None:
            return pa.nulls(records.count, pa.int64())
        case "index" | "term":
            assert entries is not None, name
            return records.of_entries(
                entries, entries.indexes if name == "index" else entries.terms
            )
        case "born_time":
            return _timestamps(records.field(">i8", 40))
        case "store_time":
            return _timestamps(records.store_unix_ms())
        case "message_id":
            return records.message_ids()
        case "broker_group":
            return pa.repeat(pa.scalar(group, pa.string()), records.count)
        case "keys":
            return records.properties().keys()
        case "tag":
            return records.properties().tags()
        case "properties":
            return records.properties().maps()
    raise AssertionError(f"column {name!r}")


class RecordColumns:
    """Records in a buffer: where each begins, and its fields as arrays over all of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._begins = _begins(data)
        self.count = len(self._begins)
        self._sys_flags = self.field(">i4", 36)
        self._properties: Properties | None = None
        self._parts: tuple[Ints, Ints, Ints, Ints] | None = None
        is_v6 = bool((self._sys_flags & (_FLAG_BORN_V6 | _FLAG_STORE_V6)).any())
        self._born_extra = self._extra(_FLAG_BORN_V6) if is_v6 else 0
        self._extras = self._born_extra + (self._extra(_FLAG_STORE_V6) if is_v6 else 0)

    def _extra(self, flag: int) -> Ints:
        return np.where(self._sys_flags & flag, _V6_EXTRA_BYTES, 0).astype(np.int64)

    def field(self, kind: str, at: int | Ints) -> Ints:
        """Return a field of all records, `at` bytes from the begin of each."""
        return self._gather(kind, self._begins + at)

    def _gather(self, kind: str, places: Ints) -> Ints:
        dtype = np.dtype(kind)
        room = len(self.data) - dtype.itemsize + 1
        if room <= 0:
            return np.zeros(0, np.int64)
        sliding = np.ndarray((room,), dtype, self.data, strides=(1,))
        return sliding[places].astype(np.int64)

    def store_unix_ms(self) -> Ints:
        """Return the store times."""
        return self.field(">i8", 56 + self._born_extra)

    def of_entries(self, entries: Entries, values: Sequence[int]) -> pa.Array:
        """Return for each record the value of its entry."""
        firsts = np.asarray(entries.first_records, np.int64)
        places = np.searchsorted(firsts, np.arange(self.count), side="right") - 1
        numbers = np.asarray(values, np.int64)[places]
        return pa.array(numbers, mask=numbers < 0)

    # --- Variable parts: all lengths are checked against the others ---

    def _bounds(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return where the body of each record begins and ends, and where the topic does."""
        if self._parts is not None:
            return self._parts
        ends = self._begins + self.field(">i4", 0)
        body_lo = self._begins + _BODY_AT + self._extras
        self._demand(body_lo + 3 <= ends, "the size is too small")
        body_hi = body_lo + self._gather(">i4", body_lo - 4)
        is_v2 = self.field(">u4", 4) == MAGIC_V2
        topic_lo = body_hi + np.where(is_v2, 2, 1)
        self._demand((body_hi >= body_lo) & (topic_lo + 2 <= ends), "body size")
        sizes = self._gather("u1", body_hi)
        if is_v2.any():
            sizes = np.where(is_v2, sizes << 8 | self._gather("u1", body_hi + 1), sizes)
        topic_hi = topic_lo + sizes
        self._demand(topic_hi + 2 <= ends, "topic size")
        self._demand(
            topic_hi + 2 + self._gather(">u2", topic_hi) == ends,
            "lengths of topic and properties do not add up",
        )
        self._parts = body_lo, body_hi, topic_lo, topic_hi
        return self._parts

    def _demand(self, is_good: "np.ndarray[tuple[int], np.dtype[np.bool_]]", what: str) -> None:
        if not is_good.all():
            raise RecordDamagedError(int(self._begins[int(np.argmin(is_good))]), what)

    def _ends(self) -> Ints:
        return np.append(self._begins[1:], len(self.data))

    def topics(self) -> pa.Array:
        """Return the topics."""
        _, _, lo, hi = self._bounds()
        return text_pieces(self.data, lo, hi)

    def check_topic(self, topic: str) -> None:
        """Check that all records are of one topic. Raises RecordDamagedError."""
        _, _, lo, hi = self._bounds()
        expected = topic.encode()
        is_good = hi - lo == len(expected)
        if is_good.all():
            is_good = self._texts(lo, len(expected)) == expected
        self._demand(is_good, f"not of topic {topic!r}")

    def _texts(
        self, places: Ints, size_bytes: int
    ) -> "np.ndarray[tuple[int], np.dtype[np.bytes_]]":
        sliding = np.ndarray(
            (len(self.data) - size_bytes + 1,), f"S{size_bytes}", self.data, strides=(1,)
        )
        return sliding[places]

    def bodies(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield the bodies, after a check of their checksums, each with why it cannot be unpacked.

        Each pair of arrays is of the next records.
        """
        lo, hi, _, _ = self._bounds()
        view, crc32 = memoryview(self.data), zlib.crc32
        cuts = zip(lo.tolist(), hi.tolist(), strict=True)
        crcs = np.fromiter((crc32(view[a:b]) for a, b in cuts), np.int64, self.count)
        self._demand(crcs & _CRC_MASK == self.field(">u4", 8), "body CRC")
        self._check_property_crcs()
        if (self._sys_flags & IS_COMPRESSED).any():
            yield from self._unpacked(lo, hi)
        else:
            yield pieces(self.data, lo, hi), pa.nulls(self.count, pa.string())

    def _unpacked(self, lo: Ints, hi: Ints) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield bodies of which some are compressed, about BODY_SIZE_BYTES_MAX at a time."""
        bodies: list[bytes | None] = []
        errors: list[str | None] = []
        size_bytes = 0
        for a, b, flags in zip(lo.tolist(), hi.tolist(), self._sys_flags.tolist(), strict=True):
            body: bytes | None = self.data[a:b]
            error = None
            if flags & IS_COMPRESSED:
                try:
                    body = decompress(self.data[a:b], flags)
                except QuorumlogError as failure:
                    body, error = None, failure.message
            bodies.append(body)
            errors.append(error)
            size_bytes += len(body or b"")
            if size_bytes >= BODY_SIZE_BYTES_MAX:
                yield pa.array(bodies, pa.binary()), pa.array(errors, pa.string())
                bodies, errors, size_bytes = [], [], 0
        if bodies:
            yield pa.array(bodies, pa.binary()), pa.array(errors, pa.string())

    def _check_property_crcs(self) -> None:
        """Check the second CRC, over all bytes before it, of the records that carry one."""
        ends = self._ends()
        _, _, _, topic_hi = self._bounds()
        has_room = ends - topic_hi - 2 >= _PROPERTY_CRC_SIZE_BYTES
        if not has_room.any():
            return
        rows = np.flatnonzero(has_room)
        areas = ends[rows] - _PROPERTY_CRC_SIZE_BYTES
        rows = rows[self._texts(areas, len(_PROPERTY_CRC)) == _PROPERTY_CRC]
        view = memoryview(self.data)
        for row in rows.tolist():
            lo, hi = int(self._begins[row]), int(ends[row]) - _PROPERTY_CRC_SIZE_BYTES
            # Ten decimal digits, the least significant first.
            digits = (b"%010d" % (zlib.crc32(view[lo:hi]) & _CRC_MASK))[::-1] + b"\x02"
            if view[hi + len(_PROPERTY_CRC) : int(ends[row])] != digits:
                raise RecordDamagedError(lo, "property CRC")

    def properties(self) -> Properties:
        """Return the properties, decoded once."""
        if self._properties is None:
            _, _, _, topic_hi = self._bounds()
            lo, hi = topic_hi + 2, self._ends()
            texts = pieces(self.data, lo, hi)
            offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(hi - lo)))
            blocks = texts.buffers()[2]
            self._properties = Properties(
                blocks.to_pybytes()[: offsets[-1]] if blocks is not None else b"", offsets
            )
        return self._properties

    def message_ids(self) -> pa.Array:
        """Return the ids: store host and position in upper-case hex."""
        host_at = 64 + self._born_extra
        is_v6 = self._sys_flags & _FLAG_STORE_V6 != 0
        if is_v6.any():
            return self._mixed_ids(host_at, is_v6)
        raw = np.empty((self.count, 2), ">i8")
        raw[:, 0], raw[:, 1] = self.field(">i8", host_at), self.field(">i8", 28)
        digits = _HEX[raw.view(np.uint8).reshape(-1)]
        bounds = np.arange(0, 32 * self.count + 1, 32).astype(np.int32)
        parts = [None, pa.py_buffer(bounds), pa.py_buffer(digits)]
        return pa.Array.from_buffers(pa.string(), self.count, parts)

    def _mixed_ids(self, host_at: int | Ints, is_v6: "Ints | np.ndarray") -> pa.Array:
        ids: list[str] = []
        sizes = np.where(is_v6, 20, 8).tolist()
        for lo, at, size in zip(
            self._begins.tolist(), (self._begins + host_at).tolist(), sizes, strict=True
        ):
            ids.append((self.data[at : at + size] + self.data[lo + 28 : lo + 36]).hex().upper())
        return pa.array(ids, pa.string())


def _begins(data: bytes) -> Ints:
    """Return the begin of each record, after a check of every size and magic."""
    begins: list[int] = []
    append, unpack, at, hi = begins.append, struct.Struct(">iI").unpack_from, 0, len(data)
    while at + RECORD_SIZE_BYTES_MIN <= hi:
        size_bytes, magic = unpack(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise RecordDamagedError(at, f"magic is {magic:08X}")
        if not RECORD_SIZE_BYTES_MIN <= size_bytes <= hi - at:
            raise RecordDamagedError(at, f"size is {size_bytes}, with {hi - at} bytes there")
        append(at)
        at += size_bytes
    if at != hi:
        raise RecordDamagedError(at, f"{hi - at} bytes are left over")
    return np.asarray(begins, np.int64)


def _timestamps(unix_ms: Ints) -> pa.Array:
    return pa.array(unix_ms * 1000).cast(TIMESTAMP)
