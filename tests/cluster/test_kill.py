"""Nodes that are told to stop, one by one and all at once. Chaos scenarios kill them."""

import asyncio
from pathlib import Path

from tests.cluster.conftest import running
from tests.cluster.workload import Workload, prove


async def test_a_rolling_restart_fails_no_append(tmp_path: Path) -> None:
    """P8: SIGTERM hands over first, so a client with retries notices a pause at most."""

    async with running(tmp_path / "c") as (cluster, client), Workload(client) as load:
        for node_id in cluster.node_ids:
            await load.acked(100)
            assert await asyncio.to_thread(cluster.stop, node_id) == []
            assert cluster.exit_code(node_id) in (0, None)
            await load.acked(100)
            cluster.start(node_id)
            await asyncio.to_thread(cluster.wait_ready)
        history = await load.stop()
        assert not history.refused
        assert not history.unknown
        await prove(cluster, client, history)


async def test_a_stop_of_all_nodes_waits_for_nobody_who_is_gone(tmp_path: Path) -> None:
    """The last one has nobody left to lead in its place, and does not wait for one."""

    async with running(tmp_path / "c") as (cluster, client), client.producer() as producer:
        await producer.send("orders", "x", queue_id=0)
        assert await asyncio.to_thread(cluster.stop) == []
        for node_id in cluster.node_ids:
            log = cluster.log_path(node_id).read_text()
            assert "stopped" in log
            assert "stops without having drained" not in log
