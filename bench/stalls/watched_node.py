"""A node whose event loop is watched on request: `python -m bench.stalls.watched_node --config F`.

Owns a timer on the loop of the node that fires each millisecond: what lies between two firings is a
stand-still. Beside its time stands the processor time that the loop used meanwhile, which other
work on the machine does not lengthen.
"""

import asyncio
import time
from typing import Any, Final

from bench.signalled import run_node

TICK_S: Final = 0.025
"""A tick of the Raft core: a longer stand-still misses some."""
_STEP_S: Final = 0.001


class LoopWatch:
    """The stand-stills of the loop of this thread."""

    def __init__(self) -> None:
        self._is_running = False
        self._last_s = self._last_used_s = 0.0
        self._longest_s = self._used_s = 0.0
        self._missed_count = 0

    def begin(self) -> None:
        """Watch from now on."""
        self._longest_s = self._used_s = 0.0
        self._missed_count, self._is_running = 0, True
        self._last_s, self._last_used_s = time.monotonic(), time.thread_time()
        asyncio.get_running_loop().call_later(_STEP_S, self._look)

    def _look(self) -> None:
        now_s, used_s = time.monotonic(), time.thread_time()
        self._longest_s = max(self._longest_s, now_s - self._last_s - _STEP_S)
        self._used_s = max(self._used_s, used_s - self._last_used_s)
        self._missed_count += int((now_s - self._last_s) / TICK_S)
        self._last_s, self._last_used_s = now_s, used_s
        if self._is_running:
            asyncio.get_running_loop().call_later(_STEP_S, self._look)

    def end(self) -> dict[str, Any]:
        """End the watch; return what it saw."""
        self._is_running = False
        self._look()
        return {
            "longest_ms": round(self._longest_s * 1000, 1),
            "used_ms": round(self._used_s * 1000, 1),
            "missed_tick_count": self._missed_count,
        }


if __name__ == "__main__":
    watch = LoopWatch()
    run_node(watch.begin, watch.end)
