"""Parked readers: what wakes them, at once and not only when their time is over."""

import asyncio
from pathlib import Path

import pytest

from node.broker.core.parked_readers import ParkedReaders
from node.config.limits import Limits
from node.errors.common import BusyError
from tests.node.broker_fakes import Fixture, node_at
from tests.node.delayed import on_loop

HOUR_S = 3_600.0


async def parked(readers: ParkedReaders, topic: bytes, queue_id: int) -> asyncio.Task[None]:
    """Begin to wait for a queue, for an hour."""
    task = asyncio.create_task(readers.for_growth((topic, queue_id), HOUR_S))
    await asyncio.sleep(0)
    assert not task.done()
    return task


def of(node: Fixture) -> ParkedReaders:
    """The parked readers of a broker, in which nobody waits yet."""
    readers = node.broker.parked
    assert readers.reader_count == 0
    assert not readers.has_any()
    return readers


async def turns() -> None:
    """Let the loop run what is ready; no timer of a reader is due by then."""
    for _ in range(8):
        await asyncio.sleep(0)


@on_loop
async def test_a_reader_is_woken_by_its_queue_and_by_no_other(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        readers = of(node)
        first = await parked(readers, b"orders", 0)
        second = await parked(readers, b"orders", 0)
        other = await parked(readers, b"orders", 1)
        await node.append(0, 1)
        await turns()
        assert first.done()
        assert second.done()
        assert not other.done()
        assert (readers.reader_count, readers.woken_total) == (1, 2)
        await node.append(0, 1, queue_id=1)
        await turns()
        assert other.done()
        assert not readers.has_any()
        assert readers.reader_count == 0


@on_loop
async def test_a_reader_that_begins_while_others_wake_waits_for_the_next_record(
    tmp_path: Path,
) -> None:
    async with node_at(tmp_path) as node:
        readers = of(node)
        first = await parked(readers, b"orders", 0)
        await node.append(0, 1)
        second = await parked(readers, b"orders", 0)
        await turns()
        assert first.done()
        assert not second.done()
        await node.append(1, 2)
        await turns()
        assert second.done()


@on_loop
async def test_a_change_of_the_leader_wakes_every_reader(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        readers = of(node)
        waiting = [await parked(readers, b"orders", queue_id) for queue_id in range(3)]
        node.driver.lose()
        await turns()
        assert all(task.done() for task in waiting)
        again = await parked(readers, b"orders", 0)
        node.driver.lead()
        await turns()
        assert again.done()


@on_loop
async def test_the_last_of_too_many_readers_is_refused(tmp_path: Path) -> None:
    async with node_at(tmp_path, limits=Limits(pull_waiters_max=1)) as node:
        readers = of(node)
        first = await parked(readers, b"orders", 0)
        with pytest.raises(BusyError, match="waiting readers"):
            await readers.for_growth((b"orders", 1), HOUR_S)
        first.cancel()
        await turns()
        assert not readers.has_any(), "a cancelled reader leaves nothing"
        assert readers.reader_count == 0
