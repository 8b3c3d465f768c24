"""Copies a directory that nobody uses, durably.

Owns the way of its bytes; must not know what they mean.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from store.file_system import FileSystem
from store.fsck.types import Progress

_COPY_SIZE_BYTES: Final = 4 << 20


def copy_directory(
    fs: FileSystem,
    source: Path,
    copy: Path,
    belongs: Callable[[str], bool],
    progress: Progress,
) -> None:
    """Make `copy` with everything below `source`, but for what does not belong at its top.

    Links are followed. Durable on return, but for the name `copy` itself. Raises OSError (a
    directory cannot be listed), FileSystemError, StoreFullError or SyncFailedError; what is there
    by then is the caller's to remove.
    """
    found: list[tuple[Path, Path]] = []
    for root, names, files in os.walk(source, followlinks=True, onerror=_refuse_to_guess):
        if root == str(source):
            names[:] = filter(belongs, names)
            files[:] = filter(belongs, files)
        place = copy / os.path.relpath(root, source)
        fs.make_directory(str(place), is_durable=False)
        found += [(Path(root) / name, place / name) for name in files]
    total = sum(file.stat().st_size for file, _ in found)
    done = 0
    for file, to in found:
        for size_bytes in _copy_file(fs, file, to):
            done += size_bytes
            progress("copy", done, total)
    for root, _, _ in os.walk(copy):
        fs.sync_directory(root)


def _refuse_to_guess(error: OSError) -> None:
    raise error  # A directory that cannot be listed would look like an empty one.


def _copy_file(fs: FileSystem, source: Path, copy: Path) -> Iterator[int]:
    """Copy one file, durably; yields the sizes of its pieces."""
    reader = fs.open(str(source), read_only=True)
    try:
        writer = fs.open(str(copy), create=True)
        try:
            position, size_bytes = 0, fs.size_bytes(reader)
            while position < size_bytes:
                count = min(_COPY_SIZE_BYTES, size_bytes - position)
                data = fs.read_at(reader, str(source), position, count)
                fs.write_at(writer, str(copy), position, data)
                position += count
                yield count
            fs.sync(writer, str(copy))
        finally:
            fs.close(writer)
    finally:
        fs.close(reader)
