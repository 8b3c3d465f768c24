"""Freshness of reads: waits until a read may be served here (docs/guarantees.md).

Owns the four promises of fault-matrix section 1 for reads; must not know what is read. Under every
promise only what is committed and applied here is served.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from node.broker.core.context import Context, within
from node.broker.core.parked_readers import ParkedReaders
from node.errors.common import BadRequestError, NodeError, ReadTimeoutError
from quorumlog.pb import common_pb2
from raft.errors import RaftError
from raft.messages import Index

_CONSISTENCIES: Final = frozenset(common_pb2.Consistency.values())


class Freshness:
    """Lets a read wait until this replica is as fresh as promised. One per broker."""

    def __init__(self, context: Context, parked: ParkedReaders) -> None:
        self._context: Final = context
        self._parked = parked
        self.barriers_total = 0

    def check(self, consistency: common_pb2.Consistency) -> None:
        """Raise unless this node may (still) answer a read of this kind."""
        if consistency == common_pb2.CONSISTENCY_LOCAL:
            self._context.check_local()
        else:
            self._context.check_leads()

    async def ensure(
        self, consistency: common_pb2.Consistency, at_least: Index | None = None
    ) -> None:
        """Return once a read from this replica is as fresh as asked for.

        `at_least`: an entry that must have been applied. Raises NotLeaderError, NotReadyError,
        ReadFailedError, ReadTimeoutError, BusyError, BadRequestError.
        """
        context = self._context
        if at_least is not None and at_least > context.driver.applied_index:
            self.check(consistency)
            what = f"entry {at_least} was not applied here"
            await self._wait(lambda: self._parked.for_index(at_least), what)
        if consistency not in _CONSISTENCIES:
            raise BadRequestError("consistency", "one of Consistency", str(consistency))
        self.check(consistency)
        if consistency == common_pb2.CONSISTENCY_LINEARIZABLE:
            self.barriers_total += 1
            try:
                await self._wait(context.driver.read_barrier, "no quorum confirmed the read")
            except (NodeError, RaftError) as error:
                translated = context.translate(error)
                if translated is error:
                    raise
                raise translated from error

    async def _wait(self, begin: Callable[[], Awaitable[object]], what: str) -> None:
        host = self._parked.reads.take()
        timeout_ms = self._context.limits.read_wait_ms_max
        try:
            await within(begin(), timeout_ms, lambda: ReadTimeoutError(what, timeout_ms))
        finally:
            self._parked.reads.give_back(host)
        await self._context.turn.next()  # One answer confirms all reads that wait.
        self._context.check_running()
