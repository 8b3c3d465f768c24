"""Log lines about trouble that strangers or a broken network can repeat without limit.

Owns the rule: one line for each kind in an interval; the next one states how many were left out.
"""

import logging
import time
from collections.abc import Callable


class RateLimitedLog:
    """Wraps a logger. The kinds of trouble must be few, and not chosen by a peer."""

    __slots__ = ("_interval_s", "_kinds", "_log", "_monotonic_s")

    def __init__(
        self,
        log: logging.Logger,
        *,
        interval_ms: int = 10_000,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._interval_s = interval_ms / 1000
        self._monotonic_s = monotonic_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """By kind: the time of the last line, and the count of lines left out since."""

    def warn(self, kind: str, text: str) -> None:
        """Write one line, or count it."""
        now = self._monotonic_s()
        kind_state = self._kinds.get(kind)
        if kind_state is not None and now < kind_state[0] + self._interval_s:
            self._kinds[kind] = (kind_state[0], kind_state[1] + 1)
            return
        left_out = kind_state[1] if kind_state is not None else 0
        self._kinds[kind] = (now, 0)
        more = f" (and {left_out} more like it)" if left_out else ""
        self._log.warning("%s: %s%s", kind, text, more)
