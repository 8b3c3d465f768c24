"""A channel of a client: one address, the connection to it, and when the next one is tried.

Owns the states of a channel, as the policy `pick_first` of gRPC has them: IDLE until a call comes,
READY until the connection is lost, and after a failed attempt TRANSIENT_FAILURE until one succeeds.
Takes the place of `cygrpc.AioChannel`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from grpc._cython import cygrpc

from simulation.kernel.process import Process
from simulation.rpc import statuses
from simulation.rpc.call import ClientCall
from simulation.rpc.connection import ClientConnection
from simulation.rpc.options import Options
from simulation.rpc.statuses import Status

IDLE, CONNECTING, READY, TRANSIENT_FAILURE, SHUTDOWN = range(5)
"""States of a channel, with the numbers of gRPC."""
BACKOFF_FACTOR: Final = 1.6
BACKOFF_JITTER: Final = 0.2


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
            left_s = deadline - self.process.machine.clock.unix_ns() / 1_000_000_000
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
