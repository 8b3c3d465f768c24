from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CancelDelayedRequest(_message.Message):
    __slots__ = ("message_id", "cluster_id")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    cluster_id: str
    def __init__(self, message_id: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class CancelDelayedResponse(_message.Message):
    __slots__ = ("topic", "queue_id", "due_unix_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    due_unix_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., due_unix_ms: _Optional[int] = ...) -> None: ...

class DelayStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DelayQueue(_message.Message):
    __slots__ = ("level", "delay_ms", "held_count", "floor_offset", "end_offset")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_COUNT_FIELD_NUMBER: _ClassVar[int]
    FLOOR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    level: int
    delay_ms: int
    held_count: int
    floor_offset: int
    end_offset: int
    def __init__(self, level: _Optional[int] = ..., delay_ms: _Optional[int] = ..., held_count: _Optional[int] = ..., floor_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DelayStatusResponse(_message.Message):
    __slots__ = ("queues", "held_count", "held_count_max", "horizon_ms", "next_due_unix_ms", "now_unix_ms", "undeliverable_count", "is_loading")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    HELD_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    HORIZON_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    UNDELIVERABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_LOADING_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[DelayQueue]
    held_count: int
    held_count_max: int
    horizon_ms: int
    next_due_unix_ms: int
    now_unix_ms: int
    undeliverable_count: int
    is_loading: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[DelayQueue, _Mapping]]] = ..., held_count: _Optional[int] = ..., held_count_max: _Optional[int] = ..., horizon_ms: _Optional[int] = ..., next_due_unix_ms: _Optional[int] = ..., now_unix_ms: _Optional[int] = ..., undeliverable_count: _Optional[int] = ..., is_loading: _Optional[bool] = ...) -> None: ...
