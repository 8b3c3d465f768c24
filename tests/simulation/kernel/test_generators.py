"""Asynchronous generators that are dropped before their end, as a server drops a method's."""

import asyncio
from collections.abc import AsyncIterator

from tests.simulation.kernel.machines import BareWorld


def test_a_dropped_generator_runs_its_finally_with_what_it_awaits() -> None:
    world, seen = BareWorld(), list[str]()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(1)
            seen.append("ended")

    async def main() -> int:
        async for number in numbers():
            seen.append(f"got {number}")
            break
        await asyncio.sleep(5)
        return 0

    process = world.machine().run(main)
    world.run_s(10)
    assert process.error is None
    assert seen == ["got 1", "ended"]
