from quorumlog.pb import common_pb2 as _common_pb2
from quorumlog.pb import transaction_pb2 as _transaction_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_STATUS_UNSPECIFIED: _ClassVar[PullStatus]
    PULL_STATUS_FOUND: _ClassVar[PullStatus]
    PULL_STATUS_NO_NEW_MESSAGE: _ClassVar[PullStatus]
    PULL_STATUS_NO_MATCHED_MESSAGE: _ClassVar[PullStatus]
    PULL_STATUS_OFFSET_TOO_SMALL: _ClassVar[PullStatus]
    PULL_STATUS_OFFSET_TOO_BIG: _ClassVar[PullStatus]
PULL_STATUS_UNSPECIFIED: PullStatus
PULL_STATUS_FOUND: PullStatus
PULL_STATUS_NO_NEW_MESSAGE: PullStatus
PULL_STATUS_NO_MATCHED_MESSAGE: PullStatus
PULL_STATUS_OFFSET_TOO_SMALL: PullStatus
PULL_STATUS_OFFSET_TOO_BIG: PullStatus

class AppendRequest(_message.Message):
    __slots__ = ("records", "record_count", "producer_id", "sequence", "timeout_ms", "cluster_id", "has_delayed", "transaction", "consumed", "incarnation", "with_stages")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_DELAYED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WITH_STAGES_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    record_count: int
    producer_id: int
    sequence: int
    timeout_ms: int
    cluster_id: str
    has_delayed: bool
    transaction: _transaction_pb2.HalfMessages
    consumed: _transaction_pb2.ConsumedOffsets
    incarnation: ProducerIncarnation
    with_stages: bool
    def __init__(self, records: _Optional[bytes] = ..., record_count: _Optional[int] = ..., producer_id: _Optional[int] = ..., sequence: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., cluster_id: _Optional[str] = ..., has_delayed: _Optional[bool] = ..., transaction: _Optional[_Union[_transaction_pb2.HalfMessages, _Mapping]] = ..., consumed: _Optional[_Union[_transaction_pb2.ConsumedOffsets, _Mapping]] = ..., incarnation: _Optional[_Union[ProducerIncarnation, _Mapping]] = ..., with_stages: _Optional[bool] = ...) -> None: ...

class ProducerIncarnation(_message.Message):
    __slots__ = ("name", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ClaimProducerRequest(_message.Message):
    __slots__ = ("name", "cluster_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster_id: str
    def __init__(self, name: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class ClaimProducerResponse(_message.Message):
    __slots__ = ("number", "index")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("error", "term", "index", "position", "store_unix_ms", "durability", "synced_by", "queues", "store_host", "is_duplicate", "record_count", "commit_us", "positions", "due_unix_ms", "stages")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STORE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    SYNCED_BY_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_US_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DUE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    term: int
    index: int
    position: int
    store_unix_ms: int
    durability: _common_pb2.Durability
    synced_by: _containers.RepeatedScalarFieldContainer[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRange]
    store_host: bytes
    is_duplicate: bool
    record_count: int
    commit_us: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    due_unix_ms: _containers.RepeatedScalarFieldContainer[int]
    stages: AppendStages
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., term: _Optional[int] = ..., index: _Optional[int] = ..., position: _Optional[int] = ..., store_unix_ms: _Optional[int] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., synced_by: _Optional[_Iterable[int]] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRange, _Mapping]]] = ..., store_host: _Optional[bytes] = ..., is_duplicate: _Optional[bool] = ..., record_count: _Optional[int] = ..., commit_us: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., due_unix_ms: _Optional[_Iterable[int]] = ..., stages: _Optional[_Union[AppendStages, _Mapping]] = ...) -> None: ...

class AppendStages(_message.Message):
    __slots__ = ("queued_us", "sent_us", "quorum_us", "applied_us")
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    SENT_US_FIELD_NUMBER: _ClassVar[int]
    QUORUM_US_FIELD_NUMBER: _ClassVar[int]
    APPLIED_US_FIELD_NUMBER: _ClassVar[int]
    queued_us: int
    sent_us: int
    quorum_us: int
    applied_us: int
    def __init__(self, queued_us: _Optional[int] = ..., sent_us: _Optional[int] = ..., quorum_us: _Optional[int] = ..., applied_us: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "max_count", "max_size_bytes", "wait_ms", "consistency", "at_least_index", "tags", "cluster_id", "group", "sql", "with_entries", "verify")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    WITH_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    max_count: int
    max_size_bytes: int
    wait_ms: int
    consistency: _common_pb2.Consistency
    at_least_index: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    cluster_id: str
    group: str
    sql: str
    with_entries: bool
    verify: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., max_count: _Optional[int] = ..., max_size_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., consistency: _Optional[_Union[_common_pb2.Consistency, str]] = ..., at_least_index: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., sql: _Optional[str] = ..., with_entries: _Optional[bool] = ..., verify: _Optional[bool] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("status", "records", "record_count", "next_offset", "min_offset", "max_offset", "applied_index", "node_id", "entry_first_records", "entry_indexes", "entry_terms", "newest_move")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIRST_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_INDEXES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TERMS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_MOVE_FIELD_NUMBER: _ClassVar[int]
    status: PullStatus
    records: bytes
    record_count: int
    next_offset: int
    min_offset: int
    max_offset: int
    applied_index: int
    node_id: int
    entry_first_records: _containers.RepeatedScalarFieldContainer[int]
    entry_indexes: _containers.RepeatedScalarFieldContainer[int]
    entry_terms: _containers.RepeatedScalarFieldContainer[int]
    newest_move: int
    def __init__(self, status: _Optional[_Union[PullStatus, str]] = ..., records: _Optional[bytes] = ..., record_count: _Optional[int] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., applied_index: _Optional[int] = ..., node_id: _Optional[int] = ..., entry_first_records: _Optional[_Iterable[int]] = ..., entry_indexes: _Optional[_Iterable[int]] = ..., entry_terms: _Optional[_Iterable[int]] = ..., newest_move: _Optional[int] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "consistency", "tags", "max_size_bytes", "cluster_id", "group", "sql")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    consistency: _common_pb2.Consistency
    tags: _containers.RepeatedScalarFieldContainer[str]
    max_size_bytes: int
    cluster_id: str
    group: str
    sql: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., consistency: _Optional[_Union[_common_pb2.Consistency, str]] = ..., tags: _Optional[_Iterable[str]] = ..., max_size_bytes: _Optional[int] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., sql: _Optional[str] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("message_id", "consistency")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    consistency: _common_pb2.Consistency
    def __init__(self, message_id: _Optional[str] = ..., consistency: _Optional[_Union[_common_pb2.Consistency, str]] = ...) -> None: ...

class QueryByKeyRequest(_message.Message):
    __slots__ = ("topic", "key", "lo_unix_ms", "hi_unix_ms", "max_count", "consistency", "next_position")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LO_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    HI_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    lo_unix_ms: int
    hi_unix_ms: int
    max_count: int
    consistency: _common_pb2.Consistency
    next_position: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., lo_unix_ms: _Optional[int] = ..., hi_unix_ms: _Optional[int] = ..., max_count: _Optional[int] = ..., consistency: _Optional[_Union[_common_pb2.Consistency, str]] = ..., next_position: _Optional[int] = ...) -> None: ...

class RecordsResponse(_message.Message):
    __slots__ = ("records", "record_count", "next_position", "newest_move")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_MOVE_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    record_count: int
    next_position: int
    newest_move: int
    def __init__(self, records: _Optional[bytes] = ..., record_count: _Optional[int] = ..., next_position: _Optional[int] = ..., newest_move: _Optional[int] = ...) -> None: ...

class QueueOffsetsRequest(_message.Message):
    __slots__ = ("queues", "consistency", "at_least_index")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueId]
    consistency: _common_pb2.Consistency
    at_least_index: int
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueId, _Mapping]]] = ..., consistency: _Optional[_Union[_common_pb2.Consistency, str]] = ..., at_least_index: _Optional[int] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("topic", "queue_id", "min_offset", "max_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class QueueOffsetsResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class OffsetByTimeRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "unix_ms", "consistency")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    unix_ms: int
    consistency: _common_pb2.Consistency
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., unix_ms: _Optional[int] = ..., consistency: _Optional[_Union[_common_pb2.Consistency, str]] = ...) -> None: ...

class OffsetByTimeResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("topics", "cluster_id")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    cluster_id: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class NodeAddress(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "queue_count", "permission")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    permission: int
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class GroupRoute(_message.Message):
    __slots__ = ("group", "kind", "term", "leader_id", "nodes", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    kind: str
    term: int
    leader_id: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeAddress]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    def __init__(self, group: _Optional[str] = ..., kind: _Optional[str] = ..., term: _Optional[int] = ..., leader_id: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeAddress, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "term", "leader_id", "nodes", "topics", "batch_size_bytes_max", "body_size_bytes_max", "group", "groups", "framed_address", "remoting_addresses", "no_room")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    FRAMED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REMOTING_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NO_ROOM_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    term: int
    leader_id: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeAddress]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    batch_size_bytes_max: int
    body_size_bytes_max: int
    group: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupRoute]
    framed_address: str
    remoting_addresses: _containers.RepeatedScalarFieldContainer[str]
    no_room: str
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., term: _Optional[int] = ..., leader_id: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeAddress, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ..., batch_size_bytes_max: _Optional[int] = ..., body_size_bytes_max: _Optional[int] = ..., group: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupRoute, _Mapping]]] = ..., framed_address: _Optional[str] = ..., remoting_addresses: _Optional[_Iterable[str]] = ..., no_room: _Optional[str] = ...) -> None: ...
