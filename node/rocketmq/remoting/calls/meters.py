"""Rates of the last seconds, minutes and hours, from counters that only grow.

Owns the samples: one every ten seconds for ten minutes, one every ten minutes for a day. Nothing is
kept per message.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

SAMPLE_S: Final = 10
COARSE_S: Final = 600
_DAY_S: Final = 86_400
METER_COUNT_MAX: Final = 1_024
"""Counters with samples: 200 numbers each."""
GOT_COUNT_MAX: Final = 16_384
"""Counters of topics by group."""


class Window(NamedTuple):
    """Growth of a counter in a span of time."""

    growth: int
    seconds: int

    @property
    def per_s(self) -> float:
        """Growth in a second, 0 without a span."""
        return self.growth / self.seconds if self.seconds else 0.0


class Meter:
    """One counter and its samples."""

    __slots__ = ("_coarse", "_fine", "_read", "_sample_count")

    def __init__(self, read: Callable[[], int]) -> None:
        now = read()
        self._read = read
        self._fine: deque[int] = deque([now], maxlen=COARSE_S // SAMPLE_S)
        self._coarse: deque[int] = deque([now], maxlen=_DAY_S // COARSE_S)
        self._sample_count = 1

    def sample(self) -> None:
        """Take a sample: call it every SAMPLE_S."""
        now = self._read()
        self._fine.append(now)
        if self._sample_count % (COARSE_S // SAMPLE_S) == 0:
            self._coarse.append(now)
        self._sample_count += 1

    def last(self, seconds: int) -> Window:
        """Return the growth of the last seconds, or since the start if that is later."""
        is_fine = seconds <= COARSE_S
        step_s, samples = (SAMPLE_S, self._fine) if is_fine else (COARSE_S, self._coarse)
        step_count = min(seconds // step_s, len(samples))
        if not step_count:
            return Window(0, 0)
        return Window(max(0, self._read() - samples[-step_count]), step_count * step_s)
