"""Administration of a cluster: topics, groups, members, leadership, and the status of nodes.

Owns the calls of AdminService and their values; must not know how calls find the leader. Changes go
to the leader; a call about one node goes to that node. Each of several broker groups holds its
share of topics and of the offsets of consumer groups: all are asked, and their answers merged.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from quorumlog.admin.groups import GroupAdmin
from quorumlog.admin.ha_types import HaGroup, HaPromotion, HaStatus
from quorumlog.admin.lookup import LookupAdmin
from quorumlog.admin.pop import PopAdmin
from quorumlog.admin.transactions import TransactionAdmin
from quorumlog.admin.types import (
    ChainDigest,
    ClusterStatus,
    GroupDescription,
    GroupInfo,
    GroupStatus,
    LeaderInfo,
    MemberStatus,
    NodeDown,
    NodeStatus,
    TopicDescription,
    TopicInfo,
)
from quorumlog.arguments import checked
from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.calls import Service, Steps, beside
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import (
    DeadlineError,
    NotFoundError,
    QuorumlogError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from quorumlog.pb import admin_pb2, common_pb2, consumer_pb2
from quorumlog.produce.delay import DelayAdmin
from quorumlog.records.queues import Offsets, Pair, Queue, queue_of

STATUS_TIMEOUT_MS: Final = 2_000  # For each node in `cluster_status`.
AWAY_MS: Final = 2_000  # For a broker group that is marked away; the others have the client's.

Answers = dict[str, Any]
"""Answers by the name of the broker group."""


@checked
class Admin(GroupAdmin, DelayAdmin, PopAdmin, TransactionAdmin, LookupAdmin):
    """Administers the cluster that a client is connected to; `client.admin`.

    Every call raises QuorumlogError; `outcome` tells whether the failed call may have had an
    effect. Calls that can be repeated without harm are repeated until the client's timeout.
    """

    def __init__(self, groups: BrokerGroups, timeout_ms: int) -> None:
        self._groups = groups
        self._timeout_ms = timeout_ms

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
        if must_be_new and not self._groups.is_single:
            there = await self.list_topics()  # One group may have it; the others would create it.
            if any(info.topic == topic for info in there):
                raise TopicExistsError(f"topic {topic!r} exists already; use another name")
        # A repetition after a lost answer would find the topic of the first attempt, and fail.
        answers, away = await self._each(
            "CreateTopic", request, is_repeatable=not must_be_new, is_read=False
        )
        self._forget_topic(topic)
        return TopicInfo.of(answers, away)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages. Raises UnknownTopicError.

        With several broker groups: raises the error of a group that cannot delete it now; the other
        groups have deleted it.
        """
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        await self._each(
            "DeleteTopic", request, is_repeatable=False, is_read=False, may_be_away=False
        )
        self._forget_topic(topic)

    def _forget_topic(self, topic: str) -> None:
        for group in self._groups.known():
            group.router.forget_topic(topic)

    async def list_topics(self, *, with_system: bool = False) -> list[TopicInfo]:
        """Return all topics by name."""
        request = admin_pb2.ListTopicsRequest(with_system=with_system)
        answers, away = await self._each("ListTopics", request)
        found: dict[str, Answers] = {}
        for name, response in answers.items():
            for topic in response.topics:
                found.setdefault(topic.topic, {})[name] = topic
        return [TopicInfo.of(found[topic], away) for topic in sorted(found)]

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic and the state of its queues. Raises UnknownTopicError."""
        request = admin_pb2.DescribeTopicRequest(topic=topic)
        return TopicDescription.of(*await self._each("DescribeTopic", request))

    # Consumer groups.

    async def list_groups(self) -> list[GroupInfo]:
        """Return all consumer groups by name."""
        answers, _ = await self._each("ListGroups", admin_pb2.ListGroupsRequest())
        found: dict[str, list[admin_pb2.GroupInfo]] = {}
        for response in answers.values():
            for group in response.groups:
                found.setdefault(group.group, []).append(group)
        return [GroupInfo.of(found[group]) for group in sorted(found)]

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group, how far it has come, and its members. Raises NotFoundError."""
        request = admin_pb2.DescribeGroupRequest(group=group)
        return GroupDescription.of(*await self._each("DescribeGroup", request))

    async def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. Raises NotFoundError, ServerError if it has members."""
        request = admin_pb2.DeleteGroupRequest(group=group)
        await self._each(
            "DeleteGroup", request, is_repeatable=False, is_read=False, may_be_away=False
        )

    async def fetch_offsets(self, group: str, queues: Sequence[Pair] = ()) -> dict[Queue, int]:
        """Return the offsets that a group has stored: all, or those of these (topic, queue id)."""
        named = [queue_of(queue) for queue in queues]
        request = consumer_pb2.FetchOffsetsRequest(group=group)
        if not named:
            answers, _ = await self._each(
                "FetchOffsets", request, service="consumer", may_be_away=False
            )
            return {
                Queue(o.topic, o.queue_id, name): o.offset
                for name, response in answers.items()
                for o in response.offsets
                if o.offset >= 0
            }
        found: dict[Queue, int] = {}
        for broker_group, mine in self._by_group(named).items():
            ids = [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in mine]
            request = consumer_pb2.FetchOffsetsRequest(group=group, queues=ids)
            response = await broker_group.calls.leader(
                "consumer",
                "FetchOffsets",
                request,
                self._deadline(),
                is_repeatable=True,
                is_read=True,
            )
            for o in response.offsets:
                if o.offset >= 0:
                    found[Queue(o.topic, o.queue_id, broker_group.name)] = o.offset
        return found

    async def commit_offsets(self, group: str, offsets: Offsets) -> int:
        """Store offsets for a group; a broker group stores its part entirely or not at all.

        Return the index of the log entry, of the last entry if there are several.
        """
        index, steps = -1, Steps()
        named = {queue_of(queue): offset for queue, offset in offsets.items()}
        for broker_group, mine in self._by_group(list(named)).items():
            request = consumer_pb2.CommitOffsetsRequest(
                group=group, cluster_id=self._groups.cluster_id
            )
            for queue in mine:
                request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=named[queue])
            stored = broker_group.calls.leader(
                "consumer", "CommitOffsets", request, self._deadline(), is_repeatable=True
            )
            response = await steps.take(stored)
            index = int(response.index)
        return index

    def _by_group(self, queues: Sequence[Queue]) -> dict[BrokerGroup, list[Queue]]:
        found: dict[BrokerGroup, list[Queue]] = {}
        for queue in queues:
            found.setdefault(self._groups.get(queue.group), []).append(queue)
        return found

    # Nodes.

    async def node_status(self, node_id: int | None = None, *, group: str = "") -> NodeStatus:
        """Return the status of a node; without a node id, of the leader (of that broker group).

        An empty `group` means the first one by name, here as in the other calls.
        """
        request = admin_pb2.NodeStatusRequest()
        at, response = await self._at(node_id, "NodeStatus", request, group)
        return NodeStatus.of(response, at.name)

    async def cluster_status(self) -> ClusterStatus:
        """Ask every known node at once, with a timeout of 2 s each, and return all statuses.

        Members that do not answer are in it as NodeDown; removed nodes only if they answer.
        """
        groups = self._groups.known()  # Also groups that were left out: missing is not healthy.
        parts = await asyncio.gather(*(self._group_status(group) for group in groups))
        first = parts[0][0]
        return ClusterStatus(
            cluster_id=self._groups.cluster_id,
            leader_id=first.leader_id,
            term=first.term,
            nodes=tuple(
                sorted(
                    (node for _, nodes in parts for node in nodes), key=lambda node: node.node_id
                )
            ),
            groups=tuple(status for status, _ in parts),
        )

    async def _group_status(
        self, group: BrokerGroup
    ) -> tuple[GroupStatus, list[NodeStatus | NodeDown]]:
        router = group.router
        try:
            await router.refresh(Deadline(STATUS_TIMEOUT_MS))
        except QuorumlogError:
            pass  # Every node is then reported down.
        ids = {address: node_id for node_id, address in router.nodes.items()}
        addresses = list(ids) or list(router.bootstrap)
        asked = (self._status_of(group, address, ids.get(address, 0)) for address in addresses)
        nodes = await asyncio.gather(*asked)
        up = [node for node in nodes if isinstance(node, NodeStatus)]
        newest = max(up, key=lambda node: (node.term, node.role == "leader"), default=None)
        leader_id, term = (newest.leader_id, newest.term) if newest is not None else (0, 0)
        there = [node for node in nodes if not _is_removed(node, newest)]
        there.sort(key=lambda node: node.node_id)
        return GroupStatus(group.name, leader_id, term), there

    async def _status_of(
        self, group: BrokerGroup, address: str, node_id: int
    ) -> NodeStatus | NodeDown:
        node = group.router.channels.get(address)
        request = admin_pb2.NodeStatusRequest()
        try:
            response = await group.calls.once(
                node, "admin", "NodeStatus", request, STATUS_TIMEOUT_MS / 1000
            )
        except QuorumlogError as error:
            return NodeDown(node_id, address, str(error), group.name)
        return NodeStatus.of(response, group.name)

    async def transfer_leadership(self, node_id: int = 0, *, group: str = "") -> LeaderInfo:
        """Have the leader hand over to a node, or (0) its best follower; return the new leader."""
        at = await self._group_of(node_id, group)
        request = admin_pb2.TransferLeadershipRequest(node_id=node_id)
        response = await self._lead(at, "TransferLeadership", request, is_repeatable=node_id != 0)
        return LeaderInfo(response.leader_id, response.term, at.name)

    async def add_learner(
        self, node_id: int, *, address: str, peer_address: str, group: str = ""
    ) -> tuple[MemberStatus, ...]:
        """Make a node a learner of a broker group: the log, but no vote; return the members."""
        at = self._groups.get(group)
        return await self._change(
            at, admin_pb2.MEMBER_CHANGE_ADD_LEARNER, node_id, address, peer_address
        )

    async def promote(self, node_id: int) -> tuple[MemberStatus, ...]:
        """Give a learner that has caught up a vote; return the members."""
        at = await self._group_of(node_id)
        return await self._change(at, admin_pb2.MEMBER_CHANGE_PROMOTE, node_id)

    async def remove_member(self, node_id: int) -> tuple[MemberStatus, ...]:
        """Take a node out of the cluster; return the members that are left."""
        at = await self._group_of(node_id)
        return await self._change(at, admin_pb2.MEMBER_CHANGE_REMOVE, node_id)

    async def _change(
        self,
        group: BrokerGroup,
        change: admin_pb2.MemberChange,
        node_id: int,
        address: str = "",
        peer_address: str = "",
    ) -> tuple[MemberStatus, ...]:
        request = admin_pb2.ChangeMemberRequest(
            change=change, node_id=node_id, address=address, peer_address=peer_address
        )
        response = await self._lead(group, "ChangeMember", request, is_repeatable=False)
        return MemberStatus.all_of(response.members)

    async def drain(
        self, node_id: int | None = None, *, undo: bool = False, group: str = ""
    ) -> None:
        """Have a node hand over leadership and refuse appends, until undone or restarted."""
        request = admin_pb2.DrainRequest(undo=undo)
        await self._at(node_id, "Drain", request, group, is_read=False)

    async def accept_loss(self, node_id: int, *, confirm_cluster_id: str) -> None:
        """Let the cluster continue with the log of this node after a power loss of a majority.

        For flush=async. Acknowledged messages may be missing afterwards; docs/operations.md says
        when to do this.
        """
        request = admin_pb2.AcceptLossRequest(confirm_cluster_id=confirm_cluster_id)
        await self._at(node_id, "AcceptLoss", request, is_read=False)

    async def chain_digest(
        self, node_id: int | None = None, index: int = -1, *, group: str = ""
    ) -> ChainDigest:
        """Return the chained checksum of a node's log at an index; -1: the last one applied."""
        request = admin_pb2.ChainDigestRequest(index=index)
        _, response = await self._at(node_id, "ChainDigest", request, group)
        return ChainDigest(response.index, response.term, response.chain_crc, response.end_position)

    # Master-slave groups.

    async def ha_status(self, node_id: int | None = None, *, group: str = "") -> HaStatus:
        """Return the status of its group as a node (default: the master) sees it.

        Raises ServerError `node.wrong_mode` in a cluster that replicates by Raft.
        """
        request = admin_pb2.HaStatusRequest()
        _, response = await self._at(node_id, "HaStatus", request, group)
        return HaStatus.of(response)

    async def ha_group(self, group: str = "") -> HaGroup:
        """Ask all nodes of a broker group at once; a node that does not answer is a NodeDown.

        Raises as `ha_status`.
        """
        at = self._groups.get(group)
        _, nodes = await self._group_status(at)

        async def ask(node: NodeStatus | NodeDown) -> HaStatus | NodeDown:
            if isinstance(node, NodeDown):
                return node
            try:
                return await self.ha_status(node.node_id)
            except (UnavailableError, DeadlineError) as error:
                address = at.router.nodes.get(node.node_id, "")
                return NodeDown(node.node_id, address, str(error), at.name)

        return HaGroup(tuple(await asyncio.gather(*map(ask, nodes))))

    async def ha_promote(self, node_id: int, *, timeout_ms: int = 0) -> HaPromotion:
        """Make a node the master, with the old master fenced; return once the new one serves.

        Raises ServerError: `ha.promotion_refused`, `ha.promotion_lost`, and with an unknown outcome
        `ha.promotion_timeout` (0: the node's limit), after which the node keeps trying.
        """
        request = admin_pb2.HaPromoteRequest(timeout_ms=timeout_ms)
        _, response = await self._at(node_id, "HaPromote", request, is_read=False)
        return HaPromotion(response.epoch, response.master_id, response.start_position)

    # Calls.

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)

    async def _lead(
        self, group: BrokerGroup, method: str, request: Any, *, is_repeatable: bool = True
    ) -> Any:
        return await group.calls.leader(
            "admin", method, request, self._deadline(), is_repeatable=is_repeatable
        )

    async def _each(
        self,
        method: str,
        request: Any,
        *,
        service: Service = "admin",
        is_repeatable: bool = True,
        is_read: bool = True,
        may_be_away: bool = True,
    ) -> tuple[Answers, list[str]]:
        """Call the leaders of all broker groups; return the answers, and the groups without one.

        A group that does not know the topic or consumer group is left out if another one does.
        Raises the first error that is not retryable; any error if no group answers or `may_be_away`
        is false.
        """
        groups = self._groups.all
        asked = (
            group.calls.leader(
                service,
                method,
                request,
                Deadline(min(AWAY_MS, self._timeout_ms)) if group.is_away else self._deadline(),
                is_repeatable=is_repeatable,
                is_read=is_read,
            )
            for group in groups
        )
        results = await asyncio.gather(*asked, return_exceptions=True)
        answers: Answers = {}
        away: list[str] = []
        lacking: list[BaseException] = []
        failed: list[BaseException] = []
        for group, result in zip(groups, results, strict=True):
            if isinstance(result, UnknownTopicError | NotFoundError):
                lacking.append(result)
            elif isinstance(result, BaseException):
                if not isinstance(result, QuorumlogError) or not result.retryable:
                    raise result if is_read else beside(result, results)
                failed.append(result)
                away.append(group.name)
                if not self._groups.is_single:
                    self._groups.suspect(group)
            else:
                answers[group.name] = result
        if failed and not (answers and may_be_away):
            raise failed[0] if is_read else beside(failed[0], results)
        if not answers:
            raise lacking[0]
        return answers, away

    async def _group_of(self, node_id: int, group: str = "") -> BrokerGroup:
        """Return the broker group of a node; refresh all groups first if none lists the node."""
        if node_id and not any(node_id in known.router.nodes for known in self._groups.all):
            await self._groups.refresh(self._deadline())
        return self._groups.of_node(node_id) if node_id and not group else self._groups.get(group)

    async def _at(
        self,
        node_id: int | None,
        method: str,
        request: Any,
        group: str = "",
        *,
        is_read: bool = True,
    ) -> tuple[BrokerGroup, Any]:
        deadline = self._deadline()
        if node_id is None:
            at = self._groups.get(group)
            await at.router.refresh(deadline)  # Followers answer this, too.
            node = await at.router.leader(deadline)
        else:
            at = await self._group_of(node_id)
            node = at.router.node(node_id)
        calls = at.calls
        return at, await calls.node(node, "admin", method, request, deadline, is_read=is_read)


def _is_removed(node: NodeStatus | NodeDown, newest: NodeStatus | None) -> bool:
    """Whether a silent node is one that the leader does not count as a member any more.

    Settings, and nodes that lag, name a removed member for a long time.
    """
    if isinstance(node, NodeStatus) or newest is None or newest.role != "leader":
        return False
    if not node.node_id:  # A given address that never answered.
        return False
    return bool(newest.members) and all(m.node_id != node.node_id for m in newest.members)
