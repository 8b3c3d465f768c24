"""An image: the state for a replica whose log does not reach back far enough to build it.

Owns its content and bytes; must not know how it travels. It holds no log: the state as of one
position, the epoch of the byte before (both name the log below permanently), and where the log of
the sender begins, with the next offsets of all queues there, for an empty log.

Bytes: `QLHAIM1\\n`, u32 size of the header, header (JSON), state, CRC-32C of all before it.
"""

import json
import struct
from typing import Final, NamedTuple

from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import EpochStart
from node.state.image import decode_image, encode_image
from node.state.state import StateImage
from quorumlog.foreign_json import read_json
from store.errors import CorruptionError
from store.files.checksum import crc32c
from store.record.stamp import QueueKey

_MAGIC: Final = b"QLHAIM1\n"
_U32: Final = struct.Struct(">I")
_HEADER_AT: Final = len(_MAGIC) + _U32.size


class LogImage(NamedTuple):
    """The log begins at `begin`; the state has applied everything before `position`."""

    begin: int
    next_offsets: dict[QueueKey, int]
    epoch: EpochStart
    """Epoch of the byte before `position`."""
    state: StateImage

    @property
    def position(self) -> int:
        """Position before which the state has applied everything."""
        return self.state.applied_index + 1


def encode(image: LogImage) -> bytes:
    """Return the bytes of an image."""
    rows = sorted([topic.decode(), i, offset] for (topic, i), offset in image.next_offsets.items())
    header = json.dumps({"begin": image.begin, "epoch": image.epoch, "next_offsets": rows}).encode()
    state = encode_image(image.state)
    content = b"".join((_MAGIC, _U32.pack(len(header)), header, state))
    return content + _U32.pack(crc32c(content))


def decode(data: bytes) -> LogImage:
    """Return the image of these bytes. Raises HaProtocolError."""
    hi = len(data) - _U32.size
    if hi < _HEADER_AT or not data.startswith(_MAGIC):
        raise HaProtocolError("what was sent as an image does not begin like one")
    if crc32c(data[:hi]) != _U32.unpack_from(data, hi)[0]:
        raise HaProtocolError("the checksum of an image is wrong")
    header_hi = _HEADER_AT + _U32.unpack_from(data, len(_MAGIC))[0]
    try:
        header = read_json(data[_HEADER_AT:header_hi])
        begin, epoch = int(header["begin"]), EpochStart(*map(int, header["epoch"]))
        rows = header["next_offsets"]
        next_offsets = {(str(topic).encode("ascii"), int(i)): int(o) for topic, i, o in rows}
        image = LogImage(begin, next_offsets, epoch, decode_image(data[header_hi:hi]))
    except (KeyError, TypeError, ValueError, OverflowError, CorruptionError) as error:
        raise HaProtocolError(f"an image is no image: {error!r}") from error
    if not 0 <= begin <= image.position:
        raise HaProtocolError(f"an image of {image.position} for a log from {begin}")
    return image
