"""Bytes of requests that gRPC holds and no method has got: an estimate for each connection.

gRPC collects a message of a stream before any method sees it, and does not tell how many bytes it
holds. The kernel counts the bytes received on a connection, and methods count the bytes they took:
the difference lies with gRPC, or was overhead of HTTP/2 and TLS. The estimate allows a working
connection the overhead that it needs; otherwise it would rise with each message for as long as a
stream lives. So hiding a byte costs a client whole messages that a method takes, and the estimate
is 0 again once a connection has no stream. The estimate holds only for uncompressed requests; the
server refuses others.

Owns the arithmetic. Must not know how bytes are counted, or which streams are ended.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from node.runtime.accounts import Kind
from node.services.bounds.callers import GrpcCaller
from node.services.bounds.connection_cut import NO_TRAFFIC, TcpAddress, Traffic, address_of

_FRAMING_SIZE_BYTES: Final = 14
"""Overhead of each message, at least: the header of a frame and the length prefix."""
_CALL_SIZE_BYTES: Final = 512
"""Allowance for each call and stream: headers, windows and pings around it. 43 measured, 65 with
TLS; a client that signs each call, as RocketMQ's clients do, needs 400 more."""
_MESSAGE_SIZE_BYTES: Final = 64
"""Allowance for each message of a stream: windows, pings and TLS around it. 26 measured, 48 with
TLS."""
_REST_SIZE_BYTES_PER_S: Final = 64
"""Allowance per second for all other traffic of a client."""
_TAKEN_PER_FRAMING: Final = 256
"""Taken bytes for each byte of frame and record headers, since these have 16 KiB. 570 measured."""
_SENT_PER_CONTROL: Final = 256
"""Bytes sent for which a client returns, nearly always, at most one byte about windows."""
_LIKELY_SIZE_BYTES: Final = 1_024
"""Overhead that each message, call and second nearly always stays below."""
HALF_SIZE_BYTES_MIN: Final = 64 * 1024
"""Size that a stream may hold in any case: HTTP/2's window."""


class WatchedConnection:
    """One connection with streams of requests."""

    __slots__ = ("account", "address", "likely_since_s", "likely_size_bytes", "streams")

    def __init__(self, caller: GrpcCaller) -> None:
        self.account, self.address = caller.account, address_of(caller.peer)
        self.streams = 0
        self.likely_size_bytes = 0
        """The same, for a client with the largest overhead."""
        self.likely_since_s: float | None = None
        """Time since which likely_size_bytes is above HALF_SIZE_BYTES_MIN; None: it is not."""

    @property
    def held_size_bytes(self) -> int:
        """Upper bound of the bytes that gRPC holds, apart from bytes hidden by the allowances."""
        return self.account.sizes[Kind.HALF_STREAMS]


class HalfSent:
    """The estimates of one server. For one event loop."""

    def __init__(self, traffic: Callable[[], Mapping[TcpAddress, Traffic] | None]) -> None:
        """Read the bytes of all connections of the server from `traffic`, by the client's address;
        `traffic` returns None while they cannot be read."""
        self._traffic = traffic
        self._before: Mapping[TcpAddress, Traffic] | None = None
        self._sampled_s = 0.0
        self._taken: Counter[str] = Counter()
        """Bytes that methods took since the last sample, by peer."""
        self._message_count: Counter[str] = Counter()
        """Messages of streams that methods took since the last sample, by peer."""
        self._call_count: Counter[str] = Counter()
        """Calls that methods took, and streams that began, since the last sample, by peer."""
        self.connections: Final[dict[str, WatchedConnection]] = {}
        """Connections with streams, by peer."""

    @property
    def is_counting(self) -> bool:
        """Whether callers have to report the requests that methods take."""
        return self._before is not None

    def opened(self, caller: GrpcCaller, now_s: float) -> None:
        """Count a stream that begins; with the first one begin to sample."""
        if self._before is None:
            self.sample(now_s)
        connection = self.connections.get(caller.peer)
        if connection is None:
            connection = self.connections[caller.peer] = WatchedConnection(caller)
        connection.streams += 1
        self._call_count[caller.peer] += 1

    def closed(self, peer: str) -> None:
        """Count a stream that ended; after its last stream gRPC holds no part of a message for a
        connection, so forget the connection."""
        connection = self.connections[peer]
        connection.streams -= 1
        if not connection.streams:
            del self.connections[peer]
            connection.account.set_size(Kind.HALF_STREAMS, 0)

    def took(self, peer: str, size_bytes: int) -> None:
        """Count a message of a stream that a method got."""
        self._taken[peer] += size_bytes + _FRAMING_SIZE_BYTES
        self._message_count[peer] += 1

    def took_call(self, peer: str, size_bytes: int) -> None:
        """Count the request of a call that a method got."""
        self._taken[peer] += size_bytes + _FRAMING_SIZE_BYTES
        self._call_count[peer] += 1

    def sample(self, now_s: float) -> None:
        """Add the traffic since the last sample; if it cannot be read now, leave it to the next."""
        now = self._traffic()
        if now is None:
            return
        before = now if self._before is None else self._before
        seconds = now_s - self._sampled_s
        for peer, one in self.connections.items():
            traffic = now.get(one.address) if one.address is not None else None
            if traffic is None:  # The connection is just ending.
                continue
            was = before.get(one.address, NO_TRAFFIC) if one.address is not None else NO_TRAFFIC
            if traffic.received < was.received:  # Another connection with the same number.
                was = NO_TRAFFIC
            taken, messages, calls = (
                counts[peer] for counts in (self._taken, self._message_count, self._call_count)
            )
            more = traffic.received - was.received - taken - taken // _TAKEN_PER_FRAMING
            more -= (traffic.sent - was.sent) // _SENT_PER_CONTROL
            needed = messages * _MESSAGE_SIZE_BYTES + calls * _CALL_SIZE_BYTES
            needed += int(seconds * _REST_SIZE_BYTES_PER_S)
            one.account.set_size(Kind.HALF_STREAMS, max(0, one.held_size_bytes + more - needed))
            likely = int((messages + calls + seconds) * _LIKELY_SIZE_BYTES)
            one.likely_size_bytes = max(0, one.likely_size_bytes + more - likely)
            if one.likely_size_bytes <= HALF_SIZE_BYTES_MIN:
                one.likely_since_s = None
            elif one.likely_since_s is None:
                one.likely_since_s = now_s
        self._before, self._sampled_s = now, now_s
        self._forget_counts()

    def rest(self) -> None:
        """Stop counting, because there are no streams."""
        assert not self.connections, "streams are open"
        self._before = None
        self._forget_counts()

    def _forget_counts(self) -> None:
        for counts in (self._taken, self._message_count, self._call_count):
            counts.clear()
