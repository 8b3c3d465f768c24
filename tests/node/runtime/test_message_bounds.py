"""Messages with more fields than any client sends are refused before they are made."""

import tracemalloc
from random import Random

import pytest
from google.protobuf.message import DecodeError, Message

from node.errors.common import BadRequestError
from node.runtime.message_bounds import FIELD_COUNT_MAX, SMALL_SIZE_BYTES, bounded_message
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, HeartbeatRequest
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest

MIB = 1 << 20
BOMBS = {
    "empty messages in a message": (
        AppendRequest,
        b"\x4a" + b"\x80\x80\x80\x02" + b"\x12\x00" * (2 * MIB),
    ),
    "empty texts": (PullRequest, b"\x52\x00" * (2 * MIB)),
    "fields that nobody knows": (PullRequest, b"\xf8\x01\x01" * MIB),
    "empty messages": (CommitOffsetsRequest, b"\x12\x00" * (2 * MIB)),
}


@pytest.mark.parametrize(("kind", "data"), BOMBS.values(), ids=BOMBS)
def test_a_message_with_too_many_fields_costs_nothing(kind: type[Message], data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError, match=str(FIELD_COUNT_MAX)):
            bounded_message(kind, data)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_the_largest_messages_of_clients_are_made() -> None:
    beat = HeartbeatRequest(group="g", client_id="c", topics=["t" * 200] * 256)
    for number in range(10_240):
        beat.queues.add(topic=f"topic{number % 256}", queue_id=number)
    batch = AppendRequest(record_count=1, records=b"\x12\x00" * (2 * MIB))
    for message in (beat, batch, PullRequest()):
        assert bounded_message(type(message), message.SerializeToString()) == message


def test_bytes_that_are_no_message_are_refused_as_before() -> None:
    random = Random(5)
    whole = AppendRequest(record_count=3, records=bytes(2 * SMALL_SIZE_BYTES)).SerializeToString()
    for data in (whole[:-1], b"\x80" * MIB, b"\x0b" * MIB, random.randbytes(SMALL_SIZE_BYTES + 9)):
        with pytest.raises(DecodeError):
            bounded_message(AppendRequest, data)
