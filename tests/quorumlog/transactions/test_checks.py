"""Checks of open transactions: none waits for another one, and their number is bounded."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

import quorumlog
from quorumlog.pb import log_pb2, transaction_pb2
from quorumlog.transactions.producer import CHECKS_MAX
from tests import services
from tests.patience import eventually
from tests.quorumlog.cluster.test_closed_channel import _Asking


class _AskingOften(_Asking):
    """Asks each question that is put into its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: asyncio.Queue[int] = asyncio.Queue()

    async def CheckTransactions(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        while True:
            transaction_id = await self.questions.get()
            yield transaction_pb2.TransactionCheck(transaction_id=transaction_id, check_count=1)


async def test_checks_that_hang_hold_up_no_other_until_all_places_are_taken() -> None:
    asking, server = _AskingOften(), grpc.aio.server()
    services.add(server, log_pb2.DESCRIPTOR, asking)
    services.add(server, transaction_pb2.DESCRIPTOR, asking)
    asking.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    started, may_end = list[int](), asyncio.Event()

    async def check(transaction: quorumlog.CheckedTransaction) -> str:
        started.append(transaction.transaction_id)
        if transaction.transaction_id < 100:
            await may_end.wait()
        return "commit"

    try:
        async with quorumlog.connect(asking.address) as client:
            producer = client.transactional_producer("billing", check)
            producer.start()
            hanging = list(range(1, CHECKS_MAX))
            for one in [*hanging, *hanging, 100, 101, 102]:
                asking.questions.put_nowait(one)
            assert [await asking.ended.get() for _ in range(3)] == [100, 101, 102]
            assert started == [*hanging, 100, 101, 102], "one check of a transaction at a time"
            for one in (50, 103):
                asking.questions.put_nowait(one)
            await eventually(lambda: 50 in started, "the last place is taken")
            await eventually(asking.questions.empty, "the next question is on its way")
            assert 103 not in started
            may_end.set()
            ended = {await asking.ended.get() for _ in range(CHECKS_MAX + 1)}
            assert ended == {*hanging, 50, 103}
            may_end.clear()
            asking.questions.put_nowait(60)
            await eventually(lambda: 60 in started, "one hangs")
            await producer.close()
    finally:
        await server.stop(None)
