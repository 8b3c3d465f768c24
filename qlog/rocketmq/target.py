"""The target: the topic that a copy makes, and each of its queues as the copy goes on in it.

Owns the exactly-once rule. The offset at which a queue of the source goes on is that of a group of
its own here, stored in the entry of each batch: it outlives the messages. The cluster stores a
batch only where that offset is the one expected, so a batch that an earlier run, or one beside
this, sent and that comes late is refused. Must not know how messages are read from the source.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qlog.rocketmq.records import Mark, has_room_for_mark, record_of
from qlog.rocketmq.shapes import QUEUE_COUNT_MAX, SourceQueue
from quorumlog.command_errors import CliError
from quorumlog.errors import ConflictError, QuorumlogError, TooLargeError, UnknownTopicError
from quorumlog.pb.transaction_pb2 import ConsumedOffsets
from quorumlog.records.queues import Queue
from store.errors import StoreError
from store.format import IMPORT_GROUP_PREFIX
from store.record.message import Message

if TYPE_CHECKING:
    from quorumlog.client import Client

BATCH_SIZE_BYTES: Final = 1 << 20
"""Records of one append, but for a single record that is larger."""
_READ_AND_WRITE: Final = 6


class TargetError(CliError):
    """The target holds something that does not fit the copy; nothing was changed there."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a queue, and the offset of the source that comes next; -1 for a new copy."""

    min_offset: int
    next_offset: int
    stored: int


@dataclass(slots=True)
class LeftBehind:
    """Messages of a queue that the cluster does not take: where the first is, why, how many."""

    first_offset: int
    last_offset: int
    why: str
    count: int = 1


class TargetQueue:
    """A queue, and the queue of the source whose messages it gets. `look` before the rest."""

    def __init__(self, client: "Client", queue: Queue, source: SourceQueue) -> None:
        self._client = client
        self.queue, self.source = queue, source
        digest = hashlib.sha256(f"{source.broker}/{source.queue_id}".encode()).hexdigest()[:16]
        self._progress = IMPORT_GROUP_PREFIX + digest
        self.tail = Tail(0, 0, -1)
        self.source_offset = 0
        """The offset of the source at which the copy goes on."""
        self.left: LeftBehind | None = None

    async def look(self) -> None:
        """Read the end of the queue. Raises TargetError if its last message was not copied."""
        client, queue, source = self._client, self.queue, self.source
        (row,) = await client.queue_offsets(queue.topic, [queue])
        last = None
        if row.first_offset < row.end_offset:
            pulled = await client.pull(
                *queue, row.end_offset - 1, max_count=1, broker_group=queue.broker_group
            )
            last = pulled[0].properties if pulled else {}
        # Read behind the end: another run may go on meanwhile, and offsets of groups are never too
        # high.
        progress = await client.admin.fetch_offsets(self._progress, [queue])
        stored = progress.get(queue, -1)
        self.source_offset = max(stored, 0)
        if last is not None:
            mark = Mark.of(last)
            if mark is not None and (mark.broker, mark.queue_id) != (
                source.broker,
                source.queue_id,
            ):
                raise TargetError(
                    f"queue {queue} has messages of {mark.broker}/{mark.queue_id}",
                    f"it would get those of {source}: brokers or queues of the source changed",
                    f"qlog topic delete {queue.topic} and run it again",
                )
            if mark is not None:
                self.source_offset = max(stored, mark.offset + 1)
            elif stored < 0 or has_room_for_mark(last, self._mark(stored)):
                raise TargetError(
                    f"queue {queue} ends with a message that was not copied",
                    "a copy goes on behind its own last message, and others wrote behind that",
                    f"choose topics with --topic, or qlog topic delete {queue.topic} and run it "
                    "again",
                )
        self.tail = Tail(row.first_offset, row.end_offset, stored)

    async def append(self, messages: list[Message]) -> frozenset[int]:
        """Store messages of the source, each once; return the offsets of those left behind.

        That are messages which the cluster does not take: one of them holds no other. Raises
        TargetError, and errors of an append.
        """
        left, count_max = set[int](), len(messages)
        while messages := [m for m in messages if m.queue_offset >= self.source_offset]:
            tail, records = self.tail, list[bytes]()
            try:
                self._encode(messages[:count_max], records)
                next_offset = messages[len(records) - 1].queue_offset + 1
                await self._store(records, next_offset)
            except ConflictError:  # A batch is there: this one, or one of another run.
                await self.look()
                if self.source_offset < tail.stored:
                    raise TargetError(
                        f"what was copied into queue {self.queue} is gone",
                        "its topic, or the group of its progress, was deleted meanwhile",
                        "run it again",
                    ) from None
            except (StoreError, QuorumlogError) as error:
                if not isinstance(error, StoreError | TooLargeError) and not error.faulty_records:
                    raise
                if len(records) > 1:
                    count_max = 1
                    continue
                offset = messages[0].queue_offset
                left.add(offset)
                self._leave(offset, error)
            else:
                self.tail = Tail(tail.min_offset, tail.next_offset + len(records), next_offset)
                self.source_offset = next_offset
        return frozenset(left)

    def _encode(self, messages: list[Message], records: list[bytes]) -> None:
        """Add the records of the next batch. Raises StoreError, for the first message only."""
        size_bytes = 0
        for message in messages:
            try:
                mark = self._mark(message.queue_offset)
                record = record_of(message, self.queue.queue_id, mark)
            except StoreError:
                if records:
                    return
                raise
            size_bytes += len(record)
            if records and size_bytes > BATCH_SIZE_BYTES:
                return
            records.append(record)

    async def _store(self, records: list[bytes], next_offset: int) -> None:
        queue, consumed = self.queue, ConsumedOffsets(group=self._progress)
        consumed.offsets.add(
            topic=queue.topic,
            queue_id=queue.queue_id,
            expected=self.tail.stored,
            offset=next_offset,
        )
        await self._client.raw.append(
            b"".join(records), len(records), consumed=consumed, broker_group=queue.broker_group
        )

    def _leave(self, offset: int, error: Exception) -> None:
        """Pass a message over. The next batch stores that it was."""
        if self.left is None:
            self.left = LeftBehind(offset, offset, str(error))
        elif offset > self.left.last_offset:
            self.left.last_offset, self.left.count = offset, self.left.count + 1
        self.source_offset = offset + 1

    def _mark(self, offset: int) -> Mark:
        return Mark(self.source.broker, self.source.queue_id, offset)

    def offset_of(self, source_offset: int) -> int:
        """Return the offset of the target for one of the source, within what was copied.

        Exact where the source had no gap since; behind a gap it is too low, and never too high.
        """
        tail = self.tail
        offset = tail.next_offset - max(0, self.source_offset - source_offset)
        return max(tail.min_offset, offset)


async def queues_of_topic(
    client: "Client", topic: str, sources: list[SourceQueue], message_type: str
) -> list[TargetQueue]:
    """Make the topic if it is missing, and return a queue for each of the source.

    The order is fixed: brokers by name, then queues by number, in both clusters. Raises TargetError
    for a topic with another count of queues, or with messages that were not copied.
    """
    groups = len(client.broker_groups)
    count = -(-len(sources) // groups) * groups
    assert count <= QUEUE_COUNT_MAX + groups, "limit of a route"
    try:
        rows = await client.queue_offsets(topic)
    except UnknownTopicError:
        await client.admin.create_topic(
            topic,
            queue_count=count // groups,
            permission=_READ_AND_WRITE,
            message_type=message_type,
        )
        rows = await client.queue_offsets(topic)
    if len(rows) != count:
        raise TargetError(
            f"topic {topic} has {len(rows)} queues here and {len(sources)} in the source",
            f"each queue of the source gets one of its own, so it takes {count}",
            f"qlog topic delete {topic}, or qlog topic create {topic} --queues {count // groups} "
            "--exist-ok if it has fewer",
        )
    queues = sorted(Queue(row.topic, row.queue_id, row.broker_group) for row in rows)
    pairs = zip(queues, sources, strict=False)  # A last round of groups may be incomplete.
    targets = [TargetQueue(client, queue, source) for queue, source in pairs]
    for target in targets:
        await target.look()
    return targets
