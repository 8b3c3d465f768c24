"""An event loop of virtual time, with the interface of asyncio.

Owns the turns: which handles run, and when. Time stands still within a turn; the turn itself takes
a moment of it. Sockets are those of `simulation.network`. What our code does not use raises
NotImplementedError, as asyncio's own base class does. Must not know how a process lives and ends,
nor how threads run: the maker of a process gives its loop an executor.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, Final, Protocol

from simulation.kernel.hub import NS_PER_S, Event, Hub, Owner
from simulation.kernel.machine import Machine


class LoopOwner(Owner, Protocol):
    """A process, as its loop sees it."""

    @property
    def hub(self) -> Hub: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def main(self) -> Any:
        """The greenlet of the loop."""

    def turn_ns(self) -> int:
        """Return how long the next turn of the loop takes."""
        ...

    def spend(self, duration_ns: int) -> None:
        """Let time pass for the code that calls this."""
        ...

    def keep(self, thing: object) -> None:
        """Hold something for as long as the process is held."""
        ...

    def kill(self) -> None:
        """End the process now."""
        ...


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process. It runs on the greenlet of that process."""

    def __init__(self, process: LoopOwner) -> None:
        self._process: Final = process
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._readers: dict[Any, asyncio.Handle] = {}
        self._wake_up: Event | None = None
        self._busy_until_ns = 0
        """The end of the last turn, when nothing was left to do after it."""
        self._is_waiting = False
        self._wait_number = 0
        self._is_closed = False
        self._on_error: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._executor: Any = None
        self._signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._names = 0

    # --- Running ---

    def run_until_complete(self, future: Any) -> Any:
        """Run turns until a coroutine or future is done; return its result."""
        task = asyncio.ensure_future(future, loop=self)
        while not task.done():
            self._turn()
        return task.result()

    def _turn(self) -> None:
        process = self._process
        while not self._has_work():
            self._wait()
        now = self.time()
        timers = self._timers
        while timers and timers[0][0] <= now:
            self._ready.append(heapq.heappop(timers)[2])
        for socket_, reader in self._readers.items():
            if socket_.is_readable:
                self._ready.append(reader)
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
        turn_ns = process.turn_ns()
        if self._has_work():
            process.spend(turn_ns)
        else:  # Then it waits anyway: one switch for both.
            self._busy_until_ns = process.hub.now_ns + turn_ns

    def _has_work(self) -> bool:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return (
            bool(self._ready)
            or (bool(timers) and timers[0][0] <= self.time())
            or any(one.is_readable for one in self._readers)
        )

    def _wait(self) -> None:
        """Let other code run until a timer is due or a caller wakes this loop."""
        process, hub = self._process, self._process.hub
        if self._timers:
            due_ns = int(self._timers[0][0] * NS_PER_S) + 1
            at_ns = max(process.machine.clock.world_ns(due_ns), self._busy_until_ns)
            self._wake_up = hub.at(at_ns, hub.resume, process, process.main, hub.next_wait())
        self._wait_number = hub.next_wait()
        self._is_waiting = True
        hub.wait()
        self._is_waiting = False

    def wake(self) -> None:
        """Have a loop that waits look for work."""
        if not self._is_waiting or not self._process.is_alive:
            return
        self._is_waiting = False
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None
        process, hub = self._process, self._process.hub
        at_ns = max(hub.now_ns, self._busy_until_ns)
        hub.at(at_ns, hub.resume, process, process.main, self._wait_number)

    def drop(self) -> None:
        """Forget all work: the process has ended."""
        self._process.keep((self._ready, self._timers, self._readers))
        self._ready, self._timers, self._readers = deque(), [], {}
        self._is_closed = True

    def is_running(self) -> bool:
        return self._process.is_alive

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    def stop(self) -> None:
        raise NotImplementedError

    # --- Calls ---

    def time(self) -> float:
        """Return the monotonic time of the machine, in s."""
        return self._process.machine.clock.monotonic_ns() / NS_PER_S

    def call_soon(  # type: ignore[override]  # As asyncio's own loops.
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(handle)
            if self._is_waiting:
                self.wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, timer))
            if self._is_waiting and self._timers[0][2] is timer:
                self.wake()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by TimerHandle.cancel; the heap drops such handles when they come up."""

    # --- Futures and tasks ---

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        if name is None:  # asyncio counts tasks by the process of the interpreter.
            self._names += 1
            name = f"task-{self._names}"
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._process.keep(task)
        return task

    def get_debug(self) -> bool:
        return False

    def close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Run what an asynchronous generator has left to do; it was dropped before its end."""
        if not self._is_closed:
            self.call_soon(self.create_task, generator.aclose())

    # --- Errors ---

    def set_exception_handler(self, handler: Any) -> None:
        self._on_error = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the process; an error that has no handler ends the run of the world."""
        if self._is_closed:
            return
        if self._on_error is not None:
            self._on_error(self, context)
            return
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        self._process.hub.fail(error)

    # --- Threads ---

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run a function on a simulated thread."""
        if executor is None:
            executor = self._executor
            assert executor is not None, "a process has an executor before it runs"
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def set_default_executor(self, executor: Any) -> None:
        """Take the executor of functions that name none."""
        self._executor = executor

    # --- Signals ---

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        self._signals[int(sig)] = callback, args

    def signal(self, number: int) -> None:
        """Give the process a signal; without a handler it ends."""
        if number in self._signals:
            callback, args = self._signals[number]
            self.call_soon(callback, *args)
        else:
            self._process.kill()

    # --- Sockets ---

    @property
    def _network(self) -> Any:
        return self._process.machine.network

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name.
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolve a name as the network of the world does. Raises socket.gaierror."""
        found: list[Any] = self._network.infos(host, port, family, type, proto, flags)
        return found

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        self._readers[fd] = asyncio.Handle(callback, args, self, None)
        if fd.is_readable:
            self.wake()

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect over the simulated network."""
        _refuse(options)
        assert host is not None, "a connection has a target"
        assert port is not None, "a connection has a port"
        made: tuple[asyncio.Transport, asyncio.BaseProtocol] = await self._network.connect(
            self._process, protocol_factory, host, port
        )
        return made

    async def connect_accepted_socket(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: Any,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Give an accepted socket to a protocol."""
        _refuse(options)
        protocol = protocol_factory()
        transport = self._network.attach(self._process, sock, protocol)
        await asyncio.sleep(0)
        return transport, protocol

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        backlog: int = 100,
        **options: Any,
    ) -> Any:
        """Listen over the simulated network."""
        _refuse(options)
        if not isinstance(host, str) or port is None:
            raise NotImplementedError(f"to listen at {host} {port} is not simulated")
        return self._network.serve(self._process, protocol_factory, host, port, backlog)


def _refuse(options: Mapping[str, object]) -> None:
    """Raise for an option that is given: TLS, a socket, a family, a local address."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise NotImplementedError(f"{', '.join(given)} of an event loop is not simulated")
