"""Images of the replicated state between two replicas, in pieces on the HA link.

Owns the pace of sending, the assembly and their limits; must not know the contents of an image. A
replica asks on the link that it dialled; the frames are additions to the AutoSwitchHA stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from node.errors.common import ShuttingDownError
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.wire import ImagePiece, ImageRequest
from node.replication.ha.link.connection import HaConnection
from store.errors import (
    BusyError,
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    StoreFullError,
)

IMAGE_SIZE_BYTES_MAX: Final = 128 << 20
"""The state has 64 MiB at most, and the queues' offsets come on top."""
PIECE_SIZE_BYTES: Final = 256 << 10
QUEUED_SIZE_BYTES: Final = 1 << 20
"""Bytes of an image in the queue, few enough to leave room for the stream beside it."""
PAUSE_S: Final = 0.01
RETRY_MS: Final = 5_000
"""Time without a piece after which an image is requested again, or from another replica."""
_LATER: Final = (StoreFullError, FileSystemError, BusyError, CorruptionError, DerivedFileError)
"""Errors that pass, or that a repair removes: another request may succeed."""
_log: Final = structlog.get_logger(component="ha")


class ImageSender:
    """Sends images on request; one at a time for each connection."""

    def __init__(
        self,
        make_image: Callable[[], Awaitable[bytes]],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_fatal` gets an error after which memory and disk may differ; it ends the process."""
        self._make_image, self._on_fatal = make_image, on_fatal
        self._trouble = ""
        self.failed_count = 0
        """Images that could not be made, as the disk was full, busy or damaged."""
        self._tasks: dict[HaConnection, asyncio.Task[None]] = {}

    def begin(self, connection: HaConnection) -> None:
        """Make an image and send it; a second request meanwhile changes nothing."""
        if connection not in self._tasks:
            task = asyncio.ensure_future(self._send(connection))
            self._tasks[connection] = task
            task.add_done_callback(lambda _: self._tasks.pop(connection, None))

    async def _send(self, connection: HaConnection) -> None:
        try:
            data = await self._make_image()
        except ShuttingDownError:
            return
        except _LATER as error:
            self.failed_count += 1  # The replica asks again when no piece comes.
            if str(error) != self._trouble:  # Log once, and not for every request of a full disk.
                self._trouble = str(error)
                _log.warning("an image could not be made", to=connection.peer, error=str(error))
            return
        except Exception as error:  # noqa: BLE001 - memory and disk may differ.
            self._on_fatal(error)
            return
        for at in range(0, len(data), PIECE_SIZE_BYTES):
            while connection.queued_size_bytes > QUEUED_SIZE_BYTES:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)
            if connection.closed.done() or connection.close_code is not None:
                return
            piece = ImagePiece(len(data), at, data[at : at + PIECE_SIZE_BYTES])
            connection.send_frame(piece)
        _log.info("sent an image of the state", to=connection.peer, size_bytes=len(data))

    def forget(self, connection: HaConnection) -> None:
        """Stop sending to a connection that is gone."""
        task = self._tasks.get(connection)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        """Stop all sending."""
        for task in self._tasks.values():
            task.cancel()


class ImageReceiver:
    """Assembles one image."""

    def __init__(self) -> None:
        self.source: HaConnection | None = None
        """The connection that was asked."""
        self._asked_ms = 0
        self._data = bytearray()

    def ask(self, connection: HaConnection, now_ms: int) -> None:
        """Ask for an image, unless one is on its way from there.

        Received pieces stay: a sender that is still sending goes on, and a new image begins at 0.
        """
        if self.source is connection and now_ms - self._asked_ms < RETRY_MS:
            return
        if self.source is not connection:
            self._data = bytearray()
        self.source, self._asked_ms = connection, now_ms
        connection.send_frame(ImageRequest())

    def ask_one(self, connections: Sequence[HaConnection], now_ms: int) -> None:
        """Ask one of these, and the next one if no piece comes from it."""
        if not connections:
            return
        at = connections.index(self.source) if self.source in connections else -1
        if at < 0 or (not self._data and now_ms - self._asked_ms >= RETRY_MS):
            at = (at + 1) % len(connections)
        self.ask(connections[at], now_ms)

    def take(self, connection: HaConnection, piece: ImagePiece, now_ms: int) -> bytes | None:
        """Take a piece; return the image once it is whole. Raises HaProtocolError."""
        if connection is not self.source:
            return None
        size_bytes, at, body = piece
        if at == 0:
            self._data = bytearray()  # A new image, asked for again.
        elif not self._data:
            return None  # The rest of an image that was given up.
        if at != len(self._data) or not at + len(body) <= size_bytes <= IMAGE_SIZE_BYTES_MAX:
            raise HaProtocolError(
                f"a piece of {len(body)} bytes at {at} of {size_bytes}, {len(self._data)} are here"
            )
        self._asked_ms = now_ms
        self._data += body
        if len(self._data) < size_bytes:
            return None
        data, self._data, self.source = bytes(self._data), bytearray(), None
        return data

    def forget(self, connection: HaConnection) -> None:
        """Drop the image of a connection that is gone."""
        if self.source is connection:
            self.source, self._data = None, bytearray()
