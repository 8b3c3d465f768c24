"""The calls of AdminService that belong to a Raft node: status, leadership, members.

Owns the effect of each call and its time limit. Topics and groups belong to the broker. Must not
know gRPC.
"""

import asyncio
import contextlib
from typing import Final

import structlog

from node.config.types import Address
from node.errors.common import (
    BadRequestError,
    NodeError,
    ShuttingDownError,
    WrongClusterError,
)
from node.errors.members import ChangeTimeoutError
from node.monitoring.health import Phase
from node.replication.admin_parts import NodeParts, refused
from node.replication.raft.driver import RaftDriver
from quorumlog.pb import admin_pb2 as pb
from raft.errors import ChangeRefusedError, NotLeaderError, RaftError, TransferRefusedError
from raft.messages import NO_INDEX, NO_NODE, NodeId, Standing
from raft.ready import RoleChange
from raft.rules.membership import Change, ChangeKind
from raft.rules.transfer import check_other_voter
from raft.transitions import Role
from store.errors import PositionRangeError
from store.files.failpoints import hit

TRANSFER_TIMEOUT_MS: Final = 5_000
"""From the request to another leader. A hand-over takes a round trip; this is ten elections."""
HAND_OVER_POLL_MS: Final = 50
"""Interval of the checks whether a hand-over has failed."""
DRAIN_RETRY_MS: Final = 200
"""A new leader cannot hand over at once: its followers have to catch up first."""
CHANGE_TIMEOUT_MS: Final = 30_000
_KINDS: Final = {
    pb.MEMBER_CHANGE_ADD_LEARNER: ChangeKind.ADD_LEARNER,
    pb.MEMBER_CHANGE_PROMOTE: ChangeKind.PROMOTE,
    pb.MEMBER_CHANGE_REMOVE: ChangeKind.REMOVE,
}
_log: Final = structlog.get_logger(component="admin")


class RaftAdmin:
    """The calls of one node in Raft mode."""

    def __init__(self, parts: NodeParts, driver: RaftDriver) -> None:
        self.parts, self._driver = parts, driver
        self._replica, self._log = driver.replica, driver.log
        self._leader_changed = asyncio.Event()
        self._adding: NodeId = NO_NODE
        """The node whose addresses are being stored before it becomes a member."""
        driver.add_role_listener(self._on_role)

    def _on_role(self, change: RoleChange) -> None:
        self._leader_changed.set()
        if change.role is Role.LEADER and self.parts.broker.produce.is_draining:
            self.parts.spawn(self._leave_leadership())

    # --- Status ---

    async def history(self, _request: pb.HistoryRequest) -> pb.HistoryResponse:
        """Return the last hour of this node in numbers."""
        return self.parts.last_hour()

    async def events(self, request: pb.EventsRequest) -> pb.EventsResponse:
        """Return the last events of this node."""
        return self.parts.events(request)

    async def read_log(self, request: pb.ReadLogRequest) -> pb.ReadLogResponse:
        """Return bytes of the files of this node."""
        return await self.parts.read_log(request)

    async def node_status(self, _request: pb.NodeStatusRequest) -> pb.NodeStatusResponse:
        """Return the whole status of this node."""
        gauges = self._log.store.stats().gauges
        return self.parts.node_status(
            positions=(gauges.min_position, gauges.wrote_position),
            members=self._members(),
            details=self.parts.details(self._details()),
            loss_from_index=self._driver.loss_from,
        )

    def _details(self) -> list[str]:
        details = []
        loss_from, settings, lost = (
            self._driver.loss_from,
            self.parts.settings,
            self.parts.lives.lost,
        )
        if loss_from != NO_INDEX:
            details.append(f"acked records may be missing from index {loss_from} on")
        standing = self._replica.core.state.standing
        if standing is Standing.JOINING and lost:
            details.append(
                f"its disk is an old copy of what it held: {lost}; it neither votes nor "
                'counts; see operations.md, "A node came back with an old copy of its disk"'
            )
        elif standing is Standing.JOINING and settings.node_id in settings.voters:
            details.append(
                f"its disk was empty, and node {settings.node_id} may have voted before: it "
                "neither votes nor counts; remove it and add the disk under a new id"
            )
        return details

    def _members(self) -> list[pb.MemberStatus]:
        state = self._replica.core.state
        members = []
        for member in sorted({*state.voters, *state.learners}):
            row = state.progress.get(member)
            match = row.match if row is not None else NO_INDEX
            if member == state.node_id and state.role is Role.LEADER:
                match = state.synced
            members.append(
                self.parts.member(
                    member,
                    is_voter=member in state.voters,
                    match_index=match,
                    progress=row.state.name.lower() if row is not None else "",
                )
            )
        return members

    # --- Leadership ---

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest
    ) -> pb.TransferLeadershipResponse:
        """Hand leadership over and wait until another node leads."""
        await self.hand_over(request.node_id, TRANSFER_TIMEOUT_MS)
        driver = self._driver
        return pb.TransferLeadershipResponse(leader_id=driver.leader_id, term=driver.term)

    async def hand_over(self, target: NodeId, timeout_ms: int) -> None:
        """Return once another node leads. Raises NotLeaderError or TransferRefusedError."""
        driver = self._driver
        if target == driver.node_id and driver.role is Role.LEADER:
            return
        target = driver.transfer_leadership(target)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while driver.leader_id in (driver.node_id, NO_NODE):
                    self._check_hand_over(target)
                    self._leader_changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(HAND_OVER_POLL_MS / 1000):
                            await self._leader_changed.wait()
        except TimeoutError as error:
            what = f"it did not take over within {timeout_ms} ms"
            raise TransferRefusedError(target, what) from error

    def _check_hand_over(self, target: NodeId) -> None:
        """Raise TransferRefusedError once no node can take over any more."""
        # Not the stats: they read the log, which a concurrent stop may have closed.
        state = self._replica.core.state
        if state.role is Role.LEADER and state.transferee == NO_NODE:
            raise TransferRefusedError(target, "it did not take over in time")
        others = [voter for voter in state.voters if voter != state.node_id]
        if not any(self.parts.replication.link.is_connected(voter) for voter in others):
            raise TransferRefusedError(target, "no other voter can be reached")

    async def _leave_leadership(self) -> None:
        """Hand leadership over, until a node takes it: this node was elected while it drains."""
        said = ""
        while self._driver.role is Role.LEADER and self.parts.broker.produce.is_draining:
            try:
                await self.hand_over(NO_NODE, TRANSFER_TIMEOUT_MS)
            except (NotLeaderError, ShuttingDownError):
                return
            except TransferRefusedError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("leads although it drains", reason=said)
                await asyncio.sleep(DRAIN_RETRY_MS / 1000)

    async def retire(self, timeout_ms: int) -> None:
        """Let another node lead, then answer the pending appends; new ones are refused already."""
        self._driver.is_draining = True
        others = [n for n in self._replica.core.state.voters if n != self._driver.node_id]
        for _ in others:  # A node that drains as well does not take over; then ask the next one.
            if self._driver.role is not Role.LEADER:
                break
            try:
                await self.hand_over(NO_NODE, timeout_ms)
                _log.info("handed leadership over", leader=self._driver.leader_id)
            except RaftError as error:
                _log.warning("did not hand leadership over", reason=str(error))
        await self.parts.appends_decided()

    async def drain(self, request: pb.DrainRequest) -> pb.DrainResponse:
        """Refuse appends and do not lead, until undone or restarted.

        A leader that no node relieves goes on as before, and the call raises TransferRefusedError.
        """
        was_draining = self._driver.is_draining
        if not request.undo:  # Before the drain has any effect.
            check_other_voter(self._replica.core.state)
        self._set_draining(not request.undo)
        if not request.undo and self._driver.role is Role.LEADER:
            try:
                await self.hand_over(NO_NODE, TRANSFER_TIMEOUT_MS)
            except TransferRefusedError:
                self._set_draining(was_draining)
                raise
        return pb.DrainResponse()

    def _set_draining(self, is_draining: bool) -> None:
        self.parts.broker.produce.is_draining = is_draining
        self._driver.is_draining = is_draining
        if is_draining:
            self.parts.health.enter(Phase.DRAINING, "an operator drains this node")
        else:
            self.parts.health.enter(Phase.SERVING)

    async def accept_loss(self, request: pb.AcceptLossRequest) -> pb.AcceptLossResponse:
        """Let the cluster go on with the remaining log after a power loss of a majority."""
        own = self.parts.settings.cluster_id
        if request.confirm_cluster_id != own:
            raise WrongClusterError(request.confirm_cluster_id, own)
        self._driver.accept_loss()
        _log.warning("an operator accepted the loss of unsynced records")
        return pb.AcceptLossResponse()

    async def finalize_upgrade(
        self, _request: pb.FinalizeUpgradeRequest
    ) -> pb.FinalizeUpgradeResponse:
        """Raise the level of the group."""
        state = self._replica.core.state
        return await self.parts.finalize_upgrade(sorted({*state.voters, *state.learners}))

    # --- Members ---

    async def change_member(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        """Change one member; return when the change is committed."""
        driver, member = self._driver, request.node_id
        kind = _KINDS.get(request.change)
        if kind is None:
            raise BadRequestError("change", "one of MemberChange", str(request.change))
        if member == NO_NODE:
            raise BadRequestError("node_id", "a number of 1 or more", "0")
        if kind is ChangeKind.ADD_LEARNER:
            _check_address("address", request.address)
            _check_address("peer_address", request.peer_address)
        driver.check_change(Change(kind, member))  # Before the addresses have any effect.
        if self._adding != NO_NODE:
            raise ChangeRefusedError(member, f"node {self._adding} is being added; retry")
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_MS / 1000):
                if kind is ChangeKind.ADD_LEARNER:
                    # First, so that all nodes can dial the node when it becomes a member.
                    await self._put_new(member, request.address, request.peer_address)
                hit("admin.before_change")
                changing = driver.change_member(Change(kind, member))
                hit("admin.after_change")
                index = await changing
                if kind is ChangeKind.REMOVE and member != driver.node_id:
                    await self._forget(member)
        except TimeoutError as error:
            raise ChangeTimeoutError(CHANGE_TIMEOUT_MS) from error
        _log.info("members changed", change=kind.value, member=member, index=index)
        return pb.ChangeMemberResponse(index=index, members=self._members())

    async def _put_new(self, member: NodeId, address: str, peer_address: str) -> None:
        """Store the addresses of a node that is no member, and let nothing make it one meanwhile.

        What the log says of a member outweighs all settings, so wrong addresses cut it off."""
        self._adding = member
        try:
            await self.parts.broker.put_member(member, address, peer_address)
        finally:
            self._adding = NO_NODE

    async def _forget(self, member: NodeId) -> None:
        try:
            await self.parts.broker.put_member(member, "", "")
        except (NodeError, RaftError) as error:
            # The change itself is committed; the address of a removed member does no harm.
            _log.warning("an address was not removed", member=member, error=str(error))

    # --- Calls of master-slave mode ---

    ha_status = refused("the status of a master", "run 'qlog cluster status'")
    ha_promote = refused("choosing a master", "run 'qlog cluster transfer-leader NODE'")

    # --- Comparing replicas ---

    async def chain_digest(self, request: pb.ChainDigestRequest) -> pb.ChainDigestResponse:
        """Return the chain CRC of an applied entry, which covers the whole log up to it."""
        log, applied = self._log, self._driver.applied_index
        index = applied if request.index == NO_INDEX else request.index
        first_index = max(0, log.base_index)
        if not first_index <= index <= applied:
            raise PositionRangeError("applied index", index, first_index, applied + 1)
        return pb.ChainDigestResponse(
            index=index,
            term=log.store.ledger.term_at(index),
            chain_crc=log.store.ledger.tail_at(index).link.chain_crc,
            end_log_position=log.store.ledger.end_of(index),
        )


def _check_address(name: str, text: str) -> None:
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise BadRequestError(name, "host:port", repr(text)) from error
    if address.is_wildcard or not address.port:
        raise BadRequestError(name, "an address that others can dial", repr(text))
