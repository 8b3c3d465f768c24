"""Whatever is under way and changes offsets or groups counts for offsets with a condition."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import BusyError, LimitReachedError, NodeError, NotAppliedError
from node.errors.transactions import OffsetConflictError
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.pop_pb2 import AckRequest, ReceiveRequest
from quorumlog.pb.retry_pb2 import ConfigFile, ImportConfigFilesRequest
from tests.node.broker.retry.test_retry import given_back
from tests.node.broker.transactions.test_consumed import (
    TOPICS,
    commit,
    offset,
    offsets_of,
    outputs,
)
from tests.node.broker_fakes import Fixture, configure, node_with
from tests.node.transaction_calls import stored
from tests.patience import eventually

Begin = Callable[[Fixture], Awaitable[Coroutine[Any, Any, object]]]
"""Prepares a call, and returns it."""


def received(node: Fixture, group: str = "readers") -> Coroutine[Any, Any, Any]:
    return node.broker.pop.receive(
        ReceiveRequest(group=group, topic="orders", queue_id=0, max_count=1, invisible_ms=60_000)
    )


async def take(node: Fixture) -> Coroutine[Any, Any, object]:
    return received(node)


async def settle(node: Fixture) -> Coroutine[Any, Any, object]:
    handle = (await received(node)).deliveries[0].handle
    ack = AckRequest(group="readers", topic="orders", handles=[handle])
    return node.broker.pop.ack(ack)


async def import_(node: Fixture) -> Coroutine[Any, Any, object]:
    return imported(node, "consumerOffset.json", '{"offsetTable":{"orders@readers":{0:2}}}')


async def delete_group(node: Fixture) -> Coroutine[Any, Any, object]:
    await node.commit("readers", ("orders", 0, 1))
    return node.delete_group("readers")


async def delete_topic(node: Fixture) -> Coroutine[Any, Any, object]:
    return node.delete_topic("orders")


def imported(node: Fixture, name: str, text: str) -> Coroutine[Any, Any, object]:
    files = [ConfigFile(name=name, text=text)]
    return node.broker.config_files.import_config_files(ImportConfigFilesRequest(files=files))


@pytest.mark.parametrize("begin", [take, settle, import_, delete_group, delete_topic])
@node_with(topics=TOPICS)
async def test_outputs_wait_while_something_else_moves_the_offset(
    node: Fixture, begin: Begin
) -> None:
    await node.append(0, 3)
    call = await begin(node)
    expected = offsets_of(node).get("orders", {}).get(0, -1)
    under_way = await node.written(call)
    with pytest.raises(BusyError):
        await node.broker.append(outputs(0, offset(expected, 3)))
    with pytest.raises(BusyError):
        await node.broker.consumed.commit_consumed(commit(offset(expected, 3)))
    node.driver.release()
    await under_way
    with pytest.raises(NodeError) as caught:  # It is decided, and not as was expected.
        await node.broker.append(outputs(0, offset(expected + 7, expected + 8)))
    assert not isinstance(caught.value, BusyError)
    assert not await stored(node, "bills")


async def give_back(node: Fixture) -> Coroutine[Any, Any, object]:
    row = GroupOffset(topic="orders", offset=2)  # Stored as 1, that of the message, at first.
    return node.broker.retry.retry_later(given_back(1, offsets=[row]))


async def commit_again(node: Fixture) -> Coroutine[Any, Any, object]:
    await node.commit("readers", ("orders", 0, 1))
    return node.commit("readers", ("orders", 0, 2))


async def commit_as_expected(node: Fixture) -> Coroutine[Any, Any, object]:
    return node.broker.consumed.commit_consumed(commit(offset(-1, 2)))


@pytest.mark.parametrize(
    ("begin", "new", "refusal"),
    [
        (import_, 2, BusyError),
        (give_back, 1, BusyError),
        (commit_again, 2, BusyError),
        (commit_as_expected, 2, OffsetConflictError),
    ],
)
@node_with(topics=TOPICS)
async def test_a_call_counts_until_it_is_decided_although_its_caller_went(
    node: Fixture, begin: Begin, new: int, refusal: type[Exception]
) -> None:
    await node.append(0, 3)
    call = await begin(node)
    stored_before = offsets_of(node).get("orders", {}).get(0, -1)
    gone = await node.written(call)
    gone.cancel()
    await asyncio.wait({gone})
    with pytest.raises(refusal):
        await node.broker.append(outputs(0, offset(stored_before, 3)))
    node.driver.release()
    moves = node.broker.context.moves
    await eventually(lambda: offsets_of(node) == {"orders": {0: new}}, "it is applied")
    await eventually(lambda: not moves.offsets, "it is decided")
    with pytest.raises(OffsetConflictError):
        await node.broker.append(outputs(0, offset(stored_before, 3)))
    await node.broker.append(outputs(0, offset(new, 3)))


@node_with(filled=10, topics=TOPICS)
async def test_other_queues_and_groups_do_not_wait(node: Fixture) -> None:
    await node.append(0, 3)
    under_way = await node.written(received(node))
    others = [
        node.broker.append_nowait(outputs(0, offset(-1, 3, 1))),
        node.broker.append_nowait(outputs(1, offset(-1, 3), group="others")),
    ]
    node.driver.release()
    await asyncio.gather(under_way, *others)
    assert len(await stored(node, "bills")) == 2


@pytest.mark.parametrize("way", ["pop", "import"])
@node_with(topics=TOPICS, limits=Limits(group_count_max=1))
async def test_groups_under_way_take_their_room(node: Fixture, way: str) -> None:
    """Else the offsets would be refused when they are applied, and the outputs were visible."""
    await node.append(0, 3)
    text = '{"dataVersion":{"counter":1},"subscriptionGroupTable":{"first":{}}}'
    is_import = way == "import"
    call = imported(node, "subscriptionGroup.json", text) if is_import else received(node, "first")
    first = await node.written(call)
    with pytest.raises(LimitReachedError, match="groups"):
        await node.broker.append(outputs(0, offset(-1, 3)))
    node.driver.release()
    await first
    assert set(node.machine.state.groups) == {"first"}
    assert node.machine.state.refused_count == 0
    assert not await stored(node, "bills")


@node_with(topics=TOPICS, limits=Limits(group_count_max=6))
async def test_the_limit_of_groups_holds_for_calls_at_the_same_time(node: Fixture) -> None:
    await node.append(0, 3)
    node.driver.is_holding = True
    tasks = list[asyncio.Future[Any]]()
    for number in range(6):
        tasks.append(asyncio.ensure_future(configure(node, f"settings{number}", retry_count_max=3)))
        made = outputs(number, offset(-1, 3), group=f"consumer{number}")
        tasks.append(asyncio.ensure_future(node.broker.append(made)))
        tasks.append(asyncio.ensure_future(received(node, f"pop{number}")))
        await asyncio.sleep(0)
    await eventually(lambda: len(node.driver.pending) >= 6, "they are written")
    node.driver.release()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    groups = node.machine.state.groups
    assert len(groups) == 6
    failed = [one for one in outcomes if isinstance(one, BaseException)]
    assert len(failed) == len(tasks) - 6
    assert all(isinstance(error, LimitReachedError) for error in failed)
    done = [name for name in groups if name.startswith("consumer")]
    assert done, "some of them came through"
    assert all(groups[name] == {"orders": {0: 3}} for name in done)
    assert len(await stored(node, "bills")) == len(done)


@node_with(filled=10, topics=TOPICS, limits=Limits(group_offset_count_max=1))
async def test_an_offset_that_is_under_way_already_needs_no_more_room(node: Fixture) -> None:
    node.driver.is_holding = True
    first = node.broker.append_nowait(outputs(0, offset(-1, 3)))
    second = node.broker.append_nowait(outputs(1, offset(3, 5)))
    node.driver.release()
    await asyncio.gather(first, second)
    assert offsets_of(node) == {"orders": {0: 5}}


@node_with(topics=TOPICS)
async def test_offset_moves_lost_with_a_leader_count_no_more(node: Fixture) -> None:
    await node.append(0, 3)
    node.driver.is_holding = True
    calls = [received(node), await import_(node), configure(node, "first", retry_count_max=3)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await eventually(lambda: len(node.driver.pending) >= 2, "they are written")
    node.driver.lose()
    node.driver.decide(0)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, NotAppliedError) for one in outcomes)
    assert not node.broker.context.moves.offsets
    assert not node.broker.context.moves.groups
    node.driver.lead()
    node.driver.is_holding = False
    await node.broker.append(outputs(0, offset(-1, 3)))
