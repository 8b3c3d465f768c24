"""Connections to nodes: one gRPC channel per address, bounded, quick to come back.

Owns channels and their options; must not know which node leads. A channel to a node that is down
fails calls at once and tries again every half second at most, because the time without a leader is
what users feel; gRPC's own default would wait up to two minutes.
"""

import asyncio
from typing import Any, Final, cast

import grpc
import grpc.aio

from quorumlog.errors import ClosedError, Outcome, UnavailableError, from_rpc
from quorumlog.pb import (
    admin_pb2_grpc,
    consumer_pb2_grpc,
    delay_pb2_grpc,
    log_pb2_grpc,
    lookup_pb2_grpc,
    pop_pb2_grpc,
    retry_pb2_grpc,
    transaction_pb2_grpc,
)

CHANNELS_MAX: Final = 64
# A batch has at most 4 MiB, a pull answers with what was asked for and at least one record.
MESSAGE_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
APPEND_STREAM: Final = "/quorumlog.v1.LogService/AppendStream"

_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # In spite of its name: how long a connect may take.
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.enable_retries", 0),  # We retry; a hidden retry would make attempts and outcomes lies.
    ("grpc.use_local_subchannel_pool", 1),  # Closing a client closes its connections.
)


class Node:
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
        self.log = cast(Any, log_pb2_grpc).LogServiceStub(self.channel)
        self.admin = cast(Any, admin_pb2_grpc).AdminServiceStub(self.channel)
        self.consumer = cast(Any, consumer_pb2_grpc).ConsumerServiceStub(self.channel)
        self.delay = cast(Any, delay_pb2_grpc).DelayServiceStub(self.channel)
        self.pop = cast(Any, pop_pb2_grpc).PopServiceStub(self.channel)
        self.retry = cast(Any, retry_pb2_grpc).RetryServiceStub(self.channel)
        self.lookup = cast(Any, lookup_pb2_grpc).LookupServiceStub(self.channel)
        self.transaction = cast(Any, transaction_pb2_grpc).TransactionServiceStub(self.channel)

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
    """Say whether the running task is being cancelled.

    If it is not, a CancelledError out of a call means that the call's channel was closed.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def answer_of(address: str, method: Any, request: Any, timeout_s: float) -> Any:
    """Make one call of a node and return its answer. Raises what `from_rpc` makes of a failure.

    The channel may be closed meanwhile, since its node is none of the cluster any more. gRPC then
    cancels the call, which looks as if the caller had been cancelled; here it is unavailable.
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
        self._nodes: dict[str, Node] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, address: str) -> Node:
        """Return the node at an address; its channel connects when it is first used.

        Raises ClosedError after the end: nobody would close another channel.
        """
        self.check_open()
        node = self._nodes.get(address)
        if node is None:
            assert len(self._nodes) < CHANNELS_MAX, f"{CHANNELS_MAX} channels are open"
            node = self._nodes[address] = Node(address, self._credentials)
        return node

    def check_open(self) -> None:
        """Raise ClosedError if this is the end of the client."""
        if self._is_closed:
            raise ClosedError("the client is closed; connect again")

    async def keep_only(self, addresses: set[str]) -> None:
        """Close the channels to all other addresses; calls on them fail as unavailable."""
        for address in self._nodes.keys() - addresses:
            await self._nodes.pop(address).channel.close()

    async def close(self) -> None:
        """Close all, for good."""
        self._is_closed = True
        await self.keep_only(set())
