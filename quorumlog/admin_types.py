"""What the admin calls return, as frozen values with the names of the proto.

Owns the shapes and their way from the wire; must not know how calls are made.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from quorumlog.pb import admin_pb2


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `permission`: 4 read, 2 write, 6 both."""

    topic: str
    queue_count: int
    permission: int

    @classmethod
    def of(cls, pb: admin_pb2.TopicInfo) -> "TopicInfo":
        """Read it from the wire."""
        return cls(pb.topic, pb.queue_count, pb.permission)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue of a topic: offsets [min_offset, max_offset); `last_store_unix_ms` 0: empty."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_unix_ms: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its queues."""

    topic: str
    queue_count: int
    permission: int
    queues: tuple[QueueInfo, ...]

    @classmethod
    def of(cls, pb: admin_pb2.DescribeTopicResponse) -> "TopicDescription":
        """Read it from the wire."""
        queues = tuple(
            QueueInfo(q.queue_id, q.min_offset, q.max_offset, q.last_store_unix_ms)
            for q in pb.queues
        )
        return cls(pb.info.topic, pb.info.queue_count, pb.info.permission, queues)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group. `lag_count`: messages behind, over all queues with a stored offset."""

    group: str
    member_count: int
    lag_count: int
    topics: tuple[str, ...]

    @classmethod
    def of(cls, pb: admin_pb2.GroupInfo) -> "GroupInfo":
        """Read it from the wire."""
        return cls(pb.group, pb.member_count, pb.lag_count, tuple(pb.topics))


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """How far a group has come in a queue; `offset` is the next one to consume."""

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int

    @property
    def lag_count(self) -> int:
        """Messages behind."""
        return max(0, self.max_offset - max(self.offset, self.min_offset))


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its queues and its members."""

    group: str
    member_count: int
    lag_count: int
    topics: tuple[str, ...]
    queues: tuple[GroupQueue, ...]
    client_ids: tuple[str, ...]

    @classmethod
    def of(cls, pb: admin_pb2.DescribeGroupResponse) -> "GroupDescription":
        """Read it from the wire."""
        queues = tuple(
            GroupQueue(q.topic, q.queue_id, q.offset, q.min_offset, q.max_offset) for q in pb.queues
        )
        info, client_ids = pb.info, tuple(pb.client_ids)
        topics = tuple(info.topics)
        return cls(info.group, info.member_count, info.lag_count, topics, queues, client_ids)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member as a node sees it. `match_index` and `progress` only as the leader sees it."""

    node_id: int
    address: str
    peer_address: str
    is_voter: bool
    is_connected: bool
    match_index: int
    progress: str

    @classmethod
    def all_of(cls, pbs: Iterable[admin_pb2.MemberStatus]) -> "tuple[MemberStatus, ...]":
        """Read several from the wire."""
        return tuple(
            cls(
                pb.node_id,
                pb.address,
                pb.peer_address,
                pb.is_voter,
                pb.is_connected,
                pb.match_index,
                pb.progress,
            )
            for pb in pbs
        )


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node says of itself; the fields are those of NodeStatusResponse in admin.proto."""

    cluster_id: str
    node_id: int
    version: str
    role: str
    term: int
    leader_id: int
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    first_position: int
    end_position: int
    flush: str
    standing: str
    disk_state: str
    disk_used_ratio: float
    uptime_ms: int
    appends_total: int
    appended_size_bytes_total: int
    pulls_total: int
    busy_total: int
    in_flight_size_bytes: int
    is_draining: bool
    loss_from_index: int
    members: tuple[MemberStatus, ...]
    detail: str
    pid: int

    @classmethod
    def of(cls, pb: admin_pb2.NodeStatusResponse) -> "NodeStatus":
        """Read it from the wire."""
        values: dict[str, Any] = {
            name: getattr(pb, name) for name in cls.__slots__ if name != "members"
        }
        return cls(members=MemberStatus.all_of(pb.members), **values)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values under stable names, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node that gave no status, and why. `node_id` 0: only its address is known."""

    node_id: int
    address: str
    error: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All nodes at once. `leader_id` 0: none is known."""

    cluster_id: str
    leader_id: int
    term: int
    nodes: tuple[NodeStatus | NodeDown, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values under stable names, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    """Who leads, and in which term."""

    leader_id: int
    term: int


@dataclass(frozen=True, slots=True)
class ChainDigest:
    """The chained checksum at an index: equal on two replicas means equal logs up to there."""

    index: int
    term: int
    chain_crc: int
    end_position: int
