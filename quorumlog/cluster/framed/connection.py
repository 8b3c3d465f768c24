"""One connection to the framed port of a node: calls under way, each with its number.

Owns the calls that wait for an answer and how they end; must not know which node leads, nor what
the calls mean. Answers come in any order. A call that was handed to the socket and has no answer
when the connection breaks may have had an effect; one that still waited for room had none. A node
that breaks the protocol gets no second chance on this connection: it is closed, and all its calls
fail.
"""

import asyncio
import contextlib
import copy
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from google.protobuf.message import DecodeError

from quorumlog.cluster.framed.frames import (
    CANCEL,
    ERROR,
    HEAD,
    HEADER_SIZE_BYTES,
    KIND_SHIFTED,
    LENGTH_SIZE_BYTES,
    MORE,
    OPAQUE_MAX,
    FramedCall,
    FrameError,
    FrameReader,
    answer_of_frame,
)
from quorumlog.errors import DeadlineError, Outcome, QuorumlogError, UnavailableError, from_pb
from quorumlog.pb import common_pb2

CALLS_MAX: Final = 1_024
"""Calls under way on a connection: the limit of the nodes, too."""
UNARY_CALLS_MAX: Final = 768
"""Calls under way beside appends, so that parked reads leave room for these."""
WRITE_BUFFER_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that wait for the socket, after which calls wait; one frame may exceed it."""
ABANDONED_MAX: Final = 4_096
"""Calls whose caller has gone, of which late answers are expected; older ones are forgotten."""
UNACKED_MS: Final = 10_000
"""Time after which the system gives up a connection whose bytes the other machine does not take."""
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 4),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", UNACKED_MS),
)
"""A node whose machine is gone is noticed after 10 s, as over gRPC, also while calls only wait for
its answer. A system without one of the options has its own times."""
FRAME_STALL_S: Final = 30.0
"""Time in which a frame that began to arrive must be whole."""
JOINED_SIZE_BYTES_MAX: Final = 64 * 1024
"""Records up to this size are joined with their head; larger ones are written beside it."""

BAD_FRAME: Final = "client.bad_frame"


class AnswerReceiver(Protocol):
    """An object that waits for answers: one call, or a stream of appends."""

    @property
    def method(self) -> int:
        """Number of the method that its answers must have."""

    def on_answer(self, opaque: int, flags: int, message: bytes, body: bytes) -> None:
        """Take an answer. Raises FrameError or DecodeError if no node would send it."""

    def on_lost(self, error: QuorumlogError) -> None:
        """Learn that the connection is gone, with the error of all calls without an answer."""


class NodeConnection(asyncio.Protocol):
    """A connection; made by FramedPort."""

    def __init__(self, address: str, on_end: "Callable[[NodeConnection], None]") -> None:
        self.address = address
        self._on_end = on_end
        self.is_open = False
        self.is_writable = True
        self.broke_protocol = False
        """Whether the node sent what no node sends: do not connect again soon."""
        self.calls: dict[int, AnswerReceiver] = {}
        """Calls under way, by opaque."""
        self.streams: dict[AnswerReceiver, None] = {}
        """Callers that learn of the end also when no call of theirs is under way."""
        self._reader = FrameReader()
        self._abandoned: dict[int, None] = {}
        self._last_opaque = 0
        self._transport = cast(asyncio.Transport, None)
        self.waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """Senders that wait for room, in the order of their turns. One that is cancelled leaves in
        constant time."""
        self._stalled_since_s = 0.0  # Since when a frame is not whole.

    # Calls.

    def send(
        self, method: int, message: bytes, body: bytes, timeout_ms: int, caller: AnswerReceiver
    ) -> int:
        """Write a request and return the number of the call; `caller` gets the answer.

        The connection must be open, and should be writable: `wait_for_room`.
        """
        opaque = self._last_opaque + 1
        if opaque > OPAQUE_MAX:
            opaque = 1  # Calls of four billion ago are over, or this connection would be full.
        self._last_opaque = opaque
        assert opaque not in self.calls, f"call {opaque} is under way"
        self.calls[opaque] = caller
        header_size = HEADER_SIZE_BYTES + len(message)
        size = len(body)
        head = HEAD.pack(
            LENGTH_SIZE_BYTES + header_size + size,
            KIND_SHIFTED | header_size,
            method,
            0,
            0,
            opaque,
            timeout_ms,
        )
        if size <= JOINED_SIZE_BYTES_MAX:
            self._transport.write(head + message + body)
        else:
            self._transport.writelines((head + message, body))
        return opaque

    async def wait_for_room(self) -> None:
        """Wait until a call may be written. Raises UnavailableError; nothing was sent then."""
        if self.is_open and (self.waiters or not self._has_room()):
            await self._wait_in_line()
        self.check_open()

    def _has_room(self) -> bool:
        return self.is_writable and len(self.calls) < CALLS_MAX

    async def _wait_in_line(self) -> None:
        """Wait until there is room and all who came before had theirs.

        One who sends again and again would else be first each time, and others would starve."""
        loop, is_first = asyncio.get_running_loop(), False
        while True:
            waiter = loop.create_future()
            self.waiters[waiter] = None
            if is_first:
                self.waiters.move_to_end(waiter, last=False)
            try:
                await waiter
            except asyncio.CancelledError:
                self.waiters.pop(waiter, None)
                loop.call_soon(self._wake)  # It may have had the turn of the next one.
                raise
            if not self.is_open or self._has_room():
                return
            is_first = True

    async def call(self, method: FramedCall, message: bytes, body: bytes, timeout_s: float) -> Any:
        """Make a call and return its answer. Raises the node's error, or one like `from_rpc`'s."""
        end_s = time.monotonic() + max(0.001, timeout_s)
        try:
            async with asyncio.timeout(max(0.001, timeout_s)):
                await self.wait_for_room()
        except TimeoutError:
            text = f"{self.address} took nothing within {timeout_s * 1000:.0f} ms; allow more time"
            raise DeadlineError(text) from None
        timeout_s = max(0.001, end_s - time.monotonic())
        call = _Call(self, method)
        call.opaque = self.send(method.number, message, body, max(1, int(timeout_s * 1000)), call)
        timer = asyncio.get_running_loop().call_later(timeout_s, call.expire)
        try:
            return await call.future
        finally:
            timer.cancel()
            if call.future.cancelled():
                self.abandon(method.number, call.opaque)

    def abandon(self, method: int, opaque: int) -> None:
        """Give up a call: the node gets a cancel, and a late answer is dropped."""
        if self.calls.pop(opaque, None) is None:
            return
        if len(self._abandoned) >= ABANDONED_MAX:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned[opaque] = None
        if self.is_open:
            size = LENGTH_SIZE_BYTES + HEADER_SIZE_BYTES
            head = HEAD.pack(size, KIND_SHIFTED | HEADER_SIZE_BYTES, method, CANCEL, 0, opaque, 0)
            self._transport.write(head)
            self._wake()
            if self._reader.partial and time.monotonic() - self._stalled_since_s > FRAME_STALL_S:
                self._break("half a frame, and no more")

    def check_open(self) -> None:
        """Raise UnavailableError, of no effect, if the connection is closed."""
        if not self.is_open:
            raise UnavailableError(f"{self.address}: its connection was closed; ask again")

    def close(self) -> None:
        """Close at once; calls under way fail as unavailable, their outcome unknown."""
        text = f"{self.address}: its connection was closed; ask again"
        self._end(UnavailableError(text, outcome=Outcome.UNKNOWN))

    # Events of the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_SIZE_BYTES_MAX)
        own = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # It broke already: connection_lost follows.
            for level, name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    own.setsockopt(level, getattr(socket, name), value)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        caller: AnswerReceiver | None = None
        try:
            for method, flags, opaque, message, body in self._reader.frames(data):
                caller = self.calls.pop(opaque, None)
                if caller is not None:
                    if method != caller.method:
                        text = f"an answer of method {method} to call {opaque}"
                        raise FrameError(f"{text}, which is of method {caller.method}")
                    caller.on_answer(opaque, flags, message, body)
                elif opaque in self._abandoned:
                    del self._abandoned[opaque]
                elif self.is_open:
                    raise FrameError(f"an answer to call {opaque}, which is not under way")
        except (FrameError, DecodeError) as error:
            if caller is not None:
                self.streams[caller] = None  # It fails with the others.
            self._break(str(error) or "a message that is none")
            return
        if self._reader.partial:
            self._stalled_since_s = self._stalled_since_s or time.monotonic()
        else:
            self._stalled_since_s = 0.0
        if self.waiters:
            self._wake()

    def eof_received(self) -> bool:
        """Close: a node that sends no more answers takes no more calls."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        because = f" ({error})" if error is not None else ""
        text = f"{self.address}: its connection broke{because}; is the node running?"
        self._end(UnavailableError(text, outcome=Outcome.UNKNOWN))

    def pause_writing(self) -> None:
        """Have calls wait: the node, or the network, is slower than its callers."""
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._wake()

    # Its end.

    def _break(self, what: str) -> None:
        """Close, because the node sent what no node sends."""
        if not self.is_open:
            return
        self.broke_protocol = True
        text = f"{self.address} sent {what}; check that this is the framed port of a node"
        self._end(UnavailableError(text, code=BAD_FRAME, outcome=Outcome.UNKNOWN))

    def _end(self, error: QuorumlogError) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._transport.abort()
        self._on_end(self)
        callers = self.streams | dict.fromkeys(self.calls.values())
        self.streams.clear()
        self.calls.clear()
        self._abandoned.clear()
        for caller in callers:
            caller.on_lost(error)
        self._wake()

    def _wake(self) -> None:
        """Let the first of those who wait go on, and the next after it, as long as there is room;
        once the connection is closed, all of them."""
        waiters = self.waiters
        while waiters and (not self.is_open or self._has_room()):
            waiter, _ = waiters.popitem(last=False)
            if waiter.done():
                continue
            waiter.set_result(None)
            if self.is_open:  # It takes its room first.
                asyncio.get_running_loop().call_soon(self._wake)
                return


class _Call:
    """A call with one answer."""

    __slots__ = ("_connection", "_method", "future", "method", "opaque")

    def __init__(self, connection: NodeConnection, method: FramedCall) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.opaque = 0
        self._connection = connection
        self._method = method
        self.method = method.number

    def on_answer(self, opaque: int, flags: int, message: bytes, body: bytes) -> None:
        if flags & MORE:
            raise FrameError(f"more than one answer to call {opaque}, which has one")
        answer, failed = None, None
        if flags & ERROR:
            if body:
                raise FrameError(f"{len(body)} bytes of records with an error")
            failed = from_pb(common_pb2.Error.FromString(message))
        else:
            answer = answer_of_frame(self._method, message, body)
        if self.future.done():
            return  # Its caller was cancelled in this very turn of the loop.
        if failed is not None:
            self.future.set_exception(failed)
        else:
            self.future.set_result(answer)

    def on_lost(self, error: QuorumlogError) -> None:
        if not self.future.done():
            self.future.set_exception(copy.copy(error))  # Callers write their attempts into it.

    def expire(self) -> None:
        """End the call: its time is up."""
        if not self.future.done():
            text = f"{self._connection.address} gave no answer in time; allow more time"
            self.future.set_exception(DeadlineError(text, outcome=Outcome.UNKNOWN))
            self._connection.abandon(self._method.number, self.opaque)
