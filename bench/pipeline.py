"""Measures the batch source of Spark against a running cluster: rows of 1 KiB a second.

Owns the measured work. Beside each figure stands Spark's with rows that cost nothing: a source of
the same shape that hands out one batch repeatedly. The nodes, Spark and its workers share the
machine, so the figure is that of a whole machine with its cores, not of a node.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import pipeline
from bench.own_cluster import own_cluster
from pipeline.columns import record_batch
from pipeline.connection import Connection
from pipeline.options import ClusterAddress, SourceOptions
from pipeline.plan import bounds, queues_of, ranges
from pipeline.reader import read_range
from pipeline.schema import parse_columns, spark_schema
from pipeline.session import spark_session
from quorumlog import sync
from store.record.message import encode_message

BODY_SIZE_BYTES: Final = 1024
QUEUE_COUNT: Final = 4
ROWS_PER_BATCH: Final = 1_900  # As many as a pull brings.
TARGET: Final = 150_000
SHAPES: Final = {"all columns": "", "body only": "body", "offsets only": "queue_id,queue_offset"}


@dataclass(frozen=True, slots=True)
class PipelineFigure:
    """Rows a second: of the source, and of the source that costs nothing."""

    what: str
    rows_per_s: int
    spread: float
    """Largest minus smallest of the rounds, as a share of the median."""
    ceiling_rows_per_s: int | None = None
    target: int | None = None


def measure(
    count: int, rounds: int, say: Callable[[str], None], directory: str | None = None
) -> list[PipelineFigure]:
    """Fill a cluster of three nodes with `count` messages, and read them."""
    with own_cluster(directory, flush="async") as cluster:
        say(f"filling a topic with {count} messages")
        _fill(cluster.bootstrap, count)
        figures = [_without_spark(cluster.bootstrap, count, rounds)]
        with spark_session("bench", "local[2]") as spark:
            pipeline.register(spark)
            spark.dataSource.register(ConstantSource)
            for what, columns in SHAPES.items():
                say(f"reading: {what}")
                given = {"servers": cluster.bootstrap, "topic": "bench", "columns": columns}
                ours = _rates(spark, "quorumlog", given, count, rounds)
                given = {"count": str(count), "columns": columns}
                ceiling = _rates(spark, "constant", given, count, rounds)
                figures.append(
                    _figure(what, ours, ceiling, TARGET if what == "all columns" else None)
                )
    return figures


def _fill(servers: str, count: int) -> None:
    body = bytes(range(256)) * (BODY_SIZE_BYTES // 256)
    with sync.connect(servers) as client:
        client.admin.create_topic("bench", queue_count=QUEUE_COUNT)
        with client.producer() as producer:
            for _ in range(count):
                producer.enqueue("bench", body)


def _without_spark(servers: str, count: int, rounds: int) -> PipelineFigure:
    """Read and decode in one process: the work of a task without Spark around it."""
    options = SourceOptions(ClusterAddress(servers), ("bench",))
    with Connection(options.cluster) as connection:
        wanted = bounds(connection, options, queues_of(connection, options), "first")
        parts = ranges(connection, wanted, options.records_per_partition_max)
    rates: list[float] = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        rows = sum(batch.num_rows for part in parts for batch in read_range(options, part))
        rates.append(count / (time.perf_counter() - began_s))
        assert rows == count, f"{rows} rows of {count}"
    return _figure("without Spark, one process", rates)


def _rates(
    spark: SparkSession, name: str, options: dict[str, str], count: int, rounds: int
) -> list[float]:
    rows: DataFrame = spark.read.format(name).options(**options).load()
    rates: list[float] = []
    for _ in range(rounds + 1):
        began_s = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        rates.append(count / (time.perf_counter() - began_s))
    return rates[1:]  # The first one starts workers.


def _figure(
    what: str, rates: Sequence[float], ceiling: Sequence[float] = (), target: int | None = None
) -> PipelineFigure:
    middle = statistics.median(rates)
    return PipelineFigure(
        what,
        round(middle),
        round((max(rates) - min(rates)) / middle, 2),
        round(statistics.median(ceiling)) if ceiling else None,
        target,
    )


class ConstantSource(DataSource):
    """Rows of the same shape that cost nothing."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "constant"

    def schema(self) -> str:
        """Return the columns of the real source."""
        return spark_schema(parse_columns(self.options["columns"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader that hands out one batch repeatedly."""
        return ConstantReader(int(self.options["count"]), parse_columns(self.options["columns"]))


class ConstantReader(DataSourceReader):
    """A reader with as many partitions as the topic has queues."""

    def __init__(self, count: int, columns: tuple[str, ...]) -> None:
        self._count = count
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition a queue."""
        return [InputPartition(self._count // QUEUE_COUNT) for _ in range(QUEUE_COUNT)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch."""
        record = encode_message("bench", 0, bytes(BODY_SIZE_BYTES))
        batch = record_batch(record * ROWS_PER_BATCH, self._columns, group="g0")
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, ROWS_PER_BATCH))
            left -= ROWS_PER_BATCH


def main() -> None:
    """Print a table."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=400_000, help="messages (default 400000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each figure (default 3)")
    parser.add_argument("--dir", help="where the cluster is (default: /dev/shm if there is one)")
    given = parser.parse_args()
    figures = measure(given.count, given.rounds, print, given.dir)
    print(f"{'':28} {'rows/s':>10} {'ceiling':>10} {'spread':>7} {'target':>8}")
    for figure in figures:
        ceiling, target = figure.ceiling_rows_per_s or "", figure.target or ""
        print(
            f"{figure.what:28} {figure.rows_per_s:>10} {ceiling:>10} {figure.spread:>7} {target:>8}"
        )


if __name__ == "__main__":
    main()
