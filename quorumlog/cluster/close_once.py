"""The end of what several tasks may close at once: one of them does it, the others wait for that.

Owns who was first; must not know what is closed. Without it the second one would go on, and take
away what the first one still works with.
"""

import asyncio
from collections.abc import Awaitable, Callable


class Ending:
    """Of one object, once."""

    __slots__ = ("_over", "is_begun")

    def __init__(self) -> None:
        self.is_begun = False
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Say whether nothing of it is under way any more."""
        return self._over.is_set()

    async def once(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close it, or wait until whoever came first is done; he alone is told what went wrong."""
        if self.is_begun:
            await self._over.wait()
            return
        self.is_begun = True
        try:
            await close()
        finally:
            self._over.set()
