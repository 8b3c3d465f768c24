"""Connections to nodes: one gRPC channel per address, bounded, quick to come back.

Owns channels and their options; must not know which node leads. A channel to a node that is down
fails calls at once and tries again every half second at most, because users feel the time without a
leader; gRPC's own default would wait up to two minutes.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from quorumlog.errors import ClosedError, Outcome, UnavailableError, from_rpc
from quorumlog.pb import (
    admin_pb2,
    consumer_pb2,
    delay_pb2,
    log_pb2,
    lookup_pb2,
    pop_pb2,
    retry_pb2,
    transaction_pb2,
)

CHANNELS_MAX: Final = 64
# A batch has at most 4 MiB; a pull is answered with at least one record, whatever its size limit.
MESSAGE_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
APPEND_STREAM: Final = "/quorumlog.v1.LogService/AppendStream"

_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # In spite of its name: the time limit of a connect.
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.enable_retries", 0),  # The client retries; a hidden retry would falsify `outcome`.
    ("grpc.use_local_subchannel_pool", 1),  # Closing a client closes its connections.
)


def stub(channel: Any, file: FileDescriptor) -> Any:
    """Return the calls of a proto file's one service over a channel, each under its name."""
    (service,) = file.services_by_name.values()
    return SimpleNamespace(
        **{name: _call(channel, method) for name, method in service.methods_by_name.items()}
    )


def _call(channel: Any, method: MethodDescriptor) -> Any:
    asked, answered = (
        "stream" if is_stream else "unary"
        for is_stream in (method.client_streaming, method.server_streaming)
    )
    return getattr(channel, f"{asked}_{answered}")(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )


class NodeChannel:
    """The channel to one address, and its stubs."""

    __slots__ = (
        "address",
        "admin",
        "channel",
        "consumer",
        "delay",
        "log",
        "lookup",
        "pop",
        "retry",
        "transaction",
    )

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        self.log = stub(self.channel, log_pb2.DESCRIPTOR)
        self.admin = stub(self.channel, admin_pb2.DESCRIPTOR)
        self.consumer = stub(self.channel, consumer_pb2.DESCRIPTOR)
        self.delay = stub(self.channel, delay_pb2.DESCRIPTOR)
        self.pop = stub(self.channel, pop_pb2.DESCRIPTOR)
        self.retry = stub(self.channel, retry_pb2.DESCRIPTOR)
        self.lookup = stub(self.channel, lookup_pb2.DESCRIPTOR)
        self.transaction = stub(self.channel, transaction_pb2.DESCRIPTOR)

    def append_stream(self) -> Any:
        """Open the stream of appends; requests are bytes that were serialised already."""
        from quorumlog.pb.log_pb2 import AppendResponse

        call = self.channel.stream_stream(
            APPEND_STREAM,
            request_serializer=None,
            response_deserializer=AppendResponse.FromString,
        )
        return call(wait_for_ready=False)


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
    """
    closed = f"{address}: its connection was closed; ask again"
    try:
        return await method(request, timeout=max(0.001, timeout_s))
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error, address) from None
    except grpc.aio.UsageError:
        raise UnavailableError(closed) from None
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise UnavailableError(closed, outcome=Outcome.UNKNOWN) from None


class Channels:
    """All nodes that this client talks to, by address."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._credentials = credentials
        self._nodes: dict[str, NodeChannel] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, address: str) -> NodeChannel:
        """Return the node at an address; its channel connects when it is first used.

        Raises ClosedError after the end: a channel made then would never be closed.
        """
        self.check_open()
        node = self._nodes.get(address)
        if node is None:
            assert len(self._nodes) < CHANNELS_MAX, f"{CHANNELS_MAX} channels are open"
            node = self._nodes[address] = NodeChannel(address, self._credentials)
        return node

    def check_open(self) -> None:
        """Raise ClosedError if the client is closed."""
        if self._is_closed:
            raise ClosedError("the client is closed; connect again")

    async def keep_only(self, addresses: set[str]) -> None:
        """Close the channels to all other addresses; calls on them fail as unavailable."""
        for address in self._nodes.keys() - addresses:
            await self._nodes.pop(address).channel.close()

    async def close(self) -> None:
        """Close all channels, for good."""
        self._is_closed = True
        await self.keep_only(set())
