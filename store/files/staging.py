"""The places of files without their final names yet, and of whole files that left the log.

Owns the names of both directories. Must not know what the files hold. RocketMQ and DLedger take
every name in `commitlog`, `data`, `index` and the directories of queues for a number and load no
directory that holds another one, so nothing unfinished may lie there, not even for the moment in
which a process dies. The directories here are beside those, on the same file system: a rename
moves a file. Source: RocketMQ MappedFileQueue#doLoad, DLedger MmapFileList#load.

No file here is ever read again: `sweep` removes what a crash left.
"""

import os
from typing import Final

from store.files.file_system import FileSystem

STAGING_DIRECTORY: Final = "allocating"
ASIDE_DIRECTORY: Final = "aside"
TEMPORARY_SUFFIX: Final = ".allocating"
"""Suffix of an unfinished file in a directory that no foreign code reads."""


def staged_path(directory: str, name: str, *, part: str = "") -> str:
    """Return where the file `name` of `directory` is made.

    `directory` is one that foreign code reads as a whole; `part` names the place in it, for a
    directory of directories. Two files of one name and part are never made at the same time.
    """
    kind = os.path.basename(directory)
    return os.path.join(os.path.dirname(directory), STAGING_DIRECTORY, f"{kind}-{part}{name}")


def stage(fs: FileSystem, directory: str, name: str, *, part: str = "") -> str:
    """Return `staged_path`, with the directory there and nothing that a failed call left in it.

    The directory is not durable: a crash may take it with all that is in it. Raises
    FileSystemError.
    """
    path = staged_path(directory, name, part=part)
    fs.make_directory(os.path.dirname(path), is_durable=False)
    if os.path.exists(path):
        fs.unlink(path)
    return path


def sweep(fs: FileSystem, directory: str) -> None:
    """Remove the unfinished files of `directory` after a crash. Raises FileSystemError."""
    staging = os.path.join(os.path.dirname(directory), STAGING_DIRECTORY)
    prefix = os.path.basename(directory) + "-"
    for name in fs.list_directory(staging):
        if name.startswith(prefix):
            fs.unlink(os.path.join(staging, name))


def is_unfinished(path: str) -> bool:
    """Whether a path names an unfinished file, which is never read."""
    directory, name = os.path.split(path)
    return name.endswith(TEMPORARY_SUFFIX) or os.path.basename(directory) == STAGING_DIRECTORY


def aside_path(path: str) -> str:
    """Return where a whole file of a log lies that is not part of the sequence any more."""
    return os.path.join(aside_directory(os.path.dirname(path)), os.path.basename(path))


def aside_directory(directory: str) -> str:
    """Return the directory for whole files that left `directory`."""
    return os.path.join(os.path.dirname(directory), ASIDE_DIRECTORY)
