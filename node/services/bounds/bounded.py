"""Puts the watches over requests and responses between gRPC and the methods.

Owns the wrapper of each handler: it declares requests as streams, because gRPC hands only streams
out before they are complete. A client does not see the difference.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from node.errors.common import BadRequestError, NodeError
from node.services.bounds.request_watch import RequestWatch
from node.services.bounds.response_watch import ResponseWatch
from node.services.calls import refuse


class Bounds(NamedTuple):
    """The watches over the calls of one server."""

    requests: RequestWatch
    responses: ResponseWatch


def bounded(handler: grpc.RpcMethodHandler, bounds: Bounds) -> grpc.RpcMethodHandler:
    """Return a handler of the same method with its requests and responses watched."""
    if handler.request_streaming:
        assert handler.response_streaming, "no method streams only requests"
        stream = _both_streams(handler, bounds)
        return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)
    if not handler.response_streaming:
        return grpc.stream_unary_rpc_method_handler(_unary(handler, bounds), None, None)
    if inspect.isasyncgenfunction(handler.unary_stream):
        stream = _server_stream(handler, bounds)
        return grpc.stream_stream_rpc_method_handler(stream, None, None)
    # The method writes its responses itself, as that of health does: small ones, and with gRPC's
    # own serializer.
    stream = _written_stream(handler, bounds.requests)
    return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)


def _unary(handler: grpc.RpcMethodHandler, bounds: Bounds) -> Any:
    function, parse, whole = handler.unary_unary, _parser(handler), bounds.requests.whole
    serialize, responses = handler.response_serializer, bounds.responses

    async def call(_requests: AsyncIterator[bytes], context: Any) -> Any:
        try:
            request = parse(await whole(context))
        except NodeError as error:
            await refuse(error, context)
        response = await function(request, context)
        data = response if serialize is None else serialize(response)
        try:
            waiting = responses.begin(context.peer(), len(data))
        except NodeError as error:
            await refuse(error, context)
        # gRPC ends the task when the client has taken the whole response.
        task = asyncio.current_task()
        assert task is not None, "a call has a task"
        task.add_done_callback(lambda _: responses.end(waiting))
        return data

    return call


def _server_stream(handler: grpc.RpcMethodHandler, bounds: Bounds) -> Any:
    function, parse, whole = handler.unary_stream, _parser(handler), bounds.requests.whole
    serialize, responses = handler.response_serializer, bounds.responses

    async def call(_requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        try:
            request = parse(await whole(context))
            async for response in function(request, context):
                data = response if serialize is None else serialize(response)
                waiting = responses.begin(context.peer(), len(data))
                try:
                    yield data
                finally:
                    responses.end(waiting)
        except NodeError as error:
            await refuse(error, context)

    return call


def _written_stream(handler: grpc.RpcMethodHandler, watch: RequestWatch) -> Any:
    function, parse, whole = handler.unary_stream, _parser(handler), watch.whole

    async def call(_requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            request = parse(await whole(context))
        except NodeError as error:
            await refuse(error, context)
        await function(request, context)

    return call


def _both_streams(handler: grpc.RpcMethodHandler, bounds: Bounds) -> Any:
    function, parse = handler.stream_stream, _parser(handler)
    watch, responses = bounds

    async def parsed(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async for data in watch.each(requests, context):
            yield parse(data)

    is_raw = handler.request_deserializer is None

    async def call(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        given = watch.each(requests, context) if is_raw else parsed(requests, context)
        peer = context.peer()
        try:
            async for response in function(given, context):
                waiting = responses.begin(peer, 0)
                try:
                    yield response
                finally:
                    responses.end(waiting)
        except NodeError as error:
            await refuse(error, context)

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
