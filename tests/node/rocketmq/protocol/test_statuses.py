"""Codes for a client of the protocol: a refusal that cannot change has none that clients repeat."""

import pytest

from node.errors.common import BadRequestError, NodeError
from node.errors.groups import MessageExpiredError
from node.errors.reference import error_classes
from node.errors.translation import status_of as grpc_status_of
from node.rocketmq.protocol.statuses import code_of, status_of
from quorumlog.pb.rocketmq_pb2 import Code
from raft.errors import RaftError
from store.errors import LimitExceededError, PositionRangeError, RecordFormatError, StoreError

OF_THE_SERVER = {Code.INTERNAL_SERVER_ERROR, Code.HA_NOT_AVAILABLE}
"""What clients repeat."""


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


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_only_what_passes_or_is_the_servers_own_fault_is_repeated(
    kind: type[NodeError | StoreError | RaftError],
) -> None:
    status = grpc_status_of(kind)
    is_own_fault = status in ("INTERNAL", "DATA_LOSS", "UNAVAILABLE")
    code = code_of(kind.code, status, retryable=kind.retryable)
    if kind.code == "node.queue_held":
        assert code == Code.INTERNAL_SERVER_ERROR  # The client asks again, which is wanted.
    elif code in OF_THE_SERVER:
        assert kind.retryable or is_own_fault
