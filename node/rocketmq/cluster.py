"""Leaders of the broker groups, as far as this node knows, and the groups with queues of a topic.

Owns the view that the gateway has of the cluster: this node's own group from its broker, the others
from the name server. The view is advice: a node that leads no longer forwards the call.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from node.broker.core.context import Context, OtherGroups
from node.rocketmq.protocol.statuses import CallRefusedError
from node.state.state import INTERNAL_TOPICS, PERMISSION_WRITE
from node.state.tables.topic_types import MIXED
from quorumlog.pb.log_pb2 import GroupRoute
from quorumlog.pb.rocketmq_pb2 import Code
from raft.messages import NO_NODE, NodeId
from store.errors import TopicNameError
from store.record.message import check_topic
from store.record.topic_names import is_reserved


class GroupNode(NamedTuple):
    """A node of a group that clients may talk to."""

    node_id: NodeId
    address: str
    is_leader: bool


class Share(NamedTuple):
    """The share of a topic that one group has."""

    group: str
    queue_count: int
    permission: int
    message_type: str
    """MIXED for a topic of another group: the node there refuses messages of other types."""
    places: tuple[GroupNode, ...]
    """Nodes that are up, as far as is known, by number."""


class Leader(NamedTuple):
    """The leader of a group: this node, or a node at an address."""

    is_here: bool
    address: str


HERE: Final = Leader(True, "")


class GatewayCluster:
    """The gateway's view of leaders and topics. One per gateway."""

    def __init__(
        self, context: Context, other_groups: OtherGroups, is_connected: Callable[[NodeId], bool]
    ) -> None:
        """`is_connected` returns whether another node of this group is up."""
        self._context: Final = context
        self._other_groups = other_groups
        self._is_connected = is_connected
        self.own_group: Final = context.identity.group

    # --- Leaders ---

    def leader_of(self, group: str) -> Leader | None:
        """Return the leader of a group; None if none is known. Raises CallRefusedError."""
        if group == self.own_group:
            return self.own_leader()
        for other in self._other_groups(()):
            if other.group == group:
                addresses = {node.node_id: node.address for node in other.nodes}
                address = addresses.get(other.leader_id, "")
                return Leader(False, address) if address else None
        raise CallRefusedError(
            Code.BAD_REQUEST, f"no broker is named {group!r}; ask for the route again"
        )

    def own_leader(self) -> Leader | None:
        """Return the leader of this node's group; None if none is known."""
        context, driver = self._context, self._context.driver
        if self.leads_here():
            return HERE
        leader = driver.leader_id
        if leader in (NO_NODE, driver.node_id):
            return None
        address = context.address_of(leader)
        return Leader(False, address) if address else None

    def leads_here(self) -> bool:
        """Whether this node is the leader of its group, as far as it knows."""
        return self._context.driver.is_ready and not self._context.is_stopped

    def node_at(self, address: str) -> NodeId:
        """Return the node of this group with an address; NO_NODE if there is none."""
        context = self._context
        nodes = self.node_ids(self.own_group)
        return next((one for one in nodes if context.address_of(one) == address), NO_NODE)

    def is_cut_off(self) -> bool:
        """Whether this node knows no leader of its group and has a link to no majority of it."""
        if self.own_leader() is not None:
            return False
        own, nodes = self._context.driver.node_id, self.node_ids(self.own_group)
        up_count = sum(node == own or self._is_connected(node) for node in nodes)
        return 2 * up_count <= len(nodes)

    # --- Nodes ---

    def node_ids(self, group: str) -> list[NodeId]:
        """Return the nodes of a group, up or not; of another group those heard of lately."""
        if group == self.own_group:
            context = self._context
            return sorted({*context.identity.addresses, *context.state.members})
        others = (other for other in self._other_groups(()) if other.group == group)
        return sorted(node.node_id for other in others for node in other.nodes)

    def node_addresses(self) -> list[str]:
        """Return the addresses of all other nodes, of all groups."""
        context, own = self._context, self._context.driver.node_id
        ids = (node for node in self.node_ids(self.own_group) if node != own)
        addresses = [context.address_of(node) for node in ids]
        addresses += [node.address for other in self._other_groups(()) for node in other.nodes]
        return [address for address in addresses if address]

    def groups(self) -> dict[str, tuple[GroupNode, ...]]:
        """Return all groups, and the nodes of each that are up."""
        places = {self.own_group: tuple(self._own_places())}
        for other in self._other_groups(()):
            places[other.group] = _places_of(other)
        return places

    # --- Topics ---

    def shares(self, topic: str) -> list[Share]:
        """Return the groups with queues of a topic, by name. Raises CallRefusedError if none
        has."""
        queue_shares = []
        own = self._context.state.topic(topic)
        if own is not None and topic not in INTERNAL_TOPICS:
            places = tuple(self._own_places())
            share = Share(self.own_group, own.queue_count, own.permission, own.message_type, places)
            queue_shares.append(share)
        for other in self._other_groups((topic,)) if topic not in INTERNAL_TOPICS else ():
            places = _places_of(other)
            queue_shares += [
                Share(other.group, row.queue_count, row.permission, MIXED, places)
                for row in other.topics
                if row.topic == topic
            ]
        if not queue_shares:
            text = f"there is no topic {topic!r}; create it first: qlog topic create {topic}"
            try:
                check_topic(topic.encode("utf-8", "backslashreplace"))
            except TopicNameError as error:
                text = str(error)
            if is_reserved(topic):
                text = f"topic {topic!r} belongs to the system, and has no route"
            raise CallRefusedError(Code.TOPIC_NOT_FOUND, text)
        return sorted(queue_shares)

    def groups_of(self, topics: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield each of these topics with each group that has it: the group first."""
        shown = [topic for topic in topics if topic not in INTERNAL_TOPICS]
        for topic in shown:
            if topic in self._context.state.topics:
                yield self.own_group, topic
        for other in self._other_groups(tuple(shown)):
            for row in other.topics:
                if row.topic in topics:
                    yield other.group, row.topic

    def _own_places(self) -> Iterator[GroupNode]:
        """Yield this node and those of its group that it is connected to."""
        context, driver = self._context, self._context.driver
        for node in self.node_ids(self.own_group):
            address = context.address_of(node)
            is_up = node == driver.node_id or self._is_connected(node)
            if address and is_up:
                yield GroupNode(node, address, node == driver.leader_id)

    def topic_names(self) -> list[str]:
        """Return the topics of this group, and those of others that this node knows."""
        return sorted(self._context.state.topics)

    def queue_of_message_group(self, topic: str, message_group: str) -> tuple[str, int]:
        """Return broker group and queue of a message group: the same at each node that clients use.

        The queue stays the same as long as its broker group exists and has as many queues. When
        another group comes or goes, only the message groups that it gets, or had, move: each
        belongs to the group whose name makes the highest number with its own.
        """
        shares = [
            share
            for share in self.shares(topic)
            if share.permission & PERMISSION_WRITE and share.queue_count
        ]
        if not shares:
            raise CallRefusedError(Code.FORBIDDEN, f"topic {topic!r} takes no messages")
        share = max(shares, key=lambda share: _number(f"{share.group}\n{message_group}"))
        return share.group, _number(message_group) % share.queue_count


def _places_of(other: GroupRoute) -> tuple[GroupNode, ...]:
    return tuple(
        GroupNode(node.node_id, node.address, node.node_id == other.leader_id)
        for node in sorted(other.nodes, key=lambda node: node.node_id)
    )


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
