"""Bounds how far a peer's epoch may be ahead of the epochs that this replica knows.

Owns the bound; must not know frames or roles. An epoch is bound on the disk as soon as a peer shows
a higher one, and there are 31 bits of them: one frame with the last would end all promotions. The
rule is that of `raft.ceiling`, which has the argument; the two modes share no code.
"""

from __future__ import annotations

from typing import Final

from node.config.limits import EPOCH_END

EPOCH_JUMP_MAX: Final = 1024
EPOCH_WINDOW_MS: Final = 600_000
"""Epochs within ten minutes. A promotion binds a fence of replicas on their disks, so an honest
group does not keep up one a second: 600 in that time. An attacker with forged frames needs 2**21
windows to the end: 40 years."""
EPOCH_JUMP_AT_START_MAX: Final = 1 << 16
"""The same for the first window of a process, since it may have slept, or be new in an old group: a
promotion an hour for seven years. Reaching the end takes 32,000 restarts of a replica."""


class EpochCeiling:
    """The bound of one replica. In memory only: a start begins a new window."""

    def __init__(self, number: int) -> None:
        self._renew_at_ms: int | None = None
        self._was_refused = False
        self.limit = min(number + EPOCH_JUMP_AT_START_MAX, EPOCH_END - 1)
        """Highest epoch that is accepted now. Invariant: below the end."""

    def refuses(self, number: int) -> bool:
        """Remember an epoch that is too far ahead; return whether it is."""
        if number <= self.limit:
            return False
        self._was_refused = True
        return True

    def pass_time(self, now_ms: int, number: int) -> None:
        """Begin a new window when one is over: from `number`, the highest that is known, or from
        the old bound if it was met, so that a replica that slept for long can follow in the end."""
        if self._renew_at_ms is None:
            self._renew_at_ms = now_ms + EPOCH_WINDOW_MS
        if now_ms < self._renew_at_ms:
            return
        base = self.limit if self._was_refused else number
        self.limit = min(base + EPOCH_JUMP_MAX, EPOCH_END - 1)
        self._was_refused = False
        self._renew_at_ms = now_ms + EPOCH_WINDOW_MS
