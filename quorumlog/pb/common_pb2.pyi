from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_QUORUM_MEMORY: _ClassVar[Durability]
    DURABILITY_QUORUM_DISK: _ClassVar[Durability]
    DURABILITY_LEADER_DISK: _ClassVar[Durability]
    DURABILITY_COPIES_DISK: _ClassVar[Durability]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_NOT_APPLIED: _ClassVar[Outcome]
    OUTCOME_APPLIED: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_UNSPECIFIED: _ClassVar[Consistency]
    CONSISTENCY_LEADER: _ClassVar[Consistency]
    CONSISTENCY_LINEARIZABLE: _ClassVar[Consistency]
    CONSISTENCY_LOCAL: _ClassVar[Consistency]
DURABILITY_UNSPECIFIED: Durability
DURABILITY_QUORUM_MEMORY: Durability
DURABILITY_QUORUM_DISK: Durability
DURABILITY_LEADER_DISK: Durability
DURABILITY_COPIES_DISK: Durability
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_NOT_APPLIED: Outcome
OUTCOME_APPLIED: Outcome
OUTCOME_UNKNOWN: Outcome
CONSISTENCY_UNSPECIFIED: Consistency
CONSISTENCY_LEADER: Consistency
CONSISTENCY_LINEARIZABLE: Consistency
CONSISTENCY_LOCAL: Consistency

class Error(_message.Message):
    __slots__ = ("code", "message", "retryable", "outcome", "leader_id", "leader_address", "retry_after_ms", "faulty_records")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    FAULTY_RECORDS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    outcome: Outcome
    leader_id: int
    leader_address: str
    retry_after_ms: int
    faulty_records: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., leader_id: _Optional[int] = ..., leader_address: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., faulty_records: _Optional[_Iterable[int]] = ...) -> None: ...

class QueueId(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class QueueRange(_message.Message):
    __slots__ = ("topic", "queue_id", "first_offset", "count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    first_offset: int
    count: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Delays(_message.Message):
    __slots__ = ("delay_ms",)
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    delay_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, delay_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicNames(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("retry_count_max", "retry_delays", "is_consume_enabled", "is_broadcast_enabled", "is_orderly", "forbidden_topics")
    RETRY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAYS_FIELD_NUMBER: _ClassVar[int]
    IS_CONSUME_ENABLED_FIELD_NUMBER: _ClassVar[int]
    IS_BROADCAST_ENABLED_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERLY_FIELD_NUMBER: _ClassVar[int]
    FORBIDDEN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    retry_count_max: int
    retry_delays: Delays
    is_consume_enabled: bool
    is_broadcast_enabled: bool
    is_orderly: bool
    forbidden_topics: TopicNames
    def __init__(self, retry_count_max: _Optional[int] = ..., retry_delays: _Optional[_Union[Delays, _Mapping]] = ..., is_consume_enabled: _Optional[bool] = ..., is_broadcast_enabled: _Optional[bool] = ..., is_orderly: _Optional[bool] = ..., forbidden_topics: _Optional[_Union[TopicNames, _Mapping]] = ...) -> None: ...
