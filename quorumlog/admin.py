"""Running a cluster: topics, groups, members, leadership, and what nodes say of themselves.

Owns the calls of AdminService and their values; must not know how calls find the leader. Changes go
through the leader; what concerns one node is asked of that node.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from quorumlog.admin_types import (
    ChainDigest,
    ClusterStatus,
    GroupDescription,
    GroupInfo,
    LeaderInfo,
    MemberStatus,
    NodeDown,
    NodeStatus,
    TopicDescription,
    TopicInfo,
)
from quorumlog.calls import Calls
from quorumlog.channels import Node
from quorumlog.errors import DeadlineError, QuorumlogError, UnavailableError
from quorumlog.ha_types import HaGroup, HaPromotion, HaStatus
from quorumlog.pb import admin_pb2, common_pb2, consumer_pb2
from quorumlog.retry import Deadline
from quorumlog.routing import Router

STATUS_TIMEOUT_MS: Final = 2_000  # Of each node in `cluster_status`.


class Admin:
    """Administers the cluster that a client is connected to; `client.admin`.

    Every call raises QuorumlogError; one that may have been done although it failed says so by its
    `outcome`. Calls that can be repeated without harm are, until the client's timeout.
    """

    def __init__(self, router: Router, calls: Calls, timeout_ms: int) -> None:
        self._router = router
        self._calls = calls
        self._timeout_ms = timeout_ms

    # Topics.

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 0,
        permission: int = 0,
        must_be_new: bool = False,
    ) -> TopicInfo:
        """Create a topic, or give one more queues or another permission.

        0 stands for the node's default count, and for read and write. Raises TopicExistsError if
        it `must_be_new` and is not.
        """
        request = admin_pb2.CreateTopicRequest(
            topic=topic,
            queue_count=queue_count,
            permission=permission,
            must_be_new=must_be_new,
        )
        # Repeated after an answer was lost, it would find its own work and call that a failure.
        response = await self._lead("CreateTopic", request, is_repeatable=not must_be_new)
        self._router.forget_topic(topic)
        return TopicInfo.of(response)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages. Raises UnknownTopicError."""
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        await self._lead("DeleteTopic", request, is_repeatable=False)
        self._router.forget_topic(topic)

    async def list_topics(self, *, with_system: bool = False) -> list[TopicInfo]:
        """Return all topics by name."""
        request = admin_pb2.ListTopicsRequest(with_system=with_system)
        response = await self._lead("ListTopics", request)
        return [TopicInfo.of(topic) for topic in response.topics]

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic and the state of its queues. Raises UnknownTopicError."""
        request = admin_pb2.DescribeTopicRequest(topic=topic)
        return TopicDescription.of(await self._lead("DescribeTopic", request))

    # Groups.

    async def list_groups(self) -> list[GroupInfo]:
        """Return all consumer groups by name."""
        response = await self._lead("ListGroups", admin_pb2.ListGroupsRequest())
        return [GroupInfo.of(group) for group in response.groups]

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group, how far it has come, and its members. Raises NotFoundError."""
        request = admin_pb2.DescribeGroupRequest(group=group)
        return GroupDescription.of(await self._lead("DescribeGroup", request))

    async def delete_group(self, group: str) -> None:
        """Forget a group and its offsets. Raises NotFoundError, ServerError if it has members."""
        request = admin_pb2.DeleteGroupRequest(group=group)
        await self._lead("DeleteGroup", request, is_repeatable=False)

    async def fetch_offsets(
        self, group: str, queues: Sequence[tuple[str, int]] = ()
    ) -> dict[tuple[str, int], int]:
        """Return the offsets that a group has stored: all, or of these (topic, queue id)."""
        ids = [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in queues]
        request = consumer_pb2.FetchOffsetsRequest(group=group, queues=ids)
        response = await self._calls.leader(
            "consumer", "FetchOffsets", request, self._deadline(), is_repeatable=True
        )
        return {(o.topic, o.queue_id): o.offset for o in response.offsets if o.offset >= 0}

    async def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> int:
        """Store offsets for a group, all or none; return the index of the log entry."""
        request = consumer_pb2.CommitOffsetsRequest(group=group, cluster_id=self._router.cluster_id)
        for (topic, queue_id), offset in offsets.items():
            request.offsets.add(topic=topic, queue_id=queue_id, offset=offset)
        response = await self._calls.leader(
            "consumer", "CommitOffsets", request, self._deadline(), is_repeatable=True
        )
        return int(response.index)

    # Nodes.

    async def node_status(self, node_id: int | None = None) -> NodeStatus:
        """Return what a node says of itself; of the leader if none is named."""
        request = admin_pb2.NodeStatusRequest()
        return NodeStatus.of(await self._at(node_id, "NodeStatus", request))

    async def cluster_status(self) -> ClusterStatus:
        """Ask every known node at once, 2 s each.

        Members that give no answer are in it as well; nodes that were removed only if they answer.
        """
        try:
            await self._router.refresh(Deadline(STATUS_TIMEOUT_MS))
        except QuorumlogError:
            pass  # Then every node is down, and the answer says so.
        known = self._router.nodes
        ids = {address: node_id for node_id, address in known.items()}
        addresses = list(known.values()) or list(self._router.bootstrap)
        nodes = await asyncio.gather(*(self._status_of(a, ids.get(a, 0)) for a in addresses))
        up = [node for node in nodes if isinstance(node, NodeStatus)]
        newest = max(up, key=lambda node: (node.term, node.role == "leader"), default=None)
        return ClusterStatus(
            cluster_id=self._router.cluster_id,
            leader_id=newest.leader_id if newest is not None else 0,
            term=newest.term if newest is not None else 0,
            nodes=tuple(
                sorted(
                    (node for node in nodes if not _is_removed(node, newest)),
                    key=lambda node: node.node_id,
                )
            ),
        )

    async def _status_of(self, address: str, node_id: int) -> NodeStatus | NodeDown:
        node = self._router.channels.get(address)
        request = admin_pb2.NodeStatusRequest()
        try:
            response = await self._calls.once(
                node, "admin", "NodeStatus", request, STATUS_TIMEOUT_MS / 1000
            )
        except QuorumlogError as error:
            return NodeDown(node_id, address, str(error))
        return NodeStatus.of(response)

    async def transfer_leadership(self, node_id: int = 0) -> LeaderInfo:
        """Have the leader hand over to a node, or (0) its best follower; return who leads now."""
        request = admin_pb2.TransferLeadershipRequest(node_id=node_id)
        response = await self._lead("TransferLeadership", request, is_repeatable=node_id != 0)
        return LeaderInfo(response.leader_id, response.term)

    async def add_learner(
        self, node_id: int, *, address: str, peer_address: str
    ) -> tuple[MemberStatus, ...]:
        """Have a node receive the log without a vote; return the members."""
        return await self._change(
            admin_pb2.MEMBER_CHANGE_ADD_LEARNER, node_id, address, peer_address
        )

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
        address: str = "",
        peer_address: str = "",
    ) -> tuple[MemberStatus, ...]:
        request = admin_pb2.ChangeMemberRequest(
            change=change, node_id=node_id, address=address, peer_address=peer_address
        )
        response = await self._lead("ChangeMember", request, is_repeatable=False)
        return MemberStatus.all_of(response.members)

    async def drain(self, node_id: int | None = None, *, undo: bool = False) -> None:
        """Have a node hand over leadership and take no appends, until undone or restarted."""
        await self._at(node_id, "Drain", admin_pb2.DrainRequest(undo=undo))

    async def accept_loss(self, node_id: int, *, confirm_cluster_id: str) -> None:
        """After a power loss of a majority (flush=async): go on with what this node has left.

        Acknowledged messages may be missing afterwards; docs/operations.md says when to do this.
        """
        request = admin_pb2.AcceptLossRequest(confirm_cluster_id=confirm_cluster_id)
        await self._at(node_id, "AcceptLoss", request)

    async def chain_digest(self, node_id: int | None = None, index: int = -1) -> ChainDigest:
        """Return the chained checksum of a node's log at an index; -1: the last one applied."""
        request = admin_pb2.ChainDigestRequest(index=index)
        response = await self._at(node_id, "ChainDigest", request)
        return ChainDigest(response.index, response.term, response.chain_crc, response.end_position)

    # Master-slave groups.

    async def ha_status(self, node_id: int | None = None) -> HaStatus:
        """Return what a node (default: the master) knows of its group.

        Raises ServerError `node.wrong_mode` in a cluster that replicates by Raft.
        """
        return HaStatus.of(await self._at(node_id, "HaStatus", admin_pb2.HaStatusRequest()))

    async def ha_group(self) -> HaGroup:
        """Ask all nodes at once; one that does not answer is a NodeDown. Raises as `ha_status`."""
        nodes = (await self.cluster_status()).nodes

        async def ask(node: NodeStatus | NodeDown) -> HaStatus | NodeDown:
            if isinstance(node, NodeDown):
                return node
            try:
                return await self.ha_status(node.node_id)
            except (UnavailableError, DeadlineError) as error:
                address = self._router.nodes.get(node.node_id, "")
                return NodeDown(node.node_id, address, str(error))

        return HaGroup(tuple(await asyncio.gather(*map(ask, nodes))))

    async def ha_promote(self, node_id: int, *, timeout_ms: int = 0) -> HaPromotion:
        """Make a node the master, behind a fence; returns once it serves.

        Raises ServerError: `ha.promotion_refused`, `ha.promotion_lost`, and with an unknown outcome
        `ha.promotion_timeout` (0: the node's limit), after which the node goes on trying.
        """
        request = admin_pb2.HaPromoteRequest(timeout_ms=timeout_ms)
        response = await self._at(node_id, "HaPromote", request)
        return HaPromotion(response.epoch, response.master_id, response.start_position)

    # Calls.

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)

    async def _lead(self, method: str, request: Any, *, is_repeatable: bool = True) -> Any:
        return await self._calls.leader(
            "admin", method, request, self._deadline(), is_repeatable=is_repeatable
        )

    async def _at(self, node_id: int | None, method: str, request: Any) -> Any:
        deadline = self._deadline()
        node: Node
        if node_id is None:
            await self._router.refresh(deadline)  # Nodes answer this whether they lead or not.
            node = await self._router.leader(deadline)
        else:
            if node_id not in self._router.nodes:
                await self._router.refresh(deadline)
            node = self._router.node(node_id)
        return await self._calls.node(node, "admin", method, request, deadline)


def _is_removed(node: NodeStatus | NodeDown, newest: NodeStatus | None) -> bool:
    """Say whether a silent node is one that the leader does not count as a member any more.

    Settings, and nodes that lag, name a removed member for long.
    """
    if isinstance(node, NodeStatus) or newest is None or newest.role != "leader":
        return False
    if not node.node_id:  # An address that was given and never answered.
        return False
    return bool(newest.members) and all(m.node_id != node.node_id for m in newest.members)
