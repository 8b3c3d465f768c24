"""The counter of interpreter calls: each call once, its own left out."""

import asyncio
import json
import threading
from collections.abc import Callable

from bench.calls.counter import CallCounter, CallCounts


def counted(work: Callable[[], object]) -> CallCounts:
    counter = CallCounter()
    counter.start()
    work()
    return counter.stop()


def named(counts: CallCounts, name: str) -> int:
    return sum(count for function, count in counts.python.items() if function.endswith(f" {name}"))


def plain() -> int:
    return 1


def test_each_call_of_a_function_is_counted_and_named() -> None:
    def work() -> None:
        for _ in range(7):
            plain()

    counts = counted(work)
    assert counts.python == {
        "tests/bench/calls/test_counter.py plain": 7,
        "tests/bench/calls/test_counter.py "
        "test_each_call_of_a_function_is_counted_and_named.<locals>.work": 1,
    }
    assert counts.total == 8


def test_call_in_c_is_counted_with_its_caller() -> None:
    def work() -> None:
        sizes = [len("a"), len("b")]
        sizes.append(3)

    counts = counted(work)
    made = {called: count for (caller, called), count in counts.c.items() if "work" in caller}
    assert made == {"len": 2, "list.append": 1}
    assert counts.total == 4


def test_each_step_of_a_coroutine_is_a_call() -> None:
    async def steps() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    counts = counted(lambda: asyncio.run(steps()))
    assert named(counts, "test_each_step_of_a_coroutine_is_a_call.<locals>.steps") == 4


def test_other_threads_are_not_counted() -> None:
    go, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        go.wait()
        for _ in range(50):
            plain()
        done.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def here() -> None:
        go.set()
        done.wait()
        plain()

    counts = counted(here)
    thread.join()
    assert named(counts, "plain") == 1


def test_start_counts_from_zero_and_not_the_counter() -> None:
    counter = CallCounter()
    for _ in range(2):
        counter.start()
        plain()
        assert counter.stop().total == 1


def test_counts_pass_through_json() -> None:
    counts = counted(lambda: [plain(), len("a")])
    assert CallCounts.from_json(json.loads(json.dumps(counts.to_json()))) == counts
