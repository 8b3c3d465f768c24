"""The store: one log, the queues and the index derived from it, and the threads that serve them.

Start reading here. Owns the appends and the rounds of maintenance of a store of its own. Its
`engine` has the parts, which do the work: `log` (append), `flush_service` (durability),
`dispatcher` (queues, index), `warm_up` (next files), `retention`; `opening` recovers them. The
reads are those of `reads.Reads`.

Threads, as a library: any number of callers; appends are serialised by the put lock. `store-flush`
syncs the log, `store-warm-up` makes the next files, `store-maintain` dispatches, syncs the derived
files and deletes old ones. A node that has its own loop opens the store with `maintain=False` and
calls `maintain()` itself. Source: RocketMQ DefaultMessageStore.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Self, Unpack

from store.config import StoreConfig
from store.engine import Around, Closing, Engine, StoreKind
from store.errors import ClosedError, FileSystemError, StoreError, StoreFullError, SyncFailedError
from store.ledger.ledger import Ledger
from store.log.commit_log import CommitLog
from store.log.record_log import AppendResult
from store.maintenance.retention import DiskUsage
from store.opening import Recovery, open_log
from store.reads import Reads
from store.stats import StoreStats


class Store(Reads, Closing):
    """An open store directory. Use it as a context manager, or call `close`.

    Every method may be called from any thread.
    """

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig | None = None,
        *,
        maintain: bool = True,
        before_running: Callable[[Recovery], None] | None = None,
        **around: Unpack[Around],
    ) -> Self:
        """Open a directory, making it if need be, and recover what a crash left.

        `before_running` is called when it is known what survived, and before the directory counts
        as used by this boot: facts that must outlive a second crash are written down there.

        `around`: see `Around`. Raises LockedError (another process has it), LayoutError (not what
        this configuration can open), CorruptionError (damage in what was known to be good),
        StoreFullError, FileSystemError, SyncFailedError. No append is acknowledged before.
        """
        kind = StoreKind(open_log)
        with Engine.opening(kind, root, config, before_running, around) as engine:
            store = cls(engine)
            if maintain:
                store._thread.start()
        return store

    def __init__(self, engine: Engine[CommitLog | Ledger]) -> None:
        """Take the opened engine; for `open` only."""
        self.engine: Final = engine
        super().__init__(engine, self._show_all)
        self.root, self.recovery = engine.root, engine.recovery
        self._last_store_unix_ms = engine.recovery.store_unix_ms
        self._last_end_position = self._retention_ran_ms = 0
        self._derived_min_position = 0  # The derived files have nothing below it any more.
        self._dispatch_error: StoreFullError | None = None
        self._clock, self._put_lock, self._append = engine.clock, engine.put_lock, engine.log.append
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._maintain_all, name="store-maintain", daemon=True
        )

    # --- Appending ---

    def append(self, batch: bytes) -> AppendResult:
        """Append encoded records as one batch. No byte is durable yet: see `wait_durable`.

        The batch is checked, patched (queue offset, position, store time, store host) and copied
        into the log, all or none. Raises RecordFormatError, LimitExceededError, TopicNameError (bad
        input), BusyError, StoreFullError or FileSystemError (try again), ClosedError; nothing was
        written then.
        """
        began_ns = time.perf_counter_ns()
        engine, lock = self.engine, self._put_lock
        try:
            if self._dispatch_error is not None:
                self._show_all()
                if self._dispatch_error is not None:
                    raise self._dispatch_error
            lock.acquire()
            try:
                if engine.is_closed:
                    raise ClosedError(self.root)
                engine.retention.check_writable()
                # The max rule: a clock that steps back does not take the log's time back.
                now = max(self._clock(), self._last_store_unix_ms)
                result = self._append(batch, now_unix_ms=now)
                if now != self._last_store_unix_ms:  # Once a millisecond, and not once an append.
                    engine.times.note(self._last_end_position, self._last_store_unix_ms)
                    self._last_store_unix_ms = now
                self._last_end_position = result.end_position
            finally:
                lock.release()
        except StoreError as error:
            engine.refuse(error)
            raise
        except AssertionError as error:
            engine.on_fatal(error)
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
            self.engine.flush_service.check_room()
            result = self.append(batch)
            self.engine.flush_service.wait(result.end_position, self.config.flush_timeout_ms)
            return result
        return self.append(batch)

    def wait_durable(self, end_position: int, timeout_ms: int | None = None) -> int:
        """Block until the log is durable up to `end_position`; return the durable position.

        Raises FlushTimeoutError (outcome unknown) or SyncFailedError.
        """
        limit_ms = self.config.flush_timeout_ms if timeout_ms is None else timeout_ms
        return self.engine.flush_service.wait(end_position, limit_ms)

    def on_durable(self, end_position: int, callback: Callable[[StoreError | None], None]) -> None:
        """Have `callback(error or None)` called on the flush thread; for event loops."""
        self.engine.flush_service.request(end_position, callback)

    # --- Maintenance ---

    def _show_all(self) -> None:
        """Dispatch all records appended before now, so that a reader sees them."""
        self.engine.check_open()
        try:
            self._dispatch_all()
        except StoreFullError as error:
            # The queues cannot grow: what is in them is still served, and appends stop until a
            # later round gets through, so that the backlog is bounded.
            self._dispatch_error = error
            self.counters.dispatch_failed_count += 1
        except SyncFailedError as error:
            self.engine.on_fatal(error)
            raise

    def _dispatch_all(self) -> None:
        hi, dispatcher = self.log.max_position, self.engine.dispatcher
        while dispatcher.dispatched_position < hi:
            dispatcher.advance(hi)
        self._dispatch_error = None

    def _maintain_all(self) -> None:
        while not self._stopping.wait(self.config.derived_flush_interval_ms / 1000):
            try:
                self.maintain()
            except (FileSystemError, StoreFullError):
                pass  # The work is tried again.
            except BaseException as error:  # noqa: BLE001  The process must not go on.
                self.engine.on_fatal(error)
                return

    def stop_maintenance(self) -> None:
        """End the rounds and wait until a running one is done. Harmless without a thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def maintain(self) -> None:
        """Dispatch, sync the derived files, move the marks, delete what has expired.

        The maintenance thread calls it every `derived_flush_interval_ms`. Raises what the parts
        raise; a full disk or a failing deletion is tried again in the next round. `on_fatal` gets
        a failed sync first.
        """
        engine = self.engine
        with engine.failed_syncs_fatal():
            self._show_all()
            durable_position = engine.sync_derived()
            engine.save_times(min(engine.flush_service.durable_position, durable_position))
            now = time.monotonic_ns() // 1_000_000
            if now - self._retention_ran_ms >= self.config.retention_interval_ms:
                self._retention_ran_ms = now
                self.delete_expired()

    def delete_expired(self) -> int:
        """Run one round of retention now; return how many log files were deleted."""
        engine = self.engine
        with engine.failed_syncs_fatal():
            self._show_all()
            engine.sync_derived()  # Only records dispatched durably are deleted.
            usage = DiskUsage(*engine.fs.free_bytes(self.root))
            with self._put_lock:
                done = engine.retention.run_once(self._clock(), usage)
            min_position = self.log.min_position
            if min_position > self._derived_min_position:  # Also after one that failed half-way.
                engine.delete_expired_derived()
                self._derived_min_position = min_position
            return done.deleted_file_count

    def stats(self) -> StoreStats:
        """Return counters and gauges of now."""
        return self.engine.stats()

    # --- Closing ---

    def close(self) -> None:
        """Make everything durable, end the threads and release the directory.

        Views that are open stay valid. May be called twice. Raises SyncFailedError when something
        could not be made durable; the directory then counts as crashed.
        """
        self.stop_maintenance()  # First: a round that runs must not find the store closed.
        self.engine.close(self._finish)

    def _finish(self) -> None:
        self._dispatch_all()
        self.engine.finish(self._last_end_position, self._last_store_unix_ms)
