"""Pop: work that a caller began goes on when the caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import AppendTimeoutError, BusyError
from node.errors.pop import StaleHandleError
from quorumlog.pb.pop_pb2 import AckRequest
from tests.node.broker.pop.pop_calls import GROUP, Got, give_up, part, pass_time, receive, send
from tests.node.broker_fakes import Fixture, configure
from tests.patience import eventually


async def one_delivery(node: Fixture) -> Got:
    """A message that is dead once its time is over."""
    await configure(node, GROUP, retry_count_max=0)
    await send(node, "a1")
    (delivery,) = await receive(node)
    return delivery


async def go_when_written(node: Fixture, call: Coroutine[Any, Any, object]) -> None:
    """Have the caller go when the log has what it asked for, and nobody knows its end."""
    calling = await node.written(call)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


def dead_count(node: Fixture) -> int:
    lo, hi = node.log.store.reads.queue_range("%DLQ%" + GROUP, 0)
    return hi - lo


async def test_a_message_that_is_given_up_twice_dies_once(node: Fixture) -> None:
    delivery = await one_delivery(node)
    await go_when_written(node, give_up(node, delivery))
    with pytest.raises((BusyError, StaleHandleError)):
        await give_up(node, delivery)
    pass_time(node, 2_000)
    node.driver.release()
    await eventually(lambda: not part(node).windows, "nothing is in flight")
    assert dead_count(node) == 1


async def test_a_message_whose_consumer_went_after_its_ack_is_not_dead(node: Fixture) -> None:
    delivery = await one_delivery(node)
    ack = AckRequest(group=GROUP, topic="orders", handles=[delivery.handle])
    await go_when_written(node, node.broker.pop.ack(ack))
    pass_time(node, 2_000)
    await asyncio.sleep(0)
    assert len(node.driver.pending) == 1
    node.driver.release()
    await eventually(lambda: not part(node).windows, "nothing is in flight")
    assert dead_count(node) == 0


async def test_a_take_that_takes_too_long_is_given_back_when_it_is_done(node: Fixture) -> None:
    await send(node, "a1")
    node.driver.is_holding = True
    node.broker.context.limits = Limits(append_timeout_ms=1)  # type: ignore[misc]
    with pytest.raises(AppendTimeoutError):
        await receive(node)
    node.driver.commit()  # The take, and then that it is given back.
    await eventually(lambda: len(node.driver.pending) == 1, "it is given back")
    node.driver.release()
    await eventually(lambda: node.driver.applied_index == node.log.last_index, "all is applied")
    (window,) = part(node).windows.values()
    assert [item.visible_unix_ms for item in window.items.values()] == [node.clock.now_ms]


async def test_what_an_attempt_was_given_again_is_not_given_back(node: Fixture) -> None:
    """The first answer of a leader that was cut off comes late, when the attempt is repeated."""
    await send(node, "a1")
    node.driver.is_holding = True
    node.broker.context.limits = Limits(append_timeout_ms=1)  # type: ignore[misc]
    with pytest.raises(AppendTimeoutError):
        await receive(node, attempt_id="one")
    node.broker.context.limits = Limits()  # type: ignore[misc]
    pass_time(node, 60_000)  # Its invisible time is over before it is committed.
    again = asyncio.create_task(receive(node, attempt_id="one", wait_ms=1_000_000))
    await eventually(lambda: node.broker.pop.shared.lines.room.used, "the repeated call waits")
    node.driver.release()
    (delivery,) = await again
    await eventually(lambda: node.driver.applied_index == node.log.last_index, "all is applied")
    (window,) = part(node).windows.values()
    (item,) = window.items.values()
    assert item.visible_unix_ms > node.clock.now_ms, "it is the repeated call's"
    assert delivery.count == 1
