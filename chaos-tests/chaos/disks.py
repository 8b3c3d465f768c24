"""Small disks for nodes, and a way to fill them.

Owns the mounts of one run below its own directory: a tmpfs, which is gone at the end, however the
run ended, or ext4 on a loop device, where the run has mounts of its own that end with it. Mounting
needs rights; without them the scenarios are skipped by name.
"""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final

from chaos.errors import NotPossibleHereError

_CHUNK: Final = bytes(65536)
_TIMEOUT_S: Final = 30


class Disks:
    """Mounted file systems."""

    def __init__(self) -> None:
        self._mounted: list[Path] = []

    def mount(self, path: Path, size_bytes: int, image: Path | None = None) -> None:
        """Make a directory a file system of this size, in memory or in a file with holes. Raises
        NotPossibleHereError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if image is None:
            _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
        else:
            with image.open("wb") as file:
                file.truncate(size_bytes)
            _run("mkfs.ext4", "-q", "-F", str(image))
            _run("mount", "-o", "loop", str(image), str(path))
        self._mounted.append(path)
        if image is not None:
            (path / "lost+found").rmdir()

    def close(self) -> None:
        """Unmount all."""
        for path in self._mounted:
            subprocess.run(
                ["umount", "-l", str(path)], capture_output=True, check=True, timeout=_TIMEOUT_S
            )
        self._mounted.clear()


def _run(*words: str) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise NotPossibleHereError(f"there is no {words[0]} command for small disks") from error
    if done.returncode != 0:
        raise NotPossibleHereError(f"{words[0]} is not permitted here: {done.stderr.strip()}")


class Ballast:
    """Takes all remaining room beside a node's files, and gives it back."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def take(self, left_size_bytes: int = 0) -> int:
        """Fill the file system, leaving `left_size_bytes` free; return the bytes written."""
        with self._path.open("ab") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), _CHUNK)
        taken = self._path.stat().st_size
        os.truncate(self._path, max(0, taken - left_size_bytes))
        return taken

    def give_back(self) -> None:
        """Make room again."""
        self._path.unlink(missing_ok=True)
