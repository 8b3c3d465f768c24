"""The disk of one machine: the calls of its processes, their time, their errors and their traces.

Owns descriptors, what each call does to the model of durability, and what is there after the end of
a process or of the power. Real files in `root` hold what processes read: the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from greenlet import getcurrent

from simulation.disk.content import changed_pages, copy_file, read_content
from simulation.disk.durability import Directory, Durability, File
from simulation.disk.faults import DiskFaults
from simulation.kernel.process import Process, current_process

if TYPE_CHECKING:
    from simulation.kernel.hub import Hub

FIRST_DESCRIPTOR: Final = 1 << 20
"""Descriptors are numbers that the interpreter does not have: what a dead process closes when the
interpreter drops it does no harm."""
_NUMBER_SHIFT: Final = 24
TOTAL_SIZE_BYTES: Final = 1 << 40
PREEMPTED_IN: Final = 16
"""Calls that wait for no disk: one call in this number lets others run, for the time of all."""
_CLEAN_NS: Final = 5_000


class Descriptor:
    """One open file or directory of a process."""

    __slots__ = ("fd", "has_written", "node", "path", "process")

    def __init__(self, process: Process, fd: int, path: str, node: File | Directory) -> None:
        self.process, self.fd, self.path, self.node = process, fd, path, node
        self.has_written = False


class Disk:
    """The disk of a machine. Its calls are those of `os`, made by code of a process."""

    def __init__(self, hub: Hub, root: Path, number: int) -> None:
        """`number`: of its machine; no two disks give out the same descriptors."""
        self.root: Final = str(root)
        self.random: Final = Random(hub.random.getrandbits(64))
        self.faults: Final = DiskFaults(self.random)
        self.model = Durability()
        self._hub = hub
        self._below = f"{self.root}/"
        self._name_at = len(os.path.dirname(self.root)) + 1
        """Where a path begins that is the same in each run."""
        self._next_descriptor = FIRST_DESCRIPTOR + (number << _NUMBER_SHIFT)
        self._open: dict[int, Descriptor] = {}
        self._maps: dict[Process, list[tuple[File, ref[mmap.mmap]]]] = {}
        self._hanging: list[tuple[Process, Any, int]] = []
        os.makedirs(self.root, exist_ok=True)
        self.model.adopt(self.root)

    def has(self, path: str) -> bool:
        """Whether a path is on this disk."""
        return path.startswith(self._below) or path == self.root

    # --- Descriptors ---

    def of(self, fd: int) -> Descriptor:
        """Return an open descriptor. Raises OSError (EBADF)."""
        found = self._open.get(fd)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def has_open(self, fd: int) -> bool:
        """Whether a descriptor is one of this disk."""
        return fd in self._open

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file or a directory."""
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        kind = "create" if is_new else "open"
        self._enter(kind, path)
        real = os.open(path, flags, mode)
        node: File | Directory
        if flags & os.O_DIRECTORY:
            node = self.model.directory(path)
        else:
            node = self.model.created(path) if is_new else self.model.file(path)
        fd = self._next_descriptor
        self._next_descriptor += 1
        self._open[fd] = Descriptor(current_process(self._hub), real, path, node)
        self._leave(kind, path)
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        found = self._open.pop(fd, None)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._set_time(found)
        os.close(found.fd)

    def _set_time(self, descriptor: Descriptor) -> None:
        """Give a file that was written the time of the world: code sorts files by it."""
        if descriptor.has_written:
            now_ns = descriptor.process.machine.clock.unix_ns()
            os.utime(descriptor.fd, ns=(now_ns, now_ns))

    # --- Bytes ---

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        """Read."""
        found = self.of(fd)
        self._enter("read", found.path)
        return os.pread(found.fd, size_bytes, position)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        """Write into the page cache. Raises ENOSPC where a file grows and nothing is free."""
        found = self.of(fd)
        self._enter("write", found.path)
        end = position + len(data)
        if self.faults.free_size_bytes is not None:
            growth = end - max(position, os.fstat(found.fd).st_size)
            room = self.faults.take_room(growth, found.path)
            if room < growth:
                data = data[: len(data) - (growth - room)]
                if not len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), found.path)
        found.has_written = True
        if isinstance(found.node, File):
            found.node.written(position, len(data))
        written = os.pwrite(found.fd, data, position)
        self._leave("write", found.path)
        return written

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        """Set the size; a hole takes no room."""
        found = self.of(fd)
        self._enter("set_size", found.path)
        found.has_written = True
        os.ftruncate(found.fd, size_bytes)
        self._leave("set_size", found.path)

    def posix_fallocate(self, fd: int, position: int, size_bytes: int) -> None:
        """Take room for a range. Raises ENOSPC; part of it is then taken."""
        found = self.of(fd)
        self._enter("allocate", found.path)
        growth = position + size_bytes - os.fstat(found.fd).st_size
        room = self.faults.take_room(growth, found.path)
        if room < growth:
            if size_bytes - growth + room > 0:
                os.posix_fallocate(found.fd, position, size_bytes - growth + room)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), found.path)
        found.has_written = True
        os.posix_fallocate(found.fd, position, size_bytes)
        self._spend(self.faults.call_ns())
        self._leave("allocate", found.path)

    def fstat(self, fd: int) -> os.stat_result:
        """Return the state of an open file."""
        return os.fstat(self.of(fd).fd)

    def map(self, fd: int, size_bytes: int, **options: Any) -> mmap.mmap:
        """Map a file."""
        found = self.of(fd)
        self._enter("map", found.path)
        mapped = mmap.mmap(found.fd, size_bytes, **options)
        maps = self._maps.setdefault(found.process, [])
        if len(maps) > 256:
            maps[:] = [one for one in maps if one[1]() is not None]
        assert isinstance(found.node, File), f"a map of {found.path}"
        maps.append((found.node, ref(mapped)))
        return mapped

    def real(self, fd: int) -> int:
        """Return the descriptor of the interpreter, for a lock, and for judges that read."""
        return self.of(fd).fd

    # --- Syncs ---

    def fdatasync(self, fd: int) -> None:
        """Make a file durable, as it is at the beginning of the call."""
        found = self.of(fd)
        file, path = found.node, found.path
        if isinstance(file, Directory):
            self._sync_directory(file, path)
            return
        self._enter_trap("sync", path)
        content = read_content(found.fd)
        if content == file.synced and not self.faults.any:
            self._spend_some(_CLEAN_NS)
            self._leave("sync", path)
            return
        number = file.begin_sync()
        self._wait_for_disk()
        try:
            self.faults.check("sync", path)
        except OSError:
            file.lose_pages(content, changed_pages(file.synced, content))
            raise
        if self.faults.lies:
            changed = changed_pages(file.synced, content)
            file.lose_pages(content, changed and [self.random.choice(changed)])
        file.finish_sync(number, content)
        self._leave("sync", path)

    fsync = fdatasync

    def _sync_directory(self, directory: Directory, path: str) -> None:
        self._enter_trap("sync_directory", path)
        count = directory.begin_sync()
        self._wait_for_disk()
        self.faults.check("sync_directory", path)
        directory.finish_sync(count)
        self._leave("sync_directory", path)

    def _wait_for_disk(self) -> None:
        process = current_process(self._hub)
        process.spend(self.faults.sync_ns())
        while self.faults.hangs:
            self._hanging.append((process, getcurrent(), self._hub.next_wait()))
            self._hub.wait()

    def heal(self) -> None:
        """End all faults; syncs that hang go on."""
        self.faults.clear()
        self.release()

    def release(self) -> None:
        """Have syncs that hang go on."""
        self.faults.hangs = False
        hanging, self._hanging = self._hanging, []
        for process, of, wait_number in hanging:
            self._hub.at(self._hub.now_ns, self._hub.resume, process, of, wait_number)

    # --- Names ---

    def replace(self, source: str, target: str) -> None:
        """Rename."""
        self._enter("rename", target)
        replaced = self.model.content_at(target)
        size_bytes = replaced.size_bytes if replaced is not None else 0
        os.replace(source, target)
        self.model.renamed(source, target, replaced)
        for one in self._open.values():
            if one.path == source:
                one.path = target
        self.faults.give_room(size_bytes)
        self._leave("rename", target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._enter("unlink", path)
        final = self.model.content_at(path)
        os.unlink(path)
        self.model.unlinked(path, final)
        self.faults.give_room(final.size_bytes if final is not None else 0)
        self._leave("unlink", path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a directory."""
        self._enter("make_directory", path)
        os.mkdir(path, mode)
        self.model.made_directory(path)
        self._leave("make_directory", path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._enter("remove_directory", path)
        os.rmdir(path)
        self.model.removed_directory(path)
        self._leave("remove_directory", path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in order."""
        self._enter("list", path)
        return sorted(os.listdir(path))

    def free_size_bytes(self) -> int:
        """Return the room that is left."""
        free = self.faults.free_size_bytes
        return TOTAL_SIZE_BYTES // 2 if free is None else free

    # --- Every call ---

    def _enter(self, kind: str, path: str) -> None:
        self._enter_trap(kind, path)
        if self.faults.rules:
            self.faults.check(kind, path)

    def _enter_trap(self, kind: str, path: str) -> None:
        self._hub.note(f"{kind} {path[self._name_at :]}")
        self._spend_some(0)
        if self.faults.traps:
            self._spring(kind, path, is_before=True)

    def _leave(self, kind: str, path: str) -> None:
        if self.faults.traps:
            self._spring(kind, path, is_before=False)

    def _spring(self, kind: str, path: str, *, is_before: bool) -> None:
        trap = self.faults.trap_of(kind, is_before=is_before)
        if trap is not None:
            hub = self._hub
            hub.note(f"trap {kind} {path[self._name_at :]}")
            hub.at(hub.now_ns, trap.end)
            hub.wait()
            raise AssertionError("code of an ended process went on")

    def _spend_some(self, duration_ns: int) -> None:
        """Let time pass for a call that waits for no disk: now and then, for many of them."""
        if self.random.random() < 1 / PREEMPTED_IN:
            self._spend(duration_ns + PREEMPTED_IN // 4 * self.faults.call_ns())

    def _spend(self, duration_ns: int) -> None:
        current_process(self._hub).spend(duration_ns)

    # --- Ends ---

    def process_ended(self, process: Process) -> None:
        """Take what a process had open from it: its code is not run any more, but its maps and
        descriptors live as long as the world. Its files stay as they are in the page cache."""
        ended = {fd: one for fd, one in self._open.items() if one.process is process}
        maps = self._maps.pop(process, [])
        files = {one.node: None for one in ended.values() if isinstance(one.node, File)}
        files |= {file: None for file, mapped in maps if mapped() is not None}
        for fd, one in ended.items():
            self._set_time(one)
            os.close(one.fd)
            del self._open[fd]
        for file in files:
            if file.final is None and os.path.isfile(file.path):
                fresh = f"{file.path}.fresh"
                copy_file(file.path, fresh)
                os.replace(fresh, file.path)
        _release(maps)

    def lose_power(self) -> None:
        """Have what a power loss leaves. All processes of the machine have ended."""
        self.model.meet(self.root)
        new = f"{self.root}.image"
        self.model.build_image(self.root, new, self.random)
        self._swap(new)

    def wipe(self) -> None:
        """Be empty. No process runs."""
        assert not self._open, "a process runs on this disk"
        new = f"{self.root}.image"
        os.mkdir(new)
        self._swap(new)

    def _swap(self, new: str) -> None:
        old = f"{self.root}.old"
        os.rename(self.root, old)
        os.rename(new, self.root)
        shutil.rmtree(old)
        self.drop()
        self.model.adopt(self.root)

    def drop(self) -> None:
        """Close everything and give the memory back: no process runs any more."""
        for one in self._open.values():
            os.close(one.fd)
        self._open.clear()
        for maps in self._maps.values():
            _release(maps)
        self._maps.clear()
        self._hanging.clear()
        self.model.clear()


def _release(maps: list[tuple[File, ref[mmap.mmap]]]) -> None:
    """Give the memory of maps back that a dead process keeps; their files have no name any more."""
    for _, mapped in maps:
        one = mapped()
        if one is not None and not one.closed:
            one.madvise(mmap.MADV_REMOVE)
