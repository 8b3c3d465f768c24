from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_OUTCOME_UNSPECIFIED: _ClassVar[TransactionOutcome]
    TRANSACTION_OUTCOME_COMMITTED: _ClassVar[TransactionOutcome]
    TRANSACTION_OUTCOME_ROLLED_BACK: _ClassVar[TransactionOutcome]
    TRANSACTION_OUTCOME_GIVEN_UP: _ClassVar[TransactionOutcome]
    TRANSACTION_OUTCOME_EXPIRED: _ClassVar[TransactionOutcome]
TRANSACTION_OUTCOME_UNSPECIFIED: TransactionOutcome
TRANSACTION_OUTCOME_COMMITTED: TransactionOutcome
TRANSACTION_OUTCOME_ROLLED_BACK: TransactionOutcome
TRANSACTION_OUTCOME_GIVEN_UP: TransactionOutcome
TRANSACTION_OUTCOME_EXPIRED: TransactionOutcome

class HalfMessages(_message.Message):
    __slots__ = ("producer_group", "check_after_ms")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    check_after_ms: int
    def __init__(self, producer_group: _Optional[str] = ..., check_after_ms: _Optional[int] = ...) -> None: ...

class ConsumedOffsets(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[ConsumedOffset]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[ConsumedOffset, _Mapping]]] = ...) -> None: ...

class ConsumedOffset(_message.Message):
    __slots__ = ("topic", "queue_id", "expected", "offset", "move")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    expected: int
    offset: int
    move: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., expected: _Optional[int] = ..., offset: _Optional[int] = ..., move: _Optional[int] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transaction_id", "producer_group", "outcome", "cluster_id", "producer_name", "incarnation")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    producer_group: str
    outcome: TransactionOutcome
    cluster_id: str
    producer_name: str
    incarnation: int
    def __init__(self, transaction_id: _Optional[int] = ..., producer_group: _Optional[str] = ..., outcome: _Optional[_Union[TransactionOutcome, str]] = ..., cluster_id: _Optional[str] = ..., producer_name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("outcome", "was_ended")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    outcome: TransactionOutcome
    was_ended: bool
    def __init__(self, outcome: _Optional[_Union[TransactionOutcome, str]] = ..., was_ended: _Optional[bool] = ...) -> None: ...

class CheckTransactionsRequest(_message.Message):
    __slots__ = ("producer_group", "client_id", "cluster_id")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    client_id: str
    cluster_id: str
    def __init__(self, producer_group: _Optional[str] = ..., client_id: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("transaction_id", "check_count", "records", "record_count")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CHECK_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    check_count: int
    records: bytes
    record_count: int
    def __init__(self, transaction_id: _Optional[int] = ..., check_count: _Optional[int] = ..., records: _Optional[bytes] = ..., record_count: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("producer_group", "max_count", "after_id")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    max_count: int
    after_id: int
    def __init__(self, producer_group: _Optional[str] = ..., max_count: _Optional[int] = ..., after_id: _Optional[int] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ("transaction_id", "producer_group", "begun_unix_ms", "record_count", "size_bytes", "check_count", "next_check_unix_ms", "is_orphaned")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    BEGUN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECK_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    IS_ORPHANED_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    producer_group: str
    begun_unix_ms: int
    record_count: int
    size_bytes: int
    check_count: int
    next_check_unix_ms: int
    is_orphaned: bool
    def __init__(self, transaction_id: _Optional[int] = ..., producer_group: _Optional[str] = ..., begun_unix_ms: _Optional[int] = ..., record_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., check_count: _Optional[int] = ..., next_check_unix_ms: _Optional[int] = ..., is_orphaned: _Optional[bool] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "open_count")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    open_count: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ..., open_count: _Optional[int] = ...) -> None: ...

class DescribeTransactionRequest(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    def __init__(self, transaction_id: _Optional[int] = ...) -> None: ...

class DescribeTransactionResponse(_message.Message):
    __slots__ = ("info", "outcome", "records", "record_count")
    INFO_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    info: TransactionInfo
    outcome: TransactionOutcome
    records: bytes
    record_count: int
    def __init__(self, info: _Optional[_Union[TransactionInfo, _Mapping]] = ..., outcome: _Optional[_Union[TransactionOutcome, str]] = ..., records: _Optional[bytes] = ..., record_count: _Optional[int] = ...) -> None: ...

class CommitConsumedRequest(_message.Message):
    __slots__ = ("consumed", "cluster_id")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedOffsets
    cluster_id: str
    def __init__(self, consumed: _Optional[_Union[ConsumedOffsets, _Mapping]] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class CommitConsumedResponse(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...
