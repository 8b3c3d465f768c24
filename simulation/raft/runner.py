"""Running seeds: one, many, for a time, in several processes.

Owns the parts of a run (safety phase, liveness phase, judgement of the history) and the report of a
failure. A failing seed is run a second time with tracing, since tracing costs more than the run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from checkers.checker import Violation, check_log
from checkers.history import Drain, Operation
from checkers.linearizability import check_cas
from checkers.register import check_register_by_index, check_register_by_zones
from raft.messages import Index
from simulation.raft.coverage import Coverage
from simulation.raft.options import SimulatorOptions, draw
from simulation.raft.plan import Fault, draw_plan
from simulation.raft.verdict import InvariantError
from simulation.raft.world.liveness import NeedsOperatorError, drains, live_on
from simulation.raft.world.loss import cut_history
from simulation.raft.world.workload import QUEUE
from simulation.raft.world.world import World

EVENT_COUNT_DEFAULT = 3000
TAIL_COUNT = 50
"""Events shown of a failing run."""


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a run depends on: drawn from a seed, or shrunk from that."""

    options: SimulatorOptions
    plan: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one run."""

    seed: int
    code: str
    """Code of the broken invariant; empty if none broke."""
    detail: str
    event_count: int
    simulated_us: int
    fault_count: int
    operation_count: int
    digest: int
    coverage: Coverage

    @property
    def passed(self) -> bool:
        return not self.code


def case_of(seed: int, event_count_max: int = EVENT_COUNT_DEFAULT) -> Case:
    """Draw the case of a seed."""
    options = draw(seed, event_count_max)
    return Case(options, tuple(draw_plan(options)))


def run_case(case: Case, trace: Callable[[str], None] | None = None) -> Report:
    """Run one case to its end or to its first broken invariant."""
    world: World | None = None
    code = detail = ""
    try:
        world = World(case.options, case.plan, trace=trace)
        if case.options.total_loss:
            world.referee.on_entries_lost = partial(_judge_before_loss, world)
        world.run(until_us=case.options.duration_us, event_count_max=case.options.event_count_max)
        live_on(world)
        _check(world.history, drains(world))
    except NeedsOperatorError:
        # Promises were judged at each step; availability is not promised here.
        assert world is not None, "there is no world to describe"
        world.coverage.hit("needs_operator")
    except InvariantError as error:
        code, detail = error.code, error.detail
    except AssertionError as error:
        code, detail = "assert", str(error) or "an assertion without text"
    except Exception as error:  # noqa: BLE001  # A crash of the core is a finding like any other.
        code, detail = "crash", f"{type(error).__name__}: {error}"
    if world is None:
        return Report(case.options.seed, code, detail, 0, 0, 0, 0, 0, Coverage())
    return Report(
        case.options.seed,
        code,
        detail,
        world.event_count,
        world.now,
        world.injector.injected,
        len(world.history),
        world.final_digest(),
        world.coverage,
    )


def _judge_before_loss(world: World, lo: Index) -> None:
    """Check the history up to a reported loss of committed entries, and drop those entries."""
    committed = Drain(0, QUEUE, 0, list(world.referee.ledger.queue))  # In place of a replica's.
    _check(cut_history(world, lo), [committed])


def _check(history: list[Operation], queue_drains: list[Drain]) -> None:
    """Check a history (I7 to I12)."""
    violations: list[Violation] = check_log(history, queue_drains)
    violations += check_register_by_index(history)
    violations += check_register_by_zones(history)
    violations += check_cas(history)
    if violations:
        first = violations[0]
        raise InvariantError(f"history.{first.rule}", str(first))


def run_seed(seed: int, event_count_max: int = EVENT_COUNT_DEFAULT) -> Report:
    """Run one seed."""
    return run_case(case_of(seed, event_count_max))


def last_events(case: Case) -> list[str]:
    """Run a failing case again and return the last events before it failed."""
    lines: deque[str] = deque(maxlen=TAIL_COUNT)
    run_case(case, lines.append)
    return list(lines)


def run_many(
    seeds: Sequence[int], *, event_count_max: int, jobs: int, seconds: float | None
) -> Iterator[Report]:
    """Yield a report per seed, in any order, until all are done or the time is up."""
    deadline = None if seconds is None else time.monotonic() + seconds
    run = partial(run_seed, event_count_max=event_count_max)
    with ExitStack() as stack:
        reports: Iterator[Report] = map(run, seeds)
        if jobs > 1:
            pool = stack.enter_context(get_context("spawn").Pool(jobs))
            reports = pool.imap_unordered(run, seeds, chunksize=4)
        for report in reports:
            yield report
            if deadline is not None and time.monotonic() >= deadline:
                return
