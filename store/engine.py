"""The engine of a store directory: the parts that every kind of store has, and their life.

Owns the parts, the order in which they are opened, started and closed, and what they do together
(sync of derived files with the mark, the statistics). Must not know appends, nor what readers ask:
`store.store` and `store.replicated` use the parts, `store.reads` reads them. The state machine of a
node listens to the `dispatcher`.
"""

import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Self, TypedDict

from store.clock import unix_ms
from store.config import StoreConfig
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.durability.checkpoint import Checkpoint, CheckpointValues, DurableTimes
from store.durability.fatal import FirstCause, end_process
from store.durability.flush import FlushService
from store.durability.identity import DirectoryLock, RunMarker
from store.errors import BusyError, ClosedError, StoreError, StoreFullError, SyncFailedError
from store.files import checksum, failpoints
from store.files.file_system import FileSystem
from store.log.put_lock import PutLock
from store.maintenance.retention import Retention, RetentionPolicy
from store.opening import (
    Directory,
    LogT_co,
    OpenLog,
    Progress,
    Recovery,
    check_owner,
    make_files,
    newest_unix_ms,
    no_progress,
    open_derived,
    open_marks,
)
from store.stats import StoreCounters, StoreGauges, StoreStats, snapshot


@dataclass(frozen=True, slots=True)
class StoreKind(Generic[LogT_co]):
    """The kind of store that a directory is opened as."""

    open_log: OpenLog[LogT_co]
    meta_name: str = ""
    """Meta file of a replica, whose owner says what of the log is confirmed. Empty for a store of
    its own, whose readers see all of the log."""


class Around(TypedDict, total=False):
    """The file system, clock and callbacks of the process."""

    fs: FileSystem | None
    """None: that of the machine."""
    now_unix_ms: Callable[[], int]
    """The clock of store times."""
    on_fatal: Callable[[BaseException], None]
    """Called once, on any thread, when a sync fails or an invariant is broken; ends the process."""
    progress: Progress
    """Called with a text, the bytes done and all of them, in the long steps of an open."""


class Closing(ABC):
    """Closed at the end of `with`."""

    @abstractmethod
    def close(self) -> None:
        """Release all that is open. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine(Generic[LogT_co]):
    """The parts of one open directory. Every method may be called from any thread."""

    def __init__(
        self,
        kind: StoreKind[LogT_co],
        root: str,
        config: StoreConfig,
        around: Around,
        lock: DirectoryLock,
        undo: ExitStack,
    ) -> None:
        """Recover the directory, for `opening` only: `undo` gets the releases for a failure."""
        self.root: Final = root
        self.config: Final = config
        self.counters: Final = StoreCounters()
        self.fs: Final = lock.fs
        self.clock = around.get("now_unix_ms", unix_ms)
        self.on_fatal: Final = FirstCause(around.get("on_fatal", end_process))
        """Called with a failed sync or a broken invariant; it must end the process."""
        self.is_closed = False
        """Whether `close` began. Changed under the put lock."""
        self._lock: Final = lock
        self._is_replica: Final = bool(kind.meta_name)
        self.put_lock: Final = PutLock(config.put_lock, config.put_lock_timeout_ms)
        """Held by the one writer of the log."""
        self.derived_lock: Final = threading.Lock()
        """Held while derived files are synced and the mark is written, and while they are cut:
        else a mark from before a cut could be written after it."""
        self.times: Final = DurableTimes()
        self._run_marker = RunMarker(self.fs, root)
        self._open_log(kind, around.get("progress", no_progress), undo)
        self.checkpoint: Final = Checkpoint.open(self.fs, root)
        undo.callback(self.checkpoint.close)
        self._make_parts()

    def _open_log(self, kind: StoreKind[LogT_co], progress: Progress, undo: ExitStack) -> None:
        """Open the log, and queues and index up to its end."""
        fs, root, config, counters = self.fs, self.root, self.config, self.counters
        last_run = self._run_marker.last_run()
        files, self.warm_up, self._pooled = make_files(
            fs, root, config, counters, self.on_fatal, makes_names_durable=not self._is_replica
        )
        self.mark = open_marks(fs, root, config, last_run)
        undo.callback(self.mark.close)
        directory = Directory(fs, root, config, files, self.mark.mark, last_run)
        opened = kind.open_log(directory)
        log = self.log = opened.log
        undo.callback(log.close)
        self.queues = ConsumeQueues(fs, root, config)
        self.index = IndexFiles(fs, root, config)
        undo.callback(self.queues.close)
        undo.callback(self.index.close)
        self.guard, again, is_rebuilt = open_derived(
            self.queues,
            self.index,
            opened,
            self.mark,
            last_run,
            progress,
            counters,
            is_replica=self._is_replica,
        )
        self.dispatcher = self.guard.dispatcher
        log.stamper.next_offsets = self.queues.next_offsets()
        log.stamper.inner_batches = self.queues.inner_batches
        self.recovery = Recovery(
            was_clean=last_run.was_clean,
            same_boot=last_run.same_boot,
            known_good_position=directory.known_good_position,
            end_position=log.max_position,
            store_unix_ms=opened.store_unix_ms,
            scanned_size_bytes=opened.scanned_size_bytes,
            cut_size_bytes=opened.cut_size_bytes,
            cut_reason=opened.cut_reason,
            dispatched_size_bytes=again,
            derived_rebuilt=is_rebuilt,
            was_adopted=opened.was_adopted,
        )

    def _make_parts(self) -> None:
        """Make the parts that need the recovered log."""
        config, log = self.config, self.log
        self.flush_service = FlushService(
            log,
            config,
            on_fatal=self.on_fatal,
            committer=self._pooled,
            on_synced=self.on_synced,
            on_settled=self.mark.maybe_sync,
            counters=self.counters,
        )
        self.retention = Retention(
            RetentionPolicy.from_config(config),
            log,
            lambda: log.files.files,
            lambda file: newest_unix_ms(log, file, self.visible_position()),
            path=self.root,
            deletable_position=lambda: self.mark.mark.dispatched_durable_position,
            spare_file_count=self._spare_file_count,
            counters=self.counters,
            disk=lambda: self.fs.free_bytes(self.root),
        )

    def _spare_file_count(self) -> int:
        """Return how many files are ready; a first file that grows is one while it is small."""
        warm_up = self.warm_up
        return warm_up.ready_count + warm_up.is_small if warm_up else 0

    @classmethod
    @contextmanager
    def opening(
        cls,
        kind: StoreKind[LogT_co],
        root: str,
        config: StoreConfig | None,
        before_running: Callable[[Recovery], None] | None,
        around: Around,
    ) -> Iterator[Self]:
        """Open a directory and start its threads; release it again if the body raises.

        Errors as `store.store.Store.open`.
        """
        checksum.self_check()
        failpoints.arm_from_environment()
        fs = around.get("fs") or FileSystem()
        fs.make_directory(root)
        check_owner(root, meta_name=kind.meta_name)
        with ExitStack() as undo:
            lock = DirectoryLock(fs, root)
            lock.acquire()
            undo.callback(lock.release)
            engine = cls(kind, root, config or StoreConfig(), around, lock, undo)
            if before_running is not None:
                before_running(engine.recovery)
            engine._start_threads(undo)
            yield engine
            undo.pop_all()

    def _start_threads(self, undo: ExitStack) -> None:
        """Start the threads, once everything they need is recovered."""
        if self._pooled:
            self._pooled.attach(self.log.files)
        if self.warm_up:
            files = self.log.files.files
            self.warm_up.start(files[-1].end_position if files else 0)
            undo.callback(self.warm_up.stop)
        self._run_marker.mark_running()
        self.flush_service.start()

    # --- For all kinds of stores ---

    def check_open(self) -> None:
        """Raise ClosedError if the store is closed."""
        if self.is_closed:
            raise ClosedError(self.root)

    def visible_position(self) -> int:
        """Return the position up to which readers may see the log."""
        return self.dispatcher.dispatched_position if self._is_replica else self.log.max_position

    @contextmanager
    def failed_syncs_fatal(self) -> Iterator[None]:
        """Report a failed sync of the body as fatal, before the caller gets the error."""
        try:
            yield
        except SyncFailedError as error:
            self.on_fatal(error)
            raise

    def refuse(self, error: StoreError) -> None:
        """Count an append that was refused; a failed sync, of a new file, is fatal."""
        self.counters.put_failed_count += 1
        if isinstance(error, BusyError):
            self.counters.busy_count += 1
        elif isinstance(error, StoreFullError):
            self.counters.store_full_count += 1
            self.retention.note(error)
        elif isinstance(error, SyncFailedError):
            self.on_fatal(error)

    def on_synced(self, flushed_position: int) -> None:
        """Write the position up to which the log is durable, before the receipts."""
        self.mark.raise_durable(flushed_position, self.log.last_index_before(flushed_position))

    def sync_derived(self) -> int:
        """Make the derived files durable and write the mark; return the position they reach."""
        with self.derived_lock:
            durable = self.dispatcher.sync_derived()
            self.mark.publish_built(self.dispatcher.built(), durable)
        return durable.position

    def delete_expired_derived(self) -> None:
        """Delete the parts of queues and index whose records are gone, and write the mark.

        Raises the first FileSystemError; repeat it then. SyncFailedError: stop.
        """
        if self.index.has_expired(self.log.min_position):
            with self.derived_lock:
                self.mark.forget_counts()
        try:
            self.dispatcher.delete_expired()
        finally:
            self.sync_derived()  # The expired keys do not count any more.

    def save_times(self, position: int) -> None:
        """Write the newest store time up to a durable position into the checkpoint."""
        unix_ms = self.times.up_to(position)
        self.checkpoint.advance(CheckpointValues(unix_ms, unix_ms, unix_ms))
        self.checkpoint.save()

    def stats(self) -> StoreStats:
        """Return the counters, and the state at this moment."""
        log, lock = self.log, self.put_lock
        files = log.files.files
        return snapshot(
            self.counters,
            StoreGauges(
                min_position=log.min_position,
                max_position=log.max_position,
                wrote_position=log.files.wrote_position,
                flushed_position=self.flush_service.durable_position,
                dispatched_position=self.dispatcher.dispatched_position,
                file_count=len(files),
                prepared_file_count=self.warm_up.ready_count if self.warm_up else 0,
                pool_free_count=self._pooled.pool.free_count if self._pooled else 0,
                hold_count=sum(file.hold_count for file in files),
                flush_pending_count=self.flush_service.pending_count,
                flush_pending_count_max=self.flush_service.request_count_max,
                sync_running_ms=self.flush_service.sync_running_ms(),
                lock_held_ms=lock.held_ms(),
                lock_held_ms_max=lock.held_ms_max,
                lock_contended_count=lock.contended_count,
                lock_timeout_count=lock.timeout_count,
                inner_batch_topic_count=len(self.queues.inner_batches.topics),
                disk_state=self.retention.state.value,
                disk_used_ratio=self.retention.usage.used_ratio,
                disk_refusal=str(self.retention.refusal() or ""),
            ),
        )

    # --- Closing ---

    def close(self, finish: Callable[[], None]) -> None:
        """End the threads and release the directory; the second call does nothing.

        `finish` brings derived files and marks up to the end of the log, once the log is durable.
        Raises SyncFailedError when something could not be made durable; the directory then counts
        as crashed.
        """
        with self.put_lock:
            if self.is_closed:
                return
            self.is_closed = True
        with ExitStack() as last:  # Runs in the reverse order, whatever fails in between.
            last.callback(self._lock.release)
            last.callback(self.log.close)
            last.callback(self.queues.close)
            last.callback(self.index.close)
            last.callback(self.mark.close)
            last.callback(self.checkpoint.close)
            if self.warm_up:
                last.callback(self.warm_up.stop)
            try:
                if self._pooled:
                    self._pooled.detach_all()
            finally:
                self.flush_service.stop()
            if self._pooled:
                self._pooled.pool.close()
            # A second sync could succeed, and what it promised be lost.
            if (cause := self.on_fatal.cause) is not None:
                raise SyncFailedError(self.root, errno.EIO) from cause
            finish()
            self._run_marker.mark_closed()  # Last: what failed above leaves a crashed directory.

    def finish(self, end_position: int, store_unix_ms: int) -> None:
        """Make derived files, mark and checkpoint those of the end of the log; for `close`.

        `end_position` and `store_unix_ms` are those of the last append.
        """
        self.sync_derived()
        self.times.note(end_position, store_unix_ms)
        self.save_times(self.log.max_position)
