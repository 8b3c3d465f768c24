"""All connections of the framed port, and which of them ends where room or time runs out.

Owns the looks at intervals that end what takes too long, and who makes room for others. The
accounts of the connections have the sums. Must not know what a frame says. A connection that is
closed by the node is counted by reason, and logged at intervals.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, Final

from node.framed.connection import SMALL_SIZE_BYTES, Conversations, FramedConnection
from node.framed.frames import FrameFault, Reason
from node.framed.limits import FramedLimits
from node.runtime.accounts import Accounts, Kind, Level
from node.runtime.busiest import of_busiest
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.turn import SLICE_S
from node.services.bounds.look_timer import LookTimer

_CANCEL_COUNT: Final = 64
"""Calls cancelled in one turn of the loop: some ms."""
_CLOSED_COUNT: Final = 256
"""Connections that are looked at, and perhaps closed, in one turn of the loop: some ms."""
_LOOK_MS: Final = 1_000
_IDLE_LOOKS: Final = 20
"""Looks at idle connections within the time that one may be idle."""
_log: Final = logging.getLogger(__name__)


class FramedConnections:
    """The table of one port. For one event loop."""

    def __init__(
        self,
        limits: FramedLimits,
        accounts: Accounts,
        conversations: Conversations,
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        """`conversations` has the kinds of headers that the port takes. `monotonic_s` is for tests,
        which then look themselves; the default is the clock of the running loop."""
        self.limits, self.conversations = limits, conversations
        self.accounts: Final = accounts
        self.scratch = memoryview(bytearray(limits.read_size_bytes))
        self._timer: Final = LookTimer(_LOOK_MS, self._look_again, monotonic_s)
        self._idle_looked_s = self._timer.now_s()
        self._rate_limited: Final = RateLimitedLog(_log, monotonic_s=self._timer.clock())
        self._connections: dict[FramedConnection, None] = {}
        self._half: dict[FramedConnection, None] = {}
        """Connections with bytes that are not handed on."""
        self._not_taken: dict[FramedConnection, None] = {}
        """Connections whose clients do not take their answers, oldest first."""
        self._handshakes: set[FramedConnection] = set()
        self._loop = asyncio.get_running_loop()
        self.turns: deque[FramedConnection] = deque()
        """Connections with large frames that wait for a later turn of the loop, oldest first."""
        self.ended_s = self.spent_s = 0.0
        """When the last large frame was handed on, and what those took that came one upon another.
        """
        self.is_calling = False
        self._gone: deque[asyncio.Future[Any]] = deque()
        """Calls to be cancelled."""
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
        account = connection.account
        account.give_back(Kind.CONNECTIONS, account.sizes[Kind.CONNECTIONS])
        account.close()

    def on_fault(self, connection: FramedConnection, fault: FrameFault) -> None:
        """Close a connection whose bytes break the protocol."""
        self.refuse(connection, fault.reason, fault.detail)

    def on_half(self, connection: FramedConnection, size_bytes: int, *, began: bool) -> None:
        """Note how many bytes of a connection are not handed on, and whether they are of a frame
        that began now; make room if these are too many."""
        if began:
            connection.half_since_s = self._timer.now_s()
        self._set_half(connection, size_bytes)
        while (over := connection.account.excess(Kind.FRAMES)) is not None:
            largest = _largest_of_busiest(self._of(over, self._half), Kind.FRAMES)
            held, limit = over.sizes[Kind.FRAMES], over.limits[Kind.FRAMES][1]
            self._set_half(largest, 0)
            detail = f"{held} bytes of {over.what} are half there, {limit} may be"
            self.refuse(largest, Reason.HALF_FULL, detail)

    def _set_half(self, connection: FramedConnection, size_bytes: int) -> None:
        connection.account.set_size(Kind.FRAMES, size_bytes)
        if size_bytes:
            self._half[connection] = None
        else:
            self._half.pop(connection, None)

    def on_not_taken(self, connection: FramedConnection) -> None:
        """Note that a client does not take its answers."""
        connection.not_taken_since_s = self._timer.now_s()
        self._not_taken[connection] = None
        connection.account.set_size(Kind.ANSWERS, connection.write_buffer_size_bytes)

    def on_taken(self, connection: FramedConnection) -> None:
        """Note that a client takes answers again, or is gone."""
        self._not_taken.pop(connection, None)
        connection.account.set_size(Kind.ANSWERS, 0)

    def has_room(self, connection: FramedConnection, size_bytes: int) -> bool:
        """Whether an answer of this size may be sent, and perhaps wait for its client; if so one
        that waits is counted.

        The limits of all hold for clients that take their answers, too: each of many could take
        the first one half."""
        account = connection.account
        over = account.excess(Kind.ANSWERS, size_bytes)
        if over is not None and over is not account:
            self._make_room(over)
            over = account.excess(Kind.ANSWERS, size_bytes)
        # A small one, such as an error in the place of a large one, is always sent: calls under way
        # are limited in number.
        if over is not None and size_bytes > SMALL_SIZE_BYTES:
            self.dropped_count += 1
            return False
        if not connection.is_taken:
            account.set_size(Kind.ANSWERS, account.sizes[Kind.ANSWERS] + size_bytes)
        return True

    def _make_room(self, over: Level) -> None:
        """Close the stuck connection for which most bytes wait, of those that a level counts."""
        stuck = self._of(over, self._older(self.limits.stuck_ms))
        if stuck:
            largest = _largest_of_busiest(stuck, Kind.ANSWERS)
            detail = f"{over.sizes[Kind.ANSWERS]} bytes of answers wait for {over.what}"
            self.on_taken(largest)
            self.refuse(largest, Reason.WAITING_FULL, detail)

    def _of(self, level: Level, some: Iterable[FramedConnection]) -> list[FramedConnection]:
        """Return those of some connections that a level counts."""
        return [one for one in some if level in one.account.levels]

    def _older(self, age_ms: int) -> Iterable[FramedConnection]:
        now_s = self._timer.now_s()
        return [c for c in self._not_taken if (now_s - c.not_taken_since_s) * 1000 >= age_ms]

    # --- Turns ---

    def wait_for_turn(self, connection: FramedConnection) -> None:
        """Call a connection when it may hand on large frames: in a later turn of the loop."""
        if not self.turns:
            self._loop.call_soon(self._next_turn)
        self.turns.append(connection)

    def _next_turn(self) -> None:
        self.spent_s, self.is_calling = 0.0, True
        waiting, self.turns = self.turns, deque()
        while waiting and self.spent_s <= SLICE_S:
            waiting.popleft().go_on()
        waiting += self.turns
        self.turns, self.is_calling = waiting, False
        if waiting:
            self._loop.call_soon(self._next_turn)

    def give_up(self, calls: "Iterable[asyncio.Future[Any]]") -> None:
        """Cancel calls of a client that has gone, some in each turn of the loop."""
        if not self._gone:
            self._loop.call_soon(self._cancel_some)
        self._gone += calls

    def _cancel_some(self) -> None:
        for _ in range(min(_CANCEL_COUNT, len(self._gone))):
            self._gone.popleft().cancel()
        if self._gone:
            self._loop.call_soon(self._cancel_some)

    # --- Time ---

    def look(self) -> None:
        """Close connections on which something takes too long."""
        limits, now_s = self.limits, self._timer.now_s()
        self.accounts.settle()
        self._each(self._half, partial(self._look_at_half, now_s))
        self._each(self._older(limits.waiting_ms_max), self._refuse_not_taken)
        for connection in self._not_taken:
            connection.account.set_size(Kind.ANSWERS, connection.write_buffer_size_bytes)
        if (now_s - self._idle_looked_s) * 1000 >= limits.idle_ms_max / _IDLE_LOOKS:
            self._idle_looked_s = now_s
            self._each(self._connections, partial(self._look_for_idle, now_s))

    def _each(
        self, some: Iterable[FramedConnection], look: Callable[[FramedConnection], None]
    ) -> None:
        self._look_at_some(look, iter(list(some)))

    def _look_at_some(
        self, look: Callable[[FramedConnection], None], rest: Iterator[FramedConnection]
    ) -> None:
        """Look at some connections in each turn of the loop: the time of many may be over in one
        moment."""
        for connection in islice(rest, _CLOSED_COUNT):
            look(connection)
        if length_hint(rest):
            self._loop.call_soon(self._look_at_some, look, rest)

    def _look_at_half(self, now_s: float, connection: FramedConnection) -> None:
        late_ms = (now_s - connection.half_since_s) * 1000
        is_late = late_ms >= self.limits.frame_ms_max and not connection.is_held()
        if is_late and connection in self._half:
            self.refuse(connection, Reason.FRAME_SLOW, f"half a frame for {late_ms:.0f} ms")

    def _refuse_not_taken(self, connection: FramedConnection) -> None:
        if connection in self._not_taken:
            detail = f"{connection.write_buffer_size_bytes} bytes of answers were not taken"
            self.refuse(connection, Reason.NOT_TAKEN, detail)

    def _look_for_idle(self, now_s: float, connection: FramedConnection) -> None:
        if connection.had_frame or connection.call_count:
            connection.had_frame, connection.idle_since_s = False, now_s
        elif (now_s - connection.idle_since_s) * 1000 >= self.limits.idle_ms_max:
            self.refuse(connection, Reason.IDLE, "no call")

    def _look_again(self) -> bool:
        self.look()
        return bool(self._connections)


def _largest_of_busiest(connections: Iterable[FramedConnection], kind: Kind) -> FramedConnection:
    """Return the connection that holds most of a kind, of the address whose connections hold most
    together."""

    def size_of(connection: FramedConnection) -> int:
        return connection.account.sizes[kind]

    largest_first = sorted(connections, key=size_of, reverse=True)
    return of_busiest(largest_first, lambda connection: connection.account.address.what, size_of)
