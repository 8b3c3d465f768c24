"""The reading half of a queue: units by offset, each block compared with its checksum.

Owns reads and searches; must not know how units are written or recovered.
`store.derived.queues.consume_queue` is the one subclass.
"""

from collections.abc import Callable
from typing import Final

from store import format as fmt
from store.derived.queues.environment import UNIT_SIZE_BYTES, Doubt, QueueEnvironment
from store.derived.queues.unit_sums import UnitSums
from store.derived.sum_files import UNKNOWN
from store.errors import (
    CorruptionError,
    DerivedDamageError,
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
)

Unit = tuple[int, int, int]  # Position, size in bytes, tags code.
IsBefore = Callable[[int, int], bool]  # (position, size in bytes) -> left of what is searched.
_TRIES: Final = 4  # Reads of a block that is cut or grows beside them.


class QueueReads:
    """Reads of one queue, from any thread."""

    __slots__ = ()

    _environment: QueueEnvironment
    _file_lo: int
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    sums: UnitSums

    @property
    def directory(self) -> str:
        """Directory of the files: `<topic>/<queue id>`."""
        return f"{self._environment.directory}/{self.topic}/{self.queue_id}"

    def read_units(self, lo: int, hi: int, *, is_proof_needed: bool = True) -> bytes:
        """Return the units of the offsets [lo, hi), 20 bytes each, compared with their checksums.

        Without `is_proof_needed` units without a known checksum are returned too: for a caller
        that compares each with its record. Raises PositionRangeError outside of [min_offset,
        max_offset), DerivedDamageError or FileSystemError.
        """
        try:
            if self.min_offset <= lo <= hi <= self.max_offset:
                units = self._read_checked(lo, hi, is_proof_needed) if lo < hi else b""
                if hi <= self.max_offset:  # Else truncated meanwhile: maybe zeros.
                    return units
        except (FileSystemError, DerivedFileError):
            # A truncation or deletion meanwhile explains the error; else it is passed on.
            if self.min_offset <= lo <= hi <= self.max_offset:
                raise
        at_fault = hi if self.min_offset <= lo else lo
        raise PositionRangeError("queue offset", at_fault, self.min_offset, self.max_offset)

    def _read_checked(self, lo: int, hi: int, is_proof_needed: bool) -> bytes:
        """Read whole blocks, and compare each with its checksum."""
        sums = self.sums
        for tries_left in reversed(range(_TRIES)):
            tail = sums.tail
            first = block_lo = sums.block_lo(lo)
            end = tail.hi if hi > tail.lo else sums.block_hi(sums.block_lo(hi - 1))
            if end < hi:
                break  # Cut meanwhile.
            data, parts = self._read(first, end), []
            while block_lo < end:
                block_hi = tail.hi if block_lo == tail.lo else sums.block_hi(block_lo)
                at = (block_lo - first) * UNIT_SIZE_BYTES
                part = data[at : (block_hi - first) * UNIT_SIZE_BYTES]
                expected = sums.expected(block_lo, tail)
                if expected == UNKNOWN and not is_proof_needed:
                    pass
                elif expected != sums.sum_of(block_lo, part):
                    if tries_left and sums.tail is not tail:
                        break  # The block was cut or grew meanwhile.
                    is_known = expected != UNKNOWN
                    doubt = Doubt(self, block_lo, block_hi, part, is_known)
                    part = self._environment.on_doubt(doubt)
                parts.append(part)
                block_lo = block_hi
            else:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                return data[(lo - first) * UNIT_SIZE_BYTES : (hi - first) * UNIT_SIZE_BYTES]
        raise PositionRangeError("queue offset", hi, self.min_offset, self.max_offset)

    def raw_units(self, lo: int, hi: int) -> bytes:
        """Return the units [lo, hi) as the files have them, right or wrong; errors as a read."""
        return self._read(lo, hi)

    @property
    def first_file_offset(self) -> int:
        """First offset that the files have room for; equal to `max_offset` or less."""
        return self._file_lo

    def damage_error(self, lo: int, hi: int) -> DerivedDamageError:
        """Return the error for damage that a reader met in the units [lo, hi)."""
        file_lo = self._file_of(lo)
        at = (lo - file_lo) * UNIT_SIZE_BYTES
        return DerivedDamageError(
            self._path(file_lo), at, f"units of the offsets {lo} to {hi - 1}", (lo, hi)
        )

    def unit(self, offset: int) -> Unit:
        """Return (position, size in bytes, tags code) of one offset; errors as `read_units`."""
        position, size_bytes, tags_code = fmt.CONSUME_QUEUE_UNIT.unpack(
            self.read_units(offset, offset + 1)
        )
        return position, size_bytes, tags_code

    def search(self, lo: int, hi: int, is_before: IsBefore, *, is_proof_needed: bool = True) -> int:
        """Return the first offset of [lo, hi) whose unit is not `is_before`, or `hi`.

        The answers must be all true, then all false. Units on the way are not checked; the two on
        both sides of the result are compared with their checksums, which proves it. Otherwise as
        `read_units`, also for `is_proof_needed`.
        """
        try:
            first = self._search(lo, hi, is_before, self._read)
        except (CorruptionError, PositionRangeError):  # Of the callback, at a wrong place maybe.
            return self._search(lo, hi, is_before, self._read_proved)
        sides = range(max(lo, first - 1), min(hi, first + 1))
        if sides:
            units = self._read_checked(sides.start, sides.stop, is_proof_needed)
            unpacked = fmt.CONSUME_QUEUE_UNIT.iter_unpack(units)
            answers = [is_before(position, size_bytes) for position, size_bytes, _ in unpacked]
            if answers != [offset < first for offset in sides]:  # Damage led elsewhere.
                first = self._search(lo, hi, is_before, self._read_proved)
        return first

    def _read_proved(self, lo: int, hi: int) -> bytes:
        return self._read_checked(lo, hi, True)

    @staticmethod
    def _search(lo: int, hi: int, is_before: IsBefore, read: Callable[[int, int], bytes]) -> int:
        while lo < hi:
            middle = (lo + hi) // 2
            position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack(read(middle, middle + 1))
            if is_before(position, size_bytes):
                lo = middle + 1
            else:
                hi = middle
        return lo

    def _read(self, lo: int, hi: int) -> bytes:
        """Read units of files that exist, whether they are valid or not."""
        environment, parts = self._environment, []
        while lo < hi:
            file_lo = self._file_of(lo)
            part_hi = min(hi, file_lo + environment.units_per_file)
            with environment.descriptors.use(self._path(file_lo)) as file:
                at, size_bytes = (lo - file_lo) * UNIT_SIZE_BYTES, (part_hi - lo) * UNIT_SIZE_BYTES
                parts.append(environment.fs.read_at(file.fd, file.path, at, size_bytes))
            lo = part_hi
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- Names ---

    def _file_of(self, offset: int) -> int:
        """Return the first offset of the file that holds `offset`."""
        return offset - offset % self._environment.units_per_file

    def _path(self, file_lo: int) -> str:
        return f"{self.directory}/{fmt.file_name(file_lo * UNIT_SIZE_BYTES)}"
