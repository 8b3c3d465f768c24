"""On which thread a sync runs, and that no ticket is called durable before its own."""

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from node.replication import sync_requests
from node.replication.sync_requests import SYNC_REQUEST_COUNT_MAX, SyncRequests
from store.config import StoreConfig
from store.errors import StoreError, SyncFailedError


class SlowLog:
    """A log whose syncs take as long as it is told, by a clock of its own."""

    def __init__(self, clock: "Clock") -> None:
        self.clock, self.config = clock, StoreConfig()
        self.sync_us = 50.0
        self.is_busy = False
        self.here_count = 0
        self.asked: list[Callable[[StoreError | None], None]] = []

    def sync_here(self) -> bool:
        if self.is_busy:
            return False
        self.here_count += 1
        self.clock.now_s += self.sync_us / 1e6
        return True

    def request_sync(self, callback: Callable[[StoreError | None], None]) -> None:
        self.asked.append(callback)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1.0

    def perf_counter(self) -> float:
        return self.now_s


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(sync_requests, "time", self.clock)
        self.log = SlowLog(self.clock)
        self.durable: list[int] = []
        self.fatal: list[BaseException] = []
        self.ticket = 0

    @cached_property
    def syncs(self) -> SyncRequests:
        """Made on the loop of the test."""
        log: Any = self.log
        return SyncRequests(log, self.durable.append, self.fatal.append)

    def flush(self, *, must_sync: bool = False) -> bool:
        self.ticket += 1
        return self.syncs.flush(self.ticket, must_sync=must_sync)

    async def answer(self, error: StoreError | None = None) -> None:
        """The flush thread ends the oldest sync it was asked for."""
        self.log.asked.pop(0)(error)
        await asyncio.sleep(0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_fast_syncs_run_here_and_are_durable_at_once(world: World) -> None:
    assert all(world.flush() for _ in range(50))
    assert world.durable == list(range(1, 51))
    assert world.log.asked == []


async def test_a_slow_sync_among_fast_ones_changes_nothing(world: World) -> None:
    world.flush()
    world.log.sync_us = 200_000  # It was preempted.
    world.flush()
    world.log.sync_us = 50
    assert world.flush()
    assert world.log.here_count == 3


async def test_slow_syncs_go_to_the_thread_for_a_hundred_times_as_long(world: World) -> None:
    """Else a slow disk would stop the loop, and with it heartbeats and reads."""

    world.log.sync_us = 10_000
    waited_s = 0.0
    for _ in range(2_000):
        before = world.clock.now_s
        if not world.flush():
            await world.answer()
        waited_s += world.clock.now_s - before
        world.clock.now_s += 0.005  # Until the next turn.
    assert waited_s < 0.02 * world.clock.now_s
    assert world.durable == sorted(world.durable)
    assert world.durable[-1] == world.ticket


async def test_how_long_a_sync_hangs_is_known(world: World) -> None:
    assert world.syncs.waiting_s == 0
    world.log.is_busy = True
    world.flush()
    world.clock.now_s += 3
    world.flush()  # A later one does not make the first younger.
    assert world.syncs.waiting_s == 3
    await world.answer()
    assert world.syncs.waiting_s == 0, "the next one has just begun"
    world.clock.now_s += 1
    assert world.syncs.waiting_s == 1
    await world.answer()
    assert world.syncs.waiting_s == 0


async def test_while_the_thread_is_at_it_syncs_are_asked_for_and_bounded(world: World) -> None:
    world.log.is_busy = True
    assert not any(world.flush() for _ in range(20))
    assert len(world.log.asked) == SYNC_REQUEST_COUNT_MAX
    world.log.is_busy = False
    assert not world.flush(), "a sync here would overtake those that were asked for"
    for ticket in range(1, SYNC_REQUEST_COUNT_MAX + 1):
        assert world.durable == list(range(1, ticket))
        await world.answer()
    while world.log.asked:
        await world.answer()
    assert world.durable[-1] == world.ticket


async def test_async_waits_for_no_sync_but_where_term_and_vote_need_one(world: World) -> None:
    world.log.config = StoreConfig(flush="async")
    assert world.flush()
    assert (world.log.here_count, world.log.asked) == (0, [])
    world.log.is_busy = True
    assert not world.flush(must_sync=True)
    assert not world.flush(), "its ticket covers the one before"
    assert world.durable == [1]
    await world.answer()
    await world.answer()
    assert world.durable == [1, 2, 3]
    assert world.flush()


async def test_a_failed_sync_is_fatal_and_makes_nothing_durable(world: World) -> None:
    world.log.is_busy = True
    world.flush()
    await world.answer(SyncFailedError("log", 5))
    assert len(world.fatal) == 1
    assert world.durable == []
    world.syncs.stop()
