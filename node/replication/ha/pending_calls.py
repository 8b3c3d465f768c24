"""Callers that wait for the outcome of an append or a read in master-slave mode.

Owns the futures: each is resolved exactly once, or was cancelled by its caller. Must not know when
an append is decided or shown to readers: the driver reports it. Runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from node.errors.common import OutcomeUnknownError, ReadFailedError, ShuttingDownError
from node.replication.ha.core.effects import Resolved
from node.state.appends import Committed
from raft.messages import Index, NodeId, Term
from store.errors import Outcome
from store.log.record_log import AppendResult


class HaPendingAppend:
    """A caller that waits for its batch."""

    __slots__ = ("began_ns", "future", "result", "term")

    def __init__(self, future: asyncio.Future[Committed], result: AppendResult, term: Term) -> None:
        self.future, self.result, self.term = future, result, term
        self.began_ns = time.perf_counter_ns()


class HaPendingCalls:
    """All waiting callers. Bounded by the machine, which refuses new appends above its limit, and
    by the broker's limit of waiting reads."""

    def __init__(self, holders: Callable[[int], tuple[NodeId, ...]]) -> None:
        """`holders(position)` returns the replicas known to have synced everything below."""
        self._loop = asyncio.get_running_loop()
        self._holders = holders
        self._decided: list[Resolved] = []
        """Appends acknowledged by the machine, and not yet shown to readers here."""
        self._confirmed: list[tuple[int, list[asyncio.Future[Index]]]] = []
        """Reads, and the position up to which readers must see the log first."""
        self._running: list[asyncio.Future[Index]] = []
        """Reads that the machine confirms now, as one."""
        self._next: list[asyncio.Future[Index]] = []

    # --- Appends ---

    def append(self, result: AppendResult, term: Term) -> HaPendingAppend:
        """Return a waiting append for a batch that was written."""
        return HaPendingAppend(self._loop.create_future(), result, term)

    def decide(self, resolved: Iterable[Resolved]) -> None:
        """Note outcomes; `settle` answers those that are to be acknowledged."""
        for one in resolved:
            if one.outcome is Outcome.APPLIED:
                self._decided.append(one)
            else:
                self._give_up(one)

    def settle(self, applied: int) -> None:
        """Answer the calls whose batch or position readers see now: everything below `applied`."""
        done = 0
        for one in self._decided:  # In the order of the log, except after a change of the mode.
            if one.end > applied:
                break
            done += 1
            self._acknowledge(one)
        del self._decided[:done]
        while self._confirmed and self._confirmed[0][0] <= applied:
            for future in self._confirmed.pop(0)[1]:
                _resolve(future, applied - 1)

    def cut(self, position: int) -> None:
        """Give up appends that end behind this position: they are cut, and were not answered
        yet."""
        gone = [one for one in self._decided if one.end > position]
        self._decided = [one for one in self._decided if one.end <= position]
        for one in gone:
            self._give_up(one)

    def _acknowledge(self, resolved: Resolved) -> None:
        waiter = resolved.waiter
        assert isinstance(waiter, HaPendingAppend), f"waiter {waiter!r}"
        if waiter.future.done():
            return  # The caller was cancelled; the batch stays.
        committed = Committed(
            resolved.end - 1,
            waiter.term,
            waiter.result,
            self._holders(resolved.end),
            (time.perf_counter_ns() - waiter.began_ns) // 1000,
        )
        waiter.future.set_result(committed)

    def _give_up(self, resolved: Resolved) -> None:
        waiter = resolved.waiter
        assert isinstance(waiter, HaPendingAppend), f"waiter {waiter!r}"
        if not waiter.future.done():
            waiter.future.set_exception(OutcomeUnknownError(resolved.end - 1, waiter.term))

    # --- Reads ---

    def read(self) -> asyncio.Future[Index]:
        """Return a future for the proof that this node is the master."""
        future: asyncio.Future[Index] = self._loop.create_future()
        self._next.append(future)
        return future

    def begin_reads(self) -> bool:
        """Begin a proof for all reads that wait, unless one is under way; return whether it
        began."""
        if self._running or not self._next:
            return False
        self._running, self._next = self._next, []
        return True

    def confirm_reads(self, position: int) -> None:
        """Note the proof; before the answer readers must see the log up to `position`."""
        self._confirmed.append((position, self._running))
        self._running = []

    def fail_reads(self, leader: NodeId) -> None:
        """Fail all reads, since this node serves no more."""
        reads = [*self._running, *self._next]
        for _, futures in self._confirmed:
            reads += futures
        self._running, self._next, self._confirmed = [], [], []
        for future in reads:
            _fail(future, ReadFailedError(leader))

    def forget_reads(self) -> None:
        """Drop reads that are done, for instance after their time-out."""
        self._next = [future for future in self._next if not future.done()]

    # --- The end ---

    def stop(self, waiters: Iterable[object]) -> None:
        """Answer every call, since no more is decided here: appends are unknown, reads may be
        repeated at another node."""
        decided, self._decided = self._decided, []
        for waiter in [*(one.waiter for one in decided), *waiters]:
            assert isinstance(waiter, HaPendingAppend), f"waiter {waiter!r}"
            if not waiter.future.done():
                end = waiter.result.end_position
                waiter.future.set_exception(OutcomeUnknownError(end - 1, waiter.term))
        reads = [*self._running, *self._next]
        for _, futures in self._confirmed:
            reads += futures
        self._running, self._next, self._confirmed = [], [], []
        for future in reads:
            _fail(future, ShuttingDownError())


def _resolve(future: asyncio.Future[Index], index: Index) -> None:
    if not future.done():
        future.set_result(index)


def _fail(future: asyncio.Future[Index], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
