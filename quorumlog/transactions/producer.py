"""Transactions of a producer: messages that become visible when their local work is done.

Owns one transaction from half messages to its end, and the answers to the cluster's questions; must
not know how batches travel. Sequence: send the messages, still invisible; do the local work;
commit, or roll back. If the producer fails in between, the cluster asks later, through a stream
that each producer of the group holds to the leader of each broker group; `check` answers from the
producer's own records.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self, Unpack

import grpc

from quorumlog.arguments import checked, checks_itself, shows_options_of
from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.calls import in_doubt
from quorumlog.cluster.channels import is_cancelled
from quorumlog.cluster.close_once import Closing, raise_ended
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.errors import (
    ClosedError,
    InvalidRequestError,
    NotLeaderError,
    QuorumlogError,
    UnavailableError,
    from_rpc,
)
from quorumlog.pb import log_pb2, transaction_pb2
from quorumlog.produce.delivery import Receipts
from quorumlog.produce.options import ProducerOptions
from quorumlog.produce.outgoing_messages import check_bodies, entries_of
from quorumlog.produce.producer import Producer
from quorumlog.records.batch import decode_records, size_bytes_of
from quorumlog.records.message import OutgoingMessage
from quorumlog.records.options import TIMEOUT_MS_MAX, Decision
from quorumlog.transactions.types import PB_OUTCOMES, CheckedTransaction, HalfOptions, as_decision

CHECKS_MAX: Final = 16
"""Checks under way of a producer. It takes no more questions then, and others are asked."""
_log = logging.getLogger("quorumlog.transactions")

Check = Callable[[CheckedTransaction], Decision | str | Awaitable[Decision | str]]
"""Returns the outcome of the local work of a transaction; may be a coroutine function, of which
up to 16 calls run at once, one for a transaction."""


@dataclass(frozen=True, slots=True)
class TransactionalOptions(ProducerOptions):
    """The arguments of a transactional producer: those of a producer, and of its checks."""

    producer_group: str
    check: Check
    check_after_ms: int = field(default=0, kw_only=True)
    unique_keys: bool = field(default=True, kw_only=True)


def decision_of(result: Decision | str) -> Decision:
    """Parse the result of local work. Raises InvalidRequestError, in doubt: messages are stored."""
    try:
        return Decision.of(result, what="what the local work says")
    except InvalidRequestError as error:
        raise in_doubt(error) from None


class Transaction:
    """Messages that are stored and not visible. Made by `TransactionalProducer.begin`."""

    def __init__(
        self, owner: "TransactionalProducer", group: BrokerGroup, receipts: Receipts
    ) -> None:
        self._owner, self._group = owner, group
        self.broker_group: Final = group.name
        """The broker group whose log it is in."""
        self.transaction_id: Final = receipts[0].log_position
        self.receipts: Final = receipts
        """Receipts of the half messages; queue offsets are -1: they are in no queue yet."""
        self.decision: Decision | None = None
        """The decision by which this producer ended it; None: it did not."""

    async def commit(self) -> None:
        """Make its messages visible, once. May be repeated.

        Raises TransactionEndedError when it was rolled back or given up meanwhile,
        ProducerFencedError when the producer's name was claimed meanwhile, and the errors of the
        cluster; the cluster asks later until it has a decision.
        """
        await self._end(Decision.COMMIT)

    async def rollback(self) -> None:
        """Drop its messages. May be repeated. Errors as `commit`."""
        await self._end(Decision.ROLLBACK)

    async def _end(self, decision: Decision) -> None:
        await self._owner.end(self._group, self.transaction_id, decision)
        self.decision = decision

    def __repr__(self) -> str:
        where = f"{self.transaction_id} of {self.broker_group}"
        return f"<Transaction {where}, {self.decision or 'open'}>"


@checked
class TransactionalProducer(Closing):
    """Begins transactions, and answers for them. Made by `client.transactional_producer()`.

    Producers of one group stand in for each other: `check` may be asked about a transaction that
    another one began, so it has to read the traces of the local work. Transactions that are open
    when it is closed stay open.
    """

    def __init__(
        self,
        groups: BrokerGroups,
        options: TransactionalOptions,
        client_id: str,
        timeout_ms: int,
    ) -> None:
        if not options.producer_group:
            raise InvalidRequestError("a producer group needs a name; give one")
        super().__init__()
        self.producer_group: Final = options.producer_group
        self._groups, self._check = groups, options.check
        self._producer = Producer(groups, options, timeout_ms)  # All arguments are checked by now.
        self._client_id, self._timeout_ms = client_id, timeout_ms
        self._check_after_ms = options.check_after_ms
        self._listening: dict[BrokerGroup, asyncio.Task[None]] = {}
        self._answering: dict[tuple[str, int], asyncio.Task[None]] = {}
        """By name of the broker group and transaction."""
        self._room = asyncio.Semaphore(CHECKS_MAX)
        self.checks_count = 0
        """Count of answered questions."""

    # Life cycle.

    def start(self) -> None:
        """Let the cluster ask from now on; the first `begin` does it too."""
        if self.is_closed:
            raise ClosedError("the transactional producer is closed; make another one")
        raise_ended(*self._listening.values(), *self._answering.values())
        if not self._listening:
            self._groups.on_change.append(self._follow)
            self._follow()

    def _follow(self) -> None:
        """Listen in every listed broker group, and in no other."""
        for group in self._groups.all:
            if group not in self._listening:
                self._listening[group] = asyncio.create_task(self._listen(group))
        for group in self._listening.keys() - set(self._groups.all):
            self._listening.pop(group).cancel()

    async def _close(self) -> None:
        if self._follow in self._groups.on_change:
            self._groups.on_change.remove(self._follow)
        tasks = [*self._listening.values(), *self._answering.values()]
        self._listening.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._producer.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    # Transactions.

    @checks_itself
    async def begin(
        self,
        topic: str,
        body: bytes | str | Sequence[bytes | str | OutgoingMessage],
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        broker_group: str = "",
    ) -> Transaction:
        """Store one message, or several, that are invisible before the commit.

        All of them go to one broker group. Raises as `Producer.send_batch`; LimitReachedError when
        too many transactions are open.
        """
        self.start()
        bodies = [body] if isinstance(body, bytes | str) else body
        check_bodies(bodies)
        if not bodies:
            raise InvalidRequestError("a transaction needs a message; give one")
        entries = entries_of(bodies, topic, key, tag, queue_id, properties, self._producer.form)
        half = transaction_pb2.HalfMessages(
            producer_group=self.producer_group, check_after_ms=self._check_after_ms
        )
        receipts = await self._producer.send_entries(
            entries,
            sum(map(size_bytes_of, entries)),
            broker_group,
            log_pb2.AppendRequest(transaction=half).SerializeToString(),
        )
        return Transaction(self, self._groups.get(receipts[0].broker_group), receipts)

    @shows_options_of(begin)
    @asynccontextmanager
    async def transaction(
        self,
        topic: str,
        body: bytes | str | Sequence[bytes | str | OutgoingMessage],
        **options: Unpack[HalfOptions],
    ) -> AsyncIterator[Transaction]:
        """Begin, do the local work within, commit; roll back if it raises. Arguments of `begin`.

        A transaction that the block has ended is left as it is. When the task is cancelled the
        transaction stays open: the cluster asks later.
        """
        made = await self.begin(topic, body, **options)
        try:
            yield made
        except Exception:
            if made.decision is None:
                try:
                    await made.rollback()
                except QuorumlogError as error:
                    _log.warning("%r: not rolled back, asked for later: %s", made, error)
            raise
        if made.decision is None:
            await made.commit()

    @shows_options_of(begin)
    async def send(
        self,
        topic: str,
        body: bytes | str | Sequence[bytes | str | OutgoingMessage],
        local: Callable[[Transaction], Decision | str | Awaitable[Decision | str]],
        **options: Unpack[HalfOptions],
    ) -> Transaction:
        """Begin, do the local work, and end as its result says; the way of RocketMQ's clients.

        With `Decision.UNKNOWN`, or when the work raises or returns something else, the transaction
        stays open and the cluster asks later. Arguments of `begin`.
        """
        made = await self.begin(topic, body, **options)
        said = local(made)
        said = await said if inspect.isawaitable(said) else said
        decision = decision_of(said)
        if decision is not Decision.UNKNOWN:
            await made._end(decision)
        return made

    async def end(self, broker_group: BrokerGroup, transaction_id: int, decision: Decision) -> None:
        """Commit or roll back a transaction of this producer group by its id.

        A producer that has lost its name ends nothing any more: ProducerFencedError.
        """
        request = transaction_pb2.EndTransactionRequest(
            transaction_id=transaction_id,
            producer_group=self.producer_group,
            outcome=PB_OUTCOMES[as_decision(decision)],
            cluster_id=broker_group.router.cluster_id,
        )
        incarnation = self._producer.incarnation_in(broker_group)
        if incarnation is not None:
            request.producer_name, request.incarnation = incarnation.name, incarnation.number
        deadline = Deadline(self._timeout_ms)
        await broker_group.calls.leader(request, deadline)

    # Questions.

    async def _listen(self, group: BrokerGroup) -> None:
        """Answer the questions of a broker group, under each of its leaders, until cancelled."""
        request = transaction_pb2.CheckTransactionsRequest(
            producer_group=self.producer_group,
            client_id=self._client_id,
            cluster_id=group.router.cluster_id,
        )
        backoff = Backoff(Deadline(TIMEOUT_MS_MAX))
        while True:
            try:
                node = await group.router.leader(Deadline(self._timeout_ms))
                async for question in node.rpc.CheckTransactions(request):
                    backoff = Backoff(Deadline(TIMEOUT_MS_MAX))
                    if question.transaction_id:
                        await self._begin_answer(group, question)
                error: QuorumlogError = UnavailableError(f"{node.address} ended the stream")
            except grpc.aio.AioRpcError as failed:
                error = from_rpc(failed, node.address)
                if isinstance(error, NotLeaderError):
                    group.router.on_hint(error.leader_id, error.leader_address, node.address)
                elif isinstance(error, UnavailableError):
                    group.router.leader_failed(node.address)
            except (grpc.aio.UsageError, asyncio.CancelledError) as ended:
                if isinstance(ended, asyncio.CancelledError) and is_cancelled():
                    ended.__traceback__ = None  # As in `answer_of`.
                    raise
                group.router.leader_failed(node.address)  # Its channel was closed.
                error = UnavailableError(f"{node.address}: its connection was closed")
            except QuorumlogError as met:
                error = met
            _log.debug("transactions of %s: %s", self.producer_group, error)
            if backoff.deadline.has_passed:
                backoff = Backoff(Deadline(TIMEOUT_MS_MAX))
            await backoff.pause(error.retry_after_ms)

    async def _begin_answer(self, group: BrokerGroup, question: Any) -> None:
        """Answer beside the others, once there is room; a check that still runs will answer."""
        key = group.name, question.transaction_id
        if key in self._answering:
            return
        await self._room.acquire()

        def end(task: asyncio.Task[None]) -> None:
            self._room.release()
            if task.cancelled() or task.exception() is None:  # Else `start` raises the defect.
                del self._answering[key]

        self._answering[key] = task = asyncio.create_task(self._answer(group, question))
        task.add_done_callback(end)

    async def _answer(self, group: BrokerGroup, question: Any) -> None:
        """Ask the program, and tell the cluster. After a failure the cluster asks again."""
        transaction_id = question.transaction_id
        try:
            messages = decode_records(question.records, broker_group=group.name)
            transaction = CheckedTransaction(
                transaction_id, group.name, self.producer_group, question.check_count, messages
            )
            said = self._check(transaction)
            said = await said if inspect.isawaitable(said) else said
            decision = Decision.of(said, what="what the check says")
        except (Exception, asyncio.CancelledError):  # A program may raise any error.
            if is_cancelled():
                raise
            _log.exception("the check of transaction %d failed", transaction_id)
            return
        self.checks_count += 1
        if decision is Decision.UNKNOWN:
            return
        try:
            await self.end(group, transaction_id, decision)
        except QuorumlogError as error:
            _log.warning("transaction %d: %s", transaction_id, error)
