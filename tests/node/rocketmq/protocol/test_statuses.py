"""Codes for a client of the protocol: a refusal that cannot change has none that clients repeat."""

from node.rocketmq.protocol.statuses import status_of
from quorumlog.pb.rocketmq_pb2 import Code
from store.errors import RecordFormatError


def test_a_record_that_the_store_refuses_is_a_bad_request() -> None:
    error = RecordFormatError(84, "properties", "no control characters", "one")
    assert status_of(error).code == Code.BAD_REQUEST
