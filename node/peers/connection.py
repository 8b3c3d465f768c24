"""A connection of the peer link: frames in and out.

Owns the receive buffer of one socket; must not know other connections or when to dial.
"""

import asyncio
from typing import Final, Protocol

from node.peers.frames import (
    FRAME_SIZE_BYTES_MAX,
    HANDSHAKE_KINDS,
    HANDSHAKE_SIZE_BYTES_MAX,
    FrameError,
    FrameKind,
    FrameParser,
    encode_head,
)
from node.peers.handshake import PeerInfo
from node.peers.stream import LinkTraffic, Side, Stream
from node.peers.types import LinkLimits
from raft.errors import PeerProtocolError
from raft.messages import NO_NODE, NodeId

_WRITTEN_SIZE_BYTES: Final = 64 << 10
"""Worth a system call of its own within a turn."""


class ConnectionOwner(Protocol):
    """Receives the events of a connection. Implemented by the link."""

    def on_made(self, connection: "PeerConnection") -> None:
        """Note that the connection has a socket."""
        ...

    def on_handshake_frame(
        self, connection: "PeerConnection", kind: FrameKind, header: bytes
    ) -> None:
        """Take a handshake frame. A late one is a violation, except for a Goodbye."""
        ...

    def on_peer_frame(
        self,
        connection: "PeerConnection",
        kind: FrameKind,
        header: bytes,
        payload: memoryview,
    ) -> None:
        """Take a frame of a proven peer. Raises PeerProtocolError."""
        ...

    def on_bad_bytes(
        self, connection: "PeerConnection", error: FrameError | PeerProtocolError
    ) -> None:
        """Close the connection, since its bytes break the protocol."""
        ...

    def on_closed(self, connection: "PeerConnection") -> None:
        """Forget the connection, which is closed. Called once for each that was made."""
        ...


class PeerConnection(Stream, asyncio.BufferedProtocol):
    """The protocol object of one connection, on either side."""

    def __init__(
        self,
        owner: ConnectionOwner,
        limits: LinkLimits,
        side: Side,
        *,
        to: NodeId = NO_NODE,
    ) -> None:
        super().__init__(limits, side, to)
        self._owner = owner
        self.had_contact = False
        """Whether bytes came since the last look."""
        self.silent_ms = 0
        self._parser = FrameParser(
            length_max=HANDSHAKE_SIZE_BYTES_MAX,
            kinds=HANDSHAKE_KINDS,
            buffer_size_bytes=HANDSHAKE_SIZE_BYTES_MAX,
        )

    def open(self, info: PeerInfo, traffic: LinkTraffic) -> None:
        """Accept all frames from here on: the handshake is done."""
        self._parser.set_limits(
            FRAME_SIZE_BYTES_MAX, frozenset(FrameKind), self._limits.buffer_size_bytes
        )
        self.meet(info, traffic)

    def send(self, kind: FrameKind, header: bytes, payload: bytes = b"") -> None:
        """Queue a frame for this turn of the loop. The caller checks the limit of queued bytes."""
        if self._transport is None or self.close_code is not None:
            return
        queue = self._queue
        if not queue:
            self._loop.call_soon(self.write_queued)
        head = encode_head(kind, header, len(payload))
        queue.append(head)
        size_bytes = len(head) + len(payload)
        if payload:
            queue.append(payload)
        self._queue_size_bytes += size_bytes
        traffic = self.traffic
        traffic.sent_frame_count += 1
        traffic.sent_size_bytes += size_bytes
        if self._queue_size_bytes >= _WRITTEN_SIZE_BYTES:
            self.write_queued()

    def note_contact(self) -> None:
        """Note that bytes came since the last look. A frame may take long over a thin link: its
        sender needs a sign of life meanwhile, or it would drop the connection and begin the frame
        anew, for ever."""
        self.had_contact, self.silent_ms = False, 0
        if self._parser.is_amid_frame:
            self.send(FrameKind.PONG, b"")

    def send_as_is(self, data: bytes) -> None:
        """Queue bytes that need not be a valid frame (node.peers.faults)."""
        if self._transport is not None and self.close_code is None:
            self.write_queued()
            self._transport.write(data)

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        attached = self.attach(transport)
        if attached is None:
            return
        # Otherwise uvloop keeps small writes until the end of the turn.
        attached.set_write_buffer_limits(high=0)
        self._owner.on_made(self)
        if self.is_ended():  # Closed during the handshake of TLS.
            attached.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_ended():
            return
        self.had_contact = True
        parser = self._parser
        parser.filled(nbytes)
        self.traffic.received_size_bytes += nbytes
        try:
            while (frame := parser.next_frame()) is not None:
                kind, header, payload = frame
                self.traffic.received_frame_count += 1
                if kind in HANDSHAKE_KINDS:
                    self._owner.on_handshake_frame(self, kind, header)
                elif kind is FrameKind.PING:
                    self.send(FrameKind.PONG, b"")
                elif kind is not FrameKind.PONG:
                    self._owner.on_peer_frame(self, kind, header, payload)
                # A kept view would show the bytes of later frames.
                payload.release()
                if self.is_ended():
                    return
        except (FrameError, PeerProtocolError) as error:
            self._owner.on_bad_bytes(self, error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.finish():
            self._owner.on_closed(self)
