"""`spark.read.format("quorumlog")` and `readStream`: the records of queues as a table.

Owns the reader of a batch, and the push-down of its filters. Must not know how a range is read. The
objects travel between the driver, the planning process and the workers: they hold values only.
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from pipeline.connection import Connection
from pipeline.options import (
    Offsets,
    SourceOptions,
    batch_options,
    sink_options,
    source_options,
    stream_options,
)
from pipeline.plan import Bounds, bounds, queue_of, queues_of, ranges, resolve
from pipeline.range_partition import RangePartition
from pipeline.reader import read_range
from pipeline.schema import spark_schema
from quorumlog.consume.reads import QueueOffsets
from quorumlog.records.options import FIRST

_T = TypeVar("_T")

NAME: Final = "quorumlog"
_INT64_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class QuorumlogSource(DataSource):
    """The table of topics. Register it in each session: `pipeline.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return all columns, or those of the option `columns`: Spark itself asks for all."""
        return spark_schema(source_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return BatchReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream, as topics grow."""
        from pipeline.stream import StreamReader

        return StreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer that appends rows once."""
        from pipeline.sink import BatchWriter, check_overwrite

        check_overwrite(overwrite)
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the writer that appends the rows of micro-batches."""
        from pipeline.sink import StreamWriter, check_overwrite

        check_overwrite(overwrite)
        return StreamWriter(sink_options(self.options), schema)


class BatchReader(DataSourceReader):
    """Plans one read, and reads its parts."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Apply filters that narrow the read; Spark filters by time once more."""
        for one in filters:
            if not self._pushed.take(one):
                yield one

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition a queue and range."""
        with Connection(self._options.cluster) as connection:
            queues = queues_of(connection, self._options)
            wanted = bounds(connection, self._options, queues, FIRST)
            wanted = self._pushed.narrow(connection, queues, wanted)
            parts = ranges(connection, wanted, self._options.records_per_partition_max)
        return [RangePartition(part) for part in parts] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part."""
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.wanted)


class Pushed:
    """The topics, queues, offsets and store times that the filters leave."""

    def __init__(self) -> None:
        self._topics: frozenset[str] | None = None
        self._queue_ids: frozenset[int] | None = None
        self._offsets = (0, _INT64_MAX)
        self._unix_ms = (0, _INT64_MAX)

    def take(self, condition: Filter) -> bool:
        """Apply a filter; return whether Spark can leave it out."""
        match condition:
            case IsNotNull(("topic" | "queue_id" | "queue_offset" | "store_time",)):
                return True
            case EqualTo(("topic",), str(value)) | EqualNullSafe(("topic",), str(value)):
                self._topics = _both(self._topics, {value})
            case In(("topic",), values):
                self._topics = _both(self._topics, values)
            case EqualTo(("queue_id",), int(value)) | EqualNullSafe(("queue_id",), int(value)):
                self._queue_ids = _both(self._queue_ids, {value})
            case In(("queue_id",), values):
                self._queue_ids = _both(self._queue_ids, values)
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                return self._take_range(name, value, 0, 1)
            case GreaterThanOrEqual((name,), value):
                return self._take_range(name, value, 0, None)
            case GreaterThan((name,), value):
                return self._take_range(name, value, 1, None)
            case LessThan((name,), value):
                return self._take_range(name, value, None, 0)
            case LessThanOrEqual((name,), value):
                return self._take_range(name, value, None, 1)
            case _:
                return False
        return True

    def _take_range(self, name: str, value: object, lo: int | None, hi: int | None) -> bool:
        """Narrow to [value + lo, value + hi); return whether Spark can leave the filter out."""
        if name == "queue_offset" and isinstance(value, int):
            self._offsets = _narrowed(self._offsets, value, lo, hi)
            return True
        if name == "store_time" and isinstance(value, datetime.datetime):
            time = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            # A millisecond more on both sides: filters have microseconds, and Spark filters again.
            unix_ms = (time - _EPOCH) // datetime.timedelta(milliseconds=1)
            self._unix_ms = _narrowed(
                self._unix_ms, unix_ms, None if lo is None else 0, None if hi is None else 1
            )
        return False

    def narrow(self, connection: Connection, queues: list[QueueOffsets], wanted: Bounds) -> Bounds:
        """Return the part of the wanted offsets that the filters leave."""
        kept = [
            offsets
            for offsets in queues
            if (self._topics is None or offsets.topic in self._topics)
            and (self._queue_ids is None or offsets.queue_id in self._queue_ids)
        ]
        lo_ms, hi_ms = self._unix_ms
        begins = ends = None
        if lo_ms > 0:
            begins = resolve(connection, Offsets(f"@{lo_ms}"), kept)
        if hi_ms < _INT64_MAX:
            ends = resolve(connection, Offsets(f"@{max(hi_ms, 0)}"), kept)
        result: Bounds = {}
        for queue in map(queue_of, kept):
            lo, hi = wanted[queue]
            lo, hi = max(lo, self._offsets[0]), min(hi, self._offsets[1])
            if begins is not None:
                lo = max(lo, begins[queue])
            if ends is not None:
                hi = min(hi, ends[queue])
            result[queue] = (lo, hi)
        return result


def _both(before: frozenset[_T] | None, values: Iterable[_T]) -> frozenset[_T]:
    wanted = frozenset(values)
    return wanted if before is None else before & wanted


def _narrowed(
    before: tuple[int, int], value: int, lo: int | None, hi: int | None
) -> tuple[int, int]:
    return (
        before[0] if lo is None else max(before[0], value + lo),
        before[1] if hi is None else min(before[1], value + hi),
    )
