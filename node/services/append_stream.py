"""Many appends on one call: taken in order, many in flight, answered in order.

Owns the window of one stream. Must not know what an append does. The next request is read only when
there is room in the window, so gRPC's flow control slows the client down; that bounds memory to
`WINDOW_COUNT_MAX` requests a stream beside what gRPC itself holds.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from node.errors.common import BadRequestError
from node.errors.translation import to_pb
from node.services.calls import cancel_all
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse

WINDOW_COUNT_MAX: Final = 256
WINDOW_SIZE_BYTES_MAX: Final = 16 << 20
"""Bytes of records in flight on one stream. A single request is taken at any size."""

AppendNowait = Callable[[AppendRequest], "asyncio.Future[AppendResponse]"]
Request = AppendRequest | BadRequestError


class AppendStream:
    """One stream of appends. Iterate `responses()` once."""

    def __init__(self, append: AppendNowait, on_failed: Callable[[Exception], None]) -> None:
        """Serve one stream with `append`, which begins at once and reports errors by its future.

        `on_failed` gets each error that goes into a response."""
        self._append, self._on_failed = append, on_failed
        self._in_flight: deque[tuple[asyncio.Future[AppendResponse], int]] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Event()
        self._is_read_out = False

    async def responses(self, requests: AsyncIterator[Request]) -> AsyncIterator[AppendResponse]:
        """Yield one response for each request, in their order. An error is in its response."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while True:
                while not self._in_flight:
                    if self._is_read_out:
                        await reader  # Raises the error of reading, if any.
                        return
                    await self._wait()
                future, size_bytes = self._in_flight[0]
                try:  # Here, as `_read` begins an append: a call less for each message.
                    response = await future
                except Exception as error:  # noqa: BLE001 - the client gets every error.
                    self._on_failed(error)
                    response = AppendResponse(error=to_pb(error))
                self._in_flight.popleft()
                self._size_bytes -= size_bytes
                self._changed.set()
                yield response
        finally:
            # The client may be gone: its pending appends go on, but no task waits for them.
            await cancel_all([reader, *(future for future, _ in self._in_flight)])

    async def _read(self, requests: AsyncIterator[Request]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async for request in requests:
                size_bytes = 0 if isinstance(request, Exception) else len(request.records)
                while not self._has_room(size_bytes):
                    await self._wait()
                if isinstance(request, BadRequestError):
                    future: asyncio.Future[AppendResponse] = loop.create_future()
                    future.set_exception(request)
                else:
                    future = self._append(request)
                self._in_flight.append((future, size_bytes))
                self._size_bytes += size_bytes
                self._changed.set()
        finally:
            self._is_read_out = True
            self._changed.set()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._in_flight:
            return True
        is_small = self._size_bytes + size_bytes <= WINDOW_SIZE_BYTES_MAX
        return is_small and len(self._in_flight) < WINDOW_COUNT_MAX

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
