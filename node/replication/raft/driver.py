"""The asyncio shell of one replica: it carries out what the pump asks for, once per loop turn.

Owns the order of a turn, the callers that wait for an outcome, and the clock of the Raft core. Must
not know what a record means (broker, state machine), how frames travel (peer link) or where bytes
lie (ledger log). Everything runs on the loop's thread; the flush thread only reports that a sync
has ended. Inputs of one turn are taken together: all appends that arrive while the loop is busy
share one range to each peer, one sync and one wake-up of their callers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from node.errors.common import NotReadyError, ShuttingDownError
from node.peers.frames import FrameKind
from node.replication.raft.applier import Applier
from node.replication.raft.codec import decode, encode
from node.replication.raft.pending_calls import Callers, Committed
from node.replication.raft.storage.log import OWN_ENTRY_SIZE_BYTES_MAX, LedgerLog, Prepared
from node.replication.sync_requests import SyncRequests
from raft.errors import ChangeRefusedError, TransferRefusedError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    NO_TERM,
    AppendRequest,
    CampaignNow,
    Index,
    InstallSnapshot,
    Message,
    NodeId,
    Term,
)
from raft.pump.effects import Effects, Outgoing, Ticket
from raft.pump.replica import Replica
from raft.ready import RoleChange
from raft.rules.membership import Change
from raft.transfer_target import best_follower
from raft.transitions import Role
from store.errors import FileSystemError, StoreError, StoreFullError

LATE_APPLY_COUNT_MAX: Final = 64
"""Entries that a follower may show readers with its next tick, as long as nobody waits for them."""

DISK_HAND_OVER_MS: Final = 5_000
"""Pause between two attempts of a leader whose disk is full or hangs to hand over, so that such
nodes do not play ball."""

SYNC_HANG_MS: Final = 2_000
"""A leader whose sync takes longer hands over: it shows, and so acks, only what it has synced."""


class SendFrame(Protocol):
    """The part of the peer link that a turn needs."""

    def send(self, node: NodeId, kind: FrameKind, header: bytes, payload: bytes = b"") -> bool:
        """Queue a frame; False when it was dropped."""
        ...

    def write_queued(self) -> None:
        """Hand queued frames to the sockets now and not at the end of the loop's turn."""
        ...


class SendSnapshot(Protocol):
    """Streams the state that an InstallSnapshot stands for."""

    def begin(self, message: InstallSnapshot) -> None:
        """Start streaming; reports a failure through `Driver.on_snapshot_failed`."""
        ...


class Driver:
    """Runs one replica on the running event loop. Not thread-safe."""

    def __init__(
        self,
        replica: Replica,
        log: LedgerLog,
        applier: Applier,
        link: SendFrame,
        snapshots: SendSnapshot,
        *,
        is_flush_sync: bool,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_fatal` is called with an error after which memory and disk may differ; it must end
        the process."""
        self.replica: Final = replica
        self.log: Final = log
        self.node_id: Final = replica.config.node_id
        self.applier: Final = applier
        self._link, self._snapshots = link, snapshots
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._callers = Callers(self._nodes_with)
        self._syncs = SyncRequests(log, self._on_durable, on_fatal, is_flush_sync=is_flush_sync)
        self._tick_interval_s = replica.config.tick_interval_ms / 1000
        self._next_tick_s = 0.0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._turn_scheduled = False
        self._is_turning = False
        self._is_synced_within = False
        """A sync that this turn asked for has ended already: what waited for it can leave."""
        self._is_apply_due = False
        """A tick has passed since entries were shown, or the leader has no more at the moment."""
        self.has_audience: Callable[[], bool] = lambda: True
        """Whether somebody waits for entries to be shown here. A follower of whom nobody wants
        anything shows them with each tick: many at once cost half of what each alone does."""
        self._stopped = False
        self._listeners: list[Callable[[], None]] = []
        self._role_listeners: list[Callable[[RoleChange], None]] = []
        self._apply_hi: Index = NO_INDEX
        """Entries below it are committed and handed out."""
        self._apply_error: StoreFullError | FileSystemError | None = None
        """Why they cannot be shown at the moment."""
        self._disk_hand_over_s = 0.0
        self._asked_last = (NO_TERM, NO_NODE)
        """Whom this node asked last to take over, in which of its terms: who still leads then asks
        another one next."""
        self.is_draining = False
        """It takes no leadership over. Nodes that all stop would else hand it round until they have
        ended, a term each time."""
        self.is_ready = False
        """Leader, and its own no-op is applied: what was acked before is known here. Appends and
        leader reads may be served."""
        self.loss_from: Index = NO_INDEX
        """From here on acked records may be missing (design 4.5); NO_INDEX: nothing is."""
        self.dropped_for_room_count = 0
        """Appends of the leader of which nothing was taken, because this disk has no room."""
        self.apply_retry_count = 0
        """Times that committed entries could not be shown, as the disk has no room for queues."""

    # --- Facts ---

    @property
    def role(self) -> Role:
        """What this node is at the moment."""
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
        """Begin to tick. Frames may arrive from now on."""
        self._next_tick_s = self._loop.time() + self._tick_interval_s
        self._tick_timer = self._loop.call_at(self._next_tick_s, self._on_tick)
        self._touch()

    def stop(self) -> None:
        """End: everybody who waits learns that the outcome is unknown. The log stays open."""
        self._stopped = True
        self.is_ready = False
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._syncs.stop()
        self._callers.stop(self.replica.stop())

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each turn that applied something or changed the role."""
        self._listeners.append(listener)

    def add_role_listener(self, listener: Callable[[RoleChange], None]) -> None:
        """Have `listener` called with every change of role, term or known leader."""
        self._role_listeners.append(listener)

    # --- Requests of this node's broker ---

    def append(
        self, batch: bytes, check: Callable[[Prepared], None]
    ) -> "asyncio.Future[Committed]":
        """Append one entry of encoded records; the future resolves when it is applied here.

        `check` sees what the batch touches and may refuse it by raising. Raises at once, with
        nothing written: NotLeaderError, TransferringError or BusyError of Raft, NotReadyError, the
        store's errors for bad input or a full disk, and what `check` raises. The future fails with
        NotAppliedError (another entry took its place), OutcomeUnknownError or ShuttingDownError.
        Cancelling it does not withdraw the entry.
        """
        self._check_running()
        self.replica.check_propose()
        if not self.is_ready:
            raise NotReadyError(self.term)
        if self._apply_error is not None:
            # Nobody could be told of this one before there is room.
            self.log.store.counters.store_full_count += isinstance(
                self._apply_error, StoreFullError
            )
            raise self._apply_error.with_traceback(None)
        if self.replica.core.has_own_entries():
            self._turn()  # They come first in the log, and this batch is stamped for its place.
        try:
            prepared = self.log.prepare(batch)
        except StoreFullError:
            self._hand_over_for_disk()
            raise
        check(prepared)
        pending = self._callers.append(prepared)
        self.replica.propose(prepared, pending)
        self._touch()
        return pending.future

    def read_barrier(self) -> "asyncio.Future[Index]":
        """Prove that this node still leads, by a round to a quorum; resolves with an index.

        Everything acked before the call is applied here then. Raises NotLeaderError or BusyError at
        once; the future fails with ReadFailedError when leadership was lost meanwhile.
        """
        self._check_running()
        self.replica.read(self._callers.next_read_id())
        self._touch()
        return self._callers.read()

    def transfer_leadership(self, node: NodeId = NO_NODE) -> NodeId:
        """Hand leadership to `node`, by default to the follower that has most; return to whom.

        Raises NotLeaderError or TransferRefusedError. Appends are refused until it has happened.
        """
        self._check_running()
        target = node if node != NO_NODE else self._best_follower()
        self.replica.transfer_leadership(target)
        self._asked_last = self.term, target
        self._touch()
        return target

    def change_member(self, change: Change) -> "asyncio.Future[Index]":
        """Propose a change of one member; resolves with its index once it is committed.

        Raises NotLeaderError, BusyError or ChangeRefusedError at once; the future fails as that of
        `append`.
        """
        self._check_running()
        room, index = OWN_ENTRY_SIZE_BYTES_MAX, self.last_index + 1
        if self.role is Role.LEADER and not self.log.has_room_for(room, [index]):
            raise ChangeRefusedError(change.node, "the leader's disk has no room for the entry")
        pending = self._callers.change()
        self.replica.propose_change(change, pending)
        self._turn()  # Now: the entry must be in the log before the next batch is prepared.
        return pending.future

    def accept_loss(self) -> None:
        """Operator's decision after a power loss of a majority. Raises RecoveryRefusedError."""
        self._check_running()
        self.replica.accept_loss()
        self._touch()

    def lose_memory(self, incarnation: int) -> None:
        """This disk was found to be an old copy: vote no more. Stored on return, if it can be."""
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
        message = decode(
            kind, header, group=self.replica.config.group, sender=node, to=self.node_id
        )
        if type(message) is AppendRequest and not payload:
            self._is_apply_due = True  # News of commits alone: there is nothing to wait for.
        if type(message) is AppendRequest and payload and not self._can_take(message, payload):
            # The leader offers the entries again, and by then there may be room. Everything else
            # goes on, so this node still votes and serves reads.
            self.dropped_for_room_count += 1
            self.replica.receive_without_room(message)
            self._touch()
            return
        if type(message) is CampaignNow and not self._may_take_over():
            return  # The leader goes on when its time for the hand-over is up.
        self.receive(message, payload if payload else None)

    def receive(self, message: Message, payload: object = None) -> None:
        """Take a decoded message; for a snapshot its complete, verified state as payload."""
        if self._stopped:
            return
        try:
            self.replica.receive(message, payload)
        except (AssertionError, StoreError, OSError) as error:
            self._on_fatal(error)
            raise
        if type(message) is InstallSnapshot:
            self._turn()  # Now: nobody may see the new log beside the old state.
        else:
            self._touch()

    def on_disconnected(self, node: NodeId) -> None:
        """A link broke: what was in flight to `node` may be lost."""
        if not self._stopped:
            self.replica.report_unreachable(node)
            self._touch()

    def on_snapshot_failed(self, node: NodeId) -> None:
        """A snapshot did not get to `node`."""
        if not self._stopped:
            self.replica.report_snapshot_failed(node)
            self._touch()

    # --- The turn ---

    def _touch(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._scheduled_turn)

    def _scheduled_turn(self) -> None:
        self._turn_scheduled = False
        self._turn()

    def _turn(self) -> None:
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
        """Do what the pump wants, in the order of its fields.

        Unless it `is_last`, acks that may leave now go before what is shown to readers."""
        if effects.role_changes:
            self._note_roles(effects.role_changes)
        for outgoing in effects.send:
            self._send(outgoing)
        if effects.send:
            self._link.write_queued()  # So that others work while this node syncs and applies.
        if effects.flush is not None:
            self._syncs.flush(effects.flush, must_sync=effects.must_sync)
        if effects.install is not None:
            self._apply_hi = NO_INDEX
            self.applier.restore(self.log.installed_state(), effects.install.index)
        if effects.apply_hi != NO_INDEX:
            self._apply_hi = effects.apply_hi
        has_applied = self._apply() if is_last or not self._is_synced_within else False
        was_ready, self.is_ready = self.is_ready, self._is_ready_now()
        callers, applied = self._callers, self.applied_index
        callers.decide(effects.completed, applied)
        callers.confirm(effects.reads, applied)
        if effects.reads_failed:
            callers.fail_reads(effects.reads_failed, self.leader_id)
        if effects.loss_from != NO_INDEX:
            self.loss_from = effects.loss_from
        is_news = has_applied or effects.role_changes or effects.install is not None
        if is_news or was_ready != self.is_ready:
            for listener in self._listeners:
                listener()

    def _apply(self) -> bool:
        """Show readers what is committed and was not yet shown; return whether anything was.

        When the queues cannot grow, it is tried again with the next tick: nobody is told before,
        and the pump hands out no more than its limit meanwhile.
        """
        lo, hi = self.applied_index + 1, self._apply_hi
        if hi <= lo or self._may_apply_late(hi - lo):
            return False
        self._is_apply_due = False
        try:
            self.log.dispatch(hi)
        except (StoreFullError, FileSystemError) as error:
            self.apply_retry_count += 1
            self._apply_error = error
            self._hand_over_for_disk()
            return False
        self._apply_error = None
        self.applier.apply(lo, hi)
        self.replica.on_applied(hi - 1)
        if self.replica.core.has_ready():
            self._touch()  # There is more than one turn hands out.
        return True

    def _may_apply_late(self, count: int) -> bool:
        if self._is_apply_due or count >= LATE_APPLY_COUNT_MAX or self.has_audience():
            return False
        return self.role is Role.FOLLOWER

    def _send(self, outgoing: Outgoing) -> None:
        message, payload = outgoing
        if type(message) is InstallSnapshot:
            self._snapshots.begin(message)
            return
        kind, header = encode(message)
        assert payload is None or isinstance(payload, bytes), f"payload is {type(payload)}"
        self._link.send(message.to, kind, header, payload or b"")

    def _is_ready_now(self) -> bool:
        state = self.replica.core.state
        return state.role is Role.LEADER and state.applied >= state.own_term_first

    def _note_roles(self, changes: list[RoleChange]) -> None:
        if changes[-1].role is Role.LEADER:
            self.log.become_leader()
        for change in changes:
            for listener in self._role_listeners:
                listener(change)

    def _nodes_with(self, index: Index) -> tuple[NodeId, ...]:
        state = self.replica.core.state
        nodes = [node for node, progress in state.progress.items() if progress.match >= index]
        if state.synced >= index:
            nodes.append(self.node_id)
        return tuple(sorted(nodes))

    # --- Syncs and ticks ---

    def _on_durable(self, ticket: Ticket) -> None:
        self.replica.on_durable(ticket)
        if self._is_turning:
            self._is_synced_within = True
        else:
            self._turn()  # At once: an ack waits for it, and syncs come alone.

    def _on_tick(self) -> None:
        now = self._loop.time()
        # One tick, however late: after a pause the frames that wait must be seen before a time-out.
        self._next_tick_s = max(self._next_tick_s + self._tick_interval_s, now)
        self._tick_timer = self._loop.call_at(self._next_tick_s, self._on_tick)
        # A leader writes a no-op at once; who has no room for it must not campaign.
        is_leader = self.role is Role.LEADER
        has_room = is_leader or self.log.has_room(OWN_ENTRY_SIZE_BYTES_MAX)
        if is_leader and self._syncs.waiting_s > SYNC_HANG_MS / 1000:
            self._hand_over_for_disk()
        self.replica.tick(may_campaign=has_room)
        self._is_apply_due = True
        self._touch()  # Also repeats an apply that found no room.

    # --- Small decisions ---

    def _check_running(self) -> None:
        if self._stopped:
            raise ShuttingDownError

    def _can_take(self, message: AppendRequest, payload: memoryview) -> bool:
        configurations = [at.index for at in message.configurations]
        return self.log.has_room_for(len(payload), configurations)

    def _may_take_over(self) -> bool:
        return not self.is_draining and self.log.has_room(OWN_ENTRY_SIZE_BYTES_MAX)

    def _best_follower(self) -> NodeId:
        return best_follower(self.replica.core.state, asked_last=self._asked_last)

    def _hand_over_for_disk(self) -> None:
        """This disk is full, or hangs; another node's may not."""
        now = self._loop.time()
        if self.role is not Role.LEADER or now - self._disk_hand_over_s < DISK_HAND_OVER_MS / 1000:
            return
        self._disk_hand_over_s = now
        target = self._best_follower()
        if target == NO_NODE:
            return
        with contextlib.suppress(TransferRefusedError):  # Then nobody is near enough.
            self.replica.transfer_leadership(target)
            self._touch()
