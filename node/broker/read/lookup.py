"""Traces one message through the log and the state, at the moment of the question.

Owns what counts as a trace of a message, and how far a queue is searched, and serves the sizes of
a topic; must not know how the features write what is found here. A copy names its origin (retries,
dead letters), lies where the state says (transactions), or carries the unique key or the born time
and body of the message. With a unique key the index finds copies at once; without one the queue is
read from the time at which the message was stored, up to a limit.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from node.broker.append.sizes import Sizes
from node.broker.core.context import Context
from node.broker.core.freshness import Freshness
from node.broker.read.visibility import queued_by_id, visible
from node.broker.records.delayed import split_records
from node.errors.common import MessageNotFoundError
from node.runtime.turn import Walk
from node.state.state import INTERNAL_TOPICS
from node.state.tables.transactions import TransactionsTable, outcome_name
from node.users.calling import may, require_known
from node.users.rules import Action, ResourceKind
from quorumlog.pb import common_pb2, transaction_pb2
from quorumlog.pb.lookup_pb2 import (
    SizeBucket,
    TopicSizesRequest,
    TopicSizesResponse,
    TraceEvent,
    TraceMessageRequest,
    TraceMessageResponse,
)
from store import format as fmt
from store.derived.queues.pull import PullStatus
from store.errors import PositionRangeError, RecordFormatError
from store.record.message import Message, decode_message, parse_message_id, valid_text
from store.record.topic_names import dead_letter_topic, retry_topic

_ORIGIN: Final = "ORIGIN_MESSAGE_ID"
_HELD_TOPICS: Final = (fmt.SCHEDULE_TOPIC, fmt.TIMER_TOPIC)
_PULL_COUNT: Final = 256
_DIGITS_MAX: Final = 10
"""Of a number of a queue; the property may have any text."""


class Lookup:
    """The calls about one message's trace and a topic's sizes. One per broker."""

    def __init__(self, context: Context, freshness: Freshness, sizes: Sizes) -> None:
        self._context: Final = context
        self._freshness = freshness
        self._sizes = sizes
        self._since_unix_ms = context.unix_ms()

    async def topic_sizes(self, request: TopicSizesRequest) -> TopicSizesResponse:
        """Return how large the messages of a topic were. Raises UnknownTopicError."""
        self._context.check_leads()
        self._context.topic(request.topic)
        sizes = self._sizes.of(request.topic)
        return TopicSizesResponse(
            record_count=sizes.record_count,
            size_bytes=sizes.size_bytes,
            buckets=[
                SizeBucket(below_size_bytes=1 << k, record_count=count)
                for k, count in enumerate(sizes.buckets)
                if count
            ],
            since_unix_ms=self._since_unix_ms,
            node_id=self._context.driver.node_id,
        )

    async def trace_message(self, request: TraceMessageRequest) -> TraceMessageResponse:
        """Return the events of a message, of one that readers do not see yet without the record.

        Raises BadRequestError, and as `visible_at`.
        """
        await self._freshness.ensure(common_pb2.CONSISTENCY_LEADER)
        message = queued_by_id(self._context, request.message_id)
        is_held = message.topic == fmt.HALF_TOPIC or message.topic in _HELD_TOPICS
        if is_held:
            topic = message.properties.get(fmt.PROPERTY_REAL_TOPIC, "")
            unknown = MessageNotFoundError(request.message_id)
            require_known(Action.SUB, ResourceKind.TOPIC, topic, unknown)
        record = b"" if is_held else visible(self._context, message, request.message_id).record
        async with self._context.turn.walk() as walk:
            trace = _Trace(self._context, message, walk)
            await trace.follow()
        shown = (event for event in trace.events if _may_see(event))
        events = sorted(shown, key=lambda event: event.unix_ms or 1 << 62)
        return TraceMessageResponse(events=events, is_complete=trace.is_complete, record=record)


def _may_see(event: TraceEvent) -> bool:
    """Whether the caller may see what became of a message that it may read: of groups if it may
    get them."""
    if event.group:
        return may(Action.GET, ResourceKind.GROUP, event.group)
    if event.producer_group:
        return may(Action.GET, ResourceKind.GROUP, event.producer_group)
    return event.topic in INTERNAL_TOPICS or may(Action.SUB, ResourceKind.TOPIC, event.topic)


class _Trace:
    """The search for the copies and fates of one message."""

    def __init__(self, context: Context, message: Message, walk: Walk) -> None:
        self._context, self._walk = context, walk
        self._message = message
        self._left_count = context.limits.trace_scan_count_max
        self._seen: set[int] = set()
        """Positions of records that have an event."""
        self.events: list[TraceEvent] = []
        self.is_complete = True

    async def follow(self) -> None:
        """Begin with the message itself, and follow its properties to its copies."""
        message = self._message
        shown: list[Message] = [message]
        if message.topic == fmt.HALF_TOPIC:
            shown = await self._of_half(message)
        elif message.topic in _HELD_TOPICS:
            self._add("delayed", message)
            shown = await self._elsewhere(message)
        elif message.topic.startswith((fmt.RETRY_TOPIC_PREFIX, fmt.DEAD_LETTER_TOPIC_PREFIX)):
            with suppress(RecordFormatError):
                _, position = parse_message_id(message.properties.get(_ORIGIN, ""))
                shown = [self._at(position) or message]
        for one in shown:
            is_final = one.sys_flag & fmt.SYS_FLAG_TRANSACTION_MASK == fmt.TRANSACTION_COMMIT
            if is_final:
                half = self._at(one.prepared_transaction_position)
                is_half = half is not None and half.topic == fmt.HALF_TOPIC  # Or a client lies.
                if half is not None and is_half and half.position not in self._seen:
                    self._add("half", half, producer_group=_producer_group(half))
            self._add("committed" if is_final else "stored", one)
            await self._of_groups(one)

    async def _of_half(self, half: Message) -> list[Message]:
        group = _producer_group(half)
        self._add("half", half, producer_group=group)
        table = self._context.state.table(TransactionsTable)
        for known in table.open.values():
            if known.position <= half.position < known.position + known.size_bytes:
                self.events.append(TraceEvent(kind="open", producer_group=group))
                return []
        outcome = table.ended.get(half.position)
        if outcome is not None and outcome != transaction_pb2.TRANSACTION_OUTCOME_COMMITTED:
            event = TraceEvent(kind=outcome_name(outcome), producer_group=group)
            self.events.append(event)
            return []
        return await self._elsewhere(half)

    async def _elsewhere(self, held: Message) -> list[Message]:
        """Return the message in the queue that it was meant for; empty if not found."""
        properties = held.properties
        topic = properties.get(fmt.PROPERTY_REAL_TOPIC, "")
        queue_id = properties.get(fmt.PROPERTY_REAL_QUEUE_ID, "")
        if (
            not topic
            or not (queue_id.isascii() and queue_id.isdecimal())
            or len(queue_id) > _DIGITS_MAX
        ):
            return []

        def is_copy(message: Message) -> bool:
            if held.topic == fmt.HALF_TOPIC:
                return message.prepared_transaction_position == held.position
            return (message.born_unix_ms, message.body) == (held.born_unix_ms, held.body)

        first: Message | None = None
        async for found in self._search(topic, int(queue_id), held, is_copy):
            if first is None or found.position < first.position:
                first = found
        return [] if first is None else [first]

    async def _of_groups(self, message: Message) -> None:
        """Add the groups that consumed the message, and its copies for retries and dead letters."""
        message_id = message.message_id

        def is_copy(copy: Message) -> bool:
            return copy.properties.get(_ORIGIN) == message_id

        for name, offsets in sorted(self._context.state.groups.items()):
            await self._walk.step()
            if offsets.get(message.topic, {}).get(message.queue_id, 0) > message.queue_offset:
                self.events.append(
                    TraceEvent(
                        kind="consumed",
                        topic=message.topic,
                        queue_id=message.queue_id,
                        offset=message.queue_offset,
                        group=name,
                    )
                )
            for kind, topic in (("retried", retry_topic(name)), ("dead", dead_letter_topic(name))):
                config = self._context.state.topic(topic)
                for queue_id in range(config.queue_count if config is not None else 0):
                    async for found in self._search(topic, queue_id, message, is_copy):
                        self._add(kind, found, name)

    async def _search(
        self, topic: str, queue_id: int, origin: Message, is_copy: Callable[[Message], bool]
    ) -> AsyncIterator[Message]:
        """Yield the copies of a message in one queue, in any order."""
        store, unique = self._context.store, origin.properties.get(fmt.PROPERTY_UNIQUE_KEY)
        if unique:
            for step in store.newest_by_key(topic, unique, lo_unix_ms=origin.store_unix_ms):
                if self._left_count <= 0:
                    self.is_complete = False
                    return
                self._left_count -= 1
                record = step.message
                if record is not None and record.queue_id == queue_id and is_copy(record):
                    yield record
                await self._walk.step()
            return
        offset = store.offset_by_time(topic, queue_id, origin.store_unix_ms)
        while True:
            if self._left_count <= 0:
                self.is_complete = False
                return
            result = store.pull(
                topic, queue_id, offset, max_count=min(_PULL_COUNT, self._left_count)
            )
            if result.status is not PullStatus.FOUND:
                return
            for message in map(decode_message, split_records(result.data)):
                if is_copy(message):
                    yield message
                await self._walk.step()
            self._left_count -= result.record_count
            offset = result.next_offset
            await self._walk.step()

    def _at(self, position: int) -> Message | None:
        """Return the record at a position; None if retention has deleted it."""
        try:
            return self._context.store.message_at(position)
        except PositionRangeError:
            return None

    def _add(
        self, kind: str, message: Message, group: str = "", *, producer_group: str = ""
    ) -> None:
        self._seen.add(message.position)
        self.events.append(
            TraceEvent(
                kind=kind,
                unix_ms=message.store_unix_ms,
                topic=message.topic,
                queue_id=message.queue_id,
                offset=message.queue_offset,
                message_id=message.message_id,
                group=group,
                producer_group=producer_group,
                reconsume_times=max(0, message.reconsume_times),  # Of a producer: any number.
            )
        )


def _producer_group(half: Message) -> str:
    return valid_text(half.properties.get(fmt.PROPERTY_PRODUCER_GROUP, ""))
