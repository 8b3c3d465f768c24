"""The name server in and beside real nodes: what its faults do to appends, who is in a route."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.local import LocalCluster
from deploy.local_process import free_ports
from quorumlog import Client
from quorumlog.cluster.nameserver import ListedTopicShare, NameServers, ReplicaStatus
from quorumlog.errors import UnavailableError
from tests.cluster.conftest import running
from tests.cluster.forgery import refusal, registration
from tests.cluster.workload import QUEUE_COUNT, TOPIC, Workload, prove
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
Run = Callable[[Coroutine[Any, Any, None]], None]
CLUSTER_ID = "served"
PROGRAM = "from qlog import main; main(prog_name='qlog')"


async def share_of(names: NameServers, *brokers: int) -> ListedTopicShare:
    """Wait until the route of the topic has a master and exactly these brokers; return it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        shares: tuple[ListedTopicShare, ...] = ()
        try:
            shares = (await names.route(TOPIC)).shares
        except UnavailableError:
            pass
        broker_ids = tuple(broker.broker_id for share in shares for broker in share.brokers)
        if broker_ids == brokers and shares[0].master_id:
            return shares[0]
        assert time.monotonic() < deadline, f"not {brokers}: {shares}"
        await asyncio.sleep(0.1)


async def states(names: NameServers, *wanted: str) -> list[ReplicaStatus]:
    """Wait until the replicas that were named are in these states; `up`: they know a leader."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        replicas = (await names.status())[: len(wanted)]
        shown = ["up" if one.state in ("leader", "follower") else one.state for one in replicas]
        if shown == list(wanted):
            return replicas
        assert time.monotonic() < deadline, f"{replicas}, not {wanted}"
        await asyncio.sleep(0.1)


async def silence_of(names: NameServers, node_id: int, *, below_ms: int) -> None:
    """Wait until the directory heard of a node lately."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        brokers = {b.broker_id: b for group in await names.groups() for b in group.brokers}
        if node_id in brokers and brokers[node_id].silent_ms < below_ms:
            return
        assert time.monotonic() < deadline, f"node {node_id} is silent: {brokers}"
        await asyncio.sleep(0.1)


async def warnings(client: Client, *wanted: bool) -> None:
    """Wait until just these nodes say in their status that their name server is not well.

    A node that is slow to answer once is listed as one that did not."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        nodes = (await client.admin.cluster_status()).nodes
        have_warnings = ["name server: " in getattr(node, "detail", "") for node in nodes]
        if have_warnings == list(wanted):
            return
        assert time.monotonic() < deadline, f"{nodes}, not {wanted}"
        await asyncio.sleep(0.1)


def files_of(cluster: LocalCluster, node_id: int) -> Path:
    return cluster.node_directory(node_id) / "data" / "nameserver"


async def test_faults_of_the_name_server_stop_no_append(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, client), Workload(client) as load:
        async with NameServers(cluster.bootstrap) as names:
            share = await share_of(names, 1, 2, 3)
            assert (share.group, share.write_queue_count) == ("g0", QUEUE_COUNT)
            addresses = [cluster.address(node_id) for node_id in (1, 2, 3)]
            assert [broker.address for broker in share.brokers] == addresses
            await names.put("n", "k", "v")
            for node_id in (2, 3):
                await asyncio.to_thread(cluster.kill, node_id)
                (files_of(cluster, node_id) / "journal").write_bytes(b"junk" * 100)
                cluster.start(node_id)
                await asyncio.to_thread(cluster.wait_ready)
                if node_id == 2:
                    # It registers through another one, so its routes and epochs live on.
                    await states(names, "up", "failed", "up")
                    await silence_of(names, node_id, below_ms=2_000)
            replicas = await states(names, "no_leader", "failed", "failed")
            said = ["move the directory away" in one.failure for one in replicas]
            assert said == [False, True, True]
            await load.acked(300)
            await warnings(client, False, True, True)
            with pytest.raises(UnavailableError) as caught:
                await names.put("n", "k", "w")
            assert caught.value.code == "nameserver.no_quorum"
            await share_of(names, 1, 2, 3)
            # As the failure says; here all of them, so that nobody remembers anything.
            await asyncio.to_thread(cluster.stop)
            for node_id in (1, 2, 3):
                shutil.rmtree(files_of(cluster, node_id))
            cluster.start()
            await asyncio.to_thread(cluster.wait_ready)
            share = await share_of(names, 1, 2, 3)
            assert share.write_queue_count == QUEUE_COUNT
            assert await names.get_all("n") == {}, "what no broker knows is gone"
            await load.acked(100)
        await prove(cluster, client, await load.stop())


@contextmanager
def name_servers(directory: Path) -> Iterator[tuple[list[str], list["subprocess.Popen[bytes]"]]]:
    """Three replicas in processes of their own, for nodes with a secret; their client services."""
    secret = directory / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    ports = free_ports(6)
    members = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, "nameserver"),
                *("--directory", str(directory / f"ns{port}")),
                *("--nameserver-listen", f"127.0.0.1:{port}"),
                *("--nameserver-members", members),
                *("--listen", f"127.0.0.1:{service}"),
                *("--cluster-id", CLUSTER_ID, "--secret-file", str(secret)),
            ],
            env={k: v for k, v in os.environ.items() if not k.startswith("QUORUMLOG_")},
            stderr=subprocess.DEVNULL,
        )
        for port, service in zip(ports[:3], ports[3:], strict=True)
    ]
    try:
        yield [f"127.0.0.1:{port}" for port in ports[3:]], started
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_name_servers_of_their_own_freeze_and_a_dead_broker_leaves_the_routes(
    tmp_path: Path, run: Run
) -> None:
    async def work(services: list[str], processes: list["subprocess.Popen[bytes]"]) -> None:
        settings = {
            "nameserver_listen": "off",
            "nameserver_servers": services,
            "cluster_id": CLUSTER_ID,
            "secret_file": str(tmp_path / "secret"),
        }
        async with running(tmp_path / "c", settings=settings) as (cluster, client):
            async with Workload(client) as load, NameServers(services) as names:
                await share_of(names, 1, 2, 3)
                forged = registration(cluster=CLUSTER_ID)
                assert refusal(services[0], forged) == "nameserver.unproven"
                for process in processes[1:]:
                    process.send_signal(signal.SIGSTOP)
                await states(names, "no_leader")
                await load.acked(300)
                await share_of(names, 1, 2, 3)
                for process in processes[1:]:
                    process.send_signal(signal.SIGCONT)
                await names.put("n", "k", "v")
                killed_s = time.monotonic()
                await asyncio.to_thread(cluster.kill, 3)
                await share_of(names, 1, 2)
                print(f"\na dead broker left the routes after {time.monotonic() - killed_s:.1f} s")
                await asyncio.to_thread(cluster.restart, 3)
                await share_of(names, 1, 2, 3)
                await asyncio.to_thread(cluster.wait_ready)
                history = await load.stop()
                for process in processes:
                    process.send_signal(signal.SIGTERM)
                assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
            await prove(cluster, client, history)

    with name_servers(tmp_path) as (services, processes):
        run(work(services, processes))
