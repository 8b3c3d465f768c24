"""Rates of the last seconds, minutes and hours, and counts of days, from counters that only grow.

Owns the samples: one every ten seconds for ten minutes, one every ten minutes for a day. Nothing is
kept per message.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import date
from typing import Final, NamedTuple

SAMPLE_S: Final = 10
COARSE_S: Final = 600
_DAY_S: Final = 86_400
_COARSE_STEPS: Final = COARSE_S // SAMPLE_S
METER_COUNT_MAX: Final = 1_024
"""Topics, and topics by group, with samples: 200 numbers for each of their one or two counters."""
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


NO_WINDOW: Final = Window(0, 0)


class Meter:
    """One counter and its samples."""

    __slots__ = ("_coarse", "_fine", "_read", "_sample_count", "began_s")

    def __init__(self, read: Callable[[], int], began_s: float, first: int = 0) -> None:
        """`began_s` is the Unix time from which on the counter grew beyond `first`."""
        self._read = read
        self._begin(began_s, first)

    def _begin(self, began_s: float, first: int) -> None:
        self.began_s = began_s
        self._fine: deque[int] = deque([first], maxlen=_COARSE_STEPS)
        self._coarse: deque[int] = deque([first], maxlen=_DAY_S // COARSE_S)
        self._sample_count = 0

    def sample(self, now_s: float) -> None:
        """Take a sample: call it every SAMPLE_S."""
        now = self._read()
        if now < self._fine[-1]:
            self._begin(now_s - SAMPLE_S, 0)  # The counter began again.
        self._sample_count += 1
        self._fine.append(now)
        if self._sample_count % _COARSE_STEPS == 0:
            self._coarse.append(now)

    def last(self, seconds: int) -> Window:
        """Return the growth of the last seconds, or since the start if that is later."""
        if seconds <= COARSE_S:
            count = min(seconds // SAMPLE_S, len(self._fine))
            first, step_count = self._fine[-count], count
        else:
            newest = self._sample_count % _COARSE_STEPS + 1  # Steps since the newest of these.
            room = (seconds // SAMPLE_S - newest) // _COARSE_STEPS
            count = min(room + 1, len(self._coarse))
            first, step_count = self._coarse[-count], newest + (count - 1) * _COARSE_STEPS
        return Window(max(0, self._read() - first), step_count * SAMPLE_S)


class Mornings:
    """What a counter was at the last two midnights, in the local time of the node.

    It counts from 0 since the node began, so a midnight before that has 0, and each count of a day
    is one of the days' part in which the node was up."""

    def __init__(self, read: Callable[[], int], now_s: float) -> None:
        self._read = read
        self._day = _day_of(now_s)
        self._today = self._yesterday = 0

    def at(self, now_s: float) -> tuple[int, int]:
        """Return the counter at midnight and at the midnight before. Call it at least every
        SAMPLE_S: it notices midnight when it is called."""
        day = _day_of(now_s)
        if day > self._day:
            now = self._read()
            self._yesterday = self._today if day == self._day + 1 else now
            self._day, self._today = day, now
        return self._today, self._yesterday


def local_time(unix_s: float) -> str:
    """Return a time as people at the node read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _day_of(unix_s: float) -> int:
    return date(*time.localtime(unix_s)[:3]).toordinal()
