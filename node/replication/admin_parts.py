"""The calls of AdminService that belong to a node, and what they use in both ways to replicate.

Owns the response of NodeStatus, as far as both modes fill it equally, and the row of a member.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from node.broker import Broker
from node.config.settings import Settings
from node.contract import ReplicaStatus
from node.errors.common import WrongModeError
from node.monitoring.health import Health
from node.peers.common_link import Link
from node.replication.lives import NodeLives
from quorumlog.pb import admin_pb2 as pb
from quorumlog.version import __version__
from raft.messages import NO_INDEX, Index, NodeId
from store.replicated.store import ReplicatedStore

_POLL_S: Final = 0.005


class NodeCalls(Protocol):
    """The calls that the node makes itself. Services find the others by the names in the proto."""

    async def node_status(self, request: pb.NodeStatusRequest, /) -> pb.NodeStatusResponse: ...
    async def retire(self, timeout_ms: int, /) -> None: ...


def refused(call: str) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the method of a call that only the other way to replicate has."""

    async def refuse(calls: Any, _request: Any) -> Any:
        raise WrongModeError(call, calls.parts.settings.replication)

    return refuse


@dataclass(frozen=True, slots=True)
class NodeParts:
    """One node, as far as both modes are equal."""

    settings: Settings
    health: Health
    broker: Broker
    lives: NodeLives
    store: ReplicatedStore[Any]
    link: Link
    replica_status: Callable[[], ReplicaStatus]
    peer_address: str
    """host:port of this node's peer link."""
    nameserver_problem: Callable[[], str]
    warnings: Callable[[], tuple[str, ...]]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a coroutine as a task of the node."""
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
        store, broker = self.store.stats().gauges, self.broker
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
            appends_total=broker.produce.records_total,
            appended_size_bytes_total=broker.produce.size_bytes_total,
            pulls_total=broker.pulls.pulls_total,
            pulled_records_total=broker.pulls.records_total,
            busy_total=broker.produce.busy_total,
            in_flight_size_bytes=broker.produce.in_flight_size_bytes,
            is_draining=self.broker.produce.is_draining,
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
            address=self.broker.context.address_of(node),
            peer_address=self.peer_address_of(node),
            is_voter=is_voter,
            is_connected=node == self.settings.node_id or self.link.is_connected(node),
            match_index=match_index,
            progress=progress,
        )

    def peer_address_of(self, node: NodeId) -> str:
        """Return host:port of a node's peer link; empty if it is not known."""
        member = self.broker.context.state.members.get(node)
        if member is not None and member.peer_address:
            return member.peer_address
        peer = self.settings.peers.get(node)
        if peer is not None:
            return str(peer.peer_address)
        return self.peer_address if node == self.settings.node_id else ""

    async def appends_decided(self) -> None:
        """Return once no append is pending."""
        while self.broker.produce.in_flight_count:  # noqa: ASYNC110 - once in a life.
            await asyncio.sleep(_POLL_S)

    def details(self, sentences: Sequence[str]) -> list[str]:
        """Return the sentences for an operator, those of the mode in the middle."""
        ready, problem = self.health.ready(), self.nameserver_problem()
        return [
            *([] if ready.is_good else [ready.reason]),
            *sentences,
            *([problem] if problem else []),
            *self.warnings(),
        ]
