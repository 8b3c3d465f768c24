"""The checksums of one queue's units, a block of them at a time.

Owns what a block is and which checksum it must have: of a full one the file in `checksums/`, of the
last one a CRC in memory that each put extends. Must not know records, nor what follows from a block
whose checksum differs. A block lies within one file of the queue, so both go together.

Cost on the way of an append: one CRC-32C a queue and round, 0.1 us and 0.06 ns a byte.
"""

from typing import Final, NamedTuple

from store import format as fmt
from store.derived.sum_files import SUM_SIZE_BYTES, SumFiles, known, seed_of, sum_of
from store.files.checksum import crc32c_extend

BLOCK_UNITS: Final = 256
_UNIT: Final = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.


class SumTail(NamedTuple):
    """The last block: the units [lo, hi) and their CRC, -1 when it is not known."""

    lo: int
    hi: int
    crc: int


_NOTHING: Final = SumTail(0, 0, -1)


class UnitSums:
    """The checksums of one queue. Its writer calls `begin`, `put` and `cut`; any thread the rest.

    Invariant: `tail.hi` is the queue's next offset, or what it will be in a moment.
    """

    __slots__ = ("_files", "_name", "_seen", "_units_per_file", "tail")

    def __init__(self, files: SumFiles, name: str, units_per_file: int) -> None:
        self._files, self._name, self._units_per_file = files, name, units_per_file
        self.tail = self._seen = _NOTHING
        """`_seen`: a last block of unknown checksum, with that of its confirmed units."""

    # --- Where blocks are ---

    def block_lo(self, offset: int) -> int:
        """Return the first offset of the block that holds an offset."""
        in_file = offset % self._units_per_file
        return offset - in_file % BLOCK_UNITS

    def block_hi(self, lo: int) -> int:
        """Return the end of the block that begins at an offset."""
        file_hi = lo - lo % self._units_per_file + self._units_per_file
        return min(lo + BLOCK_UNITS, file_hi)

    def _place(self, lo: int) -> tuple[str, int]:
        in_file = lo % self._units_per_file
        name = f"{self._name}/{fmt.file_name((lo - in_file) * _UNIT)}"
        return name, in_file // BLOCK_UNITS

    # --- Building ---

    def begin(self, lo: int, hi: int, units: bytes) -> None:
        """Start a new queue, whose first file begins at `lo` with `units`, up to `hi`."""
        self.tail = SumTail(lo, lo, self._seed(lo))
        if units:
            self.put(units, len(units))
        assert self.tail.hi == hi, f"{self._name}: begun up to {self.tail.hi} of {hi}"

    def put(self, units: bytes, size_bytes: int) -> None:
        """Add units of `size_bytes` in all, written at the end of the queue. Call it before readers
        see them."""
        lo, hi, crc = self.tail
        if crc < 0 and self._seen[:2] == (lo, hi):
            crc = self._seen.crc
        in_file = lo % self._units_per_file
        left = self._units_per_file - in_file  # Inlined `block_hi`: once a queue and round.
        room = (BLOCK_UNITS if left > BLOCK_UNITS else left) - (hi - lo)
        if crc >= 0 and size_bytes < room * _UNIT:  # Nearly always: all in one block.
            new = lo, hi + size_bytes // _UNIT, crc32c_extend(crc, units)
            self.tail = _new_tuple(SumTail, new)
            return
        at = 0
        while at < size_bytes:
            end = self.block_hi(lo)
            part = units[at : at + (end - hi) * _UNIT]
            if crc >= 0:
                crc = crc32c_extend(crc, part)
            at += len(part)
            hi += len(part) // _UNIT
            if hi == end:
                if crc >= 0:
                    self._files.put(*self._place(lo), known(crc))
                lo, crc = hi, self._seed(hi)
        self.tail = SumTail(lo, hi, crc)

    def cut(self, hi: int) -> None:
        """Forget the checksums from `hi` on: the units there are cut."""
        name, number = self._place(self.block_lo(hi))
        blocks_per_file = -(-self._units_per_file // BLOCK_UNITS)
        self._files.put_many(name, number, bytes(SUM_SIZE_BYTES * (blocks_per_file - number)))
        self.open(hi)

    def open(self, hi: int) -> None:
        """Take a queue that was opened, and ends at `hi`."""
        lo = self.block_lo(hi)
        self._seen = _NOTHING
        self.tail = SumTail(lo, hi, self._seed(lo) if lo == hi else -1)

    def save(self) -> None:
        """Store the checksum of the last block: no put follows."""
        lo, hi, crc = self.tail
        if hi > lo and crc >= 0:
            self._files.put(*self._place(lo), known(crc))

    def _seed(self, lo: int) -> int:
        name, number = self._place(lo)
        return seed_of(name, number)

    # --- Reading ---

    def sum_of(self, lo: int, units: bytes) -> int:
        """Return the checksum of a block with these units."""
        return sum_of(*self._place(lo), units)

    def expected(self, lo: int, tail: SumTail) -> int:
        """Return the checksum of a block, given a `tail` that was looked up before; or UNKNOWN."""
        if lo != tail.lo:
            return self._files.get(*self._place(lo))
        if tail.crc >= 0:
            return known(tail.crc)
        if self._seen[:2] == tail[:2]:
            return known(self._seen.crc)
        # The last run ended here, if it was closed.
        return self._files.get(*self._place(lo))

    def learn(self, lo: int, hi: int, units: bytes) -> None:
        """Take the checksum of a block from units that agree with the log."""
        crc = crc32c_extend(self._seed(lo), units)
        if lo < self.tail.lo:
            self._files.put(*self._place(lo), known(crc))
        else:
            self._seen = SumTail(lo, hi, crc)

    def forget_file(self, file_lo: int) -> None:
        """Delete the checksums of a deleted file of the queue."""
        self._files.delete(self._place(file_lo)[0])
