"""The time that decides which brokers are silent.

Owns one rule: silence counts only while heartbeats are recorded. Without a leader none is recorded,
so this time stands still, and all brokers that were in the routes stay there; it goes on once each
broker had the time for another heartbeat. So an outage of the name server changes no route, while a
broker that dies during its operation leaves the routes. Must not know which brokers are silent.
"""

import time
from collections.abc import Callable
from typing import Final

from node.nameserver.directory.limits import HEARTBEAT_PERIOD_MS

CONTACT_AFTER_MS: Final = HEARTBEAT_PERIOD_MS + 2_000
"""Time with a leader after which each live broker has sent a heartbeat."""


class TrustedTime:
    """The trusted time of one process. Call `note` at least every few seconds."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._frozen_ms: int | None = 0
        """The time while it stands still; None while it runs. 0 at first: every known broker counts
        as alive."""

    def note(self, now_ms: int, *, has_leader: bool) -> None:
        """Record whether there is a leader at `now_ms`."""
        now_s = self._monotonic_s()
        if not has_leader:
            self._since_s = None
            if self._frozen_ms is None:
                self._frozen_ms = now_ms
            return
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= CONTACT_AFTER_MS / 1000:
            self._frozen_ms = None

    def at(self, now_ms: int) -> int:
        """Return `now_ms`, or the time at which trusted time stands still."""
        return now_ms if self._frozen_ms is None else self._frozen_ms
