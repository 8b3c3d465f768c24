"""Receipt handles: opaque text that names one delivery of one message to one group.

Owns their bytes; must not know what is in flight. A handle is complete in itself, so that any
leader understands the handles of another one. The checksum covers group and topic: a handle is
valid for no other.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from node.errors.pop import StaleHandleError

# Version, queue id, offset, generation; then the checksum.
_BODY: Final = struct.Struct(">BIqQ")
_CHECKSUM: Final = struct.Struct(">I")
_VERSION: Final = 1
_SIZE_BYTES: Final = _BODY.size + _CHECKSUM.size
_LENGTH_MAX: Final = 64
"""Characters of a foreign text that are repeated in an error."""


class PopHandle(NamedTuple):
    """One delivery of a message."""

    queue_id: int
    offset: int
    generation: int


def columns(handles: Sequence[PopHandle]) -> dict[str, Any]:
    """Return deliveries as the fields of a command: a list of each of their numbers."""
    return {
        "queue_ids": [one.queue_id for one in handles],
        "offsets": [one.offset for one in handles],
        "generations": [one.generation for one in handles],
    }


def encode_handle(group: str, topic: str, handle: PopHandle) -> str:
    """Return the text of a handle."""
    body = _BODY.pack(_VERSION, *handle)
    data = body + _CHECKSUM.pack(_checksum(group, topic, body))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_handle(group: str, topic: str, text: str) -> PopHandle:
    """Return the delivery that a text names. Raises StaleHandleError for a foreign text."""
    shown = text[:_LENGTH_MAX]
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        raise StaleHandleError(shown, "it is not one of ours") from None
    if len(data) != _SIZE_BYTES or data[0] != _VERSION:
        raise StaleHandleError(shown, "it is not one of ours")
    body = data[: _BODY.size]
    if _CHECKSUM.unpack_from(data, _BODY.size)[0] != _checksum(group, topic, body):
        raise StaleHandleError(shown, f"it is not one of group {group!r} and topic {topic!r}")
    return PopHandle(*_BODY.unpack(body)[1:])


def _checksum(group: str, topic: str, body: bytes) -> int:
    return zlib.crc32(f"{group}\0{topic}\0".encode() + body)
