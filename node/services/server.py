"""The gRPC server of a node: its options, its port, health and reflection, and its stop.

Owns limits of connections and messages. Must not know what a method does.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from node.config.limits import PortLimits
from node.config.types import Address
from node.errors.common import NotReadyError
from node.runtime.accounts import Accounts, Kind, affordable_connections
from node.services.bounds.bounded import Bounds, bounded
from node.services.bounds.callers import GrpcCallers
from node.services.bounds.connection_cut import cut_connection, traffic_of
from node.services.bounds.half_sent import HalfSent
from node.services.bounds.idle_connections import IdleConnections
from node.services.bounds.reading_line import REQUEST_SIZE_BYTES_MAX
from node.services.bounds.request_watch import RequestWatch
from node.services.bounds.response_watch import ResponseWatch
from node.services.calls import ServicerContext, refuse
from raft.messages import NO_TERM

MIB: Final = 1 << 20
RESPONSE_SIZE_BYTES_MAX: Final = 16 * MIB
"""More than the largest pull; bounds the response of a defect."""
STREAM_COUNT_MAX: Final = 1_024
"""Calls at once on one connection; gRPC makes the client wait above it."""
REFUSED_FACTOR: Final = 2
"""Calls that gRPC lets in, refused ones included, in calls that the node serves at once."""
METADATA_SIZE_BYTES_MAX: Final = 16 * 1024
CONNECTION_COUNT_MAX: Final = 16_384
"""Connections at once; new ones above it are closed, since peers and probes need descriptors. An
address keeps half of them."""
IDLE_MS_MAX: Final = 600_000
"""Time after which a connection without a call is closed; a client dials again for its next one."""
KEEPALIVE_MS: Final = 30_000
"""Silence after which the server pings a connection; a half-open one ends a little later."""
KEEPALIVE_TIMEOUT_MS: Final = 10_000
PING_INTERVAL_MS_MIN: Final = 5_000
"""Interval between two pings of a client; the server cuts off one that pings more often."""

OPTIONS: Final = (
    # Two nodes on one port would share its connections without an error.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", REQUEST_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", RESPONSE_SIZE_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAM_COUNT_MAX),
    ("grpc.max_metadata_size", METADATA_SIZE_BYTES_MAX),
    # A compressed message takes memory that `half_sent` does not count; bodies may be compressed.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # By its probes gRPC would take 4 MiB of each request before it is read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
    ("grpc.http2.max_pings_without_data", 0),
)


class PortTakenError(Exception):
    """An address cannot be listened on. No service was started."""

    code = "node.port_taken"
    retryable = True
    outcome = "not_applied"

    def __init__(self, name: str, address: str, reason: str) -> None:
        super().__init__(name, address, reason)
        self.name, self.address, self.reason = name, address, reason

    def __str__(self) -> str:
        return (
            f"cannot listen on {self.address} ({self.reason}); "
            f"end what uses it, or set {self.name} to another address, port 0 for any free one"
        )


class Gate:
    """One `grpc.GenericRpcHandler` for all services, in front of the handlers given to `open`.

    Until then it answers NotReadyError: a port that accepts connections and never answers would
    make clients wait for their deadlines. Each request passes the watches before a method gets it.
    """

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


class GrpcServer:
    """Serves services at one address. Build it on the running loop.

    Call `bind` first: peers have to know the port before the node can serve. From `open` on the
    port answers; until `start` every call gets NotReadyError.
    """

    def __init__(self, accounts: Accounts, limits: PortLimits | None = None) -> None:
        """`accounts` bound what callers hold."""
        limits = limits or PortLimits()
        connection_count_max = min(CONNECTION_COUNT_MAX, affordable_connections())
        options = (
            *OPTIONS,
            ("grpc.server_handshake_timeout_ms", limits.handshake_ms_max),
            ("grpc.max_allowed_incoming_connections", connection_count_max),
        )
        # A refused call is there until its client takes the refusal.
        count_max = REFUSED_FACTOR * accounts.limits[Kind.CALLS].count_max
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=count_max)
        self._health = health.aio.HealthServicer()
        self._names: tuple[str, ...] = ()
        half = HalfSent(lambda: traffic_of(self._port))
        self.requests: Final = RequestWatch(half, self._cut, limits=limits)
        self.responses: Final = ResponseWatch(self._cut)
        callers = GrpcCallers(accounts, lambda: traffic_of(self._port))
        self._gate = Gate(Bounds(callers, self.requests, self.responses))
        self._idle = IdleConnections(callers, connection_count_max)
        self._looking: asyncio.Task[None] | None = None
        self._port = 0
        self._is_open = False

    def _cut(self, peer: str) -> bool:
        return cut_connection(peer, self._port)

    def bind(self, address: Address, credentials: grpc.ServerCredentials | None = None) -> int:
        """Take an address; return the port. Raises PortTakenError."""
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            raise PortTakenError(
                "listen", str(address), "in use, or not of this machine"
            ) from error
        self._port = int(port)
        return self._port

    async def open(self, services: Iterable[ServiceDescriptor]) -> None:
        """Answer at the bound address. Health says NOT_SERVING at first."""
        self._names = tuple(service.full_name for service in services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._gate)
        shown = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        answers = reflection.aio.ReflectionServicer(shown)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(answers, self._gate)
        self._server.add_generic_rpc_handlers((self._gate,))
        await self.set_serving(False)
        self._is_open = True
        await self._server.start()
        self._looking = asyncio.create_task(self._idle.run(self._port))

    async def start(
        self,
        handlers: Mapping[ServiceDescriptor, grpc.GenericRpcHandler],
        others: Iterable[grpc.GenericRpcHandler] = (),
    ) -> None:
        """Serve calls; open the port first if it is not open. `set_serving` changes health.

        `others` handle services that reflection does not show.
        """
        if not self._names:
            await self.open(handlers)
        assert sorted(self._names) == sorted(s.full_name for s in handlers), f"{self._names}"
        self._gate.open((*handlers.values(), *others))

    async def set_serving(self, is_serving: bool) -> None:
        """Set the state in the health service, of the node ("") and of each service."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if is_serving else status.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, value)

    async def stop(self, grace_ms: int) -> None:
        """Take no new call; end running calls after `grace_ms` at the latest. A repeated call does
        nothing."""
        if self._port and not self._is_open:
            # gRPC frees a bound port only when a server stops that has been started.
            self._is_open = True
            await self._server.start()
        if self._looking is not None:
            self._looking.cancel()
        await self._health.enter_graceful_shutdown()
        await asyncio.shield(self._server.stop(grace_ms / 1000))
