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
from typing import Final

from chaos.clients import QUEUE_COUNT, queue_name
from chaos.errors import NotSoError
from chaos.percentiles import Percentiles
from chaos.recorder import is_write, now_ns
from chaos.scenario import ScenarioContext

from checkers.history import Operation
from raft.errors import Outcome

COUNT_MIN: Final = 300
"""Steps that a 99th percentile is taken of: the three slowest of these are above it."""


def append_latencies(operations: Iterable[Operation], lo_ns: int, hi_ns: int) -> Percentiles:
    """Return the times of steps of appends and puts that began in [lo_ns, hi_ns), from the call to
    the last receipt, in milliseconds; without one: infinite.

    Raises NotSoError for fewer steps than COUNT_MIN."""
    spans = Percentiles.of(
        _steps_ms(op for op in operations if is_write(op) and lo_ns <= op.invoke_ns < hi_ns)
    )
    if spans is None or spans.count < COUNT_MIN:
        count = 0 if spans is None else spans.count
        raise NotSoError(f"{count} steps are too few to judge; {COUNT_MIN} are needed")
    return spans


@dataclass(frozen=True, slots=True)
class LatencyGate:
    """The largest 99th percentile under a fault: some times the one before it, and an allowance."""

    ratio_max: float
    allowance_ms: float
    """On a machine at factor 1, as for all gates."""
    why: str
    """Reason of both."""

    def bound_ms(self, before: Percentiles, factor: float) -> float:
        """Return the bound on a machine that is slower by `factor`."""
        return self.ratio_max * before.p99 + self.allowance_ms * factor


async def measured(x: ScenarioContext, least_s: float) -> Percentiles:
    """Return the times of the appends that begin from now on, for at least `least_s` seconds."""
    lo_ns = now_ns()
    await asyncio.sleep(least_s)

    def are_enough() -> bool:
        writes = (op for op in x.recorder.operations if is_write(op) and op.invoke_ns >= lo_ns)
        return len(_steps_ms(writes)) >= COUNT_MIN

    await x.until(f"{COUNT_MIN} steps of appends", are_enough)
    hi_ns, at = now_ns(), len(x.recorder.operations)
    queues = {queue_name(queue) for queue in range(QUEUE_COUNT)}

    def are_decided() -> bool:
        """Whether the calls that began before have ended: each queue has a later one.

        One writer has a queue, and its calls end in their order; of the register's two the slower
        one may be left out."""
        later = x.recorder.operations[at:]
        return queues == {op.queue for op in later if is_write(op) and op.invoke_ns >= hi_ns}

    await x.until("an append to each queue ends", are_decided)
    return append_latencies(x.recorder.operations, lo_ns, hi_ns)


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
    x: ScenarioContext, before: Percentiles, during: Percentiles, gate: LatencyGate
) -> None:
    """Demand that a gate holds; its figures are a proof of the scenario. Raises NotSoError."""
    bound_ms = gate.bound_ms(before, x.factor)
    said = f"appends {during} (before: {before}), p99 at most {bound_ms:.0f} ms"
    if during.p99 > bound_ms:
        raise NotSoError(f"I15: {said} (factor {x.factor:.2f}); {gate.why}")
    x.proofs.append(said)
