"""The ledger: DLedger entries with checksums and a chain, physically equal on all replicas.

Owns every change of the log: appending (own batches and entries of a leader), syncing, cutting its
tail, deleting its head, replacing all of it, and the completion of a cut after a crash or an error
half-way. Must not know elections, quorums or callers that wait for durability. One writer at a
time; reads and a sync may run beside it. `store.ledger.recovery.recover_ledger` opens one.

The decision a reader may question: where an entry lies follows from the sizes of the entries before
it and from nothing else. So the blank at a file end is written only together with the entry that
did not fit, after the next file was allocated: a failed append leaves no trace, and a replica that
takes over places its next entry where all others expect it.
Sources: design 4.2, 4.3; fault-matrix S07, S09; storage-formats 7.1 to 7.4; RocketMQ
DLedgerCommitLog.
"""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.errors import CorruptionError, LayoutError, LimitExceededError, PositionRangeError
from store.files import failpoints
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource
from store.ledger.entry import KIND_DATA, KINDS, ChainLink, place_entry, whole_entry
from store.ledger.raw import CheckedEntries, check_entries, part_from
from store.ledger.reader import LedgerReader, LedgerTail
from store.ledger.recent import NewestEntries
from store.ledger.records import record_runs
from store.ledger.start import LogStart, StartFile
from store.ledger.term_runs import TermRuns
from store.ledger.verify import check_range
from store.log.checked import CheckedRanges
from store.log.record_log import AppendResult
from store.log.sequence_lock import SequenceLock
from store.record.check import store_timestamp
from store.record.stamp import QueueKey, Stamped, Stamper
from store.record.units import BatchUnits

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_KIND_AT: Final = 32
_DATA: Final = KIND_DATA.to_bytes(4, "big")
_NOT_STAMPED: Final[Stamped] = ([], [], {}, None)
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.
_pack_unit: Final = fmt.INDEX_UNIT.pack


class Deletion:
    """Deletes the oldest files of a ledger in steps, so that its writer never waits for a disk.

    `write_start` and `remove` may run on any thread beside the writer, `forget` is the writer's.
    A crash in between leaves files that the next opening deletes.
    """

    def __init__(self, ledger: "Ledger", start: LogStart, file_count: int) -> None:
        """Take the start and the file count; for `Ledger.deletion` only."""
        self.start, self.file_count = start, file_count
        self._ledger = ledger
        self._number = ledger.changes.number

    def write_start(self) -> bool:
        """Save the link that the first remaining entry must follow, durably.

        Return False if the log was replaced meanwhile: no file is to be deleted. Raises
        StoreFullError or FileSystemError (nothing has changed), SyncFailedError (stop).
        """
        ledger = self._ledger
        with ledger._start_lock:
            if not ledger.changes.is_unchanged(self._number):
                return False
            ledger._start_file.save(self.start)
            return True

    def forget(self) -> bool:
        """Take the files out of the log, in memory only. Return False as `write_start`."""
        ledger = self._ledger
        if not ledger.changes.is_unchanged(self._number):
            return False
        ledger._take_start(self.start)
        ledger.files.detach_first(self.file_count)
        ledger.index.detach_below(ledger.first_index)
        return True

    def remove(self) -> None:
        """Delete the files that were taken out, durably. Raises FileSystemError: maintenance of the
        store repeats it, and so does the next deletion, before its own files."""
        self._ledger.delete_detached()


class PreparedEntry(NamedTuple):
    """An entry that was checked and stamped for its place, and has room there.

    `record_positions`, `queue_offsets`, `next_offsets` and `units` are what `Stamper.stamp`
    returned.
    """

    kind: int
    tail: LedgerTail
    position: int
    size_bytes: int
    record_positions: list[int]
    queue_offsets: list[int]
    next_offsets: dict[QueueKey, int]
    units: BatchUnits | None
    store_unix_ms: int


class Ledger(LedgerReader):
    """A `RecordLog` of entries. Every entry is an atomic batch."""

    has_full_checksums: Final = True
    are_runs_checked: Final = True

    def __init__(
        self, fs: FileSystem, root: str, config: StoreConfig, source: FileSource | None = None
    ) -> None:
        super().__init__(fs, root, config, source)
        self.changes: Final = SequenceLock()
        """Tells whether the log is, or was, replaced. A cut does not count: it takes no entry that
        readers have seen."""
        self._start_file = StartFile(fs, self.directory)
        self._start_lock = threading.Lock()  # Guards the start file, and its reset with it.
        self._blanks: tuple[tuple[int, int], ...] = ()
        """[lo, hi) of the blanks that are not far below the flushed position."""
        self._unfinished: Callable[[], None] | None = None
        """A cut or a reset that an error stopped half-way; finished before anything else."""
        self.stamper: Final = Stamper(config)
        """The owner sets its queue offsets back after an open or a cut."""
        self.checked: Final = CheckedRanges()
        self.recent: Final = NewestEntries()
        """The owner turns it on."""
        self.stamped: Final = self.recent.stamped
        """See `RecordLog.stamped`."""
        self.term = 0
        """The current term, set by the owner; `append` writes in it."""
        self._entry_size_bytes_max = min(
            config.batch_size_bytes_max,
            fmt.ENTRY_SIZE_BYTES_MAX,
            config.file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN,
        )
        self._scratch_size_bytes = min(self._entry_size_bytes_max, 256 * 1024)
        self._scratch = bytearray(self._scratch_size_bytes)
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
        if self._blanks:
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
        position = self.files.sync()
        if self._index_sync_due:
            self._index_sync_due = False  # Before the sync: a roll during it asks for another one.
            self.index.files.sync()
        return self.flushed_position if self._blanks else position

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

    def prepare(
        self, kind: int, body: bytes, *, now_unix_ms: int = 0, has_room: bool = False
    ) -> PreparedEntry:
        """Do all of an append that can fail; errors as `append`.

        `append_prepared` may follow or not: no byte was written, and the next entry of any kind
        takes the place. `has_room`: the caller saw that the room is available.
        """
        if self._unfinished is not None:
            self._finish()
        tail, size_bytes = self.tail, len(body) + _HEADER
        assert kind in KINDS, f"kind {kind}"
        if size_bytes > self._entry_size_bytes_max:
            raise LimitExceededError("entry", size_bytes, self._entry_size_bytes_max)
        if size_bytes > self._scratch_size_bytes:
            self._scratch = bytearray(self._entry_size_bytes_max)
            self._scratch_size_bytes = self._entry_size_bytes_max
            self._scratch_view = memoryview(self._scratch)
        scratch = self._scratch
        position, file = tail.end_position, self._mapped
        has_room = (
            file is not None
            and file.wrote_position == position  # Else the last entry lies in an earlier file.
            and (has_room or self.has_room_at_hand(size_bytes))
        )
        if not has_room:
            position = place_entry(position, size_bytes, self.files.file_size_bytes)
        scratch[_HEADER:size_bytes] = body
        stamped = _NOT_STAMPED
        if kind == KIND_DATA:
            stamped = self.stamper.stamp(body, scratch, _HEADER, position + _HEADER, now_unix_ms)
        if not has_room:
            self.index.prepare(tail.link.entry_index + 1)
            self._reserve_for(position, size_bytes)
        prepared = self._prepared = _new_tuple(
            PreparedEntry, (kind, tail, position, size_bytes, *stamped, now_unix_ms)
        )
        return prepared

    def append_prepared(self, prepared: PreparedEntry, term: int) -> AppendResult:
        """Append the entry that `prepare` returned last; the log has not changed since.

        Cannot fail, except by an error after which memory and disk may differ: stop the process.
        """
        kind, tail, position, size_bytes, positions, offsets, next_offsets, units, unix_ms = (
            prepared
        )
        assert prepared is self._prepared, "another entry was prepared since"
        assert tail is self.tail, f"prepared behind {tail}, now there is {self.tail}"
        before = tail.link
        assert term >= before.term, f"term {term} after {before.term}"
        self._prepared = None
        body = bytes(self._scratch_view[_HEADER:size_bytes])
        data, link = whole_entry(body, kind, before, term, position)
        file = self._mapped
        if file is None or file.wrote_position != position or file is not self.files.files[-1]:
            file = self._file_for(position)
        if failpoints.is_on:
            hit("ledger.before_append")
        landed = file.append(data)
        assert landed == position, f"stamped for {position}, landed at {landed}"
        index = link.entry_index
        self.index.put(index, _pack_unit(fmt.ENTRY_MAGIC, position, size_bytes, index, term))
        if term != before.term:
            self._runs = self._runs.extended([(index, term)])
        end_position = position + size_bytes
        self.tail = _new_tuple(LedgerTail, (link, end_position))
        if kind == KIND_DATA:
            self.recent.add(index, position, end_position, data, units)
        known_offsets = self.stamper.next_offsets
        for key in next_offsets:  # One or two, and no call.
            known_offsets[key] = next_offsets[key]
        if failpoints.is_on:
            hit("ledger.after_append")
        return _new_tuple(
            AppendResult, (position, end_position, index, positions, offsets, unix_ms)
        )

    def check_raw(self, data: bytes, before_index: int) -> CheckedEntries:
        """Check raw entries that follow an entry of this log, or the one before the log.

        Raises ForeignEntryError; PositionRangeError or CorruptionError as `entry`.
        """
        if self._unfinished is not None:
            self._finish()
        tail = self.tail
        if before_index != tail.link.entry_index:
            tail = self.tail_at(before_index)
        link, end = tail
        return check_entries(data, end, link, self.files.file_size_bytes)

    def write_raw(self, checked: CheckedEntries, lo_index: int) -> None:
        """Append the checked entries from `lo_index` on, which is the next index.

        Raises StoreFullError, FileSystemError or BusyError; nothing was written then.
        """
        last_index = self.tail.link.entry_index
        assert lo_index == last_index + 1, f"write {lo_index} after {last_index}"
        if not checked.pieces[1:] and self._write_one(checked, lo_index):
            return
        assert checked.first_index <= lo_index < checked.hi_index, f"{lo_index} is not in there"
        if lo_index == checked.first_index:
            assert checked.before == self.tail.link, f"{checked.before} is not {self.tail.link}"
        pieces = [piece for piece in checked.pieces if piece.link.entry_index >= lo_index]
        self.index.prepare(lo_index, checked.hi_index - lo_index)
        position = part_from(checked, pieces[0], lo_index)[1]
        self._reserve_for(position, len(checked.data), len(pieces) - 1)
        if failpoints.is_on:
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
                self.tail = _new_tuple(LedgerTail, (piece.link, end))
                if self.recent.is_kept:
                    self._keep_recent(checked.data, at - position, units)
        if failpoints.is_on:
            hit("ledger.after_append")

    def _write_one(self, checked: CheckedEntries, lo_index: int) -> bool:
        """Append one entry with records where that is all there is to do; return whether it was."""
        tail, file, data = self.tail, self._mapped, checked.data
        at, hi, position, units, link = checked.pieces[0]
        if (
            hi - at != len(data)
            or link.entry_index != lo_index
            or checked.before != tail.link
            or link.term != tail.link.term
            or len(units) != fmt.INDEX_UNIT_SIZE_BYTES
            or data[_KIND_AT : _KIND_AT + 4] != _DATA
            or file is None
            or file.wrote_position != position
            or not self.has_room_at_hand(hi)
        ):
            return False
        if failpoints.is_on:
            hit("ledger.before_append")
        file.append(data)
        self.index.put(lo_index, units)
        end_position = position + hi
        self.tail = _new_tuple(LedgerTail, (link, end_position))
        self.recent.add(lo_index, position, end_position, data)
        if failpoints.is_on:
            hit("ledger.after_append")
        return True

    def _keep_recent(self, data: bytes, shift: int, units: bytes) -> None:
        """Keep entries that were written; the one at `position` is at byte `position + shift` of
        `data`."""
        for _, position, size_bytes, index, _ in fmt.INDEX_UNIT.iter_unpack(units):
            at = position + shift
            if data[at + _KIND_AT : at + _KIND_AT + 4] == _DATA:
                end = position + size_bytes
                self.recent.add(index, position, end, data[at : at + size_bytes])

    def _extend_runs(self, changes: list[tuple[int, int]], lo_index: int) -> None:
        """Note the terms that began in [lo_index, ...) and are not known yet."""
        last = self.tail.link.term
        new = [change for change in changes if change[0] >= lo_index and change[1] > last]
        if new:
            self._runs = self._runs.extended(new)

    def reserve(self, size_bytes: int, file_count: int) -> None:
        """Make room for entries of `size_bytes` in all, raw or not; the next writes cannot fail.

        `file_count` is of `files.file_count_for`. Raises StoreFullError, FileSystemError or
        BusyError; what was reserved before stays.
        """
        self.index.prepare(self.last_index + 1, size_bytes // _HEADER + 1)
        if file_count:
            self.files.reserve(file_count)
        self.files.make_room(size_bytes)

    def has_room_at_hand(self, size_bytes: int) -> bool:
        """Whether entries of `size_bytes` in all fit into the last file and its index as they are.

        If not, `files.file_count_for` and `reserve` make room."""
        file, files = self._mapped, self.files.files
        return (
            file is not None
            and bool(files)
            and files[-1] is file
            and self._unfinished is None
            and size_bytes + fmt.BLANK_SIZE_BYTES_MIN
            <= file.allocated_position - file.wrote_position
            and self.index.has_room_at_hand(size_bytes // _HEADER + 1)
        )

    def _reserve_for(self, position: int, size_bytes: int, more_count: int = 0) -> None:
        """Have the file at `position` mapped, with blocks, and `more_count` files behind it."""
        files = self.files.files
        last = files[-1] if files else None
        is_last = last is not None and last.wrote_position == position
        if last is not None and is_last and last is not self._mapped:
            last.append(b"")
            self._mapped = last
        count = more_count if is_last else more_count + 1
        if count:
            self.files.reserve(count)
        self.files.make_room(size_bytes)

    def _file_for(self, position: int) -> MappedFile:
        """Return the file whose next byte is `position`; the last one is closed if need be."""
        files = self.files.files
        if files and files[-1].wrote_position == position:
            return files[-1]
        if not files:
            assert self.tail.end_position == 0, f"no file, but {self.tail}"
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
        assert lo == self.tail.end_position, f"{last.path}: end {lo}, last entry {self.tail}"
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
        """Return the runs of `record_runs`, out of `recent` as far as it has them."""
        newest, lo = self.recent.runs(lo, hi)
        return iter(newest) if lo >= hi else chain(newest, record_runs(self, lo, hi))

    def place_of(self, index: int) -> int:
        """Return where an entry begins, or where the log ends for the one after the last.

        As `position_of`, but from memory or the index alone where they have it: the entry is not
        read. For the writer's thread.
        """
        tail = self.tail
        if index == tail.link.entry_index + 1:
            return tail.end_position
        position = self.recent.position_of(index)
        if position is not None:
            return position
        unit = self.index.get(index) if index >= self.first_index else None
        return unit.position if unit is not None else self.position_of(index)

    def read_range(self, lo_index: int, hi_index: int, max_size_bytes: int) -> bytes:
        """Copy the raw bytes of `range_of`, as `Ledger.check_raw` of another replica takes them.

        The bytes are checked, unless they were before: damaged ones are never served. Errors as
        `entry`.
        """
        span = self.range_of(lo_index, hi_index, max_size_bytes)
        self.check_bytes(span.position, span.position + span.size_bytes)
        return self.files.read(span.position, span.size_bytes)

    def read_entries(self, lo_index: int, hi_index: int) -> bytes:
        """Return all raw entries [lo_index, hi_index), back to back without blanks; else as
        `read_range`. For the writer's thread."""
        recent = self.recent.data_of(lo_index, hi_index)
        if recent is not None:
            return recent
        end = self.end_of(hi_index - 1)
        position = self.place_of(lo_index)
        file = self.files.file_at(position)
        if end <= file.end_position:
            self.check_bytes(position, end)
            return file.read(position, end - position)
        parts = []
        while lo_index < hi_index:
            span = self.range_of(lo_index, hi_index, fmt.ENTRY_SIZE_BYTES_MAX)
            self.check_bytes(span.position, span.position + span.size_bytes)
            parts.append(self.files.read(span.position, span.size_bytes))
            lo_index = span.hi_index
        return b"".join(parts)

    def check(self, position: int, data: bytes, *, again: bool = False) -> None:
        """Check the entries that hold the bytes read at `position`; see `check_bytes`."""
        self.check_bytes(position, position + len(data), again=again)

    def check_bytes(self, lo: int, hi: int, *, again: bool = False) -> None:
        """Check the entries that hold the bytes [lo, hi), or those of them not checked before.

        An entry is checked as a whole: header, chain and body. Raises CorruptionError.
        """
        if not again:
            lo = self.checked.first_unchecked(lo, hi)
        if lo >= hi:
            return
        generation = self.checked.generation
        lo_index, hi_index = self.index_at_position(lo), self.index_at_position(hi - 1) + 1
        try:
            check_range(self, lo_index, hi_index)
        except CorruptionError:
            self.checked.distrust(self.position_of(lo_index), self.end_of(hi_index - 1))
            raise
        self.checked.add(self.position_of(lo_index), self.end_of(hi_index - 1), generation)

    def newest_store_unix_ms(self) -> int:
        """Return the store time of the last record, which all of its entry have; 0 without one.

        That entry is checked. Errors as `entry`.
        """
        for index in range(self.last_index, self.first_index - 1, -1):
            header = self.header(index)
            if header.kind == KIND_DATA:
                self.check_bytes(header.position, header.position + header.size_bytes)
                size_bytes = min(header.body_size_bytes, fmt.RECORD_SIZE_BYTES_MIN)
                return store_timestamp(self.read(header.position + _HEADER, size_bytes))
        return 0

    # --- Cutting ---

    def truncate_from(self, index: int, *, commit_index: int) -> None:
        """Cut the entry `index` and all behind it; durable on return (fault-matrix S09).

        The old bytes are zeroed and synced, later files deleted. Never cuts a committed entry. The
        caller lowers the durable mark before, and sets queue offsets back itself. Raises
        CorruptionError (the entry before is damaged: nothing was cut), FileSystemError or
        SyncFailedError (stop): the entries are gone for readers, and the rest of the cut is done
        before the next change, or by recovery.
        """
        assert index > commit_index, f"cut from {index}, committed up to {commit_index}"
        if self._unfinished is not None:
            self._finish()
        if index < self.first_index:
            raise PositionRangeError("index", index, self.first_index, self.last_index + 2)
        if index > self.last_index:
            return
        tail = self.tail_at(index - 1)
        dirty_hi = self.files.wrote_position
        self.recent.clear()
        self.tail = tail
        self._runs = self._runs.cut_from(index)
        is_homeless = index == self.first_index and not self.start.is_in_first_file
        self._unfinished = self.restore_start if is_homeless else partial(self._cut, dirty_hi)
        self._finish()

    def _cut(self, dirty_hi: int) -> None:
        end = self.tail.end_position
        hit("ledger.before_cut")
        self.files.truncate(end, dirty_hi)
        self._blanks = tuple(b for b in self._blanks if b[1] <= end)
        self.index.truncate(self.tail.link.entry_index + 1)
        hit("ledger.after_cut")

    def reset(self, first_index: int, position: int, chain_crc: int, term: int) -> None:
        """Replace the log by an empty one behind a snapshot; durable on return.

        `first_index` comes next. `position` is the end of the entry before it, `chain_crc` and
        `term` are that entry's: a snapshot carries them. Raises StoreFullError, FileSystemError
        or SyncFailedError (stop): the old entries are gone for readers, and the rest is done before
        the next change, or by recovery.
        """
        assert first_index >= 0, f"first index {first_index}"
        file_position = position // self.files.file_size_bytes * self.files.file_size_bytes
        start = LogStart(position, file_position, ChainLink(first_index - 1, term, chain_crc))
        with self._start_lock:
            self.changes.begin()
            self._start_file.save(start, is_resetting=True)
        self._begin(start)
        self._unfinished = self._reset_files  # Instead of a cut: its log goes away.
        self._finish()

    def restore_start(self) -> None:
        """Let an empty log begin where all replicas expect its first entry; errors as `reset`.

        Retention may have deleted the file in which the entry before the log ended, and in which
        the next one belongs if it fits.
        """
        start = self.start
        if not start.is_in_first_file:
            first_index = start.link.entry_index + 1
            self.reset(first_index, start.end_position, start.link.chain_crc, start.link.term)

    def _begin(self, start: LogStart) -> None:
        self.start = start
        self.recent.clear()
        self.tail = LedgerTail(start.link, start.end_position)
        self._runs = TermRuns.starting_after(start.link.entry_index, start.link.term)
        self._blanks = ()

    def _reset_files(self) -> None:
        start, index = self.start, self.start.link.entry_index + 1
        self.changes.begin()
        hit("ledger.before_reset")
        self.files.reset(start.file_position)
        self.files.files[-1].set_positions(start.end_position)
        self.files.sync()
        self.index.reset(index)
        self._start_file.save(self.start)
        self.changes.end()

    def _finish(self) -> None:
        if self._unfinished is not None:
            self._unfinished()
            self._unfinished = None

    def delete_first(self) -> int:
        """Delete the oldest file, never the last one with an entry; return the bytes freed.

        Retention: the caller has made sure that the file is not needed any more. The link that the
        next entry must follow is saved first. Raises CorruptionError (the next file does not begin
        with an entry), FileSystemError or SyncFailedError; the file is deleted later then.
        """
        self._finish()
        files = self.files.files
        if len(files) < 2 or files[1].position >= self.tail.end_position:
            return 0
        position = files[1].position
        if position > self.start.file_position:
            start = self.start_at(files[1])
            self._start_file.save(start)
            self._take_start(start)
        freed_bytes = self.files.delete_first()
        self.index.delete_below(self.first_index)
        return freed_bytes

    def start_at(self, file: MappedFile) -> LogStart:
        """Return the start of the log, were the files before this one deleted.

        Raises CorruptionError when it does not begin with the entry behind the deleted ones.
        """
        header = self.header_at(file.position)
        if header is None or not self.first_index <= header.entry_index <= self.last_index:
            raise CorruptionError(file.path, 0, "header", "of an entry", f"{header}")
        before = self.tail_at(header.entry_index - 1)
        self._prove(header)
        return LogStart(before.end_position, file.position, before.link)

    def deletion(self, file_count: int) -> Deletion:
        """Return the steps that delete the oldest files; an entry stays. Errors as `start_at`.

        The file behind them begins with an entry that is never cut off: it is committed.
        """
        return Deletion(self, self.start_at(self.files.files[file_count]), file_count)

    @property
    def has_detached(self) -> bool:
        """Whether files that are not part of the log any more are still to be deleted."""
        return self.files.has_detached or self.index.files.has_detached

    def delete_detached(self) -> None:
        """Delete the detached files, durably. Any thread. Raises FileSystemError: repeat it."""
        self.files.delete_detached()
        self.index.files.delete_detached()

    def _take_start(self, start: LogStart) -> None:
        self.start = start
        self._runs = self._runs.starting_at(start.link.entry_index + 1)

    # --- Opening and closing ---

    def load(self) -> None:
        """Open the files and finish a reset; for `recover_ledger` only, which does the rest.

        Raises LayoutError for data files that do not belong to the start, CorruptionError for a
        damaged start.
        """
        self._fs.make_directory(self.directory)
        start, is_resetting = self._start_file.load()
        self._begin(start)
        if is_resetting:
            self._fs.remove_files(self.files.directory)
        else:
            self._delete_expired(start.file_position)
        self.files.load()
        self.index.load()
        if is_resetting:
            self._reset_files()
        files = self.files
        if not files.files and start.file_position == start.end_position == 0:
            return
        expected = fmt.file_name(start.file_position)
        first_file = fmt.file_name(files.min_position) if files.files else "none"
        if first_file != expected:  # The data begin elsewhere than the log.
            raise LayoutError(files.directory, f"{expected} as the first file", first_file)

    def _delete_expired(self, file_position: int) -> None:
        """Finish a deletion that a crash or an error stopped, whatever it has left of its files.

        The files stay when the one in which the log begins is missing: the log is refused then.
        """
        directory, first = self.files.directory, fmt.file_name(file_position)
        names = self._fs.list_directory(directory)
        expired = [n for n in names if len(n) == len(first) and n.isdecimal() and n < first]
        if expired and first in names:
            for name in expired:
                self._fs.unlink(os.path.join(directory, name))
            self._fs.sync_directory(directory)

    def adopt(self, tail: LedgerTail, runs: TermRuns) -> None:
        """Take over the end and the terms that recovery found; for `recover_ledger` only."""
        self.tail, self._runs = tail, runs

    def close(self) -> None:
        """Release the files. Syncs nothing."""
        self.files.close()
        self.index.close()
