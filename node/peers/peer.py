"""A link's record of one other node: address, connections, counters.

Has no behaviour of its own; the link changes everything in it.
"""

import asyncio
from collections.abc import Sequence

from node.peers.connection import PeerConnection
from node.peers.stream import LinkTraffic, Stream
from node.peers.types import PeerStats
from raft.messages import NodeId


class PeerRecord:
    """One other node, as both links know it."""

    __slots__ = (
        "address",
        "dropped_full_count",
        "dropped_unconnected_count",
        "handshake_count",
        "is_tried",
        "last_trouble",
        "node",
        "traffic",
    )

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        self.node, self.address = node, address
        self.traffic = LinkTraffic()
        self.dropped_unconnected_count = self.dropped_full_count = self.handshake_count = 0
        self.last_trouble = ""
        self.is_tried = False
        """Whether the peer was met or could not be reached, since the start of the link."""

    def stats_with(self, connections: Sequence[Stream], version: str) -> PeerStats:
        """Return a snapshot of the counters, with these usable connections."""
        host, port = self.address
        traffic = self.traffic
        return PeerStats(
            node=self.node,
            host=host,
            port=port,
            is_connected=bool(connections),
            connection_count=len(connections),
            version=version,
            queued_size_bytes=sum(each.queued_size_bytes for each in connections),
            sent_frame_count=traffic.sent_frame_count,
            sent_size_bytes=traffic.sent_size_bytes,
            received_frame_count=traffic.received_frame_count,
            received_size_bytes=traffic.received_size_bytes,
            dropped_unconnected_count=self.dropped_unconnected_count,
            dropped_full_count=self.dropped_full_count,
            handshake_count=self.handshake_count,
            last_trouble=self.last_trouble,
        )


class LinkPeer(PeerRecord):
    """One other node of the peer link."""

    __slots__ = ("accepted", "dialled", "dialler", "requests_in", "requests_out")

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        super().__init__(node, address)
        self.dialler: asyncio.Task[None] | None = None
        """Keeps one connection to the peer, from the start of the link on."""
        self.dialled: PeerConnection | None = None
        self.accepted: PeerConnection | None = None
        """Invariant: a connection in either place may be used for sending now."""
        self.requests_out: PeerConnection | None = None
        """The one of them on which requests leave until it ends; None before the next request."""
        self.requests_in: PeerConnection | None = None
        """The one of them on which the newest request of the peer came."""

    @property
    def connections(self) -> list[PeerConnection]:
        """Usable connections, at most two."""
        return [each for each in (self.dialled, self.accepted) if each is not None]

    @property
    def queued_size_bytes(self) -> int:
        """Bytes that wait to be sent to the peer."""
        return sum(each.queued_size_bytes for each in self.connections)

    def stats(self) -> PeerStats:
        """Return a snapshot of the counters."""
        connections = self.connections
        info = connections[0].info if connections else None
        return self.stats_with(connections, info.version if info is not None else "")
