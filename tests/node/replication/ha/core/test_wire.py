"""Frames of the HA stream, from the tables of storage-formats 6.6, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.replication.ha.core.types import AckMode, EpochStart, HaBinding, HaStanding
from node.replication.ha.core.wire import (
    EPOCH_COUNT_MAX,
    GROUP_SIZE_BYTES_MAX,
    TRANSFER_SIZE_BYTES_MAX,
    Ack,
    Admit,
    Bind,
    Bound,
    DownFrame,
    DownParser,
    Frame,
    HaFrameError,
    Handshake,
    HandshakeReply,
    Hello,
    ImagePiece,
    ImageRequest,
    Transfer,
    UpFrame,
    UpParser,
    encode,
)
from store.files.checksum import crc32c

UP: list[tuple[UpFrame, str]] = [
    (
        Handshake(7),
        "00000001"  # state HANDSHAKE
        "0000"  # isSyncFromLastFile
        "0000"  # isAsyncLearner
        "0000000000000007",  # slaveBrokerId
    ),
    (
        Ack(0x0123456789AB),
        "00000002"  # state TRANSFER
        "00000123456789ab",  # maxOffset
    ),
]

DOWN: list[tuple[DownFrame, str]] = [
    (
        HandshakeReply(4096, 5, (EpochStart(3, 0), EpochStart(5, 1024))),
        "00000001"  # state HANDSHAKE
        "00000018"  # bodySize: two entries of 12 bytes
        "0000000000001000"  # maxOffset
        "00000005"  # last epoch
        "00000003 0000000000000000"  # epoch, startOffset
        "00000005 0000000000000400",
    ),
    (
        HandshakeReply(0, 0, ()),
        "00000001 00000000 0000000000000000 00000000",
    ),
    (
        Transfer(1024, 5, 1000, 900, b"record"),
        "00000002"  # state TRANSFER
        "00000006"  # bodySize
        "0000000000000400"  # offset
        "00000005"  # epoch
        "00000000000003e8"  # epochStartOffset
        "0000000000000384"  # confirmOffset
        "7265636f7264",  # body
    ),
    (
        Transfer(1030, 5, 1000, 1030),  # A heartbeat is a header with bodySize 0.
        "00000002 00000000 0000000000000406 00000005 00000000000003e8 0000000000000406",
    ),
]

OWN_UP: list[UpFrame] = [
    Hello(2, 1 << 63, "grüppe"),
    Bound(HaBinding(9, 1, 1 << 63), 8, 500, 400, 450, HaStanding.JOINING, 77),
    ImageRequest(),
]
OWN_DOWN: list[DownFrame] = [
    Bind(HaBinding(9, 1, 1 << 63)),
    Admit(9, 77),
    ImagePiece(2000, 0, bytes(range(251)) * 3),
]
FRAMES: list[Frame] = [*(f for f, _ in UP), *OWN_UP, *(f for f, _ in DOWN), *OWN_DOWN]


def parser_for(frame: Frame) -> UpParser | DownParser:
    return UpParser() if isinstance(frame, UpFrame) else DownParser()


def check(data: bytes) -> bytes:
    return crc32c(data).to_bytes(4, "big")


def own(data: bytes) -> bytes:
    """A frame that RocketMQ has not."""
    return data[:8] + check(data[:8]) + data[8:] + check(data)


@pytest.mark.parametrize(("frame", "hexadecimal"), [*UP, *DOWN])
def test_frames_are_those_of_the_table_with_checks(frame: Frame, hexadecimal: str) -> None:
    vector = bytes.fromhex(hexadecimal)
    head = {HandshakeReply: 20, Transfer: 36}.get(type(frame), len(vector))
    data = vector[:head] + check(vector[:head])
    if not isinstance(frame, UpFrame):
        data += vector[head:] + check(vector[head:])
    assert encode(frame) == data
    assert parser_for(frame).feed(data) == [frame]


def test_a_fence_frame_by_hand() -> None:
    body = bytes.fromhex(
        "00000041"  # state BIND
        "00000015"  # bodySize
        "00000009"  # number
        "0000000000000001"  # master id
        "00000000000000ff"  # nonce
        "01"  # mode: async
    )
    data = own(body)
    assert encode(Bind(HaBinding(9, 1, 255), AckMode.ASYNC)) == data
    assert DownParser().feed(data) == [Bind(HaBinding(9, 1, 255), AckMode.ASYNC)]
    unknown = body[:-1] + b"\x02"
    with pytest.raises(HaFrameError, match="mode 2"):
        DownParser().feed(own(unknown))


@given(
    st.lists(st.sampled_from([*(f for f, _ in UP), *OWN_UP]), min_size=1, max_size=8)
    | st.lists(st.sampled_from([*(f for f, _ in DOWN), *OWN_DOWN]), min_size=1, max_size=8),
    st.data(),
)
def test_frames_are_the_same_however_they_are_cut(frames: list[Frame], draw: st.DataObject) -> None:
    data = b"".join(map(encode, frames))
    parser, frames_read, at = parser_for(frames[0]), list[Frame](), 0
    while at < len(data):
        step = draw.draw(st.integers(1, 40))
        frames_read += parser.feed(memoryview(data)[at : at + step])
        at += step
    assert frames_read == frames
    assert parser.held_size_bytes == 0


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_frames_or_an_error(data: bytes, is_up: bool) -> None:
    parser: UpParser | DownParser = UpParser() if is_up else DownParser()
    try:
        parser.feed(data)
    except HaFrameError:
        assert parser.held_size_bytes == 0
    assert parser.held_size_bytes <= len(data)


BAD_DOWN = [
    "00000000",  # READY is never sent.
    "00000004",  # Neither is SHUTDOWN.
    "00000042",  # BOUND goes the other way.
    "00000001 00000001 0000000000000000 00000000",  # Epochs of one byte.
    f"00000001 {(EPOCH_COUNT_MAX + 1) * 12:08x} 0000000000000000 00000000",
    "00000001 fffffff4 0000000000000000 00000000",  # A negative size.
    f"00000002 {TRANSFER_SIZE_BYTES_MAX + 1:08x}" + "00" * 28,
    "00000002 ffffffff" + "00" * 28,
    "00000041 7fffffff",  # Our own frames are small.
]


@pytest.mark.parametrize("hexadecimal", BAD_DOWN)
def test_limits_are_enforced_before_the_body_is_there(hexadecimal: str) -> None:
    head = bytes.fromhex(hexadecimal)
    with pytest.raises(HaFrameError):
        DownParser().feed(head + check(head))


def test_largest_frames_pass() -> None:
    epochs = tuple(EpochStart(n, n) for n in range(1, EPOCH_COUNT_MAX + 1))
    reply = HandshakeReply(5000, EPOCH_COUNT_MAX, epochs)
    assert DownParser().feed(encode(reply)) == [reply]
    hello = Hello(1, 2, "g" * GROUP_SIZE_BYTES_MAX)
    assert UpParser().feed(encode(hello)) == [hello]
    transfer = Transfer(0, 1, 0, 0, bytes(TRANSFER_SIZE_BYTES_MAX))
    assert DownParser().feed(encode(transfer)) == [transfer]


@pytest.mark.parametrize("flags", ["0001 0000", "0000 0001"])
def test_a_slave_that_is_no_whole_copy_is_refused(flags: str) -> None:
    head = bytes.fromhex(f"00000001 {flags} 0000000000000007")
    with pytest.raises(HaFrameError, match="flags"):
        UpParser().feed(head + check(head))


def test_a_request_for_an_image_has_no_body() -> None:
    data = (68).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"x"
    with pytest.raises(HaFrameError, match="body of 1 bytes in a frame of state 68, limit 0"):
        UpParser().feed(own(data))
