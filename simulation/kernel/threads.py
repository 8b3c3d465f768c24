"""Threads and their locks, as greenlets of a process: the interface of `threading`.

Owns which thread waits for what. A thread runs until it waits, so threads meet only where one waits
for a lock, a condition, an event, a file system call, or another thread. A free lock may make its
taker wait for a moment, too, so that a seed decides which thread is first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final, Literal

from greenlet import getcurrent

from simulation.kernel.hub import NS_PER_S, NS_PER_US, Hub
from simulation.kernel.modules import SimulatedModule
from simulation.kernel.process import Process, Waiter, current_process

PREEMPTED_IN: Final = 16
"""A thread that takes a free lock lets others run first, once in this number of takings."""


def _timeout_ns(timeout: float | None) -> int | None:
    return None if timeout is None or timeout < 0 else int(timeout * NS_PER_S)


class Threads(SimulatedModule):
    """The module `threading`, for the processes of one world. Names are those of the module."""

    real: ClassVar = threading
    real_names = frozenset(("ThreadError", "local"))

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        outer = self

        class BoundThread(SimulatedThread):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(outer._hub, *args, **kwargs)

        class BoundTimer(SimulatedTimer):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(outer._hub, *args, **kwargs)

        self.Thread, self.Timer = BoundThread, BoundTimer

    def Lock(self) -> SimulatedLock:  # noqa: N802
        return SimulatedLock(self._hub)

    def RLock(self) -> SimulatedLock:  # noqa: N802
        return SimulatedLock(self._hub, is_reentrant=True)

    def Event(self) -> SimulatedEvent:  # noqa: N802
        return SimulatedEvent(self._hub)

    def Condition(self, lock: SimulatedLock | None = None) -> SimulatedCondition:  # noqa: N802
        return SimulatedCondition(self._hub, lock)

    def current_thread(self) -> object:
        process = self._hub.current
        if not isinstance(process, Process):
            return threading.current_thread()
        return process.current_thread or process


class SimulatedLock:
    """A lock; reentrant if wanted."""

    def __init__(self, hub: Hub, *, is_reentrant: bool = False) -> None:
        self._hub, self._is_reentrant = hub, is_reentrant
        self._owner: object = None
        self._depth = 0
        self._waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getcurrent()
        if self._owner is me:
            if self._is_reentrant:
                self._depth += 1
                return True
            if not blocking:
                return False
            raise AssertionError("a thread waits for a lock that it holds")
        process = self._hub.current
        if not isinstance(process, Process):  # A judge, between events.
            if self._owner is None:
                self._owner, self._depth = me, 1
                return True
            assert not blocking, "a judge would wait for a lock of a process"
            return False
        if blocking and process.random.randrange(PREEMPTED_IN) == 0:
            process.spend(process.random.randrange(20) * NS_PER_US)
        timeout_ns = _timeout_ns(timeout)
        while self._owner is not None:
            if not blocking:
                return False
            waiter = Waiter(process)
            self._waiters.append(waiter)
            if not waiter.wait(timeout_ns):
                self._waiters.remove(waiter)
                return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._owner is not getcurrent() and self._is_reentrant:
            raise RuntimeError("cannot release un-acquired lock")
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiters:
                self._waiters.popleft().wake()

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedCondition:
    """A condition variable."""

    def __init__(self, hub: Hub, lock: SimulatedLock | None = None) -> None:
        self._hub = hub
        self._lock = lock or SimulatedLock(hub, is_reentrant=True)
        self._waiters: deque[Waiter] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        process = current_process(self._hub)
        waiter = Waiter(process)
        self._waiters.append(waiter)
        self._lock.release()
        try:
            is_woken = waiter.wait(_timeout_ns(timeout))
            if not is_woken:
                self._waiters.remove(waiter)
        finally:
            self._lock.acquire()
        return is_woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        process = current_process(self._hub)
        clock = process.machine.clock
        end_ns = None if timeout is None else clock.monotonic_ns() + int(timeout * NS_PER_S)
        result = predicate()
        while not result:
            left = None if end_ns is None else (end_ns - clock.monotonic_ns()) / NS_PER_S
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        assert self._lock.locked(), "notify without the lock"
        for _ in range(min(n, len(self._waiters))):
            self._waiters.popleft().wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class SimulatedEvent:
    """A flag that threads wait for."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._waiters: deque[Waiter] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiters:
            self._waiters.popleft().wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        waiter = Waiter(current_process(self._hub))
        self._waiters.append(waiter)
        if not waiter.wait(_timeout_ns(timeout)):
            self._waiters.remove(waiter)
        return self._is_set


class SimulatedThread:
    """A thread of the process that makes it."""

    def __init__(
        self,
        hub: Hub,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._hub, self._target = hub, target
        self._args, self._kwargs = args, kwargs or {}
        self.name = name or "thread"
        self.daemon = daemon
        self.ident: int | None = None
        self._is_over = False
        self._joined: deque[Waiter] = deque()

    def start(self) -> None:
        process = current_process(self._hub)
        assert self.ident is None, "a thread is started once"
        self.ident = id(self)

        def run() -> None:
            try:
                self.run()
            except Exception as error:  # noqa: BLE001
                # Python prints it and continues; here it would stay unnoticed.
                self._hub.fail(error)
            self._is_over = True
            while self._joined:
                self._joined.popleft().wake()

        of: Any = self._hub.make(run)
        of.simulated_thread = self
        process.keep(of)
        delay_ns = process.random.randrange(1, 200) * NS_PER_US
        self._hub.after(delay_ns, self._hub.resume, process, of, 0)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._is_over

    def join(self, timeout: float | None = None) -> None:
        if self.ident is None:
            raise RuntimeError("cannot join thread before it is started")
        if self._is_over:
            return
        waiter = Waiter(current_process(self._hub))
        self._joined.append(waiter)
        if not waiter.wait(_timeout_ns(timeout)):
            self._joined.remove(waiter)


class SimulatedTimer(SimulatedThread):
    """A call after a while, on a thread of its own."""

    def __init__(self, hub: Hub, interval: float, function: Callable[..., object]) -> None:
        super().__init__(hub, target=function)
        self._interval = interval
        self._finished = SimulatedEvent(hub)

    def cancel(self) -> None:
        self._finished.set()

    def run(self) -> None:
        if not self._finished.wait(self._interval):
            super().run()
        self._finished.set()


class SimulatedExecutor:
    """The interface of ThreadPoolExecutor: work that is done in order by a few threads."""

    def __init__(
        self,
        hub: Hub,
        max_workers: int | None = None,
        thread_name_prefix: str = "executor",
        **options: Any,
    ) -> None:
        if options:
            raise NotImplementedError(f"{', '.join(options)} of an executor is not simulated")
        self._hub, self._name = hub, thread_name_prefix
        self._worker_count_max = max_workers or 4
        self._work: deque[tuple[Future[Any], Callable[..., Any], Any, Any]] = deque()
        self._running_count = 0
        self._idle = SimulatedEvent(hub)
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._work.append((future, fn, args, kwargs))
        if self._running_count < self._worker_count_max:
            self._running_count += 1
            self._idle.clear()
            SimulatedThread(self._hub, target=self._run, name=self._name).start()
        return future

    def _run(self) -> None:
        while self._work:
            future, fn, args, kwargs = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it belongs to the future.
                future.set_exception(error)
            else:
                future.set_result(result)
        self._running_count -= 1
        if self._running_count == 0:
            self._idle.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            while self._work:
                self._work.popleft()[0].cancel()
        if wait and self._running_count:
            self._idle.wait()

    def __enter__(self) -> SimulatedExecutor:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.shutdown()
        return False
