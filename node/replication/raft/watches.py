"""Lets the start of a node wait for its peers.

Owns the translation of connections and frames for founding.
"""

import asyncio
from collections.abc import Callable

from node.peers.frames import FrameKind
from node.replication.foundation import Foundation
from raft.messages import Index, NodeId


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
