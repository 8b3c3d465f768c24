"""Callers that wait in master-slave mode: an append for its copies, a read for a proof.

Owns the reads that one proof covers, and the words of the machine for outcomes. Must not know when
an append is decided or shown to readers: the driver reports it. Runs on the loop's thread.
"""

from collections.abc import Iterable

from node.replication.ha.core.effects import Resolved
from node.replication.pending_calls import PendingAppend, PendingCalls
from raft.messages import NO_INDEX, NodeId
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

    _proof = range(1, 1)
    """Reads that the proof under way covers; empty: none is under way. Later ones wait for the next
    proof."""

    def note(self, resolved: Iterable[Resolved]) -> None:
        """Note outcomes; `decide` answers those that are to be acknowledged, once shown."""
        self.decide([completion_of(*append) for append in resolved], NO_INDEX)

    def cut(self, position: int) -> None:
        """Give up appends that end behind this position: they are cut, and were not answered
        yet."""
        cut = [append for append in self.decided if append.index >= position]
        self.decided = [append for append in self.decided if append.index < position]
        self._give_up(cut)

    def begin_proof(self) -> bool:
        """Begin a proof for all reads that wait, unless one is under way; return whether it
        began."""
        waiting = range(self._proof.stop, self.next_read_id())
        if self._proof or not waiting:
            return False
        self._proof = waiting
        return True

    def prove(self, position: int) -> None:
        """Note the proof; before the answer readers must see the log up to `position`."""
        proven = [read for read in self._reads if read in self._proof]
        self.confirm([ReadConfirmed(read, position - 1) for read in proven], NO_INDEX)
        self._proof = range(self._proof.stop, self._proof.stop)

    def forget_reads(self) -> None:
        """Drop waiting reads that are done, for instance after their time-out."""
        waiting = [read for read in self._reads if read >= self._proof.stop]
        for read in waiting:
            if self._reads[read].done():
                del self._reads[read]

    def fail_all_reads(self, leader: NodeId) -> None:
        """Fail all reads, since this node serves no more."""
        self.fail_reads(list(self._reads), leader)
        self.confirmed = []
        self._proof = range(self.next_read_id(), self.next_read_id())
