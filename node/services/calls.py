"""How one gRPC call runs: parse, hand to the broker, serialise, and report errors.

Owns the way from any exception to a status and the trailer `quorumlog-error-bin`, and the counters
of calls. Must not know what a method does. Each method is wrapped once, at start: a gRPC
interceptor would cost about 60 us of 300 in every call (client and server, measured), and cannot
see a request that does not parse, which the wrapper answers with `node.bad_request`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from node.errors.common import BadRequestError
from node.errors.translation import ERROR_TRAILER, describe, to_pb
from node.runtime.message_bounds import request_of
from node.runtime.turn import Turn
from node.services.door import Door
from node.users.needs import NEEDS
from store.errors import CorruptionError, DerivedFileError, SyncFailedError

DETAILS_LENGTH_MAX: Final = 1_024
"""Size of a status message, since clients bound the size of headers; the trailer has all of it."""

Unary = Callable[[Any], Awaitable[Any]]
ServerStream = Callable[[Any], AsyncIterator[Any]]
BothStreams = Callable[[AsyncIterator[Any]], AsyncIterator[Any]]
Method = Unary | ServerStream | BothStreams
Fatal = Callable[[BaseException], None]
Checked = Callable[[Any, Any], Any] | None
"""A method behind a door, which also gets the context of the call; None: it is not checked."""
ServicerContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_APPEND: Final = "LogService/Append"
_log = structlog.get_logger(component="calls")


@dataclass(slots=True)
class CallCounters:
    """Calls since the start, by method, and failures by method and code."""

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def open_count(self) -> int:
        """The count of calls that are being served."""
        return self.begun.total() - self.ended.total()


class ServedCalls:
    """Makes gRPC handlers of methods that know nothing of gRPC."""

    def __init__(
        self,
        on_fatal: Fatal,
        on_damage: Callable[[CorruptionError | DerivedFileError], None] = lambda _error: None,
        door: Door | None = None,
    ) -> None:
        """Make handlers with these hooks. `on_fatal` gets an error after which the process must
        end; it normally never returns. `on_damage` gets the error of a read that met damage.
        `door` knows the users that call; None: users are off."""
        self._door = door
        self.counters: Final = CallCounters()
        self.turn: Final = Turn()
        """Taken by each call but an append: however many come at once, others have the loop."""
        self._on_damage = on_damage
        self._on_fatal = on_fatal

    def handler(
        self, service: ServiceDescriptor, methods: Mapping[str, Method]
    ) -> grpc.GenericRpcHandler:
        """Return the handler of a whole service; `methods` maps each of its methods by name."""
        assert set(methods) == set(service.methods_by_name), f"methods of {service.full_name}"
        handlers = {
            name: self._method(service.methods_by_name[name], function)
            for name, function in methods.items()
        }
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def _method(self, method: MethodDescriptor, function: Any) -> grpc.RpcMethodHandler:
        name = f"{method.containing_service.name}/{method.name}"
        needs = NEEDS[name]  # A method that the table of rights does not have ends the start.
        door = self._door
        checked: Any = None
        if door is not None:
            has_stream = method.client_streaming or method.server_streaming
            checked = (door.stream if has_stream else door.unary)(name, needs, function)
        serialize = GetMessageClass(method.output_type).SerializeToString
        parse: _Parser = partial(request_of, GetMessageClass(method.input_type))
        if method.client_streaming:
            assert method.server_streaming, f"{name} streams only requests"
            call = self._stream(name, partial(_parsed, parse=parse), function, checked)
            return grpc.stream_stream_rpc_method_handler(call, None, serialize)
        if method.server_streaming:
            call = self._stream(name, parse, function, checked)
            return grpc.unary_stream_rpc_method_handler(call, None, serialize)
        return grpc.unary_unary_rpc_method_handler(
            self._unary(name, parse, function, checked), None, serialize
        )

    def _unary(self, name: str, parse: "_Parser", function: Unary, checked: Checked) -> Any:
        begun, ended = self.counters.begun, self.counters.ended
        turn = None if name == _APPEND else self.turn

        async def call(data: bytes, context: ServicerContext) -> object:
            begun[name] += 1
            try:
                if turn is not None:
                    await turn.next()
                if checked is not None:
                    return await checked(parse(data), context)
                return await function(parse(data))
            except Exception as error:  # noqa: BLE001 - the client gets every error.
                await self._abort(name, error, context)
            finally:
                ended[name] += 1

        return call

    def _stream(
        self,
        name: str,
        parse: Callable[[Any], Any],
        function: ServerStream | BothStreams,
        checked: Checked,
    ) -> Any:
        """Wrap a method that streams responses; `parse` makes its argument of what gRPC passes."""

        async def call(given: Any, context: ServicerContext) -> AsyncIterator[object]:
            self.counters.begun[name] += 1
            try:
                await self.turn.next()
                given = parse(given)
                responses = function(given) if checked is None else checked(given, context)
                async for response in responses:
                    yield response
            except Exception as error:  # noqa: BLE001 - the client gets every error.
                await self._abort(name, error, context)
            finally:
                self.counters.ended[name] += 1

        return call

    def failed(self, name: str, error: Exception) -> None:
        """Count a failure, log an unforeseen one, and end the process if it must end."""
        if isinstance(error, AssertionError | SyncFailedError):
            self._on_fatal(error)
        if isinstance(error, CorruptionError | DerivedFileError):
            self._on_damage(error)
        code = describe(error).code
        self.counters.failed[name, code] += 1
        if code == "node.internal":
            _log.error("a call met an unexpected error", method=name, exc_info=error)
        # Frames that keep an error are kept by it, with the request: until the collector runs.
        cause: BaseException | None = error
        while cause is not None:
            cause.__traceback__ = None
            cause = cause.__cause__ or cause.__context__

    async def _abort(self, name: str, error: Exception, context: ServicerContext) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        self.failed(name, error)
        await refuse(error, context)


async def refuse(error: Exception, context: ServicerContext) -> NoReturn:
    """End a call with an error; gRPC raises an exception of its own."""
    failure = describe(error)
    context.set_trailing_metadata(((ERROR_TRAILER, to_pb(error).SerializeToString()),))
    await context.abort(grpc.StatusCode[failure.status], failure.message[:DETAILS_LENGTH_MAX])
    raise AssertionError("gRPC goes on after the end of a call")


_Parser = Callable[[bytes], Message]


async def _parsed(
    requests: AsyncIterator[bytes], parse: _Parser
) -> AsyncIterator[Message | BadRequestError]:
    """Yield each request, or in its place the error of parsing it."""
    async for data in requests:
        try:
            yield parse(data)
        except BadRequestError as error:
            yield error


async def cancel_all(futures: "list[asyncio.Future[Any]]") -> None:
    """Cancel tasks and futures and wait for their ends; ignore the errors that they raise."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
