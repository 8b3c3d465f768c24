"""The one translation of errors of every layer for clients.

Owns the way from the errors of `node`, `store` and `raft` to code, text, outcome, gRPC status and
the message `Error`; must not know which code raised them. docs/errors.md lists the codes.
"""

from typing import Final, NamedTuple

from node.errors.common import (
    RETRY_BUSY_MS,
    BusyError,
    NodeError,
    NotLeaderError,
    TransferringError,
)
from quorumlog.pb import common_pb2
from raft import errors as raft_errors
from raft.errors import RaftError
from raft.messages import NO_NODE, NodeId
from store.errors import Outcome, StoreError

ERROR_TRAILER: Final = "quorumlog-error-bin"

_STATUS: Final = {
    "store.record_format": "INVALID_ARGUMENT",
    "store.limit_exceeded": "INVALID_ARGUMENT",
    "store.bad_topic": "INVALID_ARGUMENT",
    "store.full": "RESOURCE_EXHAUSTED",
    "store.busy": "RESOURCE_EXHAUSTED",
    "store.file_system": "UNAVAILABLE",
    "store.closed": "UNAVAILABLE",
    "store.out_of_range": "OUT_OF_RANGE",
    "store.no_beginning": "OUT_OF_RANGE",
    "store.inner_batch": "FAILED_PRECONDITION",
    "store.corruption": "DATA_LOSS",
    "store.derived_file": "DATA_LOSS",
    "store.derived_damage": "UNAVAILABLE",
    "raft.not_leader": NotLeaderError.status,
    "raft.transferring": TransferringError.status,
    "raft.busy": BusyError.status,
    "raft.change_refused": "FAILED_PRECONDITION",
    "raft.change_invalid": "FAILED_PRECONDITION",
    "raft.transfer_refused": "FAILED_PRECONDITION",
    "raft.transfer_invalid": "FAILED_PRECONDITION",
    "raft.recovery_refused": "FAILED_PRECONDITION",
}
_PB_OUTCOME: Final = {
    Outcome.NOT_APPLIED.value: common_pb2.OUTCOME_NOT_APPLIED,
    Outcome.APPLIED.value: common_pb2.OUTCOME_APPLIED,
    Outcome.UNKNOWN.value: common_pb2.OUTCOME_UNKNOWN,
}

TEXT_LENGTH_MAX: Final = 2_048
"""Characters of the text of an error. gRPC's trailers have 8 KiB by default."""


class Failure(NamedTuple):
    """An error of any layer in the form that a client gets."""

    code: str
    message: str
    retryable: bool
    outcome: Outcome
    status: str
    """Name of the gRPC status, for example `UNAVAILABLE`."""
    leader_id: NodeId = NO_NODE
    leader_address: str = ""
    retry_after_ms: int = 0
    faulty_records: tuple[int, ...] = ()


def from_raft(error: RaftError) -> RaftError | NodeError:
    """Return the node's error for an error of Raft that clients meet; others unchanged."""
    match error:
        case raft_errors.NotLeaderError():
            return NotLeaderError(error.leader_hint)
        case raft_errors.TransferringError():
            return TransferringError(error.target)
        case raft_errors.BusyError():
            return BusyError(error.what, error.held, error.limit)
    return error


def status_of(kind: type[BaseException]) -> str:
    """Return the name of the gRPC status that an error of this class has."""
    if issubclass(kind, NodeError):
        return kind.status
    code = kind.code if issubclass(kind, StoreError | RaftError) else ""
    return _STATUS.get(code, "INTERNAL")


def describe(error: BaseException) -> Failure:
    """Return an error in the form that a client gets.

    An unforeseen error is `node.internal`, with an unknown outcome. Do not pass an AssertionError:
    it ends the process.
    """
    if isinstance(error, RaftError):
        error = from_raft(error)
    if isinstance(error, NodeError | StoreError | RaftError):
        outcome, status = Outcome(error.outcome.value), status_of(type(error))
        failure = Failure(error.code, _cut(error), error.retryable, outcome, status)
        match error:
            case NodeError():
                return failure._replace(
                    leader_id=error.leader_id,
                    leader_address=error.leader_address,
                    retry_after_ms=error.retry_after_ms,
                    faulty_records=error.faulty_records,
                )
            case StoreError():
                retry_after_ms = RETRY_BUSY_MS if error.retryable else 0
                return failure._replace(
                    retry_after_ms=retry_after_ms, faulty_records=error.faulty_records
                )
        return failure
    text = f"{type(error).__name__}: {_cut(error)}; this is a defect of the node, see its log"
    return Failure("node.internal", text, False, Outcome.UNKNOWN, "INTERNAL")


def _cut(error: BaseException) -> str:
    """Return the text of an error, without what is too much in a name that a caller sent."""
    text = str(error)
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[: TEXT_LENGTH_MAX - 3]}..."


def to_pb(error: BaseException) -> common_pb2.Error:
    """Return the message `Error` of a failed call, or of a response in a stream."""
    failure = describe(error)
    return common_pb2.Error(
        code=failure.code,
        message=failure.message,
        retryable=failure.retryable,
        outcome=_PB_OUTCOME[failure.outcome.value],
        leader_id=failure.leader_id,
        leader_address=failure.leader_address,
        retry_after_ms=failure.retry_after_ms,
        faulty_records=failure.faulty_records,
    )
