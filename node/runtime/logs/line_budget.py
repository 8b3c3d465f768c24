"""A limit on log lines of sources that strangers can make write.

Owns the rule: the node writes a burst completely, so that a fault can be understood, and of a flood
one burst in each interval. The next line states how many were left out, and they are counted.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

LINE_COUNT_MAX: Final = 50
"""Lines of one source in an interval: more than a long traceback has."""
INTERVAL_S: Final = 10.0


class LineBudget:
    """The budgets of all sources. For any thread; sources must be few, not chosen by strangers."""

    def __init__(
        self,
        monotonic_s: Callable[[], float] = time.monotonic,
        line_count_max: int = LINE_COUNT_MAX,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._line_count_max, self._interval_s = line_count_max, interval_s
        self.left_out: Final[Counter[str]] = Counter()
        """Lines that were not written, by source."""
        self._lock = threading.Lock()
        self._spent: dict[str, tuple[float, int, int]] = {}
        """By source: the start of its interval, lines written in it, lines left out of it."""

    def take(self, source: str) -> int | None:
        """Return the count of lines left out before this line; None: leave this line out, too."""
        now_s = self._monotonic_s()
        with self._lock:
            began_s, count, gone = self._spent.get(source, (now_s, 0, 0))
            if now_s >= began_s + self._interval_s:
                self._spent[source] = (now_s, 1, 0)
                return gone
            if count < self._line_count_max:
                self._spent[source] = (began_s, count + 1, gone)
                return 0
            self._spent[source] = (began_s, count, gone + 1)
            self.left_out[source] += 1
            return None


LIBRARY_LINES: Final = LineBudget()
"""The budget of what libraries and native code write to the log of this process."""
left_out: Final = LIBRARY_LINES.left_out
