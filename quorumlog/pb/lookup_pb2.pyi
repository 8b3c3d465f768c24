from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TraceMessageRequest(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...

class TraceMessageResponse(_message.Message):
    __slots__ = ("events", "is_complete", "record")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    is_complete: bool
    record: bytes
    def __init__(self, events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., is_complete: _Optional[bool] = ..., record: _Optional[bytes] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("kind", "unix_ms", "topic", "queue_id", "offset", "message_id", "group", "reconsume_times", "producer_group")
    KIND_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    unix_ms: int
    topic: str
    queue_id: int
    offset: int
    message_id: str
    group: str
    reconsume_times: int
    producer_group: str
    def __init__(self, kind: _Optional[str] = ..., unix_ms: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., message_id: _Optional[str] = ..., group: _Optional[str] = ..., reconsume_times: _Optional[int] = ..., producer_group: _Optional[str] = ...) -> None: ...

class TopicSizesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class SizeBucket(_message.Message):
    __slots__ = ("below_size_bytes", "record_count")
    BELOW_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    below_size_bytes: int
    record_count: int
    def __init__(self, below_size_bytes: _Optional[int] = ..., record_count: _Optional[int] = ...) -> None: ...

class TopicSizesResponse(_message.Message):
    __slots__ = ("record_count", "size_bytes", "buckets", "since_unix_ms", "node_id")
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    record_count: int
    size_bytes: int
    buckets: _containers.RepeatedCompositeFieldContainer[SizeBucket]
    since_unix_ms: int
    node_id: int
    def __init__(self, record_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., buckets: _Optional[_Iterable[_Union[SizeBucket, _Mapping]]] = ..., since_unix_ms: _Optional[int] = ..., node_id: _Optional[int] = ...) -> None: ...
