"""Replicas of a master-slave group that come back on an old copy of their disk (D18, H11): they
count neither for copies nor for a fence until they hold everything again."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import QuorumlogError
from tests.cluster.conftest import running
from tests.cluster.test_ha import ALONE, master_of
from tests.cluster.test_old_copy import Scene, saved
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long
Run = Callable[[Coroutine[Any, Any, None]], None]


async def stands(at: Scene, node_id: int, standing: str) -> None:
    """Wait until a replica says how it counts."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if (await at.client.admin.ha_status(node_id)).standing == standing:
                    return
            except QuorumlogError:
                pass
            await asyncio.sleep(0.02)


async def in_sync(at: Scene, *node_ids: int) -> None:
    """Wait until these replicas hold what the master has."""
    end = (await master_of(at.client)).end_position
    async with asyncio.timeout(PATIENCE_S):
        for node_id in node_ids:
            while (await at.client.admin.ha_status(node_id)).end_position < end:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def knows(at: Scene, node_id: int, other: int, life: int) -> bool:
    """Whether a replica has on its disk that another one is in this life."""
    known = saved(at.cluster.node_directory(node_id) / "data")["known"]
    return int(known.get(str(other), {}).get("life", 0)) == life


async def promote(at: Scene, node_id: int) -> None:
    """Promote by hand, as often as it takes; the fence decides."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await at.client.admin.ha_promote(node_id, timeout_ms=2_000)
            except QuorumlogError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_an_old_slave_makes_no_fence(tmp_path: Path) -> None:
    """A slave that acked is put back, and the master is away: the third one must not serve."""

    (tmp_path / "copies").mkdir()
    options: dict[str, Any] = {"replication": "sync_master", "settings": {**ALONE}}
    async with running(tmp_path / "c", **options) as (cluster, client):
        at = Scene(cluster, client, tmp_path / "copies")
        master = (await master_of(client)).node_id
        old, third = sorted({1, 2, 3} - {master})
        await at.send(30)
        await in_sync(at, old, third)
        await at.stop(old)
        at.copy(old)
        await asyncio.to_thread(cluster.start, old)
        await in_sync(at, old)
        await asyncio.to_thread(
            wait_for, "the third one to remember the new life", partial(knows, at, third, old, 2)
        )
        await at.kill(third)
        await at.send(30)
        await at.kill(master)
        await at.kill(old)
        at.restore(old)
        await asyncio.to_thread(cluster.start, old, third)
        await stands(at, old, "joining")
        for node_id in (third, old):
            with pytest.raises(QuorumlogError):
                await client.admin.ha_promote(node_id, timeout_ms=2_000)
        await asyncio.to_thread(cluster.start, master)
        await asyncio.to_thread(wait_for, "the master's status", partial(cluster.is_alive, master))
        await promote(at, master)
        await at.shows_all()
        await stands(at, old, "full")
        await at.send(10)
        await at.shows_all()
        at.alive()


async def test_an_old_master_is_no_master(tmp_path: Path) -> None:
    """It comes back from before the epoch of another one, or from an earlier life."""

    (tmp_path / "copies").mkdir()
    options: dict[str, Any] = {"replication": "sync_master", "settings": {**ALONE}}
    async with running(tmp_path / "c", **options) as (cluster, client):
        at = Scene(cluster, client, tmp_path / "copies")
        master = (await master_of(client)).node_id
        others = sorted({1, 2, 3} - {master})
        await at.send(30)
        await in_sync(at, *others)
        await at.stop(master)
        at.copy(master)
        await asyncio.to_thread(cluster.start, master)
        await promote(at, master)
        await at.send(30)
        await at.kill(master)
        at.restore(master)
        await asyncio.to_thread(cluster.start, master)
        await stands(at, master, "joining")
        with pytest.raises(QuorumlogError):
            await client.admin.ha_promote(master, timeout_ms=2_000)
        await promote(at, others[0])
        await at.shows_all()
        await stands(at, master, "full")
        at.alive()


async def test_crashed_replicas_are_no_old_copies(tmp_path: Path) -> None:
    options: dict[str, Any] = {"replication": "sync_master", "settings": {**ALONE}}
    async with running(tmp_path / "c", **options) as (cluster, client):
        at = Scene(cluster, client, tmp_path)
        for node_id in (1, 2, 3, 1):
            master = (await master_of(client)).node_id
            await at.send(20)
            await at.kill(node_id)
            await asyncio.to_thread(cluster.start, node_id)
            if node_id == master:
                await promote(at, node_id % 3 + 1)
            for other in (1, 2, 3):
                await stands(at, other, "full")
        await at.send(20)
        await at.shows_all()
