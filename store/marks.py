"""Keeps the durable mark true while the log is synced and dispatched by different threads.

Owns the order "log synced, mark written, caller told" and the one place where both halves of the
mark meet; must not know how either is done. Source: fault-matrix S06.
"""

import threading
from collections.abc import Callable

from store.durable_mark import DurableMark


class MarkKeeper:
    """A `RoundSink` of the flush thread; the maintenance thread reports the derived files."""

    def __init__(self, mark: DurableMark, last_index: Callable[[int], int]) -> None:
        """`last_index(position)`: index of the last entry that ends at or before a position."""
        self._mark, self._last_index = mark, last_index
        self._lock = threading.Lock()

    def on_synced(self, flushed_position: int) -> None:
        """The log is durable up to here; write it down before anybody is told."""
        with self._lock:
            now = self._mark.mark
            self._mark.publish(
                durable_position=max(flushed_position, now.durable_position),
                durable_index=max(self._last_index(flushed_position), now.durable_index),
                dispatched_position=now.dispatched_position,
                dispatched_durable_position=now.dispatched_durable_position,
                now_ms=0,
            )

    def on_settled(self, now_ms: int) -> None:
        """Sync the mark itself when its interval has passed."""
        self._mark.maybe_sync(now_ms)

    def on_dispatched(self, position: int, durable_position: int) -> None:
        """The derived files hold all up to `position`, and durably up to `durable_position`."""
        with self._lock:
            now = self._mark.mark
            self._mark.publish(
                durable_position=now.durable_position,
                durable_index=now.durable_index,
                dispatched_position=max(position, now.dispatched_position),
                dispatched_durable_position=max(durable_position, now.dispatched_durable_position),
                now_ms=0,
            )
