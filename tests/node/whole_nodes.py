"""Whole nodes but for gRPC on one event loop: real files, links, checkpoints, snapshots, brokers.

Each node is put together as `node.node` does it. A crash leaves its directory as SIGKILL would.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

from node.broker import Broker, BrokerIdentity
from node.broker.core.context import Context
from node.config.limits import Limits
from node.peers.dispatch import PeerFrames
from node.peers.frames import FrameKind
from node.peers.handshake import LinkIdentity
from node.peers.link import PeerLink
from node.replication.maintenance import Maintenance
from node.replication.raft.digests.checks import StateChecks
from node.replication.raft.digests.fence import StateFence
from node.replication.raft.driver import RaftDriver
from node.replication.raft.maintenance import RaftSteps
from node.replication.raft.opening import open_state
from node.replication.raft.receipts import raft_receipts
from node.replication.raft.snapshots import Snapshots
from node.replication.raft.storage.log import LedgerLog
from node.state.append_times import AppendTimes
from node.state.checkpoint_files import CheckpointFiles
from node.state.machine import StateMachine
from raft.config import RaftConfig
from raft.messages import NodeId
from raft.pump.replica import Replica
from store.config import StoreConfig
from store.files.file_system import FileSystem
from tests.loopback import HOST
from tests.node.ledger_cluster import CLUSTER, crash, open_log
from tests.node.links import LIMITS, NoLives
from tests.patience import eventually

_RAFT = (
    FrameKind.VOTE_REQUEST,
    FrameKind.VOTE_REPLY,
    FrameKind.APPEND,
    FrameKind.APPEND_REPLY,
    FrameKind.CAMPAIGN_NOW,
)


class Fatal:
    """Be a FailStop: notes what would have ended the process."""

    def __init__(self) -> None:
        self.inputs: deque[tuple[Any, ...]] = deque(maxlen=64)
        self.errors: list[BaseException] = []

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)


class WholeNode:
    """One node; `start` it, and `crash` it."""

    log: LedgerLog
    files: CheckpointFiles
    machine: StateMachine
    driver: RaftDriver
    broker: Broker
    fence: StateFence
    checks: StateChecks
    maintenance: Maintenance[RaftSteps]

    def __init__(self, world: "WholeNodes", node_id: NodeId) -> None:
        self.world, self.node_id = world, node_id
        self.root = world.root / f"n{node_id}"
        self.fatal: Any = Fatal()
        self.port = 0
        self.is_up = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._life = itertools.count()

    async def listen(self) -> None:
        """Open the directory and the link."""
        config = self.world.config
        self.log = open_log(self.root, self.node_id, config=config)
        self.files, self.machine = open_state(
            FileSystem(), str(self.root), self.log, self.world.limits
        )
        identity = LinkIdentity(
            CLUSTER, "g", self.node_id, "0", f"127.0.0.1:{self.node_id}", b"s" * 16
        )
        self.frames = PeerFrames(lambda: max(0, self.log.last_index), self.fatal)
        random = Random(self.node_id)
        self.link = PeerLink(identity, self.frames, LIMITS, lives=NoLives(), random=random)
        self.port = await self.link.start(HOST, self.port)

    def join(self, ports: dict[NodeId, int]) -> None:
        """Begin to take part."""
        world = self.world
        if not self.log.is_founded:
            self.log.found(tuple(sorted(ports)))
        self.log.start_at(self.machine.applied_index)
        self.machine.listen(self.log.store.engine.dispatcher)
        seed = f"{world.seed} {self.node_id} {next(self._life)}"
        replica = Replica(world.raft_config(self.node_id), self.log, Random(seed))
        self.snapshots = Snapshots(self.log, self.machine, self.link, "g")
        self.driver = RaftDriver(
            replica,
            self.log,
            self.machine,
            self.link,
            self.snapshots.begin,
            on_fatal=self.fatal,
            append_times=AppendTimes(),
        )
        addresses = {node: f"127.0.0.1:{node}" for node in ports}
        identity = BrokerIdentity(CLUSTER, addresses)
        driver: Any = self.driver
        self.fence = StateFence(self.log.node_file, self.driver.set_fenced)
        receipts = raft_receipts(self.log.store, self.fence.error)
        self.broker = Broker(Context(driver, self.machine, identity, receipts))
        self.frames.take(*_RAFT, by=self.driver.on_raft_frame)
        self.frames.take(
            FrameKind.INSTALL_SNAPSHOT, FrameKind.SNAPSHOT_CHUNK, by=self.snapshots.on_frame
        )
        self.frames.watch(on_disconnected=self.driver.on_disconnected)
        self.frames.watch(on_disconnected=self.snapshots.on_disconnected)
        steps = RaftSteps(self.log, replica, self.machine, self.files)
        self.maintenance = Maintenance(steps, self.fatal, self.fatal)
        self.snapshots.attach(self.driver, steps.thread, self._run_beside)
        self.checks = StateChecks(
            self.machine, self.driver, self.link, steps.thread, self.fence, self._run_beside
        )
        self.frames.take(FrameKind.STATE_DIGEST, by=self.checks.on_frame)
        self.checks.start()
        self.driver.start()
        self.link.set_peers({node: (HOST, port) for node, port in ports.items()})
        self.is_up = True

    async def crash(self) -> None:
        """Leave as SIGKILL would, between two steps of the maintenance thread."""
        self.is_up = False
        self.checks.stop()
        self.driver.stop()
        self.broker.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.maintenance.steps.thread.stop)
        await self.link.stop()
        crash(self.log)

    async def maintain(self, *, expired_count: int = 0) -> None:
        """One round of maintenance, as if the oldest files had expired."""
        maintenance, store = self.maintenance, self.log.store
        await maintenance.step("maintenance", maintenance.steps.maintain)
        await maintenance.step("checkpoint", maintenance.steps.checkpoint)
        files = store.ledger.files.files
        count = min(expired_count, len(files) - 1)
        if count > 0:
            store.expired_position = files[count - 1].end_position
            await maintenance.step("retention", maintenance.steps.delete_expired)

    def _run_beside(self, work: object) -> None:
        assert isinstance(work, Coroutine)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class WholeNodes:
    """Nodes 1 to n and the network between them."""

    def __init__(
        self,
        root: Path,
        seed: int,
        config: StoreConfig,
        *,
        count: int = 3,
        limits: Limits | None = None,
        **raft: Any,
    ) -> None:
        self.root, self.seed, self.config = root, seed, config
        self.limits = limits or Limits()
        self._raft = raft
        self.nodes = {node: WholeNode(self, node) for node in range(1, count + 1)}

    def raft_config(self, node_id: NodeId) -> RaftConfig:
        usual = {"tick_interval_ms": 5, "waiter_grace_ticks": 80}
        return RaftConfig(group="g", node_id=node_id, **{**usual, **self._raft})

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.listen()
        for node in self.nodes.values():
            node.join(self.ports)

    async def restart(self, node: WholeNode) -> None:
        await node.listen()
        node.join(self.ports)

    @property
    def ports(self) -> dict[NodeId, int]:
        return {node.node_id: node.port for node in self.nodes.values()}

    @property
    def up(self) -> list[WholeNode]:
        return [node for node in self.nodes.values() if node.is_up]

    @property
    def ready(self) -> WholeNode | None:
        """Who serves as the leader of the newest term."""
        ready_nodes = [node for node in self.up if node.driver.is_ready]
        return max(ready_nodes, key=lambda node: node.driver.term, default=None)

    async def leader(self) -> WholeNode:
        """Wait for one."""
        await eventually(lambda: self.ready is not None, "a leader")
        leader = self.ready
        assert leader is not None
        return leader

    def check_alive(self) -> None:
        """No node may have wanted to end its process."""
        for node in self.nodes.values():
            if node.fatal.errors:
                raise AssertionError(f"node {node.node_id} died") from node.fatal.errors[0]

    async def settled(self) -> None:
        """Wait until all that are up have applied the same last entry."""

        def is_settled() -> bool:
            self.check_alive()
            ends = {(n.driver.applied_index, n.driver.last_index) for n in self.up}
            return self.ready is not None and len(ends) == 1 and len(set(ends.pop())) == 1

        await eventually(is_settled, "equal replicas")

    async def stop(self) -> None:
        for node in self.up:
            await node.crash()
