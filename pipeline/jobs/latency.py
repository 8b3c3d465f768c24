"""`latency`: count, size and lateness of messages, each minute; and the lag of consumers.

Owns the two tables. Rows may come from anywhere: files of a stopped node, a cluster, Parquet. The
lateness of a message is its store time less its born time, so it is as exact as the clocks of
producer and broker agree.

The lag of consumers is in the log as well: each commit of offsets is a record with a store time. So
it is available for any minute of the past, not only for now.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipeline.checks import check_source
from pipeline.schema import batch_of, ddl
from pipeline.table import read_table
from quorumlog.pb.state_pb2 import Command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMAND_TOPIC: Final = "rmq_sys_quorumlog"
RATE_COLUMNS: Final = (
    "minute", "topic", "tag", "message_count", "messages_per_s", "body_bytes", "body_bytes_mean",
    "body_bytes_max", "p50_ms", "p90_ms", "p99_ms", "max_ms",
)  # fmt: skip
LAG_COLUMNS: Final = ("minute", "group", "topic", "lag", "queue_count")
_NEEDED: Final = "topic,tag,queue_id,queue_offset,log_position,born_time,store_time,body"
_COMMITS: Final = pa.schema([
    ("minute", pa.timestamp("us", tz="UTC")), ("log_position", pa.int64()), ("group", pa.string()),
    ("topic", pa.string()), ("queue_id", pa.int32()), ("offset", pa.int64()),
])  # fmt: skip


def rates(rows: "DataFrame") -> "DataFrame":
    """Return one row for each minute, topic and tag, in this order. Percentiles are exact up to one
    in ten thousand ranks."""
    spark = rows.sparkSession
    rows.createOrReplaceTempView("quorumlog_latency_rows")
    return spark.sql("""
        with of_message as (
            select date_trunc('minute', store_time) as minute, topic, tag,
                coalesce(octet_length(body), 0) as size_bytes,
                (unix_micros(store_time) - unix_micros(born_time)) / 1000 as late_ms
            from quorumlog_latency_rows
        ), of_minute as (
            select minute, topic, tag, count(*) as message_count,
                count(*) / 60 as messages_per_s, sum(size_bytes) as body_bytes,
                avg(size_bytes) as body_bytes_mean, max(size_bytes) as body_bytes_max,
                percentile_approx(late_ms, array(0.5D, 0.9D, 0.99D)) as late,
                max(late_ms) as max_ms
            from of_message group by minute, topic, tag
        )
        select minute, topic, tag, message_count, messages_per_s, body_bytes, body_bytes_mean,
            body_bytes_max, late[0] as p50_ms, late[1] as p90_ms, late[2] as p99_ms, max_ms
        from of_minute order by minute, topic, tag
    """)


def lags(rows: "DataFrame", commands: "DataFrame") -> "DataFrame":
    """Return the lag of each group in each topic at the end of each minute, in messages.

    `commands` are the rows of the system's topic. A queue counts from its first commit on.
    """
    spark = rows.sparkSession
    rows.createOrReplaceTempView("quorumlog_latency_rows")
    commits = commands.select("store_time", "log_position", "body").mapInArrow(
        commits_in, ddl(_COMMITS)
    )
    commits.createOrReplaceTempView("quorumlog_latency_commits")
    return spark.sql("""
        with ends as (
            select date_trunc('minute', store_time) as minute, topic, queue_id,
                max(queue_offset) + 1 as end
            from quorumlog_latency_rows group by all
        ), commits as (
            select minute, group, topic, queue_id, max_by(offset, log_position) as offset
            from quorumlog_latency_commits group by all
        ), minutes as (
            select minute from ends union select minute from commits
        ), queues as (
            select distinct group, topic, queue_id from commits
        ), known as (
            select minutes.minute, queues.group, queues.topic, queues.queue_id,
                last_value(end) ignore nulls over w as end,
                last_value(offset) ignore nulls over w as offset
            from minutes cross join queues
            left join ends on ends.minute = minutes.minute and ends.topic = queues.topic
                and ends.queue_id = queues.queue_id
            left join commits on commits.minute = minutes.minute and commits.group = queues.group
                and commits.topic = queues.topic and commits.queue_id = queues.queue_id
            window w as (
                partition by queues.group, queues.topic, queues.queue_id order by minutes.minute
                rows between unbounded preceding and current row
            )
        )
        select minute, group, topic, sum(greatest(coalesce(end, offset) - offset, 0)) as lag,
            count(*) as queue_count
        from known where offset is not null
        group by minute, group, topic order by minute, group, topic
    """)


def commits_in(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the offsets that commands commit, on a worker."""
    for batch in batches:
        minutes = [time.replace(second=0, microsecond=0) for time in batch.column(0).to_pylist()]
        commits = []
        for minute, position, body in zip(
            minutes, batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True
        ):
            command = Command.FromString(body)
            if command.WhichOneof("command") == "commit_offsets":
                commit = command.commit_offsets
                commits += [
                    (minute, position, commit.group, one.topic, one.queue_id, one.offset)
                    for one in commit.offsets
                ]
        yield batch_of(commits, _COMMITS)


def from_segments(spark: "SparkSession", directory: str, topic: str = "") -> "DataFrame":
    """Return the rows of a stopped node's files: those of some topics, or all but the system's."""
    reader = spark.read.format("quorumlog-segments").option("columns", _NEEDED)
    return (reader.option("topic", topic) if topic else reader).load(directory)


def from_cluster(spark: "SparkSession", cluster: Mapping[str, str], topic: str) -> "DataFrame":
    """Return the rows of some topics of a running cluster, given by options of the source. Raises
    PipelineError and QuorumlogError."""
    options = {**cluster, "topic": topic, "columns": _NEEDED}
    check_source(options)
    return spark.read.format("quorumlog").options(**options).load()


def from_parquet(spark: "SparkSession", path: str, topic: str = "") -> "DataFrame":
    """Return the rows of a table that `ingest` wrote, of some topics or of all."""
    rows = read_table(spark, path)
    return rows.where(rows.topic.isin(topic.split(","))) if topic else rows


def rows_of(table: "DataFrame") -> list[dict[str, object]]:
    """Collect a table; times are text, in UTC."""
    rows = table.withColumn("minute", table.minute.cast("string")).collect()
    return [{**row.asDict(), "minute": f"{row.minute}Z".replace(" ", "T")} for row in rows]
