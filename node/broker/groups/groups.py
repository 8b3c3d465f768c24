"""Consumer groups: heartbeats, offsets, and the answers to operators' questions about them.

Owns what a request must look like and the answers; `members` knows the live members, and
`node.state.state` applies an offset commit. A group exists once it has stored an offset. Everything
is the leader's: only it knows the members, and offsets are read behind a confirmed leadership, so
that a consumer that takes over a queue goes on where the last acknowledged commit left it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.broker_names import BrokerNames
from node.broker.core.context import Context, OtherGroups
from node.broker.core.freshness import Freshness
from node.broker.core.offset_moves import commit_command
from node.broker.groups.member import MemberKind, comparable
from node.broker.groups.member_group import Shares
from node.broker.groups.members import Consumer, Members
from node.broker.groups.settings import check_member
from node.errors.common import BadRequestError, GroupNotEmptyError, UnknownGroupError
from node.runtime.accounts import ROW_SIZE_BYTES
from node.state.tables.moved_offsets import MovedOffsetsTable, move_in
from node.state.tables.topic_types import Offsets
from node.users.calling import may
from node.users.rules import Action, ResourceKind
from quorumlog.pb import common_pb2
from quorumlog.pb.admin_pb2 import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    DescribeGroupRequest,
    DescribeGroupResponse,
    GroupInfo,
    GroupQueue,
    ListGroupsRequest,
    ListGroupsResponse,
)
from quorumlog.pb.consumer_pb2 import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupOffset,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    TopicReaders,
)
from quorumlog.pb.state_pb2 import Command
from store.record.topic_names import retry_topic

_NO_OFFSET: Final = -1
_STRATEGY_LENGTH_MAX: Final = 64
_FILTER_LENGTH_MAX: Final = 32_767


class Groups:
    """The calls about consumer groups. One per broker."""

    def __init__(
        self,
        context: Context,
        own_appends: OwnAppends,
        freshness: Freshness,
        members: Members,
        other_groups: OtherGroups,
    ) -> None:
        self._context: Final = context
        self._own_appends = own_appends
        self._freshness = freshness
        self._members = members
        self._other_groups = other_groups

    # --- Members ---

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Note that a member is alive, and return the members that share its topics. No queue that
        one of them reads is left to another before the one has named it no more."""
        context, limits = self._context, self._context.limits
        context.check_cluster(request.cluster_id)
        context.check_name("group", request.group)
        context.check_client(request.client_id)
        topics = frozenset(request.topics)
        context.check_count("topics", len(topics), limits.member_topic_count_max, 1)
        context.check_leads()
        if request.is_popping:  # Another broker group may have some of them.
            topics = topics & context.state.topics.keys() or topics
        for topic in topics:
            context.readable(topic, 0)
        check_member(context, request.group, is_broadcasting=request.is_broadcasting)
        # While queues pass on, a member names all that it had and all that it is to have.
        limit = 2 * limits.queue_offsets_count_max
        count = len(request.queues) + len(request.wanted)
        if count > limit:
            expected = f"at most {limit} of them, those that are wanted included"
            raise BadRequestError("queues", expected, str(count))
        kind = MemberKind.BROADCASTING if request.is_broadcasting else MemberKind.SHARING
        if len(request.strategy) > _STRATEGY_LENGTH_MAX:
            expected = f"at most {_STRATEGY_LENGTH_MAX} characters"
            raise BadRequestError("strategy", expected, str(len(request.strategy)))
        length = len(request.sql) + sum(map(len, request.tags))
        if length > _FILTER_LENGTH_MAX:
            expected = f"at most {_FILTER_LENGTH_MAX} characters of tags and sql"
            raise BadRequestError("tags", expected, str(length))
        reading = comparable(request.tags, request.sql)
        consumer = Consumer(request.client_id, request.instance, request.is_new)
        if request.is_popping:
            for topic in sorted(topics):
                self._members.receive(request.group, consumer, topic, reading)
            if request.is_new:
                self._members.check_settled(request.group, self._context.clock_ms())
            return HeartbeatResponse(heartbeat_ms=limits.heartbeat_ms, session_ms=limits.session_ms)
        # Each name is kept once; of topics that it does not read a member reads no queue.
        is_sharing = kind is MemberKind.SHARING
        read = (*topics, retry_topic(request.group)) if is_sharing else ()
        names = {topic: topic for topic in read}
        queues, wanted = (
            frozenset((names[one.topic], one.queue_id) for one in named if one.topic in names)
            for named in (request.queues, request.wanted)
        )
        shares = self._members.heartbeat(
            request.group,
            consumer,
            topics,
            kind,
            request.strategy,
            reading,
            queues=queues,
            wanted=wanted,
        )
        is_classic = len(shares.speaking) < len(shares.client_ids)
        divided = await self._divided(request, shares) if is_classic else []
        moves = context.state.table(MovedOffsetsTable).of_group(request.group)
        followed = request.followed_move if request.generation == shares.generation else 0
        moved = []
        async for one in context.turn.over(request.queues if moves else ()):
            move = move_in(moves, one.topic, one.queue_id)
            if move is not None and move.number > followed:
                row = GroupOffset(topic=one.topic, queue_id=one.queue_id, move=move.number)
                moved.append(row)
        return HeartbeatResponse(
            client_ids=shares.client_ids,
            readers=[TopicReaders(topic=t, members=found) for t, found in shares.readers.items()],
            is_divided=is_classic and not request.is_broadcasting,
            queues=divided,
            warnings=shares.warnings,
            moved=moved,
            generation=shares.generation,
            heartbeat_ms=limits.heartbeat_ms,
            session_ms=limits.session_ms,
            withheld=[common_pb2.QueueId(topic=t, queue_id=i) for t, i in sorted(shares.withheld)],
        )

    async def _divided(self, request: HeartbeatRequest, shares: Shares) -> list[common_pb2.QueueId]:
        """Return the queues that members of the classic protocol leave to a member: these get no
        list by topic, so all members count for each. Parts of those that do not read a topic go to
        members that send heartbeats, in turns."""
        context = self._context
        names = [*sorted({*request.topics}), retry_topic(request.group)]
        own, elsewhere = context.identity.group, list(self._other_groups(names))
        ids, count = shares.client_ids, context.identity.name_count
        index = ids.index(request.client_id)
        divided = []
        async for topic in context.turn.over(names):
            counts = {
                other.group: route.queue_count
                for other in elsewhere
                for route in other.topics
                if route.topic == topic
            }
            config = context.state.topics.get(topic)
            if config is not None:
                counts[own] = config.queue_count
            readers = set(shares.readers.get(topic, range(len(ids))))
            heirs = sorted({index} | readers & shares.speaking)
            left = [i for i in range(len(ids)) if i not in readers]
            for i in (index, *left[heirs.index(index) :: len(heirs)]):
                for queue_id in _queues_of_member(own, counts, count, ids[i], ids):
                    divided.append(common_pb2.QueueId(topic=topic, queue_id=queue_id))
        return divided

    async def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Forget a member at once, so that the others take its queues over. Idempotent."""
        self._context.check_leads()
        now_ms = self._context.clock_ms()
        self._members.leave(request.group, request.client_id, now_ms, request.instance)
        return LeaveGroupResponse()

    # --- Offsets ---

    async def commit_offsets(self, request: CommitOffsetsRequest) -> CommitOffsetsResponse:
        """Store offsets, all or none; the first commit creates the group.

        An offset may go back: that is how messages are read again. One that others have moved from
        what a member knows stays, and the answer names it: the member was away. Raises
        UnknownTopicError, UnknownQueueError, BadRequestError, LimitReachedError, GroupKindError for
        a member's offset if the group is read by pop, those of `_check_empty` only if the group
        `must_be_empty`, and the errors of `OwnAppends.submit`.
        """
        context = self._context
        context.check_call(request.cluster_id, "group", request.group)
        context.check_rows("offsets", request.offsets)
        if request.must_be_empty:
            self._check_empty(request.group)
        # Members that pop read the retry topic by queue.
        retry = retry_topic(request.group)
        if any(row.HasField("newest_known") and row.topic != retry for row in request.offsets):
            self._members.check_sharing(request.group, self._context.clock_ms())
        for row in request.offsets:
            context.check_offset(row.topic, row.queue_id, row.offset)
        command = commit_command(request.group, request.offsets)
        response = CommitOffsetsResponse(index=await self._own_appends.submit(command))
        for row in request.offsets:
            if (stored := context.state.moved_offset(request.group, row)) is not None:
                response.moved.append(self._row(request.group, row.topic, row.queue_id, stored))
        return response

    def _row(self, group: str, topic: str, queue_id: int, offset: int) -> GroupOffset:
        move = self._context.state.table(MovedOffsetsTable).of(group, topic, queue_id)
        number = 0 if move is None else move.number
        return GroupOffset(topic=topic, queue_id=queue_id, offset=offset, move=number)

    async def fetch_offsets(self, request: FetchOffsetsRequest) -> FetchOffsetsResponse:
        """Return stored offsets, at least as new as any commit acknowledged before the call.

        -1 for a queue without one; a group without any is no error: it has not begun.
        """
        limit = self._context.limits.queue_offsets_count_max
        self._context.check_count("queues", len(request.queues), limit)
        await self._freshness.ensure(common_pb2.CONSISTENCY_LINEARIZABLE)
        group = self._context.state.groups.get(request.group, {})
        response = FetchOffsetsResponse()
        queues = [(queue.topic, queue.queue_id) for queue in request.queues]
        queues = queues or [(topic, queue_id) for topic, queue_id, _ in _rows(group)]
        async for topic, queue_id in self._context.turn.over(queues):
            offset = group.get(topic, {}).get(queue_id, _NO_OFFSET)
            response.offsets.append(self._row(request.group, topic, queue_id, offset))
        return response

    # --- For people ---

    async def list_groups(self, _: ListGroupsRequest) -> ListGroupsResponse:
        """Return all groups that have offsets or members and that the caller may list, by name."""
        self._context.check_leads()
        now_ms = self._context.clock_ms()
        known = {*self._context.state.groups, *self._members.groups(now_ms)}
        names = sorted(name for name in known if may(Action.LIST, ResourceKind.GROUP, name))
        response = ListGroupsResponse()
        async with self._context.turn.walk(ROW_SIZE_BYTES * len(names)) as walk:
            for name in names:
                queues = []
                for row in [*self.read_rows(name, now_ms)]:
                    await walk.step()
                    queues.append(self._queue(*row))
                clients = self._members.clients_of(name, now_ms)
                response.groups.append(_info(name, queues, clients))
                await walk.step()
        return response

    async def describe_group(self, request: DescribeGroupRequest) -> DescribeGroupResponse:
        """Return a group's members, and how far behind it is in each queue."""
        self._context.check_leads()
        clients = self._members.clients_of(request.group, self._context.clock_ms())
        if request.group not in self._context.state.groups and not clients:
            raise UnknownGroupError(request.group)
        rows = [*self.read_rows(request.group, self._context.clock_ms())]
        readers = self._members.reader_of(request.group, self._context.clock_ms())
        queues = []
        async for row in self._context.turn.over(rows):
            queue = self._queue(*row)
            queue.client_id = readers.get((queue.topic, queue.queue_id), "")
            stored_ms = self._context.stored_ms(queue.topic, queue.queue_id, queue.offset - 1)
            queue.last_consumed_unix_ms = stored_ms or 0
            queues.append(queue)
        return DescribeGroupResponse(
            info=_info(request.group, queues, clients),
            queues=queues,
            client_ids=clients,
            warnings=self._members.warnings_of(request.group, self._context.clock_ms()),
        )

    async def delete_group(self, request: DeleteGroupRequest) -> DeleteGroupResponse:
        """Forget a group and its offsets. Refused while it has members.

        Raises UnknownGroupError, and as `_check_empty` and `OwnAppends.submit`.
        """
        self._context.check_leads()
        self._check_empty(request.group)
        if request.group not in self._context.state.groups:
            raise UnknownGroupError(request.group)
        delete = Command.DeleteGroup(group=request.group)
        await self._own_appends.submit(Command(delete_group=delete))
        return DeleteGroupResponse()

    def _check_empty(self, group: str) -> None:
        """Raise GroupNotEmptyError, or NotReadyError before a new leader knows the members."""
        now_ms = self._context.clock_ms()
        clients = self._members.clients_of(group, now_ms)
        if clients:
            raise GroupNotEmptyError(group, next(iter(clients)))
        self._members.check_settled(group, now_ms)

    def read_rows(self, group: str, now_ms: int) -> Iterator[tuple[str, int, int | None]]:
        """Yield the queues that a group reads, each with its stored offset. Without one a group
        that has begun reads a queue from its first message."""
        state = self._context.state
        stored = state.groups.get(group, {})
        read = self._members.topics_of(group, now_ms)
        for topic in sorted({*stored, *read, retry_topic(group)}):
            offsets, config = stored.get(topic, {}), state.topics.get(topic)
            queue_count = 0 if config is None else config.queue_count
            for queue_id in sorted({*offsets, *range(queue_count)}):
                yield topic, queue_id, offsets.get(queue_id)

    def _queue(self, topic: str, queue_id: int, offset: int | None) -> GroupQueue:
        lo, hi = self._context.store.queue_range(topic, queue_id)
        begun = lo if offset is None else offset
        return GroupQueue(
            topic=topic, queue_id=queue_id, offset=begun, min_offset=lo, max_offset=hi
        )


def _queues_of_member(
    own_group: str,
    queue_counts: Mapping[str, int],
    name_count: int,
    client_id: str,
    client_ids: Sequence[str],
) -> list[int]:
    """Return the queues of one topic in a broker group that a member reads, in order, by RocketMQ's
    average strategy, as classic clients compute it (AllocateMessageQueueAveragely).

    `queue_counts` are those of the topic by broker group, `client_ids` all members, sorted. Clients
    order queues by the broker name that owns them, as a text, and their number there.
    """
    rows = []
    for group, count in queue_counts.items():
        names = BrokerNames(group, name_count)
        for queue in range(count):
            number, shown = names.shown(queue)
            rows.append((names.all[number], shown, group, queue))
    rows.sort()
    i, least, more = client_ids.index(client_id), *divmod(len(rows), len(client_ids))
    lo = i * least + min(i, more)
    mine = rows[lo : lo + least + (i < more)]
    return sorted(queue for _, _, group, queue in mine if group == own_group)


def _rows(group: Offsets) -> Iterable[tuple[str, int, int]]:
    for topic, offsets in sorted(group.items()):
        for queue_id, offset in sorted(offsets.items()):
            yield topic, queue_id, offset


def _info(group: str, queues: list[GroupQueue], clients: dict[str, frozenset[str]]) -> GroupInfo:
    # Expired messages are not behind: they cannot be read any more.
    lag_count = sum(max(0, q.max_offset - max(q.offset, q.min_offset)) for q in queues)
    topics = {q.topic for q in queues}.union(*clients.values())
    return GroupInfo(
        group=group, member_count=len(clients), lag_count=lag_count, topics=sorted(topics)
    )
