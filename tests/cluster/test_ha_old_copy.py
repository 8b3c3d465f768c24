"""A master that comes back on an old copy of its disk (D18, H11). The scenario `old-backup` has
slaves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import QuorumlogError
from tests.cluster.conftest import running
from tests.cluster.test_ha import ALONE, master_of
from tests.cluster.test_old_copy import Scene
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long


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
