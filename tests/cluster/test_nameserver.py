"""Name servers in processes of their own: what their faults do to appends, who is in a route. The
scenarios `no-controller` and `lost-controller` damage and forget those in nodes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local_process import free_ports
from quorumlog.cluster.nameserver import NameServers
from quorumlog.errors import UnavailableError
from tests.cluster.conftest import running
from tests.cluster.forgery import refusal, registration
from tests.cluster.workload import TOPIC, Workload, prove
from tests.patience import PATIENCE_S, eventually
from tests.qlog.running import PROGRAM

pytestmark = pytest.mark.long
CLUSTER_ID = "served"


async def route_names(names: NameServers, *broker_ids: int) -> None:
    """Wait until the route of the topic has a master and exactly these brokers."""

    async def is_so() -> bool:
        try:
            shares = (await names.route(TOPIC)).shares
        except UnavailableError:
            return False
        listed = tuple(broker.broker_id for share in shares for broker in share.brokers)
        return listed == broker_ids and bool(shares[0].master_id)

    await eventually(is_so, f"a route with brokers {broker_ids}")


async def lose_their_leader(names: NameServers) -> None:
    """Wait until the first replica knows no leader any more."""

    async def is_lost() -> bool:
        return (await names.status())[0].state == "no_leader"

    await eventually(is_lost, "the leader of the name server to be missed")


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


async def test_name_servers_of_their_own_freeze_and_a_dead_broker_leaves_the_routes(
    tmp_path: Path,
) -> None:
    with name_servers(tmp_path) as (services, processes):
        settings = {
            "nameserver_listen": "off",
            "nameserver_servers": services,
            "cluster_id": CLUSTER_ID,
            "secret_file": str(tmp_path / "secret"),
        }
        async with running(tmp_path / "c", settings=settings) as (cluster, client):
            async with Workload(client) as load, NameServers(services) as names:
                await route_names(names, 1, 2, 3)
                forged = registration(cluster=CLUSTER_ID)
                assert refusal(services[0], forged) == "nameserver.unproven"
                for process in processes[1:]:
                    process.send_signal(signal.SIGSTOP)
                await lose_their_leader(names)
                await load.acked(300)
                await route_names(names, 1, 2, 3)
                for process in processes[1:]:
                    process.send_signal(signal.SIGCONT)
                await names.put("n", "k", "v")
                await asyncio.to_thread(cluster.kill, 3)
                await route_names(names, 1, 2)
                await asyncio.to_thread(cluster.restart, 3)
                await route_names(names, 1, 2, 3)
                await asyncio.to_thread(cluster.wait_ready)
                history = await load.stop()
                for process in processes:
                    process.send_signal(signal.SIGTERM)
                assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
            await prove(cluster, client, history)
