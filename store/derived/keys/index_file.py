"""One key index file: a hash table on disk from keys to log positions, byte-compatible to RocketMQ.

Owns the layout (storage-formats 3.1 to 3.3), look-ups that compare each block with its checksum,
and the repair of one file; must not know records, nor other files. The file being written is
mapped, because every put touches a random slot; a complete file is read with `pread`, so a bad
sector is an exception. Entries are written before the slot that names them, and the header last: a
reader beside the writer finds whole entries only, and after a crash the header counts only what is
there.

Deviations: a look-up may return records up to one second outside of its time range (the file keeps
whole seconds; RocketMQ rounds them away and misses records), the end time is the latest and not the
last, and recovery rebuilds the slots from the entries instead of deleting the file.
"""

import mmap
import os
import sys
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import takewhile
from typing import Final, NamedTuple

from store import format as fmt
from store.derived.keys.key_sums import (
    ENTRIES_PER_BLOCK,
    SLOTS_PER_BLOCK,
    IndexShape,
    KeySums,
)
from store.derived.sum_files import UNKNOWN
from store.errors import ClosedError, DerivedDamageError, DerivedFileError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import stage
from store.record.message import java_hash, positive_hash

_ENTRY: Final = fmt.INDEX_ENTRY
_SLOT: Final = fmt.INT32
_ENTRY_SIZE_BYTES: Final = fmt.INDEX_ENTRY_SIZE_BYTES
_NO_ENTRY: Final = bytes(_ENTRY_SIZE_BYTES)
_SCAN_ENTRIES: Final = 50_000  # Entries that a scan reads at once: 1 MB.
_GROW_BYTES: Final = 1 << 20  # The space of entries to come that is reserved at once.
_SECONDS_MAX: Final = 0x7FFFFFFF
assert array("i").itemsize == fmt.INDEX_SLOT_SIZE_BYTES


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which a key of a topic is kept, 0 or more (3.2)."""
    return positive_hash(java_hash(f"{topic}#{key}"))


def seconds_since(begin_unix_ms: int, store_unix_ms: int) -> int:
    """Return the time of an entry in a file that begins at `begin_unix_ms`."""
    past_ms = store_unix_ms - begin_unix_ms if begin_unix_ms > 0 else 0
    return min(max(past_ms, 0) // 1000, _SECONDS_MAX)


class IndexStep(NamedTuple):
    """One entry that a look-up passed. Positions never rise from one step to the next."""

    position: int
    is_candidate: bool
    """Whether the record may have the key."""


class IndexFile:
    """One file. `put`, `recover` and `seal` by one thread; look-ups from any thread beside it.

    Entry 0 is never used, so `count` is both the next entry and one more than the entries there
    are. Invariant: 1 <= count <= entry_count.
    """

    __slots__ = (
        "_allocated",
        "_entries_at",
        "_fd",
        "_fs",
        "_is_closed",
        "_lock",
        "_map",
        "_slots",
        "are_slots_proven",
        "begin_position",
        "begin_unix_ms",
        "count",
        "end_position",
        "end_unix_ms",
        "entry_count",
        "is_dirty",
        "path",
        "size_bytes",
        "slot_count",
        "sums",
        "used_slot_count",
    )

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        fd: int,
        shape: IndexShape,
        sums: KeySums,
    ) -> None:
        """Take an open file whose size is right."""
        self._fs, self.path, self._fd, self.sums = fs, path, fd, sums
        self.slot_count, self.entry_count = shape
        self._entries_at, self.size_bytes = shape.entries_at, shape.size_bytes
        self._allocated = 0
        """Byte up to which the file has blocks for sure; behind it there may be a hole."""
        self._map: mmap.mmap | None = None
        self._slots: memoryview | None = None
        """Right slots of a file that takes entries. The slots on disk are for the next start."""
        self.are_slots_proven = True
        """Whether the slots of a file that takes entries follow from these, or from checksums."""
        self._is_closed = False
        self._lock = threading.Lock()  # Keeps the descriptor open under a pread or a sync.
        self.is_dirty = False  # Has bytes that are not durable.
        header = fs.read_at(fd, path, 0, fmt.INDEX_HEADER_SIZE_BYTES)
        numbers: tuple[int, ...] = fmt.INDEX_HEADER.unpack(header)
        self.begin_unix_ms, self.end_unix_ms, self.begin_position = numbers[:3]
        self.end_position, self.used_slot_count = numbers[3:5]
        self.count = max(1, numbers[5])  # A file of zeros is an empty one.

    @property
    def has_slots(self) -> bool:
        """Whether the file takes entries, so that its slots are in memory."""
        return self._slots is not None

    # --- Building ---

    def put(
        self,
        hashes: list[int],
        positions: list[int],
        store_unix_ms: list[int],
        *,
        lo: int,
    ) -> int:
        """Add the keys from `lo` on, as many as fit; return the first that did not.

        The lists go together: key hash, log position of its record, when that was stored.
        Raises StoreFullError, FileSystemError, and as `load_slots`; nothing was added then.
        """
        mapped = self._mapped()
        count, used, begin_ms = self.count, self.used_slot_count, self.begin_unix_ms
        hi = min(len(hashes), lo + self.entry_count - count)
        if lo >= hi:
            return lo
        if count == 1:
            begin_ms = store_unix_ms[lo]
        slot_count, at = self.slot_count, self._entries_at + count * 20
        self._grow(at + (hi - lo) * 20)
        if self._slots is None:
            self.load_slots()
        slots, pack, pack_entry = self._open_slots(), _SLOT.pack_into, _ENTRY.pack_into
        last_ms, seconds, end_ms = -1, 0, 0
        for i in range(lo, hi):
            value = hashes[i]
            slot = value % slot_count
            before = slots[slot]
            if before <= 0 or before >= count:
                before = self._last_counted(mapped, before, count)
                used += not before
            unix_ms = store_unix_ms[i]
            if unix_ms != last_ms:
                last_ms = unix_ms
                end_ms = max(end_ms, unix_ms)
                past_ms = unix_ms - begin_ms if begin_ms > 0 else 0
                seconds = min(max(past_ms, 0) // 1000, _SECONDS_MAX)
            pack_entry(mapped, at, value, positions[i], seconds, before)
            slots[slot] = count
            pack(mapped, 40 + slot * 4, count)
            count += 1
            at += 20
        hit("index_file.before_header")
        self.sums.put(mapped[at - (count - self.count) * 20 : at])
        if self.count == 1:
            self.begin_unix_ms, self.begin_position = begin_ms, positions[lo]
            self.end_unix_ms = end_ms
        self.end_unix_ms = max(self.end_unix_ms, end_ms)
        self.end_position = positions[hi - 1]
        self.used_slot_count = used
        self.count = count  # From here on a look-up returns them.
        self._write_header(mapped)
        self.is_dirty = True  # Last: a sync that began before this may have missed some bytes.
        return hi

    def _last_counted(self, mapped: mmap.mmap, entry: int, count: int) -> int:
        """Follow a chain to its first entry below `count`, past those of a put that failed."""
        while count <= entry < self.entry_count:
            before = self._at(mapped, entry)[3]
            entry = before if before < entry else 0
        return entry if 0 < entry < count else 0

    def _write_header(self, mapped: mmap.mmap) -> None:
        mapped[: fmt.INDEX_HEADER_SIZE_BYTES] = self._header()

    def _header(self) -> bytes:
        assert 1 <= self.count <= self.entry_count, f"{self.path}: count {self.count}"
        return fmt.INDEX_HEADER.pack(
            self.begin_unix_ms,
            self.end_unix_ms,
            self.begin_position,
            self.end_position,
            self.used_slot_count,
            self.count,
        )

    # --- Reading ---

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
        lo = slot - slot % SLOTS_PER_BLOCK
        hi = min(lo + SLOTS_PER_BLOCK, self.slot_count)
        at = fmt.INDEX_HEADER_SIZE_BYTES + lo * fmt.INDEX_SLOT_SIZE_BYTES
        data = self._read(at, (hi - lo) * fmt.INDEX_SLOT_SIZE_BYTES)
        block = lo // SLOTS_PER_BLOCK
        if self.sums.expected_slots(block) not in (UNKNOWN, self.sums.slots_sum(block, data)):
            raise DerivedDamageError(self.path, at, f"slots {lo} to {hi - 1}")
        entry: int = _SLOT.unpack_from(data, (slot - lo) * fmt.INDEX_SLOT_SIZE_BYTES)[0]
        if entry < 0 or entry >= self.entry_count:
            slot_at = fmt.INDEX_HEADER_SIZE_BYTES + slot * fmt.INDEX_SLOT_SIZE_BYTES
            raise self._damage(slot_at, "slot", f"less than {self.entry_count}", str(entry))
        return entry

    def _entry(self, entry: int) -> tuple[int, int, int, int]:
        """Return key hash, position, seconds and previous entry. Raises DerivedDamageError."""
        at = self._entries_at + entry * _ENTRY_SIZE_BYTES
        sums, tail, lo = self.sums, self.sums.tail, entry - entry % ENTRIES_PER_BLOCK
        hi = tail.hi if lo == tail.lo else sums.block_hi(lo)
        if entry < hi and lo <= tail.lo:
            data = self.raw_entries(lo, hi)
            if sums.expected_entries(lo, tail) not in (UNKNOWN, sums.entries_sum(lo, data)):
                raise DerivedDamageError(self.path, at, f"entries {lo} to {hi - 1}")
            return _ENTRY.unpack_from(data, (entry - lo) * _ENTRY_SIZE_BYTES)
        return _ENTRY.unpack(self._read(at, _ENTRY_SIZE_BYTES))

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

    def _damage(self, at: int, field: str, expected: str, actual: str) -> DerivedFileError:
        return DerivedFileError(self.path, at, field, expected, actual)

    # --- Mending: while no put, cut or deletion runs ---

    def doubtful_blocks(self) -> list[tuple[int, int]]:
        """Return the blocks of entries [lo, hi) whose checksum differs or is not known."""
        return [block for block in self._blocks() if self._is_doubtful(*block)]

    def doubtful_last_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield those of the doubtful blocks that no other block follows, the last one first."""
        return takewhile(lambda block: self._is_doubtful(*block), reversed(self._blocks()))

    def _blocks(self) -> list[tuple[int, int]]:
        hi = self.sums.tail.hi
        return [(lo, min(lo + ENTRIES_PER_BLOCK, hi)) for lo in range(0, hi, ENTRIES_PER_BLOCK)]

    def _is_doubtful(self, lo: int, hi: int) -> bool:
        entries_sum = self.sums.entries_sum(lo, self.raw_entries(lo, hi))
        return self.sums.expected_entries(lo, self.sums.tail) != entries_sum

    def is_header_doubtful(self) -> bool:
        """Whether the checksum of the header differs from the expected one, or none is known.

        False for a file that takes entries: its header is in memory."""
        if self._slots is not None:
            return False
        header = self._read(0, fmt.INDEX_HEADER_SIZE_BYTES)
        return self.sums.expected_header() != self.sums.header_sum(header)

    def are_slots_doubtful(self) -> bool:
        """Whether the checksum of a block of slots differs or is unknown; of a file that takes
        entries, whether a crash left its slots unproven."""
        if self._slots is not None:
            return not self.are_slots_proven
        return not self._are_confirmed(self._read_slots())

    def _are_confirmed(self, slots: bytes) -> bool:
        step, sums = SLOTS_PER_BLOCK * fmt.INDEX_SLOT_SIZE_BYTES, self.sums
        return all(
            sums.expected_slots(lo // step) == sums.slots_sum(lo // step, slots[lo : lo + step])
            for lo in range(0, len(slots), step)
        )

    def rewrite_entries(self, lo: int, entries: bytes) -> None:
        """Overwrite entries that are there already. Raises StoreFullError or FileSystemError."""
        at = self._entries_at + lo * _ENTRY_SIZE_BYTES
        self._fs.write_at(self._fd, self.path, at, entries)
        self.is_dirty = True

    def rewrite_slots(self, slots: "array[int]") -> int:
        """Write the right slots and the header; return how many slots on the disk were wrong.
        Errors as `rewrite_entries`."""
        at = fmt.INDEX_HEADER_SIZE_BYTES
        if self._slots is not None:
            self._slots[:] = memoryview(slots)
        self.are_slots_proven = True
        self.used_slot_count = self.slot_count - slots.count(0)
        data = _swapped(slots).tobytes()
        stored = self._read(at, len(data))
        if stored != data:
            self._fs.write_at(self._fd, self.path, at, data)
        self.rewrite_header()
        if self._slots is None:
            self.sums.save(self._header(), data)
        blocks = (slice(lo, lo + 4096) for lo in range(0, len(data), 4096))  # Fast: appends wait.
        some = ((stored[at], data[at]) for at in blocks if stored[at] != data[at])
        return sum(a[n : n + 4] != b[n : n + 4] for a, b in some for n in range(0, len(a), 4))

    def rewrite_header(self) -> None:
        """Write the header in memory to the disk. Raises StoreFullError or FileSystemError."""
        self._fs.write_at(self._fd, self.path, 0, self._header())
        self.is_dirty = True

    # --- Durability ---

    def sync(self) -> None:
        """Make everything that was put before the call durable. Raises SyncFailedError: stop."""
        self.is_dirty = False  # Before the sync: a put beside it makes the file dirty again.
        self._fs.sync(self._fd, self.path)

    def seal(self) -> None:
        """Unmap a file that no longer takes entries. Its checksums are known from here on."""
        if self._slots is not None:
            self.sums.save(self._header(), _swapped(self._slots.tobytes()).tobytes())
        self._slots = None
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()

    def close(self) -> None:
        """Release map and descriptor. Syncs nothing."""
        self.seal()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._fs.close(self._fd)

    def delete(self) -> None:
        """Remove the file's name and close it."""
        self._fs.unlink(self.path)
        self._slots = None
        self.close()
        self.sums.forget()

    # --- Recovery ---

    def check(self) -> None:
        """Compare the header with the last entry and the one after it.

        Raises DerivedFileError when they cannot be of one file: rebuild.
        """
        if not 1 <= self.count <= self.entry_count:
            expected = f"1 to {self.entry_count}"
            raise self._damage(36, "entry count", expected, str(self.count))
        if not 0 <= self.begin_unix_ms <= self.end_unix_ms:
            expected = f"0 to {self.end_unix_ms}"
            raise self._damage(0, "begin time", expected, str(self.begin_unix_ms))
        at = self._entries_at + (self.count - 1) * _ENTRY_SIZE_BYTES
        position = _ENTRY.unpack(self._read(at, _ENTRY_SIZE_BYTES))[1]
        if self.count > 1 and position != self.end_position:
            raise self._damage(at, "last position", str(self.end_position), str(position))
        at += _ENTRY_SIZE_BYTES
        if at < self.size_bytes:
            entry = self._read(at, _ENTRY_SIZE_BYTES)
            if entry != _NO_ENTRY:
                raise self._damage(at, "entry after the last", "zeros", entry.hex())

    def recover(self, hi_position: int, *, is_cached: bool) -> None:
        """Keep the entries of records before `hi_position`, with slots and header for them.

        The entries were durable once and are never changed. With `is_cached` the file is as its
        writer left it: the other entries are taken back one by one, and only they are read. Else
        slots and header are whatever a power loss left: they are rebuilt from all entries, in
        about 0.2 us each, as they are where an entry is not where its slot leads. Raises
        DerivedFileError when the entries cannot be what was put: rebuild from the log.
        """
        if self.count > self.entry_count:
            raise self._damage(36, "entry count", f"up to {self.entry_count}", str(self.count))
        kept = self._taken_back(hi_position) if is_cached else None
        count, slots = kept or self._scan(hi_position)
        self.are_slots_proven = kept is None
        self._raise_end_time()
        self._grow(self._entries_at + self.count * _ENTRY_SIZE_BYTES)
        mapped = self._mapped()
        self._zero_entries(mapped, count)
        self.set_slots(slots)
        if count < self.count:
            self.count = count
            if count > 1:
                _, self.end_position, seconds, _ = self._at(mapped, count - 1)
                self.end_unix_ms = self.begin_unix_ms + seconds * 1000 + 999
        self._write_header(mapped)
        self.is_dirty = True
        self.sums.cut(count)
        self.open_sums()

    def _taken_back(self, hi_position: int) -> "tuple[int, array[int]] | None":
        """Return what `_scan` does, from the slots on the disk; None where they do not fit.

        Each entry behind the end must be the last one of its slot when its turn to go comes. A
        kill may have come between the very last entry and its slot."""
        mapped, hi = self._mapped(), self.count
        count = bisect_left(range(hi), hi_position, lo=1, key=lambda e: self._at(mapped, e)[1])
        slots = _swapped(self._read_slots())
        while hi < self.entry_count and any(self._at(mapped, hi)):
            hi += 1  # Put, and not counted any more.
        for entry in range(hi - 1, count - 1, -1):
            value, _, _, before = self._at(mapped, entry)
            slot = value % self.slot_count
            is_half_put = self.count <= entry == hi - 1 and slots[slot] == before
            if not (slots[slot] == entry > before >= 0 or is_half_put):
                return None
            slots[slot] = before
        return None if max(slots) >= count else (count, slots)

    def _at(self, mapped: mmap.mmap, entry: int) -> tuple[int, ...]:
        return _ENTRY.unpack_from(mapped, self._entries_at + entry * _ENTRY_SIZE_BYTES)

    def _read_slots(self) -> bytes:
        size_bytes = self.slot_count * fmt.INDEX_SLOT_SIZE_BYTES
        return self._read(fmt.INDEX_HEADER_SIZE_BYTES, size_bytes)

    def _raise_end_time(self) -> None:
        """Raise an end time that lies before the last entry: an open header has no checksum."""
        if self.count > 1:
            seconds = _ENTRY.unpack(self.raw_entries(self.count - 1, self.count))[2]
            if self.end_unix_ms < self.begin_unix_ms + seconds * 1000:
                self.end_unix_ms = self.begin_unix_ms + seconds * 1000 + 999

    def set_slots(self, slots: "array[int]") -> None:
        """Take these slots, in memory and into the file."""
        mapped = self._mapped()
        self._open_slots()[:] = memoryview(slots)
        self.used_slot_count = self.slot_count - slots.count(0)
        mapped[fmt.INDEX_HEADER_SIZE_BYTES : self._entries_at] = _swapped(slots).tobytes()

    def open_sums(self) -> None:
        """Open the checksums with the entries of the last block."""
        lo = self.count - self.count % ENTRIES_PER_BLOCK
        self.sums.open(self.count, self.raw_entries(lo, self.count))

    def load_slots(self) -> None:
        """Load the slots of a file that was closed well, and will take entries again.

        Slots without a confirmed checksum are rebuilt from the entries. Errors as `recover`.
        """
        data = self._read_slots()
        slots = _swapped(data)
        if not self._are_confirmed(data):
            count, right = self._scan(1 << 62)
            self._raise_end_time()
            if count != self.count:
                raise self._damage(36, "entry count", str(count), str(self.count))
            if right != slots:
                self.set_slots(right)
                self.is_dirty = True
            slots = right
        self._open_slots()[:] = memoryview(slots)
        self.open_sums()

    def _open_slots(self) -> memoryview:
        if self._slots is None:
            # Not an array: the kernel gives a map no memory for pages that are never touched.
            memory = mmap.mmap(-1, self.slot_count * fmt.INDEX_SLOT_SIZE_BYTES)
            self._slots = memoryview(memory).cast("i")
        return self._slots

    def _scan(self, hi_position: int) -> tuple[int, "array[int]"]:
        """Return (one more than the last entry to keep, the slots that these entries make)."""
        slots = array("i", bytes(self.slot_count * fmt.INDEX_SLOT_SIZE_BYTES))
        slot_count, before_position = self.slot_count, self.begin_position
        entry = 1
        while entry < self.count:
            scan_count = min(_SCAN_ENTRIES, self.count - entry)
            at = self._entries_at + entry * _ENTRY_SIZE_BYTES
            data = self._read(at, scan_count * _ENTRY_SIZE_BYTES)
            for value, position, _, before in _ENTRY.iter_unpack(data):
                if position >= hi_position:
                    return entry, slots
                if not (position or value or before) and entry > 1:  # Never reached the disk.
                    return entry, slots
                slot = value % slot_count
                if value < 0 or position < before_position or before != slots[slot]:
                    at = self._entries_at + entry * _ENTRY_SIZE_BYTES
                    expected = f"position {before_position} or later, before {slots[slot]}"
                    raise self._damage(at, "entry", expected, f"{value}, {position}, {before}")
                slots[slot] = entry
                before_position = position
                entry += 1
        return entry, slots

    def _zero_entries(self, mapped: mmap.mmap, lo: int) -> None:
        """Zero the counted entries from `lo` on, and what a crash left uncounted behind them."""
        for entry in range(lo, self.entry_count):
            at = self._entries_at + entry * _ENTRY_SIZE_BYTES
            if entry >= self.count and mapped[at : at + _ENTRY_SIZE_BYTES] == _NO_ENTRY:
                return
            mapped[at : at + _ENTRY_SIZE_BYTES] = _NO_ENTRY

    def _grow(self, hi: int) -> None:
        """Have blocks for the entries before byte `hi` and for the next one: on a full disk a map
        must meet no hole, in memory not even to read it. Raises StoreFullError, FileSystemError."""
        if min(hi + _ENTRY_SIZE_BYTES, self.size_bytes) > self._allocated:
            lo, end = self._allocated or self._entries_at, min(hi + _GROW_BYTES, self.size_bytes)
            self._fs.allocate(self._fd, self.path, end - lo, lo)
            self._allocated = end

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            if self._is_closed:
                raise ClosedError(self.path)
            self._map = self._fs.map(self._fd, self.path, self.size_bytes)
        return self._map


def _swapped(slots: "bytes | memoryview | array[int]") -> "array[int]":
    """Return a copy of slots, turned from the byte order of the disk to that of memory, or back."""
    copy = array("i", slots)
    if sys.byteorder == "little":
        copy.byteswap()
    return copy


def create_index_file(
    fs: FileSystem, path: str, shape: IndexShape, sums: KeySums, before: IndexFile | None
) -> IndexFile:
    """Make an empty file, its slots allocated, durable under its name once the directory is synced.

    Begin and end are the end of the file before it, until the first put (3.3). Raises
    StoreFullError or FileSystemError; nothing is left behind.
    """
    directory, name = os.path.split(path)
    temporary = stage(fs, directory, name)
    fd = fs.open(temporary, create=True)
    try:
        fs.set_size(fd, temporary, shape.size_bytes)  # Entries get their blocks as they come.
        fs.allocate(fd, temporary, shape.entries_at)
        unix_ms = before.end_unix_ms if before else 0
        position = before.end_position if before else 0
        header = fmt.INDEX_HEADER.pack(unix_ms, unix_ms, position, position, 0, 1)
        fs.write_at(fd, temporary, 0, header)
        fs.sync(fd, temporary)
        file = IndexFile(fs, path, fd, shape, sums)
        file._open_slots()
        sums.begin()
        fs.rename(temporary, path)
    except BaseException:
        fs.close(fd)
        fs.unlink(temporary)
        raise
    return file
