"""The replica pump: input, core, log, effects. The same code runs in production and in the
simulator.

Owns the order in which a replica's work is done: write, send what promises nothing, sync, release
what promises something, apply. Knows no socket, event loop, thread or clock; every method returns
at once. The shell (asyncio driver or simulator) feeds inputs, calls `pump()` once per turn and
carries the effects out:

    effects = replica.pump()
    send effects.send                      # may leave before anything is synced
    if effects.flush is not None:          # start or queue one sync of everything written so far
        ... later, from any turn: replica.on_durable(effects.flush); replica.pump()
    apply effects.apply; replica.on_applied(hi - 1)
    then answer effects.completed and effects.reads

One sync may serve many tickets: tickets are consecutive, and `on_durable(n)` covers all up to n.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple, cast

from node.effects import (
    NO_EFFECTS,
    Completion,
    Effects,
    Log,
    Outgoing,
    Payload,
    Resolution,
    Ticket,
)
from raft.config import RaftConfig
from raft.core import RaftCore
from raft.errors import BusyError, HardStateNotSavedError, PeerProtocolError
from raft.membership import Change
from raft.messages import (
    NO_INDEX,
    NO_TERM,
    AppendReply,
    AppendRequest,
    Index,
    InstallSnapshot,
    Message,
    Refusal,
    SnapshotMeta,
    Term,
)
from raft.ready import (
    EntryKind,
    HardState,
    Ready,
    RoleChange,
)
from raft.stats import RaftStats
from raft.transitions import Role


class _Flush:
    """A sync under way or queued, and what waits for it."""

    __slots__ = ("hard_state", "held", "index", "term", "ticket")

    def __init__(
        self, ticket: Ticket, index: Index, term: Term, hard_state: HardState, held: list[Message]
    ) -> None:
        self.ticket = ticket
        self.index = index
        self.term = term
        """(index, term): the last entry it makes durable; moves back when the log is truncated."""
        self.hard_state = hard_state
        self.held = held


class ReplicaStats(NamedTuple):
    """Counters and fill levels of the pump."""

    raft: RaftStats
    waiter_count: int
    flush_count: int
    held_message_count: int
    held_messages_dropped: int
    hard_state_write_failures: int


class Replica:
    """One replica: core, log, and the order between them. Single-threaded, never blocks."""

    def __init__(self, config: RaftConfig, log: Log, random: Random) -> None:
        """Start from what `log` holds, which the shell has synced."""
        self.config = config
        self.log = log
        self.core = RaftCore(config, log.load(), log, random)
        self._random = random
        self._ticks = 0
        self._effects = Effects()
        self._is_touched = False
        self._wrote = False
        self._must_sync = False
        self._held: list[Message] = []
        """Waits for the ticket of this turn."""
        self._held_count = 0
        self._held_dropped = 0
        self._flushes: deque[_Flush] = deque()
        self._ticket: Ticket = 0
        self._handed: Index = self.core.state.applied
        self._applied: Index = self.core.state.applied
        """Last entry the shell has applied. Differs from the core's within a step only."""
        self._synced: Index = self.core.state.synced
        """Last entry that an ended sync made durable and that still is in the stored log."""
        self._durable_hard_state = self.core.state.hard_state()
        """Term and vote as the last sync that ended left them."""
        self._waiters: dict[Index, tuple[Term, object]] = {}
        """By index: the term proposed in and the caller. One entry has one waiter."""
        self._grace_deadline: int | None = None
        self._hard_state_write_failures = 0

    # Inputs.

    def receive(self, message: Message, payload: Payload | None = None) -> None:
        """Take a message from a peer, with the bytes an append's range or a snapshot came with.

        Raises PeerProtocolError, or what `Log.check_raw` raises, with nothing changed.
        """
        kind = type(message)
        if (kind is AppendRequest or kind is InstallSnapshot) and self.core.has_ready():
            # What the core owes from earlier in this turn names entries that this may cut off.
            self._drain(None, NO_INDEX)
        if kind is AppendRequest:
            append = cast(AppendRequest, message)
            if append.hi > append.prev_index + 1:
                if payload is None:
                    raise PeerProtocolError(append.sender, "append with entries but no bytes")
                self.log.check_raw(append, payload)
            self.core.step(message)
            self._drain(payload, append.prev_index + 1)
        else:
            self.core.step(message)
            if kind is InstallSnapshot:
                self._drain(payload, NO_INDEX)

    def tick(self) -> None:
        """Let one tick interval pass."""
        self._ticks += 1
        self.core.tick()
        if self._grace_deadline is not None and self._ticks >= self._grace_deadline:
            self._grace_deadline = None
            self._give_up_waiters()

    def propose(self, body: object, waiter: object = None) -> tuple[Index, Term]:
        """Append one entry and return where; `waiter`, if given, comes back in `Effects.completed`.

        The caller has made sure the store has room. Raises NotLeaderError, TransferringError or
        BusyError, with nothing appended. Giving up waiting does not withdraw the entry.
        """
        self._check_waiter(waiter)
        if self.core.has_own_entries():
            self._drain(None, NO_INDEX)
        index, term = self.core.propose()
        self.log.append(index, term, EntryKind.DATA, body)
        self._wrote = True
        self._register(index, term, waiter)
        return index, term

    def propose_change(self, change: Change, waiter: object = None) -> tuple[Index, Term]:
        """Append a membership change; as `propose`, and ChangeRefusedError."""
        self._check_waiter(waiter)
        index, term = self.core.propose_change(change)
        self._register(index, term, waiter)
        return index, term

    def read(self, read_id: int) -> None:
        """Ask for a linearizable read; answered in `Effects.reads` or `reads_failed`."""
        self.core.read_index(read_id)

    def stop(self) -> list[Completion]:
        """The process ends: return every waiter, outcome unknown."""
        self._give_up_waiters(everyone=True)
        completed, self._effects.completed = self._effects.completed, []
        return completed

    # Reports from the shell.

    def on_durable(self, ticket: Ticket) -> None:
        """All writes up to `ticket` are durable: tell the core, release what was held for them."""
        assert ticket <= self._ticket, f"ticket {ticket} was never given out"
        done: _Flush | None = None
        released: list[Message] = []
        while self._flushes and self._flushes[0].ticket <= ticket:
            done = self._flushes.popleft()
            released += done.held
        if done is None:
            return
        core = self.core
        self._durable_hard_state = done.hard_state
        core.hard_state_stable(done.hard_state)
        core.stable_to(done.index, done.term)
        if core.state.snapshot_gate == NO_INDEX:
            self._synced = core.state.synced
        self._held_count -= len(released)
        term = core.state.term
        for message in released:
            # A promise of an older term helps nobody and might not be true of the log any more.
            if message.term == term:
                self._send(message)

    def on_applied(self, index: Index) -> None:
        """Everything up to `index` is applied. A report that a snapshot overtook is ignored."""
        if index > self.core.state.applied:
            self.core.applied_to(index)
            self._applied = index

    # Output.

    def pump(self) -> Effects:
        """End a turn: return everything the inputs since the last call led to."""
        self._drain(None, NO_INDEX)
        if self._wrote or self._held:
            self._open_ticket()
        elif not self._is_touched:
            return NO_EFFECTS
        effects, self._effects = self._effects, Effects()
        self._is_touched = False
        return effects

    def stats(self) -> ReplicaStats:
        """Return an immutable picture."""
        return ReplicaStats(
            self.core.stats(),
            len(self._waiters),
            len(self._flushes),
            self._held_count,
            self._held_dropped,
            self._hard_state_write_failures,
        )

    # The order of work.

    def _drain(self, payload: Payload | None, payload_lo: Index) -> None:
        """Carry out what the core owes until it owes nothing. The payload belongs to the first
        Ready."""
        core = self.core
        while True:
            ready = core.ready()
            if ready is None:
                return
            if not self._carry_out(ready, payload, payload_lo):
                return
            core.advance()
            payload = None

    def _carry_out(self, ready: Ready, payload: Payload | None, payload_lo: Index) -> bool:
        """Do one Ready in order; return False if the hard state could not be stored."""
        self._is_touched = True
        if ready.hard_state is not None:
            try:
                self.log.save_hard_state(ready.hard_state)
            except HardStateNotSavedError:
                self._start_over()
                return False
            self._wrote = self._must_sync = True
        self._write(ready, payload, payload_lo)
        for message in ready.send_now:
            self._send(message)
        for message in ready.send_after_sync:
            self._hold(message)
        effects = self._effects
        if ready.commit_hi > ready.commit_lo:
            if effects.apply_hi == NO_INDEX:
                effects.apply_lo = ready.commit_lo
            assert self._handed == ready.commit_lo - 1, f"apply gap at {ready.commit_lo}"
            effects.apply_hi = ready.commit_hi
            self._handed = ready.commit_hi - 1
            if self._waiters:
                self._complete(ready.commit_lo, ready.commit_hi)
        effects.reads += ready.reads
        effects.reads_failed += ready.reads_failed
        if ready.role_changes:
            self._note_roles(ready.role_changes)
        if ready.loss_from != NO_INDEX:
            effects.loss_from = ready.loss_from
        return True

    def _write(self, ready: Ready, payload: Payload | None, payload_lo: Index) -> None:
        """Bring the stored log to what the core holds. Nothing is durable yet."""
        log = self.log
        if ready.snapshot is not None:
            log.install_snapshot(ready.snapshot, payload)
            self._move_flushes_back(NO_INDEX + 1)
            self._take_snapshot(ready.snapshot)
            self._wrote = self._must_sync = True
        if ready.truncate_from != NO_INDEX:
            log.truncate_from(ready.truncate_from)
            self._move_flushes_back(ready.truncate_from)
            self._wrote = True
        if ready.write_hi > ready.write_lo:
            assert payload is not None, f"no bytes for [{ready.write_lo}, {ready.write_hi})"
            log.write_raw(ready.write_lo, ready.write_hi, payload, payload_lo)
            self._wrote = True
        for entry in ready.own_entries:
            log.append(entry.index, entry.term, entry.kind, entry.configuration)
            self._wrote = True

    def _move_flushes_back(self, lo: Index) -> None:
        """Entries from `lo` on are replaced: a sync begun before says nothing about the new ones.

        Without this, (index, term) written, truncated and written again would be taken as durable
        when the first write's sync ends (R16)."""
        index = lo - 1
        self._synced = min(self._synced, index)
        term = self.core.state.log.term_of(index) if index > NO_INDEX else NO_TERM
        for flush in self._flushes:
            if flush.index > index:
                flush.index, flush.term = index, term

    def _take_snapshot(self, meta: SnapshotMeta) -> None:
        effects = self._effects
        effects.install = meta
        effects.apply_lo = effects.apply_hi = NO_INDEX
        self._handed = self._applied = meta.index
        for index in [index for index in self._waiters if index <= meta.index]:
            # Committed or replaced, and the log that could tell is gone.
            self._resolve(index, Resolution.UNKNOWN)

    def _send(self, message: Message) -> None:
        payload: Payload | None = None
        if type(message) is AppendRequest and message.hi > message.prev_index + 1:
            if message.prev_index < self.core.state.log.base_index:
                return  # The log was cut while the message waited for a sync.
            payload = self.log.read_raw(message.prev_index + 1, message.hi)
        self._effects.send.append(Outgoing(message, payload))
        self._is_touched = True

    def _hold(self, message: Message) -> None:
        """Keep a promise until this turn's ticket; an ack replaces an earlier one it includes."""
        held = self._held
        if held and type(message) is AppendReply:
            last = held[-1]
            if (
                type(last) is AppendReply
                and last.to == message.to
                and last.term == message.term
                and last.refusal is message.refusal is Refusal.NONE
                and last.match <= message.match
            ):
                held[-1] = message
                return
        if self._held_count >= self.config.held_message_count_max:
            self._held_dropped += 1
            return
        held.append(message)
        self._held_count += 1

    def _open_ticket(self) -> None:
        self._ticket += 1
        state = self.core.state
        log = state.log
        flush = _Flush(self._ticket, log.last_index, log.last_term, state.hard_state(), self._held)
        self._flushes.append(flush)
        self._held = []
        self._effects.flush = self._ticket
        self._effects.must_sync = self._must_sync
        self._wrote = self._must_sync = False

    def _start_over(self) -> None:
        """Term and vote could not be stored: nothing was promised, so be what the disk says
        (R02)."""
        self._hard_state_write_failures += 1
        old = self.core.state
        effects = self._effects
        effects.reads_failed += old.reads_failed + old.reads_waiting
        for pending in old.reads_pending:
            effects.reads_failed += pending.read_ids
        found = self.log.load()
        found = found._replace(
            commit=self._handed,
            # Not what the old core says: it may have stepped a snapshot that is not installed.
            applied=self._applied,
            synced=max(found.base_index, min(self._synced, found.last_index)),
        )
        self.core = RaftCore(self.config, found, self.log, self._random)
        state = self.core.state
        state.handed = self._handed
        if found.base_index > self._synced:
            state.snapshot_gate = found.base_index  # Installed, and its sync has not ended.
        if state.hard_state() != self._durable_hard_state:
            # What the disk holds was written by an earlier turn and its sync has not ended.
            state.is_hard_state_durable = False
            self._must_sync = True
        self._held_count -= len(self._held)
        self._held = []
        for flush in self._flushes:
            self._held_count -= len(flush.held)
            flush.held = []
        self._wrote = True
        self._give_up_waiters(everyone=True)

    # Waiters.

    def _check_waiter(self, waiter: object) -> None:
        limit = self.config.waiter_count_max
        if waiter is not None and len(self._waiters) >= limit:
            raise BusyError("waiting proposals", len(self._waiters), limit)

    def _register(self, index: Index, term: Term, waiter: object) -> None:
        if index in self._waiters:
            # An earlier proposal at this index was cut off here, but may live on elsewhere.
            self._resolve(index, Resolution.UNKNOWN)
        if waiter is not None:
            self._waiters[index] = (term, waiter)

    def _resolve(self, index: Index, resolution: Resolution) -> None:
        term, waiter = self._waiters.pop(index)
        self._effects.completed.append(Completion(waiter, index, term, resolution))
        self._is_touched = True

    def _complete(self, lo: Index, hi: Index) -> None:
        """The entries [lo, hi) are final: another term at an index means that proposal never
        was."""
        log = self.core.state.log
        for index in range(lo, hi):
            found = self._waiters.get(index)
            if found is not None:
                is_same = log.term_of(index) == found[0]
                self._resolve(index, Resolution.COMMITTED if is_same else Resolution.NOT_APPLIED)

    def _note_roles(self, changes: list[RoleChange]) -> None:
        self._effects.role_changes += changes
        is_deposed = any(change.role is not Role.LEADER for change in changes)
        if self._waiters and is_deposed and self._grace_deadline is None:
            # The next leader will decide these soon; hope a while for a definite answer (R37).
            self._grace_deadline = self._ticks + self.config.waiter_grace_ticks

    def _give_up_waiters(self, *, everyone: bool = False) -> None:
        state = self.core.state
        leading = state.term if state.role is Role.LEADER and not everyone else None
        for index in [index for index, (term, _) in self._waiters.items() if term != leading]:
            self._resolve(index, Resolution.UNKNOWN)
