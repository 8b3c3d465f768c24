"""Disks of hosts: a file as a loop device, with a file system of its own.

Owns the mounts. A loop device made by a mount is gone with it, and the mount with the run's
namespace. Must not know what is stored there.
"""

from pathlib import Path
from typing import Final

from hosts.namespaces import command

DISK_SIZE_BYTES: Final = 512 << 20
"""Size of a disk. Its file has holes: it takes what is written to it."""


class LoopDisks:
    """The disks of one cluster."""

    def __init__(self, directory: Path) -> None:
        """`directory` holds the files of the disks."""
        self._directory = directory
        self._mounted: list[Path] = []

    def mount(self, path: Path, name: str) -> None:
        """Make a directory a disk of its own. Raises ChaosError."""
        file = self._directory / f"{name}.disk"
        with file.open("wb") as made:
            made.truncate(DISK_SIZE_BYTES)
        command("mkfs.ext4", "-q", "-F", str(file))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        command("mount", "-o", "loop", str(file), str(path))
        self._mounted.append(path)
        (path / "lost+found").rmdir()

    def close(self) -> None:
        """Unmount all."""
        while self._mounted:
            command("umount", str(self._mounted.pop()))
