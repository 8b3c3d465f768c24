"""Where the time of appends went on the node that leads, by stage.

Owns the histograms and the slow appends. Appends that leave for the other replicas in one turn of
the driver are one run: a run costs a few looks at the clock, however many appends it has. Must not
know how entries are replicated. A place is an index, or a log position in master-slave mode.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from store.stats import Latencies, LatencyStats

_KEPT_COUNT: Final = 256
"""Answered runs of which a receipt can still tell the stages."""
_Run = tuple[int, int, int, int]


class Stages(NamedTuple):
    """One run. The times add up to that from the first append of the run to its answer, in us."""

    hi: int
    """Place of its last entry."""
    append_count: int
    sent_us: int
    """From before the first one is written until the last one was sent to the other replicas."""
    quorum_us: int
    """From there until enough replicas had all of them."""
    applied_us: int
    """From there until readers see them and callers get their answers."""


class AppendTimes:
    """The stages of all appends of one driver. Runs on the loop's thread.

    What is done for each run is little, since a run may be a single append: its times are kept, and
    counted when a page is made or when there are many.
    """

    def __init__(
        self,
        slow_ms: int = 0,
        on_slow: Callable[[Stages], None] = lambda _: None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`on_slow` gets each run with an append that took `slow_ms` or longer; 0: none."""
        self._now_ns = now_ns
        self._latencies = tuple(Latencies() for _ in range(4))
        self._on_slow = on_slow
        self.slow_count = 0
        self._slow_ns = slow_ms * 1_000_000 or 1 << 62
        self._open: Final = deque[_Run]()
        """Of each run that is under way: its last place, count, begin and when it was sent."""
        self._decided_ns = 0
        """When the oldest run was decided, as long as it is not shown to readers."""
        self._answered: list[tuple[_Run, int, int]] = []
        """Runs that are not counted yet, with the times of the decision and of the answer."""
        self._kept: Final = deque[tuple[_Run, int, int]](maxlen=_KEPT_COUNT)

    def send(self, hi: int, count: int, began_ns: int) -> None:
        """Note that a run has left: the entries up to `hi`, the first of them begun then."""
        self._open.append((hi, count, began_ns, self._now_ns()))

    def answer(self, decided_hi: int, shown_hi: int) -> None:
        """Note what is decided, and what readers see, which the callers are told next."""
        runs = self._open
        if not runs or runs[0][0] > decided_hi:
            return
        now_ns = self._now_ns()
        while runs and runs[0][0] <= decided_hi:
            run, decided_ns = runs[0], self._decided_ns or now_ns
            if run[0] > shown_hi:
                self._decided_ns = decided_ns
                return
            self._decided_ns = 0
            runs.popleft()
            self._answered += ((run, decided_ns, now_ns),)
            if now_ns - run[2] >= self._slow_ns:
                self.slow_count += run[1]
                self._on_slow(_stages(run, decided_ns, now_ns))
        if len(self._answered) > _KEPT_COUNT:
            self._count()

    def clear(self) -> None:
        """Forget what is under way: this node leads no longer, or in another term."""
        self._open.clear()
        self._decided_ns = 0

    def of(self, place: int) -> Stages | None:
        """Return the stages of the run that the entry at a place was in; None: too old."""
        self._count()
        found = None
        for answered in reversed(self._kept):
            if answered[0][0] < place:
                break
            found = answered
        return None if found is None else _stages(*found)

    def stages(self) -> "StageStats":
        """Return what was counted so far."""
        self._count()
        return StageStats(*(one.snapshot() for one in self._latencies))

    def _count(self) -> None:
        answered, self._answered = self._answered, []
        self._kept.extend(answered)
        times_us: tuple[list[int], ...] = [], [], [], []
        sent, quorum, applied, whole = times_us
        for (_, count, began_ns, sent_ns), decided_ns, now_ns in answered:
            sent += ((sent_ns - began_ns) // 1000,) * count
            quorum += ((decided_ns - sent_ns) // 1000,) * count
            applied += ((now_ns - decided_ns) // 1000,) * count
            whole += ((now_ns - began_ns) // 1000,) * count
        for latencies, durations_us in zip(self._latencies, times_us, strict=True):
            latencies.note_all(durations_us)


def _stages(run: _Run, decided_ns: int, now_ns: int) -> Stages:
    hi, count, began_ns, sent_ns = run
    times_ns = sent_ns - began_ns, decided_ns - sent_ns, now_ns - decided_ns
    return Stages(hi, count, *(time_ns // 1000 for time_ns in times_ns))


class StageStats(NamedTuple):
    """The times of appends so far, by stage, and whole."""

    sent: LatencyStats
    quorum: LatencyStats
    applied: LatencyStats
    answered: LatencyStats
