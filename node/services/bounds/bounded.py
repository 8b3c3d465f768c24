"""Puts the accounts of callers and the watches over requests and responses between gRPC and the
methods.

Owns the wrapper of each handler: it declares requests as streams, because gRPC hands only streams
out before they are complete. A client does not see the difference. A call is charged to its caller
from its first byte until the client has taken its answer.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from node.errors.common import BadRequestError, NodeError
from node.runtime.accounts import CALL_SIZE_BYTES, Kind
from node.services.bounds.callers import GrpcCaller, GrpcCallers
from node.services.bounds.request_watch import RequestWatch
from node.services.bounds.response_watch import Response, ResponseWatch
from node.services.calls import refuse

_REFUSAL: Final = "refusal"


class Bounds(NamedTuple):
    """What bounds the calls of one server."""

    callers: GrpcCallers
    requests: RequestWatch
    responses: ResponseWatch


def refusing(function: Any, answer: Callable[[NodeError], bytes]) -> Any:
    """Return a method whose calls over a bound get an answer of its own protocol."""
    refusal = partial(function)
    setattr(refusal, _REFUSAL, answer)
    return refusal


def bounded(handler: grpc.RpcMethodHandler, bounds: Bounds) -> grpc.RpcMethodHandler:
    """Return a handler of the same method with its calls, requests and responses bounded."""
    assert handler.response_streaming or not handler.request_streaming, "only requests stream"
    if not handler.response_streaming:
        call = _unary(handler.unary_unary, handler, bounds)
        return grpc.stream_unary_rpc_method_handler(call, None, None)
    if handler.request_streaming or inspect.isasyncgenfunction(handler.unary_stream):
        return grpc.stream_stream_rpc_method_handler(_stream(handler, bounds), None, None)
    # The method writes its responses itself, as that of health does: small ones, and with gRPC's
    # own serializer.
    call = _unary(handler.unary_stream, handler, bounds)
    return grpc.stream_stream_rpc_method_handler(call, None, handler.response_serializer)


class _Call:
    """One call under way. gRPC ends its task when the client has taken the whole answer."""

    __slots__ = ("aborted", "bounds", "caller", "memory_size_bytes", "response", "size_bytes")

    def __init__(self, bounds: Bounds, peer: str) -> None:
        self.bounds = bounds
        self.caller: GrpcCaller = bounds.callers.of(peer)
        self.size_bytes = self.memory_size_bytes = 0
        self.response: Response | None = None
        """The answer of a unary method."""
        self.aborted: grpc.aio.AbortError | None = None
        """What ended the call."""
        self.caller.count += 1
        task = asyncio.current_task()
        assert task is not None, "a call has a task"
        task.add_done_callback(self._ended)

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, grpc.aio.AbortError):
            self.aborted = error

    def begin(self) -> None:
        """Have the call and its memory granted. Raises BusyError."""
        self.caller.begin()
        self.caller.account.take(Kind.DOCUMENTS, CALL_SIZE_BYTES, 0)
        self.memory_size_bytes = CALL_SIZE_BYTES

    async def request(self, context: Any) -> bytes:
        """Return the request, once the call is granted. Raises BusyError, and as
        `RequestWatch.whole`."""
        self.begin()
        data = await self.bounds.requests.whole(context.read, self.caller)
        self.size_bytes = len(data)
        self.caller.took(self.size_bytes)
        return data

    def answer(self, size_bytes: int) -> None:
        """Count the answer of a unary method. Raises ResponsesWaitError."""
        self.response = self.bounds.responses.begin(self.caller, size_bytes)

    async def refuse(self, function: Any, error: NodeError, context: Any) -> bytes:
        """Return the method's own refusal; without one end the call with the error."""
        if self.response is None:
            self.answer(0)
        refusal = getattr(function, _REFUSAL, None)
        if refusal is None:
            await refuse(error, context)
        data: bytes = refusal(error)
        return data

    def _ended(self, _: object) -> None:
        self.caller.count -= 1
        self.caller.spent(self.size_bytes)
        self.caller.account.give_back(Kind.DOCUMENTS, self.memory_size_bytes, 0)
        if self.response is not None:
            self.bounds.responses.end(self.response)
        if self.aborted is not None:
            # gRPC keeps it in a cycle: its frames would keep the request until the collector runs.
            self.aborted.__traceback__ = self.aborted.__context__ = None


def _unary(function: Any, handler: grpc.RpcMethodHandler, bounds: Bounds) -> Any:
    parse, serialize = _parser(handler), handler.response_serializer
    is_written = handler.response_streaming

    async def call(_requests: AsyncIterator[bytes], context: Any) -> Any:
        with _Call(bounds, context.peer()) as under_way:
            try:
                response = await function(parse(await under_way.request(context)), context)
                if is_written:
                    return None
                data = response if serialize is None else serialize(response)
                under_way.answer(len(data))
            except NodeError as error:
                return await under_way.refuse(function, error, context)
            return data

    return call


def _stream(handler: grpc.RpcMethodHandler, bounds: Bounds) -> Any:
    parse, serialize = _parser(handler), handler.response_serializer
    requests_of, responses = bounds.requests.each, bounds.responses
    has_stream, is_raw = handler.request_streaming, handler.request_deserializer is None
    function: Any = handler.stream_stream if has_stream else handler.unary_stream

    async def parsed(requests: AsyncIterator[bytes], caller: GrpcCaller) -> AsyncIterator[Any]:
        async for data in requests_of(requests, caller):
            yield parse(data)

    given_of = requests_of if is_raw else parsed

    async def call(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        with _Call(bounds, context.peer()) as under_way:
            try:
                if has_stream:
                    under_way.begin()
                    given: Any = given_of(requests, under_way.caller)
                else:
                    given = parse(await under_way.request(context))
                async for response in function(given, context):
                    data = response if serialize is None else serialize(response)
                    waiting = responses.begin(under_way.caller, len(data))
                    try:
                        yield data
                    finally:
                        responses.end(waiting)
            except NodeError as error:
                yield await under_way.refuse(function, error, context)

    return call


def _parser(handler: grpc.RpcMethodHandler) -> Any:
    deserialize = handler.request_deserializer
    if deserialize is None:
        return lambda data: data

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            raise BadRequestError("request", "a message", f"{len(data)} other bytes") from error

    return parse
