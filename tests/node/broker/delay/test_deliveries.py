"""Delayed messages: nobody's own record stops those of others, and no trouble forgets one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from node.broker.delay.deliveries import DelayedDelivery
from node.broker.delay.due_index import Due
from node.broker.records.delayed import scheduled
from node.config.limits import Limits
from node.errors.common import MessageNotFoundError
from node.state.state import State
from quorumlog.pb.delay_pb2 import CancelDelayedRequest
from store import format as fmt
from store.errors import LimitExceededError
from store.record.message import encode_message, message_id
from tests.node.broker_fakes import Fixture, node_with
from tests.node.delayed import NOW, bodies, delayed, move, send
from tests.patience import eventually


@node_with(topics={"orders": 1, "bills": 1}, file_size_bytes=1 << 20)
async def test_the_longest_properties_that_are_held_can_be_undeliverable(node: Fixture) -> None:
    length = fmt.PROPERTIES_SIZE_BYTES_MAX
    while True:
        try:
            await send(node, delayed(1, topic="bills", DELAY="1", X="x" * length))
        except LimitExceededError:
            length -= 1
        else:
            break
    await send(node, delayed(2, DELAY="1"))
    await node.delete_topic("bills")
    await move(node, NOW + 1_000)
    assert (bodies(node), bodies(node, fmt.UNDELIVERABLE_TOPIC)) == ([2], [1])


async def test_a_delivery_that_cannot_be_made_is_tried_again(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(node, delayed(1, DELAY="1"))
    deliveries = node.broker.delay.delivery_task._deliveries
    made = asyncio.Event()

    def fail(*_: object) -> None:
        made.set()
        raise LimitExceededError("anything", 2, 1)

    with monkeypatch.context() as patch:
        patch.setattr(deliveries, "of", fail)
        patch.setattr("node.broker.delay.delivery_task.UNREADABLE_RETRY_MS", 1)
        await move(node, NOW + 1_000)
        await made.wait()
    await eventually(lambda: bodies(node) == [1], "the message")


async def test_a_record_inside_a_body_names_no_message_to_cancel(node: Fixture) -> None:
    await send(node, delayed(1, DELAY="1"))
    store = node.log.store
    host = store.config.store_host
    for queue_offset in (0, 1, 1 << 40):
        position = store.log.max_position + fmt.ENTRY_HEADER_SIZE_BYTES + fmt.BODY_AT
        inner = bytearray(scheduled(delayed(2), NOW + 1_000, level=1))
        fmt.TIMESTAMP.pack_into(inner, fmt.QUEUE_OFFSET_AT, queue_offset)
        fmt.TIMESTAMP.pack_into(inner, fmt.PHYSICAL_OFFSET_AT, position)
        own_id = message_id(host, position)
        inner[fmt.STORE_HOST_AT : fmt.STORE_HOST_AT + 8] = bytes.fromhex(own_id[:16])
        await send(node, encode_message("orders", 1, bytes(inner)))
        assert store.reads.message_at(position).topic == fmt.SCHEDULE_TOPIC
        request = CancelDelayedRequest(message_id=own_id)
        with pytest.raises(MessageNotFoundError):
            await node.broker.delay.cancel_delayed(request)
    await send(node, delayed(3, DELAY="1"))
    await move(node, NOW + 1_000)
    assert bodies(node) == [1, 3]


@node_with(limits=replace(Limits(), delivery_size_bytes_max=8_000), file_size_bytes=1 << 20)
async def test_no_more_is_read_than_one_entry_delivers(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes = [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}]
    for number in range(40):
        body = (b"%d" % number).ljust(20_000 if number == 20 else 2_000)
        sent = await send(node, encode_message("orders", 0, body, wishes[number % 2]))
        if number == 10:
            host = node.log.store.config.store_host
            gone = CancelDelayedRequest(message_id=message_id(host, sent.positions[0]))
            await node.broker.delay.cancel_delayed(gone)
    store, deliveries = node.log.store, node.broker.delay.delivery_task._deliveries
    read, of = store.reads.records_at, deliveries.of
    sizes_bytes: list[int] = []

    def records_at(topic: str, queue_id: int, offsets: Sequence[int]) -> bytes:
        rows = read(topic, queue_id, offsets)
        sizes_bytes[-1] += len(rows)
        return rows

    def counted(dues: Sequence[Due], state: State, now_unix_ms: int) -> DelayedDelivery:
        sizes_bytes.append(0)
        return of(dues, state, now_unix_ms)

    monkeypatch.setattr(store.reads, "records_at", records_at)
    monkeypatch.setattr(deliveries, "of", counted)
    await move(node, NOW + 1_000)
    await eventually(lambda: len(bodies(node)) == 39, "all messages")
    assert sorted(bodies(node)) == [*range(10), *range(11, 40)]
    largest = max(sizes_bytes)
    assert 20_000 < largest < 21_000, "one message at least, however large"
    sizes_bytes.remove(largest)
    assert max(sizes_bytes) <= 8_000
    assert len(sizes_bytes) <= 20, "as many as fit go together"
