"""The asyncio shell of one replica of a master-slave group: it carries out the machine's effects.

Owns the order of effects, the work of a turn, the callers that wait, and the machine's clock. Must
not know what a record means (broker, state machine), how sockets work (link), where bytes lie (log)
or how inputs wait (replica). Everything runs on the loop's thread. Appends of one turn of the loop
share one transfer to each slave, one sync and one wake-up of their callers; so do the transfers
that a slave takes in a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from node.errors.common import NotReadyError
from node.errors.ha import NotMasterError
from node.replication.ha.applied import AppliedState
from node.replication.ha.core.effects import (
    Close,
    HaEffects,
    HaRoleChange,
    LogCut,
    LossReport,
    Send,
    Ship,
)
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import (
    AckMode,
    HaBusyError,
    HaRole,
    HaSettings,
    MachineNotMasterError,
)
from node.replication.ha.core.wire import body_check, transfer_head
from node.replication.ha.inbound import Inbound, connection_of
from node.replication.ha.link.link import HaLink
from node.replication.ha.pending_calls import HaPendingCalls, completion_of
from node.replication.ha.promotion import Promotion
from node.replication.ha.replica import HaReplica
from node.replication.ha.report import CaughtUp, SlaveReport, slaves_of
from node.replication.ha.storage.log import HaLog
from node.replication.ha.storage.loss_count import count_loss
from node.replication.ha.storage.losses import LossFile
from node.replication.pending_calls import PendingAppend
from node.replication.sync_requests import SyncRequests
from node.state.appends import Committed, Prepared
from raft.errors import BusyError
from raft.messages import NO_NODE, Index, NodeId
from raft.transitions import Role
from store.errors import CorruptionError, FileSystemError, StoreFullError
from store.files.failpoints import hit
from store.log.cut_file import CutFile
from store.log.shipped_log import CheckedRaw

TICK_MS: Final = 100


class HaDriver(HaReplica):
    """Runs one replica on the running event loop; a `node.contract.Driver`."""

    def __init__(
        self,
        group: HaSettings,
        node_id: NodeId,
        log: HaLog,
        applied: AppliedState,
        link: HaLink,
        losses: LossFile,
        *,
        mode: AckMode | None,
        is_first_master: bool,
        make_image: Callable[[], Awaitable[bytes]],
        on_role: Callable[[HaRoleChange], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`mode` says how this replica acks as master; None: as the group was served before.

        `is_first_master`: whether it proposes itself when the group is new. `on_role` is called
        with every change of its role, `on_fatal` with an error after which memory and disk may
        differ; it must end the process.
        """
        super().__init__(group, node_id, log, applied, mode=mode, on_fatal=on_fatal)
        self._tick_timer: asyncio.TimerHandle | None = None
        self.losses: Final = losses
        self._on_role = on_role
        self._link = link
        self.inbound: Final = Inbound(self, log, applied, link, make_image)
        self.promotion: Final = Promotion(self, is_first_master=is_first_master)
        self._pending_calls = HaPendingCalls(self._nodes_with)
        self._syncs = SyncRequests(log.store, self._on_durable, on_fatal, is_flush_sync=True)
        self._sync_count = 0
        self._has_unsynced = False
        self._confirm = applied.applied
        """Limit of readers."""
        self._apply_error: StoreFullError | FileSystemError | None = None
        self._caught_up = CaughtUp()
        self._has_news = False
        self._was_seen: tuple[Role, NodeId, bool] = (Role.FOLLOWER, NO_NODE, False)
        self._listeners: list[Callable[[], None]] = []
        self.apply_retry_count = 0
        """Times that decided batches could not be shown, as the disk has no room for queues."""

    # --- Facts ---

    @property
    def applied_index(self) -> Index:
        """Last byte of the log that readers here see."""
        return self.applied.applied - 1

    @property
    def commit_index(self) -> Index:
        """Last byte that readers may see."""
        return self._confirm - 1

    def slaves(self) -> list[SlaveReport]:
        """Return the status of the other replicas, as far as this one knows them."""
        return slaves_of(self.machine.state, self._caught_up)

    def in_sync(self) -> list[NodeId]:
        """Return, on a serving master, itself and every replica that holds all that readers see."""
        own = [self.node_id] if self.machine.role is HaRole.MASTER else []
        return sorted([*own, *(slave.replica_id for slave in self.slaves() if slave.is_in_sync)])

    # --- Life ---

    def start(self) -> None:
        """Start the ticks. Connections may be handed in from now on."""
        self._tick()

    def stop(self) -> None:
        """Stop: every caller that waits learns that the outcome is unknown. The log stays open."""
        self.is_stopped = True
        self.is_ready = False
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._syncs.stop()
        self.inbound.stop()
        waiters: list[object] = [waiter for _, waiter in self._appends]
        self._appends = []
        waiters += [one.waiter for one in self.machine.state.give_up()]
        if self._unsaved is not None:
            waiters += [one.waiter for one in self._unsaved.resolved]
        self._pending_calls.stop(map(completion_of, waiters))

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each turn that showed readers more, or changed a role."""
        self._listeners.append(listener)

    @property
    def no_room(self) -> StoreFullError | FileSystemError | None:
        """What keeps an append from being answered until the disk has room; None: nothing."""
        return self.save_error or self._apply_error

    # --- Requests of this node's broker ---

    def append(self, batch: bytes, check: Callable[[Prepared], None]) -> asyncio.Future[Committed]:
        """Append one batch; the future resolves when it is as safe as the mode says, and shown.

        `check` sees what the batch touches and may refuse it by raising. Raises at once, with
        nothing written: NotMasterError, NotReadyError, Raft's BusyError, the store's errors for bad
        input or a full disk, and the errors of `check`. The future fails with OutcomeUnknownError.
        Cancelling it does not withdraw the batch.
        """
        self.check_running()
        try:
            self.machine.check_append()
        except MachineNotMasterError as error:
            raise NotMasterError(self.leader_id) from error
        except HaBusyError as error:
            raise BusyError("appends that wait for copies", error.held, error.limit) from error
        if not self.is_ready:
            raise NotReadyError(self.term)
        if (no_room := self.no_room) is not None:
            # This append could not be answered before there is room.
            self.log.store.counters.store_full_count += isinstance(no_room, StoreFullError)
            raise no_room.with_traceback(None)
        prepared = self.log.prepare(batch)
        check(prepared)
        try:
            result = self.log.append(prepared)
        except BaseException as error:
            self.on_fatal(error)
            raise
        pending = PendingAppend(self._loop.create_future(), prepared, self.term)
        self._appends.append((result.end_position, pending))
        self._has_unsynced = True
        self.touch()
        return pending.future

    def read_barrier(self) -> asyncio.Future[Index]:
        """Prove that no newer master serves, by a round to enough replicas; resolves with an index.

        Everything acked before the call is shown here then. Raises NotMasterError at once; the
        future fails with ReadFailedError when this node stopped serving meanwhile.
        """
        self.check_running()
        if self.machine.role is not HaRole.MASTER:
            raise NotMasterError(self.leader_id)
        self.touch()
        return self._pending_calls.read()

    # --- Changes of the master ---

    def advise(self, number: int, master_id: NodeId, nonce: int) -> None:
        """Take a controller's proposal. It starts a promotion at most, and the fence decides."""
        if not self.is_stopped:
            self.promotion.advise(number, master_id, nonce)

    async def promote(self, timeout_ms: int) -> int:
        """Become master; see `Promotion.promote`."""
        self.check_running()
        return await self.promotion.promote(timeout_ms)

    def resign(self, reason: str) -> None:
        """Stop being master; wait before for the appends under way."""
        if not self.is_stopped:
            self.input(lambda machine: machine.resign(reason))

    # --- Effects ---

    def _carry_out(self, fx: HaEffects) -> None:
        for write in fx.write:
            assert isinstance(write.checked, CheckedRaw), f"at {write.position}: not checked"
            self.log.store.write_raw(write.checked)
            self._has_unsynced = True
        if fx.send:
            hit("ha_driver.before_send")
            self._send(fx.send)
            hit("ha_driver.after_send")
        for close in fx.close:
            self._close(close)
        if fx.confirm is not None:
            hit("ha_driver.before_confirm")
            self._confirm = fx.confirm
        if fx.resolved:
            hit("ha_driver.before_decide")
            self._pending_calls.note(fx.resolved)
        if fx.is_proven:
            self._pending_calls.prove(self._confirm)
        for change in fx.role_changes:
            self._note_role(change)

    def _save(self, fx: HaEffects) -> None:
        log = self.log
        if fx.state is not None:
            log.save_state(fx.state)
            fx.state = None
        if fx.cut is not None:
            self._cut(fx.cut, fx.losses[0])
            fx.cut = None
            del fx.losses[0]
        if fx.epochs is not None:
            log.save_epochs(fx.epochs)
            fx.epochs = None
        while fx.losses:
            self.losses.note(count_loss(log, fx.losses.pop(0)))
        self.losses.save()

    def _cut(self, cut: LogCut, loss: LossReport) -> None:
        assert (loss.lo, loss.hi) == cut, f"a cut of {cut} with {loss}"
        counted = count_loss(self.log, loss)  # Now: the bytes are still there.

        def report(aside: CutFile) -> None:
            self.losses.note(replace(counted, file=aside.path))
            self.losses.save()  # Before the cut: a crash after it would lose the report.

        self.applied.cut(cut.lo, cut.hi, loss.epoch, report)
        self._pending_calls.cut(cut.lo)
        self._confirm = min(self._confirm, cut.lo)
        self._has_news = True

    def _send(self, items: list[Send | Ship]) -> None:
        """Send frames, and bytes of the log; slaves at the same position get the same bytes."""
        lo = hi = 0
        body = check = b""
        for item in items:
            connection = connection_of(item.link)
            if isinstance(item, Send):
                connection.send_frame(item.frame)
                continue
            if (lo, hi) != (item.lo, item.hi):
                try:
                    body = self.log.store.shipped.read_raw(item.lo, item.hi)
                except CorruptionError as error:
                    # Damaged bytes must not look replicated; the operator sees it in the log.
                    self.inbound.close(connection, str(error))
                    continue
                lo, hi, check = item.lo, item.hi, b""
            connection.send(transfer_head(item.head, len(body)))
            connection.send(body)
            check = check or body_check(body)
            connection.send(check)

    def _close(self, close: Close) -> None:
        connection = connection_of(close.link)
        self.inbound.forget(connection)
        self._link.close(connection, close.reason)

    def _note_role(self, change: HaRoleChange) -> None:
        if change.role is HaRole.MASTER:
            with contextlib.suppress(FileSystemError):  # Otherwise the first append does it.
                self.log.store.find_offsets()
            self._caught_up.clear()
        else:
            self.is_ready = False  # At once: later calls of this turn are refused.
            self._pending_calls.fail_all_reads(self.leader_id)
        self._has_news = True
        self.promotion.changed.set()
        self._on_role(change)

    # --- The turn ---

    def _turn(self) -> None:
        if self._appends:
            self.input(_nothing)
        if self._unsaved is None and self._pending_calls.begin_proof():
            self.input(HaMachine.prove_master)
        try:
            if self._has_unsynced:
                self._has_unsynced = False
                self._sync_count += 1
                self._syncs.flush(self._sync_count, must_sync=True)
            self._apply()
        except BaseException as error:
            self.on_fatal(error)
            raise

    def _apply(self) -> None:
        """Show readers what is confirmed, and answer the calls that wait for it.

        If the queues cannot grow, the next tick tries again: no call is answered before.
        """
        applied = self.applied
        self._apply_error = None
        if self._confirm > applied.applied:
            try:
                hit("ha_driver.before_apply")
                applied.apply(self._confirm)
                hit("ha_driver.after_apply")
                self._has_news = True
            except (StoreFullError, FileSystemError) as error:
                self.apply_retry_count += 1
                self._apply_error = error
        state = self.machine.state
        start = state.copies.epoch_start
        is_serving = state.role is HaRole.MASTER and self._unsaved is None
        is_open = is_serving and min(self._confirm, applied.applied) >= start
        self.is_ready = is_open and (self.is_ready or self._can_begin())
        self._pending_calls.decide((), applied.applied - 1)
        self._pending_calls.confirm((), applied.applied - 1)
        seen = self.role, self.leader_id, self.is_ready
        if self._has_news or seen != self._was_seen:
            self._has_news, self._was_seen = False, seen
            self.promotion.changed.set()
            for listener in self._listeners:
                listener()

    def _on_durable(self, _ticket: int) -> None:
        # An empty log that has just begun with an image is ahead of the machine.
        self.input(lambda m: m.durable_to(min(self.log.store.durable_position, m.state.end)))

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(TICK_MS / 1000, self._tick)
        now_ms = int(self._loop.time() * 1000)
        if self._unsaved is not None:
            self._go_on()
        if self._unsaved is None:
            self.input(lambda machine: machine.tick(now_ms))
            self.inbound.go_on()
        self._pending_calls.forget_reads()
        state = self.machine.state
        if state.role is HaRole.MASTER:
            self._caught_up.look(state)
        if self._unsaved is None:
            self.promotion.maybe_propose()
            self.inbound.tick(now_ms)

    # --- Small decisions ---

    def _can_begin(self) -> bool:
        """Whether a new log has its first file: a Raft leader has one, since it has written."""
        return not self.log.is_empty or self.log.store.has_room(1)

    def _nodes_with(self, index: Index) -> tuple[NodeId, ...]:
        state = self.machine.state
        own = [self.node_id] if state.durable > index else []
        return tuple(sorted([*own, *state.copies.holders(index + 1)]))


def _nothing(_: HaMachine) -> HaEffects:
    return HaEffects()
