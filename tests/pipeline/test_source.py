"""The source against three real nodes: all columns, filters, nodes that die, and wrong options."""

import datetime
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pipeline
from deploy.local import LocalCluster
from pipeline.checks import check_source
from pipeline.connection import Connection
from pipeline.errors import DataLossError, OffsetsError, OptionError
from pipeline.options import ClusterAddress, SourceOptions
from pipeline.plan import OffsetRange, bounds, queues_of, ranges
from pipeline.reader import read_range
from pipeline.stream import StreamReader
from quorumlog import sync
from quorumlog.errors import QuorumlogError, UnknownTopicError
from quorumlog.records.queues import Queue
from tests.pipeline.topics import fill, read, running

COUNT = 3_000
Running = tuple[LocalCluster, sync.Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Path(tmp_path_factory.mktemp("source")) / "cluster") as made:
        made[1].admin.create_topic("orders", queue_count=4)
        made[1].admin.create_topic("large", queue_count=1)
        fill(made[1], "orders", 0, COUNT)
        with made[1].producer() as producer:
            for n in range(4_000):
                producer.send_nowait("large", b"%04d" % n * 512)
        yield made


def table(spark: SparkSession, cluster: Running, **options: str) -> DataFrame:
    pipeline.register(spark)
    given = {"servers": cluster[0].bootstrap, "topic": "orders"} | options
    return spark.read.format("quorumlog").options(**given).load()


def test_rows_are_what_a_consumer_reads(spark: SparkSession, cluster: Running) -> None:
    rows = table(spark, cluster).orderBy("queue_id", "queue_offset").collect()
    messages = read(cluster[1], "orders")
    assert len(rows) == COUNT
    for row, message in zip(rows, messages, strict=True):
        values = row.asDict()
        born, stored = values.pop("born_time"), values.pop("store_time")
        assert _unix_ms(born) == message.born_unix_ms
        assert _unix_ms(stored) == message.store_unix_ms
        assert values.pop("index") >= 0
        assert values.pop("term") >= 1
        assert values == {
            "topic": "orders",
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "log_position": message.log_position,
            "keys": message.keys,
            "tag": message.tag,
            "properties": message.properties,
            "body": message.body,
            "message_id": message.message_id,
            "broker_group": message.broker_group,
            "body_error": None,
        }


def _unix_ms(time: datetime.datetime) -> int:
    """Spark gives local time without a zone."""
    return round(time.timestamp() * 1000)


def test_filters_narrow_down_what_is_read(spark: SparkSession, cluster: Running) -> None:
    times = sorted(m.store_unix_ms for m in read(cluster[1], "orders"))
    middle = times[len(times) // 2]
    time = f.timestamp_millis(f.lit(middle))
    rows = table(spark, cluster, columns="queue_id, queue_offset,store_time,body")
    chosen = rows.where((f.col("queue_id") == 2) & (f.col("queue_offset").between(5, 9)))
    assert [row["queue_offset"] for row in chosen.collect()] == [5, 6, 7, 8, 9]
    plan = rows.where(f.col("queue_id") == 2)._jdf.queryExecution().toString()
    assert "Filter (queue_id" not in plan.partition("== Physical")[2], "the source does it"
    sides = [rows.where(f.col("store_time") >= time), rows.where(f.col("store_time") < time)]
    counts = [side.count() for side in sides]
    assert counts == [sum(t >= middle for t in times), sum(t < middle for t in times)]


def test_a_leader_that_dies_is_read_around(cluster: Running) -> None:
    """Between two pulls of one range, when the leader is who serves it."""
    local, _ = cluster
    options = SourceOptions(ClusterAddress(local.bootstrap), ("large",), reads_followers=False)
    with Connection(options.cluster) as connection:
        wanted = bounds(connection, options, queues_of(connection, options), "first")
        (part,) = ranges(connection, wanted, 1_000_000)
    batches = read_range(options, part)
    parts = [next(batches)]
    leader = local.leader_id()
    local.kill(leader)
    try:
        parts += batches
    finally:
        local.start(leader)
        local.wait_ready()
    bodies = [body for batch in parts for body in batch.column("body").to_pylist()]
    assert bodies == [b"%04d" % n * 512 for n in range(4_000)]


@pytest.mark.long
def test_followers_serve_and_one_that_dies_is_left(cluster: Running) -> None:
    local, client = cluster
    options = SourceOptions(ClusterAddress(local.bootstrap), ("large",))
    queue = Queue("large", 0, client.broker_groups[0])
    dead = next(node for node in local.node_ids if node != local.leader_id())
    local.kill(dead)
    try:
        # Ranges spread by where they begin, so both followers are somebody's.
        for lo in range(0, 4_000, 500):
            batches = list(read_range(options, OffsetRange(queue, lo, lo + 500, 0)))
            assert sum(batch.num_rows for batch in batches) == 500
    finally:
        local.start(dead)
        local.wait_ready()


def test_missing_records_are_an_error_or_left_out(cluster: Running) -> None:
    local, client = cluster
    queue = Queue("large", 0, client.broker_groups[0])
    beyond = OffsetRange(queue, 3_999, 4_010, 0)
    strict = SourceOptions(ClusterAddress(local.bootstrap), ("large",))
    with pytest.raises(DataLossError, match=r"from 4000 on are not there.*has 0 to 4000"):
        list(read_range(strict, beyond))
    lax = SourceOptions(ClusterAddress(local.bootstrap), ("large",), fails_on_data_loss=False)
    assert sum(batch.num_rows for batch in read_range(lax, beyond)) == 1


@pytest.mark.long
@pytest.mark.parametrize("reads_to_now", [False, True])
def test_a_stream_that_was_further_than_its_queue_is_says_so(
    cluster: Running, reads_to_now: bool
) -> None:
    """The topic was made anew, or a failover lost its end: what the checkpoint has is not there."""
    servers, each = ClusterAddress(cluster[0].bootstrap), COUNT // 4
    further = {"orders": {f"g0/{n}": each + (n == 2) for n in range(4)}}
    gone = {"orders": {"g0/9": 1}}
    for begin, what in (
        (further, f"ends at {each}, and was read up to {each + 1}"),
        (gone, "is gone"),
    ):
        strict = StreamReader(SourceOptions(servers, ("orders",)))
        lax = StreamReader(SourceOptions(servers, ("orders",), fails_on_data_loss=False))
        try:
            if reads_to_now:
                strict.prepareForTriggerAvailableNow()
                lax.prepareForTriggerAvailableNow()
            with pytest.raises(DataLossError, match=what):
                strict.latestOffset(begin, ReadAllAvailable())
            offsets = lax.latestOffset(begin, ReadAllAvailable())["orders"]
            assert offsets == {f"g0/{n}": each for n in range(4)} | begin["orders"]
        finally:
            strict.stop()
            lax.stop()


@pytest.mark.long
def test_a_follower_that_is_behind_is_waited_for_or_left(cluster: Running) -> None:
    """It was paused while the leader went on: what it has is older than what is asked for."""
    local, client = cluster
    late = next(node for node in local.node_ids if node != local.leader_id())
    local.pause(late)
    try:
        client.admin.create_topic("late", queue_count=1)
        fill(client, "late", 0, 200, queues=1)
    finally:
        local.resume(late)
    options = SourceOptions(
        ClusterAddress(local.bootstrap), ("late",), records_per_partition_max=20
    )
    with Connection(options.cluster) as connection:
        wanted = bounds(connection, options, queues_of(connection, options), "first")
        parts = ranges(connection, wanted, options.records_per_partition_max)
    assert len(parts) == 10
    batches = [batch for part in parts for batch in read_range(options, part)]
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies == [message.body for message in read(client, "late")]
    assert len(bodies) == 200


@pytest.mark.long
def test_expired_records_are_an_error_or_left_out(tmp_path: Path) -> None:
    """Files of 256 KiB, four of which are kept."""
    settings = {
        "file_size_bytes": "256KiB",
        "batch_size_bytes_max": "64KiB",
        "retention_size_bytes": "1MiB",
    }
    local = LocalCluster.create(tmp_path / "cluster", 1, settings=settings)
    with local, sync.connect(local.bootstrap, timeout_ms=60_000) as client:
        client.admin.create_topic("short", queue_count=1)
        queue = Queue("short", 0, client.broker_groups[0])
        given = SourceOptions(ClusterAddress(local.bootstrap), ("short",))
        lax = replace(given, fails_on_data_loss=False)
        with Connection(given.cluster) as connection, client.producer() as producer:
            count, first, deadline = 0, 0, time.monotonic() + 120
            while not first:  # Files are looked at every ten seconds.
                for _ in range(100):
                    producer.send_nowait("short", b"x" * 1024)
                producer.flush()
                count += 100
                (queue_range,) = queues_of(connection, given)
                first = queue_range.first_offset
                assert time.monotonic() < deadline, "nothing expires"
        part = OffsetRange(queue, 0, count, 0)
        with pytest.raises(DataLossError, match="the offsets from 0 on expired"):
            list(read_range(given, part))
        with pytest.raises(OffsetsError, match="and those from 0 on expired"):
            check_source({"servers": local.bootstrap, "topic": "short", "startingOffsets": "0"})
        rows = [row for batch in read_range(lax, part) for row in batch.to_pylist()]
        offsets = [row["queue_offset"] for row in rows]
        assert offsets == list(range(offsets[0], count))
        assert first <= offsets[0] < count


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"topik": "x"}, OptionError, "the source has no option 'topik'; it has servers"),
        ({"topic": ""}, OptionError, "option 'topic' is missing"),
        ({"topic": "nowhere"}, UnknownTopicError, "topic 'nowhere' does not exist"),
        ({"columns": "bodi"}, OptionError, "there is no column 'bodi'"),
        ({"startingOffsets": "5000"}, OffsetsError, "5000 is behind its end"),
        (
            {"startingOffsets": "soon"},
            OptionError,
            "use 'first', 'end', an offset or '@TIME'",
        ),
        ({"startingOffsets": '{"orders": {"9": 1}}'}, OptionError, "queue '9'.*it has 0, 1, 2, 3"),
        ({"startingOffsets": '{"orders": '}, OptionError, "is no JSON"),
        ({"startingOffsets": '{"others": {"0": 1}}'}, OptionError, "'others', which is not read"),
        ({"startingOffsets": "end", "endingOffsets": "5"}, OffsetsError, "would end before"),
        ({"maxRecordsPerTrigger": "-1"}, OptionError, "use a number of 1 or more"),
        ({"maxRecordsPerTrigger": "9" * 5_000}, OptionError, "use a number of 1 or more"),
        ({"failOnDataLoss": "maybe"}, OptionError, "use one of true, false"),
        ({"servers": ""}, OptionError, "option 'servers' is missing"),
    ],
)
def test_bad_options_are_refused_before_a_read_starts(
    cluster: Running, options: dict[str, str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        check_source({"servers": cluster[0].bootstrap, "topic": "orders"} | options)


def test_spark_passes_on_what_is_wrong(spark: SparkSession, cluster: Running) -> None:
    with pytest.raises(AnalysisException, match="5000 is behind its end"):
        table(spark, cluster, startingOffsets="5000").count()


def test_offsets_of_single_queues_and_times(cluster: Running) -> None:
    def count(**options: Any) -> int:
        return check_source({"servers": cluster[0].bootstrap, "topic": "orders"} | options)

    each = COUNT // 4
    assert count() == COUNT
    assert count(startingOffsets='{"orders": {"1": 10}}') == COUNT - 10
    assert count(endingOffsets="7") == 28
    assert count(startingOffsets="@0") == COUNT
    assert count(startingOffsets="@2100-01-01T00:00:00Z") == 0
    for first, end in (("first", "end"), ("earliest", "latest")):
        queues = f'{{"orders": {{"g0/1": "{end}", "g0/2": "{first}"}}}}'
        assert count(endingOffsets=queues, startingOffsets=first.upper()) == COUNT - each
        assert count(startingOffsets=end) == 0


@pytest.mark.long
def test_no_cluster_is_one_line() -> None:
    with pytest.raises(QuorumlogError, match=r"none of 127\.0\.0\.1:1 answered"):
        check_source({"servers": "127.0.0.1:1", "topic": "orders"})
