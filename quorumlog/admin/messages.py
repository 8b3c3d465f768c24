"""Administration of messages: delayed, in flight by pop, single ones, and open transactions.

Owns these calls and their values; must not know how calls find the leader. A message is of one
broker group, which the id of one that is searched does not name: all are asked. The id of a
transaction is unique within its broker group.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from quorumlog.admin.calls import AdminCalls
from quorumlog.arguments import checked
from quorumlog.pb import delay_pb2, lookup_pb2, pop_pb2, transaction_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message
from quorumlog.records.options import Decision
from quorumlog.records.receipt import Receipt
from quorumlog.records.values import of_pb
from quorumlog.transactions.types import (
    OUTCOMES,
    PB_OUTCOMES,
    TransactionDescription,
    TransactionInfo,
    as_decision,
)

_PAGE_COUNT: Final = 1_000


@dataclass(frozen=True, slots=True)
class CancelledDelay:
    """Place and time of the delivery that was cancelled."""

    topic: str
    queue_id: int
    due_unix_ms: int


@dataclass(frozen=True, slots=True)
class DelayQueue:
    """The delayed messages of one queue. Level 0: those of any time."""

    level: int
    delay_ms: int
    held_count: int
    floor_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DelayStatus:
    """The delayed messages of one broker group. Times are by the clock of its leader.

    `next_due_unix_ms` is 0 while no message is held, and may be some seconds early for distant
    times. `undeliverable_count` messages are in `rmq_sys_undeliverable`, because their own topic
    was gone or took no messages. While `is_loading`, the new leader reads the messages to deliver.
    """

    broker_group: str
    queues: tuple[DelayQueue, ...]
    held_count: int
    held_count_max: int
    delay_ms_max: int
    next_due_unix_ms: int
    now_unix_ms: int
    undeliverable_count: int
    is_loading: bool


@dataclass(frozen=True, slots=True)
class PopQueue:
    """The messages of one queue that a group has in flight; `broker_group` has the queue.

    Everything before `offset` is done; messages from `next_offset` on are not examined yet.
    `waiting_count` messages were passed over because an earlier one of their message group is in
    flight. The first one is visible again at `first_visible_unix_ms` (0: none is in flight). A
    queue that `is_full` delivers no new message until some are acknowledged; one with a
    `held_reason` delivers none until its next message can be read again.
    """

    topic: str
    queue_id: int
    broker_group: str
    offset: int
    next_offset: int
    in_flight_count: int
    waiting_count: int
    delivery_count_max: int
    first_visible_unix_ms: int
    is_full: bool
    held_reason: str = ""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event in the history of a message.

    `kind`: stored, half, open, committed, rolled back, given up, expired, delayed, consumed (a
    group has passed it), retried or dead. `unix_ms` is 0 for an event that is known from the state
    and not from a record. The last three name their `group`, those of a transaction the
    `producer_group`.
    """

    kind: str
    unix_ms: int
    topic: str
    queue_id: int
    offset: int
    message_id: str
    group: str
    producer_group: str
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The history of a message, in the order of time. `message` is None for one that readers do not
    see yet: half, or delayed. `is_complete` is false when a queue was too long to be searched: give
    messages unique keys."""

    message: Message | None
    events: list[TraceEvent]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class TopicSizes:
    """Sizes of a topic's records, by the mean of their batch, since a leader began to count.

    `buckets`: (upper bound in bytes, count of records below it).
    """

    broker_group: str
    node_id: int
    record_count: int
    size_bytes: int
    since_unix_ms: int
    buckets: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as plain values under stable names."""
        values = asdict(self)
        names = ("below_size_bytes", "record_count")
        values["buckets"] = [dict(zip(names, bucket, strict=True)) for bucket in self.buckets]
        return values


@checked
class MessageAdmin(AdminCalls):
    """The part of `Admin` that is about messages and transactions."""

    async def cancel_delayed(
        self, message: Receipt | str, *, broker_group: str = ""
    ) -> CancelledDelay:
        """Cancel the delivery of a delayed message, by its receipt or the message id in it.

        Certain once it returns. Raises DelayedGoneError when it was delivered, or is just being
        delivered; NotFoundError when it was never delayed. Of several broker groups `broker_group`
        holds it, unless the receipt names it; without either the first one by name.
        """
        message_id = message if isinstance(message, str) else message.message_id
        if isinstance(message, Receipt):
            broker_group = broker_group or message.broker_group
        request = delay_pb2.CancelDelayedRequest(
            message_id=message_id, cluster_id=self._groups.cluster_id
        )
        return of_pb(CancelledDelay, await self._lead(self._groups.get(broker_group), request))

    async def delay_status(self) -> list[DelayStatus]:
        """Return the delayed messages of each broker group, by its name."""
        answers, _ = await self._each(delay_pb2.DelayStatusRequest())
        return [
            of_pb(DelayStatus, pb, broker_group=name, delay_ms_max=pb.horizon_ms)
            for name, pb in sorted(answers.items())
        ]

    async def describe_pop(self, group: str) -> list[PopQueue]:
        """Return the queues in which a group has messages in flight, by topic."""
        answers, _ = await self._each(pop_pb2.DescribePopRequest(group=group), may_be_away=False)
        queues = [
            of_pb(PopQueue, queue, broker_group=name)
            for name, answer in answers.items()
            for queue in answer.queues
        ]
        return sorted(queues, key=lambda queue: (queue.topic, queue.broker_group, queue.queue_id))

    async def trace_message(self, message_id: str) -> Trace:
        """Return the history of a message: stored, delivered, consumed, retried, dead.

        Derived from log and state by each call. Raises NotFoundError.
        """
        answers, _ = await self._each(lookup_pb2.TraceMessageRequest(message_id=message_id))
        group, answer = next(iter(answers.items()))
        events = [of_pb(TraceEvent, event) for event in answer.events]
        messages = decode_records(answer.record, broker_group=group)
        return Trace(messages[0] if messages else None, events, answer.is_complete)

    async def topic_sizes(self, topic: str) -> list[TopicSizes]:
        """Return the sizes of the messages of a topic, for each broker group."""
        answers, _ = await self._each(lookup_pb2.TopicSizesRequest(topic=topic))
        return [
            of_pb(
                TopicSizes,
                sizes,
                broker_group=group,
                buckets=tuple((row.below_size_bytes, row.record_count) for row in sizes.buckets),
            )
            for group, sizes in answers.items()
        ]

    # Transactions.

    async def list_transactions(
        self, *, producer_group: str = "", max_count: int = 100_000
    ) -> list[TransactionInfo]:
        """Return open transactions of all broker groups, the oldest of each first."""
        transactions: list[TransactionInfo] = []
        for group in self._groups.all:
            after_id, page = 0, _PAGE_COUNT
            while page == _PAGE_COUNT and len(transactions) < max_count:
                request = transaction_pb2.ListTransactionsRequest(
                    producer_group=producer_group,
                    max_count=min(_PAGE_COUNT, max_count - len(transactions)),
                    after_id=after_id,
                )
                response = await self._lead(group, request)
                page = len(response.transactions)
                transactions += (
                    TransactionInfo.of(info, group.name) for info in response.transactions
                )
                if page:
                    after_id = response.transactions[-1].transaction_id
        return transactions

    async def describe_transaction(
        self, transaction_id: int, *, broker_group: str = ""
    ) -> TransactionDescription:
        """Return a transaction: open, with its messages, or ended. Raises NotFoundError."""
        at = self._groups.get(broker_group)
        request = transaction_pb2.DescribeTransactionRequest(transaction_id=transaction_id)
        response = await self._lead(at, request)
        is_open = response.outcome == transaction_pb2.TRANSACTION_OUTCOME_UNSPECIFIED
        return TransactionDescription(
            transaction_id,
            at.name,
            OUTCOMES.get(response.outcome, str(response.outcome)),
            TransactionInfo.of(response.info, at.name) if is_open else None,
            decode_records(response.records, broker_group=at.name),
        )

    async def end_transaction(
        self, transaction_id: int, decision: Decision | str, *, broker_group: str = ""
    ) -> bool:
        """Commit ("commit") or roll back ("rollback") by hand; return whether it was done before.

        Raises NotFoundError, TransactionEndedError when it had ended in another way.
        """
        request = transaction_pb2.EndTransactionRequest(
            transaction_id=transaction_id,
            outcome=PB_OUTCOMES[as_decision(decision)],
            cluster_id=self._groups.cluster_id,
        )
        return bool((await self._lead(self._groups.get(broker_group), request)).was_ended)
