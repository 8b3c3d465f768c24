"""Finds the damaged parts of a ledger: which entries are lost, where they lay, and between which.

Owns the walk over bytes that may be anything, and the bounds of what has to be fetched again; must
not know where the bytes come from, and changes nothing. `store.replicated.repair` puts entries
back.

How the bounds are found. Entries are proven from the start of the log on, each by its chain and its
body CRC. At damage the header may still be proven by its chain: then the size is known, and the
walk continues behind the body. Else the next entry that can be verified alone is searched (its
own position is in its header, its body has a CRC, and the entry behind continues its chain), and
everything up to there counts as damaged. The index files are not read: they may be damaged too, and
the search finds what they would tell. An entry found so is proven to belong to this history only
when the entries in between are there again: the last of them must lead to it.
Sources: design 4.5; fault-matrix S05, S07.
"""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.errors import FileSystemError, LayoutError
from store.files.checksum import crc32c
from store.files.file_system import FileSystem
from store.ledger.entry import (
    ChainLink,
    Header,
    chain_of,
    is_header_at,
    unpack_header,
)
from store.ledger.walk import READ_SIZE_BYTES, EntryBoundary, LedgerWalk, Read

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_MAGIC: Final = fmt.ENTRY_MAGIC.to_bytes(4, "big")
_BLANK_MAGIC: Final = b"\xff\xff\xff\xff"
_POSITION_AT: Final = 24
_SECTOR_SIZE_BYTES: Final = fmt.PAGE_SIZE_BYTES  # Bytes that one bad sector is taken to hide.


class DamagedRange(NamedTuple):
    """The entries [lo_index, hi_index) that lay in the bytes [position, end_position).

    `before` is the last good entry before them, at `before_position`, or the one before the log
    (-1). `after` is the header of the first good entry behind them, which lies at `end_position`.
    Without one (None) everything up to the end of what was known to be good is lost; `hi_index` is
    then a lower bound, and the entries fetched must reach `end_position`, too. With `lo_index`
    equal to `hi_index` only the blank at the end of a file is damaged, and nothing has to be
    fetched. `reason` says what was found at `position`, for operators.
    """

    lo_index: int
    hi_index: int
    position: int
    end_position: int
    before: ChainLink
    before_position: int
    after: Header | None
    reason: str


class Goal(NamedTuple):
    """The end up to which the log must be whole: a position, and the last entry there."""

    position: int
    entry_index: int


class DataImage:
    """The data files of a closed ledger as bytes, whatever is left of them. Read-only."""

    def __init__(self, fs: FileSystem, directory: str, file_size_bytes: int) -> None:
        """Check the files. Raises LayoutError for those that cannot be of this configuration."""
        self._fs, self.directory, self.file_size_bytes = fs, directory, file_size_bytes
        self._open: tuple[str, int] | None = None  # Path and descriptor of the last file read.
        for name in fs.list_directory(directory):
            if len(name) != fmt.FILE_NAME_DIGITS or not name.isdecimal():
                continue
            path = os.path.join(directory, name)
            size_bytes = os.path.getsize(path)
            if int(name) % file_size_bytes or size_bytes > file_size_bytes:
                expected = f"a file of {file_size_bytes} bytes, named by a multiple of that"
                raise LayoutError(path, expected, f"{size_bytes} bytes")

    def path(self, position: int) -> str:
        """Return the file that holds a position, whether it exists or not."""
        at = position // self.file_size_bytes * self.file_size_bytes
        return os.path.join(self.directory, fmt.file_name(at))

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read bytes, as a `Read`: a missing file, a missing end and a bad sector are zeros."""
        path, at = self.path(position), position % self.file_size_bytes
        fd = self._descriptor(path)
        if fd is None:
            return bytes(size_bytes)
        there = max(0, min(size_bytes, self._fs.size_bytes(fd) - at))
        fs, opened = self._fs, fd
        piece = read_around(lambda lo, size: fs.read_at(opened, path, lo, size), at, there)
        return piece.ljust(size_bytes, b"\0")

    def _descriptor(self, path: str) -> int | None:
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self.close()
        if not os.path.exists(path):
            return None
        fd = self._fs.open(path, read_only=True)
        self._open = path, fd
        return fd

    def close(self) -> None:
        """Release the file that is open. May be called again, also after further reads."""
        opened, self._open = self._open, None
        if opened is not None:
            self._fs.close(opened[1])


def read_around(read: Read, at: int, size_bytes: int) -> bytes:
    """Read bytes; those of sectors that cannot be read are zeros."""
    try:
        return read(at, size_bytes)
    except FileSystemError:
        parts, hi = [], at + size_bytes
        while at < hi:
            sector_hi = min(hi, (at // _SECTOR_SIZE_BYTES + 1) * _SECTOR_SIZE_BYTES)
            try:
                parts.append(read(at, sector_hi - at))
            except FileSystemError:
                parts.append(bytes(sector_hi - at))
            at = sector_hi
        return b"".join(parts)


class DamageWalk(LedgerWalk):
    """Walks a log from a point before which everything is good, and goes on behind damage."""

    def __init__(self, read: Read, file_size_bytes: int, goal: Goal) -> None:
        super().__init__(read, file_size_bytes)
        self.goal = goal

    def ranges(
        self, point: EntryBoundary, stop_position: int | None = None
    ) -> Iterator[DamagedRange]:
        """Yield the damaged ranges from `point` up to the goal, in order, none next to another.

        With `stop_position` only those that begin before it.
        """
        goal, before_position = self.goal, -1
        opened: DamagedRange | None = None  # Damage whose end is not found yet.
        stop_position = goal.position if stop_position is None else stop_position
        while point.position < (goal.position if opened else stop_position):
            run = self.next_run(point)
            if run.end:
                if opened is not None:
                    after = unpack_header(self._read(point.position, _HEADER))
                    yield opened._replace(
                        hi_index=after.entry_index, end_position=point.position, after=after
                    )
                    opened = None
                before_position = fmt.INDEX_UNIT.unpack(run.units[-fmt.INDEX_UNIT_SIZE_BYTES :])[1]
            if run.problem is None:
                point = self.behind(point, run)
            else:
                if opened is None:
                    (position, link), problem = point, run.problem
                    lo, wrong = link.entry_index + 1, f"{problem.field} is {problem.actual}"
                    reason = f"{wrong}, expected {problem.expected}"
                    opened = DamagedRange(
                        lo, lo, position, position, link, before_position, None, reason
                    )
                following = self._behind_damage(point)
                if following is None:
                    break
                point, is_proved = following
                if is_proved is not None:
                    yield opened._replace(
                        hi_index=is_proved.entry_index,
                        end_position=is_proved.position,
                        after=is_proved,
                    )
                    opened, before_position = None, is_proved.position
        if opened is not None:
            hi_index = max(goal.entry_index, point.link.entry_index, opened.before.entry_index) + 1
            yield opened._replace(hi_index=hi_index, end_position=goal.position)

    def wider(self, damaged: DamagedRange, lo_index: int) -> DamagedRange:
        """Return the range with the good entries behind it taken as damaged, up to the next damage.

        For a range whose entries, all those before `lo_index`, do not lead to the one behind.
        """
        after = damaged.after
        assert after is not None, f"nothing behind {damaged}"
        link = ChainLink(after.entry_index, after.term, after.chain_crc)
        following = next(self.ranges(EntryBoundary(after.position + after.size_bytes, link)), None)
        hi_index = max(self.goal.entry_index + 1, lo_index)
        end_position = max(self.goal.position, damaged.end_position)
        if following is not None:
            hi_index, end_position = following.hi_index, following.end_position
        behind = following.after if following is not None else None
        return damaged._replace(hi_index=hi_index, end_position=end_position, after=behind)

    # --- Behind damage ---

    def _behind_damage(self, point: EntryBoundary) -> tuple[EntryBoundary, Header | None] | None:
        """Return where to go on, with the entry before it if that was found by search; else None.

        Without a search the point is proven by the chain, and the bytes at it are not checked yet.
        """
        position, link, file_end_position = *point, self._file_end(point.position)
        if self._continues(link, file_end_position):
            return EntryBoundary(file_end_position, link), None  # Only the blank is damaged.
        if file_end_position - position >= _HEADER + fmt.BLANK_SIZE_BYTES_MIN:
            data = self._read(position, _HEADER)
            header, chain_crc = unpack_header(data), chain_of(link.chain_crc, data)
            if (
                is_header_at(header, position, self._file_end(position))
                and header.entry_index == link.entry_index + 1
                and header.term >= link.term
            ):
                end = position + header.size_bytes
                own = ChainLink(header.entry_index, header.term, chain_crc)
                # The body is damaged, or the field with the chain itself.
                if header.chain_crc == chain_crc or self._leads_on(own, end):
                    return EntryBoundary(end, own), None
        next_point = self._search(point)
        if next_point is None:
            return None
        own = ChainLink(next_point.entry_index, next_point.term, next_point.chain_crc)
        return EntryBoundary(next_point.position + next_point.size_bytes, own), next_point

    def _continues(self, link: ChainLink, position: int) -> bool:
        """Whether the header at a position is that of the entry behind `link`, by its chain."""
        if position >= self.goal.position and position % self._file_size_bytes == 0:
            return False  # The next file need not exist.
        data = self._read(position, _HEADER)
        header = unpack_header(data)
        return (
            header.entry_index == link.entry_index + 1
            and is_header_at(header, position, self._file_end(position))
            and header.term >= link.term
            and chain_of(link.chain_crc, data) == header.chain_crc
        )

    def _leads_on(self, link: ChainLink, end: int) -> bool:
        """Whether the entry that should follow `link`, which ends at `end`, continues it."""
        file_end_position = self._file_end(end)
        if file_end_position - end >= _HEADER and self._continues(link, end):
            return True
        is_blank = self._read(end, 4) == _BLANK_MAGIC
        return is_blank and self._continues(link, file_end_position)

    def _search(self, point: EntryBoundary) -> Header | None:
        """Return the next entry behind a point that can be verified alone; None without."""
        lo, hi = point.position + 1, self.goal.position + 1
        while lo < hi:
            file_end_position = self._file_end(lo)
            size_bytes = min(READ_SIZE_BYTES, file_end_position - lo)
            data = self._read(lo, size_bytes)
            at = -1 if data == bytes(size_bytes) else data.find(_MAGIC)  # Zeros take long.
            while 0 <= at <= size_bytes - _HEADER and lo + at < hi:
                position_at = at + _POSITION_AT
                if int.from_bytes(data[position_at : position_at + 8], "big") == lo + at:
                    header = unpack_header(data, at)
                    if self._is_good(header, lo + at, point):
                        return header
                at = data.find(_MAGIC, at + 1)
            is_last = lo + size_bytes == file_end_position
            lo += size_bytes if is_last else size_bytes - _HEADER + 1
        return None

    def _is_good(self, header: Header, position: int, point: EntryBoundary) -> bool:
        """Whether an entry that was found by search is whole, fits, and leads on."""
        link, index = point.link, header.entry_index
        index_max = link.entry_index + 1 + (position - point.position) // _HEADER
        if not (
            is_header_at(header, position, self._file_end(position))
            and link.entry_index + 1 < index <= index_max
            and header.term >= link.term
        ):
            return False
        body = self._read(position + _HEADER, header.body_size_bytes)
        if crc32c(body) != header.body_crc:
            return False
        end = position + header.size_bytes
        own = ChainLink(index, header.term, header.chain_crc)
        return end >= self.goal.position or self._leads_on(own, end)
