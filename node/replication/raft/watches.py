"""Components that watch which peers can be reached.

Owns the translation of "connected" and "disconnected" for founding, fetching and the driver.
"""

import asyncio
from collections.abc import Callable

from node.peers.frames import FrameKind
from node.replication.foundation import Foundation
from raft.messages import Index, NodeId


class DisconnectionWatch:
    """Tells a component of broken connections; it needs no word of new ones."""

    def __init__(self, on_disconnected: Callable[[NodeId], None]) -> None:
        self.on_disconnected = on_disconnected

    def on_connected(self, node: NodeId, last_index: Index) -> None:
        """Do nothing."""


class FoundingWatch:
    """Lets the start wait for the peers' reports about their logs."""

    def __init__(self, foundation: Foundation, greet: Callable[[NodeId], None]) -> None:
        """`greet` is called with each peer that is connected."""
        self.foundation, self._greet = foundation, greet
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait until the next report of a peer."""
        self._changed.clear()
        await self._changed.wait()

    def on_connected(self, node: NodeId, last_index: Index) -> None:
        self.foundation.on_peer(node, last_index)
        self._changed.set()
        self._greet(node)

    def on_founded(self, node: NodeId, _kind: FrameKind, _header: bytes, _: memoryview) -> None:
        """Note that a peer has founded. Receives frames."""
        self.foundation.on_founded(node)
        self._changed.set()

    def on_disconnected(self, node: NodeId) -> None:
        """Do nothing: reports stay true."""
