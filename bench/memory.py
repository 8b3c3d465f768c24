"""Touches free memory of the machine before a load, so that no load pays the host for it.

Where the host of a virtual machine takes freed pages back (free page reporting), the first touch of
a page waits for the host to give one: 7 to 10 us for 4 KiB, where writing them takes 1.4 us. A peer
would then pay for what the rows before have written. Pages that were touched a moment ago are given
out first, so a load right behind the touch finds them. On other machines it changes nothing.
"""

import mmap

import psutil

_CHUNK_SIZE_BYTES = 64 << 20  # One call holds the interpreter's lock.
_FREE_SHARE_MAX = 0.5  # More could drive files out of the page cache.


def touch_free_memory(size_bytes: int) -> None:
    """Touch `size_bytes` of free memory, at most half of what is free, and give it back."""
    rest = min(size_bytes, int(psutil.virtual_memory().free * _FREE_SHARE_MAX))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    chunks: list[mmap.mmap] = []
    try:
        while rest >= _CHUNK_SIZE_BYTES:
            chunks.append(mmap.mmap(-1, _CHUNK_SIZE_BYTES, flags=flags))
            rest -= _CHUNK_SIZE_BYTES
    finally:
        for chunk in chunks:
            chunk.close()
