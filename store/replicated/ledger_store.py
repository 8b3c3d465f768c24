"""A replica's store of the container `ledger`: entries in a log of a consensus layer.

Owns the differences from `store.replicated.store`: entries come in two steps (prepare, append) or
raw from another replica, the tail may be cut off again as far as readers have not seen it, or the
whole log be replaced. Must not know elections, terms or peers: the owner
(node.replication.raft.storage.log) says what is committed.
"""

import time
from typing import Final

from store import format as fmt
from store.engine import Engine, StoreKind
from store.errors import CorruptionError, StoreError
from store.files.failpoints import hit
from store.ledger.entry import KIND_DATA, ChainLink
from store.ledger.ledger import Deletion, Ledger, PreparedEntry
from store.ledger.mending.damage import DamagedRange
from store.ledger.mending.fetched import RepairReport
from store.ledger.mending.mend import damage_of, repair_range
from store.ledger.raw import CheckedEntries
from store.log.record_log import AppendResult
from store.maintenance.retention import DiskState
from store.maintenance.scrub import LedgerScrubber
from store.opening import REPLICA_META_NAME, open_ledger
from store.record.stamp import QueueKey
from store.replicated.store import ReplicatedStore

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES


class ReplicaStore(ReplicatedStore[Ledger]):
    """A store of the container `ledger`."""

    _kind = StoreKind(open_ledger, REPLICA_META_NAME)

    def __init__(self, engine: Engine[Ledger]) -> None:
        """Take the opened engine; for `open` only."""
        super().__init__(engine)
        self.ledger: Final = engine.log
        self.ledger.recent.is_kept = True  # The loop appends and dispatches.
        self._append_prepared = self.ledger.append_prepared

    @property
    def dispatched_index(self) -> int:
        """Index of the last entry that readers see."""
        return self.ledger.last_index_before(self.engine.dispatcher.dispatched_position)

    # --- Appending ---

    def prepare(self, batch: bytes) -> PreparedEntry:
        """Do all of an append of encoded records that can fail. No byte is written.

        Raises RecordFormatError, LimitExceededError, TopicNameError (bad input), StoreFullError,
        FileSystemError or BusyError (try again), ClosedError.
        """
        engine, ledger = self.engine, self.ledger
        try:
            if engine.is_closed or engine.retention.state is DiskState.FULL:
                engine.check_open()
                engine.retention.check_writable()
            if not self._are_offsets_known:
                self.find_offsets()
            size_bytes = len(batch) + _HEADER
            has_room = ledger.has_room_at_hand(size_bytes)
            if not has_room:
                self._poll_files(ledger.files.file_count_for(size_bytes))
            now, last = engine.clock(), self._last_store_unix_ms
            now = now if now > last else last
            return ledger.prepare(KIND_DATA, batch, now_unix_ms=now, has_room=has_room)
        except StoreError as error:
            engine.refuse(error)
            raise

    def append_prepared(self, prepared: PreparedEntry, term: int) -> AppendResult:
        """Append the entry that `prepare` returned last; see `Ledger.append_prepared`."""
        began_ns = time.perf_counter_ns()
        result = self._append_prepared(prepared, term)
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

    # --- Queue offsets ---

    def find_offsets(self) -> None:
        """Find out the next queue offsets and the newest store time, from queues and log tail.

        Entries written raw or cut since are taken into account. `prepare` calls it when need be; a
        new leader calls it at once, so that no append waits for it. Errors as `Ledger.entry`.
        """
        ledger = self.ledger
        next_offsets = self.engine.queues.next_offsets()
        next_offsets.update(self.engine.dispatcher.tail_offsets(ledger.max_position))
        ledger.stamper.next_offsets = next_offsets
        newest = ledger.newest_store_unix_ms()
        self._last_store_unix_ms = max(self._last_store_unix_ms, newest)
        self._are_offsets_known = True

    # --- Cutting and replacing ---

    def truncate_from(self, index: int) -> None:
        """Cut the entry `index` and all behind it; durable on return. Waits for a running sync.

        Entries that readers have seen are never cut. Errors as `Ledger.truncate_from`: stop.
        """
        ledger = self.ledger
        position = ledger.tail_at(index - 1).end_position
        assert position >= self.dispatched_position, f"cut {index}, which readers have seen"
        self._are_offsets_known = False
        with self.engine.flush_service.truncation(position):
            self.engine.mark.lower(position, index - 1)
            hit("replica_store.before_cut")
            ledger.truncate_from(index, commit_index=index - 1)

    def restart(
        self, end_position: int, link: ChainLink, next_offsets: dict[QueueKey, int]
    ) -> None:
        """Replace the log by the empty one behind an entry, and the queues by empty ones.

        `next_offsets` are those of all queues there. Durable on return. After a crash half-way the
        store opens with parts of both: call it again before anything else. Raises StoreFullError,
        FileSystemError or SyncFailedError: stop.
        """
        self._are_offsets_known = False
        with self.engine.flush_service.truncation(end_position):
            self.engine.mark.lower(end_position, link.entry_index)
            hit("replica_store.before_reset")
            self.ledger.reset(link.entry_index + 1, end_position, link.chain_crc, link.term)
        hit("replica_store.before_restart")
        self.engine.dispatcher.restart(end_position, next_offsets)
        hit("replica_store.before_mark")
        self.engine.on_synced(end_position)
        self.engine.sync_derived()
        self.engine.mark.lower(end_position, link.entry_index)  # Lowers nothing, and syncs.

    # --- Durability ---

    @property
    def durable_index(self) -> int:
        """Index of the last entry that really is durable, in any flush mode."""
        return self.ledger.last_index_before(self.engine.flush_service.durable_position)

    # --- Maintenance: on its own thread ---

    def scrubber(self) -> LedgerScrubber:
        """Return the scrubber of the sealed part of the log; for one thread at a time."""
        return LedgerScrubber(self.ledger, self.engine.visible_position)

    def maintain(self) -> None:
        """Sync the derived files, make spare files, judge old ones; errors as `Store.maintain`."""
        with self.engine.failed_syncs_fatal():
            self.engine.check_open()
            self.engine.sync_derived()
            self.ledger.index.make_spare()
            self._judge_files()
            if self.ledger.has_detached:  # A deletion failed, and the next one may be far away.
                self.ledger.delete_detached()
                self.delete_expired_derived()

    def deletable_index(self, limit_index: int) -> int:
        """Return the last entry of the files that have to go, at most `limit_index`.

        first_index - 1 when there is none. Entries that are not dispatched durably stay.
        """
        deletion = self.deletion(limit_index)
        return self.ledger.first_index - 1 if deletion is None else deletion.start.link.entry_index

    def deletion(self, limit_index: int) -> Deletion | None:
        """Return the steps that delete the expired files whose entries are at most `limit_index`.

        Call it and `forget` on the owner's loop, the other steps anywhere, and then
        `delete_expired_derived`. Raises CorruptionError when a file does not begin with an entry.
        """
        ledger, newest = self.ledger, None
        # So an entry of the next file is dispatched, too: a cut never reaches the first entry.
        hi_position = min(self._due_position, self.engine.mark.mark.dispatched_durable_position)
        for count, file in enumerate(ledger.files.files[:-1], 1):
            if file.end_position > hi_position:
                break
            deletion = ledger.deletion(count)
            if deletion.start.link.entry_index > limit_index:
                break
            newest = deletion
        return newest

    def forget(self, deletion: Deletion) -> bool:
        """Take the files of a deletion out of the log, in memory; return False as `write_start`."""
        files = self.ledger.files.files[: deletion.file_count]
        if not deletion.forget():
            return False
        self._count_deleted(files)
        return True

    # --- Repair ---

    def damage_of(self, error: CorruptionError) -> list[DamagedRange]:
        """Return the damaged entries where a read met damage; see `mending.mend`."""
        return damage_of(self.ledger, error)

    def repair_range(self, lo_index: int, hi_index: int, raw_entries: bytes) -> RepairReport:
        """Put damaged entries back, durably; see `mending.mend`, also for errors."""
        engine = self.engine
        with engine.failed_syncs_fatal(), engine.put_lock:
            engine.check_open()
            hi = engine.visible_position()
            return repair_range(engine.fs, self.ledger, lo_index, hi_index, raw_entries, hi)
