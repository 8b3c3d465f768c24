"""Full disks that keep calls waiting, as log lines of a client.

Owns the interval between two lines: calls may wait long, and are repeated often. Must not know
which call waits.
"""

import logging
import time
from typing import Final

from quorumlog.errors import QuorumlogError, StoreFullError

INTERVAL_S: Final = 30.0
_log: Final = logging.getLogger("quorumlog.client")


class FullDisks:
    """Logs one error of a full disk in an interval. One per client."""

    def __init__(self) -> None:
        self._said_s = -INTERVAL_S

    def note(self, error: QuorumlogError) -> None:
        """Log an error that a call met, if it is of a full disk."""
        now_s = time.monotonic()
        if isinstance(error, StoreFullError) and now_s >= self._said_s + INTERVAL_S:
            self._said_s = now_s
            _log.warning("a disk is full, and calls wait for room: %s", error.message)
