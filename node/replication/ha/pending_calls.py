"""Callers that wait in master-slave mode: an append for its copies, a read for a proof.

Owns the reads that one proof covers, and the words of the machine for outcomes. Must not know when
an append is decided or shown to readers: the driver reports it. Runs on the loop's thread.
"""

import asyncio
from collections.abc import Callable, Iterable

from node.replication.ha.core.effects import Resolved
from node.replication.pending_calls import PendingAppend, PendingCalls
from raft.messages import NO_INDEX, Index, NodeId
from raft.pump.effects import Completion, Resolution
from raft.ready import ReadConfirmed
from store.errors import Outcome


def completion_of(waiter: object, outcome: Outcome = Outcome.UNKNOWN) -> Completion:
    """Return the decision on a batch that was written."""
    assert isinstance(waiter, PendingAppend), f"waiter {waiter!r}"
    assert waiter.prepared.result is not None, "it was not written"
    is_applied = outcome is Outcome.APPLIED
    resolution = Resolution.COMMITTED if is_applied else Resolution.UNKNOWN
    index = waiter.prepared.result.end_position - 1
    return Completion(waiter, index, waiter.term, resolution)


class HaPendingCalls(PendingCalls):
    """All waiting callers of a replica. The broker limits the reads."""

    def __init__(self, nodes_with: Callable[[Index], tuple[NodeId, ...]]) -> None:
        super().__init__(nodes_with)
        self._running: list[int] = []
        """Reads that the machine confirms now, as one."""
        self._next: list[int] = []

    def note(self, resolved: Iterable[Resolved]) -> None:
        """Note outcomes; `settle` answers those that are to be acknowledged."""
        self.decide([completion_of(one.waiter, one.outcome) for one in resolved], NO_INDEX)

    def settle(self, applied: Index) -> None:
        """Answer the calls whose batch or position readers see now."""
        self.decide((), applied)
        self.confirm((), applied)

    def cut(self, position: int) -> None:
        """Give up appends that end behind this position: they are cut, and were not answered
        yet."""
        gone = [one for one in self.decided if one.index >= position]
        self.decided = [one for one in self.decided if one.index < position]
        self._give_up(gone)

    def begin_reads(self) -> bool:
        """Begin a proof for all reads that wait, unless one is under way; return whether it
        began."""
        if self._running or not self._next:
            return False
        self._running, self._next = self._next, []
        return True

    def read(self) -> "asyncio.Future[Index]":
        """Return a future for the proof that this node is the master."""
        self._next.append(self.next_read_id())
        return super().read()

    def confirm_reads(self, position: int) -> None:
        """Note the proof; before the answer readers must see the log up to `position`."""
        self.confirm([ReadConfirmed(read, position - 1) for read in self._running], NO_INDEX)
        self._running = []

    def fail_all_reads(self, leader: NodeId) -> None:
        """Fail all reads, since this node serves no more."""
        self.fail_reads(list(self._reads), leader)
        self._running, self._next, self.confirmed = [], [], []

    def forget_reads(self) -> None:
        """Drop reads that are done, for instance after their time-out."""
        for read in self._next:
            if self._reads[read].done():
                del self._reads[read]
        self._next = [read for read in self._next if read in self._reads]
