"""A store whose log is replicated: what is appended becomes visible only once it is committed.

Owns what differs from `store.store.Store`: entries come from outside in two steps (prepare, append)
or raw from another replica; the queues follow the commit index and not the end of the log; the tail
may be cut off again, or the whole log be replaced. Must not know elections, terms or peers: the
owner (node.ledger_log) says what is committed.

Threads: one thread, the owner's loop, calls everything here that changes the log or the queues and
never waits for a disk in ordinary operation; `maintain` and the steps of a `Deletion` run on a
thread of their own beside it. The directory is that of any other store.
"""

import time
from collections.abc import Callable
from typing import ClassVar, Final, NoReturn

from store import format as fmt
from store.commit_log import CommitLog
from store.dispatch import Unit
from store.errors import (
    BusyError,
    ClosedError,
    PositionRangeError,
    StoreError,
    SyncFailedError,
)
from store.failpoints import hit
from store.ledger import Ledger, PreparedEntry
from store.ledger_entry import KIND_DATA, Link
from store.ledger_extent import Deletion
from store.ledger_raw import CheckedEntries
from store.log import AppendResult
from store.record_check import store_timestamp
from store.retention import DiskState, DiskUsage
from store.stamp import QueueKey
from store.store import Store

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES


class ReplicaStore(Store):
    """A store of the container `ledger`, opened with `maintain=False`."""

    ledger: Ledger
    _is_replica: ClassVar[bool] = True

    def _make_parts(self) -> None:
        assert isinstance(self.log, Ledger), f"container {self.config.container}"
        self.ledger = self.log
        self._are_offsets_known = False
        self._expired_position = 0
        super()._make_parts()

    # --- What is visible ---

    def _readable_position(self, log: CommitLog | Ledger) -> int:
        """What was dispatched once was committed; of the rest nobody knows yet."""
        return min(self._mark.mark.dispatched_position, log.max_position)

    def _visible_position(self) -> int:
        return self._dispatcher.dispatched_position

    def _catch_up(self) -> None:
        self._check_open()

    def _dispatch_all(self) -> None:
        pass

    @property
    def dispatched_position(self) -> int:
        """Up to here readers see the log."""
        return self._dispatcher.dispatched_position

    @property
    def dispatched_index(self) -> int:
        """The last entry that readers see."""
        return self.ledger.last_index_before(self._dispatcher.dispatched_position)

    def watch(self, topic: bytes) -> None:
        """Remember what is dispatched of a topic from now on; see `Dispatcher.take_watched`."""
        self._dispatcher.watch(topic)

    def take_watched(self) -> list[Unit]:
        """Return what was dispatched of the watched topic since the last call."""
        return self._dispatcher.take_watched()

    def dispatch_to(self, end_position: int) -> None:
        """Let readers see the log up to the end of an entry, which is committed.

        Raises StoreFullError or FileSystemError: repeat the call; CorruptionError, QueueOrderError
        or DerivedFileError: stop.
        """
        dispatcher = self._dispatcher
        while dispatcher.dispatched_position < end_position:
            dispatcher.advance(end_position)

    # --- Appending ---

    def append(self, batch: bytes) -> NoReturn:
        """Refuse: what is appended here must have gone through `prepare`."""
        raise AssertionError("a replica's log is written by its consensus layer only")

    def prepare(self, batch: bytes) -> PreparedEntry:
        """Do all of an append of encoded records that can fail. Nothing is written.

        Raises RecordFormatError, LimitExceededError, TopicNameError (bad input), StoreFullError,
        FileSystemError or BusyError (try again), ClosedError.
        """
        try:
            self._check_open()
            self._retention.check_writable()
            if not self._are_offsets_known:
                self.find_offsets()
            self._poll_files(self.ledger.file_count_for(len(batch) + _HEADER))
            now = max(self._clock(), self._last_store_unix_ms)
            return self.ledger.prepare(KIND_DATA, batch, now_unix_ms=now)
        except StoreError as error:
            self._count_failure(error)
            if isinstance(error, SyncFailedError):
                self._on_fatal(error)
            raise

    def append_prepared(self, prepared: PreparedEntry, term: int) -> AppendResult:
        """Append what `prepare` returned last; see `Ledger.append_prepared`."""
        began_ns = time.perf_counter_ns()
        result = self.ledger.append_prepared(prepared, term)
        self._last_store_unix_ms = prepared.store_unix_ms
        duration_us = (time.perf_counter_ns() - began_ns) // 1000
        size_bytes = prepared.size_bytes - _HEADER
        self.counters.on_put(len(prepared.queue_offsets), size_bytes, duration_us)
        return result

    def append_own(self, kind: int, term: int, body: bytes) -> int:
        """Append an entry that holds no records; return its index. Errors as `Ledger.append`."""
        return self.ledger.append_entry(kind, term, body).entry_index

    def write_raw(self, checked: CheckedEntries, lo_index: int) -> None:
        """Append entries of another replica; see `Ledger.write_raw`."""
        self._are_offsets_known = False
        self.ledger.write_raw(checked, lo_index)

    def has_room(self, size_bytes: int) -> bool:
        """Say whether entries of so many bytes in all could be written now without an error.

        Does not wait: a file that is not there yet is being made then. Raises SyncFailedError or
        ClosedError: stop.
        """
        try:
            count = self.ledger.file_count_for(size_bytes)
            self._poll_files(count)
            self.ledger.reserve(size_bytes, count)
        except SyncFailedError as error:
            self._on_fatal(error)
            raise
        except StoreError:
            self._check_open()
            return False
        return True

    def _poll_files(self, count: int) -> None:
        """Raise BusyError unless the next `count` files can be taken without waiting."""
        files, warm_up = self.ledger.files, self._warm_up
        while warm_up is not None and files.reserved_count < count:
            if not warm_up.poll(files.reserve_position()):
                raise BusyError("the allocation of the next log file", 0)
            files.reserve(files.reserved_count + 1)

    # --- Queue offsets ---

    def find_offsets(self) -> None:
        """Find out the next queue offsets and the newest store time, from queues and log tail.

        What was written raw or cut since is taken into account. `prepare` does it when need be; a
        new leader calls it at once, so that no caller has to wait for it. Errors as `Ledger.entry`.
        """
        ledger, lo = self.ledger, self._dispatcher.dispatched_position
        next_offsets = self._queues.next_offsets()
        next_offsets.update(self._dispatcher.tail_offsets(ledger.max_position))
        ledger.stamper.next_offsets = next_offsets
        newest = self._newest_store_unix_ms(lo)
        self._last_store_unix_ms = max(self._last_store_unix_ms, newest)
        self._are_offsets_known = True

    def _newest_store_unix_ms(self, dispatched_position: int) -> int:
        """Return the store time of the last record; all records of an entry have the same."""
        ledger = self.ledger
        for index in range(ledger.last_index, ledger.first_index - 1, -1):
            header = ledger.header(index)
            if header.kind == KIND_DATA:
                size_bytes = min(header.body_size_bytes, fmt.RECORD_SIZE_BYTES_MIN)
                return store_timestamp(ledger.read(header.position + _HEADER, size_bytes))
        return 0

    # --- Cutting and replacing ---

    def truncate_from(self, index: int) -> None:
        """Cut the entry `index` and all behind it; durable on return. Waits for a running sync.

        What readers have seen is never cut. Errors as `Ledger.truncate_from`: stop.
        """
        ledger = self.ledger
        position = ledger.end_of(index - 1)
        assert position >= self.dispatched_position, f"cut {index}, which readers have seen"
        self._are_offsets_known = False
        with self._flush.truncation(position):
            self._marks.lower(position, index - 1)
            hit("replica_store.before_cut")
            ledger.truncate_from(index, commit_index=index - 1)

    def restart(self, end_position: int, link: Link, next_offsets: dict[QueueKey, int]) -> None:
        """Replace the log by the empty one behind an entry, and the queues by empty ones.

        `next_offsets` are those of all queues there. Durable on return. After a crash half-way the
        store opens with parts of both: call it again before anything else. Raises StoreFullError,
        FileSystemError or SyncFailedError: stop.
        """
        self._are_offsets_known = False
        with self._flush.truncation(end_position):
            self._marks.lower(end_position, link.entry_index)
            hit("replica_store.before_reset")
            self.ledger.reset(link.entry_index + 1, end_position, link.chain_crc, link.term)
        hit("replica_store.before_restart")
        self._dispatcher.restart(end_position, next_offsets)
        hit("replica_store.before_mark")
        self._marks.on_synced(end_position)
        self._sync_derived()
        self._marks.lower(end_position, link.entry_index)  # Lowers nothing, and syncs.
        self._expired_position = 0

    def next_offsets_at(self, position: int) -> dict[QueueKey, int]:
        """Return the next offset of each queue before the records from `position` on.

        Only for a position that readers see. Any thread, but not beside the steps of a Deletion.
        """
        assert position <= self.dispatched_position, f"{position} is not dispatched"
        found = {}
        for queue in self._queues:
            lo, hi = queue.min_offset, queue.max_offset
            offset = queue.search(lo, hi, lambda at, _: at < position)
            if offset:
                found[queue.topic.encode(), queue.queue_id] = offset
        return found

    # --- Durability ---

    def sync_here(self) -> bool:
        """Sync all that was written, on this thread; False if the flush thread is at it.

        Raises SyncFailedError: stop.
        """
        return self._flush.sync_here()

    def request_sync(self, callback: Callable[[StoreError | None], None]) -> None:
        """Have everything that was written so far synced; `callback(error or None)` on that thread.

        What is cut meanwhile needs no sync. An error is a SyncFailedError, or a ClosedError.
        """
        self._flush.request_all(callback)

    @property
    def durable_index(self) -> int:
        """The last entry that really is durable, whatever the flush mode."""
        return self.ledger.last_index_before(self._flush.durable_position)

    # --- Upkeep: on its own thread ---

    def _maintain(self) -> None:
        self._check_open()
        self._sync_derived()
        self.ledger.index.make_spare()
        now = time.monotonic_ns() // 1_000_000
        # Appends that are refused begin again soon after there is room.
        is_full = self._retention.state is DiskState.FULL
        if is_full or now - self._retention_ran_ms >= self.config.retention_interval_ms:
            self._retention_ran_ms = now
            self.find_expired()

    def find_expired(self) -> None:
        """Judge the disk and find out which files have to go; deletes nothing."""
        usage, reset_count = DiskUsage(*self._fs.free_bytes(self.root)), self.ledger.reset_count
        try:
            count = self._retention.plan(self._clock(), usage)
        except (PositionRangeError, ClosedError):
            if self.ledger.reset_count == reset_count:
                raise
            count = 0  # The log was replaced beside this look at it.
        files = self.ledger.files.files
        expired_position = files[count - 1].end_position if 0 < count <= len(files) else 0
        # A log that was replaced since is judged in the next round.
        is_same = self.ledger.reset_count == reset_count
        self._expired_position = expired_position if is_same else 0

    def deletable_index(self, limit_index: int) -> int:
        """Return the last entry of the files that have to go, at most `limit_index`.

        first_index - 1 when there is none. What is not dispatched durably stays.
        """
        deletion = self.deletion(limit_index)
        return self.ledger.first_index - 1 if deletion is None else deletion.start.link.entry_index

    def deletion(self, limit_index: int) -> Deletion | None:
        """Return the steps that delete the expired files whose entries are at most `limit_index`.

        Call it and `Deletion.forget` on the owner's loop, the other steps anywhere, and then
        `delete_expired_derived`. Raises CorruptionError when a file does not begin with an entry.
        """
        ledger, found = self.ledger, None
        # So an entry of the next file is dispatched, too: what is cut never is the first entry.
        hi_position = min(self._expired_position, self._mark.mark.dispatched_durable_position)
        for count, file in enumerate(ledger.files.files[:-1], 1):
            if file.end_position > hi_position:
                break
            deletion = ledger.deletion(count)
            if deletion.start.link.entry_index > limit_index:
                break
            found = deletion
        return found

    def delete_expired_derived(self) -> None:
        """Delete the parts of queues and index whose records are gone. Raises FileSystemError."""
        self._dispatcher.delete_expired(self.ledger.min_position)
        self._sync_derived()
