"""Readers that wait: until a queue grows, or until this replica has applied an index.

Owns the waiting readers and their conditions; must not know what they read. One future per waiter,
no task. `on_turn` is called after each turn of the driver that applied something or changed the
role; its cost follows the queues that grew and not the readers that wait.
"""

import asyncio
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Final

from node.broker.core.context import Context
from node.runtime.accounts import caller_host
from node.runtime.room import Room
from raft.messages import Index
from store.record.stamp import QueueKey

CROWD_COUNT: Final = 16
"""Readers of one address at one queue that all look at each message."""
_REST_S: Final = 0.001
"""Rest for each reader above it: a crowd makes at most 1,000 useless looks a second."""


class Crowd:
    """The readers of one address that wait for one queue."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    @property
    def rest_s(self) -> float:
        """Time that one of them rests after a look at messages of which it wants none."""
        return max(0, self.count - CROWD_COUNT) * _REST_S


class ParkedReaders:
    """The waiting readers by queue and by index. One per broker."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._by_queue: dict[QueueKey, dict[asyncio.Future[None], None]] = {}
        """Readers that wait for a queue, the longest waiting first."""
        self._by_index: dict[asyncio.Future[None], Index] = {}
        self._lowest_index: Index = 0
        """No reader waits for a lower index."""
        self._was_ready = False
        self.on_grown: Callable[[Set[QueueKey]], None] = lambda _: None
        """Called with the queues that grew, for other parts."""
        self.readers: Final = Room("waiting readers", context.limits.pull_waiters_max)
        """Parked pulls and tails."""
        self.reads: Final = Room("waiting reads", context.limits.read_waiters_max)
        """Reads that wait for an index or a confirmation; `Freshness` takes the room."""
        self._crowds: dict[tuple[QueueKey, str], Crowd] = {}

    def has_any(self) -> bool:
        """Whether a reader waits for something that will be applied here."""
        return bool(self._by_queue or self._by_index or self.reads.used)

    @contextmanager
    def crowd(self, key: QueueKey) -> Iterator[Crowd]:
        """Count the running call among the readers of its address that wait for a queue."""
        who = key, caller_host()
        crowd = self._crowds.setdefault(who, Crowd())
        crowd.count += 1
        try:
            yield crowd
        finally:
            crowd.count -= 1
            if not crowd.count:
                del self._crowds[who]

    async def for_growth(self, key: QueueKey, timeout_s: float) -> None:
        """Wait until a queue grows, this node begins or stops leading, or the time is over.

        The caller must not yield to the loop between its last look at the queue and this call.
        Raises BusyError.
        """
        host = self.readers.take()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        readers = self._by_queue.setdefault(key, {})
        readers[future] = None
        timer = loop.call_later(timeout_s, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            self.readers.give_back(host)
            readers.pop(future, None)
            if not readers and self._by_queue.get(key) is readers:
                del self._by_queue[key]

    async def for_index(self, index: Index) -> None:
        """Wait until an entry is applied here. The caller limits time and number."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._by_index or index < self._lowest_index:
            self._lowest_index = index
        self._by_index[future] = index
        try:
            await future
        finally:
            self._by_index.pop(future, None)

    def on_turn(self) -> None:
        """Wake the readers concerned after a turn that applied something or changed the role."""
        context = self._context
        grown = context.store.take_grown()
        if grown:
            self.on_grown(grown)
        if self._by_queue:
            for key in grown:
                readers = self._by_queue.get(key)
                for future in readers or ():
                    _wake(future)
        if self._by_index and context.driver.applied_index >= self._lowest_index:
            self._wake_applied(context.driver.applied_index)
        if context.driver.is_ready != self._was_ready:
            self._was_ready = context.driver.is_ready
            self.wake_readers()

    def wake_readers(self) -> None:
        """Wake every parked reader, so that it checks again whether it may go on."""
        for readers in self._by_queue.values():
            for future in readers:
                _wake(future)

    def wake_all(self) -> None:
        """Wake every reader: the broker stops."""
        self.wake_readers()
        for future in self._by_index:
            _wake(future)

    def _wake_applied(self, applied: Index) -> None:
        later = []
        for future, index in self._by_index.items():
            if index <= applied:
                _wake(future)
            else:
                later.append(index)
        self._lowest_index = min(later, default=applied + 1)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
