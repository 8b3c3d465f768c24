"""A copy of a topic by two executors, of which one is so slow that Spark starts its task once more.

Arguments: master, servers, topic, target, directory. The slow attempt sends a part of its rows,
says so in the directory, and goes on only when its copy has sent the same part: so both are under
way at once and send the same rows.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import pipeline
from pipeline.session import stop
from tests.patience import wait_for

SLOW_PARTITION = 0
HALF_WAY = 6
"""Of the ten Arrow batches of a partition."""
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "300s",
}


HandOver = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def both_at_once(directory: Path) -> HandOver:
    """Hand rows through; the first attempt of one partition waits in the middle for its copy."""

    def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        is_slow = context.partitionId() == SLOW_PARTITION
        attempt = context.attemptNumber()
        for number, batch in enumerate(batches):
            yield batch
            if is_slow and number == HALF_WAY:  # What came before fills a batch of the sink.
                (directory / f"attempt-{attempt}").touch()
                if attempt == 0:
                    wait_for("the copy", (directory / "attempt-1").exists)

    return hand_over


def main() -> None:
    master, servers, topic, target, path = sys.argv[1:]
    builder = SparkSession.builder.appName("speculation").master(master)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.executorEnv.PYTHONPATH", ":".join(sys.path)).getOrCreate()
    try:
        pipeline.register(spark)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        options = {"servers": servers, "topic": topic, "maxRecordsPerPartition": "1000"}
        rows = spark.read.format("quorumlog").options(**options).load()
        copied = rows.mapInArrow(both_at_once(Path(path)), rows.schema)
        writer = copied.write.format("quorumlog").mode("append")
        writer.options(servers=servers, topic=target, writeId="copy").save()
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
