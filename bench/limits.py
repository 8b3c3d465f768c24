"""The limits of the machine, measured next to each figure of the engine.

Owns the plain loops without any of our code: copy into a map, read a file, sync a file.
"""

import mmap
import os
import tempfile
import time

_CHUNK_SIZE_BYTES = 1 << 20
_PAGE_SIZE_BYTES = 4096


def copy_bytes_per_second(directory: str, chunk_size_bytes: int, total_size_bytes: int) -> float:
    """Copy one chunk repeatedly into a warm map; the limit of every append."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        fd = file.fileno()
        os.posix_fallocate(fd, 0, total_size_bytes)
        for at in range(0, total_size_bytes, _CHUNK_SIZE_BYTES):
            os.pwrite(fd, bytes(min(_CHUNK_SIZE_BYTES, total_size_bytes - at)), at)
        chunk = os.urandom(chunk_size_bytes)
        with mmap.mmap(fd, total_size_bytes) as mapped:
            hi = total_size_bytes - chunk_size_bytes
            began = time.perf_counter()
            for at in range(0, hi, chunk_size_bytes):
                mapped[at : at + chunk_size_bytes] = chunk
            seconds = time.perf_counter() - began
        return (hi // chunk_size_bytes) * chunk_size_bytes / seconds


def read_bytes_per_second(path: str) -> float:
    """Read a file that is in the page cache, in large pieces; the limit of reads and recovery."""
    with open(path, "rb", buffering=0) as file:
        size_bytes = 0
        began = time.perf_counter()
        while data := file.read(_CHUNK_SIZE_BYTES):
            size_bytes += len(data)
        return size_bytes / (time.perf_counter() - began)


def syncs_per_second(directory: str, count: int) -> float:
    """Write a page and fdatasync, one at a time, in space that was written before."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        fd, page = file.fileno(), os.urandom(_PAGE_SIZE_BYTES)
        os.pwrite(fd, bytes(_PAGE_SIZE_BYTES * count), 0)
        os.fdatasync(fd)
        began = time.perf_counter()
        for number in range(count):
            os.pwrite(fd, page, number * _PAGE_SIZE_BYTES)
            os.fdatasync(fd)
        return count / (time.perf_counter() - began)


def disk_bytes_per_second(directory: str, size_bytes: int) -> tuple[float, float]:
    """Write a file in large pieces and sync it, then read it again past the page cache.

    Returns the bytes a second of both. Where a file system keeps files in memory only, reading is
    from there.
    """
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        fd, chunk = file.fileno(), os.urandom(_CHUNK_SIZE_BYTES)
        began = time.perf_counter()
        for at in range(0, size_bytes, _CHUNK_SIZE_BYTES):
            os.pwrite(fd, chunk, at)
        os.fdatasync(fd)
        written_s = time.perf_counter() - began
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return size_bytes / written_s, read_bytes_per_second(file.name)
