from quorumlog.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_KIND_SHARING: _ClassVar[MemberKind]
    MEMBER_KIND_BROADCASTING: _ClassVar[MemberKind]
    MEMBER_KIND_POPPING: _ClassVar[MemberKind]
MEMBER_KIND_SHARING: MemberKind
MEMBER_KIND_BROADCASTING: MemberKind
MEMBER_KIND_POPPING: MemberKind

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "client_id", "topics", "is_broadcasting", "cluster_id", "queues", "strategy", "tags", "sql", "is_new", "is_popping", "wanted", "generation", "followed_move", "instance")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    IS_BROADCASTING_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    IS_POPPING_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_MOVE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    is_broadcasting: bool
    cluster_id: str
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueId]
    strategy: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    sql: str
    is_new: bool
    is_popping: bool
    wanted: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueId]
    generation: int
    followed_move: int
    instance: int
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., is_broadcasting: _Optional[bool] = ..., cluster_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueId, _Mapping]]] = ..., strategy: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., sql: _Optional[str] = ..., is_new: _Optional[bool] = ..., is_popping: _Optional[bool] = ..., wanted: _Optional[_Iterable[_Union[_common_pb2.QueueId, _Mapping]]] = ..., generation: _Optional[int] = ..., followed_move: _Optional[int] = ..., instance: _Optional[int] = ...) -> None: ...

class TopicReaders(_message.Message):
    __slots__ = ("topic", "members")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., members: _Optional[_Iterable[int]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("client_ids", "generation", "heartbeat_ms", "session_ms", "readers", "is_divided", "queues", "warnings", "moved", "withheld")
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    IS_DIVIDED_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    heartbeat_ms: int
    session_ms: int
    readers: _containers.RepeatedCompositeFieldContainer[TopicReaders]
    is_divided: bool
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueId]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    moved: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    withheld: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueId]
    def __init__(self, client_ids: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., session_ms: _Optional[int] = ..., readers: _Optional[_Iterable[_Union[TopicReaders, _Mapping]]] = ..., is_divided: _Optional[bool] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueId, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., moved: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ..., withheld: _Optional[_Iterable[_Union[_common_pb2.QueueId, _Mapping]]] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group", "client_id", "instance")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    instance: int
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., instance: _Optional[int] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportedMember(_message.Message):
    __slots__ = ("client_id", "kind", "reading", "is_refused", "is_twice")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    IS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    IS_TWICE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    kind: MemberKind
    reading: int
    is_refused: bool
    is_twice: bool
    def __init__(self, client_id: _Optional[str] = ..., kind: _Optional[_Union[MemberKind, str]] = ..., reading: _Optional[int] = ..., is_refused: _Optional[bool] = ..., is_twice: _Optional[bool] = ...) -> None: ...

class ReportedSubscription(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: str
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class ReportedReading(_message.Message):
    __slots__ = ("subscriptions",)
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[ReportedSubscription]
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[ReportedSubscription, _Mapping]]] = ...) -> None: ...

class ReportedGroup(_message.Message):
    __slots__ = ("group", "members", "readings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    members: _containers.RepeatedCompositeFieldContainer[ReportedMember]
    readings: _containers.RepeatedCompositeFieldContainer[ReportedReading]
    def __init__(self, group: _Optional[str] = ..., members: _Optional[_Iterable[_Union[ReportedMember, _Mapping]]] = ..., readings: _Optional[_Iterable[_Union[ReportedReading, _Mapping]]] = ...) -> None: ...

class ReportMembersRequest(_message.Message):
    __slots__ = ("reporter", "is_whole", "groups", "generation")
    REPORTER_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    reporter: int
    is_whole: bool
    groups: _containers.RepeatedCompositeFieldContainer[ReportedGroup]
    generation: int
    def __init__(self, reporter: _Optional[int] = ..., is_whole: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[ReportedGroup, _Mapping]]] = ..., generation: _Optional[int] = ...) -> None: ...

class ReportMembersResponse(_message.Message):
    __slots__ = ("wants_whole", "generation", "changed_groups", "refused")
    WANTS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    wants_whole: bool
    generation: int
    changed_groups: _containers.RepeatedScalarFieldContainer[str]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedMembers]
    def __init__(self, wants_whole: _Optional[bool] = ..., generation: _Optional[int] = ..., changed_groups: _Optional[_Iterable[str]] = ..., refused: _Optional[_Iterable[_Union[RefusedMembers, _Mapping]]] = ...) -> None: ...

class RefusedMembers(_message.Message):
    __slots__ = ("group", "client_ids")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., client_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupOffset(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "newest_known", "move")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEWEST_KNOWN_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    newest_known: int
    move: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., newest_known: _Optional[int] = ..., move: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets", "cluster_id", "must_be_empty")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    MUST_BE_EMPTY_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    cluster_id: str
    must_be_empty: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., must_be_empty: _Optional[bool] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("index", "moved")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    index: int
    moved: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    def __init__(self, index: _Optional[int] = ..., moved: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("group", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueId]
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueId, _Mapping]]] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ...) -> None: ...
