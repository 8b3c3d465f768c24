"""The broker as services see it: one coroutine per RPC, protobuf in, protobuf out.

Owns the parts, which are attributes: a service calls `broker.topics` or `broker.pop` itself, and a
method here concerns several parts. Errors are those of `node`, `store` or `raft`, which
`node.errors.translation` translates. Everything runs on the loop's thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

from node.broker.append.incarnations import Incarnations
from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce
from node.broker.core.context import Context, OtherGroups
from node.broker.core.freshness import Freshness
from node.broker.core.parked_readers import ParkedReaders
from node.broker.delay.calls import Delay
from node.broker.delay.delivery_task import HOLDING_QUEUES
from node.broker.groups.groups import Groups
from node.broker.groups.members import Members
from node.broker.groups.settings import GroupSettingsCalls
from node.broker.pop import Pop
from node.broker.read.lookup import Lookup
from node.broker.read.outgoing import Outgoing
from node.broker.read.pull import Pulls
from node.broker.read.queries import Queries
from node.broker.retry.dead_letters import DeadLetters
from node.broker.retry.retry import Retry
from node.broker.topics.config_files import ConfigFiles
from node.broker.topics.topics import Topics
from node.broker.transactions import TransactionCalls
from node.broker.transactions.consumed import OffsetsUnderWay
from node.errors.common import NodeError
from node.users.calling import Calling, calling, watched
from node.users.needs import append_needs
from quorumlog.pb.log_pb2 import (
    AppendRequest,
    AppendResponse,
    NodeAddress,
    PullRequest,
    PullResponse,
    RouteRequest,
    RouteResponse,
    TailRequest,
    TopicRoute,
)
from quorumlog.pb.state_pb2 import Command
from raft.messages import Index, NodeId
from store.errors import StoreError
from store.record.edit import layouts
from store.record.stamp import QueueKey

if TYPE_CHECKING:
    import asyncio


class LeaderWork(Protocol):
    """Work that only the leader's broker does, beside answering calls. Everything that it remembers
    beside the replicated state is of one term. Runs on the loop's thread."""

    def begin(self) -> None:
        """Begin: this node leads, and has applied everything that was acknowledged before."""

    def end(self) -> None:
        """Forget what is under way: this node leads no longer, or stops. Only after `begin`."""


class Broker:
    """The face of all parts of the broker. One per node."""

    def __init__(self, context: Context, other_groups: OtherGroups = lambda _topics: ()) -> None:
        """Register as a listener of the driver."""
        self.context: Final = context
        """The context of all parts, for a gateway that calls them under other names."""
        self.parked = ParkedReaders(context)
        self.freshness = Freshness(context, self.parked)
        self.group_members = Members(context)
        self.own_appends = OwnAppends(context)
        self._was_ready = False
        self.other_groups = other_groups
        self.has_users = False
        """Whether appends are made in the name of users."""
        self.incarnations: Final = Incarnations(context, self.own_appends)
        self.produce = Produce(context, self.incarnations.check)
        self.outgoing: Final = Outgoing(context.limits.topic_count_max)
        self.pulls: Final = Pulls(context, self.parked, self.freshness, self.outgoing)
        self.consumed: Final = OffsetsUnderWay(
            context, self.produce, self.own_appends, self.group_members
        )
        self.transactions: Final = TransactionCalls(context, self.produce, self.own_appends)
        self.pop: Final = Pop(context, self.own_appends, self.group_members, self.outgoing)
        self.delay: Final = Delay(context, self.produce, self.own_appends)
        self.retry: Final = Retry(context, self.produce, self.own_appends, self.group_members)
        self.dead_letters: Final = DeadLetters(context, self.produce, self.own_appends)
        self.queries: Final = Queries(context, self.freshness)
        self.lookup: Final = Lookup(context, self.freshness, self.produce.sizes)
        self.topics: Final = Topics(context, self.own_appends, self.produce.sizes)
        self.groups: Final = Groups(
            context, self.own_appends, self.freshness, self.group_members, other_groups
        )
        self.group_settings: Final = GroupSettingsCalls(context, self.own_appends)
        self.config_files: Final = ConfigFiles(context, self.own_appends)

        self._leader_works: list[LeaderWork] = [
            self.transactions.checks,
            self.pop,
            self.delay.delivery_task,
        ]
        """Work that begins and ends with this node's leadership, in this order."""
        self.parked.on_grown = self._on_grown
        context.driver.add_listener(self._on_turn)

    def add_leader_work(self, work: LeaderWork) -> None:
        """Add work that begins and ends with this node's leadership; if it leads, begin now."""
        self._leader_works.append(work)
        if self._was_ready:
            work.begin()

    # --- Data ---

    async def append(self, request: AppendRequest) -> AppendResponse:
        """Append one atomic batch and return its receipt.

        Cancelling the call does not withdraw the batch.
        """
        return await self.append_nowait(request)

    def append_nowait(
        self, request: AppendRequest, records: bytes | None = None, caller: Calling | None = None
    ) -> "asyncio.Future[AppendResponse]":
        """As `append`, without a coroutine: batches enter the log in the order of the calls.

        `records`: the encoded records, where they came beside the request and not in it. `caller`:
        whose call it is, where the context does not say so. The future resolves with the receipt,
        or fails; nothing is raised here.
        """
        if caller is None and self.has_users:
            caller = calling() or watched()
        feature: Callable[[AppendRequest], asyncio.Future[AppendResponse]] | None = None
        if request.has_delayed:
            feature = self.delay.append
        elif request.HasField("transaction"):
            feature = self.transactions.append
        elif request.HasField("consumed"):
            feature = self.consumed.append
        if feature is not None and records is not None:
            request.records = records  # A feature reads them there.
        try:
            if caller is not None and (feature is not None or request.HasField("incarnation")):
                _check_rights(caller, request, is_plain=feature is None)
            if feature is not None and self.produce.topic_rates.table.by_topic:
                self.produce.topic_rates.take_records(request.records)
        except (NodeError, StoreError) as error:
            return self.produce.refuse(error)
        if feature is None:
            return self.produce.append(request, records=records, calling=caller)
        return feature(request)

    async def pull(self, request: PullRequest) -> PullResponse:
        """Read one queue from an offset on; with `wait_ms` wait for the first message."""
        return (await self.pulls.pull(request)).joined()

    async def tail(self, request: TailRequest) -> AsyncIterator[PullResponse]:
        """Read one queue as it grows. Close the iterator (`aclose`) when the caller has gone."""
        async with aclosing(self.pulls.tail(request)) as pulled:
            async for one in pulled:
                yield one.joined()

    async def route(self, request: RouteRequest) -> RouteResponse:
        """Return the leader and all addresses, as this node knows them: any node may be asked."""
        context = self.context
        context.check_cluster(request.cluster_id)
        driver = context.driver
        context.check_count("topics", len(request.topics), context.limits.topic_count_max)
        topics = list(dict.fromkeys(request.topics))
        nodes = sorted({*context.identity.addresses, *context.state.members})
        response = RouteResponse(
            cluster_id=context.identity.cluster_id,
            node_id=driver.node_id,
            term=driver.term,
            leader_id=driver.leader_id,
            nodes=[NodeAddress(node_id=n, address=context.address_of(n)) for n in nodes],
            batch_size_bytes_max=self.produce.batch_size_bytes_max,
            body_size_bytes_max=context.store.config.body_size_bytes_max,
            group=context.identity.group,
            groups=self.other_groups(topics),
            framed_address=context.identity.framed_address,
            remoting_addresses=context.identity.remoting_addresses,
        )
        if not driver.leader_id and driver.no_room is not None:
            response.no_room = str(driver.no_room)
        async for name in context.turn.over(topics):
            topic = context.state.topic(name)
            if topic is not None:
                response.topics.append(
                    TopicRoute(
                        topic=name, queue_count=topic.queue_count, permission=topic.permission
                    )
                )
        return response

    def has_waiting_readers(self) -> bool:
        """Whether a reader waits for something that will be applied here."""
        return self.parked.has_any()

    # --- Nodes ---

    async def put_member(self, node_id: NodeId, address: str, peer_address: str) -> Index:
        """Store a node's addresses cluster-wide; two empty ones delete them. Leader only."""
        put = Command.PutMember(node_id=node_id, address=address, peer_address=peer_address)
        return await self.own_appends.submit(Command(put_member=put))

    # --- Life ---

    def stop(self) -> None:
        """Refuse all calls from now on, and end every wait. Stop the driver after this."""
        self.context.is_stopped = True
        if self._was_ready:
            self._end_leader_works()
            self._was_ready = False
        self.produce.fail_parked()
        self.parked.wake_all()

    def _on_grown(self, queues: Set[QueueKey]) -> None:
        self.pop.on_grown(queues)
        if HOLDING_QUEUES & queues:
            self.delay.delivery_task.on_grown(queues)

    def _on_turn(self) -> None:
        is_ready = self.context.driver.is_ready and not self.context.is_stopped
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            if is_ready:
                self.group_members.begin_term(self.context.clock_ms())
                for work in self._leader_works:
                    work.begin()
            else:
                self._end_leader_works()
                self.produce.fail_parked()
        self.parked.on_turn()

    def _end_leader_works(self) -> None:
        self.group_members.end()
        self.context.makers.end()
        self.incarnations.end()
        self.consumed.end()
        for work in self._leader_works:
            work.end()


def _check_rights(calling: Calling, request: AppendRequest, *, is_plain: bool) -> None:
    """Raise ForbiddenError or UnauthenticatedError unless an append may be made. The topics of a
    plain one are checked by `Produce`; a feature puts its records into others first."""
    for need in append_needs(request):
        calling.require(need)
    if not is_plain:
        records = request.records
        topics = {records[layout.topic_at : layout.topic_hi] for layout in layouts(records)}
        calling.publish(((topic, 0) for topic in topics), len(records), request.record_count)
