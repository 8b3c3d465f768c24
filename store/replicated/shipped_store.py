"""A replica's store of the container `commit_log`: a plain log that its master ships as raw bytes.

Owns the differences from `store.replicated.store`: batches are written in two steps, raw bytes come
from another replica, and the end of the log may be cut off again, also records that readers have
seen (the readers of an asynchronous group may see records that are lost later). Bytes are set aside
before they are cut. Must not know epochs, roles or which replica confirms: the owner
(node.replication.ha.storage.log) does.

Every change that removes records keeps an order: the durable mark first, then queues and index,
then the log. So after a crash at any step the mark claims no more than there is, and derived files
are never ahead of the log.
"""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from store.engine import Engine, StoreKind
from store.errors import (
    StoreError,
    SyncFailedError,
)
from store.files.failpoints import hit
from store.log.cut_file import CutFile, write_cut_file
from store.log.record_log import AppendResult
from store.log.shipped_log import CheckedRaw, PreparedBatch, ShippedLog
from store.maintenance.scrub import CommitLogScrubber
from store.opening import SHIPPED_META_NAME, open_plain_log
from store.record.stamp import QueueKey
from store.replicated.store import ReplicatedStore


class ShippedStore(ReplicatedStore[ShippedLog]):
    """A store of the container `commit_log`."""

    _kind = StoreKind(partial(open_plain_log, ShippedLog), SHIPPED_META_NAME)

    def __init__(self, engine: Engine[ShippedLog]) -> None:
        """Take the opened engine; for `open` only."""
        super().__init__(engine)
        self.shipped: Final = engine.log
        self._last_store_unix_ms = engine.recovery.store_unix_ms
        self._append_prepared = self.shipped.append_prepared

    # --- Writing ---

    def prepare(self, batch: bytes) -> PreparedBatch:
        """Do all of an append of encoded records that can fail. No byte is written.

        Raises RecordFormatError, LimitExceededError, TopicNameError (bad input), StoreFullError,
        FileSystemError or BusyError (try again), ClosedError.
        """
        try:
            self.engine.check_open()
            self.engine.retention.check_writable()
            if not self._are_offsets_known:
                self.find_offsets()
            self._poll_files(self.shipped.files.file_count_for(len(batch)))
            now = max(self.engine.clock(), self._last_store_unix_ms)
            return self.shipped.prepare(batch, now_unix_ms=now)
        except StoreError as error:
            self.engine.refuse(error)
            raise

    def append_prepared(self, prepared: PreparedBatch) -> AppendResult:
        """Append the batch that `prepare` returned last; see `ShippedLog.append_prepared`."""
        began_ns = time.perf_counter_ns()
        result = self._append_prepared(prepared)
        self._last_store_unix_ms = prepared.store_unix_ms
        duration_us = (time.perf_counter_ns() - began_ns) // 1000
        self.counters.on_put(len(prepared.queue_offsets), prepared.size_bytes, duration_us)
        return result

    def write_raw(self, checked: CheckedRaw) -> None:
        """Append bytes of another replica; see `ShippedLog.write_raw`."""
        self._are_offsets_known = False
        self.shipped.write_raw(checked)
        self._last_store_unix_ms = max(self._last_store_unix_ms, checked.last_store_unix_ms)

    # --- Queue offsets ---

    def find_offsets(self) -> None:
        """Find out the next queue offsets, from queues and log tail.

        Bytes written raw or cut since are taken into account. `prepare` calls it when need be; a
        new master calls it at once, so that no append waits for it. Raises CorruptionError.
        """
        log = self.shipped
        next_offsets = self.engine.queues.next_offsets()
        next_offsets.update(self.engine.dispatcher.tail_offsets(log.end_position))
        log.stamper.next_offsets = next_offsets
        self._are_offsets_known = True

    def set_aside(self, lo: int, hi: int, epoch: int) -> CutFile:
        """Copy the end of the log into a file of `cut/`, durably. The log does not change.

        Raises StoreFullError or FileSystemError (repeat it before anything else), CorruptionError,
        SyncFailedError: stop.
        """
        files = self.shipped.files
        assert hi == self.shipped.end_position, f"cut to {hi}, end {self.shipped.end_position}"

        def read(position: int, size_bytes: int) -> bytes:
            file = files.file_at(position)
            return file.read(position, min(size_bytes, file.end_position - position))

        return write_cut_file(
            self.engine.fs,
            self.root,
            epoch=epoch,
            lo=lo,
            hi=hi,
            read=read,
            now_unix_ms=self.engine.clock(),
        )

    def cut(self, position: int) -> None:
        """Cut everything from a position, where a record begins; durable on return.

        Waits for a running sync. Raises SyncFailedError: stop.
        """
        with self._taking_away(position):
            self.engine.mark.lower(position, -1)
            hit("shipped_store.before_queues")
            with self.engine.guard.waiting():
                self.engine.dispatcher.truncate(position)
            hit("shipped_store.before_cut")
            self.shipped.cut(position)

    def set_all_aside(self, epoch: int) -> None:
        """Set the whole log aside; it is empty then. Durable on return.

        The last file goes into `cut/`; the others, of which there may be hundreds of GiB, keep
        their bytes and get another name. Readers must see all of the log: so a crash half-way
        leaves what retention might have left, a log that begins later. Raises StoreFullError or
        FileSystemError (nothing has changed), SyncFailedError: stop.
        """
        log = self.shipped
        last, end = log.files.files[-1].position, log.end_position
        assert self.dispatched_position == end, f"{self.dispatched_position} of {end}"
        self._delete_detached()  # Else a gap is left behind it. Syncs queues and index, too.
        if last < end:
            self.set_aside(last, end, epoch)
        hit("shipped_store.before_aside")
        with self._taking_away(end):
            log.set_first_aside()
        self.cut(last)

    def begin_at(self, position: int, next_offsets: dict[QueueKey, int]) -> None:
        """Let the empty log begin at a position, where a file begins, with these queue offsets.

        Durable on return. After a crash half-way the log is empty, there or elsewhere: call it
        again before anything is written. Raises SyncFailedError: stop.
        """
        log = self.shipped
        assert log.end_position <= log.min_position, f"log up to {log.end_position}"
        with self._taking_away(position):
            self.engine.mark.lower(0, -1)  # For a moment there is no file at all.
            hit("shipped_store.before_begin")
            log.begin_at(position)
            hit("shipped_store.before_offsets")
            self.engine.dispatcher.restart(position, next_offsets)
            self.engine.on_synced(position)
        self.engine.sync_derived()
        self.engine.mark.lower(position, -1)  # Lowers nothing, and syncs.

    @contextmanager
    def _taking_away(self, position: int) -> Iterator[None]:
        """Keep syncs and maintenance away, and make every error in the body a final one."""
        self._are_offsets_known = False
        try:
            with self.engine.derived_lock, self.engine.flush_service.truncation(position):
                yield
        except SyncFailedError as error:
            self.engine.on_fatal(error)
            raise
        except (StoreError, OSError) as error:
            # Part of it is done, and memory and disk may differ.
            failure = SyncFailedError(self.root, getattr(error, "errno_value", errno.EIO))
            self.engine.on_fatal(failure)
            raise failure from error

    # --- Durability ---

    @property
    def durable_position(self) -> int:
        """Position before which all bytes are durable, or gone. Any thread."""
        return max(self.engine.flush_service.durable_position, self.shipped.min_position)

    def mark_durable(self) -> None:
        """Sync the log as it was opened, and write the mark: the owner promises all of it now.

        After a power loss the mark may be older. After a kill the next opening must not take the
        bytes behind the mark for ones that were never synced. Raises SyncFailedError: stop.
        """
        self.engine.on_synced(self.shipped.sync())

    # --- Maintenance ---

    def scrubber(self) -> CommitLogScrubber:
        """Return the scrubber of the sealed part of the log; for one thread at a time."""
        return CommitLogScrubber(self.shipped, self.engine.visible_position)

    def maintain(self) -> None:
        """Sync the derived files and judge old files of the log; errors as `Store.maintain`."""
        with self.engine.failed_syncs_fatal():
            self.engine.check_open()
            self.engine.sync_derived()
            self._judge_files()

    def detach_expired(self, limit_position: int) -> Callable[[], None] | None:
        """Take expired files that end at or before a limit out of the log, in memory only.

        On the owner's loop. The returned work deletes the files, on the thread of `maintain`; when
        it raises FileSystemError, the next call returns it again. None: no file to delete. Files
        that are not durably dispatched stay.
        """
        log = self.shipped
        hi = min(
            self._due_position,
            limit_position,
            self.durable_position,
            self.engine.mark.mark.dispatched_durable_position,
        )
        count = sum(file.end_position <= hi for file in log.files.files[:-1])
        if count:
            self._count_deleted(log.files.detach_first(count))
        return self._delete_detached if log.files.has_detached else None

    def _delete_detached(self) -> None:
        self.shipped.files.delete_detached()
        self.delete_expired_derived()
