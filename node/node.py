"""One node: puts one `Replication` and one `Broker` together, serves, and stops.

Owns the order of the start: first the replication (the store, whose lock admits one process, the
peers, and whether an empty disk founds or joins), then the broker, and only then the node serves.
Each step puts the end of what it opened on a stack, so that the order of the start gives the order
of the stop, and a start that fails closes exactly what it opened. Must not know how the log is
replicated. Signals and exit codes belong to `node.lifecycle`.
"""

import asyncio
import dataclasses
import gc
import logging
import os
import re
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry

from node import metrics
from node.broker import Broker, BrokerIdentity
from node.broker.core.context import Context
from node.broker.series.series import Series
from node.broker.users.audit import Audit
from node.broker.users.calls import UserCalls
from node.broker.users.first_user import AdminReset, FirstUser
from node.broker.users.known_users import follow_users
from node.config.environment import raise_descriptor_limit, tls_files
from node.config.exposure import exposures, serves_rocketmq
from node.config.limits import PortLimits
from node.config.settings import VIP_PORT_DISTANCE, Settings
from node.config.types import AUTO, Address
from node.config.users import RESET_FILE, read_first_user, reset_id_of
from node.framed.calls import FramedCalls
from node.framed.connection import NAMESERVER_PORT
from node.framed.server import FramedServer
from node.monitoring.console_door import ConsoleDoor
from node.monitoring.diagnosis import Diagnosis
from node.monitoring.health import Health, Phase
from node.monitoring.history import Facts, History
from node.monitoring.http import HttpServer
from node.monitoring.metric import NodeCollector, Source
from node.monitoring.pages import Pages
from node.nameserver.calls import NameServerCalls
from node.nameserver.service import NameServerService
from node.peers.common_link import Link
from node.peers.handshake import LinkIdentity
from node.peers.lives_codec import NO_BUILD, ToldBuild
from node.peers.security.tls import (
    Tls,
    TlsFiles,
    client_context,
    client_port_context,
    date_warnings,
    grpc_client_credentials,
)
from node.renewed_files import RenewedFiles
from node.replication.admin_parts import NodeCalls, NodeParts, Replication
from node.replication.derived_scrub import DerivedCare
from node.replication.lives import NodeLives
from node.replication.scrub import Scrub
from node.rocketmq.remoting.conversation import RemotingCalls
from node.rocketmq.remoting.service import OtherNodes, Remoting
from node.rocketmq.service import RocketMq
from node.runtime.accounts import Accounts, limits_of
from node.runtime.background import BackgroundTasks
from node.runtime.clock import unix_ms
from node.runtime.fail_stop import FailStop
from node.runtime.logs.line_budget import left_out
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.node_file import remove_node_file, write_node_file
from node.runtime.opening import Opening
from node.runtime.renewal import Renewals
from node.runtime.sync_watch import SyncWatch, WatchedFileSystem
from node.services.calls import ServedCalls
from node.services.door import Door
from node.services.methods import SERVICES, handlers
from node.services.server import GrpcServer, PortTakenError
from node.state.append_times import AppendTimes, Stages
from node.users.guard import Guard
from node.users.node_proofs import TOKEN_SIZE_BYTES, NodeProofs
from quorumlog.user_files import UserFileError
from quorumlog.version import __version__
from raft.messages import NO_NODE, NodeId
from store.errors import CorruptionError, DerivedFileError, SyncFailedError
from store.files.file_system import FileSystem
from store.replicated.store import ReplicatedStore

CALL_GRACE_MS: Final = 500
"""Time for calls whose answer is on its way when the broker stops."""
GC_THRESHOLDS: Final = (20_000, 20, 20)
_log: Final = structlog.get_logger(component="node")
_NUMBER: Final = re.compile(r"\d+")
_SLOW_INTERVAL_MS: Final = 1_000
"""One line about slow appends in this time, with the count of those left out."""
_stop_log: Final = structlog.get_logger(component="stopping")


class Node(NodeParts):
    """The components of a node; `start` makes each of them in turn."""

    derived: DerivedCare
    scrub: Scrub
    admin: NodeCalls
    rocketmq: RocketMq
    grpc: GrpcServer
    framed: FramedServer
    remoting_calls: RemotingCalls
    remoting: Remoting
    http: HttpServer

    def __init__(
        self,
        settings: Settings,
        fail_stop: FailStop,
        replicate: Callable[[NodeParts], Awaitable[Replication]],
        origins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`replicate` opens the log, meets the peers, makes the replica. `origins` says where each
        setting is from."""
        self.settings, self._origins = settings, origins
        self._replicate = replicate
        self.fail_stop = fail_stop
        self.health = Health()
        self.renewals: Final = Renewals()
        self.guard: Final = Guard(settings.users, unix_ms, settings.users_box())
        token = secrets.token_bytes(TOKEN_SIZE_BYTES)
        self.proofs: Final = NodeProofs(settings.cluster_id, settings.node_id, unix_ms, token)
        self.files: Final = RenewedFiles(settings, self.renewals, self.proofs)
        door = None if settings.users == "off" else Door(self.guard, self.proofs)
        self.calls: Final = ServedCalls(fail_stop, self.on_met, door)
        self.accounts: Final = Accounts(limits_of(settings.rpc_count_max))
        watched = WatchedFileSystem()
        self.fs: FileSystem = watched
        self.sync_watch: Final = SyncWatch(watched, settings.sync_hang_limit_ms, fail_stop)
        self.lives = NodeLives(settings.node_id, fail_stop)
        self.lives.build = self.lives.build._replace(users=settings.users)
        self.address = self.peer_address = self.http_address = self.framed_address = ""
        self.console_address = ""
        self._page_file: int | None = None
        self._framed_listening: str | None = None
        self.remoting_addresses: tuple[str, ...] = ()
        self.began_s = time.monotonic()
        self.pages = Pages()
        self.append_times = AppendTimes(settings.slow_append_ms, self._on_slow_append)
        self._slow_log: Final = RateLimitedLog(
            logging.getLogger("node.appends"), interval_ms=_SLOW_INTERVAL_MS
        )
        self.hurry: Final = asyncio.Event()
        """Once it is set, the stop waits neither for the drain nor for calls."""
        self._tasks: Final = BackgroundTasks("a task of the node failed")
        self.life = AsyncExitStack()
        """The end of everything that the start opened, in the order of opening."""
        self.ports: Final = AsyncExitStack()
        """The end of what listens. A repair opens the ports before there is a log."""
        self._warned = dict[str, str]()
        """The warnings as they were logged, by their texts with other numbers."""
        self.opening = Opening()
        self._has_met = False
        self._users_problem: Callable[[], str] = lambda: ""
        self._http_error: PortTakenError | None = None

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
        accounts, guard = self.accounts, self.guard if self.settings.users != "off" else None
        self.grpc = GrpcServer(accounts, limits)
        self.remoting_calls = RemotingCalls(self.calls, accounts, guard)
        self.framed = FramedServer(
            FramedCalls(self.calls, accounts, guard=guard),
            others=self.remoting_calls.conversations(),
        )
        registry = CollectorRegistry()
        registry.register(NodeCollector(metrics.METRICS, lambda: self.pages.metrics))
        self.http = HttpServer(self.health, registry, self.pages, limits, guard)
        self.pages.add_status(self._status)
        self.pages.add_metrics(
            Source(metrics.NODE, self._facts),
            Source(metrics.CALLS, lambda: self.calls.counters),
            Source(metrics.GRPC, lambda: self.grpc),
            Source(metrics.FRAMED, lambda: self.framed),
            Source(metrics.ACCOUNTS, lambda: self.accounts),
            Source(metrics.HTTP, lambda: self.http.connections),
            Source(metrics.LOG_LINES, lambda: left_out),
            Source(metrics.RENEWALS, lambda: self.renewals),
        )
        self.fail_stop.describe = self.pages.status
        await self._start_http()
        # A sync that hangs while the log is closed ends the process, too.
        self.life.push_async_callback(asyncio.to_thread, self.sync_watch.stop)
        # Tasks, ports and lives use the log, so they end before it is closed.
        self.life.push_async_callback(asyncio.to_thread, self.opening.end)
        self.life.push(self._keep_unclean)
        self.life.push_async_callback(self._tasks.end)
        self.life.push_async_exit(self.ports)
        self.life.push_async_callback(self.lives.stop)
        self.replication = await self._replicate(self)
        self._make_broker()
        self.pages.add_status(self._running_status)
        series = Series(self.broker, self.settings.metrics_topics_max)
        self.pages.add_metrics(
            Source(metrics.REPLICA, self.replication.status),
            Source(metrics.LIVES, lambda: self.lives),
            Source(metrics.LINK, self.replication.link.stats),
            Source(
                metrics.PASSES, lambda: metrics.Passes(self.scrub.stats(), self.derived.stats())
            ),
            Source(metrics.WARNINGS, self.warnings),
            Source(metrics.BROKER, lambda: self.broker),
            Source(metrics.USERS, lambda: self.guard),
            Source(metrics.AUDIT, lambda: self.audit),
            Source(metrics.APPENDS, lambda: self.append_times),
            Source(metrics.TOPICS, series.topics),
            Source(metrics.GROUPS, series.groups),
        )
        self.pages.add_look(series.look)
        self.history = History(self._history_facts, series.lags, self.spawn)
        self.life.callback(self.history.stop)
        self.history.start()
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

    # --- What the steps of a replication call ---

    def log_is_open(self, store: ReplicatedStore[Any]) -> None:
        """Watch the syncs of an open log and show it on the pages.

        Raises the error of the HTTP port, only now: one about a locked directory tells more.
        """
        self.pages.add_metrics(Source(metrics.STORE, store.stats))
        self.sync_watch.start()
        if self._http_error is not None:
            raise self._http_error

    def on_met(self, error: CorruptionError | DerivedFileError) -> None:
        """React to damage that a call or background work met, in the log or in derived files."""
        if isinstance(error, CorruptionError):
            self.replication.on_damage(error)
        else:
            self.derived.on_damage(error)

    def _on_slow_append(self, run: Stages) -> None:
        total_ms = (run.sent_us + run.quorum_us + run.applied_us) / 1000
        self._slow_log.warn(
            "slow append",
            f"{run.append_count} of it at once, {total_ms:.1f} ms: written and sent "
            f"{run.sent_us / 1000:.1f} ms, quorum {run.quorum_us / 1000:.1f} ms, applied and "
            f"answered {run.applied_us / 1000:.1f} ms; the last one is at {run.hi}",
        )

    # --- The steps of the start ---

    async def _start_http(self) -> None:
        address = self.settings.http_listen
        self._page_file = self.files.page_file()
        if self._page_file is not None:
            self.life.callback(os.close, self._page_file)
        self.life.push_async_callback(self.http.stop)
        if address is None:
            return
        try:
            port = await self.http.start(address, self._page_file)
        except PortTakenError as error:
            self._http_error = error
            return
        self.http_address = str(Address(address.host, port))

    async def meet_peers(self, make_link: Callable[[LinkIdentity, TlsFiles | None], Link]) -> None:
        """Open the ports, and begin to connect to the peers. A repeated call does nothing."""
        if self._has_met:
            return
        settings = self.settings
        tls = tls_files(settings)
        credentials = self.files.grpc_credentials()
        for warning in date_warnings(self.files.tls_validity, time.time()):
            _log.warning(str(warning))
        port = self.grpc.bind(settings.listen, credentials)
        self.ports.push_async_callback(self.grpc.stop, 0)
        await self.grpc.open(SERVICES)
        self.address = str(settings.advertised(port))
        await self._open_framed(tls)
        self._find_reset()
        link = make_link(self._link_identity(), tls)
        self.files.on_tls.append(lambda tls: link.renew(tls.peer_server, tls.peer_client))
        self.files.on_secrets.append(link.renew_secrets)
        listen = settings.peer_listen
        self.ports.push_async_callback(link.stop)
        try:
            port = await link.start(listen.host, listen.port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortTakenError("peer_listen", str(listen), reason) from error
        self.peer_address = str(Address(listen.host, port))
        self._has_met = True
        self.spawn(self.renewals.run())
        self._open_console(tls)
        node_file = {
            "node_id": settings.node_id,
            "cluster_id": settings.cluster_id,
            "address": self.address,
            "framed_address": self.framed_address or None,
            "peer_address": self.peer_address,
            "http_address": self.http_address or None,
            "console_address": self.console_address or None,
        }
        self.ports.callback(remove_node_file, settings.directory)
        http = {"http_token": self.http.own_token} if settings.users != "off" else {}
        if settings.http_tls:
            http["http_scheme"] = "https"
        write_node_file(settings.directory, node_file | http)
        _log.info("listening", **(node_file | {"framed_address": self._framed_listening}))
        for exposure in exposures(settings):
            _log.warning("strangers could misuse a port", port=exposure.setting, what=str(exposure))

    def _open_console(self, tls: TlsFiles | None) -> None:
        """Open the port of the console; without it the node serves as well."""
        address = self.settings.console_address
        if address is None:
            return
        files = {
            "CA": self.settings.tls_ca_file,
            "CERTIFICATE": self.settings.tls_certificate_file,
            "KEY": self.settings.tls_key_file,
        }
        environment = {
            f"QUORUMLOG_CLIENT_TLS_{name}_FILE": str(Path(file).absolute())
            for name, file in files.items()
            if file is not None and tls is not None
        }
        door = ConsoleDoor(self.settings.console_mode, self.address, environment, self._page_file)
        try:
            port = door.open(address)
        except OSError as error:
            reason = error.strerror or str(error)
            if self.settings.console_listen != AUTO:
                raise PortTakenError("console_listen", str(address), reason) from error
            _log.warning("no console: its port is taken", address=str(address), reason=reason)
            return
        self.console_address = str(Address(address.host, port))
        self.ports.push_async_callback(door.close)

    def _link_identity(self) -> LinkIdentity:
        settings = self.settings
        first, other = (*settings.secrets(), b"", b"")[:2]
        return LinkIdentity(
            settings.cluster_id,
            settings.broker_group,
            settings.node_id,
            __version__,
            self.address,
            first,
            settings.file_size_bytes,
            self.proofs.token,
            other,
        )

    def _find_reset(self) -> None:
        """Have the peers know of the reset of the admin that lies here, if one does."""
        path = self.settings.directory / RESET_FILE
        if not path.exists():
            return
        if self.settings.users == "off":
            what = "users are off: the admin is reset once they are not; to give that up, delete it"
            _log.warning(what, file=str(path))
            return
        try:
            user = read_first_user(path)
        except UserFileError as error:
            _log.error("the reset of the admin is ignored", file=str(path), why=error.what)
            return
        reset = user.SerializeToString(deterministic=True)
        self.lives.build = self.lives.build._replace(reset=reset)
        _log.warning(
            "the admin is reset once a majority of the voters has the same file",
            file=str(path),
            user=user.name,
            reset_id=reset_id_of(reset).hex(),
        )

    def _build_at(self, node: NodeId) -> ToldBuild:
        """Return what this node tells in handshakes, or a connected one told; else nothing."""
        if node == self.settings.node_id:
            return self.lives.build
        is_connected = self.replication.link.is_connected(node)
        return self.lives.builds.get(node, NO_BUILD) if is_connected else NO_BUILD

    async def _open_framed(self, tls: TlsFiles | None) -> None:
        """Open all ports for frames: our own and those of RocketMQ's remoting protocol."""
        settings, context = self.settings, None
        if tls is not None:
            context = client_port_context(tls, require_client_certificate=settings.tls_client_auth)
        self.ports.push_async_callback(self.framed.stop, 0)
        self.files.on_tls.append(lambda tls: self.framed.renew(tls.client_port))
        if settings.framed_listen is not None:
            has_rocketmq = serves_rocketmq(settings, settings.framed_listen)
            port = await self.framed.bind(settings.framed_listen, context, has_others=has_rocketmq)
            self._framed_listening = str(Address(settings.framed_listen.host, port))
            self.framed_address = settings.framed_advertised(port)
            self.remoting_addresses = (self.framed_address,) if has_rocketmq else ()
        if settings.rocketmq_listen is not None:
            names = range(settings.rocketmq_name_count)
            self.remoting_addresses = tuple(
                [await self._open_remoting(number, context) for number in names]
            )
        if settings.rocketmq_nameserver_listen is not None:
            await self.framed.bind(
                settings.rocketmq_nameserver_listen,
                context,
                setting="rocketmq_nameserver_listen",
                port_number=NAMESERVER_PORT,
                is_permissive=settings.rocketmq_tls == "permissive",
            )
        self.framed.open()

    async def _open_remoting(self, number: int, context: ssl.SSLContext | None) -> str:
        """Open the ports of one broker name; return what routes tell of them."""
        settings, setting = self.settings, "rocketmq_listen"
        address = settings.remoting_listen(number)
        assert address is not None, "the name has an address"
        bind = partial(
            self.framed.bind,
            setting=setting,
            port_number=number,
            is_permissive=settings.rocketmq_tls == "permissive",
        )
        port = await bind(address, context)
        if address.port > VIP_PORT_DISTANCE:
            await bind(Address(address.host, address.port - VIP_PORT_DISTANCE), context)
        return settings.remoting_advertised(number, port)

    def _make_broker(self) -> None:
        settings, replication = self.settings, self.replication
        addresses = {node: str(peer.address) for node, peer in settings.peers.items()}
        identity = BrokerIdentity(
            settings.cluster_id,
            {**addresses, settings.node_id: self.address},
            settings.broker_group,
            settings.rocketmq_name_count,
            self.framed_address,
            self.remoting_addresses,
        )
        self.admin = replication.admin
        self.nameserver = NameServerService.of(settings, replication.local_broker, self.proofs)
        self.life.push_async_callback(self.nameserver.stop)
        context = Context(
            replication.driver,
            replication.machine,
            identity,
            replication.receipts,
            turn=self.calls.turn,
            on_damage=self.on_met,
        )
        self.broker = Broker(context, self.nameserver.other_groups)
        self._make_users(context)
        self.scrub = Scrub(
            replication.store.scrubber(),
            settings.scrub_interval_ms,
            replication.maintenance.on_thread,
            replication.on_damage,
            self.fail_stop,
            replication.fetcher,
        )
        self.derived = DerivedCare(
            replication.store, settings.scrub_interval_ms, replication.on_damage, self.fail_stop
        )

    def _make_users(self, context: Context) -> None:
        """Have the users of the state known to the guard, and the first one made."""
        settings, guard = self.settings, self.guard
        own_appends = self.broker.own_appends
        self.users = UserCalls(
            *(context, own_appends, settings.users, guard.box),
            takes_certificates=settings.tls_client_auth,
        )
        self.audit = Audit(context, own_appends, is_on=settings.users != "off")
        if settings.users == "off":
            return
        self.broker.has_users = True
        guard.on_refused = self.audit.note_refusal
        guard.on_administered = self.audit.note_change
        guard.rehearsal.on_row = self.audit.note_rehearsal
        guard.rehearsal.on_forgotten = self.audit.leave_out
        first = settings.first_user()
        if first is not None:
            self.broker.add_leader_work(work := FirstUser(context, own_appends, first))
            work.on_made = self.audit.note_made
            self.health.add_listener(work.on_ready)
        path, status = settings.directory / RESET_FILE, self.replication.status
        replicas = settings.peers or (settings.node_id,)
        reset = AdminReset(
            *(context, own_appends, path, self.lives.build.reset),
            voters=lambda: replicas if settings.is_ha else status().voters,
            shown_by=lambda voter: self._build_at(voter).reset,
        )
        reset.on_made = self.audit.note_made
        self.broker.add_leader_work(reset)
        problem = follow_users(
            *(guard, context, lambda: status().commit_index),
            is_ready=lambda: self.health.ready().is_good,
            mode_at=lambda node: self._build_at(node).users,
            on_change=self.health.refresh,
        )
        self.health.add_problem(problem)
        self._users_problem = problem
        self.spawn(guard.run())

    async def _serve(self) -> None:
        life, link, tls = self.life, self.replication.link, tls_files(self.settings)
        self.proofs.token_of = link.forwarding_token
        self.pages.add_status(self._nameserver_status)
        self.pages.add_metrics(
            Source(metrics.NAMESERVER, lambda: self.nameserver),
            Source(metrics.NAMESERVER_REPLICA, self._nameserver_facts),
        )
        self.health.add_listener(self._on_ready)
        life.callback(self.broker.stop)
        self.replication.start()
        self.nameserver.start()
        for work in (self.replication.maintenance, self.derived, self.scrub):
            life.push_async_callback(work.stop)
            work.start()
        self.rocketmq = RocketMq(
            self.broker,
            self.calls,
            None if tls is None else grpc_client_credentials(tls),
            link.is_connected,
            self.proofs,
            None if self.settings.users == "off" else self.guard,
        )
        life.push_async_callback(self.rocketmq.stop)
        if self.settings.users != "off":
            self.spawn(self.audit.run(self.rocketmq.forwarder.hand_audit))
        self.pages.add_metrics(Source(metrics.ROCKETMQ, lambda: self.rocketmq))
        forwarder, context = self.rocketmq.forwarder, None if tls is None else client_context(tls)
        nodes = OtherNodes(
            forwarder.route, context, link.is_connected, self.proofs, forwarder.questions
        )
        self.remoting = Remoting(
            self.broker,
            self.remoting_calls,
            nodes,
            self.rocketmq.clients,
            self.admin.node_status,
            addresses=self.remoting_addresses,
            settings=self.settings,
        )
        life.push_async_callback(self.remoting.stop)
        self.pages.add_metrics(Source(metrics.REMOTING, lambda: self.remoting))
        self.files.on_secrets.append(self.nameserver.renew_secrets)
        self.files.on_tls.append(self._renew_connections)
        directory = NameServerCalls(self.nameserver)
        diagnosis = Diagnosis(self.settings, self._origins, self.http.metrics_page)
        life.callback(diagnosis.stop)
        users = self.users, self.audit
        own = handlers(self.calls, self.broker, self.admin, directory, diagnosis, users)
        life.push_async_callback(self._end_calls)
        self.framed.calls.open(self.broker)
        await self.remoting.start()
        is_on = serves_rocketmq(self.settings, self.settings.listen)
        others = self.rocketmq.handler() if is_on else self.rocketmq.closed_handler()
        await self.grpc.start(own, (others,))
        # Objects made at start-up live as long as the process; a full collection that traverses
        # them stops the loop for long.
        gc.collect()
        gc.freeze()
        # Reference counts free the objects of an append. The collector finds nothing and only
        # traverses pending work: with the default of 700 objects after every few appends.
        gc.set_threshold(*GC_THRESHOLDS)
        life.push_async_callback(self._retire)
        self.health.enter(Phase.SERVING)

    def _renew_connections(self, tls: Tls) -> None:
        self.nameserver.renew(tls.grpc_client)
        self.rocketmq.forwarder.renew(tls.grpc_client)
        self.remoting.forwarder.context = tls.peer_client

    # --- The steps of the stop that are more than the end of one part ---

    async def _retire(self) -> None:
        """Refuse new appends, give leadership up, answer the pending appends, and let go of every
        reader that waits."""
        self.health.enter(Phase.DRAINING, "told to stop")
        self.broker.produce.is_draining = True
        await self._politely(self.admin.retire(self.settings.drain_timeout_ms))
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
        self.remoting_calls.stop()
        await asyncio.gather(self.grpc.stop(grace_ms), self.framed.stop(grace_ms))

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
        self._tasks.run(work)

    # --- Facts and helpers ---

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
            "members": [],
            "warnings": [],
            "nameserver": None,
        }

    def _running_status(self) -> dict[str, Any]:
        replica = self.replication.status()
        own = {"members": list(replica.members), "warnings": list(self.warnings())}
        return {**replica.fields(), **own}

    def _facts(self) -> metrics.NodeFacts:
        settings = self.settings
        return metrics.NodeFacts(
            (str(settings.node_id), settings.cluster_id, settings.broker_group, __version__),
            self.health.ready().is_good,
            time.monotonic() - self.began_s,
            {name: each.ends_unix_s for name, each in self.files.tls_validity.items()},
            settings.scrub_interval_ms / 1000,
        )

    def _nameserver_status(self) -> dict[str, Any]:
        facts = self._nameserver_facts()
        if facts is None:
            return {"nameserver": None}
        problems = dict(self.nameserver.watch.problems)
        return {"nameserver": dataclasses.asdict(facts.status) | {"group_problems": problems}}

    def _nameserver_facts(self) -> metrics.NameServerFacts | None:
        status = self.nameserver.status()
        return None if status is None else metrics.NameServerFacts(self.nameserver, status)

    def _history_facts(self) -> Facts:
        broker = self.broker
        return Facts(
            broker.produce.records_total,
            broker.produce.size_bytes_total,
            broker.outgoing.record_count,
            broker.outgoing.size_bytes,
            self.append_times.stages().answered,
            self.replication.store.stats().gauges.disk_used_ratio,
        )

    def note_warnings(self) -> None:
        """Log warnings that are new and those that are over; numbers in them may change."""
        now = {_NUMBER.sub("0", text): text for text in self.warnings()}
        for kind in now.keys() - self._warned.keys():
            _log.warning(now[kind])
        for kind in self._warned.keys() - now.keys():
            _log.info("a warning is over", was=self._warned[kind])
        self._warned = now

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings for an operator, as sentences."""
        shown = ("listen", "rocketmq")
        opened = [str(one) for one in exposures(self.settings) if one.setting in shown]
        return (
            *opened,
            *self.replication.store.stats().warnings(),
            *self.sync_watch.warnings(),
            *self.renewals.warnings(),
            *map(str, date_warnings(self.files.tls_validity, time.time())),
            *self.lives.warnings(),
            *filter(None, (self._users_problem(),)),
            *self.guard.warnings(),
            *self.replication.warnings(),
        )
