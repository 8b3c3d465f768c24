"""Times at which messages in flight become visible again: one for each window, in a heap.

Owns the order of times and the one timer; must not know what is done then. An idle window costs
nothing, however many there are. Times are those of the leader's clock; a clock that is set forward
is noticed within a second.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from node.state.tables.pop import WindowKey

_TIMER_MS_MAX: Final = 1_000
_TIMER_MS_MIN: Final = 10
"""Windows that are due at nearly the same time share a look."""
_AT_ONCE: Final = 500
"""Times handled in one look; the windows of most are gone by then: about 1 ms."""
_STALE_COUNT_MAX: Final = 1_024
"""Times in the heap that were replaced by earlier ones, beside one for each window."""


class Deadlines:
    """The next time of each window. Belongs to the loop's thread."""

    def __init__(self, unix_ms: Callable[[], int], on_due: Callable[[WindowKey], None]) -> None:
        self._unix_ms = unix_ms
        self._on_due = on_due
        self._times: dict[WindowKey, int] = {}
        self._heap: list[tuple[int, WindowKey]] = []
        """Heap of times, replaced ones included: only the one in `_times` counts."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_unix_ms = 0

    def note(self, key: WindowKey, unix_ms: int) -> None:
        """Have a window looked at by a time; an earlier time that is noted already stays."""
        noted = self._times.get(key)
        if noted is not None and noted <= unix_ms:
            return
        self._times[key] = unix_ms
        heapq.heappush(self._heap, (unix_ms, key))
        if len(self._heap) > 2 * len(self._times) + _STALE_COUNT_MAX:
            self._heap = [(time_ms, key) for key, time_ms in self._times.items()]
            heapq.heapify(self._heap)
        if self._timer is None or unix_ms < self._timer_unix_ms:
            self._arm()

    def forget_all(self) -> None:
        """Forget all times: this node leads no longer."""
        self._times.clear()
        self._heap.clear()
        self._stop()

    def _arm(self) -> None:
        self._stop()
        if self._heap:
            due_ms = self._heap[0][0]
            wait_ms = min(max(due_ms - self._unix_ms(), _TIMER_MS_MIN), _TIMER_MS_MAX)
            self._timer_unix_ms = due_ms
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Report the windows that are due, some at a time, to give other tasks their turn."""
        now_ms, heap, due = self._unix_ms(), self._heap, list[WindowKey]()
        for _ in range(_AT_ONCE):
            if not heap or heap[0][0] > now_ms:
                break
            time_ms, key = heapq.heappop(heap)
            if self._times.get(key) == time_ms:
                del self._times[key]
                due.append(key)
        for key in due:
            self._on_due(key)
        self._arm()
