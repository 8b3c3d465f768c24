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
import ssl
from collections.abc import Mapping
from random import Random
from typing import Final

from node.peers import handshake
from node.peers.acceptor import Acceptor
from node.peers.connection import PeerConnection
from node.peers.dialler import Dialler, LinkTasks, PeerRecord
from node.peers.faults import LinkFaults
from node.peers.frames import REPLY_KINDS, EncodedFrame, FrameError, FrameKind
from node.peers.greeting import Greeter
from node.peers.handshake import (
    CODES_SAID,
    CloseCode,
    HandshakeRefusedError,
    LinkIdentity,
    PeerInfo,
)
from node.peers.stream import Side
from node.peers.types import (
    LinkHandler,
    LinkLimits,
    LinkStats,
    PeerLives,
)
from node.runtime.logs.rate_limited_log import RateLimitedLog
from raft.errors import PeerProtocolError, TermJumpError
from raft.messages import NodeId

_log: Final = logging.getLogger(__name__)


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


class PeerLink:
    """All connections of one node to its peers. Belongs to the running event loop."""

    def __init__(
        self,
        identity: LinkIdentity,
        handler: LinkHandler,
        limits: LinkLimits | None = None,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        lives: PeerLives,
        random: Random | None = None,
    ) -> None:
        self.identity, self.limits = identity, limits or LinkLimits()
        self._handler = handler
        self._greeting = Greeter(identity, handler.last_index, lives)
        self._tasks = LinkTasks("peer link")
        self._random = random or Random()
        self._faults = LinkFaults.from_environment(identity.node_id, self._random)
        self._loop = asyncio.get_running_loop()
        self._log = RateLimitedLog(
            _log, interval_ms=self.limits.log_interval_ms, monotonic_s=self._loop.time
        )
        self._peers: dict[NodeId, LinkPeer] = {}
        self._connections: dict[PeerConnection, None] = {}
        """Every connection whose socket may be open, oldest first."""
        self._dialler = Dialler(
            self.limits,
            lambda node: PeerConnection(self, self.limits, Side.DIALLED, to=node),
            self._end,
            self._drop,
            tls=client_tls,
            random=self._random,
            # A connection that drops again and again right after the handshake must not be dialled
            # faster and faster.
            settled_ms=self.limits.reconnect_ms_max,
        )
        self._acceptor = Acceptor(
            self.limits,
            self._tasks,
            lambda: PeerConnection(self, self.limits, Side.ACCEPTED),
            self._greeting.challenge,
            self._end,
            self._drop,
            self._log,
            tls=server_tls,
        )
        self._encoded: EncodedFrame | None = None
        """The frame sent last: mostly all peers get the same."""
        self.has_more = False
        """While the handler takes a frame: whether more bytes came with the same read. What it does
        once for all frames of a read, it does with the last one."""
        self._closed_counts: dict[str, int] = {}
        self._is_stopping = False

    # --- Public interface ---

    async def start(self, host: str, port: int) -> int:
        """Listen, and dial the peers; return the port (a free one for 0). Raises OSError."""
        listening_port = await self._acceptor.start(host, port)
        self._tasks.run(self._watch_silence())
        for peer in self._peers.values():
            peer.dialler = self._tasks.run(self._dialler.dial(peer))
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
            if linked.dialler is None and self._acceptor.is_started:
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
            peer.dropped_full_count += 1
            return False
        faults = self._faults
        if (
            faults is None
            or not faults.rules
            or not faults.took(connection, node, kind, header, payload)
        ):
            connection.send_encoded(frame, at_once=at_once)
        return True

    async def wait_tried(self) -> None:
        """Wait until each peer was met or could not be reached, at most `first_meeting_ms_max`."""
        await self._dialler.wait_tried(self._peers.values())

    def cut_off(self, node: NodeId, code: CloseCode, detail: str) -> None:
        """End the connections to a peer for a reason; the peer is dialled again."""
        peer = self._peers.get(node)
        for connection in peer.connections if peer is not None else ():
            self._end(connection, code, detail)

    def is_connected(self, node: NodeId) -> bool:
        """Whether a frame to `node` has a connection to leave on."""
        peer = self._peers.get(node)
        return peer is not None and bool(peer.dialled or peer.accepted)

    def forwarding_token(self, node: NodeId) -> bytes:
        """Return what proves this node to the framed port of `node`; empty: it has not said."""
        peer = self._peers.get(node)
        return peer.forwarding_token if peer is not None else b""

    def queued_size_bytes(self, node: NodeId) -> int:
        """Return the bytes that wait to be sent to `node`; a sender of large data keeps this
        low."""
        peer = self._peers.get(node)
        return peer.queued_size_bytes if peer is not None else 0

    def stats(self) -> LinkStats:
        """Return a snapshot of the counters. Not for the hot path."""
        return LinkStats(
            tuple(peer.stats(peer.connections) for peer in self._peers.values()),
            self._acceptor.stranger_count,
            self._acceptor.accepted_count,
            self._acceptor.failure_count,
            dict(self._closed_counts),
        )

    async def stop(self) -> None:
        """Say Goodbye to all peers and close all sockets. The handler is not called any more."""
        self._is_stopping = True
        if self._faults is not None:
            self._faults.stop()
        for peer in self._peers.values():
            peer.dialled = peer.accepted = peer.requests_out = None
        for connection in self._connections:
            connection.drop_frames()
        await self._acceptor.stop()
        await self._tasks.stop()
        left = list(self._connections)
        for connection in left:
            connection.close(
                CloseCode.STOPPING, "the node stops", goodbye_too=connection.info is not None
            )
        await asyncio.gather(*(asyncio.shield(connection.closed) for connection in left))
        assert not self._connections, "a connection outlived its end"

    # --- Dialled connections ---

    def _stop_dialling(self, peer: LinkPeer) -> None:
        if peer.dialler is not None:
            peer.dialler.cancel()
            peer.dialler = None

    # --- ConnectionOwner ---

    def on_made(self, connection: PeerConnection) -> None:
        self._connections[connection] = None

    def on_handshake_frame(
        self, connection: PeerConnection, kind: FrameKind, header: bytes
    ) -> None:
        if kind is FrameKind.GOODBYE:
            code, text = handshake.read_goodbye(header)
            if connection.side is Side.ACCEPTED and connection.info is None:
                self._end(connection, CloseCode.GARBAGE, "a Goodbye instead of a Hello")
                return
            peer = self._peers.get(connection.info.node_id) if connection.info else None
            if peer is not None and code == CloseCode.PROTOCOL_ERROR and not self._is_stopping:
                self._handler.on_refused(peer.node)
            self._end(connection, CloseCode.REFUSED, f"the peer said {code}: {text}")
            return
        try:
            info = self._greeting.take(connection, kind, header, self._peers)
            if info is not None:
                self._open(connection, info)
        except HandshakeRefusedError as error:
            self._end(connection, error.code, error.detail)

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

    def on_bad_bytes(
        self, connection: PeerConnection, error: FrameError | PeerProtocolError
    ) -> None:
        is_known = connection.info is not None
        code = CloseCode.PROTOCOL_ERROR if is_known else CloseCode.GARBAGE
        if isinstance(error, TermJumpError):
            code = CloseCode.TERM_JUMP
        self._end(connection, code, error.detail)

    def on_closed(self, connection: PeerConnection) -> None:
        self._drop(connection)
        if connection.close_code is None:
            self._end(connection, CloseCode.LOST, "closed by the other side or the network")

    def _drop(self, connection: PeerConnection) -> None:
        self._connections.pop(connection, None)

    # --- Handshake ---

    def _open(self, connection: PeerConnection, info: PeerInfo) -> None:
        """Use this connection from here on: its handshake was good. Raises
        HandshakeRefusedError."""
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

    def _end(self, connection: PeerConnection, code: CloseCode, detail: str) -> None:
        """Close a connection for a reason: tell the peer, count and log it. Once for each
        connection."""
        if connection.close_code is not None:
            return
        is_peer = connection.info is not None
        has_word = code in CODES_SAID and not connection.closed.done()
        connection.close(code, detail, goodbye_too=has_word)
        self._closed_counts[code] = self._closed_counts.get(code, 0) + 1
        node = connection.info.node_id if connection.info is not None else connection.to
        peer = self._peers.get(node)
        whom = f"node {node}" if node else connection.remote
        trouble = f"{code}: {detail}"
        if peer is not None:
            peer.last_trouble = trouble
        if not self._is_stopping and code is not CloseCode.STOPPING:
            kind = (
                f"connection {'to a peer' if peer is not None else 'of a stranger'} ended, {code}"
            )
            self._log.warn(kind, f"{whom}: {detail}")
        if is_peer and peer is not None:
            self._forget(peer, connection)

    def _forget(self, peer: LinkPeer, connection: PeerConnection) -> None:
        """Use a connection no more, and tell the handler."""
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
