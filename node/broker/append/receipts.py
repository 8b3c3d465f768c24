"""Receipts: the answer to an append, from the commit or, for a duplicate, read back from the log.

Owns the fields of AppendResponse; must not know the callers.
"""

from collections.abc import Mapping

from node.broker.append.repeats import messages_digest
from node.broker.core.context import Context
from node.broker.records.delayed import held
from node.errors.common import DuplicateExpiredError, SequenceReusedError
from node.state.appends import Committed
from node.state.command_records import command_of
from node.state.held import NUMBERS
from node.state.state import COMMAND_TOPIC
from quorumlog.pb.log_pb2 import AppendResponse
from store import format as fmt
from store.errors import PositionRangeError
from store.record.edit import layouts, start_of
from store.record.message import encode_host
from store.record.stamp import QueueKey

COMMAND_QUEUE = (COMMAND_TOPIC.encode(), 0)
_HIDDEN = (fmt.TRANSACTION_PREPARED, fmt.TRANSACTION_ROLLBACK)

QueueRanges = Mapping[QueueKey, tuple[int, int]]
"""First offset and count by queue."""


class AppendReceipts:
    """Makes receipts. One per broker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store_host = encode_host(context.store.config.store_host)
        self._durability = context.receipts.durability

    def of_commit(
        self, committed: Committed, queues: QueueRanges, record_count: int
    ) -> AppendResponse:
        """Return the receipt of a batch that was committed now."""
        result = committed.result
        response = AppendResponse(
            term=committed.term,
            index=committed.index,
            position=result.record_positions[0],
            store_unix_ms=result.store_unix_ms,
            durability=self._durability(),
            synced_by=committed.synced_by,
            store_host=self._store_host,
            record_count=record_count,
            commit_us=committed.commit_us,
        )
        _add_queues(response, queues)
        return response

    def of_duplicate(
        self,
        producer_id: int,
        sequence: int,
        position: int,
        repeated_count: int,
        digest: bytes,
        asked: bytes,
    ) -> AppendResponse:
        """Return the receipt of a batch whose command record is at a log position.

        `repeated_count`, `digest` (empty: unknown) and `asked` are those of what came again.
        The nodes that synced it and the time that took are not known any more. Raises
        DuplicateExpiredError when retention has deleted the entry, SequenceReusedError when the
        messages, or what was asked with them, are others, CorruptionError, FileSystemError.
        """
        try:
            batch = self._context.receipts.batch_of(position)
        except PositionRangeError as error:
            raise DuplicateExpiredError(producer_id, sequence, sequence + 1) from error
        queues: dict[QueueKey, tuple[int, int]] = {}
        view, at, record_count, first = memoryview(batch.records), 0, 0, None
        positions, due_unix_ms = list[int](), list[int]()
        for layout in layouts(batch.records):
            at, first = start_of(layout), first or layout
            queue_id = fmt.INT32.unpack_from(view, at + fmt.QUEUE_ID_AT)[0]
            offset = fmt.TIMESTAMP.unpack_from(view, at + fmt.QUEUE_OFFSET_AT)[0]
            key = bytes(view[layout.topic_at : layout.topic_hi]), queue_id
            lo, count = queues.get(key, (offset, 0))
            if layout.sys_flag & fmt.SYS_FLAG_TRANSACTION_MASK not in _HIDDEN:
                queues[key] = lo, count + 1
            record_count += key != COMMAND_QUEUE
            if key != COMMAND_QUEUE:
                positions.append(batch.position + at)
                record = batch.records[at : at + layout.size_bytes]
                due_unix_ms.append(held(record).due_unix_ms if key in NUMBERS else 0)
        assert first is not None, f"batch {batch.index} has no records"
        stored = command_of(batch.records[at:]).producer_batch
        is_same = record_count == repeated_count and stored.asked == asked
        if not is_same or (digest and digest != messages_digest(batch.records)):
            raise SequenceReusedError(producer_id, sequence, record_count, repeated_count)
        host_at = first.store_timestamp_at + fmt.TIMESTAMP.size
        response = AppendResponse(
            term=batch.term,
            index=batch.index,
            position=batch.position,
            store_unix_ms=fmt.TIMESTAMP.unpack_from(view, first.store_timestamp_at)[0],
            durability=self._durability(),
            store_host=bytes(view[host_at : host_at + len(self._store_host)]),
            is_duplicate=True,
            record_count=record_count,
        )
        if any(due_unix_ms):
            response.positions.extend(positions)
            response.due_unix_ms.extend(due_unix_ms)
        _add_queues(response, queues)
        return response


def _add_queues(response: AppendResponse, queues: QueueRanges) -> None:
    """Add where the batch landed; the command record is not shown to clients."""
    for key in queues:
        if key != COMMAND_QUEUE:
            first_offset, count = queues[key]
            response.queues.add(
                topic=str(key[0], "ascii"), queue_id=key[1], first_offset=first_offset, count=count
            )
