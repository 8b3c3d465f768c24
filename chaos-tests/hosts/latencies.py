"""Times of appends while something is half broken, and how much longer they may be.

Owns the measure and the gates. A producer sends a window of messages and waits for all receipts:
such a step is one time, that of its slowest message, since otherwise one pause of the machine would
count once for each message of every window. A call that failed, or whose outcome is unknown, took
for ever: a gate on those that came back would praise a node that answers few. Must not know the
fault.
"""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from chaos.clients import QUEUE_COUNT, queue_name
from chaos.errors import NotSoError
from chaos.recorder import now_ns
from chaos.scenario import DEADLINE_S, ScenarioContext

from checkers.history import Kind, Operation
from hosts.registry import on_hosts
from raft.errors import Outcome

COUNT_MIN: Final = 300
"""Steps that a 99th percentile is taken of: the three slowest of these are above it."""
_POLL_S: Final = 0.05
_COUNT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class AppendLatencies:
    """Times of steps from the call to the last receipt, in milliseconds; without one: infinite."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, operations: Iterable[Operation], lo_ns: int, hi_ns: int) -> Self:
        """Return the times of the appends and puts that began in [lo_ns, hi_ns).

        Raises NotSoError for fewer steps than COUNT_MIN."""
        writes = [op for op in operations if _is_write(op) and lo_ns <= op.invoke_ns < hi_ns]
        spans = sorted(_steps_ms(writes))
        count = len(spans)
        if count < COUNT_MIN:
            raise NotSoError(f"{count} steps are too few to judge; {COUNT_MIN} are needed")
        return cls(
            count, spans[(count - 1) // 2], spans[min(count - 1, count * 99 // 100)], spans[-1]
        )

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms, max {self.max_ms:.0f} ms"


@dataclass(frozen=True, slots=True)
class LatencyGate:
    """The largest 99th percentile under a fault: some times the one before it, and an allowance."""

    ratio_max: float
    allowance_ms: float
    """On a machine at factor 1, as for all gates."""
    why: str
    """Reason of both."""

    def bound_ms(self, before: AppendLatencies, factor: float) -> float:
        """Return the bound on a machine that is slower by `factor`."""
        return self.ratio_max * before.p99_ms + self.allowance_ms * factor


async def measured(x: ScenarioContext, least_s: float) -> AppendLatencies:
    """Return the times of the appends that begin from now on, for at least `least_s` seconds."""
    lo_ns = now_ns()
    await asyncio.gather(asyncio.sleep(least_s), _stepped(x, lo_ns))
    hi_ns = now_ns()
    await _decided(x, hi_ns)
    return AppendLatencies.of(x.recorder.operations, lo_ns, hi_ns)


async def _stepped(x: ScenarioContext, lo_ns: int) -> None:
    """Wait until enough steps have begun since a moment. Raises NotSoError."""
    deadline_ns = now_ns() + int(DEADLINE_S * x.options.time_scale * 1e9)
    while (count := len(_steps_ms(_writes_since(x, lo_ns)))) < COUNT_MIN:
        x.load.check()
        if now_ns() > deadline_ns:
            raise NotSoError(f"{count} steps in {DEADLINE_S} s, {COUNT_MIN} are needed")
        await asyncio.sleep(_COUNT_S)


def _writes_since(x: ScenarioContext, lo_ns: int) -> list[Operation]:
    return [op for op in x.recorder.operations if _is_write(op) and op.invoke_ns >= lo_ns]


async def _decided(x: ScenarioContext, hi_ns: int) -> None:
    """Wait until the calls that began before a moment have ended: each queue has a later one.

    One writer has a queue, and its calls end in their order; of the register's two the slower one
    may be left out."""
    names, queues = set[str](), {queue_name(queue) for queue in range(QUEUE_COUNT)}
    deadline_ns, at = now_ns() + int(DEADLINE_S * x.options.time_scale * 1e9), 0
    while names != queues:
        operations = x.recorder.operations
        names |= {op.queue for op in operations[at:] if _is_write(op) and op.invoke_ns >= hi_ns}
        at = len(operations)
        x.load.check()
        if now_ns() > deadline_ns:
            raise NotSoError(f"no append to {', '.join(queues - names)} ended in {DEADLINE_S} s")
        await asyncio.sleep(_POLL_S)


def _is_write(operation: Operation) -> bool:
    return operation.kind in (Kind.APPEND, Kind.PUT)


def _steps_ms(writes: Iterable[Operation]) -> list[float]:
    """Return the time of each step: calls of one client of which each began before the one before
    it had ended."""
    times_ms: list[float] = []
    latest: dict[int, tuple[int, float, int]] = {}
    """By client: the beginning of its step, its end, and the place of its time."""
    for op in sorted(writes, key=lambda write: write.invoke_ns):
        is_acked = op.outcome is Outcome.APPLIED and op.return_ns is not None
        end_ns = float(op.return_ns or 0) if is_acked else math.inf
        began_ns, ended_ns, at = latest.get(op.process, (0, 0.0, -1))
        if at < 0 or op.invoke_ns >= ended_ns:
            began_ns, ended_ns, at = op.invoke_ns, 0.0, len(times_ms)
            times_ms.append(0.0)
        ended_ns = max(ended_ns, end_ns)
        times_ms[at] = (ended_ns - began_ns) / 1e6
        latest[op.process] = began_ns, ended_ns, at
    return times_ms


def judge_latencies(
    x: ScenarioContext,
    before: AppendLatencies,
    during: AppendLatencies,
    gate: LatencyGate,
    what: str = "",
) -> None:
    """Demand that a gate holds, and keep the figures. Raises NotSoError.

    `what` goes before the names of the figures, where a scenario has several."""
    bound_ms = gate.bound_ms(before, x.factor)
    figures = on_hosts(x).figures
    figures[f"{what}p99 of appends before, ms"] = before.p99_ms
    figures[f"{what}p99 of appends, ms"] = during.p99_ms
    figures[f"{what}p99 of appends, at most, ms"] = bound_ms
    said = f"{what}appends {during} (before: {before}), p99 at most {bound_ms:.0f} ms"
    if during.p99_ms > bound_ms:
        raise NotSoError(f"I15: {said} (factor {x.factor:.2f}); {gate.why}")
    x.proofs.append(said)
