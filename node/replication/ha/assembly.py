"""The replica of a node of a master-slave group, assembled from its components.

Owns the steps of its start. Must not know the broker or consensus; the machine decides which node
becomes master, and a controller or an operator proposes it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from node.config.environment import store_host
from node.contract import ReplicaStatus
from node.monitoring.health import Phase
from node.monitoring.metric import Source
from node.peers.handshake import LinkIdentity
from node.peers.security.tls import TlsFiles
from node.replication.admin_parts import NodeParts, Replication
from node.replication.foundation import Foundation, FoundingVerdict
from node.replication.ha import metrics
from node.replication.ha.admin import HaAdmin
from node.replication.ha.applied import AppliedState
from node.replication.ha.core.effects import HaRoleChange
from node.replication.ha.core.types import AckMode, HaSettings, HaStanding
from node.replication.ha.driver import HaDriver
from node.replication.ha.link.link import HaLink
from node.replication.ha.local_broker import HaBroker
from node.replication.ha.maintenance import HaSteps
from node.replication.ha.memory import HaMemory
from node.replication.ha.receipts import ha_receipts
from node.replication.ha.storage.log import HaLog
from node.replication.maintenance import Maintenance
from node.replication.term_end import epoch_warnings, refuse_epoch_end
from node.runtime.on_thread import on_thread
from raft.messages import NO_INDEX, Index
from raft.transitions import Role
from store.errors import CorruptionError, DerivedFileError

_MODES: Final = {"sync_master": AckMode.SYNC, "async_master": AckMode.ASYNC, "slave": None}
_ROLES: Final = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)
_log: Final = structlog.get_logger(component="node")


async def build_ha(host: NodeParts) -> Replication:
    """Open the log, meet the other replicas, found or join the group, and make the replica."""
    return await HaAssembly(host).build()


class HaAssembly:
    """The components of a replica; `build` makes each of them in turn."""

    log: HaLog
    applied: AppliedState
    link: HaLink
    driver: HaDriver
    maintenance: Maintenance[HaSteps]
    memory: HaMemory
    foundation: Foundation
    """The role of an empty disk, as far as it is known."""

    def __init__(self, host: NodeParts) -> None:
        self.host: Final = host
        self.settings: Final = host.settings

    @property
    def group(self) -> HaSettings:
        """The group as this node is configured."""
        settings = self.settings
        return HaSettings(
            group=f"{settings.cluster_id}/{settings.broker_group}",
            replica_ids=tuple(sorted(settings.peers or (settings.node_id,))),
            copies=settings.copies,
        )

    # --- Steps of the start ---

    async def build(self) -> Replication:
        """Return the replication; nothing of it runs yet but the link and the lives."""
        await self._open_store()
        await self.host.meet_peers(self._make_link)
        await self._found()
        return self._run_replica()

    async def _open_store(self) -> None:
        """Open the log and the newest checkpoint that fits it."""
        host, settings = self.host, self.settings

        def open_log() -> HaLog:
            return HaLog.open(
                str(settings.directory),
                settings.store_config(store_host(settings)),
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                group=self.group,
                fs=host.fs,
                on_fatal=host.fail_stop,
                progress=host.health.progress,
            )

        # On a thread, so that the loop answers probes meanwhile; afterwards the log belongs to the
        # loop.
        self.log = await on_thread(partial(host.opening.run, open_log))
        refuse_epoch_end(str(settings.directory), self.log.replica.bound.number)
        self.memory = HaMemory(self.log)
        host.lives.open(host.fs, str(settings.directory), settings.cluster_id, self.memory)
        host.health.enter(Phase.STARTING, "applying the log")
        self.applied = await on_thread(partial(AppliedState, self.log, host.fs, settings.limits()))
        host.log_is_open(self.log.store)
        host.health.enter(Phase.STARTING, "meeting the other replicas")

    def _make_link(self, identity: LinkIdentity, tls: TlsFiles | None) -> HaLink:
        """Return the link; connections wait in it until the driver takes them."""
        settings, group = self.settings, self.group
        addresses = {
            node: (peer.peer_address.host, peer.peer_address.port)
            for node, peer in settings.peers.items()
        }
        self.foundation = Foundation(settings.node_id, group.replica_ids)
        # The handshake refuses a node of another group, or of Raft mode, because its name differs.
        members = ",".join(map(str, group.replica_ids))
        name = f"{settings.broker_group} (master-slave, {group.copies} copies of {members})"
        self.link = HaLink(
            replace(identity, group=name),
            addresses,
            self.foundation.on_peer,
            self._last_index,
            tls=tls,
            lives=self.host.lives,
        )
        return self.link

    async def _found(self) -> None:
        """Found the group once all replicas were met and none has a history; else join it.

        A replica that joins has forgotten what it promised, so it does not count until the master
        has found that safe (docs/decisions/0020).
        """
        if self.log.is_new:
            await self._found_or_join()
        # A peer may know that this disk is an old copy, so the node promises nothing before.
        await self.link.wait_tried()

    async def _found_or_join(self) -> None:
        foundation = self.foundation
        while foundation.verdict is FoundingVerdict.WAIT:
            await foundation.wait_for(foundation.missing, "group", self.host.health)
        is_founder = foundation.verdict is FoundingVerdict.FOUND
        standing = HaStanding.FULL if is_founder else HaStanding.JOINING
        # The clock makes this incarnation higher than that of a disk which this one replaces.
        incarnation = int(time.time()) << 20 | secrets.randbits(20)
        state = self.log.replica._replace(standing=standing, incarnation=incarnation)
        self.log.save_state(state)
        _log.info("founds a group" if is_founder else "joins a group as a replica without memory")

    def _run_replica(self) -> Replication:
        """Make the components that need to know whether this replica founded or joined."""
        host, settings = self.host, self.settings
        self.driver = HaDriver(
            self.group,
            _MODES[settings.replication],
            self.log,
            self.applied,
            self.link,
            make_image=self._make_image,
            on_role=self._on_role,
            on_fatal=host.fail_stop,
            append_times=host.append_times,
        )
        host.life.callback(self.driver.stop)
        self.driver.add_listener(host.health.refresh)
        host.health.watch(self.driver, self._problem, self.log.store.engine.retention.refusal)
        steps = HaSteps(self.log, self.applied, self.driver)
        self.maintenance = Maintenance(steps, host.fail_stop, host.on_met, host.note_warnings)
        self.memory.driver = self.driver
        host.lives.start()
        inbound = self.driver.inbound
        self.link.attach(inbound.on_open, inbound.on_frame, inbound.on_closed)
        host.pages.add_metrics(Source(metrics.METRICS, self._facts))
        return Replication(
            store=self.log.store,
            machine=self.applied.machine,
            link=self.link,
            driver=self.driver,
            start=self.driver.start,
            receipts=ha_receipts(self.driver),
            maintenance=self.maintenance,
            status=self._status,
            warnings=lambda: epoch_warnings(self.log.replica.bound.number),
            on_damage=_on_damage,
            admin=HaAdmin(host, self.driver),
            local_broker=HaBroker(
                settings, host.address, host.peer_address, self.applied.machine, self.driver
            ),
        )

    def _facts(self) -> metrics.HaFacts:
        slaves = [slave for slave in self.driver.slaves() if slave.acked >= 0]
        return metrics.HaFacts(self.driver, slaves, self.driver.machine.stats())

    async def _make_image(self) -> bytes:
        try:
            return await self.maintenance.steps.make_image()
        except (CorruptionError, DerivedFileError) as error:
            self.host.on_met(error)
            raise

    # --- Reactions to changes ---

    def _on_role(self, change: HaRoleChange) -> None:
        _log.info(
            "role",
            role=change.role.value,
            epoch=change.number,
            master=change.master_id,
            reason=change.reason,
        )
        self.host.health.refresh()

    # --- Facts ---

    def _problem(self) -> str:
        """Return why a master does not serve; empty: it does, or only needs more time."""
        driver, error = self.driver, self.driver.no_room or self.log.store.room_error
        if driver.role is not Role.LEADER or driver.is_ready or error is None:
            return ""
        return f"this node leads, and serves nothing without room: {error}"

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

    def _status(self) -> ReplicaStatus:
        """Return the state of the machine, with positions in place of indexes."""
        driver, state = self.driver, self.driver.machine.state
        return ReplicaStatus(
            role=driver.role,
            standing=state.replica.standing,
            term=driver.term,
            leader_id=driver.leader_id,
            first_index=self.log.min_position,
            last_index=state.end - 1,
            durable_index=state.durable - 1,
            commit_index=driver.commit_index,
            applied_index=driver.applied_index,
            roles=_ROLES,
        )


def _on_damage(error: CorruptionError) -> None:
    """Log the damage; an operator replaces a damaged replica's disk (docs/operations.md)."""
    _log.error("damage was found on this disk", error=str(error))
