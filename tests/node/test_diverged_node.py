"""Whole nodes, in one process, one of which differs from the others: as they show it to clients."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import quorumlog
from deploy.local import LocalCluster
from node.config.load import load
from node.node import Node
from node.replication.admin_parts import NodeParts, Replication
from node.replication.raft.assembly import RaftAssembly
from node.replication.raft.digests import checks
from node.state.state import Member
from quorumlog.pb import admin_pb2, common_pb2, log_pb2
from tests.node.processes import connected, typed_error
from tests.node.whole_nodes import Fatal
from tests.patience import eventually

pytestmark = pytest.mark.long
SETTINGS: dict[str, object] = {
    "file_size_bytes": "1MiB",
    "batch_size_bytes_max": "256KiB",
    "nameserver_listen": "off",
}


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    """A node sets the collector up for its whole process."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _compared_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "POINT_PAUSE_MS", 1)
    monkeypatch.setattr(checks, "POINT_COMMAND_COUNT", 1)
    monkeypatch.setattr(checks, "DIGEST_SHARE", 0)


class KeptAssembly(RaftAssembly):
    """An assembly that knows its node."""

    node: Node


@asynccontextmanager
async def nodes_of(directory: Path) -> AsyncIterator[dict[int, KeptAssembly]]:
    """Three nodes that serve on this loop."""
    cluster = LocalCluster.create(directory, settings=SETTINGS)
    made: dict[int, Node] = {}
    nodes: dict[int, KeptAssembly] = {}
    for node_id in cluster.node_ids:
        path = cluster.node_directory(node_id) / "node.toml"
        fatal: Any = Fatal()
        made[node_id] = Node(load(path, {}, {}).settings, fatal, partial(_build, nodes))
    try:
        await asyncio.gather(*(node.start() for node in made.values()))
        for node_id, assembly in nodes.items():
            assembly.node = made[node_id]
        yield nodes
    finally:
        for node in made.values():
            node.hurry.set()
        await asyncio.gather(*(node.stop() for node in made.values()))
    for node in made.values():
        errors: list[BaseException] = getattr(node.fail_stop, "errors")  # noqa: B009
        assert errors == []


async def _build(nodes: dict[int, KeptAssembly], host: NodeParts) -> Replication:
    """Be `build_raft`, and keep the assembly."""
    nodes[host.settings.node_id] = assembly = KeptAssembly(host)
    return await assembly.build()


async def leader_of(nodes: dict[int, KeptAssembly]) -> KeptAssembly:
    def ready() -> list[KeptAssembly]:
        return [node for node in nodes.values() if node.driver.is_ready]

    await eventually(ready, "a leader")
    return max(ready(), key=lambda node: node.driver.term)


async def test_diverged_node_says_so_everywhere_and_clients_go_on(tmp_path: Path) -> None:
    async with nodes_of(tmp_path / "c") as nodes:
        leader = await leader_of(nodes)
        addresses = ",".join(one.node.address for one in nodes.values())
        async with quorumlog.connect(addresses) as client:
            await client.admin.create_topic("orders")
            async with client.producer() as producer:
                await producer.send("orders", b"one")
                other = next(node for node in nodes.values() if node is not leader)
                other.machine.state.members[77] = Member("planted:1", "")
                await producer.send("orders", b"two")
                await eventually(lambda: other.fence.reason, "a fence")
                await producer.send("orders", b"three")
        await eventually(lambda: not other.host.health.ready().is_good, "not ready")
        assert other.checks.fence.reason
        assert other.checks.differing_count >= 1
        assert not leader.checks.fence.reason
        status = await other.node.admin.node_status(admin_pb2.NodeStatusRequest())
        assert "its replicated state differs from that of a majority: members" in status.detail
        refused = await asyncio.to_thread(local_pull, other.node.address)
        assert refused == "node.state_diverged"
        assert await asyncio.to_thread(local_pull, leader.node.address) == ""
        # Probes and clients hear of it at once, whether anything is applied or not.
        third = next(node for node in nodes.values() if node not in (leader, other))
        seen: list[bool] = []
        third.host.health.add_listener(seen.append)
        third.fence.close("planted", 1)
        third.fence.lift(2)
        assert seen == [False, True]


def local_pull(address: str) -> str:
    """Return the code of the error of a local read; empty: it was answered."""
    with connected(address) as client:
        request = log_pb2.PullRequest(topic="orders", consistency=common_pb2.CONSISTENCY_LOCAL)
        try:
            client.log.Pull(request, timeout=10)
        except grpc.RpcError as error:
            return typed_error(error).code
    return ""
