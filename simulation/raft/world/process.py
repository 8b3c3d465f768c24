"""One simulated process: the shell around a replica pump, with its disk, clock and mailbox.

Owns the tasks of the production driver: ticks, the order of effects, group commit, stopping and
starting; applying is in `machine`. Must not decide which fault happens; `injector` does. All
methods return at once; every action that takes time is an event in the world's heap, and an event
of an earlier life of the process is recognised by its epoch and ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING

from raft.core import RaftCore
from raft.errors import BusyError, PeerProtocolError, RaftError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    AppendRequest,
    Index,
    InstallSnapshot,
    NodeId,
    Standing,
    Term,
)
from raft.pump.effects import NO_EFFECTS, Effects, Outgoing, Ticket
from raft.pump.replica import Replica
from raft.ready import InitialState, recovering_state
from raft.rules import read_index
from raft.transitions import Role
from simulation.raft.disk.disk import Disk
from simulation.raft.disk.image import DiskImage
from simulation.raft.options import TICK_US
from simulation.raft.verdict import InvariantError
from simulation.raft.world.machine import SimulatedMachine
from simulation.raft.world.network import SimulatedLink
from simulation.raft.world.workload import WRITES, SimulatedCall

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.world import World

MAILBOX_MAX = 256
MISSED_TICKS_MAX = 3
"""Ticks a shell makes up for after a pause; further ones are lost, as with a real timer."""


class Status(IntEnum):
    UP = 0
    PAUSED = 1
    DOWN = 2


class Process:
    """A replica and the machine it runs on."""

    __slots__ = (
        "backups",
        "disk",
        "epoch",
        "ghosts",
        "handed",
        "is_syncing",
        "is_turn_due",
        "late_ticket",
        "lost_incarnation",
        "machine",
        "mailbox",
        "missed_ticks",
        "newest_ticket",
        "node_id",
        "promised_term",
        "random",
        "replica",
        "seen_commit",
        "seen_core",
        "seen_role",
        "seen_term",
        "status",
        "sync_factor",
        "sync_fails",
        "tick_us",
        "was_leader",
        "was_standing",
        "world",
    )

    def __init__(self, world: World, node_id: NodeId, initial: InitialState) -> None:
        self.world = world
        self.node_id = node_id
        self.random = Random(world.options.seed * 1009 + node_id)
        self.disk = Disk(initial, world.coverage, checks_payload=world.checks_payload)
        self.epoch = 0
        """Number of lives."""
        self.status = Status.DOWN
        self.tick_us = TICK_US
        if world.options.clock_spread:
            self.tick_us = world.options.tick_us(self.random.random())
        self.ghosts: list[DiskImage] = []
        """Images this node held and lost with its memory or disk: its acks were true then."""
        self.sync_factor = 1
        self.sync_fails = False
        self.backups: list[DiskImage] = []
        """Copies of the disk, the newest last."""
        self.lost_incarnation = 0
        """Incarnation that begins once an old copy of the disk is found to be one."""
        self.promised_term: Term = 0
        # The state that the referee saw last.
        self.seen_term: Term = 0
        self.seen_role = Role.FOLLOWER
        self.seen_commit: Index = NO_INDEX
        self.seen_core: RaftCore
        self.was_leader = False
        self.was_standing = Standing.FULL
        self.start()

    def __str__(self) -> str:
        return f"node {self.node_id}"

    @property
    def is_up(self) -> bool:
        return self.status is Status.UP

    @property
    def is_paused(self) -> bool:
        return self.status is Status.PAUSED

    @property
    def is_copy(self) -> bool:
        """Whether the disk is an old copy of itself, and its hard state does not show it yet."""
        return self.disk.durable.hard_state.incarnation < self.lost_incarnation

    @property
    def applied(self) -> Index:
        """Last entry the state machine has applied."""
        return self.machine.applied

    # Lives.

    def start(self) -> None:
        """Start the process from its disk, which recovery has synced."""
        assert self.status is Status.DOWN
        self.epoch += 1
        self.status = Status.UP
        world = self.world
        self.replica = Replica(world.options.raft_config(self.node_id), self.disk, self.random)
        self.mailbox: deque[tuple[SimulatedLink | None, Outgoing | SimulatedCall, int]] = deque()
        self.missed_ticks = 0
        self.is_syncing = False
        self.newest_ticket: Ticket = 0
        self.late_ticket: Ticket = 0
        self.is_turn_due = False
        self.machine = SimulatedMachine(self)
        self.handed: Index = self.machine.applied
        world.referee.on_restart(self)
        first = 1 + self.random.randrange(self.tick_us)
        world.push(world.now + first, self.on_tick, self.epoch, None, None)
        if world.trace is not None:
            world.note(f"{self} starts at {self.disk.memory.hard_state}")

    def stop(self) -> None:
        """End the process without notice; the disk is as the caller leaves it."""
        self.status = Status.DOWN
        self.epoch += 1
        self.promised_term = self.disk.durable.hard_state.term
        self.was_leader = False

    def kill(self) -> None:
        """End the process; the machine and its page cache continue."""
        self.stop()
        self.disk.process_died()

    def power_off(self, random: Random) -> None:
        """Power off the machine; with acks from the page cache its memory is in doubt
        afterwards."""
        self.stop()
        disk = self.disk
        before = disk.memory
        disk.power_lost(random)
        if self.world.options.page_cache:
            self.ghosts.append(before)
            hard_state = recovering_state(disk.load()).hard_state
            disk.memory.hard_state = disk.durable.hard_state = hard_state
            self.world.coverage.hit("node_recovering")

    def wipe(self) -> None:
        """Replace the disk by an empty one under the same identity (fault-matrix D18)."""
        self.stop()
        self.ghosts += [self.disk.durable, self.disk.memory]
        self.disk.wipe(self.world.empty_disk())
        self.backups.clear()
        self.lost_incarnation = 0
        self.promised_term = 0

    def put_back(self, backup: DiskImage) -> None:
        """Replace the disk by an old copy of itself (fault-matrix D18)."""
        self.stop()
        self.ghosts += [self.disk.durable, self.disk.memory]
        self.disk.put_back(backup)
        self.lost_incarnation = self.world.new_incarnation()
        self.promised_term = backup.hard_state.term

    def pause(self) -> None:
        self.status = Status.PAUSED

    def resume(self) -> None:
        """Continue after a pause: all messages that arrived meanwhile are delivered at once."""
        if self.status is not Status.PAUSED:
            return
        self.status = Status.UP
        if self.replica.core.state.role is Role.LEADER:
            self.world.coverage.hit("paused_leader_resumed")
        epoch = self.epoch
        if self.world.options.lease_drift_percent is not None:
            # With leases every tick counts, and before any message is answered.
            self._make_up(self.missed_ticks)
        if self.late_ticket:
            ticket, self.late_ticket = self.late_ticket, 0
            self._on_durable(ticket)
        mailbox, self.mailbox = list(self.mailbox), deque()
        if self.random.random() < 0.5:
            # Sockets are read in any order: clients may be served before a new leader's message.
            mailbox.sort(key=lambda entry: entry[0] is not None)
        for link, item, attempt in mailbox:
            if self.epoch != epoch or not self.is_up:
                return
            if isinstance(item, SimulatedCall):
                self.serve(item, attempt)
            elif link is not None:
                self.receive(link, item)
        self._make_up(min(self.missed_ticks, MISSED_TICKS_MAX))

    def _make_up(self, count: int) -> None:
        for _ in range(count):
            self.replica.tick()
            self.settle()
        self.missed_ticks = 0

    # Inputs.

    def on_tick(self, epoch: int, _b: object, _c: object) -> None:
        if epoch != self.epoch:
            return
        world = self.world
        world.push(world.now + self.tick_us, self.on_tick, epoch, None, None)
        if self.status is not Status.UP:
            self.missed_ticks += 1
            return
        self.replica.tick()
        self.settle()

    def receive(self, link: SimulatedLink, outgoing: Outgoing) -> None:
        """Take a message from the network; no node takes one of an old copy.

        Comparing lives (`raft.lives`) is a node's work: here the first contact finds each copy."""
        if self.world.nodes[link.sender].is_copy:
            return
        message = outgoing.message
        kind: type = type(message)
        if self.status is not Status.UP:
            if self.status is Status.PAUSED and len(self.mailbox) < MAILBOX_MAX:
                self.mailbox.append((link, outgoing, 0))
            return
        if self.replica.core.state.incarnation < self.lost_incarnation:
            self.world.coverage.hit("old_copy_found")
            self.replica.lose_memory(self.lost_incarnation)
            self.end_turn()
        world = self.world
        if world.trace is not None:
            world.note(f"{self} gets {message}")
        if self.disk.is_full and (kind is AppendRequest or kind is InstallSnapshot):
            world.coverage.hit("append_without_room")
            if kind is AppendRequest:
                self.replica.receive_without_room(message)  # type: ignore[arg-type]
                self.settle()
            return
        try:
            self.replica.receive(message, outgoing.payload)
        except PeerProtocolError as error:
            if not self.disk.checks_payload or outgoing.payload is None:
                raise InvariantError("I14", f"{self}: {error}") from error
            world.coverage.hit("corrupt_payload_refused")
            world.network.reset(link)
        self.settle()

    def serve(self, call: SimulatedCall, attempt: int) -> None:
        """Take a client's request."""
        if self.status is not Status.UP:
            if self.status is Status.PAUSED and len(self.mailbox) < MAILBOX_MAX:
                self.mailbox.append((None, call, attempt))
            else:
                call.client.refused(call, attempt, NO_NODE)
            return
        replica = self.replica
        try:
            if call.kind in WRITES:
                if self.disk.is_full:
                    self.world.coverage.hit("proposal_without_room")
                    raise BusyError("log on a full disk", 1, 1)
                replica.propose(call.body, (call, attempt))
            else:
                read_index.read_index(replica.core.state, self.world.reads.register(call, attempt))
        except RaftError as error:
            call.client.refused(call, attempt, getattr(error, "leader_hint", NO_NODE))
        self.settle()

    # Turns.

    def settle(self) -> None:
        """End the turn, now or, with batching, after some more inputs."""
        state = self.replica.core.state
        if state.commit > self.seen_commit and state.role is Role.LEADER:
            self.world.referee.on_leader_commit(self)
        if self.is_turn_due:
            return
        world = self.world
        if world.batch_turns and world.shell_bits(2) == 0:
            self.is_turn_due = True
            delay = 1 + world.shell_bits(10)
            world.push(world.now + delay, self._end_turn, self.epoch, None, None)
            return
        effects = self.replica.pump()
        if effects is not NO_EFFECTS:
            self._carry_out(effects)

    def _end_turn(self, epoch: int, _b: object, _c: object) -> None:
        if epoch == self.epoch:
            self.is_turn_due = False
            self.end_turn()

    def end_turn(self) -> None:
        effects = self.replica.pump()
        if effects is not NO_EFFECTS:
            self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        world = self.world
        referee = world.referee
        machine = self.machine
        while effects is not NO_EFFECTS:
            if effects.loss_from != NO_INDEX:
                referee.on_loss(effects.loss_from)
            referee.after_step(self)
            if effects.send:
                self._send(effects.send)
            ticket = effects.flush
            if ticket is not None:
                self._flush(ticket, must_sync=effects.must_sync)
            if effects.install is not None:
                machine.install(effects.install)
            again = False
            if effects.apply_hi > effects.apply_lo:
                referee.on_apply(self, effects.apply_lo, effects.apply_hi)
                machine.apply_hi = effects.apply_hi
                again = machine.begin_apply()
            if effects.completed:
                machine.complete(effects.completed)
            for confirmed in effects.reads:
                machine.reads.append((confirmed.index, confirmed.read_id))
            if machine.reads:
                machine.serve_reads()
            for read_id in effects.reads_failed:
                world.coverage.hit("read_failed")
                world.reads.fail(read_id)
            if effects.role_changes:
                self._note_roles(effects)
            if not again and ticket is None:
                return
            effects = self.replica.pump()

    def _send(self, sends: Sequence[Outgoing]) -> None:
        world = self.world
        world.referee.on_send(self, sends)
        send = world.network.send
        for outgoing in sends:
            if type(outgoing.message) is InstallSnapshot:
                chain = self.machine.snapshot_chains[outgoing.message.meta.index]
                send(Outgoing(outgoing.message, chain))
                world.coverage.hit("follower_behind_log_start")
            else:
                send(outgoing)

    def _note_roles(self, effects: Effects) -> None:
        world = self.world
        state = self.replica.core.state
        if world.trace is not None:
            for change in effects.role_changes:
                world.note(f"{self} becomes {change}")
        if state.role is Role.LEADER and world.network.snapshots_in_flight:
            world.coverage.hit("leader_change_during_snapshot")
        if state.standing is not self.was_standing:
            if state.standing is Standing.FULL:
                world.coverage.hit("doubt_ended")
            self.was_standing = state.standing

    # Syncs.

    def _flush(self, ticket: Ticket, *, must_sync: bool) -> None:
        self.newest_ticket = ticket
        if self.is_syncing:
            return  # The next sync after the current one will cover it.
        world = self.world
        if world.options.page_cache and not must_sync:
            world.push(world.now, self._page_cache_durable, self.epoch, ticket, None)
            return
        self._begin_sync(ticket)

    def _page_cache_durable(self, epoch: int, ticket: Ticket, _c: object) -> None:
        if epoch == self.epoch and not self.is_syncing:
            self._sync_ended(ticket)

    def _begin_sync(self, ticket: Ticket) -> None:
        self.is_syncing = True
        world = self.world
        delay = world.sync_delay(self.sync_factor)
        write_id = self.disk.sync_id()
        world.push(world.now + delay, self._on_sync_done, self.epoch, ticket, write_id)

    def _on_sync_done(self, epoch: int, ticket: Ticket, write_id: int) -> None:
        if epoch != self.epoch:
            return
        if self.sync_fails:
            self.sync_fails = False
            self.world.injector.stop_after_sync_error(self)
            return
        self.disk.sync_done(write_id)
        self.is_syncing = False
        self._sync_ended(ticket)

    def _sync_ended(self, ticket: Ticket) -> None:
        if self.status is Status.PAUSED:
            self.late_ticket = max(self.late_ticket, ticket)
            self.is_syncing = True
        else:
            self._on_durable(ticket)

    def _on_durable(self, ticket: Ticket) -> None:
        self.is_syncing = False
        self.replica.on_durable(ticket)
        if self.newest_ticket > ticket:
            self._begin_sync(self.newest_ticket)
        self.settle()
        if not self.is_turn_due:
            self.world.referee.after_step(self)

    # Judgements.

    def has_held(self, index: Index, chain: int, page_cache: bool) -> bool:
        """Whether this disk holds, or held before it was lost, the log through `index`."""
        image = self.disk.memory if page_cache else self.disk.durable
        return image.holds(index, chain) or any(ghost.holds(index, chain) for ghost in self.ghosts)
