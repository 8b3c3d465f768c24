"""Compares key index files with the log, and repairs what differs.

Owns how entries and keys of the log are brought side by side: both have the order of the log, so
one entry that is right tells which key each other entry must have. Chains, slots and header follow
from the entries. Must not know the reader that met the damage.

A file that is whole costs its reading. A file with damage costs the log of the wrong blocks, and
0.3 us for each entry of the file, beside the work.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from store import format as fmt
from store.derived.dispatch import Dispatcher
from store.derived.keys.index_file import IndexFile, seconds_since
from store.derived.log_walk import LogWalk, Said
from store.errors import ClosedError, CorruptionError, DerivedFileError, PositionRangeError
from store.log.record_log import RecordLog
from store.stats import StoreCounters

_ENTRY: Final = fmt.INDEX_ENTRY
_STEP: Final = fmt.INDEX_ENTRY_SIZE_BYTES
_ENTRIES_AT_ONCE: Final = 50_000
_REFERENCES_MAX: Final = 4096
"""Entries tried in search of one that is right."""
_CONFIRMED_BLOCKS_MAX: Final = 256
"""Blocks that an opening confirms: 65,536 entries; the pass compares the others with the log."""
_LATER_MS_MAX: Final = 86_400_000
"""Time by which the newest entry of a file may follow its last one: clocks of leaders differ."""


class Key(NamedTuple):
    """One key of one record, as read from the log."""

    value: int
    position: int
    store_unix_ms: int


class KeyMender:
    """The key mender of one store. For one thread at a time, which is not that of the appends."""

    def __init__(
        self,
        log: RecordLog,
        walk: LogWalk,
        dispatcher: Dispatcher,
        counters: StoreCounters,
        tell: Callable[[str], None],
    ) -> None:
        """Take the arguments of `UnitMender`."""
        self._log, self._walk, self._index = log, walk, dispatcher.index
        self._changes = log.changes
        self._dispatcher, self._counters = dispatcher, counters
        self._tell = tell

    def confirm_last(self, file: IndexFile) -> None:
        """Compare the last entries without a confirmed checksum with the records that they name.

        After a crash they are those of the block that was being filled, and after a power loss
        those whose checksums it took. Where they name their records, no other record is read: the
        mark counts entries, so that none is lacking. Errors as `mend`.
        """
        for lo, hi in islice(file.doubtful_last_blocks(), _CONFIRMED_BLOCKS_MAX):
            if not self._name_records(file, lo, hi):
                self.mend(file)
                return
            entries = file.raw_entries(lo, hi)
            if lo == file.sums.tail.lo:
                file.sums.trust(lo, hi, entries)
            else:
                file.sums.learn_entries(lo, entries)

    def _name_records(self, file: IndexFile, lo: int, hi: int) -> bool:
        """Whether the entries [lo, hi) are keys of the records at their positions, in log order, as
        far as the log still has them."""
        last, said = -1, None
        for value, position, seconds, _ in _ENTRY.iter_unpack(file.raw_entries(max(lo, 1), hi)):
            if position != last:
                said = self._said_at(position)
            is_right = position < self._log.min_position or (
                said is not None
                and value in said.hashes
                and seconds == seconds_since(file.begin_unix_ms, said.store_unix_ms)
            )
            if position < last or not is_right:
                return False
            last = position
        return True

    def mend(self, file: IndexFile) -> bool:
        """Compare entries, header and slots without a confirmed checksum with the log, and repair
        the wrong ones; return whether there were any.

        Raises CorruptionError when the log is damaged, DerivedFileError when log and file cannot be
        brought together, StoreFullError, FileSystemError, ClosedError.
        """
        number, min_position = self._changes.number, self._log.min_position
        try:
            blocks, is_header_doubtful = file.doubtful_blocks(), file.is_header_doubtful()
            if not (blocks or is_header_doubtful or file.are_slots_doubtful()):
                return False
            return self._mend_blocks(number, file, blocks, are_times_doubtful=is_header_doubtful)
        except ClosedError:
            if file in self._index.files:
                raise
            return False  # Expired meanwhile.
        except (PositionRangeError, CorruptionError, DerivedFileError):
            is_same = self._changes.is_unchanged(number) and self._log.min_position == min_position
            if is_same and file in self._index.files:
                raise
            return False  # Cut or expired meanwhile.

    def _mend_blocks(
        self,
        number: int,
        file: IndexFile,
        blocks: list[tuple[int, int]],
        *,
        are_times_doubtful: bool,
    ) -> bool:
        """Repair blocks of entries, and all that follows from them; return whether any of it was
        wrong. `number` is that of the log's changes before the blocks were chosen."""
        begin_ms, wrong = self.mend_begin(file), 0  # First: seconds count from it.
        for lo, hi in _joined(blocks):
            wrong += self._mend_entries(file, max(lo, 1), hi, number)
        if are_times_doubtful or begin_ms != file.begin_unix_ms:
            wrong += self.mend_end(file, begin_ms)
        wrong += self._mend_chains(file, number)
        if wrong:
            self._counters.derived_mended_key_count += wrong
            self._tell(f"{wrong} entries and slots of {file.path} are repaired from the log")
        return wrong > 0

    # --- Entries ---

    def _mend_entries(self, file: IndexFile, lo: int, hi: int, number: int) -> int:
        """Repair the entries [lo, hi), but for their chains; return how many were wrong."""
        wrong = 0
        first, keys = self._keys(file, lo, hi)
        while first < hi:
            some = list(islice(keys, min(_ENTRIES_AT_ONCE, hi - first)))
            if not some:
                key, none = "a key of the log", "none is left"
                raise DerivedFileError(file.path, 0, f"entry {first}", key, none)
            wrong += self._compare(file, first, some, number)
            first += len(some)
        return wrong

    def _compare(self, file: IndexFile, lo: int, keys: list[Key], number: int) -> int:
        if lo == 1 and file.begin_unix_ms != keys[0].store_unix_ms:
            file.begin_unix_ms = keys[0].store_unix_ms
        begin_ms, wrong = file.begin_unix_ms, 0
        stored = file.raw_entries(lo, lo + len(keys))
        right = bytearray(stored)
        for at, key, entry in zip(
            range(0, len(stored), _STEP), keys, _ENTRY.iter_unpack(stored), strict=True
        ):
            seconds = seconds_since(begin_ms, key.store_unix_ms)
            if entry[:3] != (key.value, key.position, seconds):
                wrong += 1
                _ENTRY.pack_into(right, at, key.value, key.position, seconds, entry[3])
        if wrong:
            self._write(file, lo, bytes(right), number)
        return wrong

    def _write(self, file: IndexFile, lo: int, entries: bytes, number: int) -> None:
        hi = lo + len(entries) // _STEP
        with self._dispatcher.lock:
            is_there = file in self._index.files and hi <= file.count
            if not self._changes.is_unchanged(number) or not is_there:
                raise PositionRangeError("key index entry", lo, 1, file.count)
            file.rewrite_entries(lo, entries)

    def _keys(self, file: IndexFile, lo: int, hi: int) -> tuple[int, Iterator[Key]]:
        """Return the first entry from `lo` on whose record the log still has, and its key and all
        that follow."""
        before = self._before(file, lo)
        if before is not None:
            position, count = before
            return lo, islice(self._stream(position), count, None)
        start = self._log.min_position  # First: what is found then lies behind it.
        reference = self._reference(file, lo, hi)
        if reference is None:
            return hi, iter(())  # No entry of these is known to be live.
        entry, position = reference  # `entry` is the first key of the record there.
        count = 0
        for key in self._stream(start):
            if key.position >= position:
                break
            count += 1
        first = max(entry - count, lo)
        return first, islice(self._stream(start), first - (entry - count), None)

    def _before(self, file: IndexFile, lo: int) -> tuple[int, int] | None:
        """Return where the record of the entry before `lo` is, and how many of its keys are in.

        None when the log does not have it any more."""
        entries = self._backwards(file, lo - 1)
        try:
            last = next(entries, None)
            if last is None:
                return (0, 0) if self._log.min_position == 0 else None
            count = 1
            for position in entries:
                if position != last:
                    break
                count += 1
        except ClosedError:  # The file before it expired meanwhile.
            return None
        return (last, count) if last >= self._log.min_position else None

    def _backwards(self, file: IndexFile, entry: int) -> Iterator[int]:
        """Yield the positions of entries, from one on backwards, through all files."""
        files = self._index.files
        number = files.index(file) if file in files else -1
        while number >= 0:
            file = files[number]
            while entry >= 1:
                yield int(_ENTRY.unpack(file.raw_entries(entry, entry + 1))[1])
                entry -= 1
            number -= 1
            if number >= 0:
                entry = files[number].count - 1

    def _reference(self, file: IndexFile, lo: int, hi: int) -> tuple[int, int] | None:
        """Return the entry of the first key of a record, and the position of that, if an entry is
        found that is right, and stands alone in its record."""
        looked = 0
        for entry in range(lo, min(hi + 1, file.count)):
            value, position, _, _ = _ENTRY.unpack(file.raw_entries(entry, entry + 1))
            if position < self._log.min_position:
                continue
            said = self._said_at(position)
            hashes = () if said is None else said.hashes
            if hashes.count(value) == 1:
                return entry - hashes.index(value), position
            looked += 1
            if looked >= _REFERENCES_MAX:
                break
        return None

    def _said_at(self, position: int) -> Said | None:
        if position < self._log.min_position:
            return None
        try:
            size_bytes = int.from_bytes(self._log.read(position, 4), "big")
        except (PositionRangeError, ClosedError):
            return None
        return self._walk.at(position, size_bytes)

    def _stream(self, position: int) -> Iterator[Key]:
        """Yield the keys from a position on, all of them: PositionRangeError once it has expired,
        since the caller counts."""
        with self._dispatcher.lock:
            hi = self._dispatcher.dispatched_position
        for said in self._walk.said(position, hi):
            for value in said.hashes:
                yield Key(value, said.position, said.store_unix_ms)

    # --- Times, chains and slots ---

    def mend_begin(self, file: IndexFile) -> int:
        """Set the begin time of a header from the log, in memory, if that has the first record;
        return the time it had. Entries put or mended before this call have wrong seconds."""
        before_ms = file.begin_unix_ms
        if file.count > 1:
            value, position, _, _ = _ENTRY.unpack(file.raw_entries(1, 2))
            said = self._said_at(position)
            if said is not None and value in said.hashes:  # Else the entry may be wrong.
                with self._dispatcher.lock:
                    file.begin_unix_ms = said.store_unix_ms
        return before_ms

    def mend_end(self, file: IndexFile, begin_ms: int) -> int:
        """Set the end time, in memory; return how many times of the header were wrong.

        The entries and the begin time are right already; the latter was `begin_ms` before."""
        if file.count <= 1:
            return 0
        is_begin_wrong, end_ms = begin_ms != file.begin_unix_ms, file.end_unix_ms
        last_ms = self._last_ms(file)
        if not is_begin_wrong and last_ms <= end_ms <= last_ms + _LATER_MS_MAX:
            return 0
        count = file.count
        seconds = self._seconds_max(file, 1, count)
        with self._dispatcher.lock:  # No put runs meanwhile.
            seconds = max(seconds, self._seconds_max(file, count, file.count))
            file.end_unix_ms = file.begin_unix_ms + seconds * 1000 + 999
        return is_begin_wrong + (end_ms != file.end_unix_ms)

    def _last_ms(self, file: IndexFile) -> int:
        """Return when the record of the last entry was stored; to the second below without it."""
        last = file.raw_entries(file.count - 1, file.count)
        value, position, seconds, _ = _ENTRY.unpack(last)
        said = self._said_at(position)
        floor_ms: int = file.begin_unix_ms + seconds * 1000
        if said is None or value not in said.hashes:
            return floor_ms
        return max(said.store_unix_ms, floor_ms)

    @staticmethod
    def _seconds_max(file: IndexFile, lo: int, hi: int) -> int:
        seconds = 0
        for first in range(lo, hi, _ENTRIES_AT_ONCE):
            entries = file.raw_entries(first, min(first + _ENTRIES_AT_ONCE, hi))
            seconds = max(seconds, *(entry[2] for entry in _ENTRY.iter_unpack(entries)))
        return seconds

    def _mend_chains(self, file: IndexFile, number: int) -> int:
        """Rebuild chains, slots and header; return how many were wrong."""
        slots = array("i", bytes(file.slot_count * fmt.INDEX_SLOT_SIZE_BYTES))
        lo, wrong = 1, 0
        while lo + _ENTRIES_AT_ONCE < file.count:
            wrong += self._chain(file, lo, lo + _ENTRIES_AT_ONCE, slots, number)
            lo += _ENTRIES_AT_ONCE
        with self._dispatcher.lock:  # The rest in one go: no put runs meanwhile.
            count = file.count
            if (
                not self._changes.is_unchanged(number) or count < lo
            ):  # Cut: slots lead behind the end.
                raise PositionRangeError("key index entry", lo, 1, count)
            wrong += self._chain(file, lo, count, slots, number)
            if count > 1:
                _, file.begin_position, _, _ = _ENTRY.unpack(file.raw_entries(1, 2))
                _, file.end_position, _, _ = _ENTRY.unpack(file.raw_entries(count - 1, count))
                file.end_unix_ms = max(file.end_unix_ms, file.begin_unix_ms)
            wrong += file.rewrite_slots(slots)
            lo, hi, _ = tail = file.sums.tail  # The last block: all of it is right now.
            entries = file.raw_entries(lo, hi)
            if file.sums.expected_entries(lo, tail) != file.sums.entries_sum(lo, entries):
                file.sums.trust(lo, hi, entries)
        self._learn(file)
        return wrong

    def _chain(self, file: IndexFile, lo: int, hi: int, slots: "array[int]", number: int) -> int:
        stored, slot_count, wrong = file.raw_entries(lo, hi), file.slot_count, 0
        right: bytearray | None = None
        for entry, (value, position, seconds, before) in enumerate(_ENTRY.iter_unpack(stored), lo):
            slot = value % slot_count
            if before != slots[slot]:
                wrong += 1
                right = right or bytearray(stored)
                at = (entry - lo) * _STEP
                _ENTRY.pack_into(right, at, value, position, seconds, slots[slot])
            slots[slot] = entry
        if right is not None:
            self._write(file, lo, bytes(right), number)
        return wrong

    def _learn(self, file: IndexFile) -> None:
        """Take the checksums of full blocks, which no longer change; appends do not wait for it."""
        for lo, hi in file.doubtful_blocks():
            entries = file.raw_entries(lo, hi)
            with self._dispatcher.lock:  # Without it the checksums could outlive the file.
                if lo != file.sums.tail.lo and file in self._index.files:
                    file.sums.learn_entries(lo, entries)

    # --- In log order ---

    def compare(self, keys: list[Key]) -> bool:
        """Compare neighbouring keys of the log with their entries, and mend the file that differs;
        return whether one was mended. Entries with the right checksum stay when a plain log differs
        from them: a plain log has checksums of bodies only. Errors as `mend`."""
        for file in self._index.files:
            lo, hi = file.begin_position, file.end_position
            some = [key for key in keys if lo <= key.position <= hi]
            try:
                if not some or file.count <= 1 or self._has(file, some):
                    continue
                if not (self._log.has_full_checksums or file.doubtful_blocks()):
                    self._tell(
                        f"the log is damaged behind position {some[0].position}: its records do "
                        f"not have the keys of {file.path}, which has its checksums"
                    )
                else:
                    self._counters.derived_damage_count += 1
                    self._tell(f"damage was found: {file.path} does not have the keys of the log")
                    number, whole = self._changes.number, [(1, file.count)]
                    return self._mend_blocks(number, file, whole, are_times_doubtful=True)
            except ClosedError:
                if file in self._index.files:  # Else it expired meanwhile.
                    raise
        return False

    def _has(self, file: IndexFile, keys: list[Key]) -> bool:
        """Whether the entries of these records are these keys; at the ends of the file there may be
        fewer: the others are in the next file or the one before."""

        def position(entry: int) -> int:
            return int(_ENTRY.unpack(file.raw_entries(entry, entry + 1))[1])

        lo = 1 + bisect_left(range(1, file.count), keys[0].position, key=position)
        is_first, hi = lo == 1, min(file.count, lo + len(keys))
        is_last = hi == file.count
        stored = [one[:2] for one in _ENTRY.iter_unpack(file.raw_entries(lo, hi))]
        wanted = [(key.value, key.position) for key in keys]
        spare = len(wanted) - len(stored)
        tries = range(spare + 1) if is_first else range(1)
        if spare and not (is_first or is_last):
            return False
        return any(wanted[skip : skip + len(stored)] == stored for skip in tries)


def _joined(blocks: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring blocks as one."""
    lo = hi = -1
    for block_lo, block_hi in blocks:
        if block_lo != hi:
            if lo < hi:
                yield lo, hi
            lo = block_lo
        hi = block_hi
    if lo < hi:
        yield lo, hi
