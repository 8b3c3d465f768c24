"""One TCP connection of the peer link: frames in, frames out, and its end.

Owns the buffers of one socket and the state of one handshake; must not know other connections or
when to dial. Works on asyncio and on uvloop. Small frames sent in one turn of the loop leave in one
system call, which was measured to take two thirds of the time of one write each.
"""

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Protocol, cast

from node.peers.frames import (
    FRAME_SIZE_BYTES_MAX,
    HANDSHAKE_KINDS,
    HANDSHAKE_SIZE_BYTES_MAX,
    FrameError,
    FrameKind,
    FrameParser,
    encode_head,
)
from node.peers.handshake import CloseCode, PeerInfo, goodbye
from node.peers.types import LinkLimits
from raft.errors import PeerProtocolError
from raft.lives import Known
from raft.messages import NO_NODE, NodeId
from store.files.failpoints import hit

_JOINED_SIZE_BYTES_MAX = (
    16 << 10
)  # Joining smaller buffers is cheaper than passing them one by one.
_WRITTEN_SIZE_BYTES = 64 << 10  # Worth a system call of its own within a turn.


class Side(Enum):
    """The side that opened a connection."""

    DIALLED = "dialled"
    ACCEPTED = "accepted"


class Traffic:
    """Frames and bytes over the connections to one peer, since the start."""

    __slots__ = (
        "received_frame_count",
        "received_size_bytes",
        "sent_frame_count",
        "sent_size_bytes",
    )

    def __init__(self) -> None:
        self.received_frame_count = self.received_size_bytes = 0
        self.sent_frame_count = self.sent_size_bytes = 0


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
        self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview
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


class PeerConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection, on either side."""

    def __init__(
        self,
        owner: ConnectionOwner,
        limits: LinkLimits,
        side: Side,
        *,
        to: NodeId = NO_NODE,
    ) -> None:
        """`to` is the node to dial; an accepted connection learns its peer in the handshake."""
        self._loop = asyncio.get_running_loop()
        self._owner, self._limits = owner, limits
        self.side, self.to = side, to
        self.info: PeerInfo | None = None
        """The peer, from the end of the handshake on. No frame is handed out before."""
        self.nonce: bytes | int | None = None
        """The nonce that the other side has to sign."""
        self.asked: Mapping[NodeId, Known] = {}
        """This node's memory of all nodes when it asked the other side for its identity."""
        self.traffic = Traffic()
        """Counters of the peer, once it is known."""
        self.close_code: CloseCode | None = None
        """Why this side closed it. None while open, or if the other side or the network closed
        it."""
        self.close_detail = ""
        self.is_heard = False
        """Whether bytes came since the last look."""
        self.silent_ms = 0
        self.opened: asyncio.Future[bool] = self._loop.create_future()
        """True at the end of the handshake, False if the connection ended before."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.remote = "an unknown address"
        """Address of the other end, for people."""
        self._transport: asyncio.Transport | None = None
        self._cutter: asyncio.TimerHandle | None = None
        self._parser = FrameParser(
            length_max=HANDSHAKE_SIZE_BYTES_MAX,
            kinds=HANDSHAKE_KINDS,
            buffer_size_bytes=HANDSHAKE_SIZE_BYTES_MAX,
        )
        self._queue: list[bytes] = []
        self._queue_size_bytes = 0
        """Bytes of frames sent in this turn that the transport does not have yet."""

    @property
    def queued_size_bytes(self) -> int:
        """Bytes of frames that the kernel has not taken yet."""
        transport = self._transport
        waiting = transport.get_write_buffer_size() if transport is not None else 0
        return self._queue_size_bytes + waiting

    def open(self, info: PeerInfo, traffic: Traffic) -> None:
        """Accept all frames from here on: the handshake is done."""
        self.info, self.traffic = info, traffic
        self._parser.set_limits(
            FRAME_SIZE_BYTES_MAX, frozenset(FrameKind), self._limits.buffer_size_bytes
        )
        if not self.opened.done():
            self.opened.set_result(True)

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

    def heard(self) -> None:
        """Note that bytes came since the last look. A frame may take long over a thin link: its
        sender needs a sign of life meanwhile, or it would drop the connection and begin the frame
        anew, for ever."""
        self.is_heard, self.silent_ms = False, 0
        if self._parser.is_amid_frame:
            self.send(FrameKind.PONG, b"")

    def send_as_is(self, data: bytes) -> None:
        """Queue bytes that need not be a valid frame (node.peers.faults)."""
        if self._transport is not None and self.close_code is None:
            self.write_queued()
            self._transport.write(data)

    def close(self, code: CloseCode, detail: str, *, goodbye_too: bool) -> None:
        """End the connection, with a Goodbye or without. Later calls change nothing."""
        if self.close_code is not None:
            return
        if goodbye_too:
            self.send(FrameKind.GOODBYE, goodbye(code, detail))
        self.write_queued()
        self.close_code, self.close_detail = code, detail
        transport = self._transport
        if transport is None:
            self._resolve_opened()
        elif goodbye_too:
            # Queued bytes have a moment to leave; a peer that does not read is not waited for.
            self._cutter = self._loop.call_later(self._limits.close_ms_max / 1000, transport.abort)
            transport.close()
        else:
            transport.abort()

    def abandon(self) -> None:
        """Finish a connection whose socket the loop gave up while connecting.

        uvloop closes such a socket without `connection_lost` when the connecting call is
        cancelled."""
        self._transport = None
        if not self.closed.done():
            self._finish()

    def cut(self) -> None:
        """Close the socket now, with whatever is still queued."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.closed.done():  # Abandoned in between.
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if name:
            self.remote = f"{name[0]}:{name[1]}"
        # Otherwise uvloop keeps small writes until the end of the turn.
        self._transport.set_write_buffer_limits(high=0)
        self._owner.on_made(self)
        if self.close_code is not None:  # Closed during the handshake of TLS.
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_ended():
            return
        self.is_heard = True
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
                    assert self.info is not None, "the parser lets no other kind through"
                    self._owner.on_peer_frame(self.info.node_id, kind, header, payload)
                # A kept view would show the bytes of later frames.
                payload.release()
                if self._is_ended():
                    return
        except (FrameError, PeerProtocolError) as error:
            self._owner.on_bad_bytes(self, error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self._finish()
            self._owner.on_closed(self)

    # --- Internals ---

    def _is_ended(self) -> bool:
        """Whether this side closed the connection. A method, since handling a frame may close
        it."""
        return self.close_code is not None

    def _finish(self) -> None:
        if self._cutter is not None:
            self._cutter.cancel()
        self._queue.clear()
        self._queue_size_bytes = 0
        self.closed.set_result(None)
        self._resolve_opened()

    def _resolve_opened(self) -> None:
        if not self.opened.done():
            self.opened.set_result(False)

    def write_queued(self) -> None:
        """Hand queued frames to the socket now; otherwise this happens at the end of the turn."""
        queue, transport = self._queue, self._transport
        if not queue or transport is None or self.close_code is not None:
            return
        hit("peer_connection.before_send")
        size_bytes, self._queue_size_bytes = self._queue_size_bytes, 0
        self._queue = []
        if len(queue) == 1:
            transport.write(queue[0])
        elif size_bytes <= _JOINED_SIZE_BYTES_MAX:
            transport.write(b"".join(queue))
        else:
            transport.writelines(queue)
        hit("peer_connection.after_send")
