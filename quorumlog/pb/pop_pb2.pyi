from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiveRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "max_count", "invisible_ms", "wait_ms", "tags", "is_fifo", "attempt_id", "start", "cluster_id", "sql", "is_one_of_each", "client_id", "instance", "is_new")
    class Start(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        START_FIRST: _ClassVar[ReceiveRequest.Start]
        START_END: _ClassVar[ReceiveRequest.Start]
    START_FIRST: ReceiveRequest.Start
    START_END: ReceiveRequest.Start
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    IS_FIFO_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    IS_ONE_OF_EACH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    max_count: int
    invisible_ms: int
    wait_ms: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    is_fifo: bool
    attempt_id: str
    start: ReceiveRequest.Start
    cluster_id: str
    sql: str
    is_one_of_each: bool
    client_id: str
    instance: int
    is_new: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., max_count: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., is_fifo: _Optional[bool] = ..., attempt_id: _Optional[str] = ..., start: _Optional[_Union[ReceiveRequest.Start, str]] = ..., cluster_id: _Optional[str] = ..., sql: _Optional[str] = ..., is_one_of_each: _Optional[bool] = ..., client_id: _Optional[str] = ..., instance: _Optional[int] = ..., is_new: _Optional[bool] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("records", "deliveries", "visible_unix_ms", "now_unix_ms", "full_queue_count", "warnings")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FULL_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    visible_unix_ms: int
    now_unix_ms: int
    full_queue_count: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, records: _Optional[bytes] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., visible_unix_ms: _Optional[int] = ..., now_unix_ms: _Optional[int] = ..., full_queue_count: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("handle", "delivery_count")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    handle: str
    delivery_count: int
    def __init__(self, handle: _Optional[str] = ..., delivery_count: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("group", "topic", "handles", "cluster_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    handles: _containers.RepeatedScalarFieldContainer[str]
    cluster_id: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., handles: _Optional[_Iterable[str]] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("stale_handles",)
    STALE_HANDLES_FIELD_NUMBER: _ClassVar[int]
    stale_handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stale_handles: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeInvisibleRequest(_message.Message):
    __slots__ = ("group", "topic", "handle", "invisible_ms", "cluster_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    handle: str
    invisible_ms: int
    cluster_id: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., handle: _Optional[str] = ..., invisible_ms: _Optional[int] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class ChangeInvisibleResponse(_message.Message):
    __slots__ = ("handle", "visible_unix_ms")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    handle: str
    visible_unix_ms: int
    def __init__(self, handle: _Optional[str] = ..., visible_unix_ms: _Optional[int] = ...) -> None: ...

class GiveUpRequest(_message.Message):
    __slots__ = ("group", "topic", "handle", "cluster_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    handle: str
    cluster_id: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., handle: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class GiveUpResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribePopRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class PopQueue(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "next_offset", "in_flight_count", "waiting_count", "delivery_count_max", "first_visible_unix_ms", "is_full", "held_reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    FIRST_VISIBLE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    HELD_REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    next_offset: int
    in_flight_count: int
    waiting_count: int
    delivery_count_max: int
    first_visible_unix_ms: int
    is_full: bool
    held_reason: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., in_flight_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., delivery_count_max: _Optional[int] = ..., first_visible_unix_ms: _Optional[int] = ..., is_full: _Optional[bool] = ..., held_reason: _Optional[str] = ...) -> None: ...

class DescribePopResponse(_message.Message):
    __slots__ = ("queues", "now_unix_ms", "parked_count")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PARKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[PopQueue]
    now_unix_ms: int
    parked_count: int
    def __init__(self, queues: _Optional[_Iterable[_Union[PopQueue, _Mapping]]] = ..., now_unix_ms: _Optional[int] = ..., parked_count: _Optional[int] = ...) -> None: ...

class PopTake(_message.Message):
    __slots__ = ("group", "topic", "generation", "visible_unix_ms", "attempt_id", "queues")
    class Queue(_message.Message):
        __slots__ = ("queue_id", "expected_offset", "next_offset", "offsets", "message_groups", "waiting_offsets", "waiting_message_groups", "again_offsets", "again_generations")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        EXPECTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_GROUPS_FIELD_NUMBER: _ClassVar[int]
        WAITING_OFFSETS_FIELD_NUMBER: _ClassVar[int]
        WAITING_MESSAGE_GROUPS_FIELD_NUMBER: _ClassVar[int]
        AGAIN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
        AGAIN_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        expected_offset: int
        next_offset: int
        offsets: _containers.RepeatedScalarFieldContainer[int]
        message_groups: _containers.RepeatedScalarFieldContainer[int]
        waiting_offsets: _containers.RepeatedScalarFieldContainer[int]
        waiting_message_groups: _containers.RepeatedScalarFieldContainer[int]
        again_offsets: _containers.RepeatedScalarFieldContainer[int]
        again_generations: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, queue_id: _Optional[int] = ..., expected_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., message_groups: _Optional[_Iterable[int]] = ..., waiting_offsets: _Optional[_Iterable[int]] = ..., waiting_message_groups: _Optional[_Iterable[int]] = ..., again_offsets: _Optional[_Iterable[int]] = ..., again_generations: _Optional[_Iterable[int]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    generation: int
    visible_unix_ms: int
    attempt_id: str
    queues: _containers.RepeatedCompositeFieldContainer[PopTake.Queue]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., generation: _Optional[int] = ..., visible_unix_ms: _Optional[int] = ..., attempt_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[PopTake.Queue, _Mapping]]] = ...) -> None: ...

class PopSettle(_message.Message):
    __slots__ = ("group", "topic", "queue_ids", "offsets", "generations")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ...) -> None: ...

class PopHide(_message.Message):
    __slots__ = ("group", "topic", "queue_ids", "offsets", "generations", "visible_unix_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    visible_unix_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., visible_unix_ms: _Optional[int] = ...) -> None: ...
