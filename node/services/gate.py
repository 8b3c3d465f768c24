"""Lets calls through once the node serves; tells them before that to come back.

Owns the answer of a node that founds, repairs or opens its log, and that no method gets a request
past the watches. Must not know the services: a port that takes connections and says nothing would
make clients wait for their deadlines.
"""

from collections.abc import AsyncIterator, Iterable, Sequence

import grpc

from node.errors.common import NotReadyError
from node.services.bounds.bounded import Bounds, bounded, refuse
from node.services.calls import Context
from raft.messages import NO_TERM


class Gate:
    """A `grpc.GenericRpcHandler` of all services, in the place of those that `open` brings."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._always: list[grpc.GenericRpcHandler] = []
        self._handlers: tuple[grpc.GenericRpcHandler, ...] | None = None
        self._known: dict[str, grpc.RpcMethodHandler] = {}
        """What was found, by method. Bounded: a method that nobody has is not remembered."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Have these answer at any time. Named as in a gRPC server, for generated code."""
        self._always += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: object) -> None:
        """Another way to say the same: see above."""

    def open(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Have these answer from now on."""
        self._handlers = tuple(handlers)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Find who answers a call."""
        known = self._known.get(details.method)
        if known is not None:
            return known
        for handler in (*self._always, *(self._handlers or ())):
            found = handler.service(details)
            if found is not None:
                self._known[details.method] = answer = bounded(found, self._bounds)
                return answer
        return _NOT_YET if self._handlers is None else None


async def _not_yet(_requests: AsyncIterator[bytes], context: Context) -> None:
    await refuse(NotReadyError(NO_TERM), context)


_NOT_YET = grpc.stream_stream_rpc_method_handler(_not_yet, None, None)
"""Reads no request, so it answers calls of every kind."""
