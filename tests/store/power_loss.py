"""A file system that knows what a power loss would leave of it, and can build that image.

The double for the port `store.files.file_system` (fault-matrix 10.3, injector `pl`). Every call
goes to real files; `simulation.disk.durability` remembers beside them what is durable. Directories
are durable once they are made: each level is synced.
"""

import os
import shutil
import threading
from collections.abc import Callable
from random import Random

from simulation.disk.content import PAGE
from simulation.disk.durability import SECTOR, Durability, File, Share
from store.files.file_system import FileSystem

__all__ = ["PAGE", "SECTOR", "PowerLossFileSystem"]


class PowerLossFileSystem(FileSystem):
    """Use one for the whole life of a store directory, from its creation or from `adopt` on.

    `before_call(name)` is called before each call that changes something, on the thread that makes
    it: the moments between which a power loss makes a difference.
    """

    def __init__(self, before_call: Callable[[str], None] = lambda name: None) -> None:
        self._model = Durability()
        self._files: dict[int, File] = {}  # By descriptor.
        self._lock = threading.RLock()  # A call and its book-keeping are one.
        self.before_call = before_call

    @property
    def dropped_page_count(self) -> int:
        return self._model.dropped_page_count

    @property
    def dropped_name_count(self) -> int:
        return self._model.dropped_name_count

    @property
    def torn_page_count(self) -> int:
        return self._model.torn_page_count

    def adopt(self, root: str) -> None:
        """Take what is below a directory as durable: the machine has just been started."""
        self._model.adopt(os.path.abspath(root))

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create:
            self.before_call("open")
        with self._lock:
            fd = super().open(path, create=create, read_only=read_only)
            path = os.path.abspath(path)
            self._files[fd] = self._model.created(path) if create else self._model.file(path)
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            del self._files[fd]
            super().close(fd)

    def set_size(self, fd: int, path: str, size_bytes: int) -> None:
        self.before_call("set_size")
        super().set_size(fd, path, size_bytes)

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        self.before_call("write_at")
        super().write_at(fd, path, position, data)

    def warm(self, fd: int, path: str, position: int, size_bytes: int) -> None:
        self.before_call("warm")
        super().warm(fd, path, position, size_bytes)

    def sync(self, fd: int, path: str) -> None:
        self.before_call("sync")
        with self._lock:
            # What is written during the sync need not be durable after it.
            file = self._files[fd]
            content, number = file.current(), file.begin_sync()
            super().sync(fd, path)
            file.finish_sync(number, content)

    def sync_directory(self, path: str) -> None:
        self.before_call("sync_directory")
        with self._lock:
            directory = self._model.directory(os.path.abspath(path))
            count = directory.begin_sync()
            super().sync_directory(path)
            directory.finish_sync(count)

    def rename(self, source: str, target: str) -> None:
        self.before_call("rename")
        with self._lock:
            old, new = os.path.abspath(source), os.path.abspath(target)
            replaced = self._model.content_at(new)  # A power loss may bring it back.
            super().rename(source, target)
            self._model.renamed(old, new, replaced)

    def unlink(self, path: str) -> None:
        self.before_call("unlink")
        with self._lock:
            absolute_path = os.path.abspath(path)
            final = self._model.content_at(absolute_path)
            super().unlink(path)
            self._model.unlinked(absolute_path, final)

    def make_directory(self, path: str, *, is_durable: bool = True) -> None:
        super().make_directory(path, is_durable=is_durable)
        with self._lock:
            self._model.directory(os.path.abspath(path))

    def remove_directory(self, path: str) -> None:
        with self._lock:
            super().remove_directory(path)
            self._model.forget_directory(os.path.abspath(path))

    def build_image(
        self, root: str, image: str, random: Random, share: Share | None = None
    ) -> None:
        """Write into the new directory `image` what a power loss now might leave of `root`."""
        with self._lock:
            self._model.build_image(os.path.abspath(root), image, random, share)

    def copy(self, root: str, image: str) -> None:
        """Write into the new directory `image` what the end of the process now leaves of `root`."""
        with self._lock:
            shutil.copytree(root, image)
