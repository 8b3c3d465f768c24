"""The end of transactions and of delays: EndTransaction, orphans, RecallMessage.

Owns the way between the ids of the protocol and the broker's. Producers of the protocol have no
group, so the topic of a half message stands for one. The leader asks; most clients open a stream to
each node that their routes name, and some keep one to their access point alone (protocol section
9), so every node subscribes to the questions of each leader for the producers connected to it.
"""

import asyncio
from itertools import chain, islice
from typing import Final, NamedTuple

import structlog

from node.broker import Broker
from node.rocketmq.clients import GatewayClients
from node.rocketmq.cluster import GatewayCluster, Leader
from node.rocketmq.forwarder import Forwarder
from node.rocketmq.protocol import handles
from node.rocketmq.protocol.messages import Deliveries
from node.rocketmq.protocol.names import topic_name
from node.rocketmq.protocol.statuses import OK, CallRefusedError
from node.runtime.accounts import set_caller
from node.users.calling import set_calling
from quorumlog.pb import delay_pb2, transaction_pb2
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, TransactionResolution
from quorumlog.pb.transaction_pb2 import TransactionOutcome
from store.record.message import decode_message

LOOK_S: Final = 1.0
"""Interval of looks at the connected producers."""
TOPIC_COUNT_MAX: Final = 1_000
"""Topics, of all groups, whose producers are asked: fewer than the calls that one connection may
have. The addresses of the producers get one each in turn; others wait until there is room."""
_POSITION_MAX: Final = (1 << 63) - 1
_CHECKER: Final = "rocketmq"

_OUTCOMES: Final = {
    TransactionResolution.COMMIT: TransactionOutcome.TRANSACTION_OUTCOME_COMMITTED,
    TransactionResolution.ROLLBACK: TransactionOutcome.TRANSACTION_OUTCOME_ROLLED_BACK,
}
_log: Final = structlog.get_logger(component="rocketmq")


class _Check(NamedTuple):
    task: asyncio.Task[None]
    leader: Leader


class EndCalls:
    """The calls that end, and the subscriptions to questions. One per gateway."""

    def __init__(
        self,
        cluster: GatewayCluster,
        clients: GatewayClients,
        broker: Broker,
        forwarder: Forwarder,
        deliveries: Deliveries,
    ) -> None:
        self._cluster = cluster
        self._deliveries = deliveries
        self._forwarder = forwarder
        self._clients = clients
        self._broker = broker
        self._checks: dict[tuple[str, str], _Check] = {}
        """By broker group and topic."""
        self._timer: asyncio.TimerHandle | None = None
        self.asked_total = 0

    # --- Calls ---

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit or roll back. Undecided: the transaction stays open for another question."""
        topic = topic_name(request.topic)
        inner = handles.parse(request.transaction_id, Code.INVALID_TRANSACTION_ID).inner
        if not (inner.isascii() and inner.isdecimal()) or int(inner) > _POSITION_MAX:
            text = f"transaction {request.transaction_id[:200]!r} is unknown"
            raise CallRefusedError(Code.INVALID_TRANSACTION_ID, text)
        outcome = _OUTCOMES.get(request.resolution)
        if outcome is None:
            return pb.EndTransactionResponse(status=OK)
        await self._broker.transactions.require_publish(int(inner), topic)
        end = transaction_pb2.EndTransactionRequest(
            transaction_id=int(inner), producer_group=topic, outcome=outcome
        )
        await self._broker.transactions.end_transaction(end)
        return pb.EndTransactionResponse(status=OK)

    async def recall_message(self, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        """Cancel a delayed message that is not delivered yet."""
        topic_name(request.topic)
        inner = handles.parse(request.recall_handle, Code.BAD_REQUEST).inner
        held_id, _, message_id = inner.partition(".")
        await self._broker.delay.cancel_delayed(delay_pb2.CancelDelayedRequest(message_id=held_id))
        return pb.RecallMessageResponse(status=OK, message_id=message_id)

    # --- Orphans: asked by the leader of each group, passed on by every node ---

    def begin(self) -> None:
        """See `LeaderWork.begin`: this node's broker asks from now on, so look at once."""
        self.look()

    def end(self) -> None:
        """See `LeaderWork.end`: drop these subscriptions; the next look finds the new leader."""
        for key, check in list(self._checks.items()):
            if check.leader.is_here:
                self._drop(key)

    def stop(self) -> None:
        """Drop all subscriptions."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._checks):
            self._drop(key)

    def watch(self) -> None:
        """Look soon: a client is here."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look)

    def look(self) -> None:
        """Subscribe to the leader of each group for each topic that has a producer here.

        Looks again after a second as long as there are clients, and forgets the silent ones.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._broker.context.turn.later("", self._clients.expire())
        if len(self._clients):
            self.watch()
        wanted = self._wanted()
        for key, check in list(self._checks.items()):
            if wanted.get(key) != check.leader:
                self._drop(key)
        for key, leader in wanted.items():
            if key not in self._checks:
                task = asyncio.create_task(self._check(key, leader))
                self._checks[key] = _Check(task, leader)
                task.add_done_callback(_tell)

    def _wanted(self) -> dict[tuple[str, str], Leader]:
        """Return the groups and topics to ask about, and who leads: of each address in turn."""
        existing = set(self._cluster.topic_names())
        topics = dict.fromkeys(islice(self._clients.producer_topics(existing), TOPIC_COUNT_MAX))
        groups: dict[str, list[str]] = {}
        for group, topic in self._cluster.groups_of(topics):
            groups.setdefault(topic, []).append(group)
        leaders = {group: self._cluster.leader_of(group) for group in {*chain(*groups.values())}}
        wanted = (
            ((group, topic), leader)
            for topic in topics
            for group in groups.get(topic, ())
            if (leader := leaders[group]) is not None
        )
        return dict(islice(wanted, TOPIC_COUNT_MAX))

    def _drop(self, key: tuple[str, str]) -> None:
        self._checks.pop(key).task.cancel()

    async def _check(self, key: tuple[str, str], leader: Leader) -> None:
        set_calling(None)
        set_caller(None)  # This node subscribes, and none of the clients whose call led here.
        group, topic = key
        request = transaction_pb2.CheckTransactionsRequest(producer_group=topic, client_id=_CHECKER)
        if leader.is_here:
            checks = self._broker.transactions.check_transactions(request)
        else:
            checks = self._forwarder.questions(leader.address, request)
        try:
            async for check in checks:
                if check.record_count:
                    await self._ask_when_there_is_room(group, topic, check)
        finally:
            running = self._checks.get(key)
            if running is not None and running.task is asyncio.current_task():
                del self._checks[key]  # The next look subscribes again.

    async def _ask_when_there_is_room(
        self, group: str, topic: str, check: transaction_pb2.TransactionCheck
    ) -> None:
        """Ask, as soon as a producer has room. Meanwhile the broker has little room for more
        questions, and counts none beyond. If no answer comes, the cluster repeats the question."""
        handle = str(handles.ReceiptHandle(group, str(check.transaction_id)))
        size_bytes = len(check.records)
        while True:  # No event tells of room. What is decompressed is not kept until there is some.
            if self._clients.with_room(topic, size_bytes) is not None:
                message = await self._deliveries.message(decode_message(check.records), topic)
                orphan = pb.RecoverOrphanedTransactionCommand(
                    message=message, transaction_id=handle
                )
                command = pb.TelemetryCommand(recover_orphaned_transaction_command=orphan)
                if self._clients.ask(topic, command):
                    self.asked_total += 1
                    return
                size_bytes = message.ByteSize()
                del message, orphan, command
            await asyncio.sleep(LOOK_S)


def _tell(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        if isinstance(error, AssertionError):
            raise error  # Reaches the loop's handler, which ends the process.
        _log.info("orphaned transactions are not asked for at the moment", reason=str(error))
