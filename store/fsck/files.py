"""Reads a store directory without touching it, however damaged it is.

Owns the read-only file system, the byte space of a file sequence with any part missing, and the
question which process holds the directory; must not know what the bytes mean. No file is mapped
here: a bad sector is an exception, and its page reads as zeros and a finding.
Sources: fault-matrix section 6, D9, D12, S17.
"""

import fcntl
import os
from typing import Any, Final, NamedTuple, NoReturn

from store import format as fmt
from store.config import MIB
from store.durability.identity import FLOCK, LOCK_NAME, DirectoryLock
from store.errors import FileSystemError, LockedError
from store.files.descriptor_cache import DescriptorCache
from store.files.file_system import FileSystem
from store.files.meta_file import ReadSmall
from store.files.staging import is_unfinished
from store.fsck.types import Finding, Part, Severity

OPEN_FILES_MAX: Final = 128
SCAN_SIZE_BYTES: Final = MIB
PAGE_SIZE_BYTES: Final = fmt.PAGE_SIZE_BYTES


def _refusal(name: str) -> Any:

    def refuse(_fs: FileSystem, *arguments: object, **options: object) -> NoReturn:
        raise AssertionError(f"{name} of {arguments} in a read-only check")

    return refuse


class ReadOnlyFileSystem(FileSystem):
    """Opens files for reading only, and refuses every call that would change a byte."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """Open a file that exists, for reading."""
        assert not create, f"{path} would be made"
        return super().open(path, read_only=True)

    allocate = _refusal("allocate")
    set_size = _refusal("set_size")
    map = _refusal("map")
    write_at = _refusal("write_at")
    warm = _refusal("warm")
    sync = _refusal("sync")  # It would write back bytes of another process.
    sync_directory = _refusal("sync_directory")
    rename = _refusal("rename")
    remove_directory = _refusal("remove_directory")
    unlink = _refusal("unlink")
    make_directory = _refusal("make_directory")


def holder_of(root: str) -> str | None:
    """Return the holder of a directory, None without one. Takes no lock, not even for a moment.

    Raises FileSystemError when the lock file cannot be read.
    """
    path = os.path.join(root, LOCK_NAME)
    if not os.path.exists(path):
        return None
    fs = ReadOnlyFileSystem()
    fd = fs.open(path)
    try:
        lock = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, lock)
        if FLOCK.unpack(answer)[0] == fcntl.F_UNLCK:
            return None
        return DirectoryLock(fs, root).holder(fd)
    finally:
        fs.close(fd)


def refuse_if_locked(root: str) -> None:
    """Raise LockedError when a process holds the directory."""
    holder = holder_of(root)
    if holder is not None:
        raise LockedError(os.path.join(root, LOCK_NAME), holder)


class Place(NamedTuple):
    """A directory that is read, and the bound on its open files."""

    fs: FileSystem
    descriptors: DescriptorCache
    root: str

    def read(self, name: str, at: int, size_bytes: int) -> bytes:
        """Return bytes of a file below the root. Raises FileSystemError."""
        path = os.path.join(self.root, name)
        with self.descriptors.use(path) as opened:
            return self.fs.read_at(opened.fd, path, at, size_bytes)


class Segment(NamedTuple):
    """One file of a sequence. `path` is below the root; a missing file has size 0."""

    path: str
    position: int
    size_bytes: int
    is_missing: bool


class Segments:
    """The files of one directory as one byte space [position, end_position).

    Missing parts (files of the sequence, bytes of a short file, unreadable pages) read as zeros and
    are in `findings`, as are names and sizes that are wrong.
    """

    def __init__(
        self,
        place: Place,
        directory: str,
        file_size_bytes: int,
        part: Part,
        first_position: int | None = None,
    ) -> None:
        """Take the files; `directory` is below the root.

        With `first_position` the sequence begins there, and older files are left-overs.
        """
        self._place = place
        self.directory, self.part = directory, part
        self._severity = Severity.REPAIRABLE if part is Part.LOG else Severity.DERIVED
        self.file_size_bytes: Final = file_size_bytes
        self.findings: list[Finding] = []
        self.files: tuple[Segment, ...] = ()
        segments: dict[int, Segment] = {}
        for name in place.fs.list_directory(os.path.join(place.root, directory)):
            path = f"{self.directory}/{name}"
            if not fmt.is_file_name(name):
                self.findings.append(odd_file(path, self.part))
                continue
            position, size = int(name), self.file_size_bytes
            size_bytes = os.stat(os.path.join(place.root, path)).st_size
            if position % size:
                expected = f"a multiple of {size}"
                self._wrong(path, 0, "file name", expected, name)
            elif first_position is not None and position < first_position:
                expected = f"none before {first_position}"
                self._wrong(path, 0, "file", expected, "one", Severity.LEFT_OVER)
            else:
                segments[position] = Segment(path, position, size_bytes, is_missing=False)
                if size_bytes != size:
                    at = min(size, size_bytes)
                    self._wrong(path, at, "file size", str(size), str(size_bytes))
        if not segments:
            return
        lo = min(segments) if first_position is None else first_position
        files = []
        for position in range(lo, max(segments) + 1, self.file_size_bytes):
            path = f"{self.directory}/{fmt.file_name(position)}"
            files.append(segments.get(position) or Segment(path, position, 0, is_missing=True))
            if position not in segments:
                self._wrong(path, 0, "file", "present", "missing")
        self.files = tuple(files)

    def _wrong(
        self,
        path: str,
        at: int,
        field: str,
        expected: str,
        actual: str,
        severity: Severity | None = None,
    ) -> None:
        severity = severity or self._severity
        finding = Finding(path, at, field, expected, actual, severity, self.part)
        if finding not in self.findings:
            self.findings.append(finding)

    def finding(
        self,
        at: int,
        field: str,
        expected: str,
        actual: str,
        severity: Severity | None = None,
        position: int = -1,
    ) -> Finding:
        """Return the finding for the byte at the position `at` of the sequence."""
        severity = severity or self._severity
        return Finding(*self.place(at), field, expected, actual, severity, self.part, position)

    # --- Positions ---

    @property
    def position(self) -> int:
        """First byte of the sequence; 0 without files."""
        return self.files[0].position if self.files else 0

    @property
    def end_position(self) -> int:
        """Byte after the last file; 0 without files."""
        return self.files[-1].position + self.file_size_bytes if self.files else 0

    def file_at(self, position: int) -> Segment:
        """Return the file that holds a position of the sequence."""
        number = (position - self.position) // self.file_size_bytes
        assert 0 <= number < len(self.files), f"{self.directory}: position {position}"
        return self.files[number]

    def place(self, position: int) -> tuple[str, int]:
        """Return (path below the root, byte) of any position, also behind the last file."""
        at = position % self.file_size_bytes
        return f"{self.directory}/{fmt.file_name(position - at)}", at

    # --- Bytes ---

    def read(self, position: int, size_bytes: int) -> bytes:
        """Copy bytes of the sequence; missing ones read as zeros."""
        parts, hi = [], position + size_bytes
        while position < hi:
            file = self.file_at(position)
            at = position - file.position
            room = min(hi - position, self.file_size_bytes - at)
            there = max(0, min(room, file.size_bytes - at))
            data = b""
            if there:
                try:
                    data = self._place.read(file.path, at, there)
                except FileSystemError:
                    data = self._read_pages(file, at, there)
            parts.append(data if len(data) == room else data.ljust(room, b"\0"))
            position += room
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_pages(self, file: Segment, at: int, size_bytes: int) -> bytes:
        """Read page by page; pages that cannot be read are zeros and a finding each."""
        parts, hi = [], at + size_bytes
        while at < hi:
            page_hi = min(hi, (at // PAGE_SIZE_BYTES + 1) * PAGE_SIZE_BYTES)
            try:
                parts.append(self._place.read(file.path, at, page_hi - at))
            except FileSystemError as error:
                parts.append(bytes(page_hi - at))
                page = at // PAGE_SIZE_BYTES * PAGE_SIZE_BYTES
                self._wrong(file.path, page, "page", "readable", os.strerror(error.errno_value))
            at = page_hi
        return b"".join(parts)

    def dirty_hi(self) -> int:
        """Return the position after the last byte that is not zero; the first one without any."""
        hi = self.end_position
        while hi > self.position:
            file = self.file_at(hi - 1)
            lo = max(file.position, hi - SCAN_SIZE_BYTES)
            if lo - file.position < file.size_bytes:
                kept = self.read(lo, hi - lo).rstrip(b"\0")
                if kept:
                    return lo + len(kept)
            hi = lo
        return self.position

    def first_dirty(self, lo: int, hi: int) -> int | None:
        """Return the first position of [lo, hi) that is not zero."""
        while lo < hi:
            data = self.read(lo, min(hi - lo, SCAN_SIZE_BYTES))
            rest = data.lstrip(b"\0")
            if rest:
                return lo + len(data) - len(rest)
            lo += len(data)
        return None


def read_small(fs: FileSystem, path: str, size_bytes_max: int = 1 << 30) -> tuple[bytes, int]:
    """Return (bytes of a small file up to a size, its size); unreadable bytes are left out."""
    fd = fs.open(path, read_only=True)
    try:
        size_bytes = fs.size_bytes(fd)
        try:
            return fs.read_at(fd, path, 0, min(size_bytes, size_bytes_max)), size_bytes
        except FileSystemError:
            return b"", size_bytes
    finally:
        fs.close(fd)


def small_reader(fs: FileSystem, root: str) -> ReadSmall:
    """Return the way to read small files by their names below a root."""

    def read(name: str) -> bytes | None:
        path = os.path.join(root, name)
        return read_small(fs, path)[0] if os.path.isfile(path) else None

    return read


def odd_file(path: str, part: Part) -> Finding:
    """Return the finding for a file that does not belong where it is."""
    if is_unfinished(path):
        return Finding(path, 0, "file", "none", "left over", Severity.LEFT_OVER, part)
    return Finding(path, 0, "file", "none of this name", "one", Severity.UNKNOWN, part)
