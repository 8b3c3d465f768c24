"""The server of a node: it runs a method for each connection.

Owns the listening port, the way from a method to its status, and the stop. The handlers are those
of the table in `node/services/methods.py`, behind the gate and the bounds of `node/services`: each
takes its requests as a stream.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NamedTuple, NoReturn

import grpc.aio
from grpc import GenericRpcHandler, StatusCode

from simulation.kernel.process import Process
from simulation.network.sockets import SimulatedSocket, Sockets
from simulation.network.transport import SimulatedTransport
from simulation.rpc.call_end import OPEN, STATUS, CallEnd, CallOverError

BACKLOG: Final = 1_024
_log = logging.getLogger("simulation.rpc")


class CallDetails(NamedTuple):
    """What selects a handler: the interface of `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[()] = ()


class ServedCall(CallEnd):
    """One call at the server, and the context that its method gets."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.process)
        self.task: asyncio.Task[None] | None = None
        self._server, self._peer = server, ""
        self._metadata: tuple[tuple[str, bytes], ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    # --- As grpc.aio.ServicerContext ---

    def peer(self) -> str:
        """Return the address of the client, as gRPC writes it."""
        return self._peer

    async def read(self) -> Any:
        """Return the next request, or EOF."""
        message = await self.next_message()
        return grpc.aio.EOF if message is None else message

    def set_trailing_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None:
        """Have the status carry these pairs."""
        self._metadata = metadata

    async def abort(self, code: StatusCode, details: str) -> NoReturn:
        """End the call with an error. Raises AbortError."""
        self._end(code, details)
        raise grpc.aio.AbortError("Locally aborted.")

    # --- The connection ---

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        host, port = transport.get_extra_info("peername")
        self._peer = f"ipv4:{host}:{port}"
        self._server.calls[self._peer] = self

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind == OPEN:
            method, timeout_s = ast.literal_eval(payload.decode())
            loop = self.process.loop
            self.task = loop.create_task(self._serve(method))
            if timeout_s is not None:
                late = (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
                self._timer = loop.call_later(timeout_s, self.cancel, *late)
        super().on_frame(kind, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.calls.pop(self._peer, None)  # Not there if it was lost at once.
        self.finish()
        self.cancel(StatusCode.CANCELLED, "the client is gone")

    def cancel(self, code: StatusCode, details: str) -> None:
        """End the call and its method from outside."""
        self._end(code, details)
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()

    def _end(self, code: StatusCode, details: str) -> None:
        """Send the status, unless the call has ended; then the client ends the connection."""
        if not self.is_over:
            self.send(STATUS, repr((code.name, details, self._metadata)).encode())
            self.finish()

    # --- The method ---

    async def _serve(self, method: str) -> None:
        try:
            await self._run(method)
        except (grpc.aio.AbortError, CallOverError):
            """The client has a status, or is gone."""
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            _log.exception("Unexpected [%s] raised by [%s]", type(error).__name__, method)
            self._end(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _run(self, method: str) -> None:
        handler, requests = self._server.handler_of(method), self._requests()
        if handler is None:
            self._end(StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        if not handler.response_streaming:
            await self.write(await handler.stream_unary(requests, self))
        elif inspect.isasyncgenfunction(handler.stream_stream):
            async for answer in handler.stream_stream(requests, self):
                await self.write(answer)
        else:
            await handler.stream_stream(requests, self)
        self._end(StatusCode.OK, "")

    async def _requests(self) -> AsyncIterator[bytes]:
        while (message := await self.next_message()) is not None:
            yield message


class Server:
    """The server of one process, with the names of that of `grpc.aio`."""

    def __init__(self, process: Process) -> None:
        self.process: Final = process
        self.calls: Final[dict[str, ServedCall]] = {}
        """Open connections, by the client's address."""
        self._handlers: list[GenericRpcHandler] = []
        self._listeners: list[SimulatedSocket] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[GenericRpcHandler]) -> None:
        """Let handlers answer, after those before."""
        self._handlers += handlers

    def handler_of(self, method: str) -> Any:
        """Return the handler of a method; None: there is none."""
        details: Any = CallDetails(method)
        handlers = (handler.service(details) for handler in self._handlers)
        return next((handler for handler in handlers if handler is not None), None)

    def add_insecure_port(self, address: str) -> int:
        """Listen at an address; return the port. Raises RuntimeError if it cannot be had."""
        host, _, port = address.rpartition(":")
        try:
            at = (self.process.machine.network.resolve(host), int(port))
            listener = Sockets(self.process.hub).create_server(at, backlog=BACKLOG)
        except OSError as error:
            raise RuntimeError(f"cannot listen on {address}: {error}") from error
        self._listeners.append(listener)
        return listener.address[1]

    async def start(self) -> None:
        """Accept connections."""
        for listener in self._listeners:
            self.process.loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: SimulatedSocket) -> None:
        while listener.is_readable:
            accepted, _ = listener.accept()
            SimulatedTransport(self.process, accepted, ServedCall(self))

    async def stop(self, grace_s: float) -> None:
        """Take no new call; end those that run after `grace_s` at the latest."""
        for listener in self._listeners:
            self.process.loop.remove_reader(listener)
            listener.close()
        await self._wait(grace_s)
        for call in list(self.calls.values()):
            call.cancel(StatusCode.UNAVAILABLE, "Cancelling all calls")
        await self._wait(None)
        for call in list(self.calls.values()):
            call.transport.close()

    async def _wait(self, limit_s: float | None) -> None:
        tasks = [call.task for call in self.calls.values() if call.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)
