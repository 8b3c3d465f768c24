"""How much of requests gRPC may hold that no method has got: a bound for each connection.

gRPC collects a message of a stream before anybody hears of it, and tells nobody how much it has.
The kernel tells how many bytes came on a connection, and the methods took so many of them: what is
between lies with gRPC, or was HTTP/2's and TLS's own. For these a connection that works is allowed
what it needs; without that the bound would rise with each message, for as long as a stream lives.
So to hide a byte here costs whole messages that a method takes, and it is 0 again once a connection
has no stream. That holds only while requests are not compressed, which the server refuses.

Owns the arithmetic. Must not know how bytes are counted, nor who is let go.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from node.services.bounds.connection_cut import NO_TRAFFIC, TcpAddress, Traffic, address_of

_FRAMING_SIZE_BYTES: Final = 14
"""Of each message, at least: a frame's head, and the length in front."""
_CALL_SIZE_BYTES: Final = 512
"""Of each call and stream: headers, windows and pings around it. 43 measured, 65 with TLS; who
signs each of his calls, as RocketMQ's clients do, needs 400 more."""
_MESSAGE_SIZE_BYTES: Final = 64
"""Of each message of a stream: windows, pings and TLS around it. 26 measured, 48 with TLS."""
_REST_SIZE_BYTES_PER_S: Final = 64
"""Of whatever else a client says."""
_TAKEN_PER_FRAMING: Final = 256
"""Of so many bytes one was a frame's or a record's, since these have 16 KiB. 570 measured."""
_SENT_PER_CONTROL: Final = 256
"""Who takes so many bytes says a byte about windows, at most as good as always."""
_LIKELY_SIZE_BYTES: Final = 1_024
"""Of each message and stream, at most as good as always; and of each second."""
HALF_SIZE_BYTES_MIN: Final = 64 * 1024
"""What a stream may hold in any case: HTTP/2's window."""


class Connection:
    """One with streams on which requests come."""

    __slots__ = ("address", "held_size_bytes", "likely_since_s", "likely_size_bytes", "streams")

    def __init__(self, address: TcpAddress | None) -> None:
        self.address = address
        self.streams = 0
        self.held_size_bytes = 0
        """No more than this, but for what is hidden behind messages that were taken."""
        self.likely_size_bytes = 0
        """The same, of a client that is as talkative as can be."""
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
        self._message_count: Counter[str] = Counter()
        """Messages of streams that methods took, since then."""
        self._call_count: Counter[str] = Counter()
        """Calls that methods took, and streams that began, since then."""
        self.connections: Final[dict[str, Connection]] = {}
        """Those with streams, by peer."""

    @property
    def is_counting(self) -> bool:
        """Whether what is taken has to be told."""
        return self._before is not None

    @property
    def size_bytes(self) -> int:
        """What is held for all connections, as of the last sample."""
        return sum(one.held_size_bytes for one in self.connections.values())

    def opened(self, peer: str, now_s: float) -> None:
        """A stream begins."""
        if self._before is None:
            self.sample(now_s)
        connection = self.connections.get(peer)
        if connection is None:
            connection = self.connections[peer] = Connection(address_of(peer))
        connection.streams += 1
        self._call_count[peer] += 1

    def closed(self, peer: str) -> None:
        """A stream has ended. With the last one goes what gRPC had of its connection's messages."""
        connection = self.connections[peer]
        connection.streams -= 1
        if not connection.streams:
            del self.connections[peer]

    def took(self, peer: str, size_bytes: int) -> None:
        """A method got a message of a stream."""
        self._taken[peer] += size_bytes + _FRAMING_SIZE_BYTES
        self._message_count[peer] += 1

    def took_call(self, peer: str, size_bytes: int) -> None:
        """A method got the request of a call."""
        self._taken[peer] += size_bytes + _FRAMING_SIZE_BYTES
        self._call_count[peer] += 1

    def sample(self, now_s: float) -> None:
        """Take in what came since the last time. What cannot be told now is told the next time."""
        now = self._traffic()
        if now is None:
            return
        before = now if self._before is None else self._before
        seconds = now_s - self._sampled_s
        for peer, one in self.connections.items():
            found = now.get(one.address) if one.address is not None else None
            if found is None:  # It ends this moment.
                continue
            was = before.get(one.address, NO_TRAFFIC) if one.address is not None else NO_TRAFFIC
            if found.received < was.received:  # Another connection with the same number.
                was = NO_TRAFFIC
            taken, messages, calls = (
                counts[peer] for counts in (self._taken, self._message_count, self._call_count)
            )
            more = found.received - was.received - taken - taken // _TAKEN_PER_FRAMING
            more -= (found.sent - was.sent) // _SENT_PER_CONTROL
            needed = messages * _MESSAGE_SIZE_BYTES + calls * _CALL_SIZE_BYTES
            needed += int(seconds * _REST_SIZE_BYTES_PER_S)
            one.held_size_bytes = max(0, one.held_size_bytes + more - needed)
            likely = int((messages + calls + seconds) * _LIKELY_SIZE_BYTES)
            one.likely_size_bytes = max(0, one.likely_size_bytes + more - likely)
            if one.likely_size_bytes <= HALF_SIZE_BYTES_MIN:
                one.likely_since_s = None
            elif one.likely_since_s is None:
                one.likely_since_s = now_s
        self._before, self._sampled_s = now, now_s
        self._forget_counts()

    def rest(self) -> None:
        """There are no streams: what is taken need not be told any more."""
        assert not self.connections, "streams are open"
        self._before = None
        self._forget_counts()

    def _forget_counts(self) -> None:
        for counts in (self._taken, self._message_count, self._call_count):
            counts.clear()
