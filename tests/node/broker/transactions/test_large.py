"""Transactions of many small messages: how many there may be, and that others have their turn."""

import asyncio
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import BusyError, NodeError, UnknownTopicError
from node.errors.transactions import TransactionTooLargeError
from store.errors import LimitExceededError
from tests.node.broker_fakes import Fixture, node_with
from tests.node.transaction_calls import begun, ended, halves, part, stored

MANY = 1_500
LARGE: dict[str, Any] = {"file_size_bytes": 4 << 20, "batch_size_bytes_max": 1 << 20}


@pytest.fixture(autouse=True)
def _slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.runtime.turn.SLICE_S", 0.0)  # Each look is a slice of its own.


@node_with(limits=Limits(transaction_record_count_max=3))
async def test_a_transaction_has_a_limit_of_messages(node: Fixture) -> None:
    before = node.log.last_index
    with pytest.raises(TransactionTooLargeError, match="limit is 3, since") as caught:
        await node.broker.append(halves(0, 5))
    assert (caught.value.code, caught.value.outcome.value) == ("node.limit_exceeded", "not_applied")
    assert (node.log.last_index, len(part(node).open)) == (before, 0)
    await ended(node, await begun(node, 0, 3))
    assert len(await stored(node)) == 3


async def test_a_transaction_may_be_as_large_as_the_limit_says(node: Fixture) -> None:
    before = node.log.last_index
    with pytest.raises(LimitExceededError) as caught:
        await node.broker.append(halves(0, 1, size_bytes=20_000))
    too_much = caught.value.size_bytes - caught.value.limit_bytes
    with pytest.raises(LimitExceededError):
        await node.broker.append(halves(0, 1, size_bytes=20_000 - too_much + 1))
    assert node.log.last_index == before
    await ended(node, await begun(node, 0, 1, size_bytes=20_000 - too_much))
    assert len(await stored(node)) == 1


@node_with(**LARGE)
async def test_others_have_their_turn_while_a_large_one_is_committed(node: Fixture) -> None:
    transaction_id = await begun(node, 0, MANY)
    entries = node.driver.append_count
    task = asyncio.ensure_future(ended(node, transaction_id))
    turns = 0
    while node.driver.append_count == entries:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10, "no more than some hundred messages are made in one turn"
    await task
    assert len(await stored(node)) == MANY


@node_with(limits=Limits(in_flight_size_bytes_max=100_000), **LARGE)
async def test_ends_that_are_not_decided_have_a_limit_of_bytes(node: Fixture) -> None:
    """Any number may come while a log waits for copies, and each holds its messages."""
    first, second = [await begun(node, n, n + 1, size_bytes=60_000) for n in range(2)]
    ending = await node.written(ended(node, first))
    with pytest.raises(BusyError, match="bytes of the broker's entries"):
        await ended(node, second)
    node.driver.release()
    await ending
    await ended(node, second)
    assert len(await stored(node)) == 2


@node_with(**LARGE)
async def test_a_transaction_overtaken_by_a_new_term_is_not_written(node: Fixture) -> None:
    """Its leader leads again, in another term: another call may have ended it by now."""
    transaction_id = await begun(node, 0, MANY)
    task = await begun_to_end(node, transaction_id)
    node.driver.lose()
    node.driver.lead()
    again = ended(node, transaction_id)
    with pytest.raises(NodeError):
        await task
    await again
    assert len(await stored(node)) == MANY


@node_with(**LARGE)
async def test_a_topic_that_is_deleted_meanwhile_leaves_it_open(node: Fixture) -> None:
    transaction_id = await begun(node, 0, MANY)
    task = await begun_to_end(node, transaction_id)
    await node.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        await task
    assert transaction_id in part(node).open


async def begun_to_end(node: Fixture, transaction_id: int) -> "asyncio.Task[object]":
    """Begin to commit a transaction, and stop in the middle of it."""
    entries = node.driver.append_count
    task: asyncio.Task[object] = asyncio.ensure_future(ended(node, transaction_id))
    for _ in range(3):
        await asyncio.sleep(0)
    assert node.driver.append_count == entries, "it is written already"
    return task
