"""A channel of a client: one address, the connection to it, and the calls that it makes.

Owns the states of a channel, as the policy `pick_first` of gRPC has them: IDLE until a call comes,
READY until the connection is lost, and after a failed attempt TRANSIENT_FAILURE until one succeeds.
Takes the place of `cygrpc.AioChannel`.

Owns each call: its request, its deadline, its answers and its status, and when it counts as begun
and as done. Takes the place of `cygrpc._AioCall`; the classes of `grpc.aio` stand above both. Must
not know what a method does.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from grpc._cython import cygrpc

from simulation.kernel.process import Process
from simulation.rpc import frames, statuses
from simulation.rpc.connection import ClientConnection, Stream
from simulation.rpc.options import Options, is_above
from simulation.rpc.statuses import Status

IDLE, CONNECTING, READY, TRANSIENT_FAILURE, SHUTDOWN = range(5)
"""States of a channel, with the numbers of gRPC."""
BACKOFF_FACTOR: Final = 1.6
BACKOFF_JITTER: Final = 0.2
_NS_PER_S: Final = 1_000_000_000


class SimulatedChannel:
    """The channel below `grpc.aio.Channel`."""

    def __init__(
        self, process: Process, target: bytes, options: Iterable[Any], credentials: Any
    ) -> None:
        if credentials is not None:
            raise NotImplementedError("TLS is not simulated")
        self.process: Final = process
        self.options: Final = Options(options)
        self._target = target.decode()
        self._state = IDLE
        self._failure: Status | None = None
        """The end of calls while it is in TRANSIENT_FAILURE."""
        self._connection: ClientConnection | None = None
        self._all: dict[ClientConnection, None] = {}
        """All connections that are open: a server that goes away still answers on its own."""
        self._waiting: deque[ClientCall] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._is_closing = False

    # --- As cygrpc.AioChannel ---

    def target(self) -> bytes:
        """Return the address."""
        return self._target.encode()

    def check_connectivity_state(self, try_to_connect: bool) -> int:
        """Return the state; leave IDLE in a moment if wanted."""
        if try_to_connect and self._state == IDLE:
            self.process.loop.call_soon(self._connect)
        return self._state

    async def watch_connectivity_state(self, last_observed_state: int, deadline: Any) -> bool:
        """Wait for another state. Raises UsageError if the channel is closed."""
        assert deadline is None, "a watch has no time limit"
        if self._state == SHUTDOWN:
            raise cygrpc.UsageError("Channel is closed.")
        while self._state == last_observed_state:
            watcher: asyncio.Future[None] = self.process.loop.create_future()
            self._watchers.append(watcher)
            await watcher
        return True

    def closing(self) -> None:
        """Take no new call."""
        self._is_closing = True

    def close(self) -> None:
        """End all connections."""
        if self._state == SHUTDOWN:
            return
        self._is_closing = True
        self._set_state(SHUTDOWN)
        if not self.process.is_alive:  # Its objects are dropped, and nothing of it runs.
            return
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._all):
            connection.transport.close()
        self._fail_waiting(Status(statuses.CANCELLED, "Channel closed!"), also_patient=True)

    def closed(self) -> bool:
        """Whether it was closed."""
        return self._state == SHUTDOWN

    def get_registered_call_handle(self, method: bytes) -> int:
        """Return 0: no method is registered."""
        return 0

    def call(
        self, method: bytes, deadline: float | None, credentials: Any, wait_for_ready: Any, _: int
    ) -> ClientCall:
        """Return a new call. Raises UsageError if the channel is closed."""
        if self._state == SHUTDOWN:
            raise cygrpc.UsageError("Channel is closed.")
        if self._is_closing:
            raise cygrpc.UsageError("Channel is closing.")
        if credentials is not None:
            raise NotImplementedError("credentials of calls are not simulated")
        left_s = None
        if deadline is not None:
            left_s = deadline - self.process.machine.clock.unix_ns() / _NS_PER_S
        return ClientCall(self, method.decode(), left_s, bool(wait_for_ready))

    # --- Calls ---

    def start(self, call: ClientCall) -> None:
        """Put a call on the connection, let it wait for one, or fail it."""
        if self._state == SHUTDOWN:
            call.finish(Status(statuses.CANCELLED, "Channel closed!"))
        elif self._connection is not None and self._connection.has_room:
            call.begin(self._connection)
        elif self._failure is not None and not call.is_patient:
            call.finish(self._failure)
        else:
            self._waiting.append(call)
            self._connect()

    def forget(self, call: ClientCall) -> None:
        """Remove a call that ended before it was on a connection."""
        if call in self._waiting:
            self._waiting.remove(call)

    def _fail_waiting(self, status: Status, *, also_patient: bool = False) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if call.is_patient and not also_patient:
                self._waiting.append(call)
            else:
                call.finish(status)

    # --- The connection ---

    def _connect(self) -> None:
        if self._state == IDLE:
            self._set_state(CONNECTING)
            self._connecting = self.process.loop.create_task(self._keep_trying())

    async def _keep_trying(self) -> None:
        """Connect, with a pause after each failure that grows up to a limit."""
        loop, random = self.process.loop, self.process.random
        backoff_s = self.options.seconds("initial_reconnect_backoff_ms")
        backoff_s_max = self.options.seconds("max_reconnect_backoff_ms")
        while True:
            begun_s = loop.time()
            failure = await self._attempt()
            if failure is None:
                return
            self._failure = Status(statuses.UNAVAILABLE, failure)
            self._set_state(TRANSIENT_FAILURE)
            self._fail_waiting(self._failure)
            jitter = 1 + random.uniform(-BACKOFF_JITTER, BACKOFF_JITTER)
            pause_s = begun_s + min(backoff_s, backoff_s_max) * jitter - loop.time()
            backoff_s *= BACKOFF_FACTOR
            await asyncio.sleep(max(0.0, pause_s))

    async def _attempt(self) -> str | None:
        """Connect once; return why it failed, None if it did not."""
        host, _, port = self._target.rpartition(":")
        loop, network = self.process.loop, self.process.machine.network
        connection = ClientConnection(self.process, self.options, self._changed)
        try:
            address = network.resolve(host.removeprefix("[").removesuffix("]"))
        except socket.gaierror:
            return statuses.not_resolved(self._target)
        where = f"ipv4:{address}:{port}"
        try:
            async with asyncio.timeout(self.options.seconds("min_reconnect_backoff_ms")):
                await loop.create_connection(lambda: connection, address, int(port))
                await connection.ready
        except TimeoutError:
            timed_out = statuses.CONNECT_TIMED_OUT
            if connection.transport is not None:
                connection.transport.abort()
                timed_out = statuses.NO_SETTINGS
            return statuses.not_connected(f"UNKNOWN: {where}: {timed_out}")
        except OSError as error:
            if connection.transport is not None:
                what = f"UNAVAILABLE: {where}: {statuses.reason(error)}"
            else:
                reason = statuses.connect_reason(error)
                what = f"UNKNOWN: {where}: Failed to connect to remote host: {reason}"
            return statuses.not_connected(what)
        self._connection, self._failure = connection, None
        self._all[connection] = None
        self._set_state(READY)
        self._changed(connection)
        return None

    def _changed(self, connection: ClientConnection) -> None:
        """Look at a connection again: begin calls that wait, or give it up."""
        if connection.is_lost:
            self._all.pop(connection, None)
        if connection is not self._connection or self._state != READY:
            return
        if connection.is_lost or connection.is_draining:
            self._connection = None
            self._set_state(IDLE)
            if self._waiting:
                self._connect()
        else:
            while self._waiting and connection.has_room:
                self._waiting.popleft().begin(connection)

    def _set_state(self, state: int) -> None:
        if state != self._state and self._state != SHUTDOWN:
            self._state = state
            watchers, self._watchers = self._watchers, []
            for one in watchers:
                if not one.done() and self.process.is_alive:
                    one.set_result(None)


class ClientCall:
    """The call below `grpc.aio.Call`."""

    def __init__(
        self, channel: SimulatedChannel, method: str, left_s: float | None, is_patient: bool
    ) -> None:
        """`left_s`: the time until its deadline. `is_patient`: it waits for a ready channel."""
        self.is_patient: Final = is_patient
        self._channel = channel
        self._loop = channel.process.loop
        self._method, self._left_s = method, left_s
        self._deadline_s = None if left_s is None else self._loop.time() + left_s
        self._metadata: frames.Metadata = ()
        self._request: bytes | None = None
        """The only request; None: it streams requests."""
        self._reads_one = False
        self._stream: Stream | None = None
        self._response: bytes | None = None
        self._initial_metadata: frames.Metadata | None = None
        self._status: Any = None
        self._is_locally_cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._done_callbacks: list[Callable[[], None]] = []

    # --- State, as cygrpc._AioCall ---

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Have a function called at the end, at once if it is over."""
        if self._status is not None:
            callback()
        else:
            self._done_callbacks.append(callback)

    def time_remaining(self) -> float | None:
        """Return the time until its deadline, in s; None: it has none."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._loop.time())

    def done(self) -> bool:
        """Whether it has a status."""
        return self._status is not None

    def cancelled(self) -> bool:
        """Whether it was cancelled, by whomever."""
        return self._status is not None and self._status.code() == statuses.CANCELLED

    def is_ok(self) -> bool:
        """Whether it ended well."""
        return self._status is not None and self._status.code() == statuses.OK

    def is_locally_cancelled(self) -> bool:
        """Whether this side has cancelled it."""
        return self._is_locally_cancelled

    async def status(self) -> Any:
        """Return the status, when there is one."""
        while self._status is None:
            await self._change()
        return self._status

    async def initial_metadata(self) -> frames.Metadata:
        """Return the metadata that came first, when they are there or the call is over."""
        while self._initial_metadata is None:
            await self._change()
        return self._initial_metadata

    def cancel(self, details: str) -> None:
        """End it from this side."""
        if not self._channel.process.is_alive:  # It is dropped with the objects of its process.
            return
        self._is_locally_cancelled = True
        stream = self._stream
        self._set_status(cygrpc.AioRpcStatus(statuses.CANCELLED, details, None, None))
        self._leave(stream)

    def set_internal_error(self, error_str: str) -> None:
        """Take a failure that the classes above have met."""
        details = "Internal error from Core"
        self._set_status(cygrpc.AioRpcStatus(statuses.INTERNAL, details, (), error_str))

    # --- The four kinds, as cygrpc._AioCall ---

    async def unary_unary(
        self, request: bytes, metadata: frames.Metadata, _context: object
    ) -> bytes | None:
        """Send a request and return the response; None: it failed."""
        self._start(metadata, request, reads_one=True)
        await self.status()
        return self._response

    async def initiate_unary_stream(
        self, request: bytes, metadata: frames.Metadata, _context: object
    ) -> None:
        """Send a request, and wait until the server answers in whatever way."""
        self._start(metadata, request)
        await self.initial_metadata()

    async def stream_unary(
        self, metadata: frames.Metadata, on_begun: Callable[[], None], _context: object
    ) -> bytes | None:
        """Begin, call `on_begun`, and return the response; None: it failed."""
        self._start(metadata, None, reads_one=True)
        await self._begun()
        on_begun()
        await self.status()
        return self._response

    async def initiate_stream_stream(
        self, metadata: frames.Metadata, on_begun: Callable[[], None], _context: object
    ) -> None:
        """Begin, call `on_begun`, and wait until the server answers in whatever way."""
        self._start(metadata, None)
        await self._begun()
        on_begun()
        await self.initial_metadata()

    async def receive_serialized_message(self) -> Any:
        """Return the next response, or EOF."""
        message = None if self._stream is None else await self._stream.read()
        return cygrpc.EOF if message is None else message

    async def send_serialized_message(self, message: bytes) -> None:
        """Send a request. Raises ExecuteBatchError if the call ends meanwhile."""
        if self._stream is None or self._is_too_large(message):
            raise cygrpc.ExecuteBatchError('Failed "execute_batch": the call is over')
        await self._stream.write(message)

    async def send_receive_close(self) -> None:
        """Send that no request follows."""
        await asyncio.sleep(0)
        if self._stream is not None:
            self._stream.send(frames.HALF_CLOSE)

    # --- Beginning ---

    def _start(
        self, metadata: frames.Metadata, request: bytes | None, *, reads_one: bool = False
    ) -> None:
        self._metadata, self._request, self._reads_one = metadata, request, reads_one
        if self._status is not None:
            return
        if self._left_s is not None:
            if self._left_s <= 0:
                self.finish(Status(statuses.DEADLINE_EXCEEDED, statuses.DEADLINE))
                return
            self._timer = self._loop.call_later(self._left_s, self._expire)
        if request is None or not self._is_too_large(request):
            self._channel.start(self)

    def begin(self, connection: ClientConnection) -> None:
        """Go onto a connection."""
        left_s = self.time_remaining()
        timeout_ns = None if left_s is None else int(left_s * _NS_PER_S)
        self._stream = stream = connection.open(self)
        stream.reads_one = self._reads_one
        number, request = stream.number, self._request
        opening = frames.pack_call(self._method, timeout_ns, self._metadata)
        data = frames.frame(frames.CALL, number, opening)
        if request is not None:
            data += frames.frame(frames.MESSAGE, number, request)
            data += frames.frame(frames.HALF_CLOSE, number)
            self._request = None
        connection.send(data)
        self._wake()

    async def _begun(self) -> None:
        while self._stream is None and self._status is None:
            await self._change()

    def _is_too_large(self, message: bytes) -> bool:
        """Fail the call if a request is above the limit of this side."""
        size_bytes_max = self._channel.options.send_size_bytes_max()
        if not is_above(len(message), size_bytes_max):
            return False
        text = statuses.too_large("CLIENT", "Sent", len(message), size_bytes_max)
        stream = self._stream
        self.finish(Status(statuses.RESOURCE_EXHAUSTED, text))
        self._leave(stream)
        return True

    # --- Ending ---

    def _expire(self) -> None:
        if self._status is None:
            stream = self._stream
            status = Status(statuses.DEADLINE_EXCEEDED, statuses.DEADLINE)
            if stream is not None:
                status = statuses.removed(statuses.DEADLINE_EXCEEDED, statuses.DEADLINE)
            self.finish(status)
            self._leave(stream)

    def _leave(self, stream: Stream | None) -> None:
        """Tell the server, or the channel, that this call is over."""
        if stream is not None:
            stream.close(frames.RESET)
        else:
            self._channel.forget(self)

    def finish(self, status: Status) -> None:
        """Take the final status, unless there is one."""
        if self._status is None:
            self._set_status(status.of_client())

    def on_headers(self, metadata: frames.Metadata) -> None:
        """Take the initial metadata of the server."""
        if self._initial_metadata is None:
            self._initial_metadata = metadata
            self._wake()

    def on_end(self, status: Status | None) -> None:
        """Take the end from the server or the connection."""
        assert status is not None, "a client's call ends with a status"
        assert self._stream is not None, "a call that has not begun gets no end"
        if self._reads_one and self._stream.messages:
            self._response = self._stream.messages.popleft()
        self.finish(status)

    def _set_status(self, status: Any) -> None:
        self._status = status
        if self._timer is not None:
            self._timer.cancel()
        if self._initial_metadata is None:
            self._initial_metadata = ()
        self._wake()
        callbacks, self._done_callbacks = self._done_callbacks, []
        for callback in callbacks:
            callback()

    # --- Waiting ---

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for one in waiters:
            if not one.done():
                one.set_result(None)
