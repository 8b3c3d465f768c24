"""Frames: a length, a kind of header, a header and a body, cut out of a stream of bytes.

Owns the framing, which is that of RocketMQ's remoting protocol, and the bytes of a frame that is
half there. Must not know what a header says, a socket, or a call. docs/framed.md has the layout.

All connections of a port read into one buffer, so that an idle connection costs no memory; what is
no whole frame is copied out of it at once. So memory grows with what has arrived, whatever length a
sender announces.
"""

import struct
from collections.abc import Collection
from enum import StrEnum
from typing import Final

from node.errors.requests import RocketMqOffError
from node.framed.limits import FramedLimits

PREFIX_SIZE_BYTES: Final = 8
LENGTH_SIZE_BYTES: Final = 4
"""Size of the length, which counts what follows it."""
_PREFIX: Final = struct.Struct(">II")
assert _PREFIX.size == PREFIX_SIZE_BYTES, "layout of a frame's prefix"

JSON_KIND: Final = 0
ROCKETMQ_KIND: Final = 1
"""Kinds of RocketMQ's remoting protocol."""

SKIPPED_LENGTH_MAX: Final = 16 << 20
"""Of a frame of RocketMQ's that is too large: its call is refused, and its connection goes on. The
brokers of RocketMQ close the connection of a longer one."""

HEAD_SIZE_BYTES: Final = 512
TAIL_SIZE_BYTES: Final = 512
"""Both ends of a header that is too large, between which its bytes are skipped."""

Frame = tuple[int, bytes, bytes | None]
"""Kind of header, header, body; None: the frame is over a limit. Its body is skipped then, and of a
header over the limit all but its ends."""


class FrameFault(Exception):  # noqa: N818 - the sender's, and never an error that a caller gets.
    """The bytes of a connection break the protocol: the node closes it, and nothing was done."""

    def __init__(self, reason: "Reason", detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class Reason(StrEnum):
    """Why the node closed a connection, as metrics and logs show it."""

    LENGTH = "length"
    """The length, or the size of the header, is impossible or above the limit."""
    KIND = "kind"
    ROCKETMQ = "rocketmq"
    """A client of RocketMQ's remoting protocol, at a port that does not speak it."""
    HEADER = "header"
    """The header is too short, or one of its reserved bits is set."""
    FLAGS = "flags"
    OPAQUE = "opaque"
    """The number of a call that is still under way."""
    RECORDS = "records"
    """Records in the message of an append and not in the body."""
    FRAME_SLOW = "frame_slow"
    HALF_FULL = "half_full"
    NOT_TAKEN = "not_taken"
    """The client took no answers for too long."""
    WAITING_FULL = "waiting_full"
    """Answers for all clients filled their limit, and this client took none."""
    NO_ROOM = "no_room"
    HANDSHAKE = "handshake"
    IDLE = "idle"


class FramedParser:
    """Cuts the bytes of one connection into frames.

    Invariant: the frames found are the same however the stream was cut into reads.
    """

    __slots__ = (
        "_at",
        "_header_max",
        "_is_cut",
        "_kinds",
        "_length_max",
        "_scratch",
        "_skip_count",
        "rest",
    )

    def __init__(self, scratch: memoryview, kinds: Collection[int], limits: FramedLimits) -> None:
        """`scratch` is where the bytes are when `take` is called. Others write into it as well,
        between two calls. Frames of other kinds than `kinds` are faults."""
        self._scratch = scratch
        self._kinds = kinds
        self._length_max = limits.frame_size_bytes_max - LENGTH_SIZE_BYTES
        self._header_max = limits.header_size_bytes_max
        self.rest = bytearray()
        """The bytes that were not handed out; empty after exactly whole frames."""
        self._at = 0
        """Bytes of `rest` before this one belong to frames that were handed out."""
        self._skip_count = 0
        """Bytes to be skipped that are still to come; `rest` has what is before them until then."""
        self._is_cut = False
        """Whether `rest` begins with a frame whose header was too large: its middle is left out,
        and the prefix has the sizes of what is left."""

    def widen(self, size_bytes: int) -> None:
        """Take frames and headers that are larger than the limits by so much."""
        self._length_max += size_bytes
        self._header_max += size_bytes

    @property
    def rest_size_bytes(self) -> int:
        """Bytes that arrived and belong to no frame that was handed out."""
        return len(self.rest) - self._at

    def keep(self, count: int) -> None:
        """Keep `count` bytes of the scratch buffer for later."""
        if self._at:
            del self.rest[: self._at]
            self._at = 0
        skipped = min(self._skip_count, count)
        if skipped:
            self._skip_count -= skipped
            if not (self._skip_count or self._is_cut):
                self.rest.clear()
        self.rest += self._scratch[skipped:count]

    def take(self, count: int) -> Frame | None:
        """Take `count` bytes of the scratch buffer; return the first whole frame, None: read more.

        Without a `rest` there is no second one. Raises FrameFault.
        """
        scratch = self._scratch
        if not self.rest and count >= PREFIX_SIZE_BYTES:
            # Nearly always exactly one whole frame has arrived.
            length, word = _PREFIX.unpack_from(scratch)
            body_at = PREFIX_SIZE_BYTES + (word & 0xFFFFFF)
            if (
                length + LENGTH_SIZE_BYTES == count
                and length <= self._length_max
                and body_at <= count
                and body_at - PREFIX_SIZE_BYTES <= self._header_max
                and (kind := word >> 24) in self._kinds
            ):
                return (
                    kind,
                    bytes(scratch[PREFIX_SIZE_BYTES:body_at]),
                    bytes(scratch[body_at:count]),
                )
        self.keep(count)
        return self.next_frame()

    def next_frame(self) -> Frame | None:
        """Return the next whole frame of what was kept; None: read more. Raises FrameFault as soon
        as the first eight bytes of a frame are invalid."""
        rest, at = self.rest, self._at
        have = len(rest) - at
        if have < PREFIX_SIZE_BYTES or self._skip_count:
            self._trim()
            return None
        length, word = _PREFIX.unpack_from(rest, at)
        header_size_bytes = word & 0xFFFFFF
        if self._is_cut or self._is_skipped(length, word):
            return self._skip(length, header_size_bytes, word >> 24)
        if (
            not LENGTH_SIZE_BYTES <= length <= self._length_max
            or header_size_bytes > min(length - LENGTH_SIZE_BYTES, self._header_max)
            or word >> 24 not in self._kinds
        ):
            raise self._fault(length, word)
        size_bytes = LENGTH_SIZE_BYTES + length
        if have < size_bytes:
            self._trim()
            return None
        header_at, hi = at + PREFIX_SIZE_BYTES, at + size_bytes
        body_at = header_at + header_size_bytes
        with memoryview(rest) as view:
            frame = word >> 24, bytes(view[header_at:body_at]), bytes(view[body_at:hi])
        self._at = hi
        if hi == len(rest):
            self._trim()
        return frame

    def _is_skipped(self, length: int, word: int) -> bool:
        header_size_bytes = word & 0xFFFFFF
        return (
            (length > self._length_max or header_size_bytes > self._header_max)
            and header_size_bytes + LENGTH_SIZE_BYTES <= length <= SKIPPED_LENGTH_MAX
            and word >> 24 in self._kinds
            and word >> 24 in (JSON_KIND, ROCKETMQ_KIND)
        )

    def _skip(self, length: int, header_size_bytes: int, kind: int) -> Frame | None:
        """Return a frame without its body, once its header is there; what follows is skipped."""
        self._trim()
        if header_size_bytes > max(self._header_max, HEAD_SIZE_BYTES + TAIL_SIZE_BYTES):
            return self._cut(length, header_size_bytes, kind)
        rest, body_at = self.rest, PREFIX_SIZE_BYTES + header_size_bytes
        if len(rest) < body_at:
            return None
        header, hi = bytes(rest[PREFIX_SIZE_BYTES:body_at]), LENGTH_SIZE_BYTES + length
        self._skip_count, self._is_cut = max(0, hi - len(rest)), False
        self.rest = rest[:PREFIX_SIZE_BYTES] if self._skip_count else rest[hi:]
        return kind, header, None

    def _cut(self, length: int, header_size_bytes: int, kind: int) -> Frame | None:
        """Take the middle out of a header that is too large, and go on with the shorter frame."""
        rest, at = self.rest, PREFIX_SIZE_BYTES + HEAD_SIZE_BYTES
        if len(rest) < at:
            return None
        left = HEAD_SIZE_BYTES + TAIL_SIZE_BYTES
        count = header_size_bytes - left
        self._skip_count, self._is_cut = max(0, at + count - len(rest)), True
        prefix = _PREFIX.pack(length - count, kind << 24 | left)
        self.rest = bytearray(prefix) + rest[PREFIX_SIZE_BYTES:at] + rest[at + count :]
        return None if self._skip_count else self.next_frame()

    def _trim(self) -> None:
        """Give back the memory of frames that were handed out."""
        at = self._at
        if at:
            # A new buffer: a shorter one would keep the memory of the old one.
            self.rest, self._at = self.rest[at:], 0

    def _fault(self, length: int, word: int) -> FrameFault:
        kind, header_size_bytes = word >> 24, word & 0xFFFFFF
        if not LENGTH_SIZE_BYTES <= length <= self._length_max:
            expected = f"{LENGTH_SIZE_BYTES} to {self._length_max}"
            return FrameFault(Reason.LENGTH, f"length {length}, not {expected}")
        if kind in (JSON_KIND, ROCKETMQ_KIND) and kind not in self._kinds:
            return FrameFault(Reason.ROCKETMQ, f"a header of kind {kind}: {RocketMqOffError()}")
        if kind not in self._kinds:
            return FrameFault(Reason.KIND, f"a header of kind {kind}")
        detail = f"a header of {header_size_bytes} bytes in a frame of {length}"
        return FrameFault(Reason.LENGTH, f"{detail}, at most {self._header_max} are taken")
