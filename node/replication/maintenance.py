"""Work on the disk that no caller waits for, in rounds: maintenance, checkpoints, retention.

Owns the one maintenance thread, the times of the steps, and what follows from their errors: a full
disk postpones a step, a failed sync ends the node, damage is handed on. Must not know what a step
does: each way to replicate has its own (`MaintenanceSteps`), in which changes of the log in memory
happen on the loop and whatever waits for the disk happens on the thread.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from node.errors.common import ShuttingDownError
from node.runtime.fail_stop import FailStop
from store.errors import (
    BusyError,
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    StoreError,
    StoreFullError,
)
from store.replicated.ledger_store import ReplicaStore
from store.replicated.shipped_store import ShippedStore
from store.replicated.store import ReplicatedStore

ROUND_MS: Final = 1_000
CHECKPOINT_INTERVAL_MS: Final = 5_000
"""Age limit of a checkpoint while the state changes: a restart applies what is newer again."""
_DAMAGE: Final = (CorruptionError, DerivedFileError)
_POSTPONED: Final = (StoreFullError, FileSystemError, BusyError, *_DAMAGE)
_log: Final = structlog.get_logger(component="maintenance")
_Result = TypeVar("_Result")


class MaintenanceThread:
    """The one thread on which a node waits for its disk, as far as no caller waits with it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, "maintenance")
        self._is_stopped = self._is_full = False

    async def on_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` on the maintenance thread, after its current step.

        Raises ShuttingDownError once it has stopped."""
        if self._is_stopped:
            raise ShuttingDownError
        return await self._loop.run_in_executor(self._executor, work)

    async def maintain(self, store: ReplicaStore | ShippedStore) -> None:
        """Sync derived files, judge the disk, find expired files; log when appends are refused."""
        await self.on_thread(store.maintain)
        error = store.engine.retention.refusal()
        if error is not None and not self._is_full:
            _log.warning("appends are refused: the disk is full", error=str(error))
        elif error is None and self._is_full:
            _log.info("appends go on: the disk has room again")
        self._is_full = error is not None

    async def synced(self, store: ReplicatedStore[Any]) -> None:
        """Have everything written so far synced. Raises SyncFailedError: stop."""
        done: asyncio.Future[None] = self._loop.create_future()

        def on_synced(error: StoreError | None) -> None:
            self._loop.call_soon_threadsafe(_resolve, done, error)

        store.request_sync(on_synced)
        await done

    def stop(self) -> None:
        """Wait for the running step; nothing is run afterwards."""
        self._is_stopped = True
        self._executor.shutdown(wait=True)


class MaintenanceSteps(Protocol):
    """The steps of one way to replicate. A step that raises an error of a full or damaged disk is
    tried again."""

    thread: MaintenanceThread

    @property
    def is_checkpoint_urgent(self) -> bool:
        """Whether the next round writes a checkpoint, however new the last one is."""

    async def maintain(self) -> None:
        """Sync derived files, judge the disk, find expired files."""

    async def checkpoint(self) -> None:
        """Save the state as of now, if anything was applied since. Durable on return."""

    async def delete_expired(self) -> None:
        """Delete files that are due, checkpointed, and needed by no other node and no reader."""


_Steps = TypeVar("_Steps", bound=MaintenanceSteps)


class Maintenance(Generic[_Steps]):
    """Runs rounds until stopped. Belongs to the running loop."""

    def __init__(
        self,
        steps: _Steps,
        fail_stop: FailStop,
        on_damage: Callable[[CorruptionError | DerivedFileError], None],
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_damage` gets damage that a step found; the step is tried again. `on_round` is called
        after each round, which has judged the disk."""
        self.steps: Final[_Steps] = steps
        self.on_thread: Final = steps.thread.on_thread
        self._fail_stop, self._on_damage, self._on_round = fail_stop, on_damage, on_round
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()
        self._checkpointed_s = self._loop.time()
        self._troubles: dict[str, str] = {}
        """Error of each step that is postponed, as it was logged."""

    def start(self) -> None:
        """Start the rounds."""
        self._task = asyncio.create_task(self._run(), name="maintenance")

    async def stop(self) -> None:
        """Stop after the running step, and write a last checkpoint. The log is still open."""
        await self.end_rounds()
        await self.step("checkpoint", self.steps.checkpoint)
        self.steps.thread.stop()

    async def end_rounds(self) -> None:
        """Let the running step end, and begin no other one: `step` does single ones."""
        self._is_stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        steps = self.steps
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_MS / 1000):
                    await self._is_stopping.wait()
                    return
            await self.step("maintenance", steps.maintain)
            now_s = self._loop.time()
            is_due = now_s - self._checkpointed_s >= CHECKPOINT_INTERVAL_MS / 1000
            if is_due or steps.is_checkpoint_urgent:
                await self.step("checkpoint", steps.checkpoint)
                self._checkpointed_s = now_s
            await self.step("retention", steps.delete_expired)
            self._on_round()

    async def step(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do one step. A full, busy or damaged disk postpones it, and any other error ends the
        process."""
        try:
            await work()
            self._troubles.pop(name, None)
        except _POSTPONED as error:
            if isinstance(error, _DAMAGE):
                self._on_damage(error)
            if str(error) != self._troubles.get(name):  # Not in every round of a full disk.
                self._troubles[name] = str(error)
                _log.warning("postponed", step=name, error=str(error))
        except Exception as error:  # noqa: BLE001 - memory and disk may differ.
            self._fail_stop(error)


def say_deleted(file_count: int, for_room_count: int, **first_kept: int) -> None:
    """Log that files were deleted from the log, and by which rule."""
    expired_count = file_count - for_room_count
    if expired_count:
        _log.info("deletes expired files", file_count=expired_count, **first_kept)
    if for_room_count:
        _log.warning(
            "deletes files that have not expired, as the disk is full and delete_when_full is set",
            file_count=for_room_count,
            **first_kept,
        )


def _resolve(done: "asyncio.Future[None]", error: StoreError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
