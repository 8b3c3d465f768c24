"""Lets calls through once the node serves; before that it answers them with NotReadyError.

Owns the answer of a node that founds, repairs or opens its log: a port that accepts connections and
never answers would make clients wait for their deadlines. Ensures that every request passes the
watches before a method gets it. Must not know the services.
"""

from collections.abc import AsyncIterator, Iterable, Sequence

import grpc

from node.errors.common import NotReadyError
from node.services.bounds.bounded import Bounds, bounded
from node.services.calls import ServicerContext, refuse
from raft.messages import NO_TERM


class Gate:
    """One `grpc.GenericRpcHandler` for all services, in front of the handlers given to `open`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._always: list[grpc.GenericRpcHandler] = []
        self._handlers: tuple[grpc.GenericRpcHandler, ...] | None = None
        self._known: dict[str, grpc.RpcMethodHandler] = {}
        """Bounded handlers by method. Limited in size: unknown methods are not remembered."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Let `handlers` answer at any time. Named as in a gRPC server, for generated code."""
        self._always += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: object) -> None:
        """Do nothing: generated code also registers its handlers by the method above."""

    def open(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Let `handlers` answer from now on."""
        self._handlers = tuple(handlers)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None for an unknown method of an open gate."""
        handler_of_method = self._known.get(details.method)
        if handler_of_method is not None:
            return handler_of_method
        for handler in (*self._always, *(self._handlers or ())):
            method_handler = handler.service(details)
            if method_handler is not None:
                self._known[details.method] = answer = bounded(method_handler, self._bounds)
                return answer
        return _NOT_YET if self._handlers is None else None


async def _not_yet(_requests: AsyncIterator[bytes], context: ServicerContext) -> None:
    await refuse(NotReadyError(NO_TERM), context)


_NOT_YET = grpc.stream_stream_rpc_method_handler(_not_yet, None, None)
"""Handler that reads no request, so it answers calls of every kind."""
