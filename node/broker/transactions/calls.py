"""The calls about transactions: half messages in, commit and rollback, the list of open ones.

Owns what a request must look like, how many transactions may be open, and the answers; must not
know how one ends (`ends`) or when producers are asked (`checks`).
"""

import asyncio
from functools import partial
from itertools import islice
from typing import Final

from node.broker.append.attached import AttachedCommands, OnDecided
from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce, Refused
from node.broker.append.repeats import asked_digest
from node.broker.core.context import Context
from node.broker.read.visibility import queued_at
from node.broker.records.half import GROWTH_SIZE_BYTES, QUEUE_ID, Halves, half_messages
from node.broker.transactions.checks import Checks
from node.broker.transactions.ends import COMMITTED, ROLLED_BACK, TransactionEnds
from node.errors.common import (
    BadRequestError,
    LimitReachedError,
    MessageNotFoundError,
    ReservedTopicError,
)
from node.errors.transactions import TransactionEndedError, UnknownTransactionError
from node.runtime.accounts import Charge, Kind, caller
from node.state.appends import Committed, Prepared
from node.state.tables.transactions import OpenTransaction
from node.users import rules
from node.users.calling import calling, may, require, require_known
from node.users.needs import ALL
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse, ProducerIncarnation
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import (
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionInfo,
)
from store import format as fmt
from store.errors import LimitExceededError, PositionRangeError
from store.record.edit import layouts
from store.record.topic_names import is_reserved

_HALF_QUEUES: Final = frozenset({(fmt.HALF_TOPIC.encode(), QUEUE_ID)})
_MARK_SIZE_BYTES: Final = 512
"""Size of the record that marks half messages as done and of the command, without the offsets."""


class TransactionCalls:
    """The calls about transactions. One per broker."""

    def __init__(self, context: Context, produce: Produce, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._produce = produce
        self._own_appends = own_appends
        self.ends: Final = TransactionEnds(context, own_appends)
        self.checks: Final = Checks(context, own_appends, self.ends)
        self.check_transactions: Final = self.checks.producers.questions
        self._beginning_count = 0
        """Transactions written and not decided: they have their place in the table."""

    # --- Beginning ---

    def append(self, request: AppendRequest) -> "asyncio.Future[AppendResponse]":
        """Store half messages; the position in the receipt names the transaction.

        No error is raised here: the future fails, as that of `Produce.append`.
        """
        try:
            halves, attached_commands = self._halves(request)
        except Refused as error:
            return self._produce.refuse(error)
        return self._produce.append(request, attached_commands, halves.records)

    def _halves(self, request: AppendRequest) -> tuple[Halves, AttachedCommands]:
        context, wanted = self._context, request.transaction
        context.check_call(request.cluster_id, "producer_group", wanted.producer_group)
        if request.HasField("consumed"):
            raise BadRequestError("transaction", "no consumed offsets", "some")
        limits = context.limits
        if wanted.check_after_ms > limits.transaction_age_ms_max:
            expected = f"at most {limits.transaction_age_ms_max}"
            raise BadRequestError("check_after_ms", expected, str(wanted.check_after_ms))
        halves = half_messages(
            request.records, wanted.producer_group, limits.transaction_record_count_max
        )
        size_bytes = len(halves.records)
        grown = size_bytes + halves.record_count * GROWTH_SIZE_BYTES + _MARK_SIZE_BYTES
        limit = self._produce.batch_size_bytes_max
        if grown > limit:
            raise LimitExceededError("transaction", grown, limit)
        now_ms = self._context.unix_ms()
        begin = Command.BeginTransaction(
            producer_group=wanted.producer_group,
            size_bytes=size_bytes,
            record_count=halves.record_count,
            begun_unix_ms=now_ms,
            check_unix_ms=now_ms + (wanted.check_after_ms or limits.transaction_check_after_ms),
        )
        account = caller()

        def check(_prepared: Prepared) -> OnDecided:
            self._check(halves)
            charge = account.charge(Kind.TRANSACTIONS) if account is not None else None
            self._beginning_count += 1
            return partial(self._on_decided, charge)

        commands = self._own_appends.encode([Command(begin_transaction=begin)])
        digest = asked_digest(wanted.producer_group, wanted.check_after_ms)
        return halves, AttachedCommands(commands, 1, _HALF_QUEUES, check, asked=digest)

    def _on_decided(self, charge: Charge | None, committed: Committed | None) -> None:
        self._beginning_count -= 1
        if committed is not None:
            position = committed.result.record_positions[0]
            self.ends.hold(position, charge)
            self.checks.on_begun(position)
        elif charge is not None:
            charge.release()

    def _check(self, halves: Halves) -> None:
        """Raise for a transaction that could not be committed, or has no place in the table."""
        for name, queue_id in halves.queues:
            if is_reserved(name):
                raise ReservedTopicError(name)
            self._context.writable(name, queue_id)
        count = len(self.ends.table.open) + self._beginning_count + 1
        limit = self._context.limits.open_transaction_count_max
        if count > limit:
            raise LimitReachedError("open transactions", count, limit)

    # --- Ending ---

    async def end_transaction(self, request: EndTransactionRequest) -> EndTransactionResponse:
        """Commit or roll back, once; a repeated call gets the same answer, also one of a producer
        that has lost its name meanwhile. Callers that publish neither to its topic nor for its
        group do not learn how it ended. Raises ProducerFencedError, and as `TransactionEnds.end`;
        to commit, ForbiddenError as `require_publish`.
        """
        self._context.check_cluster(request.cluster_id)
        if request.outcome not in (COMMITTED, ROLLED_BACK):
            raise BadRequestError("outcome", "COMMITTED or ROLLED_BACK", str(request.outcome))
        if request.outcome == COMMITTED:
            await self.require_publish(request.transaction_id, request.producer_group)
        was_ended = await self.ends.end(
            request.transaction_id,
            request.outcome,
            request.producer_group,
            partial(self._check_name, request.producer_name, request.incarnation),
            partial(self._check_knows, request.transaction_id),
        )
        return EndTransactionResponse(outcome=request.outcome, was_ended=was_ended)

    async def require_publish(self, transaction_id: int, producer_group: str = "") -> None:
        """Raise ForbiddenError unless the running call may publish to the topics of an open
        transaction; UnknownTransactionError, as for one that is not there, where it may not publish
        for its group either. Others, and those of another group, are refused where they are ended.
        """
        if calling() is None:
            return
        self._context.check_leads()
        transaction = self.ends.table.open.get(transaction_id)
        if transaction is None or (producer_group and producer_group != transaction.producer_group):
            return
        try:
            made = await self.ends.visible_messages(transaction)
        except PositionRangeError:
            return  # Its messages are gone: it ends as expired.
        pub, kinds = rules.Action.PUB, rules.ResourceKind
        for topic in _topics_in(made.records):
            if may(pub, kinds.GROUP, transaction.producer_group):
                require(pub, kinds.TOPIC, topic, is_found=True)
            else:
                require_known(pub, kinds.TOPIC, topic, UnknownTransactionError(transaction_id))

    def _check_knows(self, transaction_id: int) -> None:
        """Raise UnknownTransactionError unless the running call may know how one ended."""
        if calling() is None:
            return
        try:
            half = queued_at(self._context, transaction_id).properties
        except MessageNotFoundError:  # It has expired, and with it whose it was.
            half = {}
        group = half.get(fmt.PROPERTY_PRODUCER_GROUP, ALL)
        topic = half.get(fmt.PROPERTY_REAL_TOPIC, ALL)
        pub, kinds = rules.Action.PUB, rules.ResourceKind
        if not (may(pub, kinds.GROUP, group) or may(pub, kinds.TOPIC, topic)):
            raise UnknownTransactionError(transaction_id)

    def _check_name(self, name: str, number: int) -> None:
        if name or number:  # Else the producer has no name, or an operator calls.
            self._context.check_name("producer_name", name)
            self._produce.check_incarnation(ProducerIncarnation(name=name, number=number))

    # --- For people ---

    async def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """Return open transactions by id, and their count; of one group if it is named."""
        self._context.check_leads()
        limit = self._context.limits.transaction_list_count_max
        group, opened = request.producer_group, self.ends.table.open.values()
        shown = [one for one in opened if group in ("", one.producer_group)]
        wanted = (one for one in shown if one.position > request.after_id)
        count = min(request.max_count or limit, limit)
        return ListTransactionsResponse(
            transactions=map(self._info, islice(wanted, count)), open_count=len(shown)
        )

    async def describe_transaction(
        self, request: DescribeTransactionRequest
    ) -> DescribeTransactionResponse:
        """Return a transaction and its messages, or how it ended.

        Raises UnknownTransactionError, TransactionEndedError when its messages are gone.
        """
        self._context.check_leads()
        table, transaction_id = self.ends.table, request.transaction_id
        transaction = table.open.get(transaction_id)
        if transaction is None:
            require(
                rules.Action.GET, rules.ResourceKind.GROUP, ALL, is_found=True
            )  # Its group is not known.
            outcome = table.ended.get(transaction_id)
            if outcome is None:
                raise UnknownTransactionError(transaction_id)
            info = TransactionInfo(transaction_id=transaction_id)
            return DescribeTransactionResponse(info=info, outcome=outcome)  # type: ignore[arg-type]
        require(
            rules.Action.GET, rules.ResourceKind.GROUP, transaction.producer_group, is_found=True
        )
        try:
            made = await self.ends.visible_messages(transaction)
        except PositionRangeError as error:
            raise TransactionEndedError(transaction_id, "expired") from error
        for topic in _topics_in(made.records):
            require(rules.Action.SUB, rules.ResourceKind.TOPIC, topic, is_found=True)
        return DescribeTransactionResponse(
            info=self._info(transaction), records=made.records, record_count=made.record_count
        )

    def _info(self, known: OpenTransaction) -> TransactionInfo:
        fields = known._asdict()
        position, is_orphaned = fields.pop("position"), self.checks.is_orphaned(known)
        return TransactionInfo(transaction_id=position, is_orphaned=is_orphaned, **fields)


def _topics_in(records: bytes) -> set[str]:
    topics = {records[layout.topic_at : layout.topic_hi] for layout in layouts(records)}
    return {topic.decode("utf-8", "replace") for topic in topics}
