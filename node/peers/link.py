"""The peer link: frames between this node and each peer, over connections that heal themselves.

Owns the connections between nodes: their replacement, silence, limits.
Must not know what a frame says. Every node dials every peer, so there are up to two connections
between two nodes: requests leave on the one this node dialled, replies on the one the peer dialled,
and either serves for both when it is the only one. Requests of a node never overtake each other:
they stay on one connection until it ends, and a peer that goes on over another one has lost the one
before. Between two parts of what needs all of its parts, both handlers hear of any loss.
"""

import asyncio
import logging
from collections.abc import Mapping
from random import Random
from typing import Final

from node.peers.common_link import CommonLink
from node.peers.connection import PeerConnection
from node.peers.dialler import PeerRecord
from node.peers.dispatch import PeerFrames
from node.peers.frames import REPLY_KINDS, EncodedFrame, FrameKind
from node.peers.handshake import (
    CloseCode,
    HandshakeRefusedError,
    LinkIdentity,
    PeerInfo,
    read_goodbye,
)
from node.peers.security.tls import TlsFiles
from node.peers.stream import Side
from node.peers.types import LinkLimits, PeerLives
from raft.messages import NodeId

_log: Final = logging.getLogger(__name__)


class LinkPeer(PeerRecord):
    """One other node of the peer link."""

    __slots__ = ("accepted", "dialled", "requests_in", "requests_out")

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        super().__init__(node, address)
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


class PeerLink(CommonLink[PeerConnection, LinkPeer]):
    """All connections of one node to its peers. Belongs to the running event loop."""

    name = "peer link"

    def __init__(
        self,
        identity: LinkIdentity,
        handler: PeerFrames,
        limits: LinkLimits | None = None,
        *,
        tls: TlsFiles | None = None,
        lives: PeerLives,
        random: Random | None = None,
    ) -> None:
        limits = limits or LinkLimits()
        super().__init__(
            identity,
            handler.last_index,
            lives,
            limits,
            random or Random(),
            tls=tls,
            # A connection that drops again and again right after the handshake must not be dialled
            # faster and faster.
            settled_ms=limits.reconnect_ms_max,
        )
        self._handler = handler
        self._encoded: EncodedFrame | None = None
        """The frame sent last: mostly all peers get the same."""
        self.has_more = False
        """While the handler takes a frame: whether more bytes came with the same read. What it does
        once for all frames of a read, it does with the last one."""

    # --- Public interface ---

    async def start(self, host: str, port: int) -> int:
        """Listen, and dial the peers; return the port (a free one for 0). Raises OSError."""
        listening_port = await super().start(host, port)
        self._tasks.run(self._watch_silence())
        return listening_port

    def set_peers(self, addresses: Mapping[NodeId, tuple[str, int]]) -> None:
        """Set the peers and their addresses; this node itself may be among them.

        A node that is missing from now on is cut off; a node with a new address is dialled
        again."""
        for node in [node for node in self._peers if node not in addresses]:
            peer = self._peers[node]
            self._stop_dialling(peer)
            for connection in peer.connections:
                self._end(connection, CloseCode.REMOVED, "not a peer any more")
            del self._peers[node]
        for node, address in addresses.items():
            if node == self.identity.node_id:
                continue
            linked = self._peers.get(node)
            if linked is None:
                linked = self._peers[node] = LinkPeer(node, address)
            elif linked.address != address:
                linked.address = address
                self._stop_dialling(linked)
                if linked.dialled is not None:
                    self._end(linked.dialled, CloseCode.REMOVED, "new address")
            if linked.dialler is None and self._acceptor.listener is not None:
                linked.dialler = self._tasks.run(self._dialler.dial(linked))

    def send(
        self,
        node: NodeId,
        kind: FrameKind,
        header: bytes,
        payload: bytes = b"",
        *,
        at_once: bool = False,
    ) -> bool:
        """Queue a frame for this turn of the loop; return whether it was queued.

        False: dropped and counted, because there is no connection or too many bytes wait already.
        `payload` must not change until it is sent. `at_once`: hand it to the socket now, with what
        was queued before, ahead of other work in this turn."""
        if node not in self._peers:
            return False
        peer = self._peers[node]
        if kind in REPLY_KINDS:
            connection = peer.accepted or peer.dialled
        else:
            connection = peer.requests_out = peer.requests_out or peer.dialled or peer.accepted
        if connection is None:
            peer.dropped_unconnected_count += 1
            return False
        frame = self._encoded
        if frame is None or not (
            frame.kind is kind and frame.header is header and frame.payload is payload
        ):
            frame = self._encoded = EncodedFrame(kind, header, payload)
        waiting = connection.queue_size_bytes + connection.unsent_size_bytes()
        other = peer.accepted if connection is peer.dialled else peer.dialled
        if other is not None:
            waiting += other.queue_size_bytes + other.unsent_size_bytes()
        if waiting + frame.size_bytes > self.limits.queued_size_bytes_max:
            peer.traffic.dropped_full_count += 1
            return False
        faults = self._faults
        if (
            faults is None
            or not faults.rules
            or not faults.took(connection, node, kind, header, payload)
        ):
            connection.send_encoded(frame, at_once=at_once)
        return True

    def cut_off(self, node: NodeId, code: CloseCode, detail: str) -> None:
        """End the connections to a peer for a reason; the peer is dialled again."""
        peer = self._peers.get(node)
        for connection in peer.connections if peer is not None else ():
            self._end(connection, code, detail)

    def queued_size_bytes(self, node: NodeId) -> int:
        """Return the bytes that wait to be sent to `node`; a sender of large data keeps this
        low."""
        peer = self._peers.get(node)
        return peer.queued_size_bytes if peer is not None else 0

    async def stop(self) -> None:
        """Say Goodbye to all peers and close all sockets. The handler is not called any more."""
        for peer in self._peers.values():
            peer.dialled = peer.accepted = peer.requests_out = None
        for connection in self._connections:
            connection.drop_frames()
        await super().stop()

    def _stop_dialling(self, peer: LinkPeer) -> None:
        if peer.dialler is not None:
            peer.dialler.cancel()
            peer.dialler = None

    # --- ConnectionOwner ---

    def on_handshake_frame(
        self, connection: PeerConnection, kind: FrameKind, header: bytes
    ) -> None:
        info = connection.info
        if info is not None and kind is FrameKind.GOODBYE and not self._is_stopping:
            code, _ = read_goodbye(header)
            if code == CloseCode.PROTOCOL_ERROR and info.node_id in self._peers:
                self._handler.on_refused(info.node_id)
        super().on_handshake_frame(connection, kind, header)

    def on_first_request(self, connection: PeerConnection) -> None:
        """Use this connection for the peer's requests. The one before it has ended at the peer:
        what is still unread of it is older."""
        assert connection.info is not None, "the parser lets no other kind through"
        peer = self._peers[connection.info.node_id]
        before, peer.requests_in = peer.requests_in, connection
        connection.has_requests = True
        if before is not None:
            before.has_requests = False
            self._end(before, CloseCode.REPLACED, f"by the one from {connection.remote}")

    # --- Handshake ---

    def _make(self, side: Side, to: NodeId) -> PeerConnection:
        return PeerConnection(self, self.limits, side, to)

    def _open(self, connection: PeerConnection, info: PeerInfo) -> None:
        peer = self._peers.get(info.node_id)
        if self._is_stopping or peer is None:
            raise HandshakeRefusedError(
                CloseCode.STOPPING, "this node stops, or does not know that peer"
            )
        old = peer.dialled if connection.side is Side.DIALLED else peer.accepted
        connection.open(info, peer.traffic, self._handler.on_frame)
        peer.forwarding_token = info.forwarding_token or peer.forwarding_token
        self._dialler.note_tried(peer)
        if old is not None:
            self._end(old, CloseCode.REPLACED, f"by a newer one from {connection.remote}")
        was_connected = bool(peer.connections)
        if connection.side is Side.DIALLED:
            peer.dialled = connection
        else:
            peer.accepted = connection
        if not was_connected:
            _log.info("connected to node %d (%s)", peer.node, connection.side.value)
            self._handler.on_connected(peer.node, info.last_index, info.address)

    # --- The end of connections ---

    def _forget(self, peer: LinkPeer, connection: PeerConnection) -> None:
        if peer.dialled is connection:
            peer.dialled = None
        elif peer.accepted is connection:
            peer.accepted = None
        else:
            return
        if peer.requests_out is connection:
            peer.requests_out = None
        if peer.requests_in is connection:
            peer.requests_in = None
        if self._is_stopping:
            return
        self._handler.on_disconnected(peer.node)
        left = peer.connections
        if left and left[0].info is not None:
            self._handler.on_connected(peer.node, left[0].info.last_index, left[0].info.address)

    async def _watch_silence(self) -> None:
        """Find connections whose other end is gone without a Goodbye.

        Counts looks, not time: after a pause of this process the peers' bytes are read before the
        next look, so no peer is blamed for this node's own silence."""
        look_ms = max(1, self.limits.ping_ms // 2)
        while True:
            await asyncio.sleep(look_ms / 1000)
            for peer in list(self._peers.values()):
                for connection in peer.connections:
                    self._look_at(connection, look_ms)

    def _look_at(self, connection: PeerConnection, look_ms: int) -> None:
        if connection.had_contact:
            connection.note_contact()
            return
        connection.silent_ms += look_ms
        if connection.silent_ms >= self.limits.silence_ms_max:
            self._end(connection, CloseCode.SILENT, f"nothing came for {connection.silent_ms} ms")
        elif connection.silent_ms >= self.limits.ping_ms:
            connection.send(FrameKind.PING, b"")
