"""Where a ledger begins and ends: cutting its tail, deleting its head, replacing all of it.

Owns every change that removes entries, and its completion after a crash or an error half-way; must
not know how entries are made. `store.ledger.ledger.Ledger` is the one subclass. Sources:
fault-matrix S07, S09; storage-formats 7.4.
"""

import os
import threading
from collections.abc import Callable
from functools import partial

from store import format as fmt
from store.config import StoreConfig
from store.errors import CorruptionError, LayoutError, PositionRangeError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource
from store.ledger.entry import Link
from store.ledger.reader import LedgerReader, Tail
from store.ledger.start import LogStart, StartFile
from store.ledger.term_runs import TermRuns


class Deletion:
    """Deletes the oldest files of a ledger in steps, so that its writer never waits for a disk.

    `write_start` and `remove` may run on any thread beside the writer, `forget` is the writer's.
    A crash in between leaves files that the next opening deletes.
    """

    def __init__(self, extent: "LedgerExtent", start: LogStart, file_count: int) -> None:
        """Take the start and the file count; for `LedgerExtent.deletion` only."""
        self.start, self.file_count = start, file_count
        self._extent = extent
        self._reset_count = extent.reset_count

    def write_start(self) -> bool:
        """Save the link that the first remaining entry must follow, durably.

        Return False if the log was replaced meanwhile: no file is to be deleted. Raises
        StoreFullError or FileSystemError (nothing has changed), SyncFailedError (stop).
        """
        return self._extent.save_start(self.start, self._reset_count)

    def forget(self) -> bool:
        """Take the files out of the log, in memory only. Return False as `write_start`."""
        if self._extent.reset_count != self._reset_count:
            return False
        self._extent.detach(self.start, self.file_count)
        return True

    def remove(self) -> None:
        """Delete the files that were taken out, durably. Raises FileSystemError: maintenance of the
        store repeats it, and so does the next deletion, before its own files."""
        self._extent.delete_detached()


class LedgerExtent(LedgerReader):
    """The part of a ledger that removes entries. One writer."""

    def __init__(
        self, fs: FileSystem, root: str, config: StoreConfig, source: FileSource | None = None
    ) -> None:
        super().__init__(fs, root, config, source)
        self.reset_count = 0
        """Count of the times that the log was replaced."""
        self._start_file = StartFile(fs, self.directory)
        self._start_lock = threading.Lock()  # Guards the start file, and reset_count with it.
        self._blanks: tuple[tuple[int, int], ...] = ()
        """[lo, hi) of the blanks that are not far below the flushed position."""
        self._unfinished: Callable[[], None] | None = None
        """A cut or a reset that an error stopped half-way; finished before anything else."""

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
        start = LogStart(position, file_position, Link(first_index - 1, term, chain_crc))
        with self._start_lock:
            self.reset_count += 1
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

        Retention: the caller has made sure that the file is not needed any more. The link that the
        next entry must follow is saved first. Raises CorruptionError (the next file does not begin
        with an entry), FileSystemError or SyncFailedError; the file is deleted later then.
        """
        if self._unfinished is not None:
            self._finish()
        files = self.files.files
        if len(files) < 2 or files[1].position >= self._tail.end_position:
            return 0
        position = files[1].position
        if position > self._start.file_position:
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

    def save_start(self, start: LogStart, reset_count: int) -> bool:
        """Save a start unless the log was replaced meanwhile; for `Deletion` only."""
        with self._start_lock:
            if self.reset_count != reset_count:
                return False
            self._start_file.save(start)
            return True

    def detach(self, start: LogStart, file_count: int) -> None:
        """Let the log begin at `start`, without its first files; for `Deletion` only."""
        self._take_start(start)
        self.files.detach_first(file_count)
        self.index.detach_below(self.first_index)

    @property
    def has_detached(self) -> bool:
        """Whether files that are not part of the log any more are still to be deleted."""
        return self.files.has_detached or self.index.files.has_detached

    def delete_detached(self) -> None:
        """Delete the detached files, durably. Any thread. Raises FileSystemError: repeat it."""
        self.files.delete_detached()
        self.index.files.delete_detached()

    def _take_start(self, start: LogStart) -> None:
        self._start = start
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
            self._wipe_data()
        else:
            self._delete_expired(start.file_position)
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

    def _check_files(self) -> None:
        """Refuse data files that begin elsewhere than the log."""
        start, files = self._start, self.files
        if not files.files and start.file_position == start.end_position == 0:
            return
        expected = fmt.file_name(start.file_position)
        found = fmt.file_name(files.min_position) if files.files else "none"
        if found != expected:
            raise LayoutError(files.directory, f"{expected} as the first file", found)

    def adopt(self, tail: Tail, runs: TermRuns) -> None:
        """Take over the end and the terms that recovery found; for `recover_ledger` only."""
        self._tail, self._runs = tail, runs

    def close(self) -> None:
        """Release the files. Syncs nothing."""
        self.files.close()
        self.index.close()
