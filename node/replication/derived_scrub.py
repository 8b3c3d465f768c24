"""Keeps the files that a node derives from its log correct: queues and key index, while it runs.

Owns one thread, the order and time of repairs on it, and the pass that compares everything with the
log within the interval of the scrub. Must not know bytes: `store.derived.guard` does. The thread is
its own, because an index file may need gigabytes of log, and neither maintenance nor retention may
wait for that.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from node.runtime.clock import unix_ms
from node.runtime.fail_stop import FailStop
from store.config import MIB
from store.derived.guard import PIECE_SIZE_BYTES, DerivedPiece
from store.errors import (
    ClosedError,
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
    StoreFullError,
)
from store.replicated.store import ReplicatedStore

ROUND_MS: Final = 1_000
RATE_BYTES_PER_S_MAX: Final = 16 * MIB
"""Limit of the rate, however short a pass should be: clients go first."""
RETRY_MS: Final = 500
"""Pause after damage that could not be repaired: the log may be under repair."""
ATTEMPT_COUNT_MAX: Final = 20
"""Attempts until the damage is left to the next reader or pass that meets it."""
WAITING_COUNT_MAX: Final = 64
"""Damaged places that wait; the next read meets further ones again."""
_Result = TypeVar("_Result")
_TROUBLE: Final = (
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    StoreFullError,
    PositionRangeError,
)
_log: Final = structlog.get_logger(component="derived")


class CareStats(NamedTuple):
    """Counters since the start of the process."""

    read_size_bytes: int = 0
    """Bytes of the log and of index files that passes have read."""
    pass_count: int = 0
    wrong_count: int = 0
    """Units, entries and slots that a pass found to be wrong, and repaired."""
    waiting_count: int = 0
    given_up_count: int = 0
    log_damage_count: int = 0
    """Damaged places of the log that a pass met before the scrub did."""


class DerivedCare:
    """Runs until stopped. Belongs to the running loop."""

    def __init__(
        self,
        store: ReplicatedStore[Any],
        interval_ms: int,
        on_damage: Callable[[CorruptionError], None],
        fail_stop: FailStop,
    ) -> None:
        """A pass takes `interval_ms`; 0: no passes. `on_damage` gets damage of the log."""
        self._store, self._interval_ms = store, interval_ms
        self._on_damage, self._fail_stop = on_damage, fail_stop
        self._scrubber = store.derived_scrubber()
        self._thread = ThreadPoolExecutor(1, "derived")
        self._loop = asyncio.get_running_loop()
        self._errors: deque[DerivedFileError] = deque()
        self._places: set[tuple[str, int]] = set()
        """Places of the waiting errors, and of the one under repair."""
        self._mending: asyncio.Task[None] | None = None
        self._pass: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._stats = CareStats()

    def start(self) -> None:
        """Start mending and the passes."""
        self._store.serve_on_loop(_tell)
        self._pass = self._loop.create_task(self._run(), name="derived")

    async def stop(self) -> None:
        """Stop after the piece being read. Call it before the store is closed."""
        self._is_stopped = True
        self._store.stop_mending()
        self._errors.clear()
        tasks = [task for task in (self._mending, self._pass) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    def stats(self) -> CareStats:
        """Return a snapshot of the counters."""
        return self._stats._replace(waiting_count=len(self._places))

    # --- Damage that a reader met ---

    def on_damage(self, error: DerivedFileError) -> None:
        """Have the damage repaired soon. Returns at once; repeated errors are one."""
        place = error.path, error.at
        if self._is_stopped or place in self._places or len(self._places) >= WAITING_COUNT_MAX:
            return
        self._places.add(place)
        self._errors.append(error)
        if self._mending is None or self._mending.done():
            self._mending = self._loop.create_task(self._mend_all())

    async def _mend_all(self) -> None:
        try:
            while self._errors:
                error = self._errors.popleft()
                await self._mend(error)
                self._places.discard((error.path, error.at))
        except ClosedError:
            return
        except Exception as error:  # noqa: BLE001 - a failed sync or a bug: the process ends.
            self._fail_stop(error)

    async def _mend(self, error: DerivedFileError) -> None:
        for _ in range(ATTEMPT_COUNT_MAX):
            try:
                await self._on_thread(lambda: self._store.mend_derived(error))
            except _TROUBLE as trouble:
                self._note(trouble)
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                return
        self._stats = self._stats._replace(given_up_count=self._stats.given_up_count + 1)

    def _note(self, trouble: Exception) -> None:
        _log.warning("a derived file could not be repaired", error=str(trouble))
        if isinstance(trouble, CorruptionError):
            self._on_damage(trouble)

    async def _on_thread(self, work: Callable[[], _Result]) -> _Result:
        return await self._loop.run_in_executor(self._thread, work)

    # --- The pass ---

    async def _run(self) -> None:
        try:
            await self._step(self._mend_unknown)
            if self._interval_ms:
                share = unix_ms() % self._interval_ms / self._interval_ms
                self._scrubber.begin_at(share)
                await self._rounds()
        except ClosedError:
            return
        except Exception as error:  # noqa: BLE001 - a failed sync or a bug: the process ends.
            self._fail_stop(error)

    def _mend_unknown(self) -> DerivedPiece:
        self._store.mend_unknown()
        return DerivedPiece()

    async def _rounds(self) -> None:
        owed, at_s = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(ROUND_MS / 1000)
            now_s = time.monotonic()
            rate = self._scrubber.size_bytes * 1000 / self._interval_ms
            owed += min(rate, RATE_BYTES_PER_S_MAX) * (now_s - at_s)
            at_s, owed = now_s, min(owed, RATE_BYTES_PER_S_MAX)
            while owed >= min(PIECE_SIZE_BYTES, self._scrubber.size_bytes) > 0:
                piece = await self._step(self._scrubber.step)
                owed -= piece.size_bytes
                if piece.ends_pass or not piece.size_bytes:
                    break

    async def _step(self, work: Callable[[], DerivedPiece]) -> DerivedPiece:
        try:
            piece = await self._on_thread(work)
        except CorruptionError as damage:  # Of the log, the source of the derived files.
            count = self._stats.log_damage_count + 1
            self._stats = self._stats._replace(log_damage_count=count)
            self._on_damage(damage)
            return DerivedPiece()
        except _TROUBLE as trouble:
            self._note(trouble)
            return DerivedPiece()
        stats = self._stats
        self._stats = stats._replace(
            read_size_bytes=stats.read_size_bytes + piece.size_bytes,
            pass_count=stats.pass_count + piece.ends_pass,
            wrong_count=stats.wrong_count + piece.wrong_count,
        )
        return piece


def _tell(what: str) -> None:
    """Log a finding in derived files, and its repair. Any thread."""
    _log.warning("derived files", what=what)
