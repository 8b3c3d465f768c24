"""Frames of the peer link: bytes to frames and back, without any socket.

Owns the layout, the limits and the parser; must not know what a header says or its sender. All
integers are big-endian:

    u32 length          bytes behind this field
    u8  type            FrameKind
    u24 header length   protobuf and its CRC-32
    protobuf header
    u32 CRC-32          of everything before it, the length included
    raw bytes           the rest: log entries or a piece of a snapshot, which carry checksums

The CRC is there because a flipped bit in an ack would be believed (fault-matrix N16); payloads are
checked where they are stored. A type of 128 and above that is not known here is skipped: a later
version may send such frames to any peer. An unknown type below 128 is refused: a later version
sends those only to a peer whose handshake says that it knows them.
"""

import struct
import zlib
from collections.abc import Collection
from enum import IntEnum
from functools import cache
from typing import Final

from node.errors.common import NodeError

HEADER_SIZE_BYTES_MAX: Final = 256 << 10
"""Holds an append of 4096 configuration entries of a cluster of nine, the largest there can be."""
PAYLOAD_SIZE_BYTES_MAX: Final = 4 << 20
"""An entry of the largest size is alone in its frame."""
FRAME_SIZE_BYTES_MAX: Final = PAYLOAD_SIZE_BYTES_MAX + (1 << 20)
"""Largest value of the length field that is sent or accepted."""
HANDSHAKE_SIZE_BYTES_MAX: Final = 4 << 10
"""The largest length before the peer is known: strangers cannot make this node allocate."""
OPTIONAL_KIND_MIN: Final = 128
JOINED_SIZE_BYTES_MAX: Final = 16 << 10
"""Joining smaller buffers is cheaper than passing them one by one."""

_PREFIX: Final = struct.Struct(">II")
_CRC: Final = struct.Struct(">I")
_LENGTH_SIZE_BYTES: Final = 4
_OVERHEAD_SIZE_BYTES: Final = _PREFIX.size + _CRC.size
_LENGTH_MIN: Final = _OVERHEAD_SIZE_BYTES - _LENGTH_SIZE_BYTES
_ROOM_SIZE_BYTES_MIN: Final = 4 << 10  # Less room is not worth a read.
_KEPT_SIZE_BYTES_MAX: Final = 2 << 20  # A larger buffer is given back when it is empty.
_SHAPE_HEADER_SIZE_BYTES_MAX: Final = 128  # Bounds the number of shapes, too.
_crc32: Final = zlib.crc32
_NO_PAYLOAD: Final = memoryview(b"")

assert PAYLOAD_SIZE_BYTES_MAX + HEADER_SIZE_BYTES_MAX + _OVERHEAD_SIZE_BYTES <= FRAME_SIZE_BYTES_MAX
assert HEADER_SIZE_BYTES_MAX < 1 << 24


class FrameKind(IntEnum):
    """The type byte. Numbers are for ever; from 128 on frames that an older node may skip."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    GOODBYE = 4
    PING = 5
    """Sent after silence, without a header; any bytes in return are a sign of life."""
    PONG = 6

    VOTE_REQUEST = 16
    VOTE_REPLY = 17
    APPEND = 18
    APPEND_REPLY = 19
    INSTALL_SNAPSHOT = 20
    CAMPAIGN_NOW = 21
    SNAPSHOT_CHUNK = 22

    FETCH_ENTRIES = 32
    FETCHED_ENTRIES = 33

    FOUNDED = 48
    """No header: the sender belongs to its cluster permanently
    (node.replication.foundation)."""

    LIVES = 128
    """The sender's own memory, and its memory of other nodes (node.replication.lives)."""

    STATE_DIGEST = 129
    """The digest of the sender's replicated state at a point of the log, for the leader
    (node.replication.raft.digests)."""


HANDSHAKE_KINDS: Final = frozenset(
    {FrameKind.CHALLENGE, FrameKind.HELLO, FrameKind.WELCOME, FrameKind.GOODBYE}
)
REPLY_KINDS: Final = frozenset(
    {FrameKind.VOTE_REPLY, FrameKind.APPEND_REPLY, FrameKind.FETCHED_ENTRIES}
)
"""Each stands for itself, so they may overtake each other. All other kinds are requests."""


class FrameError(NodeError):
    """Bytes that are no frame of this link. The link drops the connection."""

    code = "node.bad_frame"
    text = "{detail}; is this a peer of the same version?"
    detail: str


def encode_head(kind: FrameKind, header: bytes, payload_size_bytes: int = 0) -> bytes:
    """Return everything of a frame but its payload, which must follow directly."""
    header_size_bytes = len(header) + 4
    length = header_size_bytes + 4 + payload_size_bytes
    assert header_size_bytes <= HEADER_SIZE_BYTES_MAX, f"header of {header_size_bytes} bytes"
    assert length <= FRAME_SIZE_BYTES_MAX, f"frame of {length} bytes"
    head = _PREFIX.pack(length, kind << 24 | header_size_bytes) + header
    return head + _CRC.pack(_crc32(head))


@cache
def _shape_of(header_size_bytes: int) -> struct.Struct:
    """Return the layout of all of a frame but its payload."""
    return struct.Struct(f">II{header_size_bytes - 4}sI")


class EncodedFrame:
    """A frame ready to be sent, to several peers if it is for them."""

    __slots__ = ("head", "header", "kind", "payload", "rest", "size_bytes")

    def __init__(self, kind: FrameKind, header: bytes, payload: bytes = b"") -> None:
        self.kind, self.header, self.payload = kind, header, payload
        size_bytes = len(payload) if payload else 0
        header_size_bytes = len(header) + 4
        length = header_size_bytes + 4 + size_bytes
        assert header_size_bytes <= HEADER_SIZE_BYTES_MAX, f"header of {header_size_bytes} bytes"
        assert length <= FRAME_SIZE_BYTES_MAX, f"frame of {length} bytes"
        head = _PREFIX.pack(length, kind << 24 | header_size_bytes) + header
        head += _CRC.pack(_crc32(head))  # As `encode_head`, a call less.
        is_joined = size_bytes <= JOINED_SIZE_BYTES_MAX
        self.head, self.rest = (head + payload, b"") if is_joined else (head, payload)
        """The bytes, in one part (`rest` is empty) or, where joining them costs more, in two."""
        self.size_bytes = length + _LENGTH_SIZE_BYTES


class FrameParser:
    """Cuts a stream of bytes into frames, in a buffer that the socket reads into.

    Invariant: the frames found are the same however the stream was cut into reads. Memory is one
    buffer, which grows to the largest frame under way and never beyond the limit.
    """

    __slots__ = (
        "_buffer",
        "_kinds",
        "_shape",
        "_shape_word",
        "_size_bytes",
        "_size_bytes_max",
        "has_usual_size",
        "hi",
        "lo",
        "view",
    )

    def __init__(
        self,
        *,
        length_max: int = FRAME_SIZE_BYTES_MAX,
        kinds: Collection[FrameKind] = frozenset(FrameKind),
        buffer_size_bytes: int = 256 << 10,
    ) -> None:
        """`length_max` is the largest length field accepted, `kinds` are the types accepted."""
        self._buffer = bytearray()
        self.set_limits(length_max, kinds, buffer_size_bytes)
        self._replace_buffer(buffer_size_bytes)
        self._shape, self._shape_word = _shape_of(4), -1
        """How to read a frame whose kind and size of header are those of the last one, in one step,
        and these two as they stand in the frame."""
        self.lo = self.hi = 0
        """The bytes received and not yet taken are [lo, hi) of the buffer, `view`. For the parser,
        and for its connection, which asks whether there are any."""

    def set_limits(
        self, length_max: int, kinds: Collection[FrameKind], buffer_size_bytes: int
    ) -> None:
        """Set what is accepted from here on; the buffer grows when the next bytes are read."""
        self._size_bytes_max = length_max + _LENGTH_SIZE_BYTES
        by_number = {int(kind): kind for kind in kinds}
        self._kinds = [by_number.get(number) for number in range(256)]
        self._size_bytes = buffer_size_bytes
        self._note_size()

    @property
    def buffer_size_bytes(self) -> int:
        """Size of the buffer."""
        return len(self._buffer)

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty. Payloads handed out before become
        invalid."""
        lo, hi = self.lo, self.hi
        if lo == hi:
            if not self.has_usual_size:
                self._replace_buffer(self._size_bytes)
            self.lo = self.hi = 0
            return self.view
        size_bytes = len(self._buffer)
        needed = self._needed()
        if needed > size_bytes or size_bytes < self._size_bytes:
            old = self.view[lo:hi]
            self._replace_buffer(max(self._size_bytes, 1 << (needed - 1).bit_length()))
            self.view[: hi - lo] = old
        elif lo + needed > size_bytes or size_bytes - hi < _ROOM_SIZE_BYTES_MIN:
            self.view[: hi - lo] = self.view[lo:hi]
        else:
            return self.view[hi:]
        self.lo, self.hi = 0, hi - lo
        return self.view[self.hi :]

    @property
    def is_amid_frame(self) -> bool:
        """Whether the buffer holds a part of a frame."""
        return self.hi > self.lo

    def filled(self, count: int) -> None:
        """Note that `count` bytes were written into the view that `buffer` returned."""
        self.hi += count

    def next_frame(self) -> tuple[FrameKind, bytes, memoryview] | None:
        """Return kind, protobuf header and payload of the next whole frame; None: read more.

        The payload is a view into the buffer, valid until the next call of `buffer`. Raises
        FrameError as soon as the first eight bytes are invalid, or everything before the payload is
        there and does not match its checksum.
        """
        while True:
            lo = self.lo
            have = self.hi - lo
            if have < 8:
                return None
            header: bytes | None = None
            if have >= self._shape.size:
                length, word, header, crc = self._shape.unpack_from(self._buffer, lo)
                if word != self._shape_word:
                    header = None
            else:
                length, word = _PREFIX.unpack_from(self._buffer, lo)
            kind = self._kinds[word >> 24]
            header_size_bytes = word & 0xFFFFFF
            if (
                not _LENGTH_MIN <= length <= self._size_bytes_max - 4
                or not 4 <= header_size_bytes <= length - 4
                or header_size_bytes > HEADER_SIZE_BYTES_MAX
                or (kind is None and word >> 24 < OPTIONAL_KIND_MIN)
            ):
                raise self._fault(length, word)
            view = self.view
            crc_at = lo + 4 + header_size_bytes
            body_at = crc_at + 4
            if body_at > self.hi:
                return None
            if header is None:
                header, (crc,) = bytes(view[lo + 8 : crc_at]), _CRC.unpack_from(view, crc_at)
                if header_size_bytes <= _SHAPE_HEADER_SIZE_BYTES_MAX:
                    self._shape, self._shape_word = _shape_of(header_size_bytes), word
            # Before the payload is there: a parser that trusted a damaged length would swallow
            # frames for megabytes, on a connection that looks alive.
            if _crc32(view[lo:crc_at]) != crc:
                raise FrameError(f"the checksum of a frame of type {word >> 24} is wrong")
            end = lo + 4 + length
            if end > self.hi:
                return None
            self.lo = end
            if kind is not None:
                payload = view[body_at:end] if body_at < end else _NO_PAYLOAD
                return kind, header, payload

    def _replace_buffer(self, size_bytes: int) -> None:
        self._buffer = bytearray(size_bytes)
        self.view = memoryview(self._buffer)
        self._note_size()

    def _note_size(self) -> None:
        self.has_usual_size = self._size_bytes <= len(self._buffer) <= _KEPT_SIZE_BYTES_MAX

    def _needed(self) -> int:
        """Return the size of the frame under way, 8 if not known yet, and at most the limit."""
        if self.hi - self.lo < 4:
            return 8
        length: int = _CRC.unpack_from(self._buffer, self.lo)[0]
        return min(length + 4, self._size_bytes_max)

    def _fault(self, length: int, word: int) -> FrameError:
        length_max, kind, header_size_bytes = self._size_bytes_max - 4, word >> 24, word & 0xFFFFFF
        if not _LENGTH_MIN <= length <= length_max:
            return FrameError(f"length {length}, not within {_LENGTH_MIN}..{length_max}")
        if self._kinds[kind] is None and kind < OPTIONAL_KIND_MIN:
            return FrameError(f"type {kind} is unknown or not allowed now")
        return FrameError(f"header of {header_size_bytes} bytes in a frame of {length}")
