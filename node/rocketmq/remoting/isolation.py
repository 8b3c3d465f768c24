"""Closes the connections of classic clients while this node is cut off from its group.

Owns when a node counts as cut off. Clients turn to another broker name when a connection ends, and
wait 3 s for each call when it does not, until they read a route again (protocol section 16.3). An
election takes less time than this waits, and a node that hears a majority goes on holding calls.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.remoting.conversation import RemotingCalls

ISOLATED_S: Final = 3.0
"""Time without a leader and without a majority after which connections are closed."""
LOOK_S: Final = 0.5
"""Interval of looks: time that a client which comes back loses at most."""
_log: Final = structlog.get_logger(component="remoting")


class Isolation:
    """Watches the links of this node. One per gateway."""

    def __init__(
        self, cluster: GatewayCluster, calls: RemotingCalls, monotonic_s: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._calls = calls
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._has_logged = False
        self.closed_total = 0
        """Connections that were closed."""

    async def watch(self) -> None:
        """Look at intervals."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Close all connections if this node has been cut off for long enough."""
        if not self._cluster.is_cut_off():
            self._since_s, self._has_logged = None, False
            return
        now_s = self._monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < ISOLATED_S:
            return
        closed_count = self._calls.close_all()
        self.closed_total += closed_count
        if closed_count and not self._has_logged:
            self._has_logged = True
            text = "connections of classic clients are closed: neither a leader nor a majority"
            _log.warning(text, count=closed_count)
