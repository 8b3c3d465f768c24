"""Lets calls through once the node serves; tells them before that to come back.

Owns the answer of a node that founds, repairs or opens its log. Must not know the services: a port
that takes connections and says nothing would make clients wait for their deadlines.
"""

from collections.abc import AsyncIterator, Iterable

import grpc

from node.errors import NotReadyError
from node.failures import describe, to_pb
from node.services.calls import ERROR_TRAILER, Context
from raft.messages import NO_TERM


class Gate:
    """A `grpc.GenericRpcHandler` of all services, in the place of those that `open` brings."""

    def __init__(self) -> None:
        self._handlers: tuple[grpc.GenericRpcHandler, ...] = ()

    def open(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Have these answer from now on."""
        self._handlers = tuple(handlers)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Find who answers a call."""
        if not self._handlers:
            return _NOT_YET
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                return found
        return None


async def _refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
    error = NotReadyError(NO_TERM)
    failure = describe(error)
    context.set_trailing_metadata(((ERROR_TRAILER, to_pb(error).SerializeToString()),))
    await context.abort(grpc.StatusCode[failure.status], failure.message)


_NOT_YET = grpc.stream_stream_rpc_method_handler(_refuse, None, None)
"""Reads no request, so it answers calls of every kind."""
