"""S1 and S2: a partition within a micro-batch, and a task that runs twice at once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.cluster import ChaosCluster
from chaos.links import CLIENTS
from chaos.profile import Profile
from chaos.toxiproxy import Toxiproxy
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pipeline
from deploy.local_metrics import metric_of
from deploy.local_process import free_ports
from quorumlog import sync
from tests import missing
from tests.patience import wait_for
from tests.pipeline.topics import fill, read, running, sent
from tests.two_processes import run_module

pytestmark = pytest.mark.long
DEADLINE_S = 600.0
COUNT = 4_000
BODY_SIZE_BYTES = 1_000
TRIGGER_COUNT = 1_000
PROFILE = Profile(settings=(("batch_size_bytes_max", "1MiB"),))  # As large as the sink's batches.
LINK_KIB_A_S = 1_500
"""Slow enough that a micro-batch takes a while, in the middle of which something may happen."""


METRIC = "quorumlog_append_duplicates_total"


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Spark of two machines: it never starts a copy of a task on the same one."""
    from pyspark.find_spark_home import _find_spark_home

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (port,) = free_ports(1)
    address = f"spark://127.0.0.1:{port}"
    roles = [["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in (1, 2):
        role = ["worker.Worker", "--host", f"127.0.0.{number}", "--webui-port", "0"]
        role += ["--work-dir", str(tmp_path / f"worker-{number}"), "--cores", "1"]
        roles.append([*role, "--memory", "700M", address])
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, *arguments in roles:
            command = [f"{_find_spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{name}"]
            with (tmp_path / "spark.log").open("ab") as log:
                running.append(
                    subprocess.Popen(
                        [*command, *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield address
    finally:
        for process in reversed(running):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_task_that_runs_twice_at_once_leaves_each_row_once(tmp_path: Path, master: str) -> None:
    """S2: Spark starts a slow task once more; both attempts send the same rows side by side."""
    with running(tmp_path / "cluster") as (local, client):
        for topic in ("orders", "copied"):
            client.admin.create_topic(topic, queue_count=4)
        fill(client, "orders", 0, COUNT, size_bytes=BODY_SIZE_BYTES)
        marks = tmp_path / "marks"
        marks.mkdir()
        words = (master, local.bootstrap, "orders", "copied", marks)
        done = run_module("tests.pipeline.speculation_process", *words)
        assert done.returncode == 0, done.stderr[-4_000:]
        attempts = {path.name for path in marks.iterdir()}
        assert {"attempt-0", "attempt-1"} <= attempts, "the task did not run twice at once"
        duplicates = (metric_of(local, node, METRIC) for node in local.node_ids)
        assert sum(duplicates) > 0, "the attempts did not send the same"
        copied = read(client, "copied")
        assert Counter(m.body for m in copied) == Counter(m.body for m in read(client, "orders"))
        assert sent(copied) == sent(read(client, "orders"))


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[ChaosCluster]:
    """Three nodes that everybody, clients as well, reaches through Toxiproxy only."""
    program = missing.installed("toxiproxy") / "toxiproxy-server"
    with Toxiproxy(program, tmp_path / "toxiproxy.log") as server:
        cluster = ChaosCluster(tmp_path / "cluster", PROFILE, server, None)
        try:
            cluster.start()
            cluster.wait_ready()
            yield cluster
        finally:
            cluster.close()


def test_a_partition_within_a_micro_batch_leaves_each_row_once(
    spark: SparkSession, proxied: ChaosCluster, tmp_path: Path
) -> None:
    """S1: the leader is cut from its peers and from the job while rows are on their way."""
    pipeline.register(spark)
    with sync.connect(proxied.bootstrap, timeout_ms=60_000, connect_timeout_ms=60_000) as client:
        for topic in ("orders", "copied"):
            client.admin.create_topic(topic, queue_count=4)
        fill(client, "orders", 0, COUNT, size_bytes=BODY_SIZE_BYTES)
        links = proxied.links
        links.add(links.of_clients(), "bandwidth", rate=LINK_KIB_A_S)
        options = {"servers": proxied.bootstrap, "startingOffsets": "earliest"}
        rows = spark.readStream.format("quorumlog").options(
            **options, topic="orders", maxRecordsPerTrigger=str(TRIGGER_COUNT)
        )
        writer = rows.load().writeStream.format("quorumlog").trigger(availableNow=True)
        query = writer.options(
            servers=proxied.bootstrap,
            topic="copied",
            checkpointLocation=str(tmp_path / "checkpoint"),
        ).start()
        try:
            old = proxied.leader()
            at = wait_for("the middle of a micro-batch", lambda: count_in_a_batch(client, query))
            cut = [*links.isolate(old), (CLIENTS, old)]
            links.cut([(CLIENTS, old)])
            wait_for("another leader", lambda: leaders(proxied) - {old})
            wait_for("rows at the new leader", lambda: count_of(client) > at)
            assert query.isActive, "it was over before the cut was healed"
            links.join(cut)
            links.remove(links.of_clients(), "bandwidth")
            assert query.awaitTermination(int(DEADLINE_S)), "the query does not end"
        finally:
            query.stop()
        assert query.exception() is None
        assert sum(progress["numInputRows"] for progress in query.recentProgress) >= COUNT
        proxied.wait_ready()
        copied = read(client, "copied")
        assert Counter(m.body for m in copied) == Counter(m.body for m in read(client, "orders"))
        assert sent(copied) == sent(read(client, "orders"))


def count_of(client: sync.Client) -> int:
    return sum(queue.end_offset for queue in client.queue_offsets("copied"))


def count_in_a_batch(client: sync.Client, query: StreamingQuery) -> int:
    """Return the count of rows once a micro-batch, not the first one, has sent a part of its."""
    assert query.isActive, f"no micro-batch was ever in the middle: {query.exception()}"
    count = count_of(client)
    return count if TRIGGER_COUNT < count < COUNT and count % TRIGGER_COUNT else 0


def leaders(cluster: ChaosCluster) -> set[int]:
    return {n for n, s in cluster.status().items() if s.role == "leader" and s.is_ready}
