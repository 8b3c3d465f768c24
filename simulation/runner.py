"""Many cases: in several processes, for a time; and a failing one made small.

Each case runs in a process of its own that ends with it: what the interpreter keeps of one world
must not reach the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context

from simulation.plan import Case
from simulation.trial import Report, run_case

SHRINK_RUN_COUNT_MAX = 200


def run_many(
    draw_case: Callable[[int], Case],
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    seconds: float | None = None,
) -> Iterator[Report]:
    """Run the cases of seeds, `jobs` at a time; begin none after `seconds`."""
    ends_at = None if seconds is None else time.monotonic() + seconds
    waiting = iter(seeds)
    running: list[Future[Report]] = []
    is_over = False
    with _pool(jobs) as pool:
        while running or not is_over:
            while not is_over and len(running) < jobs:
                seed = next(waiting, None)
                is_over = seed is None or (ends_at is not None and time.monotonic() >= ends_at)
                if seed is not None and not is_over:
                    running.append(pool.submit(run_case, draw_case(seed)))
            if running:
                yield running.pop(0).result()


def _pool(jobs: int) -> ProcessPoolExecutor:
    """Return processes that run one world each: a world is never freed, since greenlets that wait
    cannot be collected, nor what they hold."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["simulation.trial"])
    return ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1)


@contextmanager
def failing_as(kind: str) -> Iterator[Callable[[Case], bool]]:
    """Yield a function that runs a case and tells whether its problem is of a kind."""
    with _pool(1) as pool:
        yield lambda case: kind_of(pool.submit(run_case, case).result().problem) == kind


def shrink(case: Case, fails: Callable[[Case], bool], tell: Callable[[str], None]) -> Case:
    """Return a case with fewer faults, and a shorter one, that fails, too."""
    run_count = 0
    size = max(1, len(case.faults) // 2)
    while size and case.faults and run_count < SHRINK_RUN_COUNT_MAX:
        at, is_smaller = 0, False
        while at < len(case.faults) and run_count < SHRINK_RUN_COUNT_MAX:
            smaller = replace(case, faults=case.faults[:at] + case.faults[at + size :])
            run_count += 1
            if fails(smaller):
                case, is_smaller = smaller, True
                tell(f"{len(case.faults)} faults still do it")
            else:
                at += size
        if not is_smaller:
            size //= 2
    last_ms = max((one.at_ms + one.duration_ms for one in case.faults), default=0)
    duration_ms = min(case.options.duration_ms, last_ms + 500)
    shorter = replace(case, options=replace(case.options, duration_ms=duration_ms))
    return shorter if fails(shorter) else case


def kind_of(problem: str) -> str:
    """Return the kind of a problem: what stands before its first colon."""
    return problem.partition(":")[0]
