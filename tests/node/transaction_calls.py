"""What tests of transactions do again and again, over a broker of `broker_fakes`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from node.state.tables.transactions import TransactionsTable
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest
from quorumlog.pb.transaction_pb2 import (
    TRANSACTION_OUTCOME_COMMITTED,
    TRANSACTION_OUTCOME_ROLLED_BACK,
    CheckTransactionsRequest,
    EndTransactionRequest,
    EndTransactionResponse,
    HalfMessages,
    TransactionCheck,
)
from store.record.message import Message
from tests.node.broker_fakes import Fixture, request
from tests.patience import PATIENCE_S
from tests.store.records import messages

GROUP = "billing"
COMMITTED, ROLLED_BACK = TRANSACTION_OUTCOME_COMMITTED, TRANSACTION_OUTCOME_ROLLED_BACK


def halves(lo: int, hi: int, group: str = GROUP, after_ms: int = 0, **how: Any) -> AppendRequest:
    made = request(lo, hi, **how)
    made.transaction.CopyFrom(HalfMessages(producer_group=group, check_after_ms=after_ms))
    return made


async def begun(node: Fixture, lo: int, hi: int, **how: Any) -> int:
    """Begin a transaction and return its id."""
    return (await node.broker.append(halves(lo, hi, **how))).position


async def ended(
    node: Fixture, transaction_id: int, outcome: Any = COMMITTED, group: str = GROUP
) -> EndTransactionResponse:
    return await node.broker.transactions.end_transaction(
        EndTransactionRequest(transaction_id=transaction_id, producer_group=group, outcome=outcome)
    )


async def stored(node: Fixture, topic: str = "orders", queue_id: int = 0) -> list[Message]:
    """Return all that consumers get of a queue."""
    stored_messages: list[Message] = []
    while True:
        pull = PullRequest(topic=topic, queue_id=queue_id, offset=len(stored_messages))
        response = await node.broker.pull(pull)
        if not response.record_count:
            return stored_messages
        stored_messages += messages(response.records)


@asynccontextmanager
async def producer(
    node: Fixture, group: str = GROUP
) -> AsyncIterator[AsyncGenerator[TransactionCheck]]:
    """A producer that waits for questions."""
    request = CheckTransactionsRequest(producer_group=group, client_id="p")
    stream = cast(
        "AsyncGenerator[TransactionCheck]", node.broker.transactions.check_transactions(request)
    )
    assert await anext(stream) == TransactionCheck(), "it stands"
    try:
        yield stream
    finally:
        await stream.aclose()


async def question(stream: AsyncIterator[TransactionCheck]) -> TransactionCheck:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(stream)


async def round_of(node: Fixture, after_ms: int = 0) -> None:
    """Let time pass, and have the leader look."""
    node.clock.now_ms += after_ms
    await node.broker.transactions.checks.round()


def part(node: Fixture) -> TransactionsTable:
    return node.machine.state.table(TransactionsTable)
