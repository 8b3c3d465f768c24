"""Idle connections to a gRPC server: none of one address beyond half of all that the server takes.

gRPC refuses connections above a number, also when one address has all of them. Owns the looks at
the connections: one costs the count of the descriptors, until a quarter of the connections may be
there. Must not know what a call is.
"""

import asyncio
import logging
from typing import Final

from node.runtime.accounts import network_of
from node.services.bounds.callers import GrpcCallers
from node.services.bounds.connection_cut import (
    TcpAddress,
    cut_connections,
    descriptor_count,
    traffic_of,
)

_LOOK_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class IdleConnections:
    """The watch over the connections of one server. For one event loop."""

    def __init__(self, callers: GrpcCallers, connection_count_max: int) -> None:
        """`connection_count_max` is the number above which the server refuses connections."""
        self._callers = callers
        self._count_max = connection_count_max
        self._known: dict[TcpAddress, None] = {}
        """Connections of the last look, the oldest first."""

    async def run(self, port: int) -> None:
        """Look at the connections to a port at intervals."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look(port)

    async def _look(self, port: int) -> None:
        """Cut the newest connections without a call of an address that has more than half."""
        if descriptor_count() <= self._count_max // 4:
            self._known = {}
            return
        # Some 100 ms for a full server, nearly all of it in the kernel.
        traffic = await asyncio.to_thread(traffic_of, port)
        if traffic is None:
            return
        self._known = {one: None for one in (*self._known, *traffic) if one in traffic}
        by_host: dict[str, list[TcpAddress]] = {}
        for address in self._known:
            by_host.setdefault(network_of(str(address[0])), []).append(address)
        for host, same in by_host.items():
            excess = len(same) - self._count_max // 2
            if excess > 0:
                busy = self._callers.busy()
                idle = [one for one in reversed(same) if one not in busy]
                count = await asyncio.to_thread(cut_connections, set(idle[:excess]), port)
                _log.warning("cut %d of %d connections of %s", count, len(same), host)
