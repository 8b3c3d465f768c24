"""A timer that runs a check at intervals, as long as there is something to check.

Owns the timer and the clock of the watches over calls. Must not know what they check.
"""

import asyncio
from collections.abc import Callable


class LookTimer:
    """The timer of one watch. For one event loop."""

    def __init__(
        self,
        interval_ms: int,
        look: Callable[[], None],
        is_needed: Callable[[], object],
        monotonic_s: Callable[[], float] | None,
    ) -> None:
        """Run `look` at intervals as long as `is_needed` returns something true. The default clock
        is the one of the running loop. A test that passes `monotonic_s` also runs the looks: a look
        that real time starts would fall between two steps of the test."""
        self._interval_s, self._monotonic_s = interval_ms / 1000, monotonic_s
        self._look, self._is_needed = look, is_needed
        self._next: asyncio.TimerHandle | None = None

    def clock(self) -> Callable[[], float]:
        """Return the clock, for callers that read it often: seconds since an arbitrary time."""
        return self._monotonic_s or asyncio.get_running_loop().time

    def now_s(self) -> float:
        """Return the time by that clock."""
        return self.clock()()

    def go_on(self) -> None:
        """Plan a look after the interval, unless one is planned already."""
        if self._next is None and self._monotonic_s is None:
            self._next = asyncio.get_running_loop().call_later(self._interval_s, self._again)

    def _again(self) -> None:
        self._next = None
        self._look()
        if self._is_needed():
            self.go_on()
