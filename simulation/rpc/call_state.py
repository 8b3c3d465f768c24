"""One call at a server: what arrived with it, what the method has set, and whether it is over.

Owns the state that the context, the handling and the server share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from simulation.rpc import frames, statuses
from simulation.rpc.connection import Connection, Stream
from simulation.rpc.statuses import Status


class ServerStoppedError(Exception):
    """The server stopped while a method ran."""


class ServedCall:
    """One call that a server got."""

    def __init__(
        self, connection: Connection, number: int, opening: bytes, is_stopped: Callable[[], bool]
    ) -> None:
        self.method, timeout_ns, self.metadata = frames.unpack_call(opening)
        connection.options.check_metadata(self.metadata)
        self.stream: Final = Stream(connection, number, self)
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing_metadata: frames.Metadata = ()
        self.abort_error: Any = None
        self.has_sent_headers = False
        self.is_status_sent = False
        self.is_client_gone = False
        self.task: asyncio.Task[None] | None = None
        self.callbacks: list[Callable[[], None]] = []
        self._loop = connection.process.loop
        self._is_stopped = is_stopped
        self._over: asyncio.Future[None] | None = None
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout_ns is not None:
            timeout_s = timeout_ns / 1_000_000_000
            self._deadline_s = self._loop.time() + timeout_s
            self._timer = self._loop.call_later(timeout_s, self._expire)

    # --- Answering ---

    def headers(self, metadata: frames.Metadata = ()) -> bytes:
        """Return the frame of initial metadata, once; then nothing."""
        if self.has_sent_headers:
            return b""
        self.has_sent_headers = True
        payload = frames.pack_headers(metadata)
        return frames.frame(frames.HEADERS, self.stream.number, payload)

    def end(self, code: int, details: str, *, response: bytes | None = None) -> None:
        """Send the status, after a last response if there is one."""
        self.is_status_sent = True
        before = self.headers()
        if response is not None:
            before += frames.frame(frames.MESSAGE, self.stream.number, response)
        payload = frames.pack_status(code, details, self.trailing_metadata)
        self.stream.close(frames.STATUS, payload, before=before)
        self._stop_timer()

    def raise_for_termination(self) -> None:
        """Raise if the method has nothing to do any more."""
        if self.abort_error is not None:
            raise self.abort_error
        if self.is_status_sent:
            raise cygrpc.UsageError("RPC already finished.")
        if self._is_stopped():
            raise ServerStoppedError("Server already stopped.")

    def time_remaining(self) -> float | None:
        """Return the time until the deadline of the client, in s; None: there is none."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._loop.time())

    async def wait_until_over(self) -> None:
        """Wait until the call has ended in whatever way."""
        if not self.stream.is_over:
            self._over = self._loop.create_future()
            await self._over

    # --- The end from elsewhere ---

    def on_headers(self, metadata: frames.Metadata) -> None:
        """A client sends none after it has opened the call."""
        raise frames.FrameError("headers from a client")

    def on_end(self, status: Status | None) -> None:
        """Learn that the client has cancelled the call, or is gone."""
        self.is_client_gone = True
        self._stop_timer()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        task = self.task
        if task is not None and not task.done() and not self.is_status_sent:
            # A method that waits for a request mostly sees the end of the requests before this.
            self._loop.call_soon(self._cancel)

    def cancel(self, code: int, details: str) -> None:
        """End the call as gRPC does at a deadline, or when the server stops."""
        if not self.stream.is_over:
            payload = frames.pack_status(code, details, ())
            self.stream.close(frames.STATUS, payload)
        self.on_end(None)

    def _cancel(self) -> None:
        if self.task is not None and not self.task.done() and not self.is_status_sent:
            self.task.cancel()

    def _expire(self) -> None:
        self.cancel(statuses.DEADLINE_EXCEEDED, statuses.DEADLINE)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
