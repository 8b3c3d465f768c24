"""Compares units of queues with the records that they name, and repairs what differs.

Owns which source counts (the log, and a checksum where the log agrees), how far the log has to be
read for a unit that is wrong, and the counters. Must not know the reader that met the damage. A
unit that is wrong names no record, so the record is searched between those of its neighbours.
"""

from collections.abc import Callable
from typing import Final

from store import format as fmt
from store.config import MIB
from store.derived.dispatch import Dispatcher
from store.derived.log_walk import LogWalk
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES, ConsumeQueue, Doubt
from store.errors import CorruptionError, DerivedFileError, FileSystemError, PositionRangeError
from store.log.record_log import RecordLog
from store.stats import StoreCounters

_UNIT: Final = fmt.CONSUME_QUEUE_UNIT
_NEIGHBOURS_MAX: Final = 16
"""Tries for a right neighbour, each twice as far away; then an end of the log counts."""
PROOF_SIZE_BYTES_MAX: Final = 16 * MIB
"""Bytes of records that a reader on an event loop may compare with one block: some ms."""


class UnitMender:
    """The unit mender of one store. Any thread may call; its writes exclude the dispatcher."""

    def __init__(
        self,
        log: RecordLog,
        walk: LogWalk,
        dispatcher: Dispatcher,
        counters: StoreCounters,
        tell: Callable[[str], None],
    ) -> None:
        """Take the parts of a store. `tell` gets the reports for operators."""
        self._log, self._walk, self._queues = log, walk, dispatcher.queues
        self._changes = log.changes
        self._dispatcher, self._counters = dispatcher, counters
        self._tell = tell
        self.at_once_size_bytes_max: int | None = None
        """Bytes of the log that a reader may have read for a repair; more is left to `mend`, and so
        are blocks of larger records. None: no limit."""

    # --- Readers ---

    def on_doubt(self, doubt: Doubt) -> bytes:
        """Return the right units of a block that may be wrong; repair the block if it is.

        Raises DerivedDamageError when too much of the log has to be read for that now,
        CorruptionError when the log is damaged there as well.
        """
        queue, lo, hi = doubt.queue, doubt.lo, doubt.hi
        size_bytes = sum(max(0, unit[1]) for unit in _UNIT.iter_unpack(doubt.units))
        if self.at_once_size_bytes_max is not None and size_bytes > PROOF_SIZE_BYTES_MAX:
            raise queue.damage_error(lo, hi)
        if self._first_wrong(queue, lo, hi, doubt.units) is None:
            queue.sums.learn(lo, hi, doubt.units)  # RocketMQ wrote it, or an older release.
            return doubt.units
        self._counters.derived_damage_count += 1
        self._tell(f"damage was found: {queue.damage_error(lo, hi)}")
        if not self._mend(queue, lo, hi, self.at_once_size_bytes_max):
            raise queue.damage_error(lo, hi)
        return queue.raw_units(lo, hi)

    def mend(self, topic: bytes, queue_id: int, lo: int, hi: int) -> None:
        """Repair units of a queue, however much of the log has to be read.

        Raises CorruptionError, StoreFullError, FileSystemError; DerivedFileError when the log has
        no such records.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return
        lo, hi = queue.sums.block_lo(max(lo, queue.min_offset)), min(hi, queue.max_offset)
        while lo < hi:
            block_hi = min(queue.sums.block_hi(lo), queue.max_offset)
            self._mend(queue, lo, block_hi, None)
            lo = block_hi

    def _mend(self, queue: ConsumeQueue, lo: int, hi: int, size_bytes_max: int | None) -> bool:
        """Repair a block; return False if it was cut or has expired meanwhile."""
        number, min_position = self._changes.number, self._log.min_position
        try:
            units = queue.raw_units(lo, hi)
            at = lo
            while (wrong := self._first_wrong(queue, lo, hi, units, at)) is not None:
                at = self._mend_run(queue, wrong, hi, units, lo, size_bytes_max)
            units = queue.raw_units(lo, hi)
        except (PositionRangeError, CorruptionError, DerivedFileError, FileSystemError):
            if self._changes.is_unchanged(number) and self._log.min_position == min_position:
                raise
            return False  # Cut or expired meanwhile.
        if self._first_wrong(queue, lo, hi, units) is None:
            self._learn(queue, lo, hi, units, number)
        return True

    def _learn(self, queue: ConsumeQueue, lo: int, hi: int, units: bytes, number: int) -> None:
        """Store the checksum of a block that is right up to `hi`; later units were put since."""
        sums = queue.sums
        with self._dispatcher.lock:
            tail = sums.tail
            end = tail.hi if lo == tail.lo else sums.block_hi(lo)
            if self._changes.is_unchanged(number) and hi <= end <= tail.hi:
                sums.learn(lo, end, units + queue.raw_units(hi, end))

    def _mend_run(
        self,
        queue: ConsumeQueue,
        lo: int,
        block_hi: int,
        units: bytes,
        block_lo: int,
        size_bytes_max: int | None,
    ) -> int:
        """Repair the units from a wrong one up to the next right one; return its offset."""
        hi = lo + 1
        while hi < block_hi and not self._is_right(queue, hi, units, block_lo):
            hi += 1
        number = self._changes.number
        before, behind = self._near(queue, lo - 1, -1), self._near(queue, hi, 1)
        from_position = sum(before) if before is not None else self._log.min_position
        if behind is not None:
            to_position = behind[0]
        else:
            with (
                self._dispatcher.lock
            ):  # Not in the middle of a round, which has put units already.
                to_position = self._dispatcher.dispatched_position
        size_bytes = to_position - from_position
        if size_bytes_max is not None and size_bytes > size_bytes_max:
            raise queue.damage_error(lo, hi)
        key = queue.topic.encode(), queue.queue_id
        mended: list[bytes] = []
        first = hi
        for said in self._walk.said(from_position, to_position):
            if said.has_unit and (said.topic, said.queue_id) == key and lo <= said.offset < hi:
                first = first if mended else said.offset
                if said.offset != first + len(mended):
                    break
                mended.append(said.unit)
        is_whole = first + len(mended) == hi
        # The first records may have expired: the queue learns it a moment later than the log.
        if not is_whole or (first > lo and from_position > self._log.min_position):
            what = f"records of the offsets {lo} to {hi - 1}"
            raise DerivedFileError(queue.directory, 0, what, "in the log", f"{len(mended)}")
        if mended:
            self._write(queue, first, b"".join(mended), number)
        return hi

    def _write(self, queue: ConsumeQueue, offset: int, units: bytes, number: int) -> None:
        hi = offset + len(units) // UNIT_SIZE_BYTES
        with self._dispatcher.lock:
            is_there = queue.file_lo <= offset and hi <= queue.max_offset
            if not is_there or not self._changes.is_unchanged(number):
                raise PositionRangeError("queue offset", hi, queue.min_offset, queue.max_offset)
            self._queues.mend(queue, offset, units)
        self._counters.derived_mended_unit_count += hi - offset
        name = f"{queue.topic}/{queue.queue_id}"
        self._tell(f"the units of the offsets {offset} to {hi - 1} of queue {name} are repaired")

    # --- Right and wrong ---

    def _first_wrong(
        self, queue: ConsumeQueue, lo: int, hi: int, units: bytes, from_offset: int = 0
    ) -> int | None:
        """Return the first of the units [lo, hi) that does not name its record; None: all do."""
        for offset in range(max(lo, from_offset, queue.min_offset), hi):
            if not self._is_right(queue, offset, units, lo):
                return offset
        return None

    def _is_right(self, queue: ConsumeQueue, offset: int, units: bytes, lo: int) -> bool:
        at = (offset - lo) * UNIT_SIZE_BYTES
        position, size_bytes, _ = _UNIT.unpack_from(units, at)
        said = self._walk.at(position, size_bytes)
        if said is None or not said.has_unit or said.offset != offset:
            return False
        is_of_queue = said.queue_id == queue.queue_id and said.topic.decode() == queue.topic
        return is_of_queue and said.unit == units[at : at + UNIT_SIZE_BYTES]

    def _near(self, queue: ConsumeQueue, offset: int, direction: int) -> tuple[int, int] | None:
        """Return position and size of the record of an offset, or of one not far in a direction;
        None when no unit there is right."""
        for step in range(_NEIGHBOURS_MAX):
            candidate = offset + direction * ((1 << step) - 1)
            if not queue.min_offset <= candidate < queue.max_offset:
                break
            unit = queue.raw_units(candidate, candidate + 1)
            position, size_bytes, _ = _UNIT.unpack(unit)
            is_live = direction > 0 or position >= self._log.min_position
            if is_live and self._is_right(queue, candidate, unit, candidate):
                return position, size_bytes
        return None

    # --- In log order ---

    def compare(self, topic: bytes, queue_id: int, offset: int, units: bytes) -> int:
        """Compare neighbouring units of a queue, as the log has them, with its file.

        Return how many were wrong; they are repaired then. Units with the right checksum stay when
        a plain log differs from them. Errors as `mend`.
        """
        number, position = self._changes.number, _UNIT.unpack_from(units)[0]
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            field = f"queue {topic.decode()}/{queue_id}"
            raise DerivedFileError(self._queues.directory, 0, field, "there", "no files")
        lo, hi = offset, offset + len(units) // UNIT_SIZE_BYTES
        try:
            if queue.file_lo > lo or hi > queue.max_offset:
                raise PositionRangeError("queue offset", lo, queue.min_offset, queue.max_offset)
            stored = queue.raw_units(lo, hi)
            is_hidden = lo < queue.min_offset and self._log.min_position <= position
            if stored == units and not is_hidden:
                return 0
            wrong = [
                n
                for n in range(hi - lo)
                if stored[n * UNIT_SIZE_BYTES : (n + 1) * UNIT_SIZE_BYTES]
                != units[n * UNIT_SIZE_BYTES : (n + 1) * UNIT_SIZE_BYTES]
            ] or [0]
            first, last = wrong[0], wrong[-1] + 1
            if not is_hidden and self._is_vouched(queue, lo + first, lo + last):
                name = f"{queue.topic}/{queue_id}"
                self._tell(
                    f"the log is damaged behind position {position}: its records do not fit the "
                    f"units of queue {name} from offset {lo + first} on, which have their checksum"
                )
                return 0
            right = units[first * UNIT_SIZE_BYTES : last * UNIT_SIZE_BYTES]
            self._counters.derived_damage_count += 1
            self._tell(f"damage was found: {queue.damage_error(lo, hi)}")
            self._write(queue, lo + first, right, number)
            return len(wrong)
        except (PositionRangeError, FileSystemError):
            if self._changes.is_unchanged(number) and self._log.min_position <= position:
                raise
            return 0  # Cut or expired meanwhile.

    def _is_vouched(self, queue: ConsumeQueue, lo: int, hi: int) -> bool:
        """Whether units are what was written although the log differs: a plain log has checksums
        of bodies only."""
        sums, tail = queue.sums, queue.sums.tail
        at = sums.block_lo(lo)
        while at < hi:
            end = tail.hi if at == tail.lo else sums.block_hi(at)
            if sums.expected(at, tail) != sums.sum_of(at, queue.raw_units(at, end)):
                return False
            at = end
        return not self._log.has_full_checksums
