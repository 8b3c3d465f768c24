"""The HA link: every replica dials every other one, for as long as it runs.

Owns the connections and their limits; must not know roles or what a frame says. Each connection
carries one direction of the protocol: the side that dialled is the slave side, so there are two
connections between two replicas.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final, Protocol

from node.peers import handshake
from node.peers.acceptor import Acceptor
from node.peers.dialler import Dialler, LinkTasks, PeerRecord
from node.peers.faults import LinkFaults
from node.peers.frames import FrameKind
from node.peers.greeting import Greeter
from node.peers.handshake import CloseCode, HandshakeRefusedError, LinkIdentity, PeerInfo
from node.peers.stream import Side
from node.peers.types import LinkLimits, LinkStats, PeerLives
from node.replication.ha.core.wire import Frame
from node.replication.ha.link.connection import HaConnection
from node.runtime.logs.rate_limited_log import RateLimitedLog
from raft.messages import Index, NodeId

_LIMITS: Final = LinkLimits()
_log: Final = logging.getLogger(__name__)


class HaLinkHandler(Protocol):
    """Receives events of the link. On the loop's thread; an exception is a bug and reaches the
    loop."""

    def on_open(self, connection: HaConnection) -> None:
        """Take a connection that passed its handshake; call `begin` to get its frames."""
        ...

    def on_frame(self, connection: HaConnection, frame: Frame) -> bool:
        """Take one frame; return whether it was taken. If not, `resume` offers it again."""
        ...

    def on_closed(self, connection: HaConnection) -> None:
        """Forget a connection that is gone. Not called for one that `HaLink.close` closed."""
        ...


class _Peer(PeerRecord):
    """One other replica."""

    __slots__ = ("connections",)

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        super().__init__(node, address)
        self.connections: list[HaConnection] = []
        """Connections that passed their handshake, oldest first."""


class HaLink:
    """All connections of one replica. Belongs to the running event loop."""

    def __init__(
        self,
        identity: LinkIdentity,
        peers: Mapping[NodeId, tuple[str, int]],
        handler: HaLinkHandler,
        last_index: Callable[[], Index],
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        lives: PeerLives,
        limits: LinkLimits = _LIMITS,
    ) -> None:
        """`peers` may contain this node. `last_index` is what a handshake says of the own log:
        NO_INDEX from a disk that never promised anything."""
        self.identity = identity
        self._handler, self._limits = handler, limits
        self._greeting = Greeter(identity, last_index, lives)
        self._tasks = LinkTasks("HA link")
        self._loop = asyncio.get_running_loop()
        self._random = Random()
        self._log = RateLimitedLog(
            _log, interval_ms=limits.log_interval_ms, monotonic_s=self._loop.time
        )
        others = {node: address for node, address in peers.items() if node != identity.node_id}
        self._peers = {node: _Peer(node, address) for node, address in others.items()}
        self._connections: set[HaConnection] = set()
        self._dialler = Dialler(
            limits,
            lambda node: HaConnection(self, limits, Side.DIALLED, to=node),
            self._end,
            self._connections.discard,
            tls=client_tls,
            random=self._random,
        )
        self._acceptor = Acceptor(
            limits,
            self._tasks,
            lambda: HaConnection(self, limits, Side.ACCEPTED),
            self._greeting.challenge,
            self._end,
            self._connections.discard,
            self._log,
            tls=server_tls,
        )
        self._closed_counts: dict[str, int] = {}
        self._is_stopping = False
        self._faults = LinkFaults.from_environment(identity.node_id, self._random)

    # --- Public interface ---

    async def start(self, host: str, port: int) -> int:
        """Listen, and dial the others; return the port. Raises OSError."""
        listening_port = await self._acceptor.start(host, port)
        for peer in self._peers.values():
            self._tasks.run(self._dialler.dial(peer))
        return listening_port

    async def wait_tried(self) -> None:
        """Wait until each peer was met or could not be reached, at most `first_meeting_ms_max`."""
        await self._dialler.wait_tried(self._peers.values())

    def close(self, connection: HaConnection, reason: str) -> None:
        """End a connection at the machine's request. It is dialled again if this side had
        dialled."""
        self._end(connection, CloseCode.PROTOCOL_ERROR, reason, is_asked=True)

    def is_connected(self, node: NodeId) -> bool:
        """Whether there is any connection to a replica."""
        peer = self._peers.get(node)
        return peer is not None and bool(peer.connections)

    def forwarding_token(self, node: NodeId) -> bytes:
        """Return what proves this node to the framed port of `node`; empty: it has not said."""
        peer = self._peers.get(node)
        return peer.forwarding_token if peer is not None else b""

    def stats(self) -> LinkStats:
        """Return a snapshot of the counters, in the form of the raft peer link."""
        return LinkStats(
            tuple(peer.stats(peer.connections) for peer in self._peers.values()),
            self._acceptor.stranger_count,
            self._acceptor.accepted_count,
            self._acceptor.failure_count,
            dict(self._closed_counts),
        )

    async def stop(self) -> None:
        """Close all sockets. The handler is not called any more."""
        self._is_stopping = True
        if self._faults is not None:
            self._faults.stop()
        await self._acceptor.stop()
        await self._tasks.stop()
        while left := list(self._connections):
            for connection in left:
                self._end(connection, CloseCode.STOPPING, "the node stops")
            await asyncio.gather(*(asyncio.shield(connection.closed) for connection in left))

    # --- ConnectionOwner ---

    def on_made(self, connection: HaConnection) -> None:
        self._connections.add(connection)

    def on_handshake_frame(self, connection: HaConnection, kind: FrameKind, header: bytes) -> None:
        if kind is FrameKind.GOODBYE:
            code, text = handshake.read_goodbye(header)
            self._end(connection, CloseCode.REFUSED, f"the peer said {code}: {text}")
            return
        try:
            info = self._greeting.take(connection, kind, header, self._peers)
            if info is not None:
                self._open(connection, info)
        except HandshakeRefusedError as error:
            self._end(connection, error.code, error.detail, goodbye_too=True)

    def on_frame(self, connection: HaConnection, frame: Frame) -> bool:
        return self._is_stopping or self._handler.on_frame(connection, frame)

    def on_bad_bytes(
        self, connection: HaConnection, detail: str, code: CloseCode | None = None
    ) -> None:
        is_known = connection.info is not None
        what = CloseCode.PROTOCOL_ERROR if is_known else CloseCode.GARBAGE
        self._end(connection, code or what, detail)

    def on_too_much(self, connection: HaConnection) -> None:
        if connection.info is not None and (peer := self._peers.get(connection.info.node_id)):
            peer.dropped_full_count += 1
        # Not from within the call that sends.
        self._loop.call_soon(
            self._end, connection, CloseCode.SILENT, "it does not read what it is sent"
        )

    def on_lost(self, connection: HaConnection) -> None:
        self._connections.discard(connection)
        self._end(connection, CloseCode.LOST, "closed by the other side or the network")

    def _open(self, connection: HaConnection, info: PeerInfo) -> None:
        peer = self._peers[info.node_id]
        connection.open(info, peer.traffic)
        peer.forwarding_token = info.forwarding_token or peer.forwarding_token
        self._dialler.note_tried(peer)
        peer.connections.append(connection)
        if self._faults is not None:
            connection.harm = partial(self._faults.harmed, info.node_id)
        self._handler.on_open(connection)

    # --- The end of connections ---

    def _end(
        self,
        connection: HaConnection,
        code: CloseCode,
        detail: str,
        *,
        is_asked: bool = False,
        goodbye_too: bool = False,
    ) -> None:
        """Close a connection for a reason, count and log it. Once for each connection."""
        if connection.close_code is not None:
            return
        connection.close(code, detail, goodbye_too=goodbye_too)
        self._closed_counts[code] = self._closed_counts.get(code, 0) + 1
        info = connection.info
        peer = self._peers.get(info.node_id if info is not None else connection.to)
        if peer is not None:
            peer.last_trouble = f"{code}: {detail}"
        if not self._is_stopping:
            whom = f"node {peer.node}" if peer is not None else connection.remote
            self._log.warn(f"connection {connection.side.value} ended, {code}", f"{whom}: {detail}")
        if info is None or peer is None:
            return
        peer.connections.remove(connection)
        if not is_asked and not self._is_stopping:
            self._handler.on_closed(connection)
