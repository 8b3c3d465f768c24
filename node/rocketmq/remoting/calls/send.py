"""Sends: from the fields of a command to an append, and from its receipt to the answer.

Owns what a message may have and which queue takes it. One record is made of a message, its body and
properties as they came: a compressed body stays compressed, and consumers decompress it. A queue id
belongs to the broker name that the client means, not to the node that it reached.
"""

import asyncio
import random
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from node.broker import Broker
from node.broker.groups.settings import settings_of
from node.broker.records.retry import PROPERTY_ORIGIN_ID
from node.errors.common import TopicNotWritableError
from node.rocketmq.remoting.calls.pending import Pending, pass_on
from node.rocketmq.remoting.calls.shared import Shared
from node.rocketmq.remoting.calls.unique_keys import UniqueKeys
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.fields import INT32_MAX, INT64_MAX, bool_of, int_of, text_of
from node.state.state import PERMISSION_WRITE
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.common_pb2 import QueueRange
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from quorumlog.pb.transaction_pb2 import HalfMessages
from store import format as fmt
from store.errors import LimitExceededError
from store.record.message import decode_properties, encode_message
from store.record.topic_names import is_reserved

REPLY_TO: Final = "REPLY_TO_CLIENT"
CLUSTER: Final = "CLUSTER"
"""Property from which a consumer builds the topic of its reply."""
RETRY_PREFIX: Final = fmt.RETRY_TOPIC_PREFIX
RETRY_QUEUE: Final = 0
"""The only queue of a retry topic."""
AUTO_QUEUE_COUNT_MAX: Final = 8
"""Queues of a broker name that a send may ask for when it makes its topic."""
BATCH_COUNT_MAX: Final = 16_384
"""Messages of one batch; 4 MiB of empty ones are more."""
_SHORT: Final = {
    "producerGroup": "a",
    "topic": "b",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "maxReconsumeTimes": "l",
    "count": "d",
}
_LONG: Final = {name: name for name in _SHORT} | {"count": "defaultTopicQueueNums"}
_ENTRY: Final = struct.Struct(">iIIii")
"""Of a message in a batch: total size, magic, CRC, flag, size of the body."""
_DELAYS: Final = (
    fmt.PROPERTY_DELAY_LEVEL,
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
)
_COMPRESSED: Final = 0x1 | 0x700
"""Bits of sysFlag that a client may set: compressed, and how."""
_HALF: Final = 0x4
"""Bit of sysFlag of a half message."""


_NO_ORIGIN: Final = "0" * 32
"""The id of no message: where a copy came from is only the consumer's word."""


class _Message(NamedTuple):
    """A message as its record will hold it."""

    flag: int
    body: bytes
    properties: dict[str, str]


def _names(request: Request) -> Mapping[str, str]:
    """Return the names of the fields of a send."""
    return _LONG if request.command.code == RequestCode.SEND_MESSAGE else _SHORT


def _is_special(properties: str) -> bool:
    """Whether a message is held before it is stored in its queue: delayed, or a half message."""
    is_half = fmt.PROPERTY_HALF in properties
    return is_half or any(f"{name}\x01" in properties for name in _DELAYS)


class Sends:
    """Answers the three requests that send messages. One per gateway."""

    def __init__(
        self,
        shared: Shared,
        broker: Broker,
        is_locked: Callable[[str], bool],
        *,
        has_auto_topics: bool,
        unique_keys: UniqueKeys | None,
    ) -> None:
        """`is_locked` returns whether a group reads in order; `has_auto_topics` whether a send
        makes its topic; `unique_keys` knows the sends that came before, None: all are new."""
        self._unique_keys = unique_keys
        self._shared = shared
        self._context = shared.context
        self._broker = broker
        self._is_locked = is_locked
        self._has_auto_topics = has_auto_topics

    def begin(self, request: Request) -> "asyncio.Future[Answer] | None":
        """Begin a send at once if this node leads; None: `send` has to wait or to forward."""
        if not self._shared.forwarder.leads_here():
            return None
        topic = request.command.ext.get(_names(request)["topic"], "")
        if topic.startswith(RETRY_PREFIX) or self._is_to_be_made(topic):
            return None
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = self._appended(request)
        pending.future.add_done_callback(lambda _: pass_on(pending, answered))
        return answered

    async def send(self, request: Request) -> Answer:
        """Send at the leader, wherever it is."""
        number = self._shared.number_of(request)
        return await self._shared.forwarder.answer(
            request,
            number,
            lambda: self._send_here(request),
            is_repeatable=self._unique_keys is not None and self._has_key(request),
        )

    def _has_key(self, request: Request) -> bool:
        """Whether a send that is carried out twice is stored once."""
        ext, names = request.command.ext, _names(request)
        is_single = request.command.code != RequestCode.SEND_BATCH_MESSAGE
        text = ext.get(names["properties"], "")
        return is_single and f"{fmt.PROPERTY_UNIQUE_KEY}\x01" in text and not _is_special(text)

    def _is_to_be_made(self, topic: str) -> bool:
        return self._has_auto_topics and self._context.state.topic(topic) is None

    async def _send_here(self, request: Request) -> Answer:
        topic = text_of(request.command.ext, _names(request)["topic"])
        if topic.startswith(RETRY_PREFIX):
            return await self._send_copy(request, topic)
        if self._is_to_be_made(topic):
            self._check_topic(topic)
            asked = int_of(request.command.ext, _names(request)["count"], 4, hi=INT32_MAX)
            count = min(max(1, asked), AUTO_QUEUE_COUNT_MAX) * self._shared.names.count
            await self._broker.topics.create_topic(
                CreateTopicRequest(topic=topic, queue_count=count)
            )
        pending = self._appended(request)
        return pending.answer(await pending.future)

    async def _send_copy(self, request: Request, topic: str) -> Answer:
        """Append a message that a consumer copied to its group's retry topic: it is tried again,
        or a dead letter when it was tried too often, or when the group reads in order."""
        command, names = request.command, _names(request)
        group = topic.removeprefix(RETRY_PREFIX)
        times = int_of(command.ext, names["reconsumeTimes"], 0, hi=INT32_MAX)
        limit = int_of(command.ext, names["maxReconsumeTimes"], -1, lo=-1, hi=INT32_MAX)
        if limit < 0:
            limit = settings_of(self._context, group).retry_count_max
        properties = properties_of(command.ext.get(names["properties"], ""))
        level = properties.pop(fmt.PROPERTY_DELAY_LEVEL, "0")
        properties[PROPERTY_ORIGIN_ID] = _NO_ORIGIN
        record = encode_message(
            topic,
            RETRY_QUEUE,
            command.body,
            properties,
            flag=int_of(command.ext, names["flag"], 0, lo=-(1 << 31), hi=INT32_MAX),
            sys_flag=int_of(command.ext, names["sysFlag"], 0, hi=INT32_MAX) & _COMPRESSED,
            born_unix_ms=int_of(command.ext, names["bornTimestamp"], 0, hi=INT64_MAX),
            born_host=self._shared.born_host(request),
            store_host=self._context.store.config.store_host,
            reconsume_times=times,
        )
        receipt = await self._broker.retry.take_copy(
            group,
            record,
            is_dead=times > limit or self._is_locked(group),
            level=int(level) if level.isdecimal() and len(level) <= 2 else 0,
        )
        key = properties.get(fmt.PROPERTY_UNIQUE_KEY, "")
        host = self._shared.own_host(self._shared.number_of(request))
        done = asyncio.get_running_loop().create_future()
        return Pending(done, RETRY_QUEUE, key, [len(record)], host).answer(receipt)

    def _appended(self, request: Request) -> Pending:
        """Hand the messages of a command to the broker. Raises RefusedError and errors of the
        broker."""
        command = request.command
        ext, names = command.ext, _names(request)
        topic = text_of(ext, names["topic"])
        self._check_topic(topic)
        shown = int_of(ext, names["queueId"], lo=-(1 << 31), hi=INT32_MAX)
        number = self._shared.number_of(request)
        queue_id = self._queue(topic, number, shown)
        sys_flag = int_of(ext, names["sysFlag"], 0, hi=INT32_MAX)
        is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE or bool_of(ext, "m")
        flag = int_of(ext, names["flag"], 0, lo=-(1 << 31), hi=INT32_MAX)
        properties = properties_of(ext.get(names["properties"], ""))
        if is_batch:
            messages = messages_of(command.body)
        else:
            messages = [_Message(flag, command.body, properties)]
        keys, key = self._unique_keys, properties.get(fmt.PROPERTY_UNIQUE_KEY, "")
        is_once = keys is not None and self._has_key(request)
        if keys is not None and is_once:
            before = self._before(keys, topic, key)
            if before is not None:
                return before
        born_host = self._shared.born_host(request)
        born_unix_ms = int_of(ext, names["bornTimestamp"], 0, hi=INT64_MAX)
        reconsume_times = int_of(ext, names["reconsumeTimes"], 0, hi=INT32_MAX)
        store_host = self._context.store.config.store_host
        has_delayed = any(name in one.properties for one in messages for name in _DELAYS)
        if is_batch and has_delayed:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "a batch has no delayed messages")
        records = []
        for message in messages:
            message.properties.setdefault(fmt.PROPERTY_UNIQUE_KEY, new_key())
            if REPLY_TO in message.properties:
                message.properties[CLUSTER] = self._context.identity.cluster_id
            records.append(
                encode_message(
                    topic,
                    queue_id,
                    message.body,
                    message.properties,
                    flag=message.flag,
                    sys_flag=sys_flag & _COMPRESSED,
                    born_unix_ms=born_unix_ms,
                    born_host=born_host,
                    store_host=store_host,
                    reconsume_times=reconsume_times,
                )
            )
        append = AppendRequest(record_count=len(records), has_delayed=has_delayed)
        if sys_flag & _HALF:
            group = properties.get(fmt.PROPERTY_PRODUCER_GROUP) or ext.get(names["producerGroup"])
            append.transaction.CopyFrom(HalfMessages(producer_group=group))
        first = messages[0].properties[fmt.PROPERTY_UNIQUE_KEY]
        pending = Pending(
            self._broker.append_nowait(append, b"".join(records)),
            shown if shown >= 0 else self._shown(queue_id),
            properties.get(fmt.PROPERTY_UNIQUE_KEY, first),
            [len(record) for record in records],
            self._shared.own_host(number),
        )
        if keys is not None and is_once:
            keys.note(topic, key, pending)
        return pending

    def _before(self, keys: UniqueKeys, topic: str, key: str) -> Pending | None:
        """Return the send that stored, or stores, the message of a key; None if it is new."""
        send = keys.send_of(topic, key)
        if send is not None:
            return send
        message = keys.stored(topic, key)
        if message is None:
            return None
        done: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        rows = [
            QueueRange(topic=topic, queue_id=message.queue_id, first_offset=message.queue_offset)
        ]
        done.set_result(AppendResponse(position=message.position, queues=rows))
        number, shown = self._shared.names.shown(message.queue_id)
        host = self._shared.own_host(number)
        return Pending(done, shown, key, [message.size_bytes], host)

    def _check_topic(self, topic: str) -> None:
        if is_reserved(topic):
            text = f"topic {topic[:200]!r} belongs to the system; use another name"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)

    def _queue(self, topic: str, number: int, shown: int) -> int:
        """Return the group's queue for a queue id of a broker name. Raises UnknownTopicError,
        TopicNotWritableError, RefusedError."""
        found, names = self._context.topic(topic), self._shared.names
        if not found.permission & PERMISSION_WRITE:
            raise TopicNotWritableError(topic, found.permission)
        count = found.queue_count
        if shown < 0:
            return random.randrange(count)
        own_count = max(1, names.queue_count(number, count))
        if shown >= own_count:
            text = f"queue {shown} of topic {topic[:200]!r}; {names.all[number]} has {own_count}"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        # A name without a queue of its own takes messages, too, so that a topic with few queues
        # has other names to try.
        return names.queue(number, shown) % count

    def _shown(self, queue: int) -> int:
        return self._shared.names.shown(queue)[1]


def new_key() -> str:
    """Return a unique key for a message whose client made none."""
    return uuid.uuid4().hex.upper()


def properties_of(text: str) -> dict[str, str]:
    """Read the properties of a message; the last separator may be missing. Raises RefusedError."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL, "properties that are no valid text"
        ) from None
    if len(data) > fmt.PROPERTIES_SIZE_BYTES_MAX:
        raise LimitExceededError("properties", len(data), fmt.PROPERTIES_SIZE_BYTES_MAX)
    return decode_properties(data)


def messages_of(body: bytes) -> list[_Message]:
    """Read the messages of a batch. Raises RefusedError."""
    messages: list[_Message] = []
    at = 0
    while at < len(body):
        try:
            size_bytes, _, _, flag, body_size_bytes = _ENTRY.unpack_from(body, at)
            body_at = at + _ENTRY.size
            properties_at = body_at + body_size_bytes
            (properties_size_bytes,) = fmt.INT16.unpack_from(body, properties_at)
        except struct.error:
            raise _bad_batch(len(messages)) from None
        hi = properties_at + 2 + properties_size_bytes
        is_whole = body_size_bytes >= 0 <= properties_size_bytes and hi == at + size_bytes
        if not is_whole or hi > len(body) or len(messages) == BATCH_COUNT_MAX:
            raise _bad_batch(len(messages))
        properties = decode_properties(body[properties_at + 2 : hi])
        messages.append(_Message(flag, body[body_at:properties_at], properties))
        at = hi
    if not messages:
        raise _bad_batch(0)
    return messages


def _bad_batch(number: int) -> RefusedError:
    text = f"message {number} of a batch: its sizes do not fit, or there are too many"
    return RefusedError(ResponseCode.MESSAGE_ILLEGAL, text)


def retry_attempts(ext: Mapping[str, str]) -> int:
    """Return the limit of attempts that a consumer names; 0: the group's."""
    limit = int_of(ext, "maxReconsumeTimes", -1, lo=-1, hi=INT32_MAX)
    return 0 if limit < 0 else limit + 1
