"""The search: inputs from good ones by mutation, kept when they reach new lines, judged each.

Owns the loop, the judgement of one input, and the reduction of a bad one. Must not know processes:
`process` gives it one with a limit of memory. The same target, seed and count give the same inputs
in any process: nothing here depends on time, hashes or addresses.
"""

import traceback
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from campaign.fuzz.mutation import mutated
from campaign.fuzz.target import ClaimBrokenError, FuzzTarget
from campaign.fuzz.trace import LineTrace, StepsExceededError

CORPUS_COUNT_MAX: Final = 4_096
CRASH_COUNT_MAX: Final = 8
"""Different crashes after which a run ends: mend these first."""
_RECENT_COUNT: Final = 24
_REDUCTION_COUNT_MAX: Final = 2_000
ROOT: Final = Path(__file__).resolve().parents[2]

OnInput = Callable[[int, bytes], None]
"""Called with the number of an input and its bytes, before it runs."""


@dataclass(frozen=True, slots=True)
class Crash:
    """An input that breaks the claim of its target, and how."""

    target: str
    kind: str
    """The error and the place that raised it, or the bound: crashes of one kind are one."""
    detail: str
    data: bytes
    number: int = 0
    """The number of the input in its run."""


@dataclass(slots=True)
class FuzzReport:
    """The result of a run."""

    target: str
    seed: int
    input_count: int = 0
    accepted_count: int = 0
    """Inputs that the parser took; the others were refused with a typed error."""
    corpus_count: int = 0
    edge_count: int = 0
    crashes: list[Crash] = field(default_factory=list)


class FuzzRun:
    """One run of one target."""

    def __init__(self, target: FuzzTarget, seed: int) -> None:
        self.target: Final = target
        self.report: Final = FuzzReport(target.name, seed)
        self._random = Random(f"{target.name}:{seed}")
        self._trace = LineTrace(target.modules)
        self._corpus: list[bytes] = []
        self._kinds: set[str] = set()

    def run(self, count: int, *, on_input: OnInput | None = None) -> FuzzReport:
        """Judge `count` inputs, or fewer if there are CRASH_COUNT_MAX different crashes before."""
        report = self.report
        was_tracing = tracemalloc.is_tracing()
        if not was_tracing:
            tracemalloc.start(1)
        try:
            pending = list(self.target.examples(self._random))
            for data in pending[:1]:  # Fills the caches of the parser, which are no input's memory.
                if on_input is not None:
                    on_input(0, data)
                judge(self.target, data, self._trace)
            while report.input_count < count and len(report.crashes) < CRASH_COUNT_MAX:
                data = pending.pop() if pending else self._next()
                if on_input is not None:
                    on_input(report.input_count, data)
                self._judge(data)
                report.input_count += 1
        finally:
            if not was_tracing:
                tracemalloc.stop()
        report.corpus_count, report.edge_count = len(self._corpus), self._trace.edge_count
        return report

    def _judge(self, data: bytes) -> None:
        kind, detail = judge(self.target, data, self._trace)
        self.report.accepted_count += kind == ACCEPTED
        if kind in (ACCEPTED, REFUSED):
            if self._trace.is_new() and len(self._corpus) < CORPUS_COUNT_MAX:
                self._corpus.append(data)
        elif kind not in self._kinds:
            self._kinds.add(kind)
            small = reduced(self.target, data, kind, self._trace)
            number = self.report.input_count
            self.report.crashes.append(Crash(self.target.name, kind, detail, small, number))

    def _next(self) -> bytes:
        random, target, corpus = self._random, self.target, self._corpus
        if not corpus or random.random() < 0.05:
            base = random.choice(target.examples(random))
        elif random.random() < 0.5:
            base = random.choice(corpus[-_RECENT_COUNT:])
        else:
            base = random.choice(corpus)
        if target.mutated is not None and random.random() < 0.5:
            data = target.mutated(random, base)
            for _ in range(random.randrange(3)):
                data = target.mutated(random, data)
        else:
            data = mutated(random, base, corpus, target.words)
        if target.repaired is not None and random.random() < 0.8:
            data = target.repaired(data)
        return data[: target.size_bytes_max]


ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"


def judge(target: FuzzTarget, data: bytes, trace: LineTrace | None) -> tuple[str, str]:
    """Run one input. Return ACCEPTED or REFUSED, or the kind of a crash, and its detail.

    Call with tracemalloc on; otherwise memory is not bounded. Without a trace steps are not.
    """
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    kind, detail = ACCEPTED, ""
    step_count_max = target.step_count_max(data)
    try:
        with nullcontext() if trace is None else trace.limit(step_count_max):
            target.run(data)
    except StepsExceededError:
        kind = f"steps: more than {target.step_base_count} and {target.step_factor} a byte"
        detail = f"{len(data)} bytes ran more than {step_count_max} lines"
    except ClaimBrokenError as broken:
        kind = detail = f"claim: {broken}"
    except target.errors as error:
        kind, detail = REFUSED, str(error)
    except Exception as error:  # noqa: BLE001 - any error that is not typed is what we look for.
        kind, detail = _kind_of(error), "".join(traceback.format_exception(error)[-6:])
    peak = tracemalloc.get_traced_memory()[1] - before
    if kind in (ACCEPTED, REFUSED) and peak > target.memory_bytes_max(data):
        kind = f"memory: more than {target.memory_base_bytes} and {target.memory_factor} a byte"
        detail = f"{len(data)} bytes took {peak}"
    return kind, detail


def _kind_of(error: Exception) -> str:
    """Return the class of an error with the innermost place in this repository."""
    place = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and ".venv" not in path.parts:
            place = f"{path.relative_to(ROOT)}:{frame.name}"
    return f"{type(error).__name__} in {place}"


def reduced(target: FuzzTarget, data: bytes, kind: str, trace: LineTrace) -> bytes:
    """Return a smaller input with a crash of the same kind: parts are left out while it stays."""
    left = _REDUCTION_COUNT_MAX
    size = len(data) // 2
    while size and left > 0:
        at = 0
        while at < len(data) and left > 0:
            left -= 1
            smaller = data[:at] + data[at + size :]
            if target.repaired is not None:
                smaller = target.repaired(smaller)
            if len(smaller) < len(data) and judge(target, smaller, trace)[0] == kind:
                data = smaller
            else:
                at += size
        size //= 2
    return data
