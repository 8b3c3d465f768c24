from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_CHANGE_UNSPECIFIED: _ClassVar[MemberChange]
    MEMBER_CHANGE_ADD_LEARNER: _ClassVar[MemberChange]
    MEMBER_CHANGE_PROMOTE: _ClassVar[MemberChange]
    MEMBER_CHANGE_REMOVE: _ClassVar[MemberChange]
MEMBER_CHANGE_UNSPECIFIED: MemberChange
MEMBER_CHANGE_ADD_LEARNER: MemberChange
MEMBER_CHANGE_PROMOTE: MemberChange
MEMBER_CHANGE_REMOVE: MemberChange

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "queue_count", "permission", "must_be_new", "message_type")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MUST_BE_NEW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    permission: int
    must_be_new: bool
    message_type: str
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., must_be_new: _Optional[bool] = ..., message_type: _Optional[str] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("topic", "queue_count", "permission", "message_type", "bytes_per_second", "messages_per_second")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    permission: int
    message_type: str
    bytes_per_second: int
    messages_per_second: int
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., message_type: _Optional[str] = ..., bytes_per_second: _Optional[int] = ..., messages_per_second: _Optional[int] = ...) -> None: ...

class SetTopicRatesRequest(_message.Message):
    __slots__ = ("topic", "bytes_per_second", "messages_per_second")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    topic: str
    bytes_per_second: int
    messages_per_second: int
    def __init__(self, topic: _Optional[str] = ..., bytes_per_second: _Optional[int] = ..., messages_per_second: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("with_system", "containing", "after", "max_count")
    WITH_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    CONTAINING_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    with_system: bool
    containing: str
    after: str
    max_count: int
    def __init__(self, with_system: _Optional[bool] = ..., containing: _Optional[str] = ..., after: _Optional[str] = ..., max_count: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "matched_count", "topic_count")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MATCHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    matched_count: int
    topic_count: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., matched_count: _Optional[int] = ..., topic_count: _Optional[int] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_store_unix_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_unix_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_store_unix_ms: _Optional[int] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("info", "queues")
    INFO_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    info: TopicInfo
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    def __init__(self, info: _Optional[_Union[TopicInfo, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group", "member_count", "lag_count", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAG_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_count: int
    lag_count: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., member_count: _Optional[int] = ..., lag_count: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "min_offset", "max_offset", "client_id", "last_consumed_unix_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_CONSUMED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int
    client_id: str
    last_consumed_unix_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., client_id: _Optional[str] = ..., last_consumed_unix_ms: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("info", "queues", "client_ids", "warnings")
    INFO_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    info: GroupInfo
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, info: _Optional[_Union[GroupInfo, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., client_ids: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("node_id", "address", "peer_address", "is_voter", "is_connected", "match_index", "progress")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_VOTER_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    peer_address: str
    is_voter: bool
    is_connected: bool
    match_index: int
    progress: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ..., is_voter: _Optional[bool] = ..., is_connected: _Optional[bool] = ..., match_index: _Optional[int] = ..., progress: _Optional[str] = ...) -> None: ...

class NodeStatusResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "version", "role", "term", "leader_id", "first_index", "last_index", "durable_index", "commit_index", "applied_index", "first_log_position", "end_log_position", "flush", "standing", "disk_state", "disk_used_ratio", "uptime_ms", "appends_total", "appended_size_bytes_total", "pulls_total", "busy_total", "in_flight_size_bytes", "is_draining", "loss_from_index", "members", "detail", "pid", "replication", "pulled_records_total", "level", "level_max", "users")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    DISK_STATE_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    APPENDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    APPENDED_SIZE_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PULLS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUSY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOSS_FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    PULLED_RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
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
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    detail: str
    pid: int
    replication: str
    pulled_records_total: int
    level: int
    level_max: int
    users: str
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., version: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader_id: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., durable_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., first_log_position: _Optional[int] = ..., end_log_position: _Optional[int] = ..., flush: _Optional[str] = ..., standing: _Optional[str] = ..., disk_state: _Optional[str] = ..., disk_used_ratio: _Optional[float] = ..., uptime_ms: _Optional[int] = ..., appends_total: _Optional[int] = ..., appended_size_bytes_total: _Optional[int] = ..., pulls_total: _Optional[int] = ..., busy_total: _Optional[int] = ..., in_flight_size_bytes: _Optional[int] = ..., is_draining: _Optional[bool] = ..., loss_from_index: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., detail: _Optional[str] = ..., pid: _Optional[int] = ..., replication: _Optional[str] = ..., pulled_records_total: _Optional[int] = ..., level: _Optional[int] = ..., level_max: _Optional[int] = ..., users: _Optional[str] = ...) -> None: ...

class FinalizeUpgradeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinalizeUpgradeResponse(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader_id", "term")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    leader_id: int
    term: int
    def __init__(self, leader_id: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class ChangeMemberRequest(_message.Message):
    __slots__ = ("change", "node_id", "address", "peer_address")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    change: MemberChange
    node_id: int
    address: str
    peer_address: str
    def __init__(self, change: _Optional[_Union[MemberChange, str]] = ..., node_id: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ...) -> None: ...

class ChangeMemberResponse(_message.Message):
    __slots__ = ("index", "members")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    def __init__(self, index: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("undo",)
    UNDO_FIELD_NUMBER: _ClassVar[int]
    undo: bool
    def __init__(self, undo: _Optional[bool] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AcceptLossRequest(_message.Message):
    __slots__ = ("confirm_cluster_id",)
    CONFIRM_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    confirm_cluster_id: str
    def __init__(self, confirm_cluster_id: _Optional[str] = ...) -> None: ...

class AcceptLossResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChainDigestRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class ChainDigestResponse(_message.Message):
    __slots__ = ("index", "term", "chain_crc", "end_log_position")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    END_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    chain_crc: int
    end_log_position: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., chain_crc: _Optional[int] = ..., end_log_position: _Optional[int] = ...) -> None: ...

class HaStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HaReplica(_message.Message):
    __slots__ = ("node_id", "address", "is_connected", "acked_log_position", "lag_size_bytes", "is_in_sync")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ACKED_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    is_connected: bool
    acked_log_position: int
    lag_size_bytes: int
    is_in_sync: bool
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., is_connected: _Optional[bool] = ..., acked_log_position: _Optional[int] = ..., lag_size_bytes: _Optional[int] = ..., is_in_sync: _Optional[bool] = ...) -> None: ...

class HaLoss(_message.Message):
    __slots__ = ("unix_ms", "epoch", "first_log_position", "end_log_position", "acked_end_log_position", "is_exact", "record_count", "acked_record_count", "file")
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACKED_END_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    IS_EXACT_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACKED_RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    unix_ms: int
    epoch: int
    first_log_position: int
    end_log_position: int
    acked_end_log_position: int
    is_exact: bool
    record_count: int
    acked_record_count: int
    file: str
    def __init__(self, unix_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., first_log_position: _Optional[int] = ..., end_log_position: _Optional[int] = ..., acked_end_log_position: _Optional[int] = ..., is_exact: _Optional[bool] = ..., record_count: _Optional[int] = ..., acked_record_count: _Optional[int] = ..., file: _Optional[str] = ...) -> None: ...

class HaStatusResponse(_message.Message):
    __slots__ = ("broker_group", "node_id", "replication", "role", "mode", "epoch", "master_id", "highest_epoch", "copies", "node_ids", "standing", "log_epoch", "first_log_position", "end_log_position", "durable_log_position", "confirm_log_position", "epoch_start_log_position", "in_sync", "replicas", "losses", "detail")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    DURABLE_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_START_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: int
    replication: str
    role: str
    mode: str
    epoch: int
    master_id: int
    highest_epoch: int
    copies: int
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    standing: str
    log_epoch: int
    first_log_position: int
    end_log_position: int
    durable_log_position: int
    confirm_log_position: int
    epoch_start_log_position: int
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    replicas: _containers.RepeatedCompositeFieldContainer[HaReplica]
    losses: _containers.RepeatedCompositeFieldContainer[HaLoss]
    detail: str
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[int] = ..., replication: _Optional[str] = ..., role: _Optional[str] = ..., mode: _Optional[str] = ..., epoch: _Optional[int] = ..., master_id: _Optional[int] = ..., highest_epoch: _Optional[int] = ..., copies: _Optional[int] = ..., node_ids: _Optional[_Iterable[int]] = ..., standing: _Optional[str] = ..., log_epoch: _Optional[int] = ..., first_log_position: _Optional[int] = ..., end_log_position: _Optional[int] = ..., durable_log_position: _Optional[int] = ..., confirm_log_position: _Optional[int] = ..., epoch_start_log_position: _Optional[int] = ..., in_sync: _Optional[_Iterable[int]] = ..., replicas: _Optional[_Iterable[_Union[HaReplica, _Mapping]]] = ..., losses: _Optional[_Iterable[_Union[HaLoss, _Mapping]]] = ..., detail: _Optional[str] = ...) -> None: ...

class HaPromoteRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class HaPromoteResponse(_message.Message):
    __slots__ = ("epoch", "master_id", "start_log_position")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    master_id: int
    start_log_position: int
    def __init__(self, epoch: _Optional[int] = ..., master_id: _Optional[int] = ..., start_log_position: _Optional[int] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("began_unix_ms", "after", "count_max")
    BEGAN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    began_unix_ms: int
    after: int
    count_max: int
    def __init__(self, began_unix_ms: _Optional[int] = ..., after: _Optional[int] = ..., count_max: _Optional[int] = ...) -> None: ...

class NodeEvent(_message.Message):
    __slots__ = ("number", "unix_ms", "level", "component", "text", "values")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    number: int
    unix_ms: int
    level: str
    component: str
    text: str
    values: str
    def __init__(self, number: _Optional[int] = ..., unix_ms: _Optional[int] = ..., level: _Optional[str] = ..., component: _Optional[str] = ..., text: _Optional[str] = ..., values: _Optional[str] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("began_unix_ms", "events")
    BEGAN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    began_unix_ms: int
    events: _containers.RepeatedCompositeFieldContainer[NodeEvent]
    def __init__(self, began_unix_ms: _Optional[int] = ..., events: _Optional[_Iterable[_Union[NodeEvent, _Mapping]]] = ...) -> None: ...

class SettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeSetting(_message.Message):
    __slots__ = ("name", "value", "origin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    origin: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class SettingsResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[NodeSetting]
    def __init__(self, settings: _Optional[_Iterable[_Union[NodeSetting, _Mapping]]] = ...) -> None: ...

class StacksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StacksResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: bytes
    def __init__(self, page: _Optional[bytes] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HistorySample(_message.Message):
    __slots__ = ("unix_ms", "duration_ms", "in_messages", "in_size_bytes", "out_messages", "out_size_bytes", "append_p50_us", "append_p99_us", "disk_used_ratio")
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    IN_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    IN_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OUT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    APPEND_P50_US_FIELD_NUMBER: _ClassVar[int]
    APPEND_P99_US_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    unix_ms: int
    duration_ms: int
    in_messages: int
    in_size_bytes: int
    out_messages: int
    out_size_bytes: int
    append_p50_us: int
    append_p99_us: int
    disk_used_ratio: float
    def __init__(self, unix_ms: _Optional[int] = ..., duration_ms: _Optional[int] = ..., in_messages: _Optional[int] = ..., in_size_bytes: _Optional[int] = ..., out_messages: _Optional[int] = ..., out_size_bytes: _Optional[int] = ..., append_p50_us: _Optional[int] = ..., append_p99_us: _Optional[int] = ..., disk_used_ratio: _Optional[float] = ...) -> None: ...

class LagSample(_message.Message):
    __slots__ = ("unix_ms", "message_count", "age_ms")
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    unix_ms: int
    message_count: int
    age_ms: int
    def __init__(self, unix_ms: _Optional[int] = ..., message_count: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class GroupHistory(_message.Message):
    __slots__ = ("group", "samples")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    group: str
    samples: _containers.RepeatedCompositeFieldContainer[LagSample]
    def __init__(self, group: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[LagSample, _Mapping]]] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("samples", "groups")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[HistorySample]
    groups: _containers.RepeatedCompositeFieldContainer[GroupHistory]
    def __init__(self, samples: _Optional[_Iterable[_Union[HistorySample, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupHistory, _Mapping]]] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("index", "log_position", "queue_unit", "key_slot")
    class QueueUnit(_message.Message):
        __slots__ = ("topic", "queue_id", "offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        offset: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_UNIT_FIELD_NUMBER: _ClassVar[int]
    KEY_SLOT_FIELD_NUMBER: _ClassVar[int]
    index: int
    log_position: int
    queue_unit: ReadLogRequest.QueueUnit
    key_slot: int
    def __init__(self, index: _Optional[int] = ..., log_position: _Optional[int] = ..., queue_unit: _Optional[_Union[ReadLogRequest.QueueUnit, _Mapping]] = ..., key_slot: _Optional[int] = ...) -> None: ...

class LogBytes(_message.Message):
    __slots__ = ("kind", "data", "file", "at", "log_position", "number", "topic", "queue_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LOG_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    data: bytes
    file: str
    at: int
    log_position: int
    number: int
    topic: str
    queue_id: int
    def __init__(self, kind: _Optional[str] = ..., data: _Optional[bytes] = ..., file: _Optional[str] = ..., at: _Optional[int] = ..., log_position: _Optional[int] = ..., number: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("things",)
    THINGS_FIELD_NUMBER: _ClassVar[int]
    things: _containers.RepeatedCompositeFieldContainer[LogBytes]
    def __init__(self, things: _Optional[_Iterable[_Union[LogBytes, _Mapping]]] = ...) -> None: ...
