"""The checksums of one key index file: of its header, its slots and its entries, by blocks.

Owns what a block is and which checksum it must have. Entries are only ever added, so each full
block of them has its checksum at once, and the last block a CRC in memory that each put extends.
Slots and header change with every key: their checksums are stored when the file is sealed or
closed, and until then the slots in memory count. Must not know keys, nor what follows from a block
whose checksum differs.
"""

from typing import Final, NamedTuple

from store import format as fmt
from store.derived.queues.unit_sums import SumTail
from store.derived.sum_files import SUM_SIZE_BYTES, UNKNOWN, SumFiles, known, seed_of, sum_of
from store.files.checksum import crc32c_extend

SLOTS_PER_BLOCK: Final = 1024
ENTRIES_PER_BLOCK: Final = 256
_ENTRY: Final = fmt.INDEX_ENTRY_SIZE_BYTES
_SLOT: Final = fmt.INDEX_SLOT_SIZE_BYTES
_HEADER_NUMBER: Final = 0


class IndexShape(NamedTuple):
    """The sizes of a key index file."""

    slot_count: int
    entry_count: int

    @property
    def entries_at(self) -> int:
        """Byte of entry 0."""
        return fmt.INDEX_HEADER_SIZE_BYTES + self.slot_count * _SLOT

    @property
    def size_bytes(self) -> int:
        """Size of the file: 420,000,040 bytes with RocketMQ's defaults (3.1)."""
        return self.entries_at + self.entry_count * _ENTRY


class KeySums:
    """The checksums of one index file. Its writer calls `begin`, `put`, `open` and `save`."""

    __slots__ = ("_entries_number", "_entry_count", "_files", "_name", "tail")

    def __init__(self, files: SumFiles, name: str, shape: IndexShape) -> None:
        self._files, self._name, self._entry_count = files, name, shape.entry_count
        self._entries_number = 1 + -(-shape.slot_count // SLOTS_PER_BLOCK)
        self.tail = SumTail(0, 1, -1)
        """The last block of entries."""

    # --- Building ---

    def begin(self) -> None:
        """Start a new file, which has entry 0 only: zeros."""
        self.tail = SumTail(0, 1, crc32c_extend(self._seed(0), bytes(_ENTRY)))

    def put(self, entries: bytes) -> None:
        """Add entries written behind the last one. Call it before the header counts them."""
        lo, hi, crc = self.tail
        at = 0
        while at < len(entries):
            end = self.block_hi(lo)
            part = entries[at : at + (end - hi) * _ENTRY]
            if crc >= 0:
                crc = crc32c_extend(crc, part)
            at += len(part)
            hi += len(part) // _ENTRY
            if hi == end < self._entry_count:
                if crc >= 0:
                    self._files.put(self._name, self._number(lo), known(crc))
                lo, crc = hi, self._seed(hi)
        self.tail = SumTail(lo, hi, crc)

    def open(self, count: int, last_entries: bytes) -> None:
        """Take a file that was opened, or cut, with the entries of its last block.

        A checksum that was stored for the block counts again if it fits."""
        lo = count - count % ENTRIES_PER_BLOCK
        crc = crc32c_extend(self._seed(lo), last_entries)
        is_known = lo == count or known(crc) == self._files.get(self._name, self._number(lo))
        self.tail = SumTail(lo, count, crc if is_known else -1)

    def cut(self, count: int) -> None:
        """Forget the checksum of the last block: the file does not end where it was closed."""
        number = self._number(count - count % ENTRIES_PER_BLOCK)
        self._files.put(self._name, number, UNKNOWN)

    def trust(self, lo: int, count: int, last_entries: bytes) -> None:
        """Take the checksum of the last block from entries that agree with the log."""
        self.tail = SumTail(lo, count, crc32c_extend(self._seed(lo), last_entries))
        self._files.put(self._name, self._number(lo), known(self.tail.crc))

    def save(self, header: bytes, slots: bytes) -> None:
        """Store the checksums of header, slots and the last entries: no put follows."""
        lo, hi, crc = self.tail
        if hi > lo and crc >= 0:
            self._files.put(self._name, self._number(lo), known(crc))
        step = SLOTS_PER_BLOCK * _SLOT
        sums = [self.header_sum(header)]
        sums += [
            self.slots_sum(at // step, slots[at : at + step]) for at in range(0, len(slots), step)
        ]
        values = b"".join(value.to_bytes(SUM_SIZE_BYTES, "big") for value in sums)
        self._files.put_many(self._name, _HEADER_NUMBER, values)

    def forget(self) -> None:
        """Delete the checksums of a file that is deleted."""
        self._files.delete(self._name)

    # --- Asking ---

    def block_hi(self, lo: int) -> int:
        """Return the end of the block of entries that begins with `lo`, once it is full."""
        return min(lo + ENTRIES_PER_BLOCK, self._entry_count)

    def header_sum(self, header: bytes) -> int:
        """Return the checksum of a header."""
        return sum_of(self._name, _HEADER_NUMBER, header)

    def expected_header(self) -> int:
        """Return the checksum that the header must have; UNKNOWN while it may change."""
        return self._files.get(self._name, _HEADER_NUMBER)

    def slots_sum(self, block: int, slots: bytes) -> int:
        """Return the checksum of a block of slots."""
        return sum_of(self._name, 1 + block, slots)

    def expected_slots(self, block: int) -> int:
        """Return the checksum that a block of slots must have; UNKNOWN while it may change."""
        return self._files.get(self._name, 1 + block)

    def entries_sum(self, lo: int, entries: bytes) -> int:
        """Return the checksum of the block of entries that begins with `lo`."""
        return sum_of(self._name, self._number(lo), entries)

    def expected_entries(self, lo: int, tail: SumTail) -> int:
        """Return the checksum that a block of entries must have, given a `tail`; or UNKNOWN."""
        if lo == tail.lo and tail.crc >= 0:
            return known(tail.crc)
        return self._files.get(self._name, self._number(lo))

    def learn_entries(self, lo: int, entries: bytes) -> None:
        """Take the checksum of a full block from entries that agree with the log."""
        self._files.put(self._name, self._number(lo), self.entries_sum(lo, entries))

    def _number(self, entry: int) -> int:
        return self._entries_number + entry // ENTRIES_PER_BLOCK

    def _seed(self, entry: int) -> int:
        return seed_of(self._name, self._number(entry))
