"""Components that watch which peers can be reached.

Owns the translation of "connected" and "disconnected" for founding, fetching and the driver.
"""

import asyncio
from collections.abc import Callable

from node.peers.frames import FrameKind
from node.replication.foundation import Foundation
from node.replication.raft.driver import RaftDriver
from node.replication.raft.fetch import EntryFetcher
from raft.messages import Index, NodeId


class FetchWatch:
    """Tells the fetcher of broken connections."""

    def __init__(self, fetcher: EntryFetcher) -> None:
        self._fetcher = fetcher

    def on_connected(self, node: NodeId, last_index: Index) -> None:
        """Do nothing: the fetcher asks the peer when it needs entries."""

    def on_disconnected(self, node: NodeId) -> None:
        self._fetcher.on_disconnected(node)


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


class DriverWatch:
    """Tells the driver of broken connections."""

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver

    def on_connected(self, node: NodeId, last_index: Index) -> None:
        """Do nothing: the core finds out by its next message."""

    def on_disconnected(self, node: NodeId) -> None:
        self._driver.on_disconnected(node)
