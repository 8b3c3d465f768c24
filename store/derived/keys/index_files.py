"""The rolling set of key index files of one store.

Owns which files exist, the roll to the next one, and the mark up to which keys are in; must not
know records. Files are named by the local time of their creation (storage-formats 3.3), which is
only a name: order and idempotence rest on positions. Source: RocketMQ IndexService.

Invariant: positions never go back from one entry to the next, within a file and over all files.
"""

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from store import format as fmt
from store.clock import unix_ms
from store.config import StoreConfig
from store.derived.keys.index_file import (
    IndexFile,
    IndexStep,
    create_index_file,
    key_hash,
)
from store.derived.keys.key_sums import IndexShape, KeySums
from store.derived.sum_files import SumFiles
from store.errors import ClosedError, DerivedFileError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import sweep

DIRECTORY: Final = "index"
_END: Final = (1 << 63) - 1
_ALL_IN: Final = 1 << 62  # More keys than a record can have.


class IndexFiles:
    """All index files. `put`, `truncate` and deletions by one thread at a time.

    Look-ups come from any thread, and one `sync` may run beside the writer: the tuple of files is
    replaced, never changed.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        config: StoreConfig,
        *,
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        self._fs = fs
        self.directory = os.path.join(root, DIRECTORY)
        self._shape = IndexShape(config.index_slot_count, config.index_entry_count)
        self._clock = clock
        self._sums = SumFiles(root, "keys")
        self.files: tuple[IndexFile, ...] = ()
        self._sync_lock = threading.Lock()  # One sync at a time, and none during a deletion.
        self._has_new_names = False
        self.end_position = -1
        """Position of the last record that has a key here; -1 without one."""
        self._end_key_count = 0  # Count of the keys of that record that are in.

    @property
    def entry_count(self) -> int:
        """Count of the keys in all files."""
        return sum(file.count - 1 for file in self.files)

    # --- Opening ---

    def recover(self, hi_position: int, *, is_clean: bool, is_cached: bool = False) -> None:
        """Open the files, cut to the keys of records before `hi_position`.

        All records before it were written once. With `is_clean` they are durable, without it the
        last file is repaired: as `IndexFile.recover` does with `is_cached`. Raises
        DerivedFileError when a file is damaged (rebuild), or FileSystemError.
        """
        assert not self.files, "recovered twice"
        sweep(self._fs, self.directory)
        names = self._fs.list_directory(self.directory)
        names = [n for n in names if len(n) == fmt.INDEX_FILE_NAME_DIGITS and n.isdecimal()]
        files: list[IndexFile] = []
        try:
            for name in names:
                files.append(self._open(name))
                if len(files) > 1 and files[-1].begin_position < files[-2].end_position:
                    before, file = files[-2:]
                    expected, actual = f"{before.end_position} or later", str(file.begin_position)
                    raise DerivedFileError(file.path, 16, "begin position", expected, actual)
        except BaseException:
            for file in files:
                file.close()
            raise
        self.files = tuple(files)
        if not is_clean:  # After a crash of the process alone, they may be in the page cache only.
            self._has_new_names = os.path.isdir(self.directory)
            for file in files:
                file.is_dirty = True
        self._cut(hi_position, is_clean=is_clean, is_cached=is_clean or is_cached)

    def _open(self, name: str) -> IndexFile:
        path = os.path.join(self.directory, name)
        fd = self._fs.open(path)
        try:
            expected = self._shape.size_bytes
            size_bytes = self._fs.size_bytes(fd)
            if size_bytes != expected:
                raise DerivedFileError(
                    path, size_bytes, "file size", str(expected), str(size_bytes)
                )
            return IndexFile(self._fs, path, fd, self._shape, self._sums_of(path))
        except BaseException:
            self._fs.close(fd)
            raise

    def _sums_of(self, path: str) -> KeySums:
        return KeySums(self._sums, os.path.basename(path), self._shape)

    def _cut(self, hi_position: int, *, is_clean: bool, is_cached: bool) -> None:
        """Cut the last files until the one that keeps an entry before `hi_position`.

        The files before that one were complete, and so durable, when it got such an entry.
        """
        while self.files:
            last = self.files[-1]
            if not is_clean or last.end_position >= hi_position:
                last.recover(hi_position, is_cached=is_cached)
            elif not last.has_slots:
                last.load_slots()
            if last.count > 1:
                break
            hit("index_files.delete")
            last.delete()  # No entry is left in it.
            self.files = self.files[:-1]
            self._has_new_names = True
        for file in self.files:
            file.check()
            if not file.has_slots:
                file.open_sums()
        self.end_position = self.files[-1].end_position if self.files else -1
        self._end_key_count = _ALL_IN  # A cut is between records, so none is in by half.

    # --- Building ---

    def put_many(self, hashes: list[int], positions: list[int], store_unix_ms: list[int]) -> None:
        """Add keys: the hash of each, the position of its record, and when that was stored.

        The lists go together, in log order. Keys that are in already are skipped, so a repetition
        changes nothing. No byte is durable yet. Raises StoreFullError or FileSystemError when no
        next file can be had: a prefix was added then, repeat the call.
        """
        assert len(hashes) == len(positions) == len(store_unix_ms), "lists of different lengths"
        lo = bisect_left(positions, self.end_position)
        same_count = bisect_right(positions, self.end_position, lo=lo) - lo
        lo += min(same_count, self._end_key_count)
        while lo < len(hashes):
            file = self.files[-1] if self.files else None
            if file is None or file.count >= file.entry_count:
                file = self._roll(file)
            hi = file.put(hashes, positions, store_unix_ms, lo=lo)
            assert hi > lo, f"{file.path}: takes no entry"
            self._move_end(positions, lo, hi)
            lo = hi

    def _move_end(self, positions: list[int], lo: int, hi: int) -> None:
        """Remember how much of the last record is in, for a repetition that splits it."""
        position = positions[hi - 1]
        count = hi - max(lo, bisect_left(positions, position, hi=hi))
        if position == self.end_position:
            count += self._end_key_count
        self.end_position, self._end_key_count = position, count

    def _roll(self, before: IndexFile | None) -> IndexFile:
        self._fs.make_directory(self.directory)
        hit("index_files.roll")
        path = os.path.join(self.directory, self._next_name())
        file = create_index_file(self._fs, path, self._shape, self._sums_of(path), before)
        self._has_new_names = True
        self.files = (*self.files, file)
        if before is not None:
            before.seal()
        return file

    def _next_name(self) -> str:
        """Return the local time yyyyMMddHHmmssSSS, raised so that names keep the creation order.

        Two files in one ms, or a clock set back (summer time ends once a year), would break it.
        """
        seconds, ms = divmod(self._clock(), 1000)
        name = int(time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{ms:03d}")
        if self.files:
            name = max(name, int(os.path.basename(self.files[-1].path)) + 1)
        return f"{name:0{fmt.INDEX_FILE_NAME_DIGITS}d}"

    # --- Reading ---

    def lookup(
        self,
        topic: str,
        key: str,
        *,
        begin_unix_ms: int,
        end_unix_ms: int,
        hi_position: int = _END,
    ) -> Iterator[IndexStep]:
        """Walk the entries that may lead to records before `hi_position` with a key, newest first.

        Stored in [begin, end], give or take a second. Other keys may share the hash, and deleted
        records are still listed: the caller reads each candidate and compares. Raises
        DerivedFileError, ClosedError or FileSystemError.
        """
        hash_value = key_hash(topic, key)
        for file in reversed(self.files):
            overlaps = begin_unix_ms <= file.end_unix_ms and file.begin_unix_ms <= end_unix_ms
            if file.count == 1 or not overlaps or file.begin_position >= hi_position:
                continue
            try:
                for step in file.lookup(
                    hash_value,
                    begin_unix_ms=begin_unix_ms,
                    end_unix_ms=end_unix_ms,
                    hi_position=hi_position,
                ):
                    if step.is_candidate:  # The keys of one record may be in two files.
                        hi_position = step.position
                    yield step
            except ClosedError:
                with self._sync_lock:  # A file that is being deleted is listed until it is gone.
                    is_listed = file in self.files
                if is_listed:  # Else it expired meanwhile, with its records.
                    raise

    # --- Durability ---

    def sync(self) -> None:
        """Make everything that was put before the call durable. Raises SyncFailedError: stop."""
        with self._sync_lock:
            for file in self.files:
                if file.is_dirty:
                    file.sync()
            if self._has_new_names:
                self._has_new_names = False
                self._fs.sync_directory(self.directory)
            self._sums.write()

    # --- Cutting ---

    def truncate(self, position: int) -> None:
        """Drop the keys of all records at and after `position`, durably; as `recover` does it.

        The caller has first made a built-up-to mark of at most `position` durable. Raises
        FileSystemError or SyncFailedError; repeat it then.
        """
        if self.end_position < position:
            return
        with self._sync_lock:
            self._cut(position, is_clean=True, is_cached=True)
        self.sync()

    def has_expired(self, min_position: int) -> bool:
        """Whether `delete_expired` would delete a file."""
        files = self.files
        return len(files) > 1 and files[0].end_position < min_position

    def delete_expired(self, min_position: int) -> int:
        """Delete files whose last record is before `min_position`, never the last file.

        Return their count. Raises FileSystemError; repeat it then.
        """
        count = 0
        with self._sync_lock:
            while self.has_expired(min_position):
                hit("index_files.delete")
                self.files[0].delete()
                self.files = self.files[1:]
                self._has_new_names = True  # The keys of a file that comes back would be counted.
                count += 1
        return count

    def drop(self) -> None:
        """Delete every index file, durably; the set is empty then and can be filled again.

        Goes by the names on disk, so that files that cannot be opened are dropped, too. Raises
        FileSystemError or SyncFailedError; repeat it then.
        """
        self.close()
        with self._sync_lock:
            names = self._fs.list_directory(self.directory)
            for name in names:
                self._fs.unlink(os.path.join(self.directory, name))
                self._sums.delete(name)
            if os.path.isdir(self.directory):
                self._fs.sync_directory(self.directory)

    def close(self) -> None:
        """Close the files. Syncs nothing."""
        with self._sync_lock:
            files, self.files = self.files, ()
            for file in files:
                file.close()
            self._sums.close()
        self.end_position, self._end_key_count = -1, 0
