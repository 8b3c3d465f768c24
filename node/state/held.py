"""The queues that hold delayed messages, and how many each holds.

Owns their numbers (`node.state.tables.delay`: 0 any time, 1 to 18 the levels) and the position that
retention must not pass. Must not know when anything is due.
"""

from typing import Final

from node.state.state import State
from node.state.tables.delay import QUEUE_COUNT, DelayTable
from store import format as fmt
from store.errors import PositionRangeError
from store.reads import Reads
from store.record.stamp import QueueKey

HOLDERS: Final = (
    (fmt.TIMER_TOPIC, 0),
    *((fmt.SCHEDULE_TOPIC, level - 1) for level in range(1, QUEUE_COUNT)),
)
"""Topic and queue id of each queue, by number."""
NUMBERS: Final[dict[QueueKey, int]] = {
    (topic.encode(), queue_id): number for number, (topic, queue_id) in enumerate(HOLDERS)
}


def held_counts(store: Reads, state: State) -> list[int]:
    """Return how many messages each queue holds, as far as readers of this node see them."""
    gone = state.table(DelayTable).queues
    return [
        store.queue_range(topic, queue_id)[1] - gone[number].count
        for number, (topic, queue_id) in enumerate(HOLDERS)
    ]


def needed_position(store: Reads, state: State) -> int | None:
    """Return the log position of the oldest held message; None if none is held.

    A promised message may not expire: retention keeps files from this position on.
    """
    oldest: int | None = None
    gone = state.table(DelayTable).queues
    for number, (topic, queue_id) in enumerate(HOLDERS):
        lo, hi = store.queue_range(topic, queue_id)
        first = max(lo, gone[number].floor)
        if first < hi:
            try:
                unit = store.units(topic, queue_id, first, first + 1)
            except PositionRangeError:  # Cut off or expired meanwhile.
                continue
            position = fmt.CONSUME_QUEUE_UNIT.unpack(unit)[0]
            oldest = position if oldest is None else min(oldest, position)
    return oldest
