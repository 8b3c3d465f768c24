"""The HA link: every replica dials every other one, for as long as it runs.

Owns the connections and their limits; must not know roles or what a frame says. Each connection
carries one direction of the protocol: the side that dialled is the slave side, so there are two
connections between two replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

from node.peers.common_link import CommonLink
from node.peers.dialler import PeerRecord
from node.peers.handshake import CloseCode, LinkIdentity, PeerInfo
from node.peers.security.tls import TlsFiles
from node.peers.stream import Side
from node.peers.types import LinkLimits, PeerLives
from node.replication.ha.core.wire import Frame
from node.replication.ha.link.connection import HaConnection, TakeHaFrame
from raft.messages import Index, NodeId

_LIMITS: Final = LinkLimits()


class _Peer(PeerRecord):
    __slots__ = ("connections",)

    def __init__(self, node: NodeId, address: tuple[str, int]) -> None:
        super().__init__(node, address)
        self.connections: list[HaConnection] = []


class HaLink(CommonLink[HaConnection, _Peer]):
    """All connections of one replica. Belongs to the running event loop."""

    name = "HA link"

    def __init__(
        self,
        identity: LinkIdentity,
        peers: Mapping[NodeId, tuple[str, int]],
        on_met: Callable[[NodeId, Index], None],
        last_index: Callable[[], Index],
        *,
        tls: TlsFiles | None = None,
        lives: PeerLives,
        limits: LinkLimits = _LIMITS,
    ) -> None:
        """`peers` may contain this node. `on_met` is called with each replica that passed its
        handshake, and what that says of its log; `last_index` is what it says of the own log:
        NO_INDEX from a disk that never promised anything."""
        super().__init__(
            identity,
            last_index,
            lives,
            limits,
            Random(),
            tls=tls,
        )
        self._on_met = on_met
        self._on_open: Callable[[HaConnection], None] = lambda _: None
        self._on_frame: TakeHaFrame = lambda *_: False
        self._on_closed: Callable[[HaConnection], None] = lambda _: None
        others = {node: address for node, address in peers.items() if node != identity.node_id}
        self._peers = {node: _Peer(node, address) for node, address in others.items()}

    def attach(
        self,
        on_open: Callable[[HaConnection], None],
        on_frame: TakeHaFrame,
        on_closed: Callable[[HaConnection], None],
    ) -> None:
        """Hand over the connections that passed their handshake, and every later event.

        `on_open` takes a connection, and calls its `begin` to get its frames. `on_closed` forgets a
        connection that is gone, unless `close` closed it. An exception is a bug and reaches the
        loop.
        """
        self._on_open, self._on_frame, self._on_closed = on_open, on_frame, on_closed
        for peer in self._peers.values():
            for connection in list(peer.connections):
                on_open(connection)

    def close(self, connection: HaConnection, reason: str) -> None:
        """End a connection at the machine's request. It is dialled again if this side had
        dialled."""
        if connection.info is not None and connection in self._peers[connection.peer].connections:
            self._peers[connection.peer].connections.remove(connection)
        self._end(connection, CloseCode.PROTOCOL_ERROR, reason)

    def _take_frame(self, connection: HaConnection, frame: Frame) -> bool:
        return self._is_stopping or self._on_frame(connection, frame)

    # --- CommonLink ---

    def _make(self, side: Side, to: NodeId) -> HaConnection:
        return HaConnection(self, self.limits, side, to)

    def _says_goodbye(self, connection: HaConnection, code: CloseCode) -> bool:
        return connection.info is None and super()._says_goodbye(connection, code)

    def _open(self, connection: HaConnection, info: PeerInfo) -> None:
        peer = self._peers[info.node_id]
        connection.open(info, peer.traffic, self._take_frame)
        peer.forwarding_token = info.forwarding_token or peer.forwarding_token
        self._dialler.note_tried(peer)
        peer.connections.append(connection)
        if self._faults is not None:
            connection.harm = partial(self._faults.harmed, info.node_id)
        self._on_met(info.node_id, info.last_index)
        self._on_open(connection)

    def _forget(self, peer: _Peer, connection: HaConnection) -> None:
        if connection in peer.connections:
            peer.connections.remove(connection)
            if not self._is_stopping:
                self._on_closed(connection)
