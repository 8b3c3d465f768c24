"""The event loop of virtual time does what asyncio's loops do, without time passing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.simulation.kernel.machines import BareWorld


def test_sleeps_end_in_their_order_in_the_time_of_the_world() -> None:
    world, ended = BareWorld(), list[tuple[str, int]]()

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append((name, round(asyncio.get_running_loop().time() - began)))

    began = 0.0

    async def main() -> int:
        nonlocal began
        began = asyncio.get_running_loop().time()
        await asyncio.gather(sleep("long", 3600), sleep("short", 60))
        return 7

    process = world.machine().run(main)
    world.run_s(7200)
    assert ended == [("short", 60), ("long", 3600)]
    assert process.exit_code == 7
    assert not process.is_alive
    assert world.hub.now_ns == 7200 * 10**9


def test_timers_follow_the_clock_of_their_machine() -> None:
    world, at_ns = BareWorld(), dict[str, int]()

    def main(name: str) -> object:
        async def live() -> int:
            await asyncio.sleep(1000)
            at_ns[name] = world.hub.now_ns
            return 0

        return live

    world.machine(drift_ppm=+100_000).run(main("fast"))  # type: ignore[arg-type]
    world.machine(drift_ppm=0).run(main("right"))  # type: ignore[arg-type]
    world.run_s(2000)
    assert at_ns["right"] / 1e9 == pytest.approx(1000, abs=0.01)
    assert at_ns["fast"] / 1e9 == pytest.approx(1000 / 1.1, abs=0.01)


def test_timeouts_cancellations_and_errors_are_those_of_asyncio() -> None:
    world, seen = BareWorld(), list[str]()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async def main() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await never()
        task = asyncio.create_task(never())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        raise ValueError("the end")

    process = world.machine().run(main)
    world.run_s(60)
    assert seen == ["ended", "ended"]
    assert isinstance(process.error, ValueError)


def test_killed_process_runs_nothing_more_not_even_its_finally_blocks() -> None:
    world, seen = BareWorld(), list[str]()

    async def ticks() -> AsyncIterator[str]:
        try:
            while True:
                await asyncio.sleep(1)
                yield "ticked"
        finally:
            seen.append("generator ended")

    async def main() -> int:
        try:
            async for tick in ticks():
                seen.append(tick)
        finally:
            seen.append("ended")
        return 0

    process = world.machine().run(main)
    world.run_s(3.5)
    process.kill()
    world.run_s(10)
    assert seen == ["ticked"] * 3
    assert process.exit_code is None


def test_paused_process_goes_on_later_with_what_was_due() -> None:
    world, at_s = BareWorld(), list[float]()

    async def main() -> int:
        for _ in range(4):
            await asyncio.sleep(1)
            at_s.append(world.hub.now_ns / 1e9)
        return 0

    process = world.machine().run(main)
    world.run_s(1.5)
    process.pause()
    world.run_s(10)
    assert len(at_s) == 1
    process.go_on()
    world.run_s(10)
    assert [round(at) for at in at_s[1:]] == [12, 13, 14] or at_s[1] == pytest.approx(11.5, abs=0.1)


def test_error_that_no_handler_takes_ends_the_run_of_the_world() -> None:
    world = BareWorld()

    async def main() -> int:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        return 0

    world.machine().run(main)
    with pytest.raises(ZeroDivisionError):
        world.run_s(2)
