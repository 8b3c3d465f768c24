"""Frames of a node's framed port: the client's half of their layout, and their limits.

Owns bytes (docs/framed.md); must not know sockets, nor what is done with an answer. A frame is a
head of 20 bytes, a protobuf message, and records as they lie in the log, which no message copies.
"""

import struct
from typing import Any, Final, NamedTuple

from quorumlog.pb import consumer_pb2, log_pb2, pop_pb2, users_pb2

KIND: Final = 0x51
"""The kind of our headers; the kinds of RocketMQ's protocol share the port."""
RESPONSE: Final = 1
ERROR: Final = 2
MORE: Final = 4
CANCEL: Final = 8
_FIXED_FLAGS: Final = 0xFF ^ (ERROR | MORE)
"""Flags of which an answer has RESPONSE alone."""

FRAME_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of a frame that a node sends, as of a message over gRPC."""
REQUEST_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024 + 64 * 1024 - 20
"""Limit of message and body of a request: nodes close a connection that sends a larger frame."""
MESSAGE_SIZE_BYTES_MAX: Final = 1024 * 1024 - 12
"""Limit of the message alone."""
OPAQUE_MAX: Final = (1 << 32) - 1

HEAD: Final = struct.Struct(">IIBBHII")
"""Size of what follows it; kind (8 bits) and size of the header (24); method; flags; 2 bytes of 0;
opaque; time-out in milliseconds."""
HEADER_SIZE_BYTES: Final = 12  # Of the fixed part of our header: from the method on.
PREFIX_SIZE_BYTES: Final = HEAD.size - HEADER_SIZE_BYTES
LENGTH_SIZE_BYTES: Final = 4
KIND_SHIFTED: Final = KIND << 24


class FramedCall(NamedTuple):
    """A call that the framed port takes."""

    number: int
    answer: Any
    """Class of the message of its answer."""
    sends_records: bool = False
    """The records of the request are the body of the frame."""
    returns_records: bool = False


APPEND: Final = 1

FRAMED_METHODS: Final = {
    "Append": FramedCall(APPEND, log_pb2.AppendResponse, sends_records=True),
    "Pull": FramedCall(2, log_pb2.PullResponse, returns_records=True),
    "CommitOffsets": FramedCall(4, consumer_pb2.CommitOffsetsResponse),
    "FetchOffsets": FramedCall(5, consumer_pb2.FetchOffsetsResponse),
    "Ack": FramedCall(6, pop_pb2.AckResponse),
    "Heartbeat": FramedCall(7, consumer_pb2.HeartbeatResponse),
    "Receive": FramedCall(9, pop_pb2.ReceiveResponse, returns_records=True),
}
"""The calls on the path of a message, by name. All others stay with gRPC."""

ROUTE: Final = FramedCall(8, log_pb2.RouteResponse)
"""The call that shows which node answers at a port; routes are asked over gRPC otherwise."""

AUTHENTICATE: Final = FramedCall(10, users_pb2.WhoAmIResponse)
"""The call that has a connection be that of a user."""

Answer = tuple[int, int, int, bytes, bytes]
"""Method, flags, opaque, message and body of a frame of a node; a plain tuple, for each answer is
one."""


class FrameError(Exception):
    """Bytes that no node sends; the text says which."""


def message_of(method: FramedCall, request: Any) -> tuple[bytes, bytes]:
    """Return the message and the body that a request travels as."""
    if not method.sends_records:
        return request.SerializeToString(), b""
    records = request.records
    request.ClearField("records")
    message = request.SerializeToString()
    request.records = records
    return message, records


def has_room(message: bytes, body: bytes) -> bool:
    """Whether a request fits into a frame; if not, gRPC takes it."""
    size_bytes = len(message)
    return size_bytes <= MESSAGE_SIZE_BYTES_MAX and size_bytes + len(body) <= REQUEST_SIZE_BYTES_MAX


def answer_of_frame(method: FramedCall, message: bytes, body: bytes) -> Any:
    """Return the answer that a frame holds. Raises DecodeError, FrameError."""
    answer = method.answer.FromString(message)
    if method.returns_records:
        if answer.records:
            size_bytes = len(answer.records)
            raise FrameError(f"{size_bytes} bytes of records in a message, not in the body")
        answer.records = body
    elif body:
        raise FrameError(f"{len(body)} bytes of records with an answer that has none")
    return answer


class FrameReader:
    """Cuts the bytes of a connection into frames; keeps what is not whole yet.

    What it keeps grows with what arrives, up to FRAME_SIZE_BYTES_MAX, and never with a size that
    is only announced.
    """

    __slots__ = ("_wanted", "partial")

    def __init__(self) -> None:
        self.partial = bytearray()
        """The beginning of a frame that waits for its rest."""
        self._wanted = 0  # Size at which the partial frame is worth looking at.

    def frames(self, data: bytes) -> list[Answer]:
        """Return the frames that are whole with `data`. Raises FrameError.

        Frames in front of a bad one are lost with it: their connection is closed, and what became
        of their calls is unknown.
        """
        if self.partial:
            self.partial += data
            if len(self.partial) < self._wanted:
                return []
            data = bytes(self.partial)
            self.partial = bytearray()
        answers: list[Answer] = []
        at, hi = 0, len(data)
        while hi - at >= 20:
            size, header, method, flags, reserved, opaque, timeout_ms = HEAD.unpack_from(data, at)
            end = at + 4 + size
            message_hi = at + 8 + (header & 0xFFFFFF)
            if (
                header >> 24 != KIND
                or reserved
                or timeout_ms
                or flags & _FIXED_FLAGS != RESPONSE
                or size > FRAME_SIZE_BYTES_MAX
                or not at + 20 <= message_hi <= end
            ):
                raise FrameError(_what_is_bad(size, header, flags, reserved, timeout_ms))
            if end > hi:
                break
            message, body = data[at + 20 : message_hi], data[message_hi:end]
            answers.append((method, flags, opaque, message, body))
            at = end
        if at < hi:
            self.partial += data[at:]
            self._wanted = end - at if hi - at >= HEAD.size else HEAD.size
        return answers


def _what_is_bad(size: int, header: int, flags: int, reserved: int, timeout_ms: int) -> str:
    if header >> 24 != KIND:
        return f"a header of kind {header >> 24:#04x}, not {KIND:#04x}"
    if size > FRAME_SIZE_BYTES_MAX:
        return f"a frame of {size} bytes, the limit is {FRAME_SIZE_BYTES_MAX}"
    if reserved:
        return f"reserved bits {reserved:#06x}"
    if timeout_ms:
        return f"a time-out of {timeout_ms} ms, which is for requests"
    if flags & _FIXED_FLAGS != RESPONSE:
        return f"flags {flags:#04x}, which are no answer"
    return f"a header of {header & 0xFFFFFF} bytes in a frame of {size}"
