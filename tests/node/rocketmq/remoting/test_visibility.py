"""Records that nobody may see yet, or any more, and all ways by which a reader could get them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from node.errors.common import NodeError
from node.state.state import COMMAND_TOPIC, INTERNAL_TOPICS
from quorumlog.pb.log_pb2 import AppendRequest, GetMessageRequest, PullRequest, QueryByKeyRequest
from quorumlog.pb.lookup_pb2 import TraceMessageRequest
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage
from store import format as fmt
from store.record.message import encode_message, message_id
from tests.node.broker_fakes import Fixture, expire_some, hidden
from tests.node.delayed import send
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, Gateway, gateway_at
from tests.node.rocketmq.remoting.test_pop import popped
from tests.node.transaction_calls import ROLLED_BACK, ended
from tests.store.records import messages

NO_TOPIC, FOREVER = 17, str((1 << 63) - 1)
SECRET = b"secret"
Kind = Callable[[Fixture], Awaitable[int]]
"""Makes a record; returns its log position."""


def secret(topic: str = "orders", body: bytes = SECRET, **properties: str) -> AppendRequest:
    record = encode_message(topic, 0, body, {"KEYS": "K", **properties})
    return AppendRequest(records=record, record_count=1)


async def sent(node: Fixture, topic: str = "orders") -> int:
    return (await node.broker.append(secret(topic))).position


async def half(node: Fixture) -> int:
    request = secret()
    request.transaction.producer_group = "billing"
    return (await node.broker.append(request)).position


async def rolled_back(node: Fixture) -> int:
    position = await half(node)
    await ended(node, position, ROLLED_BACK)
    return position


async def by_level(node: Fixture) -> int:
    return (await send(node, secret(DELAY="1").records)).position


async def by_time(node: Fixture) -> int:
    return (await send(node, secret(TIMER_DELAY_SEC="60").records)).position


async def command(node: Fixture) -> int:
    await node.create_topic("secret")
    return hidden(node, COMMAND_TOPIC)[-1].position


async def of_deleted_topic(node: Fixture) -> int:
    await node.create_topic("gone")
    position = await sent(node, "gone")
    await node.delete_topic("gone")
    return position


async def of_recreated_topic(node: Fixture) -> int:
    position = await of_deleted_topic(node)
    await node.create_topic("gone")
    return position


async def of_closed_topic(node: Fixture) -> int:
    await node.create_topic("closed")
    position = await sent(node, "closed")
    await node.create_topic("closed", permission=2)
    return position


async def dead(node: Fixture, group: str, offset: int = 0) -> int:
    given = RetryMessage(topic="orders", queue_id=0, offset=offset, is_dead=True)
    await node.broker.retry.retry_later(RetryLaterRequest(group=group, messages=[given]))
    return hidden(node, f"%DLQ%{group}")[-1].position


async def of_deleted_group(node: Fixture) -> int:
    await sent(node)
    position = await dead(node, "gone")
    await node.delete_group("gone")
    await node.append(1, 2)
    await dead(node, "gone", 1)
    return position


async def expired(node: Fixture) -> int:
    position = await sent(node)
    await expire_some(node)
    return position


async def undecided(node: Fixture) -> int:
    await node.written(node.broker.append(secret()))
    return int(node.driver.pending[-1].prepared.result.record_positions[0])


async def in_a_body(node: Fixture) -> int:
    """A copy with the right position, as a client that knows where its message comes may send."""
    copy = bytearray(secret().records)
    first, second = [
        (await node.broker.append(secret(body=bytes(copy), KEYS="other"))).position for _ in "12"
    ]
    position = 2 * second - first + fmt.BODY_AT
    fmt.TIMESTAMP.pack_into(copy, fmt.PHYSICAL_OFFSET_AT, position)
    await node.broker.append(secret(body=bytes(copy), KEYS="other"))
    assert node.log.store.reads.message_at(position).body == SECRET
    return position


HIDDEN: dict[Kind, str] = {
    half: fmt.HALF_TOPIC, rolled_back: fmt.HALF_TOPIC, by_level: fmt.SCHEDULE_TOPIC,
    by_time: fmt.TIMER_TOPIC, command: COMMAND_TOPIC, of_deleted_topic: "gone",
    of_recreated_topic: "gone", of_closed_topic: "closed", of_deleted_group: "%DLQ%gone",
    expired: "orders", undecided: "orders", in_a_body: "orders",
}  # fmt: skip
"""Kinds of records that no reader gets, and the topic of the record."""


async def handed(client: ClassicClient, consumer: ClassicClient, own_id: str) -> bytes:
    """Return what member a of group readers is told to process."""
    fields = {"consumerGroup": "readers", "clientId": "a", "msgId": own_id, "topic": "orders"}
    answer = client.begin(codes.DIRECT, fields)
    question = asyncio.ensure_future(consumer.hear())
    await asyncio.wait({answer, question}, return_when=asyncio.FIRST_COMPLETED)
    if not question.done():
        question.cancel()
        assert (await answer).code != 0
        return b""
    consumer.answer(question.result())
    assert (await answer).code == 0
    return question.result().body


async def readers_of(gateway: Gateway, topic: str, position: int) -> dict[str, bool]:
    """Return all ways to the records of a topic, and whether one led to that at a position."""
    client, consumer, broker = *await consumer_at(gateway), gateway.node.broker
    own_id = message_id(broker.context.store.config.store_host, position)
    key = {"topic": topic, "key": "K", "beginTimestamp": "0", "maxNum": "64", "bname": "g0-n1"}
    back = {"group": "readers", "offset": str(position), "delayLevel": "-1"}
    queries, fields = broker.queries, {"topic": topic}
    ways: dict[str, Coroutine[Any, Any, Any]] = {
        "position": client.ask(codes.VIEW, {"offset": str(position)}),
        "key": client.ask(codes.KEY, key | {"endTimestamp": FOREVER}),
        "pull": client.pull(0, 0, ext=fields),
        "pop": popped(client, consumerGroup="poppers", **fields),
        "consumer": handed(client, consumer, own_id),
        "own id": queries.get_message(GetMessageRequest(message_id=own_id)),
        "own key": queries.query_by_key(QueryByKeyRequest(topic=topic, key="K")),
        "own pull": broker.pulls.pull(PullRequest(topic=topic, group="others")),
        "trace": broker.lookup.trace_message(TraceMessageRequest(message_id=own_id)),
    }
    readers = {}
    for name, way in ways.items():
        try:
            got = await way
        except NodeError:
            got = b""
        for part in ("body", "records", "record"):
            got = getattr(got, part, got)
        readers[name] = any(message.position == position for message in messages(got))
    return readers | {"given back": (await client.ask(codes.SEND_BACK, back)).code == 0}


async def consumer_at(gateway: Gateway) -> tuple[ClassicClient, ClassicClient]:
    """Return a stranger, and member a of group readers, which reads topic orders."""
    client, consumer = await gateway.client(), await gateway.client()
    await consumer.heartbeat("a")
    await consumer.hear()
    return client, consumer


@pytest.mark.parametrize("kind", HIDDEN, ids=lambda kind: kind.__name__)
async def test_no_reader_gets_a_hidden_record(tmp_path: Path, kind: Kind) -> None:
    async with gateway_at(tmp_path) as gateway:
        position = await kind(gateway.node)
        readers = await readers_of(gateway, HIDDEN[kind], position)
        assert [name for name, is_found in readers.items() if is_found] == []
        gateway.node.driver.release()


async def test_each_reader_gets_a_message_of_a_topic(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        readers = await readers_of(gateway, "orders", await sent(gateway.node))
        assert all(readers.values()), readers


async def test_a_consumer_is_handed_what_its_group_reads_or_gave_back(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        node, (client, consumer) = gateway.node, await consumer_at(gateway)
        await node.create_topic("bills")
        positions = await sent(node, "bills"), await sent(node)
        letters = await dead(node, "readers"), await dead(node, "others")
        host = node.log.store.config.store_host
        got = [await handed(client, consumer, message_id(host, p)) for p in (*positions, *letters)]
        assert [bool(body) for body in got] == [False, True, True, False]


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
async def test_clients_know_no_topic_that_the_cluster_keeps_for_itself(
    tmp_path: Path, topic: str
) -> None:
    async with gateway_at(tmp_path) as gateway:
        await by_level(gateway.node)
        await by_time(gateway.node)
        await rolled_back(gateway.node)
        client = await gateway.client()
        fields = {"topic": topic, "group": "g", "consumerGroup": "g", "queueId": "0"}
        fields |= {"bname": "g0-n1", "timestamp": "0", "isForce": "true"}
        for code in (codes.ROUTE, codes.TOPIC, codes.TOPIC_STATS, codes.RESET):
            assert (await client.ask(code, fields)).code == NO_TOPIC
        assert (await client.ask(codes.MAX, fields)).ext["offset"] == "0"
        assert b'"offsetTable":{}' in (await client.ask(codes.PROGRESS, fields)).body
        for group in ("", "a b", "readers"):
            pulled = await client.pull(0, 0, ext={"topic": topic, "consumerGroup": group})
            pop_response = await popped(client, topic=topic, consumerGroup=group)
            assert 0 not in (pulled.code, pop_response.code), group
            assert pulled.body == pop_response.body == b"", group
