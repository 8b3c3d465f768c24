"""Looks at something in intervals, as long as there is anything to look at.

Owns the timer and the clock of those who watch calls. Must not know what they look at.
"""

import asyncio
from collections.abc import Callable


class LookTimer:
    """One per watch. For one event loop."""

    def __init__(
        self, interval_ms: int, look: Callable[[], bool], monotonic_s: Callable[[], float] | None
    ) -> None:
        """`look` says whether to look again. `monotonic_s` is for tests; without it the running
        loop's."""
        self._interval_s, self._look, self._monotonic_s = interval_ms / 1000, look, monotonic_s
        self._next: asyncio.TimerHandle | None = None

    def clock(self) -> Callable[[], float]:
        """Return the clock, for callers that look at it often: seconds since some moment."""
        return self._monotonic_s or asyncio.get_running_loop().time

    def now_s(self) -> float:
        """Return the time by that clock."""
        return self.clock()()

    def go_on(self) -> None:
        """There is something to look at: look after an interval, if that is not planned."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self._interval_s, self._again)

    def _again(self) -> None:
        self._next = None
        if self._look():
            self.go_on()
