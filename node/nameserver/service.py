"""The name server inside a process: it starts and restarts the replica, and keeps the broker known.

Owns the life of the replica and of the duties around it. Must not know gRPC (`calls`) or how a node
is put together. Nothing here may end or delay the node: starting returns at once, every fault ends
only the replica, and the status says why.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from node.errors import NodeError
from node.nameserver.brokers import LocalBroker, unix_ms
from node.nameserver.controlling import Adviser, Controller
from node.nameserver.directory import Directory
from node.nameserver.errors import (
    FilesDamagedError,
    LibraryVersionError,
    NameServerOffError,
    ReplicaFailedError,
)
from node.nameserver.registration import Registration
from node.nameserver.routes import groups
from node.nameserver.settings import NameServerSettings
from node.nameserver.status import NameServerStatus
from node.nameserver.trusted_time import TrustedTime
from quorumlog.pb.log_pb2 import GroupRoute, NodeAddress, TopicRoute
from store.errors import SyncFailedError

if TYPE_CHECKING:
    from node.nameserver.replicated import NameServer

WATCH_PERIOD_MS: Final = 250
RESTART_PAUSE_MS: Final = 5_000
_FINAL: Final = (FilesDamagedError, LibraryVersionError, SyncFailedError)
"""Trying again would meet the same, or trust a disk that lied: these wait for a person."""
_log: Final = logging.getLogger(__name__)


class NameServerService:
    """One per process. All on the event loop's thread."""

    def __init__(
        self,
        settings: NameServerSettings | None,
        broker: LocalBroker | None,
        *,
        restart_pause_ms: int = RESTART_PAUSE_MS,
    ) -> None:
        """Without settings it does nothing; without a broker it runs alone."""
        self.settings: Final = settings
        self.broker: Final = broker
        self.trusted_time: Final = TrustedTime()
        self.registration: Registration | None = None
        self.restart_count = 0
        self._restart_pause_ms = restart_pause_ms
        self._server: NameServer | None = None
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    # --- Life ---

    def start(self) -> None:
        """Begin; returns at once."""
        if self.settings is not None:
            self._task = asyncio.create_task(self._run(self.settings), name="nameserver")

    async def leave(self) -> None:
        """Tell the others that this broker stops; bounded, and nothing depends on it."""
        if self.registration is not None and self._server is not None:
            await self.registration.leave()

    async def stop(self) -> None:
        """End everything."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def changed(self) -> None:
        """The role of the broker changed: tell it at once."""
        if self.registration is not None:
            self.registration.changed()

    async def ended(self) -> None:
        """Wait until it has given up: `failure` needs a person. Never without settings."""
        if self._task is None:
            await asyncio.Event().wait()
        else:
            await asyncio.wait({self._task})

    # --- Facts ---

    @property
    def failure(self) -> Exception | None:
        """Why the replica does not run; None if it does, or is about to."""
        return self._failure

    @property
    def server(self) -> "NameServer":
        """The replica. Raises NameServerOffError or ReplicaFailedError."""
        if self._server is not None and self._server.is_running:
            return self._server
        if self._failure is not None:
            raise ReplicaFailedError(str(self._failure))
        raise NameServerOffError

    def status(self) -> NameServerStatus | None:
        """Return how the replica is; None if there is none here."""
        if self.settings is None:
            return None
        if self._server is not None:
            return self._server.status()
        state = "stopped" if self._failure is None else "failed"
        return NameServerStatus.without_replica(state, str(self._failure or ""))

    @property
    def problem(self) -> str:
        """What a person should look at; empty: nothing."""
        if self._failure is not None:
            return f"name server: {self._failure}"
        return ""

    @property
    def trusted_ms(self) -> int:
        """The time by which silence is judged."""
        return self.trusted_time.at(unix_ms())

    def other_groups(self, topics: Iterable[str]) -> list[GroupRoute]:
        """Return all groups but the broker's own, as this replica knows them. Never waits."""
        server = self._server
        if server is None or self.broker is None:
            return []
        wanted, own, now_ms = tuple(topics), self.broker.group, self.trusted_ms
        return server.look(lambda directory: _others(directory, wanted, own, now_ms))

    # --- The life of the replica ---

    async def _run(self, settings: NameServerSettings) -> None:
        # Here, because a node without a replica should not pay for the library.
        from node.nameserver.replicated import NameServer

        while True:
            server = None
            try:
                server = NameServer(settings)
                await server.start()
                self._server, self._failure = server, None
                await self._serve(server)
            except Exception as error:  # noqa: BLE001 - a fault here must not end the node.
                self._note(error)
            finally:
                self._server = None
                if server is not None:
                    await server.stop()
            if isinstance(self._failure, _FINAL):
                return
            await asyncio.sleep(self._restart_pause_ms / 1000)
            self.restart_count += 1

    async def _serve(self, server: "NameServer") -> None:
        """Do all duties until the replica ends. Raises what ended it."""
        duties = [self._watch(server), Controller(server).run()]
        if self.broker is not None:
            self.registration = Registration(server, self.broker)
            duties += [self.registration.run(), Adviser(server, self.broker).run()]
        async with asyncio.TaskGroup() as group:
            for duty in duties:
                group.create_task(duty)

    async def _watch(self, server: "NameServer") -> None:
        while server.is_running:
            self.trusted_time.note(unix_ms(), has_leader=bool(server.leader))
            await asyncio.sleep(WATCH_PERIOD_MS / 1000)
        raise server.failure or ReplicaFailedError("its thread ended")

    def _note(self, error: Exception) -> None:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if str(error) != str(self._failure):
            known = error if not isinstance(error, NodeError) else None
            _log.error("the name server is off: %s", error, exc_info=known)
        self._failure = error


def _others(
    directory: Directory, topics: tuple[str, ...], own: str, now_ms: int
) -> list[GroupRoute]:
    found = []
    for share in groups(directory, now_ms):
        if share.group == own:
            continue
        known = directory.groups[share.group].topics
        found.append(
            GroupRoute(
                group=share.group,
                kind=share.kind,
                term=share.epoch,
                leader_id=max(0, share.master_id),
                nodes=[
                    NodeAddress(node_id=broker.broker_id, address=broker.address)
                    for broker in share.brokers
                ],
                topics=[
                    TopicRoute(
                        topic=name,
                        queue_count=known[name].write_queue_count,
                        permission=known[name].permission,
                    )
                    for name in topics
                    if name in known
                ],
            )
        )
    return found
