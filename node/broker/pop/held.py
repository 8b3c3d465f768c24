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
        self.reasons: Final = dict[tuple[str, int], str]()
        """Why each held queue, by topic and queue id, is passed over."""
        self._timers: Final = dict[tuple[str, int], asyncio.TimerHandle]()
        self.held_total = 0

    def hold(self, topic: str, queue_id: int, error: CorruptionError | DerivedFileError) -> None:
        """Pass a queue over for a moment."""
        key, loop = (topic, queue_id), asyncio.get_running_loop()
        assert key not in self.reasons, f"{key} is held already"
        self._timers[key] = loop.call_later(HELD_MS / 1000, self._over, topic, queue_id)
        self.reasons[key] = str(error)
        self.held_total += 1
        _log.warning("a queue is held", topic=topic, queue_id=queue_id, reason=str(error))
        self._context.on_damage(error)

    def forget_all(self) -> None:
        """Release all queues: this node leads no longer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.reasons.clear()

    def _over(self, topic: str, queue_id: int) -> None:
        del self.reasons[topic, queue_id], self._timers[topic, queue_id]
        self._lines.on_grown([(topic.encode(), queue_id)])
