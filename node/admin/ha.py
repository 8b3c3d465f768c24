"""The calls of AdminService that belong to the node, in master-slave mode.

Owns the effect of each call and its time limit; refuses the calls of Raft mode by name. Must not
know gRPC.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import structlog

from node.errors.common import WrongModeError
from node.monitoring.health import Phase
from node.replication.ha.core.types import Mode, Standing
from quorumlog.pb import admin_pb2 as pb
from quorumlog.version import __version__
from raft.messages import NO_INDEX

if TYPE_CHECKING:
    from node.ha_node import HaNode

PROMOTE_TIMEOUT_MS: Final = 10_000
"""From the request to a serving master: the fence, and copying the longest log."""
_log: Final = structlog.get_logger(component="admin")


class HaAdmin:
    """The calls of one node in master-slave mode."""

    def __init__(self, node: HaNode) -> None:
        self._node = node
        self._began_s = time.monotonic()

    # --- Status ---

    async def node_status(self, _request: pb.NodeStatusRequest) -> pb.NodeStatusResponse:
        """Return the status of this node; positions stand for indexes, epochs for terms."""
        node = self._node
        report, store = node.driver.report(), node.log.store.stats()
        broker, driver = node.broker.stats(), node.driver
        return pb.NodeStatusResponse(
            cluster_id=node.settings.cluster_id,
            node_id=node.settings.node_id,
            version=__version__,
            role=driver.role.name.lower(),
            term=driver.term,
            leader_id=driver.leader_id,
            first_index=report.first,
            last_index=report.end - 1,
            durable_index=report.durable - 1,
            commit_index=driver.commit_index,
            applied_index=driver.applied_index,
            first_position=report.first,
            end_position=report.end,
            flush=node.settings.flush,
            standing=report.standing.name.lower(),
            disk_state=store.gauges.disk_state,
            disk_used_ratio=store.gauges.disk_used_ratio,
            uptime_ms=int(1000 * (time.monotonic() - self._began_s)),
            appends_total=broker.records_total,
            appended_size_bytes_total=broker.records_size_bytes_total,
            pulls_total=broker.pulls_total,
            pulled_records_total=broker.pulled_records_total,
            busy_total=broker.busy_total,
            in_flight_size_bytes=broker.in_flight_size_bytes,
            is_draining=node.broker.is_draining,
            loss_from_index=NO_INDEX,
            members=self._members(),
            detail="; ".join(self._details(with_losses=True)),
            pid=os.getpid(),
            replication=node.settings.replication,
        )

    def _members(self) -> list[pb.MemberStatus]:
        node = self._node
        report = node.driver.report()
        acked = {slave.replica_id: slave.acked - 1 for slave in report.slaves if slave.acked >= 0}
        if report.epoch_start >= 0:
            acked[report.replica_id] = report.durable - 1
        return [
            pb.MemberStatus(
                node_id=member,
                address=node.broker.address_of(member),
                peer_address=node.peer_address_of(member),
                is_voter=True,
                is_connected=member == report.replica_id or node.link.is_connected(member),
                match_index=acked.get(member, NO_INDEX),
                progress="replicate" if member in acked else "",
            )
            for member in report.replica_ids
        ]

    def _details(self, *, with_losses: bool = False) -> list[str]:
        node, ready = self._node, self._node.health.ready()
        found = [] if ready.is_good else [ready.reason]
        state = node.driver.machine.state
        if state.replica.standing is Standing.JOINING:
            lost = node.lives.lost
            why = (
                f"its disk is an old copy of what it held: {lost}" if lost else "its disk was empty"
            )
            found.append(f"{why}; it counts once the master found that safe")
        error = node.driver.save_error
        if error is not None:
            found.append(f"it takes part in nothing until it can write what it promises: {error}")
        if node.applied.is_missing:
            found.append("it has no copy of the replicated state yet, and cannot be promoted")
        if with_losses and node.losses.losses:
            found.append(f"{len(node.losses.losses)} losses are known, see 'qlog ha status'")
        if node.nameserver.problem:
            found.append(node.nameserver.problem)
        return [*found, *node.warnings()]

    async def ha_status(self, _request: pb.HaStatusRequest) -> pb.HaStatusResponse:
        """Return everything that this node knows about the group."""
        node = self._node
        report = node.driver.report()
        response = pb.HaStatusResponse(
            group=node.settings.group,
            node_id=report.replica_id,
            replication=node.settings.replication,
            role=report.role.value,
            mode="async" if report.mode is Mode.ASYNC else "sync",
            epoch=report.bound.number,
            master_id=report.master_id,
            highest_epoch=report.highest_seen,
            copies=report.copies,
            node_ids=report.replica_ids,
            standing=report.standing.name.lower(),
            log_epoch=report.log_epoch,
            first_position=report.first,
            end_position=report.end,
            durable_position=report.durable,
            confirm_position=report.confirm,
            epoch_start_position=report.epoch_start,
            in_sync=report.in_sync,
            detail="; ".join(self._details()),
        )
        for slave in report.slaves:
            response.replicas.add(
                node_id=slave.replica_id,
                address=node.broker.address_of(slave.replica_id),
                is_connected=slave.is_connected,
                acked_position=slave.acked,
                lag_size_bytes=slave.lag_size_bytes,
                is_in_sync=slave.is_in_sync,
            )
        for loss in node.losses.losses:
            response.losses.add(
                unix_ms=loss.unix_ms,
                epoch=loss.epoch,
                lo_position=loss.lo,
                hi_position=loss.hi,
                acked_hi_position=loss.acked_hi,
                is_exact=loss.is_exact,
                record_count=loss.record_count,
                acked_record_count=loss.acked_record_count,
                file=loss.file,
            )
        return response

    # --- Mastership ---

    async def ha_promote(self, request: pb.HaPromoteRequest) -> pb.HaPromoteResponse:
        """Make this node the master; return once it serves."""
        timeout_ms = min(request.timeout_ms or PROMOTE_TIMEOUT_MS, PROMOTE_TIMEOUT_MS)
        epoch = await self._node.driver.promote(timeout_ms)
        report = self._node.driver.report()
        _log.info("promoted by hand", epoch=epoch)
        return pb.HaPromoteResponse(
            epoch=epoch, master_id=report.replica_id, start_position=max(0, report.epoch_start)
        )

    async def drain(self, request: pb.DrainRequest) -> pb.DrainResponse:
        """Refuse appends and stop being master, until undone or restarted."""
        node = self._node
        node.broker.set_draining(not request.undo)
        if request.undo:
            node.driver.is_draining = False
            node.health.enter(Phase.SERVING)
        else:
            node.health.enter(Phase.DRAINING, "an operator drains this node")
            await node.drain(node.settings.drain_timeout_ms)
        return pb.DrainResponse()

    # --- Calls of Raft mode ---

    async def transfer_leadership(
        self, _request: pb.TransferLeadershipRequest
    ) -> pb.TransferLeadershipResponse:
        """Refuse: promote the other node instead."""
        raise self._refusal("TransferLeadership")

    async def change_member(self, _request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        """Refuse: the replicas of a group are fixed."""
        raise self._refusal("ChangeMember")

    async def accept_loss(self, _request: pb.AcceptLossRequest) -> pb.AcceptLossResponse:
        """Refuse: no replica waits for this decision in this mode."""
        raise self._refusal("AcceptLoss")

    async def chain_digest(self, _request: pb.ChainDigestRequest) -> pb.ChainDigestResponse:
        """Refuse: a plain log has no chain."""
        raise self._refusal("ChainDigest")

    def _refusal(self, call: str) -> WrongModeError:
        return WrongModeError(call, self._node.settings.replication)
