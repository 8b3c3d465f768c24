"""An event loop whose clock does not count the time in which the whole process stood still.

Owns that clock; must not know any test. Nodes in one process share it. A freeze of any length is
one step for all their timers, so that no election begins and no silent peer is dropped because the
machine was busy. Timers of code that reads another clock do not follow it.
"""

import asyncio
import selectors
import time
from typing import Any, Final

STEP_MAX_S: Final = 0.02
"""Longest time that passes between two looks at the sockets."""


class _Selector(selectors.DefaultSelector):
    """Waits for at most one step at a time, and moves the clock by at most one step."""

    def __init__(self) -> None:
        super().__init__()
        self._looked_s = time.monotonic()
        self.now_s = self._looked_s

    def select(self, timeout: float | None = None) -> list[Any]:
        is_longer = timeout is None or timeout > STEP_MAX_S
        events = super().select(STEP_MAX_S if is_longer else timeout)
        looked_s = time.monotonic()
        self.now_s += min(looked_s - self._looked_s, STEP_MAX_S)
        self._looked_s = looked_s
        return events


class CalmLoop(asyncio.SelectorEventLoop):
    """The loop on which coroutines of tests run, unless a test names another one."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return seconds since any moment, without those in which the process stood still."""
        return self._clock.now_s
