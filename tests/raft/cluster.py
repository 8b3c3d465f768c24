"""A whole cluster in one thread: real pumps, memory logs, a network that does what the test says.

Deterministic: node N's election time-out is always the minimum plus N ticks, unless a test gives
one. Nothing moves by itself: a test ticks, delivers and syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from raft.config import RaftConfig
from raft.core import RaftCore
from raft.messages import (
    NO_INDEX,
    AppendRequest,
    Configuration,
    ConfigurationAt,
    InstallSnapshot,
    Message,
    NodeId,
)
from raft.pump.effects import Completion, Effects, Outgoing
from raft.pump.replica import Replica
from raft.ready import (
    HardState,
    InitialState,
    ReadConfirmed,
    RoleChange,
    bootstrap_state,
    joining_state,
    recovering_state,
)
from raft.rules import read_index
from raft.rules.membership import Change, ChangeKind
from raft.state.state import RaftState
from raft.transitions import Role
from tests.raft.memory_log import Image, MemoryLog, runs_of

GROUP = "test"
HEARTBEAT_TICKS = 2
ELECTION_TICKS = 10
DELIVERY_COUNT_MAX = 20_000


class FixedRandom(Random):
    """Draws the same time-out each time: the minimum plus what the test chose."""

    def __init__(self, extra: int) -> None:
        super().__init__(0)
        self.extra = extra

    def randint(self, a: int, b: int) -> int:
        return min(a + self.extra, b)


def config_of(node: NodeId, **settings: Any) -> RaftConfig:
    """Return a configuration with short time-outs."""
    values: dict[str, Any] = {
        "group": GROUP,
        "node_id": node,
        "heartbeat_ticks": HEARTBEAT_TICKS,
        "election_ticks_min": ELECTION_TICKS,
        "election_ticks_max": 2 * ELECTION_TICKS,
        "waiter_grace_ticks": 30,
    }
    return RaftConfig(**(values | settings))


def state_of(
    terms: Iterable[int],
    *,
    voters: tuple[NodeId, ...] = (1, 2, 3),
    learners: tuple[NodeId, ...] = (),
    term: int | None = None,
    vote: NodeId = 0,
    commit: int = NO_INDEX,
) -> InitialState:
    """Return the state of a node whose log holds entries of these terms."""
    listed = list(terms)
    current = term if term is not None else (listed[-1] if listed else 0)
    configuration = Configuration(tuple(sorted(voters)), tuple(sorted(learners)))
    return InitialState(
        hard_state=HardState(current, vote),
        last_index=len(listed) - 1,
        runs=runs_of(listed),
        configurations=(ConfigurationAt(NO_INDEX, configuration),),
        commit=commit,
    )


@dataclass
class Node:
    """One replica, its disk and what came out of it."""

    replica: Replica
    log: MemoryLog
    is_up: bool = True
    syncs_at_once: bool = True
    applies_at_once: bool = True
    has_room: bool = True
    """Without room the shell takes nothing from an append but contact with the leader."""
    applied: list[object] = field(default_factory=list)
    completed: list[Completion] = field(default_factory=list)
    reads: list[ReadConfirmed] = field(default_factory=list)
    reads_failed: list[int] = field(default_factory=list)
    role_changes: list[RoleChange] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    tickets: list[int] = field(default_factory=list)
    images: dict[int, Image] = field(default_factory=dict)
    """What each sync under way will have made durable when it ends."""
    to_apply: list[tuple[int, int]] = field(default_factory=list)

    @property
    def core(self) -> RaftCore:
        return self.replica.core

    @property
    def state(self) -> RaftState:
        return self.replica.core.state


Observer = Callable[[str, NodeId, Any], None]


class Cluster:
    """Nodes and the links between them."""

    def __init__(
        self,
        voters: Iterable[NodeId] = (1, 2, 3),
        learners: Iterable[NodeId] = (),
        *,
        states: dict[NodeId, InitialState] | None = None,
        observer: Observer | None = None,
        **settings: Any,
    ) -> None:
        self.settings = settings
        self.nodes: dict[NodeId, Node] = {}
        self.net: list[Outgoing] = []
        self.sent: list[Message] = []
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.held: set[tuple[NodeId, NodeId]] = set()
        self.observer = observer
        self.extra: dict[NodeId, int] = {}
        fresh = bootstrap_state(tuple(voters), tuple(learners))
        for node in sorted([*fresh.configurations[0].configuration.voters, *learners]):
            self.start(node, (states or {}).get(node, fresh))

    def note(self, what: str, node: NodeId, value: Any) -> None:
        if self.observer is not None:
            self.observer(what, node, value)

    # Processes and disks.

    def start(self, node: NodeId, initial: InitialState) -> Node:
        """Start a node on a disk that holds `initial`."""
        return self._boot(node, MemoryLog(initial))

    def start_joining(self, node: NodeId) -> Node:
        return self.start(node, joining_state())

    def _boot(self, node: NodeId, log: MemoryLog) -> Node:
        log.sync()
        random = FixedRandom(self.extra.get(node, node))
        replica = Replica(config_of(node, **self.settings), log, random)
        before = self.nodes.get(node)
        booted = Node(replica, log)
        if before is not None:
            booted.completed, booted.role_changes = before.completed, before.role_changes
            booted.losses = before.losses
            booted.applied = before.applied[: self._data_count(log)]
        self.nodes[node] = booted
        return booted

    @staticmethod
    def _data_count(log: MemoryLog) -> int:
        return 0 if log.base_index == NO_INDEX else 1 << 30

    def crash(self, node: NodeId, *, keep_unsynced: bool = False) -> None:
        """Stop a process; its disk keeps the synced part, or all if only the process died."""
        target = self.nodes[node]
        target.is_up = False
        target.tickets.clear()
        if keep_unsynced:
            target.log.sync()
        target.log.crash()

    def restart(self, node: NodeId, *, recovering: bool = False, wiped: bool = False) -> Node:
        target = self.nodes[node]
        assert not target.is_up, f"node {node} is running"
        if wiped:
            return self.start(node, joining_state())
        if recovering:
            target.log.hard_state = recovering_state(target.log.load()).hard_state
        target.log.applied = target.log.base_index
        return self._boot(node, target.log)

    def reboot(self, node: NodeId, *, recovering: bool = False, wiped: bool = False) -> Node:
        self.crash(node)
        return self.restart(node, recovering=recovering, wiped=wiped)

    # Inputs.

    def tick(self, node: NodeId, count: int = 1, *, has_met_all: bool = False) -> None:
        for _ in range(count):
            if self.nodes[node].is_up:
                self.nodes[node].replica.tick(has_met_all=has_met_all)
                self.settle(node)

    def beat(self, node: NodeId, count: int = HEARTBEAT_TICKS) -> None:
        """Tick one node, and deliver what that brings about."""
        self.tick(node, count)
        self.deliver()

    def tick_all(self, count: int = 1, *, deliver: bool = True) -> None:
        for _ in range(count):
            for node in sorted(self.nodes):
                self.tick(node)
            if deliver:
                self.deliver()

    def propose(self, node: NodeId, body: object, *, waiter: object = None) -> tuple[int, int]:
        placed = self.nodes[node].replica.propose(body, waiter)
        self.settle(node)
        return placed

    def replicate(self, node: NodeId, bodies: Iterable[object]) -> None:
        """Propose all of them, then deliver."""
        for body in bodies:
            self.propose(node, body)
        self.deliver()

    def change(self, node: NodeId, kind: ChangeKind, member: NodeId) -> None:
        self.nodes[node].replica.propose_change(Change(kind, member))
        self.settle(node)

    def read(self, node: NodeId, read_id: int) -> None:
        read_index.read_index(self.nodes[node].replica.core.state, read_id)
        self.settle(node)

    def receive(self, node: NodeId, message: Message, payload: object = None) -> None:
        """Hand a message to a node as if a peer had sent it."""
        target = self.nodes[node]
        if not target.is_up:
            return
        if payload is None and isinstance(message, InstallSnapshot):
            payload = f"state through {message.meta.index}"
        if isinstance(message, AppendRequest) and not target.has_room:
            target.replica.receive_without_room(message)
        else:
            target.replica.receive(message, payload)
        self.settle(node)

    def sync(self, node: NodeId, *, through: int | None = None) -> None:
        """End the syncs under way on a node, or those up to ticket `through`."""
        target = self.nodes[node]
        wanted = [ticket for ticket in target.tickets if through is None or ticket <= through]
        if wanted:
            target.log.sync(target.images[wanted[-1]])
            for ticket in wanted:
                target.images.pop(ticket, None)
            target.tickets = [ticket for ticket in target.tickets if ticket not in wanted]
            target.replica.on_durable(wanted[-1])
            self.settle(node)

    def settle(self, node: NodeId) -> Effects:
        """Pump a node until it has nothing more to do by itself; return the first effects."""
        target = self.nodes[node]
        first = effects = target.replica.pump()
        while True:
            self._carry_out(node, target, effects)
            if effects.flush is None and effects.apply_hi == NO_INDEX:
                return first
            effects = target.replica.pump()

    def _carry_out(self, node: NodeId, target: Node, effects: Effects) -> None:
        target.role_changes += effects.role_changes
        for change in effects.role_changes:
            self.note("role", node, change)
        for outgoing in effects.send:
            self._post(outgoing)
        if effects.flush is not None:
            target.tickets.append(effects.flush)
            if not target.syncs_at_once:
                target.images[effects.flush] = target.log.image()
            else:
                target.log.sync()
                target.tickets.clear()
                target.images.clear()
                target.replica.on_durable(effects.flush)
        if effects.install is not None:
            target.applied = [target.log.snapshot_state]
            target.to_apply.clear()
            self.note("install", node, effects.install)
        if effects.apply_hi != NO_INDEX:
            target.to_apply.append((effects.apply_lo, effects.apply_hi))
            if target.applies_at_once:
                self.apply(node)
        target.completed += effects.completed
        for completion in effects.completed:
            self.note("completed", node, completion)
        target.reads += effects.reads
        for read in effects.reads:
            self.note("read", node, read)
        target.reads_failed += effects.reads_failed
        for read_id in effects.reads_failed:
            self.note("read_failed", node, read_id)
        if effects.loss_from != NO_INDEX:
            target.losses.append(effects.loss_from)
            self.note("loss", node, effects.loss_from)

    def apply(self, node: NodeId) -> None:
        """Apply what was handed out."""
        target = self.nodes[node]
        for lo, hi in target.to_apply:
            entries = target.log.read_raw(lo, hi)
            assert isinstance(entries, tuple)
            target.applied += [entry.body for entry in entries if entry.kind == 0]
            target.log.applied = hi - 1
            target.replica.on_applied(hi - 1)
            self.note("apply", node, (lo, hi))
        target.to_apply.clear()

    # The network.

    def _post(self, outgoing: Outgoing) -> None:
        message = outgoing.message
        self.sent.append(message)
        is_cut = (message.sender, message.to) in self.cuts
        self.note("sent", message.sender, (message, is_cut))
        if not is_cut:
            self.net.append(outgoing)

    def deliver(
        self, *, link: tuple[NodeId, NodeId] | None = None, count: int = DELIVERY_COUNT_MAX
    ) -> int:
        """Deliver messages in order, and those they cause, until quiet; return how many."""
        done = 0
        while done < count:
            at = next((i for i, sent in enumerate(self.net) if self._is_due(sent, link)), None)
            if at is None:
                return done
            outgoing = self.net.pop(at)
            to = self.nodes.get(outgoing.message.to)
            done += 1
            if to is not None and to.is_up:
                self.receive(outgoing.message.to, outgoing.message, outgoing.payload)
        assert count < DELIVERY_COUNT_MAX, "the cluster never falls silent"
        return done

    def _is_due(self, outgoing: Outgoing, link: tuple[NodeId, NodeId] | None) -> bool:
        pair = (outgoing.message.sender, outgoing.message.to)
        return pair == link if link is not None else pair not in self.held

    def drop(self, link: tuple[NodeId, NodeId] | None = None) -> int:
        """Lose the messages in flight, all or those of one link."""
        kept = [
            outgoing
            for outgoing in self.net
            if link is not None and (outgoing.message.sender, outgoing.message.to) != link
        ]
        lost = len(self.net) - len(kept)
        self.net = kept
        return lost

    def take(self, kind: type, *, to: NodeId | None = None) -> list[Outgoing]:
        """Remove and return the messages in flight of one kind."""
        taken = [
            outgoing
            for outgoing in self.net
            if isinstance(outgoing.message, kind) and to in (None, outgoing.message.to)
        ]
        self.net = [outgoing for outgoing in self.net if outgoing not in taken]
        return taken

    def isolate(self, node: NodeId) -> None:
        for other in self.nodes:
            if other != node:
                self.cuts |= {(node, other), (other, node)}
                self.drop((node, other))
                self.drop((other, node))

    def heal(self) -> None:
        self.cuts.clear()

    # Shortcuts.

    def elect(self, node: NodeId, *, quiet: bool = True) -> None:
        """Let `node` time out and win; ends with its no-op committed and everyone told."""
        for other in sorted(self.nodes):
            if other != node:
                self.nodes[other].state.contact_tick = -1000
        for _ in range(4 * ELECTION_TICKS):
            if self.state(node).role is Role.LEADER:
                break
            self.tick(node)
            self.deliver()
        assert self.state(node).role is Role.LEADER, f"node {node} was not elected"
        if quiet:
            self.beat(node)

    def state(self, node: NodeId) -> RaftState:
        return self.nodes[node].state

    def role(self, node: NodeId) -> Role:
        return self.state(node).role

    def leaders(self) -> list[NodeId]:
        return [
            node
            for node, found in sorted(self.nodes.items())
            if found.is_up and found.state.role is Role.LEADER
        ]

    def appends_to(self, node: NodeId) -> list[AppendRequest]:
        """Return every append ever sent to a node."""
        return [m for m in self.sent if isinstance(m, AppendRequest) and m.to == node]


def led(*members: Any, **settings: Any) -> Cluster:
    """Return a cluster that node 1 leads."""
    cluster = Cluster(*members, **settings)
    cluster.elect(1)
    return cluster
