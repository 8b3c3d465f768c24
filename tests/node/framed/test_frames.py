"""Frames: cut out of any stream in the same way, refused by their first eight bytes. Our header:
the vectors of docs/framed.md."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.framed import header as headers
from node.framed.frames import JSON_KIND, Frame, FramedParser, FrameFault, Reason
from node.framed.header import encode_response
from node.framed.limits import FramedLimits
from quorumlog.pb import common_pb2
from quorumlog.pb.common_pb2 import Error
from quorumlog.pb.log_pb2 import PULL_STATUS_FOUND, AppendRequest, PullResponse
from tests.node.framed.clients import APPEND, CANCEL, ERROR, KIND, MORE, PULL, frame, request

LIMITS = FramedLimits(
    frame_size_bytes_max=4096, header_size_bytes_max=1024, read_size_bytes=16 * 1024
)
KINDS = (KIND, 7)
Whole = tuple[int, bytes, bytes]


class Parser:
    """A parser with its scratch buffer, which others overwrite between two reads."""

    def __init__(self, limits: FramedLimits = LIMITS, kinds: tuple[int, ...] = KINDS) -> None:
        self.scratch = bytearray(limits.read_size_bytes)
        self.parser = FramedParser(memoryview(self.scratch), kinds, limits)

    def read(self, data: bytes) -> list[Frame]:
        """Return the frames that become whole with `data`."""
        self.scratch[: len(data)] = data
        frames = []
        parsed = self.parser.take(len(data))
        while parsed is not None:
            frames.append(parsed)
            parsed = self.parser.next_frame()
        self.scratch[:] = b"\xff" * len(self.scratch)
        return frames


frames = st.tuples(st.sampled_from(KINDS), st.binary(max_size=200), st.binary(max_size=600))


@given(st.lists(frames, max_size=8), st.data())
def test_the_frames_are_the_same_however_the_stream_is_cut(
    sent: list[Whole], data: st.DataObject
) -> None:
    stream = b"".join(frame(*one) for one in sent)
    parser, frames_read, at = Parser(), list[Frame](), 0
    while at < len(stream):
        count = data.draw(st.integers(1, len(stream) - at))
        frames_read += parser.read(stream[at : at + count])
        at += count
        whole = b"".join(frame(*one) for one in sent[: len(frames_read)])
        assert stream[: len(whole)] == whole
        assert parser.parser.rest_size_bytes == at - len(whole)
        assert bool(parser.parser.rest) == (at > len(whole))
    assert frames_read == sent


header_sizes = st.integers(0, 30) | st.integers(1000, 7_500)


@given(st.lists(st.tuples(header_sizes, st.integers(0, 9_000)), max_size=6), st.data())
def test_a_large_frame_of_rocketmq_is_skipped_and_the_next_one_is_read(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    text = bytes(range(250)) * 30
    sent = [(JSON_KIND, text[:header], bytes([n]) * body) for n, (header, body) in enumerate(sizes)]
    stream = b"".join(frame(*one) for one in sent)
    parser, frames, at = Parser(kinds=(JSON_KIND,)), list[Frame](), 0
    while at < len(stream):
        count = data.draw(st.integers(1, min(9_000, len(stream) - at)))
        frames += parser.read(stream[at : at + count])
        at += count
        assert parser.parser.rest_size_bytes <= 4096, "it costs no memory"
        ends = [len(b"".join(frame(*one) for one in sent[: n + 1])) for n in range(len(sent))]
        assert bool(parser.parser.rest) == (at not in ends), (
            "a frame that is half there has a limit"
        )
    small = LIMITS.frame_size_bytes_max - 8
    assert frames == [
        (kind, header, body if len(header) + len(body) <= small else None)
        if len(header) <= LIMITS.header_size_bytes_max
        else (kind, header[:512] + header[-512:], None)
        for kind, header, body in sent
    ]


@given(st.lists(frames, min_size=1, max_size=8), st.data())
def test_frames_that_are_kept_are_handed_out_later_in_order(
    sent: list[Whole], data: st.DataObject
) -> None:
    stream = b"".join(frame(*one) for one in sent)
    cut = data.draw(st.integers(0, len(stream)))
    parser = Parser()
    for part in (stream[:cut], stream[cut:]):
        parser.scratch[: len(part)] = part
        parser.parser.keep(len(part))
    frames_read = []
    while (parsed := parser.parser.next_frame()) is not None:
        frames_read.append(parsed)
    assert frames_read == sent
    assert parser.parser.rest_size_bytes == 0


def test_a_frame_of_the_largest_size_is_taken_and_a_larger_one_is_not() -> None:
    largest = frame(KIND, b"h" * 1024, b"b" * (4096 - 8 - 1024))
    assert len(largest) == 4096
    assert Parser().read(largest) == [(KIND, b"h" * 1024, b"b" * (4096 - 8 - 1024))]
    with pytest.raises(FrameFault, match="length 4093") as caught:
        Parser().read(largest[:0] + frame(KIND, b"h", b"b" * 4088))
    assert caught.value.reason is Reason.LENGTH


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("length", "word", "reason"),
    [
        (0, KIND << 24, Reason.LENGTH),
        (3, KIND << 24, Reason.LENGTH),
        (4, KIND << 24 | 1, Reason.LENGTH),
        (100, KIND << 24 | 97, Reason.LENGTH),
        (2000, KIND << 24 | 1025, Reason.LENGTH),
        (4093, KIND << 24, Reason.LENGTH),
        (0xFFFFFFFF, KIND << 24, Reason.LENGTH),
        (0x7FFFFFFF, KIND << 24 | 0xFFFFFF, Reason.LENGTH),
        (0x47455420, 0x2F204854, Reason.LENGTH),  # GET / HT
        (0x16030102, 0x00010001, Reason.LENGTH),  # A greeting of TLS.
        (4, 0, Reason.ROCKETMQ),
        (100, 1 << 24 | 20, Reason.ROCKETMQ),
        (4, 2 << 24, Reason.KIND),
        (4, 0xFF << 24, Reason.KIND),
    ],
)
def test_a_bad_frame_is_refused_by_its_first_eight_bytes(
    length: int, word: int, reason: Reason, is_whole: bool
) -> None:
    prefix = struct.pack(">II", length, word)
    parser = Parser()
    if is_whole and length < 3000:
        prefix += bytes(max(0, length - 4))
    else:
        assert parser.read(prefix[:7]) == []
        prefix = prefix[7:]
    with pytest.raises(FrameFault) as caught:
        parser.read(prefix)
    assert caught.value.reason is reason


def test_memory_follows_what_has_arrived_and_not_what_is_announced() -> None:
    limits = FramedLimits()
    parser = Parser(limits)
    announced = struct.pack(">II", limits.frame_size_bytes_max - 4, KIND << 24 | 12)
    assert parser.read(announced) == []
    assert len(parser.parser.rest) == 8
    assert parser.parser.rest.__sizeof__() < 200
    assert parser.read(bytes(10_000)) == []
    assert parser.parser.rest.__sizeof__() < 2 * 10_008


def test_memory_of_frames_that_were_handed_out_is_given_back() -> None:
    parser = Parser()
    many = frame(KIND, b"h" * 100, b"b" * 1000) * 10
    assert len(parser.read(many + many[:50])) == 10
    assert parser.parser.rest.__sizeof__() < 200
    assert len(parser.read(many[50:])) == 10
    assert parser.parser.rest.__sizeof__() < 100


PAGE = Path(__file__).parents[3] / "docs" / "framed.md"


def test_the_vectors_of_the_page_are_what_node_and_client_write() -> None:
    error = Error(code="node.unimplemented", message="no", outcome=common_pb2.OUTCOME_NOT_APPLIED)
    expected = {
        "append": request(
            APPEND, 7, AppendRequest(record_count=1).SerializeToString(), b"RECORD", timeout_ms=500
        ),
        "receipt": encode_response(APPEND, 0, 7, b"\x10\x01"),
        "error": encode_response(200, headers.ERROR, 8, error.SerializeToString()),
        "part of a tail": encode_response(
            headers.Method.TAIL,
            headers.MORE,
            9,
            PullResponse(status=PULL_STATUS_FOUND, record_count=1).SerializeToString(),
            6,
        )
        + b"RECORD",
        "cancel": request(PULL, 10, flags=CANCEL),
    }
    vectors = {
        name: bytes.fromhex(text)
        for name, text in re.findall(r"^\| ([a-z ]+) \| `([0-9a-f ]+)` \|$", PAGE.read_text(), re.M)
    }
    assert vectors == expected
    assert (ERROR, MORE) == (headers.ERROR, headers.MORE)
