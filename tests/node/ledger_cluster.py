"""Replicas over real directories, driven by hand: an in-memory network, crashes, truncations."""

import queue
import shutil
from collections import deque
from pathlib import Path
from random import Random
from typing import NamedTuple

from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.storage.snapshot import build_snapshot, encode_snapshot
from node.state.appends import Prepared
from raft.config import RaftConfig
from raft.errors import RaftError
from raft.messages import NO_INDEX, AppendRequest, Index, InstallSnapshot
from raft.pump.effects import NO_EFFECTS, Completion, Effects, Outgoing, Resolution
from raft.pump.replica import Replica
from raft.rules import snapshot
from raft.transitions import Role
from store.config import StoreConfig
from store.errors import PositionRangeError, StoreError
from store.files.file_system import FileSystem
from store.log.record_log import AppendResult
from tests.patience import PATIENCE_S
from tests.store.crashes import abandon
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import BORN, PAGE, batch, small_config

CLUSTER = "test-cluster"
CONFIG = small_config(container="ledger", file_size_bytes=16 * PAGE, disk_reserve_bytes=0)


def must_not_die(cause: BaseException) -> None:
    raise AssertionError("the store wanted to end the process") from cause


class Clock:
    """Store time that moves a little with each look, differently on each node."""

    def __init__(self, first_unix_ms: int = BORN) -> None:
        self.unix_ms = first_unix_ms

    def __call__(self) -> int:
        self.unix_ms += 1
        return self.unix_ms


def open_log(
    root: Path,
    node_id: int = 1,
    *,
    config: StoreConfig = CONFIG,
    cluster_id: str = CLUSTER,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> LedgerLog:
    return LedgerLog.open(
        str(root),
        config,
        cluster_id=cluster_id,
        node_id=node_id,
        fs=fs,
        now_unix_ms=clock or Clock(),
        on_fatal=must_not_die,
    )


def crash(log: LedgerLog) -> None:
    """Leave the directory as SIGKILL would: nothing is finished or synced, all files are let go."""
    abandon(log.store.engine, is_open=False)


def sync(log: LedgerLog) -> None:
    """Wait until all that was written is durable."""
    errors: queue.Queue[StoreError | None] = queue.Queue()
    log.store.request_sync(errors.put)
    assert errors.get(timeout=PATIENCE_S) is None


class Proposal(NamedTuple):
    """Records [lo, hi) that somebody waits for."""

    lo: int
    hi: int
    prepared: Prepared


class Node:
    """One replica: directory, log, pump, and a state machine that only counts."""

    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.root = cluster.root / f"n{node_id}"
        self.is_up = False
        self.checkpoint: Index = NO_INDEX
        self.fs: FileSystem = PowerLossFileSystem() if cluster.may_lose_power else FileSystem()
        self.life_count = 0
        self.start()

    def start(self) -> None:
        cluster = self.cluster
        clock = Clock(BORN + 1000 * cluster.random.randrange(5))
        self.log = open_log(self.root, self.node_id, config=cluster.config, clock=clock, fs=self.fs)
        if not self.log.is_founded:
            self.log.found(cluster.voters)
        installed = self.log.received.installed
        if installed is not None:
            self.checkpoint = max(self.checkpoint, installed.state_index)
            self.log.received.forget()
        self.log.start_at(self.checkpoint)
        config = RaftConfig(
            group=CLUSTER, node_id=self.node_id, message_size_bytes_max=20_000,
            snapshot_ticks_max=60, retained_lag_entry_count_max=cluster.retained_lag,
        )  # fmt: skip
        self.replica = Replica(config, self.log, Random(cluster.random.random()))
        self.is_up = True

    def crash(self) -> None:
        self.is_up = False
        crash(self.log)

    def lose_power(self) -> None:
        """Go on with what a power loss leaves of the directory; start it again for that."""
        assert isinstance(self.fs, PowerLossFileSystem)
        self.life_count += 1
        image = self.cluster.root / f"n{self.node_id}-{self.life_count}"
        self.fs.build_image(str(self.root), str(image), self.cluster.random)
        self.crash()
        shutil.rmtree(self.root)
        self.root, self.fs = image, PowerLossFileSystem()
        self.fs.adopt(str(image))
        if (image / "boot_id").exists():
            (image / "boot_id").write_text("another-boot\n")

    def propose(self, lo: int, hi: int, topic: str) -> bool:
        """Propose the records [lo, hi) as one batch; say if it went in."""
        try:
            self.replica.check_propose()
            self.settle()
            prepared = self.log.prepare(
                batch(lo, hi, topic=topic, queue_id=lo % 3, size_bytes=self.cluster.size_bytes())
            )
            self.replica.propose(prepared, Proposal(lo, hi, prepared))
        except (RaftError, StoreError):
            return False
        return True

    def settle(self) -> None:
        """End the turn, and carry out what it wants."""
        while self.is_up and (effects := self.replica.pump()) is not NO_EFFECTS:
            self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        if effects.role_changes and effects.role_changes[-1].role is Role.LEADER:
            self.log.store.find_offsets()
        for outgoing in effects.send:
            self.cluster.send(self, outgoing)
        if effects.flush is not None:
            errors: queue.Queue[StoreError | None] = queue.Queue()
            self.log.store.request_sync(errors.put)
            self.cluster.syncs.append((self, self.replica, effects.flush, errors))
        if effects.install is not None:
            snapshot = self.log.received.installed
            assert snapshot is not None
            self.checkpoint = max(self.checkpoint, snapshot.state_index)
            self.log.received.forget()
        if effects.apply_hi != NO_INDEX:
            self.log.dispatch(effects.apply_hi)
            self.replica.on_applied(effects.apply_hi - 1)
        for completion in effects.completed:
            self.cluster.on_completed(completion)

    def receive(self, outgoing: Outgoing) -> None:
        message, payload = outgoing
        if type(message) is AppendRequest and payload is not None:
            assert isinstance(payload, bytes)
            if not self.log.has_room(len(payload)):
                return
            payload = memoryview(payload)
        self.replica.receive(message, payload)
        self.settle()

    def retain(self, count: int) -> int:
        """Do what the maintenance of a node does, as if `count` files had expired; return how many
        files went."""
        log, replica = self.log, self.replica
        log.store.maintain()
        sync(log)
        self.checkpoint = max(self.checkpoint, min(replica.applied, log.store.durable_index))
        files = log.store.ledger.files.files
        if not files:
            return 0
        log.store.expired_position = files[min(count, len(files) - 1)].position
        index = log.store.deletable_index(self.checkpoint)
        if index <= log.base_index:
            return 0
        state = replica.core.state
        snapshot.snapshot_durable(state, snapshot.meta_at(state, index))
        deletion = log.plan_deletion(min(self.checkpoint, snapshot.compactable_to(state)))
        if deletion is None:
            return 0
        assert deletion.write_start()
        replica.compact_to(deletion.start.link.entry_index)
        assert deletion.forget()
        deletion.remove()
        log.store.delete_expired_derived()
        self.settle()
        return deletion.file_count


class Cluster:
    """Three nodes, messages in flight, syncs under way, what was acked."""

    def __init__(
        self,
        root: Path,
        seed: int = 1,
        *,
        config: StoreConfig = CONFIG,
        retained_lag: int = 1 << 20,
        loss: float = 0.0,
        may_lose_power: bool = False,
    ) -> None:
        self.may_lose_power = may_lose_power
        self.root, self.random, self.config = root, Random(seed), config
        self.retained_lag, self.loss = retained_lag, loss
        self.voters = (1, 2, 3)
        self.mail: deque[tuple[int, Outgoing]] = deque()
        self.syncs: list[tuple[Node, Replica, int, queue.Queue[StoreError | None]]] = []
        self.acked: dict[int, tuple[int, int, AppendResult]] = {}
        self.not_applied = 0
        self.installed_count = 0
        self.next_number = 0
        self.nodes = {node_id: Node(self, node_id) for node_id in self.voters}

    def size_bytes(self) -> int:
        return self.random.choice((10, 40, 300, 2000))

    def send(self, sender: Node, outgoing: Outgoing) -> None:
        message = outgoing.message
        if isinstance(message, InstallSnapshot):
            try:
                snapshot = build_snapshot(
                    sender.log.store,
                    message.meta,
                    b"state",
                    max(sender.checkpoint, message.meta.index),
                )
            except PositionRangeError:
                sender.replica.core.report_snapshot_failed(message.to)
                return
            outgoing = Outgoing(message, encode_snapshot(snapshot))
            self.installed_count += 1
        if self.random.random() >= self.loss:
            self.mail.append((message.to, outgoing))

    def on_completed(self, completion: Completion) -> None:
        waiter = completion.waiter
        assert isinstance(waiter, Proposal), f"{waiter}"
        lo, hi, prepared = waiter
        if completion.resolution is Resolution.COMMITTED:
            assert prepared.result is not None
            self.acked[lo] = (hi, completion.index, prepared.result)
        elif completion.resolution is Resolution.NOT_APPLIED:
            self.not_applied += 1

    def finish_sync(self, number: int) -> None:
        node, replica, ticket, errors = self.syncs.pop(number)
        error = errors.get(timeout=PATIENCE_S)
        if node.is_up and node.replica is replica:
            assert error is None, error
            replica.on_durable(ticket)
            node.settle()

    def deliver(self, number: int = 0) -> None:
        to, outgoing = self.mail[number]
        del self.mail[number]
        node = self.nodes[to]
        if node.is_up:
            node.receive(outgoing)

    def run(self, ticks: int) -> None:
        """Let everything take its course without faults."""
        for _ in range(ticks):
            self.quiet()
            for node in self.nodes.values():
                if node.is_up:
                    node.replica.tick()
                    node.settle()
        self.quiet()

    def quiet(self) -> None:
        """Deliver and finish everything that is under way."""
        while self.mail or self.syncs:
            while self.syncs:
                self.finish_sync(0)
            if self.mail:
                self.deliver()

    def leader(self) -> Node | None:
        states = {n: n.replica.core.state for n in self.nodes.values() if n.is_up}
        leaders = [n for n, state in states.items() if state.role is Role.LEADER]
        return max(leaders, key=lambda n: states[n].term) if leaders else None

    def elect(self) -> Node:
        for _ in range(400):
            leader = self.leader()
            if (
                leader is not None
                and leader.replica.applied >= leader.replica.core.state.own_term_first
            ):
                return leader
            self.run(1)
        raise AssertionError("nobody was elected")

    def put(self, node: Node, topic: str = "orders") -> bool:
        lo = self.next_number
        hi = lo + self.random.randrange(1, 6)
        if not node.propose(lo, hi, topic):
            return False
        self.next_number = hi
        return True

    def close(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                node.log.close()
                node.is_up = False
