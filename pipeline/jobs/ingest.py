"""`ingest`: topics to Parquet files, each record once, also after a crash of any process.

Owns the query that reads a topic as a stream and adds its micro-batches to a table. Must not know
how a batch gets into the table (`pipeline.table`) or how a topic is read (`pipeline.stream`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pipeline
from pipeline.checks import check_source
from pipeline.progress import Show, show_nothing
from pipeline.table import MERGE_COUNT_MIN, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS_PER_BATCH: Final = 1_000_000
"""Records of a micro-batch: read again after a crash, and one step of a progress bar."""
_DATE: Final = "date_add(DATE'1970-01-01', int(floor(unix_micros(store_time) / 86400000000)))"
"""The date in UTC, in every time zone of the session."""
_WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Ingested:
    """The result of one run."""

    path: str
    batch_count: int
    row_count: int
    merged_file_count: int
    duration_s: float


def ingest(
    spark: "SparkSession",
    options: Mapping[str, str],
    path: str,
    *,
    follow: bool = False,
    show: Show = show_nothing,
    should_stop: Callable[[], bool] = lambda: False,
) -> Ingested:
    """Bring a table up to date with its topics; with `follow` until `should_stop()`.

    `options` are those of the source: `servers` and `topic` at least. The table stores its
    progress, so a run continues where the one before ended, or was killed. The table is partitioned
    by topic and by the date of the store time (UTC). Raises PipelineError and QuorumlogError before
    it begins.
    """
    given = {"startingOffsets": "first", "maxRecordsPerTrigger": str(RECORDS_PER_BATCH)}
    given |= options
    table = LakeTable(spark, path)
    # Spark uses the start of a new query only; for an old one it may have expired since.
    begins = {"startingOffsets": "first"} if table.is_begun() else {}
    total = check_source(given | begins)
    pipeline.register(spark)
    began_s = time.monotonic()
    table.take()
    run = _Run(table)
    rows = spark.readStream.format("quorumlog").options(**given).load()
    writer = rows.writeStream.foreachBatch(run.add).option("checkpointLocation", table.checkpoint)
    if not follow:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    try:
        is_over = _wait(
            query, lambda: show("records", run.row_count, None if follow else total), should_stop
        )
    finally:
        query.stop()
    # All batches of a finished query are final. A query may stop before Spark has noted its last
    # batch; the next run then repeats that batch.
    run.merged_count += table.compact(run.next_batch if is_over else run.next_batch - 1)
    show("records", run.row_count, None if follow else run.row_count)
    return Ingested(
        table.path,
        run.batch_count,
        run.row_count,
        run.merged_count,
        round(time.monotonic() - began_s, 1),
    )


def _wait(
    query: "StreamingQuery", show: Callable[[], None], should_stop: Callable[[], bool]
) -> bool:
    """Wait for the end of the query or the stop; return whether the query ended on its own."""
    while not query.awaitTermination(_WAIT_S):  # type: ignore[arg-type] # It takes parts of one.
        show()
        if should_stop():
            return False
    return True


class _Run:
    """The counts of one run."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self.batch_count = self.row_count = self.merged_count = self.next_batch = 0

    def add(self, rows: "DataFrame", batch: int) -> None:
        """Add a micro-batch; Spark calls it again with the same number if it does not return."""
        from pyspark.sql import functions as f

        dated, count = _counted(rows.withColumn("date", f.expr(_DATE)))
        self._table.add(batch, dated)
        self.row_count += count()
        self.batch_count += 1
        if batch and batch % MERGE_COUNT_MIN == 0:
            # Batches before this one are final.
            self.merged_count += self._table.compact(batch)
        self.next_batch = batch + 1


def _counted(rows: "DataFrame") -> "tuple[DataFrame, Callable[[], int]]":
    """Return rows that are counted when they are written, and their count after that."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation()
    observed = rows.observe(observation, f.count(f.lit(1)).alias("count"))
    return observed, lambda: int(observation.get["count"])
