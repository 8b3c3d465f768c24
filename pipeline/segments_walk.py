"""Reads the whole entries or records of a byte range of a log, and checks all of them.

Owns the walk: an entry or record that begins in [lo, hi) is read whole, also if it ends behind
`hi`, and none that begins elsewhere, so adjacent ranges cover everything once. The checks are those
of recovery and fsck: header, chain and body CRC of an entry, body CRC and own position of a record.
Must not know the reader. Damage ends the walk with an error that names file and byte.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pipeline.segments_bounds import SegmentBoundary
from pipeline.segments_log import LogReader
from store import format as fmt
from store.config import MIB
from store.errors import CorruptionError
from store.fsck.checks.container import READ_SIZE_BYTES
from store.ledger.entry import ChainLink, EntryProblem, chain_of, check_run, unpack_header
from store.record.check import check_records

CHUNK_SIZE_BYTES: Final = 4 * MIB
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_BLANK: Final = b"\xff\xff\xff\xff"


class Chunk(NamedTuple):
    """Whole good entries, or records of a plain log, that lie back to back in `data[:end]`.

    `units` are the units of a ledger's index, one an entry; empty for a plain log. `link` is the
    last entry.
    """

    position: int
    data: bytes
    end: int
    units: bytes
    link: ChainLink | None


class WalkEnd(NamedTuple):
    """The end of a walk: at its `hi` or behind it, or at a blank of `blank_size_bytes`."""

    position: int
    blank_size_bytes: int


class Walk:
    """One pass over one range. `chunks` does it; `stop` is known after it."""

    def __init__(self, reader: LogReader, begin: SegmentBoundary, hi: int) -> None:
        self._reader, self._log = reader, reader.log
        self._hi = hi
        self._position, self._link = begin
        self.stop = WalkEnd(begin.position, 0)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the content of the range, some MiB at a time. Raises CorruptionError for damage."""
        log, hi = self._log, self._hi
        file_end = log.file_end(hi - 1)
        limit = min(file_end, log.end_position) if log.is_end_exact else file_end
        while self._position < hi:
            position = self._position
            data = self._reader.data(position, min(hi - position, CHUNK_SIZE_BYTES))
            chunk = self._check(data, position, file_end)
            if chunk is None:  # An entry that is larger than the data, or a blank.
                data = self._reader.data(position, min(limit - position, READ_SIZE_BYTES))
                chunk = self._check(data, position, file_end, count_max=1)
            if chunk is None:
                blank_size_bytes = self._blank(position, file_end)
                self.stop = WalkEnd(position, blank_size_bytes)
                return
            self._position, self._link = position + chunk.end, chunk.link
            yield chunk
        self.stop = WalkEnd(self._position, 0)

    def _check(self, data: bytes, position: int, file_end: int, count_max: int = 0) -> Chunk | None:
        """Return the good part; None if nothing whole begins here. Raises CorruptionError."""
        if not self._log.is_ledger:
            return self._check_plain(data, position, file_end, count_max)
        if self._link is None:
            return self._check_unlinked(data, position, file_end)
        run = check_run(data, position, self._link, file_end_position=file_end)
        if run.problem is not None and run.end == 0:
            raise self._damaged(position, run.problem)
        if run.end == 0:
            return None
        if count_max == 1 and run.entry_count > 1:
            return self._first_of(run.units, data, position)
        return Chunk(position, data, run.end, run.units, run.link)

    def _first_of(self, units: bytes, data: bytes, position: int) -> Chunk:
        unit = units[: fmt.INDEX_UNIT_SIZE_BYTES]
        size_bytes = fmt.INDEX_UNIT.unpack(unit)[2]
        header = unpack_header(data)
        link = ChainLink(header.entry_index, header.term, header.chain_crc)
        return Chunk(position, data, size_bytes, unit, link)

    def _check_unlinked(self, data: bytes, position: int, file_end: int) -> Chunk | None:
        """Check one entry without the entry before it: its chain is trusted."""
        if len(data) < _HEADER or data[:4] == _BLANK:
            return None
        header = unpack_header(data)
        if header.size_bytes > len(data):
            return None
        # A chain before it that leads to the stored one proves nothing, and changes nothing: all
        # else is checked as if it were known.
        before = ChainLink(header.entry_index - 1, header.term, 0)
        run = check_run(
            _with_chain(data[: max(_HEADER, header.size_bytes)], before),
            position,
            before,
            file_end_position=file_end,
        )
        if run.problem is not None:
            raise self._damaged(position, run.problem)
        link = ChainLink(header.entry_index, header.term, header.chain_crc)
        return Chunk(position, data, run.end, run.units, link) if run.end else None

    def _check_plain(
        self, data: bytes, position: int, file_end: int, count_max: int
    ) -> Chunk | None:
        if count_max == 1 and len(data) >= 4:
            size_bytes = fmt.INT32.unpack_from(data)[0]
            if fmt.RECORD_SIZE_BYTES_MIN <= size_bytes < len(data):
                data = data[:size_bytes]
        checked = check_records(data, position, require_property_crc=self._log.require_property_crc)
        if checked.end and position + checked.end <= file_end - fmt.BLANK_SIZE_BYTES_MIN:
            return Chunk(position, data, checked.end, b"", None)
        if checked.problem is not None:
            found = checked.problem
            problem = EntryProblem(found.at, found.field, found.expected, found.actual)
            raise self._damaged(position, problem)
        return None

    def _blank(self, position: int, file_end: int) -> int:
        """Return the size of the blank that must be here. Raises CorruptionError without one."""
        room = file_end - position
        data = self._reader.data(position, min(room, fmt.BLANK_SIZE_BYTES_MIN))
        if len(data) == fmt.BLANK_SIZE_BYTES_MIN:
            if self._log.is_ledger:
                magic, size_bytes = fmt.ENTRY_BLANK.unpack(data)
                is_blank = magic == fmt.ENTRY_MAGIC_BLANK
            else:
                size_bytes, found = fmt.BLANK.unpack(data)
                is_blank = found == fmt.MAGIC_BLANK
            if is_blank and size_bytes == room:
                return room
        what = "entry" if self._log.is_ledger else "record"
        expected = f"a whole {what}, or a blank of {room} bytes"
        raise self._damaged(position, EntryProblem(0, what, expected, f"{data.hex()} (hex)"))

    def _damaged(self, position: int, problem: EntryProblem) -> CorruptionError:
        return self._log.damaged(
            position + problem.at, problem.field, problem.expected, problem.actual
        )


def _with_chain(entry: bytes, before: ChainLink) -> bytes:
    """Return an entry whose chain follows a link, so that only the rest of it is checked."""
    chain = chain_of(before.chain_crc, entry[:_HEADER]).to_bytes(4, "big")
    at = fmt.ENTRY_CHAIN_CRC_AT
    return entry[:at] + chain + entry[at + 4 :]
