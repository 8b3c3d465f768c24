"""Callers that wait for the outcome of an append, a membership change or a read.

Owns the futures: each is resolved exactly once, or was cancelled by its caller. Must not know when
an entry is applied or a read confirmed: the driver reports it. Runs on the loop's thread.
"""

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Iterable
from typing import Any, Final

from node.errors.common import (
    NotAppliedError,
    OutcomeUnknownError,
    ReadFailedError,
    ShuttingDownError,
)
from node.state.appends import Committed, Prepared
from raft.messages import NO_TERM, Index, NodeId, Term
from raft.pump.effects import Completion, Resolution
from raft.ready import ReadConfirmed

_now_ns: Final = time.perf_counter_ns
_new: Final = tuple.__new__  # One call; the constructor of a named tuple is two.


class PendingAppend:
    """A caller that waits for its batch."""

    __slots__ = ("began_ns", "future", "prepared", "term")

    def __init__(
        self, future: "asyncio.Future[Committed]", prepared: Prepared, term: Term = NO_TERM
    ) -> None:
        """`term`: for a mode whose decisions do not tell it."""
        self.future = future
        self.prepared = prepared
        self.term = term
        self.began_ns = _now_ns()


class PendingCalls:
    """All waiting callers. Bounded by the pump or machine, which refuses new ones above its
    limits."""

    def __init__(self, nodes_with: Callable[[Index], tuple[NodeId, ...]]) -> None:
        """`nodes_with(index)` returns the nodes known to have an entry."""
        self._loop = asyncio.get_running_loop()
        self._nodes_with = nodes_with
        self.decided: list[Completion] = []
        """Outcomes of entries that are committed, and not yet applied here."""
        self._reads: dict[int, asyncio.Future[Index]] = {}
        self.confirmed: list[tuple[Index, int]] = []
        """Confirmed reads that wait until their index is applied, in the order of indexes."""
        self._read_count = 0

    # --- Entries ---

    def decide(self, completions: Iterable[Completion], applied: Index) -> None:
        """Answer decided calls; that of a committed entry is answered once the entry is applied."""
        self.decided += completions
        decided, self.decided = self.decided, []
        for completion in decided:
            if completion.resolution is Resolution.COMMITTED and completion.index > applied:
                self.decided.append(completion)
            else:
                self._resolve(completion)

    def _resolve(self, completion: Completion) -> None:
        waiter, index, term, resolution = completion
        if type(waiter) is PendingAppend and resolution is Resolution.COMMITTED:
            if waiter.future.done():
                return  # The caller was cancelled; the entry stays.
            result = waiter.prepared.result
            assert result is not None, f"entry {index} committed, but was never written"
            assert result.entry_index in (index, -1), f"{result} is not entry {index}"
            took_us = (_now_ns() - waiter.began_ns) // 1000
            committed = index, term, result, self._nodes_with(index), took_us
            waiter.future.set_result(_new(Committed, committed))
            return
        future = waiter.future if type(waiter) is PendingAppend else waiter
        assert isinstance(future, asyncio.Future), f"waiter {waiter!r}"
        match resolution:
            case Resolution.NOT_APPLIED:
                _fail(future, NotAppliedError(index, term))
            case Resolution.UNKNOWN:
                _fail(future, OutcomeUnknownError(index, term))
            case Resolution.COMMITTED if not future.done():
                future.set_result(index)

    # --- Reads ---

    def next_read_id(self) -> int:
        """Return the id of the read that is begun next."""
        return self._read_count + 1

    def read(self) -> "asyncio.Future[Index]":
        """Return the future of the read `next_read_id`, once the pump has taken it."""
        self._read_count += 1
        future: asyncio.Future[Index] = self._loop.create_future()
        self._reads[self._read_count] = future
        return future

    def confirm(self, reads: Iterable[ReadConfirmed], applied: Index) -> None:
        """Answer confirmed reads whose index is applied. Call it every turn."""
        for read_id, index in reads:
            insort(self.confirmed, (index, read_id))
        count = 0
        for index, read_id in self.confirmed:
            if index > applied:
                break
            count += 1
            future = self._reads.pop(read_id)
            if not future.done():
                future.set_result(index)
        del self.confirmed[:count]

    def fail_reads(self, read_ids: Iterable[int], leader: NodeId) -> None:
        """Fail these reads: leadership was lost before they were confirmed."""
        for read_id in read_ids:
            _fail(self._reads.pop(read_id), ReadFailedError(leader))

    # --- The end ---

    def stop(self, completions: Iterable[Completion]) -> None:
        """Answer every call, since no more is decided here: appends are unknown, reads may be
        repeated at another node."""
        self._give_up([*self.decided, *completions])
        self.decided, self.confirmed = [], []
        reads, self._reads = self._reads, {}
        for future in reads.values():
            _fail(future, ShuttingDownError())

    def _give_up(self, completions: Iterable[Completion]) -> None:
        for completion in completions:
            self._resolve(completion._replace(resolution=Resolution.UNKNOWN))


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
