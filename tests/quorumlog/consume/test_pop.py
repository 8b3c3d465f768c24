"""The pop consumer: what is taken is handed out once, whoever asks, is cancelled or closes."""

import asyncio
from collections import deque
from typing import Any

import pytest

from quorumlog import errors
from quorumlog.cluster.calls import method_of
from quorumlog.consume import pop
from quorumlog.consume.pop import PopConsumer, PopMessage, PopOptions
from quorumlog.errors import Outcome
from quorumlog.pb import consumer_pb2, pop_pb2
from store.record.message import encode_message
from tests.patience import end, eventually
from tests.quorumlog.fake_cluster import connect, fake_cluster


class FakeBroker:
    """One broker group, as far as pop goes: a call that is repeated under its name gets the same.

    It is all of what a consumer knows of a cluster.
    """

    def __init__(self, **letters: str) -> None:
        """`letters`: the bodies of the messages of each topic."""
        self.calls, self.name, self.is_away, self.cluster_id = self, "", False, "c"
        self.all = [self]
        self.bodies = {topic: deque(those) for topic, those in letters.items()}
        self.given: dict[tuple[str, str], list[str]] = {}
        self.acked: list[str] = []
        self.nacked: list[str] = []
        self.left: list[str] = []
        self.beats: list[tuple[str, bool]] = []
        self.asked_count = 0
        self.refusals: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        """Answers wait for it; what they give was taken before."""
        self.gate.set()
        self.grown = asyncio.Condition()

    def get(self, _: str) -> "FakeBroker":
        return self

    async def send(self, topic: str, letters: str) -> None:
        async with self.grown:
            self.bodies.setdefault(topic, deque()).extend(letters)
            self.grown.notify_all()

    async def leader(self, request: Any, *_: Any, **__: Any) -> Any:
        return await getattr(self, method_of(request))(request)

    async def Heartbeat(self, request: Any) -> Any:  # noqa: N802
        self.beats.append((request.client_id, request.is_popping))
        return consumer_pb2.HeartbeatResponse()

    async def LeaveGroup(self, request: Any) -> Any:  # noqa: N802
        self.left.append(request.client_id)

    async def Receive(self, request: Any) -> Any:  # noqa: N802 - as on the wire.
        self.asked_count += 1
        name = request.topic, request.attempt_id
        there = self.bodies.setdefault(request.topic, deque())
        if name not in self.given:
            async with self.grown:
                if request.wait_ms and request.topic not in self.refusals:
                    await self.grown.wait_for(lambda: bool(there))
                count = min(request.max_count, len(there))
                if count:
                    self.given[name] = [there.popleft() for _ in range(count)]
        await self.gate.wait()
        if request.topic in self.refusals:
            raise self.refusals[request.topic]
        response = pop_pb2.ReceiveResponse()
        for body in self.given.get(name, ()):
            response.records += encode_message(request.topic, 0, body.encode())
            response.deliveries.add(handle=body, delivery_count=1)
        return response

    async def Ack(self, request: Any) -> Any:  # noqa: N802
        if request.topic in self.refusals:
            raise self.refusals[request.topic]
        self.acked += request.handles
        return pop_pb2.AckResponse()

    async def ChangeInvisible(self, request: Any) -> Any:  # noqa: N802
        assert request.invisible_ms == 0
        self.nacked.append(request.handle)
        return pop_pb2.ChangeInvisibleResponse(handle=request.handle)


def consumer_of(broker: Any, *topics: str) -> PopConsumer:
    return PopConsumer(broker, PopOptions("g", topics or ("orders",)), "me@1", 10_000)


def bodies(*messages: PopMessage) -> str:
    return b"".join(message.body for message in messages).decode()


async def asked(broker: FakeBroker, count: int) -> None:
    """Wait until so many receives have come in, and have taken what there was."""
    await eventually(lambda: broker.asked_count >= count)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_two_receives_at_once_get_different_messages() -> None:
    """They had one name for their calls, so the second one was given what the first one was."""

    broker = FakeBroker(orders="ab")
    consumer = consumer_of(broker)
    broker.gate.clear()
    receiving = [asyncio.create_task(consumer.receive(1)) for _ in range(2)]
    await asked(broker, 2)
    broker.gate.set()
    batches = await asyncio.gather(*receiving)
    assert sorted(bodies(*messages) for messages in batches) == ["a", "b"]


async def test_several_may_iterate_and_each_message_is_handed_out_once() -> None:
    broker = FakeBroker()
    consumer = consumer_of(broker)
    bodies_taken: list[str] = []

    async def iterate() -> None:
        async for message in consumer:
            bodies_taken.append(bodies(message))

    tasks = [asyncio.create_task(iterate()) for _ in range(3)]
    await asked(broker, 3)
    await broker.send("orders", "abcdefghij" * 9)
    await eventually(lambda: len(bodies_taken) == 90)
    await consumer.close()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(ended, errors.ClosedError)
    assert sorted(bodies_taken) == sorted("abcdefghij" * 9)


async def test_messages_of_a_cancelled_receive_come_with_the_next() -> None:
    broker = FakeBroker(orders="abcde")
    consumer = consumer_of(broker)
    broker.gate.clear()
    receiving = asyncio.create_task(consumer.receive(3))
    await asked(broker, 1)
    await end(receiving)
    broker.gate.set()
    assert bodies(*await consumer.receive(3)) == "abc"
    assert bodies(*await consumer.receive(3)) == "de"


async def test_no_more_is_handed_out_than_was_asked_for() -> None:
    """Of several topics; more was taken for a call that was cancelled."""

    broker = FakeBroker(orders="abcde")
    consumer = consumer_of(broker, "orders", "bills")
    consumer._target_rotation = 1  # The next call begins with the first topic.
    broker.gate.clear()
    receiving = asyncio.create_task(consumer.receive(5))
    await asked(broker, 1)
    assert list(broker.given.values()) == [[*"abcde"]]
    await end(receiving)
    broker.gate.set()
    assert [bodies(*await consumer.receive(1)) for _ in range(5)] == [*"abcde"]


async def test_a_failure_loses_nothing_that_came_at_the_same_moment() -> None:
    broker = FakeBroker(orders="a", bills="b", debts="c")
    consumer = consumer_of(broker, "orders", "bills", "debts")
    broker.refusals["bills"] = errors.PermissionDeniedError("no")
    targets: Any = [("bills", broker), ("orders", broker), ("debts", broker)]
    broker.gate.clear()
    polling = asyncio.create_task(consumer._poll_all(targets, 1, 1_000))
    await asked(broker, 3)
    broker.gate.set()
    await asyncio.gather(polling, return_exceptions=True)
    batches = [await consumer.receive(1) for _ in range(2)]
    assert sorted(bodies(*messages) for messages in batches) == ["a", "c"]


async def test_a_receive_that_fails_says_why_and_an_unknown_topic_only_if_it_is_nowhere() -> None:
    broker = FakeBroker(orders="a")
    broker.refusals["bills"] = errors.UnknownTopicError("no bills")
    broker.refusals["debts"] = errors.UnknownTopicError("no debts either")
    assert bodies(*await consumer_of(broker, "bills", "orders").receive()) == "a"
    for topics in (("bills",), ("bills", "debts")):
        with pytest.raises(errors.UnknownTopicError):
            await consumer_of(broker, *topics).receive()
    broker.refusals["debts"] = errors.PermissionDeniedError("no")
    with pytest.raises(errors.PermissionDeniedError):
        await consumer_of(broker, "bills", "debts").receive()


async def test_a_closing_consumer_gives_prefetched_messages_back() -> None:
    broker = FakeBroker(orders="abc")
    consumer = consumer_of(broker)
    assert bodies(await anext(consumer)) == "a"
    await asyncio.gather(consumer.close(), consumer.close())
    assert broker.left == ["me@1"]
    assert sorted(broker.nacked) == ["b", "c"]
    for call in (consumer.receive, consumer.__anext__):
        with pytest.raises(errors.ClosedError):
            await call()
    waiting = consumer_of(broker)
    receiving = asyncio.create_task(waiting.receive())
    await asked(broker, 2)
    await waiting.close()
    with pytest.raises(errors.ClosedError):
        await receiving


async def test_an_acknowledgement_of_which_a_part_was_refused_is_in_doubt() -> None:
    broker = FakeBroker(orders="a", bills="b")
    consumer = consumer_of(broker, "orders", "bills")
    messages = [await anext(consumer), await anext(consumer)]
    broker.refusals[messages[1].topic] = errors.PermissionDeniedError("no")
    with pytest.raises(errors.PermissionDeniedError) as caught:
        await consumer.ack(messages)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert broker.acked == [messages[0].handle]
    with pytest.raises(errors.PermissionDeniedError) as caught:
        await consumer.ack(messages[1])
    assert caught.value.outcome is Outcome.NOT_APPLIED


async def test_a_consumer_at_work_stays_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop, "_HEARTBEAT_S", 0.001)
    broker = FakeBroker(orders="a")
    consumer = consumer_of(broker)
    await consumer.receive(1)
    await eventually(lambda: len(broker.beats) > 2, "heartbeats beside the work")
    await consumer.close()
    assert set(broker.beats) == {("me@1", True)}
    assert broker.left == ["me@1"]


async def test_the_options_of_a_pop_consumer_are_checked() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
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
            with pytest.raises(errors.InvalidRequestError):
                client.pop_consumer("g", **options)
        consumer = client.pop_consumer("g", "orders")
        for count, wait in ((0, 1), (33, 1), (1, -1), (1, 3_601)):
            with pytest.raises(errors.InvalidRequestError):
                await consumer.receive(count, wait=wait)
