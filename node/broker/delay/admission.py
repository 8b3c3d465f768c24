"""Admits clients' batches with delayed messages: rewrites their records, and answers the due times.

Owns what a wish may be and what is refused; must not know how messages are delivered. The batch
stays one batch: atomic, idempotent, in order with the others of its producer. Refusals that depend
on the state are made when the batch's place in the log is known, so that a batch that is in the log
already gets its first receipt, even if its topic is gone.
"""

import asyncio
import math
from functools import partial
from typing import Final, NamedTuple

from node.broker.append.attached import AttachedCommands, OnDecided
from node.broker.append.faulty_records import faulty_records
from node.broker.append.produce import Produce
from node.broker.append.repeats import asked_digest
from node.broker.core.context import Context
from node.broker.records.delayed import DelayWish, level_delay_ms, scheduled, wish_of
from node.errors.common import BadRequestError, NodeError, ReservedTopicError
from node.errors.delay import DelayTooLongError
from node.runtime.accounts import caller
from node.state.appends import Committed, Prepared
from node.state.held import HOLDERS
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store import format as fmt
from store.errors import LimitExceededError, RecordFormatError, StoreError
from store.record.message import check_topic, record_layout
from store.record.stamp import QueueKey
from store.record.topic_names import is_reserved

_NO_WISH: Final = DelayWish()
_ROOM_SIZE_BYTES: Final = 1_024
"""Room that the entry of the delivery needs beside the message."""


class _Batch(NamedTuple):
    """A rewritten batch."""

    records: bytes
    due_unix_ms: list[int]
    """Due time of each record; 0 for one that is not delayed."""
    wishes: list[int]
    """The numbers of each record's wish, back to back."""
    holders: frozenset[QueueKey]
    targets: frozenset[tuple[str, int]]
    """Topics and queue ids that the delayed messages are for."""


class DelayAdmission:
    """Rewrites and appends batches with delayed messages. One per broker."""

    def __init__(self, context: Context, produce: Produce) -> None:
        self._context: Final = context
        self._produce = produce

    def append(self, request: AppendRequest) -> "asyncio.Future[AppendResponse]":
        """Append a batch; the future resolves with its receipt or fails, and never raises here."""
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
        view = memoryview(records)
        parts, due_unix_ms, wishes = list[bytes](), list[int](), list[int]()
        holders, targets = set[QueueKey](), set[tuple[str, int]]()
        limit = self._produce.batch_size_bytes_max - _ROOM_SIZE_BYTES
        at = 0
        while at < len(records):
            layout = record_layout(view, at)
            record = records[at : at + layout.size_bytes]
            at += layout.size_bytes
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
