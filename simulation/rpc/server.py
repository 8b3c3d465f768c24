"""A server: its ports, its connections, the calls that run, and its stop.

Owns the limits of connections and calls, and what clients hear when it stops. Takes the place of
`cygrpc.AioServer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from simulation.kernel.process import Process
from simulation.network.links import Links
from simulation.network.sockets import SimulatedSocket, Sockets
from simulation.network.transport import attach
from simulation.rpc import frames, statuses
from simulation.rpc.call_state import ServedCall
from simulation.rpc.connection import Connection
from simulation.rpc.handling import serve
from simulation.rpc.options import Options

BACKLOG: Final = 4_096
_READY, _RUNNING, _STOPPING, _STOPPED = range(4)


class ServerConnection(Connection):
    """The end that gets calls."""

    side = "SERVER"

    def __init__(self, server: SimulatedServer) -> None:
        super().__init__(server.process, server.options)
        self.is_draining = False
        self._server = server
        self._is_begun = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        handshake_s = self.options.seconds("server_handshake_timeout_ms")
        self.process.loop.call_later(handshake_s, self._check_begun)

    def _check_begun(self) -> None:
        if not self._is_begun:
            self.transport.abort()

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if not self._is_begun:
            if kind != frames.PREFACE:
                raise frames.FrameError("no preface")
            self._is_begun = True
            count_max = min(self.options.of("max_concurrent_streams"), (1 << 32) - 1)
            self.send(frames.frame(frames.SETTINGS, 0, frames.COUNT.pack(count_max)))
        elif kind == frames.CALL:
            self._server.on_call(self, number, payload)
        elif kind != frames.PONG:
            raise frames.FrameError(f"kind {kind} from a client")

    def on_lost(self, error: Exception | None) -> None:
        self._server.connections.pop(self, None)

    def on_forgotten(self) -> None:
        if self.is_draining and not self.streams and not self.is_lost:
            self.transport.close()

    def on_looked(self) -> None:
        idle_s = self.process.loop.time() - self.idle_since_s
        if not self.streams and idle_s >= self.options.seconds("max_connection_idle_ms"):
            self.go_away("")

    def go_away(self, why: str) -> None:
        """Tell the client to make its calls elsewhere; with a reason, its open ones fail."""
        self.is_draining = True
        self.send(frames.frame(frames.GOAWAY, 0, why.encode()))
        self.on_forgotten()


class SimulatedServer:
    """The server below `grpc.aio.Server`."""

    def __init__(
        self,
        process: Process,
        handlers: Iterable[grpc.GenericRpcHandler],
        interceptors: Sequence[Any],
        options: Iterable[Any],
        call_count_max: int | None,
    ) -> None:
        if interceptors:
            raise NotImplementedError("interceptors of servers are not simulated")
        if call_count_max is not None and call_count_max <= 0:
            raise ValueError("maximum_concurrent_rpcs should be a positive integer")
        self.process: Final = process
        self.options: Final = Options(options)
        self.connections: Final[dict[ServerConnection, None]] = {}
        self.ports: Final[set[int]] = set()
        self._handlers: list[grpc.GenericRpcHandler] = list(handlers)
        self._call_count_max = call_count_max
        self._listeners: list[SimulatedSocket] = []
        self._calls: dict[ServedCall, None] = {}
        """Calls whose method runs."""
        self._counted: set[ServedCall] = set()
        self._state = _READY
        self._is_over: asyncio.Future[None] = process.loop.create_future()

    # --- As cygrpc.AioServer ---

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Let handlers answer, after those before."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, _handlers: object) -> None:
        """Methods are found by their generic handlers."""
        raise NotImplementedError("registered methods are not simulated")

    def add_insecure_port(self, address: bytes) -> int:
        """Listen at an address; return the port, 0 if it cannot be had."""
        host, _, port = address.decode().rpartition(":")
        name = host.removeprefix("[").removesuffix("]")
        network: Links = self.process.machine.network
        try:
            at = (network.resolve("0.0.0.0" if name == "::" else name), int(port))
            listener = Sockets(self.process.hub).create_server(at, backlog=BACKLOG)
        except OSError:
            return 0
        self._listeners.append(listener)
        self.ports.add(listener.address[1])
        return listener.address[1]

    def add_secure_port(self, address: bytes, credentials: Any) -> int:
        """TLS is not simulated."""
        raise NotImplementedError("TLS is not simulated")

    async def start(self) -> None:
        """Accept connections and serve calls."""
        if self._state == _RUNNING:
            return
        if self._state != _READY:
            raise cygrpc.UsageError("Server not in ready state")
        self._state = _RUNNING
        for listener in self._listeners:
            self.process.loop.add_reader(listener, self._accept, listener)
        await asyncio.sleep(0)

    async def shutdown(self, grace: float | None) -> None:
        """Take no new call; end those that run after `grace` s, at once if it is None."""
        if self._state in (_READY, _STOPPED):
            return
        await asyncio.sleep(0)  # No stop is over at once.
        if self._state == _RUNNING:
            self._state = _STOPPING
            self._drain()
        if grace is not None:
            await asyncio.wait([self._is_over], timeout=grace)
        if not self._is_over.done():
            for connection in list(self.connections):
                connection.go_away(statuses.CANCELLING_ALL)
            for call in list(self._calls):
                call.cancel(statuses.UNAVAILABLE, statuses.CANCELLING_ALL)
            await asyncio.wait([self._is_over])
        if self._state != _STOPPED:
            self._state = _STOPPED
            for connection in list(self.connections):
                connection.transport.close()

    async def wait_for_termination(
        self,
        timeout: float | None,  # noqa: ASYNC109 - grpcio's name.
    ) -> bool:
        """Wait for the stop; return whether the time was over first."""
        done, _ = await asyncio.wait([self._is_over], timeout=timeout)
        return not done

    def is_running(self) -> bool:
        """Whether it serves. Not in a process that has ended: nothing of it is to be stopped."""
        return self._state == _RUNNING and self.process.is_alive

    # --- Connections and calls ---

    def _accept(self, listener: SimulatedSocket) -> None:
        while listener.is_readable:
            accepted, _ = listener.accept()
            if len(self.connections) >= self.options.of("max_allowed_incoming_connections"):
                accepted.close()
                continue
            connection = ServerConnection(self)
            self.connections[connection] = None
            connection.transport = attach(self.process, accepted, connection)

    def on_call(self, connection: ServerConnection, number: int, opening: bytes) -> None:
        """Run a call that a client has opened."""
        if self._state != _RUNNING or connection.is_draining:
            text = "Stream removed (GOAWAY received)"  # It was sent before the client knew.
            payload = frames.pack_status(statuses.UNAVAILABLE, text, ())
            connection.send(frames.frame(frames.STATUS, number, payload))
            return
        call = ServedCall(connection, number, opening, lambda: self._state == _STOPPED)
        is_too_many = (
            self._call_count_max is not None and len(self._counted) >= self._call_count_max
        )
        if not is_too_many:
            self._counted.add(call)
        self._calls[call] = None
        call.task = self.process.loop.create_task(
            serve(call, self._handlers, is_too_many=is_too_many)
        )
        call.task.add_done_callback(lambda _: self._ended(call))

    def _ended(self, call: ServedCall) -> None:
        for callback in call.callbacks:
            callback()
        self._counted.discard(call)
        self._calls.pop(call, None)
        self._check_over()

    def _drain(self) -> None:
        for listener in self._listeners:
            self.process.loop.remove_reader(listener)
            listener.close()
        for connection in list(self.connections):
            connection.go_away("")
        self._check_over()

    def _check_over(self) -> None:
        if self._state == _STOPPING and not self._calls and not self._is_over.done():
            self._is_over.set_result(None)
