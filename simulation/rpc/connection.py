"""A connection between two processes and the calls on it, as a protocol of asyncio.

Owns the frames of the connection: how it begins, its pings, and its end. A client waits for
SETTINGS before it sends a call, so a process that accepts and does nothing is no server.

Owns the messages of each call in both directions, with flow control, and its end: its stream, which
is uniform at both ends. A sender begins a message while less than a window of bytes is unread by
the receiver; a writer that waits when the call ends fails, as in gRPC. The owner of a stream, the
call of a client or of a server, learns of headers and of the end. Must not know which channel or
server made the connection, nor what a method does.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from grpc._cython import cygrpc

from simulation.kernel.process import Process
from simulation.rpc import frames, statuses
from simulation.rpc.options import Options, is_above
from simulation.rpc.statuses import Status

WINDOW_SIZE_BYTES: Final = 64 * 1024
"""Bytes of a stream that may be unread when another message begins: the window of HTTP/2."""
_NEVER_S: Final = 1_000_000.0


class Connection(asyncio.Protocol):
    """The state and the frames that client and server side share."""

    side: str

    def __init__(self, process: Process, options: Options) -> None:
        self.process: Final = process
        self.options: Final = options
        self.streams: Final[dict[int, Stream]] = {}
        """Calls that are under way, oldest first."""
        self.is_writable = True
        self.is_lost = False
        self.received_size_bytes = self.sent_size_bytes = 0
        self.peer = ""
        """The address of the other side, as gRPC writes it."""
        self.transport: Any = None
        self.idle_since_s = self._last_seen_s = process.loop.time()
        self._is_pinged = False
        self._reader = frames.FrameReader()
        self._keepalive_s = options.seconds("keepalive_time_ms")
        self._timer: asyncio.TimerHandle | None = None
        self._writers: list[asyncio.Future[None]] = []

    # --- asyncio.Protocol ---

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        host, port = transport.get_extra_info("peername")
        self.peer = f"ipv4:{host}:{port}"
        if self._keepalive_s < _NEVER_S:
            self._timer = self.process.loop.call_later(self._keepalive_s, self._look)

    def data_received(self, data: bytes) -> None:
        self.received_size_bytes += len(data)
        self._last_seen_s, self._is_pinged = self.process.loop.time(), False
        try:
            for kind, number, payload in self._reader.feed(data):
                self._take(kind, number, payload)
        except (frames.FrameError, struct.error, TypeError, ValueError):
            self.transport.abort()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._wake_writers()
        for stream in list(self.streams.values()):
            stream.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self.on_lost(exc)
        self._end_calls(statuses.lost(exc))
        self._wake_writers()

    async def wait_until_writable(self) -> None:
        """Wait until the other side takes bytes again, or is gone."""
        waiter: asyncio.Future[None] = self.process.loop.create_future()
        self._writers.append(waiter)
        await waiter

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for one in writers:
            if not one.done():
                one.set_result(None)

    # --- Frames ---

    def send(self, data: bytes) -> None:
        """Send frames."""
        if not self.is_lost:
            self.sent_size_bytes += len(data)
            self.transport.write(data)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            stream.on_frame(kind, payload)
        elif kind == frames.PING:
            self.send(frames.frame(frames.PONG, 0))
        elif number == 0 or kind == frames.CALL:
            self.on_frame(kind, number, payload)
        # Else the call has ended here, and the other side does not know yet.

    def forget(self, stream: Stream) -> None:
        """Remove a call that is over."""
        self.streams.pop(stream.number, None)
        if not self.streams:
            self.idle_since_s = self.process.loop.time()
        self.on_forgotten()

    def _end_calls(self, status: Status) -> None:
        for stream in list(self.streams.values()):
            stream.on_lost(status if self.side == "CLIENT" else None)

    # --- Silence ---

    def _look(self) -> None:
        """Ask the other side whether it is there, and close the connection if it is not."""
        silent_s = self.process.loop.time() - self._last_seen_s
        wait_s = self._keepalive_s
        if silent_s < self._keepalive_s:
            wait_s -= silent_s
        elif self._is_pinged:
            self.transport.abort()
            return
        else:
            self._is_pinged = True
            self.send(frames.frame(frames.PING, 0))
            wait_s = self.options.seconds("keepalive_timeout_ms")
        self._timer = self.process.loop.call_later(wait_s, self._look)
        self.on_looked()

    # --- For the two sides ---

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Take a frame of the connection, or one that opens a call."""
        raise NotImplementedError

    def on_lost(self, error: Exception | None) -> None:
        """Learn that the connection has ended; its calls end next."""

    def on_forgotten(self) -> None:
        """Learn that a call is over."""

    def on_looked(self) -> None:
        """Learn that some time has passed."""


class ClientConnection(Connection):
    """The end that makes calls."""

    side = "CLIENT"

    def __init__(
        self,
        process: Process,
        options: Options,
        on_change: Callable[[ClientConnection], None],
    ) -> None:
        """`on_change` is called when a call may begin, when none may any more, and at the end."""
        super().__init__(process, options)
        self.ready: Final[asyncio.Future[None]] = process.loop.create_future()
        """Done with SETTINGS, or with the error that came instead."""
        self.is_draining = False
        """Whether the server takes no new call."""
        self._call_count = 0
        self._call_count_max = 0
        self._on_change = on_change

    @property
    def has_room(self) -> bool:
        """Whether a call may begin now."""
        is_open = not self.is_draining and not self.is_lost
        return is_open and len(self.streams) < self._call_count_max

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.send(frames.frame(frames.PREFACE, 0))

    def open(self, owner: StreamOwner) -> Stream:
        """Return the stream of a new call."""
        self._call_count += 1
        return Stream(self, self._call_count, owner)

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == frames.SETTINGS:
            (self._call_count_max,) = frames.COUNT.unpack(payload)
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == frames.GOAWAY:
            self.is_draining = True
            self._on_change(self)
            if payload:
                self._end_calls(Status(statuses.UNAVAILABLE, payload.decode()))
            self.on_forgotten()
        elif kind != frames.PONG:
            raise frames.FrameError(f"kind {kind} from a server")

    def on_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError())
            self.ready.exception()  # It may have no waiter any more.
        self._on_change(self)

    def on_forgotten(self) -> None:
        if self.is_draining and not self.streams:
            self.transport.close()
        elif not self.is_lost:
            self._on_change(self)


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
