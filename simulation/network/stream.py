"""Streams of bytes between two processes: order, flow control, and their ends.

A stream is closed, reset, or silent because the other machine lost its power. What a process wrote
and its machine did not deliver is gone with a reset.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import Any, Final, Protocol

from simulation.kernel.hub import NS_PER_S
from simulation.kernel.process import Process
from simulation.network.links import RETRANSMIT_NS, Links

WINDOW_SIZE_BYTES: Final = 256 * 1024
"""Bytes on the way and unread by the receiver, at most; the rest waits at the sender."""
SEGMENT_SIZE_BYTES_MAX: Final = 64 * 1024
PROBE_NS: Final = 5 * NS_PER_S
"""Time between two probes of a stream that is kept alive."""
PROBE_COUNT: Final = 3
"""Probes without an answer after which a stream that is kept alive ends."""
STREAM_TIMEOUT_NS: Final = 30 * NS_PER_S
"""Silence with bytes under way after which a stream is reset."""


class Receiver(Protocol):
    """The transport on one end, which hears of the events of its stream."""

    def on_received(self) -> None:
        """Bytes, or the end of them, have arrived."""

    def on_room(self) -> None:
        """Bytes have left."""

    def on_lost(self, error: OSError | None) -> None:
        """The stream has ended without this side's doing."""


class End:
    """One end of a stream: what it sends, and what has arrived."""

    def __init__(self, process: Process, local: tuple[str, int], remote: tuple[str, int]) -> None:
        self.process, self.local, self.remote = process, local, remote
        self._name = f"{local[0]}:{local[1]}>{remote[0]}:{remote[1]}"
        self.other: End
        self.transport: Receiver | None = None
        self.is_open = True
        self.received: deque[bytes] = deque()
        self.received_size_bytes = 0
        self.is_eof = False
        self.error: OSError | None = None
        self._is_reading_over = False
        self._unsent: deque[bytes] = deque()
        self.unsent_size_bytes = 0
        self._flying_size_bytes = 0
        self._last_arrival_ns = 0
        self._blocked_since_ns: int | None = None
        self._is_finished = False
        """Whether the last bytes were written."""
        self._is_eof_sent = False
        self._retry: Any = None
        process.on_end.append(self._process_ended)

    # --- Sending ---

    def send(self, data: bytes) -> None:
        """Queue bytes."""
        if self.is_open and not self._is_finished:
            self._unsent.append(data)
            self.unsent_size_bytes += len(data)
            self._push()

    def finish(self) -> None:
        """Send what is queued and then the end of the stream."""
        if not self._is_finished:
            self._is_finished = True
            self._push()

    def abort(self) -> None:
        """Reset the stream; bytes under way from here may still arrive."""
        if not self.is_open:
            return
        self.is_open = False
        self._unsent.clear()
        self.unsent_size_bytes = 0
        self._deliver_end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _process_ended(self) -> None:
        if self.process.machine.has_power:
            self.abort()
        self.is_open = False  # Without power no end learns of it.

    def _push(self) -> None:
        """Put as much under way as the window allows."""
        network: Links = self.process.machine.network
        source, target = self.local[0], self.remote[0]
        if not self.is_open or self._retry is not None:
            return
        if not self._unsent and (not self._is_finished or self._is_eof_sent):
            return
        hub = network.hub
        if network.is_cut(source, target) or not self.other.process.machine.has_power:
            if self._blocked_since_ns is None:
                self._blocked_since_ns = hub.now_ns
            if hub.now_ns - self._blocked_since_ns > STREAM_TIMEOUT_NS:
                self._lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
                return
            self._retry = hub.after(RETRANSMIT_NS, self._push_again)
            return
        self._blocked_since_ns = None
        while self._unsent:
            room = WINDOW_SIZE_BYTES - self._flying_size_bytes - self.other.received_size_bytes
            if room <= 0:
                return
            segment = self._segment(min(room, SEGMENT_SIZE_BYTES_MAX))
            self._flying_size_bytes += len(segment)
            hub.at(self._arrival_ns(len(segment)), self._arrive, segment)
        if self._is_finished and not self._is_eof_sent:
            self._is_eof_sent = True
            hub.at(self._arrival_ns(0), self._arrive_eof)

    def _push_again(self) -> None:
        self._retry = None
        self._push()

    def _segment(self, size_bytes_max: int) -> bytes:
        """Take the next bytes: as a stream has no borders, where it is split is drawn."""
        parts: list[bytes] = []
        size_bytes = 0
        while self._unsent and size_bytes < size_bytes_max:
            part = self._unsent.popleft()
            room = size_bytes_max - size_bytes
            if len(part) > room:
                self._unsent.appendleft(part[room:])
                part = part[:room]
            parts.append(part)
            size_bytes += len(part)
        data = b"".join(parts)
        random = self.process.machine.network.random
        if len(data) > 1 and random.randrange(8) == 0:
            at = random.randrange(1, len(data))
            self._unsent.appendleft(data[at:])
            data = data[:at]
        self.unsent_size_bytes -= len(data)
        return data

    def _arrival_ns(self, size_bytes: int) -> int:
        network: Links = self.process.machine.network
        delay_ns = network.delay_ns(self.local[0], self.remote[0], size_bytes)
        at_ns = max(network.hub.now_ns + delay_ns, self._last_arrival_ns + 1)
        self._last_arrival_ns = at_ns
        return at_ns

    def _arrive(self, segment: bytes) -> None:
        network: Links = self.process.machine.network
        if network.is_cut(self.local[0], self.remote[0]):
            # It was lost on the way, and is sent again until it arrives or the stream ends.
            self._last_arrival_ns = max(self._last_arrival_ns, network.hub.now_ns + RETRANSMIT_NS)
            if self._blocked_since_ns is None:
                self._blocked_since_ns = network.hub.now_ns
            if network.hub.now_ns - self._blocked_since_ns > STREAM_TIMEOUT_NS:
                self._lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
                return
            network.hub.after(RETRANSMIT_NS, self._arrive, segment)
            return
        self._flying_size_bytes -= len(segment)
        network.hub.note(f"{self._name} {len(segment)}")
        self.other.take(segment)
        if self.transport is not None:
            self.transport.on_room()

    def _arrive_eof(self) -> None:
        network: Links = self.process.machine.network
        if network.is_cut(self.local[0], self.remote[0]):
            network.hub.after(RETRANSMIT_NS, self._arrive_eof)
            return
        self.other.take_eof()

    def _deliver_end(self, error: OSError) -> None:
        network: Links = self.process.machine.network
        if not network.is_cut(self.local[0], self.remote[0]):
            network.hub.at(self._arrival_ns(0), self.other.reset, error)

    def _lose(self, error: OSError) -> None:
        """End this end alone; the other one finds out later, or never."""
        if self.is_open:
            self.is_open = False
            self._tell(error)

    def keep_alive(self, unanswered_count: int = 0) -> None:
        """Probe the other end from now on: its machine may have lost its power in silence."""
        network: Links = self.process.machine.network
        network.hub.after(PROBE_NS, self._probe, unanswered_count)

    def _probe(self, unanswered_count: int) -> None:
        if not self.is_open:
            return
        network: Links = self.process.machine.network
        here, there = self.local[0], self.remote[0]
        is_cut = network.is_cut(here, there) or network.is_cut(there, here)
        if not is_cut and self.other.process.machine.has_power:
            unanswered_count = 0
            if not self.other.is_open:  # As a machine does for a connection that it does not know.
                self.reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif unanswered_count == PROBE_COUNT:
            self._lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        else:
            unanswered_count += 1
        self.keep_alive(unanswered_count)

    # --- Receiving ---

    def take(self, segment: bytes) -> None:
        """Take bytes that have arrived."""
        if not self.is_open or self._is_reading_over:
            if self.process.machine.has_power:  # As a machine does for a closed port.
                self.other.reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self.received.append(segment)
        self.received_size_bytes += len(segment)
        if self.transport is not None:
            self.transport.on_received()

    def stop_reading(self) -> None:
        """Take nothing more; a peer that still sends gets a reset."""
        self._is_reading_over = True
        self.received.clear()
        self.received_size_bytes = 0

    def take_eof(self) -> None:
        """Take the end of what the other side sends."""
        if self.is_open:
            self.is_eof = True
            if self.transport is not None:
                self.transport.on_received()

    def reset(self, error: OSError) -> None:
        """Take a reset."""
        if self.is_open:
            self.is_open = False
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        self.error = error
        self._unsent.clear()
        self.unsent_size_bytes = 0
        if self.transport is not None:
            self.transport.on_lost(error)

    def read(self) -> bytes:
        """Take a segment for the protocol, and let the sender go on."""
        segment = self.received.popleft()
        self.received_size_bytes -= len(segment)
        other = self.other
        if other.is_open:
            other._push()
        return segment
