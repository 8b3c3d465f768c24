"""Work on the disk that no caller waits for: file maintenance, checkpoints, retention.

Owns the one maintenance thread and the order of steps between it and the loop: changes of the log
in memory happen on the loop, steps that wait happen on the thread. A full disk postpones a step; a
failed sync ends the node, damage is repaired from peers. Must not know elections or clients.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

import structlog

from node.errors.common import ShuttingDownError
from node.replication.deletions import say_deleted
from node.replication.raft.storage.log import LedgerLog
from node.runtime.fail_stop import FailStop
from node.state.checkpoint_files import CheckpointFiles
from node.state.state import StateImage
from raft.errors import CompactionRefusedError
from raft.messages import NO_INDEX, Index, SnapshotMeta
from store.errors import (
    BusyError,
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    StoreError,
    StoreFullError,
)

ROUND_MS: Final = 1_000
CHECKPOINT_INTERVAL_MS: Final = 5_000
"""Age limit of a checkpoint while the state changes: a restart applies later entries again."""
_log: Final = structlog.get_logger(component="maintenance")
_Result = TypeVar("_Result")
_POSTPONED: Final = (StoreFullError, FileSystemError, BusyError)


class Compacted(Protocol):
    """The part of the replica that retention needs."""

    def snapshot_meta_at(self, index: Index) -> SnapshotMeta: ...
    def snapshot_durable(self, meta: SnapshotMeta) -> None: ...
    def compactable_to(self) -> Index: ...
    def compact_to(self, index: Index) -> None: ...


class Machine(Protocol):
    """The part of the state machine that a checkpoint needs."""

    @property
    def applied_index(self) -> Index: ...
    def image(self) -> StateImage: ...


class Maintenance:
    """Runs rounds until stopped. Belongs to the running loop."""

    def __init__(
        self,
        log: LedgerLog,
        replica: Compacted,
        machine: Machine,
        files: CheckpointFiles,
        fail_stop: FailStop,
        on_damage: Callable[[CorruptionError | DerivedFileError], None],
        needed_position: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`on_damage` gets damage that a step found; the step is tried again. Bytes at
        `needed_position` or behind are kept whatever their age: they were promised to a reader."""
        self._log, self._replica = log, replica
        self._machine, self._files = machine, files
        self._fail_stop, self._on_damage = fail_stop, on_damage
        self._needed_position = needed_position
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "maintenance")
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()
        self._is_stopped = False
        self._checkpointed_s = self._loop.time()
        self._trouble = ""
        self.round_count = 0
        self.postponed_count = 0
        """Steps that a full disk or a busy one stopped; the next round tries them again."""

    def start(self) -> None:
        """Start the rounds."""
        self._task = asyncio.create_task(self._run(), name="maintenance")

    async def on_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` on the maintenance thread, after its current step.

        Raises ShuttingDownError once it has stopped."""
        if self._is_stopped:
            raise ShuttingDownError
        return await self._loop.run_in_executor(self._thread, work)

    async def stop(self) -> None:
        """Stop after the running step, and write a last checkpoint. The log is still open."""
        self._is_stopping.set()
        if self._task is not None:
            await self._task
        await self._step("checkpoint", self.checkpoint)
        self._is_stopped = True
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        while not await self._is_stopped_within(ROUND_MS):
            await self._step("upkeep", self._upkeep)
            now_s = self._loop.time()
            is_due = now_s - self._checkpointed_s >= CHECKPOINT_INTERVAL_MS / 1000
            if is_due or self._log.installed is not None:
                await self._step("checkpoint", self.checkpoint)
                self._checkpointed_s = now_s
            await self._step("retention", self._delete_expired)
            self.round_count += 1

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
        except (*_POSTPONED, CorruptionError, DerivedFileError) as error:
            if isinstance(error, CorruptionError | DerivedFileError):
                self._on_damage(error)
            self.postponed_count += 1
            if str(error) != self._trouble:  # Log once, and not in every round of a full disk.
                self._trouble = str(error)
                _log.warning("postponed", step=name, error=str(error))
        except Exception as error:  # noqa: BLE001 - memory and disk may differ.
            self._fail_stop(error)

    async def _upkeep(self) -> None:
        await self.on_thread(self._log.store.maintain)

    async def checkpoint(self) -> None:
        """Save the state as of now, if anything was applied since. Durable on return.

        The log must be durable up to there first: a state must not be ahead of its log.
        """
        installed = self._log.installed
        if self._machine.applied_index > self._files.applied_index:
            image = self._machine.image()
            if self._log.durable_index < image.applied_index:
                await self._synced()
            unix_ms = time.time_ns() // 1_000_000
            await self.on_thread(lambda: self._files.save(image, unix_ms))
        if installed is None or self._log.installed is not installed:
            return
        if self._files.applied_index >= installed.state_index:
            self._log.snapshot_restored()

    async def _synced(self) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def on_synced(error: StoreError | None) -> None:
            self._loop.call_soon_threadsafe(_resolve, done, error)

        self._log.request_sync(on_synced)
        await done

    async def _delete_expired(self) -> None:
        """Delete files that are due, checkpointed, and needed by no follower."""
        log, replica, limit = self._log, self._replica, self._files.applied_index
        needed = self._needed_position()
        if needed is not None:
            limit = min(limit, log.store.ledger.last_index_before(needed))
        index = log.retention_candidate(limit)
        if limit == NO_INDEX or index <= log.base_index:
            return
        try:
            replica.snapshot_durable(replica.snapshot_meta_at(index))
        except CompactionRefusedError:
            return  # Later: a node that joined lately lacks the members of then.
        deletion = log.plan_deletion(min(limit, replica.compactable_to()))
        if deletion is None or not await self.on_thread(deletion.write_start):
            return
        base_index = deletion.start.link.entry_index
        if base_index <= log.base_index:
            return  # The log was replaced by a snapshot meanwhile.
        replica.compact_to(base_index)
        counters = log.store.counters
        for_room_before = counters.deleted_for_room_count
        if not log.store.forget(deletion):
            return
        for_room_count = counters.deleted_for_room_count - for_room_before
        say_deleted(deletion.file_count, for_room_count, first_index=log.base_index + 1)
        await self.on_thread(deletion.remove)
        await self.on_thread(log.store.delete_expired_derived)


def _resolve(done: "asyncio.Future[None]", error: StoreError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
