"""Forwards calls, unchanged, to the leader of the group that they are about.

Owns connections between gateways, how long a call is held while no node leads, and how often it is
forwarded. Must not know what a call means. Clients try three times within milliseconds and then
report to the application, so a call is held for longer than an election takes (protocol section
16.3), and so is one that this node refuses because its leadership is about to end. A call that
reached a leader and has no answer may have been done: it is forwarded again only if that changes
nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc

from node.errors.common import (
    DrainingError,
    NodeError,
    NotAppliedError,
    NotLeaderError,
    NotReadyError,
    ShuttingDownError,
    TransferringError,
)
from node.errors.ha import NotMasterError
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.protocol.statuses import CallRefusedError
from node.runtime.channel_options import CHANNEL_OPTIONS
from quorumlog.pb.log_pb2 import RouteRequest, RouteResponse
from quorumlog.pb.rocketmq_pb2 import Code
from quorumlog.pb.transaction_pb2 import CheckTransactionsRequest, TransactionCheck

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
_CHECK_TRANSACTIONS: Final = "/quorumlog.v1.TransactionService/CheckTransactions"
_ROUTE: Final = "/quorumlog.v1.LogService/Route"
_ROUTE_S: Final = 1.0
HOPS_HEADER: Final = "x-quorumlog-hops"
HOP_COUNT_MAX: Final = 3
"""Forwards after which a call is refused: the nodes that were asked disagree about the leader."""
HOLD_S: Final = 2.5
"""Time that a call waits for a leader: below the 3 s after which clients give one up."""
DEADLINE_MARGIN_S: Final = 0.3
"""Part of a caller's time that is left for the answer to reach it."""
AGAIN_S: Final = 0.05
"""Pause before a call is tried again."""
_CONNECT_S: Final = 0.5
"""Time after which the leader is looked up again; the attempt to connect goes on."""
_ON_THE_WAY: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_OPTIONS: Final = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
)
_NOTHING_HAPPENED: Final = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Statuses of a node's gRPC before any handler saw the call."""
LED_ELSEWHERE: Final[tuple[type[NodeError], ...]] = (
    DrainingError,
    NotAppliedError,
    NotLeaderError,
    NotMasterError,
    NotReadyError,
    ShuttingDownError,
    TransferringError,
)
"""Errors of a node whose leadership begins or ends just then. The call changed nothing, and soon a
leader can take it."""
_PASSED_ON: Final = ("authorization", "x-mq-")


class ForwardedCall(NamedTuple):
    """One call of a client, as it came."""

    method: str
    data: bytes
    metadata: tuple[tuple[str, str], ...]
    hop_count: int
    deadline_s: float
    """Time of the loop's clock after which an answer is of no use any more."""


class Forwarder:
    """Forwards calls over one connection to each node. One per gateway."""

    def __init__(
        self, cluster: GatewayCluster, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self._cluster = cluster
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.forwarded_total = 0

    async def answer(
        self,
        call: ForwardedCall,
        group: str,
        here: Callable[[], Awaitable[Any]],
        lost: Code | None = None,
    ) -> Any:
        """Return the answer of a group's leader: that of `here`, or another node's as bytes.

        Raises as `unary`, and the errors of `here`. A refusal because the leadership moves is tried
        again, at the new leader.
        """
        loop = asyncio.get_running_loop()
        until_s, pause_s = self.hold_until(call), AGAIN_S
        while True:
            forwarded = await self.unary(call, group, lost)
            if forwarded is not None:
                return forwarded
            try:
                return await here()
            except LED_ELSEWHERE:
                if loop.time() + pause_s >= until_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2  # Many calls may wait, and each is done from the start.

    async def must_forward(self, call: ForwardedCall, group: str) -> str | None:
        """Return the address of a group's leader, None if this node leads. Raises CallRefusedError.

        Waits for an election that is under way, as long as the caller can.
        """
        leader = await self._cluster.wait_for_leader(group, self.hold_until(call))
        if leader.is_here:
            return None
        if call.hop_count >= HOP_COUNT_MAX:
            text = f"sent on {call.hop_count} times without a leader of {group!r}; try again"
            raise CallRefusedError(Code.HA_NOT_AVAILABLE, text)
        return leader.address

    @staticmethod
    def hold_until(call: ForwardedCall) -> float:
        """Return the time until which a call waits, if the wait begins now."""
        now_s = asyncio.get_running_loop().time()
        return min(now_s + HOLD_S, call.deadline_s - DEADLINE_MARGIN_S)

    async def unary(
        self, call: ForwardedCall, group: str, lost: Code | None = None
    ) -> bytes | None:
        """Forward to a group's leader and return its answer; None if that is this node.

        A node that cannot be connected to has not seen the call: it is tried again, or another
        leader once there is one. When the connection breaks before the answer comes, the outcome is
        unknown. The call is then refused with the code `lost`; None: doing it twice is as good as
        once, so it is sent again. Raises CallRefusedError.
        """
        loop = asyncio.get_running_loop()
        until_s = self.hold_until(call)
        while True:
            address = await self.must_forward(call, group)
            if address is None:
                return None
            try:
                if await self._is_connected(address):
                    return await self._ask(call, address)
            except grpc.aio.AioRpcError as error:
                if lost is not None and error.code() not in _NOTHING_HAPPENED:
                    raise _unanswered(lost, address, error) from error
                if error.code() is not grpc.StatusCode.UNAVAILABLE or loop.time() >= until_s:
                    raise _not_reached(address, error) from error
            if loop.time() >= until_s:
                text = f"the leader at {address} cannot be connected to; try again"
                raise CallRefusedError(Code.HA_NOT_AVAILABLE, text)
            await asyncio.sleep(AGAIN_S)

    async def _is_connected(self, address: str) -> bool:
        """Try to connect; return whether there is a connection."""
        channel = self._channel(address)
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(_CONNECT_S):
                while state in _ON_THE_WAY:
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return state is grpc.ChannelConnectivity.READY

    async def _ask(self, call: ForwardedCall, address: str) -> bytes:
        self.forwarded_total += 1
        method = self._channel(address).unary_unary(f"/{SERVICE}/{call.method}")
        answer: Any = method(call.data, metadata=_metadata(call), timeout=_left_s(call))
        found: bytes = await answer
        return found

    async def stream(self, call: ForwardedCall, address: str) -> AsyncIterator[bytes]:
        """Yield the answers of the node at an address. Raises CallRefusedError."""
        self.forwarded_total += 1
        method = self._channel(address).unary_stream(f"/{SERVICE}/{call.method}")
        answer: Any = method(call.data, metadata=_metadata(call), timeout=_left_s(call))
        try:
            async for data in answer:
                yield data
        except grpc.aio.AioRpcError as error:
            raise _not_reached(address, error) from error
        finally:
            answer.cancel()

    async def questions(
        self, address: str, request: CheckTransactionsRequest
    ) -> AsyncIterator[TransactionCheck]:
        """Yield the questions to producers of the leader at an address. Raises CallRefusedError."""
        method = self._channel(address).unary_stream(
            _CHECK_TRANSACTIONS,
            request_serializer=CheckTransactionsRequest.SerializeToString,
            response_deserializer=TransactionCheck.FromString,
        )
        answer: Any = method(request)
        try:
            async for check in answer:
                yield check
        except grpc.aio.AioRpcError as error:
            raise _not_reached(address, error) from error
        finally:
            answer.cancel()

    async def route(self, address: str) -> RouteResponse | None:
        """Ask the node at an address for its route; None if it does not answer in time."""
        method = self._channel(address).unary_unary(
            _ROUTE,
            request_serializer=RouteRequest.SerializeToString,
            response_deserializer=RouteResponse.FromString,
        )
        asked: Any = method(RouteRequest(), timeout=_ROUTE_S)
        try:
            found: RouteResponse = await asked
        except grpc.aio.AioRpcError:
            return None
        return found

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(address, _OPTIONS)
            else:
                channel = grpc.aio.secure_channel(address, self._credentials, _OPTIONS)
            self._channels[address] = channel
        return channel

    async def stop(self) -> None:
        """Close all connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


def _metadata(call: ForwardedCall) -> tuple[tuple[str, str], ...]:
    kept = tuple((name, value) for name, value in call.metadata if name.startswith(_PASSED_ON))
    return (*kept, (HOPS_HEADER, str(call.hop_count + 1)))


def _left_s(call: ForwardedCall) -> float:
    return max(0.05, call.deadline_s - asyncio.get_running_loop().time())


def _unanswered(code: Code, address: str, error: grpc.aio.AioRpcError) -> CallRefusedError:
    text = f"the leader at {address} got the call and did not answer: {error.code().name} "
    return CallRefusedError(code, f"{text}{error.details()}; whether it was done is not known")


def _not_reached(address: str, error: grpc.aio.AioRpcError) -> CallRefusedError:
    text = f"the leader at {address} did not answer: {error.code().name} {error.details()}"
    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return CallRefusedError(Code.PROXY_TIMEOUT if is_late else Code.HA_NOT_AVAILABLE, text)
