"""Turns of the event loop between calls that return at once, as the iteration over a batch does.

Owns when the loop is due a turn, and how long one lasts; must not know what waits for it. A program
that blocks the loop between such calls would keep heartbeats from being sent. A turn takes time,
since a heartbeat waits for answers: a fraction of the time that passed, so the loss is bounded.
"""

import asyncio
import time
from typing import Final

INTERVAL_S: Final = 0.05
TURN_S_MAX: Final = 0.05
_FRACTION: Final = 0.02


class Turns:
    """Call `give` at once, and then when the time has come that it returned."""

    def __init__(self) -> None:
        self._given_s = 0.0
        self._has_run = True
        """Whether the loop has run since the last turn was over for a while."""

    async def give(self) -> float:
        """Let the loop run, unless the program has waited for something. Return when the
        next turn is due, by the monotonic clock."""
        if not self._has_run:
            passed_s = time.monotonic() - self._given_s
            await asyncio.sleep(min(TURN_S_MAX, passed_s * _FRACTION))
        self._has_run, self._given_s = False, time.monotonic()
        asyncio.get_running_loop().call_later(INTERVAL_S, self._note)
        return self._given_s + INTERVAL_S

    def _note(self) -> None:
        self._has_run = True
