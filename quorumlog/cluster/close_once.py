"""The close of an object that several tasks may close: the first does it, the others wait for it.

Owns the order of the callers; must not know what is closed. Otherwise a second caller would return
early, and the program would take away what the first close still uses.
"""

import asyncio
from collections.abc import Awaitable, Callable


class Ending:
    """The close of one object, once."""

    __slots__ = ("_over", "is_begun")

    def __init__(self) -> None:
        self.is_begun = False
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the close has ended, with or without an error."""
        return self._over.is_set()

    async def once(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run `close`, or wait until the first caller has; only that one gets the exception."""
        if self.is_begun:
            await self._over.wait()
            return
        self.is_begun = True
        try:
            await close()
        finally:
            self._over.set()
