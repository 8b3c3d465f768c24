"""The interface of a log for the rest of the store, in either container.

Owns the port between the two containers (`commit_log`, `ledger`) and everything built on them; must
not know either. All positions are bytes of the data files' space.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from store.files.mapped_file import View
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


class StampedEntry(Protocol):
    """An entry that was stamped here: its bytes from a log position on, and its units."""

    @property
    def position(self) -> int:
        """Log position of the first byte."""
        ...

    @property
    def data(self) -> bytes:
        """All bytes of the entry."""
        ...

    @property
    def units(self) -> BatchUnits | None:
        """Units and keys that dispatch writes for it; never None here."""
        ...


class RecordLog(Protocol):
    """A log of message records. One writer at a time; reads from any thread."""

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

    @property
    def flushed_position(self) -> int:
        """Position before which every byte is durable."""
        ...

    def append(self, batch: bytes, *, now_unix_ms: int) -> AppendResult:
        """Validate, patch and append encoded records, all or none.

        Raises RecordFormatError, LimitExceededError, TopicNameError (bad input), StoreFullError,
        FileSystemError or BusyError (no next file); nothing was written then.
        """
        ...

    def read(self, position: int, size_bytes: int) -> bytes:
        """Copy the bytes of a record. Raises PositionRangeError, ClosedError, FileSystemError."""
        ...

    def view(self, position: int, size_bytes: int) -> View:
        """Return a zero-copy window on the bytes of a record; errors as `read`."""
        ...

    def check(self, position: int, data: bytes) -> None:
        """Make sure that `data`, read at `position`, is what was written there.

        `data` is whole records back to back. Compares checksums once per open, see
        `store.log.checked`. Raises CorruptionError.
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

    # --- Entries ---

    def last_index_before(self, position: int) -> int:
        """Return the last entry that ends at or before a position; -1 without entries."""
        ...

    def end_of(self, index: int) -> int:
        """Return the byte behind the entry, or the byte of a plain log, with an index."""
        ...

    def entry_runs(self, records: bytes) -> list[EntryRun]:
        """Return the entries of records that were read and lie back to back; none without entries.

        Raises PositionRangeError for records that expired meanwhile, CorruptionError.
        """
        ...

    def sync(self) -> int:
        """Make all appended bytes durable; return the position reached. SyncFailedError: stop."""
        ...

    def delete_first(self) -> int:
        """Delete the oldest file, never the last; return the bytes freed (0: nothing to do)."""
        ...

    def close(self) -> None:
        """Release the files. Syncs nothing."""
        ...
