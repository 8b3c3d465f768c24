"""Tails through the broker: what is there, what comes, and a reader that is slow or gone."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors import common as errors
from quorumlog.pb.log_pb2 import PullResponse, TailRequest
from tests.node.broker.read.test_pull import (
    FOUND,
    LINEARIZABLE,
    NO_NEW,
    TOO_BIG,
    TOO_SMALL,
    waiting,
)
from tests.node.broker_fakes import Fixture, expire_some, node_with
from tests.patience import PATIENCE_S
from tests.store.records import batch, messages, numbers


def tail(node: Fixture, offset: int = 0, **how: Any) -> AsyncIterator[PullResponse]:
    return node.broker.tail(TailRequest(**{"topic": "orders", "offset": offset, **how}))


async def following(stream: AsyncIterator[PullResponse]) -> PullResponse:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(stream)


async def close(stream: AsyncIterator[PullResponse]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_tail_gives_what_is_there_and_what_comes(node: Fixture) -> None:
    await node.append(0, 4)
    stream = tail(node, 1, max_size_bytes=2 * len(batch(0, 1)))
    assert numbers((await following(stream)).records) == [1, 2]
    assert numbers((await following(stream)).records) == [3]
    task = asyncio.create_task(following(stream))
    await waiting(node, 1)
    await node.append(4, 6)
    assert numbers((await task).records) == [4, 5]
    await close(stream)


async def test_a_tail_reads_nothing_ahead_of_a_slow_reader(node: Fixture) -> None:
    await node.append(0, 20)
    stream = tail(node, max_size_bytes=1)
    await following(stream)
    before = node.broker.pulls.records_total
    await node.append(20, 40)
    await asyncio.sleep(0)
    assert node.broker.pulls.records_total == before
    assert numbers((await following(stream)).records) == [1]
    await close(stream)


async def test_a_tail_that_is_taken_without_a_pause_leaves_turns_to_others(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.runtime.turn.SLICE_S", 0.0)  # Each read is a slice of its own.
    await node.append(0, 20)
    stream = tail(node, max_size_bytes=1)
    loop, turn, turns = asyncio.get_running_loop(), 0, set[int]()

    def count_turn() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < 20:
            loop.call_soon(count_turn)

    count_turn()
    for number in range(20):
        assert numbers((await anext(stream)).records) == [number]
        turns.add(turn)
    assert len(turns) == 20
    await close(stream)


@node_with(limits=replace(Limits(), tail_idle_ms=5))
async def test_an_idle_tail_says_so(node: Fixture) -> None:
    stream = tail(node)
    assert (await following(stream)).status == NO_NEW
    assert (await following(stream)).status == NO_NEW
    await node.append(0, 1)
    page = await following(stream)
    while page.status == NO_NEW:
        page = await following(stream)
    assert numbers(page.records) == [0]
    await close(stream)


async def test_a_tail_passes_over_what_has_expired_and_waits_for_what_is_to_come(
    node: Fixture,
) -> None:
    await expire_some(node)
    stream = tail(node)
    first = await following(stream)
    assert first.status == TOO_SMALL
    second = await following(stream)
    first_offset = messages(second.records)[0].queue_offset
    assert (second.status, first_offset) == (FOUND, first.min_offset)
    await close(stream)

    end = second.max_offset
    stream = tail(node, end + 2)
    assert (await following(stream)).status == TOO_BIG, "told at once: a mistake?"
    task = asyncio.create_task(following(stream))
    await waiting(node, 1)
    await node.append(0, 1)
    await waiting(node, 1)
    await node.append(1, 3)
    page = await task
    assert messages(page.records)[0].queue_offset == end + 2, "and it never goes back"
    await close(stream)


async def test_a_tail_of_the_leader_ends_with_it(node: Fixture) -> None:
    stream = tail(node)
    task = asyncio.create_task(following(stream))
    await waiting(node, 1)
    node.driver.lose(2)
    with pytest.raises(errors.NotLeaderError):
        await task
    with pytest.raises(errors.BadRequestError):
        await following(tail(node, consistency=LINEARIZABLE))
