"""SendMessage: from messages of the protocol to an append, and back to its entries.

Owns the checks of a request and the choice of the queue: the one that a client chose is a hint that
is ignored, since clients choose differently (protocol sections 8 and 12.1).
"""

from collections.abc import Callable, Sequence
from typing import Final

from node.broker import Broker
from node.broker.append.produce import batch_size_bytes_max
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.hold import LED_ELSEWHERE
from node.rocketmq.protocol import handles
from node.rocketmq.protocol.messages import (
    check_message,
    duration_ms_of,
    to_record,
    type_of,
    unix_ms_of,
)
from node.rocketmq.protocol.names import topic_name
from node.rocketmq.protocol.statuses import OK, CallRefusedError, common, status_of
from node.runtime.clock import unix_ms
from node.state.state import PERMISSION_WRITE
from node.state.tables.topic_types import takes
from node.users.calling import calling, set_calling
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.rocketmq_pb2 import Code, MessageType
from quorumlog.pb.transaction_pb2 import HalfMessages
from store import format as fmt

MESSAGE_COUNT_MAX: Final = 1_024
"""Messages of one request; clients send one."""
_RECORD_ROOM_BYTES: Final = 36 * 1024
"""Room of a record beside its body: properties, topic and head."""
_ORPHAN_MS_MAX: Final = 3_600_000
_TRANSACTION: Final = MessageType.TRANSACTION
_DELAY: Final = MessageType.DELAY


class SendCalls:
    """Answers SendMessage. One per gateway."""

    def __init__(
        self, cluster: GatewayCluster, broker: Broker, on_failure: Callable[[Exception], None]
    ) -> None:
        """`on_failure` is called with the error of a message that was not stored."""
        context = self._context = broker.context
        self._cluster = cluster
        self._broker = broker
        self._on_failure = on_failure
        room_bytes = batch_size_bytes_max(context) - _RECORD_ROOM_BYTES
        self.body_size_bytes_max: Final = min(context.store.config.body_size_bytes_max, room_bytes)
        """Size of the largest body that a client may send."""
        self._next_queue = 0

    def group_of(self, request: pb.SendMessageRequest) -> str:
        """Return the broker group that takes a request: this node's, but for ordered messages."""
        if request.messages and request.messages[0].system_properties.message_group:
            topic = topic_name(request.messages[0].topic)
            name = request.messages[0].system_properties.message_group
            return self._cluster.queue_of_message_group(topic, name)[0]
        return self._cluster.own_group

    async def send_message(self, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Append the messages; each entry of the answer has its own status.

        Raises one of LED_ELSEWHERE when none of them could be appended here.
        """
        messages = request.messages
        topic, kinds = self._check(messages)
        caller = calling()
        if caller is not None:
            caller.spend(request.ByteSize(), len(messages))
        set_calling(None)  # Pub is checked; a transaction has its topic as its group.
        entries: list[pb.SendResultEntry] = []
        for message, kind in zip(messages, kinds, strict=True):
            entries.append(await self._send(topic, message, kind, is_first=not entries))
        return pb.SendMessageResponse(
            status=common([entry.status for entry in entries]), entries=entries
        )

    def _check(self, messages: Sequence[pb.Message]) -> tuple[str, list[MessageType]]:
        if not 1 <= len(messages) <= MESSAGE_COUNT_MAX:
            text = f"{len(messages)} messages, a request has 1 to {MESSAGE_COUNT_MAX}"
            raise CallRefusedError(Code.MESSAGE_CORRUPTED, text)
        topic, kinds = topic_name(messages[0].topic), []
        for number, message in enumerate(messages):
            if number and topic_name(message.topic) != topic:
                raise CallRefusedError(Code.MESSAGE_CORRUPTED, "messages of several topics")
            check_message(message, self.body_size_bytes_max)
            kinds.append(type_of(message))
        return topic, kinds

    async def _send(
        self, topic: str, message: pb.Message, kind: MessageType, *, is_first: bool
    ) -> pb.SendResultEntry:
        try:
            return await self._append(topic, message, kind)
        except Exception as error:
            if is_first and isinstance(error, LED_ELSEWHERE):
                raise
            self._on_failure(error)
            return pb.SendResultEntry(
                status=status_of(error), message_id=message.system_properties.message_id
            )

    async def _append(
        self, topic: str, message: pb.Message, kind: MessageType
    ) -> pb.SendResultEntry:
        system = message.system_properties
        taken, message_type = self._context.topic(topic).message_type, MessageType.Name(kind)
        if not takes(taken, message_type):  # As RocketMQ's validator.
            text = f"topic {topic!r} takes {taken} messages, this one is {message_type}"
            raise CallRefusedError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        queue_id = self._queue(topic, system.message_group)
        record = to_record(message, kind, topic, queue_id, self._context.store.config.store_host)
        request = AppendRequest(records=record, record_count=1)
        is_late = False
        if kind == _TRANSACTION:
            request.transaction.CopyFrom(HalfMessages(producer_group=topic))
            if system.HasField("orphaned_transaction_recovery_duration"):
                asked = system.orphaned_transaction_recovery_duration
                after_ms = duration_ms_of(asked, Code.BAD_REQUEST)
                if not 0 <= after_ms <= _ORPHAN_MS_MAX:
                    text = f"an orphan recovery after {after_ms} ms, the limit is {_ORPHAN_MS_MAX}"
                    raise CallRefusedError(Code.BAD_REQUEST, text)
                request.transaction.check_after_ms = after_ms
        elif kind == _DELAY:
            is_late = unix_ms_of(system.delivery_timestamp) > unix_ms()
            request.has_delayed = is_late
        receipt = await self._broker.append(request)
        entry = pb.SendResultEntry(
            status=OK,
            message_id=system.message_id,
            transaction_id=system.message_id,
            offset=receipt.queues[0].first_offset if receipt.queues else 0,
        )
        own_group = self._cluster.own_group
        if kind == _TRANSACTION:
            entry.transaction_id = str(handles.ReceiptHandle(own_group, str(receipt.position)))
        if is_late:
            held = receipt.positions[0] if receipt.positions else receipt.position
            held_id = (receipt.store_host + fmt.TIMESTAMP.pack(held)).hex().upper()
            entry.recall_handle = str(
                handles.ReceiptHandle(own_group, f"{held_id}.{system.message_id}")
            )
        return entry

    def _queue(self, topic: str, message_group: str) -> int:
        if message_group:
            group, queue_id = self._cluster.queue_of_message_group(topic, message_group)
            if group != self._cluster.own_group:
                text = "the groups of the topic are changing; try again"
                raise CallRefusedError(Code.HA_NOT_AVAILABLE, text)
            return queue_id
        settings = self._context.topic(topic)
        if not settings.permission & PERMISSION_WRITE:
            raise CallRefusedError(Code.FORBIDDEN, f"topic {topic!r} takes no messages")
        self._next_queue += 1
        return self._next_queue % settings.queue_count
