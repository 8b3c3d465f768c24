"""One TCP connection between two nodes: who is at the other end, bytes out, and its end.

Owns the socket, the queue of a turn and the state of one handshake; must not know other connections
or the frames that come in, which the connection of each link reads. Works on asyncio and on uvloop.
Small frames sent in one turn of the loop leave in one system call, which was measured to take two
thirds of the time of one write each.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol, cast

from node.peers.frames import JOINED_SIZE_BYTES_MAX, FrameKind, encode_head
from node.peers.handshake import CloseCode, PeerInfo, goodbye
from node.peers.types import LinkLimits
from raft.lives import Known
from raft.messages import NodeId
from store.files import failpoints


def _nothing() -> int:
    return 0


class Side(Enum):
    """The side that opened a connection."""

    DIALLED = "dialled"
    ACCEPTED = "accepted"


class StreamOwner(Protocol):
    """Receives the events of its connections, which are all of one class."""

    def on_made(self, connection: Any, /) -> None:
        """Note that the connection has a socket."""
        ...

    def on_handshake_frame(self, connection: Any, kind: FrameKind, header: bytes, /) -> None:
        """Take a handshake frame. A late one is a violation, except for a Goodbye."""
        ...

    def on_bad_bytes(self, connection: Any, detail: str, code: CloseCode | None, /) -> None:
        """Close the connection, since its bytes break the protocol. None: the usual code."""
        ...

    def on_lost(self, connection: Any, /) -> None:
        """Forget the connection, which is closed. Called once for each that was made."""
        ...


class LinkTraffic:
    """Bytes over the connections to one peer, since the start, and frames that had no room."""

    __slots__ = ("dropped_full_count", "received_size_bytes", "sent_size_bytes")

    def __init__(self) -> None:
        self.received_size_bytes = self.sent_size_bytes = self.dropped_full_count = 0


class Stream(asyncio.BaseProtocol):
    """The half of a connection that is the same in both modes; the other one is an asyncio protocol
    that reads frames."""

    def __init__(self, owner: StreamOwner, limits: LinkLimits, side: Side, to: NodeId) -> None:
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
        self.traffic = LinkTraffic()
        """Counters of the peer, once it is known."""
        self.close_code: CloseCode | None = None
        """Why this side closed it. None while open, or if the other side or the network closed
        it."""
        self.opened: asyncio.Future[bool] = self._loop.create_future()
        """True at the end of the handshake, False if the connection ended before."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.remote = "an unknown address"
        """Address of the other end, for people."""
        self.harm: Callable[[list[bytes]], list[bytes]] | None = None
        """Damage by a test to the outgoing bytes (node.peers.faults)."""
        self._transport: asyncio.Transport | None = None
        self._cutter: asyncio.TimerHandle | None = None
        self.unsent_size_bytes: Callable[[], int] = _nothing
        """Returns the bytes that the transport has and the kernel has not."""
        self._queue: list[bytes] = []
        self.queue_size_bytes = 0
        """Bytes sent in this turn that the transport does not have yet."""

    @property
    def queued_size_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self.queue_size_bytes + self.unsent_size_bytes()

    def meet(self, info: PeerInfo, traffic: LinkTraffic) -> None:
        """Note the peer: the handshake is done."""
        self.info, self.traffic = info, traffic
        self._resolve_opened(True)

    # --- Sending ---

    def send_bytes(self, data: bytes) -> None:
        """Queue one frame, or a part of it, for this turn of the loop."""
        if self._transport is None or self.close_code is not None:
            return
        if not self._queue:
            self._loop.call_soon(self.write_queued)
        self._queue.append(data)
        self.queue_size_bytes += len(data)
        self.traffic.sent_size_bytes += len(data)

    def send_handshake(self, kind: FrameKind, header: bytes) -> None:
        """Queue a frame of the handshake."""
        self.send_bytes(encode_head(kind, header))

    def write_queued(self) -> None:
        """Hand queued bytes to the socket now; otherwise this happens at the end of the turn."""
        queue, transport = self._queue, self._transport
        if not queue or transport is None or self.close_code is not None:
            return
        if failpoints.is_on:
            failpoints.hit("peer_connection.before_send")
        size_bytes, self.queue_size_bytes = self.queue_size_bytes, 0
        self._queue = []
        if self.harm is not None:
            queue = self.harm(queue)
        if len(queue) == 1:
            transport.write(queue[0])
        elif size_bytes <= JOINED_SIZE_BYTES_MAX:
            transport.write(b"".join(queue))
        else:
            transport.writelines(queue)
        if failpoints.is_on:
            failpoints.hit("peer_connection.after_send")

    # --- The end ---

    def close(self, code: CloseCode, detail: str, *, goodbye_too: bool) -> None:
        """End the connection, with a Goodbye or without. Later calls change nothing."""
        if self.close_code is not None:
            return
        if goodbye_too:
            self.send_handshake(FrameKind.GOODBYE, goodbye(code, detail))
        self.write_queued()
        self.close_code = code
        transport = self._transport
        if transport is None:
            self._resolve_opened(False)
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
        self._transport, self.unsent_size_bytes = None, _nothing
        if not self.closed.done():
            self._finish()

    def _finish(self) -> None:
        if self._cutter is not None:
            self._cutter.cancel()
        self._queue.clear()
        self.queue_size_bytes = 0
        self.closed.set_result(None)
        self._resolve_opened(False)

    # --- asyncio.BaseProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        attached = cast(asyncio.Transport, transport)
        if self.closed.done():  # Abandoned before.
            attached.abort()
            return
        self._transport = attached
        self.unsent_size_bytes = attached.get_write_buffer_size
        name = attached.get_extra_info("peername")
        if name:
            self.remote = f"{name[0]}:{name[1]}"
        self._set_up(attached)
        self._owner.on_made(self)
        if self.is_ended():  # Closed during the handshake of TLS.
            attached.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self._finish()
            self._owner.on_lost(self)

    def _set_up(self, transport: asyncio.Transport) -> None:
        """Set options of the socket."""
        raise NotImplementedError

    def is_ended(self) -> bool:
        """Whether this side closed the connection. A method, since handling a frame may close
        it."""
        return self.close_code is not None

    def _resolve_opened(self, is_open: bool) -> None:
        if not self.opened.done():
            self.opened.set_result(is_open)
