"""Walks share the event loop: they yield to it when their slice is over, one after another."""

import asyncio
from collections.abc import Iterator

import pytest

from node.errors.common import BusyError
from node.runtime.accounts import (
    ROW_SIZE_BYTES,
    Accounts,
    Kind,
    Limit,
    caller,
    on_behalf_of,
    set_caller,
)
from node.runtime.turn import SLICE_S, Turn


class Clock:
    """A clock that a walk moves on by a step of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_walk_yields_after_each_slice_and_not_before() -> None:
    clock = Clock()
    turn, turns, counts = Turn(clock), 0, list[int]()

    async def walk() -> None:
        async for _ in turn.over(range(100)):
            counts.append(turns)
            clock.now_s += SLICE_S / 9.5

    task = asyncio.create_task(walk())
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert [counts.count(one) for one in sorted({*counts})] == [10] * 10


async def test_addresses_share_the_slices_and_each_has_one_long_walk_at_a_time() -> None:
    clock, accounts = Clock(), Accounts()
    turn, order, waited = Turn(clock), list[str](), list[str]()

    async def walk(name: str) -> None:
        set_caller(accounts.open(name[0]))
        async for _ in turn.over(range(3)):
            order.append(name)
            clock.now_s += 2 * SLICE_S

    async def wait(name: str) -> None:
        set_caller(accounts.open(name[0]))
        await turn.next()
        waited.append(name)
        clock.now_s += 2 * SLICE_S

    others = asyncio.gather(*map(walk, ("a1", "a2", "b1")), *map(wait, ("c1", "c2", "c3", "d1")))
    ran = 0
    while not others.done():
        before = len(order) + len(waited)
        await asyncio.sleep(0)
        ran = max(ran, len(order) + len(waited) - before)
    # A step uses a whole slice: one that waited, and one that came before it ran.
    assert ran <= 2
    assert [one for one in order if one != "b1"] == ["a1"] * 3 + ["a2"] * 3
    assert order[-2:] == ["a2", "a2"], "the other address did not wait for both"
    assert waited == ["c1", "d1", "c2", "c3"]


async def test_a_walk_that_is_cancelled_leaves_its_turn_to_the_next() -> None:
    clock = Clock()
    turn, done = Turn(clock), list[int]()

    async def walk(number: int) -> None:
        async for _ in turn.over(range(3)):
            clock.now_s += 2 * SLICE_S
        done.append(number)

    walks = [asyncio.create_task(walk(number)) for number in range(3)]
    await asyncio.sleep(0)
    walks[0].cancel()
    walks[1].cancel()
    await asyncio.wait(walks)
    assert done == [2]


async def test_callers_pay_for_what_is_walked() -> None:
    room = Limit("documents", size_bytes_max=4 * 10 * ROW_SIZE_BYTES, connection_part=4)
    accounts = Accounts({Kind.DOCUMENTS: room})
    turn, held = Turn(Clock()), list[int]()
    with on_behalf_of(accounts.open("127.0.0.2")):
        async for _ in turn.over(list(range(10))):
            held.append(accounts.held(Kind.DOCUMENTS)[1])
            if len(held) == 1:
                with pytest.raises(BusyError):
                    await anext(turn.over([0]))
    assert held == [10 * ROW_SIZE_BYTES] * 10
    assert accounts.held(Kind.DOCUMENTS) == (0, 0)


async def test_work_of_the_node_is_done_in_slices_of_addresses_in_turn() -> None:
    clock, accounts, errors = Clock(), Accounts(), list[object]()
    turn, order = Turn(clock), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))

    def steps(name: str) -> Iterator[None]:
        for number in range(3):
            assert caller() is None, "no caller pays for it"
            assert (name, number) != ("a1", 1), "a defect"
            if (name, number) == ("b", 0):
                turn.later("b", steps("c"))
            order.append(name)
            clock.now_s += 2 * SLICE_S
            yield

    with on_behalf_of(accounts.open("a")):
        for name in ("a1", "a2", "b"):
            turn.later(name[0], steps(name))
    ran = 0
    while turn._left:
        before = len(order)
        await asyncio.sleep(0)
        ran = max(ran, len(order) - before)
    assert (ran, len(errors)) == (1, 1)
    assert order == ["a1", "b", "b", "b", "a2", "a2", "c", "a2", "c", "c"], "an end is a step, too"
