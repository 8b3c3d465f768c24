"""The turn of a handler on the event loop: how long walks of what callers sent may hold it.

Owns the slice that all handlers of a node share: together they keep the loop for SLICE_S and one
step of a walk, then everything else that waits (links, timers, appends) comes first. Handlers that
wait for the next slice get it one after another. Must not know what is walked.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

SLICE_S: Final = 0.005
"""Far below the heartbeat of a leader, and far above the cost of one turn of the loop."""
_T = TypeVar("_T")


class Turn:
    """The slices of one event loop. One per node; steps must not await between two looks."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._waiting = asyncio.Lock()
        self._end_s = 0.0

    def is_over(self) -> bool:
        """Whether the slice is used up, by whatever handler."""
        return self._monotonic_s() >= self._end_s

    async def next(self) -> None:
        """Return when the caller may go on: at once within a slice that no other waits for."""
        async with self._waiting:
            if self.is_over():
                await asyncio.sleep(0)
                self._end_s = self._monotonic_s() + SLICE_S

    async def over(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield items, and yield to the loop between slices. What is walked must not change
        meanwhile: hand over a list of a table that others change."""
        for item in items:
            if self.is_over():
                await self.next()
            yield item
