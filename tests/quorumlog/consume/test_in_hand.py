"""What is in hand is of the task or thread that took it, and no other one makes it processed."""

import asyncio
import threading
from typing import Any

import pytest

from quorumlog import Message, MessageBatch, Queue, errors
from quorumlog.consume.group import GroupConsumer
from quorumlog.consume.in_hand import LOOK_COUNT_MIN, InHand
from tests.patience import eventually
from tests.quorumlog.consume.test_group import one_queue
from tests.quorumlog.fake_cluster import connect, fake_cluster

QUEUE = Queue("orders", 0)


async def take_batch(consumer: GroupConsumer) -> MessageBatch:
    batch = await asyncio.wait_for(consumer.next_batch(), 60)
    assert batch is not None
    return batch


async def take(consumer: GroupConsumer, by: str) -> Message:
    match by:
        case "messages":
            return await anext(consumer)
        case "batches":
            return (await asyncio.wait_for(anext(consumer.batches()), 60))[0]
        case _:
            return (await take_batch(consumer))[0]


@pytest.mark.parametrize("stored", [0, 2])
@pytest.mark.parametrize("by", ["messages", "batches", "batch"])
async def test_a_message_of_one_task_is_not_processed_as_another_takes_the_next(
    by: str, stored: int
) -> None:
    async def slow() -> None:
        assert (await take(consumer, by)).body == b"0"
        holds.set()
        await goes_on.wait()
        await take(consumer, by)
        holds.set()
        await asyncio.Event().wait()

    async def read() -> None:
        async with consumer:
            tasks.append(asyncio.create_task(slow()))
            await holds.wait()
            assert [(await take(consumer, by)).body for _ in range(2)] == [b"1", b"2"]
            if stored:  # The slow one has 3, and this one has 2.
                holds.clear()
                goes_on.set()
                await holds.wait()
            raise KeyError

    holds, goes_on, tasks = asyncio.Event(), asyncio.Event(), list[asyncio.Task[None]]()
    async with fake_cluster() as cluster, connect(cluster) as client:
        for number in range(5):
            await client.producer().send("orders", b"%d" % number, queue_id=0)
        consumer = client.group_consumer("g", "orders", batch_count_max=1)
        with pytest.raises(KeyError):
            await read()
        tasks[0].cancel()
        assert cluster.offsets.get(("g", "orders", 0), 0) == stored


async def test_a_reader_that_ended_has_processed_its_message_unless_it_failed() -> None:
    async def read(offset: int, error: Exception | None) -> None:
        hand.take(asyncio.current_task(), QUEUE, offset)
        if error is not None:
            raise error

    hand = InHand()
    await asyncio.create_task(read(3, None))
    assert hand.offsets() == {QUEUE: 3}, "its parent may process it"
    thread = threading.Thread(target=lambda: hand.take(threading.current_thread(), QUEUE, 4))
    thread.start()
    thread.join()
    assert hand.offsets() == {QUEUE: 4}
    failed = asyncio.create_task(read(5, ValueError("a test")))
    await asyncio.wait({failed})
    hand.take(asyncio.current_task(), QUEUE, 6)
    assert hand.offsets() == {QUEUE: 5}
    assert isinstance(failed.exception(), ValueError)
    assert hand.reader_of(QUEUE, {5}) == (failed,)
    assert hand.offsets(without=failed) == {QUEUE: 6}


async def test_readers_that_ended_are_forgotten_and_none_is_missed_by_another_thread() -> None:
    async def read(offset: int) -> None:
        hand.take(asyncio.current_task(), QUEUE, offset)

    hand = InHand()
    for offset in range(3 * LOOK_COUNT_MIN):
        await asyncio.create_task(read(offset))
    assert len(hand._others) <= LOOK_COUNT_MIN
    reader, other = threading.current_thread(), threading.Thread()
    hand.take(reader, QUEUE, 1)

    class Others(dict[Any, Any]):
        def copy(self) -> dict[Any, Any]:  # Just now another thread takes the next.
            found = dict(self)
            hand.take(other, QUEUE, 9)
            return found

    hand._others = Others()  # type: ignore[misc]
    assert hand.offsets() == {QUEUE: 1}


async def test_all_that_ask_for_the_next_message_have_processed_the_last() -> None:
    """Though one of them alone waits for a batch, and the others for their turn."""
    hand = InHand()
    waiting = threading.Thread()
    hand.take(waiting, QUEUE, 4)
    hand.take(asyncio.current_task(), QUEUE, 5)
    hand.asking.add(waiting)
    assert hand.offsets() == {QUEUE: 5}
    hand.has_turn(waiting)
    hand.take(waiting, QUEUE, 6)
    assert hand.offsets() == {QUEUE: 5}
    hand.drop([QUEUE])
    async with one_queue(3, commit_interval_ms=10) as (cluster, consumer):

        async def work() -> None:
            async for _ in consumer:
                pass

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await eventually(lambda: cluster.offsets.get(("g", "orders", 0)) == 3)
        await consumer.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_messages_of_two_batches_that_are_given_back_are_no_whole_one() -> None:
    async with one_queue(6, batch_count_max=3) as (_, consumer):
        batches = [await take_batch(consumer), await take_batch(consumer)]
        mixed = [*batches[0].messages[:2], batches[1][0]]
        assert consumer._whole_delivery(mixed) is None
        assert consumer._whole_delivery(batches[1].messages) is not None


async def test_a_message_that_is_in_hand_for_long_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quorumlog.consume.group.HELD_S", 0.0)
    async with one_queue(5, commit_interval_ms=60_000) as (_, consumer):
        await anext(consumer)
        assert consumer._processed() == {("orders", 0): 0}
        assert not caplog.records, "nothing is behind it"

        async def work() -> None:
            for _ in range(3):
                await anext(consumer)

        await asyncio.create_task(work())
        for _ in range(2):
            assert consumer._processed() == {("orders", 0): 0}
        (record,) = caplog.records
        assert "message 0 of orders/0" in record.getMessage()


async def test_a_fatal_error_is_raised_however_much_comes_from_other_queues() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        await producer.send("orders", b"0", queue_id=0)
        async with client.pull_consumer("orders", position="first") as consumer:
            await anext(consumer)
            consumer._inbox.fail(errors.OffsetOutOfRangeError("orders/1"))
            for _ in range(9):
                await producer.send("orders", b"more", queue_id=0)
            with pytest.raises(errors.OffsetOutOfRangeError):
                await anext(consumer)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": ["orders", "nosuch"]},
        {"topics": ["orders"], "strategy": lambda *_: 1 // 0},
    ],
)
async def test_a_start_that_fails_leaves_the_group(wrong: dict[str, Any]) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        consumer = client.group_consumer("g", **wrong)
        for _ in range(2):
            with pytest.raises((errors.UnknownTopicError, errors.InvalidRequestError)):
                await consumer.start()
            assert cluster.members == {"g": []}


async def test_a_member_that_is_refused_hands_nothing_out_and_stores_nothing() -> None:
    async with one_queue(5, commit_interval_ms=10) as (_, consumer):
        assert (await anext(consumer)).body == b"0"
        consumer._fail(errors.ClientIdInUseError("it is another one's"))
        keeping = [task for kept in consumer._keeping.values() for task in kept]
        await asyncio.wait(keeping)
        with pytest.raises(errors.ClientIdInUseError):
            await anext(consumer)
