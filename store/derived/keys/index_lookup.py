"""The reading half of one key index file: look-ups, each block compared with its checksum.

Owns the way through slots and chains; must not know how they are built.
`store.derived.keys.index_file` is the one subclass.
"""

import mmap
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.derived.keys.key_sums import ENTRIES_PER_BLOCK, SLOTS_PER_BLOCK, KeySums
from store.derived.sum_files import UNKNOWN
from store.errors import ClosedError, DerivedDamageError, DerivedFileError
from store.files.file_system import FileSystem

_ENTRY: Final = fmt.INDEX_ENTRY
_SLOT: Final = fmt.INT32
_ENTRY_SIZE_BYTES: Final = fmt.INDEX_ENTRY_SIZE_BYTES


class IndexStep(NamedTuple):
    """One entry that a look-up passed. Positions never rise from one step to the next."""

    position: int
    is_candidate: bool
    """Whether the record may have the key."""


class IndexLookup:
    """Look-ups in one file, from any thread."""

    __slots__ = ()

    _fs: FileSystem
    _fd: int
    _map: mmap.mmap | None
    _slots: memoryview | None
    _lock: threading.Lock
    _is_closed: bool
    _entries_at: int
    path: str
    slot_count: int
    entry_count: int
    count: int
    begin_unix_ms: int
    sums: KeySums | None

    def lookup(
        self, hash_value: int, *, begin_unix_ms: int, end_unix_ms: int, hi_position: int
    ) -> Iterator[IndexStep]:
        """Walk the entries of a slot, newest first; each step reads its entry.

        The file knows hashes and whole seconds only: the caller compares key, topic and time of the
        records, so no limit of matches can be applied here. Raises DerivedDamageError,
        DerivedFileError for a chain that does not go back where no checksum is known, or
        FileSystemError.
        """
        entry, count = self._slot(hash_value % self.slot_count), self.count
        while entry > 0:
            value, position, seconds, before = self._entry(entry)
            is_candidate = False
            if entry < count:  # Entries that are being put now are only followed.
                since_ms = self.begin_unix_ms + seconds * 1000
                in_range = begin_unix_ms < since_ms + 1000 and since_ms <= end_unix_ms
                is_candidate = value == hash_value and in_range and position < hi_position
            if before < 0 or before >= entry:
                at = self._entries_at + entry * _ENTRY_SIZE_BYTES
                raise self._damage(at + 16, "previous entry", f"less than {entry}", str(before))
            if is_candidate:
                hi_position = position  # A key that a record has twice is one candidate.
            yield IndexStep(position, is_candidate)
            entry = before

    def _slot(self, slot: int) -> int:
        """Return the last entry of a slot. Raises DerivedDamageError."""
        slots = self._slots
        if slots is not None:
            return int(slots[slot])
        lo, hi = self.slots_block(slot)
        at = fmt.INDEX_HEADER_SIZE_BYTES + lo * fmt.INDEX_SLOT_SIZE_BYTES
        data = self._read(at, (hi - lo) * fmt.INDEX_SLOT_SIZE_BYTES)
        if self.sums is not None:
            block = lo // SLOTS_PER_BLOCK
            expected = self.sums.expected_slots(block)
            if expected not in (UNKNOWN, self.sums.slots_sum(block, data)):
                raise self._met(at, f"slots {lo} to {hi - 1}")
        entry: int = _SLOT.unpack_from(data, (slot - lo) * fmt.INDEX_SLOT_SIZE_BYTES)[0]
        if entry < 0 or entry >= self.entry_count:
            slot_at = fmt.INDEX_HEADER_SIZE_BYTES + slot * fmt.INDEX_SLOT_SIZE_BYTES
            raise self._damage(slot_at, "slot", f"less than {self.entry_count}", str(entry))
        return entry

    def slots_block(self, slot: int) -> tuple[int, int]:
        """Return the slots [lo, hi) that have one checksum."""
        lo = slot - slot % SLOTS_PER_BLOCK
        return lo, min(lo + SLOTS_PER_BLOCK, self.slot_count)

    def _entry(self, entry: int) -> tuple[int, int, int, int]:
        """Return key hash, position, seconds and previous entry. Raises DerivedDamageError."""
        at = self._entries_at + entry * _ENTRY_SIZE_BYTES
        sums = self.sums
        if sums is not None:
            tail, lo = sums.tail, entry - entry % ENTRIES_PER_BLOCK
            hi = tail.hi if lo == tail.lo else sums.block_hi(lo)
            if entry < hi and lo <= tail.lo:
                data = self.raw_entries(lo, hi)
                if sums.expected_entries(lo, tail) not in (UNKNOWN, sums.entries_sum(lo, data)):
                    raise self._met(at, f"entries {lo} to {hi - 1}")
                fields: tuple[int, int, int, int] = _ENTRY.unpack_from(
                    data, (entry - lo) * _ENTRY_SIZE_BYTES
                )
                return fields
        alone: tuple[int, int, int, int] = _ENTRY.unpack(self._read(at, _ENTRY_SIZE_BYTES))
        return alone

    def raw_entries(self, lo: int, hi: int) -> bytes:
        """Return the entries [lo, hi) as the file has them, right or wrong."""
        size_bytes = (hi - lo) * _ENTRY_SIZE_BYTES
        return self._read(self._entries_at + lo * _ENTRY_SIZE_BYTES, size_bytes)

    def _read(self, at: int, size_bytes: int) -> bytes:
        mapped = self._map
        if mapped is not None:
            try:
                return mapped[at : at + size_bytes]
            except ValueError:  # Sealed by another thread meanwhile.
                pass
        with self._lock:
            if self._is_closed:
                raise ClosedError(self.path)
            return self._fs.read_at(self._fd, self.path, at, size_bytes)

    def _met(self, at: int, field: str) -> DerivedDamageError:
        return DerivedDamageError(self.path, at, field)

    def _damage(self, at: int, field: str, expected: str, actual: str) -> DerivedFileError:
        return DerivedFileError(self.path, at, field, expected, actual)
