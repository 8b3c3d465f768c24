"""Offsets that a person moved, until the consumers of the group have noticed.

Owns the list. A consumer goes on where it is and commits its own offset every 5 s, so a move is
pending for a queue until the next pull of it is answered with the new offset; commits of the old
one are ignored until then. The list belongs to the node that answers for the broker name, where the
consumers of its queues pull and commit, and is not replicated.
"""

from typing import Final

PENDING_COUNT_MAX: Final = 65_536


class Resets:
    """Moves that no consumer has noticed yet. One per gateway."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, int], int] = {}

    def begin(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note a move; the oldest one is forgotten when there are too many."""
        key = (group, topic, queue_id)
        self._pending.pop(key, None)
        self._pending[key] = offset
        while len(self._pending) > PENDING_COUNT_MAX:
            del self._pending[next(iter(self._pending))]

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a move of a queue is pending."""
        return (group, topic, queue_id) in self._pending

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a queue was moved to, and forget it: the answer tells the consumer."""
        if not self._pending:
            return None
        return self._pending.pop((group, topic, queue_id), None)
