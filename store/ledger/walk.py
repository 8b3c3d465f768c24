"""Walks the entries of a ledger in order, from a point before which everything is good.

Owns the size of the reads and the way from one entry, over a blank, to the next file; must not know
where the bytes come from, nor what follows from a problem. Recovery cuts there, a read and a check
report it, and `store.ledger.mending.damage` looks for the entries behind. Sources: design 4.5.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB
from store.ledger.entry import ChainLink, EntryProblem, Run, check_blank, check_run, file_end

READ_SIZE_BYTES: Final = 2 * MIB
_BLANK_SIZE_BYTES_MAX: Final = fmt.ENTRY_SIZE_BYTES_MAX + fmt.BLANK_SIZE_BYTES_MIN

Read = Callable[[int, int], bytes]
"""(position, size in bytes) -> the bytes, all within one file; zeros where none can be had."""


class EntryBoundary(NamedTuple):
    """A point between two entries: where the next one is looked for, and the entry before."""

    position: int
    link: ChainLink


class LedgerWalk:
    """Walks a log, one run of entries after the other."""

    def __init__(self, read: Read, file_size_bytes: int) -> None:
        self._read, self._file_size_bytes = read, file_size_bytes

    def next_run(self, point: EntryBoundary, size_bytes: int = READ_SIZE_BYTES) -> Run:
        """Check the next piece: good entries, a blank up to the file's end, or a problem (end 0).

        Reads `size_bytes`, and more only for an entry that is larger. A problem behind good entries
        is found by the next call. Raises what the read raises.
        """
        position, file_end_position = point.position, self._file_end(point.position)
        room = file_end_position - position
        while True:
            data = self._read(position, min(room, size_bytes))
            run = check_run(data, position, point.link, file_end_position=file_end_position)
            if run.end:
                return run._replace(problem=None)
            if run.problem is not None:
                return run
            if run.is_blank:
                return run._replace(problem=self.check_blank(position))
            if len(data) == room:
                problem = EntryProblem(0, "entry", "a whole one", f"cut short after {room} bytes")
                return run._replace(problem=problem)
            size_bytes *= 2  # One entry is larger than a read.

    def behind(self, point: EntryBoundary, run: Run) -> EntryBoundary:
        """Return the point behind a run without a problem: its entries, or its blank."""
        end = point.position + run.end if run.end else self._file_end(point.position)
        return EntryBoundary(end, run.link)

    def check_blank(self, position: int) -> EntryProblem | None:
        """Check the blank from a position to the end of its file."""
        room = self._file_end(position) - position
        if room > _BLANK_SIZE_BYTES_MAX:  # Any entry would have fitted.
            return EntryProblem(0, "blank", f"{_BLANK_SIZE_BYTES_MAX} bytes at most", str(room))
        return check_blank(self._read(position, room))

    def _file_end(self, position: int) -> int:
        return file_end(position, self._file_size_bytes)
