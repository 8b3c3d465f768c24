"""The name server in a process: it starts and restarts the replica, and registers the broker.

Owns the life of the replica and of the tasks around it. Must not know gRPC (`calls`) or how a node
is assembled. No fault here may end or delay the node: `start` returns at once, a fault ends only
the replica, and the status gives the reason.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from node.config.environment import tls_files
from node.config.nameserver import NameServerSettings
from node.config.settings import Settings
from node.errors.common import NodeError
from node.errors.nameserver import (
    FilesDamagedError,
    NameServerOffError,
    PysyncobjVersionError,
    ReplicaFailedError,
)
from node.nameserver.control import Adviser, Controller
from node.nameserver.directory.proofs import Prover
from node.nameserver.directory.routes import other_groups
from node.nameserver.local_broker import LocalBroker
from node.nameserver.registration import DirectoryAccess, Registration
from node.nameserver.replica.status import NameServerStatus
from node.nameserver.report_judge import ReportJudge
from node.nameserver.watch import GroupWatch, TrustedTime, sights
from node.peers.security.tls import grpc_client_credentials
from node.runtime.clock import unix_ms
from node.users.node_proofs import NodeProofs
from quorumlog.pb.log_pb2 import GroupRoute
from store.errors import SyncFailedError

if TYPE_CHECKING:
    import grpc

    # A node without a replica should not pay for the library, nor one with it for gRPC's stubs.
    from node.nameserver.remote import RemoteDirectory
    from node.nameserver.replica.replicated import NameServer

WATCH_PERIOD_MS: Final = 250
RESTART_PAUSE_MS: Final = 5_000
_FINAL: Final = (FilesDamagedError, PysyncobjVersionError, SyncFailedError)
"""Errors that need an operator: another attempt would fail again, or trust a disk that lied."""
_Duty = Coroutine[Any, Any, None]
_log: Final = logging.getLogger(__name__)


class NameServerService:
    """The name server of one process. Call all methods on the event loop's thread."""

    def __init__(
        self,
        settings: NameServerSettings | None,
        broker: LocalBroker | None,
        *,
        remote: "RemoteDirectory | None" = None,
        report_judge: ReportJudge,
        restart_pause_ms: int = RESTART_PAUSE_MS,
    ) -> None:
        """Run a replica by `settings` and register `broker`; without a broker the name server has
        its own process. `remote` is used without settings, and while the replica cannot run.
        `report_judge` decides which reports are believed here."""
        self.settings: Final = settings
        self.broker: Final = broker
        self._remote: Final = remote
        self.report_judge: Final = report_judge
        self.watch: Final = GroupWatch()
        self.trusted_time: Final = TrustedTime()
        self.registration: Registration | None = None
        self.restart_count = 0
        self._restart_pause_ms = restart_pause_ms
        self._server: NameServer | None = None
        self.failure: Exception | None = None
        """The reason why the replica does not run; None if it runs or is starting."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, settings: Settings, broker: LocalBroker, proofs: NodeProofs) -> Self:
        """Return the service of a node, which `proofs` signs for."""
        own, report_judge = settings.nameserver(), ReportJudge.of(settings, broker.members)
        servers = settings.nameserver_servers
        if own is not None:
            # The other nodes of the group have replicas, too, or know the servers that have.
            peers = settings.peers.items()
            servers = tuple(peer.address for n, peer in peers if n != settings.node_id)
        if not servers:
            return cls(own, broker, report_judge=report_judge)
        from node.nameserver.remote import RemoteDirectory

        tls = tls_files(settings)
        remote = RemoteDirectory(
            map(str, servers),
            broker.group,
            broker.heartbeat_period_ms // 4,
            None if tls is None else grpc_client_credentials(tls),
            Prover(secret, settings.cluster_id) if (secret := settings.secret()) else None,
            proofs,
        )
        return cls(own, broker, remote=remote, report_judge=report_judge)

    def renew(self, credentials: "grpc.ChannelCredentials") -> None:
        """Use other credentials for the connections to come."""
        if self._remote is not None:
            self._remote.renew(credentials)

    def renew_secrets(self, secrets: Sequence[bytes]) -> None:
        """Prove reports and calls with the first of these secrets, and believe all of them."""
        self.report_judge.renew(secrets)
        if self._remote is not None and self._remote.prover is not None:
            self._remote.prover.secret = secrets[0]

    # --- Life ---

    def start(self) -> None:
        """Start the tasks; return at once."""
        if self.settings is not None:
            self._task = asyncio.create_task(self._run(self.settings), name="nameserver")
        elif self._remote is not None:
            self._task = asyncio.create_task(self._ask_others(), name="nameserver")

    async def leave(self) -> None:
        """Report to the directory that this broker stops; bounded in time, and may fail."""
        if self.registration is not None:
            await self.registration.leave()

    async def stop(self) -> None:
        """End the replica and all tasks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._remote is not None:
            await self._remote.close()

    def changed(self) -> None:
        """Report a changed role of the broker at once."""
        if self.registration is not None:
            self.registration.changed()

    async def ended(self) -> None:
        """Wait until the replica has given up: `failure` needs an operator. Never returns without
        a task."""
        if self._task is None:
            await asyncio.Event().wait()
        else:
            await asyncio.wait({self._task})

    # --- Facts ---

    @property
    def server(self) -> "NameServer":
        """The replica. Raises NameServerOffError or ReplicaFailedError."""
        if self._server is not None and self._server.is_running:
            return self._server
        if self.failure is not None:
            raise ReplicaFailedError(str(self.failure))
        raise NameServerOffError

    def status(self) -> NameServerStatus | None:
        """Return the status of the replica; None if there is none in this process."""
        if self.settings is None:
            return None
        if self._server is not None:
            return self._server.status()
        state = "stopped" if self.failure is None else "failed"
        return NameServerStatus(state, failure=str(self.failure or ""))

    @property
    def problem(self) -> str:
        """Problems of the replica and of this node's group for an operator; empty: none."""
        failure, status = self.failure, self.status()
        problems = [] if failure is None else [f"name server: {failure}"]
        if status is not None and status.state == "joining":
            problems.append(f"name server: {status.failure}")
        if self.broker is not None:
            if self._server is not None:
                problems.append(self.watch.problems.get(self.broker.group, ""))
            elif self._remote is not None:
                problems.append(self._remote.own_problem)
        return "; ".join(filter(None, problems))

    def highest_epoch(self) -> int:
        """Return the highest epoch of the broker's group that its node or the directory knows."""
        broker = self.broker
        if broker is None:
            return 0
        own = broker.report(unix_ms(), with_topics=False).epoch
        group = self.server.look(lambda directory: directory.groups.get(broker.group))
        return own if group is None else max(own, group.epoch_highest)

    @property
    def trusted_ms(self) -> int:
        """The time that decides which brokers are silent."""
        return self.trusted_time.at(unix_ms())

    def other_groups(self, topics: Iterable[str]) -> list[GroupRoute]:
        """Return all groups but the broker's own, as they are known here. Do not wait."""
        server = self._server
        if self.broker is None:
            return []
        if server is None:
            return [] if self._remote is None else self._remote.other_groups(topics)
        wanted, own, now_ms = tuple(topics), self.broker.group, self.trusted_ms
        cluster_id = self.report_judge.cluster_id
        return server.look(
            lambda directory: other_groups(directory, cluster_id, own, now_ms, lambda _: wanted)
        )

    # --- The life of the replica ---

    async def _run(self, settings: NameServerSettings) -> None:
        # Imported here, because a node without a replica should not pay for the library.
        from node.nameserver.replica.replicated import NameServer

        while True:
            server = None
            try:
                server = NameServer(settings)
                await server.start()
                self._server, self.failure = server, None
                await self._serve(server)
            except Exception as error:  # noqa: BLE001 - a fault here must not end the node.
                self._note(error)
            finally:
                self._server = None
                self.watch.clear()
                if server is not None:
                    await server.stop()
            is_final = isinstance(self.failure, _FINAL)
            if is_final and self._remote is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_final else self._restart_pause_ms / 1000):
                    await self._ask_others()
            self.restart_count += 1

    async def _serve(self, server: "NameServer") -> None:
        """Run all tasks until the replica ends. Raises the error that ended it."""
        duties = [self._watch(server), Controller(server, lambda: server.is_leader).run()]
        if self.broker is not None:
            duties += self._duties(server, self.broker)
        await _all_of(duties)

    def _duties(self, access: DirectoryAccess, broker: LocalBroker) -> list[_Duty]:
        """Return the tasks of a broker; only one of an HA group needs advice."""
        self.registration = Registration(access, broker)
        advice = [Adviser(access, broker).run()] if broker.is_advised else []
        return [self.registration.run(), *advice]

    async def _ask_others(self) -> None:
        """Run the tasks of a broker through another process, until cancelled."""
        remote, broker = self._remote, self.broker
        if remote is None or broker is None:
            await asyncio.Event().wait()
            return
        while True:
            try:
                await _all_of([remote.run(), *self._duties(remote, broker)])
            except Exception as error:  # noqa: BLE001 - a fault here must not end the node.
                _log.error("the duties of a broker ended, and begin again", exc_info=error)
            await asyncio.sleep(self._restart_pause_ms / 1000)

    async def _watch(self, server: "NameServer") -> None:
        while server.is_running:
            has_leader = bool(server.leader)
            self.trusted_time.note(unix_ms(), has_leader=has_leader)
            seen = server.look(partial(sights, now_ms=self.trusted_ms))
            self.watch.note(seen, has_leader=has_leader)
            await asyncio.sleep(WATCH_PERIOD_MS / 1000)
        raise server.failure or ReplicaFailedError("its thread ended")

    def _note(self, error: Exception) -> None:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if str(error) != str(self.failure):
            unforeseen = error if not isinstance(error, NodeError) else None
            _log.error("the name server is off: %s", error, exc_info=unforeseen)
        self.failure = error


async def _all_of(duties: Iterable[_Duty]) -> None:
    """Run all duties until one fails."""
    async with asyncio.TaskGroup() as group:
        for duty in duties:
            group.create_task(duty)
