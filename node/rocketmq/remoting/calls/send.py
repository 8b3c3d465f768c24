"""Sends: from the fields of a command to an append, and from its receipt to the answer.

Owns what a message may have and which queue takes it. One record is made of a message, its body and
properties as they came: a compressed body stays compressed, and consumers decompress it. A queue id
belongs to the broker name that the client means, not to the node that it reached.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from node.broker.core.context import within
from node.broker.groups.settings import settings_of
from node.broker.records.retry import PROPERTY_ORIGIN_ID, PROPERTY_RETRY_TOPIC
from node.errors.common import AppendTimeoutError, TopicNotWritableError
from node.rocketmq.hold import LED_ELSEWHERE, NothingDoneError
from node.rocketmq.remoting.calls.sent_messages import (
    DELAYS,
    StoredProperties,
    entries_of,
    immunity_ms,
    properties_data,
    properties_of,
    uniform_entries,
    unique_key,
)
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.calls.single_sends import RECORD_SIZE_BYTES_MAX, SingleSends
from node.rocketmq.remoting.calls.unique_keys import Pending, UniqueKeys
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.fields import INT32_MAX, SHORT_NAMES, bool_of, int_of, text_of
from node.runtime.accounts import Account, network_of, on_behalf_of
from node.state.state import PERMISSION_WRITE
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.common_pb2 import QueueRange
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store import format as fmt
from store.record.encoder import CommonFields, RecordEncoder
from store.record.message import decode_properties, encode_message
from store.record.topic_names import is_reserved

RETRY_PREFIX: Final = fmt.RETRY_TOPIC_PREFIX
RETRY_QUEUE: Final = 0
"""The only queue of a retry topic."""
AUTO_QUEUE_COUNT_MAX: Final = 8
"""Queues of a broker name that a send may ask for when it makes its topic."""
_LONG_NAMES: Final = {name: name for name in SHORT_NAMES}
_COMPRESSED: Final = 0x1 | 0x700
"""Bits of sysFlag that a client may set: compressed, and how."""
_HALF: Final = 0x4
"""Bit of sysFlag of a half message."""
_NO_ORIGIN: Final = "0" * 32
"""The id of no message: where a copy came from is only the consumer's word."""


def _names(request: Request) -> Mapping[str, str]:
    """Return the names of the fields of a send."""
    return _LONG_NAMES if request.command.code == RequestCode.SEND_MESSAGE else SHORT_NAMES


def _is_special(properties: str) -> bool:
    """Whether a message is held before it is stored in its queue: delayed, or a half message."""
    is_half = fmt.PROPERTY_HALF in properties
    return is_half or any(f"{name}\x01" in properties for name in DELAYS)


class Sends(Calls):
    """Answers the three requests that send messages. One per gateway."""

    def __init__(
        self,
        shared: Shared,
        is_locked: Callable[[str], bool],
        unique_keys: UniqueKeys,
        *,
        has_auto_topics: bool,
    ) -> None:
        """`is_locked` returns whether a group reads in order; `unique_keys` knows the sends that
        came before; `has_auto_topics` says whether a send makes its topic."""
        super().__init__(shared)
        self._unique_keys = unique_keys
        self._is_locked = is_locked
        self._has_auto_topics = has_auto_topics
        self._singles = SingleSends(shared.broker)
        self._held: set[asyncio.Task[Answer]] = set()
        """Sends that were begun and wait for the next leader."""

    def begin(self, request: Request) -> "asyncio.Future[Answer] | None":
        """Begin a send at once: this node leads, or has a connection to the leader. None: `send`
        has to wait, to connect or to make a topic."""
        if not self._shared.forwarder.leads_here():
            return self._begin_forwarded(request)
        topic = request.command.ext.get(_names(request)["topic"], "")
        if topic.startswith(RETRY_PREFIX) or self._is_to_be_made(topic):
            return None
        pending = self._appended(request)
        return self._answered(request, pending.future, pending.current_answer)

    def _begin_forwarded(self, request: Request) -> "asyncio.Future[Answer] | None":
        forwarded = self._shared.forwarder.begin(request, self._shared.number_of(request))
        if forwarded is None:
            return None
        answer = partial(forwarded.answer, is_repeatable=self._is_repeatable(request))
        return self._answered(request, forwarded.asked, answer)

    def _answered(
        self, request: Request, future: "asyncio.Future[Any]", answer: Callable[[], Answer]
    ) -> "asyncio.Future[Answer]":
        """Return the future of what `answer` returns or raises once `future` is done.

        A send that changed nothing since the leader changes just then is done again, and waits."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def hold() -> None:
            with on_behalf_of(request.account):
                task = asyncio.create_task(self.send(request))
            self._held.add(task)
            task.add_done_callback(self._held.discard)
            task.add_done_callback(partial(_settle, answered, task.result, None))

        future.add_done_callback(partial(_settle, answered, answer, hold))
        return answered

    def stop(self) -> None:
        """Give up the sends that wait for a leader."""
        for task in list(self._held):
            task.cancel()

    async def send(self, request: Request) -> Answer:
        """Send at the leader, wherever it is."""
        is_repeatable = self._is_repeatable(request)
        return await self._shared.ask_leader(request, self._send_here, is_repeatable=is_repeatable)

    def _is_repeatable(self, request: Request) -> bool:
        """Whether a send that is carried out twice is stored once, since its key is known."""
        if not self._unique_keys.window_ms:
            return False
        ext, names = request.command.ext, _names(request)
        is_single = request.command.code != RequestCode.SEND_BATCH_MESSAGE
        text = ext.get(names["properties"], "")
        return is_single and f"{fmt.PROPERTY_UNIQUE_KEY}\x01" in text and not _is_special(text)

    def _is_to_be_made(self, topic: str) -> bool:
        is_own = self._has_auto_topics or self._names.number_of(topic) is not None
        return is_own and self._context.state.topic(topic) is None

    async def _send_here(self, request: Request) -> Answer:
        topic = text_of(request.command.ext, _names(request)["topic"])
        if topic.startswith(RETRY_PREFIX):
            return await self._send_copy(request, topic)
        if self._is_to_be_made(topic):
            self._check_topic(topic)
            self._context.makers.check_topic(topic)
            asked = int_of(
                request.command.ext, _names(request)["defaultTopicQueueNums"], 4, hi=INT32_MAX
            )
            if self._names.number_of(topic) is not None:
                asked = 1  # The topic of a broker has one queue there.
            count = min(max(1, asked), AUTO_QUEUE_COUNT_MAX) * self._names.count
            await self._broker.topics.create_topic(
                CreateTopicRequest(topic=topic, queue_count=count)
            )
        pending = self._appended(request)
        await asyncio.shield(pending.future)  # Others wait for the same send.
        return pending.current_answer()

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
        if PROPERTY_RETRY_TOPIC not in properties:
            text = (
                f"topic {topic[:200]!r} takes what consumers of its group give back, with property "
                f"{PROPERTY_RETRY_TOPIC}; send to a topic that the group reads"
            )
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        level = properties.pop(fmt.PROPERTY_DELAY_LEVEL, "0")
        properties[PROPERTY_ORIGIN_ID] = _NO_ORIGIN
        record = encode_message(
            topic,
            RETRY_QUEUE,
            command.body,
            properties,
            flag=int_of(command.ext, names["flag"], 0, lo=-(1 << 31), hi=INT32_MAX),
            sys_flag=int_of(command.ext, names["sysFlag"], 0, hi=INT32_MAX) & _COMPRESSED,
            born_unix_ms=int_of(command.ext, names["bornTimestamp"], 0),
            born_host=self._shared.born_host(request),
            store_host=self._context.store.config.store_host,
            reconsume_times=times,
        )
        receipt = await self._broker.retry.take_copy(
            group,
            record,
            is_dead=times > limit or self._is_locked(group),
            level=int(level) if level.isascii() and level.isdecimal() and len(level) <= 2 else 0,
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
        properties = properties_data(ext.get(names["properties"], ""))
        key = unique_key(properties)
        born_host = self._shared.born_host(request)
        is_repeatable = self._is_repeatable(request)
        if is_repeatable:
            before = self._before(topic, key, network_of(born_host[0]))
            if before is not None:
                return before
        run = uniform_entries(command.body) if is_batch else None
        flag = 0 if is_batch else int_of(ext, names["flag"], 0, lo=-(1 << 31), hi=INT32_MAX)
        common = CommonFields(
            topic,
            queue_id,
            sys_flag & _COMPRESSED,
            int_of(ext, names["bornTimestamp"], 0),
            born_host,
            self._context.store.config.store_host,
            int_of(ext, names["reconsumeTimes"], 0, hi=INT32_MAX),
        )
        encoder, stored = RecordEncoder(common), StoredProperties(self._context.identity.cluster_id)
        if not is_batch:
            encoder.add(flag, command.body, stored.of(properties))
        elif run is not None:
            encoder.add_run(*run)
            stored.first_key = run.keys[0].decode("ascii")
        else:
            for of_one, body, data in entries_of(command.body):
                encoder.add(of_one, body, stored.of(data))
        if is_batch and stored.has_delayed:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "a batch has no delayed messages")
        append = AppendRequest(record_count=len(encoder.sizes), has_delayed=stored.has_delayed)
        if is_batch and stored.is_half and not sys_flag & _HALF:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "a batch has no half messages")
        if stored.is_half or sys_flag & _HALF:
            half = decode_properties(properties)
            group = half.get(fmt.PROPERTY_PRODUCER_GROUP) or ext.get(names["producerGroup"])
            append.transaction.producer_group = group or ""
            append.transaction.check_after_ms = immunity_ms(
                half, self._context.limits.transaction_age_ms_max
            )
        pending = Pending(
            self._receipt(
                request.account, append, common, encoder, is_usual=not is_batch and stored.is_usual
            ),
            shown if shown >= 0 else self._names.shown(queue_id)[1],
            key or stored.first_key,
            encoder.sizes,
            self._shared.own_host(number),
        )
        if is_repeatable:
            self._unique_keys.note(topic, key, network_of(born_host[0]), pending)
        return pending

    def _receipt(
        self,
        account: Account,
        append: AppendRequest,
        common: CommonFields,
        encoder: RecordEncoder,
        *,
        is_usual: bool,
    ) -> "asyncio.Future[AppendResponse]":
        """Append the records of a send: one of the usual form with others that wait."""
        records = encoder.records()
        size_bytes_max = min(RECORD_SIZE_BYTES_MAX, self._context.store.config.body_size_bytes_max)
        if is_usual and not append.HasField("transaction") and len(records) <= size_bytes_max:
            return self._singles.append(common.topic, common.queue_id, records)
        self._singles.flush()  # Sends enter the log in the order in which they came.
        is_plain = not append.HasField("transaction") and not append.has_delayed
        if is_plain and not self._broker.produce.parked:
            return self._broker.append_nowait(append, records)
        with on_behalf_of(account):  # The broker asks whose they are.
            return self._broker.append_nowait(append, records)

    def _before(self, topic: str, key: str, sender: str) -> Pending | None:
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
        done: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        rows = [
            QueueRange(topic=topic, queue_id=message.queue_id, first_offset=message.queue_offset)
        ]
        done.set_result(AppendResponse(position=message.position, queues=rows))
        number, shown = self._names.shown(message.queue_id)
        host = self._shared.own_host(number)
        return Pending(done, shown, key, [message.size_bytes], host)

    def _check_topic(self, topic: str) -> None:
        if is_reserved(topic):
            text = f"topic {topic[:200]!r} belongs to the system; use another name"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)

    def _queue(self, topic: str, number: int, shown: int) -> int:
        """Return the group's queue for a queue id of a broker name. Raises UnknownTopicError,
        TopicNotWritableError, RefusedError."""
        found, names = self._context.topic(topic), self._names
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


async def _outcome(sent: "asyncio.Future[AppendResponse]") -> AppendResponse:
    """Return what becomes of a send: the time-out of its first caller decides nothing."""
    while True:
        try:
            return await asyncio.shield(sent)
        except AppendTimeoutError as error:
            if error.decided is None:
                raise
            sent = error.decided


def _settle(
    answered: "asyncio.Future[Answer]",
    answer: Callable[[], Answer],
    hold: Callable[[], None] | None,
    _: object,
) -> None:
    """Complete a future with what `answer` returns or raises; `hold` takes it over if nothing was
    done and the next leader can do it."""
    if answered.done():
        return
    try:
        answered.set_result(answer())
    except asyncio.CancelledError:
        answered.cancel()
    except Exception as error:  # noqa: BLE001 - the client gets every error.
        if hold is not None and isinstance(error, (*LED_ELSEWHERE, NothingDoneError)):
            hold()
        else:
            answered.set_exception(error)
