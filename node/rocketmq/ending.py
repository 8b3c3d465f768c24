"""The end of transactions and of delays: EndTransaction, orphans, RecallMessage.

Owns the way between the ids of the protocol and the broker's. Producers of the protocol have no
group, so the topic of a half message stands for one. Whoever leads asks the producers that are
connected to it; clients open a stream to each node that their routes name (protocol section 9).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

import structlog

from node.rocketmq import handles
from node.rocketmq.clients import Clients
from node.rocketmq.cluster import Cluster
from node.rocketmq.messages import from_record
from node.rocketmq.names import topic_name
from node.rocketmq.statuses import OK, RefusedError
from quorumlog.pb import delay_pb2, transaction_pb2
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, TransactionResolution
from quorumlog.pb.transaction_pb2 import TransactionOutcome
from store.message import decode_message

LOOK_S: Final = 1.0
"""How often it is looked which producers are there."""
TOPIC_COUNT_MAX: Final = 1_024
"""Topics whose producers are asked. Transactions of others wait until there is room."""
_POSITION_MAX: Final = (1 << 63) - 1
_CHECKER: Final = "rocketmq"

_OUTCOMES: Final = {
    TransactionResolution.COMMIT: TransactionOutcome.TRANSACTION_OUTCOME_COMMITTED,
    TransactionResolution.ROLLBACK: TransactionOutcome.TRANSACTION_OUTCOME_ROLLED_BACK,
}
_log: Final = structlog.get_logger(component="rocketmq")


class Ends(Protocol):
    """The part of the broker that is used."""

    async def end_transaction(
        self, request: transaction_pb2.EndTransactionRequest, /
    ) -> transaction_pb2.EndTransactionResponse: ...
    def check_transactions(
        self, request: transaction_pb2.CheckTransactionsRequest, /
    ) -> AsyncIterator[transaction_pb2.TransactionCheck]: ...
    async def cancel_delayed(
        self, request: delay_pb2.CancelDelayedRequest, /
    ) -> delay_pb2.CancelDelayedResponse: ...


class Ending:
    """One per gateway."""

    def __init__(self, cluster: Cluster, clients: Clients, broker: Ends) -> None:
        self._cluster = cluster
        self._clients = clients
        self._broker = broker
        self._checks: dict[str, asyncio.Task[None]] = {}
        """By topic."""
        self._timer: asyncio.TimerHandle | None = None
        self.asked_total = 0

    # --- Calls ---

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit or roll back. Undecided: the transaction stays open, and is asked for later."""
        topic = topic_name(request.topic)
        inner = handles.parse(request.transaction_id, Code.INVALID_TRANSACTION_ID).inner
        if not inner.isdecimal() or int(inner) > _POSITION_MAX:
            raise _unknown(request.transaction_id)
        outcome = _OUTCOMES.get(request.resolution)
        if outcome is None:
            return pb.EndTransactionResponse(status=OK)
        end = transaction_pb2.EndTransactionRequest(
            transaction_id=int(inner), producer_group=topic, outcome=outcome
        )
        await self._broker.end_transaction(end)
        return pb.EndTransactionResponse(status=OK)

    async def recall_message(self, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        """Cancel a delayed message that is not delivered yet."""
        topic_name(request.topic)
        inner = handles.parse(request.recall_handle, Code.BAD_REQUEST).inner
        held_id, _, message_id = inner.partition(".")
        await self._broker.cancel_delayed(delay_pb2.CancelDelayedRequest(message_id=held_id))
        return pb.RecallMessageResponse(status=OK, message_id=message_id)

    # --- Orphans: the work of who leads ---

    def begin(self) -> None:
        """Be part of `LeaderWork`."""
        self._look()

    def end(self) -> None:
        """Be part of `LeaderWork`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._checks.values():
            task.cancel()
        self._checks.clear()

    def _look(self) -> None:
        """Hold a place among the askers for each topic that has a producer here."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        # Clients name what they like, and places are few.
        wanted = {name for name in self._clients.producer_topics() if self._cluster.is_topic(name)}
        for topic in [topic for topic in self._checks if topic not in wanted]:
            self._checks.pop(topic).cancel()
        for topic in wanted:
            if topic not in self._checks and len(self._checks) < TOPIC_COUNT_MAX:
                task = self._checks[topic] = asyncio.create_task(self._check(topic))
                task.add_done_callback(_tell)

    async def _check(self, topic: str) -> None:
        request = transaction_pb2.CheckTransactionsRequest(producer_group=topic, client_id=_CHECKER)
        try:
            async for check in self._broker.check_transactions(request):
                if check.record_count:
                    await self._ask_when_there_is_room(topic, check)
        finally:
            if self._checks.get(topic) is asyncio.current_task():
                del self._checks[topic]  # The next look begins again.

    async def _ask_when_there_is_room(
        self, topic: str, check: transaction_pb2.TransactionCheck
    ) -> None:
        """Ask. Meanwhile the broker has little room for more questions, and counts none beyond."""
        while not self._ask(topic, check):  # noqa: ASYNC110 - nobody tells of room.
            await asyncio.sleep(LOOK_S)

    def _ask(self, topic: str, check: transaction_pb2.TransactionCheck) -> bool:
        """Ask one producer; say whether one could be. Nobody answers? Then it is asked again later.

        When the last producer goes, so does the place among the askers.
        """
        message = from_record(decode_message(check.records), topic)
        handle = handles.Handle(self._cluster.own_group, str(check.transaction_id))
        orphan = pb.RecoverOrphanedTransactionCommand(message=message, transaction_id=str(handle))
        command = pb.TelemetryCommand(recover_orphaned_transaction_command=orphan)
        is_asked = self._clients.ask(topic, command)
        self.asked_total += is_asked
        return is_asked


def _tell(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        if isinstance(error, AssertionError):
            raise error  # Reaches the loop's handler, which ends the process.
        _log.info("orphaned transactions are not asked for at the moment", reason=str(error))


def _unknown(transaction_id: str) -> RefusedError:
    text = f"transaction {transaction_id[:200]!r} is unknown"
    return RefusedError(Code.INVALID_TRANSACTION_ID, text)
