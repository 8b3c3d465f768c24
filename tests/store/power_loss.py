"""A file system that knows what a power loss would leave of it, and can build that image.

The double for the seam `store.file_system` (fault-matrix 10.3, injector `pl`). Every call goes to
real files; beside them it remembers, per file, the bytes at the last sync, and, per directory, the
names at the last directory sync. An image holds all that was synced, plus any subset of the 4 KiB
pages written since, plus any prefix of the directory operations since.
"""

import mmap
import os
from dataclasses import dataclass, field
from random import Random

from store.file_system import FileSystem

PAGE = 4096


@dataclass
class _Node:
    """One file, whatever its name is at the moment."""

    path: str
    synced: bytes = b""
    final: bytes | None = None  # Content at unlink time.
    maps: list[mmap.mmap] = field(default_factory=list)

    def current(self) -> bytes:
        if self.final is not None:
            return self.final
        with open(self.path, "rb") as file:
            return file.read()


@dataclass
class _Directory:
    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    pending: list[tuple[str, _Node | None]] = field(default_factory=list)

    def change(self, name: str, node: _Node | None) -> None:
        self.pending.append((name, node))
        _apply(self.names, name, node)


def _apply(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class PowerLossFileSystem(FileSystem):
    """Use one for the whole life of a store directory, from its creation on."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}  # By descriptor.
        self._directories: dict[str, _Directory] = {}
        self.dropped_page_count = 0
        self.dropped_name_count = 0

    def _directory(self, path: str) -> tuple[_Directory, str]:
        parent, name = os.path.split(os.path.abspath(path))
        return self._directories.setdefault(parent, _Directory()), name

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        directory, name = self._directory(path)
        if create:
            directory.change(name, _Node(os.path.abspath(path)))
        self._nodes[fd] = directory.names[name]
        return fd

    def close(self, fd: int) -> None:
        del self._nodes[fd]
        super().close(fd)

    def sync(self, fd: int, path: str) -> None:
        super().sync(fd, path)
        self._nodes[fd].synced = self._nodes[fd].current()

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        directory = self._directories.setdefault(os.path.abspath(path), _Directory())
        directory.durable = dict(directory.names)
        directory.pending.clear()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        directory, old = self._directory(source)
        other, new = self._directory(target)
        assert directory is other, "a rename across directories is not modelled"
        node = directory.names[old]
        node.path = os.path.abspath(target)
        directory.change(new, node)
        directory.change(old, None)

    def unlink(self, path: str) -> None:
        directory, name = self._directory(path)
        directory.names[name].final = directory.names[name].current()
        super().unlink(path)
        directory.change(name, None)

    def make_directory(self, path: str) -> None:
        super().make_directory(path)  # Durable on return: each level is synced.

    def build_image(self, root: str, image: str, random: Random) -> None:
        """Write into the new directory `image` what a power loss now might leave of `root`."""
        root = os.path.abspath(root)
        os.makedirs(image)
        for path in [root, *(e.path for e in _directories_below(root))]:
            target = os.path.join(image, os.path.relpath(path, root))
            os.makedirs(target, exist_ok=True)
            directory = self._directories.get(path, _Directory())
            names = dict(directory.durable)
            kept = random.choice([0, len(directory.pending), random.randint(0, 1000)])
            for name, node in directory.pending[: min(kept, len(directory.pending))]:
                _apply(names, name, node)
            self.dropped_name_count += max(0, len(directory.pending) - kept)
            for name, node in names.items():
                with open(os.path.join(target, name), "wb") as file:
                    file.write(self._content(node, random))

    def _content(self, node: _Node, random: Random) -> bytes:
        now, synced = node.current(), node.synced
        if now == synced:
            return now
        content = bytearray(synced)
        if len(now) > len(synced):
            if random.random() < 0.3:
                now = now[: len(synced)]  # The new size did not make it.
            else:
                content += bytes(len(now) - len(synced))
        share = random.choice([0.0, 0.5, 1.0])
        for at in range(0, len(now), PAGE):
            if now[at : at + PAGE] != content[at : at + PAGE]:
                if random.random() < share:
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
