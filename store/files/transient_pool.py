"""Write buffers in locked memory: appends go there first and to the page cache a moment later.

Owns the buffers and which file has which one; must not know when to commit (the flush thread does)
nor what the bytes mean. The pool trades safety for latency: uncommitted bytes die with the process,
so it is for asynchronous flush only. Readers see committed bytes only.
Source: RocketMQ TransientStorePool, DefaultMappedFile#commit; storage-formats 5.5.

Deviation: a buffer is zeroed before it is used again, because the rest of a file after its blank
must read as zeros; RocketMQ leaves the bytes of an older file there.
"""

import mmap
import threading
from collections import deque
from typing import Final

from store.files import page_memory
from store.files.failpoints import hit
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource, MappedFileQueue
from store.files.zeros import CHUNK_SIZE_BYTES, ZEROS
from store.stats import StoreCounters


class TransientPool:
    """A fixed number of buffers of one size. Any thread may borrow and give back."""

    def __init__(
        self,
        buffer_count: int,
        size_bytes: int,
        *,
        lock_memory: bool,
        counters: StoreCounters | None = None,
    ) -> None:
        """Reserve all memory now: `buffer_count` times `size_bytes`, touched page by page.

        With `lock_memory` it is kept from being swapped; when the limit is too low that is counted
        and the pool works without. Raises OSError (ENOMEM).
        """
        counters = counters or StoreCounters()
        self.buffer_count: Final = buffer_count
        self._lock = threading.Lock()
        self._maps: list[mmap.mmap] = []
        self._clean: deque[memoryview] = deque()
        self._dirty: deque[memoryview] = deque()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        for _ in range(buffer_count):
            mapped = mmap.mmap(-1, size_bytes, flags=flags)
            page_memory.populate(mapped)
            if lock_memory and not page_memory.lock_memory(mapped, size_bytes):
                counters.memory_lock_failed_count += 1
            self._maps.append(mapped)
            self._clean.append(memoryview(mapped))

    @property
    def free_count(self) -> int:
        """Count of the buffers that are not lent, zeroed or not."""
        return len(self._clean) + len(self._dirty)

    def borrow(self) -> memoryview | None:
        """Return a buffer of zeros, or None when none is ready."""
        with self._lock:
            return self._clean.popleft() if self._clean else None

    def give_back(self, buffer: memoryview) -> None:
        """Take a buffer back; `clean` makes it ready for the next file."""
        with self._lock:
            self._dirty.append(buffer)
            assert self.free_count <= self.buffer_count, "a buffer was given back twice"

    def clean(self) -> None:
        """Zero the buffers given back: about 0.1 s for a GiB, so on the flush thread only."""
        while True:
            with self._lock:
                if not self._dirty:
                    return
                buffer = self._dirty.popleft()
            for at in range(0, len(buffer), CHUNK_SIZE_BYTES):  # 50 us each: others wait.
                hi = min(at + CHUNK_SIZE_BYTES, len(buffer))
                buffer[at:hi] = ZEROS[: hi - at]
            with self._lock:
                self._clean.append(buffer)

    def close(self) -> None:
        """Free the memory. Every buffer must have been given back."""
        assert self.free_count == self.buffer_count, (
            f"{self.buffer_count - self.free_count} buffers are still in use"
        )
        for buffer in (*self._clean, *self._dirty):
            buffer.release()
        for mapped in self._maps:
            mapped.close()


class PooledFiles:
    """Gives each new file of a queue a write buffer, and commits the buffers in file order.

    Serves as the queue's `FileSource` and as the flush service's `Committer`. `attach` connects it
    with the queue, which needs its source first.
    """

    def __init__(
        self, pool: TransientPool, source: FileSource, counters: StoreCounters | None = None
    ) -> None:
        self.pool, self._source = pool, source
        self._counters = counters or StoreCounters()
        self._queue: MappedFileQueue | None = None
        self._buffered: deque[MappedFile] = deque()  # In file order; guarded by _lock.
        self._lock = threading.Lock()

    def attach(self, queue: MappedFileQueue) -> None:
        """Name the queue whose files these are."""
        assert self._queue is None, "attached twice"
        self._queue = queue

    def take(self, position: int) -> MappedFile:
        """Return the next file, with a buffer if there is one; errors as `FileSource.take`.

        Without a buffer the file uses its map; its bytes are readable (`max_position`) only when
        all before them are committed.
        """
        file = self._source.take(position)
        with self._lock:
            while self._buffered and self._buffered[-1].position >= position:
                self._take_buffer(self._buffered.pop())  # Its roll failed; nothing was written.
            buffer = self.pool.borrow()
            if buffer is None:
                self._counters.pool_empty_count += 1
            else:
                file.give_buffer(buffer)
                self._buffered.append(file)
        return file

    def grow(self, file: MappedFile, hi_position: int) -> None:
        """Have blocks for what is appended now and committed later; as `FileSource.grow`."""
        self._source.grow(file, hi_position)

    @property
    def wrote_position(self) -> int:
        """End of the bytes that were appended."""
        assert self._queue is not None, "attach a queue first"
        return self._queue.wrote_position

    def commit(self) -> int:
        """Copy all appended bytes into the page cache; return the position reached. For one thread.

        Raises StoreFullError or FileSystemError; what was committed before stays so.
        """
        assert self._queue is not None, "attach a queue first"
        hit("transient_pool.commit")
        with self._lock:
            self._commit_files()
        self.pool.clean()
        return self._queue.max_position

    def detach_all(self) -> None:
        """Commit everything and take all buffers away: appends go to the maps from now on.

        Before a close, and before a truncation (a file with a buffer is never cut). The caller has
        stopped appends.
        """
        with self._lock:
            self._commit_files()
            while self._buffered:
                self._take_buffer(self._buffered.popleft())

    def _take_buffer(self, file: MappedFile) -> None:
        buffer = file.take_buffer()
        if buffer is not None:
            self.pool.give_back(buffer)

    def _commit_files(self) -> None:
        while self._buffered:
            buffer = self._buffered[0].commit()
            if buffer is None:
                # Incomplete, so it is the last one: nothing was appended to any later file.
                return
            self._buffered.popleft()
            self.pool.give_back(buffer)
