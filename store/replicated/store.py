"""A store whose log is replicated: appended records become visible only once they are confirmed.

Owns the parts that both kinds of replicas share beyond `store.store.Store`: readers see the log up
to the position that the owner gave, and not to its end; room is made before a write, without
waiting; durability and retention for an owner with a loop. Must not know how much of the log is
confirmed, nor how either container is written: `ledger_store` and `shipped_store` (plain log) do.

Threads: one thread, the owner's loop, calls everything here that changes the log or the queues and
never waits for a disk in ordinary operation; `maintain` and the work of a deletion run on a thread
of their own beside it. The directory is that of any other store.
"""

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from store.derived.dispatch import Unit
from store.derived.guard import AT_ONCE_SIZE_BYTES_MAX, DerivedScrubber
from store.derived.queues.consume_queue import ConsumeQueue
from store.errors import (
    BusyError,
    ClosedError,
    DerivedDamageError,
    DerivedFileError,
    PositionRangeError,
    StoreError,
    SyncFailedError,
)
from store.files.mapped_file import MappedFile
from store.ledger.ledger import Ledger
from store.log.commit_log import CommitLog
from store.log.shipped_log import ShippedLog
from store.record.stamp import QueueKey
from store.store import Store
from store.upkeep.retention import DELETE_COUNT_MAX, DiskState, DiskUsage


class ReplicatedStore(Store):
    """A replica's store, opened with `maintain=False`."""

    def _make_parts(self) -> None:
        self._are_offsets_known = False
        self._expired_position = 0
        self._for_room: frozenset[int] = frozenset()
        """Positions of the files that have to go for room only."""
        self._has_more = False
        """Whether the last round reached its limit."""
        super()._make_parts()

    @property
    def _replicated(self) -> Ledger | ShippedLog:
        """The log, as its own kind."""
        raise NotImplementedError

    # --- What is visible ---

    def _readable_position(self, log: CommitLog | Ledger) -> int:
        """Return the dispatched position: up to there the log was confirmed once."""
        return min(self._mark.mark.dispatched_position, log.max_position)

    def _visible_position(self) -> int:
        return self._dispatcher.dispatched_position

    def _catch_up(self) -> None:
        self._check_open()

    def _dispatch_all(self) -> None:
        pass

    @property
    def dispatched_position(self) -> int:
        """Position up to which readers see the log."""
        return self._dispatcher.dispatched_position

    def watch(self, topic: bytes) -> None:
        """Remember the dispatched records of a topic from now on; see `Dispatcher.take_watched`."""
        self._dispatcher.watch(topic)

    def take_watched(self) -> list[Unit]:
        """Return the records of the watched topic that were dispatched since the last call."""
        return self._dispatcher.take_watched()

    def dispatch_to(self, end_position: int) -> None:
        """Let readers see the log up to the end of an entry or record, which is confirmed.

        Raises StoreFullError or FileSystemError: repeat the call; CorruptionError, QueueOrderError
        or DerivedFileError: stop.
        """
        dispatcher = self._dispatcher
        while dispatcher.dispatched_position < end_position:
            dispatcher.advance(end_position)

    def next_offsets_at(self, position: int) -> dict[QueueKey, int]:
        """Return the next offset of each queue before the records from `position` on.

        Only for a position that readers see. Any thread, but not beside the work of a deletion, and
        not a loop's: damage is repaired, however much of the log has to be read.
        """
        assert position <= self.dispatched_position, f"{position} is not dispatched"
        found = {}
        for queue in self._queues:
            offset = self._next_offset_at(queue, position)
            if offset:
                found[queue.topic.encode(), queue.queue_id] = offset
        return found

    def _next_offset_at(self, queue: ConsumeQueue, position: int) -> int:
        lo, hi = queue.min_offset, queue.max_offset
        for _ in range(hi.bit_length() + 2):  # Blocks that a search reads, at most.
            try:
                return queue.search(lo, hi, lambda at, _: at < position)
            except DerivedDamageError as error:
                self._guard.mend(error)
        return queue.search(lo, hi, lambda at, _: at < position)

    def derived_scrubber(self) -> DerivedScrubber:
        """Return the scrubber that compares queues and index with the log; for one thread."""
        return DerivedScrubber(self._guard, self._replicated, self._visible_position)

    def serve_on_loop(self, tell: Callable[[str], None]) -> None:
        """Let no reader wait for more of the log than a moment from now on: it gets a retryable
        DerivedDamageError instead, for `mend_derived`. `tell`, on any thread, gets the reports of
        damage in derived files."""
        self._guard.listen(tell)
        self._guard.units.at_once_size_bytes_max = AT_ONCE_SIZE_BYTES_MAX

    def stop_mending(self) -> None:
        """Make `mend_unknown`, `mend_derived` and passes end soon, with a ClosedError."""
        self._guard.stop()

    def mend_unknown(self) -> None:
        """Compare index files without checksums with the log; see `DerivedGuard.mend_unknown`."""
        self._check_open()
        self._guard.mend_unknown()

    def mend_derived(self, error: DerivedFileError) -> None:
        """Repair the damage that a reader met, beside all other work; see `DerivedGuard.mend`."""
        self._check_open()
        self._guard.mend(error)

    # --- Room ---

    def append(self, batch: bytes) -> NoReturn:
        """Refuse: a batch for a replica must go through `prepare`."""
        raise AssertionError("a replica's log is written by its replication layer only")

    def has_room(self, size_bytes: int) -> bool:
        """Make room for `size_bytes` in all; return whether they can be written without an error.

        Does not wait: a file that is not there yet is being made then. Raises SyncFailedError or
        ClosedError: stop.
        """
        try:
            log = self._replicated
            count = log.file_count_for(size_bytes)
            self._poll_files(count)
            log.reserve(size_bytes, count)
        except SyncFailedError as error:
            self._on_fatal(error)
            raise
        except StoreError:
            self._check_open()
            return False
        return True

    def _poll_files(self, count: int) -> None:
        """Raise BusyError unless the next `count` files can be taken without waiting."""
        files, warm_up = self.log.files, self._warm_up
        while warm_up is not None and files.reserved_count < count:
            if not warm_up.poll(files.reserve_position()):
                raise BusyError("the allocation of the next log file", 0)
            files.reserve(files.reserved_count + 1)

    # --- Durability ---

    def sync_here(self) -> bool:
        """Sync all written bytes on this thread; return False if the flush thread is busy.

        Raises SyncFailedError: stop.
        """
        return self._flush.sync_here()

    def request_sync(self, callback: Callable[[StoreError | None], None]) -> None:
        """Have everything that was written so far synced; `callback(error or None)` on that thread.

        Bytes that are cut meanwhile need no sync. An error is a SyncFailedError, or a ClosedError.
        """
        self._flush.request_all(callback)

    # --- Maintenance: on its own thread ---

    def _maintain(self) -> None:
        self._check_open()
        self._sync_derived()
        self._make_spare()
        now = time.monotonic_ns() // 1_000_000
        # Appends that are refused begin again soon after there is room, and files may come faster
        # than a round of each interval would delete them.
        is_urgent = self._retention.state is DiskState.FULL or self._has_more
        if is_urgent or now - self._retention_ran_ms >= self.config.retention_interval_ms:
            self._retention_ran_ms = now
            self.find_expired()

    def _make_spare(self) -> None:
        """Make ahead what the next appends will need, beyond files of the log."""

    def find_expired(self) -> None:
        """Judge the disk and find out which files have to go; deletes nothing."""
        log = self._replicated
        usage, reset_count = DiskUsage(*self._fs.free_bytes(self.root)), log.reset_count
        try:
            count, for_room_count = self._retention.plan(self._clock(), usage)
        except (PositionRangeError, ClosedError):
            if log.reset_count == reset_count:
                raise
            count = for_room_count = 0  # The log was cut or replaced meanwhile.
        files = log.files.files
        if log.reset_count != reset_count or count > len(files):
            count = 0  # A log that was replaced since is judged in the next round.
        going = files[:count]
        self._has_more = count >= DELETE_COUNT_MAX
        self._for_room = frozenset(file.position for file in going[count - for_room_count :])
        self._expired_position = going[-1].end_position if going else 0

    def _count_deleted(self, files: Sequence[MappedFile]) -> None:
        """Count files that were taken out of the log."""
        self.counters.deleted_file_count += len(files)
        for_room_count = sum(file.position in self._for_room for file in files)
        self.counters.deleted_for_room_count += for_room_count

    def delete_expired_derived(self) -> None:
        """Delete the parts of queues and index whose records are gone. Raises FileSystemError."""
        self._dispatcher.delete_expired(self.log.min_position)
        self._sync_derived()
