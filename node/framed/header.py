"""The header of our own frames: twelve fixed bytes, then one protobuf message.

Owns the bytes of both directions; docs/framed.md has the layout and test vectors. Must not know
what a method does.
"""

import struct
from enum import IntEnum
from typing import Final

from node.framed.frames import LENGTH_SIZE_BYTES, PREFIX_SIZE_BYTES

KIND: Final = 0x51
HEADER: Final = struct.Struct(">BBHII")
"""method, flags, reserved, opaque, timeout_ms; the message follows."""
HEADER_SIZE_BYTES: Final = 12
assert HEADER.size == HEADER_SIZE_BYTES, "layout of the header"
_HEAD: Final = struct.Struct(">IIBBHII")
"""The prefix of a frame and the header."""
assert _HEAD.size == PREFIX_SIZE_BYTES + HEADER_SIZE_BYTES, "layout of a frame's head"
_KIND_WORD: Final = KIND << 24
_PREFIX_REST_SIZE_BYTES: Final = PREFIX_SIZE_BYTES - LENGTH_SIZE_BYTES

RESPONSE: Final = 1
ERROR: Final = 2
"""The message is a `quorumlog.v1.Error`; the call is over."""
MORE: Final = 4
"""Further responses of the same call follow."""
CANCEL: Final = 8
"""Client to node: the caller has gone. No message, no body, and no answer."""


class Method(IntEnum):
    """The numbers of the methods."""

    APPEND = 1
    PULL = 2
    TAIL = 3
    COMMIT_OFFSETS = 4
    FETCH_OFFSETS = 5
    ACK = 6
    HEARTBEAT = 7
    ROUTE = 8
    RECEIVE = 9
    AUTHENTICATE = 10


def encode_response(
    method: int, flags: int, opaque: int, message: bytes, body_size_bytes: int = 0
) -> bytes:
    """Return everything of a response but its body, which must follow directly."""
    header_size_bytes = len(message) + HEADER_SIZE_BYTES
    length = _PREFIX_REST_SIZE_BYTES + header_size_bytes + body_size_bytes
    word = _KIND_WORD | header_size_bytes
    return _HEAD.pack(length, word, method, RESPONSE | flags, 0, opaque, 0) + message
