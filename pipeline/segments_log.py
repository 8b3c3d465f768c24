"""The log of a stopped node or of a backup: its files, its beginning and its end.

Owns the facts that the driver finds once and gives to every worker: a small value that pickles.
Must not know what is in the files; `segments_walk` reads them. All of it is read-only, and a
directory that a process holds is refused.

The end is that of the durable mark. A replica's log may continue behind the committed part, so
readers see it up to the dispatched position (`visible_position`), and a comparison of replicas sees
all of it. A RocketMQ store has no mark: its log ends with its last byte that is not zero.
"""

import os
from dataclasses import dataclass

from store import format as fmt
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.errors import CorruptionError, LayoutError
from store.fsck.check import Check
from store.fsck.checks.log import NOWHERE
from store.fsck.files import ReadOnlyFileSystem, Segments
from store.ledger.entry import NO_LINK, ChainLink
from store.record.inner_batches import topics_of


@dataclass(frozen=True, slots=True)
class Wrong:
    """A fault of the files: byte `at` of a file below the root."""

    path: str
    at: int
    field: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class SealedLog:
    """One log, to be read and never written. Positions are bytes of the log."""

    root: str
    is_ledger: bool
    data_directory: str
    """Path below the root, as the other directories."""
    file_size_bytes: int
    index_directory: str
    index_file_size_bytes: int
    """File size of a ledger's index; 0 for a plain log."""
    unit_lo: int
    unit_hi: int
    """The units [lo, hi) of the index have files."""
    queue_file_size_bytes: int
    require_property_crc: bool
    begin_position: int
    link: ChainLink
    """The entry before the first one."""
    end_position: int
    """End of the part that must be good."""
    is_end_exact: bool
    """Whether the last record ends at `end_position`; otherwise it begins before it."""
    visible_position: int
    """End of the part that readers may see."""
    required_position: int
    """End of the part for which the consume queues must be complete."""
    is_clean: bool
    """Whether it was closed in order: nothing may be behind the end."""
    wrong: tuple[Wrong, ...]
    """Faults of the files as such: missing, or of another size."""
    without_queues: frozenset[bytes] = frozenset()
    """Topics without queues of ours: RocketMQ wrote inner batches to them."""

    def path(self, position: int) -> str:
        """Return the path, below the root, of the data file that holds a position."""
        first = position - position % self.file_size_bytes
        return f"{self.data_directory}/{fmt.file_name(first)}"

    def place(self, position: int) -> tuple[str, int]:
        """Return (file below the root, byte in it)."""
        return self.path(position), position % self.file_size_bytes

    def file_end(self, position: int) -> int:
        """Return the end of the file that holds a position."""
        return (position // self.file_size_bytes + 1) * self.file_size_bytes

    def damaged(self, position: int, field: str, expected: str, actual: str) -> CorruptionError:
        """Return the error that names file and byte."""
        path, at = self.place(position)
        return CorruptionError(os.path.join(self.root, path), at, field, expected, actual)

    def pieces(self, piece_size_bytes: int, hi: int) -> list[tuple[int, int]]:
        """Cut the log up to `hi` into byte ranges [lo, hi), none of which spans two files."""
        found, lo = [], self.begin_position
        while lo < hi:
            until = min(hi, self.file_end(lo), lo - lo % piece_size_bytes + piece_size_bytes)
            found.append((lo, until))
            lo = until
        return found


def open_sealed(root: str) -> SealedLog:
    """Return the log of a directory, and check that it can be read.

    Raises LockedError when a process has it, LayoutError when there is no log, or its layout or its
    committed end is unknown, and FileSystemError.
    """
    check = Check(root)
    try:
        return _sealed(root, check)
    finally:
        check.place.descriptors.close()


def _sealed(root: str, check: Check) -> SealedLog:
    trust, data, index, config = check.trust, check.data, check.index, check.config
    if check.is_resetting or not check.is_start_proven:
        raise LayoutError(root, "a log whose beginning is known", "a start that is not proven")
    if trust.mark is None and trust.is_replica:
        found = "marks that cannot be read"
        raise LayoutError(root, "marks that say up to where the log is committed", found)
    is_end_exact = trust.known_good_position != NOWHERE
    end = trust.known_good_position if is_end_exact else data.dirty_hi()
    begin = check.start.min_position if index is not None else data.position
    required = min(trust.required_position, end)
    wrong = [*_missing_at_end(data, end), *(_wrong_of(data, end))]
    if index is not None:
        wrong += _wrong_of(index, NOWHERE)
    return SealedLog(
        root=root,
        is_ledger=index is not None,
        data_directory=check.layout.log_directory,
        file_size_bytes=config.file_size_bytes,
        index_directory=index.directory if index is not None else "",
        index_file_size_bytes=index.file_size_bytes if index is not None else 0,
        unit_lo=index.position // fmt.INDEX_UNIT_SIZE_BYTES if index is not None else 0,
        unit_hi=index.end_position // fmt.INDEX_UNIT_SIZE_BYTES if index is not None else 0,
        queue_file_size_bytes=config.consume_queue_units_per_file * UNIT_SIZE_BYTES,
        require_property_crc=config.property_crc,
        begin_position=begin,
        link=check.start.link if index is not None else NO_LINK,
        end_position=max(begin, end),
        is_end_exact=is_end_exact,
        visible_position=max(begin, required if trust.is_replica else end),
        required_position=required,
        is_clean=trust.is_clean,
        wrong=tuple(wrong),
        without_queues=frozenset(topics_of(check.fs, root)),
    )


def _missing_at_end(data: Segments, end: int) -> list[Wrong]:
    """Return the fault of missing files at the end, if the mark is behind the last file."""
    if end <= data.end_position:
        return []
    path, _ = data.place(data.end_position)
    return [Wrong(path, 0, "file", "present", "missing")]


def _wrong_of(segments: Segments, end: int) -> list[Wrong]:
    """Return files that are missing or short; other findings do not matter to a reader."""
    return [
        Wrong(one.path, one.at, one.field, one.expected, one.actual)
        for one in segments.findings
        if one.field in ("file", "file size")
        and one.actual != "left over"
        and os.path.basename(one.path).isdecimal()
        and int(os.path.basename(one.path)) < end
    ]


class LogReader:
    """Reads bytes of the files of one directory; keeps the last file open."""

    def __init__(self, log: SealedLog) -> None:
        self.log = log
        self._fs = ReadOnlyFileSystem()
        self._path = ""
        self._fd = -1

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the open file."""
        if self._fd >= 0:
            self._fs.close(self._fd)
        self._path, self._fd = "", -1

    def data(self, position: int, size_bytes: int) -> bytes:
        """Copy bytes of one data file. Raises FileSystemError for a missing or short file."""
        path, at = self.log.place(position)
        return self._read(path, at, size_bytes)

    def index(self, position: int, size_bytes: int) -> bytes:
        """Copy bytes of one file of a ledger's index."""
        return self.rolling(
            self.log.index_directory, self.log.index_file_size_bytes, position, size_bytes
        )

    def queue(self, topic: str, queue_id: int, position: int, size_bytes: int) -> bytes:
        """Copy bytes of one file of a consume queue."""
        directory = f"consumequeue/{topic}/{queue_id}"
        return self.rolling(directory, self.log.queue_file_size_bytes, position, size_bytes)

    def rolling(
        self, directory: str, file_size_bytes: int, position: int, size_bytes: int
    ) -> bytes:
        """Copy bytes of one file of a directory of files of one size. Raises FileSystemError."""
        at = position % file_size_bytes
        return self._read(f"{directory}/{fmt.file_name(position - at)}", at, size_bytes)

    def _read(self, path: str, at: int, size_bytes: int) -> bytes:
        full = os.path.join(self.log.root, path)
        if path != self._path:
            self.close()
            self._fd, self._path = self._fs.open(full), path
        return self._fs.read_at(self._fd, full, at, size_bytes)
