"""Connections to nodes: a gRPC channel and a framed port per address, bounded, quick to come back.

Owns channels and their options; must not know which node leads. A channel to a node that is down
fails calls at once and tries again every half second at most, because users feel the time without a
leader; gRPC's own default would wait up to two minutes.
"""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from quorumlog.cluster.forks import forks
from quorumlog.cluster.framed.port import FramedPort
from quorumlog.cluster.tls import TlsCredentials
from quorumlog.cluster.tls_trouble import as_tls_trouble
from quorumlog.cluster.transport import Transport
from quorumlog.errors import (
    ClosedError,
    InvalidRequestError,
    Outcome,
    QuorumlogError,
    UnavailableError,
    from_rpc,
    is_not_connected,
)
from quorumlog.pb import (
    admin_pb2,
    consumer_pb2,
    delay_pb2,
    log_pb2,
    lookup_pb2,
    pop_pb2,
    retry_pb2,
    transaction_pb2,
    users_pb2,
)

CHANNELS_MAX: Final = 64
# A batch has at most 4 MiB; a pull is answered with at least one record, whatever its size limit.
MESSAGE_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
ROUTE_TIMEOUT_S: Final = 1.0  # Of a question for the framed port alone.
APPEND_STREAM: Final = "/quorumlog.v1.LogService/AppendStream"

Credentials: TypeAlias = TlsCredentials | grpc.ChannelCredentials | None
"""Credentials of ClientTls serve both transports, those of gRPC only gRPC; None: no TLS."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Headers of a call."""

_FILES: Final = tuple(
    file.DESCRIPTOR
    for file in (
        *(admin_pb2, consumer_pb2, delay_pb2, log_pb2),
        *(lookup_pb2, pop_pb2, retry_pb2, transaction_pb2, users_pb2),
    )
)
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # In spite of its name: the time limit of a connect.
    # Otherwise calls continue over a connection whose other end is gone in silence (its host has
    # another address, or lost its power) until TCP gives up, after a quarter of an hour. A node
    # lets its clients ping every five seconds.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Else a node that is at another address now is dialled at its old one for half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.enable_retries", 0),  # The client retries; a hidden retry would falsify `outcome`.
    ("grpc.use_local_subchannel_pool", 1),  # Closing a client closes its connections.
    ("grpc.enable_http_proxy", 0),  # Nodes are reached directly, whatever `http_proxy` says.
)


def stub(channel: Any, *files: FileDescriptor, metadata: Metadata = ()) -> Any:
    """Return the calls of these proto files over a channel, each under its name; all of them have
    the metadata."""
    services = (service for file in files for service in file.services_by_name.values())
    methods = (method for service in services for method in service.methods)
    calls = {method.name: _call(channel, method) for method in methods}
    if metadata:
        calls = {name: partial(call, metadata=metadata) for name, call in calls.items()}
    return SimpleNamespace(**calls)


def _call(channel: Any, method: MethodDescriptor) -> Any:
    request, answered = (
        "stream" if is_stream else "unary"
        for is_stream in (method.client_streaming, method.server_streaming)
    )
    return getattr(channel, f"{request}_{answered}")(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )


class NodeChannel:
    """The channel to one address, its calls, and the framed port of the node there."""

    __slots__ = ("_credentials", "_metadata", "address", "channel", "framed", "rpc")

    def __init__(
        self, address: str, credentials: Credentials, transport: Transport, token: str = ""
    ) -> None:
        """`token` proves the user of all calls; empty: none is shown."""
        self.address, self._credentials = address, credentials
        self._metadata: Metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.framed: FramedPort | None = None
        """The framed port; None: this client uses gRPC only."""
        of_channel, context = credentials, None
        if isinstance(credentials, TlsCredentials):
            of_channel, context = credentials.channel, credentials.context
        if of_channel is None:
            self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, of_channel, options=_OPTIONS)
        self.rpc = self.calls_of(*_FILES)
        if transport != "grpc" and (context is None) is (credentials is None):
            # Without this object, which would be freed by the collector only: until then gRPC keeps
            # a thread for its channel.
            ask = partial(_ask_route, address, self.rpc.Route)
            is_required = transport == "framed"
            self.framed = FramedPort(address, context, ask, is_required=is_required, token=token)

    def calls_of(self, *files: FileDescriptor) -> Any:
        """Return the calls of these proto files, each with the token, as `stub` does."""
        return stub(self.channel, *files, metadata=self._metadata)

    async def explained(self, error: QuorumlogError) -> QuorumlogError:
        """Return the error of a call, with its cause if TLS let no connection come about."""
        tls = self._credentials
        is_known = tls is None or isinstance(tls, TlsCredentials)
        if not is_known or not is_not_connected(error):
            return error
        return await as_tls_trouble(error, self.address, tls)

    async def close(self) -> None:
        """Close all connections; calls under way fail as unavailable."""
        if self.framed is not None:
            await self.framed.close()
        await self.channel.close()

    def append_stream(self) -> Any:
        """Open the stream of appends; requests are bytes that were serialised already."""
        call = self.channel.stream_stream(
            APPEND_STREAM,
            request_serializer=None,
            response_deserializer=log_pb2.AppendResponse.FromString,
        )
        return call(wait_for_ready=False, metadata=self._metadata or None)


def is_cancelled() -> bool:
    """Whether the running task is being cancelled.

    If it is not, a CancelledError out of a call means that the call's channel was closed.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def answer_of(address: str, method: Any, request: Any, timeout_s: float) -> Any:
    """Call a node once and return its answer. Raises the error that `from_rpc` makes of a failure.

    The channel may be closed during the call, because its node left the cluster. gRPC then cancels
    the call, which looks as if the caller had been cancelled; this raises UnavailableError instead.

    No error that leaves has the traceback of gRPC's, which holds the call: the connection of a
    closed channel stays open while a call over it exists, and errors live long, in cycles too.
    """
    closed = f"{address}: its connection was closed; ask again"
    try:
        return await method(request, timeout=max(0.001, timeout_s))
    except grpc.aio.AioRpcError as error:
        failure = from_rpc(error, address)
    except grpc.aio.UsageError:
        failure = UnavailableError(closed)
    except asyncio.CancelledError as cancelled:
        if is_cancelled():
            cancelled.__traceback__ = None
            raise
        failure = UnavailableError(closed, outcome=Outcome.UNKNOWN)
    raise failure  # Out here, where gRPC's error does not become its context.


async def _ask_route(address: str, method: Any) -> log_pb2.RouteResponse:
    """Ask a node for its identity and its framed port."""
    answer: log_pb2.RouteResponse = await answer_of(
        address, method, log_pb2.RouteRequest(), ROUTE_TIMEOUT_S
    )
    return answer


class Channels:
    """All nodes that this client talks to, by address."""

    def __init__(
        self, credentials: Credentials = None, transport: Transport = "auto", token: str = ""
    ) -> None:
        """With `credentials` of gRPC alone there is no TLS for frames, so gRPC is used. `token` is
        that of the user; empty: none."""
        is_of_grpc = credentials is not None and not isinstance(credentials, TlsCredentials)
        if transport == "framed" and is_of_grpc:
            raise InvalidRequestError(
                "transport 'framed' cannot use credentials of gRPC; give those of "
                "quorumlog.ClientTls(...).credentials()"
            )
        forks.use()
        self._credentials = credentials
        self._transport = transport
        self._token = token
        self._nodes: dict[str, NodeChannel] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def framed_count(self) -> int:
        """Count of open connections to framed ports."""
        return sum(
            node.framed is not None and node.framed.is_ready for node in self._nodes.values()
        )

    @property
    def other_node_count(self) -> int:
        """Count of nodes whose framed port is not used because another node answers there."""
        return sum(
            node.framed is not None and bool(node.framed.other_node)
            for node in self._nodes.values()
        )

    def get(self, address: str) -> NodeChannel:
        """Return the node at an address; its channel connects when it is first used.

        Raises ClosedError after the end: a channel made then would never be closed.
        """
        self.check_open()
        node = self._nodes.get(address)
        if node is None:
            assert len(self._nodes) < CHANNELS_MAX, f"{CHANNELS_MAX} channels are open"
            node = NodeChannel(address, self._credentials, self._transport, self._token)
            self._nodes[address] = node
        return node

    def check_open(self) -> None:
        """Raise ClosedError if the client is closed, or that of another process."""
        forks.check()
        if self._is_closed:
            raise ClosedError("the client is closed; connect again")

    async def keep_only(self, addresses: set[str]) -> None:
        """Close the channels to all other addresses; calls on them fail as unavailable."""
        for address in [one for one in self._nodes if one not in addresses]:
            await self._nodes.pop(address).close()

    async def close(self) -> None:
        """Close all channels permanently. Raises ClosedError if they are of another process."""
        forks.check()
        self._is_closed = True
        await self.keep_only(set())
