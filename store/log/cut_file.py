"""Bytes that were cut off a plain log, set aside in a file: evidence that only people read.

Owns the files in `cut/`: their form, names and number; must not know why a log was cut. A file is
the header below and then the bytes [lo, hi) as they were, blanks included. The file is written
under a temporary name, synced, and only then gets its own, so it is whole or not there; the
checksum tells a damaged copy. The names hold the epoch and the positions, which name the bytes
permanently: cutting the same bytes again after a crash writes the same file.

    magic "QLCUT1\\n\\0", epoch i8, lo i8, hi i8, cut at (Unix ms) i8, CRC-32 of the bytes u4,
    CRC-32 of all before u4; big-endian, 48 bytes
"""

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from store.config import MIB
from store.errors import CorruptionError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX
from store.files.zeros import SYNC_SIZE_BYTES

DIRECTORY: Final = "cut"
CUT_FILES_KEPT_MAX: Final = 16
"""Older files are deleted when another is written: evidence of long ago may be large."""
_MAGIC: Final = b"QLCUT1\n\0"
_HEADER: Final = struct.Struct(">8sqqqqI")
_CRC: Final = struct.Struct(">I")
HEADER_SIZE_BYTES: Final = _HEADER.size + _CRC.size
assert HEADER_SIZE_BYTES == 48
_NAME: Final = re.compile(r"([0-9]{1,19})-([0-9]{20})-([0-9]{20})\.cut")
_READ_SIZE_BYTES: Final = 4 * MIB

ReadLog = Callable[[int, int], bytes]
"""(position, how much at most) -> bytes from there on, one or more."""


class CutFile(NamedTuple):
    """Bytes [lo, hi) of a log that were cut off; the last of them is of `epoch`."""

    path: str
    epoch: int
    lo: int
    hi: int
    cut_unix_ms: int


def write_cut_file(
    fs: FileSystem, root: str, *, epoch: int, lo: int, hi: int, read: ReadLog, now_unix_ms: int
) -> CutFile:
    """Copy bytes of the log aside; durable on return. The log is not changed.

    Raises StoreFullError or FileSystemError (no such file then), SyncFailedError: stop.
    """
    assert 0 <= lo < hi, f"cut [{lo}, {hi})"
    directory = os.path.join(root, DIRECTORY)
    fs.make_directory(directory)
    path = os.path.join(directory, f"{epoch}-{lo:020d}-{hi:020d}.cut")
    temporary = path + TEMPORARY_SUFFIX
    for name in fs.list_directory(directory):
        if name.endswith(TEMPORARY_SUFFIX):  # Of an attempt that failed.
            fs.unlink(os.path.join(directory, name))
    fd = fs.open(temporary, create=True)
    try:
        crc, at, position = 0, HEADER_SIZE_BYTES, lo
        while position < hi:
            data = read(position, min(hi - position, _READ_SIZE_BYTES))
            fs.write_at(fd, temporary, at, data)
            crc = zlib.crc32(data, crc)
            if at // SYNC_SIZE_BYTES < (at + len(data)) // SYNC_SIZE_BYTES:
                fs.sync(fd, temporary)
            at, position = at + len(data), position + len(data)
        header = _HEADER.pack(_MAGIC, epoch, lo, hi, now_unix_ms, crc)
        fs.write_at(fd, temporary, 0, header + _CRC.pack(zlib.crc32(header)))
        fs.sync(fd, temporary)
    except BaseException:
        fs.close(fd)
        fs.unlink(temporary)
        raise
    fs.close(fd)
    hit("cut_file.before_rename")
    fs.rename(temporary, path)
    fs.sync_directory(directory)
    files = list_cut_files(fs, root)
    for cut in files[: max(0, len(files) - CUT_FILES_KEPT_MAX)]:
        fs.unlink(cut.path)
    return CutFile(path, epoch, lo, hi, now_unix_ms)


def list_cut_files(fs: FileSystem, root: str) -> list[CutFile]:
    """Return the files that are there, oldest first. A file with a damaged header counts as of
    time 0, with the values in its name."""
    directory = os.path.join(root, DIRECTORY)
    files = []
    for name in fs.list_directory(directory):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        path = os.path.join(directory, name)
        try:
            files.append(read_cut_header(fs, path)[0])
        except CorruptionError:
            epoch, lo, hi = (int(match[group]) for group in (1, 2, 3))
            files.append(CutFile(path, epoch, lo, hi, 0))
    return sorted(files, key=lambda cut: (cut.cut_unix_ms, cut.epoch, cut.lo))


def read_cut_header(fs: FileSystem, path: str) -> tuple[CutFile, int]:
    """Return the values in the header of a file, and the CRC-32 of its bytes.

    Raises CorruptionError without a good header or for another file size; FileSystemError.
    """
    fd = fs.open(path, read_only=True)
    try:
        size_bytes = fs.size_bytes(fd)
        data = fs.read_at(fd, path, 0, min(size_bytes, HEADER_SIZE_BYTES))
    finally:
        fs.close(fd)
    if len(data) < HEADER_SIZE_BYTES or not data.startswith(_MAGIC):
        raise CorruptionError(path, 0, "header", "of a file that was cut off", data[:8].hex())
    expected, stored = zlib.crc32(data[: _HEADER.size]), _CRC.unpack_from(data, _HEADER.size)[0]
    if stored != expected:
        raise CorruptionError(
            path, _HEADER.size, "header CRC-32", f"{expected:08x}", f"{stored:08x}"
        )
    _, epoch, lo, hi, unix_ms, crc = _HEADER.unpack_from(data)
    if size_bytes != HEADER_SIZE_BYTES + hi - lo:
        expected_size = str(HEADER_SIZE_BYTES + hi - lo)
        raise CorruptionError(path, size_bytes, "file size", expected_size, str(size_bytes))
    return CutFile(path, epoch, lo, hi, unix_ms), crc


def read_cut_file(fs: FileSystem, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield (position in the log, bytes) of a file, in order.

    Raises CorruptionError at the end if the checksum of all is wrong; FileSystemError.
    """
    cut, expected = read_cut_header(fs, path)
    fd = fs.open(path, read_only=True)
    try:
        crc, position = 0, cut.lo
        while position < cut.hi:
            size_bytes = min(cut.hi - position, _READ_SIZE_BYTES)
            data = fs.read_at(fd, path, HEADER_SIZE_BYTES + position - cut.lo, size_bytes)
            crc = zlib.crc32(data, crc)
            yield position, data
            position += size_bytes
    finally:
        fs.close(fd)
    if crc != expected:
        at = HEADER_SIZE_BYTES
        raise CorruptionError(path, at, "CRC-32 of the bytes", f"{expected:08x}", f"{crc:08x}")
