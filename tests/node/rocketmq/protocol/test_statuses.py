"""Codes for a client of the protocol: each error has a row, and only what may pass is repeated."""

import pytest

from node.errors import nameserver
from node.errors.common import BadRequestError, NodeError
from node.errors.groups import MessageExpiredError
from node.errors.reference import classes_in, error_classes
from node.errors.translation import status_of as grpc_status_of
from node.rocketmq.protocol.statuses import CODES, status_of
from quorumlog.pb.rocketmq_pb2 import Code
from raft.errors import RaftError
from store.errors import LimitExceededError, PositionRangeError, RecordFormatError, StoreError

OF_THE_SERVER = {Code.INTERNAL_SERVER_ERROR, Code.HA_NOT_AVAILABLE}
"""What clients repeat as a fault of the server."""
PASSING = {
    Code.HA_NOT_AVAILABLE,
    Code.TOO_MANY_REQUESTS,
    Code.PROXY_TIMEOUT,
    Code.MASTER_PERSISTENCE_TIMEOUT,
}
KINDS = [kind for kind in error_classes() if kind not in classes_in(nameserver)]
"""No call of the protocol reaches the name server."""


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
    ],
)
def test_a_refusal_has_the_code_of_its_cause(error: Exception, code: Code) -> None:
    assert status_of(error).code == code


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_only_what_passes_or_is_the_servers_own_fault_is_repeated(
    kind: type[NodeError | StoreError | RaftError],
) -> None:
    code = CODES[kind.code]
    is_own_fault = grpc_status_of(kind) in ("INTERNAL", "DATA_LOSS", "UNAVAILABLE")
    if kind.retryable:
        # The client repeats a receive of a queue that is held, which is wanted.
        assert code in (OF_THE_SERVER if kind.code == "node.queue_held" else PASSING)
    elif not is_own_fault:
        assert code not in OF_THE_SERVER
