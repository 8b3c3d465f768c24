"""M7: what one node has begins a new cluster: a backup made under load."""

import asyncio
import json
import shutil
from pathlib import Path

import quorumlog
from deploy.local import LocalCluster
from tests.cluster.conftest import SETTINGS, running
from tests.cluster.workload import (
    QUEUE_COUNT,
    TOPIC,
    History,
    Workload,
    applied,
    prove,
    read_all,
    same_logs,
)
from tests.patience import wait_for
from tests.qlog.running import Qlog

GROUP = "readers"


async def back_up(cluster: LocalCluster, client: quorumlog.Client, copy: Path) -> int:
    """Copy a follower's directory as docs/operations.md says; return what was committed before."""
    node_id = (await client.admin.node_status()).node_id % 3 + 1
    committed = await applied(client, node_id)
    await asyncio.to_thread(cluster.stop, node_id)
    await asyncio.to_thread(shutil.copytree, cluster.node_directory(node_id) / "data", copy)
    cluster.start(node_id)
    await asyncio.to_thread(cluster.wait_ready)
    return committed


async def grow(cluster: LocalCluster, client: quorumlog.Client) -> None:
    """Take nodes 2 and 3 into a cluster of node 1."""
    for state in cluster.status()[1:]:
        await client.admin.add_learner(
            state.node_id, address=state.address, peer_address=state.peer_address
        )
        await applied(client, state.node_id)
        await client.admin.promote(state.node_id)


async def test_a_backup_under_load_becomes_a_cluster(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with running(tmp_path / "old") as (cluster, client), Workload(client) as load:
        await load.acked(300)
        await client.admin.commit_offsets(GROUP, {(TOPIC, 0): 7})
        before = History(acked=set(load.history.acked), last_index=load.history.last_index)
        committed = await back_up(cluster, client, copy)
        await load.acked(300)
        after = await load.stop()
        old = await prove(cluster, client, after)
        fresh = LocalCluster.create(tmp_path / "new", settings={**SETTINGS, "join": True})
        config = fresh.node_directory(1) / "node.toml"
        words = ("store", "restore", copy, "--config", config, "-o", "json")
        report = json.loads((await asyncio.to_thread(Qlog(fresh), *words)).stdout)
        assert report["last_index"] >= committed
        assert report["former_cluster_id"] == cluster.cluster_id != report["cluster_id"]
        assert (report["former_standing"], report["topic_count"]) == ("full", 1)
    try:
        await asyncio.to_thread(fresh.start)
        await asyncio.to_thread(fresh.wait_ready, node_ids=(1,))
        async with quorumlog.connect(fresh.address(1), timeout_ms=30_000) as client:
            await grow(fresh, client)
            await applied(client, *fresh.node_ids)
            restored = await read_all(client, before, None)
            assert before.acked <= set(restored)
            assert len(restored) == len(set(restored))
            for queue_id in range(QUEUE_COUNT):
                mine, theirs = (of_queue(n, queue_id) for n in (restored, old))
                assert mine == theirs[: len(mine)]
            offsets = await client.admin.fetch_offsets(GROUP)
            assert [(*queue, offset) for queue, offset in offsets.items()] == [(TOPIC, 0, 7)]
            await same_logs(fresh, client)
            await goes_on(fresh, client)
    finally:
        await asyncio.to_thread(fresh.stop)


async def goes_on(cluster: LocalCluster, client: quorumlog.Client) -> None:
    """Appends are acked by a quorum of the three, also when the restored node is gone."""
    async with client.producer() as producer:
        await producer.send(TOPIC, b"99999999")
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(wait_for, "another leader", lambda: cluster.leader_id() in (2, 3))
        receipt = await producer.send(TOPIC, b"99999998")
        assert receipt.durability.value == "quorum_disk"


def of_queue(numbers: list[int], queue_id: int) -> list[int]:
    """The numbers of one queue, in its order."""
    return [number for number in numbers if number % QUEUE_COUNT == queue_id]
