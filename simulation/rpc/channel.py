"""The channel of a client: it dials a connection for each call.

Owns how a call begins and ends. A call without a connection was not sent; one whose connection ends
without a status has an unknown outcome. The SDK tells these apart by words of gRPC's texts.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final, NamedTuple

import grpc.aio
from grpc import StatusCode

from simulation.kernel.process import Process
from simulation.rpc.call_end import HALF_CLOSE, MESSAGE, OPEN, STATUS, CallEnd

CONNECT_S: Final = 2.0


class Status(NamedTuple):
    """The end of a call."""

    code: StatusCode
    details: str
    metadata: tuple[tuple[str, bytes], ...] = ()


LATE: Final = Status(StatusCode.DEADLINE_EXCEEDED, "Stream removed (Deadline Exceeded)")
CANCELLED: Final = Status(StatusCode.CANCELLED, "Locally cancelled by application!")


class Call(CallEnd):
    """One call, with the names of the calls of `grpc.aio`."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        timeout_s: float | None,
        request: bytes | None,
        parse: Callable[[bytes], Any],
    ) -> None:
        """Begin the call; `request` is its only one, None: `write` sends them."""
        super().__init__(channel.process)
        self._channel, self._opening, self._request = channel, repr((method, timeout_s)), request
        self._parse = parse
        loop = self.process.loop
        self._status: asyncio.Future[Status] = loop.create_future()
        self._connecting = loop.create_task(self._connect())
        if timeout_s is not None:
            timer = loop.call_later(timeout_s, self._end, LATE)
            self._status.add_done_callback(lambda _: timer.cancel())

    # --- As in grpc.aio ---

    async def write(self, message: bytes) -> None:
        """Send a request. Raises CallOverError."""
        try:
            await super().write(message)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def read(self) -> Any:
        """Return the next answer, or EOF. Raises AioRpcError, or CancelledError after `cancel`."""
        try:
            message = await self.next_message()
            if message is not None:
                return self._parse(message)
            status = await self._status
        except asyncio.CancelledError:
            self.cancel()
            raise
        if status is CANCELLED:
            raise asyncio.CancelledError
        if status.code is not StatusCode.OK:
            metadata = grpc.aio.Metadata(*status.metadata)
            raise grpc.aio.AioRpcError(status.code, metadata, metadata, status.details)
        return grpc.aio.EOF

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while (answer := await self.read()) is not grpc.aio.EOF:
                yield answer
        finally:
            self.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        return self.read().__await__()

    def cancel(self) -> None:
        """End the call, unless it has ended."""
        self._end(CANCELLED)

    async def code(self) -> StatusCode:
        """Wait for the end; return its code."""
        return (await self._status).code

    async def details(self) -> str:
        """Wait for the end; return its text."""
        return (await self._status).details

    # --- The connection ---

    async def _connect(self) -> None:
        host, _, port = self._channel.target.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.process.loop.create_connection(lambda: self, host, int(port))
        except OSError as error:  # TimeoutError is one, too.
            # A time-out in the moment of the connection comes after the request was sent.
            became = "failed to connect" if self.transport is None else "Stream removed"
            text = f"{became} ({self._channel.target}: {error!r})"
            self._end(Status(StatusCode.UNAVAILABLE, text))

    def connection_made(self, transport: Any) -> None:
        if self._status.done():
            transport.abort()
            return
        super().connection_made(transport)
        self.send(OPEN, self._opening.encode())
        if self._request is not None:
            self.send(MESSAGE, self._request)
            self.send(HALF_CLOSE)

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind == STATUS:
            code, details, metadata = ast.literal_eval(payload.decode())
            self._end(Status(StatusCode[code], details, metadata), drops_messages=False)
        super().on_frame(kind, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end(Status(StatusCode.UNAVAILABLE, f"Stream removed ({exc!r})"))

    def _end(self, status: Status, *, drops_messages: bool = True) -> None:
        if self._status.done():
            return
        self._status.set_result(status)
        self._connecting.cancel()
        self.finish(drops_messages=drops_messages)
        self._channel.calls.pop(self)
        if self.transport is not None:
            self.transport.abort()


class Channel:
    """The calls of a process to one address, with the names of the channels of `grpc.aio`."""

    def __init__(self, process: Process, target: str) -> None:
        self.process: Final = process
        self.target: Final = target
        self.calls: Final[dict[Call, None]] = {}
        """Calls under way, oldest first."""
        self._is_closed = False

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any
    ) -> Callable[..., Call]:
        """Return a function that begins a call with one request."""

        def begin(request: Any, *, timeout: float | None = None) -> Call:
            return self._begin(method, timeout, request_serializer(request), response_deserializer)

        return begin

    unary_stream = unary_unary

    def stream_stream(
        self, method: str, request_serializer: None, response_deserializer: Any
    ) -> Callable[..., Call]:
        """Return a function that begins a call whose requests are written, as bytes."""

        def begin(*, wait_for_ready: bool, metadata: None = None) -> Call:
            assert not wait_for_ready, "a call does not wait for a server"
            assert metadata is None, "no caller of the world is a user"
            return self._begin(method, None, None, response_deserializer)

        return begin

    def _begin(self, *details: Any) -> Call:
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        call = Call(self, *details)
        self.calls[call] = None
        return call

    async def close(self) -> None:
        """Cancel all calls, and begin no more."""
        self._is_closed = True
        for call in list(self.calls):
            call.cancel()
