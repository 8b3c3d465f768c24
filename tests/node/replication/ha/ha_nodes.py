"""Whole nodes of a master-slave group but for gRPC, on one event loop: real files and sockets.

Each is put together by `HaAssembly` and `Node` themselves. Between any two of them stands a gate
that can be shut, and a crash leaves a directory as SIGKILL would.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from node.config.settings import Settings
from node.config.types import Address
from node.node import Node
from node.peers.common_link import Link
from node.peers.handshake import LinkIdentity
from node.peers.security.tls import TlsFiles
from node.replication.ha.admin import HaAdmin
from node.replication.ha.applied import AppliedState
from node.replication.ha.assembly import HaAssembly, build_ha
from node.replication.ha.core.types import HaRole
from node.replication.ha.driver import HaDriver
from node.replication.ha.maintenance import HaSteps
from node.replication.ha.storage.log import HaLog
from node.replication.ha.storage.losses import LossFile
from node.replication.maintenance import Maintenance
from node.state.machine import StateMachine
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.log_pb2 import AppendResponse, PullRequest
from store.files.file_system import FileSystem
from tests.loopback import HOST
from tests.node.broker_fakes import request
from tests.node.whole_nodes import Fatal
from tests.patience import eventually
from tests.store.crashes import abandon
from tests.store.records import numbers


class Gate:
    """The way from one node to another's peer link; shut, it refuses and drops everything."""

    def __init__(self) -> None:
        self.target_port = 0
        self.is_open = True
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open or not self.target_port:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.close()

    def shut(self) -> None:
        self.is_open = False
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        self.shut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while (data := await reader.read(1 << 16)) and not writer.transport.is_closing():
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.transport.abort()


class WholeHaNode(Node):
    """One node; `begin` it, and `crash` it."""

    admin: HaAdmin
    log: HaLog
    link: Link
    driver: HaDriver
    applied: AppliedState
    losses: LossFile
    maintenance: Maintenance[HaSteps]

    def __init__(self, world: "HaNodes", settings: Settings) -> None:
        self.fatal = Fatal()
        fatal: Any = self.fatal
        super().__init__(settings, fatal, build_ha)
        self.world = world
        self.is_up = False
        self.port = 0

    async def begin(self) -> None:
        """As `Node.start`, without what clients and probes connect to."""
        self.fs = self.world.file_system(self.settings.node_id)
        self.settings.directory.mkdir(exist_ok=True)
        self.assembly = made = HaAssembly(self)
        self.replication = await made.build()
        self._make_broker()
        self.driver, self.applied, self.losses = made.driver, made.applied, made.log.losses
        self.maintenance = made.maintenance
        self.maintenance.start()
        self.driver.start()
        self.is_up = True

    def log_is_open(self, _store: Any) -> None:
        """Watch no syncs, and show the log on no page."""
        self.log = self.assembly.log

    async def meet_peers(self, make_link: Callable[[LinkIdentity, TlsFiles | None], Link]) -> None:
        """Open the port of replicas, and no other one."""
        self.address = f"127.0.0.1:{self.settings.node_id}"
        self.link = make_link(self._link_identity(), None)
        self.port = await self.link.start(HOST, 0)
        self.world.listens(self.settings.node_id, self.port)

    async def crash(self) -> None:
        """Leave as SIGKILL would, between two steps of the threads that write files.

        Nothing of this life may go on: it would write into the directory of the next one."""
        self.is_up = False
        self.world.listens(self.settings.node_id, 0)
        self.driver.stop()
        self.broker.stop()
        assert self.maintenance._task is not None
        self.lives._memory = None  # No save begins any more.
        tasks = [self.maintenance._task, *self.lives._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.maintenance.steps.thread.stop()
        self.lives._thread.shutdown()
        await self.link.stop()
        abandon(self.log.store.engine, is_open=False)

    # What tests do with it.

    @property
    def is_master(self) -> bool:
        return self.is_up and self.driver.is_ready

    async def create_topic(self) -> None:
        await self.broker.topics.create_topic(CreateTopicRequest(topic="orders", queue_count=4))

    async def append(self, lo: int, hi: int, **how: Any) -> AppendResponse:
        """Append messages [lo, hi) and return the receipt."""
        return await self.broker.append(request(lo, hi, **how))

    async def seen(self) -> list[int]:
        """What a reader of this replica alone sees of queue 0."""
        message_numbers: list[int] = []
        offset = 0
        while True:
            request = PullRequest(topic="orders", offset=offset, max_count=1000)
            request.consistency = common_pb2.CONSISTENCY_LOCAL
            answer = await self.broker.pull(request)
            if answer.status == log_pb2.PULL_STATUS_OFFSET_TOO_SMALL:
                assert answer.min_offset > offset, f"{answer}"
                offset = answer.min_offset
                continue
            if not answer.record_count:
                return message_numbers
            message_numbers += numbers(answer.records)
            offset = answer.next_offset

    @property
    def state(self) -> StateMachine:
        return self.applied.machine


class HaNodes:
    """Nodes 1 to n, and the gates between them."""

    def __init__(self, root: Path, count: int, replication: str, copies: int, **more: Any) -> None:
        self.root, self.count = root, count
        self._replication, self._copies, self._more = replication, copies, more
        pairs = [(a, b) for a in range(1, count + 1) for b in range(1, count + 1) if a != b]
        self.gates = {pair: Gate() for pair in pairs}
        self.nodes: dict[int, WholeHaNode] = {}

    def file_system(self, _node_id: int) -> FileSystem:
        """Return what a node's process calls; a test may put its own in its place."""
        return FileSystem()

    def listens(self, node_id: int, port: int) -> None:
        for (_, target), gate in self.gates.items():
            if target == node_id:
                gate.target_port = port

    def settings(self, node_id: int, **changes: Any) -> Settings:
        peers = {}
        for peer in range(1, self.count + 1):
            port = self.gates[node_id, peer].port if peer != node_id else 1
            peers[peer] = {
                "address": Address("127.0.0.1", 8000 + peer),
                "peer_address": Address(HOST, port),
            }
        values: dict[str, Any] = {
            "node_id": node_id,
            "cluster_id": "c",
            "nameserver_listen": None,
            "directory": self.root / f"n{node_id}",
            "peers": peers,
            "replication": self._replication if node_id == 1 else "slave",
            "copies": self._copies,
            "file_size_bytes": 1 << 16,
            "batch_size_bytes_max": 1 << 14,
            "disk_reserve_bytes": 0,
            "disk_full_ratio": 1.0,
            # A file is made when it is needed: no append meets one that is being made.
            "preallocate_file_count": 0,
            "warm_up": False,
            **self._more,
        }
        return Settings(**{**values, **changes})

    def make(self, node_id: int, **changes: Any) -> WholeHaNode:
        self.nodes[node_id] = node = WholeHaNode(self, self.settings(node_id, **changes))
        return node

    async def start(self) -> WholeHaNode:
        """Start all of a new group; return its first master."""
        for gate in self.gates.values():
            await gate.start()
        await asyncio.gather(*(self.make(n).begin() for n in range(1, self.count + 1)))
        return await self.master(1)

    async def restart(self, node_id: int, **changes: Any) -> WholeHaNode:
        node = self.make(node_id, **changes)
        await node.begin()
        return node

    async def master(self, node_id: int) -> WholeHaNode:
        """Wait until a node serves."""
        await eventually(lambda: self.nodes[node_id].is_master, f"node {node_id} as master")
        self.check_alive()
        return self.nodes[node_id]

    async def settled(self, *node_ids: int) -> None:
        """Wait until these nodes, by default all that are up, have and show the same log."""
        chosen = [n for n in self.nodes.values() if n.is_up]
        if node_ids:
            chosen = [self.nodes[n] for n in node_ids]

        def is_settled() -> bool:
            self.check_alive()
            ends = {(n.log.end, n.applied.applied, n.log.store.durable_position) for n in chosen}
            return len(ends) == 1 and len(set(ends.pop())) == 1

        await eventually(is_settled, f"equal replicas {[n.driver.slaves() for n in chosen]}")

    def isolate(self, *node_ids: int) -> None:
        """Shut all gates between these nodes and the others."""
        for pair, gate in self.gates.items():
            if len(set(pair) & set(node_ids)) == 1:
                gate.shut()

    def heal(self) -> None:
        for gate in self.gates.values():
            gate.is_open = True

    def check_alive(self) -> None:
        """No node may have wanted to end its process."""
        for node in self.nodes.values():
            if node.fatal.errors:
                raise AssertionError("a node died") from node.fatal.errors[0]

    def masters(self) -> list[int]:
        up = {n: node for n, node in self.nodes.items() if node.is_up}
        return [n for n, node in up.items() if node.driver.machine.role is HaRole.MASTER]

    async def stop(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                await node.crash()
        for gate in self.gates.values():
            await gate.stop()


async def shorten(node: WholeHaNode, position: int) -> None:
    """Have the rounds of maintenance end, and delete the files below a position as they do."""
    await node.maintenance.end_rounds()
    checkpoint = node.applied.checkpoint()
    if checkpoint is not None:
        node.applied.save(checkpoint)
    node.log.store.maintain()
    node.log.store.expired_position = position
    work = node.log.store.detach_expired(position)
    assert work is not None
    work()
    assert node.log.min_position == position


def group(
    root: Path, count: int = 3, replication: str = "sync_master", *, copies: int = 2, **more: Any
) -> AbstractAsyncContextManager[HaNodes]:
    """A new group that serves, node 1 its master, with topic orders."""
    return serving(HaNodes(root, count, replication, copies, **more))


@asynccontextmanager
async def serving(world: HaNodes) -> AsyncIterator[HaNodes]:
    """The same of nodes that are not started yet."""
    try:
        master = await world.start()
        await master.create_topic()
        await world.settled()
        yield world
        world.check_alive()
    finally:
        await world.stop()
