from quorumlog.pb import common_pb2 as _common_pb2
from quorumlog.pb import consumer_pb2 as _consumer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetryMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "delay_ms", "is_dead")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    IS_DEAD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    delay_ms: int
    is_dead: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., delay_ms: _Optional[int] = ..., is_dead: _Optional[bool] = ...) -> None: ...

class RetryLaterRequest(_message.Message):
    __slots__ = ("group", "messages", "offsets", "attempt_count_max", "producer_id", "sequence", "cluster_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    messages: _containers.RepeatedCompositeFieldContainer[RetryMessage]
    offsets: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.GroupOffset]
    attempt_count_max: int
    producer_id: int
    sequence: int
    cluster_id: str
    def __init__(self, group: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[RetryMessage, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[_consumer_pb2.GroupOffset, _Mapping]]] = ..., attempt_count_max: _Optional[int] = ..., producer_id: _Optional[int] = ..., sequence: _Optional[int] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class RetryLaterResponse(_message.Message):
    __slots__ = ("index", "retried_count", "dead_count", "is_duplicate")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RETRIED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    index: int
    retried_count: int
    dead_count: int
    is_duplicate: bool
    def __init__(self, index: _Optional[int] = ..., retried_count: _Optional[int] = ..., dead_count: _Optional[int] = ..., is_duplicate: _Optional[bool] = ...) -> None: ...

class ResendDeadLettersRequest(_message.Message):
    __slots__ = ("group", "offsets", "cluster_id", "in_pieces")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    IN_PIECES_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    cluster_id: str
    in_pieces: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., cluster_id: _Optional[str] = ..., in_pieces: _Optional[bool] = ...) -> None: ...

class KeptDeadLetter(_message.Message):
    __slots__ = ("offset", "code", "reason")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    offset: int
    code: str
    reason: str
    def __init__(self, offset: _Optional[int] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ResendDeadLettersResponse(_message.Message):
    __slots__ = ("index", "resent", "already_resent", "kept")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    ALREADY_RESENT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    index: int
    resent: _containers.RepeatedScalarFieldContainer[int]
    already_resent: _containers.RepeatedScalarFieldContainer[int]
    kept: _containers.RepeatedCompositeFieldContainer[KeptDeadLetter]
    def __init__(self, index: _Optional[int] = ..., resent: _Optional[_Iterable[int]] = ..., already_resent: _Optional[_Iterable[int]] = ..., kept: _Optional[_Iterable[_Union[KeptDeadLetter, _Mapping]]] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group", "offset", "max_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    offset: int
    max_count: int
    def __init__(self, group: _Optional[str] = ..., offset: _Optional[int] = ..., max_count: _Optional[int] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("records", "record_count", "resent", "next_offset", "min_offset", "max_offset")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    record_count: int
    resent: _containers.RepeatedScalarFieldContainer[int]
    next_offset: int
    min_offset: int
    max_offset: int
    def __init__(self, records: _Optional[bytes] = ..., record_count: _Optional[int] = ..., resent: _Optional[_Iterable[int]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class GetGroupSettingsRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class SetGroupSettingsRequest(_message.Message):
    __slots__ = ("group", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    settings: _common_pb2.GroupSettings
    def __init__(self, group: _Optional[str] = ..., settings: _Optional[_Union[_common_pb2.GroupSettings, _Mapping]] = ...) -> None: ...

class ConfigFile(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ExportConfigFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportConfigFilesResponse(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[ConfigFile]
    def __init__(self, files: _Optional[_Iterable[_Union[ConfigFile, _Mapping]]] = ...) -> None: ...

class ImportConfigFilesRequest(_message.Message):
    __slots__ = ("files", "is_dry_run", "cluster_id")
    FILES_FIELD_NUMBER: _ClassVar[int]
    IS_DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[ConfigFile]
    is_dry_run: bool
    cluster_id: str
    def __init__(self, files: _Optional[_Iterable[_Union[ConfigFile, _Mapping]]] = ..., is_dry_run: _Optional[bool] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class ImportConfigFilesResponse(_message.Message):
    __slots__ = ("refusals", "skipped", "topic_count", "group_count", "offset_count", "warnings")
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_COUNT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    refusals: _containers.RepeatedScalarFieldContainer[str]
    skipped: _containers.RepeatedScalarFieldContainer[str]
    topic_count: int
    group_count: int
    offset_count: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, refusals: _Optional[_Iterable[str]] = ..., skipped: _Optional[_Iterable[str]] = ..., topic_count: _Optional[int] = ..., group_count: _Optional[int] = ..., offset_count: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...
