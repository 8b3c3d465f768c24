from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Challenge(_message.Message):
    __slots__ = ("protocol", "nonce")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: bytes
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "cluster_id", "group", "node_id", "to_node_id", "version", "auth", "address", "nonce", "last_index", "file_size_bytes", "checked_frames", "lives", "lives_auth")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FILE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FRAMES_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    LIVES_AUTH_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster_id: str
    group: str
    node_id: int
    to_node_id: int
    version: str
    auth: bytes
    address: str
    nonce: int
    last_index: int
    file_size_bytes: int
    checked_frames: bool
    lives: bytes
    lives_auth: bytes
    def __init__(self, protocol: _Optional[int] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[int] = ..., to_node_id: _Optional[int] = ..., version: _Optional[str] = ..., auth: _Optional[bytes] = ..., address: _Optional[str] = ..., nonce: _Optional[int] = ..., last_index: _Optional[int] = ..., file_size_bytes: _Optional[int] = ..., checked_frames: _Optional[bool] = ..., lives: _Optional[bytes] = ..., lives_auth: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node_id", "version", "auth", "address", "last_index", "checked_frames", "lives", "lives_auth", "forwarding_token")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FRAMES_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    LIVES_AUTH_FIELD_NUMBER: _ClassVar[int]
    FORWARDING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    version: str
    auth: bytes
    address: str
    last_index: int
    checked_frames: bool
    lives: bytes
    lives_auth: bytes
    forwarding_token: bytes
    def __init__(self, node_id: _Optional[int] = ..., version: _Optional[str] = ..., auth: _Optional[bytes] = ..., address: _Optional[str] = ..., last_index: _Optional[int] = ..., checked_frames: _Optional[bool] = ..., lives: _Optional[bytes] = ..., lives_auth: _Optional[bytes] = ..., forwarding_token: _Optional[bytes] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("life", "nonce", "start_term", "start_last_index", "term", "last_index", "standing", "incarnation", "joined", "past")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    START_TERM_FIELD_NUMBER: _ClassVar[int]
    START_LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    life: int
    nonce: int
    start_term: int
    start_last_index: int
    term: int
    last_index: int
    standing: int
    incarnation: int
    joined: int
    past: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, life: _Optional[int] = ..., nonce: _Optional[int] = ..., start_term: _Optional[int] = ..., start_last_index: _Optional[int] = ..., term: _Optional[int] = ..., last_index: _Optional[int] = ..., standing: _Optional[int] = ..., incarnation: _Optional[int] = ..., joined: _Optional[int] = ..., past: _Optional[_Iterable[int]] = ...) -> None: ...

class KnownLife(_message.Message):
    __slots__ = ("node_id", "life", "nonce", "incarnation", "term", "acked_term", "acked", "committed")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ACKED_TERM_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    life: int
    nonce: int
    incarnation: int
    term: int
    acked_term: int
    acked: int
    committed: int
    def __init__(self, node_id: _Optional[int] = ..., life: _Optional[int] = ..., nonce: _Optional[int] = ..., incarnation: _Optional[int] = ..., term: _Optional[int] = ..., acked_term: _Optional[int] = ..., acked: _Optional[int] = ..., committed: _Optional[int] = ...) -> None: ...

class Lives(_message.Message):
    __slots__ = ("own", "known", "level", "reset", "users")
    OWN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    own: Life
    known: _containers.RepeatedCompositeFieldContainer[KnownLife]
    level: int
    reset: bytes
    users: str
    def __init__(self, own: _Optional[_Union[Life, _Mapping]] = ..., known: _Optional[_Iterable[_Union[KnownLife, _Mapping]]] = ..., level: _Optional[int] = ..., reset: _Optional[bytes] = ..., users: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("voters", "learners")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, voters: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ...) -> None: ...

class ConfigurationAt(_message.Message):
    __slots__ = ("index", "configuration")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    configuration: Configuration
    def __init__(self, index: _Optional[int] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ...) -> None: ...

class SnapshotMeta(_message.Message):
    __slots__ = ("index", "term", "configuration_at")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_AT_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    configuration_at: ConfigurationAt
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., configuration_at: _Optional[_Union[ConfigurationAt, _Mapping]] = ...) -> None: ...

class TermRun(_message.Message):
    __slots__ = ("index", "term")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("term", "vote_term", "last_index", "last_term", "pre", "transfer", "recovery")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    PRE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    term: int
    vote_term: int
    last_index: int
    last_term: int
    pre: bool
    transfer: bool
    recovery: bool
    def __init__(self, term: _Optional[int] = ..., vote_term: _Optional[int] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., pre: _Optional[bool] = ..., transfer: _Optional[bool] = ..., recovery: _Optional[bool] = ...) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("term", "vote_term", "granted", "pre", "recovery", "refusal", "leader", "diverged")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_TERM_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    PRE_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    term: int
    vote_term: int
    granted: bool
    pre: bool
    recovery: bool
    refusal: int
    leader: int
    diverged: bool
    def __init__(self, term: _Optional[int] = ..., vote_term: _Optional[int] = ..., granted: _Optional[bool] = ..., pre: _Optional[bool] = ..., recovery: _Optional[bool] = ..., refusal: _Optional[int] = ..., leader: _Optional[int] = ..., diverged: _Optional[bool] = ...) -> None: ...

class AppendEntries(_message.Message):
    __slots__ = ("term", "prev_index", "prev_term", "hi", "runs", "commit", "round", "configurations", "admitted", "prev_chain_crc")
    TERM_FIELD_NUMBER: _ClassVar[int]
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATIONS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    PREV_CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    term: int
    prev_index: int
    prev_term: int
    hi: int
    runs: _containers.RepeatedCompositeFieldContainer[TermRun]
    commit: int
    round: int
    configurations: _containers.RepeatedCompositeFieldContainer[ConfigurationAt]
    admitted: int
    prev_chain_crc: int
    def __init__(self, term: _Optional[int] = ..., prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., hi: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[TermRun, _Mapping]]] = ..., commit: _Optional[int] = ..., round: _Optional[int] = ..., configurations: _Optional[_Iterable[_Union[ConfigurationAt, _Mapping]]] = ..., admitted: _Optional[int] = ..., prev_chain_crc: _Optional[int] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("term", "match", "refusal", "refused_prev", "hint_last", "hint_runs", "round", "standing", "incarnation", "diverged")
    TERM_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PREV_FIELD_NUMBER: _ClassVar[int]
    HINT_LAST_FIELD_NUMBER: _ClassVar[int]
    HINT_RUNS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    term: int
    match: int
    refusal: int
    refused_prev: int
    hint_last: int
    hint_runs: _containers.RepeatedCompositeFieldContainer[TermRun]
    round: int
    standing: int
    incarnation: int
    diverged: bool
    def __init__(self, term: _Optional[int] = ..., match: _Optional[int] = ..., refusal: _Optional[int] = ..., refused_prev: _Optional[int] = ..., hint_last: _Optional[int] = ..., hint_runs: _Optional[_Iterable[_Union[TermRun, _Mapping]]] = ..., round: _Optional[int] = ..., standing: _Optional[int] = ..., incarnation: _Optional[int] = ..., diverged: _Optional[bool] = ...) -> None: ...

class InstallSnapshot(_message.Message):
    __slots__ = ("term", "meta", "round", "size_bytes", "crc")
    TERM_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    term: int
    meta: SnapshotMeta
    round: int
    size_bytes: int
    crc: int
    def __init__(self, term: _Optional[int] = ..., meta: _Optional[_Union[SnapshotMeta, _Mapping]] = ..., round: _Optional[int] = ..., size_bytes: _Optional[int] = ..., crc: _Optional[int] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("index", "at")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    index: int
    at: int
    def __init__(self, index: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class CampaignNow(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class FetchEntries(_message.Message):
    __slots__ = ("request_id", "lo", "hi")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LO_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    lo: int
    hi: int
    def __init__(self, request_id: _Optional[int] = ..., lo: _Optional[int] = ..., hi: _Optional[int] = ...) -> None: ...

class FetchedEntries(_message.Message):
    __slots__ = ("request_id", "lo", "hi", "error", "commit_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LO_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    lo: int
    hi: int
    error: str
    commit_index: int
    def __init__(self, request_id: _Optional[int] = ..., lo: _Optional[int] = ..., hi: _Optional[int] = ..., error: _Optional[str] = ..., commit_index: _Optional[int] = ...) -> None: ...
