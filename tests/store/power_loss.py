"""A file system that knows what a power loss would leave of it, and can build that image.

The double for the port `store.files.file_system` (fault-matrix 10.3, injector `pl`). Every call
goes to real files; beside them it remembers, per file, the bytes at the last sync, and, per
directory, the names at the last directory sync. An image holds all that was synced, plus any subset
of the 4 KiB pages written since (one of them torn at a 512 byte sector), plus any prefix of each
directory's operations since. A rename into another directory is in it as a whole, or with the new
name only.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from store.files.file_system import FileSystem

PAGE = 4096
SECTOR = 512
Share = Callable[[str], float]  # Of a file's unsynced pages, by its path: how many are kept.


@dataclass
class _Node:
    """One file, whatever its name is at the moment."""

    path: str
    synced: bytes = b""
    final: bytes | None = None  # Content at unlink time.

    def current(self) -> bytes:
        if self.final is not None:
            return self.final
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except (
            FileNotFoundError
        ):  # Of a file beside the port (store.derived.sum_files): gone, or back.
            return self.synced


class _Arrival(NamedTuple):
    """The other half of a rename into another directory: it comes first, or with this half."""

    directory: "_Directory"
    name: str
    node: _Node


class _Change(NamedTuple):
    name: str
    node: _Node | None
    after: _Arrival | None = None


@dataclass
class _Directory:
    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)
    kept_count: int = 0
    """How many of the pending changes the image that is being built has."""

    def change(self, name: str, node: _Node | None, after: _Arrival | None = None) -> None:
        self.pending.append(_Change(name, node, after))
        _apply(self.names, name, node)

    def has(self, name: str, node: _Node) -> bool:
        """Whether the image that is being built has, or had, this file under this name."""
        if self.durable.get(name) is node:
            return True
        kept = self.pending[: self.kept_count]
        return any(change.name == name and change.node is node for change in kept)


def _apply(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class PowerLossFileSystem(FileSystem):
    """Use one for the whole life of a store directory, from its creation or from `adopt` on.

    `before_call(name)` is called before each call that changes something, on the thread that makes
    it: the moments between which a power loss makes a difference.
    """

    def __init__(self, before_call: Callable[[str], None] = lambda name: None) -> None:
        self._nodes: dict[int, _Node] = {}  # By descriptor.
        self._directories: dict[str, _Directory] = {}
        self._lock = threading.RLock()  # A call and its book-keeping are one.
        self.before_call = before_call
        self.dropped_page_count = 0
        self.dropped_name_count = 0
        self.torn_page_count = 0

    def adopt(self, root: str) -> None:
        """Take what is below a directory as durable: the machine has just been started."""
        root = os.path.abspath(root)
        for path in [root, *(e.path for e in _directories_below(root))]:
            directory = self._directories.setdefault(path, _Directory())
            for entry in os.scandir(path):
                if entry.is_file():
                    node = _Node(entry.path)
                    node.synced = node.current()
                    directory.names[entry.name] = directory.durable[entry.name] = node

    def _directory(self, path: str) -> tuple[_Directory, str]:
        parent, name = os.path.split(os.path.abspath(path))
        return self._directories.setdefault(parent, _Directory()), name

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create:
            self.before_call("open")
        with self._lock:
            fd = super().open(path, create=create, read_only=read_only)
            directory, name = self._directory(path)
            if create:
                directory.change(name, _Node(os.path.abspath(path)))
            self._nodes[fd] = directory.names[name]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            del self._nodes[fd]
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
            content = self._nodes[fd].current()
            super().sync(fd, path)
            self._nodes[fd].synced = content

    def sync_directory(self, path: str) -> None:
        self.before_call("sync_directory")
        with self._lock:
            super().sync_directory(path)
            directory = self._directories.setdefault(os.path.abspath(path), _Directory())
            for change in directory.pending:
                if change.after is not None:  # One transaction: the arrival is durable with it.
                    change.after.directory.durable[change.after.name] = change.after.node
            directory.durable = dict(directory.names)
            directory.pending.clear()

    def rename(self, source: str, target: str) -> None:
        self.before_call("rename")
        with self._lock:
            directory, old = self._directory(source)
            other, new = self._directory(target)
            if new in other.names:  # A power loss may bring it back.
                other.names[new].final = other.names[new].current()
            super().rename(source, target)
            node = directory.names[old]
            node.path = os.path.abspath(target)
            other.change(new, node)
            directory.change(old, None, None if directory is other else _Arrival(other, new, node))

    def unlink(self, path: str) -> None:
        self.before_call("unlink")
        with self._lock:
            directory, name = self._directory(path)
            directory.names[name].final = directory.names[name].current()
            super().unlink(path)
            directory.change(name, None)

    # Directories are durable once they are made: each level is synced.

    def build_image(
        self, root: str, image: str, random: Random, share: Share | None = None
    ) -> None:
        """Write into the new directory `image` what a power loss now might leave of `root`."""
        with self._lock:
            self._build_image(os.path.abspath(root), image, random, share)

    def _build_image(self, root: str, image: str, random: Random, share: Share | None) -> None:
        os.makedirs(image)
        for directory in self._directories.values():
            kept = random.choice([0, len(directory.pending), random.randint(0, 1000)])
            directory.kept_count = min(kept, len(directory.pending))
        for path in [root, *(e.path for e in _directories_below(root))]:
            target = os.path.join(image, os.path.relpath(path, root))
            os.makedirs(target, exist_ok=True)
            directory = self._directories.get(path, _Directory())
            names = dict(directory.durable)
            for change in directory.pending[: directory.kept_count]:
                after = change.after
                if after is None or after.directory.has(after.name, after.node):
                    _apply(names, change.name, change.node)
            self.dropped_name_count += len(directory.pending) - directory.kept_count
            for name, node in names.items():
                content = self._content(
                    node, random, None if share is None else share(os.path.join(path, name))
                )
                with open(os.path.join(target, name), "wb") as file:
                    file.write(content)

    def _content(self, node: _Node, random: Random, share: float | None) -> bytes:
        now, synced = node.current(), node.synced
        if now == synced:
            return now
        content = bytearray(synced)
        if len(now) > len(synced):
            if random.random() < 0.3:
                now = now[: len(synced)]  # The new size did not make it.
            else:
                content += bytes(len(now) - len(synced))
        elif len(now) < len(synced) and random.random() < 0.5:
            del content[len(now) :]
        if share is None:
            share = random.choice([0.0, 0.5, 1.0])
        changed = [
            at for at in range(0, len(now), PAGE) if now[at : at + PAGE] != content[at : at + PAGE]
        ]
        torn = random.choice(changed) if 0 < share < 1 and changed else -1
        for at in changed:
            if at == torn:
                self.torn_page_count += 1
                hi = at + random.randrange(0, PAGE, SECTOR)
                content[at:hi] = now[at:hi]
            elif random.random() < share:
                content[at : at + PAGE] = now[at : at + PAGE]
            else:
                self.dropped_page_count += 1
        return bytes(content)


def _directories_below(root: str) -> list[os.DirEntry[str]]:
    found: list[os.DirEntry[str]] = []
    for entry in os.scandir(root):
        if entry.is_dir():
            found += [entry, *_directories_below(entry.path)]
    return found
