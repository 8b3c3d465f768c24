"""The ledger: DLedger entries with checksums and a chain, physically equal on all replicas.

Owns appending (own batches and entries of a leader) and syncing; must not know elections, quorums
or callers that wait for durability. Cutting and replacing the log is in `store.ledger.extent`. One
writer at a time; reads and a sync may run beside it. `store.ledger.recovery.recover_ledger` opens
one.

The decision a reader may question: where an entry lies follows from the sizes of the entries before
it and from nothing else. So the blank at a file end is written only together with the entry that
did not fit, after the next file was allocated: a failed append leaves no trace, and a replica that
takes over places its next entry where all others expect it.
Sources: design 4.2, 4.3; storage-formats 7.1 to 7.4; RocketMQ DLedgerCommitLog.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.errors import (
    CorruptionError,
    LimitExceededError,
)
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource
from store.ledger.entry import KIND_DATA, KINDS, place_entry, write_header
from store.ledger.entry_runs import entry_runs
from store.ledger.extent import LedgerExtent
from store.ledger.raw import CheckedEntries, check_entries, part_from
from store.ledger.reader import Tail
from store.ledger.recent import RecentBodies
from store.ledger.records import record_runs
from store.ledger.verify import verify_range
from store.log.checked import CheckedRanges
from store.log.record_log import AppendResult, EntryRun
from store.record.stamp import QueueKey, Stamped, Stamper

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_KIND_AT: Final = 32
_DATA: Final = KIND_DATA.to_bytes(4, "big")


class PreparedEntry(NamedTuple):
    """An entry that was checked and stamped for its place, and has room there.

    `record_positions`, `queue_offsets` and `next_offsets` are what `Stamper.stamp` returned.
    """

    kind: int
    tail: Tail
    position: int
    size_bytes: int
    record_positions: list[int]
    queue_offsets: list[int]
    next_offsets: dict[QueueKey, int]
    store_unix_ms: int


class Ledger(LedgerExtent):
    """A `RecordLog` of entries. Every entry is an atomic batch."""

    has_full_checksums: Final = True

    def __init__(
        self, fs: FileSystem, root: str, config: StoreConfig, source: FileSource | None = None
    ) -> None:
        super().__init__(fs, root, config, source)
        self.stamper: Final = Stamper(config)
        """The owner sets its queue offsets back after an open or a cut."""
        self.checked: Final = CheckedRanges()
        self.recent: Final = RecentBodies()
        """The owner turns it on, and clears it with each cut."""
        self.term = 0
        """The current term, set by the owner; `append` writes in it."""
        self._entry_size_bytes_max = min(
            config.batch_size_bytes_max,
            fmt.ENTRY_SIZE_BYTES_MAX,
            config.file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN,
        )
        self._scratch = bytearray(min(self._entry_size_bytes_max, 256 * 1024))
        self._scratch_view = memoryview(self._scratch)
        self._index_sync_due = False
        """Whether a data file was completed since the index was synced."""
        self._prepared: PreparedEntry | None = None
        """The entry in the scratch, until it is appended."""
        self._mapped: MappedFile | None = None
        """The last file, once it was found mapped."""

    # --- Durability ---

    @property
    def flushed_position(self) -> int:
        """Position before which all bytes are durable: an entry's end, never inside of a blank."""
        position = self.files.flushed_position
        for lo, hi in self._blanks:
            if lo < position <= hi:
                return lo
        return position

    @property
    def durable_index(self) -> int:
        """Index of the last entry that is wholly durable; first_index - 1 for none."""
        return self.last_index_before(self.flushed_position)

    def sync(self) -> int:
        """Make all appended entries durable; return the position reached. SyncFailedError: stop.

        The sync that completes a data file syncs the index, too, so recovery of later files can
        rely on its units of earlier ones.
        """
        self.files.sync()
        if self._index_sync_due:
            self._index_sync_due = False  # Before the sync: a roll during it asks for another one.
            self.index.files.sync()
        return self.flushed_position

    # --- Appending ---

    def append(self, batch: bytes, *, now_unix_ms: int) -> AppendResult:
        """Check, patch and append encoded records as one entry of the current term, all or none.

        No byte is durable yet. Raises RecordFormatError, LimitExceededError, TopicNameError,
        StoreFullError, FileSystemError or BusyError; nothing was written then, not even a blank.
        """
        return self.append_entry(KIND_DATA, self.term, batch, now_unix_ms=now_unix_ms)

    def append_entry(
        self, kind: int, term: int, body: bytes, *, now_unix_ms: int = 0
    ) -> AppendResult:
        """Append one entry of any kind and return where it landed; errors as `append`.

        The body of kind 0 is 1 to n records, patched in a scratch copy; other kinds are opaque,
        and the result has no record positions then. `term` is not below the last entry's.
        """
        return self.append_prepared(self.prepare(kind, body, now_unix_ms=now_unix_ms), term)

    def prepare(self, kind: int, body: bytes, *, now_unix_ms: int = 0) -> PreparedEntry:
        """Do all of an append that can fail; errors as `append`.

        `append_prepared` may follow or not: no byte was written, and the next entry of any kind
        takes the place.
        """
        if self._unfinished is not None:
            self._finish()
        tail, size_bytes = self._tail, len(body) + _HEADER
        assert kind in KINDS, f"kind {kind}"
        if size_bytes > self._entry_size_bytes_max:
            raise LimitExceededError("entry", size_bytes, self._entry_size_bytes_max)
        if size_bytes > len(self._scratch):
            self._scratch = bytearray(self._entry_size_bytes_max)
            self._scratch_view = memoryview(self._scratch)
        scratch = self._scratch
        position = place_entry(tail.end_position, size_bytes, self.files.file_size_bytes)
        scratch[_HEADER:size_bytes] = body
        stamped: Stamped = ([], [], {})
        if kind == KIND_DATA:
            stamped = self.stamper.stamp(body, scratch, _HEADER, position + _HEADER, now_unix_ms)
        self.index.prepare(tail.link.entry_index + 1)
        self._reserve_for(position)
        prepared = PreparedEntry(kind, tail, position, size_bytes, *stamped, now_unix_ms)
        self._prepared = prepared
        return prepared

    def append_prepared(self, prepared: PreparedEntry, term: int) -> AppendResult:
        """Append the entry that `prepare` returned last; the log has not changed since.

        Cannot fail, except by an error after which memory and disk may differ: stop the process.
        """
        kind, tail, position, size_bytes, *_, now_unix_ms = prepared
        assert prepared is self._prepared, "another entry was prepared since"
        assert tail is self._tail, f"prepared behind {tail}, now there is {self._tail}"
        assert term >= tail.link.term, f"term {term} after {tail.link.term}"
        self._prepared = None
        body = bytes(self._scratch_view[_HEADER:size_bytes])
        link = write_header(self._scratch_view, body, kind, tail.link, term, position)
        file = self._file_for(position)
        hit("ledger.before_append")
        landed = file.append(self._scratch_view[:size_bytes])
        assert landed == position, f"stamped for {position}, landed at {landed}"
        unit = fmt.INDEX_UNIT.pack(fmt.ENTRY_MAGIC, position, size_bytes, link.entry_index, term)
        self.index.put(link.entry_index, unit)
        if term != tail.link.term:
            self._runs = self._runs.extended([(link.entry_index, term)])
        end_position = position + size_bytes
        self._tail = Tail(link, end_position)
        if kind == KIND_DATA:
            self.recent.add(position, body)
        self.stamper.publish(prepared.next_offsets)
        hit("ledger.after_append")
        return AppendResult(
            position,
            end_position,
            link.entry_index,
            prepared.record_positions,
            prepared.queue_offsets,
            now_unix_ms,
        )

    def append_raw(self, data: bytes) -> tuple[int, int]:
        """Append consecutive whole entries, as `read_range` of a peer returned them.

        Every byte is checked before anything is written. Returns (first index, last index). Nothing
        is durable yet, queue offsets are not touched. Raises ForeignEntryError (drop the peer's
        connection), StoreFullError, FileSystemError or BusyError; nothing was written then.
        """
        checked = self.check_raw(data, self.last_index)
        self.write_raw(checked, checked.first_index)
        return checked.first_index, self.last_index

    def check_raw(self, data: bytes, before_index: int) -> CheckedEntries:
        """Check raw entries that follow an entry of this log, or the one before the log.

        Raises ForeignEntryError; PositionRangeError or CorruptionError as `entry`.
        """
        if self._unfinished is not None:
            self._finish()
        link, end = self.tail_at(before_index)
        return check_entries(data, end, link, self.files.file_size_bytes)

    def write_raw(self, checked: CheckedEntries, lo_index: int) -> None:
        """Append the checked entries from `lo_index` on, which is the next index.

        Raises StoreFullError, FileSystemError or BusyError; nothing was written then.
        """
        assert lo_index == self.last_index + 1, f"write {lo_index} after {self.last_index}"
        assert checked.first_index <= lo_index < checked.hi_index, f"{lo_index} is not in there"
        if lo_index == checked.first_index:
            assert checked.before == self._tail.link, f"{checked.before} is not {self._tail.link}"
        pieces = [piece for piece in checked.pieces if piece.link.entry_index >= lo_index]
        self.index.prepare(lo_index, checked.hi_index - lo_index)
        self._reserve_for(part_from(checked, pieces[0], lo_index)[1], len(pieces) - 1)
        hit("ledger.before_append")
        with memoryview(checked.data) as view:
            for piece in pieces:
                at, position, units = part_from(checked, piece, lo_index)
                file = self._file_for(position)
                landed = file.append(view[at : piece.hi])
                assert landed == position, f"checked for {position}, landed at {landed}"
                self.index.put(self.last_index + 1, units)
                end = position + piece.hi - at
                changes = [c for c in checked.term_changes if c[0] <= piece.link.entry_index]
                self._extend_runs(changes, lo_index)
                self._tail = Tail(piece.link, end)
                if self.recent.is_kept:
                    self._keep_recent(checked.data, at - position, units)
        hit("ledger.after_append")

    def _keep_recent(self, data: bytes, shift: int, units: bytes) -> None:
        """Keep the bodies of entries that were written; the one at `position` is at byte
        `position + shift` of `data`."""
        for _, position, size_bytes, _, _ in fmt.INDEX_UNIT.iter_unpack(units):
            at = position + shift
            if data[at + _KIND_AT : at + _KIND_AT + 4] == _DATA:
                self.recent.add(position, data[at + _HEADER : at + size_bytes])

    def _extend_runs(self, changes: list[tuple[int, int]], lo_index: int) -> None:
        """Note the terms that began in [lo_index, ...) and are not known yet."""
        last = self._tail.link.term
        new = [change for change in changes if change[0] >= lo_index and change[1] > last]
        if new:
            self._runs = self._runs.extended(new)

    def reserve(self, size_bytes: int, file_count: int) -> None:
        """Make room for entries of `size_bytes` in all, raw or not; the next writes cannot fail.

        `file_count` is that of `file_count_for`. Raises StoreFullError, FileSystemError or
        BusyError; what was reserved before stays.
        """
        self.index.prepare(self.last_index + 1, size_bytes // _HEADER + 1)
        if file_count:
            self.files.reserve(file_count)

    def file_count_for(self, size_bytes: int) -> int:
        """Return how many more files entries of `size_bytes` in all may need."""
        files, file_size_bytes = self.files.files, self.files.file_size_bytes
        if files and size_bytes + fmt.BLANK_SIZE_BYTES_MIN <= files[-1].free_bytes:
            return 0
        # Two neighbours together do not fit into one file, else they would lie in one.
        return 1 + 2 * size_bytes // file_size_bytes

    def _reserve_for(self, position: int, more_count: int = 0) -> None:
        """Have the file at `position` mapped, and `more_count` files behind it."""
        files = self.files.files
        last = files[-1] if files else None
        is_last = last is not None and last.wrote_position == position
        if last is not None and is_last and last is not self._mapped:
            last.append(b"")
            self._mapped = last
        count = more_count if is_last else more_count + 1
        if count:
            self.files.reserve(count)

    def _file_for(self, position: int) -> MappedFile:
        """Return the file whose next byte is `position`; the last one is closed if need be."""
        files = self.files.files
        if files and files[-1].wrote_position == position:
            return files[-1]
        if not files:
            assert self._tail.end_position == 0, f"no file, but {self._tail}"
            return self.files.roll()
        self._blanks = tuple(b for b in self._blanks if b[1] >= self.files.flushed_position)
        file = self.files.roll(fill=self._write_blank)
        assert file.position == position, f"wanted {position}, rolled to {file.position}"
        self.files.seal_complete()
        return file

    def _write_blank(self, last: MappedFile, following: MappedFile) -> None:
        """Close a file. Only the first call can fail: the entry follows for sure."""
        following.append(b"")  # Maps it.
        lo, hi = last.wrote_position, last.end_position
        assert lo == self._tail.end_position, f"{last.path}: end {lo}, last entry {self._tail}"
        assert hi - lo >= fmt.BLANK_SIZE_BYTES_MIN, f"{last.path}: no room for a blank"
        self._blanks = (*self._blanks, (lo, hi))  # Before the bytes: a sync may run beside this.
        self._index_sync_due = True
        last.finish(fmt.ENTRY_BLANK.pack(fmt.ENTRY_MAGIC_BLANK, hi - lo))

    # --- Walking ---

    def record_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position of the first record, whole records back to back) from `lo` up to `hi`."""
        return record_runs(self, lo, hi)

    checked_runs = record_runs

    def fresh_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield the runs of `record_runs`, out of `recent` as far as it has them."""
        for position, body in self.recent.runs(lo, hi):
            yield position, body
            lo = position + len(body)
        yield from record_runs(self, lo, hi)

    def entry_runs(self, records: bytes) -> list[EntryRun]:
        """Return the entries of records; see `RecordLog.entry_runs`."""
        return entry_runs(self, records)

    def check(self, position: int, data: bytes) -> None:
        """Check the entries that hold the bytes read at `position`; see `check_bytes`."""
        self.check_bytes(position, position + len(data))

    def check_bytes(self, lo: int, hi: int) -> None:
        """Check the entries that hold the bytes [lo, hi), unless they were checked before.

        An entry is checked as a whole: header, chain and body. Raises CorruptionError.
        """
        lo = self.checked.first_unchecked(lo, hi)
        if lo >= hi:
            return
        generation = self.checked.generation
        lo_index, hi_index = self.index_at_position(lo), self.index_at_position(hi - 1) + 1
        for finding in verify_range(self, lo_index, hi_index, check_unwritten=False):
            raise CorruptionError(*finding)
        self.checked.add(self.position_of(lo_index), self.end_of(hi_index - 1), generation)
