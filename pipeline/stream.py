"""`spark.readStream.format("quorumlog")`: the progress of a stream, and its micro-batches.

Owns the offsets that Spark keeps in its checkpoint, `{topic: {"group/queue": offset}}`, and the
limit of a trigger. Must not know how a range is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pipeline.connection import Connection
from pipeline.options import SourceOptions
from pipeline.plan import bounds, check_survived, key_of, queue_of, queues_of, ranges
from pipeline.range_partition import RangePartition
from pipeline.reader import read_range
from quorumlog.consume.reads import QueueOffsets
from quorumlog.records.options import END
from quorumlog.records.queues import Queue

Checkpoint = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. A reader lives as long as its query, and keeps its connection."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._target: list[QueueOffsets] | None = None
        """The queues at the start of a query that reads up to their ends and stops; else None."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_connection": None, "_target": None}

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        """Return the start of a new query: the ends of the queues, unless told otherwise."""
        connection = self._connect()
        queues = queues_of(connection, self._options)
        wanted = bounds(connection, self._options, queues, END)
        return _written({queue: lo for queue, (lo, _) in wanted.items()})

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit
    ) -> Checkpoint:
        """Return the end of the next micro-batch."""
        begin = _parsed(start)
        latest = self._found() if self._target is None else self._target
        check_survived(self._options, latest, begin)
        # A queue that was added later is read from its first message.
        firsts = {queue_of(offsets): offsets.first_offset for offsets in latest}
        wanted = {
            queue: (begin.get(queue, firsts[queue]), hi) for queue, hi in _ends(latest).items()
        }
        for queue, offset in begin.items():
            if wanted.get(queue, (0, 0))[1] < offset:
                wanted[queue] = (offset, offset)
        if isinstance(limit, ReadMaxRows):
            return _written(limited(wanted, limit.max_rows))
        return _written({queue: hi for queue, (_, hi) in wanted.items()})

    def _found(self) -> list[QueueOffsets]:
        return queues_of(self._connect(), self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the option `maxRecordsPerTrigger`."""
        count = self._options.records_per_trigger_max
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def reportLatestOffset(self) -> Checkpoint | None:  # noqa: N802
        """Return the ends of the queues, for the progress of the query."""
        return _written(_ends(self._found()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the target of the query: the present ends of the queues."""
        self._target = self._found()

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        """Return one partition a queue and range."""
        begin, ends = _parsed(start), _parsed(end)
        if ends.keys() - begin.keys():
            begin = {queue_of(offsets): offsets.first_offset for offsets in self._found()} | begin
        # A queue that is gone by now is found when it is read.
        wanted = {queue: (begin.get(queue, 0), hi) for queue, hi in ends.items()}
        parts = ranges(self._connect(), wanted, self._options.records_per_partition_max)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part."""
        assert isinstance(partition, RangePartition), f"{partition} is none of ours"
        yield from read_range(self._options, partition.wanted)

    def stop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._options.cluster)
        return self._connection


def limited(wanted: Mapping[Queue, tuple[int, int]], count: int) -> dict[Queue, int]:
    """Return new ends of queues, so that at most `count` records are read in all.

    Each queue has the same share; an unused rest is for the others. So a queue with few records is
    read to its end, and queues with many keep pace.
    """
    left, ends = count, {queue: lo for queue, (lo, _) in wanted.items()}
    lags = sorted((hi - lo, queue) for queue, (lo, hi) in wanted.items())
    for at, (lag, queue) in enumerate(lags):
        # At least one each while there are any: a share of 0 would never end.
        share = min(lag, -(-left // (len(lags) - at)))
        ends[queue] += share
        left -= share
    return ends


def _ends(queues: list[QueueOffsets]) -> dict[Queue, int]:
    return {queue_of(offsets): offsets.end_offset for offsets in queues}


def _written(offsets: Mapping[Queue, int]) -> Checkpoint:
    written: Checkpoint = {}
    for queue, offset in sorted(offsets.items()):
        written.setdefault(queue.topic, {})[key_of(queue)] = offset
    return written


def _parsed(written: Mapping[str, Mapping[str, int]]) -> dict[Queue, int]:
    offsets: dict[Queue, int] = {}
    for topic, queues in written.items():
        for key, offset in queues.items():
            group, _, queue_id = key.rpartition("/")
            offsets[Queue(topic, int(queue_id), group)] = offset
    return offsets
