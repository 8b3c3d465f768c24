"""One call on one connection: its messages in both directions, with flow control, and its end.

Owns what both ends have in common. A sender begins a message while less than a window of bytes is
unread by the receiver; a writer that waits when the call ends fails, as in gRPC. The owner of a
stream, the call of a client or of a server, learns of headers and of the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from grpc._cython import cygrpc

from simulation.rpc import frames, statuses
from simulation.rpc.options import is_above
from simulation.rpc.statuses import Status

if TYPE_CHECKING:
    # A circle of types: a connection makes its streams, which send over it.
    from simulation.rpc.connection import Connection

WINDOW_SIZE_BYTES: Final = 64 * 1024
"""Bytes of a stream that may be unread when another message begins: the window of HTTP/2."""


class StreamOwner(Protocol):
    """The call that a stream belongs to, and that hears of its events."""

    def on_headers(self, metadata: frames.Metadata) -> None:
        """Take the initial metadata of the server."""

    def on_end(self, status: Status | None) -> None:
        """Take the end; None: the client has reset the call, or is gone."""


class Stream:
    """The part of one end in one call."""

    def __init__(self, connection: Connection, number: int, owner: StreamOwner) -> None:
        self.connection: Final = connection
        self.number: Final = number
        self.messages: Final[deque[bytes]] = deque()
        """Messages that have arrived and were not read."""
        self.is_over = False
        self.reads_one = False
        """Whether the owner takes the only message itself, with the status."""
        self._owner = owner
        self._is_read_out = False
        """Whether nothing more arrives."""
        self._status: Status | None = None
        """The end that came; it counts once all messages are read."""
        self._reader: asyncio.Future[bytes | None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._taken_size_bytes = 0
        self._unread_size_bytes = 0
        connection.streams[number] = self

    # --- Sending ---

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame at once."""
        if not self.is_over:
            self.connection.send(frames.frame(kind, self.number, payload))

    async def write(self, message: bytes, *, before: bytes = b"") -> None:
        """Send a message, when there is room for it; frames `before` go first.

        Raises ExecuteBatchError if the call is over, or ends meanwhile."""
        await asyncio.sleep(0)  # As in gRPC, no write is over at once.
        await self._wait_for_room()
        self._unread_size_bytes += len(message)
        self.connection.send(before + frames.frame(frames.MESSAGE, self.number, message))

    async def _wait_for_room(self) -> None:
        while True:
            if self.is_over:
                raise _failed()
            has_window = self._unread_size_bytes < WINDOW_SIZE_BYTES
            if has_window and self.connection.is_writable:
                return
            await self._wait()

    async def _wait(self) -> None:
        waiting = self.connection.process.loop.create_future()
        self._writers.append(waiting)
        await waiting

    def on_room(self) -> None:
        """Let writers look again."""
        writers, self._writers = self._writers, deque()
        for one in writers:
            if not one.done():
                one.set_result(None)

    def close(self, kind: int, payload: bytes = b"", *, before: bytes = b"") -> None:
        """End the call from this side, with a last frame."""
        if not self.is_over:
            self.connection.send(before + frames.frame(kind, self.number, payload))
            self._is_read_out = True
            self.messages.clear()
            self._finish()

    # --- Receiving ---

    async def read(self) -> bytes | None:
        """Return the next message; None: there is none any more."""
        if not self.messages:
            if self._is_read_out:
                return None
            assert self._reader is None or self._reader.done(), "two readers of one call"
            self._reader = self.connection.process.loop.create_future()
            return await self._reader
        await asyncio.sleep(0)
        if not self.messages:  # The connection was lost meanwhile.
            return None
        message = self.messages.popleft()
        self._took(message)
        return message

    def _took(self, message: bytes) -> None:
        self._taken_size_bytes += len(message)
        if self._taken_size_bytes * 2 >= WINDOW_SIZE_BYTES:
            self.send(frames.WINDOW, frames.COUNT.pack(self._taken_size_bytes))
            self._taken_size_bytes = 0
        if not self.messages and self._status is not None:
            self._end(self._status)

    def _hand_over(self, message: bytes | None) -> bool:
        """Give a message to a reader that waits; return whether there is one."""
        reader, self._reader = self._reader, None
        if reader is None or reader.done():
            return False
        reader.set_result(message)
        return True

    # --- From the connection ---

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Take a frame of this call."""
        if kind == frames.MESSAGE:
            self._on_message(payload)
        elif kind == frames.WINDOW:
            self._unread_size_bytes -= frames.COUNT.unpack(payload)[0]
            self.on_room()
        elif kind == frames.HEADERS:
            self._owner.on_headers(frames.unpack_headers(payload))
        elif kind == frames.HALF_CLOSE:
            self._is_read_out = True
            self._hand_over(None)
        elif kind == frames.STATUS:
            self._on_status(Status(*frames.unpack_status(payload)))
        elif kind == frames.RESET:
            self.on_lost(None)
        else:
            raise frames.FrameError(f"kind {kind} within a call")

    def _on_message(self, message: bytes) -> None:
        size_bytes_max = self.connection.options.receive_size_bytes_max()
        if is_above(len(message), size_bytes_max):
            self._refuse(len(message), size_bytes_max)
        elif self._hand_over(message):
            self._took(message)
        else:
            self.messages.append(message)

    def _refuse(self, size_bytes: int, size_bytes_max: int) -> None:
        side = self.connection.side
        text = statuses.too_large(side, "Received", size_bytes, size_bytes_max)
        if side == "SERVER":
            payload = frames.pack_status(statuses.RESOURCE_EXHAUSTED, text, ())
            self.connection.send(frames.frame(frames.STATUS, self.number, payload))
            self.on_lost(None)
        else:
            self.send(frames.RESET)
            self.on_lost(statuses.removed(statuses.RESOURCE_EXHAUSTED, text))

    def _on_status(self, status: Status) -> None:
        self._is_read_out = True
        if self.messages and not self.reads_one:
            self._status = status
        else:
            self._end(status)

    def on_lost(self, status: Status | None) -> None:
        """Take an end that leaves no time to read what has arrived."""
        if self._status is not None:  # The server had ended it before.
            return
        self._is_read_out = True
        self.messages.clear()
        self._end(status)

    def _end(self, status: Status | None) -> None:
        if not self.is_over:
            self._hand_over(None)
            self._owner.on_end(status)
            self._finish()

    def _finish(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._hand_over(None)
        writers, self._writers = self._writers, deque()
        for one in writers:
            if not one.done():
                one.set_exception(_failed())
        self.connection.forget(self)


def _failed() -> Exception:
    error: Exception = cygrpc.ExecuteBatchError('Failed "execute_batch": the call is over')
    return error
