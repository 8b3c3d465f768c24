"""Master-slave groups of real processes: SIGKILL of the master, two proposals at once, losses."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.admin.ha_types import HaLoss, HaStatus
from quorumlog.errors import QuorumlogError, ServerError
from tests import seeds
from tests.cluster.conftest import running
from tests.cluster.workload import History, Workload, read_all
from tests.patience import PATIENCE_S, eventually, wait_for

Run = Callable[[Coroutine[Any, Any, None]], None]
ALONE: dict[str, object] = {"nameserver_listen": "off"}
"""Nobody proposes but the test."""


def log_of(cluster: LocalCluster, node_id: int) -> bytes:
    """The files of a node's log, back to back; what is behind its end is zeros."""
    directory = cluster.node_directory(node_id) / "data" / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("[0-9]*")))


async def master_of(client: quorumlog.Client) -> HaStatus:
    """Wait until somebody serves."""
    found: list[HaStatus] = []

    async def is_led() -> bool:
        master = (await client.admin.ha_group()).master
        found.extend([master] if master is not None else [])
        return master is not None

    await eventually(is_led, "a master")
    return found[0]


async def shows(client: quorumlog.Client, node_id: int, end: int) -> None:
    """Wait until readers of a node see the log up to here."""

    async def is_shown() -> bool:
        return (await client.admin.ha_status(node_id)).confirm_position >= end

    await eventually(is_shown, f"node {node_id} to show the log up to {end}")


async def equal_logs(cluster: LocalCluster, client: quorumlog.Client) -> None:
    """Wait until all replicas hold and show what the master has, and compare the bytes."""
    end = (await master_of(client)).end_position
    async with asyncio.timeout(PATIENCE_S):
        for node_id in cluster.node_ids:
            await shows(client, node_id, end)
    logs = [await asyncio.to_thread(log_of, cluster, node_id) for node_id in cluster.node_ids]
    assert len({log[:end] for log in logs}) == 1


@pytest.mark.long
def test_no_acked_append_is_lost_when_sync_masters_are_killed(tmp_path: Path, run: Run) -> None:
    """At any moment, whoever is promoted, also when two are at once."""
    random = Random(seeds.drawn("tests/cluster/test_ha.py"))

    async def promote(client: quorumlog.Client, node_id: int) -> None:
        # Of two with one number both may lose: then neither gets its fence, and it takes another.
        with contextlib.suppress(QuorumlogError):
            await client.admin.ha_promote(node_id, timeout_ms=500)

    async def work() -> None:
        async with (
            running(tmp_path / "c", replication="sync_master", settings=ALONE) as (cluster, client),
            Workload(client, producers=1) as load,
        ):
            for _ in range(3):
                await load.acked(random.randrange(20, 400))
                victim = (await master_of(client)).node_id
                await asyncio.to_thread(cluster.kill, victim)
                others = [node for node in cluster.node_ids if node != victim]
                chosen = others if random.random() < 0.5 else [random.choice(others)]
                await asyncio.gather(*(promote(client, node) for node in chosen))
                while (await client.admin.ha_group()).master is None:
                    await promote(client, random.choice(others))
                await load.acked(random.randrange(20, 200))
                cluster.start(victim)
                await asyncio.to_thread(cluster.wait_ready)
            history = await load.stop()
            found = await proven(client, cluster, history)
            await equal_logs(cluster, client)
            for node_id in cluster.node_ids:
                assert await read_all(client, history, node_id) == found, f"node {node_id} differs"

    run(work())


async def proven(client: quorumlog.Client, cluster: LocalCluster, history: History) -> list[int]:
    """Every acked number is there once."""
    found = await read_all(client, history, None)
    assert len(found) == len(set(found)), "something is there twice"
    assert not (lost := history.acked - set(found)), f"acked and lost: {sorted(lost)[:20]}"
    surplus = set(found) - history.acked - history.unknown
    assert not surplus, f"neither acked nor unknown: {sorted(surplus)[:20]}"
    return found


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
        await asyncio.to_thread(wait_for, "two slaves", lambda: all_serve(cluster, 2, 3))
        promotion = await client.admin.ha_promote(2)
        async with client.producer() as producer:
            receipt = await producer.send("orders", b"99999999", queue_id=0)
        assert receipt.durability is quorumlog.Durability.LEADER_DISK
        cluster.start(1)
        await asyncio.to_thread(cluster.wait_ready)
        history.last_index = receipt.index
        await equal_logs(cluster, client)
        found = set(await read_all(client, history, None))
        lost = sorted(history.acked - found)
        assert lost, "the slaves were down, so they cannot have had it"
        (loss,) = (await client.admin.ha_status(1)).losses
        assert loss.lo_position == promotion.start_position
        assert loss.record_count == loss.acked_record_count == len(lost)
        lo, hi = loss.lo_position, loss.hi_position
        assert (await asyncio.to_thread(log_of, cluster, 2))[:lo] == before[:lo]
        assert before[lo:hi] in await asyncio.to_thread(Path(loss.file).read_bytes)
        assert not before[hi:].strip(b"\0"), "all behind the parting is gone, a suffix"
        assert await asyncio.to_thread(inspected, loss) == len(lost)
        code, shown = await asyncio.to_thread(qlog, "ha", "status", cluster=cluster)
        assert (code, shown["problems"], shown["master_id"]) == (0, [], 2)
        assert [row["is_in_sync"] for row in shown["nodes"]] == [True] * 3
        assert [row["record_count"] for row in shown["losses"]] == [len(lost)]
        code, shown = await asyncio.to_thread(qlog, "ha", "promote", "1", cluster=cluster)
        assert (code, shown["master_id"]) == (0, 1)
        with pytest.raises(ServerError) as refused:
            await client.admin.transfer_leadership(2)
        assert refused.value.code == "node.wrong_mode"
        assert not (await client.admin.ha_status(2)).losses


def all_serve(cluster: LocalCluster, *node_ids: int) -> bool:
    """Whether these answer, without a master."""
    states = {state.node_id: state for state in cluster.status()}
    return all(states[node_id].role for node_id in node_ids)


def inspected(loss: HaLoss) -> int:
    """How many messages `qlog store inspect` finds in the file; commands do not count."""
    code, found = qlog("store", "inspect", loss.file)
    assert code == 0
    assert (found["first_position"], found["end_position"]) == (loss.lo_position, loss.hi_position)
    return sum(row["record_count"] for row in found["queues"] if row["topic"] == "orders")


def qlog(*words: str, cluster: LocalCluster | None = None) -> tuple[int, Any]:
    """Run a command; return its exit code and what it printed."""
    server = () if cluster is None else ("--server", cluster.bootstrap)
    command = [str(Path(sys.executable).with_name("qlog")), *words, *server, "-o", "json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
