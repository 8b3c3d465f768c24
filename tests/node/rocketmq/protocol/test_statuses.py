"""Codes for a client of the protocol: each error has a row, and only what may pass is repeated."""

import pytest

from node.errors import nameserver, users
from node.errors.common import BadRequestError, NodeError
from node.errors.groups import MessageExpiredError
from node.errors.reference import classes_in, error_classes
from node.errors.translation import status_of as grpc_status_of
from node.rocketmq.protocol.statuses import CODES, status_of
from quorumlog.pb.rocketmq_pb2 import Code
from raft.errors import RaftError
from store.errors import (
    CorruptionError,
    LimitExceededError,
    PositionRangeError,
    RecordFormatError,
    StoreError,
)

OF_THE_SERVER = {Code.INTERNAL_SERVER_ERROR, Code.HA_NOT_AVAILABLE}
"""What clients repeat as a fault of the server."""
PASSING = {
    Code.HA_NOT_AVAILABLE,
    Code.TOO_MANY_REQUESTS,
    Code.PROXY_TIMEOUT,
    Code.MASTER_PERSISTENCE_TIMEOUT,
}
DAMAGE, UNDER_REPAIR = (CorruptionError("file", 7, "body CRC", "1", "2") for _ in range(2))
UNDER_REPAIR.note_repair()
OF_USERS: set[type[NodeError]] = {
    users.UnauthenticatedError,
    users.ForbiddenError,
    users.RateLimitedError,
}
KINDS: list[type[NodeError | StoreError | RaftError]] = [
    *(set(error_classes()) - {*classes_in(nameserver), *classes_in(users)}),
    *OF_USERS,
]
"""No call of the protocol reaches the name server, or changes users."""


def test_each_code_has_a_row_and_each_row_a_code() -> None:
    assert sorted(CODES) == sorted({kind.code for kind in KINDS})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecordFormatError(84, "properties", "no control characters", "one"), Code.BAD_REQUEST),
        (LimitExceededError("properties", 48 << 10, 32 << 10), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (LimitExceededError("message body", 5 << 20, 4 << 20), Code.MESSAGE_BODY_TOO_LARGE),
        (PositionRangeError("position", 9, 0, 5), Code.ILLEGAL_OFFSET),
        (MessageExpiredError("orders", 0, 9, 0, 5), Code.MESSAGE_NOT_FOUND),
        (BadRequestError("offset", "0 or more", "-1"), Code.BAD_REQUEST),
        (DAMAGE, Code.INTERNAL_SERVER_ERROR),
        (UNDER_REPAIR, Code.HA_NOT_AVAILABLE),
    ],
)
def test_a_refusal_has_the_code_of_its_cause(error: Exception, code: Code) -> None:
    assert status_of(error).code == code


def named(kinds: list[type[NodeError | StoreError | RaftError]]) -> list[tuple[str, Code]]:
    return [(kind.__name__, CODES[kind.code]) for kind in kinds]


def test_what_passes_has_a_code_that_says_so() -> None:
    """A client repeats a receive of a queue that is held, which is wanted."""
    passing = [kind for kind in KINDS if kind.retryable and kind.code != "node.queue_held"]
    assert [row for row in named(passing) if row[1] not in PASSING] == []


def test_what_does_not_pass_is_the_servers_fault_only_if_it_is() -> None:
    is_own = ("INTERNAL", "DATA_LOSS", "UNAVAILABLE")
    refusals = [kind for kind in KINDS if not kind.retryable and grpc_status_of(kind) not in is_own]
    assert [row for row in named(refusals) if row[1] in OF_THE_SERVER] == []
