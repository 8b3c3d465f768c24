"""Sends: from the fields of a command to an append, and from its receipt to the answer.

Owns what a message may have and which queue takes it. One record is made of a message, its body and
properties as they came: a compressed body stays compressed, and consumers decompress it. A queue id
belongs to the broker name that the client means, not to the node that it reached.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from node.broker import Broker
from node.broker.append.produce import Alone
from node.broker.core.context import noted, within
from node.broker.groups.settings import settings_of
from node.broker.records.retry import (
    PROPERTY_ORIGIN_ID,
    PROPERTY_RETRY_TOPIC,
    UNPROVEN_ORIGIN_ID,
)
from node.errors.common import AppendTimeoutError, TopicNotWritableError
from node.rocketmq.protocol.properties import ADDED
from node.rocketmq.remoting.calls.locks import LockCalls
from node.rocketmq.remoting.calls.sent_messages import SendHeader, records_of, unique_key
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.calls.unique_keys import Pending, UniqueKeys
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.runtime.accounts import network_of, on_behalf_of
from node.state.state import PERMISSION_WRITE
from node.users.calling import require, set_calling
from node.users.rules import Action, ResourceKind
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.common_pb2 import QueueRange
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store import format as fmt
from store.record.encoder import CommonFields, OwnRecords, RecordEncoder
from store.record.message import decode_properties, encode_host, encode_properties
from store.record.topic_names import is_reserved

RETRY_PREFIX: Final = fmt.RETRY_TOPIC_PREFIX
RETRY_QUEUE: Final = 0
"""The only queue of a retry topic."""
AUTO_QUEUE_COUNT_MAX: Final = 8
"""Queues of a broker name that a send may ask for when it makes its topic."""
_COMPRESSED: Final = 0x1 | 0x700
"""Bits of sysFlag that a client may set: compressed, and how."""
_NO_ORIGIN: Final = "0" * 32
"""The id of no message: where a copy came from is only the consumer's word."""
RECORD_SIZE_BYTES_MAX: Final = 16 << 10
"""Size of the largest record that is joined: a larger one costs more than its entry."""
WAIT_S: Final = 0.002
"""Longest wait of a record: a batch that is undecided for longer holds no other one up."""
JOINED_COUNT_MAX: Final = 128
"""Records of a joined batch; with the largest ones 2 MiB."""

Receipt = asyncio.Future[AppendResponse]


class Sends(Calls):
    """Answers the three requests that send messages. One per gateway."""

    def __init__(self, shared: Shared, locks: LockCalls, unique_keys: UniqueKeys) -> None:
        super().__init__(shared)
        self._locks, self._unique_keys = locks, unique_keys
        self._has_auto_topics = shared.settings.rocketmq_auto_topics
        self._singles = SingleSends(shared.broker)

    def begin(self, request: Request) -> tuple["asyncio.Future[Any]", Callable[[], Answer]] | None:
        """Begin a send at once: this node leads, or has a connection to the leader. None: `send`
        has to wait, to connect or to make a topic."""
        header = SendHeader.of(request.command)
        if not self._shared.cluster.leads_here():
            forwarded = self._shared.forwarder.begin(request, self._shared.number_of(request))
            if forwarded is None:
                return None
            answer = partial(forwarded.answer, is_repeatable=self._is_repeatable(header))
            return forwarded.asked, answer
        if header.topic.startswith(RETRY_PREFIX) or self._is_to_be_made(header.topic):
            return None
        pending = self._append(request, header)
        return pending.future, partial(_answer, pending)

    async def send(self, request: Request) -> Answer:
        """Send at the leader, wherever it is."""
        header = SendHeader.of(request.command)
        send, is_repeatable = partial(self._send_here, header), self._is_repeatable(header)
        return await self._shared.ask_leader(request, send, is_repeatable=is_repeatable)

    def _is_repeatable(self, header: SendHeader) -> bool:
        """Whether a send that is carried out twice is stored once, since its key is known."""
        return header.is_keyed and bool(self._unique_keys.window_ms)

    def _is_to_be_made(self, topic: str) -> bool:
        is_own = self._has_auto_topics or self._names.number_of(topic) is not None
        return is_own and self._context.state.topic(topic) is None

    async def _send_here(self, header: SendHeader, request: Request) -> Answer:
        topic = header.topic
        if topic.startswith(RETRY_PREFIX):
            return await self._send_copy(request, header)
        if self._is_to_be_made(topic):
            _check_topic(topic)
            require(Action.CREATE, ResourceKind.TOPIC, topic)
            self._context.makers.check_topic(topic)
            # The topic of a broker has one queue there.
            is_of_broker = self._names.number_of(topic) is not None
            count = 1 if is_of_broker else min(max(1, header.queue_count), AUTO_QUEUE_COUNT_MAX)
            await self._broker.topics.create_topic(
                CreateTopicRequest(topic=topic, queue_count=count * self._names.count)
            )
        set_calling(None)  # Pub is checked; groups of producers are free to all who have it.
        pending = self._append(request, header)
        await asyncio.shield(pending.future)  # Others wait for the same send.
        return _answer(pending)

    async def _send_copy(self, request: Request, header: SendHeader) -> Answer:
        """Append a message that a consumer copied to its group's retry topic: it is tried again,
        or a dead letter when it was tried too often, or when the group reads in order."""
        topic, limit = header.topic, header.reconsume_times_max
        group = topic.removeprefix(RETRY_PREFIX)
        if limit < 0:
            limit = settings_of(self._context, group).retry_count_max
        properties = decode_properties(header.properties)
        if PROPERTY_RETRY_TOPIC not in properties:
            text = (
                f"topic {topic[:200]!r} takes what consumers of its group give back, with property "
                f"{PROPERTY_RETRY_TOPIC}; send to a topic that the group reads"
            )
            raise InvalidError(text)
        level = properties.pop(fmt.PROPERTY_DELAY_LEVEL, "0")
        is_proven = self._broker.retry.check_copy(properties[PROPERTY_RETRY_TOPIC])
        properties[PROPERTY_ORIGIN_ID] = _NO_ORIGIN if is_proven else UNPROVEN_ORIGIN_ID
        encoder = RecordEncoder(self._common(request, header, RETRY_QUEUE))
        encoder.add(header.flag, request.command.body, encode_properties(properties))
        receipt = await self._broker.retry.take_copy(
            group,
            encoder.records(),
            is_dead=header.reconsume_times > limit or self._locks.is_locked(group),
            level=int(level) if level.isascii() and level.isdecimal() and len(level) <= 2 else 0,
        )
        key = properties.get(fmt.PROPERTY_UNIQUE_KEY, "")
        host = self._shared.own_host(self._shared.number_of(request))
        return _answer(Pending(_done(receipt), RETRY_QUEUE, key, encoder.sizes, host))

    def _append(self, request: Request, header: SendHeader) -> Pending:
        number, is_repeatable = self._shared.number_of(request), self._is_repeatable(header)
        queue_id = self._queue(header, number)
        common = self._common(request, header, queue_id)
        key = unique_key(header.properties)
        if is_repeatable:
            earlier = self._earlier(header.topic, key, network_of(common.born_host[0]))
            if earlier is not None:
                return earlier
        if request.user is not None:
            request.user.check_debt()  # Before a batch is taken apart.
        records = records_of(header, request.command.body, common, self._context)
        if request.user is not None:
            request.user.spend(len(records.data), len(records.sizes))
        shown = header.shown_queue_id
        shown = shown if shown >= 0 else self._names.shown(queue_id)[1]
        data, append = records.data, records.append
        size_bytes_max = min(RECORD_SIZE_BYTES_MAX, self._context.store.config.body_size_bytes_max)
        if records.is_usual and len(data) <= size_bytes_max:
            receipt = self._singles.append(header.topic, queue_id, data)
        else:
            self._singles.flush()  # Sends enter the log in the order in which they came.
            is_plain = not append.HasField("transaction") and not append.has_delayed
            if is_plain and not self._broker.produce.parked:
                receipt = self._broker.append_nowait(append, data)
            else:
                with on_behalf_of(request.account):  # The broker asks whose they are.
                    receipt = self._broker.append_nowait(append, data)
        host = self._shared.own_host(number)
        pending = Pending(receipt, shown, key or records.first_key, records.sizes, host)
        if is_repeatable:
            sender = network_of(common.born_host[0])
            self._unique_keys.note(header.topic, key, sender, pending)
        return pending

    def _common(self, request: Request, header: SendHeader, queue_id: int) -> CommonFields:
        return CommonFields(
            header.topic,
            queue_id,
            header.sys_flag & _COMPRESSED,
            header.born_unix_ms,
            request.born_host,
            self._context.store.config.store_host,
            header.reconsume_times,
        )

    def _earlier(self, topic: str, key: str, sender: str) -> Pending | None:
        """Return the send that stored, or stores, the message of a key; None if it is new."""
        send = self._unique_keys.send_of(topic, key)
        if send is not None:
            timeout_ms = self._context.limits.append_timeout_ms
            waiting = within(
                _outcome(send.future), timeout_ms, lambda: AppendTimeoutError(timeout_ms)
            )
            return send._replace(future=asyncio.ensure_future(waiting))
        message = self._unique_keys.stored(topic, key, sender)
        if message is None:
            return None
        row = QueueRange(topic=topic, queue_id=message.queue_id, first_offset=message.queue_offset)
        done = _done(AppendResponse(position=message.position, queues=(row,)))
        number, shown = self._names.shown(message.queue_id)
        host = self._shared.own_host(number)
        return Pending(done, shown, key, [message.size_bytes], host)

    def _queue(self, header: SendHeader, number: int) -> int:
        """Return the group's queue for a queue id of a broker name. Raises UnknownTopicError,
        TopicNotWritableError, RefusedError."""
        topic, shown, names = header.topic, header.shown_queue_id, self._names
        _check_topic(topic)
        settings = self._context.topic(topic)
        if not settings.permission & PERMISSION_WRITE:
            raise TopicNotWritableError(topic, settings.permission)
        count = settings.queue_count
        if shown < 0:
            return random.randrange(count)
        own_count = max(1, names.queue_count(number, count))
        if shown >= own_count:
            text = f"queue {shown} of topic {topic[:200]!r}; {names.all[number]} has {own_count}"
            raise InvalidError(text)
        # A name without a queue of its own takes messages, too, so that a topic with few queues
        # has other names to try.
        return names.queue(number, shown) % count


def _answer(pending: Pending) -> Answer:
    """Return the answer of a send that is done. Raises what it failed with."""
    receipt = pending.future.result()
    # As `message_id` of each position.
    host, ids, position = encode_host(pending.host).hex().upper(), [], receipt.position
    for number, size_bytes in enumerate(pending.sizes):
        if receipt.positions:
            position = receipt.positions[number]
        ids.append(f"{host}{position:016X}")
        position += size_bytes
    offset = receipt.queues[0].first_offset if receipt.queues else 0
    return Answer(
        ext={
            "msgId": ",".join(ids),
            "queueId": str(pending.queue_id),
            "queueOffset": str(offset),
            "transactionId": pending.key,
            **ADDED,
        }
    )


def _done(receipt: AppendResponse) -> Receipt:
    done: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
    done.set_result(receipt)
    return done


def _check_topic(topic: str) -> None:
    if is_reserved(topic):
        text = f"topic {topic[:200]!r} belongs to the system; use another name"
        raise RefusedError(ResponseCode.NO_PERMISSION, text)


async def _outcome(sent: Receipt) -> AppendResponse:
    """Return what becomes of a send: the time-out of its first caller decides nothing."""
    while True:
        try:
            return await asyncio.shield(sent)
        except AppendTimeoutError as error:
            if error.decided is None:
                raise
            sent = error.decided


# --- Single messages that clients send at the same time ---


class _Single(NamedTuple):
    topic: str
    queue_id: int
    record: OwnRecords
    receipt: Receipt


class SingleSends:
    """Appends single records, as one batch those that arrive while others are under way. One per
    gateway.

    An idle node appends at once and a busy one appends few entries: an entry of the log costs the
    leader and each follower more than one more record in it. Only messages that no check of a batch
    refuses are joined, and one that is refused for another's sake after all is appended alone, so
    no message fails because of another one.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Single] = []
        """Records that wait, in the order in which they came."""
        self._timer: asyncio.TimerHandle | None = None
        self._batch_count = 0
        """Batches under way."""

    def append(self, topic: str, queue_id: int, record: OwnRecords) -> Receipt:
        """Append a record of the usual form; return the future of its receipt.

        The receipt of a joined record has its position and its queue offset, and no more.
        """
        if not self._waiting and not self._batch_count:
            return self._append(1, record)
        if not self._waiting:
            self._timer = self._loop.call_later(WAIT_S, self.flush)
        receipt: Receipt = self._loop.create_future()
        self._waiting.append(_Single(topic, queue_id, record, receipt))
        if len(self._waiting) == JOINED_COUNT_MAX:
            self.flush()
        return receipt

    def flush(self) -> None:
        """Append the records that wait."""
        singles, self._waiting = self._waiting, []
        if not singles:
            return
        if self._timer is not None:
            self._timer.cancel()
        records = OwnRecords(b"".join([single.record for single in singles]))
        alone = [Alone(single.record, single.receipt) for single in singles]
        appended = self._append(len(singles), records, alone if len(singles) > 1 else ())
        appended.add_done_callback(partial(self._settle, singles))

    def _append(self, count: int, records: OwnRecords, alone: Sequence[Alone] = ()) -> Receipt:
        request = AppendRequest(record_count=count)
        appended = self._broker.produce.append(request, records=records, alone=alone)
        self._batch_count += 1
        appended.add_done_callback(self._on_done)
        return appended

    def _on_done(self, _: Receipt) -> None:
        self._batch_count -= 1
        if not self._batch_count:
            self.flush()

    def _settle(self, singles: list[_Single], appended: Receipt) -> None:
        if appended.cancelled():
            return  # Refused for one of them: each is appended alone, and answered for itself.
        error = appended.exception()
        if error is None:
            self._share(singles, appended.result())
        elif isinstance(error, AppendTimeoutError) and error.decided is not None:
            error.decided.add_done_callback(partial(self._settle, self._late(singles, error)))
        else:
            for single in singles:
                if not single.receipt.done():
                    single.receipt.set_exception(error)

    def _late(self, singles: list[_Single], error: AppendTimeoutError) -> list[_Single]:
        """Fail receipts whose time is over; return the records with those of their decision."""
        late = [single._replace(receipt=self._loop.create_future()) for single in singles]
        for single, later in zip(singles, late, strict=True):
            later.receipt.add_done_callback(noted)
            if not single.receipt.done():
                own = AppendTimeoutError(error.timeout_ms)
                own.decided = later.receipt
                single.receipt.set_exception(own)
        return late

    @staticmethod
    def _share(singles: list[_Single], response: AppendResponse) -> None:
        """Complete the receipts of the records that a batch stored, back to back."""
        position = response.position
        next_offsets = {(row.topic, row.queue_id): row.first_offset for row in response.queues}
        for topic, queue_id, record, receipt in singles:
            offset = next_offsets[topic, queue_id]
            next_offsets[topic, queue_id] = offset + 1
            if not receipt.done():
                row = QueueRange(topic=topic, queue_id=queue_id, first_offset=offset, count=1)
                receipt.set_result(AppendResponse(position=position, queues=(row,)))
            position += len(record)
