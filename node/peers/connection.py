"""A connection of the peer link: frames in and out.

Owns the receive buffer of one socket; must not know other connections or when to dial.
"""

import asyncio
from typing import Final, Protocol

from node.peers.frames import (
    FRAME_SIZE_BYTES_MAX,
    HANDSHAKE_KINDS,
    HANDSHAKE_SIZE_BYTES_MAX,
    REPLY_KINDS,
    EncodedFrame,
    FrameError,
    FrameKind,
    FrameParser,
)
from node.peers.handshake import CloseCode, PeerInfo
from node.peers.stream import LinkTraffic, Side, Stream, StreamOwner
from node.peers.types import LinkLimits, TakeFrame
from raft.errors import PeerProtocolError, TermJumpError
from raft.messages import NodeId
from store.files import failpoints

_WRITTEN_SIZE_BYTES: Final = 64 << 10
"""Worth a system call of its own within a turn."""


def _drop_frame(node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
    """Drop a frame, since the link stops."""


class ConnectionOwner(StreamOwner, Protocol):
    """Receives the events of a connection. Implemented by the link."""

    has_more: bool
    """Whether more bytes came with the read that brought the frame in hand; set before each."""

    def on_first_request(self, connection: "PeerConnection") -> None:
        """Note that the peer's requests come on this connection from here on."""
        ...


class PeerConnection(Stream, asyncio.BufferedProtocol):
    """The protocol object of one connection, on either side."""

    _owner: ConnectionOwner

    def __init__(self, owner: ConnectionOwner, limits: LinkLimits, side: Side, to: NodeId) -> None:
        super().__init__(owner, limits, side, to)
        self._take_frame: TakeFrame = _drop_frame
        self.had_contact = False
        """Whether bytes came since the last look."""
        self.silent_ms = 0
        self.has_requests = False
        """Whether the newest request of the peer came on this connection."""
        self._parser = FrameParser(
            length_max=HANDSHAKE_SIZE_BYTES_MAX,
            kinds=HANDSHAKE_KINDS,
            buffer_size_bytes=HANDSHAKE_SIZE_BYTES_MAX,
        )

    def open(self, info: PeerInfo, traffic: LinkTraffic, take_frame: TakeFrame) -> None:
        """Hand all frames to `take_frame` from here on: the handshake is done."""
        self._take_frame = take_frame
        self._parser.set_limits(
            FRAME_SIZE_BYTES_MAX, frozenset(FrameKind), self._limits.buffer_size_bytes
        )
        self.meet(info, traffic)

    def send(self, kind: FrameKind, header: bytes, payload: bytes = b"") -> None:
        """Queue a frame for this turn of the loop. The caller checks the limit of queued bytes."""
        self.send_encoded(EncodedFrame(kind, header, payload))

    def send_encoded(self, frame: EncodedFrame, *, at_once: bool = False) -> None:
        """Queue a frame; else as `send`.

        `at_once`: hand it to the socket now, with all frames queued before, in one write."""
        transport = self._transport
        if transport is None or self.close_code is not None:
            return
        self.traffic.sent_size_bytes += frame.size_bytes
        queue = self._queue
        if at_once and not (frame.rest or queue or failpoints.is_on):
            transport.write(frame.head)  # As `write_queued` does with one frame.
            return
        if not queue:
            self._loop.call_soon(self.write_queued)
        queue.append(frame.head)
        if frame.rest:
            queue.append(frame.rest)
        self.queue_size_bytes += frame.size_bytes
        if at_once or self.queue_size_bytes >= _WRITTEN_SIZE_BYTES:
            self.write_queued()

    def drop_frames(self) -> None:
        """Drop all frames of the peer from here on."""
        self._take_frame = _drop_frame

    def note_contact(self) -> None:
        """Note that bytes came since the last look. A frame may take long over a thin link. Its
        sender needs a sign of life meanwhile: without one it drops the connection and sends the
        frame again, for ever."""
        self.had_contact, self.silent_ms = False, 0
        if self._parser.is_amid_frame:
            self.send(FrameKind.PONG, b"")

    def send_as_is(self, data: bytes) -> None:
        """Queue bytes that need not be a valid frame (node.peers.faults)."""
        if self._transport is not None and self.close_code is None:
            self.write_queued()
            self._transport.write(data)

    # --- asyncio.BufferedProtocol ---

    def _set_up(self, transport: asyncio.Transport) -> None:
        # Otherwise uvloop keeps small writes until the end of the turn.
        transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        parser = self._parser
        if parser.lo != parser.hi or not parser.has_usual_size:
            return parser.buffer()
        parser.lo = parser.hi = 0  # As `buffer` does with an empty one.
        return parser.view

    def buffer_updated(self, nbytes: int) -> None:
        code = self.close_code
        if code is not None:
            return
        self.had_contact = True
        parser, owner = self._parser, self._owner
        parser.hi += nbytes
        self.traffic.received_size_bytes += nbytes
        try:
            while parser.hi > parser.lo and (frame := parser.next_frame()) is not None:
                kind, header, payload = frame
                if kind in HANDSHAKE_KINDS:
                    owner.on_handshake_frame(self, kind, header)
                elif kind is FrameKind.PING:
                    self.send(FrameKind.PONG, b"")
                elif kind is not FrameKind.PONG:
                    assert self.info is not None, "the parser lets no other kind through"
                    if not self.has_requests and kind not in REPLY_KINDS:
                        owner.on_first_request(self)
                    owner.has_more = parser.hi > parser.lo
                    self._take_frame(self.info.node_id, kind, header, payload)
                if payload:  # A kept view would show the bytes of later frames.
                    payload.release()
                code = self.close_code
                if code is not None:
                    return
        except (FrameError, PeerProtocolError) as error:
            code = CloseCode.TERM_JUMP if isinstance(error, TermJumpError) else None
            owner.on_bad_bytes(self, error.detail, code)
