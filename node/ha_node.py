"""A node of a master-slave group, assembled from its components.

Owns the steps of `node.node` for this mode. Must not know consensus; the machine decides which
node becomes master, and a controller or an operator proposes it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from node.admin.ha import HaAdmin
from node.broker import Broker, BrokerIdentity
from node.broker.core.context import LogKind
from node.config.environment import store_host
from node.errors.common import NodeError
from node.errors.ha import NotMasterError, StateMissingError
from node.monitoring import metrics
from node.monitoring.ha_samples import ha_samples
from node.monitoring.health import Phase
from node.monitoring.replica_status import NodeReplicaStatus
from node.nameserver.ha_broker import HaBroker
from node.node import Node
from node.offline.term_seal import epoch_warnings, refuse_epoch_end, refuse_if_sealed
from node.peers.security.tls import TlsFiles, client_context, server_context
from node.replication.derived_scrub import DerivedCare
from node.replication.foundation import FoundingVerdict
from node.replication.ha.applied import AppliedState
from node.replication.ha.batches import PlainBatches
from node.replication.ha.core.effects import HaRoleChange
from node.replication.ha.core.types import AckMode, HaSettings, HaStanding
from node.replication.ha.discovery import Discovery
from node.replication.ha.driver import HaDriver
from node.replication.ha.link.link import HaLink
from node.replication.ha.maintenance import HaSteps
from node.replication.ha.memory import HaMemory
from node.replication.ha.storage.log import HaLog
from node.replication.ha.storage.losses import LossFile
from node.replication.maintenance import Maintenance
from node.replication.scrub import Scrub
from node.runtime.on_thread import on_thread
from quorumlog.pb import common_pb2
from raft.messages import NO_INDEX, Index, NodeId
from raft.transitions import Role
from store.errors import CorruptionError, DerivedFileError

_MODES: Final = {"sync_master": AckMode.SYNC, "async_master": AckMode.ASYNC, "slave": None}
_ROLES: Final = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)
_log: Final = structlog.get_logger(component="node")


class HaNode(Node):
    """The components of a master-slave node; `start` makes each of them in turn."""

    log: HaLog
    applied: AppliedState
    link: HaLink
    driver: HaDriver
    admin: HaAdmin
    maintenance: Maintenance[HaSteps]
    losses: LossFile
    memory: HaMemory
    discovery: Discovery

    @property
    def group(self) -> HaSettings:
        """The group as this node is configured."""
        settings = self.settings
        return HaSettings(
            group=f"{settings.cluster_id}/{settings.group}",
            replica_ids=tuple(sorted(settings.peers or (settings.node_id,))),
            copies=settings.copies,
        )

    # --- Steps of the start ---

    async def open_store(self) -> None:
        """Open the log and the newest checkpoint that fits it."""
        settings = self.settings
        refuse_if_sealed(settings.directory)

        def open_log() -> HaLog:
            return HaLog.open(
                str(settings.directory),
                settings.store_config(store_host(settings)),
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                group=self.group,
                fs=self.fs,
                on_fatal=self.fail_stop,
                progress=self.progress,
            )

        # On a thread, so that the loop answers probes meanwhile; afterwards the log belongs to the
        # loop.
        self.log = await on_thread(partial(self.opening.run, open_log))
        self.show_log()
        refuse_epoch_end(str(settings.directory), self.log.replica.bound.number)
        self.memory = HaMemory(self.log)
        self.lives.open(self.fs, str(settings.directory), settings.cluster_id, self.memory)
        self.health.enter(Phase.STARTING, "applying the log")
        self.applied = await on_thread(partial(AppliedState, self.log, self.fs, self.limits))
        self.machine = self.applied.machine
        self.losses = LossFile(self.fs, str(settings.directory))
        self.health.enter(Phase.STARTING, "meeting the other replicas")

    def make_link(self, tls: TlsFiles | None) -> HaLink:
        """Return the link; `discovery` holds connections until the driver takes them."""
        settings, group = self.settings, self.group
        addresses = {
            node: (peer.peer_address.host, peer.peer_address.port)
            for node, peer in settings.peers.items()
        }
        self.discovery = Discovery(settings.node_id, group.replica_ids)
        # The handshake refuses a node of another group, or of Raft mode, because its name differs.
        members = ",".join(map(str, group.replica_ids))
        name = f"{settings.group} (master-slave, {group.copies} copies of {members})"
        return HaLink(
            replace(self.identity, group=name),
            addresses,
            self.discovery,
            self._last_index,
            server_tls=server_context(tls) if tls is not None else None,
            client_tls=client_context(tls) if tls is not None else None,
            lives=self.lives,
        )

    async def found(self) -> None:
        """Found the group once all replicas were met and none has a history; else join it.

        A replica that joins has forgotten what it promised, so it does not count until the master
        has found that safe (docs/decisions/0020).
        """
        if self.log.is_new:
            await self._found_or_join()
        # A peer may know that this disk is an old copy, so the node promises nothing before.
        await self.link.wait_tried()

    async def _found_or_join(self) -> None:
        discovery = self.discovery
        while discovery.verdict is FoundingVerdict.WAIT:
            missing = ", ".join(map(str, discovery.missing))
            self.health.enter(Phase.WAITING, f"a new group needs to hear of node {missing} first")
            await discovery.changed()
        is_founder = discovery.verdict is FoundingVerdict.FOUND
        standing = HaStanding.FULL if is_founder else HaStanding.JOINING
        # The clock makes this incarnation higher than that of a disk which this one replaces.
        incarnation = int(time.time()) << 20 | secrets.randbits(20)
        state = self.log.replica._replace(standing=standing, incarnation=incarnation)
        self.log.save_state(state)
        _log.info("founds a group" if is_founder else "joins a group as a replica without memory")

    def run_replica(self) -> None:
        """Make the components that need to know whether this replica founded or joined."""
        settings = self.settings
        self.driver = HaDriver(
            self.group,
            settings.node_id,
            self.log,
            self.applied,
            self.link,
            self.losses,
            mode=_MODES[settings.replication],
            is_first_master=settings.replication != "slave",
            make_image=self._make_image,
            on_fatal=self.fail_stop,
        )
        self.life.callback(self.driver.stop)
        addresses = {node: str(peer.address) for node, peer in settings.peers.items()}
        identity = BrokerIdentity(
            settings.cluster_id,
            True,
            {**addresses, settings.node_id: self.address},
            settings.group,
        )
        kind = LogKind(
            PlainBatches(self.log), self._durability, NotMasterError, False, self._why_not_local
        )
        self.broker = Broker(
            self.driver, self.log.store.reads, self.machine, identity, self.limits, kind=kind
        )
        self.driver.add_listener(self.health.refresh)
        self.driver.add_role_listener(self._on_role)
        self.health.watch(self.driver)
        steps = HaSteps(self.log, self.applied, self.driver)
        self.maintenance = Maintenance(steps, self.fail_stop, self.on_met)
        self.scrub = Scrub(
            self.log.store.scrubber(),
            settings.scrub_interval_ms,
            self.maintenance,
            self.on_damage,
            self.fail_stop,
        )
        self.derived = DerivedCare(
            self.log.store, settings.scrub_interval_ms, self.on_damage, self.fail_stop
        )
        self.broker.context.on_damage = self.on_met
        self.admin = HaAdmin(self.parts(), self.driver, self.applied, self.losses, self.drain)
        self.memory.driver = self.driver
        self.lives.start()
        self.discovery.attach(self.driver.inbound)

    def beside_nameserver(self) -> HaBroker:
        """Return the view of this node for the name server in its process."""
        return HaBroker(
            self.settings,
            self.address,
            self.peer_address_of(self.settings.node_id),
            self.machine,
            self.driver,
        )

    async def _make_image(self) -> bytes:
        try:
            return await self.maintenance.steps.make_image()
        except (CorruptionError, DerivedFileError) as error:
            self.on_met(error)
            raise

    # --- Reactions to changes ---

    async def drain(self, timeout_ms: int) -> None:
        """Answer the pending appends, then stop being master.

        The node names no successor: the controller or an operator promotes one, with the fence.
        """
        self.driver.is_draining = True
        await self.appends_decided()
        self.driver.resign("the node drains")

    def _on_role(self, change: HaRoleChange) -> None:
        _log.info(
            "role",
            role=change.role.value,
            epoch=change.number,
            master=change.master_id,
            reason=change.reason,
        )
        self.health.refresh()

    def on_damage(self, error: CorruptionError) -> None:
        """Log the damage; an operator replaces a damaged replica's disk (docs/operations.md)."""
        _log.error("damage was found on this disk", error=str(error))

    # --- Facts ---

    def _last_index(self) -> Index:
        """Return the handshake's index: NO_INDEX if this disk has promised nothing, else 0."""
        log = self.log
        is_untouched = (
            log.replica.bound.number == 0
            and not log.epochs.entries
            and log.end <= log.min_position
            and log.replica.standing is HaStanding.FULL
        )
        return NO_INDEX if is_untouched or log.is_new else 0

    def _durability(self) -> common_pb2.Durability:
        """Return the durability that a receipt of this node promises now."""
        state = self.driver.machine.state
        if state.mode is AckMode.ASYNC or state.settings.copies == 1:
            return common_pb2.DURABILITY_LEADER_DISK
        if 2 * state.settings.copies > len(state.settings.replica_ids):
            return common_pb2.DURABILITY_QUORUM_DISK
        return common_pb2.DURABILITY_COPIES_DISK

    def _why_not_local(self) -> NodeError | None:
        return StateMissingError() if self.applied.is_missing else None

    def peer_address_of(self, node: NodeId) -> str:
        """Return host:port of a node's peer link; empty if it is not known."""
        peer = self.settings.peers.get(node)
        if peer is not None:
            return str(peer.peer_address)
        return self.peer_address if node == self.settings.node_id else ""

    def warnings(self) -> tuple[str, ...]:
        """Return the shared warnings and those about the epoch."""
        return (*super().warnings(), *epoch_warnings(self.log.replica.bound.number))

    def replica_status(self) -> NodeReplicaStatus:
        """Return the state of the machine, with positions in place of indexes."""
        driver, report = self.driver, self.driver.report()
        return NodeReplicaStatus(
            role=driver.role,
            standing=report.standing,
            term=driver.term,
            leader_id=driver.leader_id,
            first_index=report.first,
            last_index=report.end - 1,
            durable_index=report.durable - 1,
            commit_index=driver.commit_index,
            applied_index=driver.applied_index,
        )

    def replica_samples(self) -> Iterator[metrics.Sample]:
        """Yield the samples of the driver, the lives, the scrub and the derived files."""
        yield from self.replica_status().samples(_ROLES)
        yield from ha_samples(self.driver)
        yield from metrics.lives_samples(self.lives)
        yield from metrics.scrub_samples(self.scrub.stats(), self.derived.stats())
        yield from metrics.derived_samples(self.derived.stats())
