"""Message groups: one queue each, whatever way they are sent."""

from typing import Any

import pytest

import quorumlog
from quorumlog import OutgoingMessage
from quorumlog.errors import InvalidRequestError
from quorumlog.records.batch import key_queue
from tests.quorumlog.fake_cluster import fake_cluster

PROPERTY = "__SHARDINGKEY"


async def test_a_message_group_chooses_the_queue_and_travels_along() -> None:
    async with fake_cluster() as cluster, quorumlog.connect(cluster.bootstrap) as client:
        count = (await client.route("orders")).topics["orders"].queue_count
        producer = client.producer()
        for name in ("a", "b", "customer 7", "\u00e9"):
            first = await producer.send("orders", b"1", message_group=name)
            two = await producer.send(
                "orders", b"2", message_group=name, key="k", properties={"x": "y"}
            )
            three = await (await producer.enqueue("orders", b"3", message_group=name)).receipt()
            four = await producer.send_nowait("orders", b"4", message_group=name).receipt()
            many = await producer.send_batch(
                "orders", [OutgoingMessage(b"5", properties={PROPERTY: name}, key="other")]
            )
            receipts = [first, two, three, four, *many]
            assert {r.queue_id for r in receipts} == {key_queue(name, count)}
            message = await client.get_message(two.message_id)
            assert message.properties == {"KEYS": "k", "x": "y", PROPERTY: name}
        named = await producer.send("orders", b"6", message_group="a", queue_id=3)
        assert named.queue_id == 3
        with pytest.raises(InvalidRequestError):
            await producer.send("orders", b"7", message_group="")


async def test_the_options_of_a_pop_consumer_are_checked() -> None:
    async with fake_cluster() as cluster, quorumlog.connect(cluster.bootstrap) as client:
        bad: list[dict[str, Any]] = [
            {"topics": []},
            {"topics": ["a", "a"]},
            {"invisible": 0},
            {"invisible": 50_000},
            {"start": "middle"},
            {"timeout_ms": -1},
        ]
        for wrong in bad:
            options = {"topics": "orders", **wrong}
            with pytest.raises(InvalidRequestError):
                client.pop_consumer("g", **options)
        consumer = client.pop_consumer("g", "orders")
        for count, wait in ((0, 1), (33, 1), (1, -1), (1, 3_601)):
            with pytest.raises(InvalidRequestError):
                await consumer.receive(count, wait=wait)
