"""The one port to the disk: every file-system call of the store goes through here.

Owns the calls, their failpoints and the translation of OSError into store errors; must not know
what the files mean. Tests put a power-loss double in its place, so keep it narrow. Only
`os.fdatasync` syncs file data: `mmap.flush` would hold the interpreter lock for the whole
write-back (design 2). Directories are synced with `os.fsync`, the only call that works on them.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from store.errors import FileSystemError, StoreFullError, SyncFailedError
from store.files import failpoints
from store.files.failpoints import ShortWrite, hit
from store.files.spare_descriptors import SPARE

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Files and directories are for the user of the process alone: they hold what clients send."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FileSystem:
    """The real file system. Stateless; one instance may serve many stores and threads."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """Open a file and return its descriptor. `create` demands that it does not exist yet.

        A pipe in its place does not block the call: it is open at once, without a byte to read.
        Raises FileSystemError, or StoreFullError when the directory cannot take a new name.
        """
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        with self._call("fs.open", path):
            return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)

    def close(self, fd: int) -> None:
        """Close a descriptor. A failing close loses nothing that a sync promised."""
        os.close(fd)

    def allocate(self, fd: int, path: str, size_bytes: int, position: int = 0) -> None:
        """Reserve blocks from `position` on, so that a later write through a map cannot SIGBUS.

        Raises StoreFullError; the file then holds part of the space and the caller unlinks it.
        """
        try:
            try:
                hit("fs.allocate")
            except ShortWrite:
                os.posix_fallocate(fd, position, max(1, size_bytes // 2))
                raise OSError(errno.ENOSPC, "failpoint fs.allocate") from None
            os.posix_fallocate(fd, position, size_bytes)
        except OSError as error:
            raise self._translate("allocate", path, size_bytes, error) from error

    def set_size(self, fd: int, path: str, size_bytes: int) -> None:
        """Set the size of a file that is not mapped; growth is a hole that reads as zeros.

        A map must not be touched there before `allocate`: a hole would SIGBUS on a full disk.
        """
        with self._call("fs.set_size", path, size_bytes):
            os.ftruncate(fd, size_bytes)

    def map(self, fd: int, path: str, size_bytes: int) -> mmap.mmap:
        """Map a file shared and writable. The size must be the file's size."""
        with self._call("fs.map", path, size_bytes):
            return mmap.mmap(fd, size_bytes)

    def read_at(self, fd: int, path: str, position: int, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` at `position`. Raises FileSystemError(EIO) at the end of file.

        `os.pread` and not the map: a bad sector is then an exception and not a SIGBUS.
        """
        try:
            hit("fs.read")
            data = os.pread(fd, size_bytes, position)
            while len(data) < size_bytes:  # Rare: the kernel may return less than asked.
                more = os.pread(fd, size_bytes - len(data), position + len(data))
                if not more:
                    raise OSError(errno.EIO, "end of file")
                data += more
            return data
        except (OSError, ShortWrite) as error:
            raise self._translate("read", path, size_bytes, error) from error

    def forget_cached(self, fd: int, path: str, position: int, size_bytes: int) -> None:
        """Drop the page cache's copy of bytes that are on the disk, so that a read asks the disk.

        Advice, which a file system in memory does not take. Raises FileSystemError.
        """
        try:
            os.posix_fadvise(fd, position, size_bytes, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._translate("forget", path, size_bytes, error) from error

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `position` into the page cache; nothing is durable yet.

        Raises StoreFullError or FileSystemError; a prefix may then have been written.
        """
        try:
            if failpoints.is_on:
                self._hit_write(fd, position, data)
            written = os.pwrite(fd, data, position)
            while written < len(data):  # Rare: signals and full disks cut a write short.
                step = os.pwrite(fd, data[written:], position + written)
                if step == 0:
                    raise OSError(errno.ENOSPC, "no progress")
                written += step
        except OSError as error:
            raise self._translate("write", path, len(data), error) from error

    @staticmethod
    def _hit_write(fd: int, position: int, data: bytes | memoryview) -> None:
        try:
            hit("fs.write")
        except ShortWrite:
            os.pwrite(fd, data[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, "failpoint fs.write") from None

    def warm(self, fd: int, path: str, position: int, size_bytes: int) -> None:
        """Write zeros into allocated space page by page; nothing is durable yet.

        Through a map and not with `write_at`: Linux keeps what one call writes in folios of up to
        its size, and one byte that is written through a map later makes a whole folio dirty. A
        sync of a small append then wrote all of what had been zeroed at once (docs/decisions/0006).
        Releases the interpreter lock. `position` is a multiple of the page size. Raises as
        `write_at`.
        """
        try:
            try:
                hit("fs.write")
            except ShortWrite:
                raise OSError(errno.ENOSPC, "failpoint fs.write") from None
            with mmap.mmap(fd, size_bytes, offset=position) as pages:
                pages.madvise(mmap.MADV_RANDOM)  # Reading ahead makes large folios as well.
                first = ctypes.c_char.from_buffer(pages)
                ctypes.memset(ctypes.addressof(first), 0, size_bytes)
                del first  # Else the map cannot be closed.
        except OSError as error:
            raise self._translate("write", path, size_bytes, error) from error

    def sync(self, fd: int, path: str) -> None:
        """Make the file's data durable (fdatasync, which covers dirty mapped pages on Linux).

        Releases the interpreter lock. Raises SyncFailedError, after which the process must stop.
        """
        try:
            if failpoints.is_on:
                hit("fs.sync")
            os.fdatasync(fd)
        except OSError as error:
            raise SyncFailedError(path, error.errno or errno.EIO) from error

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and deletions in a directory durable (fault-matrix S03).

        Raises SyncFailedError, also when not even a spare descriptor is left.
        """
        try:
            hit("fs.sync_directory")
            SPARE.fill()
            fd = SPARE.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)  # noqa: TID251 - A directory has no data, so fdatasync does not do.
            finally:
                os.close(fd)
                SPARE.fill()
        except OSError as error:
            raise SyncFailedError(path, error.errno or errno.EIO) from error

    def rename(self, source: str, target: str) -> None:
        """Give a file its final name atomically, replacing a file of that name."""
        with self._call("fs.rename", target):
            os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name; maps and descriptors that are open keep working."""
        with self._call("fs.unlink", path):
            os.unlink(path)

    def make_directory(self, path: str, *, is_durable: bool = True) -> None:
        """Create a directory and its parents, durably unless the caller syncs them later."""
        missing: list[str] = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(os.path.abspath(path))
        for directory in reversed(missing):
            with self._call("fs.make_directory", directory):
                try:
                    os.mkdir(directory, DIRECTORY_MODE)
                except FileExistsError:
                    continue
            if is_durable:
                self.sync_directory(os.path.dirname(os.path.abspath(directory)))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. The directory above must be synced to make this durable."""
        with self._call("fs.remove_directory", path):
            os.rmdir(path)

    def list_directory(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty when it does not exist."""
        with self._call("fs.list_directory", path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def remove_files(self, directory: str) -> None:
        """Remove all files of a directory, the last one first, durably; make it if need be."""
        for name in reversed(self.list_directory(directory)):
            self.unlink(os.path.join(directory, name))
        self.make_directory(directory)
        self.sync_directory(directory)

    def read_file(self, path: str, size_bytes_max: int | None = None) -> bytes:
        """Return the bytes of a small file, up to a size. Raises FileSystemError."""
        fd = self.open(path, read_only=True)
        try:
            size_bytes = self.size_bytes(fd)
            if size_bytes_max is not None:
                size_bytes = min(size_bytes, size_bytes_max)
            return self.read_at(fd, path, 0, size_bytes)
        finally:
            self.close(fd)

    def write_file(self, path: str, data: bytes) -> None:
        """Write and sync a small file, in place of one that a failed call left; the caller renames
        it. Raises StoreFullError, FileSystemError or SyncFailedError."""
        if os.path.exists(path):
            self.unlink(path)
        fd = self.open(path, create=True)
        try:
            self.write_at(fd, path, 0, data)
            self.sync(fd, path)
        finally:
            self.close(fd)

    def size_bytes(self, fd: int) -> int:
        """Return the size of an open file."""
        return os.fstat(fd).st_size

    def free_bytes(self, path: str) -> tuple[int, int]:
        """Return (free, total) bytes of the file system that holds `path`, as `df` counts them.

        Blocks reserved for root count neither as free nor as used. Some volumes reserve most of
        their blocks, and a node on one would otherwise be full from its first day.
        """
        stat = os.statvfs(path)
        used_count = stat.f_blocks - stat.f_bfree
        return stat.f_bavail * stat.f_frsize, (used_count + stat.f_bavail) * stat.f_frsize

    def check_room(self, directory: str, size_bytes: int, reserve_bytes: int) -> None:
        """Raise StoreFullError if a file of that size would leave less than the reserve free."""
        if not reserve_bytes:
            return
        free_bytes, needed_bytes = self.free_bytes(directory)[0], size_bytes + reserve_bytes
        if free_bytes < needed_bytes:
            raise StoreFullError(directory, needed_bytes, free_bytes, reserve_bytes=reserve_bytes)

    @contextmanager
    def _call(self, point: str, path: str, needed_bytes: int = 0) -> Iterator[None]:
        """Pass the failpoint of a call, and translate its error; for calls that are rare."""
        try:
            hit(point)
            yield
        except OSError as error:
            operation = point.removeprefix("fs.").replace("_", " ")
            raise self._translate(operation, path, needed_bytes, error) from error

    def _translate(
        self, operation: str, path: str, needed_bytes: int, error: BaseException
    ) -> StoreFullError | FileSystemError:
        code = (error.errno if isinstance(error, OSError) else None) or errno.EIO
        if code in _FULL:
            directory = os.path.dirname(os.path.abspath(path))
            while not os.path.isdir(directory):  # The failed call was to make it.
                directory = os.path.dirname(directory)
            is_limited = code != errno.ENOSPC
            return StoreFullError(path, needed_bytes, self.free_bytes(directory)[0], is_limited)
        return FileSystemError(operation, path, code)
