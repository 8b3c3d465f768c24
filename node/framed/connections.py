"""All connections of the framed port: their number, and what they hold together.

Owns the bounds that several connections share, and the looks at intervals that end what takes too
long. Must not know what a frame says. A connection that is closed by the node is counted by reason,
and logged at intervals.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from node.framed.connection import Conversations, FramedConnection
from node.framed.frames import FrameFault, Reason
from node.framed.limits import FramedLimits
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.services.bounds.look_timer import LookTimer

SMALL_SIZE_BYTES: Final = 4 << 10
"""An answer up to this size is always sent: calls under way are limited in number."""
_LOOK_MS: Final = 1_000
_IDLE_LOOKS: Final = 20
"""Looks at idle connections within the time that one may be idle."""
_LOG_INTERVAL_MS: Final = 10_000
_log: Final = logging.getLogger(__name__)


class FramedConnections:
    """The table of one port. For one event loop."""

    def __init__(
        self,
        limits: FramedLimits,
        conversations: Conversations,
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        """`conversations` has the kinds of headers that the port takes. `monotonic_s` is for tests,
        which then look themselves; the default is the clock of the running loop."""
        self.limits, self.conversations = limits, conversations
        self.scratch = memoryview(bytearray(limits.read_size_bytes))
        self._timer: Final = LookTimer(_LOOK_MS, self._look_again, monotonic_s)
        self._idle_looked_s = self._timer.now_s()
        self._rate_limited: Final = RateLimitedLog(
            _log, interval_ms=_LOG_INTERVAL_MS, monotonic_s=self._timer.clock()
        )
        self._connections: dict[FramedConnection, None] = {}
        self._half: dict[FramedConnection, None] = {}
        """Connections with bytes that are not handed on."""
        self._not_taken: dict[FramedConnection, None] = {}
        """Connections whose clients do not take their answers, oldest first."""
        self._handshakes: set[FramedConnection] = set()
        self.half_size_bytes = 0
        """Bytes received and not handed on."""
        self.waiting_size_bytes = 0
        """Bytes of answers for clients that do not take them, as of the last look at each."""
        self.dropped_count = 0
        """Answers that were dropped for want of room."""
        self.closed: Final[Counter[str]] = Counter({str(reason): 0 for reason in Reason})
        """Connections that the node closed, by reason."""

    # --- Facts ---

    @property
    def count(self) -> int:
        """Connections, unfinished handshakes included."""
        return len(self._connections) + len(self._handshakes)

    @property
    def call_count(self) -> int:
        """Calls under way on all connections."""
        return sum(connection.call_count for connection in self._connections)

    @property
    def all(self) -> tuple[FramedConnection, ...]:
        """The connections whose handshake is done."""
        return tuple(self._connections)

    # --- Closing ---

    def refuse(self, connection: FramedConnection, reason: Reason, detail: str) -> None:
        """Close a connection at once for a reason."""
        if not connection.is_ended:
            self.note(reason, connection.remote, detail)
            connection.cut()

    def note(self, reason: Reason, remote: str, detail: str) -> None:
        """Count a reason, and log it at most once in an interval."""
        self.closed[reason] += 1
        self._rate_limited.warn(f"framed connection closed, {reason}", f"{remote}: {detail}")

    # --- FramedConnectionOwner ---

    def on_accepted(self, connection: FramedConnection) -> None:
        """Count a connection whose handshake begins."""
        self._handshakes.add(connection)

    def on_made(self, connection: FramedConnection) -> None:
        """Take a connection into the table."""
        self._handshakes.discard(connection)
        connection.idle_since_s = self._timer.now_s()
        self._connections[connection] = None
        self._timer.go_on()

    def on_lost(self, connection: FramedConnection) -> None:
        """Forget a connection, and what it held."""
        self._handshakes.discard(connection)
        self._connections.pop(connection, None)
        self._set_half(connection, 0)
        self.on_taken(connection)

    def on_fault(self, connection: FramedConnection, fault: FrameFault) -> None:
        """Close a connection whose bytes break the protocol."""
        self.refuse(connection, fault.reason, fault.detail)

    def on_half(self, connection: FramedConnection, size_bytes: int, *, began: bool) -> None:
        """Note how many bytes of a connection are not handed on, and whether they are of a frame
        that began now; make room if these are too many."""
        if began:
            connection.half_since_s = self._timer.now_s()
        self._set_half(connection, size_bytes)
        limit = self.limits.half_size_bytes_max
        while self.half_size_bytes > limit:
            largest = _largest_of_busiest(self._half, lambda connection: connection.half_size_bytes)
            detail = f"{self.half_size_bytes} bytes are half there, {limit} may be"
            self._set_half(largest, 0)
            self.refuse(largest, Reason.HALF_FULL, detail)

    def _set_half(self, connection: FramedConnection, size_bytes: int) -> None:
        self.half_size_bytes += size_bytes - connection.half_size_bytes
        connection.half_size_bytes = size_bytes
        if size_bytes:
            self._half[connection] = None
        else:
            self._half.pop(connection, None)

    def on_not_taken(self, connection: FramedConnection) -> None:
        """Note that a client does not take its answers."""
        connection.not_taken_since_s = self._timer.now_s()
        self._not_taken[connection] = None
        self._set_waiting(connection, connection.write_buffer_size_bytes)

    def on_taken(self, connection: FramedConnection) -> None:
        """Note that a client takes answers again, or is gone."""
        self._not_taken.pop(connection, None)
        self._set_waiting(connection, 0)

    def has_room(self, connection: FramedConnection, size_bytes: int) -> bool:
        """Whether an answer of this size may be sent, and perhaps wait for its client; if so one
        that waits is counted.

        The limit of all holds for clients that take their answers, too: each of many could take
        the first one half."""
        if size_bytes > SMALL_SIZE_BYTES:
            limits, total = self.limits, self.limits.waiting_total_size_bytes_max
            if self.waiting_size_bytes + size_bytes > total:
                self._make_room()
            if (
                connection.waiting_size_bytes + size_bytes > limits.waiting_size_bytes_max
                or self.waiting_size_bytes + size_bytes > total
            ):
                self.dropped_count += 1
                return False
        if not connection.is_taken:
            self._set_waiting(connection, connection.waiting_size_bytes + size_bytes)
        return True

    def _set_waiting(self, connection: FramedConnection, size_bytes: int) -> None:
        self.waiting_size_bytes += size_bytes - connection.waiting_size_bytes
        connection.waiting_size_bytes = size_bytes

    def _make_room(self) -> None:
        """Close the stuck connection for which most bytes wait, of the busiest address."""
        stuck = list(self._older(self.limits.stuck_ms))
        if stuck:
            largest = _largest_of_busiest(stuck, lambda connection: connection.waiting_size_bytes)
            detail = f"{self.waiting_size_bytes} bytes of answers wait for all clients"
            self.on_taken(largest)
            self.refuse(largest, Reason.WAITING_FULL, detail)

    def _older(self, age_ms: int) -> Iterable[FramedConnection]:
        now_s = self._timer.now_s()
        return [c for c in self._not_taken if (now_s - c.not_taken_since_s) * 1000 >= age_ms]

    # --- Time ---

    def look(self) -> None:
        """Close connections on which something takes too long."""
        limits, now_s = self.limits, self._timer.now_s()
        for connection in list(self._half):
            late_ms = (now_s - connection.half_since_s) * 1000
            if late_ms >= limits.frame_ms_max and not connection.is_held():
                self.refuse(connection, Reason.FRAME_SLOW, f"half a frame for {late_ms:.0f} ms")
        for connection in self._older(limits.waiting_ms_max):
            detail = f"{connection.write_buffer_size_bytes} bytes of answers were not taken"
            self.refuse(connection, Reason.NOT_TAKEN, detail)
        for connection in self._not_taken:
            self._set_waiting(connection, connection.write_buffer_size_bytes)
        if (now_s - self._idle_looked_s) * 1000 >= limits.idle_ms_max / _IDLE_LOOKS:
            self._idle_looked_s = now_s
            self._look_for_idle(now_s)

    def _look_for_idle(self, now_s: float) -> None:
        for connection in list(self._connections):
            if connection.had_frame or connection.call_count:
                connection.had_frame, connection.idle_since_s = False, now_s
            elif (now_s - connection.idle_since_s) * 1000 >= self.limits.idle_ms_max:
                self.refuse(connection, Reason.IDLE, "no call")

    def _look_again(self) -> bool:
        self.look()
        return bool(self._connections)


def _largest_of_busiest(
    connections: Iterable[FramedConnection], size_of: Callable[[FramedConnection], int]
) -> FramedConnection:
    """Return the largest connection of the address whose connections are largest together."""
    by_host: dict[str, list[FramedConnection]] = {}
    for connection in connections:
        by_host.setdefault(connection.host, []).append(connection)
    busiest = max(by_host.values(), key=lambda same: sum(map(size_of, same)))
    return max(busiest, key=size_of)
