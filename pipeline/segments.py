"""`spark.read.format("quorumlog-segments")`: the files of a stopped node, or of a backup, as rows.

Owns options, partitions and filters; reading and checking is `segments_walk`'s, the way to columns
`columns`'. No server takes part. One partition is one byte range, so files are read in parallel.
Only committed records are read: a replica's log up to the end that its readers could see. Damage
ends the job with an error that names file and byte; nothing is skipped.

Register it in each session with `pipeline.register(spark)`. Every worker must reach the directory
under its path.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from pipeline.columns import check_bodies, record_batches, with_checked
from pipeline.errors import OptionError
from pipeline.options import GivenOptions
from pipeline.schema import COLUMNS, arrow_schema, spark_schema
from pipeline.segments_bounds import find_boundary
from pipeline.segments_log import LogReader, SealedLog, open_sealed
from pipeline.segments_walk import Chunk, Walk
from store import format as fmt
from store.config import MIB
from store.errors import InnerBatchError
from store.ledger.entry import KIND_DATA
from store.record.inner_batches import is_inner_batch
from store.record.message import decode_message
from store.record.topic_names import is_reserved

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Ints = npt.NDArray[np.int64]

NAME: Final = "quorumlog-segments"
PIECE_SIZE_BYTES: Final = 64 * MIB
_PIECE_SIZE_BYTES_MIN: Final = 1024
_OPTIONS: Final = ("path", "columns", "topic", "pieceSize", "failOnBodyError")
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_KIND_AT: Final = 32
_UNIT: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
assert _UNIT.itemsize == fmt.INDEX_UNIT_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """The options of a reader of segments."""

    directory: str
    columns: tuple[str, ...]
    topics: frozenset[str] | None
    """Topics to read; None: all but the system's."""
    piece_size_bytes: int
    fails_on_body_error: bool = False


def parse_options(given: Mapping[str, str]) -> SegmentOptions:
    """Check all options. Raises OptionError for the first bad one."""
    given_options = GivenOptions(given, _OPTIONS, "source of segments")
    directory = given_options.text("path", "")
    if not directory:
        raise OptionError(f"{NAME} needs the directory of a stopped node", "use load(DIR)")
    topics = frozenset(t.strip() for t in given_options.text("topic", "").split(",") if t.strip())
    return SegmentOptions(
        os.path.abspath(directory),
        given_options.columns(),
        topics or None,
        given_options.count("pieceSize", PIECE_SIZE_BYTES, _PIECE_SIZE_BYTES_MIN),
        given_options.fails_on_body_error(),
    )


class SegmentsSource(DataSource):
    """The format `quorumlog-segments`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return NAME

    def schema(self) -> str:
        """Return the wanted columns."""
        return spark_schema(parse_options(dict(self.options)).columns)

    def reader(self, schema: "StructType") -> "SegmentsReader":
        """Open the directory. Errors are raised before any task is started."""
        options = parse_options(dict(self.options))
        return SegmentsReader(replace(options, columns=tuple(schema.names)))


class SegmentPiece(InputPartition):
    """A byte range of the log."""

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__((lo, hi))
        self.lo, self.hi = lo, hi


class SegmentsReader(DataSourceReader):
    """One scan of one directory.

    Raises LockedError for a running node, LayoutError without a log, CorruptionError for files that
    are missing or short.
    """

    def __init__(self, options: SegmentOptions) -> None:
        self._options = options
        self._log: SealedLog = open_sealed(options.directory)
        for wrong in self._log.wrong:
            if wrong.path.startswith(self._log.data_directory):
                position = int(os.path.basename(wrong.path)) + wrong.at
                raise self._log.damaged(position, wrong.field, wrong.expected, wrong.actual)
        self._topics = options.topics
        self._lo, self._hi = 0, self._log.visible_position

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's name.
        """Apply filters on `topic`; those on `log_position` choose pieces, and stay Spark's."""
        for one in filters:
            match one:
                case EqualTo(("topic",), str() as topic):
                    self._narrow({topic})
                case In(("topic",), values):
                    self._narrow({value for value in values if value is not None})
                case GreaterThan(("log_position",), value) | GreaterThanOrEqual(
                    ("log_position",), value
                ):
                    self._lo = max(self._lo, value)
                    yield one
                case LessThan(("log_position",), value) | LessThanOrEqual(("log_position",), value):
                    self._hi = min(self._hi, value + 1)
                    yield one
                case _:
                    yield one

    def _narrow(self, topics: set[str]) -> None:
        if self._topics is None:  # System topics are shown only if the option names them.
            topics = {topic for topic in topics if not is_reserved(topic)}
        self._topics = frozenset(topics if self._topics is None else topics & self._topics)

    def partitions(self) -> Sequence[SegmentPiece]:
        """Cut the log into pieces; return those that may hold the wanted positions."""
        pieces = self._log.pieces(self._options.piece_size_bytes, self._log.visible_position)
        # An entry that begins before `lo` may hold a wanted record.
        least = self._lo - fmt.ENTRY_SIZE_BYTES_MAX
        found = [SegmentPiece(lo, hi) for lo, hi in pieces if hi > least and lo < self._hi]
        return found or [SegmentPiece(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a piece, on a worker. Raises CorruptionError for damage."""
        assert isinstance(partition, SegmentPiece), f"{partition!r}"
        if partition.lo < partition.hi:
            columns, fails = self._options.columns, self._options.fails_on_body_error
            needed = with_checked(columns) if fails else columns
            for batch in read_piece(self._log, partition.lo, partition.hi, needed, self._topics):
                yield check_bodies(batch, columns) if fails else batch


def read_piece(
    log: SealedLog,
    lo: int,
    hi: int,
    columns: Sequence[str] = COLUMNS,
    topics: frozenset[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the visible records that begin in [lo, hi), bytes of one file."""
    with LogReader(log) as reader:
        begin = find_boundary(reader, lo)
        if begin is None:
            raise log.damaged(lo, "first entry or record at or behind it", "one", "damage before")
        if begin.position >= hi:
            return
        for chunk in Walk(reader, begin, hi).chunks():
            bodies = _bodies_of(log, chunk)
            if bodies.data:
                yield from _batches(bodies, columns, topics)


class _Bodies(NamedTuple):
    """Records back to back, and for each entry the place of its first one: in the log, and in
    `data`.

    A plain log counts as one entry without a number.
    """

    data: bytes
    positions: Ints
    begins: Ints
    numbers: dict[str, Ints]
    """`index` and `term` of each entry; empty for a plain log."""


def _bodies_of(log: SealedLog, chunk: Chunk) -> _Bodies:
    position, data, end, units, _ = chunk
    if not log.is_ledger:
        whole = data if end == len(data) else data[:end]
        return _Bodies(whole, np.array([position]), np.array([0]), {})
    view, parts, begins, kept, size = memoryview(data), [], [], [], 0
    for number, (_, own, size_bytes, _, _) in enumerate(fmt.INDEX_UNIT.iter_unpack(units)):
        at = own - position
        if fmt.INT32.unpack_from(data, at + _KIND_AT)[0] == KIND_DATA:
            parts.append(view[at + _HEADER : at + size_bytes])
            begins.append(size)
            kept.append(number)
            size += size_bytes - _HEADER
    entries = np.frombuffer(units, _UNIT)[np.array(kept, np.int64)]
    numbers = {name: entries[name].astype(np.int64) for name in ("index", "term")}
    positions = entries["position"].astype(np.int64) + _HEADER
    return _Bodies(b"".join(parts), positions, np.array(begins, np.int64), numbers)


def _batches(
    bodies: _Bodies, columns: Sequence[str], topics: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    """Decode records, and leave out those that are invisible or not asked for."""
    needed = {"topic", "log_position", *columns} - {"index", "term"}
    for batch in record_batches(bodies.data, [name for name in COLUMNS if name in needed]):
        wanted = _wanted(bodies, batch, columns, topics)
        if wanted.num_rows:
            yield wanted


def _wanted(
    bodies: _Bodies,
    batch: pa.RecordBatch,
    columns: Sequence[str],
    topics: frozenset[str] | None,
) -> pa.RecordBatch:
    """Return the visible rows of some topics, with the columns of their entries."""
    names = batch.column("topic")
    if topics is None:
        topics = frozenset(topic for topic in names.unique().to_pylist() if not is_reserved(topic))
    mask = pc.is_in(names, pa.array(sorted(topics), pa.string()))
    by_name: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    positions = by_name["log_position"].to_numpy()
    entry = np.searchsorted(bodies.positions, positions, side="right") - 1
    begins = positions - bodies.positions[entry] + bodies.begins[entry]
    is_prepared = _flags(bodies.data, begins) & fmt.TRANSACTION_PREPARED != 0
    if is_prepared.any():  # Rolled back ones, too: they have one bit more.
        mask = pc.and_(mask, pa.array(~is_prepared))
    _refuse_inner_batches(bodies.data, begins[np.asarray(mask)])
    for name in ("index", "term"):
        numbers = bodies.numbers.get(name)
        by_name[name] = (
            pa.nulls(batch.num_rows, pa.int64()) if numbers is None else pa.array(numbers[entry])
        )
    arrays = [by_name[name] for name in columns]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    return whole if pc.all(mask).as_py() else whole.filter(mask)


def _refuse_inner_batches(data: bytes, begins: Ints) -> None:
    """Raise InnerBatchError for the first such record: one row would stand for many messages."""
    for at in begins[_flags(data, begins) & fmt.SYS_FLAG_INNER_BATCH != 0].tolist():
        if is_inner_batch(data, at):
            message = decode_message(data, at)
            raise InnerBatchError(message.topic, message.queue_id, message.queue_offset)


def _flags(data: bytes, begins: Ints) -> Ints:
    """Return the sys flags of the records with these begins."""
    sliding = np.ndarray((len(data) - 3,), ">i4", data, strides=(1,))
    return sliding[begins + fmt.SYS_FLAG_AT].astype(np.int64)
