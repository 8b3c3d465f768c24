"""Named producers: the incarnation that holds each name, and the refusal of all others.

Owns the claim and the check (fault-matrix K3, I12): from the moment at which a claim enters the log
no batch of an earlier incarnation does, so nothing of one lies behind it. Must not know how a batch
is written, or numbered: `sequences` finds repeated batches before they reach this check.
"""

from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Refused
from node.broker.core.context import Context
from node.errors.common import LimitReachedError, ProducerFencedError
from node.runtime.background import BackgroundTasks
from node.state.tables.incarnations import IncarnationsTable
from quorumlog.pb.log_pb2 import ClaimProducerRequest, ClaimProducerResponse, ProducerIncarnation
from quorumlog.pb.state_pb2 import Command


class Incarnations:
    """Claims and checks of names. One per broker. Claims under way are of one term: see `end`."""

    def __init__(self, context: Context, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._own_appends = own_appends
        self._tasks = BackgroundTasks("a claim of a producer's name failed", Refused)
        self._coming: dict[str, set[int]] = {}
        """The claims of each name that are in the log and not known to be applied."""

    async def claim_producer(self, request: ClaimProducerRequest) -> ClaimProducerResponse:
        """Make the caller the last incarnation of a name; once this returns all others are fenced.

        A repetition after a lost answer fences what was claimed for the same caller before, which
        has sent nothing. Raises LimitReachedError, NotLeaderError and as `OwnAppends.write`.
        """
        context, name = self._context, request.name
        context.check_call(request.cluster_id, "name", name)
        # A caller that gives up does not withdraw the claim: it counts until it is decided.
        return await context.decided(self._tasks.run(self._write(name)))

    async def _write(self, name: str) -> ClaimProducerResponse:
        """Claim the next number: from reading the last one to the log no other task runs."""
        numbers = self._context.state.table(IncarnationsTable).numbers
        count = len(numbers.keys() | self._coming.keys() | {name})  # With all under way applied.
        limit = self._context.limits.producer_name_count_max
        if name not in numbers and count > limit:
            raise LimitReachedError("names of producers", count, limit)
        self._context.makers.check_producer(name)
        number = self._last(name) + 1
        command = Command(claim_producer=Command.ClaimProducer(name=name, number=number))
        table = self._coming
        coming = table.setdefault(name, set())
        coming.add(number)
        try:
            # The entry is written before anything else can happen, or not at all. Should it fail
            # later, this node leads no longer: `end` was called, and the next leader knows.
            written = await self._own_appends.write(b"", [command])
        finally:
            coming.remove(number)
            if not coming:
                del table[name]
        return ClaimProducerResponse(number=number, index=written.index)

    def check(self, incarnation: ProducerIncarnation) -> None:
        """Raise ProducerFencedError for a batch whose sender does not hold the name (any more)."""
        last = self._last(incarnation.name)
        if incarnation.number != last or not last:  # No producer has number 0.
            raise ProducerFencedError(incarnation.name, incarnation.number, last)

    def _last(self, name: str) -> int:
        numbers = self._context.state.table(IncarnationsTable).numbers
        return max(numbers.get(name, 0), *self._coming.get(name, (0,)))

    def end(self) -> None:
        """Forget what was under way: the next leader's log decides it."""
        self._coming = {}
