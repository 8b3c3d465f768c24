"""Pop: bounds, what happens when a group or topic changes, and what each bad call is told."""

from dataclasses import replace

import pytest

from node.broker.pop.handles import PopHandle, encode_handle
from node.config.limits import Limits
from node.errors import common as errors
from node.errors.pop import StaleHandleError
from node.errors.translation import describe
from node.state.tables.pop import PopTable
from quorumlog.pb.pop_pb2 import AckRequest, DescribePopRequest
from tests.node.broker.pop.pop_calls import (
    GROUP,
    ack,
    ask,
    bodies,
    give_up,
    got,
    hide,
    parked,
    part,
    pass_time,
    receive,
    send,
    window,
)
from tests.node.broker_fakes import Fixture, configure, expire_some, node_with, request
from tests.patience import eventually


@node_with(limits=replace(Limits(), pop_window_count_max=3, pop_in_flight_count_max=4))
async def test_a_full_window_gives_nothing_new_until_something_is_done(node: Fixture) -> None:
    await send(node, *"12345")
    await send(node, *"abc", queue_id=1)
    first = await receive(node, queue_id=0)
    assert bodies(first) == [*"123"]
    response = await ask(node, queue_id=0)
    assert (response.full_queue_count, got(response)) == (1, [])
    (queue,) = (await node.broker.pop.describe_pop(DescribePopRequest(group=GROUP))).queues
    assert (queue.is_full, queue.in_flight_count, queue.offset) == (True, 3, 0)
    assert bodies(await receive(node)) == ["a"], "all groups together have a limit too"
    assert await ack(node, first[0]) == 0
    assert bodies(await receive(node, queue_id=0)) == ["4"]
    pass_time(node, 1_000)
    assert len(await receive(node)) == 4, "what is in flight comes again all the same"


@pytest.mark.parametrize("done", [slice(1, 2), slice(2)], ids=["one", "all"])
@node_with(limits=replace(Limits(), pop_window_count_max=2))
async def test_a_receive_at_a_full_window_is_woken_by_room(node: Fixture, done: slice) -> None:
    await send(node, *"123")
    first = await receive(node)
    waiting = await parked(node)
    await ack(node, *first[done])
    assert bodies(await waiting) == ["3"]


async def test_setting_the_offset_of_a_group_ends_what_is_in_flight(node: Fixture) -> None:
    await send(node, "1", "2", "3")
    first = await receive(node)
    await node.commit(GROUP, ("orders", 0, 1))
    assert part(node).in_flight_count == 0
    assert await ack(node, first[2]) == 1, "it was set back behind it"
    assert [(one.body, one.count) for one in await receive(node)] == [("2", 1), ("3", 1)]
    assert await ack(node, first[2]) == 1, "it is another delivery"


async def test_a_reset_that_crosses_a_take_wins(node: Fixture) -> None:
    await send(node, "1", "2", "3")
    assert await ack(node, *(await receive(node, 1))) == 0
    reset = await node.written(node.commit(GROUP, ("orders", 0, 2)))
    waiting_task = await node.written(receive(node))
    node.driver.release()
    await reset
    assert bodies(await waiting_task) == ["3"]


@node_with(topics={"orders": 1, "bills": 1})
async def test_deleting_the_topic_or_the_group_clears_the_windows(node: Fixture) -> None:
    await send(node, "1")
    await send(node, "2", topic="bills")
    await receive(node)
    await receive(node, topic="bills")
    await node.delete_topic("bills")
    assert list(part(node).windows) == [(GROUP, "orders", 0)]
    waiting = await parked(node)
    await node.delete_group(GROUP)
    assert (part(node).windows, part(node).in_flight_count) == ({}, 0)
    node.broker.pop.on_grown([(b"orders", 0)])
    assert [(one.body, one.count) for one in await waiting] == [("1", 1)], "a new group"


@pytest.mark.parametrize(
    ("fields", "problem", "code"),
    [
        ({"topic": "nowhere"}, errors.UnknownTopicError, "node.unknown_topic"),
        ({"queue_id": 4}, errors.UnknownQueueError, "node.unknown_queue"),
        ({"queue_id": -2}, errors.BadRequestError, "node.bad_request"),
        ({"group": ""}, errors.BadRequestError, "node.bad_request"),
        ({"group": "no/good"}, errors.BadRequestError, "node.bad_request"),
        ({"invisible_ms": 43_200_001}, errors.BadRequestError, "node.bad_request"),
        ({"tags": [""]}, errors.BadRequestError, "node.bad_request"),
        ({"tags": ["a || b"]}, errors.BadRequestError, "node.bad_request"),
        ({"tags": ["*"]}, errors.BadRequestError, "node.bad_request"),
        ({"tags": [str(n) for n in range(65)]}, errors.BadRequestError, "node.bad_request"),
        ({"attempt_id": "x" * 65}, errors.BadRequestError, "node.bad_request"),
        ({"cluster_id": "other"}, errors.WrongClusterError, "node.wrong_cluster"),
    ],
)
async def test_a_bad_receive_is_refused(
    node: Fixture, fields: dict[str, object], problem: type[Exception], code: str
) -> None:
    with pytest.raises(problem) as caught:
        await ask(node, **fields)
    assert describe(caught.value).code == code


async def test_bad_handles_are_stale(node: Fixture) -> None:
    await send(node, "1")
    (delivery,) = await receive(node)
    never = encode_handle(GROUP, "orders", PopHandle(0, 7, 1))
    wrong = ["", "?", "x" * 40, delivery.handle[:-2] + "AA", never]
    response = await node.broker.pop.ack(AckRequest(group=GROUP, topic="orders", handles=wrong))
    assert list(response.stale_handles) == wrong
    assert await ack(node, delivery, group="other") == 1, "of another group"
    for handles in ([], [delivery.handle] * 1_025):
        with pytest.raises(errors.BadRequestError, match="handles"):
            await node.broker.pop.ack(AckRequest(group=GROUP, topic="orders", handles=handles))
    with pytest.raises(errors.BadRequestError, match="invisible_ms"):
        await hide(node, delivery, 43_200_001)
    with pytest.raises(StaleHandleError, match="not one of ours"):
        await hide(node, delivery._replace(handle="?"), 1)
    assert await ack(node, delivery) == 0


async def test_a_follower_refuses_receives_and_wakes_the_waiting(node: Fixture) -> None:
    await node.broker.append(request(0, 1))
    (delivery,) = got(await ask(node))
    waiting = await parked(node)
    node.driver.lose()
    for call in (waiting, receive(node), ack(node, delivery), hide(node, delivery, 5)):
        with pytest.raises(errors.NotLeaderError):
            await call
    with pytest.raises(errors.NotLeaderError):
        await give_up(node, delivery)
    node.driver.lead()
    assert window(node) is not None
    assert await ack(node, delivery) == 0


async def test_deliveries_of_a_leader_whose_clock_is_behind_are_newer_all_the_same(
    node: Fixture,
) -> None:
    """Else a handle of before could be the name of another delivery."""
    await send(node, "a", "b")
    await ask(node, max_count=1)
    part = node.machine.state.table(PopTable)
    before = part.last_generation
    node.broker.pop.receives._last_generation = 0  # As of a leader that has just begun.
    node.clock.now_ms -= 500_000
    node.driver.lose()
    node.driver.lead()
    with pytest.raises(errors.NotReadyError):  # Members have not spoken yet.
        await ask(node, max_count=1)
    assert not (await ask(node, max_count=1, wait_ms=1)).deliveries
    pass_time(node, Limits().group_settle_ms)
    await ask(node, max_count=1)
    [window] = part.windows.values()
    first, second = (item.generation for item in window.items.values())
    assert first == before
    assert second > before


async def test_a_dead_one_that_expires_before_it_is_moved_is_only_taken_out(node: Fixture) -> None:
    await configure(node, GROUP, retry_count_max=0)
    await node.append(0, 2)
    assert len(await receive(node, 2)) == 2
    await expire_some(node)
    pass_time(node, 1_000)
    await eventually(lambda: not part(node).windows)
    assert f"%DLQ%{GROUP}" not in node.machine.state.topics
    assert node.broker.pop.shared.dead_total == 0
