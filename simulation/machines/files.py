"""The modules `os`, `mmap` and `fcntl` as code of a simulated machine sees them: files below the
root of its disk are files of the disk.

Owns which functions are simulated. So the shipped file system port runs unchanged, with its
translation of errors, and so does what our code writes beside it through `os`. What goes past `os`
(pathlib, the built-in `open`) reaches the page cache without taking time: reads, and files on which
no answer rests. A power loss treats what was written that way as never synced.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from simulation.disk.disk import FIRST_DESCRIPTOR, TOTAL_SIZE_BYTES, Disk
from simulation.kernel.hub import Hub
from simulation.kernel.machine import Machine
from simulation.kernel.modules import SimulatedModule
from simulation.kernel.process import Process, current_process
from simulation.machines import modules

_BLOCK_SIZE_BYTES: Final = 4096


def disk_of(hub: Hub, path: Any = None) -> Disk | None:
    """Return the disk of the machine whose code calls; None outside of processes, and for a path
    that is not on it."""
    process = hub.current
    if not isinstance(process, Process):
        return None
    disk = process.machine.disk
    return disk if path is None or disk.has(os.fspath(path)) else None


class DiskOs(modules.Os):
    """The module `os`, with files."""

    def __init__(self, hub: Hub, machines: Sequence[Machine]) -> None:
        super().__init__(hub)
        self._machines = machines

    def open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        disk = disk_of(self._hub, path)
        if disk is None:
            return os.open(path, flags, mode, **more)
        return disk.open(os.fspath(path), flags, mode)

    def statvfs(self, path: Any) -> os.statvfs_result:
        disk = disk_of(self._hub, path)
        if disk is None:
            return os.statvfs(path)
        size, free = TOTAL_SIZE_BYTES // _BLOCK_SIZE_BYTES, disk.free_size_bytes()
        free //= _BLOCK_SIZE_BYTES
        block = _BLOCK_SIZE_BYTES
        return os.statvfs_result(
            (block, block, size, free, free, 1 << 20, 1 << 20, 1 << 20, 0, 255)
        )

    def makedirs(self, name: Any, mode: int = 0o777, exist_ok: bool = False) -> None:
        disk = disk_of(self._hub, name)
        if disk is None:
            os.makedirs(name, mode, exist_ok)
            return
        path, missing = os.fspath(name), []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        if not missing and not exist_ok:
            os.mkdir(path)  # Raises FileExistsError.
        for one in reversed(missing):
            disk.mkdir(one, mode)

    def replace(self, src: Any, dst: Any, **more: Any) -> None:
        disk = disk_of(self._hub, src)
        if disk is None:
            os.replace(src, dst, **more)
        else:
            disk.replace(os.fspath(src), os.fspath(dst))

    rename = replace

    def unlink(self, path: Any, **more: Any) -> None:
        self._by_path("unlink", path, **more)

    remove = unlink

    def mkdir(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        self._by_path("mkdir", path, mode, **more)

    def rmdir(self, path: Any, **more: Any) -> None:
        self._by_path("rmdir", path, **more)

    def listdir(self, path: Any = ".") -> Any:
        return self._by_path("listdir", path)

    def _by_path(self, name: str, path: Any, *arguments: Any, **more: Any) -> Any:
        disk = disk_of(self._hub, path)
        if disk is None:
            return getattr(os, name)(path, *arguments, **more)
        return getattr(disk, name)(os.fspath(path), *arguments)

    # Python has methods of a class for these, so that a call costs one look-up.

    def close(self, fd: int) -> None:
        self._by_descriptor("close", fd)

    def pread(self, fd: int, length: int, offset: int) -> Any:
        return self._by_descriptor("pread", fd, length, offset)

    def pwrite(self, fd: int, data: Any, offset: int) -> Any:
        return self._by_descriptor("pwrite", fd, data, offset)

    def ftruncate(self, fd: int, length: int) -> None:
        self._by_descriptor("ftruncate", fd, length)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        self._by_descriptor("posix_fallocate", fd, offset, length)

    def fdatasync(self, fd: int) -> None:
        self._by_descriptor("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._by_descriptor("fsync", fd)

    def fstat(self, fd: int) -> Any:
        return self._by_descriptor("fstat", fd)

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            os.posix_fadvise(fd, offset, length, advice)

    def _by_descriptor(self, name: str, fd: Any, *arguments: Any) -> Any:
        if not isinstance(fd, int) or fd < FIRST_DESCRIPTOR:
            return getattr(os, name)(fd, *arguments)
        process = self._hub.current
        if isinstance(process, Process):
            return getattr(process.machine.disk, name)(fd, *arguments)
        # A judge, between events: it takes no time and meets no fault.
        assert name in ("pread", "fstat"), f"a judge calls {name}"
        disk = next(one.disk for one in self._machines if one.disk.has_open(fd))
        return getattr(os, name)(disk.real(fd), *arguments)


class Mmap(SimulatedModule):
    """The module `mmap`: maps of the disk's files are maps of the real ones."""

    real: ClassVar = mmap

    def mmap(self, fileno: int, length: int, *arguments: Any, **options: Any) -> Any:
        if fileno < FIRST_DESCRIPTOR:
            return mmap.mmap(fileno, length, *arguments, **options)
        return current_process(self._hub).machine.disk.map(fileno, length, **options)


class Fcntl(SimulatedModule):
    """The module `fcntl`: a lock is one of the real file, which no process of another life has."""

    real: ClassVar = fcntl

    def fcntl(self, fd: Any, cmd: int, arg: Any = 0) -> Any:
        if isinstance(fd, int) and fd >= FIRST_DESCRIPTOR:
            fd = current_process(self._hub).machine.disk.real(fd)
        return fcntl.fcntl(fd, cmd, arg)


def disk_parts(hub: Hub, machines: Sequence[Machine]) -> dict[Any, Any]:
    """Return what is put in the place of what, for files; `machines`: those of the world."""
    from node.runtime import fail_stop
    from store.durability import identity
    from store.files import mounts

    def boot_id() -> str:
        return str(current_process(hub).machine.boot_id)

    return {
        **DiskOs(hub, machines).parts(),
        **Mmap(hub).parts(),
        **Fcntl(hub).parts(),
        identity.read_kernel_boot_id: boot_id,
        mounts.is_in_memory: lambda directory: False,
        # The built-in `open` takes descriptors of the interpreter only.
        fail_stop._private: lambda path, flags: os.open(path, flags, 0o600),
    }
