"""Single messages by id, key and time, and where queues begin and end.

Owns the limits and answers of these questions; must not know how the store finds things.
"""

from typing import Final

from node.broker.core.context import Context
from node.broker.core.freshness import Freshness
from node.broker.read.visibility import queued_by_id, record_of, visible
from node.errors.common import BadRequestError, ReservedTopicError
from node.state.state import INTERNAL_TOPICS
from node.state.tables.moved_offsets import MovedOffsetsTable
from node.users.calling import check_debt, received
from quorumlog.pb.log_pb2 import (
    GetMessageRequest,
    OffsetByTimeRequest,
    OffsetByTimeResponse,
    QueryByKeyRequest,
    QueueOffsets,
    QueueOffsetsRequest,
    QueueOffsetsResponse,
    RecordsResponse,
)

_FOREVER_MS: Final = (1 << 63) - 1
KEY_LENGTH_MAX: Final = 32_767
"""Characters of a key: no record has properties with more bytes."""
_STEP_COUNT_MAX: Final = 20_000
"""Entries of the key index that one query passes, found or not: about 0.5 s, and more than the keys
of one record, so that each call gets on."""


class Queries:
    """Answers queries. One per broker."""

    def __init__(self, context: Context, freshness: Freshness) -> None:
        self._context: Final = context
        self._freshness = freshness

    async def get_message(self, request: GetMessageRequest) -> RecordsResponse:
        """Return the message with an id. Raises BadRequestError, and as `visible_at`."""
        check_debt()
        await self._freshness.ensure(request.consistency)
        record = visible(
            self._context, queued_by_id(self._context, request.message_id), request.message_id
        )
        received(len(record.record), 1)
        return RecordsResponse(
            records=record.record, record_count=1, newest_move=self._newest_move()
        )

    async def query_by_key(self, request: QueryByKeyRequest) -> RecordsResponse:
        """As `find_by_key`. Raises BadRequestError for a key with a blank: blanks part keys."""
        if " " in request.key:
            raise BadRequestError("key", "one key, without a blank", repr(request.key))
        return await self.find_by_key(request)

    async def find_by_key(self, request: QueryByKeyRequest) -> RecordsResponse:
        """Return the newest messages of a topic that carry a key, oldest first.

        Count and bytes limit what is found, and `_STEP_COUNT_MAX` the work; an answer that ends at
        one of them says where the next call goes on.
        """
        context, limits = self._context, self._context.limits
        check_debt()
        await self._freshness.ensure(request.consistency)
        if request.topic in INTERNAL_TOPICS:
            raise ReservedTopicError(request.topic)
        context.readable(request.topic, 0)
        if not request.key:
            raise BadRequestError("key", "a key", "empty")
        if len(request.key) > KEY_LENGTH_MAX:
            expected = f"at most {KEY_LENGTH_MAX} characters"
            raise BadRequestError("key", expected, str(len(request.key)))
        hi_position = request.next_position if request.next_position > 0 else _FOREVER_MS
        steps = context.store.newest_by_key(
            request.topic,
            request.key,
            lo_unix_ms=max(0, request.lo_unix_ms),
            hi_unix_ms=request.hi_unix_ms if request.hi_unix_ms > 0 else _FOREVER_MS,
            hi_position=hi_position,
        )
        max_count = min(request.max_count or limits.query_count_default, limits.query_count_max)
        parts: list[bytes] = []
        left_bytes, left_steps = limits.query_size_bytes_max, _STEP_COUNT_MAX
        next_position: int | None = None
        newest_move = self._newest_move()  # Before the walk: moves may come beside it.
        async with context.turn.walk() as walk:
            for position, message in steps:  # Newest first: these matter most.
                if position < hi_position:  # Those that an earlier call passed were paid for there.
                    left_steps -= 1
                if message is not None:
                    left_bytes -= message.size_bytes
                    if len(parts) == max_count or (parts and left_bytes < 0):
                        next_position = position + 1
                        break
                    parts.append(record_of(context, message))
                    walk.hold(2 * (limits.query_size_bytes_max - left_bytes))
                if left_steps <= 0:  # Another key of the same record may be the one.
                    next_position = position if message is not None else position + 1
                    break
                await walk.step()
        received(sum(map(len, parts)), len(parts))
        return RecordsResponse(
            records=b"".join(reversed(parts)),
            record_count=len(parts),
            next_position=next_position,
            newest_move=newest_move,
        )

    async def offset_by_time(self, request: OffsetByTimeRequest) -> OffsetByTimeResponse:
        """Return the offset of the first message stored at a time or later, else the next one."""
        await self._freshness.ensure(request.consistency)
        self._context.readable(request.topic, request.queue_id)
        offset = self._context.store.offset_by_time(
            request.topic, request.queue_id, request.unix_ms
        )
        return OffsetByTimeResponse(offset=offset)

    async def queue_offsets(self, request: QueueOffsetsRequest) -> QueueOffsetsResponse:
        """Return where queues begin and end, in the order asked, all as of one moment or later."""
        limit = self._context.limits.queue_offsets_count_max
        self._context.check_count("queues", len(request.queues), limit)
        at_least = request.at_least_index if request.HasField("at_least_index") else None
        await self._freshness.ensure(request.consistency, at_least)
        response = QueueOffsetsResponse()
        async for queue in self._context.turn.over(request.queues):
            self._context.readable(queue.topic, queue.queue_id)
            lo, hi = self._context.store.queue_range(queue.topic, queue.queue_id)
            response.queues.append(
                QueueOffsets(
                    topic=queue.topic, queue_id=queue.queue_id, min_offset=lo, max_offset=hi
                )
            )
        return response

    def _newest_move(self) -> int:
        return self._context.state.table(MovedOffsetsTable).newest
