"""Log lines about trouble that strangers or a broken network can repeat without limit.

Owns the rule: one line for each kind in an interval; the next one states how many were left out.
"""

import logging
import time
from collections.abc import Callable

from node.runtime.logs.line_budget import LineBudget


class RateLimitedLog:
    """Wraps a logger. The kinds of trouble must be few, and not chosen by a peer."""

    __slots__ = ("_budget", "_log")

    def __init__(
        self,
        log: logging.Logger,
        *,
        interval_ms: int = 10_000,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._budget = LineBudget(monotonic_s, line_count_max=1, interval_s=interval_ms / 1000)

    def warn(self, kind: str, text: str) -> None:
        """Write one line, or count it."""
        left_out = self._budget.take(kind)
        if left_out is not None:
            more = f" (and {left_out} more like it)" if left_out else ""
            self._log.warning("%s: %s%s", kind, text, more)
