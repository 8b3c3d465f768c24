"""The methods of the protocol: answered here or by a leader, and every error as a status.

Owns the table of methods and the way of one call through the gateway. Must not know what a message
is. Every answer has a status; a transport error is for faults between client and node.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message

from node.broker import Broker
from node.broker.groups.settings import settings_of
from node.errors.requests import RocketMqOffError
from node.rocketmq.callers import SERVICE, Caller, caller_of
from node.rocketmq.calls.ends import EndCalls
from node.rocketmq.calls.receive import ReceiveCalls
from node.rocketmq.calls.renewals import Renewals
from node.rocketmq.calls.send import SendCalls
from node.rocketmq.clients import GatewayClients
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.forwarder import Forwarder
from node.rocketmq.needs import METHOD_NEEDS
from node.rocketmq.protocol import handles
from node.rocketmq.protocol.messages import Deliveries
from node.rocketmq.protocol.names import group_name
from node.rocketmq.protocol.statuses import OK, CallRefusedError, common, status_of
from node.rocketmq.routes import Routes, group_of_broker
from node.rocketmq.telemetry import Telemetry, answer
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.message_bounds import bounded_message
from node.services.bounds.bounded import refusing
from node.services.calls import ServedCalls, ServicerContext, refuse
from node.users import guard
from node.users.node_proofs import NodeProofs
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code
from raft.messages import NodeId

_NAME: Final = "MessagingService"
_LANGUAGE_HEADER: Final = "x-mq-language"
_LOST: Final = {
    "SendMessage": Code.MASTER_PERSISTENCE_TIMEOUT,
    "ForwardMessageToDeadLetterQueue": Code.PROXY_TIMEOUT,
}
"""Codes of calls with a lost answer that differ when they are done twice: a second send stores a
second message, and a message that was given up has no handle any more. The client decides whether
to repeat one."""

Answer = Callable[[Caller, Any], Awaitable[Any]]
Where = Callable[[Any], str]
_Elements = AsyncIterator[bytes] | AsyncIterator[Any]
"""Of a stream: messages, or their bytes."""


class _Method(NamedTuple):
    request: type[Any]
    response: type[Any]
    answer: Answer
    where: Where | None
    """Returns the broker group whose leader answers; None, or an empty name: any node does."""
    lost: Code | None
    """Code for the client when the leader's answer is lost; None: the gateway asks again."""


class RocketMq:
    """The gateway of one node."""

    def __init__(
        self,
        broker: Broker,
        calls: ServedCalls,
        credentials: grpc.ChannelCredentials | None,
        is_connected: Callable[[NodeId], bool],
        proofs: NodeProofs,
        users: guard.Guard | None = None,
    ) -> None:
        """`credentials` are for forwarded calls; `is_connected` knows the nodes of this group, and
        `proofs` tells them from clients. `users` knows what callers may do; None: users are off."""
        context = broker.context
        self._context = context
        self._calls = calls
        self.counters: Final = calls.counters
        self._users = users
        self._proofs = proofs
        self.clients: Final = GatewayClients()
        self._cluster = GatewayCluster(context, broker.other_groups, is_connected)
        self.forwarder: Final = Forwarder(self._cluster, credentials, proofs)
        self.renewals: Final = Renewals(self.clients, broker.pop.change_invisible, context.turn)
        self._routes = Routes(self._cluster, lists_others=credentials is None)
        on_failure = partial(self._failed, f"{_NAME}/SendMessage")
        self._send_calls = SendCalls(self._cluster, broker, on_failure)
        deliveries = Deliveries()
        self._receive_calls = ReceiveCalls(self._cluster, broker, self.renewals, deliveries)
        self.end_calls: Final = EndCalls(
            self._cluster, self.clients, broker, self.forwarder, deliveries
        )
        on_failure = partial(self._failed, f"{_NAME}/Telemetry")
        self._telemetry = Telemetry(self.clients, self._settings, on_failure)
        self._methods: Final = self._table()
        self._refused_log = RateLimitedLog(logging.getLogger(__name__))
        broker.add_leader_work(self.end_calls)
        broker.add_leader_work(self.renewals)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of all methods. Methods that no client calls are unimplemented."""
        # A method that the table of rights does not have ends the start.
        missing = {*self._methods, "ReceiveMessage", "Telemetry"} - METHOD_NEEDS.keys()
        assert not missing, f"without a row of rights: {missing}"
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name, method), None, None)
            for name, method in self._methods.items()
        }
        receive = self._stream("ReceiveMessage", pb.ReceiveMessageResponse, self._receive)
        handlers["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(receive, None, None)
        telemetry = self._stream("Telemetry", pb.TelemetryCommand, self._converse)
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(telemetry, None, None)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def closed_handler(self) -> grpc.GenericRpcHandler:
        """Return a handler that refuses all methods and reads no request: the protocol is off."""
        closed = grpc.stream_stream_rpc_method_handler(self._refuse, None, None)
        names = (*self._methods, "ReceiveMessage", "Telemetry")
        return grpc.method_handlers_generic_handler(SERVICE, dict.fromkeys(names, closed))

    async def stop(self) -> None:
        """Release everything that is held for clients."""
        self.end_calls.stop()
        self.renewals.stop()
        await self.forwarder.stop()

    def _table(self) -> dict[str, _Method]:
        handle = _group_in("receipt_handle", Code.INVALID_RECEIPT_HANDLE)
        transaction = _group_in("transaction_id", Code.INVALID_TRANSACTION_ID)
        recall = _group_in("recall_handle", Code.BAD_REQUEST)
        sends, receives = self._send_calls, self._receive_calls
        ends, routes = self.end_calls, self._routes
        rows: dict[str, tuple[Answer, Where | None]] = {
            "QueryRoute": (_told_language(routes.query_route), routes.where),
            "QueryAssignment": (_told_language(routes.query_assignment), routes.where),
            "Heartbeat": (self._heartbeat, None),
            "SendMessage": (_alone(sends.send_message), sends.group_of),
            "AckMessage": (self._ack, None),
            "ForwardMessageToDeadLetterQueue": (_alone(receives.forward_to_dead_letters), handle),
            "ChangeInvisibleDuration": (_alone(receives.change_invisible_duration), handle),
            "EndTransaction": (_alone(ends.end_transaction), transaction),
            "RecallMessage": (_alone(ends.recall_message), recall),
            "NotifyClientTermination": (self._terminated, None),
        }
        return {
            name: _Method(
                getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"), *row, _LOST.get(name)
            )
            for name, row in rows.items()
        }

    # --- The way of a call ---

    def _unary(self, name: str, method: _Method) -> Any:
        full_name = f"{_NAME}/{name}"
        begun, ended = self.counters.begun, self.counters.ended

        async def call(data: bytes, context: Any) -> bytes:
            begun[full_name] += 1
            try:
                caller = self._admit(name, data, context)
                request = _parse(method.request, data)
                if caller.user is None:
                    return await self._dispatch(caller, method, request)
                with self._serving(caller, caller.user, request):
                    return await self._dispatch(caller, method, request)
            except Exception as error:  # noqa: BLE001 - each of them is reported to the client.
                return self._failure(full_name, method.response, error)
            finally:
                ended[full_name] += 1

        return self._refusing(call, name, method.response)

    def _refusing(self, function: Any, name: str, response: type[Any]) -> Any:
        return refusing(function, partial(self._failure, f"{_NAME}/{name}", response))

    async def _dispatch(self, caller: Caller, method: _Method, request: Any) -> bytes:
        group = "" if method.where is None else method.where(request)
        if not group:
            answered = await method.answer(caller, request)
        else:
            here = partial(method.answer, caller, request)
            answered = await self.forwarder.answer(caller, group, here, method.lost)
        if isinstance(answered, bytes):
            return answered
        response: Message = answered
        return response.SerializeToString()

    def _stream(
        self, name: str, response: type[Any], begin: Callable[[Caller, Any], Awaitable[_Elements]]
    ) -> Any:
        """Make a handler that yields, encoded, what `begin` returns for a caller and its data."""
        full_name = f"{_NAME}/{name}"

        async def call(data: Any, context: Any) -> AsyncIterator[bytes]:
            self.counters.begun[full_name] += 1
            try:
                caller = self._admit(name, data if isinstance(data, bytes) else b"", context)
                request = data
                if isinstance(data, bytes):
                    request = _parse(getattr(pb, f"{name}Request"), data)
                with self._serving(caller, caller.user, request):
                    async for element in await begin(caller, request):
                        yield element if isinstance(element, bytes) else element.SerializeToString()
            except Exception as error:  # noqa: BLE001 - each of them is reported to the client.
                yield self._failure(full_name, response, error)
            finally:
                self.counters.ended[full_name] += 1

        return self._refusing(call, name, response)

    async def _receive(self, caller: Caller, request: pb.ReceiveMessageRequest) -> _Elements:
        group = group_of_broker(request.message_queue.broker.name) or self._cluster.own_group
        return await self.forwarder.hold(
            caller,
            group,
            lambda: _begun(self._receive_calls.receive_message(caller, request)),
            lambda address: _begun(self.forwarder.stream(caller, address)),
        )

    async def _converse(self, caller: Caller, requests: AsyncIterator[bytes]) -> _Elements:
        self.end_calls.watch()
        return self._telemetry.serve(caller.client_id, requests)

    async def _refuse(
        self, _requests: AsyncIterator[bytes], context: ServicerContext
    ) -> AsyncIterator[bytes]:
        error = RocketMqOffError()
        self._refused_log.warn("a client of RocketMQ was refused", str(error))
        await refuse(error, context)
        yield b""  # type: ignore[unreachable]  # A method of a stream is a generator.

    def _admit(self, name: str, data: bytes, context: Any) -> Caller:
        caller = caller_of(name, data, context, self._proofs, self._users)
        user = caller.user
        if user is not None and user.guard.is_on:
            user.guard.check(user, f"{_NAME}/{name}", ())  # Before the request is read.
        return caller

    def _serving(
        self, caller: Caller, user: guard.Caller | None, request: object
    ) -> AbstractContextManager[None]:
        """Check a call and run it in the name of its user; without a check where users are off."""
        method = caller.method
        if user is None:
            return nullcontext()
        return user.guard.serving(user, f"{_NAME}/{method}", METHOD_NEEDS[method], request)

    def _failure(self, name: str, response: type[Any], error: Exception) -> bytes:
        self._failed(name, error)
        data: bytes = response(status=status_of(error)).SerializeToString()
        return data

    def _failed(self, name: str, error: Exception) -> None:
        """Count an error; an unexpected one is logged, too."""
        if isinstance(error, CallRefusedError):
            self.counters.failed[name, Code.Name(error.code)] += 1
        else:
            self._calls.failed(name, error)

    # --- Methods that need more than one part ---

    async def _ack(self, caller: Caller, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        """Acknowledge messages of any broker groups: the leader of each group answers its part."""
        limit = self._context.limits.pop_handle_count_max
        if len(request.entries) > limit:
            text = f"{len(request.entries)} entries, the limit is {limit}"
            raise CallRefusedError(Code.BAD_REQUEST, text)
        by_group: dict[str, list[pb.AckMessageEntry]] = {}
        for entry in request.entries:
            handle = handles.parse(entry.receipt_handle, Code.INVALID_RECEIPT_HANDLE)
            by_group.setdefault(handle.group, []).append(entry)
        if not by_group:
            raise CallRefusedError(Code.BAD_REQUEST, "no entries")
        by_handle: dict[str, pb.AckMessageResultEntry] = {}
        for group, entries in by_group.items():
            part = pb.AckMessageRequest(group=request.group, topic=request.topic, entries=entries)
            call = caller._replace(data=part.SerializeToString())
            ack = partial(self._receive_calls.ack_message, part)
            answered = await self.forwarder.answer(call, group, ack)
            if isinstance(answered, bytes):
                answered = pb.AckMessageResponse.FromString(answered)
            for entry in entries:
                by_handle[entry.receipt_handle] = pb.AckMessageResultEntry(
                    message_id=entry.message_id,
                    receipt_handle=entry.receipt_handle,
                    status=answered.status,
                )
            by_handle |= {entry.receipt_handle: entry for entry in answered.entries}
        results = [by_handle[entry.receipt_handle] for entry in request.entries]
        return pb.AckMessageResponse(
            status=common([entry.status for entry in results]), entries=results
        )

    async def _heartbeat(self, caller: Caller, request: pb.HeartbeatRequest) -> Any:
        if request.HasField("group") and request.group.name:
            group_name(request.group)
        if not request.client_type:
            text = "a heartbeat without a client type"
            raise CallRefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, text)
        self.clients.seen(caller.client_id)
        self.end_calls.watch()  # It forgets clients, too.
        return pb.HeartbeatResponse(status=OK)

    async def _terminated(self, caller: Caller, _: pb.NotifyClientTerminationRequest) -> Any:
        self.clients.check_own(caller.client_id)
        self.renewals.left(caller.client_id)
        self.clients.left(caller.client_id)
        return pb.NotifyClientTerminationResponse(status=OK)

    def _settings(self, asked: pb.Settings) -> pb.Settings:
        decided = settings_of(self._context, asked.subscription.group.name)
        return answer(
            asked,
            body_size_bytes_max=self._send_calls.body_size_bytes_max,
            attempt_count=decided.retry_count_max + 1,
            is_fifo=decided.is_orderly,
        )


def _parse(kind: type[Any], data: bytes) -> Any:
    try:
        return bounded_message(kind, data)
    except DecodeError as error:
        text = f"{len(data)} bytes that are no {kind.DESCRIPTOR.name}"
        raise CallRefusedError(Code.BAD_REQUEST, text) from error


async def _begun(elements: _Elements) -> _Elements:
    """Return a stream whose first element is there. Raises what comes in its place."""
    first = []
    async for element in elements:
        first.append(element)
        break

    async def whole() -> _Elements:
        for element in first:
            yield element
        async for element in elements:
            yield element

    return whole()


def _alone(run: Callable[[Any], Awaitable[Any]]) -> Answer:
    return lambda _caller, request: run(request)


def _told_language(run: Callable[[Any, str], Any]) -> Answer:
    async def answered(caller: Caller, request: Any) -> Any:
        return run(request, caller.headers.get(_LANGUAGE_HEADER, ""))

    return answered


def _group_in(field: str, code: Code) -> Where:
    """Make a Where of a field that has a text which this cluster gave out."""
    return lambda request: handles.parse(getattr(request, field), code).group
