"""Drivers over real links and real directories, all nodes on one event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

from node.peers.dispatch import PeerFrames
from node.peers.frames import FrameKind
from node.peers.handshake import LinkIdentity
from node.peers.link import PeerLink
from node.replication.raft.driver import RaftDriver
from node.replication.raft.storage.log import LedgerLog
from node.state.append_times import AppendTimes
from node.state.appends import Prepared
from raft.config import RaftConfig
from raft.messages import NO_INDEX, Index, InstallSnapshot, NodeId
from raft.pump.replica import Replica
from store.config import StoreConfig
from tests.loopback import HOST
from tests.node.ledger_cluster import CLUSTER, crash, open_log
from tests.node.links import LIMITS, NoLives
from tests.patience import eventually
from tests.store.records import PAGE, small_config


class Applied:
    """A state machine that remembers up to where it was taken."""

    def __init__(self) -> None:
        self.ranges: list[tuple[Index, Index]] = []

    def apply(self, lo: Index, hi: Index) -> None:
        assert lo == (self.ranges[-1][1] if self.ranges else lo), f"gap at {lo}"
        self.ranges.append((lo, hi))

    def restore(self, state: bytes, index: Index) -> None:
        raise AssertionError("no snapshots here")

    def snapshot(self) -> bytes:
        return b""


def no_snapshots(message: InstallSnapshot) -> None:
    raise AssertionError(f"no snapshots here: {message}")


def accept(prepared: Prepared) -> None:
    """The check of an append that refuses nothing."""


class DriverNode(PeerFrames):
    """One node: everything below the broker."""

    def __init__(self, root: Path, node_id: NodeId, config: StoreConfig, flush: str) -> None:
        self.root, self.node_id, self.config = root / f"n{node_id}", node_id, config
        self.flush = flush
        self.fatal: list[BaseException] = []
        self.applied = Applied()
        self.driver: RaftDriver | None = None
        self.port = 0

    async def listen(self, port: int = 0) -> None:
        """Open the directory and the link."""
        self.log: LedgerLog = open_log(self.root, self.node_id, config=self.config)
        identity = LinkIdentity(
            CLUSTER, "g", self.node_id, "0", f"127.0.0.1:{self.node_id}", b"s" * 16
        )
        self.last_index = lambda: self.log.last_index
        self.on_refused = lambda _: None
        self.link = PeerLink(identity, self, LIMITS, lives=NoLives())
        self.port = await self.link.start(HOST, port)

    def join(self, ports: dict[NodeId, int]) -> None:
        """Begin to take part."""
        self.link.set_peers({node: (HOST, port) for node, port in ports.items()})
        if not self.log.is_founded:
            self.log.found(tuple(sorted(ports)))
        self.log.start_at(NO_INDEX)
        config = RaftConfig(
            group="g", node_id=self.node_id, tick_interval_ms=5, waiter_grace_ticks=400
        )
        replica = Replica(config, self.log, Random(self.node_id))
        self.applied = Applied()
        self.driver = RaftDriver(
            replica,
            self.log,
            cast(Any, self.applied),
            self.link,
            no_snapshots,
            on_fatal=self.fatal.append,
            append_times=AppendTimes(),
        )
        self.on_refused = self.driver.on_refused
        self.driver.start()

    async def crash(self) -> None:
        """Leave as SIGKILL would."""
        assert self.driver is not None
        self.driver.stop()
        self.driver = None
        await self.link.stop()
        crash(self.log)

    # What the link calls.

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        if self.driver is not None:
            self.driver.on_raft_frame(node, kind, header, payload)

    def on_connected(self, node: NodeId, last_index: int, address: str) -> None:
        pass

    def on_disconnected(self, node: NodeId) -> None:
        if self.driver is not None:
            self.driver.on_disconnected(node)


class DriverCluster:
    """Nodes 1 to n."""

    def __init__(self, root: Path, count: int, config: StoreConfig, flush: str) -> None:
        self.nodes = {n: DriverNode(root, n, config, flush) for n in range(1, count + 1)}
        self.ports: dict[NodeId, int] = {}

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.listen()
        self.ports = {node.node_id: node.port for node in self.nodes.values()}
        for node in self.nodes.values():
            node.join(self.ports)

    async def restart(self, node_id: NodeId) -> None:
        node = self.nodes[node_id]
        await node.listen(self.ports[node_id])
        node.join(self.ports)

    @property
    def up(self) -> list[RaftDriver]:
        return [node.driver for node in self.nodes.values() if node.driver is not None]

    async def leader(self) -> RaftDriver:
        """Wait for a leader that is ready."""
        await eventually(lambda: any(driver.is_ready for driver in self.up), "a leader")
        return max((d for d in self.up if d.is_ready), key=lambda driver: driver.term)

    async def settled(self) -> None:
        """Wait until all that are up have applied the same last entry."""

        def is_settled() -> bool:
            ends = {(driver.applied_index, driver.last_index) for driver in self.up}
            return len(ends) == 1 and len(set(ends.pop())) == 1

        await eventually(is_settled, "equal replicas")

    async def stop(self) -> None:
        for node in self.nodes.values():
            if node.driver is not None:
                await node.crash()


@asynccontextmanager
async def drivers(
    root: Path, count: int = 3, *, flush: str = "sync", **config: Any
) -> AsyncIterator[DriverCluster]:
    """A running cluster; no node may have met a fatal error at the end."""
    settings = {"container": "ledger", "file_size_bytes": 64 * PAGE, "disk_reserve_bytes": 0}
    cluster = DriverCluster(
        root, count, small_config(**{**settings, "flush": flush, **config}), flush
    )
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
    fatal = {n: node.fatal for n, node in cluster.nodes.items() if node.fatal}
    assert not fatal, f"fatal errors: {fatal}"


@asynccontextmanager
async def led(
    root: Path, **options: Any
) -> AsyncIterator[tuple[DriverCluster, RaftDriver, RaftDriver]]:
    """Three nodes that have settled, the driver that leads, and one that follows."""
    async with drivers(root, **options) as cluster:
        leader = await cluster.leader()
        await cluster.settled()
        yield cluster, leader, next(driver for driver in cluster.up if driver is not leader)
