"""One node: all parts, put together in order.

Owns that order: the store opens first (its lock decides who may run), then peers are met, an empty
disk learns what it is, and only then anything is served. Stopping is `node.stopping`, signals and
exit codes are the lifecycle's.
"""

import asyncio
import gc
import time
from dataclasses import replace
from random import SystemRandom
from typing import Any, Final, cast

import structlog
from prometheus_client import CollectorRegistry

from node import metrics, picture
from node.admin import NodeAdmin
from node.broker import Broker, BrokerIdentity
from node.broker.seam import BrokerDriver
from node.checkpoint_files import CheckpointFiles
from node.config import Settings
from node.config_types import Address
from node.connection_watch import DriverWatch, FetchWatch, FoundingWatch
from node.driver import Driver
from node.environment import raise_descriptor_limit, store_host, tls_files
from node.fail_stop import DAMAGE_MARKER, FailStop
from node.fetch import EntryFetcher, EntryServer
from node.founding import Founding, Verdict
from node.handshake import LinkIdentity
from node.health import Health, Phase
from node.http import HttpServer
from node.ledger_log import LedgerLog
from node.limits import Limits
from node.maintenance import Maintenance
from node.nameserver.brokers import RaftBroker
from node.nameserver.calls import NameServerCalls
from node.nameserver.service import NameServerService
from node.node_file import write_node_file
from node.peer_frames import PeerFrames
from node.peer_link import PeerLink
from node.repair import ClosedRepair, LiveRepair, RepairProgress, open_repaired
from node.replica import Replica
from node.services.calls import Calls
from node.services.methods import handlers
from node.services.server import GrpcServer, PortTakenError
from node.snapshots import Snapshots
from node.state import Member
from node.state_machine import StateMachine
from node.tls import client_context, grpc_server_credentials, server_context
from node.wire import FrameKind
from quorumlog import __version__
from raft.messages import NO_INDEX, Index, NodeId
from raft.ready import RoleChange
from raft.transitions import Role
from store.errors import CorruptionError
from store.file_system import FileSystem
from store.ledger_fetched import RepairReport

RAFT_FRAMES: Final = (
    FrameKind.VOTE_REQUEST,
    FrameKind.VOTE_REPLY,
    FrameKind.APPEND,
    FrameKind.APPEND_REPLY,
    FrameKind.CAMPAIGN_NOW,
)
SNAPSHOT_FRAMES: Final = (FrameKind.INSTALL_SNAPSHOT, FrameKind.SNAPSHOT_CHUNK)
_log: Final = structlog.get_logger(component="node")


class Node:
    """The parts, each there once `start` has come to it."""

    fs: FileSystem
    log: LedgerLog
    files: CheckpointFiles
    machine: StateMachine
    link: PeerLink
    frames: PeerFrames
    replica: Replica
    driver: Driver
    broker: Broker
    admin: NodeAdmin
    maintenance: Maintenance
    snapshots: Snapshots
    fetcher: EntryFetcher
    repair: LiveRepair
    nameserver: NameServerService
    grpc: GrpcServer
    http: HttpServer

    def __init__(self, settings: Settings, fail_stop: FailStop) -> None:
        self.settings: Final = settings
        self.fail_stop: Final = fail_stop
        self.health: Final = Health()
        self.calls: Final = Calls(fail_stop, self._on_damage)
        self.address = self.peer_address = self.http_address = ""
        self.began_s: Final = time.monotonic()
        self._known_members: dict[NodeId, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bring the node up; returns once it serves. Raises what the parts raise, ports taken."""
        raise_descriptor_limit()
        self.fail_stop.describe = self.status
        http_error = await self._start_http()
        await self._open_store()
        if http_error is not None:
            raise http_error  # Not at once: that the directory is locked says more.
        await self.meet_peers()
        self._set_peers()
        await self._found()
        self._run_replica()
        await self._serve()

    # --- The steps ---

    async def _start_http(self) -> PortTakenError | None:
        registry = CollectorRegistry()
        registry.register(
            metrics.NodeCollector(lambda: picture.samples(self), lambda: picture.histograms(self))
        )
        self.http = HttpServer(self.health, registry, self.status)
        address = self.settings.http_listen
        if address is None:
            return None
        try:
            port = await self.http.start(address)
        except PortTakenError as error:
            return error
        self.http_address = str(Address(address.host, port))
        return None

    async def _open_store(self) -> None:
        settings = self.settings
        self.grpc = GrpcServer(rpc_count_max=settings.rpc_count_max)
        self.fs = FileSystem()

        def progress(what: str, done: int, total: int) -> None:
            self.health.detail = f"{what}: {done} of {total}"

        def open_log() -> LedgerLog:
            return LedgerLog.open(
                str(settings.directory),
                settings.store_config(store_host(settings)),
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                fs=self.fs,
                on_fatal=self.fail_stop,
                progress=progress,
            )

        marker = settings.directory / DAMAGE_MARKER
        if marker.exists():
            reports = await _RepairWhenNeeded(self).run()
            self._tell_repaired(reports)
            marker.unlink()
        # On a thread, so that probes are answered meanwhile; afterwards it belongs to the loop.
        self.log, reports = await open_repaired(open_log, _RepairWhenNeeded(self))
        self._tell_repaired(reports)
        self.health.enter(Phase.STARTING, "meeting the peers")
        self.files = CheckpointFiles(self.fs, str(settings.directory))
        limits = self._limits()
        self.machine = StateMachine(self.log.store, limits, self.files.load())
        installed = self.log.installed
        if installed is not None and self.machine.applied_index < installed.state_index:
            self.machine.restore(installed.state, installed.meta.index)

    async def meet_peers(self) -> None:
        """Open the ports, and begin to connect to the peers. Repeating it changes nothing."""
        if hasattr(self, "link"):
            return
        settings = self.settings
        tls = tls_files(settings)
        credentials = None
        if tls is not None:
            credentials = grpc_server_credentials(
                tls, require_client_certificate=settings.tls_client_auth
            )
        port = self.grpc.bind(settings.listen, credentials)
        self.address = str(settings.advertised(port))
        identity = LinkIdentity(
            settings.cluster_id,
            settings.group,
            settings.node_id,
            __version__,
            self.address,
            settings.secret(),
        )
        self.frames = PeerFrames(self._last_index, self.fail_stop)
        link = PeerLink(
            identity,
            self.frames,
            server_tls=server_context(tls) if tls is not None else None,
            client_tls=client_context(tls) if tls is not None else None,
        )
        listen = settings.peer_listen
        try:
            port = await link.start(listen.host, listen.port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortTakenError("peer_listen", str(listen), reason) from error
        self.peer_address = str(Address(listen.host, port))
        self.link = link
        self.fetcher = EntryFetcher(link, lambda: sorted(self.settings.peers))
        self.frames.take(FrameKind.FETCHED_ENTRIES, by=self.fetcher.on_frame)
        self.frames.watch(FetchWatch(self.fetcher))
        self._set_peers()
        found = {
            "node_id": settings.node_id,
            "cluster_id": settings.cluster_id,
            "address": self.address,
            "peer_address": self.peer_address,
            "http_address": self.http_address or None,
        }
        write_node_file(settings.directory, found)
        _log.info("listening", **found)

    async def _found(self) -> None:
        """Find out what an empty disk is, and let the others do so; for a disk with a history it is
        over at once."""
        waiting = FoundingWatch(
            Founding(self.settings.node_id, self.settings.voters), self._say_founded
        )
        self.frames.take(FrameKind.FOUNDED, by=waiting.on_founded)
        self.frames.watch(waiting)
        founding = waiting.founding
        if not self.log.is_founded:
            while founding.verdict is Verdict.WAIT:
                await self._wait_for(waiting, founding.missing)
            if founding.verdict is Verdict.FOUND:
                self.log.found(self.settings.voters)
                _log.info("founds a cluster", voters=self.settings.voters)
            else:
                self.log.join(incarnation=int(time.time()))
                _log.info("joins a cluster as a node without memory")
            for node in self.settings.voters:
                self._say_founded(node)
        while self.log.is_untouched and not founding.may_begin:
            await self._wait_for(waiting, founding.unfounded)

    async def _wait_for(self, waiting: FoundingWatch, nodes: tuple[NodeId, ...]) -> None:
        missing = ", ".join(map(str, nodes))
        self.health.enter(Phase.WAITING, f"a new cluster needs to hear of node {missing} first")
        await waiting.changed()

    def _say_founded(self, node: NodeId) -> None:
        if self.log.is_founded:
            self.link.send(node, FrameKind.FOUNDED, b"")

    def _run_replica(self) -> None:
        settings, raft = self.settings, self.settings.raft_config()
        self.log.start_at(self.machine.applied_index)
        self.machine.listen(self.log.store)
        self.replica = Replica(raft, self.log, SystemRandom())
        self.snapshots = Snapshots(self.log, self.machine, self.link, raft.group)
        self.driver = Driver(
            self.replica,
            self.log,
            self.machine,
            self.link,
            self.snapshots,
            is_flush_sync=settings.flush == "sync",
            on_fatal=self.fail_stop,
        )
        addresses = {node: str(peer.address) for node, peer in settings.peers.items()}
        identity = BrokerIdentity(
            settings.cluster_id,
            settings.flush == "sync",
            {**addresses, settings.node_id: self.address},
            settings.group,
        )
        store = self.log.store
        # A future is invariant in its type, so mypy cannot see that the driver is one.
        driver = cast(BrokerDriver, self.driver)
        self.broker = Broker(driver, store, self.machine, identity, self._limits())
        self.driver.add_listener(self._on_turn)
        self.driver.add_role_listener(self._on_role)
        self.health.watch(self.driver)
        self.frames.take(*RAFT_FRAMES, by=self.driver.on_raft_frame)
        self.frames.take(*SNAPSHOT_FRAMES, by=self.snapshots.on_frame)
        self.frames.watch(DriverWatch(self.driver))
        self.frames.watch(self.snapshots)
        server = EntryServer(
            self.link, self.log.store.ledger.read_range, lambda: self.driver.commit_index
        )
        self.frames.take(FrameKind.FETCH_ENTRIES, by=server.on_frame)
        self.repair = LiveRepair(self.log.store, self.fetcher, self._on_repaired, self.fail_stop)
        self.maintenance = Maintenance(
            self.log, self.replica, self.machine, self.files, self.fail_stop, self._on_damage
        )
        self.snapshots.attach(self.driver, self.maintenance, self.spawn)

    async def _serve(self) -> None:
        self.admin = NodeAdmin(self)
        beside = RaftBroker(self.settings, self.address, self.machine, self.driver)
        self.nameserver = NameServerService(self.settings.nameserver(), beside)
        self.broker.other_groups = self.nameserver.other_groups
        self.health.add_listener(self._on_ready)
        directory = NameServerCalls(self.nameserver)
        await self.grpc.start(handlers(self.calls, self.broker, self.admin, directory))
        self.maintenance.start()
        self.driver.start()
        self.nameserver.start()
        # What start-up made lives for ever. Looking through it again stops the loop for long.
        gc.collect()
        gc.freeze()
        self.health.enter(Phase.SERVING)

    # --- What follows from changes ---

    def _on_turn(self) -> None:
        self.health.refresh()
        if self.machine.state.members != self._known_members:
            self._set_peers()

    def _on_role(self, change: RoleChange) -> None:
        _log.info("role", role=change.role.name.lower(), term=change.term, leader=change.leader)
        self.health.refresh()
        if change.role is Role.LEADER and self.broker.is_draining:
            self.spawn(self.admin.leave_leadership())

    def _on_ready(self, is_ready: bool) -> None:
        if is_ready:
            _log.info("ready", address=self.address, reason=self.health.ready().reason)
        else:
            _log.warning("not ready", reason=self.health.ready().reason)
        self.nameserver.changed()
        self.spawn(self.grpc.set_serving(is_ready))

    def _on_damage(self, error: CorruptionError) -> None:
        _log.error("damage was found, it is fetched from peers", error=str(error))
        self.repair.on_damage(error)

    def _on_repaired(self, report: RepairReport) -> None:
        self._tell_repaired([report])

    def _tell_repaired(self, reports: list[RepairReport]) -> None:
        for report in reports:
            _log.warning("the log was damaged and is repaired", repaired=str(report))

    def spawn(self, work: Any) -> None:
        """Run a coroutine beside; an error in it reaches the loop's handler."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_peers(self) -> None:
        """Dial who the settings name and who became a member since; replicated addresses win."""
        if hasattr(self, "machine"):
            self._known_members = dict(self.machine.state.members)
        addresses = {
            node: (peer.peer_address.host, peer.peer_address.port)
            for node, peer in self.settings.peers.items()
        }
        for node, member in self._known_members.items():
            if member.peer_address:
                address = Address.parse(member.peer_address)
                addresses[node] = (address.host, address.port)
        self.link.set_peers(addresses)

    # --- Facts ---

    def _last_index(self) -> Index:
        """What peers are told. A damaged log has entries, and who entered a term may have voted:
        neither is to be taken for a new one."""
        if not hasattr(self, "log"):
            return 0
        return NO_INDEX if self.log.is_untouched else max(0, self.log.last_index)

    def peer_address_of(self, node: NodeId) -> str:
        """Return host:port of a node's peer link; empty if it is not known."""
        member = self.machine.state.members.get(node)
        if member is not None and member.peer_address:
            return member.peer_address
        peer = self.settings.peers.get(node)
        if peer is not None:
            return str(peer.peer_address)
        return self.peer_address if node == self.settings.node_id else ""

    def status(self) -> dict[str, Any]:
        """Return the picture for /status."""
        return picture.status(self)

    def _limits(self) -> Limits:
        return replace(Limits(), in_flight_size_bytes_max=self.settings.in_flight_size_bytes_max)


class _RepairWhenNeeded:
    """Meets the peers, and repairs the closed log with their entries."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def run(self) -> list[RepairReport]:
        node, settings = self._node, self._node.settings
        if not set(settings.peers) - {settings.node_id}:
            return []  # Nobody to ask: the error of the opening is all there is to say.
        node.health.enter(Phase.REPAIRING, "looking for the damage")
        await node.meet_peers()

        def on_progress(progress: RepairProgress) -> None:
            node.health.enter(Phase.REPAIRING, str(progress))

        root, config = str(settings.directory), settings.store_config()
        _log.error("the log is damaged; it is fetched from peers before this node takes part")
        return await ClosedRepair(root, config, node.fetcher, on_progress, fs=node.fs).run()
