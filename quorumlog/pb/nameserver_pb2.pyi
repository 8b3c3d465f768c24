from quorumlog.pb import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NameServerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NameServerStatusResponse(_message.Message):
    __slots__ = ("state", "address", "leader", "members", "term", "commit_index", "applied_index", "journal_size_bytes", "directory_size_bytes", "directory_size_bytes_max", "refused_connections", "failure", "is_encrypted", "node_id", "broker_group", "problem", "refused_reports", "broker_group_problems")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    IS_ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REPORTS_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    state: str
    address: str
    leader: str
    members: _containers.RepeatedScalarFieldContainer[str]
    term: int
    commit_index: int
    applied_index: int
    journal_size_bytes: int
    directory_size_bytes: int
    directory_size_bytes_max: int
    refused_connections: int
    failure: str
    is_encrypted: bool
    node_id: int
    broker_group: str
    problem: str
    refused_reports: int
    broker_group_problems: _containers.RepeatedCompositeFieldContainer[BrokerGroupProblem]
    def __init__(self, state: _Optional[str] = ..., address: _Optional[str] = ..., leader: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., journal_size_bytes: _Optional[int] = ..., directory_size_bytes: _Optional[int] = ..., directory_size_bytes_max: _Optional[int] = ..., refused_connections: _Optional[int] = ..., failure: _Optional[str] = ..., is_encrypted: _Optional[bool] = ..., node_id: _Optional[int] = ..., broker_group: _Optional[str] = ..., problem: _Optional[str] = ..., refused_reports: _Optional[int] = ..., broker_group_problems: _Optional[_Iterable[_Union[BrokerGroupProblem, _Mapping]]] = ...) -> None: ...

class BrokerGroupProblem(_message.Message):
    __slots__ = ("broker_group", "problem")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    problem: str
    def __init__(self, broker_group: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class TopicRouteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class BrokerInfo(_message.Message):
    __slots__ = ("broker_id", "address", "ha_address", "role", "epoch", "silent_ms")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    ha_address: str
    role: str
    epoch: int
    silent_ms: int
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., ha_address: _Optional[str] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., silent_ms: _Optional[int] = ...) -> None: ...

class TopicShare(_message.Message):
    __slots__ = ("broker_group", "kind", "cluster", "master_id", "epoch", "read_queue_count", "write_queue_count", "permission", "brokers", "in_sync")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    kind: str
    cluster: str
    master_id: int
    epoch: int
    read_queue_count: int
    write_queue_count: int
    permission: int
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerInfo]
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broker_group: _Optional[str] = ..., kind: _Optional[str] = ..., cluster: _Optional[str] = ..., master_id: _Optional[int] = ..., epoch: _Optional[int] = ..., read_queue_count: _Optional[int] = ..., write_queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[BrokerInfo, _Mapping]]] = ..., in_sync: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicRouteResponse(_message.Message):
    __slots__ = ("shares", "rocketmq_json")
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ROCKETMQ_JSON_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[TopicShare]
    rocketmq_json: str
    def __init__(self, shares: _Optional[_Iterable[_Union[TopicShare, _Mapping]]] = ..., rocketmq_json: _Optional[str] = ...) -> None: ...

class GetValuesRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class GetValuesResponse(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PutValueRequest(_message.Message):
    __slots__ = ("namespace", "key", "value", "expected")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    value: str
    expected: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[str] = ..., expected: _Optional[str] = ...) -> None: ...

class PutValueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteValueRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class DeleteValueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("group", "command", "known_topics", "challenge", "nonce", "proof")
    class KnownTopicsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    KNOWN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    group: str
    command: bytes
    known_topics: _containers.ScalarMap[str, str]
    challenge: bytes
    nonce: bytes
    proof: bytes
    def __init__(self, group: _Optional[str] = ..., command: _Optional[bytes] = ..., known_topics: _Optional[_Mapping[str, str]] = ..., challenge: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("result", "leader", "groups", "topics_versions", "own_group", "challenge", "own_problem")
    class TopicsVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OWN_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    OWN_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    result: bytes
    leader: str
    groups: _containers.RepeatedCompositeFieldContainer[_log_pb2.GroupRoute]
    topics_versions: _containers.ScalarMap[str, str]
    own_group: bytes
    challenge: bytes
    own_problem: str
    def __init__(self, result: _Optional[bytes] = ..., leader: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[_log_pb2.GroupRoute, _Mapping]]] = ..., topics_versions: _Optional[_Mapping[str, str]] = ..., own_group: _Optional[bytes] = ..., challenge: _Optional[bytes] = ..., own_problem: _Optional[str] = ...) -> None: ...
