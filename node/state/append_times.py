"""Where the time of appends went on the node that leads, by stage.

Owns the histograms and the slow appends. Appends that leave for the other replicas in one turn of
the driver are one run: a run costs a few looks at the clock, however many appends it has. Must not
know how entries are replicated. A place is an index, or a log position in master-slave mode.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from store.stats import Latencies

_KEPT_COUNT: Final = 256
"""Answered runs of which a receipt can still tell the stages."""
_new: Final = tuple.__new__  # One call; the constructor of a named tuple is two.


class Stages(NamedTuple):
    """One run. The times add up to that from the first append of the run to its answer, in us."""

    hi: int
    """Place of its last entry."""
    append_count: int
    sent_us: int
    """From the first one in the log to the last one sent to the other replicas."""
    quorum_us: int
    """From there until enough replicas had all of them."""
    applied_us: int
    """From there until readers see them and callers get their answers."""


class AppendTimes:
    """The stages of all appends of one driver. Runs on the loop's thread."""

    def __init__(
        self,
        slow_ms: int = 0,
        on_slow: Callable[[Stages], None] = lambda _: None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`on_slow` gets each run with an append that took `slow_ms` or longer; 0: none."""
        self._now_ns = now_ns
        self.sent, self.quorum, self.applied = Latencies(), Latencies(), Latencies()
        self.answered: Final = Latencies()
        """All three."""
        self._on_slow = on_slow
        self.slow_count = 0
        self._slow_us = slow_ms * 1000 or 1 << 62
        self._open: Final = deque[tuple[int, int, int, int]]()
        """Of each run that is under way: its last place, count, begin and when it was sent."""
        self._decided_ns = 0
        """When the oldest run was decided, as long as it is not shown to readers."""
        self._kept: Final = deque[Stages](maxlen=_KEPT_COUNT)

    def send(self, hi: int, count: int, began_ns: int) -> None:
        """Note that a run has left: the entries up to `hi`, the first of them begun then."""
        self._open.append((hi, count, began_ns, self._now_ns()))

    def answer(self, decided_hi: int, shown_hi: int) -> None:
        """Note what is decided, and what readers see, which the callers are told next."""
        runs, now_ns = self._open, self._now_ns()
        while runs and runs[0][0] <= decided_hi:
            hi, count, began_ns, sent_ns = runs[0]
            decided_ns = self._decided_ns or now_ns
            if hi > shown_hi:
                self._decided_ns = decided_ns
                return
            self._decided_ns = 0
            runs.popleft()
            sent_us, quorum_us = (sent_ns - began_ns) // 1000, (decided_ns - sent_ns) // 1000
            applied_us = (now_ns - decided_ns) // 1000
            total_us = sent_us + quorum_us + applied_us
            self.sent.note(sent_us, count)
            self.quorum.note(quorum_us, count)
            self.applied.note(applied_us, count)
            self.answered.note(total_us, count)
            stages = _new(Stages, (hi, count, sent_us, quorum_us, applied_us))
            self._kept.append(stages)
            if total_us >= self._slow_us:
                self.slow_count += count
                self._on_slow(stages)

    def clear(self) -> None:
        """Forget what is under way: this node leads no longer, or in another term."""
        self._open.clear()
        self._decided_ns = 0

    def of(self, place: int) -> Stages | None:
        """Return the stages of the run that the entry at a place was in; None: too old."""
        found = None
        for stages in reversed(self._kept):
            if stages.hi < place:
                break
            found = stages
        return found
