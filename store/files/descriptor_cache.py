"""A bounded set of open descriptors for files of which there are too many to keep all open.

Owns opening, reuse and closing; must not know what the files are. A descriptor that is in use is
never closed: its number could be given to another file between the look-up and the call. Evicting a
file with unsynced bytes is harmless on Linux: the next descriptor syncs them, and a write-back
error that was not reported yet is reported to it (errseq, since 4.16).
"""

import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from store.files.file_system import FileSystem

OPEN_FILES_MAX: Final = 16_384


def affordable_count() -> int:
    """Return how many descriptors a cache may keep open: three fifths of what the process may have.

    The rest is for the log, peers and clients. With 10,000 queues that are written in turn, each
    unit and each sync opened and closed a file when 512 were kept, which took a third of a node.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(OPEN_FILES_MAX, soft * 3 // 5))


class OpenFile:
    """One open file; `fd` is valid while it is held."""

    __slots__ = ("fd", "holds", "is_evicted", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path = fd, path
        self.holds = 0
        self.is_evicted = False


class DescriptorCache:
    """Open files by path, the least recently used ones closed first. Safe for any thread.

    Invariant: at most `limit` files are open, more only while more than that are in use at once.
    """

    def __init__(self, fs: FileSystem, limit: int) -> None:
        assert limit > 0, f"limit {limit}"
        self._fs = fs
        self.limit: Final = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self.opened_count = 0

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def use(self, path: str) -> Iterator[OpenFile]:
        """Hold a file for the length of a `with` block. Raises FileSystemError."""
        file = self.acquire(path)
        try:
            yield file
        finally:
            self.release(file)

    def acquire(self, path: str) -> OpenFile:
        """Open a file, if need be, and hold it until `release`. Raises FileSystemError."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = OpenFile(self._fs.open(path), path)
                self.opened_count += 1
                self._files[path] = file
                file.holds = 1  # Before the eviction, which must not take this one.
                while len(self._files) > self.limit and self._evict_one():
                    pass
            else:
                self._files.move_to_end(path)
                file.holds += 1
            return file

    def release(self, file: OpenFile) -> None:
        """End an `acquire`."""
        with self._lock:
            file.holds -= 1
            assert file.holds >= 0, f"{file.path}: released more often than acquired"
            if file.is_evicted and not file.holds:
                self._fs.close(file.fd)

    def forget(self, path: str) -> None:
        """Close a file, now or with its last user: it was deleted or replaced."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._retire(file)

    def close(self) -> None:
        """Close all files, those in use with their last user. The cache can be used again."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
            for file in files:
                self._retire(file)

    def _evict_one(self) -> bool:
        for path, file in self._files.items():
            if not file.holds:
                del self._files[path]
                self._retire(file)
                return True
        return False

    def _retire(self, file: OpenFile) -> None:
        file.is_evicted = True
        if not file.holds:
            self._fs.close(file.fd)
