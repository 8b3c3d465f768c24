"""One queue of the log: for each offset the position, size and tags code of its record.

Owns the files of one queue, where it begins and ends, and reads that compare each block with its
checksum; must not know records, other queues, or when to sync. The files are written with `pwrite`
and not through maps: a unit is 20 bytes, a node has ten thousand queues, and a map each would cost
two descriptors and 6 MB of allocated disk. So a file is set to its full size as a hole, which is
safe because nothing maps it.

Byte-compatible with RocketMQ ConsumeQueue (storage-formats 2.1, 2.2, 2.6). Deviations: the next
offset is checked before anything is written (there an order violation is logged and appended
anyway), the built mark moves after the write, fillers never count as records, and a cut leaves
zeros. Offsets are record numbers, positions are bytes of the log, `at` is a byte of a file.
"""

import os
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from store import format as fmt
from store.derived.queues.unit_sums import UnitSums
from store.derived.sum_files import UNKNOWN, SumFiles
from store.errors import (
    CorruptionError,
    DerivedDamageError,
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
    QueueOrderError,
)
from store.files import failpoints
from store.files.descriptor_cache import DescriptorCache, OpenFile
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import stage

Unit = tuple[int, int, int]  # Position, size in bytes, tags code.
IsBefore = Callable[[int, int], bool]  # (position, size in bytes) -> left of what is searched.

UNIT_SIZE_BYTES: Final = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES
FILLER: Final = fmt.CONSUME_QUEUE_UNIT.pack(0, fmt.CONSUME_QUEUE_FILLER_SIZE, 0)
_unpack_unit: Final = fmt.CONSUME_QUEUE_UNIT.unpack_from
_CHECKED_UNITS: Final = 1024  # Units before the end that recovery compares with each other.
_TRIES: Final = 4  # Reads of a block that is cut or grows beside them.
TAIL_FILES_MAX: Final = 128
"""Limit of files held at once; each is passed over when another one has to be closed for room."""
_SHARE: Final = 4
"""At most this part of the descriptors is held, so that most of them can still be closed."""


class Doubt(NamedTuple):
    """A block of units that may not be what was written: the offsets [lo, hi), as they were read.

    `is_known`: the block's checksum is known, and differs. Else it is not known.
    """

    queue: "ConsumeQueue"
    lo: int
    hi: int
    units: bytes
    is_known: bool


OnDoubt = Callable[[Doubt], bytes]
"""Returns the right units of the block. Raises DerivedDamageError while it cannot."""


def _no_log(doubt: Doubt) -> bytes:
    """Return the units unless they are known to be wrong: there is no log to compare with."""
    if doubt.is_known:
        raise doubt.queue.damage_error(doubt.lo, doubt.hi)
    return doubt.units


class TailFile(NamedTuple):
    """One held file, and the first offset in it."""

    file: OpenFile
    file_lo: int


class TailFiles:
    """The files at the ends of the queues that are written now. For the one thread that puts.

    A look-up in the cache of descriptors, its lock twice and the name of the file cost several
    times as much as the write of one unit. A file that is held is never closed under its user; one
    that was deleted or replaced says so, and is then held no longer.
    """

    def __init__(self, descriptors: DescriptorCache) -> None:
        self._descriptors = descriptors
        self._limit = min(TAIL_FILES_MAX, descriptors.limit // _SHARE)
        self.held: Final[dict[object, TailFile]] = {}
        """By queue, the one that has held its file for longest first; for others to read only."""

    def hold(self, queue: object, path: str, file_lo: int) -> TailFile | None:
        """Hold the file of a path for a queue, instead of the one that it holds; None if no file
        may be held. Raises FileSystemError."""
        if queue in self.held:
            self._release(queue)
        if not self._limit:
            return None
        while len(self.held) >= self._limit:
            self._release(next(iter(self.held)))
        file = self.held[queue] = TailFile(self._descriptors.acquire(path), file_lo)
        return file

    def release_all(self) -> None:
        """Hold no file any more: the queues are closed or dropped."""
        for queue in list(self.held):
            self._release(queue)

    def _release(self, queue: object) -> None:
        self._descriptors.release(self.held.pop(queue).file)


@dataclass(slots=True, eq=False)
class QueueEnvironment:
    """The environment that all queues of one store share."""

    fs: FileSystem
    directory: str
    units_per_file: int
    descriptors: DescriptorCache
    sums: SumFiles
    on_doubt: OnDoubt = _no_log
    new_names: set[str] = field(default_factory=set)
    """Directories above queues that got a name which is not durable. Changed by adding only; a sync
    replaces the set."""
    tail_files: TailFiles = field(init=False)

    def __post_init__(self) -> None:
        self.tail_files = TailFiles(self.descriptors)

    @property
    def file_size_bytes(self) -> int:
        """Size of every queue file."""
        return self.units_per_file * UNIT_SIZE_BYTES


class ConsumeQueue:
    """The units [min_offset, max_offset) of one queue. One writer; reads from any thread.

    Invariant: first file's offset <= min_offset <= max_offset <= end of the last file. Before the
    first unit there are only expired units and fillers; after the last one only zeros.
    """

    __slots__ = (
        "_environment",
        "_file_hi",
        "_is_cut_pending",
        "_may_have_more",
        "built_position",
        "file_lo",
        "has_new_names",
        "max_offset",
        "min_offset",
        "queue_id",
        "sums",
        "synced_offset",
        "topic",
    )

    def __init__(self, environment: QueueEnvironment, topic: str, queue_id: int) -> None:
        assert 0 <= queue_id < 1 << 31, f"queue id {queue_id}"
        self._environment = environment
        self.topic = topic
        self.queue_id = queue_id
        self.file_lo = 0  # First offset of the first file; equal to _file_hi without files.
        self._file_hi = 0  # Offset after the last file.
        self.min_offset = 0
        self.max_offset = 0  # The next offset. Published after the bytes.
        self.built_position = 0  # End of the last record that has a unit; 0 without one.
        self.synced_offset = 0  # Units before it are durable; changed by `sync` and `truncate`.
        self.has_new_names = False  # Files were made or deleted since the directory was synced.
        self._is_cut_pending = False  # A truncation has begun, and its zeros are not durable yet.
        self._may_have_more = False  # A put that failed may have left units behind max_offset.
        name, units_per_file = f"{topic}/{queue_id}", environment.units_per_file
        self.sums = UnitSums(environment.sums, name, units_per_file)

    @property
    def has_files(self) -> bool:
        """Whether a unit was ever put, or recovered."""
        return self.file_lo < self._file_hi

    # --- Names ---

    @property
    def directory(self) -> str:
        """Directory of the files: `<topic>/<queue id>`."""
        return f"{self._environment.directory}/{self.topic}/{self.queue_id}"

    def _file_of(self, offset: int) -> int:
        """Return the first offset of the file that holds `offset`."""
        return offset - offset % self._environment.units_per_file

    def _path(self, file_lo: int) -> str:
        return f"{self.directory}/{fmt.file_name(file_lo * UNIT_SIZE_BYTES)}"

    # --- Reading ---

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
            data, parts = self.raw_units(first, end), []
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
                    doubt = Doubt(self, block_lo, block_hi, part, expected != UNKNOWN)
                    part = self._environment.on_doubt(doubt)
                parts.append(part)
                block_lo = block_hi
            else:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                return data[(lo - first) * UNIT_SIZE_BYTES : (hi - first) * UNIT_SIZE_BYTES]
        raise PositionRangeError("queue offset", hi, self.min_offset, self.max_offset)

    def damage_error(self, lo: int, hi: int) -> DerivedDamageError:
        """Return the error for damage that a reader met in the units [lo, hi)."""
        file_lo = self._file_of(lo)
        at = (lo - file_lo) * UNIT_SIZE_BYTES
        return DerivedDamageError(
            self._path(file_lo), at, f"units of the offsets {lo} to {hi - 1}", (lo, hi)
        )

    def unit(self, offset: int) -> Unit:
        """Return (position, size in bytes, tags code) of one offset; errors as `read_units`."""
        return _unpack_unit(self.read_units(offset, offset + 1))

    def search(self, lo: int, hi: int, is_before: IsBefore, *, is_proof_needed: bool = True) -> int:
        """Return the first offset of [lo, hi) whose unit is not `is_before`, or `hi`.

        The answers must be all true, then all false. Units on the way are not checked; the two on
        both sides of the result are compared with their checksums, which proves it. Otherwise as
        `read_units`, also for `is_proof_needed`.
        """
        try:
            first = self._search(lo, hi, is_before, self.raw_units)
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
        def is_behind(offset: int) -> bool:
            position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack(read(offset, offset + 1))
            return not is_before(position, size_bytes)

        return lo + bisect_left(range(lo, hi), True, key=is_behind)

    def raw_units(self, lo: int, hi: int) -> bytes:
        """Return the units [lo, hi) as the files have them, right or wrong; errors as a read."""
        environment, parts = self._environment, []
        while lo < hi:
            file_lo = self._file_of(lo)
            part_hi = min(hi, file_lo + environment.units_per_file)
            with environment.descriptors.use(self._path(file_lo)) as file:
                at, size_bytes = (lo - file_lo) * UNIT_SIZE_BYTES, (part_hi - lo) * UNIT_SIZE_BYTES
                parts.append(environment.fs.read_at(file.fd, file.path, at, size_bytes))
            lo = part_hi
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- Building ---

    def append(self, first_offset: int, units: bytes) -> int:
        """Put units if they are the next ones and fit into the last file; return how many were new.

        Return 0, with nothing changed, where more than that has to be thought of: `put` does it.
        Raises StoreFullError or FileSystemError (nothing became visible, repeat the call).
        """
        size_bytes, environment = len(units), self._environment
        next_offset, hi = self.max_offset, first_offset + size_bytes // UNIT_SIZE_BYTES
        file_lo = self._file_hi - environment.units_per_file
        position, record_size_bytes, _ = _unpack_unit(units)
        if (
            first_offset != next_offset
            or not file_lo <= next_offset < hi <= self._file_hi
            or position < self.built_position
            or self._is_cut_pending
            or size_bytes % UNIT_SIZE_BYTES
        ):
            return 0
        tail_files = environment.tail_files
        held = tail_files.held
        tail = held[self] if self in held else None  # noqa: SIM401 - Without a call.
        if tail is None or tail.file_lo != file_lo or tail.file.is_evicted:
            tail = tail_files.hold(self, self._path(file_lo), file_lo)
            if tail is None:
                return 0
        if size_bytes > UNIT_SIZE_BYTES:
            position, record_size_bytes, _ = _unpack_unit(units, size_bytes - UNIT_SIZE_BYTES)
        self._may_have_more = True
        if failpoints.is_on:
            hit("consume_queue.write")
        at = (next_offset - file_lo) * UNIT_SIZE_BYTES
        environment.fs.write_at(tail.file.fd, tail.file.path, at, units)
        self._may_have_more = False
        self.built_position = position + record_size_bytes
        self.sums.put(units, size_bytes)
        self.max_offset = hi
        return hi - next_offset

    def put(self, first_offset: int, units: bytes, *, may_begin_late: bool) -> int:
        """Write whole units for the offsets from `first_offset` on; return how many were new.

        Units that are there already are compared and skipped, so a repetition changes nothing. A
        queue that was never built begins at 0, or anywhere with `may_begin_late` (the log no
        longer holds its beginning). No byte is durable yet. Raises QueueOrderError for a gap and
        DerivedFileError when the queue holds other units (both: nothing was written, rebuild), or
        StoreFullError or FileSystemError (nothing became visible, repeat the call).
        """
        count, rest = divmod(len(units), UNIT_SIZE_BYTES)
        assert count > 0, "no unit to put"
        assert rest == 0, f"{rest} bytes too many"
        assert not self._is_cut_pending, f"{self.directory}: a truncation failed, repeat it"
        if not self.has_files:
            if first_offset < 0 or (first_offset > 0 and not may_begin_late):
                raise QueueOrderError(self.topic, self.queue_id, 0, first_offset)
            self.begin(first_offset)
        next_offset = self.max_offset
        if not 0 <= first_offset <= next_offset:
            raise QueueOrderError(self.topic, self.queue_id, next_offset, first_offset)
        if first_offset < next_offset:
            built_count = min(next_offset - first_offset, count)
            self._check_built(first_offset, units[: built_count * UNIT_SIZE_BYTES])
            if built_count == count:
                return 0
            units = units[built_count * UNIT_SIZE_BYTES :]
            count -= built_count
        position = fmt.CONSUME_QUEUE_UNIT.unpack_from(units)[0]
        if position < self.built_position:
            expected = f"position {self.built_position} or later"
            raise self._damage(next_offset, "next unit", expected, str(position))
        self._may_have_more = True
        self._write(next_offset, units)
        self._may_have_more = False
        last_position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack_from(
            units, len(units) - UNIT_SIZE_BYTES
        )
        self.built_position = last_position + size_bytes
        self.sums.put(units, len(units))
        self.max_offset = next_offset + count
        return count

    def begin(self, offset: int) -> None:
        """Make the first file of a queue whose next offset is `offset`.

        Fillers come before it, as RocketMQ's fillPreBlank. Raises as `put`.
        """
        self.file_lo = self._file_hi = self._file_of(offset)
        fillers = FILLER * (offset - self.file_lo)
        self._add_file(fillers)
        self.sums.begin(self.file_lo, offset, fillers)
        self.min_offset = self.max_offset = offset
        self.synced_offset = self.file_lo

    def _write(self, offset: int, units: bytes) -> None:
        """Write units that may reach into files that do not exist yet."""
        environment, lo = self._environment, 0
        descriptors = environment.descriptors
        while lo < len(units):
            if offset >= self._file_hi:
                self._add_file()
            file_lo = self._file_of(offset)
            at = (offset - file_lo) * UNIT_SIZE_BYTES
            part = units[lo : lo + environment.file_size_bytes - at]
            hit("consume_queue.write")
            file = descriptors.acquire(self._path(file_lo))
            try:
                environment.fs.write_at(file.fd, file.path, at, part)
            finally:
                descriptors.release(file)
            lo += len(part)
            offset += len(part) // UNIT_SIZE_BYTES

    def _add_file(self, fillers: bytes = b"") -> None:
        """Make the next file under a temporary name: a wrong size then always means damage."""
        environment, path = self._environment, self._path(self._file_hi)
        fs, name = environment.fs, os.path.basename(path)
        if not os.path.isdir(self.directory):
            # Not durable yet: building queues must not wait for a disk.
            fs.make_directory(self.directory, is_durable=False)
            topic_directory = os.path.dirname(self.directory)
            root = os.path.dirname(environment.directory)
            environment.new_names |= {topic_directory, environment.directory, root}
        environment.descriptors.forget(path)
        temporary = stage(fs, environment.directory, name, part=f"{self.queue_id}-")
        fd = fs.open(temporary, create=True)
        try:
            fs.set_size(fd, temporary, environment.file_size_bytes)
            if fillers:
                fs.write_at(fd, temporary, 0, fillers)
            fs.rename(temporary, path)
        finally:
            fs.close(fd)
        self.has_new_names = True
        self._file_hi += environment.units_per_file

    def _check_built(self, first_offset: int, units: bytes) -> None:
        """Compare units with those that are there; offsets that have expired cannot be compared."""
        skip = max(0, min(self.min_offset - first_offset, len(units) // UNIT_SIZE_BYTES))
        lo, hi = first_offset + skip, first_offset + len(units) // UNIT_SIZE_BYTES
        units = units[skip * UNIT_SIZE_BYTES :]
        stored = self.raw_units(lo, hi)
        if stored == units:
            return
        for at in range(0, len(units), UNIT_SIZE_BYTES):
            unit, other = units[at : at + UNIT_SIZE_BYTES], stored[at : at + UNIT_SIZE_BYTES]
            if unit != other:
                raise self._damage(lo + at // UNIT_SIZE_BYTES, "unit", unit.hex(), other.hex())

    def rewrite(self, offset: int, units: bytes) -> None:
        """Overwrite units that are there already; the caller excludes `put`, cuts and deletions.

        Not durable yet: the next sync includes them. Raises StoreFullError or FileSystemError.
        """
        hi = offset + len(units) // UNIT_SIZE_BYTES
        assert self.file_lo <= offset < hi <= self.max_offset, f"{offset} to {hi} of {self}"
        self._write(offset, units)
        self.synced_offset = min(self.synced_offset, offset)
        self.min_offset = min(self.min_offset, offset)

    # --- Durability ---

    def sync_units(self) -> None:
        """Make the units that were put before the call durable. Raises SyncFailedError: stop.

        The directory is synced apart (`sync_names`), so that many queues share a journal commit.
        """
        environment = self._environment
        hi = self.max_offset
        lo = max(self.synced_offset, self.file_lo)
        # The file of the next unit is included: a cut has changed it.
        last = min(hi, self._file_hi - 1)
        for file_lo in range(self._file_of(lo), last + 1, environment.units_per_file):
            with environment.descriptors.use(self._path(file_lo)) as file:
                environment.fs.sync(file.fd, file.path)
        self.synced_offset = hi

    def sync_names(self) -> None:
        """Make created and deleted files durable. Raises SyncFailedError: stop."""
        if self.has_new_names:
            self.has_new_names = False
            self._environment.fs.sync_directory(self.directory)

    # --- Opening ---

    def recover(self, hi_position: int, *, is_clean: bool, may_be_short: bool = False) -> None:
        """Find the last unit of a record before `hi_position`, and cut off what follows it.

        All units before `hi_position` were written once. With `is_clean` they are durable, and
        zeros follow, unless the next unit is not zeros. With `may_be_short` the last file may have
        been left by an interrupted cut, which cannot be told from damage. Raises
        DerivedFileError when the files cannot be what this queue wrote: rebuild. Deviation:
        RocketMQ walks the last three files from the start; here a binary search finds the end, so
        that 10,000 queues open fast.
        """
        names = self._load_names(may_be_short)
        if not names:
            return
        step = self._environment.units_per_file
        self.file_lo = int(names[0]) // UNIT_SIZE_BYTES
        self._file_hi = int(names[-1]) // UNIT_SIZE_BYTES + step

        def is_before(position: int, size_bytes: int) -> bool:
            if size_bytes == fmt.CONSUME_QUEUE_FILLER_SIZE:
                return position == 0
            return size_bytes > 0 and 0 <= position < hi_position

        last = self._file_hi - step
        while (
            last > self.file_lo and self._search(last, last + 1, is_before, self.raw_units) == last
        ):
            last -= step
        hi = self._search(last, last + step, is_before, self.raw_units)
        # Fillers can be in the first file only, and only before everything else.
        self.min_offset = self._search(
            self.file_lo,
            min(hi, self.file_lo + step),
            lambda position, size_bytes: size_bytes == fmt.CONSUME_QUEUE_FILLER_SIZE,
            self.raw_units,
        )
        self.max_offset = hi
        self._check_order(max(self.min_offset, hi - _CHECKED_UNITS), hi)
        if hi > self.min_offset:
            position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack(self.raw_units(hi - 1, hi))
            self.built_position = position + size_bytes
        self.sums.open(hi)
        # After a crash of the process alone, units and names may be in the page cache only.
        self.synced_offset = hi if is_clean else self.file_lo
        self.has_new_names = not is_clean
        has_more = hi < self._file_hi and self.raw_units(hi, hi + 1) != bytes(UNIT_SIZE_BYTES)
        if has_more or not is_clean:
            self._cut()

    def _load_names(self, may_be_short: bool) -> list[str]:
        """List the files; check sizes and sequence."""
        environment, directory = self._environment, self.directory
        names = [n for n in environment.fs.list_directory(directory) if fmt.is_file_name(n)]
        expected_at = int(names[0]) if names else 0
        for name in names:
            path = os.path.join(directory, name)
            if int(name) != expected_at or expected_at % environment.file_size_bytes:
                raise DerivedFileError(path, 0, "file name", fmt.file_name(expected_at), name)
            with environment.descriptors.use(path) as file:
                names_size = environment.fs.size_bytes(file.fd)
                if may_be_short and name == names[-1] and not names_size % UNIT_SIZE_BYTES:
                    environment.fs.set_size(file.fd, file.path, environment.file_size_bytes)
                    names_size = environment.file_size_bytes
            if names_size != environment.file_size_bytes:
                size_bytes = environment.file_size_bytes
                raise DerivedFileError(
                    path, names_size, "file size", str(size_bytes), str(names_size)
                )
            expected_at += environment.file_size_bytes
        return names

    def _check_order(self, lo: int, hi: int) -> None:
        """Check that records follow each other in the log as they do in the queue."""
        before = 0
        units = self.raw_units(lo, hi)
        unpacked = fmt.CONSUME_QUEUE_UNIT.iter_unpack(units)
        for offset, (position, size_bytes, _) in enumerate(unpacked, lo):
            if position < before or size_bytes < fmt.RECORD_SIZE_BYTES_MIN:
                expected = f"position {before} or later, {fmt.RECORD_SIZE_BYTES_MIN} bytes or more"
                raise self._damage(offset, "unit", expected, f"{position}, {size_bytes} bytes")
            before = position + size_bytes

    # --- Cutting ---

    def truncate(self, position: int) -> None:
        """Drop the units of records at and after `position`, and zero them durably.

        Raises FileSystemError or SyncFailedError; readers do not see the units any more then, and
        the call must be repeated.
        """
        hi = self._offset_at(position)
        if hi == self.max_offset and not (self._is_cut_pending or self._may_have_more):
            return
        if hi > self.min_offset:
            last = self.read_units(hi - 1, hi, is_proof_needed=False)
            last_position, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack(last)
            self.built_position = last_position + size_bytes
        else:
            self.built_position = 0
        self._is_cut_pending = True
        self.max_offset = hi
        self.sums.cut(hi)
        self._cut()
        self.synced_offset = min(self.synced_offset, hi)
        self.sync_units()
        self.sync_names()
        self._is_cut_pending = self._may_have_more = False

    def _offset_at(self, position: int) -> int:
        """Return the first offset whose record is at or after `position`."""
        lo, hi = self.min_offset, self.max_offset
        offset = self.search(lo, hi, lambda p, _: p < position, is_proof_needed=False)
        if offset < hi:  # Units will be dropped, and a wrong one may have led here.
            with suppress(CorruptionError, DerivedFileError):  # Without proof: `found` stays.
                return self.search(lo, hi, lambda p, _: p < position)
        return offset

    def _cut(self) -> None:
        """Make everything from max_offset on zero: shrink the last file, then grow it again.

        A crash between the two leaves a file of a wrong size, which is damage: it is rebuilt then.
        """
        environment, fs = self._environment, self._environment.fs
        hit("consume_queue.cut")
        # The first file stays even when empty: its name, and its fillers, keep the next offset.
        while self._file_hi - environment.units_per_file >= max(self.max_offset, self.file_lo + 1):
            self._delete_file(self._file_hi - environment.units_per_file)
            self._file_hi -= environment.units_per_file
        if self.max_offset < self._file_hi:
            file_lo = self._file_of(self.max_offset)
            with environment.descriptors.use(self._path(file_lo)) as file:
                at = (self.max_offset - file_lo) * UNIT_SIZE_BYTES
                fs.set_size(file.fd, file.path, at)
                fs.set_size(file.fd, file.path, environment.file_size_bytes)

    def correct_min_offset(self, min_position: int) -> None:
        """Raise min_offset to the first unit of a record at or after `min_position` (2.6).

        A unit without a known checksum is accepted, since its record may have expired, if it is in
        order with those before it. Raises DerivedFileError otherwise; nothing has changed then.
        """
        offset = self.search(
            self.min_offset,
            self.max_offset,
            lambda position, _: position < min_position,
            is_proof_needed=False,
        )
        if offset > self.min_offset:  # A wrong unit would hide all units before it.
            self._check_order(max(self.min_offset, offset - _CHECKED_UNITS), offset)
        self.min_offset = offset

    def delete_expired(self, min_position: int) -> int:
        """Delete files whose last record is before `min_position`; return how many, never the last.

        Corrects min_offset first, so no reader looks for a deleted file. Raises FileSystemError;
        repeat it then.
        """
        self.correct_min_offset(min_position)
        step, count = self._environment.units_per_file, 0
        while self.file_lo + step < self._file_hi and self.file_lo + step <= self.min_offset:
            hit("consume_queue.delete")
            self._delete_file(self.file_lo)
            self.file_lo += step
            count += 1
        return count

    def _delete_file(self, file_lo: int) -> None:
        path = self._path(file_lo)
        self._environment.descriptors.forget(path)
        if os.path.exists(path):  # Not when a repetition finds it done.
            self._environment.fs.unlink(path)
        self.sums.forget_file(file_lo)
        self.has_new_names = True

    def _damage(self, offset: int, field: str, expected: str, actual: str) -> DerivedFileError:
        file_lo = self._file_of(offset)
        at = (offset - file_lo) * UNIT_SIZE_BYTES
        field = f"{field} of offset {offset}"
        return DerivedFileError(self._path(file_lo), at, field, expected, actual)
