"""Zeros: what a file holds where nothing was written, and how they get back there.

Owns the size of a piece; must not know what a file is for.
"""

from typing import Final

from store.file_system import FileSystem

CHUNK_SIZE_BYTES: Final = 1024 * 1024
ZEROS: Final = bytes(CHUNK_SIZE_BYTES)


def zero_range(fs: FileSystem, fd: int, path: str, lo: int, hi: int) -> None:
    """Make the bytes [lo, hi) of a file zero, durably.

    Reads are cheap and writes are not, so only chunks that hold something are written.
    """
    dirty = False
    while lo < hi:
        size_bytes = min(CHUNK_SIZE_BYTES, hi - lo)
        zeros = ZEROS if size_bytes == CHUNK_SIZE_BYTES else ZEROS[:size_bytes]
        if fs.read_at(fd, path, lo, size_bytes) != zeros:
            fs.write_at(fd, path, lo, zeros)
            dirty = True
        lo += size_bytes
    if dirty:
        fs.sync(fd, path)
