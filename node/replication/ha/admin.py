"""The calls of AdminService that belong to the node, in master-slave mode.

Owns the effect of each call and its time limit; refuses the calls of Raft mode by name. Must not
know gRPC.
"""

from typing import Final

import structlog

from node.monitoring.health import Phase
from node.replication.admin_parts import NodeParts, refused
from node.replication.ha.core.types import HaRole, HaStanding
from node.replication.ha.driver import HaDriver
from quorumlog.pb import admin_pb2 as pb
from raft.messages import NO_INDEX

PROMOTE_TIMEOUT_MS: Final = 10_000
"""From the request to a serving master: the fence, and copying the longest log."""
_log: Final = structlog.get_logger(component="admin")


class HaAdmin:
    """The calls of one node in master-slave mode."""

    def __init__(self, parts: NodeParts, driver: HaDriver) -> None:
        self.parts, self._driver, self._losses = parts, driver, driver.log.losses

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
        """Return the status of this node; positions stand for indexes, epochs for terms."""
        log, details = self._driver.log, self._details()
        if self._losses.losses:
            details.append(f"{len(self._losses.losses)} losses are known, see 'qlog ha status'")
        return self.parts.node_status(
            positions=(log.min_position, log.end),
            members=self._members(),
            details=self.parts.details(details),
        )

    def _members(self) -> list[pb.MemberStatus]:
        state = self._driver.machine.state
        slaves = self._driver.slaves()
        acked = {slave.replica_id: slave.acked - 1 for slave in slaves if slave.acked >= 0}
        if state.role is HaRole.MASTER:
            acked[state.me] = state.durable - 1
        return [
            self.parts.member(
                member,
                is_voter=True,
                match_index=acked.get(member, NO_INDEX),
                progress="replicate" if member in acked else "",
            )
            for member in state.settings.replica_ids
        ]

    def _details(self) -> list[str]:
        details = []
        if self._driver.machine.state.replica.standing is HaStanding.JOINING:
            lost = self.parts.lives.lost
            why = (
                f"its disk is an old copy of what it held: {lost}" if lost else "its disk was empty"
            )
            details.append(f"{why}; it counts once the master found that safe")
        error = self._driver.save_error
        if error is not None:
            details.append(f"it takes part in nothing until it can write what it promises: {error}")
        if self._driver.applied.is_missing:
            details.append("it has no copy of the replicated state yet, and cannot be promoted")
        return details

    async def ha_status(self, _request: pb.HaStatusRequest) -> pb.HaStatusResponse:
        """Return everything that this node knows about the group."""
        settings, driver = self.parts.settings, self._driver
        state = driver.machine.state
        response = pb.HaStatusResponse(
            broker_group=settings.broker_group,
            node_id=state.me,
            replication=settings.replication,
            role=state.role.value,
            mode=state.mode.value,
            epoch=state.bound.number,
            master_id=driver.leader_id,
            highest_epoch=state.highest_epoch,
            copies=state.settings.copies,
            node_ids=state.settings.replica_ids,
            standing=state.replica.standing.name.lower(),
            log_epoch=state.epochs.last.number,
            first_log_position=driver.log.min_position,
            end_log_position=state.end,
            durable_log_position=state.durable,
            confirm_log_position=state.confirm,
            epoch_start_log_position=state.copies.epoch_start
            if state.role is HaRole.MASTER
            else -1,
            in_sync=driver.in_sync(),
            detail="; ".join(self.parts.details(self._details())),
        )
        for slave in driver.slaves():
            response.replicas.add(
                node_id=slave.replica_id,
                address=self.parts.broker.context.address_of(slave.replica_id),
                is_connected=slave.is_connected,
                acked_log_position=slave.acked,
                lag_size_bytes=slave.lag_size_bytes,
                is_in_sync=slave.is_in_sync,
            )
        for loss in self._losses.losses:
            response.losses.add(
                unix_ms=loss.unix_ms,
                epoch=loss.epoch,
                first_log_position=loss.lo,
                end_log_position=loss.hi,
                acked_end_log_position=loss.acked_hi,
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
        epoch = await self._driver.promote(timeout_ms)
        state = self._driver.machine.state
        _log.info("promoted by hand", epoch=epoch)
        return pb.HaPromoteResponse(
            epoch=epoch, master_id=state.me, start_log_position=state.copies.epoch_start
        )

    async def drain(self, request: pb.DrainRequest) -> pb.DrainResponse:
        """Refuse appends and stop being master, until undone or restarted."""
        health = self.parts.health
        self.parts.broker.produce.is_draining = not request.undo
        if request.undo:
            self._driver.is_draining = False
            health.enter(Phase.SERVING)
        else:
            health.enter(Phase.DRAINING, "an operator drains this node")
            await self.retire(self.parts.settings.drain_timeout_ms)
        return pb.DrainResponse()

    async def retire(self, _timeout_ms: int) -> None:
        """Answer the pending appends, then stop being master; new appends are refused already.

        The node names no successor: the controller or an operator promotes one, with the fence.
        """
        self._driver.is_draining = True
        await self.parts.appends_decided()
        self._driver.resign("the node drains")

    async def finalize_upgrade(
        self, _request: pb.FinalizeUpgradeRequest
    ) -> pb.FinalizeUpgradeResponse:
        """Raise the level of the group."""
        return await self.parts.finalize_upgrade(self._driver.group.replica_ids)

    # --- Calls of Raft mode ---

    transfer_leadership = refused("handing the leadership over", "run 'qlog ha promote NODE'")
    change_member = refused("changing members", "write them into 'peers' of each node's settings")
    accept_loss = refused("accepting a loss", "run 'qlog ha promote NODE'")
    chain_digest = refused("a digest of the log", "compare the nodes with 'qlog ha status'")
