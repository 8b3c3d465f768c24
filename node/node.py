"""One node: the steps of the start that both replication modes share, in order.

Owns that order: the store opens first (its lock admits one process), then the node meets its peers,
an empty disk founds or joins, and only then the node serves. `node.raft_node` has the steps for a
log that Raft replicates, `node.ha_node` those for a master-slave group. Each step puts the end of
what it opened on a stack, so that the order of the start gives the order of the stop, and a start
that fails closes exactly what it opened. Signals and exit codes belong to `node.lifecycle`.
"""

import asyncio
import dataclasses
import gc
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog
from prometheus_client import CollectorRegistry

from node.admin.parts import NodeParts
from node.broker import Broker
from node.config.environment import raise_descriptor_limit, tls_files
from node.config.exposure import exposures
from node.config.limits import Limits, PortLimits
from node.config.settings import Settings
from node.config.types import Address
from node.framed.calls import FramedCalls
from node.framed.server import FramedServer
from node.monitoring import bound_samples, framed_samples, metrics, rocketmq_samples
from node.monitoring.health import Health, Phase, Replicated
from node.monitoring.http import HttpServer
from node.monitoring.pages import Pages
from node.monitoring.replica_status import NodeReplicaStatus
from node.nameserver.brokers import LocalBroker
from node.nameserver.calls import NameServerCalls
from node.nameserver.service import NameServerService
from node.peers.handshake import LinkIdentity
from node.peers.security.tls import (
    TlsFiles,
    client_port_context,
    ends_unix_s,
    grpc_client_credentials,
    grpc_server_credentials,
)
from node.peers.types import LinkStats
from node.replication.derived_scrub import DerivedCare
from node.replication.lives import NodeLives
from node.replication.scrub import Scrub
from node.rocketmq.access import Access
from node.rocketmq.service import RocketMq
from node.runtime.fail_stop import FailStop
from node.runtime.node_file import remove_node_file, write_node_file
from node.runtime.opening import Opening
from node.runtime.sync_watch import SyncWatch, WatchedFileSystem
from node.services.calls import ServedCalls
from node.services.methods import SERVICES, AdminMethods, handlers
from node.services.server import GrpcServer, PortTakenError
from node.state.machine import StateMachine
from quorumlog.version import __version__
from raft.messages import NO_NODE, NodeId
from store.errors import CorruptionError, DerivedFileError, SyncFailedError
from store.files.file_system import FileSystem
from store.replicated.store import ReplicatedStore
from store.stats import LatencyStats, StoreStats

CALL_GRACE_MS: Final = 500
"""Time for calls whose answer is on its way when the broker stops."""
_POLL_S: Final = 0.005
GC_THRESHOLDS: Final = (20_000, 20, 20)
_log: Final = structlog.get_logger(component="node")
_stop_log: Final = structlog.get_logger(component="stopping")


class ReplicationDriver(Replicated, Protocol):
    """The methods of a driver that a node calls, in either replication mode."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class NodeLink(Protocol):
    """The methods that a node calls on the connections to the other nodes."""

    async def start(self, host: str, port: int) -> int: ...
    async def stop(self) -> None: ...
    def stats(self) -> LinkStats: ...
    def is_connected(self, node: NodeId) -> bool: ...


class NodeLog(Protocol):
    """The methods of the log that a node calls."""

    @property
    def store(self) -> ReplicatedStore[Any]: ...
    def close(self) -> None: ...


class Background(Protocol):
    """The methods that a node calls on work that no client waits for."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


class Node(ABC):
    """The components that both modes share; `start` makes each of them in turn."""

    fs: FileSystem
    machine: StateMachine
    broker: Broker
    nameserver: NameServerService
    rocketmq: RocketMq
    grpc: GrpcServer
    framed: FramedServer
    http: HttpServer

    log: NodeLog
    link: NodeLink
    driver: ReplicationDriver
    admin: AdminMethods
    maintenance: Background
    scrub: Scrub
    derived: DerivedCare

    def __init__(self, settings: Settings, fail_stop: FailStop) -> None:
        self.settings: Final = settings
        self.fail_stop: Final = fail_stop
        self.health: Final = Health()
        self.calls: Final = ServedCalls(fail_stop, self.on_met)
        self.fs = watched = WatchedFileSystem()
        self.sync_watch: Final = SyncWatch(watched, settings.sync_hang_limit_ms, fail_stop)
        self.lives: Final = NodeLives(settings.node_id, fail_stop)
        self.address = self.peer_address = self.http_address = self.framed_address = ""
        self.tls_ends_unix_s: dict[str, int] = {}
        self.began_s: Final = time.monotonic()
        self.pages: Final = Pages()
        self.hurry: Final = asyncio.Event()
        """Once it is set, the stop waits neither for the drain nor for calls."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.life: Final = AsyncExitStack()
        """The end of everything that the start opened, in the order of opening."""
        self.ports: Final = AsyncExitStack()
        """The end of what listens. A repair opens the ports before there is a log."""
        self.opening: Final = Opening()
        self._has_met = False

    async def start(self) -> None:
        """Bring the node up; return once it serves.

        Raises PortTakenError, and what opening the store, the state and the link raises.
        """
        try:
            await self._start()
        except BaseException:
            self.health.enter(Phase.STOPPING)
            raise

    async def _start(self) -> None:
        raise_descriptor_limit()
        limits = PortLimits.from_environment(os.environ)
        self.grpc = GrpcServer(rpc_count_max=self.settings.rpc_count_max, limits=limits)
        self.framed = FramedServer(
            FramedCalls(self.calls, call_count_max=self.settings.rpc_count_max)
        )
        self.http = self._http(limits)
        self.pages.add(status=self._status, samples=self._samples)
        self.fail_stop.describe = self.pages.status
        http_error = await self._start_http()
        # A sync that hangs while the log is closed ends the process, too.
        self.life.push_async_callback(asyncio.to_thread, self.sync_watch.stop)
        # Tasks, ports and lives use the log, so they end before it is closed.
        self.life.push_async_callback(asyncio.to_thread, self.opening.end)
        self.life.push(self._keep_unclean)
        self.life.push_async_callback(self._end_tasks)
        self.life.push_async_exit(self.ports)
        self.life.push_async_callback(self.lives.stop)
        await self.open_store()
        self.sync_watch.start()
        if http_error is not None:
            raise http_error  # Only now: an error about a locked directory tells more.
        await self.meet_peers()
        await self.found()
        self.run_replica()
        self.pages.add(
            status=self._running_status,
            samples=self._running_samples,
            histograms=lambda: {"record_bytes": self.broker.stats().record_sizes},
        )
        await self._serve()

    async def stop(self) -> None:
        """Close what the start opened, also after a start that failed or was cancelled.

        After a whole start: no new appends, what is pending is decided, calls end, then the parts
        stop. The directory is closed on return, and no acknowledged record is lost.
        """
        await self.life.aclose()
        _stop_log.info("stopped")

    def _keep_unclean(self, _: object, error: BaseException | None, __: object) -> None:
        """End the process before the log is closed if a part broke an invariant while it stopped:
        a closed log counts as clean at the next start."""
        if isinstance(error, (AssertionError, SyncFailedError)):
            self.fail_stop(error)

    # --- The steps of each mode ---

    @abstractmethod
    async def open_store(self) -> None:
        """Make `log` through `opening`, show it, and make `machine`."""

    @abstractmethod
    def make_link(self, tls: TlsFiles | None) -> NodeLink:
        """Return the link to the other nodes, not started."""

    @abstractmethod
    async def found(self) -> None:
        """Find out whether an empty disk founds or joins; do nothing for one with a history."""

    @abstractmethod
    def run_replica(self) -> None:
        """Make `driver`, `broker`, `maintenance`, `scrub`, `derived` and `admin`; start none of
        them."""

    @abstractmethod
    def beside_nameserver(self) -> LocalBroker:
        """Return the view of this node for the name server in its process."""

    @abstractmethod
    async def drain(self, timeout_ms: int) -> None:
        """Answer the pending appends and give leadership up; new appends are refused already."""

    @abstractmethod
    def replica_status(self) -> NodeReplicaStatus:
        """Return the place of the replica in its group. Needs `driver`."""

    @abstractmethod
    def peer_address_of(self, node: NodeId) -> str:
        """Return host:port of a node's peer link; empty if it is not known."""

    @abstractmethod
    def replica_samples(self) -> Iterator[metrics.Sample]:
        """Yield the metrics that only a node of this mode has."""

    def show_log(self) -> None:
        """Have the pages show the log from now on."""
        self.pages.add(histograms=lambda: log_histograms(self.log.store.stats()))

    @abstractmethod
    def on_damage(self, error: CorruptionError) -> None:
        """React to damage of the log that a call has met."""

    def on_met(self, error: CorruptionError | DerivedFileError) -> None:
        """React to damage that a call or background work met, in the log or in derived files."""
        if isinstance(error, CorruptionError):
            self.on_damage(error)
        else:
            self.derived.on_damage(error)

    # --- The shared steps ---

    def _http(self, limits: PortLimits) -> HttpServer:
        registry = CollectorRegistry()
        registry.register(metrics.NodeCollector(self.pages.samples, self.pages.histograms))
        return HttpServer(self.health, registry, self.pages.status, limits)

    async def _start_http(self) -> PortTakenError | None:
        address = self.settings.http_listen
        if address is None:
            return None
        try:
            port = await self.http.start(address)
        except PortTakenError as error:
            return error
        self.life.push_async_callback(self.http.stop)
        self.http_address = str(Address(address.host, port))
        return None

    async def meet_peers(self) -> None:
        """Open the ports, and begin to connect to the peers. A repeated call does nothing."""
        if self._has_met:
            return
        settings = self.settings
        tls = tls_files(settings)
        credentials = None
        if tls is not None:
            credentials = grpc_server_credentials(
                tls, require_client_certificate=settings.tls_client_auth
            )
            self.tls_ends_unix_s = ends_unix_s(tls)
        port = self.grpc.bind(settings.listen, credentials)
        self.ports.push_async_callback(self.grpc.stop, 0)
        await self.grpc.open(SERVICES)
        self.address = str(settings.advertised(port))
        await self._open_framed(tls)
        link = self.make_link(tls)
        listen = settings.peer_listen
        self.ports.push_async_callback(link.stop)
        try:
            port = await link.start(listen.host, listen.port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortTakenError("peer_listen", str(listen), reason) from error
        self.peer_address = str(Address(listen.host, port))
        self.link, self._has_met = link, True
        found = {
            "node_id": settings.node_id,
            "cluster_id": settings.cluster_id,
            "address": self.address,
            "framed_address": self.framed_address or None,
            "peer_address": self.peer_address,
            "http_address": self.http_address or None,
        }
        self.ports.callback(remove_node_file, settings.directory)
        write_node_file(settings.directory, found)
        _log.info("listening", **found)
        for one in exposures(settings):
            _log.warning("strangers could misuse a port", port=one.setting, what=str(one))

    async def _open_framed(self, tls: TlsFiles | None) -> None:
        settings = self.settings
        if settings.framed_listen is None:
            return
        context = None
        if tls is not None:
            context = client_port_context(tls, require_client_certificate=settings.tls_client_auth)
        port = await self.framed.bind(settings.framed_listen, context)
        self.ports.push_async_callback(self.framed.stop, 0)
        self.framed.open()
        self.framed_address = settings.framed_advertised(port)

    async def _serve(self) -> None:
        life = self.life
        self.nameserver = NameServerService.of(
            self.settings, self.beside_nameserver(), self.broker.members
        )
        life.push_async_callback(self.nameserver.stop)
        self.broker.other_groups = self.nameserver.other_groups
        self.broker.framed_address = self.framed_address
        self.pages.add(
            status=lambda: {"nameserver": nameserver_status(self.nameserver)},
            samples=lambda: metrics.nameserver_samples(self.nameserver),
        )
        self.health.add_listener(self._on_ready)
        life.callback(self.broker.stop)
        self.driver.start()
        self.nameserver.start()
        background: tuple[Background, ...] = (self.maintenance, self.derived, self.scrub)
        for one in background:
            life.push_async_callback(one.stop)
            one.start()
        self.rocketmq = self._rocketmq()
        life.push_async_callback(self.rocketmq.stop)
        self.pages.add(samples=lambda: rocketmq_samples.samples(self.rocketmq))
        directory = NameServerCalls(self.nameserver)
        own = handlers(self.calls, self.broker, self.admin, directory)
        life.push_async_callback(self._end_calls)
        self.framed.calls.open(self.broker)
        await self.grpc.start(own, (self.rocketmq.handler(),))
        # Objects made at start-up live as long as the process; a full collection that traverses
        # them stops the loop for long.
        gc.collect()
        gc.freeze()
        # Reference counts free the objects of an append. The collector finds nothing and only
        # traverses pending work: with the default of 700 objects after every few appends.
        gc.set_threshold(*GC_THRESHOLDS)
        life.push_async_callback(self._retire)
        self.health.enter(Phase.SERVING)

    def _rocketmq(self) -> RocketMq:
        tls = tls_files(self.settings)
        credentials = None if tls is None else grpc_client_credentials(tls)
        access = Access(self.settings.rocketmq_keys())
        return RocketMq(self.broker, self.calls, access, credentials, self.link.is_connected)

    # --- The steps of the stop that are more than the end of one part ---

    async def _retire(self) -> None:
        """Refuse new appends, give leadership up, answer the pending appends, and let go of every
        reader that waits."""
        self.health.enter(Phase.DRAINING, "told to stop")
        self.broker.set_draining(True)
        await self._politely(self.drain(self.settings.drain_timeout_ms))
        await self._politely(self.nameserver.leave())
        self.broker.stop()

    async def _politely(self, work: Awaitable[None]) -> None:
        """Wait until `work` ends, the drain time-out passes or `hurry` is set; cancel the rest."""
        task = asyncio.ensure_future(work)
        hurry = asyncio.ensure_future(self.hurry.wait())
        timeout_s = self.settings.drain_timeout_ms / 1000
        try:
            await asyncio.wait(
                (task, hurry), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done():
                _stop_log.warning("stops without having drained")
        finally:
            task.cancel()
            hurry.cancel()
            await asyncio.gather(task, hurry, return_exceptions=True)

    async def _end_calls(self) -> None:
        self.health.enter(Phase.STOPPING)
        grace_ms = 0 if self.hurry.is_set() else CALL_GRACE_MS
        await asyncio.gather(self.grpc.stop(grace_ms), self.framed.stop(grace_ms))

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a task of the node failed as it stopped", "exception": error}
                )

    # --- Reactions to changes ---

    def _on_ready(self, is_ready: bool) -> None:
        if is_ready:
            _log.info("ready", address=self.address, reason=self.health.ready().reason)
        else:
            _log.warning("not ready", reason=self.health.ready().reason)
        self.nameserver.changed()
        self.spawn(self.grpc.set_serving(is_ready))

    def spawn(self, work: Any) -> None:
        """Run a coroutine as a task; an error in it reaches the loop's exception handler."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # --- Facts and helpers ---

    @property
    def identity(self) -> LinkIdentity:
        """The identity that this node shows its peers; valid once `address` is known."""
        settings = self.settings
        return LinkIdentity(
            settings.cluster_id,
            settings.group,
            settings.node_id,
            __version__,
            self.address,
            settings.secret(),
            settings.file_size_bytes,
        )

    def _status(self) -> dict[str, Any]:
        """Return the part of /status that every phase has. Later parts replace values of it."""
        settings, ready = self.settings, self.health.ready()
        return {
            "node_id": settings.node_id,
            "cluster_id": settings.cluster_id,
            "replication": settings.replication,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_ms": int(1000 * (time.monotonic() - self.began_s)),
            "phase": self.health.phase.value,
            "ready": ready.is_good,
            "detail": ready.reason,
            "address": self.address,
            "framed_address": self.framed_address,
            "peer_address": self.peer_address,
            "http_address": self.http_address,
            "role": "",
            "term": None,
            "leader_id": NO_NODE,
            "first_index": None,
            "last_index": None,
            "durable_index": None,
            "commit_index": None,
            "applied_index": None,
            "warnings": [],
            "nameserver": None,
        }

    def _running_status(self) -> dict[str, Any]:
        return {**self.replica_status().fields(), "warnings": list(self.warnings())}

    def _samples(self) -> Iterator[metrics.Sample]:
        settings = self.settings
        identity = (str(settings.node_id), settings.cluster_id, settings.group, __version__)
        yield "node", identity, 1.0
        yield "ready", (), float(self.health.ready().is_good)
        yield "uptime_seconds", (), time.monotonic() - self.began_s
        for file, unix_s in self.tls_ends_unix_s.items():
            yield "tls_expiry_timestamp_seconds", (file,), unix_s
        yield from metrics.call_samples(self.calls.counters)
        yield from bound_samples.call_bounds(self.grpc.requests, self.grpc.responses)
        yield from framed_samples.samples(self.framed)
        yield from bound_samples.log_bounds()
        yield from bound_samples.http_bounds(self.http.connections)

    def _running_samples(self) -> Iterator[metrics.Sample]:
        yield from self.replica_samples()
        yield from metrics.link_samples(self.link.stats())
        yield "scrub_interval_seconds", (), self.settings.scrub_interval_ms / 1000
        yield from metrics.store_samples(self.log.store.stats())
        yield "store_warnings", (), len(self.warnings())
        yield from metrics.broker_samples(self.broker.stats())

    def parts(self) -> NodeParts:
        """Return what the calls of AdminService use in both modes. Needs `broker` and `link`."""
        return NodeParts(
            settings=self.settings,
            health=self.health,
            broker=self.broker,
            lives=self.lives,
            replica_status=self.replica_status,
            store_stats=self.log.store.stats,
            is_connected=self.link.is_connected,
            peer_address_of=self.peer_address_of,
            nameserver_problem=lambda: self.nameserver.problem,
            warnings=self.warnings,
        )

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings for an operator, as sentences. Needs `log`."""
        store = self.log.store.stats()
        return (*store.warnings(), *self.sync_watch.warnings(), *self.lives.warnings())

    def progress(self, what: str, done: int, total: int) -> None:
        """Put the progress of a long step of the opening into the health's detail."""
        self.health.detail = f"{what}: {done} of {total}"

    async def appends_decided(self) -> None:
        """Return once no append is pending."""
        while self.broker.stats().in_flight_count:  # noqa: ASYNC110 - once in a life.
            await asyncio.sleep(_POLL_S)

    @property
    def limits(self) -> Limits:
        """The limits of the broker and the replicated state."""
        return replace(
            Limits(),
            in_flight_size_bytes_max=self.settings.in_flight_size_bytes_max,
            delay_ms_max=self.settings.delay_ms_max,
        )


def nameserver_status(service: NameServerService) -> dict[str, Any] | None:
    """Return the status of the name server replica for /status; None without one."""
    status = service.status()
    if status is None:
        return None
    return dataclasses.asdict(status) | {"group_problems": dict(service.watch.problems)}


def log_histograms(stats: StoreStats) -> dict[str, LatencyStats]:
    """Return the histograms of the log by name."""
    return {"append_seconds": stats.put_latency, "sync_seconds": stats.sync_latency}
