"""Small disks for nodes, and a way to fill them.

Owns the mounts of one run: each is a tmpfs below the run's own directory, and is gone at the end,
however the run ended. Mounting needs rights; without them the scenarios are skipped by name.
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

    def mount(self, path: Path, size_bytes: int) -> None:
        """Make a directory a file system of this size. Raises NotPossibleHereError."""
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except FileNotFoundError as error:
            raise NotPossibleHereError("there is no mount command for small disks") from error
        if done.returncode != 0:
            raise NotPossibleHereError(f"mounting is not permitted here: {done.stderr.strip()}")
        self._mounted.append(path)

    def close(self) -> None:
        """Unmount all."""
        for path in self._mounted:
            subprocess.run(
                ["umount", "-l", str(path)], capture_output=True, check=True, timeout=_TIMEOUT_S
            )
        self._mounted.clear()


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
