"""The use of a store directory: its lock, and how the run before left it.

Owns the files `lock`, `abort` and `boot_id`. Must not know what a recovery does with the answers.
The lock is a Linux open-file-description lock on byte 0: it stops a second process, a RocketMQ
broker (which locks the same byte through fcntl) and a second opening in the same process, and the
kernel releases it on SIGKILL. Sources: storage-formats 4.2, 4.3; fault-matrix S17; design 4.5.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from store.clock import unix_ms
from store.errors import FileSystemError, LockedError
from store.files.checksum import crc32c
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX

LOCK_NAME: Final = "lock"
ABORT_NAME: Final = "abort"
BOOT_ID_NAME: Final = "boot_id"
_KERNEL_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_CONTENT_SIZE_BYTES_MAX: Final = 256
# struct flock of 64-bit Linux: type, whence, start, length, pid, padded to 32 bytes.
FLOCK: Final = struct.Struct("@hhqqi4x")
assert FLOCK.size == 32


def read_kernel_boot_id() -> str:
    """Return the id that the kernel draws at each boot; a container sees that of its host."""
    with open(_KERNEL_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def lock_holder(directory: str) -> int:
    """Return the id of the process that has the lock of a directory; 0: none has, or it names
    no process. Takes no lock."""
    try:
        fd = os.open(os.path.join(directory, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        query = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))[0]
        word = os.read(fd, _CONTENT_SIZE_BYTES_MAX).partition(b" ")[0]
    finally:
        os.close(fd)
    return int(word) if found != fcntl.F_UNLCK and word.isdigit() else 0


@dataclass(frozen=True, slots=True)
class LastRun:
    """How the previous run ended.

    `was_clean`: it closed the store, so everything was durable. `same_boot`: the machine has not
    been booted since, so the page cache still holds what that run wrote. A directory that was never
    used is clean and of no boot.
    """

    was_clean: bool
    same_boot: bool
    was_ever_opened: bool = True
    """Whether a store of ours has opened the directory to the end."""

    @property
    def page_cache_lost(self) -> bool:
        """Whether bytes that were written and not synced may be gone (design 4.5)."""
        return not self.was_clean and not self.same_boot


class DirectoryLock:
    """Exclusive use of a directory from `acquire` to `release`, or to the end of the process."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        now_unix_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self.fs = fs
        self._path = os.path.join(directory, LOCK_NAME)
        self._now_unix_ms = now_unix_ms
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock and write process id and time into the file.

        Raises LockedError naming the holder, FileSystemError or StoreFullError.
        """
        assert self._fd is None, f"{self._path} is held already"
        fd = self._open()
        try:
            hit("identity.lock")
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        except OSError as error:
            try:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise LockedError(self._path, self.holder(fd)) from error
                raise FileSystemError("lock", self._path, error.errno or errno.EIO) from error
            finally:
                self.fs.close(fd)
        try:
            content = f"{os.getpid()} {self._now_unix_ms()}\n".encode()
            self.fs.set_size(fd, self._path, 0)
            self.fs.write_at(fd, self._path, 0, content)
        except BaseException:
            self.fs.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Release the directory. The file stays: removing it would let two processes lock it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self.fs.close(fd)

    def _open(self) -> int:
        while True:
            try:
                return self.fs.open(self._path, create=not os.path.exists(self._path))
            except FileSystemError as error:
                # Another process made it meanwhile (files named lock are never removed).
                if error.errno_value != errno.EEXIST:
                    raise

    def holder(self, fd: int) -> str:
        """Return the process named in the open lock file; it need not hold the lock any more."""
        size_bytes = min(self.fs.size_bytes(fd), _CONTENT_SIZE_BYTES_MAX)
        words = self.fs.read_at(fd, self._path, 0, size_bytes).decode("ascii", "replace").split()
        if len(words) == 2 and all(word.isdecimal() for word in words):
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(words[1]) // 1000))
            return f"process {words[0]} since {began}"
        return "a process that does not name itself (a RocketMQ broker?)"


class RunMarker:
    """The files `abort` and `boot_id`: read once at start, changed at start and close.

    The lock is held by the caller all the time.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        read_boot_id: Callable[[], str] = read_kernel_boot_id,
    ) -> None:
        self._fs, self._directory = fs, directory
        self._abort_path = os.path.join(directory, ABORT_NAME)
        self._boot_id_path = os.path.join(directory, BOOT_ID_NAME)
        self._boot_id = read_boot_id()

    def last_run(self) -> LastRun:
        """Return how the previous run ended. Call it before `mark_running`."""
        boot_id = self._read_boot_id()
        return LastRun(
            was_clean=not os.path.exists(self._abort_path),
            same_boot=boot_id == self._boot_id,
            was_ever_opened=boot_id is not None,
        )

    def mark_running(self) -> None:
        """Record on disk that the store is in use, by this boot; durable on return.

        Call it when the recovery is complete and before the first append is acknowledged. Not
        earlier: a second crash during a recovery would else look as if the page cache, which the
        first one lost, were still there. A node that must not vote until it has caught up keeps
        that fact itself (design 4.5). Raises StoreFullError, FileSystemError, SyncFailedError.
        """
        if self._read_boot_id() != self._boot_id:
            line = self._boot_id
            self._write(self._boot_id_path, f"{line}\n{crc32c(line.encode()):08x}")
        self._write(self._abort_path, str(os.getpid()))
        self._fs.sync_directory(self._directory)

    def mark_closed(self) -> None:
        """Record on disk that the store was closed with everything durable; durable on return.

        Deviation: RocketMQ does not sync the directory, so its marker may survive or vanish.
        """
        self._fs.unlink(self._abort_path)
        self._fs.sync_directory(self._directory)

    def _read_boot_id(self) -> str | None:
        if not os.path.exists(self._boot_id_path):
            return None
        content = self._fs.read_file(self._boot_id_path, _CONTENT_SIZE_BYTES_MAX)
        if boot_id_problem(content) is not None:
            return None  # As that of another boot: the page cache is not relied on.
        return content.decode("ascii").split("\n")[0]

    def _write(self, path: str, content: str) -> None:
        temporary = path + TEMPORARY_SUFFIX
        self._fs.write_file(temporary, f"{content}\n".encode())
        self._fs.rename(temporary, path)


def boot_id_problem(content: bytes) -> tuple[str, str, str] | None:
    """Return what is wrong with the file `boot_id`: (field, expected, found), or None.

    The file holds the id, and its CRC-32C in the second line."""
    lines = content.split(b"\n")
    if len(lines) == 3 and not lines[2]:
        crc = b"%08x" % crc32c(lines[0])
        if lines[1] == crc:
            return None
        return "CRC-32C of the boot id", crc.decode(), repr(lines[1])
    return "boot id", "an id, and its CRC-32C", repr(content[:48])
