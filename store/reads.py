"""The reads of an open store, by offset, position, id, key and time.

Owns the reads; must not know appends, threads or recovery. The engine says what a read may see.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from store import format as fmt
from store.derived.keys.index_file import IndexStep
from store.derived.queues.consume_queue import ConsumeQueue
from store.derived.queues.pull import PullResult, PullStatus, pull, read_at
from store.engine import Engine
from store.errors import (
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
    RecordFormatError,
)
from store.files.mapped_file import View
from store.ledger.ledger import Ledger
from store.ledger.records import may_begin_at
from store.log.commit_log import CommitLog
from store.record.check import store_timestamp
from store.record.message import (
    Message,
    decode_message,
    decode_properties,
    index_keys,
    record_layout,
)

_RECORD_SIZE_BYTES_FIRST: Final = 4096  # Read at once when the size of a record is not known.
_BEGINS_MAX: Final = 65_536
_FOREVER_MS: Final = (1 << 63) - 1
_POSITION_END: Final = (1 << 63) - 1


class QueueInfo(NamedTuple):
    """One queue that exists. Its messages have the offsets [min_offset, max_offset)."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class KeyStep(NamedTuple):
    """One entry of the index that a look-up by key has passed."""

    position: int
    message: Message | None
    """None where another key, topic or time was found."""


class Reads:
    """The reads of one store. Every method may be called from any thread."""

    def __init__(
        self, engine: Engine[CommitLog | Ledger], catch_up: Callable[[], None] | None = None
    ) -> None:
        """Read the parts of an engine.

        `catch_up` makes all that was appended before the call visible, and raises if the store is
        closed; without it readers see what is visible already.
        """
        self.log: Final = engine.log
        self._guard, self._queues, self._index = engine.guard, engine.queues, engine.index
        self.config: Final = engine.config
        self.counters: Final = engine.counters
        self.take_grown: Final = engine.queues.take_grown
        """See `ConsumeQueues.take_grown`: for one caller, which wakes waiting readers."""
        self.origin: Callable[[str], int] = lambda _: 0
        """Returns the position before which no record of a topic is read: those are records of a
        deleted topic of that name. The owner of the topics sets it. A topic keeps its origin."""
        self._begins: dict[tuple[str, int], tuple[int, int]] = {}
        """Origin and first offset behind it of queues that were read, at most _BEGINS_MAX."""
        self._check_open = engine.check_open
        self._catch_up = catch_up or engine.check_open
        self._visible_position = engine.visible_position

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 32,
        max_size_bytes: int = 256 * 1024,
        tags: frozenset[int] | None = None,
        verify: bool = False,
    ) -> PullResult:
        """Return records of one queue from `offset` on, encoded, back to back.

        Sees everything appended before the call. At least one record if there is any; `tags` are
        tag hashes (`store.record.message.tags_code`), and the caller compares the tag itself.
        `verify` compares them with their checksums even if they were compared before, and returns
        fewer: a reader met damage in them, as a disk may damage what was checked.
        Raises CorruptionError, DerivedDamageError, FileSystemError, ClosedError.
        """
        self._catch_up()
        queue = self._queues.get(topic.encode(), queue_id)
        if queue is None or offset >= queue.max_offset:
            self._queues.inner_batches.check(topic.encode(), queue_id, offset)
        lo = self._begin_offset(queue)
        if queue is not None and offset < lo:
            return PullResult(PullStatus.OFFSET_TOO_SMALL, lo, lo, queue.max_offset)
        result = pull(self.log, queue, offset, max_count, max_size_bytes, tags, verify=verify)
        return result if result.min_offset >= lo else result._replace(min_offset=lo)

    def _begin_offset(self, queue: ConsumeQueue | None) -> int:
        """Return the offset before which the queue has records of a deleted topic only."""
        if queue is None:
            return 0
        origin, key = self.origin(queue.topic), (queue.topic, queue.queue_id)
        if not origin:
            return 0
        begin = self._begins.get(key)
        if begin is None or begin[0] != origin:  # Later records have later offsets.
            if len(self._begins) >= _BEGINS_MAX:
                self._begins.clear()
            lo, hi = queue.min_offset, queue.max_offset
            begin = origin, queue.search(lo, hi, lambda position, _: position < origin)
            self._begins[key] = begin
        return begin[1]

    def was_written(self, topic: str) -> bool:
        """Whether queues of this name ever had a record, in the log or expired.

        Sees everything appended before the call.
        """
        self._catch_up()
        return any(queue.max_offset > 0 for queue in self._queues if queue.topic == topic)

    def units(self, topic: str, queue_id: int, lo: int, hi: int) -> bytes:
        """Return the units of the offsets [lo, hi) of one queue, 20 bytes each (format.py).

        Raises PositionRangeError outside of the queue's range, FileSystemError, ClosedError.
        """
        self._check_open()
        return self._queue(topic, queue_id, lo).read_units(lo, hi)

    def records_at(self, topic: str, queue_id: int, offsets: Sequence[int]) -> bytes:
        """Return the records of these offsets of one queue, ascending, back to back.

        Raises PositionRangeError for one that is not there, CorruptionError, FileSystemError,
        ClosedError.
        """
        self._check_open()
        return read_at(self.log, self._queue(topic, queue_id, offsets[0]), offsets)

    def _find(self, topic: str, queue_id: int, offset: int) -> ConsumeQueue | None:
        """Return a queue, None if there is none. Raises InnerBatchError."""
        queue = self._queues.get(topic.encode(), queue_id)
        if queue is None:
            self._queues.inner_batches.check(topic.encode(), queue_id, offset)
        return queue

    def _queue(self, topic: str, queue_id: int, offset: int) -> ConsumeQueue:
        queue = self._find(topic, queue_id, offset)
        if queue is None:
            raise PositionRangeError("queue offset", offset, 0, 0)
        return queue

    def view(self, position: int, size_bytes: int) -> View:
        """Return a zero-copy window on one or more whole records, checked like any other read.

        The window stays valid until released (see View). Raises CorruptionError,
        PositionRangeError.
        """
        self._check_open()
        lo, hi = self.log.min_position, self._visible_position()
        if position + size_bytes > hi:
            raise PositionRangeError("position", position + size_bytes, lo, hi + 1)
        if not self.log.checked.covers(position, position + size_bytes):
            self.log.check(position, self.log.read(position, size_bytes))
        return self.log.view(position, size_bytes)

    def message_at(self, position: int) -> Message:
        """Return the record at a position.

        Raises PositionRangeError when none starts there, CorruptionError when it is damaged.
        """
        self._check_open()
        lo, hi = self.log.min_position, self._visible_position()
        if not lo <= position < hi:
            raise PositionRangeError("position", position, lo, hi)
        try:
            record = self._read_record(position)
            message = decode_message(record)
        except RecordFormatError as error:
            if not error.field.endswith("CRC"):  # Else a record does start there.
                self._check_around(position)
                raise PositionRangeError("record position", position, lo, hi) from error
            file = self.log.files.file_at(position)
            at = position - file.position + error.at
            raise CorruptionError(
                file.path, at, error.field, error.expected, error.actual
            ) from error
        if message.position != position:
            self._check_around(position)
            raise PositionRangeError("record position", position, lo, hi)
        self.log.check(position, record)
        origin = self.origin(message.topic)
        if position < origin:
            raise PositionRangeError("position", position, origin, hi)
        return message

    def _check_around(self, position: int) -> None:
        """Raise CorruptionError if a record that starts here, or a size before it, is damaged: "no
        record starts there" would be no answer then. A plain log cannot tell where its records
        start. A position between two records costs no checksum: any client may send it."""
        if not isinstance(self.log, Ledger):
            return
        with suppress(FileSystemError, PositionRangeError):  # The check finds out why.
            if not may_begin_at(self.log, position):
                return
        self.log.check_bytes(position, position + 1, again=True)

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        lo_unix_ms: int = 0,
        hi_unix_ms: int = _FOREVER_MS,
        max_count: int = 64,
    ) -> list[Message]:
        """Return the newest messages of a topic that carry the key, oldest first.

        Stored within [lo, hi). The index finds hashes; each record's topic and key are compared.
        """
        messages: list[Message] = []
        for step in self.newest_by_key(topic, key, lo_unix_ms=lo_unix_ms, hi_unix_ms=hi_unix_ms):
            if step.message is not None:
                messages.append(step.message)
                if len(messages) == max_count:
                    break
        return messages[::-1]

    def newest_by_key(
        self,
        topic: str,
        key: str,
        *,
        lo_unix_ms: int = 0,
        hi_unix_ms: int = _FOREVER_MS,
        hi_position: int = _POSITION_END,
    ) -> Iterator[KeyStep]:
        """Walk back through the index to the messages of a topic that carry the key.

        All steps cost about the same. A step runs when the caller takes it, so a caller that must
        not take long can stop or pause behind each step.
        """
        self._catch_up()
        for position, is_candidate in self._index_steps(
            topic, key, lo_unix_ms, hi_unix_ms, hi_position
        ):
            if position < max(self.log.min_position, self.origin(topic)):
                return
            message = None
            if is_candidate and self._may_carry(position, topic, key):
                message = self._indexed_message(position)
            if message is not None:
                in_time = lo_unix_ms <= message.store_unix_ms < hi_unix_ms
                if message.topic != topic or key not in message.keys or not in_time:
                    message = None
            yield KeyStep(position, message)

    def _indexed_message(self, position: int) -> Message:
        """Return the record at a position that the index has: there is one, whole or damaged."""
        try:
            return self.message_at(position)
        except PositionRangeError as error:
            if position < self.log.min_position:  # Expired meanwhile.
                raise
            file = self.log.files.file_at(position)
            at = position - file.position
            raise CorruptionError(
                file.path, at, "record", "the one in the index", "none"
            ) from error

    def _may_carry(self, position: int, topic: str, key: str) -> bool:
        """Return whether a record may carry a key. Reads no body: the hash of a key can be that of
        large records with other keys. What was not checked yet may."""
        size_at, hi = position + fmt.INT32.size, self._visible_position()
        if not self.log.min_position <= position < size_at <= hi:
            return True
        with self.log.view(position, fmt.INT32.size) as view:
            (size_bytes,) = fmt.INT32.unpack(view)
        end = position + size_bytes
        if not size_at <= end <= hi or not self.log.checked.covers(position, end):
            return True
        try:
            with self.log.view(position, size_bytes) as view:
                layout = record_layout(view, 0)
                of_topic = bytes(view[layout.topic_at : layout.topic_hi])
                properties = decode_properties(bytes(view[layout.properties_at :]))
        except RecordFormatError:
            return True  # `message_at` finds out what is there.
        return of_topic == topic.encode() and key in index_keys(properties)

    def _index_steps(
        self, topic: str, key: str, lo_unix_ms: int, hi_unix_ms: int, hi_position: int
    ) -> Iterator[IndexStep]:
        """Look a key up in the index; damage there is repaired, or raised."""
        repairs_left = len(self._index.files)  # Each of them may need a repair.
        while True:
            try:
                for step in self._index.lookup(
                    topic,
                    key,
                    begin_unix_ms=lo_unix_ms,
                    end_unix_ms=hi_unix_ms,
                    hi_position=hi_position,
                ):
                    if step.is_candidate:
                        hi_position = step.position  # After a repair the lookup resumes behind it.
                    yield step
                return
            except DerivedFileError as error:
                if not repairs_left:
                    raise
                repairs_left -= 1
                self._guard.met(error)

    def offset_by_time(self, topic: str, queue_id: int, unix_ms: int) -> int:
        """Return the offset of the first message stored at `unix_ms` or later.

        The next offset when all are older, 0 for a queue that does not exist. Store times are taken
        to rise along the queue, as the log writes them. Raises CorruptionError for damage on the
        way: a wrong time would lead past messages. Source: storage-formats 2.7; RocketMQ
        ConsumeQueue#getOffsetInQueueByTime.
        """
        self._catch_up()
        queue = self._find(topic, queue_id, 0)
        if queue is None:
            return 0

        def is_older(position: int, size_bytes: int) -> bool:
            data = self.log.read(position, size_bytes)
            self.log.check(position, data)
            return store_timestamp(data) < unix_ms

        min_position, hi = max(self.log.min_position, self.origin(topic)), queue.max_offset
        lo = queue.search(queue.min_offset, hi, lambda position, _: position < min_position)
        return max(queue.search(lo, hi, is_older), self._begin_offset(queue))

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return [min_offset, max_offset) of one queue; (0, 0) when nothing was ever put into it.

        Sees everything appended before the call.
        """
        self._catch_up()
        queue = self._find(topic, queue_id, 0)
        if queue is None:
            return 0, 0
        lo, hi = max(queue.min_offset, self._begin_offset(queue)), queue.max_offset
        return min(lo, hi), hi

    def written_end(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message appended to a queue: behind all that is in the log,
        visible or not. Of a replicated log only the leader's is right."""
        return self.log.stamper.next_offsets.get((topic.encode(), queue_id), 0)

    def queues(self) -> list[QueueInfo]:
        """Return every queue with its range of offsets, sorted; sees all that was appended.

        Not those of `inner_batch_topics`.
        """
        self._catch_up()
        return sorted(
            QueueInfo(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in self._queues
        )

    def inner_batch_topics(self) -> list[str]:
        """Return the topics that cannot be read here: RocketMQ wrote inner batches to them.

        Pulls, look-ups by offset or time, and appends raise an InnerBatchError for them. A look-up
        by key finds the records, each as RocketMQ wrote it: with its messages in one body.
        """
        self._catch_up()
        return sorted(topic.decode() for topic in self._queues.inner_batches.topics.copy())

    def _read_record(self, position: int) -> bytes:
        file_size_bytes = self.config.file_size_bytes
        file_hi = position // file_size_bytes * file_size_bytes + file_size_bytes
        room = min(file_hi, self._visible_position()) - position
        head = self.log.read(position, min(room, _RECORD_SIZE_BYTES_FIRST))
        size_bytes, own_at = int.from_bytes(head[:4], "big"), fmt.PHYSICAL_OFFSET_AT
        # No record starts where none names its place: its size could be any.
        if size_bytes <= len(head) or head[own_at : own_at + 8] != fmt.TIMESTAMP.pack(position):
            return head[:size_bytes]
        return self.log.read(position, min(size_bytes, room))
