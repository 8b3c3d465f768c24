"""The time by which the silence of brokers is judged.

Owns one rule: silence means something only while brokers could be heard. Without a leader nobody's
heartbeat is taken down, so the time stands still, and everybody who was in the routes stays there;
it goes on once everybody had the time to be heard again. So an outage of the name server changes no
route, and a broker that dies while it works leaves them. Must not know who is silent.
"""

import time
from collections.abc import Callable
from typing import Final

from node.nameserver.directory.limits import HEARTBEAT_PERIOD_MS

HEARD_AFTER_MS: Final = HEARTBEAT_PERIOD_MS + 2_000
"""After so long with a leader everybody who lives was heard."""


class TrustedTime:
    """One per process. `note` it at least every few seconds."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._frozen_ms: int | None = 0
        """Who was ever heard of is alive, until it is known better."""

    def note(self, now_ms: int, *, has_leader: bool) -> None:
        """Take in whether there is a leader now."""
        now_s = self._monotonic_s()
        if not has_leader:
            if self._frozen_ms is None:
                self._frozen_ms = now_ms
            self._since_s = None
            return
        if self._since_s is None:
            self._since_s = now_s
            if self._frozen_ms is None:
                self._frozen_ms = now_ms
        if now_s - self._since_s >= HEARD_AFTER_MS / 1000:
            self._frozen_ms = None

    def at(self, now_ms: int) -> int:
        """Return the time of the last moment that can be judged."""
        return now_ms if self._frozen_ms is None else self._frozen_ms
