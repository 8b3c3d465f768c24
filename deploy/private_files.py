"""Files of a local cluster, for their user alone: settings, state and the log lines of nodes.

Owns the modes; must not know the content of a file.
"""

import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def make_directory(path: Path) -> None:
    """Make a directory and its parents; an existing one, of an earlier version, is made private."""
    make_missing(path)
    path.chmod(DIRECTORY_MODE)


def make_missing(path: Path) -> None:
    """Make a directory and its parents; existing ones stay as they are."""
    missing = []
    at = path
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for directory in reversed(missing):
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a private file, replacing its content."""
    with open(path, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)


def open_private(path: str, flags: int) -> int:
    """Open a private file; the `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def open_in_shared_directory(path: str, flags: int) -> int:
    """Open a file where others can put files; a link or a pipe is not followed."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
