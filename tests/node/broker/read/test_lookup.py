"""What became of a message, from log and state alone; and how large messages are."""

import asyncio
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import BadRequestError, MessageNotFoundError, UnknownTopicError
from quorumlog.pb.lookup_pb2 import TopicSizesRequest, TraceMessageRequest, TraceMessageResponse
from quorumlog.pb.retry_pb2 import RetryLaterRequest
from store import format as fmt
from store.record.message import encode_message, message_id
from tests.node.broker_fakes import Fixture, node_with, request
from tests.node.delayed import send, settle
from tests.node.transaction_calls import ROLLED_BACK, begun, ended, stored


async def trace(node: Fixture, position: int) -> TraceMessageResponse:
    text_id = message_id(node.log.store.config.store_host, position)
    return await node.broker.lookup.trace_message(TraceMessageRequest(message_id=text_id))


def told(response: TraceMessageResponse) -> list[tuple[str, str, str]]:
    return [
        (event.kind, event.topic, event.group or event.producer_group) for event in response.events
    ]


async def retried(node: Fixture, group: str, offset: int, **how: Any) -> None:
    request = RetryLaterRequest(group=group, producer_id=7, sequence=how.pop("sequence", 0))
    request.messages.add(topic="orders", queue_id=0, offset=offset, **how)
    await node.broker.retry.retry_later(request)


async def test_a_message_is_stored_and_passed_by_groups(node: Fixture) -> None:
    receipt = await node.append(0, 2)
    await node.commit("ahead", ("orders", 0, 2))
    await node.commit("behind", ("orders", 0, 0))
    response = await trace(node, receipt.position)
    assert told(response) == [("stored", "orders", ""), ("consumed", "orders", "ahead")]
    assert response.is_complete
    assert response.events[0].unix_ms == receipt.store_unix_ms
    assert len(response.record) > 91


@pytest.mark.parametrize("unique", ["", "0A0B"])
async def test_a_dead_letter_is_found_from_both_ends(node: Fixture, unique: str) -> None:
    properties = {"UNIQ_KEY": unique} if unique else {"KEYS": "k"}
    receipt = await node.put(encode_message("orders", 0, b"x" * 30, properties, born_unix_ms=5))
    await retried(node, "readers", 0, is_dead=True)
    response = await trace(node, receipt.position)
    dead = ("dead", "%DLQ%readers", "readers")
    assert told(response) == [("stored", "orders", ""), dead]
    (copy,) = await stored(node, "%DLQ%readers")
    again = await trace(node, copy.position)
    assert told(again) == told(response)


async def test_a_transaction_is_followed_from_half_message_to_message(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 2)
    half = ("half", fmt.HALF_TOPIC, "billing")
    assert told(await trace(node, transaction_id)) == [half, ("open", "", "billing")]
    await ended(node, transaction_id)
    response = await trace(node, transaction_id)
    assert told(response) == [half, ("committed", "orders", "")]
    (first, _) = await stored(node)
    assert told(await trace(node, first.position)) == told(response)
    other = await begun(node, 2, 3)
    await ended(node, other, ROLLED_BACK)
    assert told(await trace(node, other)) == [half, ("rolled back", "", "billing")]


async def test_a_record_that_is_no_half_message_is_not_told_as_one(node: Fixture) -> None:
    """Any client may name another record as the half message of its own."""
    first = await node.append(0, 1)
    record = encode_message(
        "orders",
        0,
        b"x",
        {fmt.PROPERTY_UNIQUE_KEY: "u?"},
        sys_flag=fmt.TRANSACTION_COMMIT,
        prepared_transaction_position=first.position,
    ).replace(b"u?", b"u\xff")
    receipt = await node.put(record)
    response = await trace(node, receipt.position)
    assert told(response) == [("committed", "orders", "")]


@node_with(limits=Limits(trace_scan_count_max=3))
async def test_a_long_queue_is_looked_through_up_to_a_limit(node: Fixture) -> None:
    transaction_id = await begun(node, 0, 1)
    for _ in range(3):
        await node.append(1, 3)
    await ended(node, transaction_id)
    response = await trace(node, transaction_id)
    assert not response.is_complete
    assert [event.kind for event in response.events] == ["half"]


@pytest.mark.parametrize("unique", ["", "0A0B"])
async def test_others_have_their_turn_while_groups_are_looked_through(
    node: Fixture, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.runtime.turn.SLICE_S", 0.0)  # Each look is a slice of its own.
    properties = {"UNIQ_KEY": unique} if unique else {}
    receipt = await node.put(encode_message("orders", 0, b"x", properties))
    for number in range(20):
        await node.commit(f"readers{number}", ("orders", 0, 1))
    tracing = asyncio.ensure_future(trace(node, receipt.position))
    turn_count = 0
    while not tracing.done():
        await asyncio.sleep(0)
        turn_count += 1
    assert len((await tracing).events) == 21
    assert turn_count >= 20


async def test_the_oldest_copy_of_a_delayed_message_is_the_one(node: Fixture) -> None:
    held = encode_message(
        "orders", 0, b"x", {"UNIQ_KEY": "0A", "TIMER_DELAY_MS": "1"}, born_unix_ms=5
    )
    first = await send(node, held)
    await send(node, held)
    node.clock.now_ms += 1
    await settle(node)
    copies = await stored(node)
    assert len(copies) == 2
    (delayed, stored_event) = (await trace(node, first.positions[0])).events
    assert (delayed.kind, stored_event.kind) == ("delayed", "stored")
    assert stored_event.offset == copies[0].queue_offset


async def test_wrong_ids_are_refused(node: Fixture) -> None:
    receipt = await node.append(0, 1)
    with pytest.raises(BadRequestError, match="message_id"):
        await node.broker.lookup.trace_message(TraceMessageRequest(message_id="nonsense"))
    for position in (receipt.position + 1, 1 << 40):
        with pytest.raises(MessageNotFoundError):
            await trace(node, position)
    foreign = message_id(("10.9.8.7", 1), receipt.position)
    with pytest.raises(MessageNotFoundError):
        await node.broker.lookup.trace_message(TraceMessageRequest(message_id=foreign))


@node_with(topics={"orders": 4, "bills": 1})
async def test_sizes_are_counted_by_topic(node: Fixture) -> None:
    await node.broker.append(request(0, 3, producer_id=5))
    large = encode_message("bills", 0, b"x" * 3_000)
    await node.put(large)
    orders = await node.broker.lookup.topic_sizes(TopicSizesRequest(topic="orders"))
    assert orders.record_count == 3
    assert 300 < orders.size_bytes < 1_000
    assert [(b.below_size_bytes, b.record_count) for b in orders.buckets] == [(256, 3)]
    bills = await node.broker.lookup.topic_sizes(TopicSizesRequest(topic="bills"))
    assert [(b.below_size_bytes, b.record_count) for b in bills.buckets] == [(4096, 1)]
    assert bills.size_bytes == len(large)
    assert node.broker.produce.sizes.total.record_count == 4
    with pytest.raises(UnknownTopicError):
        await node.broker.lookup.topic_sizes(TopicSizesRequest(topic="nowhere"))
