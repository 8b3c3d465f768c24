"""The target: the topic that a copy makes, and each of its queues as the copy goes on in it.

Owns the exactly-once rule. The last message of a queue says what was copied, so nothing is kept
elsewhere. Batches are numbered in the messages themselves, and the cluster stores each number of a
queue once: a batch that an earlier run, or one beside this, sent and that comes late is stored
once, too. Must not know how messages are read from the source.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qlog.rocketmq.records import Mark, producer_id_of, record_of
from qlog.rocketmq.shapes import QUEUE_COUNT_MAX, SourceQueue
from quorumlog.command_errors import CliError
from quorumlog.errors import UnknownProducerError, UnknownTopicError
from quorumlog.records.queues import Queue
from store.record.message import Message

if TYPE_CHECKING:
    from quorumlog.client import Client

BATCH_SIZE_BYTES: Final = 1 << 20
"""Records of one append, but for a single record that is larger."""
GENERATION_COUNT_MAX: Final = 1_000
"""How often a topic may be copied, deleted and copied again."""
_READ_AND_WRITE: Final = 6


class TargetError(CliError):
    """The target holds something that does not fit the copy; nothing was changed there."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a queue. `mark` is that of its last message; None: there is no message."""

    min_offset: int
    next_offset: int
    mark: Mark | None


class TargetQueue:
    """A queue, and the queue of the source whose messages it gets. `look` before the rest."""

    def __init__(self, client: "Client", queue: Queue, source: SourceQueue) -> None:
        self._client = client
        self.queue, self.source = queue, source
        self.tail = Tail(0, 0, None)
        self._generation = self._sequence = 0

    @property
    def source_offset(self) -> int:
        """The offset of the source at which the copy goes on."""
        return self.tail.mark.offset + 1 if self.tail.mark is not None else 0

    async def look(self) -> None:
        """Read the end of the queue. Raises TargetError if its last message was not copied."""
        client, queue = self._client, self.queue
        (row,) = await client.queue_offsets(queue.topic, [queue])
        mark = None
        if row.min_offset < row.max_offset:
            last = await client.pull(
                queue.topic, queue.queue_id, row.max_offset - 1, max_count=1, group=queue.group
            )
            mark = Mark.of(last[0].properties) if last else None
            if mark is None:
                raise TargetError(
                    f"queue {queue} ends with a message that was not copied",
                    "a copy goes on behind its own last message, and others wrote behind that",
                    f"choose topics with --topic, or qlog topic delete {queue.topic} and run it "
                    "again",
                )
            if (mark.broker, mark.queue_id) != (self.source.broker, self.source.queue_id):
                raise TargetError(
                    f"queue {queue} has messages of {mark.broker}/{mark.queue_id}",
                    f"it would get those of {self.source}: brokers or queues of the source changed",
                    f"qlog topic delete {queue.topic} and run it again",
                )
            self._generation, self._sequence = mark.generation, mark.sequence + 1
        self.tail = Tail(row.min_offset, row.max_offset, mark)

    async def append(self, messages: list[Message]) -> None:
        """Store messages of the source, each once. Raises TargetError, and errors of an append."""
        while messages := [m for m in messages if m.queue_offset >= self.source_offset]:
            records, mark = self._next_batch(messages)
            try:
                receipt = await self._client.raw.append(
                    b"".join(records),
                    len(records),
                    producer_id=producer_id_of(self.queue, self._generation),
                    sequence=self._sequence,
                    group=self.queue.group,
                )
            except UnknownProducerError:
                self._renew()  # The cluster has forgotten the numbers of this queue.
                continue
            if not receipt.is_duplicate:
                tail = self.tail
                self.tail = Tail(tail.min_offset, tail.next_offset + len(records), mark)
                self._sequence += 1
                continue
            # A batch of this number is there: this one, or one of another run.
            known, generation = self.tail.mark, self._generation
            await self.look()
            if self.tail.mark == known:
                self._generation = generation
                self._renew()  # It was one of a topic that was deleted.

    def _next_batch(self, messages: list[Message]) -> tuple[list[bytes], Mark]:
        """Return the records of the next batch, and the mark of the last one."""
        records: list[bytes] = []
        size_bytes, last = 0, None
        for message in messages:
            source = self.source
            mark = Mark(
                source.broker,
                source.queue_id,
                message.queue_offset,
                self._generation,
                self._sequence,
            )
            record = record_of(message, self.queue, mark)
            if last is not None and size_bytes + len(record) > BATCH_SIZE_BYTES:
                break
            records.append(record)
            size_bytes, last = size_bytes + len(record), mark
        assert last is not None, "a batch has messages"
        return records, last

    def _renew(self) -> None:
        self._generation, self._sequence = self._generation + 1, 0
        if self._generation >= GENERATION_COUNT_MAX:
            raise TargetError(
                f"queue {self.queue} was copied and deleted {GENERATION_COUNT_MAX} times",
                "the cluster remembers the batches of each time",
                "copy to another cluster",
            )

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
    groups = len(client.groups)
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
    queues = sorted(Queue(row.topic, row.queue_id, row.group) for row in rows)
    pairs = zip(queues, sources, strict=False)  # A last round of groups may be incomplete.
    targets = [TargetQueue(client, queue, source) for queue, source in pairs]
    for target in targets:
        await target.look()
    return targets
