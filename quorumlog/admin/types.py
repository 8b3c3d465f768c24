"""Results of the admin calls, as frozen values with the names of the proto.

Owns the shapes and their decoding from the wire; must not know how calls are made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from quorumlog.arguments import check_fields
from quorumlog.errors import InvalidRequestError
from quorumlog.pb import admin_pb2, users_pb2
from quorumlog.records import values
from quorumlog.records.values import of_pb
from quorumlog.user_tokens import digest_of

_Queue = TypeVar("_Queue", "QueueInfo", "GroupQueue")


@dataclass(frozen=True, slots=True)
class TopicShare:
    """The share of one broker group in a topic."""

    broker_group: str
    queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `permission`: 4 read, 2 write, 6 both. `queue_count` is over all broker groups.

    `shares` has one item for each broker group that answered; `away` names those that did not.
    """

    topic: str
    queue_count: int
    permission: int
    shares: tuple[TopicShare, ...] = ()
    away: tuple[str, ...] = ()
    message_type: str = "MIXED"
    """The messages that the topic takes from clients of RocketMQ; MIXED: all."""
    bytes_per_second: int = 0
    """Limit of what is sent to it in each broker group; 0: none."""
    messages_per_second: int = 0

    @classmethod
    def of(
        cls, shares: "Mapping[str, admin_pb2.TopicInfo]", away: Iterable[str] = ()
    ) -> "TopicInfo":
        """Merge the wire forms of the topic, one from each broker group that answered."""
        first = next(iter(shares.values()))
        return cls(
            first.topic,
            sum(pb.queue_count for pb in shares.values()),
            first.permission,
            tuple(of_pb(TopicShare, pb, broker_group=name) for name, pb in shares.items()),
            tuple(away),
            first.message_type or "MIXED",
            first.bytes_per_second,
            first.messages_per_second,
        )


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Some topics by name. `matched_count` of all `topic_count` names have the text that was
    asked for, in the broker group with the most of them."""

    topics: tuple[TopicInfo, ...]
    matched_count: int
    topic_count: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue of a topic: offsets [first_offset, end_offset); `last_store_unix_ms` 0: empty."""

    queue_id: int
    first_offset: int
    end_offset: int
    last_store_unix_ms: int
    broker_group: str = ""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its queues, over all broker groups that answered; those in `away` did not."""

    topic: str
    queue_count: int
    permission: int
    queues: tuple[QueueInfo, ...]
    shares: tuple[TopicShare, ...] = ()
    away: tuple[str, ...] = ()
    message_type: str = "MIXED"
    bytes_per_second: int = 0
    messages_per_second: int = 0

    @classmethod
    def of(
        cls, answers: "Mapping[str, admin_pb2.DescribeTopicResponse]", away: Iterable[str] = ()
    ) -> "TopicDescription":
        """Merge the wire forms of the description, one from each broker group that answered."""
        info = TopicInfo.of({name: pb.info for name, pb in answers.items()}, away)
        return of_pb(cls, info, queues=_queues(QueueInfo, answers))


def _queues(kind: type[_Queue], answers: Mapping[str, Any]) -> tuple[_Queue, ...]:
    """Return the queues of all answers, each with the broker group that has it."""
    return tuple(
        of_pb(kind, row, broker_group=name, first_offset=row.min_offset, end_offset=row.max_offset)
        for name, pb in answers.items()
        for row in pb.queues
    )


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group. `lag_count`: messages behind, over all queues of the topics that it reads:
    those of its members, and those in which it has stored an offset."""

    group: str
    member_count: int
    lag_count: int
    topics: tuple[str, ...]

    @classmethod
    def of(cls, pbs: "Sequence[admin_pb2.GroupInfo]") -> "GroupInfo":
        """Merge the wire forms of the group, one a broker group; all list the same members."""
        topics = {topic: None for pb in pbs for topic in pb.topics}
        return cls(
            pbs[0].group,
            max(pb.member_count for pb in pbs),
            sum(pb.lag_count for pb in pbs),
            tuple(sorted(topics)),
        )


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """The progress of a consumer group in a queue; `offset` is the next one to consume, the first
    one where none is stored.

    `broker_group` holds the queue.
    """

    topic: str
    queue_id: int
    offset: int
    first_offset: int
    end_offset: int
    broker_group: str = ""
    client_id: str = ""
    """The member that reads the queue; empty: no member reported it."""
    last_consumed_unix_ms: int = 0
    """Store time of the last message below `offset`; 0: there is none any more, or was none."""

    @property
    def lag_count(self) -> int:
        """Count of messages that are not consumed yet."""
        return max(0, self.end_offset - max(self.offset, self.first_offset))


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its queues and its members."""

    group: str
    member_count: int
    lag_count: int
    topics: tuple[str, ...]
    queues: tuple[GroupQueue, ...]
    client_ids: tuple[str, ...]
    """Members of all protocols."""
    away: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What members do unlike each other."""

    @classmethod
    def of(
        cls, answers: "Mapping[str, admin_pb2.DescribeGroupResponse]", away: Iterable[str] = ()
    ) -> "GroupDescription":
        """Merge the wire forms of the group; the broker groups in `away` gave none."""
        info = GroupInfo.of([pb.info for pb in answers.values()])
        clients = sorted({client for pb in answers.values() for client in pb.client_ids})
        return of_pb(
            cls,
            info,
            member_count=max(info.member_count, len(clients)),
            queues=_queues(GroupQueue, answers),
            client_ids=tuple(clients),
            away=tuple(away),
            warnings=tuple(sorted({text for pb in answers.values() for text in pb.warnings})),
        )


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A line of a node's log. `number` grows by one in a process; `values` are its values by
    name."""

    node_id: int
    number: int
    unix_ms: int
    level: str
    component: str
    text: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeEvents:
    """The last events of a node, the oldest first. `began_unix_ms` names its process."""

    node_id: int
    began_unix_ms: int
    events: tuple[NodeEvent, ...]

    @property
    def newest(self) -> int:
        """The number of the last event; 0: there is none."""
        return self.events[-1].number if self.events else 0


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """A setting of a node. `value` is as in its file, and `set` for a file with a secret or a
    certificate; `origin` is "default", "environment NAME", "flag --NAME" or FILE:LINE."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class HistorySample:
    """The counts of a node in the `duration_ms` before a time, and its disk then. The times of
    appends are the ends of buckets, powers of two; 0: there was none."""

    unix_ms: int
    duration_ms: int
    in_messages: int
    in_size_bytes: int
    out_messages: int
    out_size_bytes: int
    append_p50_us: int
    append_p99_us: int
    disk_used_ratio: float


@dataclass(frozen=True, slots=True)
class LagSample:
    """The lag of a consumer group at a time; `age_ms` of the oldest message it has not consumed."""

    unix_ms: int
    message_count: int
    age_ms: int


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """The last hour of a node in samples of ten seconds, the oldest first; of the leader also the
    lags of the consumer groups with the most to do."""

    samples: tuple[HistorySample, ...]
    lags: dict[str, tuple[LagSample, ...]]


@dataclass(frozen=True, slots=True)
class LogBytes:
    """The bytes of one thing of a node's store, right or wrong; `at` is its byte in `file`.

    `kind`: entry, entry_before (the header of the entry before), ledger_unit, record, blank,
    queue_unit, key_slot, key_header or key_item. `number` its
    index, queue offset, slot or item; -1 where it has none. `topic` and `queue_id` are those of a
    queue unit.
    """

    kind: str
    data: bytes
    file: str
    at: int
    log_position: int
    number: int
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """A thing of a node's store, and beside it what it is compared with."""

    node_id: int
    thing: LogBytes
    beside: tuple[LogBytes, ...]


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member as a node sees it. Only the leader knows `match_index` and `progress`."""

    node_id: int
    address: str
    peer_address: str
    is_voter: bool
    is_connected: bool
    match_index: int
    progress: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node; the fields are those of NodeStatusResponse in admin.proto."""

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
    first_log_position: int
    end_log_position: int
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
    broker_group: str = ""
    """The broker group of the node."""
    pulled_records_total: int = 0
    level: int = 0
    """At which the broker group works: one that all its builds have."""
    level_max: int = 0
    """The highest that the build of the node has; 0: a build without levels."""
    replication: str = ""
    """`raft`, `sync_master` or `async_master`."""

    to_dict = values.to_dict


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node that gave no status, and the reason. `node_id` 0: only its address is known."""

    node_id: int
    address: str
    error: str
    broker_group: str = ""

    to_dict = values.to_dict


@dataclass(frozen=True, slots=True)
class BrokerGroupStatus:
    """A broker group. `leader_id` 0: none is known."""

    broker_group: str
    leader_id: int
    term: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All nodes at once. `leader_id` (0: none is known) is that of the first of `broker_groups`."""

    cluster_id: str
    leader_id: int
    term: int
    nodes: tuple[NodeStatus | NodeDown, ...]
    broker_groups: tuple[BrokerGroupStatus, ...] = ()

    to_dict = values.to_dict


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    """The leader and its term."""

    leader_id: int
    term: int
    broker_group: str = ""


@dataclass(frozen=True, slots=True)
class ChainDigest:
    """The chained checksum at an index: equal on two replicas means equal logs up to there."""

    index: int
    term: int
    chain_crc: int
    end_log_position: int


@dataclass(frozen=True, slots=True)
class HaReplica:
    """Another replica, as the node that answered sees it; log positions are -1 unless it serves."""

    node_id: int
    address: str
    is_connected: bool
    acked_log_position: int
    """The replica has synced everything below this place of the log."""
    lag_size_bytes: int
    is_in_sync: bool
    """Whether the replica counts as a copy: it holds everything that readers see."""


@dataclass(frozen=True, slots=True)
class HaLoss:
    """The end of a log that is gone from it after a change of masters."""

    unix_ms: int
    epoch: int
    first_log_position: int
    end_log_position: int
    acked_end_log_position: int
    """Appends that end in (first, acked_end] had been acknowledged, as far as the node knows."""
    is_exact: bool
    """Whether the node saw all of it; False: more or less may have been acknowledged."""
    record_count: int
    """Count of messages in the lost part; -1: the node never had them."""
    acked_record_count: int
    """Count of messages up to `acked_end_log_position`; -1: unknown."""
    file: str
    """File to which the node moved the bytes; empty: it never had them."""


@dataclass(frozen=True, slots=True)
class HaStatus:
    """Status of its broker group as a node sees it; fields of HaStatusResponse in admin.proto."""

    broker_group: str
    node_id: int
    replication: str
    role: str
    mode: str
    epoch: int
    master_id: int
    highest_epoch: int
    copies: int
    node_ids: tuple[int, ...]
    standing: str
    log_epoch: int
    first_log_position: int
    end_log_position: int
    durable_log_position: int
    confirm_log_position: int
    epoch_start_log_position: int
    in_sync: tuple[int, ...]
    replicas: tuple[HaReplica, ...]
    losses: tuple[HaLoss, ...]
    detail: str

    to_dict = values.to_dict


@dataclass(frozen=True, slots=True)
class HaGroup:
    """All nodes of a group at once."""

    nodes: tuple[HaStatus | NodeDown, ...]

    @property
    def master(self) -> HaStatus | None:
        """The node that serves in the newest epoch; a cut-off old master may still claim to."""
        masters = [n for n in self.nodes if isinstance(n, HaStatus) and n.role == "master"]
        return max(masters, key=lambda node: node.epoch, default=None)


@dataclass(frozen=True, slots=True)
class HaPromotion:
    """The master after a promotion, its epoch, and where the epoch begins in the log."""

    epoch: int
    master_id: int
    start_log_position: int


@dataclass(frozen=True, slots=True)
class NewCredential:
    """A credential that a user gets: one of a token, the secret of an access key, or the name of a
    client certificate (CN=NAME, DNS:NAME, URI:NAME, EMAIL:NAME).

    `id` is the access key; of others a name that the user has once. `expires_unix_ms` 0: never.
    """

    id: str
    token: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    certificate: str = ""
    expires_unix_ms: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if sum(map(bool, (self.token, self.secret, self.certificate))) != 1:
            text = f"credential {self.id!r}: name one of token, secret and certificate"
            raise InvalidRequestError(text)

    def to_pb(self) -> users_pb2.Credential:
        """Return what is sent: of a token its digest, and nothing of a secret."""
        pb = users_pb2.Credential(id=self.id, expires_unix_ms=self.expires_unix_ms)
        if self.token:
            pb.token_sha256 = digest_of(self.token)
        elif self.certificate:
            pb.certificate = self.certificate
        return pb


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    """A credential of a user, without what is secret. `kind`: token, access_key or certificate."""

    id: str
    kind: str
    certificate: str
    expires_unix_ms: int

    @classmethod
    def of(cls, pb: users_pb2.Credential) -> "CredentialInfo":
        """Decode a credential from the wire."""
        kinds = {"token_sha256": "token", "certificate": "certificate"}
        kind = kinds.get(pb.WhichOneof("proof") or "", "access_key")
        return cls(pb.id, kind, pb.certificate, pb.expires_unix_ms)


@dataclass(frozen=True, slots=True)
class UserRates:
    """Limits of all connections of a user together, at each node. 0: none."""

    bytes_per_second: int = 0
    messages_per_second: int = 0
    requests_per_second: int = 0
    connections: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def to_pb(self) -> users_pb2.Rates:
        """Return the wire form."""
        return users_pb2.Rates(**values.to_dict(self))


@dataclass(frozen=True, slots=True)
class User:
    """A user. `roles` are NAME or NAME:PREFIX.

    `differs` names broker groups whose user is another one, or that have none: repeat the change.
    `away` names those that did not answer. `credentials` has those of any group that answered.
    """

    name: str
    roles: tuple[str, ...]
    is_disabled: bool
    credentials: tuple[CredentialInfo, ...]
    rates: UserRates
    differs: tuple[str, ...] = ()
    away: tuple[str, ...] = ()

    @classmethod
    def of(cls, answers: "Mapping[str, users_pb2.User | None]", away: Iterable[str] = ()) -> "User":
        """Merge the wire forms, one from each broker group that answered; None: it has none."""
        made = {
            group: of_pb(
                cls,
                pb,
                credentials=tuple(map(CredentialInfo.of, pb.credentials)),
                rates=of_pb(UserRates, pb.rates),
                differs=(),
                away=(),
            )
            for group, pb in answers.items()
            if pb is not None
        }
        first = next(iter(made.values()))
        differs = tuple(group for group in answers if made.get(group) != first)
        credentials = {one.id: one for user in made.values() for one in user.credentials}
        shown = tuple(credentials.values())
        return replace(first, credentials=shown, differs=differs, away=tuple(away))


@dataclass(frozen=True, slots=True)
class Rule:
    """A right, or with `deny` the refusal of one, which counts more than any right.

    `resource` is Cluster, Topic or Group, a colon and a name; with `*` at its end all names that
    begin so. `actions` are of Pub, Sub, Create, Update, Delete, Get and List.
    """

    resource: str
    actions: tuple[str, ...]
    deny: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        return f"{'DENY' if self.deny else 'ALLOW'} {self.resource} {','.join(self.actions)}"

    def to_pb(self) -> users_pb2.Rule:
        """Return the wire form."""
        return users_pb2.Rule(deny=self.deny, resource=self.resource, actions=self.actions)


@dataclass(frozen=True, slots=True)
class Role:
    """Rules under a name. A `{}` in a resource stands for the PREFIX of NAME:PREFIX.

    `differs` names broker groups that have other rules under it, or none: make it again.
    """

    name: str
    rules: tuple[Rule, ...]
    is_ready_made: bool
    differs: tuple[str, ...] = ()

    @classmethod
    def of(cls, answers: "Mapping[str, users_pb2.Role | None]") -> "Role":
        """Merge the wire forms, one from each broker group that answered; None: it has none."""
        first = next(pb for pb in answers.values() if pb is not None)
        differs = tuple(name for name, pb in answers.items() if pb != first)
        return of_pb(cls, first, differs=differs)


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether something is allowed, and the role with the rule that decides; None: no rule fits,
    or the user is disabled, so the answer is no."""

    is_allowed: bool
    role: str
    rule: Rule | None
    counts_as: str = ""
    """What rules have to allow in its place ("Sub on Group:orders"); empty: what was asked for."""

    @classmethod
    def of(cls, pb: users_pb2.ExplainResponse) -> "AccessDecision":
        """Decode the answer from the wire."""
        return of_pb(cls, pb, rule=of_pb(Rule, pb.rule) if pb.HasField("rule") else None)


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """The user of a client; an empty `name`: none. `mode` is the setting `users` of the node."""

    name: str
    roles: tuple[str, ...]
    mode: str
