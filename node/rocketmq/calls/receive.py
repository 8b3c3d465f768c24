"""Receiving and its follow-ups: acks, other invisible times, dead letters.

Owns the way from the broker's deliveries to messages of the protocol. Messages of all queues of the
topic in this broker group are handed out, whichever queue a client names (protocol section 10.2).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from google.protobuf.duration_pb2 import Duration

from node.broker import Broker
from node.broker.pop.handles import decode_handle
from node.errors.pop import StaleHandleError
from node.rocketmq.callers import Caller
from node.rocketmq.calls.renewals import RENEWED_MS, Renewals
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.protocol import handles
from node.rocketmq.protocol.messages import Deliveries, duration_ms_of, timestamp
from node.rocketmq.protocol.names import filter_of, group_name, topic_name
from node.rocketmq.protocol.statuses import OK, CallRefusedError, common
from node.rocketmq.telemetry import LONG_POLLING_S, RECEIVE_COUNT
from quorumlog.pb import pop_pb2
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code
from store.record.message import decode_message

INVISIBLE_MS_MAX: Final = 12 * 3_600_000
WAIT_MARGIN_S: Final = 0.5
"""A wait ends this long before the caller's deadline: a take must not outlive its caller."""


class ReceiveCalls:
    """Answers receives and their follow-ups. One per gateway."""

    def __init__(
        self, cluster: GatewayCluster, broker: Broker, renewals: Renewals, deliveries: Deliveries
    ) -> None:
        self._cluster = cluster
        self._deliveries = deliveries
        self._pop = broker.pop
        self._renewals = renewals

    # --- Receiving ---

    async def receive_message(
        self, caller: Caller, request: pb.ReceiveMessageRequest
    ) -> AsyncIterator[pb.ReceiveMessageResponse | bytes]:
        """Yield a status, the messages (encoded), and the time of their delivery."""
        group = group_name(request.group)
        topic = topic_name(request.message_queue.topic, for_reading=True)
        received = await self._pop.receive(self._receive_request(caller, request, group, topic))
        if not received.deliveries:
            text = "there is no message at the moment"
            status = pb.Status(code=Code.MESSAGE_NOT_FOUND, message=text)
            yield pb.ReceiveMessageResponse(status=status)
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(received.now_unix_ms))
            return
        if request.auto_renew:
            inner = [delivery.handle for delivery in received.deliveries]
            self._renewals.hold(caller.client_id, group, topic, inner)
        is_told = False
        try:
            yield pb.ReceiveMessageResponse(status=OK)
            async for element in self._messages(topic, received):
                yield element
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(received.now_unix_ms))
            is_told = True
        finally:
            if not is_told:
                self._renewals.give_back(group, topic, [d.handle for d in received.deliveries])

    def _receive_request(
        self, caller: Caller, request: pb.ReceiveMessageRequest, group: str, topic: str
    ) -> pop_pb2.ReceiveRequest:
        wanted = filter_of(request.filter_expression)
        invisible_ms = RENEWED_MS
        if not request.auto_renew:
            invisible_ms = _invisible_ms(request.invisible_duration, 1)
        wait_s = float(LONG_POLLING_S)
        if request.HasField("long_polling_timeout"):
            polling_ms = duration_ms_of(request.long_polling_timeout, Code.ILLEGAL_POLLING_TIME)
            wait_s = min(wait_s, polling_ms / 1000)
        left_s = caller.deadline_s - asyncio.get_running_loop().time() - WAIT_MARGIN_S
        return pop_pb2.ReceiveRequest(
            group=group,
            topic=topic,
            queue_id=-1,
            max_count=max(1, min(request.batch_size, RECEIVE_COUNT)),
            invisible_ms=invisible_ms,
            wait_ms=max(0, int(min(wait_s, left_s) * 1000)),
            tags=wanted.tags,
            sql=wanted.sql,
            is_fifo=True,
            is_one_of_each=True,  # Push consumers handle the messages of one answer in parallel.
            attempt_id=request.attempt_id,
        )

    async def _messages(
        self, topic: str, response: pop_pb2.ReceiveResponse
    ) -> AsyncIterator[bytes]:
        """Yield elements with the messages, each made when the one before is away: a client that
        reads nothing holds one body, once, however much the stored ones become."""
        view, at = memoryview(response.records), 0
        for delivery in response.deliveries:
            record = decode_message(view, at)
            at += record.size_bytes
            message = await self._deliveries.message(record, topic)
            system = message.system_properties
            handle = handles.ReceiptHandle(self._cluster.own_group, delivery.handle)
            system.receipt_handle = str(handle)
            system.delivery_attempt = delivery.delivery_count
            element = pb.ReceiveMessageResponse(message=message).SerializeToString()
            del record, message, system
            yield element
        assert at == len(view), f"{len(view) - at} bytes behind the records"

    # --- Afterwards ---

    async def ack_message(self, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        """Acknowledge messages, one at least; each entry of the answer has its own status."""
        group, topic = group_name(request.group), topic_name(request.topic, for_reading=True)
        inner = [_inner(entry.receipt_handle) for entry in request.entries]
        ack = pop_pb2.AckRequest(group=group, topic=topic, handles=inner)
        answer = await self._pop.ack(ack)
        self._renewals.let_go(group, topic, inner)
        stale = set(answer.stale_handles)
        entries = [
            pb.AckMessageResultEntry(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=_stale(group, topic, handle) if handle in stale else OK,
            )
            for entry, handle in zip(request.entries, inner, strict=True)
        ]
        status = common([entry.status for entry in entries])
        return pb.AckMessageResponse(status=status, entries=entries)

    async def change_invisible_duration(
        self, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        """Hide a message for longer or shorter, from now on; 0 makes it visible at once."""
        invisible_ms = _invisible_ms(request.invisible_duration, 0)
        inner, group = _inner(request.receipt_handle), group_name(request.group)
        topic = topic_name(request.topic, for_reading=True)
        self._renewals.let_go(group, topic, [inner])
        answer = await self._pop.change_invisible(
            pop_pb2.ChangeInvisibleRequest(
                group=group, topic=topic, handle=inner, invisible_ms=invisible_ms
            )
        )
        handle = str(handles.ReceiptHandle(self._cluster.own_group, answer.handle))
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)

    async def forward_to_dead_letters(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Move a message to the dead letters of its group."""
        inner, group = _inner(request.receipt_handle), group_name(request.group)
        topic = topic_name(request.topic, for_reading=True)
        self._renewals.let_go(group, topic, [inner])
        await self._pop.give_up(pop_pb2.GiveUpRequest(group=group, topic=topic, handle=inner))
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)


def _stale(group: str, topic: str, handle: str) -> pb.Status:
    """Return why a handle acks nothing: it is of others, or too late."""
    text = "its invisible time was over, and the message was handed out again"
    try:
        decode_handle(group, topic, handle)
    except StaleHandleError as error:
        text = str(error)
    return pb.Status(code=Code.INVALID_RECEIPT_HANDLE, message=text)


def _inner(receipt_handle: str) -> str:
    return handles.parse(receipt_handle, Code.INVALID_RECEIPT_HANDLE).inner


def _invisible_ms(duration: Duration, lo: int) -> int:
    duration_ms = duration_ms_of(duration, Code.ILLEGAL_INVISIBLE_TIME)
    if not lo <= duration_ms <= INVISIBLE_MS_MAX:
        text = f"{duration_ms} ms, the limits are {lo} and {INVISIBLE_MS_MAX}"
        raise CallRefusedError(Code.ILLEGAL_INVISIBLE_TIME, text)
    return duration_ms
