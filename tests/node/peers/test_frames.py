"""Frames of the peer link: whatever the cuts, the same frames; whatever the bytes, an error or
frames, and never more memory than the limit."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.peers.frames import (
    FRAME_SIZE_BYTES_MAX,
    HANDSHAKE_KINDS,
    HANDSHAKE_SIZE_BYTES_MAX,
    HEADER_SIZE_BYTES_MAX,
    JOINED_SIZE_BYTES_MAX,
    PAYLOAD_SIZE_BYTES_MAX,
    EncodedFrame,
    FrameError,
    FrameKind,
    FrameParser,
    encode_head,
)

Frame = tuple[FrameKind, bytes, bytes]


def encode(frame: Frame) -> bytes:
    kind, header, payload = frame
    return encode_head(kind, header, len(payload)) + payload


def put(parser: FrameParser, data: bytes) -> list[Frame]:
    """Give bytes to a parser as a socket would; return the frames that are whole by then."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        room = parser.buffer()
        count = min(len(room), len(data) - at)
        assert count > 0, "a parser that takes nothing never ends"
        room[:count] = data[at : at + count]
        parser.filled(count)
        at += count
        while (frame := parser.next_frame()) is not None:
            frames.append((frame[0], frame[1], bytes(frame[2])))
    return frames


_FRAMES = st.lists(
    st.tuples(
        st.sampled_from(FrameKind) | st.just(FrameKind.APPEND),
        st.binary(max_size=40) | st.binary(min_size=9, max_size=9),  # Of one shape, often.
        st.binary(max_size=300) | st.just(b""),
    ),
    min_size=1,
    max_size=12,
)

_THREE: list[Frame] = [
    (FrameKind.APPEND, b"header", b"payload of some bytes"),
    (FrameKind.PING, b"", b""),
    (FrameKind.APPEND_REPLY, b"h" * 70, b""),
]


@given(_FRAMES, st.lists(st.integers(1, 200), max_size=40), st.integers(16, 600))
def test_frames_are_the_same_however_they_are_cut(
    frames: list[Frame], cuts: list[int], buffer_size_bytes: int
) -> None:
    data = b"".join(map(encode, frames))
    parser = FrameParser(buffer_size_bytes=buffer_size_bytes)
    frames_read: list[Frame] = []
    at = 0
    for cut in [*cuts, len(data)]:
        frames_read += put(parser, data[at : at + cut])
        at += cut
    assert frames_read == frames


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_frames_or_an_error(data: bytes, is_handshake: bool) -> None:
    parser = (
        FrameParser(
            length_max=HANDSHAKE_SIZE_BYTES_MAX,
            kinds=HANDSHAKE_KINDS,
            buffer_size_bytes=HANDSHAKE_SIZE_BYTES_MAX,
        )
        if is_handshake
        else FrameParser()
    )
    size_bytes = parser.buffer_size_bytes
    try:
        put(parser, data)
    except FrameError:
        pass
    parser.buffer()
    assert parser.buffer_size_bytes <= max(size_bytes, 2 * HANDSHAKE_SIZE_BYTES_MAX) or (
        not is_handshake and parser.buffer_size_bytes <= 2 * FRAME_SIZE_BYTES_MAX
    )


@pytest.mark.parametrize("before", [[], [(FrameKind.APPEND_REPLY, b"header of one shape!!", b"")]])
def test_a_flipped_bit_never_makes_another_frame(before: list[Frame]) -> None:
    frame: Frame = (FrameKind.APPEND_REPLY, b"some header of an ack", b"")
    data = encode(frame)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        parser = FrameParser()
        assert put(parser, b"".join(map(encode, before))) == before
        try:
            # A larger length waits for more bytes, and is found when they are there.
            assert put(parser, bytes(flipped)) == [], f"bit {bit} was believed"
            put(parser, bytes(FRAME_SIZE_BYTES_MAX))
        except FrameError:
            continue
        # A type that may be skipped fails by its checksum, so nothing gets here.
        pytest.fail(f"the flip of bit {bit} was never found")


@pytest.mark.parametrize("payload", [b"", b"entries"])
def test_a_flipped_bit_before_the_payload_is_found_without_any_later_frame(payload: bytes) -> None:
    """A length that was believed made a link deaf: the votes of an election were its payload."""
    head = encode_head(FrameKind.VOTE_REQUEST, b"a header", len(payload))
    for bit in range(8 * len(head)):
        data = bytearray(head + payload)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            put(FrameParser(), bytes(data))


@pytest.mark.parametrize("length", [0, 7, HANDSHAKE_SIZE_BYTES_MAX + 1, 0x47455420, 0xFFFFFFFF])
def test_a_wrong_length_is_refused_with_the_first_eight_bytes(length: int) -> None:
    parser = FrameParser(
        length_max=HANDSHAKE_SIZE_BYTES_MAX,
        kinds=HANDSHAKE_KINDS,
        buffer_size_bytes=HANDSHAKE_SIZE_BYTES_MAX,
    )
    with pytest.raises(FrameError, match=f"length {length}, not within"):
        put(parser, struct.pack(">II", length, FrameKind.HELLO << 24 | 4))
    assert parser.buffer_size_bytes == HANDSHAKE_SIZE_BYTES_MAX


@pytest.mark.parametrize(
    ("length", "header_size_bytes"), [(8, 5), (100, 97), (8, 3), (FRAME_SIZE_BYTES_MAX, 1 << 23)]
)
def test_a_header_must_lie_within_its_frame(length: int, header_size_bytes: int) -> None:
    with pytest.raises(FrameError, match=f"header of {header_size_bytes} bytes in a frame"):
        put(FrameParser(), struct.pack(">II", length, FrameKind.APPEND << 24 | header_size_bytes))


def test_an_unknown_kind_below_128_is_refused_and_one_above_is_skipped() -> None:
    with pytest.raises(FrameError, match="type 99 is unknown"):
        put(FrameParser(), struct.pack(">II", 8, 99 << 24 | 4))
    skipped = encode_head(200, b"of a later version", 3) + b"abc"  # type: ignore[arg-type]
    assert put(FrameParser(), encode(_THREE[0]) + skipped + encode(_THREE[1])) == _THREE[:2]


def test_only_handshake_kinds_before_the_handshake() -> None:
    parser = FrameParser(kinds=HANDSHAKE_KINDS)
    with pytest.raises(FrameError, match="type 18 is unknown or not allowed now"):
        put(parser, encode(_THREE[0]))


def test_the_buffer_grows_to_a_large_frame_and_back() -> None:
    parser = FrameParser(buffer_size_bytes=4096)
    large: Frame = (FrameKind.APPEND, b"h" * 1000, b"p" * PAYLOAD_SIZE_BYTES_MAX)
    assert put(parser, encode(large)) == [large]
    assert parser.buffer_size_bytes >= PAYLOAD_SIZE_BYTES_MAX
    assert put(parser, encode(_THREE[0])) == [_THREE[0]]
    assert parser.buffer_size_bytes == 4096


def test_limits_hold_for_what_is_sent() -> None:
    encode_head(FrameKind.APPEND, b"h" * (HEADER_SIZE_BYTES_MAX - 4), PAYLOAD_SIZE_BYTES_MAX)
    with pytest.raises(AssertionError, match="header of"):
        encode_head(FrameKind.APPEND, b"h" * (HEADER_SIZE_BYTES_MAX - 3))
    with pytest.raises(AssertionError, match="frame of"):
        encode_head(FrameKind.APPEND, b"", FRAME_SIZE_BYTES_MAX)


@pytest.mark.parametrize(
    "payload_size_bytes", [0, 1, JOINED_SIZE_BYTES_MAX, JOINED_SIZE_BYTES_MAX + 1]
)
def test_a_frame_for_several_peers_has_the_same_bytes(payload_size_bytes: int) -> None:
    payload = bytes(payload_size_bytes)
    frame = EncodedFrame(FrameKind.APPEND, b"header", payload)
    assert frame.head + frame.rest == encode((FrameKind.APPEND, b"header", payload))
    assert frame.size_bytes == len(frame.head) + len(frame.rest)
    assert bool(frame.rest) == (payload_size_bytes > JOINED_SIZE_BYTES_MAX)


@pytest.mark.parametrize("size_bytes", [128, 129])
def test_a_header_of_any_size_may_follow_one_of_the_same_size(size_bytes: int) -> None:
    frames: list[Frame] = [(FrameKind.APPEND, bytes([n]) * size_bytes, b"x" * n) for n in range(5)]
    assert put(FrameParser(), b"".join(map(encode, frames))) == frames


def test_the_layout() -> None:
    data = encode((FrameKind.VOTE_REPLY, b"AB", b"xyz"))
    assert data[:10] == bytes.fromhex("0000000d 11 000006") + b"AB"
    assert (len(data), data[-3:]) == (4 + 0x0D, b"xyz")


def test_a_frame_as_large_as_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    room = 64 + 4 - len(encode((FrameKind.APPEND, b"", b"")))
    largest = (FrameKind.APPEND, b"", bytes(room))
    assert put(FrameParser(length_max=64), encode(largest)) == [largest]
    with pytest.raises(FrameError):
        put(FrameParser(length_max=64), encode((FrameKind.APPEND, b"", bytes(room + 1))))


def test_a_header_as_large_as_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    frame = (FrameKind.APPEND, b"h" * (HEADER_SIZE_BYTES_MAX - 4), b"payload")
    assert put(FrameParser(), encode(frame)) == [frame]
    header_size_bytes = HEADER_SIZE_BYTES_MAX + 1
    head = struct.pack(">II", header_size_bytes + 4, FrameKind.APPEND << 24 | header_size_bytes)
    with pytest.raises(FrameError, match=f"header of {header_size_bytes} bytes"):
        put(FrameParser(), head)


def test_a_parser_knows_whether_a_frame_is_cut_off() -> None:
    """A connection that ends between two frames ended well."""
    parser, data = FrameParser(), encode((FrameKind.PING, b"head", b"body"))
    states = [parser.is_amid_frame]
    for part in (data[:-1], data[-1:]):
        put(parser, part)
        states.append(parser.is_amid_frame)
    assert states == [False, True, False]
