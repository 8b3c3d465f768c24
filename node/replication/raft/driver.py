"""The asyncio shell of one replica: it carries out the pump's effects, once per loop turn.

Owns the order of a turn, the callers that wait for an outcome, and the clock of the Raft core. Must
not know what a record means (broker, state machine), how frames travel (peer link) or where bytes
lie (ledger log). Everything runs on the loop's thread; the flush thread only reports that a sync
has ended. Inputs of one turn are taken together: all appends that arrive while the loop is busy
share one range to each peer, one sync and one wake-up of their callers. A frame of a peer that no
other input would share a turn with gets its turn at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from node.errors.common import NotReadyError, ShuttingDownError
from node.peers.frames import FrameKind
from node.peers.link import PeerLink
from node.replication.pending_calls import PendingAppend, PendingCalls
from node.replication.raft.codec import SteadyDecoder, SteadyEncoder, encode
from node.replication.raft.storage.log import OWN_ENTRY_SIZE_BYTES_MAX, LedgerLog
from node.replication.sync_requests import SyncRequests
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.state.append_times import AppendTimes
from node.state.appends import Committed, Prepared
from node.state.machine import StateMachine
from raft.errors import ChangeRefusedError, TransferRefusedError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    NO_TERM,
    AppendReply,
    AppendRequest,
    CampaignNow,
    Index,
    InstallSnapshot,
    NodeId,
    Term,
)
from raft.pump.effects import Effects, Outgoing, Ticket
from raft.pump.replica import Replica
from raft.ready import RoleChange
from raft.rules import read_index, recovery, transfer
from raft.rules.membership import Change
from raft.transitions import Role
from store.errors import FileSystemError, StoreError, StoreFullError
from store.files import failpoints

LATE_APPLY_COUNT_MAX: Final = 64
"""Entries that a follower may show readers with its next tick, while no reader waits for them."""

DISK_HAND_OVER_MS: Final = 5_000
"""Pause between two attempts of a leader whose disk is full or hangs to hand over, so that two such
nodes do not hand leadership back and forth."""

_TROUBLE_INTERVAL_MS: Final = 60_000
SYNC_HANG_MS: Final = 2_000
"""A leader whose sync takes longer hands over: it shows, and so acks, only synced entries."""


class RaftDriver:
    """Runs one replica on the running event loop. Not thread-safe."""

    def __init__(
        self,
        replica: Replica,
        log: LedgerLog,
        applier: StateMachine,
        link: PeerLink,
        begin_snapshot: Callable[[InstallSnapshot], None],
        *,
        on_fatal: Callable[[BaseException], None],
        has_audience: Callable[[], bool] = lambda: True,
        has_met_all: Callable[[], bool] = lambda: False,
        append_times: AppendTimes,
    ) -> None:
        """`begin_snapshot` streams the state of a message, and reports a failure through
        `on_snapshot_failed`. `on_fatal` gets an error after which memory and disk may differ; it
        must end the process.

        `has_audience` returns whether a reader waits for entries to be shown here. A follower
        without such readers shows them with each tick: many at once cost half as much as one by
        one. `has_met_all` returns whether there are links to all other founders of the cluster; the
        driver calls it in term 0 only."""
        self.replica: Final = replica
        self.log: Final = log
        self.node_id: Final = replica.config.node_id
        self.applier: Final = applier
        self._link, self._begin_snapshot = link, begin_snapshot
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._encoder = SteadyEncoder()
        self._decoder = SteadyDecoder(replica.config.group, self.node_id)
        self._pending_calls = PendingCalls(self._nodes_with)
        self.append_times = append_times
        self._run_count = self._run_began_ns = 0
        """Appends that have not left yet, and when the first of them began."""
        self._syncs = SyncRequests(log.store, self._on_durable, on_fatal)
        self._tick_interval_s = replica.config.tick_interval_ms / 1000
        self._next_tick_s = 0.0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._turn_scheduled = False
        self._is_turning = False
        self._is_synced_within = False
        """Whether a sync of this turn has ended already, so that answers held for it can leave."""
        self._is_apply_due = False
        """Whether a tick passed since entries were shown, or the leader has no more for now."""
        self.has_audience, self.has_met_all = has_audience, has_met_all
        self._stopped = False
        self._listeners: list[Callable[[], None]] = []
        self._role_listeners: list[Callable[[RoleChange], None]] = []
        self._apply_hi: Index = NO_INDEX
        """Entries below it are committed and handed out."""
        self._apply_error: StoreFullError | FileSystemError | None = None
        """Why they cannot be shown at the moment."""
        self._trouble = RateLimitedLog(
            logging.getLogger(__name__),
            interval_ms=_TROUBLE_INTERVAL_MS,
            monotonic_s=self._loop.time,
        )
        self._disk_hand_over_s = 0.0
        self._asked_last = (NO_TERM, NO_NODE)
        """This node's term and the node it asked last to take over: if it still leads in that term,
        it asks another one next."""
        self.is_draining = False
        """Whether this node refuses leadership. If all nodes stop, they would otherwise hand it
        round until they have ended, with a new term each time."""
        self.is_fenced = False
        """Whether the replicated state here differs from that of a majority: this node serves
        nothing and does not lead, but votes and acks, which promises the log alone."""
        self.is_ready = False
        """Whether this node leads and its own no-op is applied: everything acked before is known
        here. Appends and leader reads may be served."""
        self.loss_from: Index = NO_INDEX
        """From here on acked records may be missing (design 4.5); NO_INDEX: none are."""
        self.dropped_for_room_count = 0
        """Appends of the leader that were dropped as a whole, because this disk has no room."""
        self.apply_retry_count = 0
        """Times that committed entries could not be shown, as the disk has no room for queues."""

    # --- Facts ---

    @property
    def role(self) -> Role:
        """The current role of this node."""
        return self.replica.core.state.role

    @property
    def term(self) -> Term:
        """The newest term this node knows."""
        return self.replica.core.state.term

    @property
    def leader_id(self) -> NodeId:
        """The leader of `term`, NO_NODE if unknown."""
        return self.replica.core.state.leader

    @property
    def no_room(self) -> StoreError | None:
        """Why the log takes no entry of this node, which cannot lead then; None: it has room."""
        return self.log.store.room_error

    @property
    def commit_index(self) -> Index:
        """Last entry known to be committed."""
        return self.replica.core.state.commit

    @property
    def applied_index(self) -> Index:
        """Last entry that readers here see."""
        return self.replica.core.state.applied

    @property
    def last_index(self) -> Index:
        """Last entry in the log, committed or not."""
        return self.replica.core.state.log.last_index

    @property
    def durable_index(self) -> Index:
        """Last entry this node counts as durable."""
        return self.replica.core.state.synced

    # --- Life ---

    def start(self) -> None:
        """Start the ticks. Frames may arrive from now on."""
        self._next_tick_s = self._loop.time() + self._tick_interval_s
        self._tick_timer = self._loop.call_at(self._next_tick_s, self._on_tick)
        self._touch()

    def stop(self) -> None:
        """Stop: every caller that waits learns that the outcome is unknown. The log stays open."""
        self._stopped = True
        self.is_ready = False
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._syncs.stop()
        self._pending_calls.stop(self.replica.stop())

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call a listener after each turn that applied something or changed the role."""
        self._listeners.append(listener)

    def add_role_listener(self, listener: Callable[[RoleChange], None]) -> None:
        """Call a listener with every change of role, term or known leader."""
        self._role_listeners.append(listener)

    # --- Requests of this node's broker ---

    def append(
        self, batch: bytes, check: Callable[[Prepared], None]
    ) -> "asyncio.Future[Committed]":
        """Append one entry of encoded records; the future resolves when it is applied here.

        `check` sees what the batch touches and may refuse it by raising. Raises at once, with
        nothing written: NotLeaderError, TransferringError or BusyError of Raft, NotReadyError, the
        store's errors for bad input or a full disk, and the errors of `check`. The future fails
        with NotAppliedError (another entry took its place), OutcomeUnknownError or
        ShuttingDownError. Cancelling it does not withdraw the entry.
        """
        if self._stopped:
            raise ShuttingDownError
        self.replica.check_propose()
        if not self.is_ready:
            raise NotReadyError(self.term)
        if self._apply_error is not None:
            # This append could not be answered before there is room.
            self.log.store.counters.store_full_count += isinstance(
                self._apply_error, StoreFullError
            )
            raise self._apply_error.with_traceback(None)
        if self.replica.core.state.own_entries:
            self._turn()  # Own entries come first in the log; this batch is stamped for its place.
        try:
            prepared = self.log.prepare(batch)
        except StoreFullError:
            self._hand_over_unasked()
            raise
        check(prepared)
        pending = PendingAppend(self._loop.create_future(), prepared)
        self.replica.propose(prepared, pending)
        if not self._run_count:
            self._run_began_ns = pending.began_ns
        self._run_count += 1
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)
        return pending.future

    def read_barrier(self) -> "asyncio.Future[Index]":
        """Prove that this node still leads, by a round to a quorum; resolves with an index.

        Everything acked before the call is applied here then. Raises NotLeaderError or BusyError at
        once; the future fails with ReadFailedError when leadership was lost meanwhile.
        """
        self._check_running()
        read_index.read_index(self.replica.core.state, self._pending_calls.next_read_id())
        self._touch()
        return self._pending_calls.read()

    def transfer_leadership(self, node: NodeId = NO_NODE) -> NodeId:
        """Hand leadership to `node`, by default to the most advanced follower; return the target.

        Raises NotLeaderError or TransferRefusedError. Appends are refused until it has happened.
        """
        self._check_running()
        target = node if node != NO_NODE else self._best_follower()
        transfer.transfer_leadership(self.replica.core.state, target)
        self._asked_last = self.term, target
        self._touch()
        return target

    def check_change(self, change: Change) -> None:
        """Raise the error that `change_member` would raise at once; change nothing."""
        self._check_running()
        room, index = OWN_ENTRY_SIZE_BYTES_MAX, self.last_index + 1
        if self.role is Role.LEADER and not self.log.has_room_for(room, [index]):
            raise ChangeRefusedError(change.node, "the leader's disk has no room for the entry")
        self.replica.check_change(change)

    def change_member(self, change: Change) -> "asyncio.Future[Index]":
        """Propose a change of one member; resolves with its index once it is committed.

        Raises NotLeaderError, BusyError or ChangeRefusedError at once; the future fails as that of
        `append`.
        """
        self.check_change(change)
        pending: asyncio.Future[Index] = self._loop.create_future()
        self.replica.propose_change(change, pending)
        self._turn()  # Now: the entry must be in the log before the next batch is prepared.
        return pending

    def accept_loss(self) -> None:
        """Go on after a majority's power loss, for an operator. Raises RecoveryRefusedError."""
        self._check_running()
        recovery.accept_loss(self.replica.core.state)
        self._touch()

    def set_fenced(self, is_fenced: bool) -> None:
        """Serve and lead no more, or again; voting and acking go on."""
        self.is_fenced = is_fenced
        if not self._stopped:
            self._touch()

    def lose_memory(self, incarnation: int) -> None:
        """Give up the vote, since this disk is an old copy. Stored on return, if possible."""
        if not self._stopped:
            self.replica.lose_memory(incarnation)
            self._turn()

    # --- Reports of the peer link and the snapshot transfer ---

    def on_raft_frame(
        self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview
    ) -> None:
        """Take a Raft message of a peer. Raises PeerProtocolError: drop the connection."""
        if self._stopped:
            return
        message = self._decoder.decode(kind, header, node)
        if type(message) is AppendRequest:
            if not payload:
                self._is_apply_due = True  # News of commits alone: no reason to wait.
            elif not self.log.has_room_for(
                payload.nbytes,
                [at.index for at in message.configurations] if message.configurations else [],
            ):
                # The leader offers the entries again, and by then there may be room. Everything
                # else goes on, so this node still votes and serves reads.
                self.dropped_for_room_count += 1
                self.replica.receive_without_room(message)
                self._touch()
                return
        if type(message) is CampaignNow and (
            self.is_draining or self.is_fenced or not self.log.has_room(OWN_ENTRY_SIZE_BYTES_MAX)
        ):
            return  # The leader goes on when the time for the hand-over is up.
        try:
            has_work = self.replica.receive(message, payload if payload else None)
        except (AssertionError, StoreError, OSError) as error:
            self._on_fatal(error)
            raise
        if has_work and not self._turn_scheduled:
            state = self.replica.core.state
            # A turn for the frame in hand alone is right where no other input can be expected to
            # share it: with the last frame of a read, on a follower, which hears its leader only,
            # or on a leader that waits for no more acks.
            is_alone = state.role is Role.FOLLOWER or state.commit == state.log.last_index
            if is_alone and not self._link.has_more:
                self._turn()
            else:
                self._touch()

    def install_snapshot(self, message: InstallSnapshot, state: object) -> None:
        """Take a snapshot with its complete, verified state. Raises PeerProtocolError."""
        if self._stopped:
            return
        try:
            self.replica.receive(message, state)
        except (AssertionError, StoreError, OSError) as error:
            self._on_fatal(error)
            raise
        self._turn()  # Now: no reader may see the new log beside the old state.

    def on_refused(self, node: NodeId) -> None:
        """Have entries that may have been sent to `node` checked before they are sent again: the
        peer found them wrong. Damage that the check meets ends the process."""
        progress = self.replica.core.state.progress.get(node)
        if self._stopped or progress is None:
            return
        try:
            self.log.distrust_from(progress.first_unacked)
        except (AssertionError, StoreError, OSError) as error:
            self._on_fatal(error)
            raise

    def on_disconnected(self, node: NodeId) -> None:
        """Note that a link broke: messages in flight to `node` may be lost."""
        if not self._stopped:
            self.replica.core.report_unreachable(node)
            self._touch()

    def on_snapshot_failed(self, node: NodeId) -> None:
        """Note that a snapshot did not get to `node`."""
        if not self._stopped:
            self.replica.core.report_snapshot_failed(node)
            self._touch()

    # --- The turn ---

    def _touch(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self._stopped:
            return
        self._is_turning = True
        try:
            self._is_synced_within = False
            self._carry_out(self.replica.pump(), is_last=False)
            if self._is_synced_within:
                self._is_synced_within = False
                self._carry_out(self.replica.pump(), is_last=True)
        except BaseException as error:
            self._on_fatal(error)
            raise
        finally:
            self._is_turning = False
        if self._is_synced_within:
            self._touch()

    def _carry_out(self, effects: Effects, *, is_last: bool) -> None:
        """Carry out the pump's effects, in the order of the fields.

        Unless it `is_last`, acks that may leave now go before entries are shown to readers."""
        if effects.role_changes:
            self._note_roles(effects.role_changes)
        if effects.send:
            self._send(effects.send)
        if self._run_count:
            self.append_times.send(self.last_index, self._run_count, self._run_began_ns)
            self._run_count = 0
        if effects.flush is not None:
            self._syncs.flush(effects.flush, must_sync=effects.must_sync)
        if effects.install is not None:
            self._apply_hi = NO_INDEX
            self.applier.restore(self.log.installed_state(), effects.install.index)
        if effects.apply_hi != NO_INDEX:
            self._apply_hi = effects.apply_hi
        state, pending_calls = self.replica.core.state, self._pending_calls
        has_applied = False
        if self._apply_hi > state.applied + 1 and (is_last or not self._is_synced_within):
            has_applied = self._apply()
            state = self.replica.core.state
        was_ready = self.is_ready
        self.is_ready = (
            state.role is Role.LEADER
            and state.applied >= state.own_term_first
            and not self.is_fenced
        )
        if effects.completed or pending_calls.decided:
            if failpoints.is_on:
                failpoints.hit("callers.before_answer")
            self.append_times.answer(state.commit, state.applied)
            pending_calls.decide(effects.completed, state.applied)
            if failpoints.is_on:
                failpoints.hit("callers.after_answer")
        if effects.reads or pending_calls.confirmed:
            pending_calls.confirm(effects.reads, state.applied)
        if effects.reads_failed:
            pending_calls.fail_reads(effects.reads_failed, self.leader_id)
        if effects.loss_from != NO_INDEX:
            self.loss_from = effects.loss_from
        is_news = has_applied or effects.role_changes or effects.install is not None
        if is_news or was_ready != self.is_ready:
            for listener in self._listeners:
                listener()

    def _apply(self) -> bool:
        """Show readers the entries that are committed and not yet shown; return whether any were.

        If the queues cannot grow, the next tick tries again: no caller gets an answer before, and
        the pump hands out no more than its limit meanwhile.
        """
        state = self.replica.core.state
        lo, hi = state.applied + 1, self._apply_hi
        if (
            state.role is Role.FOLLOWER
            and not self._is_apply_due
            and hi - lo < LATE_APPLY_COUNT_MAX
            and not self.has_audience()
        ):
            return False  # With the next tick.
        self._is_apply_due = False
        try:
            self.log.dispatch(hi)
        except (StoreFullError, FileSystemError) as error:
            self.apply_retry_count += 1
            self._apply_error = error
            self._hand_over_unasked()
            return False
        self._apply_error = None
        self.applier.apply(lo, hi)
        self.replica.on_applied(hi - 1)
        if state.handed < state.commit and state.handed < state.synced:
            self._touch()  # More is ready than one turn hands out.
        return True

    def _send(self, sends: Sequence[Outgoing]) -> None:
        """Hand messages to the sockets at once: others work while this node syncs and applies.

        Those of one turn to one peer follow each other mostly, and leave together."""
        last = sends[-1]
        for hi, outgoing in enumerate(sends, 1):
            message, payload = outgoing
            is_last = outgoing is last or sends[hi].message.to != message.to
            if type(message) is AppendRequest:
                kind, header = FrameKind.APPEND, self._encoder.append(message)
            elif type(message) is AppendReply:
                kind, header = FrameKind.APPEND_REPLY, self._encoder.reply(message)
            elif type(message) is InstallSnapshot:
                self._begin_snapshot(message)
                continue
            else:
                kind, header = encode(message)
            data: bytes = payload or b""  # type: ignore[assignment]
            self._link.send(message.to, kind, header, data, at_once=is_last)

    def _note_roles(self, changes: Sequence[RoleChange]) -> None:
        if changes[-1].role is Role.LEADER:
            self.log.store.find_offsets()
        self.append_times.clear()
        for change in changes:
            for listener in self._role_listeners:
                listener(change)

    def _nodes_with(self, index: Index) -> tuple[NodeId, ...]:
        state = self.replica.core.state
        nodes = [self.node_id] if state.synced >= index else []
        for node in state.progress:
            if state.progress[node].match >= index:
                nodes += (node,)  # A call less than `append`.
        nodes.sort()
        return tuple(nodes)

    # --- Syncs and ticks ---

    def _on_durable(self, ticket: Ticket) -> None:
        has_work = self.replica.on_durable(ticket)
        if self._is_turning:
            self._is_synced_within |= has_work
        elif has_work:
            self._turn()  # At once: an ack waits for it, and syncs come alone.

    def _on_tick(self) -> None:
        now = self._loop.time()
        # One tick, however late: after a pause waiting frames must be seen before a time-out.
        self._next_tick_s = max(self._next_tick_s + self._tick_interval_s, now)
        self._tick_timer = self._loop.call_at(self._next_tick_s, self._on_tick)
        # A leader writes a no-op at once; a node without room for it must not campaign.
        is_leader = self.role is Role.LEADER
        has_room = is_leader or self.log.has_room(OWN_ENTRY_SIZE_BYTES_MAX)
        if not has_room and (error := self.log.store.room_error) is not None:
            self._trouble.warn("this node cannot lead: its log has no room", str(error))
        if is_leader and (self.is_fenced or self._syncs.waiting_s > SYNC_HANG_MS / 1000):
            self._hand_over_unasked()
        has_met_all = self.term == NO_TERM and self.has_met_all()
        self.replica.tick(may_campaign=has_room and not self.is_fenced, has_met_all=has_met_all)
        self._is_apply_due = True
        self._touch()  # Also repeats an apply that found no room.

    # --- Small decisions ---

    def _check_running(self) -> None:
        if self._stopped:
            raise ShuttingDownError

    def _best_follower(self) -> NodeId:
        return transfer.best_follower(self.replica.core.state, asked_last=self._asked_last)

    def _hand_over_unasked(self) -> None:
        """Hand leadership over, since this disk is full or hangs, or the state here is not that of
        a majority; another node may be well."""
        now = self._loop.time()
        if self.role is not Role.LEADER or now - self._disk_hand_over_s < DISK_HAND_OVER_MS / 1000:
            return
        self._disk_hand_over_s = now
        target = self._best_follower()
        if target == NO_NODE:
            return
        with contextlib.suppress(TransferRefusedError):  # No follower is near enough.
            transfer.transfer_leadership(self.replica.core.state, target)
            self._touch()
