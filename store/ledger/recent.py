"""The newest entries, as they were checked and written, for what follows at once.

Owns their bytes and their bound; must not know what is in them. Dispatch and replication take
entries soon after the append. The bytes that were stamped or checked are still available then, so
the store does not read, copy and check them a second time. With a batch that was stamped here come
its units, so that its records are parsed once.
All of it is a cache of the log: other entries are read from the files.

One thread, that of the ledger's writer, adds and takes.
"""

from collections import deque
from typing import Final

from store import format as fmt
from store.log.record_log import StampedEntry
from store.record.units import BatchUnits

RECENT_SIZE_BYTES_MAX: Final = 8 << 20
"""Limit of the part of the log that is kept: as much as a leader has in flight to a follower. More
is left over only while dispatch is stopped."""

_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.


class NewestEntries:
    """Entries that hold records, in log order."""

    __slots__ = ("_entries", "is_kept")

    def __init__(self) -> None:
        self.is_kept = False
        """Whether entries are kept, for a reader on the thread that adds."""
        self._entries: deque[StampedEntry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        index: int,
        position: int,
        end_position: int,
        data: bytes,
        units: BatchUnits | None = None,
    ) -> None:
        """Keep the entry at `position`, which was just written and holds records."""
        if self.is_kept:
            entries = self._entries
            entries += (_new_tuple(StampedEntry, (index, position, end_position, data, units)),)
            while end_position - entries[0].position > RECENT_SIZE_BYTES_MAX:
                entries.popleft()

    def runs(self, lo: int, hi: int) -> tuple[list[tuple[int, bytes]], int]:
        """Return (position of the first record, records) of the entries from `lo` up to `hi`, as
        far as they are kept and follow each other, and the end of the last one, or `lo`; forget the
        entries before `lo`. One list: a generator would be resumed for each entry.
        """
        entries = self._entries
        while entries and entries[0].position < lo:
            entries.popleft()
        bodies = list[tuple[int, bytes]]()
        for _, position, end_position, data, _ in entries:
            if position != lo or end_position > hi:
                break
            bodies += ((position + _HEADER, data[_HEADER:]),)
            lo = end_position
        return bodies, lo

    def stamped(self, lo: int, hi: int) -> list[StampedEntry] | None:
        """Return the entries that make up the log from `lo` to `hi`, if the units of each are
        known, else None; forget the entries before `lo`."""
        entries = self._entries
        while entries and entries[0].position < lo:
            entries.popleft()
        newest = list[StampedEntry]()
        for entry in entries:
            if entry.position != lo or entry.units is None:
                return None
            newest += (entry,)
            lo = entry.end_position
            if lo >= hi:
                return newest if lo == hi else None
        return None

    def data_of(self, lo_index: int, hi_index: int) -> bytes | None:
        """Return the newest entries [lo_index, hi_index) back to back; None if not all are kept."""
        entries, count = self._entries, hi_index - lo_index
        if not entries or entries[-1].entry_index != hi_index - 1:
            return None
        if count == 1:
            return entries[-1].data
        # Indexes rise, so as many entries as there are indexes are all of these.
        if count > len(entries) or entries[-count].entry_index != lo_index:
            return None
        return b"".join([entries[n].data for n in range(-count, 0)])

    def position_of(self, index: int) -> int | None:
        """Return the position of the newest entry, if this is its index."""
        entries = self._entries
        return entries[-1].position if entries and entries[-1].entry_index == index else None

    def clear(self) -> None:
        """Forget all: the log is cut."""
        self._entries.clear()
