"""One simulated process: the shell around a replica pump, with its disk, clock and mailbox.

Owns what the production driver owns: ticks, the order of effects, group commit, applying, snapshots,
stopping and starting. Must not decide what goes wrong; `injector` does. All methods return at once;
whatever takes time is an event in the world's heap, and an event of an earlier life of the process
is recognised by its epoch and ignored.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING

from node.effects import NO_EFFECTS, Completion, Effects, Outgoing, Resolution, Ticket
from node.replica import Replica
from raft.errors import CompactionRefusedError, PeerProtocolError, RaftError
from raft.core import RaftCore
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    Index,
    InstallSnapshot,
    NodeId,
    SnapshotMeta,
    Standing,
    Term,
)
from raft.ready import InitialState, recovering_state
from raft.simulator.disk import Disk, Image
from raft.simulator.network import Link
from raft.simulator.options import TICK_US
from raft.simulator.verdict import InvariantError
from raft.simulator.workload import Call, CallKind
from raft.transitions import Role

if TYPE_CHECKING:
    from raft.simulator.world import World

MAILBOX_MAX = 256
MISSED_TICKS_MAX = 3
"""Ticks a shell makes up for after a pause; the rest is lost, as with a real timer."""


class Status(IntEnum):
    UP = 0
    PAUSED = 1
    DOWN = 2


class Process:
    """A replica and the machine it runs on."""

    __slots__ = (
        "applied",
        "apply_hi",
        "completions",
        "disk",
        "epoch",
        "ghosts",
        "handed",
        "is_applying",
        "is_syncing",
        "is_turn_due",
        "last_snapshot",
        "late_ticket",
        "mailbox",
        "missed_ticks",
        "newest_ticket",
        "node_id",
        "promised_term",
        "random",
        "reads",
        "replica",
        "seen_commit",
        "seen_core",
        "seen_role",
        "seen_term",
        "snapshot_chains",
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
        self.disk = Disk(initial, world.coverage, checks_payload=world.options.corruption > 0)
        self.epoch = 0
        """Counts lives."""
        self.status = Status.DOWN
        self.tick_us = TICK_US
        if world.options.clock_spread:
            self.tick_us = int(TICK_US * (0.5 + 1.5 * self.random.random()))
        self.ghosts: list[Image] = []
        """What this node once held and lost with its memory or disk: its acks were true then."""
        self.sync_factor = 1
        self.sync_fails = False
        self.promised_term: Term = 0
        # What the referee last saw.
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

    # Lives.

    def start(self) -> None:
        """Start the process on what its disk holds, which recovery has synced."""
        assert self.status is Status.DOWN
        self.status = Status.UP
        self.epoch += 1
        world = self.world
        self.replica = Replica(world.options.raft_config(self.node_id), self.disk, self.random)
        self.mailbox: deque[tuple[Link | None, Outgoing | Call, int]] = deque()
        self.missed_ticks = 0
        self.is_syncing = False
        self.newest_ticket: Ticket = 0
        self.late_ticket: Ticket = 0
        self.is_turn_due = False
        self.completions: deque[Completion] = deque()
        """Committed, to be answered once applied, in order of index."""
        self.reads: list[tuple[Index, int]] = []
        self.is_applying = False
        image = self.disk.memory
        state = self.replica.core.state
        self.applied: Index = state.applied
        """Last entry the state machine has taken."""
        self.handed: Index = state.applied
        self.apply_hi = state.applied + 1
        self.last_snapshot: Index = NO_INDEX if image.snapshot is None else image.snapshot.index
        self.snapshot_chains = {self.last_snapshot: image.snapshot_chain}
        world.referee.on_restart(self)
        first = 1 + self.random.randrange(self.tick_us)
        world.push(world.now + first, self.on_tick, self.epoch, None, None)
        if world.trace is not None:
            world.note(f"{self} starts at {self.disk.memory.hard_state}")

    def stop(self) -> None:
        """The process ends without a word; the disk is as the caller leaves it."""
        self.status = Status.DOWN
        self.epoch += 1
        self.promised_term = self.disk.durable.hard_state.term
        self.was_leader = False

    def kill(self) -> None:
        """End the process; the machine and its page cache live on."""
        self.stop()
        self.disk.process_died()

    def power_off(self, random: Random) -> None:
        """End the machine; with acks from the page cache its memory is in doubt afterwards."""
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
        """The disk is replaced by an empty one under the same identity (fault-matrix D18)."""
        self.stop()
        self.ghosts += [self.disk.durable, self.disk.memory]
        self.disk.wipe(self.world.empty_disk())
        self.promised_term = 0

    def pause(self) -> None:
        self.status = Status.PAUSED

    def resume(self) -> None:
        """Go on after a pause: everything that arrived meanwhile comes at once."""
        if self.status is not Status.PAUSED:
            return
        self.status = Status.UP
        if self.replica.core.state.role is Role.LEADER:
            self.world.coverage.hit("paused_leader_resumed")
        epoch = self.epoch
        if self.late_ticket:
            ticket, self.late_ticket = self.late_ticket, 0
            self._on_durable(ticket)
        mailbox, self.mailbox = list(self.mailbox), deque()
        if self.random.random() < 0.5:
            # Sockets are read in any order: clients may be served before the news of a new leader.
            mailbox.sort(key=lambda entry: entry[0] is not None)
        for link, item, attempt in mailbox:
            if self.epoch != epoch or not self.is_up:
                return
            if isinstance(item, Call):
                self.serve(item, attempt)
            elif link is not None:
                self.receive(link, item)
        for _ in range(min(self.missed_ticks, MISSED_TICKS_MAX)):
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

    def receive(self, link: Link, outgoing: Outgoing) -> None:
        """A message arrives."""
        if self.status is not Status.UP:
            if self.status is Status.PAUSED and len(self.mailbox) < MAILBOX_MAX:
                self.mailbox.append((link, outgoing, 0))
            return
        world = self.world
        if world.trace is not None:
            world.note(f"{self} gets {outgoing.message}")
        try:
            self.replica.receive(outgoing.message, outgoing.payload)
        except PeerProtocolError as error:
            if not self.disk.checks_payload or outgoing.payload is None:
                raise InvariantError("I14", f"{self}: {error}") from error
            world.coverage.hit("corrupt_payload_refused")
            world.network.reset(link)
        self.settle()

    def serve(self, call: Call, attempt: int) -> None:
        """A client's request arrives."""
        if self.status is not Status.UP:
            if self.status is Status.PAUSED and len(self.mailbox) < MAILBOX_MAX:
                self.mailbox.append((None, call, attempt))
            elif self.status is Status.DOWN:
                call.client.refused(call, attempt, NO_NODE)
            return
        replica = self.replica
        try:
            if call.kind is CallKind.APPEND or call.kind is CallKind.PUT:
                replica.propose(call.value, (call, attempt))
            else:
                replica.read(self.world.reads.register(call, attempt))
        except RaftError as error:
            call.client.refused(call, attempt, getattr(error, "leader_hint", NO_NODE))
        self.settle()

    # Turns.

    def settle(self) -> None:
        """End the turn, now or, with batching, after some more inputs."""
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
        while effects is not NO_EFFECTS:
            referee.after_step(self)
            if effects.send:
                self._send(effects.send)
            ticket = effects.flush
            if ticket is not None:
                self._flush(ticket, must_sync=effects.must_sync)
            if effects.install is not None:
                self._install(effects.install)
            again = False
            if effects.apply_hi > effects.apply_lo:
                referee.on_apply(self, effects.apply_lo, effects.apply_hi)
                self.apply_hi = effects.apply_hi
                again = self._begin_apply()
            if effects.completed:
                self._complete(effects.completed)
            for confirmed in effects.reads:
                self.reads.append((confirmed.index, confirmed.read_id))
            if self.reads:
                self._serve_reads()
            for read_id in effects.reads_failed:
                world.coverage.hit("read_failed")
                world.reads.fail(read_id)
            if effects.role_changes:
                self._note_roles(effects)
            if not again and ticket is None:
                return
            effects = self.replica.pump()

    def _send(self, sends: list[Outgoing]) -> None:
        world = self.world
        world.referee.on_send(self, sends)
        send = world.network.send
        for outgoing in sends:
            if type(outgoing.message) is InstallSnapshot:
                chain = self.snapshot_chains[outgoing.message.meta.index]
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
            return  # The sync that follows the one under way will cover it.
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

    # Applying.

    def _install(self, meta: SnapshotMeta) -> None:
        image = self.disk.memory
        self.world.referee.on_install(self, meta.index, image.snapshot_chain)
        self.applied = meta.index
        self.apply_hi = meta.index + 1
        self.last_snapshot = meta.index
        self.snapshot_chains = {meta.index: image.snapshot_chain}
        self._answer_applied()

    def _begin_apply(self) -> bool:
        """Apply what was handed out, now or after a delay; return whether it is done."""
        if self.is_applying:
            return False
        world = self.world
        delay = world.apply_us
        if delay == 0:
            self._apply_through(self.apply_hi - 1)
            return True
        self.is_applying = True
        world.push(world.now + delay, self._on_applied, self.epoch, self.apply_hi - 1, None)
        return False

    def _on_applied(self, epoch: int, index: Index, _c: object) -> None:
        if epoch != self.epoch:
            return
        if self.status is Status.PAUSED:
            world = self.world
            world.push(world.now + self.tick_us, self._on_applied, epoch, index, None)
            return
        self.is_applying = False
        if index > self.applied:
            self._apply_through(index)
        if self.apply_hi - 1 > self.applied:
            self._begin_apply()
        self.settle()

    def _apply_through(self, index: Index) -> None:
        self.applied = index
        self.replica.on_applied(index)
        self._answer_applied()
        every = self.world.options.snapshot_every
        if every and index - self.last_snapshot >= every:
            self._take_snapshot(index)

    def _answer_applied(self) -> None:
        completions = self.completions
        while completions and completions[0].index <= self.applied:
            self._answer(completions.popleft())
        if self.reads:
            self._serve_reads()

    def _complete(self, completed: list[Completion]) -> None:
        for completion in completed:
            if completion.resolution is Resolution.COMMITTED and completion.index > self.applied:
                self.completions.append(completion)
            else:
                self._answer(completion)

    def _answer(self, completion: Completion) -> None:
        call, attempt = completion.waiter  # type: ignore[misc]
        assert isinstance(call, Call)
        call.client.completed(call, attempt, completion.resolution, self)

    def _serve_reads(self) -> None:
        waiting = []
        for index, read_id in self.reads:
            if index <= self.applied:
                self.world.reads.serve(read_id, self.applied)
            else:
                waiting.append((index, read_id))
        self.reads = waiting

    # Snapshots.

    def _take_snapshot(self, index: Index) -> None:
        """Save the state at `index`; when that is durable, cut the log as far as the core allows."""
        self.last_snapshot = index
        try:
            meta = self.replica.core.snapshot_meta_at(index)
        except CompactionRefusedError:
            return  # A node that joined lately and does not know the members of then.
        self.disk.save_snapshot(meta)
        self.snapshot_chains[index] = self.disk.memory.snapshot_chain
        world = self.world
        delay = world.sync_delay(self.sync_factor)
        world.push(world.now + delay, self._snapshot_synced, self.epoch, meta, self.disk.sync_id())
        world.coverage.hit("snapshot_taken")

    def _snapshot_synced(self, epoch: int, meta: SnapshotMeta, write_id: int) -> None:
        if epoch != self.epoch or self.status is not Status.UP:
            return
        self.disk.sync_done(write_id)
        if meta.index < self.disk.memory.base_index:
            return  # A received snapshot overtook it.
        core = self.replica.core
        core.snapshot_durable(meta)
        index = core.compactable_to()
        if index > self.disk.memory.base_index:
            core.compact_to(index)
            self.disk.cut(index)
            self.disk.save_hint(self.applied)
        self.settle()

    # Judgements.

    def has_held(self, index: Index, chain: int, page_cache: bool) -> bool:
        """Return whether this disk holds, or held before it was lost, the log through `index`."""
        image = self.disk.memory if page_cache else self.disk.durable
        return image.holds(index, chain) or any(ghost.holds(index, chain) for ghost in self.ghosts)
