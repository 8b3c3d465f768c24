"""Connections of the HTTP port: bounds on their count, their time and the bytes of each.

Owns the bound that keeps probes answered while strangers hold on to connections: a full table
closes the oldest connection of the address with most connections, and no connection lasts long.
Must not know the pages. The node counts closed connections by reason and logs them at intervals.

A connection carries one request. A client dials again for the next one, so no connection is worth
keeping, and the node never reads bytes that a client sends behind its request.
"""

import asyncio
import logging
from collections import Counter
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from node.config.limits import PortLimits
from node.runtime.busiest import of_busiest
from node.runtime.logs.rate_limited_log import RateLimitedLog

CONNECTION_COUNT_MAX: Final = 256
"""Connections at once. Above it the node closes an old one, so a new client is always let in."""
REQUEST_SIZE_BYTES_MAX: Final = 16 * 1024
"""Bytes received on one connection. A browser's head has 2 KiB, and no page takes a body."""

NO_ROOM: Final = "no_room"
TOO_SLOW: Final = "too_slow"
TOO_LARGE: Final = "too_large"
BAD_REQUEST: Final = "bad_request"
REASONS: Final = (NO_ROOM, TOO_SLOW, TOO_LARGE, BAD_REQUEST)

_log: Final = logging.getLogger(__name__)
_faults: Final = logging.getLogger(f"{__name__}.uvicorn")
_faults.setLevel(logging.ERROR)  # Its warnings are about input of strangers, which is counted.


class HttpConnections:
    """The table of one port. For one event loop."""

    def __init__(self, limits: PortLimits) -> None:
        self.connection_ms_max: Final = limits.http_ms_max
        self._connections: dict[HttpConnection, None] = {}
        """Oldest first."""
        self.closed: Final[Counter[str]] = Counter(dict.fromkeys(REASONS, 0))
        """Connections that the node closed, by reason."""
        self._rate_limited: Final = RateLimitedLog(_log)

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def admit(self, connection: "HttpConnection") -> None:
        """Add a connection; close another one if the table is full."""
        if self.count >= CONNECTION_COUNT_MAX:
            self.refuse(of_busiest(self._connections, lambda each: each.host), NO_ROOM)
        self._connections[connection] = None

    def forget(self, connection: "HttpConnection") -> None:
        """Remove a closed connection. A repeated call does nothing."""
        self._connections.pop(connection, None)

    def refuse(self, connection: "HttpConnection", reason: str) -> None:
        """Close a connection at once, and count the reason."""
        self.note(reason, connection.host)
        self.forget(connection)
        connection.transport.abort()

    def note(self, reason: str, host: str) -> None:
        """Count a reason, and log it at intervals."""
        self.closed[reason] += 1
        self._rate_limited.warn(reason, f"an HTTP connection from {host} was closed")


class HttpConnection(H11Protocol):
    """One connection of the port; `given` are uvicorn's arguments."""

    def __init__(self, table: HttpConnections, **given: Any) -> None:
        super().__init__(**given)
        self.logger = _faults
        self.host = ""
        self._table = table
        self._received_size_bytes = 0
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self._table.admit(self)
        self._end = self.loop.call_later(
            self._table.connection_ms_max / 1000, self._table.refuse, self, TOO_SLOW
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        self._table.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received_size_bytes += len(data)
        if self._received_size_bytes > REQUEST_SIZE_BYTES_MAX:
            self._table.refuse(self, TOO_LARGE)
        else:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Count a request that is not HTTP, and answer it with status 400."""
        self._table.note(BAD_REQUEST, self.host)
        super().send_400_response(msg)
