"""The turn of a handler on the event loop: how long calls and walks may hold it.

Owns the slice that all handlers of a node share: together they keep the loop for SLICE_S and one
step of a walk, then everything else (links, timers, appends) has it for REST_S at least. Handlers
that wait for the next slice get it one after another, the addresses of their callers in turn. Of
the walks of one address that need more than a slice, one runs at a time: what each has put together
is in memory meanwhile. Callers pay for what their walks hold. What no call waits for, such as the
rows that ended connections leave, is done in slices too, as the node's own work. Must not know what
is walked.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from operator import length_hint
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from node.runtime.accounts import ROW_SIZE_BYTES, Account, Charge, Kind, caller, caller_host

SLICE_S: Final = 0.002
"""Far below the heartbeat of a leader, and far above the cost of one turn of the loop."""
REST_S: Final = 0.002
"""Half of the loop's time is for what takes no turn, however many handlers wait."""
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
        self._end_s = self._rest_end_s = -REST_S
        self._is_running = self._is_granted = False
        """Whether a handler went on in this turn of the loop; whether one that waited is about to,
        before which no other begins."""

    def is_over(self) -> bool:
        """Whether the slice is used up, by whatever handler."""
        return self._monotonic_s() >= self._end_s

    async def next(self) -> None:
        """Return when the caller may go on: at once within a slice that no other waits for."""
        loop = asyncio.get_running_loop()
        if not self._waiting and not self._is_granted:
            now_s = self._monotonic_s()
            is_rested = not self._is_running and now_s >= self._rest_end_s
            if is_rested or now_s < self._end_s:
                if now_s >= self._end_s:
                    self._end_s = now_s + SLICE_S
                self._run(loop)
                return
        await self._wait(loop, caller_host())

    def _wait(self, loop: asyncio.AbstractEventLoop, host: str) -> "asyncio.Future[None]":
        if not self._waiting:
            rest_s = self._rest_end_s - self._monotonic_s()
            loop.call_later(REST_S if self._is_running else max(rest_s, 0), self._begin)
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
        wait = self._wait(asyncio.get_running_loop(), "")
        wait.add_done_callback(self._take_steps, context=Context())

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

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that a handler goes on. However long it takes, the rest begins behind it."""
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._ran)

    def _ran(self) -> None:
        self._is_running = False
        self._rest_end_s = max(self._end_s, self._monotonic_s()) + REST_S

    def _ran_granted(self) -> None:
        self._is_granted = False
        self._ran()

    def _begin(self) -> None:
        """Begin a slice, in which one handler goes on in any case."""
        self._end_s = self._monotonic_s() + SLICE_S
        self._grant()

    def _go_on(self) -> None:
        """Let one more handler go on, in this slice or the next."""
        if self.is_over():
            asyncio.get_running_loop().call_later(REST_S, self._begin)
        else:
            self._grant()

    def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        for granted in self._in_turn():
            if not granted.done():
                granted.set_result(None)
                self._is_running = self._is_granted = True
                loop.call_soon(self._ran_granted)  # Behind the step of the handler.
                break
        if self._waiting:
            loop.call_soon(self._go_on)

    def _in_turn(self) -> "Iterator[asyncio.Future[None]]":
        while self._waiting:
            host, of_host = self._waiting.popitem(last=False)
            granted = of_host.popleft()
            if of_host:
                self._waiting[host] = of_host
            yield granted

    @asynccontextmanager
    async def walk(self, size_bytes: int = 0) -> "AsyncIterator[Walk]":
        """Return a walk of the running call, which takes a step where `is_over`. Its caller pays
        for the bytes until it ends. Walks must not be nested. Raises BusyError."""
        async with AsyncExitStack() as held:
            walk = Walk(self, held, caller(), size_bytes)
            if self.lock(caller_host()).locked():
                await walk.wait()  # What it would put together meanwhile is not in memory.
            yield walk

    async def over(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield items, and yield to the loop between slices. What is walked must not change
        meanwhile: hand over a list of a table that others change. Walks must not be nested.

        The caller pays for those that were made, until the walk ends. Raises BusyError."""
        async with self.walk(ROW_SIZE_BYTES * length_hint(items)) as walk:
            for item in items:
                if self.is_over():
                    await walk.step()
                yield item

    def lock(self, host: str) -> asyncio.Lock:
        """Return the lock of an address that walks more than a slice."""
        return self._walks.setdefault(host, asyncio.Lock())


class Walk:
    """One walk. Made by `Turn.walk`."""

    def __init__(
        self, turn: Turn, held: AsyncExitStack, account: Account | None, size_bytes: int
    ) -> None:
        self._turn, self._held = turn, held
        self._lock: asyncio.Lock | None = None
        self._charge: Charge | None = None
        if account is not None:
            self._charge = account.charge(Kind.DOCUMENTS, size_bytes, 0)
            held.callback(self._charge.release)

    async def step(self) -> None:
        """Return when the walk may go on."""
        if self._turn.is_over():
            await self.wait()

    async def wait(self) -> None:
        """Return in the turn of the address, when its other walks that take long have ended."""
        if self._lock is None:
            self._lock = self._turn.lock(caller_host())
            await self._held.enter_async_context(self._lock)
        await self._turn.next()

    def hold(self, size_bytes: int) -> None:
        """Have the caller pay for what the walk has put together. Raises BusyError."""
        if self._charge is not None:
            self._charge.resize(size_bytes)
