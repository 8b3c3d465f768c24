"""The sink against three real nodes: rows arrive once, however often they are sent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pipeline
from deploy.local import LocalCluster
from pipeline import encoding
from pipeline.checks import check_target
from pipeline.errors import OptionError
from pipeline.jobs.replay import replay
from pipeline.options import ClusterAddress, sink_options
from pipeline.sink import send
from quorumlog import sync
from quorumlog.errors import UnknownTopicError
from tests.pipeline.topics import fill, read, running, sent

Running = tuple[LocalCluster, sync.Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Path(tmp_path_factory.mktemp("sink")) / "cluster") as made:
        made[1].admin.create_topic("orders", queue_count=4)
        fill(made[1], "orders", 0, 2_000)
        yield made


def options(cluster: Running, topic: str) -> dict[str, str]:
    return {"servers": cluster[0].bootstrap, "topic": topic}


def test_rows_that_come_again_cut_otherwise_are_known(
    cluster: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of more batches than the log remembers of a producer."""
    _, client = cluster
    client.admin.create_topic("again", queue_count=2)
    monkeypatch.setattr(encoding, "BATCH_COUNT", 10)
    given = sink_options(options(cluster, "again"))
    rows = pa.table({"body": [b"%d" % n for n in range(995)]})

    def run(count: int, size: int, partition: int = 0) -> tuple[int, int]:
        batches = iter(rows.slice(0, count).to_batches(max_chunksize=size))
        written = send(batches, given, "write", partition)
        return written.record_count, written.duplicate_count

    assert run(300, 7) == (300, 0), "and here it dies"
    assert run(995, 64) == (995, 300)
    assert run(995, 1_000) == (995, 995)
    bodies = sorted(int(m.body) for m in read(client, "again"))
    assert bodies == list(range(995))
    assert run(5, 5, partition=1) == (5, 0), "another partition is another producer"


@pytest.mark.long  # Spark waits 10 s for the process of a stream, and no longer.
def test_a_micro_batch_that_runs_again_adds_nothing(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    """As after a crash between what was sent and what Spark wrote down."""
    local, client = cluster
    client.admin.create_topic("streamed", queue_count=4)
    pipeline.register(spark)
    checkpoint = tmp_path / "checkpoint"

    def run() -> list[int]:
        rows = spark.readStream.format("quorumlog").options(
            **options(cluster, "orders"), startingOffsets="earliest"
        )
        writer = rows.load().writeStream.format("quorumlog")
        writer = writer.options(**options(cluster, "streamed"), checkpointLocation=str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert run() == [2_000]
    for path in (checkpoint / "commits" / "0", checkpoint / "commits" / ".0.crc"):
        path.unlink()
    assert run()[0] == 2_000, "the batch ran again"
    assert sent(read(client, "streamed")) == sent(read(client, "orders"))
    assert local.leader_id()


@pytest.mark.long
def test_a_replay_that_runs_again_adds_nothing(spark: SparkSession, cluster: Running) -> None:
    _, client = cluster
    client.admin.create_topic("back", queue_count=4)
    source, to = options(cluster, "orders"), options(cluster, "back")
    first = replay(spark, to, source=source)
    assert first.row_count == 2_000
    assert sent(read(client, "back")) == sent(read(client, "orders"))
    replay(spark, to, source=source, replay_id=first.replay_id)
    assert len(read(client, "back")) == 2_000
    with pytest.raises(OptionError, match="had other rows than there are now"):
        replay(spark, to, source=source, where="queue_id = 1", replay_id=first.replay_id)


@pytest.mark.long
def test_an_unwritable_target_is_refused_before_a_job_starts(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    _, client = cluster
    client.admin.create_topic("narrow", queue_count=1)
    to = options(cluster, "narrow")
    with pytest.raises(OptionError, match=r"topic .narrow. has 1 queues.*--queues 4"):
        replay(spark, to, source=options(cluster, "orders"))
    with pytest.raises(OptionError, match="there is no Parquet at"):
        replay(spark, to, path=str(tmp_path / "none"))
    with pytest.raises(UnknownTopicError, match="'nowhere' does not exist"):
        check_target(ClusterAddress(cluster[0].bootstrap), ["nowhere"])
    assert read(client, "narrow") == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "extra", "text"),
    [
        ("1 as number", {}, "a record has no 'number'"),
        ("'x' as tag", {}, "there is no column 'body'"),
        ("'x' as body, '0' as queue_id", {}, "column 'queue_id' is of type string"),
        ("'x' as body", {"topic": ""}, "option 'topic' is missing"),
        ("'x' as body", {"mode": "overwrite"}, "cannot be overwritten"),
        ("'x' as body, '' as topic, map('a', '') as properties", {}, "row 0 of the partition"),
    ],
)
def test_wrong_rows_are_named(
    spark: SparkSession, cluster: Running, columns: str, extra: dict[str, Any], text: str
) -> None:
    pipeline.register(spark)
    given = options(cluster, "orders") | extra
    mode = given.pop("mode", "append")
    rows = spark.sql(f"select {columns}")
    with pytest.raises(PySparkException, match=text):
        rows.write.format("quorumlog").mode(mode).options(**given).save()
