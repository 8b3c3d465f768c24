"""The replica pump: input, core, log, effects. The same code runs in production and in the
simulator.

Owns the order in which a replica's work is done: write, send messages without promises, sync,
release promises, apply. Knows no socket, event loop, thread or clock; every method returns
at once. The shell (asyncio driver or simulator) feeds inputs, calls `pump()` once per turn and
carries the effects out:

    effects = replica.pump()
    send effects.send                      # may leave before anything is synced
    if effects.flush is not None:          # start or queue one sync of everything written so far
        ... later, from any turn: replica.on_durable(effects.flush); replica.pump()
    apply [effects.apply_lo, effects.apply_hi); replica.on_applied(effects.apply_hi - 1)
    then answer effects.completed and effects.reads

One sync may serve many tickets: tickets are consecutive, and `on_durable(n)` covers all up to n.
While a sync hangs the pump keeps a few tickets distinct and folds later ones into the newest, so
the shell reports the newest ticket a sync covers, not an older one instead.
"""

from __future__ import annotations

from random import Random
from typing import Final, cast

from raft.config import RaftConfig
from raft.core import RaftCore
from raft.errors import ForeignChainError, HardStateNotSavedError, PeerProtocolError
from raft.messages import (
    NO_INDEX,
    NO_TERM,
    AppendReply,
    AppendRequest,
    Index,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    Term,
)
from raft.pump.effects import (
    NO_EFFECTS,
    Checked,
    Completion,
    Effects,
    Outgoing,
    Payload,
    PumpLog,
    Ticket,
)
from raft.pump.flush_queue import FlushQueue
from raft.pump.pending_proposals import PendingProposals
from raft.ready import (
    EntryKind,
    Ready,
    RoleChange,
)
from raft.rules import divergence, follower, leader, steady
from raft.rules.membership import Change
from raft.transitions import Role

_new: Final = tuple.__new__  # One call; the constructor of a named tuple is two.


class Replica:
    """One replica: core, log, and the order between them. Single-threaded, never blocks."""

    is_lean = True
    """Whether `raft.rules.steady` runs first. Tests turn it off to compare both ways."""

    def __init__(self, config: RaftConfig, log: PumpLog, random: Random) -> None:
        """Start from the content of `log`, which the shell has synced."""
        self.config = config
        self.log = log
        self.core = RaftCore(config, log.load(), log, random)
        self._random = random
        self._ticks = 0
        self._effects = Effects()
        self._sends: list[Outgoing] = []
        """Messages to be handed out with the next effects."""
        self._is_touched = False
        self._wrote = False
        self._must_sync = False
        self.flushes = FlushQueue(config)
        self._handed: Index = self.core.state.applied
        self.applied: Index = self.core.state.applied
        """Last entry the shell has applied. Differs from the core's within a step only."""
        self._lost_incarnation = 0
        """Incarnation under which this disk was found to be an old copy."""
        self._synced: Index = self.core.state.synced
        """Last entry that an ended sync made durable and that is still in the stored log."""
        self._durable_hard_state = self.core.state.hard_state()
        """Term and vote as of the last ended sync."""
        self.proposals = PendingProposals(config)
        self._waiter_count_max = config.waiter_count_max
        self._foreign: tuple[object, ...] = ()
        """The entries refused last. Refused twice in the same way, they were not changed on the way
        but are another history, which takes two leaders of one term."""

    # Inputs. Others change the core alone, and are called there.

    def receive(self, message: Message, payload: Payload | None = None) -> bool:
        """Take a message from a peer, with the bytes of an append's range or of a snapshot.

        Return whether `pump` may have effects of it; a turn for nothing can be saved. Raises
        PeerProtocolError, or the errors of `PumpLog.check_raw`, with nothing changed.
        """
        kind = type(message)
        if kind is AppendReply:
            state = self.core.state
            if self.is_lean and steady.take_ack(state, message):  # type: ignore[arg-type]
                return state.is_dirty or state.is_broadcast_due or state.handed < state.commit
            self.core.step(message)
            return True
        if kind is AppendRequest and self._receive_next(message, payload):  # type: ignore[arg-type]
            return True
        if (kind is AppendRequest or kind is InstallSnapshot) and self.core.has_ready():
            # Pending work of the core from this turn names entries that this message may cut off.
            self._drain()
        if kind is AppendRequest:
            append = cast(AppendRequest, message)
            checked = self._compare(append, payload) if self.core.follows(append) else None
            self.core.step(message)
            self._drain(checked)
        else:
            self.core.step(message)
            if kind is InstallSnapshot:
                self._drain(payload)
        return True

    def _receive_next(self, append: AppendRequest, payload: Payload | None) -> bool:
        """Take entries that follow the end of this log, in the steady state.

        Return False, with nothing changed, for an append that has to go the general way."""
        state = self.core.state
        if payload is None or not self.is_lean or not steady.is_next(state, append):
            return False
        try:
            checked = self.log.check_raw(append, payload, append.prev_index)
        except ForeignChainError:
            return False  # The general way finds the same, and knows whether it is again.
        ack = steady.take(state, append)
        self.log.write_raw(append.prev_index + 1, append.hi, checked)
        self._wrote = True
        self.flushes.hold(ack)
        if state.commit > state.handed:
            self._hand_out()
        return True

    def _compare(self, append: AppendRequest, payload: Payload | None) -> Checked | None:
        """Return a leader's entries, checked; a leader that certainly contradicts this log is not
        followed."""
        try:
            return self._check(append, payload)
        except ForeignChainError as error:
            refused = (error.peer, error.index, error.content)
            if refused != self._foreign:
                self._foreign = refused
                raise
            divergence.diverge(self.core.state, append.sender)
            return None

    def _check(self, append: AppendRequest, payload: Payload | None) -> Checked | None:
        """Compare an append with the entries here: equal terms have to mean equal entries.

        Raises PeerProtocolError."""
        prev_index, log = append.prev_index, self.core.state.log
        if append.hi > prev_index + 1:
            if payload is None:
                raise PeerProtocolError(append.sender, "append with entries but no bytes")
            held = prev_index
            if prev_index < log.last_index and log.term_of(prev_index) == append.prev_term:
                held = log.first_conflict(prev_index + 1, append.hi, append.runs) - 1
            return self.log.check_raw(append, payload, held)
        if append.prev_chain is not None and log.term_of(prev_index) == append.prev_term:
            chain = self.log.chain_at(prev_index)
            if chain is not None:
                divergence.check_same_chain(append.sender, prev_index, chain, append.prev_chain)
        return None

    def receive_without_room(self, message: AppendRequest) -> None:
        """Take note of the leader, but no entries of an append: the store has no room for them.

        Contact and reads go on, so that a full disk does not cost the cluster its leader. Entries
        not taken are not acked, and the leader offers them again at its heartbeats. Raises the
        errors of `receive`."""
        self.core.step(message.without_entries())

    def tick(self, *, may_campaign: bool = True, has_met_all: bool = False) -> None:
        """Advance the clock by one tick interval; see `RaftCore.tick`."""
        self._ticks += 1
        self.core.tick(may_campaign=may_campaign, has_met_all=has_met_all)
        deadline = self.proposals.grace_deadline
        if deadline is not None and self._ticks >= deadline:
            self.proposals.grace_deadline = None
            state = self.core.state
            self.proposals.give_up(state.term if state.role is Role.LEADER else None)

    def propose(self, body: object, waiter: object = None) -> tuple[Index, Term]:
        """Append one entry; return index and term. `waiter` comes back in `Effects.completed`.

        The caller has made sure the store has room. Raises NotLeaderError, TransferringError or
        BusyError, with nothing appended. A caller that stops waiting does not withdraw the entry.
        """
        proposals, state = self.proposals, self.core.state
        by_index = proposals.by_index
        if waiter is not None and by_index and len(by_index) >= self._waiter_count_max:
            proposals.check()
        if self.is_lean and steady.may_propose(state):
            steady.propose(state)
            index, term = state.written, state.term
        else:
            if state.own_entries:
                self._drain()
            index, term = self.core.propose()
        self.log.append(index, term, EntryKind.DATA, body)
        self._wrote = True
        if waiter is None or index in by_index:
            proposals.register(index, term, waiter)
        else:  # As `register` does, a call less.
            by_index[index] = (term, waiter)
        return index, term

    def check_change(self, change: Change) -> None:
        """Raise the error that `propose_change` with a waiter would raise now; change nothing."""
        self.proposals.check()
        leader.check_change(self.core.state, change)

    def propose_change(self, change: Change, waiter: object = None) -> tuple[Index, Term]:
        """Append a membership change. Raises the errors of `propose`, and ChangeRefusedError."""
        if waiter is not None:
            self.proposals.check()
        index, term = self.core.propose_change(change)
        self.proposals.register(index, term, waiter)
        return index, term

    def check_propose(self) -> None:
        """Raise the error that `propose` of one entry with a waiter would raise now; change
        nothing.

        For a shell that does work, such as stamping a batch, before it can propose."""
        by_index = self.proposals.by_index
        if by_index and len(by_index) >= self._waiter_count_max:
            self.proposals.check()
        if not (self.is_lean and steady.may_propose(self.core.state)):
            leader.check_can_append(self.core.state, 1)

    def lose_memory(self, incarnation: int) -> None:
        """Drop pending promises, since this disk was found to be an old copy of itself.

        `incarnation` is above any that other nodes remember of this node (raft.lives)."""
        self.flushes.forget_promises()
        self._lost_incarnation = incarnation
        follower.lose_memory(self.core.state, incarnation)

    def stop(self) -> list[Completion]:
        """Return every waiter with outcome unknown, since the process ends."""
        self.proposals.give_up(None)
        return self.proposals.take()

    # Reports from the shell.

    def on_durable(self, ticket: Ticket) -> bool:
        """Tell the core that all writes up to `ticket` are durable, and release their promises.

        Return whether `pump` may have effects of it."""
        assert ticket <= self.flushes.newest_ticket, f"ticket {ticket} was never given out"
        done, released = self.flushes.take(ticket)
        if done is None:
            return False
        core, state = self.core, self.core.state
        self._durable_hard_state = done.hard_state
        if not state.is_hard_state_durable:
            core.hard_state_stable(done.hard_state)
        core.stable_to(done.index, done.term)
        if state.snapshot_gate == NO_INDEX:
            self._synced = state.synced
        for message in released:
            # A promise of an older term is useless and might not be true of the log any more.
            if message.term != state.term:
                continue
            if type(message) is AppendRequest:
                self._send(message)
            else:  # As `_send` does, a call less.
                self._sends += (_new(Outgoing, (message, None)),)
                self._is_touched = True
        return self._is_touched or state.is_dirty or state.handed < state.commit

    def on_applied(self, index: Index) -> None:
        """Note that entries up to `index` are applied; ignore it if a snapshot overtook them."""
        if index > self.core.state.applied:
            self.core.applied_to(index)
            self.applied = index

    def compact_to(self, index: Index) -> None:
        """Forget the log through `index`; the shell cuts its files after this returned.

        Raises CompactionRefusedError without a durable snapshot that covers it. Pending messages of
        this turn get their bytes first."""
        self._drain()
        self.core.compact_to(index)

    # Output.

    def pump(self) -> Effects:
        """End a turn: return the effects of all inputs since the last call."""
        state = self.core.state
        is_steady = self.is_lean and not state.is_dirty and not state.reads_waiting
        if is_steady and (not state.is_broadcast_due or self._offer()):
            if state.commit > state.handed:
                self._hand_out()
        else:
            self._drain()
        if self._wrote or self.flushes.held:
            self._open_ticket()
        elif not self._is_touched and not self.proposals.completed:
            return NO_EFFECTS
        effects, self._effects = self._effects, Effects()
        if self._sends:
            effects.send, self._sends = self._sends, []
        if self.proposals.completed:
            effects.completed, self.proposals.completed = self.proposals.completed, []
        self._is_touched = False
        return effects

    # The order of work.

    def _drain(self, received: Checked | Payload | None = None) -> None:
        """Do the core's pending work until there is none.

        `received`: for the first Ready, the checked entries of an append or the bytes of a
        snapshot."""
        core = self.core
        while True:
            ready = core.ready()
            if ready is None:
                return
            if not self._carry_out(ready, received):
                return
            core.advance()
            received = None

    def _carry_out(self, ready: Ready, received: Checked | Payload | None) -> bool:
        """Do one Ready in order; return whether the hard state could be stored."""
        self._is_touched = True
        if ready.hard_state is not None:
            try:
                self.log.save_hard_state(ready.hard_state)
            except HardStateNotSavedError:
                self._start_over(ready)
                return False
            self._wrote = self._must_sync = True
        self._write(ready, received)
        for message in ready.send_now:
            self._send(message)
        for message in ready.send_after_sync:
            self.flushes.hold(message)
        effects = self._effects
        if ready.commit_hi > ready.commit_lo:
            self._apply_up_to(ready.commit_hi)
        if ready.reads:
            effects.reads = [*effects.reads, *ready.reads]
        if ready.reads_failed:
            effects.reads_failed = [*effects.reads_failed, *ready.reads_failed]
        if ready.role_changes:
            self._note_roles(ready.role_changes)
        if ready.loss_from != NO_INDEX:
            effects.loss_from = ready.loss_from
        return True

    def _offer(self) -> bool:
        """Send what was proposed to all followers; return False, with nothing changed, if that has
        to go the general way."""
        offers = steady.offers(self.core.state)
        if offers is None:
            return False
        prev_index, payload = self.core.state.written, None
        sends = self._sends
        for message in offers:
            if message.prev_index != prev_index:  # Mostly all get the same.
                prev_index = message.prev_index
                payload = self.log.read_raw(prev_index + 1, message.hi)
            sends += (_new(Outgoing, (message, payload)),)  # A call less than `append`.
            self._is_touched = True
        return True

    def _hand_out(self) -> None:
        """Hand out committed entries that may be applied, if the core has nothing else to do."""
        hi = self.core.hand_out()
        if hi > self._handed + 1:
            self._is_touched = True
            self._apply_up_to(hi)

    def _apply_up_to(self, hi: Index) -> None:
        """Have the shell apply what follows the last handed out entry, and decide proposals."""
        effects, state, lo = self._effects, self.core.state, self._handed + 1
        assert state.handed == hi - 1, f"apply up to {hi}, handed out up to {state.handed}"
        if effects.apply_hi == NO_INDEX:
            effects.apply_lo = lo
        effects.apply_hi = hi
        self._handed = hi - 1
        if self.proposals.by_index:
            self.proposals.complete(lo, hi, state.log)

    def _write(self, ready: Ready, received: Checked | Payload | None) -> None:
        """Write the core's changes to the stored log. Nothing is durable yet."""
        log = self.log
        if ready.snapshot is not None:
            log.install_snapshot(ready.snapshot, received)
            self._move_flushes_back(NO_INDEX + 1)
            self._take_snapshot(ready.snapshot)
            self._wrote = self._must_sync = True
        if ready.truncate_from != NO_INDEX:
            log.truncate_from(ready.truncate_from)
            self._move_flushes_back(ready.truncate_from)
            self._wrote = True
        if ready.write_hi > ready.write_lo:
            assert received is not None, f"[{ready.write_lo}, {ready.write_hi}) was not checked"
            log.write_raw(ready.write_lo, ready.write_hi, received)
            self._wrote = True
        for entry in ready.own_entries:
            log.append(entry.index, entry.term, entry.kind, entry.configuration)
            self._wrote = True

    def _move_flushes_back(self, lo: Index) -> None:
        """Move tickets back, since entries from `lo` on are replaced."""
        index = lo - 1
        self._synced = min(self._synced, index)
        term = self.core.state.log.term_of(index) if index > NO_INDEX else NO_TERM
        self.flushes.move_back(index, term)

    def _take_snapshot(self, meta: SnapshotMeta) -> None:
        effects = self._effects
        effects.install = meta
        effects.apply_lo = effects.apply_hi = NO_INDEX
        self._handed = self.applied = meta.index
        self.proposals.overtaken(meta.index)

    def _send(self, message: Message) -> None:
        payload: Payload | None = None
        if type(message) is AppendRequest:
            prev_index = message.prev_index
            if message.hi == prev_index + 1:
                if prev_index > NO_INDEX:
                    message = message._replace(prev_chain=self.log.chain_at(prev_index))
            elif prev_index < self.core.state.log.base_index:
                return  # The log was cut while the message waited for a sync.
            else:  # Their first chain CRC proves the prefix.
                payload = self.log.read_raw(prev_index + 1, message.hi)
        self._sends += (_new(Outgoing, (message, payload)),)
        self._is_touched = True

    def _open_ticket(self) -> None:
        state = self.core.state
        log = state.log
        # What was saved: a core that started over may have a newer one, saved in a later turn.
        ticket = self.flushes.open(log.last_index, log.last_term, state.hard_state_taken)
        self._effects.flush = ticket
        self._effects.must_sync = self._must_sync
        self._wrote = self._must_sync = False

    def _start_over(self, ready: Ready) -> None:
        """Start again from the disk, since term and vote could not be stored (R02).

        No promise was made. Reads of `ready`, which is not done, fail: none is confirmed any more,
        and this node is a follower now, whatever its role was."""
        old = self.core.state
        effects = self._effects
        failed = [*effects.reads_failed, *ready.reads_failed, *old.reads_waiting]
        failed += [read.read_id for read in ready.reads]
        for pending in old.reads_pending:
            failed += pending.read_ids
        effects.reads_failed = failed
        loaded = self.log.load()
        loaded = loaded._replace(
            commit=self._handed,
            # Not the old core's: it may have stepped a snapshot that is not installed.
            applied=self.applied,
            synced=max(loaded.base_index, min(self._synced, loaded.last_index)),
        )
        self.core = RaftCore(self.config, loaded, self.log, self._random)
        state = self.core.state
        state.handed = self._handed
        if loaded.base_index > self._synced:
            state.snapshot_gate = loaded.base_index  # Installed, and its sync has not ended.
        if state.hard_state() != self._durable_hard_state:
            # The disk's term and vote were written by an earlier turn, whose sync has not ended.
            state.is_hard_state_durable = False
            self._must_sync = True
        if self._lost_incarnation > state.incarnation:
            # Whatever is saved next tells it too; else a later term would hide the old copy.
            follower.lose_memory(state, self._lost_incarnation)
        self.flushes.forget_promises()
        self.proposals.give_up(None)
        change = RoleChange(
            state.role, state.term, state.leader, "term and vote could not be saved"
        )
        effects.role_changes = [*effects.role_changes, change]

    def _note_roles(self, changes: list[RoleChange]) -> None:
        self._effects.role_changes = [*self._effects.role_changes, *changes]
        if any(change.role is not Role.LEADER for change in changes):
            self.proposals.deposed(self._ticks)
