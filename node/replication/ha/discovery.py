"""Discovery of the replicas of a group: the role of an empty disk, and the receiver of frames.

Owns the time before there is a driver: connections that passed their handshake wait here, and an
empty disk learns from them whether the group is new (`node.replication.foundation`). Afterwards it
only hands every event on.
"""

from __future__ import annotations

from node.replication.foundation import Foundation
from node.replication.ha.core.wire import Frame
from node.replication.ha.inbound import Inbound
from node.replication.ha.link.connection import HaConnection
from raft.messages import NodeId


class Discovery:
    """The handler of the HA link."""

    def __init__(self, node_id: NodeId, replica_ids: tuple[NodeId, ...]) -> None:
        self.foundation = Foundation(node_id, replica_ids)
        """The role of an empty disk, as far as it is known."""
        self._waiting: list[HaConnection] = []
        self._inbound: Inbound | None = None

    def attach(self, inbound: Inbound) -> None:
        """Hand every event to the driver's inbound frames from now on."""
        self._inbound = inbound
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            inbound.on_open(connection)

    # Called by the link.

    def on_open(self, connection: HaConnection) -> None:
        assert connection.info is not None, "the handshake is over"
        self.foundation.on_peer(connection.info.node_id, connection.info.last_index)
        if self._inbound is not None:
            self._inbound.on_open(connection)
        else:
            self._waiting.append(connection)

    def on_frame(self, connection: HaConnection, frame: Frame) -> bool:
        assert self._inbound is not None, "nothing is read before a driver is there"
        return self._inbound.on_frame(connection, frame)

    def on_closed(self, connection: HaConnection) -> None:
        if self._inbound is not None:
            self._inbound.on_closed(connection)
        else:
            self._waiting.remove(connection)
