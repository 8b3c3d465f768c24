"""Checks of open transactions: none waits for another one, and their number is bounded."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import quorumlog
from quorumlog.pb import transaction_pb2
from quorumlog.transactions.producer import CHECKS_MAX
from tests.patience import eventually
from tests.quorumlog.fake_cluster import Node, connect, fake_cluster


async def test_checks_that_hang_hold_up_no_other_until_all_places_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, may_end = list[int](), asyncio.Event()
    questions, ended = asyncio.Queue[int](), asyncio.Queue[int]()

    async def ask(_: Node, _request: Any, _context: Any) -> AsyncIterator[Any]:
        while True:
            transaction_id = await questions.get()
            yield transaction_pb2.TransactionCheck(transaction_id=transaction_id, check_count=1)

    async def end(_: Node, request: Any, _context: Any) -> Any:
        ended.put_nowait(request.transaction_id)
        return transaction_pb2.EndTransactionResponse()

    async def check(transaction: quorumlog.CheckedTransaction) -> str:
        started.append(transaction.transaction_id)
        if transaction.transaction_id < 100:
            await may_end.wait()
        return "commit"

    monkeypatch.setattr(Node, "CheckTransactions", ask, raising=False)
    monkeypatch.setattr(Node, "EndTransaction", end, raising=False)
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer = client.transactional_producer("billing", check)
        producer.start()
        hanging = list(range(1, CHECKS_MAX))
        for one in [*hanging, *hanging, 100, 101, 102]:
            questions.put_nowait(one)
        assert [await ended.get() for _ in range(3)] == [100, 101, 102]
        assert started == [*hanging, 100, 101, 102], "one check of a transaction at a time"
        for one in (50, 103):
            questions.put_nowait(one)
        await eventually(lambda: 50 in started, "the last place is taken")
        await eventually(questions.empty, "the next question is on its way")
        assert 103 not in started
        may_end.set()
        assert {await ended.get() for _ in range(CHECKS_MAX + 1)} == {*hanging, 50, 103}
        may_end.clear()
        questions.put_nowait(60)
        await eventually(lambda: 60 in started, "one hangs")
        await producer.close()
