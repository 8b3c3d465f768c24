"""Every error of the client, with what it means for the caller.

Owns the families, and the translation of errors of a node or of gRPC; must not know where they are
raised, and must not load gRPC. A node describes an error in the trailer `quorumlog-error-bin`
(common.proto); `code` keeps the node's word, the class is its family. All of them pickle: the text
is the one positional argument, everything else lives in `__dict__`.
"""

import enum
from typing import TYPE_CHECKING, Any, Final

from quorumlog.foreign_text import shown

if TYPE_CHECKING:
    from quorumlog.pb import common_pb2

ERROR_TRAILER: Final = "quorumlog-error-bin"


class Outcome(enum.Enum):
    """The effect of a failed call, as far as it is known."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class QuorumlogError(Exception):
    """Root of all errors of the client.

    `code` is stable text for machines, `retryable` says whether the same call may succeed later,
    `outcome` what is known about its effect. `leader_id` (0: unknown) and `leader_address` are the
    node's hint, `retry_after_ms` its advice. `attempts` counts the attempts of the call.
    `faulty_records` are the messages with this fault in a batch that was refused as a whole, by
    number from 0; empty where that is not known. `proposal` begins the remedy on a command line,
    which is the end of the text, or `remedy`. `cause` stands for the meaning of the code if it is
    known; on a command line `origin` follows, which says where the command has its address from.
    """

    code: str = "client.error"
    retryable: bool = False
    outcome: Outcome = Outcome.NOT_APPLIED
    proposal: str = ""
    remedy: str = ""
    cause: str = ""
    origin: str = ""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool | None = None,
        outcome: Outcome | None = None,
        leader_id: int = 0,
        leader_address: str = "",
        retry_after_ms: int = 0,
        attempts: int = 0,
        faulty_records: tuple[int, ...] = (),
    ) -> None:
        super().__init__(shown(message))  # It may quote what a node or another client wrote.
        self.code = type(self).code if code is None else code
        self.retryable = type(self).retryable if retryable is None else retryable
        self.outcome = type(self).outcome if outcome is None else outcome
        self.leader_id = leader_id
        self.leader_address = leader_address
        self.retry_after_ms = retry_after_ms
        self.attempts = attempts
        self.faulty_records = faulty_records

    @property
    def message(self) -> str:
        """The event, with numbers, and the remedy."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.message


class ServerError(QuorumlogError):
    """A node refused for a reason that has no family of its own; `code` names it."""

    code = "node.error"


class NotLeaderError(QuorumlogError):
    """The asked node does not lead, or is handing leadership over. The call had no effect."""

    code, retryable = "node.not_leader", True


class BusyError(QuorumlogError):
    """A bounded queue is full, in a node or (`client.busy`) here. No effect; slow down."""

    code, retryable = "client.busy", True


class UnknownTopicError(QuorumlogError):
    """The topic does not exist. Create it: `qlog topic create`, or `client.admin.create_topic`."""

    code = "node.unknown_topic"


class TopicExistsError(QuorumlogError):
    """A topic that must be new exists already."""

    code = "node.topic_exists"


class PermissionDeniedError(QuorumlogError):
    """The topic's permission, or the rights of the user, forbid the call; or the caller showed no
    credential of a user (`node.unauthenticated`)."""

    code = "node.permission_denied"


class WrongClusterError(QuorumlogError):
    """The node belongs to another cluster than the client expects. Check the addresses."""

    code = "node.wrong_cluster"


class OutOfSequenceError(QuorumlogError):
    """A batch of an idempotent producer came before its predecessor. The producer sends again."""

    code, retryable = "node.out_of_sequence", True


class UnknownProducerError(QuorumlogError):
    """The cluster does not remember this producer, so it could not tell a repeated batch."""

    code = "node.unknown_producer"


class ProducerFencedError(QuorumlogError):
    """Another process has claimed the name of this producer: only that process may append."""

    code = "node.producer_fenced"


class InvalidRequestError(QuorumlogError, ValueError):
    """An argument of the call is wrong. The client found it (`client.bad_...`), or the node. The
    call had no effect."""

    code = "client.bad_argument"


class PemFileError(InvalidRequestError):
    """A PEM file of the client is missing, cannot be read or holds something else. Nothing was
    sent."""

    code = "client.tls_file"


class WrongTypeError(InvalidRequestError, TypeError):
    """An argument is of a type that the call cannot use. The call had no effect."""

    code = "client.wrong_type"


class TooLargeError(QuorumlogError):
    """A message, its properties or a batch is larger than a limit. The call had no effect."""

    code = "client.too_large"


class ConflictError(QuorumlogError):
    """Another consumer has moved an offset of the group, so nothing was stored. Read again.

    `client.offsets_in_use`: it has the same `offsets_path`. Give each one of its own.
    """

    code = "node.conflict"


class ClientIdInUseError(QuorumlogError):
    """Another consumer of the group has this client id. Give each its own, or close that one."""

    code = "node.client_id_in_use"


class GroupKindError(QuorumlogError):
    """The group is read in another way than the call assumes: members of another kind are in it,
    or it is orderly. Use another group, or stop those members first."""

    code = "node.group_kind"


class GroupNotEmptyError(QuorumlogError):
    """The group has live members, so it was neither deleted nor reset. Stop them first."""

    code = "node.group_not_empty"


class TransactionEndedError(QuorumlogError):
    """The transaction had ended in another way before. The call had no effect."""

    code = "node.transaction_ended"


class NotFoundError(QuorumlogError):
    """The message, group or member does not exist."""

    code = "client.not_found"


class LimitReachedError(QuorumlogError):
    """The cluster holds as many topics, groups or members as it may. Delete unused ones."""

    code = "node.limit_reached"


class OffsetOutOfRangeError(QuorumlogError):
    """There is no message at this offset: it has expired, or is beyond the end.

    The queue holds offsets from `first_offset` to below `end_offset`.
    """

    code = "client.offset_out_of_range"

    def __init__(
        self, message: str, *, first_offset: int = 0, end_offset: int = 0, **known: Any
    ) -> None:
        super().__init__(message, **known)
        self.first_offset, self.end_offset = first_offset, end_offset


class DelayedGoneError(QuorumlogError):
    """A delayed message cannot be cancelled any more: it was delivered, or is being delivered."""

    code = "node.delayed_gone"


class StaleHandleError(QuorumlogError):
    """A message that was received by pop was handed out again meanwhile, or is done or dead.

    `handles` are the stale ones, when several messages were acknowledged.
    """

    code = "node.stale_handle"

    def __init__(self, message: str, *, handles: tuple[str, ...] = (), **known: Any) -> None:
        super().__init__(message, **known)
        self.handles = handles


class StoreFullError(QuorumlogError):
    """The disk of the leader is too full to append; reads go on. Free space, then try again."""

    code, retryable = "store.full", True


class UnavailableError(QuorumlogError):
    """No node could be reached, or a connection broke. After sending, the outcome is unknown."""

    code, retryable = "client.unavailable", True


class NoTlsError(UnavailableError):
    """TLS keeps the client from a node, and will again until the fault that is named is mended."""

    code, retryable = "client.tls", False


class ConnectTimeoutError(UnavailableError):
    """No node answered before the time for connecting ran out. Nothing was done."""

    code = "client.connect_timeout"


class DeadlineError(QuorumlogError):
    """Time ran out before the call was done. It is known to have had no effect.

    Exception: a call that may be repeated, an acknowledgement or a cancel, may have had its effect;
    then `outcome` is unknown.
    """

    code, retryable = "client.deadline", True


class OutcomeUnknownError(QuorumlogError):
    """Time ran out, or retrying was not safe, after something was sent: it may have been applied.

    An idempotent producer raises this only when its deadline has passed. Read the log to find out.
    """

    code, outcome = "client.outcome_unknown", Outcome.UNKNOWN


class CorruptRecordError(QuorumlogError):
    """A record that a node served does not match its checksum or its own lengths."""

    code, retryable = "client.corrupt_record", True


class ClosedError(QuorumlogError):
    """The client, producer or consumer was closed before or during the call."""

    code = "client.closed"


class UnimplementedError(QuorumlogError):
    """The node does not know this call: it runs another version, or is no QuorumLog node."""

    code = "client.unimplemented"


class InternalError(QuorumlogError):
    """A node failed in an unforeseen way; its log says more."""

    code, outcome = "node.internal", Outcome.UNKNOWN


# By the last word of a node's code: `raft.busy`, `store.busy` and `node.busy` are one family.
_FAMILIES: Final[dict[str, type[QuorumlogError]]] = {
    word: family
    for family, words in {
        NotLeaderError: "not_leader not_master transferring draining read_failed",
        BusyError: "busy not_ready pop_conflict rate_limited",
        UnknownTopicError: "unknown_topic",
        TopicExistsError: "topic_exists",
        PermissionDeniedError: (
            "unauthenticated forbidden permission_denied reserved_topic topic_not_writable "
            "topic_not_readable group_disabled topic_forbidden"
        ),
        WrongClusterError: "wrong_cluster",
        OutOfSequenceError: "out_of_sequence",
        UnknownProducerError: "unknown_producer",
        ProducerFencedError: "producer_fenced",
        InvalidRequestError: (
            "bad_request bad_access bad_topic record_format bad_filter delay_too_long "
            "sequence_reused"
        ),
        TooLargeError: "limit_exceeded",
        LimitReachedError: "limit_reached delayed_full",
        DelayedGoneError: "delayed_gone",
        NotFoundError: (
            "message_not_found unknown_transaction unknown_queue unknown_group unknown_member "
            "value_not_found no_such_offset unknown_user unknown_role"
        ),
        ConflictError: "conflict user_exists user_changed credential_taken role_in_use",
        ClientIdInUseError: "client_id_in_use",
        GroupKindError: "group_kind group_orderly",
        GroupNotEmptyError: "group_not_empty",
        TransactionEndedError: "transaction_ended",
        OffsetOutOfRangeError: "out_of_range",
        StaleHandleError: "stale_handle",
        StoreFullError: "full",
        UnavailableError: "shutting_down not_applied closed no_quorum state_diverged",
        DeadlineError: "read_timeout",
        OutcomeUnknownError: "outcome_unknown batch_undecided timeout flush_timeout",
        CorruptRecordError: "corruption queue_held",
        UnimplementedError: "unimplemented",
        InternalError: "internal",
    }.items()
    for word in words.split()
}

# By number of the Outcome in common.proto; an unset one is unknown.
_OUTCOMES: Final = (Outcome.UNKNOWN, Outcome.NOT_APPLIED, Outcome.APPLIED, Outcome.UNKNOWN)


def from_pb(error: "common_pb2.Error") -> QuorumlogError:
    """Return the error that a node described."""
    family = _FAMILIES.get(error.code.rpartition(".")[2], ServerError)
    outcome = error.outcome if 0 <= error.outcome < len(_OUTCOMES) else 0
    return family(
        error.message or error.code,
        code=error.code,
        retryable=error.retryable,
        outcome=_OUTCOMES[outcome],
        leader_id=error.leader_id,
        leader_address=error.leader_address,
        retry_after_ms=error.retry_after_ms,
        faulty_records=tuple(error.faulty_records),
    )


def from_rpc(error: Any, address: str) -> QuorumlogError:
    """Return the error of a failed call to `address`: the node's own if it sent one, else gRPC's.

    `error` is a grpc.aio.AioRpcError. Without a description by the node the outcome is unknown,
    unless the connection could not be made at all.
    """
    from google.protobuf.message import DecodeError

    from quorumlog.pb import common_pb2

    for key, value in error.trailing_metadata() or ():
        if key == ERROR_TRAILER:
            try:
                return from_pb(common_pb2.Error.FromString(value))
            except DecodeError:
                break  # No node of ours wrote that: gRPC's own status says more.
    return from_status(error.code().name, error.details() or "", address)


def is_not_connected(error: QuorumlogError) -> bool:
    """Whether a call failed because there was no connection: nothing of it was sent."""
    is_ours = isinstance(error, UnavailableError) and error.code == UnavailableError.code
    return is_ours and error.outcome is Outcome.NOT_APPLIED


def from_status(status: str, details: str, address: str) -> QuorumlogError:
    """Return the error of a bare gRPC status, by the name of its code."""
    text = f"{address}: {details or status.lower()}"
    if "larger than max" in details or "exceeds" in details:
        return TooLargeError(f"{text}; send or ask for less at once")
    if status == "UNAVAILABLE" and "failed to connect" in details:
        cause = details.rpartition("Failed to connect to remote host: ")[2]
        if "SETTINGS frame" in details:
            cause = "it hangs, as a paused node does"
        text = f"{address}: {cause.removeprefix('connect: ')}"
        error = UnavailableError(f"{text}; is the node running?")
        if "Failed parsing HTTP/2" in details or "Socket closed" in details:
            error.cause = "what listens there speaks another protocol than gRPC"
            error.remedy = "name the port of listen, 8081 unless set"
        return error
    broken = status == "CANCELLED" or "RST_STREAM" in details or "Stream removed" in details
    if status == "UNAVAILABLE" or broken:
        return UnavailableError(f"{text}; is the node running?", outcome=Outcome.UNKNOWN)
    if status == "DEADLINE_EXCEEDED":
        return DeadlineError(f"{text}; allow more time", outcome=Outcome.UNKNOWN)
    if status == "RESOURCE_EXHAUSTED":
        return BusyError(f"{text}; slow down", code="node.busy")
    if status == "UNIMPLEMENTED":
        return UnimplementedError(f"{text}; check that address and version are those of a node")
    if status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return PermissionDeniedError(f"{text}; check the credentials")
    if status == "INVALID_ARGUMENT":
        return InvalidRequestError(f"{text}; correct the request", code="node.bad_request")
    return InternalError(f"{text} ({status}); see the log of that node")
