"""The ledger: DLedger entries with checksums and a chain, physically equal on all replicas.

Owns appending (own batches and entries of a leader), cutting, and replacing the log; must not know
elections, quorums or who waits for durability. One writer at a time; reads and a sync may run
beside it. `store.ledger_recovery.recover_ledger` opens one.

The decision a reader may question: where an entry lies follows from the sizes of the entries before
it and from nothing else. So the blank at a file end is written only together with the entry that
did not fit, after the next file was allocated: a failed append leaves no trace, and a replica that
takes over places its next entry where all others expect it.
Sources: design 4.2, 4.3; storage-formats 7.1 to 7.4; RocketMQ DLedgerCommitLog.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from store import format as fmt
from store.checked import CheckedRanges
from store.config import StoreConfig
from store.errors import (
    CorruptionError,
    ForeignEntryError,
    LayoutError,
    LimitExceededError,
    PositionRangeError,
)
from store.failpoints import hit
from store.file_system import FileSystem
from store.ledger_entry import (
    KIND_DATA,
    KINDS,
    Link,
    Problem,
    check_run,
    file_end,
    place_entry,
    write_header,
)
from store.ledger_reader import LedgerReader, Tail
from store.ledger_records import record_runs
from store.ledger_start import LogStart, StartFile
from store.ledger_verify import verify_range
from store.log import AppendResult
from store.mapped_file import MappedFile
from store.mapped_file_queue import FileSource
from store.stamp import Stamped, Stamper
from store.term_runs import TermRuns

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES


class Ledger(LedgerReader):
    """A `RecordLog` of entries. Every entry is an atomic batch."""

    def __init__(
        self, fs: FileSystem, root: str, config: StoreConfig, source: FileSource | None = None
    ) -> None:
        super().__init__(fs, root, config, source)
        self.stamper: Final = Stamper(config)
        self.checked: Final = CheckedRanges()
        """Its queue offsets are the owner's to put back after an open or a cut."""
        self.term = 0
        """The current term, set by the owner; `append` writes in it."""
        self._start_file = StartFile(fs, self.directory)
        self._entry_size_bytes_max = min(
            config.batch_size_bytes_max,
            fmt.ENTRY_SIZE_BYTES_MAX,
            config.file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN,
        )
        self._scratch = bytearray(min(self._entry_size_bytes_max, 256 * 1024))
        self._scratch_view = memoryview(self._scratch)
        self._blanks: tuple[tuple[int, int], ...] = ()
        """[lo, hi) of the blanks that are not far below the flushed position."""
        self._index_sync_due = False
        """A data file was completed since the index was synced."""
        self._unfinished: Callable[[], None] | None = None
        """A cut or a reset that an error stopped half-way; finished before anything else."""

    # --- Durability ---

    @property
    def flushed_position(self) -> int:
        """Everything before it is durable. Always the end of an entry, never inside of a blank."""
        position = self.files.flushed_position
        for lo, hi in self._blanks:
            if lo < position <= hi:
                return lo
        return position

    @property
    def durable_index(self) -> int:
        """The last entry that is wholly durable; first_index - 1 for none."""
        return self.last_index_before(self.flushed_position)

    def sync(self) -> int:
        """Make all appended entries durable; return up to where. SyncFailedError: stop.

        The sync that completes a data file syncs the index, too, so recovery of later files can
        rely on what it says of earlier ones.
        """
        self.files.sync()
        if self._index_sync_due:
            self._index_sync_due = False  # Before the sync: a roll during it asks for another one.
            self.index.files.sync()
        return self.flushed_position

    # --- Appending ---

    def append(self, batch: bytes, *, now_unix_ms: int) -> AppendResult:
        """Check, patch and append encoded records as one entry of the current term, all or none.

        Nothing is durable yet. Raises RecordFormatError, LimitExceededError, TopicNameError,
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
        if self._unfinished is not None:
            self._finish()
        tail, size_bytes = self._tail, len(body) + _HEADER
        assert kind in KINDS, f"kind {kind}"
        assert term >= tail.link.term, f"term {term} after {tail.link.term}"
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
        record_positions, queue_offsets, updates = stamped
        link = write_header(self._scratch_view, size_bytes, kind, tail.link, term, position)
        self.index.prepare(link.entry_index)
        file = self._file_for(position)
        hit("ledger.before_append")
        landed = file.append(self._scratch_view[:size_bytes])
        assert landed == position, f"stamped for {position}, landed at {landed}"
        unit = fmt.INDEX_UNIT.pack(fmt.ENTRY_MAGIC, position, size_bytes, link.entry_index, term)
        self.index.put(link.entry_index, unit)
        if term != tail.link.term:
            self._runs = self._runs.extended([(link.entry_index, term)])
        self._tail = Tail(link, position + size_bytes)
        self.stamper.publish(updates)
        hit("ledger.after_append")
        return AppendResult(
            position,
            position + size_bytes,
            link.entry_index,
            record_positions,
            queue_offsets,
            now_unix_ms,
        )

    def append_raw(self, data: bytes) -> tuple[int, int]:
        """Append consecutive whole entries of one file, as `read_range` of a peer returned them.

        Every byte is checked before anything is written: headers, index, position, term order,
        chain, body CRC, and that the sizes put the first entry where it says it is. Returns (first
        index, last index). Nothing is durable yet, queue offsets are not touched. Raises
        ForeignEntryError (drop the peer's connection), StoreFullError, FileSystemError or
        BusyError; nothing was written then.
        """
        if self._unfinished is not None:
            self._finish()
        tail, position = self._tail, self._place_raw(data)
        run = check_run(
            data,
            position,
            tail.link,
            file_end_position=file_end(position, self.files.file_size_bytes),
        )
        if run.problem is not None or run.end != len(data) or not data:
            found = f"{len(data) - run.end} bytes"
            problem = run.problem or Problem(run.end, "entry", "a whole one", found)
            raise ForeignEntryError(run.link.entry_index + 1, *problem)
        first_index = tail.link.entry_index + 1
        self.index.prepare(first_index, run.entry_count)
        file = self._file_for(position)
        hit("ledger.before_append")
        landed = file.append(data)
        assert landed == position, f"checked for {position}, landed at {landed}"
        self.index.put(first_index, run.units)
        if run.term_changes:
            self._runs = self._runs.extended(run.term_changes)
        self._tail = Tail(run.link, position + len(data))
        hit("ledger.after_append")
        return first_index, run.link.entry_index

    def _place_raw(self, data: bytes) -> int:
        """Return where the first of these entries belongs, by the size it claims."""
        size_bytes = int.from_bytes(data[4:8], "big", signed=True)
        if not _HEADER <= size_bytes <= self.files.file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN:
            size_bytes = _HEADER  # The check refuses it, wherever it is.
        return place_entry(self._tail.end_position, size_bytes, self.files.file_size_bytes)

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
        last.append(fmt.ENTRY_BLANK.pack(fmt.ENTRY_MAGIC_BLANK, hi - lo))
        last.skip_to_end()

    # --- Walking ---

    def record_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position of the first record, whole records back to back) from `lo` up to `hi`."""
        return record_runs(self, lo, hi)

    def check(self, position: int, data: bytes) -> None:
        """Check the entries that hold the bytes read at `position`, unless they were before.

        An entry is checked as a whole: header, chain and body. Raises CorruptionError.
        """
        hi = position + len(data)
        lo = self.checked.first_unchecked(position, hi)
        if lo >= hi:
            return
        lo_index, hi_index = self.index_at_position(lo), self.index_at_position(hi - 1) + 1
        for finding in verify_range(self, lo_index, hi_index, check_unwritten=False):
            raise CorruptionError(*finding)
        self.checked.add(self.position_of(lo_index), self._end_of(hi_index - 1))

    # --- Cutting ---

    def truncate_from(self, index: int, *, commit_index: int) -> None:
        """Cut the entry `index` and all behind it; durable on return (fault-matrix S09).

        The old bytes are zeroed and synced, later files deleted. Never cuts what is committed.
        Lower the durable mark before; queue offsets are the caller's to put back. Raises
        FileSystemError or SyncFailedError (stop): the entries are gone for readers, and the rest
        of the cut is done before the next change, or by recovery.
        """
        assert index > commit_index, f"cut from {index}, committed up to {commit_index}"
        if self._unfinished is not None:
            self._finish()
        if index < self.first_index:
            raise PositionRangeError("index", index, self.first_index, self.last_index + 2)
        if index > self.last_index:
            return
        link = Link(index - 1, self.term_at(index - 1), self.chain_crc_at(index - 1))
        tail = Tail(link, self._end_of(index - 1))
        dirty_hi = self.files.wrote_position
        self._tail = tail
        self._runs = self._runs.cut_from(index)
        is_homeless = index == self.first_index and not self._start.is_in_first_file
        self._unfinished = self.restore_start if is_homeless else partial(self._cut, dirty_hi)
        self._finish()

    def _cut(self, dirty_hi: int) -> None:
        end = self._tail.end_position
        hit("ledger.before_cut")
        self.files.truncate(end, dirty_hi)
        self._blanks = tuple(b for b in self._blanks if b[1] <= end)
        self.index.truncate(self._tail.link.entry_index + 1)

    def reset(self, first_index: int, position: int, chain_crc: int, term: int) -> None:
        """Replace the log by an empty one behind a snapshot; durable on return.

        `first_index` comes next. `position` is the end of the entry before it, `chain_crc` and
        `term` are that entry's: what a snapshot must carry. Raises StoreFullError, FileSystemError
        or SyncFailedError (stop): the old entries are gone for readers, and the rest is done before
        the next change, or by recovery.
        """
        assert first_index >= 0, f"first index {first_index}"
        file_position = position // self.files.file_size_bytes * self.files.file_size_bytes
        start = LogStart(position, file_position, Link(first_index - 1, term, chain_crc))
        self._start_file.save(start, is_resetting=True)
        self._begin(start)
        self._unfinished = self._reset_files  # Instead of a cut: its log goes away.
        self._finish()

    def restore_start(self) -> None:
        """Let an empty log begin where all replicas expect its first entry; errors as `reset`.

        Retention may have deleted the file in which the entry before the log ended, and in which
        the next one belongs if it fits.
        """
        start = self._start
        if not start.is_in_first_file:
            first_index = start.link.entry_index + 1
            self.reset(first_index, start.end_position, start.link.chain_crc, start.link.term)

    def _begin(self, start: LogStart) -> None:
        self._start = start
        self._tail = Tail(start.link, start.end_position)
        self._runs = TermRuns.starting_after(start.link.entry_index, start.link.term)
        self._blanks = ()

    def _reset_files(self) -> None:
        start, index = self._start, self._start.link.entry_index + 1
        hit("ledger.before_reset")
        self.files.reset(start.file_position)
        self.files.files[-1].set_positions(start.end_position)
        self.files.sync()
        self.index.reset(index)
        self._start_file.save(self._start)

    def _finish(self) -> None:
        if self._unfinished is not None:
            self._unfinished()
            self._unfinished = None

    def delete_first(self) -> int:
        """Delete the oldest file, never the last one with an entry; return the bytes freed.

        Retention: the caller has made sure that everybody is done with it. What the next entry
        must follow is written down first. Raises CorruptionError (the next file does not begin
        with an entry), FileSystemError or SyncFailedError; the file is deleted later then.
        """
        if self._unfinished is not None:
            self._finish()
        files = self.files.files
        if len(files) < 2 or files[1].position >= self._tail.end_position:
            return 0
        position = files[1].position
        if position > self._start.file_position:
            header = self.header_at(position)
            if header is None or not self.first_index <= header.entry_index <= self.last_index:
                raise CorruptionError(files[1].path, 0, "header", "of an entry", f"{header}")
            index = header.entry_index - 1
            link = Link(index, self.term_at(index), self.chain_crc_at(index))
            start = LogStart(self._end_of(index), position, link)
            self._start_file.save(start)
            self._start = start
            self._runs = self._runs.starting_at(header.entry_index)
        freed_bytes = self.files.delete_first()
        self.index.delete_below(self.first_index)
        return freed_bytes

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
            self._wipe_data()
        self.files.load()
        self.index.load()
        if is_resetting:
            self._reset_files()
        self._check_files()

    def _wipe_data(self) -> None:
        directory = self.files.directory
        for name in reversed(self._fs.list_directory(directory)):
            self._fs.unlink(os.path.join(directory, name))
        self._fs.make_directory(directory)
        self._fs.sync_directory(directory)

    def _check_files(self) -> None:
        """Finish a retention, and refuse data files that begin elsewhere than the log."""
        start, files = self._start, self.files
        while len(files.files) > 1 and files.files[1].position <= start.file_position:
            files.delete_first()
        if not files.files and start.file_position == start.end_position == 0:
            return
        expected = fmt.file_name(start.file_position)
        found = fmt.file_name(files.min_position) if files.files else "none"
        if found != expected:
            raise LayoutError(files.directory, f"{expected} as the first file", found)

    def adopt(self, tail: Tail, runs: TermRuns) -> None:
        """Take over what recovery found; for `recover_ledger` only."""
        self._tail, self._runs = tail, runs

    def _end_of(self, index: int) -> int:
        """Return the end of an entry, or of the one before the log."""
        if index < self.first_index:
            return self._start.end_position
        header = self.header(index)
        return header.position + header.size_bytes

    def close(self) -> None:
        """Release the files. Syncs nothing."""
        self.files.close()
        self.index.close()
