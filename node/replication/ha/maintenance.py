"""Work of a master-slave replica on the disk that no caller waits for.

Owns the one maintenance thread and the order of steps between it and the loop: maintenance of the
store, checkpoints, deletion of expired files. A full disk postpones a step; a failed sync ends the
node. Must not know roles beyond what a slave still needs of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import structlog

from node.errors.common import ShuttingDownError
from node.replication.deletions import say_deleted
from node.replication.ha.applied import AppliedState
from node.replication.ha.driver import HaDriver
from node.replication.ha.storage.log import KEPT_FOR_SLAVE_SIZE_BYTES, HaLog
from node.runtime.fail_stop import FailStop
from node.state.held import needed_position
from store.errors import (
    BusyError,
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
    StoreError,
    StoreFullError,
)

ROUND_MS: Final = 1_000
CHECKPOINT_INTERVAL_MS: Final = 5_000
"""Age limit of a checkpoint while the state changes: a restart applies later batches again."""
_DAMAGE: Final = (CorruptionError, DerivedFileError)
_POSTPONED: Final = (StoreFullError, FileSystemError, BusyError, *_DAMAGE)
_Result = TypeVar("_Result")
_log: Final = structlog.get_logger(component="maintenance")


class Upkeep:
    """Runs rounds until stopped. Belongs to the running loop."""

    def __init__(
        self,
        log: HaLog,
        applied: AppliedState,
        driver: HaDriver,
        fail_stop: FailStop,
        on_damage: Callable[[CorruptionError | DerivedFileError], None],
    ) -> None:
        """`on_damage` gets damage that a step found; the step is tried again."""
        self._log, self._applied, self._driver = log, applied, driver
        self._fail_stop, self._on_damage = fail_stop, on_damage
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "maintenance")
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()
        self._is_stopped = False
        self._checkpointed_s = self._loop.time()
        self._trouble = ""

    def start(self) -> None:
        """Start the rounds."""
        self._task = asyncio.create_task(self._run(), name="maintenance")

    async def stop(self) -> None:
        """Stop after the running step, and write a last checkpoint. The log is still open."""
        self._is_stopping.set()
        if self._task is not None:
            await self._task
        await self._step("checkpoint", self._checkpoint)
        self._is_stopped = True
        self._thread.shutdown(wait=True)

    async def on_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` on the maintenance thread, after its current step.

        Raises ShuttingDownError once it has stopped."""
        if self._is_stopped:
            raise ShuttingDownError
        return await self._loop.run_in_executor(self._thread, work)

    async def _run(self) -> None:
        while not await self._is_stopped_within(ROUND_MS):
            await self._step("upkeep", self._maintain)
            now_s = self._loop.time()
            if now_s - self._checkpointed_s >= CHECKPOINT_INTERVAL_MS / 1000:
                await self._step("checkpoint", self._checkpoint)
                self._checkpointed_s = now_s
            await self._step("retention", self._delete_expired)

    async def _is_stopped_within(self, pause_ms: int) -> bool:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._is_stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _step(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except _POSTPONED as error:
            if isinstance(error, _DAMAGE):
                self._on_damage(error)
            if str(error) != self._trouble:  # Log once, and not in every round of a full disk.
                self._trouble = str(error)
                _log.warning("postponed", step=name, error=str(error))
        except Exception as error:  # noqa: BLE001 - memory and disk may differ.
            self._fail_stop(error)

    async def _maintain(self) -> None:
        await self.on_thread(self._log.maintain)

    async def _checkpoint(self) -> None:
        checkpoint = self._applied.checkpoint()
        if checkpoint is None:
            return
        if self._log.durable < checkpoint.position:
            await self._synced()
        await self.on_thread(checkpoint.save)
        # The replica is whole: its former log, set aside, is not needed any more.
        await self.on_thread(self._log.delete_aside)

    async def _synced(self) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def on_synced(error: StoreError | None) -> None:
            self._loop.call_soon_threadsafe(_resolve, done, error)

        self._log.request_sync(on_synced)
        await done

    async def _delete_expired(self) -> None:
        """Delete files that are due, checkpointed, no longer being shipped, and without a message
        that is still to be delivered."""
        floor = self._log.end - KEPT_FOR_SLAVE_SIZE_BYTES
        needed = self._driver.intake.needed_position(floor)
        held = needed_position(self._log.store, self._applied.machine.state)
        if held is not None:
            needed = min(needed, held)
        counters = self._log.store.counters
        before, for_room_before = counters.deleted_file_count, counters.deleted_for_room_count
        work = self._log.detach_expired(min(self._applied.checkpoint_position, needed))
        if work is not None:
            say_deleted(
                counters.deleted_file_count - before,
                counters.deleted_for_room_count - for_room_before,
                first_position=self._log.min_position,
            )
            self._driver.intake.drop_left_behind()
            await self.on_thread(work)

    async def make_image(self) -> bytes:
        """Return an image of the state as of now, for another replica. Raises ShuttingDownError."""
        while True:
            try:
                return await self.on_thread(self._applied.make_image())
            except PositionRangeError:  # Files were deleted meanwhile.
                continue


def _resolve(done: asyncio.Future[None], error: StoreError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
