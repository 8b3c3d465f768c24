from quorumlog.pb import common_pb2 as _common_pb2
from quorumlog.pb import pop_pb2 as _pop_pb2
from quorumlog.pb import transaction_pb2 as _transaction_pb2
from quorumlog.pb import users_pb2 as _users_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("put_topic", "delete_topic", "commit_offsets", "delete_group", "producer_batch", "put_member", "recreate_topic", "take_delayed", "cancel_delayed", "put_group", "mark_resent", "begin_transaction", "check_transactions", "end_transaction", "pop_take", "pop_settle", "pop_hide", "claim_producer", "put_key_value", "raise_level", "put_user", "delete_user", "put_role", "delete_role", "set_topic_rates", "digest_point", "state_digest", "has_no_certificates")
    class PutTopic(_message.Message):
        __slots__ = ("topic", "queue_count", "permission", "must_be_new", "message_type")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
        PERMISSION_FIELD_NUMBER: _ClassVar[int]
        MUST_BE_NEW_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_count: int
        permission: int
        must_be_new: bool
        message_type: str
        def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., must_be_new: _Optional[bool] = ..., message_type: _Optional[str] = ...) -> None: ...
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
    class DeleteGroup(_message.Message):
        __slots__ = ("group",)
        GROUP_FIELD_NUMBER: _ClassVar[int]
        group: str
        def __init__(self, group: _Optional[str] = ...) -> None: ...
    class ProducerBatch(_message.Message):
        __slots__ = ("producer_id", "sequence", "record_count", "size_bytes", "asked")
        PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        ASKED_FIELD_NUMBER: _ClassVar[int]
        producer_id: int
        sequence: int
        record_count: int
        size_bytes: int
        asked: bytes
        def __init__(self, producer_id: _Optional[int] = ..., sequence: _Optional[int] = ..., record_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., asked: _Optional[bytes] = ...) -> None: ...
    class PutKeyValue(_message.Message):
        __slots__ = ("namespace", "key", "value")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        key: str
        value: str
        def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RaiseLevel(_message.Message):
        __slots__ = ("level",)
        LEVEL_FIELD_NUMBER: _ClassVar[int]
        level: int
        def __init__(self, level: _Optional[int] = ...) -> None: ...
    class PutUser(_message.Message):
        __slots__ = ("user", "must_be_first", "reset_id")
        USER_FIELD_NUMBER: _ClassVar[int]
        MUST_BE_FIRST_FIELD_NUMBER: _ClassVar[int]
        RESET_ID_FIELD_NUMBER: _ClassVar[int]
        user: _users_pb2.User
        must_be_first: bool
        reset_id: bytes
        def __init__(self, user: _Optional[_Union[_users_pb2.User, _Mapping]] = ..., must_be_first: _Optional[bool] = ..., reset_id: _Optional[bytes] = ...) -> None: ...
    class DeleteUser(_message.Message):
        __slots__ = ("name",)
        NAME_FIELD_NUMBER: _ClassVar[int]
        name: str
        def __init__(self, name: _Optional[str] = ...) -> None: ...
    class PutRole(_message.Message):
        __slots__ = ("name", "rules")
        NAME_FIELD_NUMBER: _ClassVar[int]
        RULES_FIELD_NUMBER: _ClassVar[int]
        name: str
        rules: _containers.RepeatedCompositeFieldContainer[_users_pb2.Rule]
        def __init__(self, name: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[_users_pb2.Rule, _Mapping]]] = ...) -> None: ...
    class DeleteRole(_message.Message):
        __slots__ = ("name",)
        NAME_FIELD_NUMBER: _ClassVar[int]
        name: str
        def __init__(self, name: _Optional[str] = ...) -> None: ...
    class SetTopicRates(_message.Message):
        __slots__ = ("topic", "bytes_per_second", "messages_per_second")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        topic: str
        bytes_per_second: int
        messages_per_second: int
        def __init__(self, topic: _Optional[str] = ..., bytes_per_second: _Optional[int] = ..., messages_per_second: _Optional[int] = ...) -> None: ...
    class ClaimProducer(_message.Message):
        __slots__ = ("name", "number")
        NAME_FIELD_NUMBER: _ClassVar[int]
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        name: str
        number: int
        def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...
    class PutMember(_message.Message):
        __slots__ = ("node_id", "address", "peer_address")
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
        node_id: int
        address: str
        peer_address: str
        def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ...) -> None: ...
    class PutGroup(_message.Message):
        __slots__ = ("group", "settings")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        SETTINGS_FIELD_NUMBER: _ClassVar[int]
        group: str
        settings: _common_pb2.GroupSettings
        def __init__(self, group: _Optional[str] = ..., settings: _Optional[_Union[_common_pb2.GroupSettings, _Mapping]] = ...) -> None: ...
    class MarkResent(_message.Message):
        __slots__ = ("group", "offsets", "min_offset")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        group: str
        offsets: _containers.RepeatedScalarFieldContainer[int]
        min_offset: int
        def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., min_offset: _Optional[int] = ...) -> None: ...
    class BeginTransaction(_message.Message):
        __slots__ = ("producer_group", "size_bytes", "record_count", "begun_unix_ms", "check_unix_ms")
        PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
        BEGUN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
        CHECK_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
        producer_group: str
        size_bytes: int
        record_count: int
        begun_unix_ms: int
        check_unix_ms: int
        def __init__(self, producer_group: _Optional[str] = ..., size_bytes: _Optional[int] = ..., record_count: _Optional[int] = ..., begun_unix_ms: _Optional[int] = ..., check_unix_ms: _Optional[int] = ...) -> None: ...
    class CheckTransactions(_message.Message):
        __slots__ = ("positions", "next_unix_ms")
        POSITIONS_FIELD_NUMBER: _ClassVar[int]
        NEXT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
        positions: _containers.RepeatedScalarFieldContainer[int]
        next_unix_ms: int
        def __init__(self, positions: _Optional[_Iterable[int]] = ..., next_unix_ms: _Optional[int] = ...) -> None: ...
    class EndTransaction(_message.Message):
        __slots__ = ("position", "outcome")
        POSITION_FIELD_NUMBER: _ClassVar[int]
        OUTCOME_FIELD_NUMBER: _ClassVar[int]
        position: int
        outcome: _transaction_pb2.TransactionOutcome
        def __init__(self, position: _Optional[int] = ..., outcome: _Optional[_Union[_transaction_pb2.TransactionOutcome, str]] = ...) -> None: ...
    class TakeDelayed(_message.Message):
        __slots__ = ("queues", "undeliverable_count")
        QUEUES_FIELD_NUMBER: _ClassVar[int]
        UNDELIVERABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
        queues: _containers.RepeatedCompositeFieldContainer[Command.DelayedOffsets]
        undeliverable_count: int
        def __init__(self, queues: _Optional[_Iterable[_Union[Command.DelayedOffsets, _Mapping]]] = ..., undeliverable_count: _Optional[int] = ...) -> None: ...
    class DelayedOffsets(_message.Message):
        __slots__ = ("queue", "runs")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        RUNS_FIELD_NUMBER: _ClassVar[int]
        queue: int
        runs: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, queue: _Optional[int] = ..., runs: _Optional[_Iterable[int]] = ...) -> None: ...
    class CancelDelayed(_message.Message):
        __slots__ = ("queue", "offset")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        queue: int
        offset: int
        def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    PUT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELETE_GROUP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_BATCH_FIELD_NUMBER: _ClassVar[int]
    PUT_MEMBER_FIELD_NUMBER: _ClassVar[int]
    RECREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    TAKE_DELAYED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_DELAYED_FIELD_NUMBER: _ClassVar[int]
    PUT_GROUP_FIELD_NUMBER: _ClassVar[int]
    MARK_RESENT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    CHECK_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    END_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    POP_TAKE_FIELD_NUMBER: _ClassVar[int]
    POP_SETTLE_FIELD_NUMBER: _ClassVar[int]
    POP_HIDE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PUT_KEY_VALUE_FIELD_NUMBER: _ClassVar[int]
    RAISE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PUT_USER_FIELD_NUMBER: _ClassVar[int]
    DELETE_USER_FIELD_NUMBER: _ClassVar[int]
    PUT_ROLE_FIELD_NUMBER: _ClassVar[int]
    DELETE_ROLE_FIELD_NUMBER: _ClassVar[int]
    SET_TOPIC_RATES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_POINT_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HAS_NO_CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    put_topic: Command.PutTopic
    delete_topic: Command.DeleteTopic
    commit_offsets: Command.CommitOffsets
    delete_group: Command.DeleteGroup
    producer_batch: Command.ProducerBatch
    put_member: Command.PutMember
    recreate_topic: Command.PutTopic
    take_delayed: Command.TakeDelayed
    cancel_delayed: Command.CancelDelayed
    put_group: Command.PutGroup
    mark_resent: Command.MarkResent
    begin_transaction: Command.BeginTransaction
    check_transactions: Command.CheckTransactions
    end_transaction: Command.EndTransaction
    pop_take: _pop_pb2.PopTake
    pop_settle: _pop_pb2.PopSettle
    pop_hide: _pop_pb2.PopHide
    claim_producer: Command.ClaimProducer
    put_key_value: Command.PutKeyValue
    raise_level: Command.RaiseLevel
    put_user: Command.PutUser
    delete_user: Command.DeleteUser
    put_role: Command.PutRole
    delete_role: Command.DeleteRole
    set_topic_rates: Command.SetTopicRates
    digest_point: DigestPoint
    state_digest: StateDigest
    has_no_certificates: bool
    def __init__(self, put_topic: _Optional[_Union[Command.PutTopic, _Mapping]] = ..., delete_topic: _Optional[_Union[Command.DeleteTopic, _Mapping]] = ..., commit_offsets: _Optional[_Union[Command.CommitOffsets, _Mapping]] = ..., delete_group: _Optional[_Union[Command.DeleteGroup, _Mapping]] = ..., producer_batch: _Optional[_Union[Command.ProducerBatch, _Mapping]] = ..., put_member: _Optional[_Union[Command.PutMember, _Mapping]] = ..., recreate_topic: _Optional[_Union[Command.PutTopic, _Mapping]] = ..., take_delayed: _Optional[_Union[Command.TakeDelayed, _Mapping]] = ..., cancel_delayed: _Optional[_Union[Command.CancelDelayed, _Mapping]] = ..., put_group: _Optional[_Union[Command.PutGroup, _Mapping]] = ..., mark_resent: _Optional[_Union[Command.MarkResent, _Mapping]] = ..., begin_transaction: _Optional[_Union[Command.BeginTransaction, _Mapping]] = ..., check_transactions: _Optional[_Union[Command.CheckTransactions, _Mapping]] = ..., end_transaction: _Optional[_Union[Command.EndTransaction, _Mapping]] = ..., pop_take: _Optional[_Union[_pop_pb2.PopTake, _Mapping]] = ..., pop_settle: _Optional[_Union[_pop_pb2.PopSettle, _Mapping]] = ..., pop_hide: _Optional[_Union[_pop_pb2.PopHide, _Mapping]] = ..., claim_producer: _Optional[_Union[Command.ClaimProducer, _Mapping]] = ..., put_key_value: _Optional[_Union[Command.PutKeyValue, _Mapping]] = ..., raise_level: _Optional[_Union[Command.RaiseLevel, _Mapping]] = ..., put_user: _Optional[_Union[Command.PutUser, _Mapping]] = ..., delete_user: _Optional[_Union[Command.DeleteUser, _Mapping]] = ..., put_role: _Optional[_Union[Command.PutRole, _Mapping]] = ..., delete_role: _Optional[_Union[Command.DeleteRole, _Mapping]] = ..., set_topic_rates: _Optional[_Union[Command.SetTopicRates, _Mapping]] = ..., digest_point: _Optional[_Union[DigestPoint, _Mapping]] = ..., state_digest: _Optional[_Union[StateDigest, _Mapping]] = ..., has_no_certificates: _Optional[bool] = ...) -> None: ...

class DigestPoint(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateDigest(_message.Message):
    __slots__ = ("position", "form", "tables")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    position: int
    form: int
    tables: _containers.RepeatedCompositeFieldContainer[TableDigest]
    def __init__(self, position: _Optional[int] = ..., form: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableDigest, _Mapping]]] = ...) -> None: ...

class TableDigest(_message.Message):
    __slots__ = ("table", "digest")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    table: str
    digest: bytes
    def __init__(self, table: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...
