from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("put_topic", "delete_topic", "commit_offsets", "delete_group", "producer_batch", "put_member")
    class PutTopic(_message.Message):
        __slots__ = ("topic", "queue_count", "permission", "must_be_new")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
        PERMISSION_FIELD_NUMBER: _ClassVar[int]
        MUST_BE_NEW_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_count: int
        permission: int
        must_be_new: bool
        def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., must_be_new: _Optional[bool] = ...) -> None: ...
    class DeleteTopic(_message.Message):
        __slots__ = ("topic",)
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        topic: str
        def __init__(self, topic: _Optional[str] = ...) -> None: ...
    class CommitOffsets(_message.Message):
        __slots__ = ("group", "offsets")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        group: str
        offsets: _containers.RepeatedCompositeFieldContainer[Command.Offset]
        def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[Command.Offset, _Mapping]]] = ...) -> None: ...
    class Offset(_message.Message):
        __slots__ = ("topic", "queue_id", "offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        offset: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    class DeleteGroup(_message.Message):
        __slots__ = ("group",)
        GROUP_FIELD_NUMBER: _ClassVar[int]
        group: str
        def __init__(self, group: _Optional[str] = ...) -> None: ...
    class ProducerBatch(_message.Message):
        __slots__ = ("producer_id", "sequence", "record_count", "size_bytes")
        PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        producer_id: int
        sequence: int
        record_count: int
        size_bytes: int
        def __init__(self, producer_id: _Optional[int] = ..., sequence: _Optional[int] = ..., record_count: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...
    class PutMember(_message.Message):
        __slots__ = ("node_id", "address", "peer_address")
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
        node_id: int
        address: str
        peer_address: str
        def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ...) -> None: ...
    PUT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELETE_GROUP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_BATCH_FIELD_NUMBER: _ClassVar[int]
    PUT_MEMBER_FIELD_NUMBER: _ClassVar[int]
    put_topic: Command.PutTopic
    delete_topic: Command.DeleteTopic
    commit_offsets: Command.CommitOffsets
    delete_group: Command.DeleteGroup
    producer_batch: Command.ProducerBatch
    put_member: Command.PutMember
    def __init__(self, put_topic: _Optional[_Union[Command.PutTopic, _Mapping]] = ..., delete_topic: _Optional[_Union[Command.DeleteTopic, _Mapping]] = ..., commit_offsets: _Optional[_Union[Command.CommitOffsets, _Mapping]] = ..., delete_group: _Optional[_Union[Command.DeleteGroup, _Mapping]] = ..., producer_batch: _Optional[_Union[Command.ProducerBatch, _Mapping]] = ..., put_member: _Optional[_Union[Command.PutMember, _Mapping]] = ...) -> None: ...
