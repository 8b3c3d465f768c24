"""A disk that changes what lies on it: found before a reader asks, and never handed out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from pipeline.options import ClusterAddress, SourceOptions
from pipeline.plan import OffsetRange
from pipeline.reader import read_range
from quorumlog import sync
from quorumlog.records.queues import Queue
from tests.node.replication.raft.test_repair_process import MARK
from tests.patience import wait_for

SMALL = {"file_size_bytes": "64KiB", "batch_size_bytes_max": "16KiB"}
SCRUBBED = {**SMALL, "scrub_interval_ms": "1s", "log_format": "json"}


def count(cluster: LocalCluster, node_id: int, name: str) -> float:
    """A counter of a node."""
    return metric_of(cluster, node_id, f"quorumlog_{name}_total")


def fill(cluster: LocalCluster) -> None:
    """Write a marked message, some files on top of it, and wait until all replicas show them."""
    with sync.connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("orders", queue_count=2)
        client.admin.create_topic("others")
        producer.send("orders", b"whole", queue_id=0)
        producer.send("orders", MARK, queue_id=1)
        for _ in range(20):
            receipt = producer.send("others", bytes(8 * 1024))
    wait_for(
        "all to have it",
        lambda: all((one.applied_index or 0) >= receipt.index for one in cluster.status()),
    )


def flip(cluster: LocalCluster, node_id: int) -> tuple[Path, bytes]:
    """Change one bit of MARK in the log of a node; return the file as it was."""
    first_files = (cluster.node_directory(node_id) / "data").rglob("0" * 20)
    [(path, data)] = [(p, d) for p in first_files if MARK in (d := p.read_bytes())]
    at = data.index(MARK) + 3
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    return path, data


def test_a_bit_that_flips_in_a_running_node_is_found_and_put_right(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, settings=SCRUBBED) as cluster:
        fill(cluster)
        damaged = cluster.leader_id()
        wait_for("the ends of files", lambda: count(cluster, damaged, "scrub_compared") >= 4)
        path, whole = flip(cluster, damaged)
        wait_for("it to be found", lambda: count(cluster, damaged, "scrub_damage") >= 1)
        wait_for("it to be repaired", lambda: path.read_bytes() == whole)
        for node_id in cluster.node_ids:
            assert count(cluster, node_id, "scrub_differing") == 0
        assert "is repaired" in cluster.log_path(damaged).read_text()
        assert all(state.is_ready for state in cluster.status())


def test_a_reader_that_meets_damage_has_it_repaired(tmp_path: Path) -> None:
    """The node has checked those bytes before, and does not scrub."""
    with (
        LocalCluster.create(tmp_path, 3, settings=SMALL) as cluster,
        sync.connect(cluster.bootstrap) as client,
    ):
        fill(cluster)
        options = SourceOptions(
            ClusterAddress(cluster.bootstrap), ("orders",), reads_followers=False
        )
        part = OffsetRange(Queue("orders", 1, client.broker_groups[0]), 0, 1, 0)

        def is_repaired_once_met(read: Callable[[], list[bytes]]) -> None:
            assert read() == [MARK]
            path, whole = flip(cluster, cluster.leader_id())
            assert read() == [MARK]
            assert path.read_bytes() == whole

        is_repaired_once_met(lambda: [one.body for one in client.pull("orders", 1, 0)])
        batches = partial(read_range, options, part)
        is_repaired_once_met(lambda: [b for batch in batches() for b in batch["body"].to_pylist()])


@pytest.mark.long
def test_in_a_master_slave_group_it_is_told(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, replication="sync_master", settings=SCRUBBED) as cluster:
        fill(cluster)
        flip(cluster, 2)
        wait_for("it to be found", lambda: count(cluster, 2, "scrub_damage") >= 1)
        assert "damage was found on this disk" in cluster.log_path(2).read_text()
        assert all(state.is_ready for state in cluster.status())


def test_a_leader_with_damage_hands_out_all_of_it_once_it_has_it_from_the_others(
    tmp_path: Path,
) -> None:
    """The damage lies in a file that the start does not read. A pop consumer goes on with the
    rest."""
    with LocalCluster.create(tmp_path, 3, settings=SMALL) as cluster:
        fill(cluster)
        damaged = cluster.leader_id() % 3 + 1
        cluster.stop(damaged)
        path, whole = flip(cluster, damaged)
        cluster.start(damaged)
        cluster.wait_ready()
        with sync.connect(cluster.bootstrap) as client:
            client.admin.transfer_leadership(damaged)
            wait_for("it to lead", lambda: cluster.leader_id() == damaged)
            with client.pop_consumer("readers", "orders") as consumer:
                bodies: list[bytes] = []
                while len(bodies) < 2:
                    messages = consumer.receive(32, wait=20)
                    assert messages, f"only {bodies}"
                    consumer.ack(messages)
                    bodies += [message.body for message in messages]
            assert bodies == [b"whole", MARK]
            assert count(cluster, damaged, "pop_held") >= 1
            assert path.read_bytes() == whole
            [read] = client.pull("orders", 1, 0, consistency="local", node_id=damaged)
            assert read.body == MARK
