"""Links between the nodes of a local cluster that delay their bytes, and that can be cut.

Owns one relay for each ordered pair of nodes: the bytes of the source and those that come back are
late by the same delay, in order. Cutting a node drops all bytes on their way from and to it, as
when a machine dies with its network; bytes that the kernel would have sent for a dead process are
lost too. Runs on a thread with a loop of its own, so that a busy driver does not stretch the delay.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

HOST: Final = "127.0.0.1"
HELD_SIZE_BYTES_MAX: Final = 16 << 20
"""Limit of the bytes in one direction of one connection; above it the relay stops reading."""
_CHUNK_SIZE_BYTES: Final = 256 << 10
_START_TIMEOUT_S: Final = 10.0
_Result = TypeVar("_Result")


class DelayedLinks:
    """All relays of one cluster. `relay` is the callback for `LocalCluster.create`."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms: Final = delay_ms
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delayed-links")
        self._relays: dict[tuple[int, int], _Relay] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._close_all())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def relay(self, source: int, target: int, port: int) -> int:
        """Return the port at which `source` reaches the port of `target` with the delay."""
        delayed = _Relay(port, self.delay_ms / 1000)
        self._relays[source, target] = delayed
        return self._run(delayed.start())

    def cut(self, node_id: int) -> None:
        """Drop all bytes under way from and to a node, and accept no new ones."""
        self._run(self._set_cut(node_id, is_cut=True))

    def join(self, node_id: int) -> None:
        """Undo `cut`."""
        self._run(self._set_cut(node_id, is_cut=False))

    async def _set_cut(self, node_id: int, *, is_cut: bool) -> None:
        for pair, relay in self._relays.items():
            if node_id in pair:
                relay.set_cut(is_cut)

    async def _close_all(self) -> None:
        for relay in self._relays.values():
            await relay.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        future: Future[_Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_START_TIMEOUT_S)


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
                both.create_task(_Pump(self._delay_s).run(reader, there[1]))
                both.create_task(_Pump(self._delay_s).run(there[0], writer))
        except* (OSError, _EndOfLinkError):
            pass
        finally:
            _reset(there[1])


class _EndOfLinkError(Exception):
    """One side closed, and all its bytes have arrived."""


class _Pump:
    """One direction of a connection."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_size_bytes = 0
        self._changed = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(reader))
            tasks.create_task(self._write(writer))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            data = await reader.read(_CHUNK_SIZE_BYTES)
            self._held.append((time.perf_counter() + self._delay_s, data))
            self._held_size_bytes += len(data)
            self._changed.set()
            if not data:
                return
            while self._held_size_bytes > HELD_SIZE_BYTES_MAX:
                self._changed.clear()
                await self._changed.wait()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            while not self._held:
                self._changed.clear()
                await self._changed.wait()
            due_s, data = self._held[0]
            late_s = due_s - time.perf_counter()
            if late_s > 0:
                await asyncio.sleep(late_s)
            self._held.popleft()
            self._held_size_bytes -= len(data)
            self._changed.set()
            if not data:
                raise _EndOfLinkError
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close without sending the rest."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()
