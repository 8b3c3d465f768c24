"""The asyncio shell of one replica of a master-slave group: it carries out the machine's effects.

Owns the order in which the machine takes inputs, their wait for room on the disk, the order of
effects, the work of a turn, the callers that wait, the machine's clock, and when a promotion may
begin (the fence alone decides its outcome). Must not know what a record means (broker, state
machine), how sockets work (link) or where bytes lie (log). Everything runs on the loop's thread.
Appends of one turn of the loop share one transfer to each slave, one sync and one wake-up of their
callers; so do the transfers that a slave takes in a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import structlog

from node.errors.common import NotReadyError, ShuttingDownError
from node.errors.ha import (
    NotMasterError,
    PromotionLostError,
    PromotionRefusedError,
    PromotionTimeoutError,
)
from node.replication.ha.applied import AppliedState
from node.replication.ha.core.effects import (
    HaEffects,
    HaRoleChange,
    LogCut,
    LossReport,
    Send,
    Ship,
)
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import (
    NO_EPOCH,
    AckMode,
    HaBusyError,
    HaRole,
    HaSettings,
    MachineNotMasterError,
    PromotionError,
)
from node.replication.ha.core.wire import body_check, transfer_head
from node.replication.ha.inbound import Inbound, connection_of
from node.replication.ha.link.link import HaLink
from node.replication.ha.pending_calls import HaPendingCalls, completion_of
from node.replication.ha.report import CaughtUp, SlaveReport
from node.replication.ha.storage.log import HaLog
from node.replication.pending_calls import PendingAppend
from node.replication.sync_requests import SyncRequests
from node.state.append_times import AppendTimes
from node.state.appends import Committed, Prepared
from raft.errors import BusyError
from raft.messages import NO_NODE, Index, NodeId, Term
from raft.transitions import Role
from store.errors import CorruptionError, FileSystemError, StoreFullError
from store.files.failpoints import hit
from store.log.cut_file import CutFile
from store.log.shipped_log import CheckedRaw

TICK_MS: Final = 100
_ROLES: Final = {
    HaRole.MASTER: Role.LEADER,
    HaRole.CANDIDATE: Role.CANDIDATE,
    HaRole.SLAVE: Role.FOLLOWER,
}
_log: Final = structlog.get_logger(component="ha")


class HaDriver:
    """Runs one replica on the running event loop; a `node.contract.Driver`."""

    def __init__(
        self,
        group: HaSettings,
        mode: AckMode | None,
        log: HaLog,
        applied: AppliedState,
        link: HaLink,
        *,
        make_image: Callable[[], Awaitable[bytes]],
        on_role: Callable[[HaRoleChange], None],
        on_fatal: Callable[[BaseException], None],
        append_times: AppendTimes,
    ) -> None:
        """`mode` says how this replica acks as master, and it proposes itself when the group is
        new; None: as the group was served before, and another one is the first master. `on_role` is
        called with every change of its role, `on_fatal` with an error after which memory and disk
        may differ; it must end the process.
        """
        self.group: Final = group
        self.node_id: Final = link.identity.node_id
        self.log: Final = log
        self.applied: Final = applied
        facts = log, log.replica, log.epochs, log.end
        self.machine: Final = HaMachine(
            HaState(group, self.node_id, *facts, mode=mode, confirm=applied.applied)
        )
        self.on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._appends: list[tuple[int, PendingAppend]] = []
        """Appends written in this turn, which the machine does not know yet."""
        self._later: list[Callable[[HaMachine], HaEffects]] = []
        """Inputs that arrived during the work on effects, or while that had to wait."""
        self._unsaved: HaEffects | None = None
        """Effects of which a part must be durable first, while the disk has no room for it."""
        self.save_error: StoreFullError | FileSystemError | None = None
        """Error behind `_unsaved`; no other work happens here until it is gone."""
        self._is_busy = False
        self._is_turn_scheduled = False
        self.is_stopped = self.is_draining = False
        self.is_ready = False
        """Whether this is a serving master that has applied everything of the epochs before."""
        self._tick_timer: asyncio.TimerHandle | None = None
        self._on_role = on_role
        self._link = link
        self.inbound: Final = Inbound(
            self.machine,
            log,
            applied,
            link,
            give=self.input,
            takes_inputs=lambda: self.save_error is None,
            touch=self.touch,
            on_fatal=on_fatal,
            make_image=make_image,
        )
        self._is_first_master = mode is not None
        self.changed = asyncio.Event()
        """Set when the role, or whether it is ready, may have changed."""
        self.advice_refused_count = 0
        self.append_times = append_times
        self._pending_calls = HaPendingCalls(self._nodes_with)
        self._syncs = SyncRequests(log.store, self._on_durable, on_fatal)
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
    def role(self) -> Role:
        """The current role in the broker's words: the master is the leader."""
        return _ROLES[self.machine.role]

    @property
    def term(self) -> Term:
        """The number of the epoch that this node takes part in."""
        return self.machine.state.bound.number

    @property
    def leader_id(self) -> NodeId:
        """The serving master, as far as this node knows; NO_NODE if it knows none."""
        state = self.machine.state
        if state.role is HaRole.MASTER:
            return self.node_id
        master = state.bound.master_id
        link = state.up(master) if state.role is HaRole.SLAVE else None
        return master if link is not None and link.is_master else NO_NODE

    def check_running(self) -> None:
        """Raise ShuttingDownError after the stop."""
        if self.is_stopped:
            raise ShuttingDownError

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
        return self._caught_up.slaves(self.machine.state)

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

    @property
    def no_room(self) -> StoreFullError | FileSystemError | None:
        """What keeps an append from being answered until the disk has room; None: nothing."""
        return self.save_error or self._apply_error

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call a listener after each turn that showed readers more, or changed a role."""
        self._listeners.append(listener)

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
        if self.is_stopped or master_id != self.node_id or number <= self.term:
            return
        if self._why_not_promote():
            self.advice_refused_count += 1
            return
        self.input(lambda machine: machine.advise(number, master_id, nonce))

    async def promote(self, timeout_ms: int) -> int:
        """Become master, and return the number of the epoch once this node serves in it: it may be
        higher than the first one it tried.

        A serving master stays one. Raises PromotionRefusedError, PromotionLostError; and
        PromotionTimeoutError, after which the node goes on trying.
        """
        self.check_running()
        if self.machine.role is not HaRole.MASTER:
            reason = self._why_not_promote()
            if reason:
                raise PromotionRefusedError(reason)
            nonce = secrets.randbits(64)
            self.input(lambda machine: machine.promote(nonce))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self.is_ready:
                    if self.machine.role is HaRole.SLAVE:
                        master_id = self.machine.state.bound.master_id
                        raise PromotionLostError(self.term, master_id)
                    self.changed.clear()
                    await self.changed.wait()
                    self.check_running()
        except TimeoutError as error:
            bound = 1 + sum(x.promise is not None for x in self.machine.state.downs())
            raise PromotionTimeoutError(bound, self.group.fence_count, timeout_ms) from error
        return self.term

    def resign(self, reason: str) -> None:
        """Stop being master; wait before for the appends under way."""
        if not self.is_stopped:
            self.input(lambda machine: machine.resign(reason))

    # --- Inputs ---

    def input(self, call: Callable[[HaMachine], HaEffects]) -> None:
        """Give the machine an input and carry out its effects; inputs caused by them come after.

        While the disk has no room for effects that must be durable first, inputs wait. They are few
        then: no frame is taken from links, no append is accepted, and time stands still.
        """
        self._later.append(call)
        if not self._is_busy and self._unsaved is None:
            self._go_on()

    def _go_on(self) -> None:
        self._is_busy = True
        try:
            if self._unsaved is not None:
                self._finish(self._unsaved)
            while self._unsaved is None and (self._later or self._appends):
                if self._appends:  # Before any other change of the machine or the log.
                    appends, self._appends = self._appends, []
                    self._finish(self.machine.appended_all(appends))
                    self.append_times.send(appends[-1][0] - 1, len(appends), appends[0][1].began_ns)
                if self._later:
                    self._finish(self._later.pop(0)(self.machine))
        except BaseException as error:
            self.on_fatal(error)
            raise
        finally:
            self._is_busy = False
        self.touch()

    def _finish(self, fx: HaEffects) -> None:
        """Save what must be durable first, then carry out the rest; without room, all of it
        waits."""
        try:
            self._save(fx)
        except (StoreFullError, FileSystemError) as error:
            if self._unsaved is None:
                _log.warning("waits until it can write what it must not forget", error=str(error))
            self._unsaved, self.save_error = fx, error
            return
        self._unsaved = self.save_error = None
        self._carry_out(fx)

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
            connection = connection_of(close.link)
            self.inbound.forget(connection)
            self._link.close(connection, close.reason)
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
        if fx.is_contested and not self.is_draining:
            nonce = secrets.randbits(64)
            self._later.append(lambda machine: machine.surpass(nonce))

    def _save(self, fx: HaEffects) -> None:
        """Make durable what comes first. Each step happens once, however often it is repeated.

        Raises StoreFullError or FileSystemError: repeat it before any other work here.
        """
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
            log.losses.note(log.count_loss(fx.losses.pop(0)))
        log.losses.save()

    def _cut(self, cut: LogCut, loss: LossReport) -> None:
        assert (loss.lo, loss.hi) == cut, f"a cut of {cut} with {loss}"
        counted = self.log.count_loss(loss)  # Now: the bytes are still there.

        def report(aside: CutFile) -> None:
            self.log.losses.note(replace(counted, file=aside.path))
            self.log.losses.save()  # Before the cut: a crash after it would lose the report.

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

    def _note_role(self, change: HaRoleChange) -> None:
        if change.role is HaRole.MASTER:
            with contextlib.suppress(FileSystemError):  # Otherwise the first append does it.
                self.log.store.find_offsets()
            self._caught_up.clear()
        else:
            self.is_ready = False  # At once: later calls of this turn are refused.
            self._pending_calls.fail_all_reads(self.leader_id)
        self.append_times.clear()
        self._has_news = True
        self.changed.set()
        self._on_role(change)

    # --- The turn ---

    def touch(self) -> None:
        """Schedule a turn."""
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_turn_scheduled = False
        if self.is_stopped:
            return
        if self._appends:
            self.input(lambda _: HaEffects())
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
        # A new log has its first file then: a Raft leader has one, since it has written.
        has_begun = self.is_ready or not self.log.is_empty
        self.is_ready = is_open and (has_begun or self.log.store.has_room(1))
        self.append_times.answer(self._confirm - 1, applied.applied - 1)
        self._pending_calls.decide((), applied.applied - 1)
        self._pending_calls.confirm((), applied.applied - 1)
        seen = self.role, self.leader_id, self.is_ready
        if self._has_news or seen != self._was_seen:
            self._has_news, self._was_seen = False, seen
            self.changed.set()
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
            self._maybe_propose()
            self.inbound.tick(now_ms)

    # --- Small decisions ---

    def _why_not_promote(self) -> str:
        if self.is_draining:
            return f"node {self.node_id} is draining"
        if (error := self.save_error) is not None:
            return f"node {self.node_id} cannot write what it would promise: {error}"
        if self.applied.is_missing:
            return f"node {self.node_id} has no copy of the replicated state yet"
        try:
            self.machine.check_promotion()
        except PromotionError as refusal:
            return refusal.reason
        return ""

    def _maybe_propose(self) -> None:
        """Become the first master of a new group, once all replicas are connected and none was
        master."""
        if not self._is_first_master:
            return
        state = self.machine.state
        if state.highest_epoch > NO_EPOCH:
            self._is_first_master = False
            return
        is_complete = len(state.downs()) == len(self.group.replica_ids) - 1
        if is_complete and not self._why_not_promote():
            self._is_first_master = False
            nonce = secrets.randbits(64)
            self.input(lambda machine: machine.promote(nonce))

    def _nodes_with(self, index: Index) -> tuple[NodeId, ...]:
        state = self.machine.state
        own = [self.node_id] if state.durable > index else []
        return tuple(sorted([*own, *state.copies.holders(index + 1)]))
