"""Keeps the durable mark true while the log is synced and dispatched by different threads.

Owns the order "log synced, mark written, caller told" and the one place where both halves of the
mark meet; must not know how either is done. Source: fault-matrix S06.
"""

import threading
from collections.abc import Callable

from store.derived.dispatch import Built
from store.durability.durable_mark import DurableMark


class MarkKeeper:
    """The flush thread says what is synced; the maintenance thread reports the derived files."""

    def __init__(self, mark: DurableMark, last_index: Callable[[int], int]) -> None:
        """Take the mark; `last_index(position)` is that of the last entry up to a position."""
        self._mark, self._last_index = mark, last_index
        self._lock = threading.Lock()

    def on_synced(self, flushed_position: int) -> None:
        """Write the position up to which the log is durable, before the receipts."""
        with self._lock:
            self._mark.raise_durable(flushed_position, self._last_index(flushed_position))

    def lower(self, position: int, index: int) -> None:
        """Lower the mark to a cut, durably, before the log is cut; no other mark is written
        meanwhile. Errors as DurableMark.lower."""
        with self._lock:
            self._mark.lower(position, index)

    def on_dispatched(self, built: Built, durable: Built) -> None:
        """Write how far derived files are `built`, and were `durable` at their last sync."""
        with self._lock:
            now = self._mark.mark
            # A report that began earlier may come later, with less.
            if built.position < now.dispatched_position:
                built = Built(now.dispatched_position, now.dispatched_item_count)
            if durable.position < now.dispatched_durable_position:
                durable = Built(now.dispatched_durable_position, now.dispatched_durable_item_count)
            new = now._replace(
                dispatched_position=built.position,
                dispatched_durable_position=durable.position,
                dispatched_item_count=built.item_count,
                dispatched_durable_item_count=durable.item_count,
            )
            self._mark.publish(new, now_ms=0)
