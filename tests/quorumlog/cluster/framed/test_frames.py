"""Frames from a node: cut out of any pieces, and refused by the first bytes that make no sense."""

import random
import struct

import pytest

from quorumlog.cluster.framed.frames import (
    CANCEL,
    ERROR,
    FRAME_SIZE_BYTES_MAX,
    FRAMED_METHODS,
    MORE,
    FrameError,
    FrameReader,
    answer_of_frame,
    message_of,
)
from quorumlog.pb import log_pb2, pop_pb2
from tests.quorumlog.fake_frames import RESPONSE, frame


def head(
    size: int = 16,
    kind: int = 0x51,
    header: int = 12,
    flags: int = RESPONSE,
    reserved: int = 0,
    timeout_ms: int = 0,
) -> bytes:
    return struct.pack(">IIBBHII", size, kind << 24 | header, 1, flags, reserved, 7, timeout_ms)


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_the_same_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    sent = [
        (n, RESPONSE, rng.randrange(1 << 32), rng.randbytes(rng.choice((0, 1, 300))), body)
        for n, body in enumerate(rng.randbytes(rng.choice((0, 1, 5_000))) for _ in range(12))
    ]
    data = b"".join(frame(*fields) for fields in sent)
    reader, frames, at = FrameReader(), [], 0
    while at < len(data):
        size = rng.choice((1, 7, 19, 20, 21, 400, 9_000))
        frames += reader.frames(data[at : at + size])
        at += size
    assert frames == sent
    assert not reader.partial


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (head(kind=0), "a header of kind 0x00, not 0x51"),
        (head(kind=1), "kind 0x01"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "kind 0x2f"),
        (head(size=FRAME_SIZE_BYTES_MAX + 1), "16777217 bytes, the limit is 16777216"),
        (head(size=0xFFFFFFFF), "4294967295 bytes"),
        (head(reserved=1), "reserved bits 0x0001"),
        (head(timeout_ms=9), "a time-out of 9 ms, which is for requests"),
        (head(flags=0), "flags 0x00, which are no answer"),
        (head(flags=ERROR | MORE), "flags 0x06, which are no answer"),
        (head(flags=RESPONSE | CANCEL), "flags 0x09"),
        (head(flags=RESPONSE | 0x10), "flags 0x11"),
        (head(flags=RESPONSE | 0x80), "flags 0x81"),
        (head(header=11), "a header of 11 bytes in a frame of 16"),
        (head(header=13), "a header of 13 bytes in a frame of 16"),
        (head(size=3), "a header of 12 bytes in a frame of 3"),
    ],
)
def test_bytes_that_no_node_sends_are_refused_at_once(data: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        FrameReader().frames(data)


def test_a_size_that_is_announced_takes_no_memory() -> None:
    reader = FrameReader()
    assert reader.frames(head(size=FRAME_SIZE_BYTES_MAX) + b"some") == []
    assert len(reader.partial) == 24


def test_records_travel_as_the_body() -> None:
    request = log_pb2.AppendRequest(records=b"abc", record_count=1, producer_id=5)
    message, body = message_of(FRAMED_METHODS["Append"], request)
    assert body == b"abc"
    assert log_pb2.AppendRequest.FromString(message) == log_pb2.AppendRequest(
        record_count=1, producer_id=5
    )
    assert request.records == b"abc"  # It may be sent again.
    answer = log_pb2.PullResponse(next_offset=3).SerializeToString()
    pulled = answer_of_frame(FRAMED_METHODS["Pull"], answer, b"abc")
    assert pulled == log_pb2.PullResponse(next_offset=3, records=b"abc")
    with pytest.raises(FrameError, match="3 bytes of records with an answer that has none"):
        answer_of_frame(FRAMED_METHODS["Append"], b"", b"abc")


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_records_in_the_message_of_an_answer_are_refused(body: bytes) -> None:
    answers = {
        "Pull": log_pb2.PullResponse(records=b"wrong"),
        "Receive": pop_pb2.ReceiveResponse(records=b"wrong"),
    }
    for call, answer in answers.items():
        with pytest.raises(FrameError, match="5 bytes of records in a message, not in the body"):
            answer_of_frame(FRAMED_METHODS[call], answer.SerializeToString(), body)
