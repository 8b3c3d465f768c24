"""How a server runs the method of one call, and what becomes of its errors.

Owns the way from a handler to the status that the client gets. Only methods of asyncio are
simulated; gRPC would run others in threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import grpc
from grpc._cython import cygrpc

from simulation.rpc import frames, statuses
from simulation.rpc.call_state import ServedCall, ServerStoppedError
from simulation.rpc.context import ServicerContext
from simulation.rpc.options import is_above

_log = logging.getLogger("simulation.rpc")


class CallDetails(NamedTuple):
    """The method and metadata that select a handler: the interface of `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: frames.Metadata


async def serve(
    call: ServedCall, handlers: Iterable[grpc.GenericRpcHandler], *, is_too_many: bool
) -> None:
    """Run a call to its end. Never raises but for a defect of the simulation."""
    try:
        await _run(call, handlers, is_too_many)
    except cygrpc.AbortError:
        """The client has got the status of `abort`."""
    except asyncio.CancelledError:
        # A method that was cancelled by other code gets no status in gRPC: the call stays open.
        await call.wait_until_over()
    except ServerStoppedError:
        _log.warning("Aborting method [%s] due to server stop.", call.method)
    except cygrpc.ExecuteBatchError:
        """The client is gone, or has got its status."""
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - the client gets every error.
        _log.exception("Unexpected [%s] raised by [%s]", type(error).__name__, call.method)
        if not call.is_status_sent:
            code = statuses.UNKNOWN if call.code is None else call.code.value[0]
            call.end(code, f"Unexpected {type(error)}: {error}")


async def _run(
    call: ServedCall, handlers: Iterable[grpc.GenericRpcHandler], is_too_many: bool
) -> None:
    details: Any = CallDetails(call.method, call.metadata)
    found = next((h for one in handlers if (h := one.service(details)) is not None), None)
    if found is None:
        call.end(statuses.UNIMPLEMENTED, statuses.METHOD_NOT_FOUND)
        return
    if is_too_many:
        call.end(statuses.RESOURCE_EXHAUSTED, statuses.TOO_MANY_CALLS)
        return
    handler: Any = found
    context = ServicerContext(call, handler.request_deserializer, handler.response_serializer)
    request: Any = _requests(context)
    if not handler.request_streaming:
        request = await context.read()
        if request is cygrpc.EOF:  # The client was gone at once.
            return
    if handler.response_streaming:
        method = handler.stream_stream if handler.request_streaming else handler.unary_stream
        await _stream(call, method, request, context)
    else:
        method = handler.stream_unary if handler.request_streaming else handler.unary_unary
        await _unary(call, method, request, context, handler.response_serializer)


async def _requests(context: ServicerContext) -> AsyncIterator[Any]:
    while (message := await context.read()) is not cygrpc.EOF:
        yield message


async def _unary(
    call: ServedCall, method: Any, request: Any, context: ServicerContext, serialize: Any
) -> None:
    if not inspect.iscoroutinefunction(method):
        raise NotImplementedError(f"{call.method} is no coroutine function")
    response = await method(request, context)
    call.raise_for_termination()
    code = 0 if call.code is None else call.code.value[0]
    data = b""
    if code == statuses.OK:
        data = response if serialize is None else serialize(response)
    size_bytes_max = call.stream.connection.options.send_size_bytes_max()
    if is_above(len(data), size_bytes_max):
        text = statuses.too_large("SERVER", "Sent", len(data), size_bytes_max)
        call.end(statuses.RESOURCE_EXHAUSTED, text)
        return
    call.end(code, call.details, response=data)
    connection = call.stream.connection
    while not connection.is_writable and not connection.is_lost:
        await connection.wait_until_writable()


async def _stream(call: ServedCall, method: Any, request: Any, context: ServicerContext) -> None:
    if inspect.iscoroutinefunction(method):
        await method(request, context)
    elif inspect.isasyncgenfunction(method):
        async for response in method(request, context):
            call.raise_for_termination()
            await context.write(response)
    else:
        raise NotImplementedError(f"{call.method} is no coroutine or asynchronous generator")
    call.raise_for_termination()
    call.end(0 if call.code is None else call.code.value[0], call.details)
