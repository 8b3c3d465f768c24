"""The store: one log, the queues and the index derived from it, and the threads that serve them.

Start reading here. Owns the life of a store directory (open, append, read, close) and the calls
that each thread may make. The parts do the work: `commit_log` or `ledger` (append), `flush`
(durability), `dispatch` (queues, index), `warm_up` (next files), `retention`, `opening` (recovery).

Threads, as a library: any number of callers; appends are serialised by the put lock. `store-flush`
syncs the log, `store-warm-up` makes the next files, `store-maintain` dispatches, syncs the derived
files and deletes old ones. A node that has its own loop opens the store with `maintain=False` and
calls `maintain()` itself. Source: RocketMQ DefaultMessageStore.
"""

import errno
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import ClassVar, Final, Self

from store import checksum
from store.clock import unix_ms
from store.config import StoreConfig
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.durability.checkpoint import Checkpoint, DurableTimes
from store.durability.fatal import FirstCause, end_process
from store.durability.flush import FlushService
from store.durability.flush_schedule import FlushRules
from store.durability.identity import DirectoryLock, RunMarker
from store.durability.mark_keeper import MarkKeeper
from store.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.ledger.ledger import Ledger
from store.ledger.mending.damage import DamagedRange
from store.ledger.mending.fetched import RepairReport
from store.ledger.mending.mend import damage_of, repair_range
from store.log.commit_log import CommitLog
from store.log.record_log import AppendResult
from store.opening import (
    Progress,
    Recovery,
    check_owner,
    known_good_position,
    make_files,
    newest_unix_ms,
    no_progress,
    open_derived,
    open_log,
    open_marks,
)
from store.put_lock import make_put_lock
from store.reads import Reads
from store.stats import StoreCounters, StoreGauges, StoreStats, snapshot
from store.upkeep.retention import DiskUsage, Retention, RetentionPolicy
from store.upkeep.thread import MaintenanceThread


class Store(Reads):
    """An open store directory. Use it as a context manager, or call `close`.

    Every method may be called from any thread.
    """

    _meta_name: ClassVar[str] = ""  # Of a replica, whose owner says what of the log is confirmed.
    _commit_log: ClassVar[type[CommitLog]] = CommitLog  # The class as which a plain log is opened.

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig | None = None,
        *,
        fs: FileSystem | None = None,
        now_unix_ms: Callable[[], int] = unix_ms,
        on_fatal: Callable[[BaseException], None] = end_process,
        progress: Progress = no_progress,
        maintain: bool = True,
        before_running: Callable[[Recovery], None] | None = None,
    ) -> Self:
        """Open a directory, making it if need be, and recover what a crash left.

        `before_running` is called when it is known what survived, and before the directory counts
        as used by this boot: facts that must outlive a second crash are written down there.

        `on_fatal` is called, once and on any thread, when a sync fails or an invariant is broken;
        it must end the process. Raises LockedError (another process has it), LayoutError (not what
        this configuration can open), CorruptionError (damage in what was known to be good),
        StoreFullError, FileSystemError, SyncFailedError. No append is acknowledged before.
        """
        checksum.self_check()
        failpoints.arm_from_environment()
        fs, config = fs or FileSystem(), config or StoreConfig()
        fs.make_directory(root)
        check_owner(root, meta_name=cls._meta_name)
        with ExitStack() as undo:
            lock = DirectoryLock(fs, root)
            lock.acquire()
            undo.callback(lock.release)
            store = cls(root, config, fs, lock, now_unix_ms, on_fatal, progress, undo)
            if before_running is not None:
                before_running(store.recovery)
            store._start_threads(undo)
            if maintain:
                store._maintenance.start()
            undo.pop_all()
        return store

    def __init__(
        self,
        root: str,
        config: StoreConfig,
        fs: FileSystem,
        lock: DirectoryLock,
        now_unix_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
        progress: Progress,
        undo: ExitStack,
    ) -> None:
        """Recover the store, for `open` only: `undo` gets the releases for a failed opening."""
        self.root: Final = root
        self.config = config
        self.counters: Final = StoreCounters()
        self._fs, self._lock, self._clock = fs, lock, now_unix_ms
        self._on_fatal = FirstCause(on_fatal)
        self._closed = False
        self._last_store_unix_ms = self._last_end_position = self._retention_ran_ms = 0
        self._derived_min_position = 0  # The derived files have nothing below it any more.
        self._dispatch_error: StoreFullError | None = None
        self._times = DurableTimes()
        self._put_lock = make_put_lock(config.put_lock, config.put_lock_timeout_ms)
        self._run_marker = RunMarker(fs, root)
        last_run = self._run_marker.last_run()
        names_durable, counters = not self._meta_name, self.counters
        files, self._warm_up, self._pooled, self._pool = make_files(
            fs, root, config, counters, self._on_fatal, makes_names_durable=names_durable
        )
        self._mark = open_marks(fs, root, config, last_run)
        undo.callback(self._mark.close)
        mark = self._mark.mark
        opened = open_log(fs, root, config, files, mark, last_run, self._commit_log)
        self.log = log = opened.log
        undo.callback(log.close)
        if opened.end_position < max(mark.durable_position, mark.dispatched_position):
            self._mark.lower(opened.end_position, self._last_index(opened.end_position))
        self._queues, self._index = ConsumeQueues(fs, root, config), IndexFiles(fs, root, config)
        undo.callback(self._queues.close)
        undo.callback(self._index.close)
        self._guard, again, rebuilt = open_derived(
            self._queues,
            self._index,
            log,
            self._mark.mark,
            last_run,
            progress,
            counters,
            hi_position=self._readable_position(log),
            must_rebuild=opened.was_adopted,
        )
        self._dispatcher = self._guard.dispatcher
        log.stamper.next_offsets = self._queues.next_offsets()
        log.stamper.inner_batches = self._queues.inner_batches
        self.recovery: Final = Recovery(
            was_clean=last_run.was_clean,
            same_boot=last_run.same_boot,
            known_good_position=known_good_position(mark, last_run),
            end_position=opened.end_position,
            scanned_size_bytes=opened.scanned_size_bytes,
            cut_size_bytes=opened.cut_size_bytes,
            cut_reason=opened.cut_reason,
            dispatched_size_bytes=again,
            derived_rebuilt=rebuilt,
            was_adopted=opened.was_adopted,
        )
        self._checkpoint = Checkpoint.open(fs, root)
        undo.callback(self._checkpoint.close)
        self._make_parts()

    def _readable_position(self, log: CommitLog | Ledger) -> int:
        """Return the position up to which the log may be dispatched when it is opened."""
        return log.max_position

    def _make_parts(self) -> None:
        """Make the parts that need the recovered log."""
        config, log = self.config, self.log
        self._marks = MarkKeeper(self._mark, self._last_index)
        self._flush = FlushService(
            log,
            FlushRules.from_config(config),
            on_fatal=self._on_fatal,
            committer=self._pooled,
            sink=self._marks,
            counters=self.counters,
        )
        self._retention = Retention(
            RetentionPolicy.from_config(config),
            log,
            lambda: log.files.files,
            lambda file: newest_unix_ms(log, file, self._visible_position()),
            path=self.root,
            deletable_position=lambda: self._mark.mark.dispatched_durable_position,
            spare_file_count=lambda: self._warm_up.ready_count if self._warm_up else 0,
            counters=self.counters,
        )
        self._maintenance = MaintenanceThread(
            self.maintain, config.derived_flush_interval_ms, self._on_fatal
        )

    def _start_threads(self, undo: ExitStack) -> None:
        """Start the threads, once everything they need is recovered."""
        if self._pooled:
            self._pooled.attach(self.log.files)
        if self._warm_up:
            files = self.log.files.files
            self._warm_up.start(files[-1].end_position if files else 0)
            undo.callback(self._warm_up.stop)
        self._run_marker.mark_running()
        self._flush.start()

    def _last_index(self, position: int) -> int:
        """Return the last ledger entry that ends at or before a position; -1 without one."""
        return self.log.last_index_before(position)

    # --- Appending ---

    def append(self, batch: bytes) -> AppendResult:
        """Append encoded records as one batch. No byte is durable yet: see `wait_durable`.

        The batch is checked, patched (queue offset, position, store time, store host) and copied
        into the log, all or none. Raises RecordFormatError, LimitExceededError, TopicNameError (bad
        input), BusyError, StoreFullError or FileSystemError (try again), ClosedError; nothing was
        written then.
        """
        began_ns = time.perf_counter_ns()
        lock = self._put_lock
        try:
            if self._dispatch_error is not None:
                self._retry_dispatch()
            lock.acquire()
            try:
                if self._closed:
                    raise ClosedError(self.root)
                self._retention.check_writable()
                # The max rule: a clock that steps back does not take the log's time back.
                now = max(self._clock(), self._last_store_unix_ms)
                result = self.log.append(batch, now_unix_ms=now)
                if now != self._last_store_unix_ms:  # Once a millisecond, and not once an append.
                    self._note_time()
                    self._last_store_unix_ms = now
                self._last_end_position = result.end_position
            finally:
                lock.release()
        except StoreError as error:
            self._count_failure(error)
            if isinstance(error, SyncFailedError):  # Of a new file.
                self._on_fatal(error)
            raise
        except AssertionError as error:
            self._on_fatal(error)
            raise
        duration_us = (time.perf_counter_ns() - began_ns) // 1000
        self.counters.on_put(len(result.queue_offsets), len(batch), duration_us)
        return result

    def put(self, batch: bytes) -> AppendResult:
        """Append a batch and return when it is as durable as the flush policy says.

        With `sync`: durable (fdatasync) on return. With `async`: in page cache, or in the write
        buffer of a transient pool. Errors of `append`, and then FlushTimeoutError or
        SyncFailedError: the batch is in the log, its durability is unknown.
        """
        if self.config.flush == "sync":
            self._flush.check_room()
            result = self.append(batch)
            self._flush.wait(result.end_position, self.config.flush_timeout_ms)
            return result
        return self.append(batch)

    def wait_durable(self, end_position: int, timeout_ms: int | None = None) -> int:
        """Block until the log is durable up to `end_position`; return the durable position.

        Raises FlushTimeoutError (outcome unknown) or SyncFailedError.
        """
        limit_ms = self.config.flush_timeout_ms if timeout_ms is None else timeout_ms
        return self._flush.wait(end_position, limit_ms)

    def on_durable(self, end_position: int, callback: Callable[[StoreError | None], None]) -> None:
        """Have `callback(error or None)` called on the flush thread; for event loops."""
        self._flush.request(end_position, callback)

    def _note_time(self) -> None:
        self._times.note(self._last_end_position, self._last_store_unix_ms)

    def _count_failure(self, error: StoreError) -> None:
        self.counters.put_failed_count += 1
        if isinstance(error, BusyError):
            self.counters.busy_count += 1
        elif isinstance(error, StoreFullError):
            self.counters.store_full_count += 1

    # --- Maintenance ---

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(self.root)

    def _catch_up(self) -> None:
        """Dispatch all records appended before now, so that a reader sees them."""
        self._check_open()
        try:
            self._dispatch_all()
        except StoreFullError as error:
            # The queues cannot grow: what is in them is still served, and appends stop until a
            # later round gets through, so that the backlog is bounded.
            self._dispatch_error = error
            self.counters.dispatch_failed_count += 1
        except SyncFailedError as error:
            self._on_fatal(error)
            raise

    def _retry_dispatch(self) -> None:
        self._catch_up()
        if self._dispatch_error is not None:
            raise self._dispatch_error

    def _dispatch_all(self) -> None:
        hi = self.log.max_position
        while self._dispatcher.dispatched_position < hi:
            self._dispatcher.advance(hi)
        self._dispatch_error = None

    def maintain(self) -> None:
        """Dispatch, sync the derived files, move the marks, delete what has expired.

        The maintenance thread calls it every `derived_flush_interval_ms`. Raises what the parts
        raise; a full disk or a failing deletion is tried again in the next round. `on_fatal` gets
        a failed sync first.
        """
        try:
            self._maintain()
        except SyncFailedError as error:
            self._on_fatal(error)
            raise

    def _maintain(self) -> None:
        self._catch_up()
        durable_position = self._sync_derived()
        durable_ms = self._times.up_to(min(self._flush.durable_position, durable_position))
        self._checkpoint.advance(
            physic_unix_ms=durable_ms, logics_unix_ms=durable_ms, index_unix_ms=durable_ms
        )
        self._checkpoint.save()
        now = time.monotonic_ns() // 1_000_000
        if now - self._retention_ran_ms >= self.config.retention_interval_ms:
            self._retention_ran_ms = now
            self._delete_expired()

    def _sync_derived(self) -> int:
        """Make the derived files durable and write the mark; return the position they reach."""
        durable = self._dispatcher.sync_derived()
        self._marks.on_dispatched(self._dispatcher.built(), durable)
        return durable.position

    def delete_expired(self) -> int:
        """Run one round of retention now; return how many log files were deleted."""
        try:
            return self._delete_expired()
        except SyncFailedError as error:
            self._on_fatal(error)
            raise

    def _delete_expired(self) -> int:
        self._catch_up()
        self._sync_derived()  # Only records dispatched durably are deleted.
        usage = DiskUsage(*self._fs.free_bytes(self.root))
        with self._put_lock:
            done = self._retention.run_once(self._clock(), usage)
        min_position = self.log.min_position
        if min_position > self._derived_min_position:  # Also after a round that failed half-way.
            try:
                self._dispatcher.delete_expired(min_position)
            finally:
                self._sync_derived()  # The expired keys do not count any more.
            self._derived_min_position = min_position
        return done.deleted_file_count

    def stats(self) -> StoreStats:
        """Return the counters, and the state at this moment."""
        log, lock = self.log, self._put_lock
        files = log.files.files
        return snapshot(
            self.counters,
            StoreGauges(
                min_position=log.min_position,
                max_position=log.max_position,
                wrote_position=log.files.wrote_position,
                flushed_position=self._flush.durable_position,
                dispatched_position=self._dispatcher.dispatched_position,
                file_count=len(files),
                prepared_file_count=self._warm_up.ready_count if self._warm_up else 0,
                pool_free_count=self._pool.free_count if self._pool else 0,
                hold_count=sum(file.hold_count for file in files),
                flush_pending_count=self._flush.pending_count,
                flush_pending_count_max=self._flush.request_count_max,
                sync_running_ms=self._flush.sync_running_ms(),
                lock_held_ms=lock.held_ms(),
                lock_held_ms_max=lock.held_ms_max,
                lock_contended_count=lock.contended_count,
                lock_timeout_count=lock.timeout_count,
                inner_batch_topic_count=len(self._queues.inner_batches.topics),
                disk_state=self._retention.state.value,
                disk_used_ratio=self._retention.usage.used_ratio,
            ),
        )

    def damage_of(self, error: CorruptionError) -> list[DamagedRange]:
        """Return the damaged entries of a ledger where a read met damage; see `mending.mend`."""
        assert isinstance(self.log, Ledger), "a plain log has no entries"
        return damage_of(self.log, error)

    def repair_range(self, lo_index: int, hi_index: int, raw_entries: bytes) -> RepairReport:
        """Put damaged entries of a ledger back, durably; see `mending.mend`, also for errors."""
        assert isinstance(self.log, Ledger), "a plain log has no entries"
        try:
            with self._put_lock:
                self._check_open()
                hi = self._visible_position()
                return repair_range(self._fs, self.log, lo_index, hi_index, raw_entries, hi)
        except SyncFailedError as error:
            self._on_fatal(error)
            raise

    # --- Closing ---

    def close(self) -> None:
        """Make everything durable, end the threads and release the directory.

        Views that are open stay valid. May be called twice. Raises SyncFailedError when something
        could not be made durable; the directory then counts as crashed.
        """
        self._maintenance.stop()  # First: a round that runs must not find the store closed.
        with self._put_lock:
            if self._closed:
                return
            self._closed = True
        with ExitStack() as last:  # Runs in the reverse order, whatever fails in between.
            last.callback(self._lock.release)
            last.callback(self.log.close)
            last.callback(self._queues.close)
            last.callback(self._index.close)
            last.callback(self._mark.close)
            last.callback(self._checkpoint.close)
            if self._warm_up:
                last.callback(self._warm_up.stop)
            try:
                if self._pooled:
                    self._pooled.detach_all()
            finally:
                self._flush.stop()
            if self._pool:
                self._pool.close()
            # A second sync could succeed, and what it promised be lost.
            if (cause := self._on_fatal.cause) is not None:
                raise SyncFailedError(self.root, errno.EIO) from cause
            self._finish()
            self._run_marker.mark_closed()  # Last: what failed above leaves a crashed directory.

    def _finish(self) -> None:
        """Bring derived files and marks up to the end of the log, durably."""
        self._dispatch_all()
        self._sync_derived()
        self._note_time()
        durable_ms = self._times.up_to(self.log.max_position)
        self._checkpoint.advance(
            physic_unix_ms=durable_ms, logics_unix_ms=durable_ms, index_unix_ms=durable_ms
        )
        self._checkpoint.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
