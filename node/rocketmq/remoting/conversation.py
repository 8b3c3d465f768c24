"""The commands of one connection: requests of a client, and requests of the node to that client.

Owns the calls under way, the numbers of the node's own requests, and that a request gets exactly
one answer and a one-way request none. Must not know what a code means: the table of the gateway
does. Frames of both kinds of header belong to one conversation. Clients keep one table of numbers
for all their connections, so an answer goes out on the connection of its request or nowhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from node.errors.common import NodeError, NotReadyError, ShuttingDownError
from node.framed.connection import SHARED_PORT, WINDOW, Conversation, FramedConnection
from node.framed.frames import JSON_KIND, ROCKETMQ_KIND, FrameFault
from node.framed.limits import FramedLimits
from node.rocketmq.hold import LED_ELSEWHERE, NothingDoneError
from node.rocketmq.needs import COMMAND_NEEDS
from node.rocketmq.remoting.access import ACCESS_KEY, signer
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError, refusal_of
from node.rocketmq.remoting.protocol.codes import REQUEST_NAMES, ResponseCode
from node.rocketmq.remoting.protocol.command import (
    FORWARDED_GROWTH_SIZE_BYTES,
    ONEWAY,
    RESPONSE,
    Command,
    decode,
    decode_ends,
    encode_head,
)
from node.rocketmq.remoting.protocol.fields import parsed_host
from node.rocketmq.remoting.protocol.marks import (
    ADDED,
    FORWARDED,
    USER,
    WITHDRAWAL,
    WITHDRAWN,
)
from node.runtime.accounts import Account, Accounts, Charge, Kind, Lease
from node.services.calls import ServedCalls
from node.users.guard import Caller, Guard
from node.users.needs import Needs, signed_in
from raft.messages import NO_TERM
from store.format import LOOPBACK, Host

ANSWER_SIZE_BYTES_MAX: Final = (16 << 20) - 64
"""The frame of an answer: clients take 16 MiB, and a node that hands it on may write a longer
number."""
DOCUMENT_FACTOR: Final = 16
"""Bytes of memory for a byte of a JSON body, at most about: lists of empty lists are the worst."""
_NAME: Final = "Remoting"
_NAMES: Final = {code: f"{_NAME}/{name.lower()}" for code, name in REQUEST_NAMES.items()}
"""Names of the requests in metrics, beside those of gRPC."""
_UNKNOWN_NAME: Final = f"{_NAME}/unknown"
REMOTE_LENGTH_MAX: Final = 64
"""Of host:port."""
_OPAQUE_MAX: Final = (1 << 31) - 1


class Request(NamedTuple):
    """One request and the connection that it came on."""

    command: Command
    connection: "RemotingConnection"
    user: Caller | None = None
    """Who sent it; None: users are off."""

    @property
    def caller(self) -> str:
        """host:port of the client, also of one whose command a node forwarded."""
        forwarded = self.command.ext.get(FORWARDED) if self.connection.is_node else None
        return forwarded or self.connection.remote

    @property
    def born_host(self) -> Host:
        """The same as records hold it; that of loopback for an address that is none."""
        return parsed_host(self.caller) or LOOPBACK

    @property
    def account(self) -> Account:
        """The account of the client that sent it, also of one for which a node speaks."""
        connection = self.connection.connection
        if not self.connection.is_node:
            return connection.account
        remote = self.caller[:REMOTE_LENGTH_MAX]
        return connection.account.accounts.of_remote(remote.rpartition(":")[0], remote)


Handler = Callable[[Request], Awaitable[Answer]]
Begin = Callable[[Request], tuple["asyncio.Future[Any]", Callable[[], Answer]] | None]
"""Begins a call on the hot path: returns a future, and what returns or raises the answer once it is
done. None: the handler of its code has to do it, as it does where the begun call did nothing since
the leader changed just then."""


class Served(NamedTuple):
    """How the requests of one code are served."""

    handler: Handler
    begin: Begin | None = None
    has_document: bool = True
    """Whether the body is a document, which takes memory of its own."""
    needs: Needs = signed_in
    is_administration: bool = False
    """Whether tools change something with it: not at the port that the SDK uses, and over TLS only
    where commands are signed."""


class _Call(NamedTuple):
    """A request under way, and what is held for it."""

    name: str
    request: Request
    size_bytes: int
    charges: list[Charge]
    """Beside the lease: of the client for which a node speaks, and for a document."""


class RemotingCalls:
    """What the conversations of one port share."""

    def __init__(self, served: ServedCalls, accounts: Accounts, guard: Guard | None = None) -> None:
        """Refuse every request until `open`. `accounts` bound what clients hold, and `guard` what
        users may do; None: users are off."""
        self.guard: Final = guard
        self.served: Final = served
        self.accounts: Final = accounts
        self.limits: Final = FramedLimits()
        self.refusal: Callable[[], NodeError] | None = lambda: NotReadyError(NO_TERM)
        """Makes the error of every new call; None: calls are served."""
        self.handlers: Mapping[int, Served] = {}
        self.on_closed: Callable[[RemotingConnection], None] = lambda _connection: None
        self._connections: dict[FramedConnection, RemotingConnection] = {}

    def open(
        self,
        handlers: Mapping[int, Served],
        on_closed: "Callable[[RemotingConnection], None]",
    ) -> None:
        """Serve requests from now on. A code that the table of rights does not have ends the
        start."""
        self.handlers = {
            code: served._replace(needs=COMMAND_NEEDS[code]) for code, served in handlers.items()
        }
        self.on_closed = on_closed
        self.refusal = None

    def check(self, request: Request, served: Served | None) -> None:
        """Raise RefusedError, ForbiddenError or UnauthenticatedError unless the client may send a
        request, over this connection, and RateLimitedError unless it may begin one of the hot path
        now; None: its code is unknown."""
        user, command = request.user, request.command
        # What is only noted of other requests, `_checked` notes.
        is_here = served is None or served.begin is not None
        if user is not None and (user.guard.is_on or is_here):
            row = signed_in if served is None else served.needs
            name = _NAMES.get(command.code, _UNKNOWN_NAME)
            user.account = request.account
            user.guard.check(user, name, user.guard.needs_of(user, name, row, command))
            if served is not None and served.begin is not None:  # `_checked` counts all others.
                user.begin(1)
        if served is None or not served.is_administration:
            return
        connection = request.connection.connection
        if connection.port_number == SHARED_PORT:
            text = "this port administers nothing; use that of rocketmq_listen, or qlog"
        elif user is not None and user.guard.is_on and not connection.is_tls:
            text = (
                "with users = on this is taken over TLS only, since a signature covers neither "
                "code nor names of fields; set tls_certificate_file and connect with TLS, or use "
                "qlog"
            )
        else:
            return
        raise RefusedError(ResponseCode.NO_PERMISSION, text)

    def stop(self) -> None:
        """Refuse new requests; those under way go on."""
        self.refusal = ShuttingDownError

    def conversations(self) -> "Mapping[int, Callable[[FramedConnection], Conversation]]":
        """Return the makers of conversations, by kind of header."""
        return dict.fromkeys((JSON_KIND, ROCKETMQ_KIND), self._conversation)

    def _conversation(self, connection: FramedConnection) -> Conversation:
        conversation = self._connections.get(connection)
        if conversation is None:
            conversation = self._connections[connection] = RemotingConnection(self, connection)
        return conversation

    def close_all(self) -> int:
        """Close all connections; return how many there were."""
        connections = [one for one in self._connections if not one.is_ended]
        for connection in connections:
            connection.close()
        return len(connections)

    def forget(self, connection: FramedConnection) -> None:
        """Forget a connection that was closed."""
        conversation = self._connections.pop(connection, None)
        if conversation is not None:
            self.on_closed(conversation)


class RemotingConnection:
    """The calls of one connection, in both directions."""

    __slots__ = (
        "_calls",
        "_forwarded",
        "_is_window_full",
        "_last_opaque",
        "_lease",
        "_loop",
        "_tasks",
        "_waiting",
        "challenge",
        "client_id",
        "connection",
        "is_node",
    )

    def __init__(self, calls: RemotingCalls, connection: FramedConnection) -> None:
        self._calls = calls
        self.connection: Final = connection
        self.is_node = False
        """Whether the other side proved that it is a node of this cluster, which forwards."""
        self.challenge = b""
        """What a node has to answer to be one; empty: none was drawn, or it was answered."""
        self.client_id = ""
        """Of the last heartbeat that was taken; a client with a connection to each port of this
        node is a member over the last of them, and pulls over all."""
        self._loop = asyncio.get_running_loop()
        self._lease = Lease(connection.account)
        """Requests of the client under way."""
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._forwarded: dict[int, asyncio.Task[Answer]] = {}
        """Of a node, by the number of the command."""
        self._is_window_full = False
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        """The node's own requests without an answer, by opaque."""
        self._last_opaque = 0

    @property
    def call_count(self) -> int:
        """Requests of the client under way."""
        return self._lease.count

    @property
    def remote(self) -> str:
        """host:port of the client."""
        return self.connection.remote

    def become_node(self) -> None:
        """Take what other nodes forward from now on: it is larger than what clients send."""
        if not self.is_node:
            self.is_node = True
            self.connection.widen(FORWARDED_GROWTH_SIZE_BYTES)

    # --- Requests of the client ---

    def on_frame(self, kind: int, header: bytes, body: bytes | None) -> None:
        """Begin a call, or complete one of the node's own. Raises FrameFault."""
        if body is None:
            self._refuse_large(decode_ends(kind, header))
            return
        command = (
            self._decode_forwarded(kind, header, body)
            if self.is_node
            else decode(kind, header, body)
        )
        if command is None:
            return
        if command.code == WITHDRAWAL and self.is_node:
            text = command.ext.get(WITHDRAWN, "")
            task = self._forwarded.get(int(text)) if text.isascii() and text.isdecimal() else None
            if task is not None:
                task.cancel()
            return
        if command.flag & RESPONSE:
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
            return
        calls, lease = self._calls, self._lease
        name = _NAMES.get(command.code, _UNKNOWN_NAME)
        calls.served.counters.begun[name] += 1
        guard = calls.guard
        request = Request(command, self, None if guard is None else self._user(guard, command))
        size_bytes = len(header) + len(body)
        charges: list[Charge] = []
        call = _Call(name, request, size_bytes, charges)
        lease.count += 1
        lease.size_bytes += size_bytes
        try:
            if calls.refusal is not None:
                raise calls.refusal()
            if self.is_node:
                charges.append(request.account.charge(Kind.CALLS, size_bytes))
            elif lease.count > lease.count_granted or lease.size_bytes > lease.size_granted:
                lease.grow()
            if not self.is_node and not ADDED.isdisjoint(command.ext):
                text = f"ext fields {', '.join(sorted(ADDED))} are those of nodes; leave them out"
                raise RefusedError(ResponseCode.NO_PERMISSION, text)
            served = calls.handlers.get(command.code)
            calls.check(request, served)
            if served is None:
                text = f" request type {command.code} not supported"
                raise RefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
            begun = None if served.begin is None else served.begin(request)
            if begun is None and body and served.has_document:
                document_size_bytes = DOCUMENT_FACTOR * len(body)
                charges.append(request.account.charge(Kind.DOCUMENTS, document_size_bytes))
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            self._let_go(call)
            self._answer_error(name, command, error)
            return
        if not self.is_node and lease.size_bytes >= calls.limits.window_size_bytes_max:
            self._is_window_full = True
            self.connection.hold(WINDOW)
        if begun is None:
            self._run(call, served.handler)
        else:
            future, answer = begun
            future.add_done_callback(partial(self._on_done, call, answer, served.handler))

    def _user(self, guard: Guard, command: Command) -> Caller:
        """Return who sent a command."""
        if ACCESS_KEY in command.ext:
            return signer(guard, command)
        if not self.is_node:
            names = self.connection.certificate_names()
            return guard.by_certificate(names) if names else guard.by_name("")
        is_forwarded = FORWARDED in command.ext
        return guard.by_name(command.ext.get(USER, "")) if is_forwarded else guard.node()

    def _run(self, call: _Call, handler: Handler) -> None:
        request, context = call.request, call.request.account.context
        work, opaque = self._serve(request, handler), request.command.opaque
        if request.user is not None:
            # Each command has a context of its own: the next one may be another user's.
            work, context = self._checked(request.user, request.command, work), context.copy()
        task = self._loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.is_node:
            self._forwarded[opaque] = task
            task.add_done_callback(lambda _: self._forwarded.pop(opaque, None))
        task.add_done_callback(partial(self._on_done, call, task.result, None))

    def _refuse_large(self, command: Command) -> None:
        limits = self._calls.limits
        text = (
            f"the request has more than {limits.frame_size_bytes_max} bytes, the limit, or its "
            f"header, with the properties of a message, more than {limits.header_size_bytes_max}; "
            f"send less at once"
        )
        if command.flag & RESPONSE:
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_exception(ConnectionError(text))
            return
        name, counters = _NAMES.get(command.code, _UNKNOWN_NAME), self._calls.served.counters
        counters.begun[name] += 1
        counters.ended[name] += 1
        refused = RefusedError(ResponseCode.MESSAGE_ILLEGAL, text)
        self._answer_error(name, command, refused)

    def _decode_forwarded(self, kind: int, header: bytes, body: bytes) -> Command | None:
        """Read a command of a node. An unreadable one is answered, since other clients have theirs
        on the same connection. Raises FrameFault if its number cannot be read either."""
        try:
            return decode(kind, header, body, is_from_node=True)
        except FrameFault as fault:
            answer = Answer(ResponseCode.SYSTEM_ERROR, remark=str(fault))
            self._answer(Command(0, decode_ends(kind, header).opaque), answer)
            return None

    async def _checked(
        self, user: Caller, command: Command, work: Coroutine[Any, Any, Answer]
    ) -> Answer:
        """Do the work of a command, as long as its user may have it done."""
        served, name = self._calls.handlers[command.code], _NAMES.get(command.code, _UNKNOWN_NAME)
        try:
            is_counted = served.begin is not None
            with user.guard.serving(user, name, served.needs, command, is_counted=is_counted):
                return await work
        finally:
            work.close()

    async def _serve(self, request: Request, handler: Handler) -> Answer:
        if not self.connection.is_taken:
            await self.connection.writable()
        return await handler(request)

    def _on_done(
        self, call: _Call, answer: Callable[[], Answer], hold: Handler | None, _: object
    ) -> None:
        """Send what `answer` returns or raises; `hold` takes over a call that did nothing, which
        the next leader can do."""
        command = call.request.command
        try:
            answered = answer()
        except asyncio.CancelledError:
            self._let_go(call)
        except Exception as error:  # noqa: BLE001 - the client gets every error.
            if hold is not None and isinstance(error, (*LED_ELSEWHERE, NothingDoneError)):
                self._run(call, hold)
                return
            self._let_go(call)
            self._answer_error(call.name, command, error)
        else:
            self._let_go(call)
            self._answer(command, answered)

    def _let_go(self, call: _Call) -> None:
        lease = self._lease
        self._calls.served.counters.ended[call.name] += 1
        lease.count -= 1
        lease.size_bytes -= call.size_bytes
        for charge in call.charges:
            charge.release()
        is_full = lease.size_bytes >= self._calls.limits.window_size_bytes_max
        if self._is_window_full and not is_full:
            self._is_window_full = False
            self.connection.release(WINDOW)

    # --- Answers ---

    def _answer(self, command: Command, answer: Answer) -> None:
        if command.flag & ONEWAY or self.connection.is_ended:
            return
        response = Command(
            answer.code, command.opaque, RESPONSE, dict(answer.ext), answer.body, answer.remark
        )
        head, body, connection = encode_head(response), answer.body, self.connection
        size_bytes = len(head) + len(body)
        if size_bytes > ANSWER_SIZE_BYTES_MAX:
            limit = f"the largest has {ANSWER_SIZE_BYTES_MAX}; ask for less"
            text = f"the answer has {size_bytes} bytes, {limit}"
            self._answer(command, Answer(ResponseCode.SYSTEM_ERROR, remark=text))
        elif not (connection.write_body(head, body) if body else connection.queue(head)):
            text = "answers wait for this client, which does not take them; read faster"
            self._answer(command, Answer(ResponseCode.SYSTEM_BUSY, remark=text))

    def _answer_error(self, name: str, command: Command, error: Exception) -> None:
        calls = self._calls
        if isinstance(error, RefusedError):
            calls.served.counters.failed[name, error.code.name] += 1
            error.__traceback__ = None  # As `failed` does.
        else:
            calls.served.failed(name, error)
        self._answer(command, refusal_of(error))

    # --- Requests of the node ---

    def tell(self, command: Command) -> None:
        """Send a one-way request; a client that takes nothing at the moment does not get it."""
        if self.connection.is_ended or not self.connection.is_taken:
            return
        command.opaque, command.flag = self._next_opaque(), ONEWAY
        self.connection.write_body(encode_head(command), command.body)

    async def ask(self, make: Callable[[], Command], timeout_s: float) -> Command:
        """Send the request that `make` returns, once the client takes what is sent to it, and
        return its answer. Raises TimeoutError, ConnectionError, and what `make` raises."""
        opaque = 0
        try:
            async with asyncio.timeout(timeout_s):
                await self.connection.writable()
                if self.connection.is_ended:
                    raise ConnectionError("the client has gone")
                command = make()
                opaque = command.opaque = self._next_opaque()
                command.flag = 0
                future: asyncio.Future[Command] = self._loop.create_future()
                self._waiting[opaque] = future
                if not self.connection.write_body(encode_head(command), command.body):
                    raise ConnectionError("the client does not take what is sent to it")
                return await future
        finally:
            self._waiting.pop(opaque, None)

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
        self.connection.give_up(self._tasks)
