"""The parts of a node that the calls of AdminService use in both replication modes.

Owns the response of NodeStatus, as far as both modes fill it alike, and the row of a member.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from node.broker import Broker
from node.config.settings import Settings
from node.monitoring.health import Health
from node.monitoring.replica_status import NodeReplicaStatus
from node.replication.lives import NodeLives
from quorumlog.pb import admin_pb2 as pb
from quorumlog.version import __version__
from raft.messages import NO_INDEX, Index, NodeId
from store.stats import StoreStats


@dataclass(frozen=True, slots=True)
class NodeParts:
    """One node, as far as both modes are equal."""

    settings: Settings
    health: Health
    broker: Broker
    lives: NodeLives
    replica_status: Callable[[], NodeReplicaStatus]
    store_stats: Callable[[], StoreStats]
    is_connected: Callable[[NodeId], bool]
    """Whether the link to another node is up."""
    peer_address_of: Callable[[NodeId], str]
    nameserver_problem: Callable[[], str]
    warnings: Callable[[], tuple[str, ...]]
    began_s: float = field(default_factory=time.monotonic)
    """When this node began to serve."""

    def node_status(
        self,
        *,
        positions: tuple[int, int],
        members: Sequence[pb.MemberStatus],
        details: Sequence[str],
        loss_from_index: Index = NO_INDEX,
    ) -> pb.NodeStatusResponse:
        """Return the whole status of the node; `positions` are the first and the end of its log.

        Cheap enough for many callers every second.
        """
        store, broker = self.store_stats().gauges, self.broker.stats()
        replica = self.replica_status()
        return pb.NodeStatusResponse(
            cluster_id=self.settings.cluster_id,
            node_id=self.settings.node_id,
            version=__version__,
            **replica.fields(),
            first_position=positions[0],
            end_position=positions[1],
            flush=self.settings.flush,
            standing=replica.standing.name.lower(),
            disk_state=store.disk_state,
            disk_used_ratio=store.disk_used_ratio,
            uptime_ms=int(1000 * (time.monotonic() - self.began_s)),
            appends_total=broker.records_total,
            appended_size_bytes_total=broker.records_size_bytes_total,
            pulls_total=broker.pulls_total,
            pulled_records_total=broker.pulled_records_total,
            busy_total=broker.busy_total,
            in_flight_size_bytes=broker.in_flight_size_bytes,
            is_draining=self.broker.is_draining,
            loss_from_index=loss_from_index,
            members=members,
            detail="; ".join(details),
            pid=os.getpid(),
            replication=self.settings.replication,
        )

    def member(
        self, node: NodeId, *, is_voter: bool, match_index: Index, progress: str
    ) -> pb.MemberStatus:
        """Return the row of one member."""
        return pb.MemberStatus(
            node_id=node,
            address=self.broker.address_of(node),
            peer_address=self.peer_address_of(node),
            is_voter=is_voter,
            is_connected=node == self.settings.node_id or self.is_connected(node),
            match_index=match_index,
            progress=progress,
        )

    def details(self, found: Sequence[str]) -> list[str]:
        """Return the sentences for an operator, with `found` of the mode between those of both."""
        ready, problem = self.health.ready(), self.nameserver_problem()
        return [
            *([] if ready.is_good else [ready.reason]),
            *found,
            *([problem] if problem else []),
            *self.warnings(),
        ]
