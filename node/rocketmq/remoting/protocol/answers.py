"""Answers to a request, and the code and text of every error.

Owns the translation of errors of all layers into codes that make clients do what helps: they try a
send again at another broker name for 14 (both lines of the Java client), and report 13, 16, 17 and
29 to the application. A remark begins with our code, which docs/errors.md explains.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from node.errors.translation import describe
from node.rocketmq.remoting.protocol.codes import ResponseCode
from store.errors import CorruptionError

REMARK_LENGTH_MAX: Final = 1_024
_NO_EXT: Final[Mapping[str, str]] = {}


class Answer(NamedTuple):
    """What is sent back for a request."""

    code: int = ResponseCode.SUCCESS
    ext: Mapping[str, str] = _NO_EXT
    body: bytes = b""
    remark: str | None = None


class RefusedError(Exception):
    """A request was refused with a code of the protocol. It changed nothing."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{self.code.name}: {self.remark}"


class InvalidError(RefusedError):
    """A field or a body is missing, or is not what it has to be."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.INVALID_PARAMETER, remark)


CODES: Final[dict[str, ResponseCode]] = {
    name: code
    for code, names in {
        ResponseCode.TOPIC_NOT_EXIST: "node.unknown_topic",
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "node.unknown_group",
        ResponseCode.NO_PERMISSION: (
            "node.unauthenticated node.forbidden node.reserved_topic node.topic_not_writable "
            "node.topic_not_readable node.group_disabled node.topic_forbidden node.group_orderly "
            "node.not_served"
        ),
        ResponseCode.MESSAGE_ILLEGAL: (
            "store.limit_exceeded store.record_format node.delay_too_long"
        ),
        ResponseCode.INVALID_PARAMETER: (
            "node.bad_request node.unknown_queue node.limit_exceeded store.out_of_range "
            "store.bad_topic"
        ),
        ResponseCode.SUBSCRIPTION_PARSE_FAILED: "node.bad_filter",
        ResponseCode.SYSTEM_BUSY: "node.responses_wait node.rate_limited",
        ResponseCode.SERVICE_NOT_AVAILABLE: (
            "node.busy store.busy raft.busy node.limit_reached node.delayed_full node.not_leader "
            "node.not_ready node.transferring node.draining node.shutting_down node.not_applied "
            "node.state_diverged ha.not_master ha.state_missing store.full store.file_system "
            "store.closed store.damage_wider store.derived_damage raft.not_leader "
            "raft.transferring node.timeout node.outcome_unknown node.batch_undecided "
            "node.read_timeout"
        ),
    }.items()
    for name in names.split()
}
"""The protocol's code for each code of ours; all others are SYSTEM_ERROR."""


def refusal_of(error: Exception) -> Answer:
    """Return the answer that tells of an error of any layer."""
    if isinstance(error, RefusedError):
        return Answer(error.code, remark=error.remark[:REMARK_LENGTH_MAX])
    failure = describe(error)
    code = CODES.get(failure.code, ResponseCode.SYSTEM_ERROR)
    if isinstance(error, CorruptionError) and error.retryable:
        # Consumers in Java and Go pull again 3 s after any error. Of the codes with a shorter pause
        # FLOW_CONTROL fails a send in Java, and PULL_RETRY_IMMEDIATELY repeats without an end.
        code = ResponseCode.SERVICE_NOT_AVAILABLE
    return Answer(code, remark=f"{failure.code}: {failure.message}"[:REMARK_LENGTH_MAX])
