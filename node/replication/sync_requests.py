"""From a ticket of the pump to the sync that fulfils it, and back to the loop.

Owns the thread on which a sync runs, the number of requested syncs, and which tickets need none
(flush=async); must not know the meaning of a ticket. All but `_on_synced` runs on the loop's
thread.

The flush thread keeps a slow disk from stopping the loop. But the way there and back is two
switches of threads, which cost several times as much as a sync on a fast disk or in memory. So the
loop itself syncs as long as syncs are fast on the average, and after slow ones leaves them to
the thread for a hundred times as long: whatever the disk does, the loop waits for it for about a
hundredth of its time at most (docs/decisions/0022).
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from raft.pump.effects import Ticket
from store.errors import StoreError
from store.files import failpoints
from store.replicated.store import ReplicatedStore

SYNC_REQUEST_COUNT_MAX: Final = 4
"""Syncs requested and not ended. Two keep the flush thread busy; further tickets are folded into
one."""

FAST_SYNC_US: Final = 300
"""Limit of a fast sync. Such a sync costs less than the way to the flush thread and back; the loop
should do other work during a longer one."""

MEAN_OF_SYNCS: Final = 8
"""The mean moves by this part of the difference, so one preempted sync counts little."""

COUNTED_SYNC_US_MAX: Final = 3 * FAST_SYNC_US
"""Upper limit of a sync in the mean: a preempted sync says nothing about the disk."""

_COUNTED_SYNC_S_MAX: Final = COUNTED_SYNC_US_MAX / 1e6

SHARE_OF_SYNCS: Final = 100
"""The loop leaves syncs to the thread for this many times the duration of the slow ones."""


class SyncRequests:
    """The sync requests of one driver."""

    def __init__(
        self,
        store: ReplicatedStore[Any],
        on_durable: Callable[[Ticket], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_durable` is called on the loop, once for each ticket or for a later one."""
        self._store, self._on_durable, self._on_fatal = store, on_durable, on_fatal
        self._is_flush_sync = store.config.flush == "sync"
        self._loop = asyncio.get_running_loop()
        self._durable: Ticket = 0
        self._must_sync: Ticket = 0
        """Newest ticket that only a real sync may fulfil, whatever the flush mode."""
        self._asked_count = 0
        self._waits_since_s = 0.0
        """When the oldest sync was requested, or the one before it ended."""
        self._owed: Ticket | None = None
        """Newest ticket for which no sync was requested yet, as too many are under way."""
        self._threaded_until_s = 0.0
        self._mean_s = 0.0
        self._spent_s = 0.0
        """Sum of the durations of about the last `MEAN_OF_SYNCS` syncs."""
        self._is_stopped = False

    def flush(self, ticket: Ticket, *, must_sync: bool) -> bool:
        """Make everything up to `ticket` as durable as the flush mode says; return whether it is
        now.

        Raises SyncFailedError: stop.
        """
        if must_sync:
            self._must_sync = ticket
        # A ticket covers all before it, so it cannot overtake a ticket that needs a real sync.
        if not self._is_flush_sync and self._must_sync <= self._durable:
            self._reached(ticket)
            return True
        if self._asked_count == 0 and self._sync_here():
            if failpoints.is_on or ticket <= self._durable:
                self._reached(ticket)
            else:  # As `_reached` does, a call less.
                self._durable = ticket
                self._on_durable(ticket)
            return True
        if self._asked_count >= SYNC_REQUEST_COUNT_MAX:
            self._owed = ticket
        else:
            if self._asked_count == 0:
                self._waits_since_s = time.perf_counter()
            self._asked_count += 1
            self._store.request_sync(partial(self._on_synced, ticket))
        return False

    @property
    def waiting_s(self) -> float:
        """Seconds that the flush thread has spent on the current sync; 0 while none is
        requested."""
        return time.perf_counter() - self._waits_since_s if self._asked_count else 0.0

    def stop(self) -> None:
        """Ignore the results of all syncs from now on."""
        self._is_stopped = True

    def _sync_here(self) -> bool:
        began_s = time.perf_counter()
        if began_s < self._threaded_until_s or not self._store.sync_here():
            return False
        ended_s = time.perf_counter()
        took_s = ended_s - began_s
        counted_s = took_s if took_s < _COUNTED_SYNC_S_MAX else _COUNTED_SYNC_S_MAX
        self._mean_s += (counted_s - self._mean_s) / MEAN_OF_SYNCS
        self._spent_s += took_s - self._spent_s / MEAN_OF_SYNCS
        if self._mean_s > FAST_SYNC_US / 1e6:
            self._threaded_until_s = ended_s + SHARE_OF_SYNCS * self._spent_s
            self._mean_s = self._spent_s = 0.0
        return True

    def _on_synced(self, ticket: Ticket, error: StoreError | None) -> None:
        """Pass the end of a sync on to the loop; called on the flush thread."""
        if error is None:
            self._loop.call_soon_threadsafe(self._after_sync, ticket)
        elif not self._is_stopped:
            self._on_fatal(error)

    def _after_sync(self, ticket: Ticket) -> None:
        self._asked_count -= 1
        self._waits_since_s = time.perf_counter()
        if self._is_stopped:
            return
        self._reached(ticket)
        if self._owed is not None:
            owed, self._owed = self._owed, None
            self.flush(owed, must_sync=False)

    def _reached(self, ticket: Ticket) -> None:
        if ticket > self._durable:
            if failpoints.is_on:
                failpoints.hit("sync_requests.before_durable")
            self._durable = ticket
            self._on_durable(ticket)
