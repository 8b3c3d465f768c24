"""Pop: what is handed out, when it comes again, what is done, and what is dead."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors import common as errors
from node.errors.pop import StaleHandleError
from node.errors.translation import describe
from quorumlog.pb.log_pb2 import PullRequest
from quorumlog.pb.pop_pb2 import ReceiveRequest
from store.derived.queues.pull import PullResult
from store.errors import CorruptionError, DerivedFileError
from store.record.message import encode_message
from tests.node.broker.pop.pop_calls import (
    GROUP,
    ack,
    ask,
    bodies,
    give_up,
    got,
    hide,
    lag,
    offset_of,
    parked,
    part,
    pass_time,
    receive,
    send,
)
from tests.node.broker_fakes import Fixture, configure, expire_some, node_with
from tests.patience import eventually
from tests.store.records import messages


async def dead_letters(node: Fixture) -> list[str]:
    pull = PullRequest(topic=f"%DLQ%{GROUP}", queue_id=0)
    if pull.topic not in node.machine.state.topics:
        return []
    letters = messages((await node.broker.pull(pull)).records)
    assert all(m.properties["RETRY_TOPIC"] == "orders" for m in letters)
    return [message.body.decode() for message in letters]


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_the_largest_message_can_be_a_dead_letter(node: Fixture, is_given_up: bool) -> None:
    await configure(node, GROUP, retry_count_max=0)
    room = node.broker.produce.batch_size_bytes_max - len(encode_message("orders", 0, b""))
    await node.put(encode_message("orders", 0, b"x" * room))
    (delivery,) = await receive(node)
    if is_given_up:
        await give_up(node, delivery)
    pass_time(node, 5_000)
    await eventually(lambda: not part(node).windows)
    assert await dead_letters(node) == ["x" * room]


async def test_a_dead_one_that_cannot_be_read_does_not_hold_up_the_others_and_is_told(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configure(node, GROUP, retry_count_max=0)
    await send(node, "1", "2", "3")
    await receive(node)
    damaged: list[CorruptionError | DerivedFileError] = []
    node.broker.context.on_damage = damaged.append
    store = node.log.store
    pull = store.reads.pull

    def damaged_pull(topic: str, queue_id: int, offset: int, **how: Any) -> PullResult:
        if (topic, offset) == ("orders", 1):
            raise CorruptionError("file", 7, "body CRC", "1", "2")
        return pull(topic, queue_id, offset, **how)

    monkeypatch.setattr(store.reads, "pull", damaged_pull)
    pass_time(node, 5_000)
    await eventually(lambda: node.broker.pop.shared.dead_total == 2)
    await eventually(lambda: len(damaged) >= 2)
    assert await dead_letters(node) == ["1", "3"]
    monkeypatch.setattr(store.reads, "pull", pull)
    pass_time(node, 5_000)
    await eventually(lambda: not part(node).windows)
    assert await dead_letters(node) == ["1", "3", "2"]


async def test_many_large_messages_that_are_dead_at_once_take_several_entries(
    node: Fixture,
) -> None:
    await configure(node, GROUP, retry_count_max=0)
    sent = [letter * 6_000 for letter in "abcde"]
    for body in sent:
        await send(node, body)
    assert bodies(await receive(node)) == sent
    pass_time(node, 5_000)
    await eventually(lambda: node.broker.pop.shared.dead_total == len(sent))
    assert part(node).windows == {}


# --- Handed out, acknowledged, handed out again ---


async def test_in_flight_messages_are_invisible_and_acked_ones_gone(node: Fixture) -> None:
    await send(node, "1", "2", "3")
    first = await receive(node, 2)
    assert [(one.body, one.count) for one in first] == [("1", 1), ("2", 1)]
    second = await receive(node)
    assert bodies(second) == ["3"]
    assert await receive(node) == []
    assert (offset_of(node), await lag(node)) == (0, 3)
    assert await ack(node, first[1], second[0]) == 0
    assert (offset_of(node), await lag(node)) == (0, 3), "the first one is not done"
    assert await ack(node, first[0]) == 0
    assert (offset_of(node), await lag(node)) == (3, 0)
    assert part(node).windows == {}, "nothing is held of a group that is idle"
    pass_time(node, 60_000)
    assert await receive(node) == []


async def test_each_group_and_each_queue_has_a_window_of_its_own(node: Fixture) -> None:
    for queue_id in range(4):
        await send(node, f"{queue_id}", queue_id=queue_id)
    assert bodies(await receive(node, queue_id=2)) == ["2"]
    assert sorted(bodies(await receive(node))) == ["0", "1", "3"]
    assert sorted(bodies(await receive(node, group="other"))) == ["0", "1", "2", "3"]
    assert part(node).in_flight_count == 8


async def test_an_expired_delivery_comes_again_before_new_messages(node: Fixture) -> None:
    await send(node, "1", "2", "3", "4")
    late = await receive(node, 2)
    pass_time(node, 999)
    assert bodies(await receive(node, 1)) == ["3"]
    pass_time(node, 1)
    again = await receive(node, 3)
    assert [(one.body, one.count) for one in again] == [("1", 2), ("2", 2), ("4", 1)]
    assert await ack(node, late[0]) == 1, "the handle of before"
    assert await ack(node, again[0], again[1]) == 0
    assert offset_of(node) == 2


async def test_an_acknowledgement_counts_until_the_message_is_handed_out_again(
    node: Fixture,
) -> None:
    await send(node, "1")
    (first,) = await receive(node)
    pass_time(node, 5_000)
    assert await ack(node, first) == 0
    assert await receive(node) == []
    assert await ack(node, first) == 0, "it may be repeated"


async def test_the_invisible_time_can_be_changed_in_both_directions(node: Fixture) -> None:
    await send(node, "1", "2")
    long, short = await receive(node)
    changed = await hide(node, long, 10_000)
    assert (changed.handle, changed.visible_unix_ms) == (long.handle, 1_010_000)
    await hide(node, short, 0)
    (again,) = await receive(node)
    assert (again.body, again.count) == ("2", 2)
    pass_time(node, 1_500)
    assert bodies(await receive(node)) == ["2"], "only that one"
    assert await ack(node, long) == 0
    with pytest.raises(StaleHandleError, match="not in flight") as caught:
        await hide(node, long, 1_000)
    assert describe(caught.value).code == "node.stale_handle"
    with pytest.raises(StaleHandleError, match="handed out again"):
        await hide(node, short, 1_000)


async def test_a_group_begins_at_the_first_message_or_at_the_end(node: Fixture) -> None:
    await send(node, "1")
    end = ReceiveRequest.START_END
    assert await receive(node, 1, start=end) == []
    await send(node, "2")
    await send(node, "3", queue_id=3)
    assert sorted(bodies(await receive(node, start=end))) == ["2", "3"]
    await node.create_topic("orders", queue_count=9)
    await send(node, "4", queue_id=8)
    assert bodies(await receive(node, start=end)) == ["4"]
    assert await receive(node, start=end, group="by_queue", queue_id=0) == []
    await send(node, "5", queue_id=8)
    assert bodies(await receive(node, start=end, group="by_queue", queue_id=8)) == ["5"]
    assert sorted(bodies(await receive(node, group="other"))) == ["1", "2", "3", "4", "5"]


async def test_messages_without_one_of_the_tags_are_passed_over(node: Fixture) -> None:
    await node.append(0, 9)
    response = await ask(node, tags=["tag1"])
    assert [int(m.body[:8]) for m in messages(response.records)] == [1, 4, 7]
    assert offset_of(node) == 1
    assert await ack(node, *got(response)) == 0
    assert (offset_of(node), await lag(node)) == (9, 0)
    assert await receive(node) == []


async def test_messages_in_flight_that_expire_are_taken_out(node: Fixture) -> None:
    await node.append(0, 2)
    assert len(await receive(node, 2)) == 2
    await expire_some(node)
    pass_time(node, 1_000)
    lo, _ = node.log.store.reads.queue_range("orders", 0)
    assert lo > 2
    deliveries = await receive(node, 1, wait_ms=30_000)
    assert deliveries[0].offset == lo
    await eventually(lambda: offset_of(node) == lo)


# --- Waiting ---


async def test_a_receive_waits_for_a_message_and_for_one_that_becomes_visible(
    node: Fixture,
) -> None:
    waiting = await parked(node)
    await send(node, "1", queue_id=3)
    assert bodies(await waiting) == ["1"]
    waiting = await parked(node)
    pass_time(node, 1_000)
    assert [(one.body, one.count) for one in await waiting] == [("1", 2)]
    assert await receive(node, wait_ms=1) == [], "its time is over"


async def test_each_message_wakes_a_single_waiting_receive(node: Fixture) -> None:
    tasks = [asyncio.create_task(receive(node, wait_ms=30_000)) for _ in range(3)]
    await eventually(lambda: node.broker.pop.shared.lines.room.used == 3)
    for number in range(3):
        await send(node, str(number))
        await eventually(
            lambda n=number: sum(t.done() for t in tasks) == n + 1  # type: ignore[misc]
        )
    assert sorted(bodies([one for task in tasks for one in task.result()])) == [*"012"]


async def test_a_cancelled_receive_leaves_the_message_to_the_next(node: Fixture) -> None:
    gone = await parked(node)
    next_one = await parked(node, 2)
    node.broker.pop.on_grown([(b"orders", 0)])
    gone.cancel()
    await eventually(gone.done)
    await send(node, "1")
    assert bodies(await next_one) == ["1"]


async def test_a_delivery_to_a_cancelled_caller_is_visible_at_once(node: Fixture) -> None:
    await send(node, "1")
    task = await node.written(receive(node))
    task.cancel()
    await eventually(task.done)
    node.driver.release()
    assert [(one.body, one.count) for one in await receive(node, wait_ms=30_000)] == [("1", 2)]


@node_with(limits=replace(Limits(), pop_waiters_max=1))
async def test_too_many_waiting_receives_are_refused(node: Fixture) -> None:
    waiting = await parked(node)
    with pytest.raises(errors.BusyError, match="waiting receives"):
        await receive(node, wait_ms=30_000)
    waiting.cancel()
    await eventually(waiting.done)
    assert node.broker.pop.shared.lines.room.used == 0


async def test_an_attempt_that_is_repeated_gets_the_same_messages(node: Fixture) -> None:
    await send(node, "a1", "a2", "b1")
    first = await receive(node, 2, attempt_id="one", is_fifo=True)
    node.clock.now_ms += 900
    assert await receive(node, 2, attempt_id="one", is_fifo=True) == first
    node.clock.now_ms += 900
    other = await receive(node, 2, attempt_id="two", is_fifo=True)
    assert bodies(other) == ["b1"], "the time of the others has begun anew"
    assert await ack(node, first[0]) == 0
    assert await receive(node, 2, attempt_id="one", is_fifo=True) == first[1:]


async def test_a_late_attempt_gets_nothing_behind_a_message_that_another_one_has(
    node: Fixture,
) -> None:
    """Its invisible time is over, and the first message of the group went to another receive."""
    await send(node, "a1", "a2", "b1")
    late = {"attempt_id": "one", "is_fifo": True}
    assert bodies(await receive(node, 3, **late)) == ["a1", "a2", "b1"]
    pass_time(node, 2_000)
    (first,) = await receive(node, 1, attempt_id="two", is_fifo=True)
    assert first.body == "a1"
    assert bodies(await receive(node, 3, **late)) == ["b1"]
    await ack(node, first)
    assert bodies(await receive(node, 3, **late)) == ["a2", "b1"]


# --- FIFO ---


async def test_a_single_message_of_each_message_group_is_handed_out(node: Fixture) -> None:
    await send(node, "a1", "a2", "1", "b1", "2", "b2")
    how = {"is_fifo": True, "is_one_of_each": True}
    first = await receive(node, **how)
    assert bodies(first) == ["a1", "1", "b1", "2"]
    assert await receive(node, **how) == [], "their groups have a message in flight"
    assert await ack(node, *[one for one in first if one.body in {"a1", "1"}]) == 0
    assert bodies(await receive(node, **how)) == ["a2"]
    await send(node, "3")
    assert bodies(await receive(node, **how)) == ["3"], "2 is in flight, and no matter"
    pass_time(node, 1_000)
    assert bodies(await receive(node, **how)) == ["a2", "b1", "2", "3"], "due again"


async def test_a_message_group_in_flight_hands_out_no_more(node: Fixture) -> None:
    await send(node, "a1", "a2", "b1", "a3", "c1", "b2")
    first = await receive(node, 1, is_fifo=True)
    assert bodies(first) == ["a1"]
    others = await receive(node, is_fifo=True)
    assert bodies(others) == ["b1", "c1", "b2"], "several of one may come at once"
    assert await receive(node, is_fifo=True) == []
    assert await ack(node, *others) == 0
    assert await receive(node, is_fifo=True) == []
    waiting = await parked(node, is_fifo=True)
    assert await ack(node, *first) == 0
    assert bodies(await waiting) == ["a2", "a3"]
    pass_time(node, 1_000)
    again = await receive(node, 1, is_fifo=True)
    assert [(one.body, one.count) for one in again] == [("a2", 2)]
    assert await receive(node, is_fifo=True) == []


async def test_messages_without_a_group_keep_the_order_of_their_queue(node: Fixture) -> None:
    await send(node, "1", "2", "3")
    first = await receive(node, 1, is_fifo=True)
    assert await receive(node, is_fifo=True) == []
    await hide(node, first[0], 0)
    assert bodies(await receive(node, 2, is_fifo=True)) == ["1", "2"]


async def test_a_group_that_is_set_to_be_orderly_gets_everything_in_order(node: Fixture) -> None:
    await configure(node, GROUP, is_orderly=True)
    await send(node, "1", "2")
    assert bodies(await receive(node, 1)) == ["1"]
    assert await receive(node) == []
    await send(node, "a1", "a2", "3", "4", queue_id=1)
    deliveries = await receive(node, is_fifo=True, is_one_of_each=True)
    assert bodies(deliveries) == ["a1", "a2", "3", "4"], "and not one of each message group"


# --- Dead letters ---


async def test_after_the_last_delivery_a_message_is_a_dead_letter(node: Fixture) -> None:
    await configure(node, GROUP, retry_count_max=2)
    await send(node, "1", "2")
    for count in (1, 2, 3):
        deliveries = await receive(node, 1, queue_id=0)
        assert [(one.body, one.count) for one in deliveries] == [("1", count)]
        pass_time(node, 1_000)
    await eventually(lambda: offset_of(node) == 1)
    assert await dead_letters(node) == ["1"]
    assert bodies(await receive(node)) == ["2"]
    assert node.broker.pop.shared.dead_total == 1
    assert await ack(node, *deliveries) == 0, "it is not in flight any more"


async def test_a_receive_before_the_timer_does_not_hand_a_dead_letter_out(node: Fixture) -> None:
    await configure(node, GROUP, retry_count_max=0)
    await send(node, "1", "2")
    assert bodies(await receive(node, 1, queue_id=0)) == ["1"]
    node.clock.now_ms += 1_000  # The message is due, and the timer has not looked.
    assert bodies(await receive(node)) == ["2"]
    await eventually(lambda: node.broker.pop.shared.dead_total == 1)
    assert await dead_letters(node) == ["1"]


async def test_a_receive_gets_what_comes_behind_a_dead_letter_of_its_message_group(
    node: Fixture,
) -> None:
    await configure(node, GROUP, retry_count_max=0)
    await send(node, "a1", "a2")
    assert bodies(await receive(node, 1, is_fifo=True)) == ["a1"]
    waiting = await parked(node, is_fifo=True)
    pass_time(node, 1_000)
    assert bodies(await waiting) == ["a2"]
    assert await dead_letters(node) == ["a1"]


async def test_a_message_can_be_given_up_at_once(node: Fixture) -> None:
    await send(node, "1", "2", "3")
    first, second, third = await receive(node)
    await give_up(node, first)
    assert await dead_letters(node) == ["1"]
    with pytest.raises(StaleHandleError):
        await give_up(node, first)
    giving = await node.written(give_up(node, second))
    assert await ack(node, second) == 1, "it is on its way"
    with pytest.raises(errors.BusyError):
        await give_up(node, third)
    node.driver.release()
    await giving
    assert await dead_letters(node) == ["1", "2"]
    assert await ack(node, third) == 0
