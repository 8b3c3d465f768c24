"""One fixed-size file of a rolling sequence: appended through a map, read as copies or views.

Owns the file's descriptor, its map and its three positions; must not know what the bytes mean. All
positions are absolute, in the byte space of the whole sequence. Only the file that is being written
is mapped; sealed files are read with `pread`, so a bad sector is an exception and not a SIGBUS
(fault-matrix section 6). Views pin the file: a file that is deleted or closed under a view loses
its name at once and its map with the last view. Source: RocketMQ DefaultMappedFile.

A log's first file takes its blocks as it grows, so that a small log is small on disk; later ones
have all of them from the beginning. Nothing is appended where the file has no blocks: a full disk
would be a SIGBUS there.

Invariant: position <= flushed <= committed <= wrote <= allocated <= end. Without a buffer,
committed is wrote.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from typing import Final

from store import format as fmt
from store.errors import (
    ClosedError,
    FileSystemError,
    LayoutError,
    PositionRangeError,
    StoreFullError,
)
from store.files import page_memory
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import stage, staged_path
from store.files.zeros import CHUNK_SIZE_BYTES, SYNC_SIZE_BYTES, ZEROS, zero_range

_CALL_SIZE_BYTES_MIN: Final = 16 * 1024
"""A piece of this size or more is written by a call. The first touch of a page through a map is a
fault, and the kernel zeroes a page of a file in memory before it is overwritten."""
_ALLOCATE_SIZE_BYTES: Final = 4 * CHUNK_SIZE_BYTES  # A millisecond on tmpfs; more is one call.
_WARM_UP_SYNC_BYTES: Final = 4 * CHUNK_SIZE_BYTES  # Small bursts beside the syncs of the log.
FIRST_SIZE_BYTES: Final = CHUNK_SIZE_BYTES
"""The part of a log's first file that is allocated when the file is made."""


class View:
    """A read-only window on the bytes of a file, valid until `release` or the end of `with`.

    The file cannot be unmapped under it: close and delete wait for the last view.
    """

    __slots__ = ("_file", "data")

    def __init__(self, file: "MappedFile", data: memoryview) -> None:
        self._file: MappedFile | None = file
        self.data = data

    def release(self) -> None:
        """Give the bytes back; `data` must not be used any more. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            self.data.release()
            file.drop()

    def __enter__(self) -> memoryview:
        return self.data

    def __exit__(self, *_: object) -> None:
        self.release()


class MappedFile:
    """One file. The owner serialises append, commit, sync and truncate; reads come from anywhere.

    A sync may run on another thread beside appends: it covers what was written before it began.
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_fd",
        "_fs",
        "_lock",
        "_map",
        "_target",
        "_warms_up",
        "allocated_position",
        "committed_position",
        "end_position",
        "flushed_position",
        "hold_count",
        "path",
        "position",
        "size_bytes",
        "wrote_position",
    )

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        position: int,
        size_bytes: int,
        fd: int,
        allocated_size_bytes: int,
        *,
        warms_up: bool = False,
    ) -> None:
        """`warms_up`: write zeros through what `grow` allocates, since no other bytes are there."""
        self._fs, self.path, self._fd = fs, path, fd
        self._warms_up = warms_up
        self.position: Final = position
        self.size_bytes: Final = size_bytes
        self.end_position: Final = position + size_bytes
        self.wrote_position = position  # Moved by the writer only, after the bytes are in place.
        self.committed_position = position
        self.flushed_position = position
        self.allocated_position = position + allocated_size_bytes
        """Position up to which the file has blocks for sure; behind it there may be a hole."""
        self._buffer: memoryview | None = None
        """From the transient pool; writes go there and not to the map."""
        self._map: mmap.mmap | None = None
        self._target: memoryview | None = None
        self.hold_count = 0
        """Count of the views and running reads that pin the file."""
        self._closed = False
        self._lock = threading.Lock()  # Guards _holds, _closed and the teardown.

    # --- Writing ---

    @property
    def free_bytes(self) -> int:
        """Bytes between the write position and the end of the file."""
        return self.end_position - self.wrote_position

    def append(self, data: bytes | memoryview) -> int:
        """Copy `data` to the write position and return where it landed. Not durable yet.

        The caller has made room. Other threads see the bytes only once all are there.
        """
        target = self._target or self._open_target()
        position, base = self.wrote_position, self.position
        hi_position = position + len(data)
        hi = hi_position - base
        assert hi_position <= self.allocated_position, f"{self.path}: no room for {hi}"
        if hi_position - position < _CALL_SIZE_BYTES_MIN or not self._write(position - base, data):
            target[position - base : hi] = data
        self.wrote_position = hi_position
        if self._buffer is None:
            self.committed_position = hi_position
        return position

    def _write(self, at: int, data: bytes | memoryview) -> bool:
        """Write a large piece by a call; return False for one that goes through the map.

        The map shows what a call writes. A call that fails leaves the piece to the map, which also
        takes small ones: the space is allocated, and the next sync tells the state of the disk."""
        if self._buffer is not None:
            return False
        try:
            with self:  # Else the descriptor could be another file's by now.
                self._fs.write_at(self._fd, self.path, at, data)
        except (StoreFullError, FileSystemError):
            return False
        return True

    def finish(self, data: bytes) -> None:
        """Append `data` as the last of the file; the rest reads as zeros, as a fresh file does.

        One step for readers and commits beside it: no position in between is ever seen, and no
        reader continues from the middle of a blank.
        """
        position = self.wrote_position
        target = self._target or self._open_target()
        at = position - self.position
        hi_position = position + len(data)
        assert hi_position <= self.allocated_position, f"{self.path}: no room at {at}"
        target[at : at + len(data)] = data
        self.wrote_position = self.end_position
        if self._buffer is None:
            self.committed_position = self.end_position

    def grow(self, hi_position: int, reserve_bytes: int = 0) -> None:
        """Have blocks up to a position, and ahead: as many again as there are, 4 MiB at most; 1 MiB
        where zeros are written through them, which the next sync has to wait for.

        Leaves `reserve_bytes` of the disk. Raises StoreFullError or FileSystemError; nothing has
        changed then.
        """
        lo = self.allocated_position - self.position
        limit = CHUNK_SIZE_BYTES if self._warms_up else _ALLOCATE_SIZE_BYTES
        ahead = min(max(lo, FIRST_SIZE_BYTES), limit)
        hi = max(hi_position - self.position, lo + ahead)
        hi = min(hi + -hi % mmap.PAGESIZE, self.size_bytes)
        self._fs.check_room(os.path.dirname(self.path), hi - lo, reserve_bytes)
        with self:
            self._fs.allocate(self._fd, self.path, hi - lo, lo)
            for at in range(lo, hi if self._warms_up else lo, CHUNK_SIZE_BYTES):
                self._fs.warm(self._fd, self.path, at, min(CHUNK_SIZE_BYTES, hi - at))
        self.allocated_position = self.position + hi

    def _open_target(self) -> memoryview:
        if self._closed:
            raise ClosedError(self.path)
        self._target = self._buffer if self._buffer is not None else memoryview(self._mapped())
        return self._target

    def _mapped(self) -> mmap.mmap:
        with self._lock:
            if self._closed and not self.hold_count:
                raise ClosedError(self.path)
            if self._map is None:
                self._map = self._fs.map(self._fd, self.path, self.size_bytes)
            return self._map

    def commit(self) -> memoryview | None:
        """Copy the bytes of the write buffer beyond the committed position into the page cache.

        Returns the buffer when the file is complete and does not need it any more, else None.
        Does nothing without a write buffer. Raises StoreFullError or FileSystemError.
        """
        buffer = self._buffer
        if buffer is None:
            return None
        lo, hi = self.committed_position, self.wrote_position
        if lo < hi:
            with buffer[lo - self.position : hi - self.position] as part:
                self._fs.write_at(self._fd, self.path, lo - self.position, part)
            self.committed_position = hi
        if self.committed_position < self.end_position:
            return None
        self._buffer = self._target = None
        return buffer

    def give_buffer(self, buffer: memoryview) -> None:
        """Let writes of this fresh file go to `buffer`, of the file's size and all zero."""
        assert self.wrote_position == self.position, f"{self.path} has been written to"
        assert len(buffer) == self.size_bytes, f"{self.path}: buffer of {len(buffer)} bytes"
        self._buffer, self._target = buffer, None

    def take_buffer(self) -> memoryview | None:
        """Detach the write buffer after a final commit, so that writes go to the map from now."""
        assert self.committed_position == self.wrote_position, f"{self.path}: uncommitted bytes"
        buffer, self._buffer, self._target = self._buffer, None, None
        return buffer

    def sync(self) -> int:
        """Make all committed bytes durable and return the position up to which they are.

        Raises SyncFailedError, after which the process must stop: `flushed_position` is unchanged.
        """
        hi = self.committed_position
        with self._lock:  # Inlined `hold`: once an append.
            if self._closed:
                raise ClosedError(self.path)
            self.hold_count += 1
        try:
            self._fs.sync(self._fd, self.path)
        finally:
            self.drop()
        assert self.flushed_position <= hi, f"{self.path}: flushed ran ahead of committed"
        self.flushed_position = hi
        return hi

    def seal(self) -> None:
        """Unmap a file that is complete; it is read with `pread` from now on."""
        assert self.committed_position == self.end_position, f"{self.path} is not complete"
        with self._lock:
            if not self.hold_count and not self._closed:
                self._unmap()

    # --- Reading ---

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return a copy of committed bytes.

        Raises PositionRangeError outside of them, ClosedError once the file is gone, and
        FileSystemError when the disk cannot read.
        """
        if not self.position <= position <= position + size_bytes <= self.committed_position:
            raise PositionRangeError(
                "position", position + size_bytes, self.position, self.committed_position
            )
        at = position - self.position
        mapped = self._map
        if mapped is not None and self._buffer is None:
            try:
                return mapped[at : at + size_bytes]
            except ValueError:  # Sealed by another thread meanwhile: read it as a sealed file.
                pass
        self.hold()  # By hand: a `with` takes 0.3 us more.
        try:
            return self._fs.read_at(self._fd, self.path, at, size_bytes)
        finally:
            self.drop()

    def read_any(self, position: int, size_bytes: int) -> bytes:
        """Copy bytes of the file that need not be written yet; for checks. Errors as `read`."""
        assert self.position <= position <= self.end_position - size_bytes, f"{self.path}: read"
        with self:
            return self._fs.read_at(self._fd, self.path, position - self.position, size_bytes)

    def forget_cached(self, position: int, size_bytes: int) -> None:
        """Have the next read of durable bytes ask the disk. Raises ClosedError, FileSystemError."""
        assert self.position <= position <= self.end_position - size_bytes, self.path
        with self:
            self._fs.forget_cached(self._fd, self.path, position - self.position, size_bytes)

    def view(self, position: int, size_bytes: int) -> View:
        """Return a zero-copy window on committed bytes; errors as `read`."""
        if not self.position <= position <= position + size_bytes <= self.committed_position:
            raise PositionRangeError(
                "position", position + size_bytes, self.position, self.committed_position
            )
        self.hold()
        try:
            at = position - self.position
            return View(self, memoryview(self._mapped()).toreadonly()[at : at + size_bytes])
        except BaseException:
            self.drop()
            raise

    def hold(self) -> None:
        """Keep descriptor and map alive until `drop`, or to the end of a `with` block.

        Raises ClosedError when already closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError(self.path)
            self.hold_count += 1

    def drop(self, *_: object) -> None:
        """End a `hold`; the last one tears a closed file down."""
        with self._lock:
            self.hold_count -= 1
            assert self.hold_count >= 0, f"{self.path}: dropped more often than held"
            if self._closed and not self.hold_count:
                self._tear_down()

    __enter__, __exit__ = hold, drop  # Without one more call for each read.

    def lock_memory(self) -> bool:
        """Keep what is allocated in RAM (mlock) until the file is sealed; return whether it worked.

        May run beside reads and writes. Raises ClosedError.
        """
        with self:
            mapped = self._mapped()
            size_bytes = self.allocated_position - self.position
            return page_memory.lock_memory(mapped, size_bytes) and page_memory.will_need(mapped)

    def overwrite(self, position: int, data: bytes) -> None:
        """Overwrite damaged bytes, durably; maps and views show it. Errors as `commit`, `sync`."""
        assert self._buffer is None, f"{self.path} has a write buffer"
        assert self.position <= position <= self.committed_position - len(data), self.path
        with self:
            self._fs.write_at(self._fd, self.path, position - self.position, data)
            self._fs.sync(self._fd, self.path)

    def rewrite(self, lo: int, hi: int) -> None:
        """Write the bytes from `lo` to `hi` once more as they are, durably. Errors as `sync`.

        After a sync that failed the page cache holds pages as clean that the disk lacks: a sync
        alone succeeds then, and writes nothing. One sync of very much could not be told from one
        that hangs, so each is of SYNC_SIZE_BYTES at most."""
        assert self._buffer is None, f"{self.path} has a write buffer"
        with self:
            while lo < hi:
                end = min(lo + SYNC_SIZE_BYTES, hi)
                while lo < end:
                    part = self.read(lo, min(CHUNK_SIZE_BYTES, end - lo))
                    self._fs.write_at(self._fd, self.path, lo - self.position, part)
                    lo += len(part)
                self._fs.sync(self._fd, self.path)

    # --- End of life ---

    def truncate(self, position: int, dirty_hi: int | None = None) -> None:
        """Cut everything from `position` on: zero the rest of the file on disk, durably.

        So old bytes can never revive (fault-matrix S07). The file keeps its size: a mapped file is
        never shrunk. `dirty_hi` is where zeros are known to begin, by default the end of the file.
        The caller stops writers.
        """
        assert self.position <= position <= self.end_position, f"{self.path}: cut at {position}"
        assert self._buffer is None, f"{self.path}: a file with a write buffer is never cut"
        hit("mapped_file.truncate")
        hi = self.end_position if dirty_hi is None else min(dirty_hi, self.end_position)
        with self:
            if position < hi:
                base = self.position
                zero_range(self._fs, self._fd, self.path, position - base, hi - base)
            self.wrote_position = self.committed_position = position
            self.flushed_position = min(self.flushed_position, position)
            self.allocated_position = max(self.allocated_position, position)

    def dirty_hi(self, position: int) -> int:
        """Return the byte after the last one, from `position` on, that is not zero."""
        with self:
            hi = self.end_position
            while hi > position:
                lo = max(position, hi - CHUNK_SIZE_BYTES)
                data = self._fs.read_at(self._fd, self.path, lo - self.position, hi - lo)
                if data != (ZEROS if hi - lo == CHUNK_SIZE_BYTES else ZEROS[: hi - lo]):
                    return lo + len(data.rstrip(b"\0"))
                hi = lo
            return position

    def set_positions(self, position: int) -> None:
        """Declare everything before `position` written and durable; for recovery only."""
        assert self.position <= position <= self.end_position, f"{self.path}: set to {position}"
        self.wrote_position = self.committed_position = self.flushed_position = position
        self.allocated_position = max(self.allocated_position, position)

    def close(self) -> None:
        """Release map and descriptor, now or with the last view. Syncs nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self.hold_count:
                self._tear_down()

    def delete(self) -> None:
        """Remove the file's name and close it; views that are open keep their bytes."""
        self._fs.unlink(self.path)
        self.close()

    def _tear_down(self) -> None:
        self._unmap()
        self._fs.close(self._fd)

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        if self._target is not None and self._buffer is None:
            self._target.release()
        self._target = None
        if mapped is not None:
            # A slice that was taken of a view may still be alive: the map then goes with it.
            with contextlib.suppress(BufferError):
                mapped.close()


class PreparedFile:
    """A file that is allocated as far as it has to be, zero and durable, under a temporary name
    until it is published."""

    __slots__ = ("_fd", "_fs", "_temporary", "_warm_up", "path", "position", "size_bytes")

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        position: int,
        size_bytes: int,
        fd: int,
        *,
        warm_up: bool,
    ) -> None:
        self._fs, self._fd, self._warm_up = fs, fd, warm_up
        self._temporary = staged_path(*os.path.split(path))
        self.path, self.position, self.size_bytes = path, position, size_bytes

    def publish(self, *, is_durable: bool = True) -> MappedFile:
        """Give the file its final name, durably if asked; on an error it is discarded.

        Raises FileSystemError or SyncFailedError."""
        try:
            self._fs.rename(self._temporary, self.path)
            if is_durable:
                self._fs.sync_directory(os.path.dirname(self.path))
        except BaseException:
            self.discard()
            raise
        allocated_size_bytes = first_size_bytes(self.position, self.size_bytes)
        return MappedFile(
            self._fs,
            self.path,
            self.position,
            self.size_bytes,
            self._fd,
            allocated_size_bytes,
            warms_up=self._warm_up,
        )

    def discard(self) -> None:
        """Close the file and remove its temporary name."""
        self._fs.close(self._fd)
        if os.path.exists(self._temporary):
            self._fs.unlink(self._temporary)


def first_size_bytes(position: int, size_bytes: int) -> int:
    """Return how much of a file is allocated when it is made: only a log's first file grows."""
    return size_bytes if position else min(size_bytes, FIRST_SIZE_BYTES)


def prepare_file(
    fs: FileSystem,
    directory: str,
    position: int,
    size_bytes: int,
    *,
    warm_up: bool,
    is_cancelled: Callable[[], bool] = lambda: False,
    is_urgent: Callable[[], bool] = lambda: False,
    pace: Callable[[], None] = lambda: None,
) -> PreparedFile | None:
    """Make the file that starts at `position` under a temporary name: allocated, zero, durable.

    So a crash or a full disk never leaves a partial file that looks like a log file (fault-matrix
    S10). Only `first_size_bytes` are allocated, the rest is a hole. With `warm_up` zeros are
    written through them, because a sync into allocated but unwritten space can cost several times
    one into written space; once `is_urgent`, the rest stays unwritten, because slow syncs are
    better than no file. `pace` is called after each piece and may wait.
    Returns None when `is_cancelled` said so. Raises StoreFullError or FileSystemError; nothing is
    left behind in either case.
    """
    path = os.path.join(directory, fmt.file_name(position))
    temporary = stage(fs, directory, fmt.file_name(position))
    fd = fs.open(temporary, create=True)
    prepared = PreparedFile(fs, path, position, size_bytes, fd, warm_up=warm_up)
    try:
        hi = first_size_bytes(position, size_bytes)
        if hi < size_bytes:
            fs.set_size(fd, temporary, size_bytes)
        for at in range(0, hi, _ALLOCATE_SIZE_BYTES):
            if is_cancelled():
                prepared.discard()
                return None
            fs.allocate(fd, temporary, min(_ALLOCATE_SIZE_BYTES, hi - at), at)
            pace()
        if warm_up:
            for at in range(0, hi, CHUNK_SIZE_BYTES):
                if is_cancelled():
                    prepared.discard()
                    return None
                if is_urgent():
                    break
                chunk_size_bytes = min(CHUNK_SIZE_BYTES, hi - at)
                fs.warm(fd, temporary, at, chunk_size_bytes)
                if at % _WARM_UP_SYNC_BYTES == 0 and at:
                    fs.sync(fd, temporary)
                pace()
        fs.sync(fd, temporary)
    except BaseException:
        prepared.discard()
        raise
    return prepared


def create_file(
    fs: FileSystem,
    directory: str,
    position: int,
    size_bytes: int,
    *,
    warm_up: bool,
) -> MappedFile:
    """Make the file that starts at `position`, as `prepare_file`, under its final name.

    Raises StoreFullError, FileSystemError or SyncFailedError; nothing is left behind.
    """
    prepared = prepare_file(fs, directory, position, size_bytes, warm_up=warm_up)
    assert prepared is not None, "cancelled without a canceller"
    return prepared.publish()


def open_file(fs: FileSystem, directory: str, name: str, size_bytes: int) -> MappedFile:
    """Open a file that exists, all of it counted as written until recovery says otherwise.

    The file is synced first: after a crash of the process its bytes may be in the page cache only,
    and what recovery accepts must be durable. Raises LayoutError when its size is not the
    configured one, SyncFailedError.
    """
    path = os.path.join(directory, name)
    fd = fs.open(path)
    actual_size = fs.size_bytes(fd)
    if actual_size != size_bytes:
        fs.close(fd)
        raise LayoutError(path, f"{size_bytes} bytes", f"{actual_size} bytes")
    file = MappedFile(fs, path, int(name), size_bytes, fd, size_bytes)
    try:
        fs.sync(fd, path)
    except BaseException:
        file.close()
        raise
    file.set_positions(file.end_position)
    if first_size_bytes(file.position, size_bytes) < size_bytes:
        file.allocated_position = file.position  # Not known, until recovery finds the bytes.
    return file
