"""A master-slave group of real processes: what an async master loses, and the commands for it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.admin.types import HaStatus
from quorumlog.errors import ServerError
from tests.cluster.conftest import running
from tests.cluster.workload import Workload, read_all
from tests.patience import eventually, wait_for
from tests.qlog.running import Qlog

ALONE: dict[str, object] = {"nameserver_listen": "off"}
"""Nobody proposes but the test."""


def log_of(cluster: LocalCluster, node_id: int) -> bytes:
    """The files of a node's log, back to back; what is behind its end is zeros."""
    directory = cluster.node_directory(node_id) / "data" / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("[0-9]*")))


async def master_of(client: quorumlog.Client) -> HaStatus:
    """Wait until somebody serves."""
    statuses: list[HaStatus] = []

    async def is_led() -> bool:
        master = (await client.admin.ha_group()).master
        statuses.extend([master] if master is not None else [])
        return master is not None

    await eventually(is_led, "a master")
    return statuses[0]


async def shows(client: quorumlog.Client, node_id: int, end: int) -> None:
    """Wait until readers of a node see the log up to here."""

    async def is_shown() -> bool:
        return (await client.admin.ha_status(node_id)).confirm_log_position >= end

    await eventually(is_shown, f"node {node_id} to show the log up to {end}")


async def equal_logs(cluster: LocalCluster, client: quorumlog.Client) -> None:
    """Wait until all replicas hold and show what the master has, and compare the bytes."""
    end = (await master_of(client)).end_log_position
    for node_id in cluster.node_ids:
        await shows(client, node_id, end)
    logs = [await asyncio.to_thread(log_of, cluster, node_id) for node_id in cluster.node_ids]
    assert len({log[:end] for log in logs}) == 1


async def test_an_async_master_loses_a_suffix_that_is_counted(tmp_path: Path) -> None:
    """The old master returns, is fenced, and what nobody else had goes aside."""

    options: dict[str, Any] = {"replication": "async_master", "settings": ALONE}
    async with running(tmp_path / "c", **options) as (cluster, client):
        async with Workload(client) as load:
            await load.acked(200)
            await asyncio.to_thread(cluster.kill, 2)
            await asyncio.to_thread(cluster.kill, 3)
            await load.acked(300)
            history = await load.stop()
        assert not history.unknown
        await asyncio.to_thread(cluster.kill, 1)
        before = await asyncio.to_thread(log_of, cluster, 1)
        cluster.start(2, 3)
        await asyncio.to_thread(
            wait_for, "two slaves", lambda: all(s.role for s in cluster.status()[1:])
        )
        promotion = await client.admin.ha_promote(2)
        async with client.producer() as producer:
            receipt = await producer.send("orders", b"99999999", queue_id=0)
        assert receipt.durability is quorumlog.Durability.LEADER_DISK
        cluster.start(1)
        await asyncio.to_thread(cluster.wait_ready)
        history.last_index = receipt.index
        await equal_logs(cluster, client)
        kept = set(await read_all(client, history, None))
        lost = sorted(history.acked - kept)
        assert lost, "the slaves were down, so they cannot have had it"
        (loss,) = (await client.admin.ha_status(1)).losses
        assert loss.first_log_position == promotion.start_log_position
        assert loss.record_count == loss.acked_record_count == len(lost)
        lo, hi = loss.first_log_position, loss.end_log_position
        assert (await asyncio.to_thread(log_of, cluster, 2))[:lo] == before[:lo]
        assert before[lo:hi] in await asyncio.to_thread(Path(loss.file).read_bytes)
        assert not before[hi:].strip(b"\0"), "all behind the parting is gone, a suffix"
        qlog = Qlog(cluster)
        inspected = await asyncio.to_thread(qlog, "store", "inspect", loss.file, "-o", "json")
        shown = json.loads(inspected.stdout)
        assert (shown["first_log_position"], shown["end_log_position"]) == (lo, hi)
        counts = [row["record_count"] for row in shown["queues"] if row["topic"] == "orders"]
        assert sum(counts) == len(lost), "commands do not count"
        shown = await asyncio.to_thread(qlog.json, "ha", "status")
        assert (shown["problems"], shown["master_id"], shown["copies"]) == ([], 2, 1)
        assert [row["is_in_sync"] for row in shown["nodes"]] == [True] * 3
        assert [row["record_count"] for row in shown["losses"]] == [len(lost)]
        assert (await asyncio.to_thread(qlog.json, "ha", "promote", 1))["master_id"] == 1
        with pytest.raises(ServerError) as refused:
            await client.admin.transfer_leadership(2)
        assert refused.value.code == "node.wrong_mode"
        assert not (await client.admin.ha_status(2)).losses
