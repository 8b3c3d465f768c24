"""Jobs on what three real nodes hold: live, as a table, and as their files when they stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.local import LocalCluster
from pipeline.segments_log import open_sealed
from qlog import main
from quorumlog import sync
from quorumlog.command_errors import ExitCode
from tests.pipeline.conftest import Run
from tests.pipeline.topics import fill, running
from tests.store.fsck_stores import flip, log_files

pytestmark = pytest.mark.long

COUNT = 1_200
TAKEN_COUNT = 500
STOPS_MAX = 10
Running = tuple[LocalCluster, sync.Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three topics, and a group that has read a part of one."""
    with running(tmp_path_factory.mktemp("real") / "cluster") as (local, client):
        for topic in ("orders", "payments"):
            client.admin.create_topic(topic, queue_count=4)
            fill(client, topic, 0, COUNT)
        client.admin.create_topic("events", queue_count=1)
        with client.producer() as producer:
            for n in range(COUNT):
                producer.send_nowait("events", b"event %d" % n, tag=f"t{n % 3}")
        take = ["consume", "events", "--group", "billing", "--max-count", str(TAKEN_COUNT)]
        taken = CliRunner().invoke(main, [*take, "-s", local.bootstrap])
        assert taken.exit_code == ExitCode.OK, taken.stderr
        yield local, client


@contextmanager
def stopped(local: LocalCluster) -> Iterator[list[Path]]:
    """Give the store directories of nodes that stopped with equal logs, and start them again.

    A node that stops early does not hear of an election among the others.
    """
    roots = [local.node_directory(node_id) / "data" for node_id in local.node_ids]
    for _ in range(STOPS_MAX):
        leader = local.wait_ready()
        for node_id in sorted(local.node_ids, key=lambda node_id: node_id == leader):
            local.stop(node_id)
        try:
            if len({open_sealed(str(root)).end_position for root in roots}) == 1:
                yield roots
                return
        finally:
            local.start()
            local.wait_ready()
    pytest.fail(f"{STOPS_MAX} times a node stopped behind the others")


def test_latency_tells_the_same_of_a_cluster_and_of_its_table(
    run: Run, cluster: Running, tmp_path: Path
) -> None:
    local, _ = cluster
    topics = ("--topic", "orders,events")
    live = run.json("latency", *topics, "--server", local.bootstrap)
    counts: dict[tuple[str, str | None], int] = {}
    for row in live["rates"]:
        name = (row["topic"], row["tag"])
        counts[name] = counts.get(name, 0) + row["message_count"]
        assert 0 <= row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["max_ms"]
    third = COUNT // 3
    assert counts == {
        ("events", "t0"): third,
        ("events", "t1"): third,
        ("events", "t2"): third,
        ("orders", "t0"): third // 2,
        ("orders", "t1"): third // 2,
        ("orders", None): COUNT - third,
    }
    last = live["lags"][-1]
    assert (last["group"], last["topic"], last["queue_count"]) == ("billing", "events", 1)
    assert last["lag"] == COUNT - TAKEN_COUNT

    table = str(tmp_path / "table")
    run.json("ingest", "orders", "payments", "events", "--to", table, "--server", local.bootstrap)
    latency = run.json("latency", *topics, "--parquet", table)
    assert latency == {"rates": live["rates"], "lags": []}

    unknown = run("latency", "--topic", "nowhere", "--server", local.bootstrap)
    assert unknown.exit_code == ExitCode.FAILED
    assert "nowhere" in unknown.stderr


def test_audit_finds_replicas_equal_and_then_the_one_byte_that_differs(
    run: Run, cluster: Running
) -> None:
    local, client = cluster
    with client.producer() as producer:
        receipt = producer.send("payments", b"a body that is struck")
    with stopped(local) as roots:
        directories = [str(root) for root in roots]
        good = run.json("audit", *directories)
        assert (good["verdict"], good["findings"]) == ("clean", [])
        assert len({(one["end_log_position"], one["last_index"]) for one in good["replicas"]}) == 1
        assert all(one["record_count"] > 3 * COUNT for one in good["replicas"])

        name, at = place_of(roots[1], receipt.log_position, b"is struck")
        flip(roots[1] / name, 8 * at)
        bad = run.json("audit", *directories, code=ExitCode.FINDINGS)
        flip(roots[1] / name, 8 * at)

    assert [one["verdict"] for one in bad["replicas"]] == ["clean", "damaged", "clean"]
    assert {(one["replica"], one["file"], one["index"]) for one in bad["findings"]} == {
        (1, name, receipt.index)
    }
    differs = [one for one in bad["findings"] if one["kind"] == "differs"]
    assert [one["at"] for one in differs] == [at]


def place_of(root: Path, position: int, text: bytes) -> tuple[str, int]:
    """Name file and byte of a text in the record that begins at a position of the log."""
    name = max(name for name in log_files(root) if int(Path(name).name) <= position)
    with (root / name).open("rb") as file:
        file.seek(position - int(Path(name).name))
        text_at = file.read(1_000).index(text)
    return name, position - int(Path(name).name) + text_at
