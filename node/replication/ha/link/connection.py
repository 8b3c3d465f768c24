"""A connection of the HA link: the peer handshake, then AutoSwitchHA bytes.

Owns the bytes of one socket that were read and not taken; must not know other connections, or the
use of a frame. The handshake is that of the raft peer link, so identity, secret and TLS mean the
same in both modes. It is followed by the stream of storage-formats 6.6 and by no other bytes.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from node.peers.frames import (
    HANDSHAKE_KINDS,
    HANDSHAKE_SIZE_BYTES_MAX,
    FrameError,
    FrameParser,
)
from node.peers.handshake import CloseCode, PeerInfo
from node.peers.stream import LinkTraffic, Side, Stream, StreamOwner
from node.peers.types import LinkLimits
from node.replication.ha.core.wire import (
    DownParser,
    HaChecksumError,
    HaFrameError,
    UpParser,
    encode,
)
from node.replication.ha.core.wire import Frame as HaFrame
from raft.messages import NodeId

QUEUED_SIZE_BYTES_MAX: Final = 16 << 20
"""Bytes waiting for one socket: four times the window of a slave. A slower reader is dropped."""
KEEPALIVE_S: Final = 5
"""Silence after which the kernel probes the other machine; after three unanswered probes the
connection ends. The machine's own time-out finds a hanging process."""


TakeHaFrame: TypeAlias = "Callable[[HaConnection, HaFrame], bool]"
"""Takes a frame; returns whether it did. If not, `HaConnection.resume` offers it again."""


class HaConnection(Stream, asyncio.Protocol):
    """The protocol object of one connection, on either side. Also serves as the machine's link
    id."""

    def __init__(self, owner: StreamOwner, limits: LinkLimits, side: Side, to: NodeId) -> None:
        super().__init__(owner, limits, side, to)
        self._take_frame: TakeHaFrame = lambda *_: False
        self._parser: UpParser | DownParser = DownParser() if side is Side.DIALLED else UpParser()
        self._held = bytearray()
        """Bytes of the handshake; later those that arrived before `begin`."""
        self._has_begun = False
        self._frames: deque[HaFrame] = deque()
        """Complete frames not yet taken by the owner; if there are any, reading is paused."""

    @property
    def peer(self) -> NodeId:
        """The node at the other end; only after the handshake."""
        assert self.info is not None, "the handshake is not over"
        return self.info.node_id

    def open(self, info: PeerInfo, traffic: LinkTraffic, take_frame: TakeHaFrame) -> None:
        """Hand all frames to `take_frame` from `begin` on: the handshake is done."""
        assert self._transport is not None, "a handshake without a socket"
        self._take_frame = take_frame
        self._transport.pause_reading()
        self.meet(info, traffic)

    def begin(self) -> None:
        """Hand out frames from now on."""
        if self._has_begun or self._transport is None or self.close_code is not None:
            return
        self._has_begun = True
        held, self._held = bytes(self._held), bytearray()
        self._transport.resume_reading()
        if held:
            self._take(held)

    def resume(self) -> None:
        """Offer the refused frame again, and read on once it is taken."""
        if self._transport is None or self.is_ended() or not self._frames:
            return
        if self._hand_out():
            self._transport.resume_reading()

    # --- Sending ---

    def send(self, data: bytes) -> None:
        """Queue bytes for this turn of the loop; too many of them end the connection."""
        self.send_bytes(data)
        if self.queued_size_bytes > QUEUED_SIZE_BYTES_MAX and not self.is_ended():
            self.traffic.dropped_full_count += 1
            # Not from within the call that sends.
            self._loop.call_soon(
                self._owner.on_bad_bytes, self, "it does not read what it is sent", CloseCode.SILENT
            )

    def send_frame(self, frame: HaFrame) -> None:
        """Queue a frame."""
        self.send(encode(frame))

    # --- asyncio.Protocol ---

    def _set_up(self, transport: asyncio.Transport) -> None:
        """Have the kernel detect that the other machine is gone without a Goodbye."""
        stream: socket.socket = transport.get_extra_info("socket")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def data_received(self, data: bytes) -> None:
        if self.is_ended():
            return
        self.traffic.received_size_bytes += len(data)
        if self._has_begun:
            self._take(data)
            return
        self._held += data
        while self.info is None and not self.is_ended() and self._take_handshake():
            pass

    # --- Internals ---

    def _take(self, data: bytes) -> None:
        try:
            frames = self._parser.feed(data)
        except HaFrameError as error:
            is_changed = isinstance(error, HaChecksumError)
            code = CloseCode.BAD_CHECKSUM if is_changed else None
            self._owner.on_bad_bytes(self, str(error), code)
            return
        self._frames += frames
        if not self._hand_out() and self._transport is not None:
            self._transport.pause_reading()

    def _hand_out(self) -> bool:
        """Hand out the complete frames; return False if the owner makes the next one wait."""
        frames = self._frames
        while frames and not self.is_ended():
            if not self._take_frame(self, frames[0]):
                return self.is_ended()
            frames.popleft()
        return True

    def _take_handshake(self) -> bool:
        """Take one frame of the handshake, and optional ones of a later version before it; return
        whether there may be another one."""
        parser = FrameParser(
            length_max=HANDSHAKE_SIZE_BYTES_MAX - 4,
            kinds=HANDSHAKE_KINDS,
            buffer_size_bytes=HANDSHAKE_SIZE_BYTES_MAX,
        )
        held = self._held[:HANDSHAKE_SIZE_BYTES_MAX]
        parser.buffer()[: len(held)] = held
        parser.filled(len(held))
        try:
            frame = parser.next_frame()
        except FrameError as error:
            self._owner.on_bad_bytes(self, error.detail, None)
            return False
        del self._held[: parser.lo]
        if frame is None:  # A whole one may lie behind the optional ones that are gone.
            return parser.lo > 0
        self._owner.on_handshake_frame(self, frame[0], frame[1])
        return True
