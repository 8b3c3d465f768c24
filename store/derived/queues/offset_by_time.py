"""Finds the offset of a queue at a time of day.

Owns the meaning of the two boundaries (storage-formats 2.7); must not know records: a callback
reads their store time. Store times are taken to rise along the queue, as the log writes them.
Source: RocketMQ ConsumeQueue#getOffsetInQueueByTime.
"""

import enum
from collections.abc import Callable

from store.derived.queues.consume_queue import ConsumeQueue

TimestampOf = Callable[[int, int], int]  # (position, size in bytes) -> store time in Unix ms.


class Boundary(enum.Enum):
    """The choice between the messages on both sides of a time."""

    LOWER = "lower"
    """The first message stored at or after the time."""
    UPPER = "upper"
    """The last message stored at or before the time."""


def offset_by_time(
    queue: ConsumeQueue,
    unix_ms: int,
    boundary: Boundary,
    timestamp_of: TimestampOf,
    *,
    min_position: int = 0,
) -> int:
    """Return the offset of the message that `boundary` means.

    If all messages are older, LOWER gives the next offset, UPPER the last one. If all are newer,
    LOWER gives the first offset, UPPER 0. Records before `min_position` (the log's) are
    passed over. Errors of the queue's reads and of the callback pass through.
    """
    hi = queue.max_offset
    lo = queue.search(queue.min_offset, hi, lambda position, _: position < min_position)
    if boundary is Boundary.LOWER:
        return queue.search(lo, hi, lambda p, size_bytes: timestamp_of(p, size_bytes) < unix_ms)
    after = queue.search(lo, hi, lambda p, size_bytes: timestamp_of(p, size_bytes) <= unix_ms)
    return after - 1 if after > lo else 0
