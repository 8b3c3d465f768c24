"""Connections of the HTTP port: how many, how long and how much each may say.

Owns the bound that keeps probes answered while strangers hold on to connections: a table that is
full lets the oldest one of the address with most of them go, and nobody stays for long. Must not
know the pages. What it closes is counted by reason and logged now and then.

A connection is for one request. Whoever asks again dials again, so none is worth keeping, and
nothing that a client sends behind its request is ever read.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from node.runtime.rate_limited_log import QuietLog

CONNECTION_COUNT_MAX: Final = 256
"""At once. Above it the oldest one goes, so a new client is always let in."""
CONNECTION_MS_MAX: Final = 10_000
"""To ask and to take the answer: as long as Prometheus waits for one."""
REQUEST_SIZE_BYTES_MAX: Final = 16 * 1024
"""Of one connection. A browser's head has 2 KiB, and no page takes a body."""
LOG_INTERVAL_MS: Final = 10_000

NO_ROOM: Final = "no_room"
TOO_SLOW: Final = "too_slow"
TOO_LARGE: Final = "too_large"
BAD_REQUEST: Final = "bad_request"
REASONS: Final = (NO_ROOM, TOO_SLOW, TOO_LARGE, BAD_REQUEST)

_log: Final = logging.getLogger(__name__)
_faults: Final = logging.getLogger(f"{__name__}.uvicorn")
_faults.setLevel(logging.ERROR)  # Its warnings are about what strangers send, which is counted.


class HttpConnections:
    """The table of one port. For one event loop."""

    def __init__(self) -> None:
        self._by_host: dict[str, dict[HttpConnection, None]] = {}
        """Oldest first. Invariant: no table in it is empty."""
        self.count = 0
        self.closed: Final[Counter[str]] = Counter(dict.fromkeys(REASONS, 0))
        """Connections that the node closed, by reason."""
        self._quiet: Final = QuietLog(_log, interval_ms=LOG_INTERVAL_MS, monotonic_s=time.monotonic)

    def protocol(self, **given: Any) -> "HttpConnection":
        """Return what serves a new connection; uvicorn gives the rest."""
        return HttpConnection(self, **given)

    def admit(self, connection: "HttpConnection") -> None:
        """Take a connection in; another one goes if there is no room."""
        if self.count >= CONNECTION_COUNT_MAX:
            crowd = max(self._by_host.values(), key=len)
            self.refuse(next(iter(crowd)), NO_ROOM)
        self._by_host.setdefault(connection.host, {})[connection] = None
        self.count += 1

    def forget(self, connection: "HttpConnection") -> None:
        """A connection is closed. Once more changes nothing."""
        same = self._by_host.get(connection.host, {})
        if connection in same:
            del same[connection]
            self.count -= 1
            if not same:
                del self._by_host[connection.host]

    def refuse(self, connection: "HttpConnection", reason: str) -> None:
        """Close a connection at once, and count why."""
        self.note(reason, connection.host)
        self.forget(connection)
        connection.transport.abort()

    def note(self, reason: str, host: str) -> None:
        """Count a reason, and log it unless that was done a moment ago."""
        self.closed[reason] += 1
        self._quiet.warn(reason, f"an HTTP connection from {host} was closed")


class HttpConnection(H11Protocol):
    """One connection of the port."""

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
            CONNECTION_MS_MAX / 1000, self._table.refuse, self, TOO_SLOW
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
        """The bytes are no request of HTTP."""
        self._table.note(BAD_REQUEST, self.host)
        super().send_400_response(msg)
