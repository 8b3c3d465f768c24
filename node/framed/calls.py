"""Our own calls over frames: from a header to the broker, and from an outcome to an answer.

Owns the table of methods, the calls under way of each connection, their deadlines, and the window
of appends. An answer has two parts, the message without records and the records themselves, which
go out without being copied into a message. Must not know sockets. An append is one future and one
callback, since it is the hot path; every other call is a task. Calls begin in the order in which
they arrive, so appends enter the log in that order.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sized
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from node.broker import Broker
from node.broker.core.context import within
from node.errors.common import (
    AppendTimeoutError,
    BadRequestError,
    BusyError,
    NodeError,
    NotReadyError,
    ReadTimeoutError,
    ShuttingDownError,
)
from node.errors.requests import ResponsesWaitError, UnimplementedError
from node.errors.translation import to_pb
from node.framed.connection import WINDOW, FramedConnection
from node.framed.frames import FrameFault, Reason
from node.framed.header import (
    CANCEL,
    ERROR,
    HEADER,
    HEADER_SIZE_BYTES,
    MORE,
    Method,
    encode_response,
)
from node.framed.limits import FramedLimits
from node.runtime.accounts import Accounts, Kind, Lease
from node.runtime.message_bounds import SMALL_SIZE_BYTES, request_of
from node.services.calls import ServedCalls
from node.users.calling import set_calling
from node.users.guard import Caller, Guard
from node.users.needs import NEEDS
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, FetchOffsetsRequest, HeartbeatRequest
from quorumlog.pb.log_pb2 import (
    AppendRequest,
    AppendResponse,
    PullRequest,
    PullResponse,
    RouteRequest,
    TailRequest,
)
from quorumlog.pb.pop_pb2 import AckRequest, ReceiveRequest, ReceiveResponse
from quorumlog.pb.users_pb2 import AuthenticateRequest, WhoAmIResponse
from raft.messages import NO_TERM

_APPEND: Final = int(Method.APPEND)
_APPEND_NAME: Final = "Framed/append"
_NAMES: Final[Mapping[int, str]] = {
    int(method): f"Framed/{method.name.lower()}" for method in Method
}
"""Names of the methods in metrics, beside those of gRPC."""
_UNKNOWN_NAME: Final = "Framed/unknown"
_SERVICE_METHODS: Final[Mapping[int, str]] = {
    Method.PULL: "LogService/Pull",
    Method.TAIL: "LogService/Tail",
    Method.COMMIT_OFFSETS: "ConsumerService/CommitOffsets",
    Method.FETCH_OFFSETS: "ConsumerService/FetchOffsets",
    Method.ACK: "PopService/Ack",
    Method.HEARTBEAT: "ConsumerService/Heartbeat",
    Method.ROUTE: "LogService/Route",
    Method.RECEIVE: "PopService/Receive",
}
"""The method of a service that has the same needs, by number."""
_OTHER_REQUESTS: Final[Mapping[int, type[Message]]] = {
    Method.TAIL: TailRequest,
    Method.AUTHENTICATE: AuthenticateRequest,
}
"""Of the methods that concern the connection itself."""
_SMALL_HEADER_SIZE_BYTES: Final = 4 << 10
"""Headers up to this size are not charged: calls under way are limited in number."""
_unpack: Final = HEADER.unpack_from
_parse_append: Final = AppendRequest.FromString
NO_BODY: Final = b""

Answer = tuple[Message, bytes]
"""A response without its records, and the records."""
AppendNowait = Callable[[AppendRequest, bytes, Caller | None], "asyncio.Future[AppendResponse]"]


class FramedMethod(NamedTuple):
    """One method with one answer."""

    request: type[Message]
    call: Callable[[Any], Awaitable[Answer]]
    late: Callable[[int], NodeError]
    """The error after the client's deadline, in ms."""


def read_late(timeout_ms: int) -> NodeError:
    """Return the error of a call that only reads and was not answered in time."""
    return ReadTimeoutError("there was no answer", timeout_ms)


def methods_of(broker: Broker) -> Mapping[int, FramedMethod]:
    """Return the methods by number."""

    async def receive(request: ReceiveRequest) -> Answer:
        response: ReceiveResponse = await broker.pop.receive(request)
        records = response.records
        response.ClearField("records")
        return response, records

    groups, pop = broker.groups, broker.pop
    return {
        Method.PULL: FramedMethod(PullRequest, broker.pulls.pull, read_late),
        Method.COMMIT_OFFSETS: FramedMethod(
            CommitOffsetsRequest, _bare(groups.commit_offsets), AppendTimeoutError
        ),
        Method.FETCH_OFFSETS: FramedMethod(
            FetchOffsetsRequest, _bare(groups.fetch_offsets), read_late
        ),
        Method.ACK: FramedMethod(AckRequest, _bare(pop.ack), AppendTimeoutError),
        Method.HEARTBEAT: FramedMethod(HeartbeatRequest, _bare(groups.heartbeat), read_late),
        Method.ROUTE: FramedMethod(RouteRequest, _bare(broker.route), read_late),
        Method.RECEIVE: FramedMethod(ReceiveRequest, receive, AppendTimeoutError),
    }


def _bare(call: Callable[[Any], Awaitable[Message]]) -> Callable[[Any], Awaitable[Answer]]:
    """Return a method whose answers have no records."""

    async def answer(request: Message) -> Answer:
        return await call(request), NO_BODY

    return answer


class FramedCalls:
    """The part that the calls of all connections of one port share."""

    # Of the broker, from `open` on.
    append_nowait: AppendNowait
    parked_appends: Sized
    """Where there are any, another one may wait as well, and its caller pays."""
    tail: Callable[[TailRequest], AsyncGenerator[Any, None]]
    methods: Mapping[int, FramedMethod]

    def __init__(
        self,
        served: ServedCalls,
        accounts: Accounts,
        limits: FramedLimits | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Answer every call with NotReadyError until `open`. `served` counts calls and failures;
        `accounts` bound what callers hold, and `guard` what users may do; None: users are off."""
        self.served: Final = served
        self.guard: Final = guard
        self.accounts: Final = accounts
        self.limits: Final = limits or FramedLimits()
        self.refusal: Callable[[], NodeError] | None = lambda: NotReadyError(NO_TERM)
        """Makes the error of every new call; None: calls are served."""

    def open(self, broker: Broker) -> None:
        """Serve calls from now on."""
        self.append_nowait, self.tail = broker.append_nowait, broker.pulls.tail
        self.parked_appends = broker.produce.parked
        self.methods = methods_of(broker)
        self.refusal = None

    def stop(self) -> None:
        """Refuse new calls; those under way go on."""
        self.refusal = ShuttingDownError


class CallConversation:
    """The calls of one connection."""

    __slots__ = (
        "_append_count",
        "_caller",
        "_connection",
        "_is_window_full",
        "_lease",
        "_loop",
        "_shared",
        "_under_way",
        "_window_count_max",
        "_window_size_bytes_max",
    )

    def __init__(self, shared: FramedCalls, connection: FramedConnection) -> None:
        self._shared, self._connection = shared, connection
        self._loop = asyncio.get_running_loop()
        self._window_count_max = shared.limits.window_count_max
        self._window_size_bytes_max = shared.limits.window_size_bytes_max
        self._lease = Lease(connection.account)
        self._caller: Caller | None = None
        """Who calls; None: users are off, or there was no call yet."""
        self._under_way: dict[int, asyncio.Future[Any]] = {}
        """Calls that want an answer, by opaque. A cancelled call is out of it at once."""
        self._append_count = 0
        self._is_window_full = False

    @property
    def call_count(self) -> int:
        """Calls under way, cancelled ones included until they have ended."""
        return self._lease.count

    # --- Frames ---

    def on_frame(self, _kind: int, header: bytes, body: bytes | None) -> None:
        """Begin the call of a frame, or cancel one. Raises FrameFault."""
        assert body is not None, "only frames of RocketMQ's protocol are skipped"
        try:
            method, flags, reserved, opaque, timeout_ms = _unpack(header)
        except struct.error:
            detail = f"a header of {len(header)} bytes, {HEADER_SIZE_BYTES} at least are needed"
            raise FrameFault(Reason.HEADER, detail) from None
        if flags or reserved:
            self._cancel(flags, reserved, opaque, len(header) - HEADER_SIZE_BYTES + len(body))
            return
        if opaque in self._under_way:
            raise FrameFault(Reason.OPAQUE, f"opaque {opaque} is under way already")
        refusal = self._shared.refusal
        if refusal is not None:
            self._fail_at_once(method, opaque, refusal())
            return
        lease, size_bytes = self._lease, len(body)
        if header[_SMALL_HEADER_SIZE_BYTES:]:  # Not for all: it would be a call more.
            size_bytes += len(header)
        lease.count += 1
        lease.size_bytes += size_bytes
        if lease.count > lease.count_granted or lease.size_bytes > lease.size_granted:
            try:
                lease.grow()
            except BusyError as error:
                self._let_go(size_bytes)
                self._fail_at_once(method, opaque, error)
                return
        guard = self._shared.guard
        if guard is not None and self._caller is None:
            self._set_caller(guard.by_certificate(self._connection.certificate_names()))
        if method == _APPEND:
            self._append(opaque, timeout_ms, header, body, size_bytes)
        else:
            self._call(method, opaque, timeout_ms, header, body, size_bytes)

    def _set_caller(self, caller: Caller) -> None:
        """Have all calls of this connection made in the name of a caller from now on."""
        self._caller, account = caller, self._connection.account
        caller.account = account
        if caller.guard.is_on:
            account.context.run(set_calling, caller)

    def _cancel(self, flags: int, reserved: int, opaque: int, size_bytes: int) -> None:
        if reserved:
            raise FrameFault(Reason.HEADER, f"reserved bits are {reserved:#x}")
        if flags != CANCEL:
            raise FrameFault(Reason.FLAGS, f"flags {flags:#x} in a request")
        if size_bytes:
            raise FrameFault(Reason.FLAGS, f"a cancel with {size_bytes} bytes of content")
        # Its answer may have been sent meanwhile.
        future = self._under_way.pop(opaque, None)
        if future is not None:
            future.cancel()

    def _let_go(self, size_bytes: int) -> None:
        self._lease.count -= 1
        self._lease.size_bytes -= size_bytes

    # --- Appends ---

    def _append(
        self, opaque: int, timeout_ms: int, header: bytes, body: bytes, size_bytes: int
    ) -> None:
        shared = self._shared
        try:
            if header[SMALL_SIZE_BYTES:]:
                request = request_of(AppendRequest, header[HEADER_SIZE_BYTES:])
            else:
                request = _parse_append(header[HEADER_SIZE_BYTES:])
        except (BadRequestError, DecodeError) as error:
            self._let_go(size_bytes)
            if isinstance(error, DecodeError):
                size_bytes = len(header) - HEADER_SIZE_BYTES
                error = BadRequestError("request", "a AppendRequest", f"{size_bytes} other bytes")
            self._fail_at_once(_APPEND, opaque, error)
            return
        if request.records:
            self._let_go(size_bytes)
            raise FrameFault(Reason.RECORDS, "records are in the message, not in the body")
        if timeout_ms and not 0 < request.timeout_ms < timeout_ms:
            request.timeout_ms = timeout_ms
        caller = self._caller
        try:
            if caller is not None and caller.is_nobody:
                caller.guard.check(caller, _APPEND_NAME, ())
            # The broker asks whose these are.
            if (
                request.has_delayed
                or request.transaction.producer_group
                or request.consumed.group
                or shared.parked_appends
            ):
                context = self._connection.account.context
                future = context.run(shared.append_nowait, request, body, caller)
            else:
                future = shared.append_nowait(request, body, caller)
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            self._let_go(size_bytes)
            self._fail_at_once(_APPEND, opaque, error)
            return
        shared.served.counters.begun[_APPEND_NAME] += 1
        self._under_way[opaque] = future
        self._append_count += 1
        future.add_done_callback(partial(self._on_appended, opaque, size_bytes))
        if (
            self._append_count >= self._window_count_max
            or self._lease.size_bytes >= self._window_size_bytes_max
        ):
            self._is_window_full = True
            self._connection.hold(WINDOW)

    def _on_appended(
        self, opaque: int, size_bytes: int, future: "asyncio.Future[AppendResponse]"
    ) -> None:
        shared, connection, lease = self._shared, self._connection, self._lease
        shared.served.counters.ended[_APPEND_NAME] += 1
        lease.count -= 1
        lease.size_bytes -= size_bytes
        self._append_count -= 1
        if self._is_window_full:
            self._open_window()
        under_way = self._under_way
        if opaque not in under_way or under_way[opaque] is not future:
            # The caller has gone, or the connection: it was cancelled, which also keeps the loop
            # from reporting an error that nothing asks for.
            return
        del under_way[opaque]
        try:
            message = future.result().SerializeToString()
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            self._answer_error(_APPEND, opaque, error)
            return
        data = encode_response(_APPEND, 0, opaque, message)
        # While appends are under way others are decided in the same turn, as a rule.
        is_sent = connection.queue(data) if self._append_count else connection.write(data)
        if not is_sent:
            self._answer_error(_APPEND, opaque, self._waits(len(data)))

    def _open_window(self) -> None:
        self._is_window_full = (
            self._append_count >= self._window_count_max
            or self._lease.size_bytes >= self._window_size_bytes_max
        )
        if not self._is_window_full:
            self._connection.release(WINDOW)

    # --- Other calls ---

    def _call(
        self,
        number: int,
        opaque: int,
        timeout_ms: int,
        header: bytes,
        body: bytes,
        size_bytes: int,
    ) -> None:
        method = self._shared.methods.get(number)
        try:
            if method is None and number not in (Method.TAIL, Method.AUTHENTICATE):
                raise UnimplementedError(number)
            if body:
                raise BadRequestError("body", "none with this method", f"{len(body)} bytes")
            kind: Any = _OTHER_REQUESTS[number] if method is None else method.request
            request = request_of(kind, header[HEADER_SIZE_BYTES:])
        except NodeError as error:
            self._let_go(size_bytes)
            self._fail_at_once(number, opaque, error)
            return
        self._shared.served.counters.begun[_NAMES[number]] += 1
        context = self._connection.account.context
        self._under_way[opaque] = task = self._loop.create_task(
            self._serve(method, number, opaque, request, timeout_ms), context=context
        )
        task.add_done_callback(partial(self._on_ended, number, size_bytes))

    async def _serve(
        self, method: FramedMethod | None, number: int, opaque: int, request: Any, timeout_ms: int
    ) -> None:
        try:
            if number == Method.AUTHENTICATE:
                work: Awaitable[Answer] = self._authenticate(request)
            elif method is None:
                work = self._tail(opaque, request, timeout_ms)
            else:
                work = self._answer_of(method, request)
            if self._caller is not None and number != Method.AUTHENTICATE:
                work = self._checked(self._caller, number, request, work)
            if method is not None and timeout_ms:
                work = within(work, timeout_ms, partial(method.late, timeout_ms))
            response, records = await work
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            if self._is_wanted(opaque):
                self._answer_error(number, opaque, error)
        else:
            if self._is_wanted(opaque):
                self._answer(number, opaque, response, records)

    async def _checked(
        self, caller: Caller, number: int, request: Any, work: Awaitable[Answer]
    ) -> Answer:
        """Do the work of a call if its caller may have it done, and as long as it may."""
        name = _SERVICE_METHODS[number]
        try:
            with caller.guard.serving(caller, name, NEEDS[name], request):
                return await work
        finally:
            if isinstance(work, Coroutine):
                work.close()  # If it was refused, it has not begun.

    async def _authenticate(self, request: AuthenticateRequest) -> Answer:
        """Take the connection for one of the user that has a token. Raises UnauthenticatedError,
        after which it is that of a caller that is no user."""
        guard = self._shared.guard
        if guard is None:
            return WhoAmIResponse(mode="off"), NO_BODY
        self._caller = caller = guard.by_token(request.token)
        caller.account = self._connection.account
        # This task runs in the context of all calls of the connection.
        set_calling(caller if guard.is_on else None)
        try:
            roles = caller.rights.user.roles
        except NodeError as error:
            guard.refuse(caller, "Framed/authenticate", error)
            if not guard.is_on:
                return WhoAmIResponse(mode=guard.mode), NO_BODY
            raise
        caller.begin(1)
        return WhoAmIResponse(name=caller.name, roles=roles, mode=guard.mode), NO_BODY

    async def _answer_of(self, method: FramedMethod, request: Message) -> Answer:
        """Carry a call out in its turn, once the client takes its answers: many at once cost much,
        and most of them would be dropped."""
        turn = self._shared.served.turn
        await turn.next()
        while not self._connection.is_taken:
            await self._connection.writable()
            await turn.next()
        return await method.call(request)

    async def _tail(self, opaque: int, request: TailRequest, timeout_ms: int) -> Answer:
        """Send all answers but the last, which is returned."""
        connection = self._connection
        try:
            async with (
                asyncio.timeout(timeout_ms / 1000 if timeout_ms else None),
                aclosing(self._shared.tail(request)) as pulled,
            ):
                async for response, records in pulled:
                    await connection.writable()
                    message = response.SerializeToString()
                    head = encode_response(Method.TAIL, MORE, opaque, message, len(records))
                    if not connection.write_body(head, records):
                        raise self._waits(len(head) + len(records))
        except TimeoutError:
            raise read_late(timeout_ms) from None
        return PullResponse(), NO_BODY

    def _is_wanted(self, opaque: int) -> bool:
        """Whether the caller of the running task still waits; if so its call is over with this
        answer, and the client may use the opaque again."""
        if self._under_way.get(opaque) is not asyncio.current_task():
            return False
        del self._under_way[opaque]
        return True

    def _on_ended(self, number: int, size_bytes: int, task: "asyncio.Future[None]") -> None:
        self._shared.served.counters.ended[_NAMES[number]] += 1
        self._let_go(size_bytes)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler(
                {"message": "a framed call failed", "exception": error, "task": task}
            )

    # --- Answers ---

    def _answer(self, number: int, opaque: int, response: Message, records: bytes) -> None:
        message, connection = response.SerializeToString(), self._connection
        head = encode_response(number, 0, opaque, message, len(records))
        is_sent = connection.write_body(head, records) if records else connection.queue(head)
        if not is_sent:
            self._answer_error(number, opaque, self._waits(len(head) + len(records)))

    def _waits(self, size_bytes: int) -> ResponsesWaitError:
        """Return the error that takes the place of an answer without room."""
        account = self._connection.account
        over = account.excess(Kind.ANSWERS, size_bytes) or account
        limit = over.limits[Kind.ANSWERS][1]
        return ResponsesWaitError(over.sizes[Kind.ANSWERS], size_bytes, limit)

    def _fail_at_once(self, number: int, opaque: int, error: Exception) -> None:
        name, counters = _NAMES.get(number, _UNKNOWN_NAME), self._shared.served.counters
        counters.begun[name] += 1
        counters.ended[name] += 1
        self._answer_error(number, opaque, error)

    def _answer_error(self, number: int, opaque: int, error: Exception) -> None:
        self._shared.served.failed(_NAMES.get(number, _UNKNOWN_NAME), error)
        data = encode_response(number, ERROR, opaque, to_pb(error).SerializeToString())
        self._connection.queue(data)  # It is small, so it is sent in any case.

    def on_closed(self) -> None:
        """Give up all calls: their caller has gone. Batches under way stay under way."""
        under_way, self._under_way = self._under_way, {}
        self._connection.give_up(under_way.values())
