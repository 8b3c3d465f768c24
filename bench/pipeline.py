"""Measures the batch source of Spark against a running cluster: rows of 1 KiB a second.

Owns the measured work. Beside each figure stands Spark's with rows that cost nothing: a source of
the same shape that hands out one batch repeatedly. The nodes, Spark and its workers share the
machine, so the figure is that of a whole machine with its cores, not of a node.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_TABLE: Final = "{:38} {:>12} {:>12} {:>7} {:>9}"
SHAPES: Final = {"all columns": "", "body only": "body", "offsets only": "queue_id,queue_offset"}


def title(name: str) -> None:
    """Print the head of a table."""
    print(_TABLE.format(name, "ours", "ceiling", "spread", "target"))


def line(
    what: str, values: Sequence[float], ceiling: Sequence[float] = (), target: int | None = None
) -> None:
    """Print one figure: medians of the rounds, and the spread of ours as a share of its median."""
    middle = statistics.median(values)
    spread = f"{(max(values) - min(values)) / middle:.2f}" if len(values) > 1 else ""
    limit = f"{statistics.median(ceiling):,.0f}" if ceiling else ""
    print(_TABLE.format(what, f"{middle:,.0f}", limit, spread, target or ""), flush=True)


@contextmanager
def spark_with_sources() -> Iterator[SparkSession]:
    """Run Spark on two cores with our sources and the constant one."""
    with spark_session("bench", "local[2]") as spark:
        pipeline.register(spark)
        spark.dataSource.register(ConstantSource)
        yield spark


def read_rates(table: DataFrame, count: int, rounds: int) -> list[float]:
    """Read all rows in each of the rounds. Return rows a second, without the first round, which
    starts workers."""
    rates: list[float] = []
    for _ in range(rounds + 1):
        began_s = time.perf_counter()
        table.write.format("noop").mode("overwrite").save()
        rates.append(count / (time.perf_counter() - began_s))
    return rates[1:]


def constant(spark: SparkSession, columns: str, count: int) -> DataFrame:
    """Return `count` rows of these columns that cost nothing."""
    return spark.read.format("constant").options(columns=columns, count=str(count)).load()


def measure(count: int, rounds: int, directory: str | None) -> None:
    """Fill a cluster of three nodes with `count` messages, read them, and print the figures."""
    with own_cluster(directory, flush="async") as cluster:
        _fill(cluster.bootstrap, count)
        _without_spark(cluster.bootstrap, count, rounds)
        with spark_with_sources() as spark:
            for what, columns in SHAPES.items():
                ours = spark.read.format("quorumlog").options(
                    servers=cluster.bootstrap, topic="bench", columns=columns
                )
                line(
                    what,
                    read_rates(ours.load(), count, rounds),
                    read_rates(constant(spark, columns, count), count, rounds),
                    TARGET if what == "all columns" else None,
                )


def _fill(servers: str, count: int) -> None:
    body = bytes(range(256)) * (BODY_SIZE_BYTES // 256)
    with sync.connect(servers) as client:
        client.admin.create_topic("bench", queue_count=QUEUE_COUNT)
        with client.producer() as producer:
            for _ in range(count):
                producer.enqueue("bench", body)


def _without_spark(servers: str, count: int, rounds: int) -> None:
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
    line("without Spark, one process", rates)


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
    title("rows/s")
    measure(given.count, given.rounds, given.dir)


if __name__ == "__main__":
    main()
