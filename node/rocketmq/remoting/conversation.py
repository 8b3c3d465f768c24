"""The commands of one connection: requests of a client, and requests of the node to that client.

Owns the calls under way, the numbers of the node's own requests, and that a request gets exactly
one answer and a one-way request none. Must not know what a code means: the table of the gateway
does. Frames of both kinds of header belong to one conversation. Clients keep one table of numbers
for all their connections, so an answer goes out on the connection of its request or nowhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from node.errors.common import BusyError, NodeError, NotReadyError, ShuttingDownError
from node.framed.connection import WINDOW, Conversation, FramedConnection
from node.framed.frames import JSON_KIND, ROCKETMQ_KIND, FrameFault
from node.framed.limits import FramedLimits
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError, refusal_of
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import (
    FORWARDED_GROWTH_SIZE_BYTES,
    ONEWAY,
    RESPONSE,
    Command,
    decode,
    encode_head,
    opaque_of,
)
from node.rocketmq.remoting.protocol.marks import FORWARDED
from node.services.calls import ServedCalls
from raft.messages import NO_TERM

CALL_COUNT_MAX: Final = 8_192
"""Calls under way of one connection: a consumer parks one for each of its queues."""
ANSWER_SIZE_BYTES_MAX: Final = (16 << 20) - 64
"""The frame of an answer: clients take 16 MiB, and a node that hands it on may write a longer
number."""
_NAME: Final = "Remoting"
_NAMES: Final[Mapping[int, str]] = {
    int(code): f"{_NAME}/{code.name.lower()}" for code in RequestCode
}
"""Names of the requests in metrics, beside those of gRPC."""
_UNKNOWN_NAME: Final = f"{_NAME}/unknown"
_OPAQUE_MAX: Final = (1 << 31) - 1


class Request(NamedTuple):
    """One request and the connection that it came on."""

    command: Command
    connection: "RemotingConnection"

    @property
    def caller(self) -> str:
        """host:port of the client, also of one whose command a node forwarded."""
        told = self.command.ext.get(FORWARDED) if self.connection.is_node else None
        return told or self.connection.remote

    @property
    def caller_host(self) -> str:
        """Address of the client, without a port: what it does is charged to it."""
        return self.caller.rpartition(":")[0]


Handler = Callable[[Request], Awaitable[Answer]]
Begin = Callable[[Request], "asyncio.Future[Answer] | None"]
"""Begins a call on the hot path; None: the handler of its code has to do it."""


class RemotingCalls:
    """What the conversations of one port share."""

    def __init__(
        self, served: ServedCalls, limits: FramedLimits | None = None, *, call_count_max: int
    ) -> None:
        """Refuse every request until `open`. `call_count_max` bounds the calls under way."""
        self.served: Final = served
        self.limits: Final = limits or FramedLimits()
        self.call_count_max = call_count_max
        self.count = 0
        """Calls under way."""
        self.refusal: Callable[[], NodeError] | None = lambda: NotReadyError(NO_TERM)
        """Makes the error of every new call; None: calls are served."""
        self.handlers: Mapping[int, Handler] = {}
        self.begin: Begin = lambda _request: None
        self.check: Callable[[Request], None] = lambda _request: None
        """Raises RefusedError for a request of a client without access."""
        self.on_closed: Callable[[RemotingConnection], None] = lambda _connection: None
        self._connections: dict[FramedConnection, RemotingConnection] = {}

    def open(
        self,
        handlers: Mapping[int, Handler],
        begin: Begin,
        check: Callable[[Request], None],
        on_closed: "Callable[[RemotingConnection], None]",
    ) -> None:
        """Serve requests from now on."""
        self.handlers, self.begin, self.check = handlers, begin, check
        self.on_closed = on_closed
        self.refusal = None

    def stop(self) -> None:
        """Refuse new requests; those under way go on."""
        self.refusal = ShuttingDownError

    def conversations(self) -> "Mapping[int, Callable[[FramedConnection], Conversation]]":
        """Return the makers of conversations, by kind of header."""
        return dict.fromkeys((JSON_KIND, ROCKETMQ_KIND), self._conversation)

    def _conversation(self, connection: FramedConnection) -> Conversation:
        found = self._connections.get(connection)
        if found is None:
            found = self._connections[connection] = RemotingConnection(self, connection)
        return found

    def close_all(self) -> int:
        """Close all connections; return how many there were."""
        connections = [one for one in self._connections if not one.is_ended]
        for connection in connections:
            connection.close()
        return len(connections)

    def forget(self, connection: FramedConnection) -> None:
        """Forget a connection that was closed."""
        found = self._connections.pop(connection, None)
        if found is not None:
            self.on_closed(found)


class RemotingConnection:
    """The calls of one connection, in both directions."""

    __slots__ = (
        "_calls",
        "_is_window_full",
        "_last_opaque",
        "_loop",
        "_size_bytes",
        "_tasks",
        "_waiting",
        "call_count",
        "connection",
        "is_node",
    )

    def __init__(self, calls: RemotingCalls, connection: FramedConnection) -> None:
        self._calls = calls
        self.connection: Final = connection
        self.is_node = False
        """Whether the other side proved that it is a node of this cluster, which forwards."""
        self._loop = asyncio.get_running_loop()
        self.call_count = 0
        """Requests of the client under way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._size_bytes = 0
        """Bodies of requests under way."""
        self._is_window_full = False
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        """The node's own requests without an answer, by opaque."""
        self._last_opaque = 0

    @property
    def remote(self) -> str:
        """host:port of the client."""
        return self.connection.remote

    @property
    def port_number(self) -> int:
        """Number of the broker name whose port accepted the connection, or what stands for it."""
        return self.connection.port_number

    def become_node(self) -> None:
        """Take what other nodes forward from now on: it is larger than what clients send."""
        if not self.is_node:
            self.is_node = True
            self.connection.widen(FORWARDED_GROWTH_SIZE_BYTES)

    # --- Requests of the client ---

    def on_frame(self, kind: int, header: bytes, body: bytes) -> None:
        """Begin a call, or complete one of the node's own. Raises FrameFault."""
        if self.is_node:
            found = self._decode_forwarded(kind, header, body)
            if found is None:
                return
            command = found
        else:
            command = decode(kind, header, body)
        if command.is_response:
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
            return
        calls = self._calls
        name = _NAMES.get(command.code, _UNKNOWN_NAME)
        calls.served.counters.begun[name] += 1
        request = Request(command, self)
        try:
            self._check_room()
            calls.check(request)
            handler = calls.handlers.get(command.code)
            if handler is None:
                text = f" request type {command.code} not supported"
                raise RefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
            begun = calls.begin(request)
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            calls.served.counters.ended[name] += 1
            self._answer_error(name, command, error)
            return
        self._hold(len(command.body))
        if begun is not None:
            begun.add_done_callback(partial(self._on_done, name, command))
            return
        task = self._loop.create_task(self._serve(name, request, handler))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_ended, name, len(command.body)))

    def _decode_forwarded(self, kind: int, header: bytes, body: bytes) -> Command | None:
        """Read a command of a node. An unreadable one is answered, since other clients have theirs
        on the same connection. Raises FrameFault if its number cannot be read either."""
        try:
            return decode(kind, header, body, is_from_node=True)
        except FrameFault as fault:
            opaque = opaque_of(kind, header)
            if opaque is None:
                raise
            self._answer(Command(0, opaque), Answer(ResponseCode.SYSTEM_ERROR, remark=str(fault)))
            return None

    def _check_room(self) -> None:
        calls = self._calls
        if calls.refusal is not None:
            raise calls.refusal()
        if self.call_count >= CALL_COUNT_MAX:
            raise BusyError("calls of a connection", self.call_count, CALL_COUNT_MAX)
        if calls.count >= calls.call_count_max:
            raise BusyError("remoting calls", calls.count, calls.call_count_max)

    async def _serve(self, name: str, request: Request, handler: Handler) -> None:
        command = request.command
        try:
            if not self.connection.is_taken:
                await self.connection.writable()
            answer = await handler(request)
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            self._answer_error(name, command, error)
        else:
            self._answer(command, answer)

    def _on_ended(self, name: str, size_bytes: int, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._let_go(name, size_bytes)  # Here, since a task may be cancelled before it begins.
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler(
                {"message": "a remoting call failed", "exception": error, "task": task}
            )

    def _on_done(self, name: str, command: Command, begun: "asyncio.Future[Answer]") -> None:
        self._let_go(name, len(command.body))
        try:
            answer = begun.result()
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            self._answer_error(name, command, error)
        else:
            self._answer(command, answer)

    # --- Room ---

    def _hold(self, size_bytes: int) -> None:
        self._calls.count += 1
        self.call_count += 1
        self._size_bytes += size_bytes
        if self._size_bytes >= self._calls.limits.window_size_bytes_max:
            self._is_window_full = True
            self.connection.hold(WINDOW)

    def _let_go(self, name: str, size_bytes: int) -> None:
        self._calls.served.counters.ended[name] += 1
        self._calls.count -= 1
        self.call_count -= 1
        self._size_bytes -= size_bytes
        is_full = self._size_bytes >= self._calls.limits.window_size_bytes_max
        if self._is_window_full and not is_full:
            self._is_window_full = False
            self.connection.release(WINDOW)

    # --- Answers ---

    def _answer(self, command: Command, answer: Answer) -> None:
        if command.is_oneway or self.connection.is_ended:
            return
        response = Command(
            answer.code,
            command.opaque,
            RESPONSE,
            dict(answer.ext),
            answer.body,
            answer.remark,
        )
        head = encode_head(response)
        if len(head) + len(answer.body) > ANSWER_SIZE_BYTES_MAX:
            text = f"the answer has {len(head) + len(answer.body)} bytes, more than the "
            text = f"{text}{ANSWER_SIZE_BYTES_MAX} of the largest one; ask for less"
            self._answer(command, Answer(ResponseCode.SYSTEM_ERROR, remark=text))
        elif not self.connection.has_room(len(head) + len(answer.body)):
            text = "answers wait for this client, which does not take them; read faster"
            busy = Answer(ResponseCode.SYSTEM_BUSY, remark=text)
            self._answer(command, busy)
        elif answer.body:
            self.connection.write_body(head, answer.body)
        else:
            self.connection.queue(head)

    def _answer_error(self, name: str, command: Command, error: Exception) -> None:
        calls = self._calls
        if isinstance(error, RefusedError):
            calls.served.counters.failed[name, error.code.name] += 1
        else:
            calls.served.failed(name, error)
        self._answer(command, refusal_of(error))

    # --- Requests of the node ---

    def tell(self, command: Command) -> None:
        """Send a one-way request; a client that takes nothing at the moment does not get it."""
        if self.connection.is_ended or not self.connection.is_taken:
            return
        command.opaque, command.flag = self._next_opaque(), ONEWAY
        self.connection.queue(encode_head(command) + command.body)

    async def ask(self, command: Command, timeout_s: float) -> Command:
        """Send a request and return the client's answer. Raises TimeoutError, ConnectionError."""
        if self.connection.is_ended:
            raise ConnectionError("the client has gone")
        command.opaque, command.flag = self._next_opaque(), 0
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[command.opaque] = future
        self.connection.queue(encode_head(command) + command.body)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._waiting.pop(command.opaque, None)

    def _next_opaque(self) -> int:
        self._last_opaque = self._last_opaque + 1 if self._last_opaque < _OPAQUE_MAX else 1
        return self._last_opaque

    # --- The end ---

    def on_closed(self) -> None:
        """Give up all calls: the client has gone. Batches under way stay under way."""
        self._calls.forget(self.connection)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the client has gone"))
        for task in list(self._tasks):
            task.cancel()
