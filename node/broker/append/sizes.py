"""Message sizes by topic.

Owns the counts; must not know records. A batch is counted by the mean size of its records, in one
step: that is exact for a batch of equally large messages, and cheap for every other.
"""

from typing import Final, NamedTuple

from node.broker.append.receipts import COMMAND_QUEUE, QueueRanges

BUCKET_COUNT: Final = 24
"""Bucket k counts records below 2**k bytes; the last one also the largest that there may be."""


class AppendedSizes(NamedTuple):
    """Sizes of one topic, or of all, since the process started to count."""

    record_count: int
    size_bytes: int
    buckets: tuple[int, ...]


class Sizes:
    """Counts acknowledged records by topic and size. One per broker."""

    def __init__(self, topic_count_max: int) -> None:
        self._topic_count_max = topic_count_max
        self._topics: dict[bytes, list[int]] = {}
        """Topic: bytes, then the count of each bucket."""
        self._total = [0] * (BUCKET_COUNT + 1)

    def note(self, queues: QueueRanges, record_count: int, size_bytes: int) -> None:
        """Count an acknowledged batch."""
        mean = size_bytes // record_count
        bit_length = mean.bit_length()
        bucket = (bit_length if bit_length < BUCKET_COUNT else BUCKET_COUNT - 1) + 1
        topics, total = self._topics, self._total
        total[0] += size_bytes
        total[bucket] += record_count
        for key in queues:
            if key == COMMAND_QUEUE:
                continue
            topic, count = key[0], queues[key][1]
            if topic in topics:  # Without a call: once an append.
                buckets = topics[topic]
            else:
                if len(topics) >= self._topic_count_max:
                    topics.clear()  # Names of deleted topics have piled up: begin again.
                buckets = topics[topic] = [0] * (BUCKET_COUNT + 1)
            buckets[0] += count * mean
            buckets[bucket] += count

    def topics(self) -> list[str]:
        """Return the topics with counts, deleted ones among them."""
        return [topic.decode() for topic in self._topics]

    def forget(self, topic: str) -> None:
        """Begin again at 0 for a topic: it was deleted."""
        self._topics.pop(topic.encode(), None)

    def of(self, topic: str) -> AppendedSizes:
        """Return the sizes of a topic."""
        buckets = self._topics.get(topic.encode(), [0] * (BUCKET_COUNT + 1))
        return AppendedSizes(sum(buckets[1:]), buckets[0], tuple(buckets[1:]))

    @property
    def total(self) -> AppendedSizes:
        """The sizes of all topics."""
        buckets = self._total
        return AppendedSizes(sum(buckets[1:]), buckets[0], tuple(buckets[1:]))
