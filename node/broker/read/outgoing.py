"""Records given to clients, by topic.

Owns the counts since the process started; must not know who reads, or how. The topics are those of
the cluster, so there are as many counts as topics, and those of deleted ones until they pile up.
"""

from typing import Final

from node.users.calling import received


class Outgoing:
    """Counts what pulls, tails and receives give out. One per broker."""

    def __init__(self, topic_count_max: int) -> None:
        self._topic_count_max = topic_count_max
        self.record_count = self.size_bytes = 0
        """Of all topics, deleted ones included: they only grow."""
        self.topics: Final[dict[str, tuple[int, int]]] = {}
        """Topic: records and their bytes."""

    def note(self, topic: str, record_count: int, size_bytes: int) -> None:
        """Count records of one read, for the user that gets them, too."""
        received(size_bytes, record_count)
        self.record_count += record_count
        self.size_bytes += size_bytes
        topics = self.topics
        if topic not in topics and len(topics) >= self._topic_count_max:
            topics.clear()  # Names of deleted topics have piled up: begin again.
        records, sizes = topics.get(topic, (0, 0))
        topics[topic] = (records + record_count, sizes + size_bytes)
