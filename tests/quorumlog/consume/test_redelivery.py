"""Calls that give messages back: numbered, repeated as they were, begun anew after a failure."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quorumlog import errors
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.membership import Redeliveries, Redelivery
from quorumlog.consume.prefetch import Inbox
from quorumlog.errors import Outcome
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryLaterResponse
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.queues import Queue
from store.record.message import encode_message


class FakeGroup:
    """A broker group that answers as it was told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls = self.router = self
        self.cluster_id = "c"
        self.answers: list[Exception | None] = []
        self.asked: list[RetryLaterRequest] = []

    async def leader(self, request: Any, *_: Any, **__: Any) -> Any:
        request_copy = RetryLaterRequest()
        request_copy.CopyFrom(request)
        self.asked.append(request_copy)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return RetryLaterResponse(index=1, retried_count=len(request.messages))


def message(offset: int, topic: str = "orders", **properties: str) -> Message:
    record = encode_message(topic, 0, b"x", properties, queue_offset=offset)
    (decoded,) = decode_records(record)
    return decoded


def give_back(group: FakeGroup) -> Callable[[int], Any]:
    made: Any = group
    redeliveries = Redeliveries(made, "readers")

    async def one(offset: int) -> Redelivery:
        return await redeliveries.give_back(
            [message(offset)],
            delay_ms=5,
            is_dead=False,
            attempt_count_max=3,
            offsets=[GroupOffset(topic="orders", queue_id=0, offset=offset + 1)],
            deadline=Deadline(1_000),
        )

    return one


async def test_calls_are_numbered_one_after_the_other() -> None:
    group = FakeGroup()
    redeliver = give_back(group)
    done: list[Redelivery] = await asyncio.gather(*map(redeliver, range(3)))
    assert done == [Redelivery(1, 0)] * 3
    assert [asked.sequence for asked in group.asked] == [0, 1, 2]
    assert len({asked.producer_id for asked in group.asked}) == 1
    (given,) = group.asked[2].messages
    assert (given.topic, given.queue_id, given.offset, given.delay_ms) == ("orders", 0, 2, 5)
    assert [(row.topic, row.offset) for row in group.asked[2].offsets] == [("orders", 3)]
    assert (group.asked[2].attempt_count_max, group.asked[2].group) == (3, "readers")


@pytest.mark.parametrize(
    "error",
    [
        errors.OutcomeUnknownError("who knows"),
        errors.NotFoundError("said the last attempt, not the first"),
        errors.ServerError("once", outcome=Outcome.APPLIED),
        asyncio.CancelledError(),
    ],
)
async def test_after_a_failure_another_numbering_begins(error: Any) -> None:
    group = FakeGroup()
    redeliver = give_back(group)
    await redeliver(0)
    group.answers = [error]
    with pytest.raises(type(error)):
        await redeliver(1)
    await redeliver(2)
    _, second, third = group.asked
    assert second.sequence == 1
    assert third.sequence == 0
    assert third.producer_id != second.producer_id


async def test_a_forgotten_redelivery_producer_begins_anew() -> None:
    group = FakeGroup()
    redeliver = give_back(group)
    await redeliver(0)
    group.answers = [errors.UnknownProducerError("silent for long")]
    assert await redeliver(1) == Redelivery(1, 0)
    assert [asked.sequence for asked in group.asked] == [0, 1, 0]


def test_a_message_says_where_it_was_sent() -> None:
    assert message(0).origin_topic == "orders"
    assert message(0, RETRY_TOPIC="forged").origin_topic == "orders"
    assert message(0, "%RETRY%g", RETRY_TOPIC="orders").origin_topic == "orders"
    assert message(0, "%DLQ%g", RETRY_TOPIC="orders").origin_topic == "orders"


@pytest.mark.parametrize("limits", [(1, 100), (1_000_000, 3)])
async def test_no_more_is_read_ahead_than_the_bounds_allow(limits: tuple[int, int]) -> None:
    inbox = Inbox(*limits)
    fetcher: Any = type("Fetcher", (), {"credits": asyncio.Semaphore(9)})()
    batch = MessageBatch(
        "t", 0, 0, 3, 0, 3, 0, 1, 300, False, [message(n) for n in range(3)], Queue("t", 0)
    )
    inbox.put(fetcher, batch)
    waiting = asyncio.ensure_future(inbox.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await inbox.get() is batch
    await waiting
