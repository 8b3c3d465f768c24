"""Makes one entry of messages that are due: records for their own topics, and the command for it.

Owns where a message goes, also one whose target is gone. Must not know how or when an entry is
written. A topic that was deleted, or takes no messages any more, loses nothing: the message goes to
`rmq_sys_undeliverable` and keeps its target in its properties.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import structlog

from node.broker.core.context import Context
from node.broker.delay.due_index import Due
from node.broker.records.delayed import DeliveredRecords, split_records, undeliverable
from node.broker.records.retry import origin_of
from node.state.held import HOLDERS
from node.state.state import PERMISSION_WRITE, State
from node.state.tables.delay import DelayTable
from node.state.tables.offset_set import encode_runs
from node.state.tables.topic_origins import TopicOriginsTable
from node.state.tables.topic_types import TopicSettings
from quorumlog.pb.state_pb2 import Command
from store import format as fmt
from store.errors import LimitExceededError, PositionRangeError, RecordFormatError, StoreError

_UNITS_AT_ONCE: Final = 512
"""Units of a queue read with one call where single ones are wanted."""
_offset: Final = attrgetter("offset")
_ByQueue = dict[int, list[Due]]
"""Messages of each holding queue, by offset."""
_log: Final = structlog.get_logger(component="delay")


class DelayedDelivery(NamedTuple):
    """One entry, not written yet."""

    taken: list[Due]
    """Messages that the entry takes, the oldest first."""
    records: bytes
    command: Command
    left: list[Due]
    """Messages without room in the entry, or not due yet: to be taken again."""
    unreadable: list[Due]
    """Messages that the disk did not give at the moment: to be taken again later."""
    missing_count: int
    """Messages whose bytes are not in the log any more: taken, and delivered to nowhere."""


class Deliveries:
    """Reads held messages and turns them into entries."""

    def __init__(self, context: Context, size_bytes_max: int) -> None:
        self._context = context
        self._store = context.store
        self._size_bytes_max = size_bytes_max
        self._delivered = DeliveredRecords()

    def of(self, dues: Sequence[Due], state: State, now_unix_ms: int) -> DelayedDelivery:
        """Return an entry of messages that are due; those that were cancelled are passed over.

        The due time in the record decides: a message whose record is later stays held until then.
        """
        gone = state.table(DelayTable).queues
        dues = [due for due in dues if due.offset not in gone[due.queue]]
        by_queue, left = _by_queue(dues), list[Due]()
        count = self._count(dues, by_queue)
        if count < len(dues):
            dues, left = dues[:count], dues[count:]
            by_queue = _by_queue(dues)
        readable, unreadable = self._read(by_queue)
        taken, parts = list[Due](), list[bytes]()
        undeliverable_count = missing_count = 0
        for due in dues:
            if due in unreadable:
                continue
            record = readable.get(due)
            if record is None:
                missing_count += 1
            else:
                record, is_delivered, due_unix_ms = self._for_delivery(record, state)
                if due_unix_ms > max(now_unix_ms, due.due_unix_ms):
                    _log.error(
                        "a delayed message is not due yet", message=str(due), due=due_unix_ms
                    )
                    left.append(due._replace(due_unix_ms=due_unix_ms))
                    continue
                undeliverable_count += not is_delivered
                parts.append(record)
            taken.append(due)
        command = _command(taken, undeliverable_count)
        records, later = b"".join(parts), list(unreadable)
        return DelayedDelivery(taken, records, command, left, later, missing_count)

    def _count(self, dues: Sequence[Due], by_queue: _ByQueue) -> int:
        """Return how many of the messages have room, the first one at least.

        The sizes are known before anything is read: a few messages may fill an entry.
        """
        by_size = [(some, self._sizes_bytes(queue, some)) for queue, some in by_queue.items()]
        left_bytes = self._size_bytes_max - sum(sum(sizes) for _, sizes in by_size)
        count = len(dues)
        if left_bytes >= 0:
            return count
        sizes_bytes: dict[Due, int] = {}
        for some, sizes in by_size:
            sizes_bytes.update(zip(some, sizes, strict=True))
        while left_bytes < 0 and count > 1:
            count -= 1
            left_bytes += sizes_bytes[dues[count]]
        return count

    def _sizes_bytes(self, queue: int, dues: Sequence[Due]) -> list[int]:
        """Return the sizes of records; 0 for one whose unit, and so the record, cannot be read."""
        topic, queue_id = HOLDERS[queue]
        every: list[int] = []
        span = _UNITS_AT_ONCE
        while len(every) < len(dues):
            lo = len(every)
            first = dues[lo].offset
            hi = bisect_left(dues, first + span, lo, key=_offset)
            try:
                units = self._store.units(topic, queue_id, first, dues[hi - 1].offset + 1)
            except StoreError:
                if span == 1:
                    every.append(0)
                span = 1  # At least one unit is unreadable: read each one alone.
                continue
            sizes = [size_bytes for _, size_bytes, _ in fmt.CONSUME_QUEUE_UNIT.iter_unpack(units)]
            if len(sizes) > hi - lo:
                sizes = [sizes[due.offset - first] for due in dues[lo:hi]]
            every += sizes
        return every

    def _read(self, by_queue: _ByQueue) -> tuple[dict[Due, bytes], dict[Due, None]]:
        """Return held records, and the unreadable ones; one in neither is not in the log."""
        records: dict[Due, bytes] = {}
        unreadable: dict[Due, None] = {}
        for queue, some in by_queue.items():
            try:
                records.update(zip(some, self._records(queue, some), strict=True))
            except StoreError:  # At least one is unreadable; the others are not to wait.
                for due in some:
                    self._read_one(due, records, unreadable)
        return records, unreadable

    def _read_one(self, due: Due, records: dict[Due, bytes], unreadable: dict[Due, None]) -> None:
        try:
            records[due] = self._records(due.queue, [due])[0]
        except PositionRangeError:
            _log.error("a delayed message is not in the log any more", message=str(due))
        except StoreError as error:
            unreadable[due] = None
            self._context.note_damage(error)
            _log.warning("a delayed message cannot be read", message=str(due), error=str(error))

    def _for_delivery(self, record: bytes, state: State) -> tuple[bytes, bool, int]:
        """Return the record to write, whether it goes to its own topic, and when it is due."""
        try:
            topic, queue_id, moved, due_unix_ms = self._delivered.of(record)
        except (RecordFormatError, LimitExceededError) as error:
            _log.error("a held record does not say where it belongs", error=str(error))
            return undeliverable(record, "no delayed message"), False, 0
        reason = _why_gone(record, topic, state) or _why_not(state.topics.get(topic), queue_id)
        if reason is None:
            return moved, True, due_unix_ms
        return undeliverable(record, reason), False, due_unix_ms

    def _records(self, queue: int, dues: Sequence[Due]) -> list[bytes]:
        topic, queue_id = HOLDERS[queue]
        data = self._store.records_at(topic, queue_id, [due.offset for due in dues])
        return list(split_records(data))


def _by_queue(dues: Sequence[Due]) -> _ByQueue:
    dues_by_queue: _ByQueue = {}
    for due in dues:
        dues_by_queue.setdefault(due.queue, []).append(due)
    for some in dues_by_queue.values():
        some.sort(key=_offset)
    return dues_by_queue


def _why_not(topic: TopicSettings | None, queue_id: int) -> str | None:
    if topic is None:
        return "no such topic"
    if not topic.permission & PERMISSION_WRITE:
        return "topic takes no messages"
    return None if queue_id < topic.queue_count else "no such queue"


def _why_gone(record: bytes, topic: str, state: State) -> str | None:
    """Return the reason if the topic, or the one that a group read, was deleted and recreated."""
    origins = state.table(TopicOriginsTable)
    if not origins.count:
        return None  # In most clusters: nothing of the record is read for it.
    position = fmt.TIMESTAMP.unpack_from(record, fmt.PHYSICAL_OFFSET_AT)[0]
    if position < origins.origin(topic):
        return "topic was deleted and recreated"
    if topic.startswith(fmt.RETRY_TOPIC_PREFIX) and (first := origin_of(record)):
        topic, position = first
        if position < origins.origin(topic):
            return "topic it came from was deleted and recreated"
    return None


def _command(taken: Sequence[Due], undeliverable_count: int) -> Command:
    rows = [
        Command.DelayedOffsets(queue=queue, runs=encode_runs([due.offset for due in some]))
        for queue, some in sorted(_by_queue(taken).items())
    ]
    return Command(
        take_delayed=Command.TakeDelayed(queues=rows, undeliverable_count=undeliverable_count)
    )
