"""Tells the leader of this node's group which clients of RocketMQ's protocols are members here.

Owns the rounds: at each change, and at an interval as a sign of life. A new leader gets the whole,
later the groups that changed. Its answer names groups that changed elsewhere. Must not know how
the leader shares queues out.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import structlog

from node.broker.core.context import Context
from node.broker.groups.member import MemberKind, Reported
from node.broker.groups.members import Members
from node.errors.common import NodeError
from node.rocketmq.clients import GatewayClients
from node.rocketmq.cluster import GatewayCluster, Leader
from node.rocketmq.hold import NothingDoneError
from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.remoting.clients import Clients
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.forwarder import ANSWER_LED_ELSEWHERE, Forwarder
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.marks import REPORT
from quorumlog.pb.consumer_pb2 import (
    ReportedGroup,
    ReportedReading,
    ReportedSubscription,
    ReportMembersRequest,
    ReportMembersResponse,
)

FLUSH_S: Final = 1.0
"""Time that a heartbeat waits until the leader knows what it changed."""
_SIZE_BYTES_MAX: Final = 1 << 20
"""Of one report, about; the whole takes several."""
_log: Final = structlog.get_logger(component="remoting")


class MemberReports:
    """Reports to the leader, and takes reports where this node leads. One per gateway."""

    def __init__(
        self,
        context: Context,
        members: Members,
        cluster: GatewayCluster,
        forwarder: Forwarder,
        gateways: tuple[Clients, GatewayClients],
        on_changed: Callable[[str], None],
    ) -> None:
        """`on_changed` is called with a group whose members changed, if this node notifies
        those that are here."""
        self._context, self._members = context, members
        self._cluster, self._forwarder = cluster, forwarder
        self._gateways, self._on_changed = gateways, on_changed
        self._reporter: Final = secrets.randbits(63)
        self._leader: Leader | None = None
        """The one that has the whole."""
        self._generation = 0
        self._refused: dict[str, frozenset[str]] = {}
        """Client ids that the leader refused, by group; a new leader gets them."""
        self._again = set[str]()
        """Changed groups with refused clients: there may be room for them."""
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self.failed_total = 0

    def wake(self) -> None:
        """Report what changed soon."""
        self._wake.set()

    def is_refused(self, group: str, client_id: str) -> bool:
        """Return whether the leader keeps a client out of a group."""
        return client_id in self._refused.get(group, ())

    async def flush(self) -> None:
        """Return when the leader knows all changes so far, or could not be told in time: clients
        ask it for the members next."""
        if not any(gateway.changed for gateway in self._gateways):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        await asyncio.wait({future}, timeout=FLUSH_S)

    async def run(self) -> None:
        """Report until cancelled."""
        interval_s = self._context.limits.heartbeat_ms / 1000
        while True:
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self.round()
            except (NodeError, CallRefusedError, RefusedError, NothingDoneError) as error:
                self.failed_total += 1
                self._leader = None  # What it knows is unknown: it gets the whole.
                _log.debug("members are reported later", reason=str(error))
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()

    async def round(self) -> None:
        """Report once. Raises NodeError, CallRefusedError, RefusedError, NothingDoneError."""
        leader = self._cluster.own_leader()
        if leader != self._leader:
            self._leader = None
        if leader is None:
            return
        changed, self._again = self._again, set()
        for gateway in self._gateways:
            changed |= gateway.changed
            gateway.changed.clear()
        present = self._present()
        if not present and not changed:
            return
        is_whole = self._leader is None
        response = await self._send(leader, present if is_whole else changed, is_whole=is_whole)
        if response.wants_whole:
            response = await self._send(leader, self._present(), is_whole=True)
        self._leader, self._generation = leader, response.generation
        self._note_refused(response)
        for group in response.changed_groups:
            self._on_changed(group)

    def _note_refused(self, response: ReportMembersResponse) -> None:
        refused = {row.group: frozenset(row.client_ids) for row in response.refused}
        self._again = self._refused.keys() & {*response.changed_groups}
        if self._again:
            self._wake.set()
        for group in response.changed_groups:
            self._refused.pop(group, None)
        present = self._present()
        all_refused = self._refused | refused
        self._refused = {group: ids for group, ids in all_refused.items() if group in present}

    def _present(self) -> set[str]:
        return set().union(*(gateway.consumers for gateway in self._gateways))

    async def _send(
        self, leader: Leader, groups: set[str], *, is_whole: bool
    ) -> ReportMembersResponse:
        response = ReportMembersResponse()
        for request in self._requests(groups, is_whole=is_whole):
            if leader.is_here:
                response = self._take(request)
            else:
                command = Command(REPORT, body=request.SerializeToString())
                answer = await self._forwarder.tell(leader.address, command)
                if answer.code:
                    raise RefusedError(ResponseCode.SYSTEM_ERROR, answer.remark or "refused")
                response = ReportMembersResponse.FromString(answer.body)
            if response.wants_whole:
                break
        return response

    def _requests(self, groups: set[str], *, is_whole: bool) -> Iterator[ReportMembersRequest]:
        """Yield what is to be reported of groups, in requests of limited size."""
        request = ReportMembersRequest(
            reporter=self._reporter, is_whole=is_whole, generation=self._generation
        )
        size_bytes = 0
        for group in sorted(groups):
            row = self._row(group)
            size_bytes += row.ByteSize()
            if size_bytes > _SIZE_BYTES_MAX and request.groups:
                yield request
                size_bytes = row.ByteSize()
                request = ReportMembersRequest(reporter=self._reporter, generation=self._generation)
            request.groups.append(row)
        yield request

    def _row(self, group: str) -> ReportedGroup:
        """Return what is to be reported of a group. Of members that all read something else the
        last ones are reported without it: the frame of a report is limited."""
        row, readings, size_bytes = ReportedGroup(group=group), dict[object, int](), 0
        for reported in filter(None, (gateway.reported(group) for gateway in self._gateways)):
            for client_id, kind in reported.kinds.items():
                filters = reported.filters[client_id]
                if size_bytes > _SIZE_BYTES_MAX:
                    filters = {}
                reading = readings.setdefault(frozenset(filters.items()), len(readings))
                if reading == len(row.readings):
                    rows = [
                        ReportedSubscription(topic=topic, filter=text)
                        for topic, text in filters.items()
                    ]
                    row.readings.append(ReportedReading(subscriptions=rows))
                    size_bytes += row.readings[-1].ByteSize()
                row.members.add(
                    client_id=client_id,
                    kind=kind.value,
                    reading=reading,
                    is_refused=self.is_refused(group, client_id),
                    is_twice=client_id in reported.twice,
                )
        return row

    # --- The leader ---

    async def take(self, request: Request) -> Answer:
        """Take the report of another node. Raises RefusedError from a client."""
        if not request.connection.is_node:
            text = "only nodes report members; send heartbeats"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        if not self._cluster.leads_here():
            return ANSWER_LED_ELSEWHERE
        response = self._take(ReportMembersRequest.FromString(request.command.body))
        return Answer(body=response.SerializeToString())

    def _take(self, request: ReportMembersRequest) -> ReportMembersResponse:
        self._context.check_leads()
        groups = {row.group: _reported(row) for row in request.groups}
        wants_whole = self._members.report(
            request.reporter, groups, self._context.clock_ms(), is_whole=request.is_whole
        )
        generation, changed = self._members.changed_since(request.reporter, request.generation)
        response = ReportMembersResponse(
            wants_whole=wants_whole, generation=generation, changed_groups=changed
        )
        for group in changed:
            refused = self._members.refused_at(request.reporter, group, self._context.clock_ms())
            if refused:
                response.refused.add(group=group, client_ids=refused)
        return response


def _reported(row: ReportedGroup) -> Reported:
    """Return a group of a report; members that read the same share one table."""
    readings = [{one.topic: one.filter for one in told.subscriptions} for told in row.readings]
    return Reported(
        {one.client_id: MemberKind(one.kind) for one in row.members},
        {one.client_id: readings[one.reading] for one in row.members},
        frozenset(one.client_id for one in row.members if one.is_refused),
        frozenset(one.client_id for one in row.members if one.is_twice),
    )
