"""The AutoSwitchHA wire format, byte for byte, and additional frames for the fence.

Owns layouts, limits and the two incremental parsers; must not know roles or the use of a frame.
Big-endian, source: storage-formats 6.6. A link is dialled by the slave side, so the direction tells
a request from a reply where both have one state. RocketMQ uses states 0 to 4; the additional ones
begin at 64 and carry a CRC-32C, because a flipped bit in a fence would be believed:

    i4 state  i4 bodySize  body  u4 CRC-32C of all before

64 HELLO, 65 BIND, 66 BOUND, 67 ADMIT, 68 a request for an image of the state, 69 a piece of one.

RocketMQ's frames have no checksum, and a flipped bit in an ack would be believed, too (fault-matrix
N16). So nodes speak a stream with checks: the head of each frame, the part of a fixed size, is
followed by the CRC-32C of the head, and a body of variable size by the CRC-32C of the body. The
additional frames keep the one at their end. A flipped size is thus found at once, and not when the
announced bytes have arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from node.replication.ha.core.types import AckMode, EpochStart, HaBinding, HaError, HaStanding
from store.files.checksum import crc32c

EPOCH_COUNT_MAX: Final = 1000
"""Entries of a handshake reply (6.6)."""
TRANSFER_SIZE_BYTES_MAX: Final = 8 << 20
"""Largest body of a transfer that is accepted; the largest record fits."""
GROUP_SIZE_BYTES_MAX: Final = 255
POSITION_MAX: Final = 1 << 60
"""A gigabyte a second for 36 years. No log would ever reach a higher noted position, such as a
readers' limit."""

_STATE_HANDSHAKE: Final = 1
_STATE_TRANSFER: Final = 2
_STATE_HELLO, _STATE_BIND, _STATE_BOUND, _STATE_ADMIT = 64, 65, 66, 67
_STATE_IMAGE_REQUEST, _STATE_IMAGE_PIECE = 68, 69

_HANDSHAKE: Final = struct.Struct(">ihhq")
_ACK: Final = struct.Struct(">iq")
_REPLY: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_TRANSFER: Final = struct.Struct(">iiqiqq")
_PREFIX: Final = struct.Struct(">ii")
_CRC: Final = struct.Struct(">I")
_HELLO: Final = struct.Struct(">qQ")
_BIND: Final = struct.Struct(">iqQB")
_MODES: Final = (AckMode.SYNC, AckMode.ASYNC)
"""Modes by their number on the wire."""
_BOUND: Final = struct.Struct(">iqQiqqqBQ")
_ADMIT: Final = struct.Struct(">iQ")
_PIECE: Final = struct.Struct(">qq")
_OWN_SIZE_BYTES_MAX: Final = _HELLO.size + GROUP_SIZE_BYTES_MAX
_PIECE_SIZE_BYTES_MAX: Final = _PIECE.size + (1 << 20)


class HaFrameError(HaError):
    """The peer sent bytes that are no frame. Nothing was changed; close the link."""

    code = "ha.frame"
    text = "{detail}; the link is closed, check what speaks at the other end"
    detail: str


class HaChecksumError(HaFrameError):
    """Bytes changed on the way. Nothing was changed; close the link, the peer dials again."""

    code = "ha.checksum"


class Handshake(NamedTuple):
    """Slave to master: a request for the log."""

    replica_id: int


class Ack(NamedTuple):
    """Slave to master: everything below `position` is synced here."""

    position: int


class HandshakeReply(NamedTuple):
    """Master to slave: its epochs, oldest first, and the end of its log."""

    end: int
    last_epoch: int
    epochs: tuple[EpochStart, ...]


class Transfer(NamedTuple):
    """Master to slave: raw bytes of one epoch; without any, a heartbeat."""

    position: int
    epoch: int
    epoch_start: int
    confirm: int
    body: bytes | memoryview = b""


class Hello(NamedTuple):
    """First frame of the side that dialled."""

    replica_id: int
    incarnation: int
    group: str


class Bind(NamedTuple):
    """Candidate or master to replica: accept this epoch and refuse all older ones."""

    binding: HaBinding
    mode: AckMode = AckMode.SYNC
    """When this master acks: its followers keep this mode if they become master."""


class Bound(NamedTuple):
    """Replica to candidate: its binding (perhaps not the requested one), and its log."""

    binding: HaBinding
    last_epoch: int
    end: int
    confirm: int
    """Limit of readers at this replica."""
    known_confirm: int
    """The highest confirm offset that any master sent to this replica; its log may be shorter."""
    standing: HaStanding
    incarnation: int


class Admit(NamedTuple):
    """Master to replica: the log is complete, count as a full replica from this epoch on."""

    number: int
    incarnation: int


class ImageRequest(NamedTuple):
    """Replica to master: a request for the state, as the log does not reach back far enough."""


class ImagePiece(NamedTuple):
    """Master to replica: bytes of an image, from `at` on."""

    size_bytes: int
    """Size of the whole image."""
    at: int
    body: bytes


UpFrame: TypeAlias = Handshake | Ack | Hello | Bound | ImageRequest
"""Sent by the side that dialled."""
DownFrame: TypeAlias = HandshakeReply | Transfer | Bind | Admit | ImagePiece
"""Sent to the side that dialled."""
Frame: TypeAlias = UpFrame | DownFrame
FrameT = TypeVar("FrameT", UpFrame, DownFrame)


def transfer_head(frame: Transfer, body_size_bytes: int) -> bytes:
    """Return the head of a body that is sent from the mapping without a copy: 36 bytes, and 4 of
    check. The body and its `body_check` have to follow."""
    head = _TRANSFER.pack(
        _STATE_TRANSFER,
        body_size_bytes,
        frame.position,
        frame.epoch,
        frame.epoch_start,
        frame.confirm,
    )
    return head + body_check(head)


def body_check(data: bytes) -> bytes:
    """Return the check of a head or a body. Slaves at the same position share that of a body."""
    return _CRC.pack(crc32c(data))


def encode(frame: Frame) -> bytes:
    """Encode any frame."""
    match frame:
        case Handshake(replica_id):
            head = _HANDSHAKE.pack(_STATE_HANDSHAKE, 0, 0, replica_id)
            return head + body_check(head)
        case Ack(position):
            head = _ACK.pack(_STATE_TRANSFER, position)
            return head + body_check(head)
        case HandshakeReply(end, last_epoch, epochs):
            assert len(epochs) <= EPOCH_COUNT_MAX, f"{len(epochs)} epochs"
            size_bytes = _EPOCH.size * len(epochs)
            head = _REPLY.pack(_STATE_HANDSHAKE, size_bytes, end, last_epoch)
            body = b"".join(_EPOCH.pack(*epoch) for epoch in epochs)
            return head + body_check(head) + body + body_check(body)
        case Transfer():
            body = bytes(frame.body)
            return transfer_head(frame, len(body)) + body + body_check(body)
        case Hello(replica_id, incarnation, group):
            name = group.encode()
            assert len(name) <= GROUP_SIZE_BYTES_MAX, f"the name of group {group!r} is too long"
            return _own(_STATE_HELLO, _HELLO.pack(replica_id, incarnation) + name)
        case Bind(binding, mode):
            return _own(_STATE_BIND, _BIND.pack(*binding, _MODES.index(mode)))
        case Bound():
            body = _BOUND.pack(
                *frame.binding,
                frame.last_epoch,
                frame.end,
                frame.confirm,
                frame.known_confirm,
                frame.standing.value,
                frame.incarnation,
            )
            return _own(_STATE_BOUND, body)
        case Admit():
            return _own(_STATE_ADMIT, _ADMIT.pack(*frame))
        case ImageRequest():
            return _own(_STATE_IMAGE_REQUEST, b"")
        case ImagePiece(size_bytes, at, body):
            return _own(_STATE_IMAGE_PIECE, _PIECE.pack(size_bytes, at) + body)


def _own(state: int, body: bytes) -> bytes:
    head = _PREFIX.pack(state, len(body))
    return head + body_check(head) + body + body_check(head + body)


class _Layout(NamedTuple):
    """A frame on the wire. Its head is verified before its body is there."""

    head: struct.Struct
    frame: Callable[[tuple[int, ...], bytes], Any]
    """Makes the frame of the fields of the head and of the body. Raises HaFrameError."""
    body_size_bytes_max: int | None = None
    """The second field of the head is the size of the body; None: there is no body."""
    body_unit_size_bytes: int = 1
    is_whole_checked: bool = False
    """Whether the check of the body is of the head as well."""


class _Parser(Generic[FrameT]):
    """Turns bytes into frames. Holds at most one incomplete frame."""

    _layouts: ClassVar[dict[int, _Layout]]
    """By state."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._broken = False

    @property
    def held_size_bytes(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[FrameT]:
        """Take bytes as they arrive; return the frames completed by them. Raises HaFrameError."""
        assert not self._broken, "a link is closed after its first bad frame"
        self._buffer += data
        frames: list[FrameT] = []
        try:
            while taken := self._take():
                frames.append(taken[1])
                del self._buffer[: taken[0]]
        except HaFrameError:
            self._broken = True
            self._buffer.clear()
            raise
        return frames

    def _take(self) -> tuple[int, FrameT] | None:
        """Return the size of a frame with its checks, and the frame; None: read more."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        state = int.from_bytes(buffer[:4], "big", signed=True)
        layout = self._layouts.get(state)
        if layout is None:
            raise HaFrameError(f"state {state} is unknown or not for this direction")
        head_size_bytes = layout.head.size
        end = head_size_bytes + _CRC.size
        if len(buffer) < end:
            return None
        head = bytes(buffer[:head_size_bytes])
        self._verify(head, head_size_bytes, "head")
        fields, body = layout.head.unpack(head), b""
        limit = layout.body_size_bytes_max
        if limit is not None:
            size_bytes = fields[1]
            if not 0 <= size_bytes <= limit or size_bytes % layout.body_unit_size_bytes:
                raise HaFrameError(
                    f"body of {size_bytes} bytes in a frame of state {state}, limit {limit}"
                )
            begin, end = end, end + size_bytes + _CRC.size
            if len(buffer) < end:
                return None
            body = bytes(memoryview(buffer)[begin : begin + size_bytes])
            checked_too = head if layout.is_whole_checked else b""
            self._verify(checked_too + body, begin + size_bytes, "body")
        return end, layout.frame(fields, body)

    def _verify(self, data: bytes, check_at: int, what: str) -> None:
        if crc32c(data) != _CRC.unpack_from(self._buffer, check_at)[0]:
            state = int.from_bytes(self._buffer[:4], "big", signed=True)
            raise HaChecksumError(f"the checksum of a {what} of state {state} is wrong")


def _check_positions(*positions: int) -> None:
    for position in positions:
        if position > POSITION_MAX:
            raise HaFrameError(f"position {position}, at most {POSITION_MAX} can be")


def _unpack(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != layout.size:
        raise HaFrameError(f"body of {len(body)} bytes where {layout.size} are due")
    return layout.unpack(body)


def _handshake(head: tuple[int, ...], _body: bytes) -> Handshake:
    _, last_file, learner, replica_id = head
    if last_file or learner:  # RocketMQ's modes of a slave that is no whole copy.
        raise HaFrameError(f"flags {last_file}, {learner} of a handshake, not 0")
    return Handshake(replica_id)


def _reply(head: tuple[int, ...], body: bytes) -> HandshakeReply:
    _, _, end, last_epoch = head
    epochs = tuple(EpochStart(*item) for item in _EPOCH.iter_unpack(body))
    _check_positions(end, *(epoch.start for epoch in epochs))
    return HandshakeReply(end, last_epoch, epochs)


def _transfer(head: tuple[int, ...], body: bytes) -> Transfer:
    _, _, position, epoch, epoch_start, confirm = head
    _check_positions(position, epoch_start, confirm)
    return Transfer(position, epoch, epoch_start, confirm, body)


def _bind(_: tuple[int, ...], body: bytes) -> Bind:
    number, master, nonce, mode = _unpack(_BIND, body)
    if mode >= len(_MODES):
        raise HaFrameError(f"mode {mode} is unknown")
    return Bind(HaBinding(number, master, nonce), _MODES[mode])


def _piece(_: tuple[int, ...], body: bytes) -> ImagePiece:
    if len(body) < _PIECE.size:
        raise HaFrameError(f"a piece of an image of {len(body)} bytes")
    size_bytes, at = _PIECE.unpack_from(body)
    return ImagePiece(size_bytes, at, body[_PIECE.size :])


def _hello(_: tuple[int, ...], body: bytes) -> Hello:
    if len(body) < _HELLO.size:
        raise HaFrameError(f"body of {len(body)} bytes where {_HELLO.size} are due")
    replica_id, incarnation = _HELLO.unpack_from(body)
    try:
        return Hello(replica_id, incarnation, body[_HELLO.size :].decode())
    except UnicodeDecodeError as error:
        raise HaFrameError("the name of the group is not UTF-8") from error


def _bound(_: tuple[int, ...], body: bytes) -> Bound:
    number, master, nonce, epoch, end, confirm, known_confirm, standing, inc = _unpack(_BOUND, body)
    if standing not in (HaStanding.FULL.value, HaStanding.JOINING.value):
        raise HaFrameError(f"standing {standing} is unknown")
    _check_positions(end, confirm, known_confirm)
    binding = HaBinding(number, master, nonce)
    return Bound(binding, epoch, end, confirm, known_confirm, HaStanding(standing), inc)


def _own_layout(
    frame: Callable[[tuple[int, ...], bytes], Any], size_bytes_max: int = _OWN_SIZE_BYTES_MAX
) -> _Layout:
    return _Layout(_PREFIX, frame, size_bytes_max, is_whole_checked=True)


class UpParser(_Parser[UpFrame]):
    """Reads the stream from the slave side."""

    _layouts: ClassVar = {
        _STATE_HANDSHAKE: _Layout(_HANDSHAKE, _handshake),
        _STATE_TRANSFER: _Layout(_ACK, lambda head, _: Ack(head[1])),
        _STATE_HELLO: _own_layout(_hello),
        _STATE_BOUND: _own_layout(_bound),
        _STATE_IMAGE_REQUEST: _own_layout(lambda *_: ImageRequest(), 0),
    }


class DownParser(_Parser[DownFrame]):
    """Reads the stream from the master side."""

    _layouts: ClassVar = {
        _STATE_HANDSHAKE: _Layout(_REPLY, _reply, EPOCH_COUNT_MAX * _EPOCH.size, _EPOCH.size),
        _STATE_TRANSFER: _Layout(_TRANSFER, _transfer, TRANSFER_SIZE_BYTES_MAX),
        _STATE_BIND: _own_layout(_bind),
        _STATE_ADMIT: _own_layout(lambda _, body: Admit(*_unpack(_ADMIT, body))),
        _STATE_IMAGE_PIECE: _own_layout(_piece, _PIECE_SIZE_BYTES_MAX),
    }
