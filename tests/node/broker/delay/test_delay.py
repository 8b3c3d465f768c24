"""Delayed messages at the broker: held until they are due, delivered as they were sent, once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from node.broker.delay import delivery_task
from node.broker.delay.delivery_task import UNREADABLE_RETRY_MS
from node.broker.records.delayed import LEVEL_DELAYS_MS, PROPERTY_UNDELIVERABLE
from node.config.limits import Limits
from node.errors.common import (
    BadRequestError,
    MessageNotFoundError,
    NodeError,
    OutcomeUnknownError,
    ReservedTopicError,
    TopicNotWritableError,
    UnknownQueueError,
    UnknownTopicError,
)
from node.errors.delay import DelayedFullError, DelayedGoneError, DelayTooLongError
from node.state.tables.delay import DelayTable
from quorumlog.pb.delay_pb2 import CancelDelayedRequest, DelayStatusRequest
from quorumlog.pb.log_pb2 import AppendResponse
from store import format as fmt
from store.errors import (
    CorruptionError,
    DerivedFileError,
    LimitExceededError,
    RecordFormatError,
    StoreFullError,
)
from store.record.message import decode_message, encode_message, message_id
from tests.node.broker_fakes import Fixture, node_with
from tests.node.delayed import NOW, bodies, delayed, move, request_of, send, settle
from tests.patience import eventually

HOST = ("127.0.0.1", 10911)


def id_of(node: Fixture, response: AppendResponse, number: int = 0) -> str:
    return message_id(node.log.store.config.store_host, response.positions[number])


async def cancel(node: Fixture, message: str) -> None:
    await node.broker.delay.cancel_delayed(CancelDelayedRequest(message_id=message))


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"DELAY": "1"}, 1_000),
        ({"DELAY": "18"}, 7_200_000),
        ({"DELAY": "99"}, 7_200_000),
        ({"TIMER_DELAY_SEC": "7"}, 7_000),
        ({"TIMER_DELAY_MS": "1"}, 1),
        ({"TIMER_DELIVER_MS": str(NOW + 259_200_000)}, 259_200_000),
        ({"TIMER_DELIVER_MS": str(NOW - 1)}, 0),
    ],
)
async def test_a_message_comes_when_it_is_due_and_not_before(
    node: Fixture, properties: dict[str, str], delay_ms: int
) -> None:
    response = await send(node, delayed(7, queue_id=2, **properties))
    assert list(response.due_unix_ms) == [NOW + delay_ms]
    if delay_ms:
        await move(node, NOW + delay_ms - 1)
        assert bodies(node, queue_id=2) == []
    await move(node, NOW + delay_ms)
    assert bodies(node, queue_id=2) == [7]
    await move(node, NOW + 3 * delay_ms + 10)
    assert bodies(node, queue_id=2) == [7]


async def test_a_delayed_message_is_delivered_as_it_was_sent(node: Fixture) -> None:
    sent = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "u", "own": "x"}
    record = encode_message(
        "orders",
        1,
        b"body",
        {**sent, "DELAY": "1", "WAIT": "true"},
        flag=5,
        born_unix_ms=77,
        born_host=("10.1.2.3", 4),
        reconsume_times=2,
    )
    await send(node, record)
    await move(node, NOW + 1_000)
    stored = decode_message(node.log.store.reads.pull("orders", 1, 0).data)
    assert stored.properties == sent
    assert (stored.body, stored.flag, stored.reconsume_times) == (b"body", 5, 2)
    assert (stored.born_unix_ms, stored.born_host) == (77, ("10.1.2.3", 4))
    assert stored.tags_code != 0
    by_key = node.log.store.reads.messages_by_key("orders", "k")
    assert [message.position for message in by_key] == [stored.position]


async def test_the_receipt_says_where_each_is_held_and_so_does_that_of_a_repetition(
    node: Fixture,
) -> None:
    records = [delayed(0, DELAY="2"), delayed(1), delayed(2, TIMER_DELAY_MS="50")]
    first = await send(node, *records, producer_id=9, sequence=0)
    assert list(first.due_unix_ms) == [NOW + 5_000, 0, NOW + 50]
    held = [node.log.store.reads.message_at(position) for position in first.positions]
    assert [message.topic for message in held] == [fmt.SCHEDULE_TOPIC, "orders", fmt.TIMER_TOPIC]
    assert [int(message.body) for message in held] == [0, 1, 2]
    node.clock.now_ms += 20
    again = await send(node, *records, producer_id=9, sequence=0)
    assert again.is_duplicate
    assert again.positions == first.positions
    assert again.due_unix_ms == first.due_unix_ms
    assert bodies(node) == [1]
    await move(node, NOW + 10_000)
    assert bodies(node) == [1, 2, 0]


async def test_without_the_flag_the_properties_mean_nothing(node: Fixture) -> None:
    request = request_of(delayed(1, DELAY="3"))
    request.has_delayed = False
    await node.broker.append(request)
    assert bodies(node) == [1]


async def test_a_new_leader_reads_what_is_held_and_not_all_that_was_delivered_behind_it(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_task, "_UNITS_AT_ONCE", 4)
    reads = list[int]()
    store = node.broker.delay.delivery_task._context.store
    units = store.units

    def counted(topic: str, queue_id: int, lo: int, hi: int) -> bytes:
        reads.append(hi - lo)
        return units(topic, queue_id, lo, hi)

    await send(node, delayed(0, TIMER_DELAY_MS="9000"))
    for lo in range(10, 210, 50):
        await send(node, *(delayed(n, TIMER_DELAY_MS="9") for n in range(lo, lo + 50)))
    await send(node, delayed(1, TIMER_DELAY_MS="9000"))
    await move(node, NOW + 100)
    assert len(bodies(node)) == 200
    node.driver.lose()
    monkeypatch.setattr(store, "units", counted)
    node.driver.lead()
    await move(node, NOW + 200)
    assert sum(reads) == 4 + 1
    await move(node, NOW + 9_000)
    assert bodies(node)[200:] == [0, 1]


@node_with(limits=replace(Limits(), delivery_count_max=7, delivery_in_flight_count_max=2))
async def test_many_that_are_due_at_once_come_in_the_order_of_their_times(node: Fixture) -> None:
    for lo in range(0, 100, 10):
        records = [delayed(n, TIMER_DELAY_MS=str(1_000 - n)) for n in range(lo, lo + 10)]
        await send(node, *records)
    await move(node, NOW + 5_000)
    assert bodies(node) == list(range(99, -1, -1))
    assert node.driver.append_count >= 1 + 10 + 100 // 7
    gone = node.machine.state.table(DelayTable).queues[0]
    assert (gone.floor, gone.count) == (100, 100)


async def test_level_and_time_are_held_in_the_queues_that_rocketmq_has(node: Fixture) -> None:
    await send(node, *(delayed(n, DELAY=str(n)) for n in range(1, 19)))
    for level in range(1, 19):
        assert bodies(node, fmt.SCHEDULE_TOPIC, level - 1) == [level]
        units = node.log.store.reads.units(fmt.SCHEDULE_TOPIC, level - 1, 0, 1)
        due_ms = fmt.CONSUME_QUEUE_UNIT.unpack(units)[2]
        assert due_ms == NOW + LEVEL_DELAYS_MS[level - 1]


# --- Refused ---


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (delayed(0, topic="nowhere", DELAY="1"), UnknownTopicError),
        (delayed(0, topic="rmq_sys_quorumlog", DELAY="1"), ReservedTopicError),
        (delayed(0, topic="SCHEDULE_TOPIC_XXXX"), ReservedTopicError),
        (delayed(0, topic="closed", DELAY="1"), TopicNotWritableError),
        (delayed(0, queue_id=4, DELAY="1"), UnknownQueueError),
        (delayed(0, TIMER_DELAY_MS="soon"), RecordFormatError),
        (delayed(0, TIMER_DELAY_MS="259200001"), DelayTooLongError),
        (delayed(0, TIMER_DELIVER_MS=str(NOW + 259_200_001)), DelayTooLongError),
        (b"x" * 100, RecordFormatError),
        (encode_message("orders", 0, b"x" * 15_500, {"DELAY": "1"}), LimitExceededError),
    ],
)
async def test_a_bad_delay_is_refused_and_nothing_is_written(
    node: Fixture, record: bytes, error: type[Exception]
) -> None:
    await node.create_topic("closed", permission=4)
    before = node.log.last_index
    with pytest.raises(error):
        await send(node, delayed(1, DELAY="1"), record)
    assert node.log.last_index == before
    status = await node.broker.delay.delay_status(DelayStatusRequest())
    assert status.held_count == 0


@node_with(limits=replace(Limits(), delayed_count_max=3))
async def test_no_more_are_held_than_the_limit_says(node: Fixture) -> None:
    node.driver.is_holding = True
    two = node.broker.append_nowait(request_of(delayed(0, DELAY="1"), delayed(1, DELAY="1")))
    with pytest.raises(DelayedFullError, match="2 delayed messages are held"):
        await send(node, delayed(2, DELAY="1"), delayed(3, DELAY="1"))
    node.driver.release()
    await two
    await send(node, delayed(4, DELAY="1"), delayed(5))
    with pytest.raises(DelayedFullError, match="3 delayed messages are held"):
        await send(node, delayed(6, DELAY="1"))
    await move(node, NOW + 1_000)
    await send(node, *(delayed(n, DELAY="1") for n in (7, 8, 9)))


# --- Nowhere to go ---


RECREATED = "topic was deleted and recreated"


@pytest.mark.parametrize("reason", ["no such topic", RECREATED, "topic takes no messages"])
async def test_a_message_whose_topic_is_gone_is_kept_and_says_so(
    node: Fixture, reason: str
) -> None:
    await send(node, delayed(1, DELAY="1", KEYS="k"), delayed(2, queue_id=3, DELAY="1"))
    if reason == "topic takes no messages":
        await node.create_topic("orders", permission=4)
    else:
        await node.delete_topic("orders")
    if reason == RECREATED:
        await node.create_topic("orders", queue_count=1)
    await move(node, NOW + 1_000)
    assert bodies(node, fmt.UNDELIVERABLE_TOPIC) == [1, 2]
    message = decode_message(node.log.store.reads.pull(fmt.UNDELIVERABLE_TOPIC, 0, 0).data)
    assert message.properties[PROPERTY_UNDELIVERABLE] == reason
    assert message.properties["REAL_TOPIC"] == "orders"
    status = await node.broker.delay.delay_status(DelayStatusRequest())
    assert (status.held_count, status.undeliverable_count) == (0, 2)


# --- Cancels ---


async def test_a_cancelled_message_is_never_delivered(node: Fixture) -> None:
    records = [delayed(n, TIMER_DELAY_MS=str(100 + n)) for n in range(5)]
    response = await send(node, *records)
    for number in (0, 3):
        await cancel(node, id_of(node, response, number))
        await cancel(node, id_of(node, response, number))  # A repetition is answered.
    status = await node.broker.delay.delay_status(DelayStatusRequest())
    assert status.held_count == 3
    await move(node, NOW + 1_000)
    assert bodies(node) == [1, 2, 4]
    with pytest.raises(DelayedGoneError):
        await cancel(node, id_of(node, response, 1))
    await cancel(node, id_of(node, response, 3))


async def test_a_cancel_of_what_was_never_delayed_is_refused(node: Fixture) -> None:
    response = await send(node, delayed(1), delayed(2, DELAY="1"))
    host = node.log.store.config.store_host
    for wrong in (
        id_of(node, response, 0),
        message_id(host, response.position + 1),
        message_id(host, 1 << 40),
        message_id(("10.9.9.9", 1), response.positions[1]),
    ):
        with pytest.raises(MessageNotFoundError):
            await cancel(node, wrong)
    with pytest.raises(BadRequestError):
        await cancel(node, "no id")


async def test_a_cancel_and_a_delivery_do_not_both_succeed(node: Fixture) -> None:
    response = await send(node, delayed(1, TIMER_DELAY_MS="10"), delayed(2, DELAY="1"))
    node.driver.is_holding = True
    await move(node, NOW + 10)
    assert len(node.driver.pending) == 1
    with pytest.raises(DelayedGoneError):  # It is being delivered.
        await cancel(node, id_of(node, response, 0))
    under_way = asyncio.create_task(cancel(node, id_of(node, response, 1)))
    await move(node, NOW + 1_000)
    assert len(node.driver.pending) == 2  # What a cancel takes is not delivered beside it.
    joined = asyncio.create_task(cancel(node, id_of(node, response, 1)))
    await settle(node)
    assert len(node.driver.pending) == 2
    node.driver.release()
    await asyncio.gather(under_way, joined)
    await settle(node)
    assert bodies(node) == [1]


async def test_a_message_that_comes_due_beside_a_cancel_that_fails_is_delivered(
    node: Fixture,
) -> None:
    response = await send(node, delayed(1, DELAY="1"))
    await settle(node)
    node.driver.failure = StoreFullError("disk", 1, 0)
    node.clock.now_ms = NOW + 1_000
    leadership = node.broker.delay.delivery_task.leadership
    assert leadership is not None
    leadership.wake.set()  # The look at what is due comes between the cancel and its failure.
    with pytest.raises(StoreFullError):
        await cancel(node, id_of(node, response))
    await settle(node)
    assert bodies(node) == [1]


async def test_a_cancel_under_a_lost_leadership_has_an_unknown_outcome(node: Fixture) -> None:
    response = await send(node, delayed(1, DELAY="1"))
    node.driver.is_holding = True
    under_way = asyncio.create_task(cancel(node, id_of(node, response)))
    await settle(node)
    node.driver.lose()
    with pytest.raises(OutcomeUnknownError):
        await under_way
    node.driver.decide(1)
    node.driver.is_holding = False
    node.driver.lead()
    await cancel(node, id_of(node, response))  # It was applied.
    await move(node, NOW + 1_000)
    assert bodies(node) == []


async def test_only_the_leader_cancels_and_knows(node: Fixture) -> None:
    node.driver.lose()
    with pytest.raises(NodeError, match="does not lead"):
        await cancel(node, message_id(HOST, 0))
    with pytest.raises(NodeError, match="does not lead"):
        await node.broker.delay.delay_status(DelayStatusRequest())


# --- Trouble ---


async def test_a_message_comes_although_nothing_else_happens(node: Fixture) -> None:
    """The leader looks at the clock by itself."""
    await send(node, delayed(7, DELAY="1"))
    await settle(node)
    node.clock.now_ms = NOW + 1_000
    await eventually(lambda: bodies(node) == [7], "the clock")


async def test_a_delivery_that_finds_no_room_is_tried_again(node: Fixture) -> None:
    await send(node, delayed(1, DELAY="1"), delayed(2, DELAY="1"))
    node.driver.failure = StoreFullError("disk", 1, 0)
    await move(node, NOW + 1_000)
    delivery_task = node.broker.delay.delivery_task
    assert (delivery_task.failed_total, bodies(node)) == (1, [])
    await eventually(lambda: bodies(node) == [1, 2], "both")
    assert delivery_task.failed_total == 1


async def test_an_unreadable_delayed_message_is_retried_and_delays_no_other(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(node, *(delayed(n, TIMER_DELAY_MS="10") for n in range(3)))
    damaged: list[CorruptionError | DerivedFileError] = []
    node.broker.context.on_damage = damaged.append
    store = node.log.store
    read = store.reads.records_at

    def records_at(topic: str, queue_id: int, offsets: Sequence[int]) -> bytes:
        if 1 in offsets:
            raise CorruptionError("file", 7, "body CRC", "1", "2")
        return read(topic, queue_id, offsets)

    monkeypatch.setattr(store.reads, "records_at", records_at)
    await move(node, NOW + 10)
    assert bodies(node) == [0, 2]
    assert len(damaged) == 1
    monkeypatch.setattr(store.reads, "records_at", read)
    await move(node, NOW + 10 + UNREADABLE_RETRY_MS)
    assert bodies(node) == [0, 2, 1]


async def test_a_clock_that_goes_back_delivers_later_and_nothing_twice(node: Fixture) -> None:
    await send(node, delayed(1, TIMER_DELAY_MS="1000"), delayed(2, TIMER_DELAY_MS="2000"))
    await move(node, NOW + 1_000)
    assert bodies(node) == [1]
    node.driver.lose()
    node.clock.now_ms = NOW - 500_000
    node.driver.lead()
    await settle(node)
    await send(node, delayed(3, TIMER_DELAY_MS="1000"))
    await move(node, NOW - 499_000)
    assert bodies(node) == [1, 3]
    await move(node, NOW + 1_999)
    assert bodies(node) == [1, 3]
    await move(node, NOW + 2_000)
    assert bodies(node) == [1, 3, 2]


async def test_status_says_what_is_held(node: Fixture) -> None:
    await send(node, delayed(0, DELAY="3"), delayed(1, DELAY="3"), delayed(2, DELAY="1"))
    await send(node, delayed(3, TIMER_DELAY_MS="2000"))
    await move(node, NOW + 1_000)
    status = await node.broker.delay.delay_status(DelayStatusRequest())
    rows = {row.level: (row.delay_ms, row.held_count, row.end_offset) for row in status.queues}
    assert rows == {0: (0, 1, 1), 1: (1_000, 0, 1), 3: (10_000, 2, 2)}
    assert (status.held_count, status.now_unix_ms) == (3, NOW + 1_000)
    assert status.next_due_unix_ms == NOW + 2_000
    assert not status.is_loading
