"""The reading half of the ledger: entries by index, bytes by range, records by position.

Owns the look-ups and the part of the log that readers may see; must not write. A unit of the index
counts only after the entry's own header confirmed it; otherwise the entry is found by walking its
file. A reader on another thread first takes `tail`, which the writer replaces after the bytes are
in place, so it never sees half an entry. Sources: storage-formats 7.1, 7.2, 7.9.
"""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.errors import CorruptionError, PositionRangeError
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile, View
from store.files.mapped_file_queue import FileSource, MappedFileQueue
from store.ledger.entry import (
    ChainLink,
    Entry,
    EntryProblem,
    Header,
    chain_of,
    check_run,
    unpack_header,
)
from store.ledger.index import LedgerIndex
from store.ledger.start import LOG_FROM_ZERO
from store.ledger.term_runs import TermRuns
from store.log.record_log import EntryRun

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_NEAR: Final = 8  # Entries that are tried one by one before a search.


class LedgerTail(NamedTuple):
    """The last entry (`link`) and the byte after it."""

    link: ChainLink
    end_position: int


class Range(NamedTuple):
    """Whole entries [lo_index, hi_index) that lie back to back in one file."""

    lo_index: int
    hi_index: int
    position: int
    size_bytes: int


def ledger_directory(root: str, config: StoreConfig) -> str:
    """Return where a ledger keeps `data/` and `index/` below the root of its store."""
    return os.path.join(root, f"dledger-{config.self_id}")


def data_directory(root: str, config: StoreConfig) -> str:
    """Return the directory of the data files, for which a file source must be made."""
    return os.path.join(ledger_directory(root, config), "data")


def corruption(file: MappedFile, position: int, problem: EntryProblem) -> CorruptionError:
    """Return the error for a problem that was found in bytes read from `position` on."""
    at = position - file.position + problem.at
    return CorruptionError(file.path, at, problem.field, problem.expected, problem.actual)


class LedgerReader:
    """Reads of a ledger, from any thread. Indexes begin at 0; -1 is none."""

    def __init__(
        self, fs: FileSystem, root: str, config: StoreConfig, source: FileSource | None = None
    ) -> None:
        self._fs = fs
        self.directory: Final = ledger_directory(root, config)
        self.files: Final = MappedFileQueue(
            fs, data_directory(root, config), config.file_size_bytes, source
        )
        self.index: Final = LedgerIndex(
            fs, os.path.join(self.directory, "index"), config.ledger_index_units_per_file
        )
        self.start = LOG_FROM_ZERO
        """Start of the log. Replaced by retention and reset, before files go."""
        self._runs = TermRuns.starting_after(-1, 0)
        self.tail = LedgerTail(LOG_FROM_ZERO.link, 0)
        """End of the log. Replaced by the writer after each append, before each cut. Invariant:
        all bytes before its end position are whole and in the files; it is never inside a blank."""

    # --- Bounds ---

    @property
    def first_index(self) -> int:
        """Index of the oldest entry that is kept; last_index + 1 when there is none."""
        return self.start.link.entry_index + 1

    @property
    def last_index(self) -> int:
        """Index of the newest entry; first_index - 1 when there is none."""
        return self.tail.link.entry_index

    @property
    def last_term(self) -> int:
        """Term of the newest entry, or of the one before the log; 0 for none."""
        return self.tail.link.term

    @property
    def min_position(self) -> int:
        """Position of the oldest kept entry, or of a blank before it."""
        return self.start.min_position

    @property
    def max_position(self) -> int:
        """End of the newest entry."""
        return self.tail.end_position

    # --- Terms ---

    def term_runs(self) -> list[tuple[int, int]]:
        """Return (first index, term) of each run of entries with one term, oldest first."""
        return self._runs.runs(self.tail.link.entry_index)

    def term_at(self, index: int) -> int:
        """Return an entry's term; also that of the entry before the log. PositionRangeError."""
        tail, runs = self.tail, self._runs  # In the order in which the three are replaced, back.
        if not self.first_index - 1 <= index <= tail.link.entry_index:
            self._refuse_index(index)
        return runs.term_at(index)

    # --- One entry ---

    def entry(self, index: int) -> Entry:
        """Return a whole entry, checked in every way, its chain included.

        Raises PositionRangeError, CorruptionError, FileSystemError, ClosedError.
        """
        header = self.header(index)
        link = ChainLink(index - 1, self.term_at(index - 1), self.chain_crc_at(index - 1))
        file = self.files.file_at(header.position)
        room = min(self.tail.end_position, file.end_position) - header.position
        data = file.read(header.position, max(_HEADER, min(header.size_bytes, room)))
        run = check_run(data, header.position, link, file_end_position=file.end_position)
        if run.problem is not None or run.end != len(data):
            problem = run.problem or EntryProblem(
                4, "size", f"{room} at most", str(header.size_bytes)
            )
            raise corruption(file, header.position, problem)
        return Entry(
            index, header.term, header.kind, header.position, header.chain_crc, data[_HEADER:]
        )

    def chain_crc_at(self, index: int) -> int:
        """Return an entry's chain CRC; also that of the entry before the log. Errors as `entry`."""
        tail, start = self.tail, self.start
        if index == tail.link.entry_index:
            return tail.link.chain_crc
        if index == start.link.entry_index:
            return start.link.chain_crc
        return self.header(index).chain_crc

    def position_of(self, index: int) -> int:
        """Return where an entry's header is. Errors as `entry`."""
        return self.header(index).position

    def end_of(self, index: int) -> int:
        """Return the byte after an entry, or after the one before the log. Errors as `entry`."""
        tail = self.tail
        if index == tail.link.entry_index:
            return tail.end_position
        if index == self.first_index - 1:
            return self.start.end_position
        header = self.header(index)
        return header.position + header.size_bytes

    def tail_at(self, index: int) -> LedgerTail:
        """Return the tail as it would be behind an entry, or behind the one before the log.

        Proven by the chain, for answers that are kept: a bit that flipped in a header would outlive
        its repair there. Errors as `entry`.
        """
        tail, start = self.tail, self.start
        if index == tail.link.entry_index:
            return tail
        if index == start.link.entry_index:
            return LedgerTail(start.link, start.end_position)
        header = self.header(index)
        self._prove(header)
        link = ChainLink(index, self.term_at(index), header.chain_crc)
        return LedgerTail(link, header.position + header.size_bytes)

    def _prove(self, header: Header) -> None:
        """Raise CorruptionError unless a header, as it is stored, continues the chain."""
        data = self.files.read(header.position, _HEADER)
        chain_crc = chain_of(self.chain_crc_at(header.entry_index - 1), data)
        if chain_crc != header.chain_crc:
            expected, actual = f"{chain_crc:08X}", f"{header.chain_crc:08X}"
            problem = EntryProblem(fmt.ENTRY_CHAIN_CRC_AT, "chain CRC", expected, actual)
            raise corruption(self.files.file_at(header.position), header.position, problem)

    def header(self, index: int) -> Header:
        """Return an entry's header; its magic, index and position are right. Errors as `entry`."""
        if not self.first_index <= index <= self.last_index:
            self._refuse_index(index)
        unit = self.index.get(index)
        if unit is not None:
            header = self.header_at(unit.position)
            if header is not None and header.entry_index == index:
                return header
        return self._find_header(index)

    def header_at(self, position: int) -> Header | None:
        """Return the header at a position if one can be there, else None."""
        try:
            header = unpack_header(self.files.read(position, _HEADER))
        except PositionRangeError:
            return None
        is_header = header.magic == fmt.ENTRY_MAGIC and header.position == position
        return header if is_header and header.size_bytes >= _HEADER else None

    def link_before(self, file: MappedFile) -> ChainLink | None:
        """Return the entry before the first one of a file, if the two prove each other.

        The index gives its place, and the chain from it to the first entry confirms that.
        """
        first = self.header_at(file.position)
        unit = self.index.get(first.entry_index - 1) if first is not None else None
        before = self.header_at(unit.position) if unit is not None else None
        if first is None or before is None or before.entry_index != first.entry_index - 1:
            return None
        data = file.read(file.position, _HEADER)
        if chain_of(before.chain_crc, data) != first.chain_crc:
            return None
        return ChainLink(before.entry_index, before.term, before.chain_crc)

    def _refuse_index(self, index: int) -> None:
        raise PositionRangeError("index", index, self.first_index, self.last_index + 1)

    # --- Positions ---

    def index_at_position(self, position: int) -> int:
        """Return the entry whose bytes include `position`; in a blank, the entry behind it.

        Raises PositionRangeError outside of [min_position, max_position), CorruptionError.
        """
        tail, lo = self.tail, self.first_index
        if not self.min_position <= position < tail.end_position:
            raise PositionRangeError("position", position, self.min_position, tail.end_position)
        # Invariant: lo starts at or before the position, hi behind it. The first steps double from
        # the end: after each sync the caller looks up one of the newest entries.
        hi, step = tail.link.entry_index + 1, 1
        while hi - lo > 1:
            middle = max((lo + hi) // 2, hi - step)
            unit = self.index.get(middle)
            at = unit.position if unit is not None else self.header(middle).position
            lo, hi = (middle, hi) if at <= position else (lo, middle)
            step *= 2
        header = self.header(lo)
        end = header.position + header.size_bytes
        if header.position <= position < end:
            return lo
        if position < header.position and lo == self.first_index:
            return lo
        if end <= position and lo < tail.link.entry_index:
            following = self.header(lo + 1)
            if position < following.position:
                return lo + 1
        return self._find_index(position)  # The index is wrong.

    def entry_runs(self, records: bytes) -> list[EntryRun]:
        """Return the entries of records that were read and lie back to back.

        The index leads, headers confirm: an entry's header holds its own position. Raises
        PositionRangeError for records that expired meanwhile, CorruptionError.
        """
        runs: list[EntryRun] = []
        at, number, lo, hi, index = 0, 0, 0, 0, -1
        while at < len(records):
            position = fmt.TIMESTAMP.unpack_from(records, at + fmt.PHYSICAL_OFFSET_AT)[0]
            if not lo <= position < hi:
                index = self._index_near(position, index, hi)
                header = self.header(index)
                lo, hi = header.position, header.position + header.size_bytes
                runs.append(EntryRun(number, index, header.term))
            at += fmt.INT32.unpack_from(records, at)[0]
            number += 1
        return runs

    def _index_near(self, position: int, before: int, before_end: int) -> int:
        """Return the entry at a position. Records of one queue lie near each other, so it is mostly
        a few entries behind the last one, `before` (-1: none)."""
        if before >= 0 and position >= before_end:
            for index in range(before + 1, min(before + 1 + _NEAR, self.last_index + 1)):
                unit = self.index.get(index)
                if unit is not None and unit.position <= position < unit.position + unit.size_bytes:
                    return index
        return self.index_at_position(position)

    def last_index_before(self, position: int) -> int:
        """Return the last entry that ends at or before `position`; first_index - 1 for none."""
        if position >= self.tail.end_position:
            return self.tail.link.entry_index
        if position <= self.min_position:
            return self.first_index - 1
        return self.index_at_position(position) - 1

    def _find_header(self, index: int) -> Header:
        """Find an entry that the index does not show: slow, by headers."""
        for file in reversed(self.files.files):
            position = max(file.position, self.min_position)
            header = self.header_at(position)
            if header is not None and header.entry_index <= index:
                for header in self._headers(file, position):
                    if header.entry_index == index:
                        return header
                break
        raise CorruptionError(
            self.files.directory, self.min_position, "entry", f"index {index}", "not to be found"
        )

    def _find_index(self, position: int) -> int:
        """Find the entry at a position or the next one behind it: slow, by headers."""
        file = self.files.file_at(position)
        index = self.first_index  # If only a blank is there, before the first entry.
        for header in self._headers(file, max(file.position, self.min_position)):
            if position < header.position + header.size_bytes:
                return header.entry_index
            index = header.entry_index + 1  # If the position is in the blank behind the last one.
        return index

    def _headers(self, file: MappedFile, position: int) -> Iterator[Header]:
        """Yield the headers of one file from an entry's position on; sizes lead the way."""
        hi = min(file.end_position, self.tail.end_position)
        while position < hi:
            header = self.header_at(position)
            if header is None:
                magic = file.read(position, 4)
                if magic != fmt.ENTRY_BLANK.pack(fmt.ENTRY_MAGIC_BLANK, 0)[:4]:
                    problem = EntryProblem(0, "header", "of an entry or a blank", magic.hex())
                    raise corruption(file, position, problem)
                return
            yield header
            position += header.size_bytes

    # --- Ranges ---

    def range_of(self, lo_index: int, hi_index: int, max_size_bytes: int) -> Range:
        """Choose entries from `lo_index` on, before `hi_index`, for shipping in one piece.

        The entries lie in one file and have at most `max_size_bytes`; one is always chosen.
        Errors as `entry`.
        """
        tail = self.tail
        hi_index = min(hi_index, tail.link.entry_index + 1)
        if not lo_index < hi_index:
            self._refuse_index(lo_index)
        first = self.header(lo_index)
        file_end = self.files.file_at(first.position).end_position
        end_max = min(first.position + max(max_size_bytes, first.size_bytes), file_end)
        # Invariant: the entries before lo fit; those before hi do not, or are not asked for.
        lo, hi = lo_index + 1, hi_index + 1
        if tail.end_position <= end_max:
            lo = hi_index
        while hi - lo > 1:
            middle = (lo + hi) // 2
            unit = self.index.get(middle - 1)
            end = unit.position + unit.size_bytes if unit is not None else end_max + 1
            lo, hi = (middle, hi) if first.position < end <= end_max else (lo, middle)
        last = self.header(lo - 1)
        size_bytes = last.position + last.size_bytes - first.position
        if not 0 < size_bytes <= end_max - first.position:  # The index is wrong.
            lo, size_bytes = lo_index + 1, first.size_bytes
        return Range(lo_index, lo, first.position, size_bytes)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Copy the bytes of a record; errors as MappedFile.read."""
        self._check_end(position + size_bytes)
        return self.files.read(position, size_bytes)

    def view(self, position: int, size_bytes: int) -> View:
        """Return a zero-copy window on the bytes of a record; errors as MappedFile.view."""
        self._check_end(position + size_bytes)
        return self.files.view(position, size_bytes)

    def _check_end(self, end_position: int) -> None:
        tail = self.tail
        if end_position > tail.end_position:
            raise PositionRangeError("position", end_position, self.min_position, tail.end_position)
