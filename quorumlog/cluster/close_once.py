"""The close of an object that several tasks may close: the first does it, the others wait for it.

Owns the order of the callers, and the objects that are closed with their owner; must not know what
is closed. Otherwise a second caller would return early, and the program would take away what the
first close still uses. Owns the rule for several failures, too: one of them is raised, and each of
the others is logged, and is a note of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self, TypeVar

from quorumlog.cluster.forks import forks
from quorumlog.errors import PermissionDeniedError, QuorumlogError

_log = logging.getLogger("quorumlog.client")


class CloseOnce:
    """The close of one object, once."""

    __slots__ = ("_is_given_up", "_over", "is_begun")

    def __init__(self) -> None:
        self.is_begun = self._is_given_up = False
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the close has ended, with or without an error."""
        return self._over.is_set()

    async def once(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run `close`, or wait until the first caller has; only that one gets the exception.

        A caller that is cancelled gives up its own close only: the next one runs it again, and
        learns what became of it."""
        forks.check()
        while self.is_begun and not self._is_given_up:
            if self._over.is_set():
                return
            await self._over.wait()
        self.is_begun, self._is_given_up = True, False
        self._over.clear()
        try:
            await close()
        except asyncio.CancelledError:
            self._is_given_up = True
            raise
        finally:
            self._over.set()


class Closing:
    """An object that a client makes, and closes unless its program does, as `async with` does."""

    def __init__(self) -> None:
        self.close_once: Final = CloseOnce()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or is about to be."""
        return self.close_once.is_begun

    async def close(self) -> None:
        """Close it, or wait until it is closed. Its calls raise ClosedError from now on."""
        await self.close_once.once(self._close)

    async def _close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            await self.close()


def raise_ended(*tasks: "asyncio.Task[None]") -> None:
    """Raise the error that has ended a task in the background, if one did. A task that was
    cancelled has none."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


_Made = TypeVar("_Made", bound=Closing)


class Kept:
    """The objects that are closed with their owner, unless they are closed before."""

    def __init__(self) -> None:
        self._made: dict[Closing, Callable[[], Awaitable[None]]] = {}

    def __iter__(self) -> Iterator[Closing]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def add(self, made: _Made, close: Callable[[], Awaitable[None]] | None = None) -> _Made:
        """Keep an object, and forget those that are closed. `close`: how its owner closes it."""
        self._made = {old: end for old, end in self._made.items() if not old.close_once.is_over}
        self._made[made] = close or made.close
        return made

    async def close(self) -> None:
        """Close all objects at once. Raises the first failure, with the others beside it."""
        results = await asyncio.gather(
            *(close() for close in self._made.values()), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        for other in failures[1:]:
            _set_beside(failures[0], other)
        if failures:
            raise failures[0]


@contextmanager
def failures_beside(error: BaseException | None) -> Iterator[None]:
    """Close within, at the end of a block that may have raised an error: the error says more than
    what fails then, which is set beside it. Without one the failure is raised."""
    try:
        yield
    except QuorumlogError as failure:
        if error is None:
            raise
        _set_beside(error, failure)


def _set_beside(error: BaseException, other: BaseException) -> None:
    """Log a failure that is not raised because an error is, and note it there. Who loses a right
    meets the same refusal in the close, which is only noted."""
    text = "; ".join((f"{type(other).__name__}: {other}", *getattr(other, "__notes__", ())))
    is_again = isinstance(other, PermissionDeniedError) and other.code == getattr(error, "code", "")
    if not is_again:
        _log.warning("a close failed beside %r: %s", error, text)
    error.add_note(f"a close failed beside it: {text}")
