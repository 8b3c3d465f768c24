"""A store whose log is replicated: appended records become visible only once they are confirmed.

Owns what both kinds of replicas do with an engine, beside `store.store.Store`: readers see the log
up to the position that the owner gave, and not to its end; room is made before a write, without
waiting; durability and retention for an owner with a loop. Must not know how much of the log is
confirmed, nor how either container is written: `ledger_store` and `shipped_store` (plain log) do.

Threads: one thread, the owner's loop, calls everything here that changes the log or the queues and
never waits for a disk in ordinary operation; `maintain` and the work of a deletion run on a thread
of their own beside it. The directory is that of any other store.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, Unpack

from store.config import StoreConfig
from store.derived.guard import AT_ONCE_SIZE_BYTES_MAX, DerivedScrubber
from store.derived.queues.consume_queue import ConsumeQueue
from store.durability.flush import Callback
from store.engine import Around, Closing, Engine, StoreKind
from store.errors import (
    BusyError,
    ClosedError,
    DerivedDamageError,
    DerivedFileError,
    PositionRangeError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files.mapped_file import MappedFile
from store.ledger.ledger import Ledger
from store.log.shipped_log import ShippedLog
from store.maintenance.retention import DELETE_COUNT_MAX, DiskState, DiskUsage
from store.opening import Recovery
from store.reads import Reads
from store.record.stamp import QueueKey
from store.stats import StoreStats

LogT = TypeVar("LogT", bound=Ledger | ShippedLog)


class ReplicatedStore(Closing, Generic[LogT]):
    """The part that both kinds of replicas share; the owner calls `maintain` of the kind.

    Use it as a context manager, or call `close`. Readers use `reads`.
    """

    _kind: ClassVar[StoreKind[Any]]

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig | None = None,
        *,
        before_running: Callable[[Recovery], None] | None = None,
        **around: Unpack[Around],
    ) -> Self:
        """Open a directory, making it if need be; arguments and errors as `Store.open`."""
        with Engine.opening(cls._kind, root, config, before_running, around) as engine:
            return cls(engine)

    def __init__(self, engine: Engine[LogT]) -> None:
        """Take the opened engine; for `open` only."""
        self.engine: Final = engine
        self.root, self.config, self.log = engine.root, engine.config, engine.log
        self.counters, self.recovery = engine.counters, engine.recovery
        self.reads: Final = Reads(engine)
        self.room_error: StoreError | None = None
        """Why `has_room` found none; None: there was some."""
        self._last_store_unix_ms = self._retention_ran_ms = 0
        self._are_offsets_known = False
        self.expired_position = 0
        """End of the files that the next deletion takes, if nothing else needs them; 0: of none."""
        self._judged_at = engine.log.changes.number
        """The number of the log's changes at which the expired files were found."""
        self._for_room: frozenset[int] = frozenset()
        """Positions of the files that have to go for room only."""
        self._has_more = False
        """Whether the last round reached its limit."""

    # --- Syncs ---

    def sync_here(self) -> bool:
        """Sync all written bytes on the caller's thread; see `FlushService.sync_here`."""
        return self.engine.flush_service.sync_here()

    def request_sync(self, callback: Callback) -> None:
        """Have everything that was written so far synced; see `FlushService.request_all`."""
        self.engine.flush_service.request_all(callback)

    # --- What is visible ---

    @property
    def dispatched_position(self) -> int:
        """Position up to which readers see the log."""
        return self.engine.dispatcher.dispatched_position

    def dispatch_to(self, end_position: int) -> None:
        """Let readers see the log up to the end of an entry or record, which is confirmed.

        Raises StoreFullError or FileSystemError: repeat the call; CorruptionError, QueueOrderError
        or DerivedFileError: stop.
        """
        dispatcher = self.engine.dispatcher
        while dispatcher.dispatched_position < end_position:
            dispatcher.advance(end_position)

    def next_offsets_at(self, position: int) -> dict[QueueKey, int]:
        """Return the next offset of each queue before the records from `position` on.

        Only for a position that readers see. Any thread, but not beside the work of a deletion, and
        not a loop's: damage is repaired, however much of the log has to be read.
        """
        assert position <= self.dispatched_position, f"{position} is not dispatched"
        offsets = {}
        for queue in self.engine.queues:
            offset = self._next_offset_at(queue, position)
            if offset:
                offsets[queue.topic.encode(), queue.queue_id] = offset
        return offsets

    def _next_offset_at(self, queue: ConsumeQueue, position: int) -> int:
        lo, hi = queue.min_offset, queue.max_offset
        for _ in range(hi.bit_length() + 2):  # Blocks that a search reads, at most.
            try:
                return queue.search(lo, hi, lambda at, _: at < position)
            except DerivedDamageError as error:
                self.engine.guard.mend(error)
        return queue.search(lo, hi, lambda at, _: at < position)

    def derived_scrubber(self) -> DerivedScrubber:
        """Return the scrubber that compares queues and index with the log; for one thread."""
        return DerivedScrubber(self.engine.guard, self.log, self.engine.visible_position)

    def serve_on_loop(self, tell: Callable[[str], None]) -> None:
        """Let no reader wait for more of the log than a moment from now on: it gets a retryable
        DerivedDamageError instead, for `mend_derived`. `tell`, on any thread, gets the reports of
        damage in derived files."""
        self.engine.guard.listen(tell)
        self.engine.guard.units.at_once_size_bytes_max = AT_ONCE_SIZE_BYTES_MAX

    def stop_mending(self) -> None:
        """Make `mend_unknown`, `mend_derived` and passes end soon, with a ClosedError."""
        self.engine.guard.stop()

    def mend_unknown(self) -> None:
        """Compare index files without checksums with the log; see `DerivedGuard.mend_unknown`."""
        self.engine.check_open()
        self.engine.guard.mend_unknown()

    def mend_derived(self, error: DerivedFileError) -> None:
        """Repair the damage that a reader met, beside all other work; see `DerivedGuard.mend`."""
        self.engine.check_open()
        self.engine.guard.mend(error)

    # --- Room ---

    def has_room(self, size_bytes: int) -> bool:
        """Make room for `size_bytes` in all; return whether they can be written without an error.

        Does not wait: a file that is not there yet is being made then. Raises SyncFailedError or
        ClosedError: stop.
        """
        try:
            log = self.log
            count = log.files.file_count_for(size_bytes)
            self._poll_files(count)
            log.reserve(size_bytes, count)
        except SyncFailedError as error:
            self.engine.on_fatal(error)
            raise
        except StoreError as error:
            self.engine.check_open()
            if not isinstance(error, BusyError):  # It says that the file is being made.
                self.room_error = error
            if isinstance(error, StoreFullError):
                self.engine.retention.note(error)
            return False
        self.room_error = None
        return True

    def _poll_files(self, count: int) -> None:
        """Raise BusyError unless the next `count` files can be taken without waiting."""
        files, warm_up = self.log.files, self.engine.warm_up
        while warm_up is not None and files.reserved_count < count:
            if not warm_up.poll(files.reserve_position()):
                raise BusyError("the allocation of the next log file", 0)
            files.reserve(files.reserved_count + 1)

    # --- Maintenance: on its own thread ---

    def _judge_files(self) -> None:
        """Judge the disk, and find out which files have to go, if it is time to."""
        now = time.monotonic_ns() // 1_000_000
        self.engine.retention.judge(DiskUsage(*self.engine.fs.free_bytes(self.root)))
        # Appends that are refused begin again soon after there is room, and files may come faster
        # than a round of each interval would delete them.
        is_urgent = self.engine.retention.state is DiskState.FULL or self._has_more
        if is_urgent or now - self._retention_ran_ms >= self.config.retention_interval_ms:
            self._retention_ran_ms = now
            self.find_expired()

    def find_expired(self) -> None:
        """Judge the disk and find out which files have to go; deletes nothing.

        What is found holds for the log as it is: none of it counts once that was cut or replaced.
        """
        changes, retention = self.log.changes, self.engine.retention
        if not changes.is_unchanged(self._judged_at):
            retention.forget_times()
        number, files = changes.number, self.log.files.files  # In this order.
        usage = DiskUsage(*self.engine.fs.free_bytes(self.root))
        try:
            count, for_room_count = retention.plan(self.engine.clock(), usage)
        except (PositionRangeError, ClosedError):
            if changes.is_unchanged(number):
                raise
            count = for_room_count = 0  # The log was cut or replaced meanwhile.
        going = files[:count]
        self._has_more = count >= DELETE_COUNT_MAX
        self._for_room = frozenset(file.position for file in going[count - for_room_count :])
        self.expired_position = going[-1].end_position if going else 0
        self._judged_at = number

    def delete_expired_derived(self) -> None:
        """Delete what queues and index have of expired records; see `Engine`."""
        self.engine.delete_expired_derived()

    @property
    def _due_position(self) -> int:
        """End of the files that have to go; 0 once the log was cut or replaced since. For the
        thread that changes the log."""
        is_same = self.log.changes.is_unchanged(self._judged_at)
        return self.expired_position if is_same else 0

    def _count_deleted(self, files: Sequence[MappedFile]) -> None:
        self.counters.deleted_file_count += len(files)
        for_room_count = sum(file.position in self._for_room for file in files)
        self.counters.deleted_for_room_count += for_room_count

    def stats(self) -> StoreStats:
        """Return counters and gauges of now."""
        return self.engine.stats()

    # --- Life ---

    def close(self) -> None:
        """Make everything durable, end the threads and release the directory; as `Store.close`."""
        self.engine.close(lambda: self.engine.finish(0, self._last_store_unix_ms))
