"""Simulated threads meet at locks, conditions and events as real ones do."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from simulation.kernel.threads import SimulatedExecutor, Threads
from tests.simulation.kernel.machines import BareWorld


def run(seed: int, work: Callable[[Threads], None]) -> BareWorld:
    """Run blocking work on a thread of a process, to its end."""
    world = BareWorld(seed)
    threads = Threads(world.hub)

    async def main() -> int:
        thread = threads.Thread(target=lambda: work(threads))
        thread.start()
        await asyncio.to_thread(thread.join)
        return 0

    process = world.machine().run(main)
    world.run_s(60)
    assert process.exit_code == 0
    return world


@pytest.mark.parametrize("seed", range(5))
def test_lock_lets_one_in_at_a_time(seed: int) -> None:
    seen = list[int]()

    def work(threads: Threads) -> None:
        lock, count, most = threads.Lock(), 0, 0

        def enter() -> None:
            nonlocal count, most
            for _ in range(10):
                with lock:
                    count += 1
                    most = max(most, count)
                    threads.Event().wait(0.001)
                    count -= 1

        workers = [threads.Thread(target=enter) for _ in range(4)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        seen.append(most)

    run(seed, work)
    assert seen == [1]


def test_condition_hands_over_what_was_produced() -> None:
    taken = list[int]()

    def work(threads: Threads) -> None:
        condition, made = threads.Condition(threads.Lock()), list[int]()

        def take() -> None:
            while len(taken) < 20:
                with condition:
                    condition.wait_for(lambda: made, timeout=5)
                    taken.extend(made)
                    made.clear()

        taker = threads.Thread(target=take)
        taker.start()
        for number in range(20):
            with condition:
                made.append(number)
                condition.notify()
            threads.Event().wait(0.001)
        taker.join()

    run(3, work)
    assert taken == list(range(20))


def test_waits_that_nobody_answers_end_in_time() -> None:
    seen = list[Any]()

    def work(threads: Threads) -> None:
        lock, other = threads.Lock(), threads.Lock()
        condition = threads.Condition(other)

        def hold() -> None:
            with lock:
                threads.Event().wait(30)

        holder = threads.Thread(target=hold)
        holder.start()
        threads.Event().wait(1)
        seen.append(lock.acquire(timeout=2))
        seen.append(lock.acquire(blocking=False))
        with other:
            seen.append(condition.wait(0.5))
        seen.append(threads.Event().wait(0.5))

    run(4, work)
    assert seen == [False, False, False, False]


def test_executor_of_one_worker_keeps_the_order_and_returns_results_and_errors() -> None:
    world, order = BareWorld(), list[int]()
    executor: Any = SimulatedExecutor(world.hub, 1)

    def job(number: int) -> int:
        order.append(number)
        if number == 3:
            raise ValueError(number)
        return number * number

    async def main() -> int:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(executor, job, number) for number in range(5)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        assert [repr(one) for one in found] == ["0", "1", "4", "ValueError(3)", "16"]
        await asyncio.to_thread(executor.shutdown)
        with pytest.raises(RuntimeError):
            executor.submit(job, 1)
        return 0

    process = world.machine().run(main)
    world.run_s(5)
    assert order == [0, 1, 2, 3, 4]
    assert process.error is None
    assert process.exit_code == 0


def test_exception_of_a_thread_ends_the_run_of_the_world() -> None:
    def work(threads: Threads) -> None:
        raise LookupError("a defect")

    with pytest.raises(LookupError):
        run(1, work)


def test_order_of_threads_follows_from_the_seed() -> None:
    def orders(seed: int) -> list[int]:
        found = list[int]()

        def work(threads: Threads) -> None:
            workers = [
                threads.Thread(target=lambda number=number: found.append(number))
                for number in range(8)
            ]
            for one in workers:
                one.start()
            for one in workers:
                one.join()

        run(seed, work)
        return found

    assert orders(1) == orders(1)
    assert len({tuple(orders(seed)) for seed in range(10)}) > 1


def test_time_out_and_wake_up_in_a_pause_are_one_end_of_a_wait() -> None:
    """Both come while the process stands still; the next wait must not end by the second."""
    world, seen = BareWorld(), list[object]()
    threads = Threads(world.hub)
    asked: Any = None

    async def main() -> int:
        nonlocal asked
        asked = threads.Event()

        def wait() -> None:
            asked.wait(1)
            began_ns = world.hub.now_ns
            seen.append(threads.Event().wait(5))
            seen.append((world.hub.now_ns - began_ns) // 1_000_000_000)

        thread = threads.Thread(target=wait)
        thread.start()
        await asyncio.to_thread(thread.join)
        return 0

    process = world.machine().run(main)
    world.run_s(0.5)
    process.pause()
    world.run_s(2)  # The time-out has passed.
    asked.set()
    world.run_s(1)
    process.go_on()
    world.run_s(20)
    assert seen == [False, 5]
    assert process.exit_code == 0
