"""The HA link: every replica dials every other one, for as long as it runs.

Owns the connections and their limits; must not know roles or what a frame says. Each connection
carries one direction of the protocol: the side that dialled is the slave side, so there are two
connections between two replicas.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final, Protocol

from node.peers.common_link import CommonLink
from node.peers.dialler import PeerRecord
from node.peers.handshake import CloseCode, LinkIdentity, PeerInfo
from node.peers.stream import Side
from node.peers.types import LinkLimits, PeerLives
from node.replication.ha.core.wire import Frame
from node.replication.ha.link.connection import HaConnection
from raft.messages import Index, NodeId

_LIMITS: Final = LinkLimits()


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

    __slots__ = ("_connections",)

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        super().__init__(node, address)
        self._connections: list[HaConnection] = []

    @property
    def connections(self) -> list[HaConnection]:
        """Connections that passed their handshake, oldest first."""
        return self._connections


class HaLink(CommonLink[HaConnection, _Peer]):
    """All connections of one replica. Belongs to the running event loop."""

    name = "HA link"

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
        super().__init__(
            identity,
            last_index,
            lives,
            limits,
            Random(),
            server_tls=server_tls,
            client_tls=client_tls,
        )
        self._handler = handler
        others = {node: address for node, address in peers.items() if node != identity.node_id}
        self._peers = {node: _Peer(node, address) for node, address in others.items()}

    def close(self, connection: HaConnection, reason: str) -> None:
        """End a connection at the machine's request. It is dialled again if this side had
        dialled."""
        if connection.info is not None and connection in self._peers[connection.peer].connections:
            self._peers[connection.peer].connections.remove(connection)
        self._end(connection, CloseCode.PROTOCOL_ERROR, reason)

    # --- HaConnectionOwner ---

    def on_frame(self, connection: HaConnection, frame: Frame) -> bool:
        return self._is_stopping or self._handler.on_frame(connection, frame)

    def on_too_much(self, connection: HaConnection) -> None:
        if connection.info is not None and (peer := self._peers.get(connection.info.node_id)):
            peer.dropped_full_count += 1
        # Not from within the call that sends.
        self._loop.call_soon(
            self._end, connection, CloseCode.SILENT, "it does not read what it is sent"
        )

    # --- CommonLink ---

    def _make(self, side: Side, to: NodeId) -> HaConnection:
        return HaConnection(self, self.limits, side, to=to)

    def _says_goodbye(self, connection: HaConnection, code: CloseCode) -> bool:
        return connection.info is None and super()._says_goodbye(connection, code)

    def _open(self, connection: HaConnection, info: PeerInfo) -> None:
        peer = self._peers[info.node_id]
        connection.open(info, peer.traffic)
        peer.forwarding_token = info.forwarding_token or peer.forwarding_token
        self._dialler.note_tried(peer)
        peer.connections.append(connection)
        if self._faults is not None:
            connection.harm = partial(self._faults.harmed, info.node_id)
        self._handler.on_open(connection)

    def _forget(self, peer: _Peer, connection: HaConnection) -> None:
        if connection in peer.connections:
            peer.connections.remove(connection)
            if not self._is_stopping:
                self._handler.on_closed(connection)
