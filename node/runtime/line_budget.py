"""How many log lines a source may write that strangers can make it write.

Owns the rule: a burst is written as it is, so that a fault can be understood; of a flood a burst in
each interval, and how many lines were left out is said with the next one and counted.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

LINE_COUNT_MAX: Final = 50
"""Of one source in an interval: more than a long traceback has."""
INTERVAL_S: Final = 10.0

left_out: Final[Counter[str]] = Counter()
"""Lines that were not written since the process started, by source."""


class LineBudget:
    """The budgets of all sources. For any thread; sources must be few, not chosen by a stranger."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._spent: dict[str, tuple[float, int, int]] = {}
        """By source: when its interval began, lines written in it, lines left out of it."""

    def take(self, source: str) -> int | None:
        """Return how many lines were left out before this one; None: leave this one out, too."""
        now_s = self._monotonic_s()
        with self._lock:
            began_s, count, gone = self._spent.get(source, (now_s, 0, 0))
            if now_s >= began_s + INTERVAL_S:
                self._spent[source] = (now_s, 1, 0)
                return gone
            if count < LINE_COUNT_MAX:
                self._spent[source] = (began_s, count + 1, gone)
                return 0
            self._spent[source] = (began_s, count, gone + 1)
            left_out[source] += 1
            return None
