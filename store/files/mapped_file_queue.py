"""The rolling sequence of equal files that makes one endless byte space.

Owns which files exist, where a position lives, the roll to the next file, and the synced position;
must not know what the bytes mean. The owner serialises append, roll, truncate and delete; reads and
one sync may run beside them: the tuple of files is replaced, never changed.
Source: RocketMQ MappedFileQueue; storage-formats 1.1, 4.7.
"""

import os
import threading
from collections.abc import Callable
from typing import Protocol

from store import format as fmt
from store.errors import LayoutError, PositionRangeError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import (
    MappedFile,
    View,
    create_file,
    first_size_bytes,
    open_file,
)
from store.files.staging import aside_directory, aside_path, sweep


class FileSource(Protocol):
    """The maker of the next file: in line, or the warm-up thread ahead of time."""

    def take(self, position: int) -> MappedFile:
        """Return the file that starts at `position`, empty, and allocated unless it grows.

        Raises StoreFullError, FileSystemError, or BusyError when it takes too long.
        """
        ...

    def grow(self, file: MappedFile, hi_position: int) -> None:
        """Have blocks in the first file up to a position; errors as `MappedFile.grow`."""
        ...


class InlineFiles:
    """Makes each file in `take`."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        size_bytes: int,
        *,
        warm_up: bool = False,
        reserve_bytes: int = 0,
    ) -> None:
        """Leave `reserve_bytes` of the disk for the files beside the log."""
        self._fs, self._directory = fs, directory
        self._size_bytes, self._warm_up = size_bytes, warm_up
        self._reserve_bytes = reserve_bytes

    def take(self, position: int) -> MappedFile:
        """Make the file now."""
        needed_bytes = first_size_bytes(position, self._size_bytes)
        self._fs.check_room(self._directory, needed_bytes, self._reserve_bytes)
        return create_file(
            self._fs, self._directory, position, self._size_bytes, warm_up=self._warm_up
        )

    def grow(self, file: MappedFile, hi_position: int) -> None:
        """Allocate now."""
        file.grow(hi_position, self._reserve_bytes)


class MappedFileQueue:
    """Files of `file_size_bytes`, contiguous, named by their first position."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        file_size_bytes: int,
        source: FileSource | None = None,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self.source: FileSource = source or InlineFiles(fs, directory, file_size_bytes)
        self.files: tuple[MappedFile, ...] = ()
        # One sync at a time, and none during a truncation but the one it ends with.
        self._sync_lock = threading.RLock()
        self.flushed_position = 0
        """Position before which every byte is durable. For others to read only."""
        self._reserved: list[MappedFile] = []  # The next files, taken ahead; empty and mapped.
        self._has_new_name = False  # A file was taken whose name may not be durable.
        self._detached: list[MappedFile] = []  # Out of the sequence, to be deleted; oldest first.

    # --- Opening ---

    def load(self) -> None:
        """Open every file of the directory; all bytes count as written until recovery corrects it.

        Left-overs of unfinished allocations and a last file of length 0 are removed. Raises
        LayoutError for a file of the wrong size or a gap in the sequence; nothing is changed then.
        """
        assert not self.files, "loaded twice"
        self._fs.make_directory(self.directory)
        sweep(self._fs, self.directory)
        names = self._fs.list_directory(self.directory)
        names = [n for n in names if len(n) == fmt.FILE_NAME_DIGITS and n.isdecimal()]
        if names and os.path.getsize(os.path.join(self.directory, names[-1])) == 0:
            self._fs.unlink(os.path.join(self.directory, names.pop()))
        files: list[MappedFile] = []
        try:
            for name in names:
                files.append(self._open_next(name, files))
        except BaseException:
            for file in files:
                file.close()
            raise
        self.files = tuple(files)
        self.flushed_position = self.max_position

    def _open_next(self, name: str, before: list[MappedFile]) -> MappedFile:
        path = os.path.join(self.directory, name)
        if before and int(name) != before[-1].end_position:
            expected = fmt.file_name(before[-1].end_position)
            raise LayoutError(path, f"the next file to be {expected}", name)
        if int(name) % self.file_size_bytes:
            raise LayoutError(path, f"a multiple of {self.file_size_bytes} as name", name)
        return open_file(self._fs, self.directory, name, self.file_size_bytes)

    # --- Positions ---

    @property
    def min_position(self) -> int:
        """First byte of the oldest file; 0 without files."""
        files = self.files
        return files[0].position if files else 0

    @property
    def max_position(self) -> int:
        """End of the bytes that can be read (committed, not necessarily synced)."""
        files = self.files
        if not files:
            return 0
        # With write buffers any file before the last one may be incomplete, but not before the
        # synced position.
        last = len(files) - 1
        number = (self.flushed_position - files[0].position) // self.file_size_bytes
        number = min(max(number, 0), last)
        while number < last and files[number].committed_position == files[number].end_position:
            number += 1
        return files[number].committed_position

    @property
    def wrote_position(self) -> int:
        """Position at which the next append lands, if it fits into the last file."""
        files = self.files
        return files[-1].wrote_position if files else 0

    @property
    def end_position(self) -> int:
        """End of the last file; 0 without files."""
        files = self.files
        return files[-1].end_position if files else 0

    def file_at(self, position: int) -> MappedFile:
        """Return the file that holds `position`. Raises PositionRangeError."""
        files = self.files
        if files:
            number = (position - files[0].position) // self.file_size_bytes
            if 0 <= number < len(files):
                return files[number]
        raise PositionRangeError("position", position, self.min_position, self.max_position)

    # --- Reading ---

    def read(self, position: int, size_bytes: int) -> bytes:
        """Copy bytes that lie within one file; errors as MappedFile.read."""
        return self.file_at(position).read(position, size_bytes)

    def view(self, position: int, size_bytes: int) -> View:
        """Return a zero-copy window within one file; errors as MappedFile.view."""
        return self.file_at(position).view(position, size_bytes)

    # --- Writing ---

    def roll(
        self,
        first_position: int | None = None,
        fill: Callable[[MappedFile, MappedFile], None] | None = None,
    ) -> MappedFile:
        """Take the next file into use and return it; the last one must be complete.

        `first_position` places the very first file (rounded down to a whole file). `fill(last,
        next)` completes the last file once the next one is there, so that a failed allocation
        leaves the last file as it was. Raises what the source and `fill` raise; nothing has
        changed then.
        """
        files = self.files
        if files:
            position = files[-1].end_position
        else:
            position = (first_position or 0) // self.file_size_bytes * self.file_size_bytes
            self.flushed_position = position
        hit("mapped_file_queue.roll")
        file = self._reserved.pop(0) if self._reserved else self.source.take(position)
        assert file.position == position, f"asked for {position}, got {file.position}"
        if files:
            last = files[-1]
            if fill is not None:
                try:
                    fill(last, file)
                except BaseException:
                    file.delete()
                    raise
            assert last.wrote_position == last.end_position, f"{last.path} is not complete"
        self.files = (*files, file)
        return file

    def reserve(self, count: int = 1) -> None:
        """Take the next `count` files ahead, so that as many rolls cannot fail.

        The files belong to the log from the roll on; a crash leaves empty ones, which recovery
        deletes. Raises what the source raises, and FileSystemError; files taken before stay
        reserved.
        """
        while len(self._reserved) < count:
            file = self.source.take(self.reserve_position())
            self._has_new_name = True
            try:
                file.append(b"")  # Maps it.
            except BaseException:
                file.delete()
                raise
            self._reserved.append(file)

    def make_room(self, size_bytes: int) -> None:
        """Have blocks for `size_bytes` and a blank behind the written bytes, or to the file's end.

        So a file that is complete has all of its blocks. Without a file the first one reserved is
        meant. Raises what the source raises.
        """
        file = self.files[-1] if self.files else self._reserved[0]
        hi = min(file.wrote_position + size_bytes + fmt.BLANK_SIZE_BYTES_MIN, file.end_position)
        if hi > file.allocated_position:
            self.source.grow(file, hi)

    def file_count_for(self, size_bytes: int) -> int:
        """Return how many more files pieces of `size_bytes` in all may need: each is within one
        file, and leaves room for a blank."""
        files = self.files
        if files and size_bytes + fmt.BLANK_SIZE_BYTES_MIN <= files[-1].free_bytes:
            return 0
        # Two neighbours together do not fit into one file, else they would lie in one.
        return 1 + 2 * size_bytes // self.file_size_bytes

    def reserve_position(self) -> int:
        """Return where the next file to reserve begins."""
        return self.end_position + len(self._reserved) * self.file_size_bytes

    @property
    def reserved_count(self) -> int:
        """Count of the files taken ahead."""
        return len(self._reserved)

    def _drop_reserved(self) -> None:
        while self._reserved:  # The last one first, so that no gap is ever there.
            self._reserved[-1].delete()
            self._reserved.pop()

    def sync(self) -> int:
        """Make everything that was committed before the call durable; return the position reached.

        Syncs each file from the first unsynced one on. Raises SyncFailedError: stop the process.
        """
        with self._sync_lock:
            files = self.files  # First: the name of one that is rolled to later is not synced here.
            if self._has_new_name:
                # Before the sync: a file taken during it asks for another.
                self._has_new_name = False
                self._fs.sync_directory(self.directory)
            for file in files:
                if file.end_position <= self.flushed_position:
                    continue
                if file.committed_position > file.flushed_position:
                    file.sync()
                flushed = file.flushed_position
                if flushed > self.flushed_position:  # noqa: PLR1730 - Without a call.
                    self.flushed_position = flushed
                if flushed < file.end_position:
                    break
            return self.flushed_position

    def seal_complete(self) -> None:
        """Unmap the files that are complete and durable; only the active one stays mapped."""
        for file in self.files[:-1]:
            if file.flushed_position == file.end_position:
                hit("mapped_file_queue.seal")
                file.seal()

    # --- Cutting ---

    def dirty_hi(self, position: int) -> int:
        """Return the byte after the last one, from `position` on, that is not zero."""
        for file in reversed(self.files):
            lo = max(position, file.position)
            hi = file.dirty_hi(lo)
            if hi > lo or file.position <= position:
                return max(hi, position)
        return position

    def truncate(self, position: int, dirty_hi: int | None = None) -> None:
        """Cut everything from `position` on, durably; whole files beyond it are deleted.

        `dirty_hi` is where zeros are known to begin; by default the last file is read to its end.
        The last files go first, so a crash in the middle leaves a contiguous sequence. Raises
        FileSystemError or SyncFailedError; repeat it then.
        """
        with self._sync_lock:
            files = list(self.files)
            if len(files) > 1 and files[-1].position >= position:
                self._drop_reserved()
            while files and files[-1].position >= position and len(files) > 1:
                files[-1].delete()
                files.pop()
                self.files = tuple(files)
            self._fs.sync_directory(self.directory)
            if files:
                files[-1].truncate(max(position, files[-1].position), dirty_hi)
            self.flushed_position = min(self.flushed_position, self.max_position)
            self.sync()

    def rewrite(self, lo: int, hi: int) -> None:
        """Write bytes once more as they are, durably. Errors as `sync`."""
        while lo < hi:
            file = self.file_at(lo)
            file.rewrite(lo, min(hi, file.end_position))
            lo = file.end_position

    def reset(self, position: int) -> None:
        """Delete every file; the next one starts at `position` (a multiple of the file size).

        For a replica whose log is replaced by a snapshot. Views that are open keep their bytes. The
        name of the new file is durable with the next sync.
        """
        assert position % self.file_size_bytes == 0, f"reset to {position}"
        with self._sync_lock:
            self._drop_reserved()
            self._delete_detached()
            while self.files:  # One by one, so that a failed call can be repeated.
                self.files[-1].delete()
                self.files = self.files[:-1]
            self._fs.sync_directory(self.directory)
            self.roll(position)
            self._has_new_name = True  # Before the lock is free: no sync sees the file without.

    def delete_first(self) -> int:
        """Delete the oldest file, never the last one, and return the bytes that this frees."""
        with self._sync_lock:
            files = self.files
            if len(files) < 2:
                return 0
            hit("mapped_file_queue.delete")
            self.files = files[1:]
            try:
                files[0].delete()
            except BaseException:
                self.files = files  # The file still has its name; a gap would follow otherwise.
                raise
            self._fs.sync_directory(self.directory)
            self.flushed_position = max(self.flushed_position, self.min_position)
            return self.file_size_bytes

    def detach_first(self, count: int) -> tuple[MappedFile, ...]:
        """Take the oldest files out of the sequence; `delete_detached` follows on any thread.

        For the thread that appends, which must not wait for a disk: only memory changes. The files
        are durable as a whole, and the last file is never among them.
        """
        files = self.files
        assert count < len(files), f"detach {count} of {len(files)} files"
        self._detached += files[:count]
        self.files = files[count:]
        return files[:count]

    @property
    def has_detached(self) -> bool:
        """Whether files are detached and not deleted yet."""
        return bool(self._detached)

    def delete_detached(self) -> None:
        """Delete the files that were detached, the oldest first, durably; repeat it after an error.

        Files that an earlier call could not delete go first: no gap is ever there. Excludes a sync:
        one that began before may still hold the files.
        """
        with self._sync_lock:
            self._delete_detached()

    def _delete_detached(self) -> None:
        if not self._detached:
            return
        while self._detached:
            file = self._detached[0]
            hit("mapped_file_queue.delete")
            if os.path.exists(file.path):
                file.delete()
            else:  # The file was deleted by hand, to make room.
                file.close()
            del self._detached[0]
        self._fs.sync_directory(self.directory)

    def set_first_aside(self) -> None:
        """Take all files but the last out of the sequence, durably, and keep them in a directory
        beside it; `delete_aside` removes them.

        The oldest go first: no gap is ever there. Raises FileSystemError or SyncFailedError: stop.
        """
        with self._sync_lock:
            aside = aside_directory(self.directory)
            self._fs.make_directory(aside)
            while len(self.files) > 1:
                first = self.files[0]
                self._fs.rename(first.path, aside_path(first.path))
                self.files = self.files[1:]
                first.close()
            self._fs.sync_directory(aside)
            self._fs.sync_directory(self.directory)

    def delete_aside(self) -> None:
        """Delete the files that were set aside. Any thread. Raises FileSystemError: repeat it."""
        aside = aside_directory(self.directory)
        for name in self._fs.list_directory(aside):
            self._fs.unlink(os.path.join(aside, name))

    def close(self) -> None:
        """Close all files; views that are open stay valid. Syncs nothing."""
        files, self.files = self.files, ()
        for file in (*files, *self._reserved, *self._detached):
            file.close()
        self._reserved, self._detached = [], []
