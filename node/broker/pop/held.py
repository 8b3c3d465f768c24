"""Queues that receives pass over for a moment, because the next messages cannot be read.

Owns the list of these queues and when each is looked at again; must not know how damage is
repaired. Only the queue with the damage waits, for all groups: its order is kept, nothing of it is
skipped, and receives of other queues go on. Once it is repaired it is handed out again.
"""

import asyncio
from typing import Final

import structlog

from node.broker.core.context import Context
from node.broker.pop.waiting_receives import WaitingReceives
from node.errors.pop import QueueHeldError
from store.errors import CorruptionError, DerivedFileError

HELD_MS: Final = 1_000
"""Time until a held queue is looked at again: a repair from other replicas takes about as long."""

_log: Final = structlog.get_logger(component="pop")


class HeldQueues:
    """The held queues, each at most once. One per broker. Belongs to the loop's thread."""

    def __init__(self, context: Context, lines: WaitingReceives) -> None:
        """`context` has damage repaired; `lines` wakes receives when a queue is free again."""
        self._context: Final = context
        self._lines: Final = lines
        self._held: dict[tuple[str, int], tuple[str, asyncio.TimerHandle]] = {}
        self.held_total = 0

    def __len__(self) -> int:
        return len(self._held)

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is passed over."""
        return (topic, queue_id) in self._held

    def reasons(self) -> dict[tuple[str, int], str]:
        """Return all held queues, each with the reason."""
        return {key: reason for key, (reason, _) in self._held.items()}

    def error_of(self, topic: str, queue_id: int) -> QueueHeldError:
        """Return the error for a receive that asks for held queues only."""
        return QueueHeldError(topic, queue_id, self._held[topic, queue_id][0])

    def hold(self, topic: str, queue_id: int, error: CorruptionError | DerivedFileError) -> None:
        """Pass a queue over for a moment."""
        key = (topic, queue_id)
        assert key not in self._held, f"{key} is held already"
        timer = asyncio.get_running_loop().call_later(HELD_MS / 1000, self._over, topic, queue_id)
        self._held[key] = (str(error), timer)
        self.held_total += 1
        _log.warning("a queue is held", topic=topic, queue_id=queue_id, reason=str(error))
        self._context.on_damage(error)

    def forget_all(self) -> None:
        """Release all queues: this node leads no longer."""
        for _, timer in self._held.values():
            timer.cancel()
        self._held.clear()

    def _over(self, topic: str, queue_id: int) -> None:
        del self._held[topic, queue_id]
        self._lines.on_grown([(topic.encode(), queue_id)])
