"""Answers to a RocketMQ client: the codes of its protocol, from every error of ours.

Owns the translation. Business errors travel in the response with gRPC's OK; a transport error would
reach applications as trouble with the connection. Source: protocol sections 1.6, 8.1, 15, 16.
"""

from typing import Final

from node.errors.translation import describe
from quorumlog.pb.rocketmq_pb2 import Code, Status
from store.errors import LimitExceededError

OK: Final = Status(code=Code.OK, message="OK")

_MESSAGE_LENGTH_MAX: Final = 1_024

_CODES: Final = {
    "node.unknown_topic": Code.TOPIC_NOT_FOUND,
    "node.reserved_topic": Code.ILLEGAL_TOPIC,
    "store.bad_topic": Code.ILLEGAL_TOPIC,
    "node.unknown_queue": Code.TOPIC_NOT_FOUND,
    "node.topic_not_writable": Code.FORBIDDEN,
    "node.topic_not_readable": Code.FORBIDDEN,
    "node.unknown_group": Code.CONSUMER_GROUP_NOT_FOUND,
    "node.busy": Code.TOO_MANY_REQUESTS,
    "store.busy": Code.TOO_MANY_REQUESTS,
    "node.limit_reached": Code.TOO_MANY_REQUESTS,
    "store.full": Code.HA_NOT_AVAILABLE,
    "store.limit_exceeded": Code.MESSAGE_BODY_TOO_LARGE,
    "node.limit_exceeded": Code.MESSAGE_BODY_TOO_LARGE,
    "store.record_format": Code.BAD_REQUEST,
    "node.timeout": Code.MASTER_PERSISTENCE_TIMEOUT,
    "node.outcome_unknown": Code.MASTER_PERSISTENCE_TIMEOUT,
    "node.read_timeout": Code.PROXY_TIMEOUT,
    "node.read_failed": Code.PROXY_TIMEOUT,
    "node.bad_request": Code.BAD_REQUEST,
    "node.stale_handle": Code.INVALID_RECEIPT_HANDLE,
    "node.pop_conflict": Code.TOO_MANY_REQUESTS,
    "node.queue_held": Code.INTERNAL_SERVER_ERROR,
    "node.group_disabled": Code.FORBIDDEN,
    "node.topic_forbidden": Code.FORBIDDEN,
    "node.group_orderly": Code.FORBIDDEN,
    "node.bad_filter": Code.ILLEGAL_FILTER_EXPRESSION,
    "node.unknown_transaction": Code.INVALID_TRANSACTION_ID,
    "node.transaction_ended": Code.INVALID_TRANSACTION_ID,
    "node.delay_too_long": Code.ILLEGAL_DELIVERY_TIME,
    "node.delayed_full": Code.TOO_MANY_REQUESTS,
    "node.delayed_gone": Code.MESSAGE_NOT_FOUND,
    "node.message_not_found": Code.MESSAGE_NOT_FOUND,
    "node.no_such_offset": Code.MESSAGE_NOT_FOUND,
    "store.out_of_range": Code.ILLEGAL_OFFSET,
}
_BY_STATUS: Final = {
    "INVALID_ARGUMENT": Code.BAD_REQUEST,
    "NOT_FOUND": Code.NOT_FOUND,
    "ALREADY_EXISTS": Code.PRECONDITION_FAILED,
    "FAILED_PRECONDITION": Code.PRECONDITION_FAILED,
    "ABORTED": Code.PRECONDITION_FAILED,
    "OUT_OF_RANGE": Code.BAD_REQUEST,
    "PERMISSION_DENIED": Code.FORBIDDEN,
    "UNAUTHENTICATED": Code.UNAUTHORIZED,
    "UNIMPLEMENTED": Code.NOT_IMPLEMENTED,
    "UNAVAILABLE": Code.HA_NOT_AVAILABLE,
}
"""For refusals without a row that do not pass, by the status of our own protocol. Clients repeat
what is an error of the server."""


class CallRefusedError(Exception):
    """A call was refused, with the code of the client's protocol.

    The call changed nothing, unless the code says that its outcome is unknown.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{Code.Name(self.code)}: {self.message}"


def status_of(error: Exception) -> Status:
    """Return the status for a client from an error of any layer."""
    if isinstance(error, CallRefusedError):
        return Status(code=error.code, message=error.message[:_MESSAGE_LENGTH_MAX])
    failure = describe(error)
    code = code_of(failure.code, failure.status, retryable=failure.retryable)
    if isinstance(error, LimitExceededError) and error.what == "properties":
        code = Code.MESSAGE_PROPERTIES_TOO_LARGE
    return Status(code=code, message=f"{failure.code}: {failure.message}"[:_MESSAGE_LENGTH_MAX])


def code_of(code: str, status: str, *, retryable: bool) -> Code:
    """Return the protocol's code for a code of ours and the gRPC status that it has."""
    if code in _CODES:
        return _CODES[code]
    if retryable:
        return Code.HA_NOT_AVAILABLE
    return _BY_STATUS.get(status, Code.INTERNAL_SERVER_ERROR)


def common(statuses: list[Status]) -> Status:
    """Return the status of a whole from those of its parts: theirs if all have one code."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return Status(code=Code.MULTIPLE_RESULTS, message="see the status of each entry")
