"""Inner batches of RocketMQ: which records are one, and which topics have them.

A broker keeps a batch that is sent to a topic with `queue.type=BatchCQ` as one record: its body is
the messages, its queue offset is that of the first, and the next record's is higher by their count.
Our queues have one unit a record and cannot express that, so such a topic has no units at all, also
of its ordinary messages: its records are kept, and reading it is an error that says so
(docs/divergence.md). A topic never changes its type.

Owns the mark by which a topic is known, the directory that RocketMQ keeps the queues of such topics
in: where a broker died before it made one, this module makes it, empty. RocketMQ loads no store
that has a topic's queues in the place of the other type. Must not know logs or queues. Sources:
RocketMQ BatchConsumeQueue, ConsumeQueueStore; storage-formats 1.6, 1.11, 2.8.
"""

import os
from typing import Final

from store import format as fmt
from store.errors import InnerBatchError, RecordFormatError
from store.files.file_system import FileSystem
from store.record.message import record_layout

DIRECTORY: Final = "batchconsumequeue"
_NAME: Final = fmt.PROPERTY_INNER_BASE.encode() + fmt.NAME_VALUE_SEPARATOR.encode()
_INNER_NAME: Final = fmt.PROPERTY_SEPARATOR.encode() + _NAME


def is_inner_batch(data: bytes, at: int = 0) -> bool:
    """Whether the whole record at byte `at` is an inner batch.

    The flag alone does not make it one: RocketMQ writes the property beside it at the append, and
    takes its queue offset from there. So one bit that flips hides no topic.
    """
    if not fmt.INT32.unpack_from(data, at + fmt.SYS_FLAG_AT)[0] & fmt.SYS_FLAG_INNER_BATCH:
        return False
    try:
        with memoryview(data) as view:
            layout = record_layout(view, at)
    except RecordFormatError:
        return False
    lo, hi = layout.properties_at, at + layout.size_bytes
    return data.startswith(_NAME, lo, hi) or data.find(_INNER_NAME, lo, hi) >= 0


def topics_of(fs: FileSystem, root: str) -> set[bytes]:
    """Return the topics of a store directory that are known to have inner batches."""
    directory = os.path.join(root, DIRECTORY)
    return {
        name.encode()
        for name in fs.list_directory(directory)
        if os.path.isdir(os.path.join(directory, name))
    }


class InnerBatches:
    """The topics of one store. One thread changes them; any thread may ask."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs, self._root = fs, root
        self.topics: Final[set[bytes]] = set()
        """Shared with the append path. Grows only: also after all records of such a topic were cut
        off the log or have expired, RocketMQ still counts its offsets in its own way."""

    def load(self) -> None:
        """Load the topics that are known in the directory. Raises FileSystemError."""
        self.topics.update(topics_of(self._fs, self._root))

    def add(self, topic: bytes) -> None:
        """Take a topic in, durably. Raises FileSystemError, StoreFullError or SyncFailedError."""
        if topic not in self.topics:
            self._fs.make_directory(os.path.join(self._root, DIRECTORY, topic.decode()))
            self.topics.add(topic)

    def check(self, topic: bytes, queue_id: int, offset: int) -> None:
        """Raise InnerBatchError for one of these topics: its records have no units."""
        if topic in self.topics:
            raise InnerBatchError(topic.decode(), queue_id, offset)
