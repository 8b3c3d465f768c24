"""A node whose log Raft replicates, assembled from its components.

Owns the steps of `node.node` for this mode, and the reactions to changes of roles and members.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from random import SystemRandom
from typing import Final

import structlog

from node.admin.raft import NodeAdmin
from node.broker import Broker, BrokerIdentity
from node.broker.core.context import entries
from node.config.environment import store_host
from node.config.settings import Settings
from node.config.types import Address
from node.monitoring import metrics, state_check_samples
from node.monitoring.health import Phase
from node.monitoring.replica_status import NodeReplicaStatus
from node.nameserver.brokers import RaftBroker
from node.node import Node
from node.offline.term_seal import refuse_if_sealed, refuse_term_end, term_warnings
from node.peers.dispatch import PeerFrames
from node.peers.frames import FrameKind
from node.peers.link import PeerLink
from node.peers.security.tls import TlsFiles, client_context, server_context
from node.replication.derived_scrub import DerivedCare
from node.replication.foundation import Foundation, FoundingVerdict
from node.replication.maintenance import Maintenance
from node.replication.raft.digests.checks import StateChecks
from node.replication.raft.digests.fence import StateFence
from node.replication.raft.driver import RaftDriver
from node.replication.raft.fetch import EntryFetcher, EntryServer
from node.replication.raft.maintenance import RaftSteps
from node.replication.raft.memory import RaftMemory
from node.replication.raft.opening import open_state
from node.replication.raft.repair import (
    ClosedRepair,
    LiveRepair,
    RepairProgress,
    find_damaged,
    open_repaired,
)
from node.replication.raft.snapshots import Snapshots
from node.replication.raft.storage.log import LedgerLog
from node.replication.raft.watches import DriverWatch, FetchWatch, FoundingWatch
from node.replication.scrub import Scrub
from node.runtime.fail_stop import DAMAGE_MARKER, FailStop
from node.state.checkpoint_files import CheckpointFiles
from node.state.held import needed_position
from node.state.state import Member
from raft.errors import RaftError
from raft.messages import NO_INDEX, NO_NODE, Index, NodeId, Standing
from raft.pump.replica import Replica
from raft.ready import RoleChange
from raft.transitions import Role
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


class RaftNode(Node):
    """The components of a Raft node; `start` makes each of them in turn."""

    log: LedgerLog
    files: CheckpointFiles
    link: PeerLink
    frames: PeerFrames
    replica: Replica
    driver: RaftDriver
    admin: NodeAdmin
    memory: RaftMemory
    maintenance: Maintenance[RaftSteps]
    snapshots: Snapshots
    fetcher: EntryFetcher
    repair: LiveRepair
    fence: StateFence
    checks: StateChecks

    def __init__(self, settings: Settings, fail_stop: FailStop) -> None:
        super().__init__(settings, fail_stop)
        self._known_members: dict[NodeId, Member] = {}
        self._readiness: tuple[object, ...] = ()
        """The facts that decide `Health.ready` beside the phase, as the last turn left them."""
        self._find_last_index: Callable[[], Index] = lambda: _DAMAGED_LAST_INDEX

    # --- Steps of the start ---

    async def open_store(self) -> None:
        """Open the log, repair it if it is damaged, and open the newest checkpoint."""
        settings = self.settings
        refuse_if_sealed(settings.directory)

        def open_log() -> LedgerLog:
            return LedgerLog.open(
                str(settings.directory),
                settings.store_config(store_host(settings)),
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                fs=self.fs,
                on_fatal=self.fail_stop,
                progress=self.progress,
            )

        marker = settings.directory / DAMAGE_MARKER
        if marker.exists():
            reports = await _RepairWhenNeeded(self).run()
            self._tell_repaired(reports)
            marker.unlink()
        # On a thread, so that the loop answers probes meanwhile; afterwards the log belongs to the
        # loop.
        self.log, reports = await open_repaired(
            partial(self.opening.run, open_log), _RepairWhenNeeded(self)
        )
        self.show_log()
        self._find_last_index = self._last_index_of_log
        self._tell_repaired(reports)
        refuse_term_end(str(settings.directory), self.log.hard_state.term)
        self.health.enter(Phase.STARTING, "meeting the peers")
        root = str(settings.directory)
        self.memory = RaftMemory(self.log)
        self.lives.open(self.fs, root, settings.cluster_id, self.memory)
        self.files, self.machine = open_state(self.fs, root, self.log, self.limits)
        self._known_members = dict(self.machine.state.members)

    def make_link(self, tls: TlsFiles | None) -> PeerLink:
        """Return the link, with the handlers of the frames that come before there is a driver."""
        self.frames = PeerFrames(self._last_index, self.fail_stop)
        link = PeerLink(
            self.identity,
            self.frames,
            server_tls=server_context(tls) if tls is not None else None,
            client_tls=client_context(tls) if tls is not None else None,
            lives=self.lives,
        )
        self.lives.attach_link(link)
        self.frames.take(FrameKind.LIVES, by=self.lives.on_frame)
        self.frames.watch(self.lives)
        self.fetcher = EntryFetcher(link, lambda: sorted(self.settings.peers))
        self.frames.take(FrameKind.FETCHED_ENTRIES, by=self.fetcher.on_frame)
        self.frames.watch(FetchWatch(self.fetcher))
        return link

    async def meet_peers(self) -> None:
        """Open the ports, and begin to connect to the peers. A repeated call only dials."""
        await super().meet_peers()
        self._set_peers()

    async def found(self) -> None:
        """Found or join the cluster with an empty disk, and answer peers that do the same.

        Returns at once for a disk with a history.
        """
        waiting = FoundingWatch(
            Foundation(self.settings.node_id, self.settings.voters), self._say_founded
        )
        self.frames.take(FrameKind.FOUNDED, by=waiting.on_founded)
        self.frames.watch(waiting)
        foundation = waiting.foundation
        if not self.log.is_founded:
            while foundation.verdict is FoundingVerdict.WAIT:
                await self._wait_for(waiting, foundation.missing)
            if foundation.verdict is FoundingVerdict.FOUND:
                self.log.found(self.settings.voters)
                _log.info("founds a cluster", voters=self.settings.voters)
            else:
                self.log.join(incarnation=int(time.time()))
                _log.info("joins a cluster as a node without memory")
            for node in self.settings.voters:
                self._say_founded(node)
        while self.log.is_untouched and not foundation.may_begin:
            await self._wait_for(waiting, foundation.unfounded)
        self.lives.changed()  # Peers that connected before know no life of this node.
        # A peer may know that this disk is an old copy, so the node promises nothing before.
        await self.link.wait_tried()

    async def _wait_for(self, waiting: FoundingWatch, nodes: tuple[NodeId, ...]) -> None:
        missing = ", ".join(map(str, nodes))
        self.health.enter(Phase.WAITING, f"a new cluster needs to hear of node {missing} first")
        await waiting.changed()

    def _say_founded(self, node: NodeId) -> None:
        if self.log.is_founded:
            self.link.send(node, FrameKind.FOUNDED, b"")

    def run_replica(self) -> None:
        """Make the components that need to know the cluster; start none of them but the lives, and
        the checks, which wait for the driver."""
        settings, raft = self.settings, self.settings.raft_config()
        self.log.start_at(self.machine.applied_index, self.lives.committed_index)
        self.machine.listen(self.log.store)
        self.replica = Replica(raft, self.log, SystemRandom())
        self.snapshots = Snapshots(self.log, self.machine, self.link, raft.group)
        self.driver = RaftDriver(
            self.replica,
            self.log,
            self.machine,
            self.link,
            self.snapshots,
            is_flush_sync=settings.flush == "sync",
            on_fatal=self.fail_stop,
        )
        self.life.callback(self.driver.stop)
        self.fence = StateFence(self.log.node_file, self._on_fence)
        identity, store = self._broker_identity(), self.log.store
        kind = entries(
            store.ledger, is_flush_sync=identity.is_flush_sync, why_not_local=self.fence.error
        )
        self.broker = Broker(
            self.driver, store.reads, self.machine, identity, self.limits, kind=kind
        )
        self.broker.context.on_damage = self.on_met
        self.driver.has_audience = self.broker.has_waiting_readers
        others = [node for node in settings.voters if node != settings.node_id]
        self.driver.has_met_all = lambda: all(map(self.link.is_connected, others))
        self.memory.driver = self.driver
        self.driver.add_listener(self._on_turn)
        self.driver.add_role_listener(self._on_role)
        self.health.watch(self.driver)
        self.frames.take(*RAFT_FRAMES, by=self.driver.on_raft_frame)
        self.frames.take(*SNAPSHOT_FRAMES, by=self.snapshots.on_frame)
        self.frames.on_refused = self.driver.on_refused
        self.frames.watch(DriverWatch(self.driver))
        self.frames.watch(self.snapshots)
        server = EntryServer(
            self.link, self.log.store.ledger.read_range, lambda: self.driver.commit_index
        )
        self.frames.take(FrameKind.FETCH_ENTRIES, by=server.on_frame)
        self.repair = LiveRepair(self.log.store, self.fetcher, self._on_repaired, self.fail_stop)
        self.life.push_async_callback(self.repair.stop)
        steps = RaftSteps(
            self.log,
            self.replica,
            self.machine,
            self.files,
            lambda: needed_position(self.log.store.reads, self.machine.state),
        )
        self.maintenance = Maintenance(steps, self.fail_stop, self.on_met)
        self.scrub = Scrub(
            self.log.store.scrubber(),
            settings.scrub_interval_ms,
            self.maintenance,
            self.on_damage,
            self.fail_stop,
            self.fetcher,
        )
        self.derived = DerivedCare(
            self.log.store, settings.scrub_interval_ms, self.on_damage, self.fail_stop
        )
        self.snapshots.attach(self.driver, steps.thread, self.spawn)
        self._compare_states(steps)
        self.health.problem = self._problem
        self.lives.start()
        self.admin = NodeAdmin(self.parts(), self.driver, self.replica, self.log)

    def _broker_identity(self) -> BrokerIdentity:
        settings = self.settings
        addresses = {node: str(peer.address) for node, peer in settings.peers.items()}
        return BrokerIdentity(
            settings.cluster_id,
            settings.flush == "sync",
            {**addresses, settings.node_id: self.address},
            settings.group,
        )

    def _compare_states(self, steps: RaftSteps) -> None:
        self.checks = StateChecks(
            self.machine, self.driver, self.link, steps.thread, self.fence, self.spawn
        )
        self.frames.take(FrameKind.STATE_DIGEST, by=self.checks.on_frame)
        self.life.callback(self.checks.stop)
        self.checks.start()

    def beside_nameserver(self) -> RaftBroker:
        """Return the view of this node for the name server in its process."""
        return RaftBroker(self.settings, self.address, self.machine, self.driver)

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
            self.health.refresh()
        if self.machine.state.members != self._known_members:
            self._known_members = dict(self.machine.state.members)
            self._set_peers()

    def _on_role(self, change: RoleChange) -> None:
        _log.info("role", role=change.role.name.lower(), term=change.term, leader=change.leader)
        self.health.refresh()
        self.lives.save_soon()
        if change.role is Role.LEADER and self.broker.is_draining:
            self.spawn(self.admin.leave_leadership())

    def _on_fence(self, is_fenced: bool) -> None:
        self.driver.set_fenced(is_fenced)
        self.health.refresh()

    def on_damage(self, error: CorruptionError) -> None:
        """Have the damaged entries fetched from a peer."""
        _log.error("damage was found, it is fetched from peers", error=str(error))
        self.repair.on_damage(error)

    def _on_repaired(self, report: RepairReport) -> None:
        self._tell_repaired([report])

    def _tell_repaired(self, reports: list[RepairReport]) -> None:
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
        self.lives.forget(frozenset(addresses))

    async def drain(self, timeout_ms: int) -> None:
        """Let another node lead, then answer the pending appends."""
        self.driver.is_draining = True
        others = [n for n in self.replica.stats().raft.voters if n != self.settings.node_id]
        for _ in others:  # A node that drains as well does not take over; then ask the next one.
            if self.driver.role is not Role.LEADER:
                break
            try:
                await self.admin.hand_over(NO_NODE, timeout_ms)
                _log.info("handed leadership over", leader=self.driver.leader_id)
            except RaftError as error:
                _log.warning("did not hand leadership over", reason=str(error))
        await self.appends_decided()

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
        return ""

    def _divergence(self) -> list[str]:
        return [
            f"divergent history with node {node}: what was acked there and here contradict each "
            'other; see operations.md, "Two histories"'
            for node in sorted(self.replica.core.state.divergent_peers)
        ]

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings for an operator, as sentences."""
        return (
            *super().warnings(),
            *term_warnings(self.log.hard_state.term),
            *self._divergence(),
        )

    def _last_index(self) -> Index:
        return self._find_last_index()

    def _last_index_of_log(self) -> Index:
        """Return the last index for the handshake; NO_INDEX only for an untouched log.

        A node that entered a term may have voted: peers must not take it for a new node.
        """
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

    def replica_status(self) -> NodeReplicaStatus:
        """Return the state of the Raft core."""
        raft = self.replica.stats().raft
        return NodeReplicaStatus(
            role=raft.role,
            standing=raft.standing,
            term=raft.term,
            leader_id=raft.leader,
            first_index=raft.first_index,
            last_index=raft.last_index,
            durable_index=raft.synced,
            commit_index=raft.commit,
            applied_index=raft.applied,
        )

    def replica_samples(self) -> Iterator[metrics.Sample]:
        """Yield the samples of the pump, the core, the shell, repairs and the scrub."""
        yield from self.replica_status().samples(Role)
        yield from metrics.replica_samples(self.replica.stats())
        yield from metrics.lives_samples(self.lives)
        yield from state_check_samples.samples(self.checks.stats())
        yield "appends_without_room", (), self.driver.dropped_for_room_count
        yield "apply_retries", (), self.driver.apply_retry_count
        yield from metrics.repair_samples(self.repair.stats())
        yield from metrics.scrub_samples(self.scrub.stats(), self.derived.stats())
        yield from metrics.derived_samples(self.derived.stats())


class _RepairWhenNeeded:
    """Looks for damage; if there is any, meets the peers and repairs the closed log with their
    entries.

    A node whose log is undamaged does not meet its peers here: they would take it for a member with
    a history, and no cluster could be founded with it any more, although its directory may not
    belong to a member at all."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node

    async def run(self) -> list[RepairReport]:
        node, settings = self._node, self._node.settings
        if not set(settings.peers) - {settings.node_id}:
            return []  # There is no peer to ask: the error of the opening says all that is known.
        node.health.enter(Phase.REPAIRING, "looking for the damage")
        root, config = str(settings.directory), settings.store_config()
        damaged = await find_damaged(root, config, node.fs)
        if not damaged:
            return []
        await node.meet_peers()

        def on_progress(progress: RepairProgress) -> None:
            node.health.enter(Phase.REPAIRING, str(progress))

        _log.error("the log is damaged; it is fetched from peers before this node takes part")
        repair = ClosedRepair(root, config, node.fetcher, on_progress, fs=node.fs)
        return await repair.run(damaged)
