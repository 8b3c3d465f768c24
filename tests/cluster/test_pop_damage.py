"""A leader with a damaged file: consumers by pop go on, and get the rest once it is mended."""

from pathlib import Path

import pytest

from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from quorumlog import sync
from tests.node.replication.raft.test_repair_process import MARK, flip
from tests.patience import wait_for

pytestmark = pytest.mark.long
DAMAGED = 1
"""The node."""


def holds_count(cluster: LocalCluster) -> float:
    """How often the node held a queue."""
    return metric_of(cluster, DAMAGED, "quorumlog_pop_held_total")


def test_a_leader_with_damage_hands_out_all_of_it_once_it_has_it_from_the_others(
    tmp_path: Path,
) -> None:
    settings = {"file_size_bytes": "64KiB", "batch_size_bytes_max": "16KiB"}
    with LocalCluster.create(tmp_path, 3, settings=settings) as cluster:
        with sync.connect(cluster.bootstrap) as client, client.producer() as producer:
            client.admin.create_topic("orders", queue_count=2)
            client.admin.create_topic("others")
            producer.send("orders", b"whole", queue_id=0)
            receipt = producer.send("orders", MARK, queue_id=1)
            for _ in range(30):
                receipt = producer.send("others", bytes(8 * 1024))
        wait_for(
            "all to have it",
            lambda: all((one.applied_index or 0) >= receipt.index for one in cluster.status()),
        )
        cluster.stop(DAMAGED)
        flip(cluster.node_directory(DAMAGED) / "data")
        cluster.start(DAMAGED)
        cluster.wait_ready()
        with sync.connect(cluster.bootstrap) as client:
            client.admin.transfer_leadership(DAMAGED)
            wait_for("it to lead", lambda: cluster.leader_id() == DAMAGED)
            with client.pop_consumer("readers", "orders") as consumer:
                bodies: list[bytes] = []
                while len(bodies) < 2:
                    found = consumer.receive(32, wait=20)
                    assert found, f"only {bodies}"
                    consumer.ack(found)
                    bodies += [message.body for message in found]
            assert bodies == [b"whole", MARK]
        assert holds_count(cluster) >= 1
