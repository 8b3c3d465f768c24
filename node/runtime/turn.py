"""The turn of a handler on the event loop: how long walks of what callers sent may hold it.

Owns the slice that all handlers of a node share: together they keep the loop for SLICE_S and one
step of a walk, then everything else that waits (links, timers, appends) comes first. Handlers that
wait for the next slice get it one after another, the addresses of their callers in turn. Of the
walks of one address that need more than a slice, one runs at a time: what each has put together is
in memory meanwhile. Callers pay for the rows of their walks. What no call waits for, such as the
rows that ended connections leave, is done in slices too, as the node's own work. Must not know what
is walked.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from contextvars import Context
from operator import length_hint
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from node.runtime.accounts import ROW_SIZE_BYTES, Kind, caller

SLICE_S: Final = 0.005
"""Far below the heartbeat of a leader, and far above the cost of one turn of the loop."""
_T = TypeVar("_T")


class Turn:
    """The slices of one event loop. One per node; steps must not await between two looks."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By address, the one whose turn is next first. Invariant: no inner queue is empty."""
        self._walks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By address."""
        self._left: OrderedDict[str, deque[Iterator[None]]] = OrderedDict()
        """Work that no call waits for, by the address that left it, the next one first. Invariant:
        no inner queue is empty."""
        self._end_s = 0.0

    def is_over(self) -> bool:
        """Whether the slice is used up, by whatever handler."""
        return self._monotonic_s() >= self._end_s

    async def next(self) -> None:
        """Return when the caller may go on: at once within a slice that no other waits for."""
        if not self._waiting and not self.is_over():
            return
        await self._wait(_host())

    def _wait(self, host: str) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._grant)
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(host, deque()).append(granted)
        return granted

    def later(self, host: str, steps: Iterator[None]) -> None:
        """Take steps in slices, as work of the node: one at a time of each address that left some,
        so that what one left delays no other for long. `host` is empty for the node itself."""
        if not self._left:
            self._take_later()
        self._left.setdefault(host, deque()).append(steps)

    def _take_later(self) -> None:
        # No caller pays for what the steps do.
        self._wait("").add_done_callback(self._take_steps, context=Context())

    def _take_steps(self, _granted: "asyncio.Future[None]") -> None:
        """Take steps until the slice is over. An error ends its own work, and is the loop's."""
        try:
            while self._left:
                host, of_host = next(iter(self._left.items()))
                self._left.move_to_end(host)
                if next(of_host[0], True):
                    of_host.popleft()
                if not of_host:
                    del self._left[host]
                if self.is_over():
                    break
        finally:
            if self._left:
                self._take_later()

    def _grant(self) -> None:
        """Let one handler go on, in each turn of the loop."""
        if self.is_over():
            self._end_s = self._monotonic_s() + SLICE_S
        for granted in self._in_turn():
            if not granted.done():
                granted.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._grant)

    def _in_turn(self) -> "Iterator[asyncio.Future[None]]":
        """Yield those who wait, and take them out."""
        while self._waiting:
            host, of_host = self._waiting.popitem(last=False)
            granted = of_host.popleft()
            if of_host:
                self._waiting[host] = of_host
            yield granted

    async def over(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield items, and yield to the loop between slices. What is walked must not change
        meanwhile: hand over a list of a table that others change. Walks must not be nested.

        The caller pays for those that were made, until the walk ends. Raises BusyError."""
        account = caller()
        async with AsyncExitStack() as held:
            if account is not None:
                charge = account.charge(Kind.DOCUMENTS, ROW_SIZE_BYTES * length_hint(items), 0)
                held.callback(charge.release)
            walk: asyncio.Lock | None = None
            for item in items:
                if self.is_over():
                    if walk is None:
                        walk = self._walks.setdefault(_host(), asyncio.Lock())
                        await held.enter_async_context(walk)
                    await self.next()
                yield item


def _host() -> str:
    """Return the address of the running call; empty for the node's own work."""
    account = caller()
    return "" if account is None else account.address.what
