"""Walks share the event loop: they yield to it when their slice is over, one after another."""

import asyncio

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


async def test_walks_of_many_callers_share_the_slices() -> None:
    clock = Clock()
    turn, order = Turn(clock), list[str]()

    async def walk(name: str) -> None:
        async for _ in turn.over(range(3)):
            order.append(name)
            clock.now_s += 2 * SLICE_S

    other = asyncio.gather(*map(walk, "abc"))
    ran = 0
    while not other.done():
        before = len(order)
        await asyncio.sleep(0)
        ran = max(ran, len(order) - before)
    assert ran == 1, "one step of all walks in a turn of the loop, as each uses a whole slice"
    assert order == [*"abcabcabc"]
