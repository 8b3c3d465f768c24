"""Reads the sealed part of a log again, piece by piece, and compares it with its own checksums.

Owns what a piece is and where the next one begins. Must not know when one is due, nor what follows
damage: `node.replication.scrub` does. Only files that are complete, durable and visible are read,
since they are not written any more; files that are deleted, cut or replaced meanwhile are left out.
Bytes come from the disk: the page cache of a piece is dropped before the read, and once more behind
the check, so that a scrub leaves memory to other work. Sources: fault-matrix D5, S14.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB
from store.errors import (
    ClosedError,
    CorruptionError,
    FileSystemError,
    PositionRangeError,
)
from store.files.mapped_file import MappedFile
from store.ledger.entry import ChainLink
from store.ledger.ledger import Ledger
from store.ledger.mending.mend import begin_of, mend_index, start_of, walk_of
from store.ledger.reader import corruption
from store.ledger.walk import EntryBoundary
from store.log.shipped_log import ShippedLog
from store.record.check import check_records

PIECE_SIZE_BYTES: Final = 2 * MIB
"""Size of a piece, about; an entry or record that is larger is a piece of its own."""
_READ_SIZE_BYTES_MAX: Final = 2 * fmt.ENTRY_SIZE_BYTES_MAX
"""Bytes that the check of one piece may read."""


class Piece(NamedTuple):
    """Result of one step.

    `size_bytes` were read; 0 when nothing was there to read, or it went away. `last` is the last
    entry of a ledger's file that was read to its end. `ends_pass`: all sealed bytes behind
    the start of the pass were read, and the next step begins at the start of the log.
    """

    size_bytes: int = 0
    damage: CorruptionError | None = None
    last: ChainLink | None = None
    is_index_mended: bool = False
    ends_pass: bool = False


class Scrubber(ABC):
    """A position in a log, and the step from there. For one thread; readers and writers go on."""

    _log: Ledger | ShippedLog

    def __init__(self, visible_position: Callable[[], int]) -> None:
        self._visible_position = visible_position
        self.position = 0
        """Position at which the last step began."""
        self._number = 0
        """The number of the log's changes at which the pass began. The place of the next step says
        nothing about a log that was cut or replaced since."""

    def sealed(self) -> list[MappedFile]:
        """Return the files that are read, oldest first."""
        hi, files = self._visible_position(), self._log.files.files
        return [file for file in files if file.flushed_position == file.end_position <= hi]

    @property
    def sealed_size_bytes(self) -> int:
        """Bytes that a whole pass reads."""
        return sum(file.size_bytes for file in self.sealed())

    def begin_at(self, share: float) -> None:
        """Go behind this share (0 to 1) of the sealed part of the log; in a plain log to the start
        of the file there."""
        assert 0 <= share < 1, f"share {share}"
        self._number = self._log.changes.number
        files = self.sealed()
        try:
            if files:
                at = int(share * sum(file.size_bytes for file in files))
                self._go_to(max(files[0].position + at, self._log.min_position))
        except (PositionRangeError, ClosedError):  # Expired meanwhile.
            self._begin_anew()

    def step(self) -> Piece:
        """Read and check the next piece.

        Raises FileSystemError or StoreFullError when the index could not be mended: the pass goes
        on all the same; SyncFailedError: stop.
        """
        log, number = self._log, self._number
        try:
            piece = self._step() if log.changes.is_unchanged(number) else None
        except (PositionRangeError, ClosedError):
            piece = None
        is_same = log.changes.is_unchanged(number)
        if piece is None or not is_same or self.position < log.min_position:
            self._begin_anew()  # Expired, or cut or replaced meanwhile.
            return Piece()
        if piece.ends_pass:
            self._begin_anew()
        if piece.damage is not None:
            self._distrust(piece)
        return piece

    def _begin_anew(self) -> None:
        self._number = self._log.changes.number
        self._go_to_start()

    def _distrust(self, piece: Piece) -> None:
        """Make reads of damaged bytes fail from now on, until they are repaired: all bytes before
        the next good entry, or the rest of the log without one."""
        hi = self._log.max_position if piece.ends_pass else self.position + piece.size_bytes
        if hi > self.position:  # Else it was replaced meanwhile.
            self._log.checked.distrust(self.position, hi)

    @abstractmethod
    def _go_to(self, position: int) -> None:
        """Let the next step begin at an entry or record about there."""

    @abstractmethod
    def _go_to_start(self) -> None:
        """Let the next step begin at the start of the log."""

    @abstractmethod
    def _step(self) -> Piece:
        """Read and check the next piece, and go behind it."""

    def _file_at(self, position: int) -> MappedFile | None:
        """Return the sealed file that holds a position; None behind all of them."""
        return next((f for f in self.sealed() if f.position <= position < f.end_position), None)


def _forget(file: MappedFile, position: int) -> None:
    file.forget_cached(position, min(_READ_SIZE_BYTES_MAX, file.end_position - position))


class LedgerScrubber(Scrubber):
    """The scrubber of a ledger: entries by chain and body CRC, blanks, and the index beside them.

    A wrong unit of the index is rewritten from the entry. Behind damage the pass continues
    with the next entry that proves itself.
    """

    def __init__(self, ledger: Ledger, visible_position: Callable[[], int]) -> None:
        super().__init__(visible_position)
        self._log = self._ledger = ledger
        self._begin_anew()

    def _go_to(self, position: int) -> None:
        ledger = self._ledger
        try:
            index = ledger.index_at_position(position)
            link = ChainLink(index - 1, ledger.term_at(index - 1), ledger.chain_crc_at(index - 1))
            self._next = EntryBoundary(ledger.position_of(index), link)
        except (CorruptionError, FileSystemError):  # To be found from the start of its file.
            self._next = begin_of(ledger, ledger.files.file_at(position))

    def _go_to_start(self) -> None:
        self._next = start_of(self._ledger)

    def _step(self) -> Piece:
        ledger, point = self._ledger, self._next
        self.position = point.position
        file = self._file_at(point.position)
        if file is None:
            return Piece(ends_pass=True)
        _forget(file, point.position)
        walk = walk_of(ledger)
        run = walk.next_run(point)
        _forget(file, point.position)
        if run.end:
            self._next = EntryBoundary(point.position + run.end, run.link)
            is_mended = mend_index(ledger, point.link.entry_index + 1, run.units)
            return Piece(run.end, is_index_mended=is_mended)
        if run.problem is None:  # The blank at the end of the file.
            self._next = EntryBoundary(file.end_position, run.link)
            return Piece(file.end_position - point.position, last=run.link)
        damage = corruption(file, point.position, run.problem)
        damaged = next(walk.ranges(point, point.position + 1), None)
        if damaged is None:  # A second look finds it good: it was repaired, or the read was wrong.
            return Piece()  # The next step begins here again.
        after = damaged.after
        if after is None:
            return Piece(damage=damage, ends_pass=True)
        end = after.position + after.size_bytes
        self._next = EntryBoundary(end, ChainLink(after.entry_index, after.term, after.chain_crc))
        return Piece(end - point.position, damage)


class CommitLogScrubber(Scrubber):
    """The scrubber of a plain log: positions, and records as far as their checksums reach.

    See docs/decisions/0004. Behind damage the pass continues with the next file: the place of
    the next record is unknown.
    """

    def __init__(self, log: ShippedLog, visible_position: Callable[[], int]) -> None:
        super().__init__(visible_position)
        self._log = log
        self._begin_anew()

    def _go_to(self, position: int) -> None:
        file = self._log.files.file_at(position)
        self._next = max(file.position, self._log.min_position)

    def _go_to_start(self) -> None:
        self._next = self._log.min_position

    def _step(self) -> Piece:
        position = self.position = self._next
        file = self._file_at(position)
        if file is None:
            return Piece(ends_pass=True)
        _forget(file, position)
        room = end = file.end_position - position
        try:
            end, damage = self._check(file, position, room)
        except FileSystemError as error:
            damage = CorruptionError(
                file.path, position - file.position, "read", "readable bytes", str(error)
            )
        self._next = position + end
        _forget(file, position)
        return Piece(end, damage)

    @staticmethod
    def _check(file: MappedFile, position: int, room: int) -> tuple[int, CorruptionError | None]:
        """Return how many bytes are done, blanks included, and the damage in them."""
        for size_bytes in (PIECE_SIZE_BYTES, _READ_SIZE_BYTES_MAX):
            data = file.read_any(position, min(room, size_bytes))
            checked = check_records(data, position)
            if checked.blank_size_bytes:
                return room, None
            if checked.end:  # A problem behind good records is found by the next step.
                return checked.end, None
            if checked.problem is not None or len(data) == room:
                break
        at, problem = position - file.position, checked.problem
        if problem is None:
            return room, CorruptionError(file.path, at, "record", "a whole one", "a part of one")
        damage = CorruptionError(file.path, at, problem.field, problem.expected, problem.actual)
        return room, damage
