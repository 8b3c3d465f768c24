"""The lock that serialises the appends of several threads: blocking or spinning.

Owns the right to append and the time when it was taken; must not know what is appended. A node
with one event loop is its own single writer and needs no lock; this is for the store used as a
library. The time is kept since a put that holds the lock for long means that the page cache is busy
(5.8).
Source: RocketMQ PutMessageReentrantLock, PutMessageSpinLock; storage-formats 5.7, 5.8.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Literal, Self

from store.errors import BusyError

_NS_PER_MS: Final = 1_000_000


class PutLock:
    """Not reentrant. `with lock:` waits at most the default timeout.

    `blocking`: waiters sleep in the kernel. Right for syncs and long appends; RocketMQ's default.
    `spin`: waiters try again and yield the processor in between. RocketMQ's spin lock never
    yields; here the holder needs the interpreter lock to get on, which `sched_yield` gives it (the
    call releases it).
    """

    def __init__(
        self,
        kind: Literal["blocking", "spin"],
        timeout_ms: int,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._lock = threading.Lock()
        self._is_spinning = kind == "spin"
        self._timeout_ms = timeout_ms
        self._monotonic_ns = monotonic_ns
        self._began_ns: int | None = None  # When the holder took the lock; None while it is free.
        # Moved by the holder only.
        self.contended_count = 0
        self._held_ns_max = 0
        # Moved by threads that gave up; may miss one under contention, it is a statistic.
        self.timeout_count = 0

    def acquire(self, timeout_ms: int | None = None) -> None:
        """Take the lock, waiting at most `timeout_ms` (default: the configured one).

        Raises BusyError when another thread held it all the time; nothing was written.
        """
        contended = not self._lock.acquire(blocking=False)
        if contended:
            limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
            if not self._wait(limit_ms):
                self.timeout_count += 1
                raise BusyError("the put lock", limit_ms)
        self._began_ns = self._monotonic_ns()
        self.contended_count += contended

    def release(self) -> None:
        """Give the lock back. Only the holder may."""
        assert self._began_ns is not None, "the put lock is released and not held"
        held_ns = self._monotonic_ns() - self._began_ns
        if held_ns > self._held_ns_max:  # noqa: PLR1730  Half the time of max().
            self._held_ns_max = held_ns
        self._began_ns = None
        self._lock.release()

    @property
    def held_ms_max(self) -> int:
        """Longest time for which the lock was held."""
        return self._held_ns_max // _NS_PER_MS

    def held_ms(self) -> int:
        """Return how long the present holder has had the lock, 0 while it is free."""
        began_ns = self._began_ns
        return 0 if began_ns is None else (self._monotonic_ns() - began_ns) // _NS_PER_MS

    def _wait(self, timeout_ms: int) -> bool:
        if not self._is_spinning:
            return self._lock.acquire(timeout=timeout_ms / 1000)
        deadline_ns = self._monotonic_ns() + timeout_ms * _NS_PER_MS
        while not self._lock.acquire(blocking=False):
            if self._monotonic_ns() >= deadline_ns:
                return False
            os.sched_yield()
        return True

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
