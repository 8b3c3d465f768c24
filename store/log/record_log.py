"""The interface of a log for the rest of the store, in either container.

Owns the port between the two containers (`commit_log`, `ledger`) and everything built on them; must
not know either. All positions are bytes of the data files' space.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from store.log.sequence_lock import SequenceLock
from store.record.units import BatchUnits


class AppendResult(NamedTuple):
    """Where one atomic batch landed. No byte is durable yet: wait for `end_position`.

    `record_positions` and `queue_offsets` have one element a record, in batch order; prepared and
    rolled-back records have queue offset 0 and do not count in their queue. `entry_index` is
    the ledger entry's, -1 in a plain commit log.
    """

    position: int
    end_position: int
    entry_index: int
    record_positions: list[int]
    queue_offsets: list[int]
    store_unix_ms: int


class EntryRun(NamedTuple):
    """The records from number `first_record` on, counted from 0, are of this entry."""

    first_record: int
    entry_index: int
    term: int


class StampedEntry(NamedTuple):
    """One entry that holds records. `units` is None where only a walk can tell them."""

    entry_index: int
    position: int
    end_position: int
    data: bytes
    """The whole entry, header included."""
    units: BatchUnits | None


class RecordLog(Protocol):
    """A log of message records as derived files read it, on any thread beside its one writer."""

    @property
    def has_full_checksums(self) -> bool:
        """Whether checksums cover every byte of a record, and not its body alone."""
        ...

    @property
    def changes(self) -> SequenceLock:
        """Tells a reader on another thread whether records that it may have read were cut off, or
        the log was replaced."""
        ...

    @property
    def are_runs_checked(self) -> bool:
        """Whether `fresh_runs` compares each record with its checksums."""
        ...

    @property
    def min_position(self) -> int:
        """First byte that is still kept."""
        ...

    @property
    def max_position(self) -> int:
        """End of the bytes that can be read."""
        ...

    def read(self, position: int, size_bytes: int) -> bytes:
        """Copy the bytes of a record. Raises PositionRangeError, ClosedError, FileSystemError."""
        ...

    def check(self, position: int, data: bytes, *, again: bool = False) -> None:
        """Make sure that `data`, read at `position`, is what was written there.

        `data` is whole records back to back. Compares checksums once per open, see
        `store.log.checked`, or `again`: a disk may damage what was checked before. Raises
        CorruptionError.
        """
        ...

    def record_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position of the first byte, whole records back to back) from `lo` up to `hi`.

        In log order; blanks and entry headers are left out. `lo` is where a record (or an entry)
        starts, or the end of one; every yielded record ends at or before `hi`.
        """
        ...

    def fresh_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield the runs of `record_runs`, for the one thread that dispatches.

        The newest records may come out of memory, which then forgets them.
        """
        ...

    def stamped(self, lo: int, hi: int) -> Sequence[StampedEntry] | None:
        """Return all that makes up the log from `lo` to `hi`, if it was stamped here just now.

        For the one thread that dispatches. None: walk over `fresh_runs`.
        """
        ...

    def checked_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield the runs of `record_runs`, each compared with its checksums.

        `hi` may be anywhere: the record that it cuts off is left out. Raises CorruptionError.
        """
        ...
