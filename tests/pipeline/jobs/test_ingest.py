"""`ingest` against three real nodes: what is in the table is the topic, row for row."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deploy.jobs.stdlib_source import (
    PATH_PROPERTY,
    QUEUES_PER_TOPIC,
    encoded_lines,
    find_files,
    standard_library,
)
from deploy.local import LocalCluster
from pipeline.errors import OffsetsError, OptionError, TableTakenError
from pipeline.jobs.ingest import ingest
from pipeline.table import CHECKPOINT, MERGE_COUNT_MIN, LakeTable, read_table
from quorumlog import sync
from quorumlog.records.message import Message
from tests.patience import PATIENCE_S, wait_for
from tests.pipeline.topics import fill, read, running

ROOT = Path(__file__).parents[3]
Running = tuple[LocalCluster, sync.Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Path(tmp_path_factory.mktemp("ingest")) / "cluster") as made:
        yield made


def rows(path: Path) -> list[tuple[Any, ...]]:
    """What anybody finds in the table who knows Parquet and nothing of us."""
    columns = ["queue_id", "queue_offset", "body", "message_id", "properties"]
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=columns)
    values = (table.column(name).to_pylist() for name in columns)
    return sorted((*row[:4], dict(row[4])) for row in zip(*values, strict=True))


def rows_of(messages: list[Message]) -> list[tuple[Any, ...]]:
    return [(m.queue_id, m.queue_offset, m.body, m.message_id, m.properties) for m in messages]


@pytest.mark.long
def test_a_killed_job_and_a_killed_leader_leave_each_row_once(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    """The job dies between its first file in the table and its end, the leader with it."""
    local, client = cluster
    client.admin.create_topic("orders", queue_count=4)
    fill(client, "orders", 0, 4_500)
    path = tmp_path / "table"
    job = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.pipeline.jobs.ingest_process",
            local.bootstrap,
            "orders",
            path,
        ],
        cwd=ROOT,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_for("a file", lambda: job.poll() or any(path.glob("topic=*/date=*/*.parquet")))
        assert job.poll() is None, "the job ended before it could be killed"
    finally:
        family = psutil.Process(job.pid).children(recursive=True)
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not (path / CHECKPOINT / "commits" / "2").exists(), "it was over already"
    leader = local.leader_id()
    local.kill(leader)
    try:
        given = {"servers": local.bootstrap, "topic": "orders", "maxRecordsPerTrigger": "1500"}
        done = ingest(spark, given, str(path))
    finally:
        local.start(leader)
        local.wait_ready()
    assert 1 <= done.batch_count <= 3
    assert rows(path) == rows_of(read(client, "orders"))


@pytest.mark.long
def test_a_job_that_was_stopped_may_repeat_its_last_batch(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    """There are enough to merge, and Spark did not note the last one, for it was interrupted.

    Its files must not be merged with the others: the next job could not find them to replace.
    """
    local, client = cluster
    client.admin.create_topic("stopped", queue_count=1)
    path, batches = tmp_path / "table", MERGE_COUNT_MIN
    given = {"servers": local.bootstrap, "topic": "stopped", "maxRecordsPerTrigger": "10"}
    fill(client, "stopped", 0, 10 * batches, queues=1)
    commit = path / CHECKPOINT / "commits" / str(batches - 1)
    done = ingest(spark, given, str(path), follow=True, should_stop=commit.exists)
    assert (done.batch_count, done.merged_file_count) == (batches, 0)
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink()
    ingest(spark, given, str(path))
    assert rows(path) == rows_of(read(client, "stopped"))


@pytest.mark.long
def test_a_table_that_is_begun_goes_on_from_where_it_is(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    """What was said of the beginning may be no more: later runs do not look at it."""
    local, client = cluster
    client.admin.create_topic("begun", queue_count=1)
    fill(client, "begun", 0, 20, queues=1)
    given = {"servers": local.bootstrap, "topic": "begun"}
    ingest(spark, given | {"startingOffsets": "5"}, str(tmp_path))
    again = ingest(spark, given | {"startingOffsets": "900"}, str(tmp_path))
    assert (again.row_count, len(rows(tmp_path))) == (0, 15)
    with pytest.raises(OffsetsError, match="900 is behind its end"):
        ingest(spark, given | {"startingOffsets": "900"}, str(tmp_path / "other"))


@pytest.mark.long  # Spark waits 10 s for the process of a stream, and no longer.
def test_a_table_of_real_input_gives_the_files_back(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    """A slice of the main job: each line of a package of the standard library is a message."""
    local, client = cluster
    client.admin.create_topic("json", queue_count=QUEUES_PER_TOPIC)
    files = [file for file in find_files(standard_library()) if file.topic == "json"]
    for number, file in enumerate(files):
        records = list(encoded_lines(file, born_unix_ms=0))
        if records:
            batch = b"".join(records)
            client.raw.append(batch, len(records), producer_id=number + 1, sequence=0)
    ingest(spark, {"servers": local.bootstrap, "topic": "json"}, str(tmp_path))
    table_rows = rows(tmp_path)
    assert table_rows == rows_of(read(client, "json"))
    digests = {file.name: hashlib.sha256() for file in files}
    for *_, body, _, properties in table_rows:
        digests[properties[PATH_PROPERTY]].update(body)
    for file in files:
        expected = hashlib.sha256(Path(file.path).read_bytes())
        assert digests[file.name].hexdigest() == expected.hexdigest(), file.name


def test_wrong_options_leave_no_trace(
    spark: SparkSession, cluster: Running, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="the source has no option 'topik'"):
        ingest(spark, {"servers": cluster[0].bootstrap, "topik": "x"}, str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()


def test_a_topic_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    names = ["007", "1e3", "7"]
    rows = spark.sql("select explode(split('007,1e3,7', ',')) as topic, date'2026-01-31' as date")
    taken(spark, tmp_path).add(0, rows.selectExpr("*", "topic as name").coalesce(1))
    table = read_table(spark, str(tmp_path)).collect()
    assert sorted((row.topic, row.name) for row in table) == [(name, name) for name in names]


def test_of_two_jobs_of_a_table_only_the_last_one_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.sql("select id as n, 'a' as topic, date'2026-01-01' as date from range(2)")
    first, second = taken(spark, tmp_path), taken(spark, tmp_path)
    with pytest.raises(TableTakenError, match="a table of its own"):
        first.add(0, rows.coalesce(1))
    with pytest.raises(TableTakenError):
        first.compact(1)
    assert second.compact(1) == 0
    assert _numbers(tmp_path) == []


@pytest.mark.long
def test_a_batch_that_was_added_in_part_is_added_once(spark: SparkSession, tmp_path: Path) -> None:
    values = "select id as n, 'a' as topic, date'2026-01-01' as date from range({}, {})"
    first, second = spark.sql(values.format(0, 5)), spark.sql(values.format(5, 9))
    taken(spark, tmp_path).add(0, first)
    taken(spark, tmp_path).add(1, second)
    # By another run: it cannot know how far it came.
    taken(spark, tmp_path).add(1, second)
    assert _numbers(tmp_path) == list(range(9))


@pytest.mark.long
def test_a_merge_that_was_cut_short_is_finished(spark: SparkSession, tmp_path: Path) -> None:
    values = "select id as n, 'a%:b' as topic, date'2026-01-01' as date from range({}, {})"
    table = taken(spark, tmp_path)
    for batch in range(3):
        table.add(batch, spark.sql(values.format(batch, batch + 1)).coalesce(1))
    moved = table.files.move

    def fails(path: str, to: str) -> None:
        if path.startswith("_staged"):
            raise OSError("the job died")
        moved(path, to)

    table.files.move = fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the job died"):
        table.compact(3, lambda count: count > 1)
    assert _numbers(tmp_path) == [], "what it replaces is gone already"
    again = taken(spark, tmp_path)
    assert _numbers(tmp_path) == [0, 1, 2]
    assert len(list(again.files.data())) == 1
    again.add(3, spark.sql(values.format(3, 4)))
    assert again.compact(3, lambda count: count > 1) == 0, "batch 3 may be added again"
    assert _numbers(tmp_path) == [0, 1, 2, 3]


def test_a_merge_keeps_columns_that_older_files_lack(spark: SparkSession, tmp_path: Path) -> None:
    values = "select id as n, 'a' as topic, date'2026-01-01' as date from range({}, {})"
    table = taken(spark, tmp_path)
    table.add(0, spark.sql(values.format(0, 1)))
    table.add(1, spark.sql(values.format(1, 2)).selectExpr("*", "'why' as body_error"))
    assert table.compact(2, lambda count: count > 1) == 1
    (merged,) = tmp_path.rglob("*.parquet")
    merged_rows = pq.read_table(merged, partitioning=None).to_pylist()
    assert sorted(merged_rows, key=str) == [
        {"n": 0, "body_error": None},
        {"n": 1, "body_error": "why"},
    ]


def taken(spark: SparkSession, path: Path) -> LakeTable:
    table = LakeTable(spark, str(path))
    table.take()
    return table


def _numbers(path: Path) -> list[int]:
    files = [str(file) for file in path.glob("topic=*/date=*/*.parquet")]
    if not files:
        return []
    return sorted(ds.dataset(files).to_table(columns=["n"]).column("n").to_pylist())
