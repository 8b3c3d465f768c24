"""Administration of a cluster: topics, members, leadership, the status of nodes, and all its parts.

Owns the calls of AdminService and the names of all administrative calls; must not know how calls
find the leader (`calls`). Changes go to the leader; a call about one node goes to that node.
Consumer groups, messages, transactions and users are modules beside it.
"""

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Final

from quorumlog.admin.calls import Answers
from quorumlog.admin.groups import GroupAdmin
from quorumlog.admin.messages import MessageAdmin
from quorumlog.admin.types import (
    BrokerGroupStatus,
    ChainDigest,
    ClusterStatus,
    HaGroup,
    HaPromotion,
    HaStatus,
    HistorySample,
    LagSample,
    LeaderInfo,
    LogBytes,
    LogRead,
    MemberStatus,
    NodeDown,
    NodeEvent,
    NodeEvents,
    NodeHistory,
    NodeSetting,
    NodeStatus,
    TopicDescription,
    TopicInfo,
    TopicPage,
)
from quorumlog.admin.users import UserAdmin
from quorumlog.arguments import checked
from quorumlog.cluster.broker_groups import BrokerGroup
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import (
    DeadlineError,
    InvalidRequestError,
    PermissionDeniedError,
    QuorumlogError,
    TopicExistsError,
    UnavailableError,
)
from quorumlog.pb import admin_pb2
from quorumlog.records.values import of_pb

STATUS_TIMEOUT_MS: Final = 2_000  # For all nodes of a group together, in `cluster_status`.


@checked
class Admin(GroupAdmin, MessageAdmin, UserAdmin):
    """Administers the cluster that a client is connected to; `client.admin`.

    Every call raises QuorumlogError; `outcome` tells whether the failed call may have had an
    effect. Calls that can be repeated without harm are repeated until the client's timeout.
    """

    # Topics.

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 0,
        permission: int = 0,
        must_be_new: bool = False,
        message_type: str = "",
    ) -> TopicInfo:
        """Create a topic, or give one more queues, another permission or another type.

        Every broker group gets `queue_count` queues of it. A group that does not answer is named in
        the result (`away`); repeat the call when the group is back. 0 stands for the node's default
        count, and for read and write. `message_type`: which messages the topic takes from clients
        of RocketMQ, one of NORMAL, FIFO, DELAY, TRANSACTION and MIXED, which is all; empty: as it
        is, or MIXED. Raises TopicExistsError if it `must_be_new` and is not.
        """
        request = admin_pb2.CreateTopicRequest(
            topic=topic,
            queue_count=queue_count,
            permission=permission,
            must_be_new=must_be_new,
            message_type=message_type,
        )
        deadline = self._deadline()
        if must_be_new and not self._groups.is_single:
            # One group may have it; the others would create it.
            listing = admin_pb2.ListTopicsRequest()
            there, _ = await self._each(listing, deadline=deadline)
            if any(info.topic == topic for answer in there.values() for info in answer.topics):
                raise TopicExistsError(f"topic {topic!r} exists already; use another name")
        # A repetition after a lost answer would find the topic of the first attempt, and fail.
        answers, away = await self._each(
            request, is_repeatable=not must_be_new, is_read=False, deadline=deadline
        )
        self._forget_topic(topic)
        return TopicInfo.of(answers, away)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages. Raises UnknownTopicError.

        With several broker groups: raises the error of a group that cannot delete it now; the other
        groups have deleted it.
        """
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        await self._each(request, is_repeatable=False, is_read=False, may_be_away=False)
        self._forget_topic(topic)

    def _forget_topic(self, topic: str) -> None:
        for group in self._groups.known():
            group.router.forget_topic(topic)

    async def list_topics(self, *, with_system: bool = False) -> list[TopicInfo]:
        """Return all topics by name."""
        request = admin_pb2.ListTopicsRequest(with_system=with_system)
        return list((await self._topics(request)).topics)

    async def topic_page(
        self, *, containing: str = "", after: str = "", max_count: int = 50
    ) -> TopicPage:
        """Return the first topics behind a name, of those with a text in their names, in any case.

        For a long list, a page at a time: `after` is the last name of the page before.
        """
        request = admin_pb2.ListTopicsRequest(
            containing=containing, after=after, max_count=max_count
        )
        return await self._topics(request)

    async def _topics(self, request: admin_pb2.ListTopicsRequest) -> TopicPage:
        answers, away = await self._each(request)
        by_topic: dict[str, Answers] = {}
        for name, response in answers.items():
            for topic in response.topics:
                by_topic.setdefault(topic.topic, {})[name] = topic
        names = sorted(by_topic)[: request.max_count or None]
        return TopicPage(
            tuple(TopicInfo.of(by_topic[topic], away) for topic in names),
            max((response.matched_count for response in answers.values()), default=0),
            max((response.topic_count for response in answers.values()), default=0),
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic and the state of its queues. Raises UnknownTopicError."""
        return TopicDescription.of(*await self._each(admin_pb2.DescribeTopicRequest(topic=topic)))

    async def set_topic_rates(
        self,
        topic: str,
        *,
        bytes_per_second: int | None = None,
        messages_per_second: int | None = None,
    ) -> TopicInfo:
        """Limit what clients send to a topic in a second, in each broker group; 0: no limit, None:
        as it is. Raises UnknownTopicError."""
        request = admin_pb2.SetTopicRatesRequest(
            topic=topic, bytes_per_second=bytes_per_second, messages_per_second=messages_per_second
        )
        return TopicInfo.of(*await self._each(request, is_read=False, may_be_away=False))

    # Nodes.

    async def node_status(
        self, node_id: int | None = None, *, broker_group: str = ""
    ) -> NodeStatus:
        """Return the status of a node; without a node id, of the leader (of that broker group).

        An empty `broker_group` means the first one by name, here as in the other calls.
        """
        at, response = await self._at(node_id, admin_pb2.NodeStatusRequest(), broker_group)
        return of_pb(NodeStatus, response, broker_group=at.name)

    async def events(
        self, node_id: int, *, after: NodeEvents | None = None, max_count: int = 0
    ) -> NodeEvents:
        """Return the events of a node's log that are newer than those in `after`, the last ones of
        them; 0: all that the node keeps, 1,000."""
        request = admin_pb2.EventsRequest(count_max=max_count)
        if after is not None:
            request.began_unix_ms, request.after = after.began_unix_ms, after.newest
        _, response = await self._at(node_id, request)
        events = tuple(
            of_pb(NodeEvent, pb, node_id=node_id, values=json.loads(pb.values))
            for pb in response.events
        )
        return NodeEvents(node_id, response.began_unix_ms, events)

    async def settings(self, node_id: int) -> tuple[NodeSetting, ...]:
        """Return each setting of a node and where it is from; a secret's value is `set`."""
        _, response = await self._at(node_id, admin_pb2.SettingsRequest())
        return tuple(of_pb(NodeSetting, pb, value=json.loads(pb.value)) for pb in response.settings)

    async def stacks(self, node_id: int) -> str:
        """Return the stacks of all threads and tasks of a node, at most 1 MiB."""
        _, response = await self._at(node_id, admin_pb2.StacksRequest())
        return str(response.text, "utf-8", "replace")

    async def metrics(self, node_id: int) -> str:
        """Return the page /metrics of a node, also of one without an HTTP port."""
        _, response = await self._at(node_id, admin_pb2.MetricsRequest())
        return str(response.page, "utf-8", "replace")

    async def history(self, node_id: int) -> NodeHistory:
        """Return the last hour of a node in numbers."""
        _, response = await self._at(node_id, admin_pb2.HistoryRequest())
        return NodeHistory(
            tuple(of_pb(HistorySample, pb) for pb in response.samples),
            {
                row.group: tuple(of_pb(LagSample, pb) for pb in row.samples)
                for row in response.groups
            },
        )

    async def read_log(
        self,
        node_id: int,
        *,
        index: int | None = None,
        log_position: int | None = None,
        queue: tuple[str, int, int] | None = None,
        key_slot: int | None = None,
    ) -> LogRead:
        """Return the bytes of one thing in the files of a node, without a check of the node.

        An entry by its index (raft mode), the record or the entry at a log position, a unit of a
        queue (topic, queue id, offset), or a slot of the newest file of the key index; name one. At
        most 4 MiB. `store.microscope` of the server decodes them.
        """
        request = admin_pb2.ReadLogRequest(
            index=index, log_position=log_position, key_slot=key_slot
        )
        if queue is not None:
            topic, queue_id, offset = queue
            place = request.queue_unit
            place.topic, place.queue_id, place.offset = topic, queue_id, offset
        given = (index, log_position, queue, key_slot)
        if sum(value is not None for value in given) != 1:
            text = "read_log: name one of index, log_position, queue and key_slot"
            raise InvalidRequestError(text)
        _, response = await self._at(node_id, request)
        thing, *beside = (of_pb(LogBytes, pb) for pb in response.things)
        return LogRead(node_id, thing, tuple(beside))

    async def cluster_status(self) -> ClusterStatus:
        """Ask every known node at once, for 2 s in all, and return all statuses.

        Members that do not answer are in it as NodeDown; removed nodes only if they answer. Raises
        PermissionDeniedError if a node answers that the user may not ask.
        """
        groups = self._groups.known()  # Also those that were left out: not healthy.
        parts = await asyncio.gather(*(self._group_status(group) for group in groups))
        first = parts[0][0]
        nodes = [node for _, nodes in parts for node in nodes]
        return ClusterStatus(
            self._groups.cluster_id,
            first.leader_id,
            first.term,
            tuple(sorted(nodes, key=lambda node: node.node_id)),
            tuple(status for status, _ in parts),
        )

    async def _group_status(
        self, group: BrokerGroup
    ) -> tuple[BrokerGroupStatus, list[NodeStatus | NodeDown]]:
        router, deadline = group.router, Deadline(STATUS_TIMEOUT_MS)
        questions: dict[str, asyncio.Task[NodeStatus | NodeDown | PermissionDeniedError]] = {}

        def ask(tasks: asyncio.TaskGroup) -> dict[str, int]:
            """Ask each known node once; return the node ids by address."""
            ids = {address: node_id for node_id, address in router.nodes.items()}
            ids = ids or dict.fromkeys(router.bootstrap, 0)
            for address in [address for address in ids if address not in questions]:
                questions[address] = tasks.create_task(self._status_of(group, address, deadline))
            return ids

        async with asyncio.TaskGroup() as tasks:
            ask(tasks)  # At once: a node that hangs holds up the refresh, and not the others.
            with contextlib.suppress(QuorumlogError):  # Those that are known are asked anyway.
                await router.refresh(deadline)
            ids = ask(tasks)
            for address in questions.keys() - ids.keys():
                questions[address].cancel()
        nodes: list[NodeStatus | NodeDown] = []
        for address, node_id in ids.items():
            answer = questions[address].result()
            if isinstance(answer, PermissionDeniedError):
                raise answer
            is_down = isinstance(answer, NodeDown)
            nodes.append(replace(answer, node_id=node_id) if is_down else answer)
        up = [node for node in nodes if isinstance(node, NodeStatus)]
        newest = max(up, key=lambda node: (node.term, node.role == "leader"), default=None)
        leader_id, term = (newest.leader_id, newest.term) if newest is not None else (0, 0)
        if any(isinstance(node, NodeDown) and node.node_id == leader_id for node in nodes):
            leader_id = 0  # Followers name a dead leader until their election.
        there = [node for node in nodes if not _is_removed(node, newest)]
        there.sort(key=lambda node: node.node_id)
        return BrokerGroupStatus(group.name, leader_id, term), there

    async def _status_of(
        self, group: BrokerGroup, address: str, deadline: Deadline
    ) -> NodeStatus | NodeDown | PermissionDeniedError:
        """Ask a node once. One that does not answer is down; its id is set by the caller. A refusal
        is returned, since a group of tasks would wrap it."""
        request = admin_pb2.NodeStatusRequest()
        try:
            node = group.router.channels.get(address)
            response = await group.calls.once(node, request, deadline.remaining_s)
        except PermissionDeniedError as error:
            return error
        except QuorumlogError as error:
            said = error.code.startswith("node.")
            return NodeDown(0, address, str(error), group.name, has_answered=said)
        return of_pb(NodeStatus, response, broker_group=group.name)

    async def transfer_leadership(self, node_id: int = 0, *, broker_group: str = "") -> LeaderInfo:
        """Have the leader hand over to a node, or (0) its best follower; return the new leader."""
        deadline = self._deadline()
        at = await self._group_of(node_id, deadline, broker_group)
        request = admin_pb2.TransferLeadershipRequest(node_id=node_id)
        response = await self._lead(at, request, is_repeatable=node_id != 0, deadline=deadline)
        return LeaderInfo(response.leader_id, response.term, at.name)

    async def add_learner(
        self, node_id: int, *, address: str, peer_address: str, broker_group: str = ""
    ) -> tuple[MemberStatus, ...]:
        """Make a node a learner of a broker group: the log, but no vote; return the members."""
        where = {"address": address, "peer_address": peer_address}
        change = admin_pb2.MEMBER_CHANGE_ADD_LEARNER
        return await self._change(change, node_id, self._groups.get(broker_group), **where)

    async def promote(self, node_id: int) -> tuple[MemberStatus, ...]:
        """Give a learner that has caught up a vote; return the members."""
        return await self._change(admin_pb2.MEMBER_CHANGE_PROMOTE, node_id)

    async def remove_member(self, node_id: int) -> tuple[MemberStatus, ...]:
        """Take a node out of the cluster; return the members that are left."""
        return await self._change(admin_pb2.MEMBER_CHANGE_REMOVE, node_id)

    async def _change(
        self,
        change: admin_pb2.MemberChange,
        node_id: int,
        group: BrokerGroup | None = None,
        **where: str,
    ) -> tuple[MemberStatus, ...]:
        """Change a member of a group, or of the one that the node is of."""
        deadline = self._deadline()
        at = group or await self._group_of(node_id, deadline)
        request = admin_pb2.ChangeMemberRequest(change=change, node_id=node_id, **where)
        response = await self._lead(at, request, is_repeatable=False, deadline=deadline)
        return tuple(of_pb(MemberStatus, member) for member in response.members)

    async def drain(
        self, node_id: int | None = None, *, undo: bool = False, broker_group: str = ""
    ) -> None:
        """Have a node hand over leadership and refuse appends, until undone or restarted."""
        await self._at(node_id, admin_pb2.DrainRequest(undo=undo), broker_group, is_read=False)

    async def finalize_upgrade(self, *, broker_group: str = "") -> int:
        """Have a broker group work at the level of its build, and return that level; no older build
        joins it any more. Raises ServerError `node.upgrade_refused` unless all members have it."""
        request = admin_pb2.FinalizeUpgradeRequest()
        deadline = self._deadline()
        at = self._groups.get(broker_group)
        response = await self._lead(at, request, is_repeatable=True, deadline=deadline)
        return int(response.level)

    async def accept_loss(self, node_id: int, *, confirm_cluster_id: str) -> None:
        """Let the cluster continue with the log of this node after a power loss of a majority.

        For flush=async, after a majority has lost its last messages: acknowledged ones may be
        missing afterwards.
        """
        request = admin_pb2.AcceptLossRequest(confirm_cluster_id=confirm_cluster_id)
        await self._at(node_id, request, is_read=False)

    async def chain_digest(
        self, node_id: int | None = None, index: int = -1, *, broker_group: str = ""
    ) -> ChainDigest:
        """Return the chained checksum of a node's log at an index; -1: the last one applied."""
        _, response = await self._at(
            node_id, admin_pb2.ChainDigestRequest(index=index), broker_group
        )
        return of_pb(ChainDigest, response)

    # Master-slave groups.

    async def ha_status(self, node_id: int | None = None, *, broker_group: str = "") -> HaStatus:
        """Return the status of its broker group as a node (default: the master) sees it.

        Raises ServerError `node.wrong_mode` in a cluster that replicates by Raft.
        """
        _, response = await self._at(node_id, admin_pb2.HaStatusRequest(), broker_group)
        return of_pb(HaStatus, response)

    async def ha_group(self, broker_group: str = "") -> HaGroup:
        """Ask all nodes of a broker group at once; a node that does not answer is a NodeDown.

        Raises as `ha_status`.
        """
        at, deadline = self._groups.get(broker_group), self._deadline()
        _, nodes = await self._group_status(at)

        async def ask(node: NodeStatus | NodeDown) -> HaStatus | NodeDown:
            if isinstance(node, NodeDown):
                return node
            try:
                request = admin_pb2.HaStatusRequest()
                _, said = await self._at(node.node_id, request, deadline=deadline)
                return of_pb(HaStatus, said)
            except (UnavailableError, DeadlineError) as error:
                address = at.router.nodes.get(node.node_id, "")
                return NodeDown(node.node_id, address, str(error), at.name)

        return HaGroup(tuple(await asyncio.gather(*map(ask, nodes))))

    async def ha_promote(self, node_id: int, *, timeout_ms: int | None = None) -> HaPromotion:
        """Make a node the master, with the old master fenced; return once the new one serves.

        `timeout_ms` bounds the call with all its repetitions; None: the client's own limit. Raises
        ServerError `ha.promotion_refused`, and DeadlineError when the time is over; if its outcome
        is unknown, the node keeps trying.
        """
        limit_ms = timeout_ms or 0
        request = admin_pb2.HaPromoteRequest(timeout_ms=limit_ms)
        _, response = await self._at(node_id, request, is_read=False, timeout_ms=limit_ms)
        return of_pb(HaPromotion, response)


def _is_removed(node: NodeStatus | NodeDown, newest: NodeStatus | None) -> bool:
    """Whether a silent node is one that the leader does not count as a member any more.

    Settings, and nodes that lag, name a removed member for a long time.
    """
    if isinstance(node, NodeStatus) or newest is None or newest.role != "leader":
        return False
    if not node.node_id:  # A given address that never answered.
        return False
    return bool(newest.members) and all(m.node_id != node.node_id for m in newest.members)
