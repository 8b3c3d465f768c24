"""Zeros: the bytes of a file where no byte was written, and how they are restored.

Owns the size of a piece; must not know what a file is for.
"""

from typing import Final

from store.files.file_system import FileSystem

CHUNK_SIZE_BYTES: Final = 1024 * 1024
ZEROS: Final = bytes(CHUNK_SIZE_BYTES)
SYNC_SIZE_BYTES: Final = 64 * CHUNK_SIZE_BYTES
"""Bytes after which a large write syncs. One sync of all of it would take so long on a slow disk
that it could not be told from one that hangs."""


def zero_range(fs: FileSystem, fd: int, path: str, lo: int, hi: int) -> None:
    """Make the bytes [lo, hi) of a file zero, durably.

    Reads are cheap and writes are not, so only chunks that hold something are written, up to there:
    behind it may be a hole, and a cut needs no room on a full disk.
    """
    unsynced_bytes = 0
    while lo < hi:
        size_bytes = min(CHUNK_SIZE_BYTES, hi - lo)
        zeros = ZEROS if size_bytes == CHUNK_SIZE_BYTES else ZEROS[:size_bytes]
        data = fs.read_at(fd, path, lo, size_bytes)
        if data != zeros:
            dirty_bytes = len(data.rstrip(b"\0"))
            fs.write_at(fd, path, lo, zeros[:dirty_bytes])
            unsynced_bytes += dirty_bytes
        lo += size_bytes
        if unsynced_bytes >= SYNC_SIZE_BYTES or (unsynced_bytes and lo >= hi):
            fs.sync(fd, path)
            unsynced_bytes = 0
