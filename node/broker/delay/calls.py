"""Delayed messages as services see them: append, cancel, status.

Owns what a wish may be, what is refused, and the answers; must not know how messages are delivered
(`delivery_task`). A batch is rewritten and stays one batch: atomic, idempotent, in order with the
others of its producer. Refusals that depend on the state are made when the batch's place in the log
is known, so that a batch that is in the log already gets its first receipt, even if its topic is
gone.
"""

import asyncio
import math
from functools import partial
from typing import Final, NamedTuple

from node.broker.append.attached import AttachedCommands, OnDecided
from node.broker.append.faulty_records import faulty_records
from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce
from node.broker.append.repeats import asked_digest
from node.broker.core.context import Context
from node.broker.delay.delivery_task import DeliveryTask
from node.broker.delay.due_index import Due
from node.broker.read.visibility import queued_by_id, record_of
from node.broker.records.delayed import DelayWish, held, level_delay_ms, scheduled, wish_of
from node.errors.common import BadRequestError, MessageNotFoundError, NodeError, ReservedTopicError
from node.errors.delay import DelayedGoneError, DelayTooLongError
from node.runtime.accounts import caller
from node.state.appends import Committed, Prepared
from node.state.held import HOLDERS, NUMBERS, held_counts
from node.state.tables.delay import DelayTable
from node.users.calling import require_known
from node.users.rules import Action, ResourceKind
from quorumlog.pb.delay_pb2 import (
    CancelDelayedRequest,
    CancelDelayedResponse,
    DelayQueue,
    DelayStatusRequest,
    DelayStatusResponse,
)
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store import format as fmt
from store.errors import LimitExceededError, RecordFormatError, StoreError
from store.record.edit import layouts, start_of
from store.record.message import check_topic
from store.record.stamp import QueueKey
from store.record.topic_names import is_reserved

_NO_WISH: Final = DelayWish()
_ROOM_SIZE_BYTES: Final = 1_024
"""Room that the entry of the delivery needs beside the message."""


class _Batch(NamedTuple):
    records: bytes
    due_unix_ms: list[int]
    """Due time of each record; 0 for one that is not delayed."""
    wishes: list[int]
    """The numbers of each record's wish, back to back."""
    holders: frozenset[QueueKey]
    targets: frozenset[tuple[str, int]]
    """Topics and queue ids that the delayed messages are for."""


class Delay:
    """The calls about delayed messages. One per broker."""

    def __init__(self, context: Context, produce: Produce, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._produce = produce
        self.delivery_task: Final = DeliveryTask(context, own_appends)
        """The leader's work."""

    def append(self, request: AppendRequest) -> "asyncio.Future[AppendResponse]":
        """Append a batch with delayed messages. No error is raised here: the future fails, as that
        of `Produce.append`."""
        try:
            if request.HasField("transaction") or request.HasField("consumed"):
                expected = "neither a transaction nor consumed offsets"
                raise BadRequestError("has_delayed", expected, "both")
            batch, too_long = self._admitted(request.records)
        except (NodeError, StoreError) as error:
            return self._produce.refuse(error)
        due_unix_ms, context, account = batch.due_unix_ms, self._context, caller()
        delayed = list(filter(None, due_unix_ms))

        def check(_prepared: Prepared) -> OnDecided:
            if too_long is not None:
                raise too_long
            for target in batch.targets:
                context.writable(*target)
            return context.makers.hold_delayed(account, delayed, context.unix_ms())

        def describe(response: AppendResponse, committed: Committed) -> None:
            count = len(due_unix_ms)
            response.positions.extend(committed.result.record_positions[:count])
            response.due_unix_ms.extend(due_unix_ms)

        attached_commands = AttachedCommands(
            system_queues=batch.holders,
            check=check,
            describe=describe,
            asked=asked_digest(batch.wishes) if delayed else b"",
        )
        return self._produce.append(request, attached_commands, batch.records)

    def _admitted(self, records: bytes) -> tuple[_Batch, DelayTooLongError | None]:
        """Return the batch rewritten, and the refusal of a new one for the time: a clock that went
        back refuses a stored one, too. Errors as `_rewritten`, with all records that have one."""
        now_ms, limit_ms = self._context.unix_ms(), self._context.limits.delay_ms_max
        rewritten = partial(self._rewritten, now_ms=now_ms, limit_ms=limit_ms)
        try:
            return rewritten(records), None
        except (RecordFormatError, LimitExceededError, DelayTooLongError) as error:
            error.faulty_records = faulty_records(records, error, rewritten)
            if not isinstance(error, DelayTooLongError):
                raise
            late = error
        try:
            return self._rewritten(records, now_ms, math.inf), late
        except (RecordFormatError, LimitExceededError):  # Nothing like it is stored.
            raise late from None

    def _rewritten(self, records: bytes, now_ms: int, limit_ms: float) -> _Batch:
        """Return the batch with its delayed records held. Raises RecordFormatError,
        LimitExceededError, DelayTooLongError, TopicNameError, ReservedTopicError."""
        parts, due_unix_ms, wishes = list[bytes](), list[int](), list[int]()
        holders, targets = set[QueueKey](), set[tuple[str, int]]()
        limit = self._produce.batch_size_bytes_max - _ROOM_SIZE_BYTES
        for layout in layouts(records):
            at = start_of(layout)
            record = records[at : at + layout.size_bytes]
            wish = wish_of(record)
            wishes += wish or _NO_WISH
            name = records[layout.topic_at : layout.topic_hi]
            check_topic(name)  # The store checks the name of the holder's topic.
            topic = name.decode()
            if is_reserved(topic):  # The right to touch a queue is not for records of clients.
                raise ReservedTopicError(topic)
            if wish is not None:
                targets.add((topic, fmt.INT32.unpack_from(record, fmt.QUEUE_ID_AT)[0]))
                due_ms = self._due_unix_ms(wish, now_ms, limit_ms)
                record = scheduled(record, due_ms, level=wish.level)
                if len(record) > limit:
                    raise LimitExceededError("delayed message", len(record), limit)
                holder, queue_id = HOLDERS[min(wish.level, len(HOLDERS) - 1)]
                holders.add((holder.encode(), queue_id))
                due_unix_ms.append(due_ms)
            else:
                due_unix_ms.append(0)
            parts.append(record)
        return _Batch(b"".join(parts), due_unix_ms, wishes, frozenset(holders), frozenset(targets))

    @staticmethod
    def _due_unix_ms(wish: DelayWish, now_ms: int, limit_ms: float) -> int:
        if wish.level:
            return now_ms + level_delay_ms(wish.level)
        due_ms = now_ms + wish.delay_ms if wish.delay_ms >= 0 else max(wish.deliver_unix_ms, now_ms)
        if due_ms - now_ms > limit_ms:
            raise DelayTooLongError(due_ms - now_ms, int(limit_ms))
        return due_ms

    async def cancel_delayed(self, request: CancelDelayedRequest) -> CancelDelayedResponse:
        """Cancel a held message: after the return it is never delivered. May be repeated.

        Raises MessageNotFoundError (no such message, or none that was delayed), DelayedGoneError
        (delivered, or just being delivered), and the errors of `OwnAppends.write`.
        """
        context = self._context
        context.check_cluster(request.cluster_id)
        context.check_leads()
        message = queued_by_id(context, request.message_id)
        queue = NUMBERS.get((message.topic.encode(), message.queue_id))
        if queue is None:
            raise MessageNotFoundError(request.message_id)
        own = held(record_of(context, message))
        unknown = MessageNotFoundError(request.message_id)
        require_known(Action.PUB, ResourceKind.TOPIC, own.topic, unknown)
        due = Due(own.due_unix_ms, queue, message.queue_offset)
        table = context.state.table(DelayTable)
        if not table.was_cancelled(queue, due.offset):
            if due.offset in table.queues[queue]:
                raise DelayedGoneError(queue, due.offset)
            await self.delivery_task.cancel(due)
        return CancelDelayedResponse(**own._asdict())

    async def delay_status(self, _request: DelayStatusRequest) -> DelayStatusResponse:
        """Return how many messages are held, in which queues, and when the next one is due."""
        context, limits = self._context, self._context.limits
        context.check_leads()
        table, leadership = context.state.table(DelayTable), self.delivery_task.leadership
        next_due_ms = None if leadership is None else leadership.index.next_due_unix_ms()
        counts = held_counts(context.store, context.state)
        response = DelayStatusResponse(
            held_count=sum(counts),
            held_count_max=limits.delayed_count_max,
            horizon_ms=limits.delay_ms_max,
            next_due_unix_ms=next_due_ms or 0,
            now_unix_ms=self._context.unix_ms(),
            undeliverable_count=table.undeliverable_count,
            is_loading=leadership is None or leadership.is_loading,
        )
        for queue, (topic, queue_id) in enumerate(HOLDERS):
            max_offset = context.store.queue_range(topic, queue_id)[1]
            if max_offset:
                row = DelayQueue(
                    level=queue,
                    delay_ms=level_delay_ms(queue) if queue else 0,
                    held_count=counts[queue],
                    floor_offset=table.queues[queue].floor,
                    end_offset=max_offset,
                )
                response.queues.append(row)
        return response
