"""The image of a directory tree that a power loss would leave.

Owns, per file, the bytes at the last sync, and, per directory, the names at the last sync of it and
the changes since. An image holds all that was synced, plus any subset of the 4 KiB pages written
since (one of them torn at a 512 byte sector), plus any prefix of each directory's changes since. A
rename into another directory is in it as a whole, or with the new name only. The files themselves
are real ones, written by others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple

from simulation.disk.content import EMPTY, PAGE, Content, changed_pages, read_file, write_file

SECTOR: Final = 512
Share = Callable[[str], float]
"""Of a file's unsynced pages, by its path: how many are kept."""
_SIZE_LOST_SHARE: Final = 0.3
"""How often a file that has grown since its last sync has the old size in an image."""


class File:
    """One file, whatever its name is at the moment."""

    __slots__ = ("_begun_count", "_durable_number", "before", "final", "lost", "name", "parent",
                 "synced")  # fmt: skip

    def __init__(self, parent: Directory, name: str) -> None:
        self.parent, self.name = parent, name
        self.synced = EMPTY
        """Content on the disk."""
        self.before = EMPTY
        """Content on the disk before the last sync that changed it."""
        self.final: Content | None = None
        """Content at the time of its unlink."""
        self.lost: dict[int, bytes] = {}
        """Pages, by position, that the page cache takes for clean though the disk lacks them: what
        was in the cache when their write failed."""
        self._begun_count = self._durable_number = 0

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{self.parent.path}/{self.name}"

    def current(self) -> Content:
        """Return the content that a process would read."""
        if self.final is not None:
            return self.final
        try:
            return read_file(self.path)
        except FileNotFoundError:  # Of a file that others removed: gone, or back.
            return self.synced

    @property
    def changed_ns(self) -> int:
        """When it was written last, as its time says; 0 if it is gone."""
        try:
            return os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return 0

    def begin_sync(self) -> int:
        """Return the number of a sync that begins, for `finish_sync`."""
        self._begun_count += 1
        return self._begun_count

    def finish_sync(self, number: int, content: Content) -> None:
        """Take the content at the beginning of a sync as durable."""
        if number < self._durable_number:
            return  # A later one was faster.
        self._durable_number = number
        if self.lost:
            content = self._without_lost(content)
        if content != self.synced:
            self.before, self.synced = self.synced, content

    def written(self, position: int, size_bytes: int) -> None:
        """Note a write: pages that the cache took for clean are dirty again, with any bytes."""
        if self.lost:
            for at in range(position // PAGE * PAGE, position + size_bytes, PAGE):
                self.lost.pop(at, None)

    def lose_pages(self, content: Content, pages: list[int]) -> None:
        """Have the disk lack pages of a content that a sync was to write, though the page cache
        takes them for clean: no later sync writes them."""
        for at in pages:
            self.lost[at] = content.page(at)

    def _without_lost(self, content: Content) -> Content:
        for at, page in list(self.lost.items()):
            if content.page(at) == page:
                content = content.changed(at, self.synced.page(at).ljust(len(page), b"\0"))
            else:  # Written again, so the cache takes it for dirty.
                del self.lost[at]
        return content


class Change(NamedTuple):
    """One change of a directory: a name stands for another thing, or for nothing."""

    name: str
    node: File | Directory | None
    after: Arrival | None = None


class Arrival(NamedTuple):
    """The other half of a rename into another directory: it comes first, or with this half."""

    directory: Directory
    name: str
    node: File | Directory


class Directory:
    """One directory, with its names now and on the disk."""

    __slots__ = ("durable", "durable_count", "kept_count", "name", "names", "parent", "pending")

    def __init__(self, parent: Directory | None, name: str) -> None:
        self.parent, self.name = parent, name
        self.names: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        self.pending: list[Change] = []
        self.durable_count = 0
        """Count of the changes before the pending ones."""
        self.kept_count = 0
        """How many of the pending changes the image that is being built has."""

    @property
    def path(self) -> str:
        """Where it is; empty for the root of the machine's tree."""
        return "" if self.parent is None else f"{self.parent.path}/{self.name}"

    def change(
        self, name: str, node: File | Directory | None, after: Arrival | None = None
    ) -> None:
        """Note a change that is not durable yet."""
        self.pending.append(Change(name, node, after))
        _apply(self.names, name, node)

    def add_durable(self, name: str, node: File | Directory) -> None:
        """Have a name that was there from the beginning."""
        self.names[name] = self.durable[name] = node

    def begin_sync(self) -> int:
        """Return up to where a sync that begins makes the changes durable, for `finish_sync`."""
        return self.durable_count + len(self.pending)

    def finish_sync(self, count: int) -> None:
        """Take the changes before `count` as durable."""
        done = max(0, count - self.durable_count)
        for change in self.pending[:done]:
            if change.after is not None:  # One transaction: the arrival is durable with it.
                change.after.directory.durable[change.after.name] = change.after.node
            _apply(self.durable, change.name, change.node)
        del self.pending[:done]
        self.durable_count += done

    def has(self, name: str, node: File | Directory) -> bool:
        """Whether the image that is being built has, or had, this under this name."""
        if self.durable.get(name) is node:
            return True
        kept = self.pending[: self.kept_count]
        return any(change.name == name and change.node is node for change in kept)


def _apply(names: dict[str, File | Directory], name: str, node: File | Directory | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class Durability:
    """The tree of a machine. Its caller makes each change of the real files, too.

    Directories that it meets without `made_directory` count as durable."""

    def __init__(self) -> None:
        self._root: Final = Directory(None, "")
        self._directories: dict[str, Directory] = {}
        self.dropped_page_count = 0
        self.dropped_name_count = 0
        self.torn_page_count = 0

    def clear(self) -> None:
        """Forget everything: frames of dead processes hold a file of it, and with it all others."""
        stack = [self._root]
        while stack:
            here = stack.pop()
            inner = [*here.names.values(), *here.durable.values()]
            inner += [one.node for one in here.pending if one.node is not None]
            here.names.clear()
            here.durable.clear()
            here.pending.clear()
            stack += [one for one in inner if isinstance(one, Directory)]
        self._directories.clear()

    # --- Looking up ---

    def directory(self, path: str) -> Directory:
        """Return a directory by its absolute path."""
        found = self._directories.get(path)
        if found is not None:
            return found
        here = self._root
        for name in path.split("/")[1:]:
            if not name:
                continue
            inner = here.names.get(name)
            if not isinstance(inner, Directory):
                inner = Directory(here, name)
                here.add_durable(name, inner)
            here = inner
        self._directories[path] = here
        return here

    def place(self, path: str) -> tuple[Directory, str]:
        """Return the directory of an absolute path, and the name in it."""
        parent, name = os.path.split(path)
        return self.directory(parent), name

    def file(self, path: str) -> File:
        """Return a file that exists; one that others made is met here first."""
        directory, name = self.place(path)
        found = directory.names.get(name)
        if not isinstance(found, File):
            found = File(directory, name)
            directory.change(name, found)
        return found

    def content_at(self, path: str) -> Content | None:
        """Return what a file holds; None if there is none."""
        directory, name = self.place(path)
        found = directory.names.get(name)
        return found.current() if isinstance(found, File) else None

    def files(self, path: str) -> Iterator[File]:
        """Yield the files below a directory that it knows, in the order of their paths."""
        names = self.directory(path).names
        for name in sorted(names):
            node = names[name]
            if isinstance(node, File):
                yield node
            else:
                yield from self.files(f"{path}/{name}")

    # --- What has happened ---

    def adopt(self, path: str) -> None:
        """Take what is below a directory as durable: the machine has just been started."""
        directory = self.directory(path)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                self.adopt(entry.path)
            else:
                file = File(directory, entry.name)
                directory.add_durable(entry.name, file)
                file.synced = file.before = file.current()

    def meet(self, path: str) -> None:
        """Note what others have made and removed below a directory, beside the caller's changes."""
        directory = self.directory(path)
        found = {one.name: one for one in os.scandir(path)}
        for name in [one for one in directory.names if one not in found]:
            node = directory.names[name]
            if isinstance(node, File):
                node.final = node.synced
            directory.change(name, None)
            self._directories.clear()
        for name in sorted(found):
            if found[name].is_dir(follow_symlinks=False):
                self.meet(f"{path}/{name}")
            elif not isinstance(directory.names.get(name), File):
                directory.change(name, File(directory, name))

    def created(self, path: str) -> File:
        """Note a new file."""
        directory, name = self.place(path)
        file = File(directory, name)
        directory.change(name, file)
        return file

    def made_directory(self, path: str) -> None:
        """Note a new directory."""
        parent, name = self.place(path)
        parent.change(name, Directory(parent, name))
        self._directories.pop(path, None)

    def removed_directory(self, path: str) -> None:
        """Note that an empty directory is gone."""
        parent, name = self.place(path)
        parent.change(name, None)
        self._directories.clear()

    def forget_directory(self, path: str) -> None:
        """Take an empty directory as gone permanently."""
        parent, name = self.place(path)
        parent.names.pop(name, None)
        parent.durable.pop(name, None)
        self._directories.clear()

    def unlinked(self, path: str, final: Content | None) -> None:
        """Note that a file is gone, which held `final`."""
        directory, name = self.place(path)
        node = directory.names.get(name)
        if isinstance(node, File):
            node.final = final
        directory.change(name, None)

    def renamed(self, source: str, target: str, replaced: Content | None) -> None:
        """Note a rename. `replaced`: what the file held that had the name; a power loss may bring
        it back."""
        directory, old = self.place(source)
        other, new = self.place(target)
        there = other.names.get(new)
        if isinstance(there, File):
            there.final = replaced
        node = directory.names.get(old)
        if node is None:  # Others made it.
            node = File(directory, old)
            directory.change(old, node)
        node.parent, node.name = other, new
        other.change(new, node)
        directory.change(old, None, None if directory is other else Arrival(other, new, node))
        if isinstance(node, Directory):
            self._directories.clear()

    # --- Images ---

    def build_image(
        self, root: str, image: str, random: Random, share: Share | None = None
    ) -> None:
        """Write into the new directory `image` what a power loss now might leave of `root`."""
        os.makedirs(image)
        self._draw_kept(self._root, random)
        self._build(self.directory(root), image, random, share)

    def _draw_kept(self, directory: Directory, random: Random) -> None:
        """Draw how many of the changes of each directory are kept, of removed ones as well."""
        seen: set[int] = set()
        stack = [directory]
        while stack:
            here = stack.pop()
            if id(here) in seen:
                continue
            seen.add(id(here))
            here.kept_count = 0
            if here.pending:
                kept = random.choice([0, len(here.pending), random.randint(0, 1000)])
                here.kept_count = min(kept, len(here.pending))
            self.dropped_name_count += len(here.pending) - here.kept_count
            inner = [*here.durable.values(), *(one.node for one in here.pending)]
            stack += [one for one in inner if isinstance(one, Directory)]

    def _build(
        self, directory: Directory, target: str, random: Random, share: Share | None
    ) -> None:
        names = dict(directory.durable)
        for change in directory.pending[: directory.kept_count]:
            after = change.after
            if after is None or after.directory.has(after.name, after.node):
                _apply(names, change.name, change.node)
        for name, node in names.items():
            path = os.path.join(target, name)
            if isinstance(node, Directory):
                os.mkdir(path)
                self._build(node, path, random, share)
                continue
            part = None if share is None else share(f"{directory.path}/{name}")
            write_file(path, self._content(node, random, part))
            os.utime(path, ns=(node.changed_ns, node.changed_ns))

    def _content(self, node: File, random: Random, share: float | None) -> Content:
        now, synced = node.current(), node.synced
        if now == synced:
            return now
        content = synced
        if now.size_bytes > synced.size_bytes:
            if random.random() < _SIZE_LOST_SHARE:
                now = now.cut(synced.size_bytes)
            else:
                content = synced.cut(now.size_bytes)
        elif now.size_bytes < synced.size_bytes and random.random() < 0.5:
            content = synced.cut(now.size_bytes)
        if share is None:
            share = random.choice([0.0, 0.5, 1.0])
        changed = [
            at for at in changed_pages(content, now) if node.lost.get(at) != now.page(at)
        ]  # fmt: skip
        torn = random.choice(changed) if 0 < share < 1 and changed else -1
        for at in changed:
            page = now.page(at)
            if at == torn:
                self.torn_page_count += 1
                content = content.changed(at, page[: random.randrange(0, PAGE, SECTOR)])
            elif random.random() < share:
                content = content.changed(at, page)
            else:
                self.dropped_page_count += 1
        return content
