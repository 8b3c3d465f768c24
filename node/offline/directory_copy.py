"""Copies an unused directory, durably.

Owns the way of its bytes, and which files are refused; must not know what the bytes mean. A link
would bring in a file from elsewhere, possibly readable for other users, and opening a pipe would
block.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from node.errors.common import NodeError
from store.files.file_system import FileSystem
from store.fsck.types import Progress

_COPY_SIZE_BYTES: Final = 4 << 20


_KINDS: Final = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class StrangeFileError(NodeError):
    """A directory to be copied holds something that is neither a file nor a directory. Nothing is
    left at the destination."""

    code, status = "node.strange_file", "FAILED_PRECONDITION"
    text = (
        "{path} is {kind}, and only files and directories are copied; put the file itself in its "
        "place (cp -L follows links), or take it away if it is none of ours"
    )
    path: str
    kind: str


def files_below(source: Path, belongs: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
    """Yield each directory and the names of its files; at the top, only names that belong.

    Raises OSError when a directory cannot be listed, or StrangeFileError. Follows no link.
    """
    for root, names, files in os.walk(source, onerror=_refuse_to_guess):
        if root == str(source):
            names[:] = filter(belongs, names)
            files[:] = filter(belongs, files)
        for name in (*names, *files):
            path = os.path.join(root, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise StrangeFileError(path, _KINDS.get(stat.S_IFMT(mode), "no file"))
        yield root, files


def copy_directory(
    fs: FileSystem,
    source: Path,
    copy: Path,
    belongs: Callable[[str], bool],
    progress: Progress,
) -> None:
    """Copy everything below `source` to `copy`; at the top, only names that belong.

    Durable on return, except for the name `copy` itself. Raises as `files_below`, FileSystemError,
    StoreFullError or SyncFailedError; the caller removes what was copied by then.
    """
    pairs: list[tuple[Path, Path]] = []
    for root, files in files_below(source, belongs):
        place = copy / os.path.relpath(root, source)
        fs.make_directory(str(place), is_durable=False)
        pairs += [(Path(root) / name, place / name) for name in files]
    total = sum(file.stat().st_size for file, _ in pairs)
    done = 0
    for file, to in pairs:
        for size_bytes in _copy_file(fs, file, to):
            done += size_bytes
            progress("copy", done, total)
    for root, _, _ in os.walk(copy):
        fs.sync_directory(root)


def _refuse_to_guess(error: OSError) -> None:
    raise error  # A directory that cannot be listed would look like an empty one.


def _copy_file(fs: FileSystem, source: Path, copy: Path) -> Iterator[int]:
    """Copy one file, durably; yield the sizes of its pieces."""
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
