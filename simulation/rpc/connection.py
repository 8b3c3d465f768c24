"""A connection between two processes with the calls on it, as a protocol of asyncio.

Owns the frames of the connection itself: how it begins, its pings, and its end. A client waits for
SETTINGS before it sends a call, so a process that accepts and does nothing is no server.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final

from simulation.kernel.process import Process
from simulation.rpc import frames, statuses
from simulation.rpc.options import Options
from simulation.rpc.statuses import Status
from simulation.rpc.stream import Stream, StreamOwner

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
