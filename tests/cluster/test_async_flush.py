"""Nodes that ack before they sync, and that all lose power at once: design 4.5."""

import asyncio
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from quorumlog.errors import QuorumlogError
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC, same_logs


def another_boot(cluster: LocalCluster, node_id: int) -> None:
    """As if the machine had lost power: the page cache of this node is gone."""
    data = cluster.node_directory(node_id) / "data"
    assert (data / "abort").exists(), "it was stopped, not killed"
    (data / "boot_id").write_text("00000000-0000-0000-0000-000000000000\ne3d274d5\n")


@pytest.mark.long
async def test_async_nodes_that_all_lost_power_wait_for_each_other(tmp_path: Path) -> None:
    """The longest log is elected once every voter is there, and the loss is reported."""

    async with running(tmp_path / "c", flush="async", timeout_ms=4_000) as (cluster, client):
        async with client.producer() as producer:
            await producer.send_batch(TOPIC, [b"%08d" % n for n in range(20)], queue_id=0)
        for node_id in cluster.node_ids:
            await asyncio.to_thread(cluster.kill, node_id)
            another_boot(cluster, node_id)
        cluster.start(1, 2)
        producer = client.producer()
        with pytest.raises(QuorumlogError):
            await producer.send(TOPIC, b"99999999", queue_id=0)
        await producer.abort()
        assert await asyncio.to_thread(cluster.leader_id) == 0
        cluster.start(3)
        await asyncio.to_thread(cluster.wait_ready)
        await same_logs(cluster, client)
        # By the node that began to lead first; on a busy machine another one may lead by now.
        statuses = [await client.admin.node_status(node_id) for node_id in cluster.node_ids]
        assert max(status.loss_from_index for status in statuses) >= 0
