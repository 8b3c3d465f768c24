"""The checksums of derived files: small files of our own in a directory beside them.

Owns the directory, the part of it in memory, and when it is written; must not know what a checksum
covers. Queues and key indexes have RocketMQ's formats, which have no checksums, and foreign code
parses every name in their directories. A file here is an array of CRC-32C, 0 where none is known.

Checksums are derived from derived files: a reader that finds a mismatch compares with the log, and
the side that is wrong is repaired. So no file here is ever synced. A power loss leaves old
checksums, a RocketMQ that used the directory stale ones, and each costs a comparison. A file that
cannot be written stays old: no other work stops for it, on a full disk least of all.
"""

import errno
import os
import threading
from typing import Final

from store.files.checksum import crc32c, crc32c_extend
from store.files.failpoints import hit

DIRECTORY: Final = "checksums"
UNKNOWN: Final = 0
SUM_SIZE_BYTES: Final = 4
CACHE_SIZE_BYTES_MAX: Final = 16 << 20
"""Limit of the files in memory; those with unwritten checksums stay in any case."""
_FILE_COST_BYTES: Final = 512
"""Cost of a file in memory, beside its bytes."""
_SIZE_BYTES_MAX: Final = 8 << 20
"""Limit of one file; of a larger one only so much is read."""


def seed_of(name: str, number: int) -> int:
    """Return the CRC that a block's checksum starts from; it differs from block to block."""
    return crc32c(b"%b %d" % (name.encode(), number))


def sum_of(name: str, number: int, data: bytes) -> int:
    """Return the checksum of a block, never `UNKNOWN`."""
    return known(crc32c_extend(seed_of(name, number), data))


def known(crc: int) -> int:
    """Return a CRC as it is kept: never 0, which means unknown."""
    return crc or 1


class _File:
    __slots__ = ("data", "dirty_hi", "dirty_lo")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.dirty_lo = self.dirty_hi = 0
        """Range of bytes that is not written yet."""


class SumFiles:
    """The checksum files of one kind of derived file. Any thread may call."""

    def __init__(self, root: str, part: str) -> None:
        """Use the directory `part` below `checksums`: each kind of derived file has its own."""
        self.directory: Final = os.path.join(root, DIRECTORY, part)
        self._files: dict[str, _File] = {}
        """Files in memory, in the order in which they were read first."""
        self._size_bytes = 0
        self._lock = threading.Lock()
        self.failed_count = 0
        """Count of reads, writes and deletions that failed; such checksums are computed again."""

    def get(self, name: str, number: int) -> int:
        """Return a checksum, or `UNKNOWN`."""
        file = self._files.get(name)  # Without the lock: readers ask for each block.
        if file is None:
            with self._lock:
                file = self._file(name)
        at = number * SUM_SIZE_BYTES
        return int.from_bytes(file.data[at : at + SUM_SIZE_BYTES], "big")

    def put(self, name: str, number: int, value: int) -> None:
        """Remember a checksum; `write` writes it."""
        self.put_many(name, number, value.to_bytes(SUM_SIZE_BYTES, "big"))

    def put_many(self, name: str, number: int, values: bytes) -> None:
        """Remember neighbouring checksums, big-endian, the first one of block `number`."""
        with self._lock:
            file = self._file(name)
            at = number * SUM_SIZE_BYTES
            hi = at + len(values)
            before = len(file.data)
            if before < hi:
                file.data.extend(bytes(hi - before))
                self._size_bytes += hi - before
            file.data[at:hi] = values
            is_clean = file.dirty_lo == file.dirty_hi
            file.dirty_lo = at if is_clean else min(file.dirty_lo, at)
            file.dirty_hi = max(file.dirty_hi, hi)

    def _file(self, name: str) -> _File:
        file = self._files.get(name)
        if file is not None:
            return file
        file = self._files[name] = _File(bytearray(self._load(name)))
        self._size_bytes += len(file.data) + _FILE_COST_BYTES
        if self._size_bytes > CACHE_SIZE_BYTES_MAX:
            for other, old in list(self._files.items()):
                if self._size_bytes <= CACHE_SIZE_BYTES_MAX:
                    break
                if other != name and old.dirty_lo == old.dirty_hi:
                    self._drop(other)
        return file

    def _drop(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            self._size_bytes -= len(file.data) + _FILE_COST_BYTES

    def _load(self, name: str) -> bytes:
        try:
            with open(f"{self.directory}/{name}", "rb", buffering=0) as file:
                return file.read(_SIZE_BYTES_MAX)
        except FileNotFoundError:
            return b""
        except OSError:
            self.failed_count += 1
            return b""

    def write(self) -> None:
        """Write the new checksums. One that cannot be written is unknown after the next start."""
        with self._lock:
            dirty = [(n, f) for n, f in self._files.items() if f.dirty_lo < f.dirty_hi]
            parts = [
                (name, f.dirty_lo, bytes(f.data[f.dirty_lo : f.dirty_hi])) for name, f in dirty
            ]
            for _, file in dirty:
                file.dirty_lo = file.dirty_hi = 0
        for name, at, data in parts:
            try:
                hit("sum_files.write")
                _write(f"{self.directory}/{name}", at, data)
            except OSError:
                self.failed_count += 1

    def delete(self, name: str) -> None:
        """Delete the checksums of a derived file that is deleted."""
        with self._lock:
            self._drop(name)
            try:
                os.unlink(f"{self.directory}/{name}")
            except FileNotFoundError:
                pass
            except OSError:  # Its checksums fit no file that takes the name later.
                self.failed_count += 1

    def close(self) -> None:
        """Write the new checksums, and release the memory."""
        self.write()
        with self._lock:
            self._files.clear()
            self._size_bytes = 0


def _write(path: str, at: int, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(path, flags, 0o600)
    try:
        if os.pwrite(fd, data, at) < len(data):
            raise OSError(errno.ENOSPC, "the checksums were written in part", path)
    finally:
        os.close(fd)
