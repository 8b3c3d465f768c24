"""One way to replicate, at work in one node, and what it gets of that node.

`node.replication.raft.assembly` and `node.replication.ha.assembly` make the two values that exist,
so the fields of `Replication` are the list of what differs between the two, and all that the rest
of the node knows of it. The calls of AdminService that belong to a node are among them; here is the
response of NodeStatus, as far as both modes fill it equally, and the row of a member.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from node.broker import Broker
from node.config.settings import Settings
from node.contract import Driver, ReceiptRules, ReplicaStatus
from node.errors.common import BadRequestError, UpgradeRefusedError, WrongModeError
from node.monitoring.health import Health
from node.monitoring.history import History
from node.monitoring.pages import Pages
from node.nameserver.local_broker import LocalBroker
from node.nameserver.service import NameServerService
from node.peers.common_link import Link
from node.peers.handshake import LinkIdentity
from node.peers.lives_codec import NO_BUILD
from node.peers.security.tls import TlsFiles
from node.replication.fetch import EntryFetcher
from node.replication.lives import NodeLives
from node.replication.maintenance import Maintenance
from node.runtime.fail_stop import FailStop
from node.runtime.logs.events import EVENTS
from node.runtime.on_thread import on_thread
from node.runtime.opening import Opening
from node.state.append_times import AppendTimes
from node.state.machine import StateMachine
from node.state.tables.level import LEVEL, LevelTable
from quorumlog.pb import admin_pb2 as pb
from quorumlog.pb.state_pb2 import Command
from quorumlog.version import __version__
from raft.messages import NO_INDEX, Index, NodeId
from store.errors import CorruptionError, DerivedFileError
from store.files.file_system import FileSystem
from store.microscope.directory import SIZE_BYTES_MAX, LogDirectory
from store.microscope.specimen import Specimen
from store.replicated.ledger_store import ReplicaStore
from store.replicated.shipped_store import ShippedStore
from store.replicated.store import ReplicatedStore

_POLL_S: Final = 0.005
_READ_COUNT: Final = 3
"""Copies of the bytes of a look: as read, as returned, and as sent."""


class NodeCalls(Protocol):
    """The calls that the node makes itself. Services find the others by the names in the proto."""

    async def node_status(self, request: pb.NodeStatusRequest, /) -> pb.NodeStatusResponse: ...
    async def retire(self, timeout_ms: int, /) -> None: ...


def refused(what: str, instead: str) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the method of a call that only the other way to replicate has. `what` are words for
    what it does, `instead` says what serves here."""

    async def refuse(calls: Any, _request: Any) -> Any:
        raise WrongModeError(what, calls.parts.settings.replication, instead)

    return refuse


@dataclass(frozen=True)
class Replication:
    """The components of a replica; none of them has been started but the link."""

    store: ReplicaStore | ShippedStore
    machine: StateMachine
    link: Link
    """The connections to the other nodes, open since before the log was."""
    driver: Driver
    start: Callable[[], None]
    """Starts the driver."""
    receipts: ReceiptRules
    maintenance: Maintenance[Any]
    status: Callable[[], ReplicaStatus]
    """Returns the place of the replica in its group."""
    warnings: Callable[[], tuple[str, ...]]
    """Returns what an operator of this mode should know, as sentences."""
    on_damage: Callable[[CorruptionError], None]
    """Reacts to damage of the log: has it fetched from a peer, or says what to do."""
    admin: NodeCalls
    """The calls of AdminService that differ."""
    local_broker: LocalBroker
    """The view of a name server on this node."""
    fetcher: EntryFetcher | None = None
    """Fetches entries from peers for comparison; None: there is no comparison."""


class NodeParts:
    """The parts of a node that its replica uses. The node is one, and fills all of them in."""

    settings: Settings
    fs: FileSystem
    fail_stop: FailStop
    health: Health
    lives: NodeLives
    pages: Pages
    life: AsyncExitStack
    """The end of everything that the start opened."""
    opening: Opening
    address: str
    """host:port of the client service, once the peers are met."""
    peer_address: str
    """host:port of this node's peer link, once the peers are met."""
    replication: Replication
    nameserver: NameServerService
    broker: Broker
    """Made after the replica, in the same turn of the loop, since it listens to the driver."""
    began_s: float
    """When the process of this node began."""
    log_is_open: Callable[[ReplicatedStore[Any]], None]
    """Watches the syncs of an open log. Raises PortTakenError of the HTTP port."""
    meet_peers: Callable[[Callable[[LinkIdentity, TlsFiles | None], Link]], Awaitable[None]]
    """Opens the ports, and the link that its argument makes. A repeated call does nothing."""
    spawn: Callable[[Any], None]
    """Runs a coroutine as a task of the node."""
    append_times: AppendTimes
    """The stages of appends, while this node leads."""
    on_met: Callable[[CorruptionError | DerivedFileError], None]
    """Reacts to damage that background work met."""
    warnings: Callable[[], tuple[str, ...]]
    """Returns the warnings for an operator, as sentences."""
    history: History
    """The last hour in numbers, once the node serves."""
    note_warnings: Callable[[], None]
    """Logs the warnings that are new."""

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
        store, broker = self.replication.store.stats().gauges, self.broker
        replica = self.replication.status()
        return pb.NodeStatusResponse(
            cluster_id=self.settings.cluster_id,
            node_id=self.settings.node_id,
            version=__version__,
            **replica.fields(),
            first_log_position=positions[0],
            end_log_position=positions[1],
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
            level=self.level,
            level_max=LEVEL,
            users=self.settings.users,
        )

    def last_hour(self) -> pb.HistoryResponse:
        """Return the samples of the last hour."""
        groups = [
            pb.GroupHistory(group=group, samples=[pb.LagSample(**row._asdict()) for row in rows])
            for group, rows in self.history.groups.items()
        ]
        samples = [pb.HistorySample(**row._asdict()) for row in self.history.samples]
        return pb.HistoryResponse(samples=samples, groups=groups)

    @staticmethod
    def events(request: pb.EventsRequest) -> pb.EventsResponse:
        """Return the last events of this process."""
        events = EVENTS.after(request.after, request.began_unix_ms, request.count_max)
        rows = [pb.NodeEvent(**event._asdict()) for event in events]
        return pb.EventsResponse(began_unix_ms=EVENTS.began_unix_ms, events=rows)

    async def read_log(self, request: pb.ReadLogRequest) -> pb.ReadLogResponse:
        """Return bytes of the files of this node without a check; the caller pays for them.

        Raises BadRequestError, WrongModeError, PositionRangeError, LimitExceededError, BusyError.
        """
        store, what = self.replication.store, request.WhichOneof("what")
        if what is None:
            raise BadRequestError("what", "index, log_position, queue_unit or key_slot", "none")
        if what == "index" and store.config.container != "ledger":
            what_for, instead = "a look at an entry by index", "name a log position"
            raise WrongModeError(what_for, self.settings.replication, instead)

        def bounds() -> tuple[int, int]:
            return store.log.min_position, store.dispatched_position

        def read() -> tuple[Specimen, ...]:
            with LogDirectory(store.root, store.config, bounds) as there:
                match what:
                    case "index":
                        return there.entry(request.index)
                    case "log_position":
                        return there.record(request.log_position)
                    case "queue_unit":
                        unit = request.queue_unit
                        return there.queue_unit(unit.topic, unit.queue_id, unit.offset)
                    case _:
                        return there.key_slot(request.key_slot)

        async with self.broker.context.turn.walk(_READ_COUNT * SIZE_BYTES_MAX) as walk:
            await walk.wait()  # One read of an address at a time.
            things = await on_thread(read)
        return pb.ReadLogResponse(things=[_log_bytes(one) for one in things])

    @property
    def level(self) -> int:
        """The level at which the group works, as far as this node has applied its log."""
        return self.broker.context.state.table(LevelTable).level

    async def finalize_upgrade(self, members: Sequence[NodeId]) -> pb.FinalizeUpgradeResponse:
        """Raise the level of the group to the one of this build, once each member has it; leader
        only. Raises UpgradeRefusedError."""
        for node in members:
            if node == self.settings.node_id:
                continue
            if not self.replication.link.is_connected(node):
                raise UpgradeRefusedError(f"node {node} is not connected: start or remove it first")
            has = self.lives.builds.get(node, NO_BUILD).level
            if has < LEVEL:
                reason = f"the build of node {node} has level {has}, this one level {LEVEL}"
                raise UpgradeRefusedError(reason)
        if self.level < LEVEL:
            command = Command.RaiseLevel(level=LEVEL)
            await self.broker.own_appends.submit(Command(raise_level=command))
        return pb.FinalizeUpgradeResponse(level=self.level)

    def member(
        self, node: NodeId, *, is_voter: bool, match_index: Index, progress: str
    ) -> pb.MemberStatus:
        """Return the row of one member."""
        return pb.MemberStatus(
            node_id=node,
            address=self.broker.context.address_of(node),
            peer_address=self.peer_address_of(node),
            is_voter=is_voter,
            is_connected=node == self.settings.node_id or self.replication.link.is_connected(node),
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
        ready, problem = self.health.ready(), self.nameserver.problem
        return [
            *([] if ready.is_good else [ready.reason]),
            *sentences,
            *([problem] if problem else []),
            *self.warnings(),
        ]


def _log_bytes(specimen: Specimen) -> pb.LogBytes:
    fields = specimen._asdict()
    return pb.LogBytes(log_position=fields.pop("position"), **fields)
