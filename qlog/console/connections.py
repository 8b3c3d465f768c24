"""The connections of browsers, in bounds.

Owns how many there are, and how long one may take to send a request. Must not know a page.
"""

import asyncio
import operator
import time
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

COUNT_MAX: Final = 200
"""An open page is a connection, and a form is one up to its end."""
_REQUEST_S: Final = 10.0
"""Time for the header of a request, also of the next one on a connection."""


class Connection(H11Protocol):
    """One connection. Above `COUNT_MAX` the one goes that has waited for its caller the longest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, in place of another one if there are too many."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > COUNT_MAX:
            all_of_them: Any = self.connections
            waiting = [each for each in all_of_them if each.is_waiting and each is not self]
            min(waiting, key=operator.attrgetter("waits_since_s"), default=self).end()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._await_request()
        super().on_response_complete()

    @property
    def is_waiting(self) -> bool:
        """Whether the caller has to send something: a header, or the rest of a body."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def end(self) -> None:
        """Close it at once, whatever is on its way."""
        self.connections.discard(self)
        self.transport.abort()

    def _await_request(self) -> None:
        self.waits_since_s = since_s = time.monotonic()
        self.loop.call_later(_REQUEST_S, self._end_late, since_s)

    def _end_late(self, since_s: float, left_size_bytes: int = 1 << 62) -> None:
        cycle: Any = self.cycle
        if self.waits_since_s != since_s or (cycle is not None and not cycle.response_complete):
            return
        size_bytes = self.transport.get_write_buffer_size()
        if 0 < size_bytes < left_size_bytes:  # The caller still reads what it asked for.
            self.loop.call_later(_REQUEST_S, self._end_late, since_s, size_bytes)
        else:
            self.end()
