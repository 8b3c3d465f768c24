"""A page that is made once for all requests of a moment.

Owns the share of the loop that a flood of requests for it costs. Must not know what is on it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

PAUSE_FACTOR: Final = 9
"""Pause after making a page, in the time that the loop worked meanwhile: making it again and again
costs at most a tenth of the loop, however many requests there are and however large the node has
become."""
PAUSE_S_MAX: Final = 0.5
"""Limit of that pause: far below the time that a probe or Prometheus waits."""


class SharedPage:
    """Makes one page at a time. For one event loop."""

    def __init__(
        self,
        make: Callable[[], bytes | Awaitable[bytes]],
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._make, self._cpu_s = make, cpu_s
        self._rests_until_s = 0.0
        self._making = asyncio.Lock()
        self._next: asyncio.Task[bytes] | None = None
        self._tasks: Final = set[asyncio.Task[bytes]]()
        """The next one, and that of the page that is being made."""
        self.made_count = 0
        """Pages made so far."""

    async def get(self) -> bytes:
        """Return the page as of now or later; all requests that wait get the same one."""
        if self._next is None:
            # The page is for all who wait: none of them pays for what it walks.
            work = self._after_pause()
            self._next = asyncio.get_running_loop().create_task(work, context=Context())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    def stop(self) -> None:
        """Make no page any more; those who wait are cancelled."""
        self._next = None
        for task in self._tasks:
            task.cancel()

    async def _after_pause(self) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._making:
            if (pause_s := self._rests_until_s - loop.time()) > 0:
                await asyncio.sleep(pause_s)
            self._next = None  # A page answers no request that comes after it was begun.
            began_s = self._cpu_s()
            made = self._make()
            page = made if isinstance(made, bytes) else await made
            self.made_count += 1
            pause_s = min((self._cpu_s() - began_s) * PAUSE_FACTOR, PAUSE_S_MAX)
            self._rests_until_s = loop.time() + pause_s
            return page
