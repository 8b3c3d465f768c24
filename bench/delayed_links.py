"""Links between the nodes of a local cluster that delay their bytes, and that can be cut.

Owns one relay for each ordered pair of nodes: the bytes of the source and those that come back are
late by the same delay, in order. Cutting a node drops all bytes on their way from and to it, as
when a machine dies with its network; bytes that the kernel would have sent for a dead process are
lost too. Runs on the thread of the blocking client, so that a busy driver does not stretch the
delay.
"""

import asyncio
import contextlib
import socket
import time
from typing import Final, Self

from quorumlog.sync.loop_thread import loop_thread

HOST: Final = "127.0.0.1"
_HELD_COUNT_MAX: Final = 1024
"""Limit of the pieces in one direction of one connection; above it the relay stops reading."""
_PIECE_SIZE_BYTES: Final = 256 << 10


class DelayedLinks:
    """All relays of one cluster. `relay` is the callback for `LocalCluster.create`."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms: Final = delay_ms
        self._relays: dict[tuple[int, int], _Relay] = {}

    def __enter__(self) -> Self:
        loop_thread.acquire(self._close)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            loop_thread.call(self._close())
        finally:
            loop_thread.release(self._close)

    def relay(self, source: int, target: int, port: int) -> int:
        """Return the port at which `source` reaches the port of `target` with the delay."""
        delayed = _Relay(port, self.delay_ms / 1000)
        self._relays[source, target] = delayed
        return loop_thread.call(delayed.start())

    def cut(self, node_id: int) -> None:
        """Drop all bytes under way from and to a node, and accept no new ones."""
        loop_thread.call_plain(lambda: self._set_cut(node_id, is_cut=True))

    def join(self, node_id: int) -> None:
        """Undo `cut`."""
        loop_thread.call_plain(lambda: self._set_cut(node_id, is_cut=False))

    def _set_cut(self, node_id: int, *, is_cut: bool) -> None:
        for pair, relay in self._relays.items():
            if node_id in pair:
                relay.set_cut(is_cut)

    async def _close(self) -> None:
        for relay in self._relays.values():
            await relay.close()


class _Relay:
    """One listening port; each connection to it becomes one to the target."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port, self._delay_s = port, delay_s
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        own_port: int = self._server.sockets[0].getsockname()[1]
        return own_port

    def set_cut(self, is_cut: bool) -> None:
        self._is_cut = is_cut
        if is_cut:
            for link in self._links:
                link.cancel()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.set_cut(True)
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._links.add(task)
        try:
            if not self._is_cut:
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # Cut: both ends see a reset.
        finally:
            self._links.discard(task)
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(HOST, self._port)
        except OSError:
            return  # The node is down: the dialler is reset, and dials again.
        try:
            # The end of one side ends both directions: a half-closed link is of no use to nodes.
            async with asyncio.TaskGroup() as both:
                both.create_task(_carry(reader, there[1], self._delay_s))
                both.create_task(_carry(there[0], writer, self._delay_s))
        except* (OSError, _EndOfLinkError):
            pass
        finally:
            _reset(there[1])


class _EndOfLinkError(Exception):
    """One side closed, and all its bytes have arrived."""


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Carry the bytes of one direction of a connection."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_COUNT_MAX)

    async def read() -> None:
        data = b"more"
        while data:
            data = await reader.read(_PIECE_SIZE_BYTES)
            await held.put((time.perf_counter() + delay_s, data))

    async def write() -> None:
        while True:
            due_s, data = await held.get()
            if (early_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(early_s)
            if not data:
                raise _EndOfLinkError
            writer.write(data)
            await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(write())


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close without sending the rest."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()
