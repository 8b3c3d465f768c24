"""One end of a call: messages over one connection, in order, and a check for silence.

Owns the frames: a kind, a size in bytes and a payload. Must not know what a method does.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Any, Final

from simulation.kernel.process import Process

OPEN, MESSAGE, HALF_CLOSE, STATUS, PING = range(1, 6)
HEAD: Final = Struct(">BI")
PING_S: Final = 5.0
SILENT_COUNT_MAX: Final = 2
"""Pings of this end in a row during which nothing came; at the next one the other end is gone."""


class CallOverError(asyncio.InvalidStateError):
    """The call has ended, so this end sends nothing more."""


class CallEnd(asyncio.Protocol):
    """What both ends share."""

    def __init__(self, process: Process) -> None:
        self.process: Final = process
        self.transport: Any = None
        self.is_over = False
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Messages that were not read; None: there is none any more."""
        self._room = asyncio.Event()
        self._rest = bytearray()
        self._silent_count = 0
        self._pinging: asyncio.TimerHandle | None = None

    async def write(self, message: bytes) -> None:
        """Send a message, once the connection is there and takes it. Raises CallOverError."""
        await self._room.wait()
        if self.is_over:
            raise CallOverError("the call is over")
        self.send(MESSAGE, message)

    async def next_message(self) -> bytes | None:
        """Return the next message; None: there is none any more."""
        message = await self._messages.get()
        if message is None:
            self._messages.put_nowait(None)
        return message

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame, whatever waits already."""
        self.transport.write(HEAD.pack(kind, len(payload)) + payload)

    def finish(self, *, drops_messages: bool = True) -> None:
        """Send and take nothing more; wake readers and writers."""
        self.is_over = True
        while drops_messages and not self._messages.empty():
            self._messages.get_nowait()
        self._messages.put_nowait(None)
        self._room.set()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._room.set()
        self._pinging = self.process.loop.call_later(PING_S, self._ping)

    def data_received(self, data: bytes) -> None:
        self._silent_count = 0
        rest = self._rest
        rest += data
        while len(rest) >= HEAD.size:
            kind, size_bytes = HEAD.unpack_from(rest)
            end = HEAD.size + size_bytes
            if len(rest) < end:
                return
            payload = bytes(rest[HEAD.size : end])
            del rest[:end]
            self.on_frame(kind, payload)

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Take a frame that both ends may get."""
        if kind in (MESSAGE, HALF_CLOSE) and not self.is_over:
            self._messages.put_nowait(payload if kind == MESSAGE else None)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pinging is not None:
            self._pinging.cancel()

    def _ping(self) -> None:
        self._silent_count += 1
        if self._silent_count > SILENT_COUNT_MAX:
            self.transport.abort()
            return
        self.send(PING)
        self._pinging = self.process.loop.call_later(PING_S, self._ping)
