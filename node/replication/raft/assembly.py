"""The replica of a node whose log Raft replicates, assembled from its components.

Owns the steps of its start, and the reactions to changes of roles and members. Must not know the
broker.
"""

import time
from functools import partial
from random import SystemRandom
from typing import Final

import structlog

from node.config.environment import store_host
from node.config.types import Address
from node.contract import ReplicaStatus
from node.monitoring.health import Phase
from node.monitoring.metric import Source
from node.nameserver.local_broker import LocalBroker
from node.peers.dispatch import PeerFrames
from node.peers.frames import FrameKind
from node.peers.handshake import LinkIdentity
from node.peers.link import PeerLink
from node.peers.lives_file import LivesFile
from node.peers.security.tls import TlsFiles
from node.replication.admin_parts import NodeParts, Replication
from node.replication.fetch import EntryFetcher, EntryServer
from node.replication.foundation import Foundation, FoundingVerdict
from node.replication.maintenance import Maintenance
from node.replication.raft import metrics
from node.replication.raft.admin import RaftAdmin
from node.replication.raft.digests.checks import StateChecks
from node.replication.raft.digests.fence import StateFence
from node.replication.raft.driver import RaftDriver
from node.replication.raft.maintenance import RaftSteps
from node.replication.raft.memory import RaftMemory
from node.replication.raft.opening import open_state
from node.replication.raft.receipts import raft_receipts
from node.replication.raft.repair import (
    ClosedRepair,
    LiveRepair,
    RepairProgress,
    find_damaged,
    open_repaired,
)
from node.replication.raft.snapshots import Snapshots
from node.replication.raft.storage.hard_state import NodeFile
from node.replication.raft.storage.log import LedgerLog
from node.replication.term_end import refuse_term_end, term_warnings
from node.runtime.fail_stop import DAMAGE_MARKER
from node.state.checkpoint_files import CheckpointFiles
from node.state.held import needed_position
from node.state.machine import StateMachine
from node.state.state import Member
from raft.messages import NO_INDEX, NO_NODE, Index, NodeId, Standing
from raft.pump.replica import Replica
from raft.ready import RoleChange
from store.errors import CorruptionError
from store.ledger.mending.fetched import RepairReport

RAFT_FRAMES: Final = (
    FrameKind.VOTE_REQUEST,
    FrameKind.VOTE_REPLY,
    FrameKind.APPEND,
    FrameKind.APPEND_REPLY,
    FrameKind.CAMPAIGN_NOW,
)
_DAMAGED_LAST_INDEX: Final[Index] = 0
"""Last index for the handshake while the log is closed for its repair: a damaged log has entries,
and peers must not take its node for a new one."""
SNAPSHOT_FRAMES: Final = (FrameKind.INSTALL_SNAPSHOT, FrameKind.SNAPSHOT_CHUNK)
_log: Final = structlog.get_logger(component="node")


async def build_raft(host: NodeParts) -> Replication:
    """Open the log, meet the peers, found or join the cluster, and make the replica."""
    return await RaftAssembly(host).build()


class RaftAssembly:
    """The components of a replica; `build` makes each of them in turn."""

    log: LedgerLog
    files: CheckpointFiles
    machine: StateMachine
    link: PeerLink
    frames: PeerFrames
    replica: Replica
    driver: RaftDriver
    memory: RaftMemory
    maintenance: Maintenance[RaftSteps]
    snapshots: Snapshots
    fetcher: EntryFetcher
    repair: LiveRepair
    fence: StateFence
    checks: StateChecks

    def __init__(self, host: NodeParts) -> None:
        self.host: Final = host
        self.settings: Final = host.settings
        self._known_members: dict[NodeId, Member] = {}
        self._readiness: tuple[object, ...] = ()
        """The facts that decide `Health.ready` beside the phase, as the last turn left them."""
        self._is_log_open = False

    # --- Steps of the start ---

    async def build(self) -> Replication:
        """Return the replication; nothing of it runs yet but the link, the lives, and the checks,
        which wait for the driver."""
        await self._open_store()
        await self.meet_peers()
        await self._found()
        return self._run_replica()

    async def _open_store(self) -> None:
        """Open the log, repair it if it is damaged, and open the newest checkpoint."""
        host, settings = self.host, self.settings

        def open_log() -> LedgerLog:
            return LedgerLog.open(
                str(settings.directory),
                settings.store_config(store_host(settings)),
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                fs=host.fs,
                on_fatal=host.fail_stop,
                progress=host.health.progress,
            )

        marker = settings.directory / DAMAGE_MARKER
        if marker.exists():
            reports = await self._repair()
            self._tell_repaired(*reports)
            marker.unlink()
        # On a thread, so that the loop answers probes meanwhile; afterwards the log belongs to the
        # loop.
        self.log, reports = await open_repaired(partial(host.opening.run, open_log), self._repair)
        self._is_log_open = True
        self._tell_repaired(*reports)
        refuse_term_end(str(settings.directory), self.log.node_file.record.hard_state.term)
        host.health.enter(Phase.STARTING, "meeting the peers")
        root = str(settings.directory)
        self.memory = RaftMemory(self.log)
        host.lives.open(host.fs, root, settings.cluster_id, self.memory)
        self.files, self.machine = open_state(host.fs, root, self.log, settings.limits())
        self._known_members = dict(self.machine.state.members)
        host.log_is_open(self.log.store)

    async def _repair(self) -> list[RepairReport]:
        """Look for damage of the closed log; if there is any, repair it with entries of peers.

        A node whose log is undamaged does not meet its peers here: they would take it for a member
        with a history, and no cluster could be founded with it any more, although its directory may
        not belong to a member at all.
        """
        host, settings = self.host, self.settings
        if not set(settings.peers) - {settings.node_id}:
            return []  # There is no peer to ask: the error of the opening says all that is known.
        host.health.enter(Phase.REPAIRING, "looking for the damage")
        root, config = str(settings.directory), settings.store_config()
        damaged = await find_damaged(root, config, host.fs)
        if not damaged:
            return []
        await self.meet_peers()

        def on_progress(progress: RepairProgress) -> None:
            host.health.enter(Phase.REPAIRING, str(progress))

        _log.error("the log is damaged; it is fetched from peers before this node takes part")
        lives = LivesFile(host.fs, root).load(settings.cluster_id, settings.node_id)
        repair = ClosedRepair(
            root,
            config,
            self.fetcher,
            on_progress,
            fs=host.fs,
            committed_index=lives.committed,
            before_cut=NodeFile(host.fs, root).note_cut,
        )
        return await repair.run(damaged)

    def _make_link(self, identity: LinkIdentity, tls: TlsFiles | None) -> PeerLink:
        """Return the link, with the handlers of the frames that come before there is a driver."""
        lives = self.host.lives
        self.frames = PeerFrames(self._last_index, self.host.fail_stop)
        self.link = link = PeerLink(
            identity,
            self.frames,
            tls=tls,
            lives=lives,
        )
        lives.link = link
        self.frames.take(FrameKind.LIVES, by=lives.on_frame)
        self.frames.watch(lives.on_connected, lives.on_disconnected)
        self.fetcher = EntryFetcher(link, lambda: sorted(self.settings.peers))
        self.frames.take(FrameKind.FETCHED_ENTRIES, by=self.fetcher.on_frame)
        self.frames.watch(on_disconnected=self.fetcher.on_disconnected)
        return link

    async def meet_peers(self) -> None:
        """Open the ports, and begin to connect to the peers. A repeated call only dials."""
        await self.host.meet_peers(self._make_link)
        self._set_peers()

    async def _found(self) -> None:
        """Found or join the cluster with an empty disk, and answer peers that do the same.

        Returns at once for a disk with a history.
        """
        foundation = Foundation(self.settings.node_id, self.settings.voters)
        self.frames.take(FrameKind.FOUNDED, by=lambda node, *_frame: foundation.on_founded(node))
        self.frames.watch(foundation.on_peer)
        self.frames.watch(self._say_founded)
        if not self.log.is_founded:
            while foundation.verdict is FoundingVerdict.WAIT:
                await foundation.wait_for(foundation.missing, "cluster", self.host.health)
            if foundation.verdict is FoundingVerdict.FOUND:
                self.log.found(self.settings.voters)
                _log.info("founds a cluster", voters=sorted(self.settings.voters))
            else:
                self.log.join(incarnation=int(time.time()))
                _log.info("joins a cluster as a node without memory")
            for node in self.settings.voters:
                self._say_founded(node)
        while self.log.is_untouched and not foundation.may_begin:
            await foundation.wait_for(foundation.unfounded, "cluster", self.host.health)
        self.host.lives.changed()  # Peers that connected before know no life of this node.
        # A peer may know that this disk is an old copy, so the node promises nothing before.
        await self.link.wait_tried()

    def _say_founded(self, node: NodeId, _last_index: Index = NO_INDEX) -> None:
        if self.log.is_founded:
            self.link.send(node, FrameKind.FOUNDED, b"")

    def _run_replica(self) -> Replication:
        """Make the components that need to know the cluster."""
        host, settings, raft = self.host, self.settings, self.settings.raft_config()
        self.log.start_at(self.machine.applied_index, host.lives.committed_index)
        self.machine.listen(self.log.store.engine.dispatcher)
        self.replica = Replica(raft, self.log, SystemRandom())
        self.snapshots = Snapshots(self.log, self.machine, self.link, raft.group)
        others = [other for other in settings.voters if other != settings.node_id]
        self.driver = RaftDriver(
            self.replica,
            self.log,
            self.machine,
            self.link,
            self.snapshots.begin,
            on_fatal=host.fail_stop,
            append_times=host.append_times,
            has_audience=lambda: host.broker.has_waiting_readers(),  # noqa: PLW0108 - no broker yet.
            has_met_all=lambda: all(map(self.link.is_connected, others)),
        )
        host.life.callback(self.driver.stop)
        self.fence = StateFence(self.log.node_file, self._on_fence)
        self.memory.driver = self.driver
        self.driver.add_listener(self._on_turn)
        self.driver.add_role_listener(self._on_role)
        host.health.watch(self.driver, self._problem, self.log.store.engine.retention.refusal)
        self.frames.take(*RAFT_FRAMES, by=self.driver.on_raft_frame)
        self.frames.take(*SNAPSHOT_FRAMES, by=self.snapshots.on_frame)
        self.frames.on_refused = self.driver.on_refused
        self.frames.watch(on_disconnected=self.driver.on_disconnected)
        self.frames.watch(on_disconnected=self.snapshots.on_disconnected)
        store = self.log.store
        server = EntryServer(self.link, store.ledger.read_range, lambda: self.driver.commit_index)
        self.frames.take(FrameKind.FETCH_ENTRIES, by=server.on_frame)
        self.repair = LiveRepair(store, self.fetcher, self._tell_repaired, host.fail_stop)
        host.life.push_async_callback(self.repair.stop)
        steps = RaftSteps(
            self.log,
            self.replica,
            self.machine,
            self.files,
            lambda: needed_position(store.reads, self.machine.state),
        )
        self.maintenance = Maintenance(steps, host.fail_stop, host.on_met, host.note_warnings)
        self.snapshots.attach(self.driver, steps.thread, host.spawn)
        self.checks = StateChecks(
            self.machine, self.driver, self.link, steps.thread, self.fence, host.spawn
        )
        self.frames.take(FrameKind.STATE_DIGEST, by=self.checks.on_frame)
        host.life.callback(self.checks.stop)
        self.checks.start()
        host.lives.start()
        host.pages.add_metrics(
            Source(metrics.RAFT, lambda: self.replica),
            Source(metrics.RAFT_DRIVER, lambda: self.driver),
            Source(metrics.STATE_CHECKS, lambda: self.checks),
            Source(metrics.REPAIR, lambda: self.repair),
        )
        return Replication(
            store=store,
            machine=self.machine,
            link=self.link,
            driver=self.driver,
            start=self.driver.start,
            receipts=raft_receipts(store, self.fence.error),
            maintenance=self.maintenance,
            status=self._status,
            warnings=self._warnings,
            on_damage=self._on_damage,
            admin=RaftAdmin(host, self.driver),
            local_broker=LocalBroker(settings, host.address, self.machine, self.driver),
            fetcher=self.fetcher,
        )

    # --- Reactions to changes ---

    def _on_turn(self) -> None:
        # Every turn that applies something comes here, and hardly any of them changes readiness.
        state = self.replica.core.state
        is_divided = bool(state.divergent_peers)
        driver = self.driver
        is_apart = is_divided, driver.is_fenced
        seen = (driver.is_ready, state.role, state.leader, state.standing, is_apart)
        if seen != self._readiness:
            self._readiness = seen
            self.host.health.refresh()
        if self.machine.state.members != self._known_members:
            self._known_members = dict(self.machine.state.members)
            self._set_peers()

    def _on_role(self, change: RoleChange) -> None:
        _log.info("role", role=change.role.name.lower(), term=change.term, leader=change.leader)
        self.host.health.refresh()
        self.host.lives.save_soon()

    def _on_fence(self, is_fenced: bool) -> None:
        self.driver.set_fenced(is_fenced)
        self.host.health.refresh()

    def _on_damage(self, error: CorruptionError) -> None:
        """Have the damaged entries fetched from a peer."""
        if self.repair.on_damage(error):
            _log.error("damage was found, it is fetched from peers", error=str(error))

    def _tell_repaired(self, *reports: RepairReport) -> None:
        for report in reports:
            _log.warning("the log was damaged and is repaired", repaired=str(report))

    def _set_peers(self) -> None:
        """Dial the peers of the settings and the members added since.

        A replicated address takes precedence over one of the settings.
        """
        addresses = {
            node: (peer.peer_address.host, peer.peer_address.port)
            for node, peer in self.settings.peers.items()
        }
        for node, member in self._known_members.items():
            if member.peer_address:
                address = Address.parse(member.peer_address)
                addresses[node] = (address.host, address.port)
        self.link.set_peers(addresses)
        self.host.lives.forget(frozenset(addresses))

    # --- Facts ---

    def _problem(self) -> str:
        """Return why clients should avoid this node: its state or its history is not that of the
        others; empty: no reason."""
        state = self.replica.core.state
        if self.fence.problem:
            return self.fence.problem
        if state.standing is Standing.DIVERGED:
            return (
                "what is committed here contradicts the log of the leader: nothing is cut, and "
                'this node stands aside; see operations.md, "Two histories"'
            )
        if state.divergent_peers and state.leader == NO_NODE:
            return f"no node can lead; {self._divergence()[0]}"
        if state.leader == NO_NODE and (error := self.log.store.room_error) is not None:
            return f"no leader is known, and this node cannot lead without room: {error}"
        return ""

    def _divergence(self) -> list[str]:
        return [
            f"divergent history with node {node}: what was acked there and here contradict each "
            'other; see operations.md, "Two histories"'
            for node in sorted(self.replica.core.state.divergent_peers)
        ]

    def _warnings(self) -> tuple[str, ...]:
        return (*term_warnings(self.log.node_file.record.hard_state.term), *self._divergence())

    def _last_index(self) -> Index:
        """Return the last index for the handshake; NO_INDEX only for an untouched log.

        A node that entered a term may have voted: peers must not take it for a new node.
        """
        if not self._is_log_open:
            return _DAMAGED_LAST_INDEX
        return NO_INDEX if self.log.is_untouched else max(0, self.log.last_index)

    def _status(self) -> ReplicaStatus:
        state = self.replica.core.state
        return ReplicaStatus(
            role=state.role,
            standing=state.standing,
            term=state.term,
            leader_id=state.leader,
            first_index=state.log.base_index + 1,
            last_index=state.log.last_index,
            durable_index=state.synced,
            commit_index=state.commit,
            applied_index=state.applied,
            members=tuple(sorted({*state.voters, *state.learners})),
            voters=tuple(state.voters),
        )
