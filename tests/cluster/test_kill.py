"""SIGKILL of any node, and rolling restarts: what was acked is there, once."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests import seeds
from tests.cluster.conftest import running
from tests.cluster.workload import Workload, prove, same_logs

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.long
async def test_nodes_killed_at_random_moments(tmp_path: Path) -> None:
    """P1, P2: any one node at a time, the leader more often than not."""
    random = Random(seeds.drawn("tests/cluster/test_kill.py"))

    async with running(tmp_path / "c") as (cluster, client), Workload(client) as load:
        for _ in range(6):
            await load.acked(random.randrange(20, 400))
            leader = await asyncio.to_thread(cluster.leader_id)
            victim = leader if leader and random.random() < 0.6 else random.choice((1, 2, 3))
            await asyncio.to_thread(cluster.kill, victim)
            await load.acked(random.randrange(20, 200))
            await asyncio.to_thread(cluster.restart, victim)
            await asyncio.to_thread(cluster.wait_ready)
        await prove(cluster, client, await load.stop())


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


@pytest.mark.long
async def test_a_killed_node_that_stays_away_costs_nothing(tmp_path: Path) -> None:
    """Two of three go on; the third catches up from far behind, over many files."""

    async with running(tmp_path / "c") as (cluster, client):
        leader = await asyncio.to_thread(cluster.leader_id)
        away = leader % 3 + 1
        await asyncio.to_thread(cluster.kill, away)
        producer = client.producer()
        for n in range(40):
            await producer.send_batch("orders", [b"%08d" % n + bytes(100_000)], queue_id=0)
        await producer.close()
        async with Workload(client) as load:
            await load.acked(200)
            cluster.start(away)
            await asyncio.to_thread(cluster.wait_ready)
        await same_logs(cluster, client)
        files = list((cluster.node_directory(away) / "data").rglob("0*"))
        assert len(files) > 3, f"it caught up over {files}"


async def test_a_stop_of_all_nodes_waits_for_nobody_who_is_gone(tmp_path: Path) -> None:
    """The last one has nobody left to lead in its place, and does not wait for one."""

    async with running(tmp_path / "c") as (cluster, client), client.producer() as producer:
        await producer.send("orders", "x", queue_id=0)
        assert await asyncio.to_thread(cluster.stop) == []
        for node_id in cluster.node_ids:
            log = cluster.log_path(node_id).read_text()
            assert "stopped" in log
            assert "stops without having drained" not in log
