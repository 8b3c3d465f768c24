"""How much of requests gRPC may hold that no method has got: an upper bound for each connection.

gRPC collects a message of a stream before anybody hears of it, and tells nobody how much it has.
The kernel tells how many bytes came on a connection, and the methods took so many of them: what is
between lies with gRPC, or was HTTP/2's own. So the bound is never too low, and rises slowly on a
connection that works; it is 0 again once a connection has no stream. That holds only while requests
are not compressed, which the server refuses.

Owns the arithmetic. Must not know how bytes are counted, nor who is let go.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from node.services.connection_cut import NO_TRAFFIC, TcpAddress, Traffic, address_of

_FRAMING_SIZE_BYTES: Final = 14
"""Of each message, at least: a frame's head, and the length in front."""
_CALL_SIZE_BYTES: Final = 1_024
"""Of each message and stream, at most as good as always: headers, windows and pings around it."""
_SENT_PER_CONTROL: Final = 256
"""Who takes so many bytes says a byte about windows, at most as good as always."""
_REST_SIZE_BYTES_PER_S: Final = 1_024
"""Of whatever else a client says. In ten minutes that comes to less than a message."""
HALF_SIZE_BYTES_MIN: Final = 64 * 1024
"""What a stream may hold in any case: HTTP/2's window."""


class Connection:
    """One with streams on which requests come."""

    __slots__ = ("address", "held_size_bytes", "likely_since_s", "likely_size_bytes", "streams")

    def __init__(self, address: TcpAddress | None) -> None:
        self.address = address
        self.streams = 0
        self.held_size_bytes = 0
        """No more than this."""
        self.likely_size_bytes = 0
        """The same, without what HTTP/2 needs for itself as a rule."""
        self.likely_since_s: float | None = None
        """Since when that is more than a stream may hold in any case."""


class HalfSent:
    """One per server. For one event loop."""

    def __init__(self, traffic: Callable[[], Mapping[TcpAddress, Traffic] | None]) -> None:
        """`traffic` returns that of all connections of the server, by the client's address; None
        while it cannot be told."""
        self._traffic = traffic
        self._before: Mapping[TcpAddress, Traffic] | None = None
        self._sampled_s = 0.0
        self._taken: Counter[str] = Counter()
        """Bytes that methods took since the last sample, by peer."""
        self._begun_count: Counter[str] = Counter()
        """Messages that methods took, and streams that began, since then."""
        self.connections: Final[dict[str, Connection]] = {}
        """Those with streams, by peer."""

    @property
    def is_counting(self) -> bool:
        """Whether what is taken has to be told."""
        return self._before is not None

    @property
    def size_bytes(self) -> int:
        """No more is held for all connections, as of the last sample."""
        return sum(one.held_size_bytes for one in self.connections.values())

    def opened(self, peer: str, now_s: float) -> None:
        """A stream begins."""
        if self._before is None:
            self.sample(now_s)
        connection = self.connections.get(peer)
        if connection is None:
            connection = self.connections[peer] = Connection(address_of(peer))
        connection.streams += 1
        self._begun_count[peer] += 1

    def closed(self, peer: str) -> None:
        """A stream has ended. With the last one goes what gRPC had of its connection's messages."""
        connection = self.connections[peer]
        connection.streams -= 1
        if not connection.streams:
            del self.connections[peer]

    def took(self, peer: str, size_bytes: int) -> None:
        """A method got a message."""
        self._taken[peer] += size_bytes + _FRAMING_SIZE_BYTES
        self._begun_count[peer] += 1

    def sample(self, now_s: float) -> None:
        """Take in what came since the last time. What cannot be told now is told the next time."""
        now = self._traffic()
        if now is None:
            return
        before = now if self._before is None else self._before
        rest = int((now_s - self._sampled_s) * _REST_SIZE_BYTES_PER_S)
        for peer, one in self.connections.items():
            found = now.get(one.address) if one.address is not None else None
            if found is None:  # It ends this moment.
                continue
            was = before.get(one.address, NO_TRAFFIC) if one.address is not None else NO_TRAFFIC
            if found.received < was.received:  # Another connection with the same number.
                was = NO_TRAFFIC
            more = found.received - was.received - self._taken[peer]
            one.held_size_bytes = max(0, one.held_size_bytes + more)
            more -= self._begun_count[peer] * _CALL_SIZE_BYTES + rest
            more -= (found.sent - was.sent) // _SENT_PER_CONTROL
            one.likely_size_bytes = max(0, one.likely_size_bytes + more)
            if one.likely_size_bytes <= HALF_SIZE_BYTES_MIN:
                one.likely_since_s = None
            elif one.likely_since_s is None:
                one.likely_since_s = now_s
        self._before, self._sampled_s = now, now_s
        self._taken.clear()
        self._begun_count.clear()

    def rest(self) -> None:
        """There are no streams: what is taken need not be told any more."""
        assert not self.connections, "streams are open"
        self._before = None
        self._taken.clear()
        self._begun_count.clear()
