"""The connections of the framed port: frames in, bytes out, flow control, and the end of each.

Owns the socket of a connection, what is half there, and the reasons why the node does not read; for
all of them the looks at intervals that end what takes too long, and who makes room for others. The
accounts of the connections have the sums. Must not know a method: the conversation of the frame's
kind takes each frame. Works on asyncio and on uvloop. No task belongs to a connection. One that is
closed by the node is counted by reason, and logged at intervals.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, Final, Protocol, cast

from node.framed.frames import FramedParser, FrameFault, Reason
from node.framed.limits import FramedLimits
from node.runtime.accounts import Account, Accounts, Kind, Level
from node.runtime.busiest import of_busiest
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.turn import SLICE_S
from node.services.bounds.look_timer import LookTimer
from node.users.credentials import names_of_certificate

WINDOW: Final = 1
"""The node does not read: too much of what this client asked for is under way."""
NOT_TAKEN: Final = 2
"""The node does not read: the client does not take its answers."""
TURN: Final = 4
"""The node does not read: other connections have their turn."""
SHARED_PORT: Final = -1
"""Number of the port of `listen_framed`."""
NAMESERVER_PORT: Final = -2
"""Number of the port of a name server of RocketMQ's remoting protocol."""
_JOINED_SIZE_BYTES_MAX: Final = 16 << 10
"""Joining smaller buffers is cheaper than passing them one by one."""
LARGE_READ_SIZE_BYTES: Final = 16 << 10
"""A read of this size may hold a batch, which takes ms to check."""
SMALL_SIZE_BYTES: Final = 4 << 10
"""An answer up to this size is sent at once while the client takes its answers."""
_CANCEL_COUNT: Final = 64
"""Calls cancelled in one turn of the loop: some ms."""
_CLOSED_COUNT: Final = 256
"""Connections that are looked at, and perhaps closed, in one turn of the loop: some ms."""
_LOOK_MS: Final = 1_000
_IDLE_LOOKS: Final = 20
"""Looks at idle connections within the time that one may be idle."""
_log: Final = logging.getLogger(__name__)


class Conversation(Protocol):
    """The reader of frames on one connection, of one kind of header or of several."""

    @property
    def call_count(self) -> int:
        """Calls under way."""

    def on_frame(self, kind: int, header: bytes, body: bytes | None) -> None:
        """Take a frame, without a body if it is over the limit. Raises FrameFault: the connection
        is closed."""

    def on_closed(self) -> None:
        """Give up what is under way: the client has gone."""


Conversations = Mapping[int, "Callable[[FramedConnection], Conversation]"]
"""Makes the conversation of a connection, by kind of header."""


class FramedConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    __slots__ = (
        "_conversations",
        "_cutter",
        "_holds",
        "_loop",
        "_out",
        "_owner",
        "_parser",
        "_scratch",
        "_transport",
        "_turn_frame_count_max",
        "_waiters",
        "account",
        "had_frame",
        "half_since_s",
        "host",
        "idle_since_s",
        "is_ended",
        "is_taken",
        "lost",
        "not_taken_since_s",
        "port_number",
        "remote",
    )

    def __init__(
        self,
        owner: "FramedConnections",
        account: Account,
        port_number: int = SHARED_PORT,
        kinds: Collection[int] | None = None,
    ) -> None:
        """`account` pays for what is held for the client; `port_number` is the number of the
        listening address that accepted it, `kinds` are those of headers that are taken there, None:
        all that have a conversation."""
        self.account: Final = account
        self.port_number: Final = port_number
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._scratch = owner.scratch
        self._parser = FramedParser(
            owner.scratch, owner.conversations if kinds is None else kinds, owner.limits
        )
        self._turn_frame_count_max = owner.limits.turn_frame_count_max
        self._conversations: dict[int, Conversation] = {}
        self._transport: asyncio.Transport | None = None
        self._cutter: asyncio.TimerHandle | None = None
        self._holds = 0
        """Why the node does not read: a set of WINDOW, NOT_TAKEN, TURN."""
        self._out: list[bytes] = []
        """Answers of this turn that the transport does not have yet."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Calls that wait until the client takes answers, oldest first."""
        self.is_taken = True
        """Whether the client takes what is sent to it."""
        self.is_ended = False
        """Whether the node closed it, or it is lost: nothing is read or sent any more."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.host = self.remote = "an unknown address"

        # Kept for the table of the port, which looks at all connections at intervals.
        self.had_frame = False
        self.idle_since_s = 0.0
        self.half_since_s = 0.0
        """When the frame that is half there began, without the time in which the node does not
        read."""
        self.not_taken_since_s = 0.0

    # --- Facts ---

    @property
    def call_count(self) -> int:
        """Calls under way."""
        return sum(conversation.call_count for conversation in set(self._conversations.values()))

    def is_held(self) -> bool:
        """Whether the node does not read, by its own decision. A method, since every answer may
        change it."""
        return self._holds != 0

    @property
    def is_tls(self) -> bool:
        """Whether what comes and goes is encrypted; false before the connection is made."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("ssl_object") is not None

    def certificate_names(self) -> list[str]:
        """Return the names of the client certificate, as credentials of users have them; empty:
        none was shown."""
        transport = self._transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        return [] if not certificate else names_of_certificate(certificate)

    @property
    def write_buffer_size_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def widen(self, size_bytes: int) -> None:
        """Take frames that are larger than the limit by so much."""
        self._parser.widen(size_bytes)

    # --- Sending: the only way out, for answers and for requests of the node ---

    def write(self, data: bytes) -> bool:
        """Send an answer now: it is the only one of this turn, as far as the caller knows.

        As `queue` and `write_body`, it returns False for want of room, and then sent nothing."""
        size_bytes = len(data)
        if (size_bytes > SMALL_SIZE_BYTES or not self.is_taken) and not self._has_room(size_bytes):
            return False
        if self._out:
            self._out.append(data)
        elif not self.is_ended:
            assert self._transport is not None, "a frame came before the connection was made"
            self._transport.write(data)
        return True

    def queue(self, data: bytes) -> bool:
        """Send an answer at the end of this turn, together with others."""
        size_bytes = len(data)
        if (size_bytes > SMALL_SIZE_BYTES or not self.is_taken) and not self._has_room(size_bytes):
            return False
        if not self._out:
            self._loop.call_soon(self.write_queued)
        self._out.append(data)
        return True

    def write_body(self, head: bytes, body: bytes) -> bool:
        """Send an answer with a body, which is not copied."""
        size_bytes = len(head) + len(body)
        if (size_bytes > SMALL_SIZE_BYTES or not self.is_taken) and not self._has_room(size_bytes):
            return False
        self.write_queued()
        if self.is_ended:
            return True
        assert self._transport is not None, "a frame came before the connection was made"
        if len(body) <= _JOINED_SIZE_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return True

    def write_queued(self) -> None:
        """Hand queued answers to the socket."""
        out = self._out
        if not out:
            return
        self._out = []
        if not self.is_ended:
            assert self._transport is not None, "a frame came before the connection was made"
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _has_room(self, size_bytes: int) -> bool:
        """Whether an answer may be sent, and perhaps wait for its client; then it is counted."""
        return self.is_ended or self._owner.has_room(self, size_bytes)

    async def writable(self) -> None:
        """Wait until the client takes answers. Returns at once for a connection that ended.

        Callers have their turn in the order in which they came: the first one's answer may fill
        the buffer again."""
        while not self.is_taken and not self.is_ended:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():  # It was this one's turn.
                    self._wake_next()
                raise
        if self._waiters:
            self._loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        waiters = self._waiters
        while waiters and waiters[0].done():  # Its call was cancelled.
            waiters.popleft()
        if waiters and (self.is_taken or self.is_ended):
            waiters.popleft().set_result(None)

    # --- Reading and not reading ---

    def hold(self, why: int) -> None:
        """Stop reading for a reason."""
        if not self._holds and self._transport is not None:
            self._transport.pause_reading()
        self._holds |= why

    def release(self, why: int) -> None:
        """Read again, unless there is another reason not to. Kept frames are handed on in the next
        turn."""
        if self._holds & why:
            self._holds &= ~why
            if not self._holds:
                self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.is_held() or self.is_ended:
            return
        if self._parser.rest_size_bytes < LARGE_READ_SIZE_BYTES:
            self._hand_on(None)
        else:
            self._hand_on_in_turn(None)
        if not self._holds and not self.is_ended:
            assert self._transport is not None, "only a connection that was made is held"
            self._transport.resume_reading()

    def go_on(self) -> None:
        """Hand on what was kept: it is the turn of this connection."""
        self._holds &= ~TURN
        self._read_on()

    def _hand_on_in_turn(self, nbytes: int | None) -> None:
        """Hand on frames that may take ms, when no other connection does so in this turn of the
        loop: batches of many connections at once would hold it for a second."""
        owner, began_s = self._owner, time.monotonic()
        if began_s - owner.ended_s > SLICE_S:
            owner.spent_s = 0.0
        if (owner.turns and not owner.is_calling) or owner.spent_s > SLICE_S:
            if nbytes is not None:
                self._parser.keep(nbytes)
                owner.on_half(self, self._parser.rest_size_bytes, began=False)
            self.hold(TURN)
            owner.wait_for_turn(self)
            return
        self._hand_on(nbytes, began_s + SLICE_S)
        owner.ended_s = time.monotonic()
        owner.spent_s += owner.ended_s - began_s

    def _hand_on(self, nbytes: int | None, until_s: float = 0.0) -> None:
        """Hand on the frames of `nbytes` new bytes, None: those that were kept; until a time, if
        one is given."""
        parser, conversations, count = self._parser, self._conversations, 0
        try:
            frame = parser.next_frame() if nbytes is None else parser.take(nbytes)
            while frame is not None:
                kind, header, body = frame
                if kind in conversations:
                    conversation = conversations[kind]
                else:
                    make = self._owner.conversations[kind]
                    conversation = conversations[kind] = make(self)
                conversation.on_frame(kind, header, body)
                count += 1
                if not parser.rest or self._holds or self.is_ended:
                    break
                if count >= self._turn_frame_count_max or 0 < until_s <= time.monotonic():
                    self.hold(TURN)
                    self._loop.call_soon(self.release, TURN)
                    break
                frame = parser.next_frame()
        except FrameFault as fault:
            self._owner.on_fault(self, fault)
            return
        if count:
            self.had_frame = True
        half_size_bytes = self.account.sizes[Kind.FRAMES]
        if parser.rest or half_size_bytes:
            began = count > 0 or nbytes is None or not half_size_bytes
            self._owner.on_half(self, parser.rest_size_bytes, began=began)

    # --- The end ---

    def give_up(self, calls: "Iterable[asyncio.Future[Any]]") -> None:
        """Cancel calls, soon: thousands at once would hold the loop."""
        self._owner.give_up(calls)

    def close(self) -> None:
        """Close after the answers that were given, for which the client has a little time."""
        if self.is_ended:
            return
        self.write_queued()
        self.is_ended = True
        transport = self._transport
        if transport is not None:
            seconds = self._owner.limits.close_ms_max / 1000
            self._cutter = self._loop.call_later(seconds, transport.abort)
            transport.close()
        self._give_up()

    def cut(self) -> None:
        """Close at once, with whatever is still to be sent."""
        self.is_ended = True
        if self._transport is not None:
            self._transport.abort()
        self._give_up()

    def abandon(self) -> None:
        """Finish a connection whose handshake failed or was given up.

        uvloop closes its socket without `connection_lost`, even after `connection_made`."""
        self.cut()
        self._finish()

    def _give_up(self) -> None:
        self._out.clear()
        self._wake_next()
        for conversation in set(self._conversations.values()):
            conversation.on_closed()

    def _finish(self) -> None:
        if self.lost.done():
            return
        if self._cutter is not None:
            self._cutter.cancel()
        self.lost.set_result(None)
        self._owner.on_lost(self)

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = checked = cast(asyncio.Transport, transport)
        name = checked.get_extra_info("peername")
        if name:
            self.host, self.remote = str(name[0]), f"{name[0]}:{name[1]}"
        if self.is_ended:  # The node stopped during the handshake.
            checked.abort()
        else:
            self._owner.on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_ended:
            return
        if self._holds:
            # TLS may hand on what it had already.
            self._parser.keep(nbytes)
            self._owner.on_half(self, self._parser.rest_size_bytes, began=False)
        elif nbytes < LARGE_READ_SIZE_BYTES and (
            not self._parser.rest or self._parser.rest_size_bytes + nbytes < LARGE_READ_SIZE_BYTES
        ):
            self._hand_on(nbytes)
        else:
            self._hand_on_in_turn(nbytes)

    def pause_writing(self) -> None:
        self.is_taken = False
        self.hold(NOT_TAKEN)
        self._owner.on_not_taken(self)

    def resume_writing(self) -> None:
        self.is_taken = True
        self._owner.on_taken(self)
        self.release(NOT_TAKEN)
        self._wake_next()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        was_ended, self.is_ended = self.is_ended, True
        if not was_ended:
            self._give_up()
        self._transport = None
        self._finish()


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
        self._timer: Final = LookTimer(_LOOK_MS, self.look, lambda: self._connections, monotonic_s)
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

    # --- Events of a connection ---

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
        return [one for one in some if level in one.account.levels]

    def _older(self, age_ms: int) -> list[FramedConnection]:
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
        self._look_at_some(partial(self._look_at_half, now_s), iter([*self._half]))
        self._look_at_some(self._refuse_not_taken, iter(self._older(limits.waiting_ms_max)))
        for connection in self._not_taken:
            connection.account.set_size(Kind.ANSWERS, connection.write_buffer_size_bytes)
        if (now_s - self._idle_looked_s) * 1000 >= limits.idle_ms_max / _IDLE_LOOKS:
            self._idle_looked_s = now_s
            self._look_at_some(partial(self._look_for_idle, now_s), iter([*self._connections]))

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


def _largest_of_busiest(connections: Iterable[FramedConnection], kind: Kind) -> FramedConnection:
    """Return the connection that holds most of a kind, of the address whose connections hold most
    together."""

    def size_of(connection: FramedConnection) -> int:
        return connection.account.sizes[kind]

    largest_first = sorted(connections, key=size_of, reverse=True)
    return of_busiest(largest_first, lambda connection: connection.account.address.what, size_of)
