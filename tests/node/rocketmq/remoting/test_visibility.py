"""Records that nobody may see yet, or any more, and all ways by which a reader could get them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from node.errors.common import NodeError
from node.state.state import COMMAND_TOPIC, INTERNAL_TOPICS
from quorumlog.pb.admin_pb2 import CreateTopicRequest, DeleteGroupRequest, DeleteTopicRequest
from quorumlog.pb.log_pb2 import AppendRequest, GetMessageRequest, PullRequest, QueryByKeyRequest
from quorumlog.pb.lookup_pb2 import TraceMessageRequest
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage
from quorumlog.pb.transaction_pb2 import HalfMessages
from store import format as fmt
from store.record.message import decode_message, encode_message, message_id
from tests.node.broker_fakes import Fixture, expire_some
from tests.node.delayed import request_of
from tests.node.rocketmq.remoting.clients import (
    KEY,
    MAX,
    PROGRESS,
    RESET,
    ROUTE,
    SEND_BACK,
    TOPIC,
    TOPIC_STATS,
    VIEW,
    ClassicClient,
    Gateway,
    gateway_at,
)
from tests.node.rocketmq.remoting.test_pop import popped
from tests.node.transaction_calls import ROLLED_BACK, ended
from tests.store.records import messages

DIRECT, NO_TOPIC, FOREVER = 309, 17, str((1 << 63) - 1)
SECRET = b"secret"


def secret(topic: str = "orders", body: bytes = SECRET, **properties: str) -> AppendRequest:
    record = encode_message(topic, 0, body, {"KEYS": "K", **properties})
    return AppendRequest(records=record, record_count=1)


async def sent(node: Fixture, topic: str = "orders") -> int:
    return (await node.broker.append(secret(topic))).position


async def half(node: Fixture) -> int:
    request = secret()
    request.transaction.CopyFrom(HalfMessages(producer_group="billing"))
    return (await node.broker.append(request)).position


async def rolled_back(node: Fixture) -> int:
    position = await half(node)
    await ended(node, position, ROLLED_BACK)
    return position


async def delayed(node: Fixture, **properties: str) -> int:
    asked = request_of(secret("orders", SECRET, **properties).records)
    return (await node.broker.append(asked)).position


async def by_level(node: Fixture) -> int:
    return await delayed(node, DELAY="1")


async def by_time(node: Fixture) -> int:
    return await delayed(node, TIMER_DELAY_SEC="60")


async def command(node: Fixture) -> int:
    await node.broker.topics.create_topic(CreateTopicRequest(topic="secret"))
    found = node.log.store.reads
    lo, hi = found.queue_range(COMMAND_TOPIC, 0)
    assert lo < hi
    return decode_message(found.pull(COMMAND_TOPIC, 0, hi - 1).data).position


async def of_deleted_topic(node: Fixture) -> int:
    await node.broker.topics.create_topic(CreateTopicRequest(topic="gone"))
    position = await sent(node, "gone")
    await node.broker.topics.delete_topic(DeleteTopicRequest(topic="gone"))
    return position


async def of_recreated_topic(node: Fixture) -> int:
    position = await of_deleted_topic(node)
    await node.broker.topics.create_topic(CreateTopicRequest(topic="gone"))
    return position


async def of_closed_topic(node: Fixture) -> int:
    await node.broker.topics.create_topic(CreateTopicRequest(topic="closed"))
    position = await sent(node, "closed")
    closed = CreateTopicRequest(topic="closed", permission=2)
    await node.broker.topics.create_topic(closed)
    return position


async def dead(node: Fixture, offset: int) -> int:
    given = RetryMessage(topic="orders", queue_id=0, offset=offset, is_dead=True)
    await node.broker.retry.retry_later(RetryLaterRequest(group="gone", messages=[given]))
    return decode_message(node.log.store.reads.pull("%DLQ%gone", 0, offset).data).position


async def of_deleted_group(node: Fixture) -> int:
    await sent(node)
    position = await dead(node, 0)
    await node.broker.groups.delete_group(DeleteGroupRequest(group="gone"))
    await node.append(1, 2)
    await dead(node, 1)
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


HIDDEN: dict[Callable[[Fixture], Awaitable[int]], str] = {
    half: fmt.HALF_TOPIC,
    rolled_back: fmt.HALF_TOPIC,
    by_level: fmt.SCHEDULE_TOPIC,
    by_time: fmt.TIMER_TOPIC,
    command: COMMAND_TOPIC,
    of_deleted_topic: "gone",
    of_recreated_topic: "gone",
    of_closed_topic: "closed",
    of_deleted_group: "%DLQ%gone",
    expired: "orders",
    undecided: "orders",
    in_a_body: "orders",
}
"""Kinds of records that no reader gets, and the topic of the record."""


class Look(NamedTuple):
    """One record, and the clients that look for it."""

    node: Fixture
    client: ClassicClient
    consumer: ClassicClient
    """Member a of group readers."""
    topic: str
    position: int

    @property
    def own_id(self) -> str:
        return message_id(self.node.log.store.config.store_host, self.position)


async def by_position(look: Look) -> bytes:
    return (await look.client.ask(VIEW, {"offset": str(look.position)})).body


async def by_key(look: Look) -> bytes:
    asked = {"topic": look.topic, "key": "K", "beginTimestamp": "0", "maxNum": "64"}
    return (await look.client.ask(KEY, asked | {"endTimestamp": FOREVER, "bname": "g0.n1"})).body


async def by_pull(look: Look) -> bytes:
    return (await look.client.pull(0, 0, ext={"topic": look.topic})).body


async def by_pop(look: Look) -> bytes:
    return (await popped(look.client, topic=look.topic, consumerGroup="poppers")).body


async def handed_to_a_consumer(look: Look) -> bytes:
    fields = {"consumerGroup": "readers", "clientId": "a", "msgId": look.own_id}
    answer = look.client.begin(DIRECT, fields | {"topic": "orders"})
    told = asyncio.ensure_future(look.consumer.hear())
    await asyncio.wait({answer, told}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        told.cancel()
        assert (await answer).code != 0
        return b""
    look.consumer.answer(told.result())
    assert (await answer).code == 0
    return told.result().body


async def given_back(look: Look) -> bytes:
    asked = {"group": "readers", "offset": str(look.position), "delayLevel": "-1"}
    if (await look.client.ask(SEND_BACK, asked)).code:
        return b""
    return record_of(look.position)


async def by_id(look: Look) -> bytes:
    asked = GetMessageRequest(message_id=look.own_id)
    return (await look.node.broker.queries.get_message(asked)).records


async def by_trace(look: Look) -> bytes:
    asked = TraceMessageRequest(message_id=look.own_id)
    return (await look.node.broker.lookup.trace_message(asked)).record


async def by_key_of_ours(look: Look) -> bytes:
    asked = QueryByKeyRequest(topic=look.topic, key="K")
    return (await look.node.broker.queries.query_by_key(asked)).records


async def by_pull_of_a_group(look: Look) -> bytes:
    asked = PullRequest(topic=look.topic, group="others")
    return (await look.node.broker.pulls.pull(asked)).records


READERS: list[Callable[[Look], Awaitable[bytes]]] = [
    by_position,
    by_key,
    by_pull,
    by_pop,
    handed_to_a_consumer,
    given_back,
    by_id,
    by_trace,
    by_key_of_ours,
    by_pull_of_a_group,
]


def record_of(position: int) -> bytes:
    record = bytearray(secret().records)
    fmt.TIMESTAMP.pack_into(record, fmt.PHYSICAL_OFFSET_AT, position)
    return bytes(record)


async def readers_of(gateway: Gateway, topic: str, position: int) -> list[str]:
    """Return the names of the readers that get the record at a position."""
    client, consumer = await gateway.client(), await gateway.client()
    await consumer.heartbeat("a")
    await consumer.hear()
    look, found = Look(gateway.node, client, consumer, topic, position), []
    for reader in READERS:
        try:
            got = messages(await reader(look))
        except NodeError:
            continue
        if any(message.position == position for message in got):
            found.append(reader.__name__)
    return found


@pytest.mark.parametrize("kind", HIDDEN, ids=lambda kind: kind.__name__)
async def test_no_reader_gets_a_hidden_record(
    tmp_path: Path, kind: Callable[[Fixture], Awaitable[int]]
) -> None:
    async with gateway_at(tmp_path) as gateway:
        position = await kind(gateway.node)
        assert await readers_of(gateway, HIDDEN[kind], position) == []
        gateway.node.driver.release()


async def test_each_reader_gets_a_message_of_a_topic(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        position = await sent(gateway.node)
        found = await readers_of(gateway, "orders", position)
        assert found == [reader.__name__ for reader in READERS]


async def test_a_consumer_is_handed_what_its_group_reads_or_gave_back(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        node, client, consumer = gateway.node, await gateway.client(), await gateway.client()
        await node.broker.topics.create_topic(CreateTopicRequest(topic="bills"))
        await consumer.heartbeat("a")
        await consumer.hear()
        await sent(node)
        letters = {"readers": True, "gone": False}
        for group, is_handed in letters.items():
            given = RetryMessage(topic="orders", queue_id=0, offset=0, is_dead=True)
            await node.broker.retry.retry_later(RetryLaterRequest(group=group, messages=[given]))
            letter = decode_message(node.log.store.reads.pull(f"%DLQ%{group}", 0, 0).data)
            look = Look(node, client, consumer, letter.topic, letter.position)
            assert bool(await handed_to_a_consumer(look)) == is_handed
        look = look._replace(position=await sent(node, "bills"))
        assert await handed_to_a_consumer(look) == b""


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
async def test_clients_know_no_topic_that_the_cluster_keeps_for_itself(
    tmp_path: Path, topic: str
) -> None:
    async with gateway_at(tmp_path) as gateway:
        await by_level(gateway.node)
        await by_time(gateway.node)
        await rolled_back(gateway.node)
        client = await gateway.client()
        asked = {"topic": topic, "group": "g", "consumerGroup": "g", "queueId": "0"}
        asked |= {"bname": "g0.n1", "timestamp": "0", "isForce": "true"}
        for code in (ROUTE, TOPIC, TOPIC_STATS, RESET):
            assert (await client.ask(code, asked)).code == NO_TOPIC
        assert (await client.ask(MAX, asked)).ext["offset"] == "0"
        assert b'"offsetTable":{}' in (await client.ask(PROGRESS, asked)).body
