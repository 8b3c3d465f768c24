"""The calls of a pop consumer against three real nodes. Chaos scenarios kill their leaders."""

import asyncio
from pathlib import Path

import pytest

from quorumlog.errors import NotFoundError, QuorumlogError, StaleHandleError, UnknownTopicError
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC

GROUP = "workers"


async def test_the_calls_of_a_pop_consumer(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (_, client):
        await client.admin.create_topic("bills")
        consumer = client.pop_consumer(GROUP, [TOPIC, "bills"], invisible=20)
        async with client.producer() as producer, consumer:
            assert await consumer.receive(wait=0) == []
            waiting = asyncio.create_task(consumer.receive())
            await producer.send("bills", "1", tag="a")
            (first,) = await waiting
            assert (first.topic, first.body, first.delivery_count) == ("bills", b"1", 1)
            assert first.to_dict()["handle"] == first.handle
            await consumer.nack(first)
            (again,) = await consumer.receive()
            assert (again.body, again.delivery_count) == (b"1", 2)
            with pytest.raises(StaleHandleError) as caught:
                await consumer.ack([first, again])
            assert (caught.value.handles, caught.value.code) == (
                (first.handle,),
                "node.stale_handle",
            )
            with pytest.raises(StaleHandleError):
                await consumer.change_invisible(again, 5)
            await producer.send(TOPIC, "2")
            (second,) = await consumer.receive()
            before = second.visible_unix_ms
            await consumer.change_invisible(second, 3_600)
            assert second.visible_unix_ms > before
            await consumer.reject(second)
            dead = await client.admin.dead_letters(GROUP)
            assert [one.message.body for one in dead] == [b"2"]
            await producer.send(TOPIC, "3")
            async for message in consumer:
                await consumer.ack(message)
                break
        with pytest.raises(QuorumlogError, match="closed"):
            await consumer.receive()
        with pytest.raises(UnknownTopicError):
            await client.pop_consumer(GROUP, "nowhere").receive(wait=0)
        with pytest.raises(NotFoundError):
            await client.admin.describe_group("nobody")
