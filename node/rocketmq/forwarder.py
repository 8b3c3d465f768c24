"""Forwards calls, unchanged, to the leader of the group that they are about.

Owns connections between gateways, and how often a call is forwarded. Must not know what a call
means. A call that reached a leader and has no answer may have been done: it is forwarded again only
if that changes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import grpc

from node.errors.common import NotLeaderError
from node.rocketmq.callers import CLIENT_HEADER, HOPS_HEADER, SERVICE, USER_HEADER, Caller
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.hold import NothingDoneError, T, answer_of_leader
from node.rocketmq.protocol.statuses import CallRefusedError
from node.runtime.accounts import Kind, caller
from node.runtime.background import BackgroundTasks
from node.runtime.channel_options import CHANNEL_OPTIONS
from node.services.door import AUTHORIZATION
from node.services.server import STREAM_COUNT_MAX
from node.users.node_proofs import HEADER, NodeProofs, signed_form
from quorumlog.pb.log_pb2 import RouteRequest, RouteResponse
from quorumlog.pb.rocketmq_pb2 import Code
from quorumlog.pb.transaction_pb2 import CheckTransactionsRequest, TransactionCheck
from quorumlog.pb.users_pb2 import HandAuditRequest, HandAuditResponse

_OWN_SERVICES: Final = "/quorumlog.v1."
_CHECK_TRANSACTIONS: Final = "TransactionService/CheckTransactions"
_ROUTE: Final = "LogService/Route"
_ROUTE_S: Final = 1.0
_CLOSE_S: Final = 60.0
"""Time for calls over a connection whose credentials were renewed."""
_HAND_AUDIT: Final = "UserService/HandAudit"
_HAND_AUDIT_S: Final = 10.0
HOP_COUNT_MAX: Final = 3
"""Forwards after which a call is refused: the nodes that were asked disagree about the leader."""
CALLS_OF_HOST_MAX: Final = STREAM_COUNT_MAX // 3
"""Calls of clients at one address that wait for one node: all share the connection to it, on which
gRPC makes calls wait above the node's limit."""
DEADLINE_MARGIN_S: Final = 0.3
"""Part of a caller's time that is left for the answer to reach it."""
_CONNECT_S: Final = 0.5
"""Time after which the leader is looked up again; the attempt to connect goes on."""
_ON_THE_WAY: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_OPTIONS: Final = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
)
_OWN_OPTIONS: Final = (*_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""Else gRPC gives two channels to one address the same connection."""
_NOTHING_HAPPENED: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)
"""Statuses of a node's gRPC before any handler saw the call."""
_PASSED_ON: Final = ("authorization", "x-mq-")


class Forwarder:
    """Forwards calls over one connection to each node, and has another one for what this node asks
    itself: a connection has a limit of calls. One per gateway."""

    def __init__(
        self,
        cluster: GatewayCluster,
        credentials: grpc.ChannelCredentials | None,
        proofs: NodeProofs,
    ) -> None:
        """`proofs` signs what this node sends."""
        self._cluster = cluster
        self._proofs = proofs
        self._credentials = credentials
        self._closing = BackgroundTasks("a connection to a node was not closed")
        self._channels: dict[tuple[str, bool], grpc.aio.Channel] = {}
        """By address, and whether it is for this node's own calls."""
        self._under_way: Counter[tuple[str, str]] = Counter()
        """Calls without an answer, by node, and host of the client."""
        self.forwarded_total = 0

    async def answer(
        self,
        call: Caller,
        group: str,
        here: Callable[[], Awaitable[Any]],
        lost: Code | None = None,
    ) -> Any:
        """Return the answer of a group's leader: that of `here`, or another node's as bytes.

        `lost` refuses a call whose outcome is unknown; None: doing it twice is as good as once.
        Raises CallRefusedError, and the errors of `here`.
        """
        return await self.hold(call, group, here, partial(self._unary, call, lost))

    async def hold(
        self,
        call: Caller,
        group: str,
        here: Callable[[], Awaitable[T]],
        there: Callable[[str], Awaitable[T]],
    ) -> T:
        """Hold a call until a leader answers: see `answer_of_leader`."""
        until_s = call.deadline_s - DEADLINE_MARGIN_S
        return await answer_of_leader(self._cluster, group, here, there, until_s)

    async def _unary(self, call: Caller, lost: Code | None, address: str) -> bytes:
        """Forward to the leader at an address. Raises CallRefusedError, NothingDoneError.

        A node that cannot be connected to has not seen the call. When the connection breaks before
        the answer comes, the outcome is unknown.
        """
        _check_hops(call)
        try:
            if await self._is_connected(address):
                return await self._ask(call, address)
        except grpc.aio.AioRpcError as error:
            if lost is not None and error.code() not in _NOTHING_HAPPENED:
                text = f"the leader at {address} got the call and did not answer: "
                text += f"{error.code().name} {error.details()}; whether it was done is not known"
                raise CallRefusedError(lost, text) from error
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise NothingDoneError(_not_reached(address, error)) from error
            raise _not_reached(address, error) from error
        text = f"the leader at {address} cannot be connected to; try again"
        raise NothingDoneError(CallRefusedError(Code.HA_NOT_AVAILABLE, text))

    async def _is_connected(self, address: str) -> bool:
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

    async def _ask(self, call: Caller, address: str) -> bytes:
        self.forwarded_total += 1
        method = self._channel(address).unary_unary(f"/{SERVICE}/{call.method}")
        with self._room(call, address):
            metadata = self._metadata(call, address)
            answer: Any = method(call.data, metadata=metadata, timeout=_left_s(call))
            response: bytes = await answer
        return response

    @contextmanager
    def _room(self, call: Caller, address: str) -> Iterator[None]:
        """Hold one of the calls that a node takes of this one. Raises CallRefusedError."""
        key, limit, account = (address, call.remote.rpartition(":")[0]), CALLS_OF_HOST_MAX, caller()
        if account is not None:  # The other node takes as many calls of a connection as this one.
            limit = max(1, min(limit, account.limits[Kind.CALLS][0] // 3))
        if self._under_way[key] >= limit:
            text = f"{limit} calls of one address wait for {address}, the limit"
            raise CallRefusedError(Code.TOO_MANY_REQUESTS, f"{text}; try again")
        self._under_way[key] += 1
        try:
            yield
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    async def stream(self, call: Caller, address: str) -> AsyncIterator[bytes]:
        """Yield the answers of the node at an address. Raises CallRefusedError."""
        _check_hops(call)
        self.forwarded_total += 1
        method = self._channel(address).unary_stream(f"/{SERVICE}/{call.method}")
        with self._room(call, address):
            metadata = self._metadata(call, address)
            answer: Any = method(call.data, metadata=metadata, timeout=_left_s(call))
            async for data in _elements(address, answer):
                yield data

    def _metadata(self, call: Caller, address: str) -> tuple[tuple[str, str], ...]:
        """Return the headers for a node, signed: those of the client that mean something, its
        address and its user. Raises NothingDoneError."""
        kept = [
            (name, value) for name, value in call.headers.items() if name.startswith(_PASSED_ON)
        ]
        kept += [(HOPS_HEADER, str(call.hop_count + 1)), (CLIENT_HEADER, call.remote)]
        is_spoken_for = call.user is not None and not call.headers.get(AUTHORIZATION)
        if call.user is not None and is_spoken_for:
            kept.append((USER_HEADER, call.user.name))
        metadata = self._signed(address, f"{SERVICE}/{call.method}", call.data, kept)
        if is_spoken_for and metadata[-1][0] != HEADER:
            # The other node would take this one's certificate for the client's.
            text = f"this node cannot speak for a user at {address}; set secret_file"
            raise NothingDoneError(CallRefusedError(Code.HA_NOT_AVAILABLE, text))
        return metadata

    def _signed(
        self, address: str, method: str, body: bytes, headers: Iterable[tuple[str, str]] = ()
    ) -> tuple[tuple[str, str], ...]:
        token = self._proofs.token_of(self._cluster.node_at(address))
        return self._proofs.signed(token, method, body, headers)

    def questions(
        self, address: str, request: CheckTransactionsRequest
    ) -> AsyncIterator[TransactionCheck]:
        """Return the questions to producers of the leader at an address, which raise
        CallRefusedError."""
        method = self._channel(address, is_own=True).unary_stream(
            _OWN_SERVICES + _CHECK_TRANSACTIONS,
            request_serializer=CheckTransactionsRequest.SerializeToString,
            response_deserializer=TransactionCheck.FromString,
        )
        shown = self._signed(address, _CHECK_TRANSACTIONS, signed_form(request))
        return _elements(address, method(request, metadata=shown))

    async def hand_audit(self, address: str, request: HandAuditRequest) -> None:
        """Give rows of the audit to the leader. Raises NotLeaderError if it does not take them."""
        method = self._channel(address, is_own=True).unary_unary(
            _OWN_SERVICES + _HAND_AUDIT,
            request_serializer=HandAuditRequest.SerializeToString,
            response_deserializer=HandAuditResponse.FromString,
        )
        shown = self._signed(address, _HAND_AUDIT, signed_form(request))
        call: Any = method(request, metadata=shown, timeout=_HAND_AUDIT_S)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            raise NotLeaderError from error

    async def route(self, address: str) -> RouteResponse | None:
        """Ask the node at an address for its route; None if it does not answer in time."""
        method = self._channel(address, is_own=True).unary_unary(
            _OWN_SERVICES + _ROUTE,
            request_serializer=RouteRequest.SerializeToString,
            response_deserializer=RouteResponse.FromString,
        )
        call: Any = method(RouteRequest(), timeout=_ROUTE_S)
        try:
            response: RouteResponse = await call
        except grpc.aio.AioRpcError:
            return None
        return response

    def _channel(self, address: str, *, is_own: bool = False) -> grpc.aio.Channel:
        channel = self._channels.get((address, is_own))
        if channel is None:
            options = _OWN_OPTIONS if is_own else _OPTIONS
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(address, options)
            else:
                channel = grpc.aio.secure_channel(address, self._credentials, options)
            self._channels[address, is_own] = channel
        return channel

    def renew(self, credentials: grpc.ChannelCredentials) -> None:
        """Make new connections for the calls to come, with other credentials."""
        self._credentials = credentials
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._closing.run(_close_later(channel))

    async def stop(self) -> None:
        """Close all connections."""
        await self._closing.end()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


async def _close_later(channel: grpc.aio.Channel) -> None:
    try:
        await asyncio.sleep(_CLOSE_S)
    finally:
        await channel.close()


async def _elements(address: str, answer: Any) -> AsyncIterator[Any]:
    try:
        async for element in answer:
            yield element
    except grpc.aio.AioRpcError as error:
        raise _not_reached(address, error) from error
    finally:
        answer.cancel()


def _check_hops(call: Caller) -> None:
    if call.hop_count >= HOP_COUNT_MAX:
        text = f"forwarded {call.hop_count} times, and no node was the leader; try again"
        raise CallRefusedError(Code.HA_NOT_AVAILABLE, text)


def _left_s(call: Caller) -> float:
    return max(0.05, call.deadline_s - asyncio.get_running_loop().time())


def _not_reached(address: str, error: grpc.aio.AioRpcError) -> CallRefusedError:
    text = f"the leader at {address} did not answer: {error.code().name} {error.details()}"
    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return CallRefusedError(Code.PROXY_TIMEOUT if is_late else Code.HA_NOT_AVAILABLE, text)
