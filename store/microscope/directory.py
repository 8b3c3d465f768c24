"""Finds things in the files of a store directory, right or wrong, and what lies beside them.

Owns the way from an index, a position, an offset or a slot to bytes; must not judge them. Reads
through descriptors only, so it works beside the store that has the directory open, up to the
position that this one's readers see. Nothing is written, and no lock is taken.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from store import format as fmt
from store.config import StoreConfig
from store.derived.keys.index_files import DIRECTORY as INDEX_DIRECTORY
from store.derived.keys.key_sums import IndexShape
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.derived.queues.consume_queues import DIRECTORY as QUEUE_DIRECTORY
from store.errors import (
    CorruptionError,
    LayoutError,
    LimitExceededError,
    NoBeginningError,
    PositionRangeError,
    StoreError,
    TopicNameError,
)
from store.files.descriptor_cache import DescriptorCache
from store.fsck.files import OPEN_FILES_MAX, Place, ReadOnlyFileSystem, Segments
from store.fsck.layout import GivenSettings, detect, index_names
from store.fsck.types import Part
from store.ledger.entry import unpack_header
from store.microscope.record import record_end, said_by
from store.microscope.specimen import Specimen, integer_at
from store.microscope.specimen import SpecimenKind as Kind
from store.record.message import check_topic

SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of all that one look returns."""
_READ_SIZE_BYTES: Final = fmt.ENTRY_SIZE_BYTES_MAX + fmt.RECORD_OVERHEAD_BYTES_MAX
_HEADER: Final = fmt.ENTRY_HEADER_SIZE_BYTES
_UNIT: Final = fmt.INDEX_UNIT_SIZE_BYTES
_ENTRY_BLANK: Final = b"\xff\xff\xff\xff"
_MAGICS: Final = (fmt.MAGIC_V1, fmt.MAGIC_V2)
_WALK_COUNT_MAX: Final = 200_000
"""Headers that one walk reads: about a second."""
_REPAIR: Final = "'qlog store repair' makes it again from the data"
_FROM_REPLICA: Final = "another replica has it, and 'qlog store verify' says what else is missing"

Bounds = Callable[[], tuple[int, int]]
"""Returns the log positions [lo, hi) that readers see."""


class LogDirectory:
    """The files of one store. One thread; close it, or use it as a context manager."""

    def __init__(self, root: str, config: StoreConfig, bounds: Bounds | None = None) -> None:
        """Read the files of `root`, whose sizes `config` has. Without `bounds`: all that is there,
        up to the last byte that is not zero."""
        fs = ReadOnlyFileSystem()
        self._place = Place(fs, DescriptorCache(fs, OPEN_FILES_MAX), root)
        self._config = config
        is_ledger = config.container == "ledger"
        self._ledger = f"dledger-{config.self_id}" if is_ledger else ""
        log = f"{self._ledger}/data" if is_ledger else "commitlog"
        self._log = Segments(self._place, log, config.file_size_bytes, Part.LOG)
        self._is_live = bounds is not None
        if bounds is None:
            all_of_it = self._log.position, self._log.dirty_hi()
            bounds = lambda: all_of_it  # noqa: E731 - The type has a name.
        self._bounds: Bounds = bounds

    @classmethod
    def of(cls, root: str, given: GivenSettings | None = None) -> "LogDirectory":
        """Return the directory of a stopped store, whose sizes are found out.

        Raises LayoutError, FileSystemError.
        """
        return cls(root, detect(ReadOnlyFileSystem(), root, given).config)

    def __enter__(self) -> "LogDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self._place.descriptors.close()

    # --- Things ---
    # All four raise PositionRangeError where nothing is, or where readers see nothing, and
    # LimitExceededError for more than SIZE_BYTES_MAX. FileSystemError as any read.

    def entry(self, index: int) -> tuple[Specimen, ...]:
        """Return an entry of a ledger, the header before it and the unit that points at it."""
        if not self._ledger:
            raise LayoutError(
                self._place.root, "a ledger, whose entries have indexes", "a plain log"
            )
        units = self._ledger_units()
        hi = units.dirty_hi() // _UNIT + 1
        unit = self._ledger_unit(units, index)
        position = self._entry_position(units, index)
        lo_position, hi_position = self._bounds()
        if index < 0 or position is None or not lo_position <= position < hi_position:
            raise self._no_entry(
                units, index, PositionRangeError("index", index, units.position // _UNIT, hi)
            )
        specimens = [self._entry_at(position, index, unit)]
        before_at = self._entry_position(units, index - 1) if index else None
        if before_at is not None and before_at >= lo_position:
            before = self._log.read(before_at, _HEADER)
            specimens.append(self._in_log(Kind.ENTRY_BEFORE, before, before_at, index - 1))
        return self._checked([*specimens, *([unit] if unit is not None else [])])

    def record(self, position: int) -> tuple[Specimen, ...]:
        """Return the record at a log position, and the queue unit that points at it; or the
        entry, or the blank, that begins there. Raises NoBeginningError within one of them."""
        self._check_position(position)
        head = self._read_log(position, _HEADER)
        blank = _ENTRY_BLANK if self._ledger else fmt.MAGIC_BLANK.to_bytes(4, "big")
        if head[:4] == blank if self._ledger else head[4:8] == blank:
            file_size_bytes = self._log.file_size_bytes
            room = file_size_bytes - position % file_size_bytes
            return (self._in_log(Kind.BLANK, head[: fmt.BLANK.size], position, room),)
        if self._ledger:
            header = unpack_header(head) if len(head) == _HEADER else None
            is_entry = header is not None and header.position == position
            if is_entry and header is not None and header.magic == fmt.ENTRY_MAGIC:
                return self.entry(header.entry_index)
        if not self._is_record(head, position):
            file_size_bytes = self._log.file_size_bytes
            for at, _, size_bytes in self._walk(position // file_size_bytes * file_size_bytes):
                inner = at + _HEADER if self._ledger else at
                if at < position < at + size_bytes and position != inner:
                    what = "an entry" if self._ledger else "a record"
                    raise NoBeginningError(what, position, at, at + size_bytes)
                if at >= position:
                    break
        record = self._record_at(position)
        return self._checked([record, *self._unit_of(record)])

    def queue_unit(self, topic: str, queue_id: int, offset: int) -> tuple[Specimen, ...]:
        """Return a unit of a consume queue, and the record that it points at."""
        queue = self._queue(topic, queue_id)
        lo = queue.position // UNIT_SIZE_BYTES if queue is not None else 0
        hi = -(-queue.dirty_hi() // UNIT_SIZE_BYTES) if queue is not None else 0
        if queue is None or not lo <= offset < hi:
            raise PositionRangeError("queue offset", offset, lo, hi)
        unit = self._unit_at(queue, topic, queue_id, offset)
        if self._is_live and self._is_hidden(queue, offset, hi):
            raise PositionRangeError("queue offset", offset, lo, offset)
        record = self._pointed_at(integer_at(unit.data, 0, 8), integer_at(unit.data, 8))
        return self._checked([unit, *record])

    def key_slot(self, number: int) -> tuple[Specimen, ...]:
        """Return a slot of the newest key index file, the header of that file, the item that the
        slot leads to, and the record of that."""
        names = index_names(self._place.fs, os.path.join(self._place.root, INDEX_DIRECTORY))
        slot_count = self._config.index_slot_count
        if not names or not 0 <= number < slot_count:
            raise PositionRangeError("key slot", number, 0, slot_count if names else 0)
        file = f"{INDEX_DIRECTORY}/{names[-1]}"
        shape = IndexShape(slot_count, self._config.index_entry_count)
        read = self._place.read
        header_bytes = read(file, 0, fmt.INDEX_HEADER_SIZE_BYTES)
        at = fmt.INDEX_HEADER_SIZE_BYTES + number * fmt.INDEX_SLOT_SIZE_BYTES
        slot = Specimen(
            Kind.KEY_SLOT, read(file, at, fmt.INDEX_SLOT_SIZE_BYTES), file, at, -1, number
        )
        header = Specimen(Kind.KEY_HEADER, header_bytes, file, 0, -1, shape.entry_count)
        specimens = [slot, header]
        value = integer_at(slot.data, 0)
        if 0 < value < shape.entry_count:
            at = shape.entries_at + value * fmt.INDEX_ENTRY_SIZE_BYTES
            data = read(file, at, fmt.INDEX_ENTRY_SIZE_BYTES)
            specimens.append(Specimen(Kind.KEY_ITEM, data, file, at, -1, value))
            specimens += self._pointed_at(integer_at(data, 4, 8), 0)
        return self._checked(specimens)

    def _checked(self, specimens: list[Specimen]) -> tuple[Specimen, ...]:
        for specimen in specimens:  # A file may have expired meanwhile.
            if specimen.position >= 0:
                self._check_position(specimen.position)
        size_bytes = sum(len(specimen.data) for specimen in specimens)
        if size_bytes > SIZE_BYTES_MAX:
            raise LimitExceededError("bytes of a look", size_bytes, SIZE_BYTES_MAX)
        return tuple(specimens)

    # --- The log ---

    def _check_position(self, position: int) -> None:
        lo, hi = self._bounds()
        if not lo <= position < hi:
            raise PositionRangeError("position", position, lo, hi)

    def _read_log(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of one file that readers see; fewer at the end of either."""
        file_hi = position // self._log.file_size_bytes * self._log.file_size_bytes
        hi = min(file_hi + self._log.file_size_bytes, self._bounds()[1])
        return self._log.read(position, max(0, min(size_bytes, hi - position)))

    def _in_log(self, kind: Kind, data: bytes, position: int, number: int = -1) -> Specimen:
        file, at = self._log.place(position)
        return Specimen(kind, data, file, at, position, number)

    def _entry_at(self, position: int, index: int, unit: Specimen | None) -> Specimen:
        """Return an entry; its size by the unit, by the header, or by the next entry."""
        data = self._read_log(position, fmt.ENTRY_SIZE_BYTES_MAX)
        sizes = [integer_at(unit.data, 12)] if unit is not None else []
        sizes += [integer_at(data, 44) + _HEADER, integer_at(data, 4)]
        fitting = [size for size in sizes if _HEADER <= size <= len(data)]
        following = self._entry_position(self._ledger_units(), index + 1)
        if following is not None and position + _HEADER <= following <= position + len(data):
            fitting.insert(0, following - position)
        size_bytes = max(fitting, key=fitting.count) if fitting else min(len(data), _HEADER)
        return self._in_log(Kind.ENTRY, data[:size_bytes], position, index)

    def _ledger_units(self) -> Segments:
        size_bytes = self._config.ledger_index_units_per_file * _UNIT
        return Segments(self._place, f"{self._ledger}/index", size_bytes, Part.LEDGER_INDEX)

    def _ledger_unit(self, units: Segments, index: int) -> Specimen | None:
        if not units.position <= index * _UNIT < units.end_position:
            return None
        file, at = units.place(index * _UNIT)
        data = units.read(index * _UNIT, _UNIT)
        return Specimen(Kind.LEDGER_UNIT, data, file, at, -1, index)

    def _entry_position(self, units: Segments, index: int) -> int | None:
        """Return where an entry lies, by its unit, or by the end of the one before where that leads
        to another one."""
        own, before = (self._ledger_unit(units, n) for n in (index, index - 1))
        places = [integer_at(own.data, 4, 8)] if own is not None and any(own.data) else []
        if before is not None and any(before.data):
            end = integer_at(before.data, 4, 8) + integer_at(before.data, 12)
            size_bytes = self._log.file_size_bytes
            places += [end, -(-end // size_bytes) * size_bytes]
        lo, hi = self._bounds()
        places = [place for place in places if lo <= place < hi]
        for place in places:
            head = self._read_log(place, _HEADER)
            is_header = len(head) == _HEADER and head[:4] != _ENTRY_BLANK
            if is_header and unpack_header(head).entry_index == index:
                return place
        return places[0] if places else None

    def _record_at(self, position: int, known_size_bytes: int = 0) -> Specimen:
        data = self._read_log(position, _READ_SIZE_BYTES)
        end = record_end(data, position, known_size_bytes)
        if end == _READ_SIZE_BYTES:  # No record is so large: what is there is none.
            end = fmt.PAGE_SIZE_BYTES
        return self._in_log(Kind.RECORD, data[:end], position)

    def _pointed_at(self, position: int, size_bytes: int) -> list[Specimen]:
        """Return the record at a position that a unit or an item has; empty where none is."""
        lo, hi = self._bounds()
        if not lo <= position < hi:
            return []
        is_there = self._is_record(self._read_log(position, fmt.BODY_AT), position)
        return [self._record_at(position, size_bytes)] if is_there else []

    def _walk(self, at: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield position, header and size of the entries, or records, that lie back to back from a
        position on, up to the first damaged one, and to `_WALK_COUNT_MAX`."""
        hi, size_at = self._bounds()[1], 4 if self._ledger else 0
        for _ in range(_WALK_COUNT_MAX):
            head = self._read_log(at, _HEADER) if at < hi else b""
            if len(head) < _HEADER:
                return
            if self._ledger:
                is_good = unpack_header(head).position == at
                is_blank = head[:4] == _ENTRY_BLANK
            else:
                is_good = self._is_record(head, at)
                is_blank = integer_at(head, 4) & 0xFFFFFFFF == fmt.MAGIC_BLANK
            size_bytes = integer_at(head, size_at)
            if is_blank:
                at = (at // self._log.file_size_bytes + 1) * self._log.file_size_bytes
                continue
            if not is_good or size_bytes < _HEADER:
                return
            yield at, head, size_bytes
            at += size_bytes

    def _no_entry(self, units: Segments, index: int, error: StoreError) -> StoreError:
        """Return why an entry cannot be found: `error`, or which file of a stopped store is
        damaged."""
        if self._is_live or index < 0:
            return error
        unit = self._ledger_unit(units, index)
        if unit is not None and any(unit.data):
            file, at = self._log.place(integer_at(unit.data, 4, 8))
            why = f"{integer_at(unit.data, 12)} bytes, as the ledger's index says"
            return CorruptionError(file, at, f"entry {index}", why, "missing", _FROM_REPLICA)
        known = [unpack_header(head).entry_index for _, head, _ in self._walk(self._log.position)]
        if not known:
            return error
        if not known[0] <= index <= known[-1]:
            return PositionRangeError("index", index, known[0], known[-1] + 1)
        file, at = units.place(index * _UNIT)
        what = f"its place: the data has the entries {known[0]} to {known[-1]}"
        return CorruptionError(file, at, f"the unit of entry {index}", what, "missing", _REPAIR)

    @staticmethod
    def _is_record(head: bytes, position: int) -> bool:
        """Whether a record seems to begin: it has the magic, or its own position."""
        has_magic = int.from_bytes(head[4:8], "big") in _MAGICS
        return has_magic or integer_at(head, fmt.PHYSICAL_OFFSET_AT, 8) == position

    # --- Queues ---

    def _queue(self, topic: str, queue_id: int) -> Segments | None:
        """Return the files of a queue. The name comes from others: one of a topic is no path."""
        directory = f"{QUEUE_DIRECTORY}/{topic}/{queue_id}"
        try:
            check_topic(topic.encode())
        except TopicNameError:
            return None
        if not os.path.isdir(os.path.join(self._place.root, directory)):
            return None
        size_bytes = self._config.consume_queue_units_per_file * UNIT_SIZE_BYTES
        return Segments(self._place, directory, size_bytes, Part.QUEUE)

    def _unit_at(self, queue: Segments, topic: str, queue_id: int, offset: int) -> Specimen:
        file, at = queue.place(offset * UNIT_SIZE_BYTES)
        data = queue.read(offset * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES)
        return Specimen(Kind.QUEUE_UNIT, data, file, at, -1, offset, topic, queue_id)

    def _is_hidden(self, queue: Segments, offset: int, hi: int) -> bool:
        """Whether readers do not see the record of an offset, by its unit and the next one: a
        damaged unit hides nothing."""
        end = self._bounds()[1]
        return all(
            integer_at(queue.read(n * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES), 0, 8) >= end
            for n in range(offset, min(offset + 2, hi))
        )

    def _unit_of(self, record: Specimen) -> list[Specimen]:
        """Return the unit that points at a record, by a search in the queue that it names."""
        said = said_by(record.data)
        if said is None:
            return []
        topic, queue_id = said.topic.decode("ascii"), said.queue_id
        queue = self._queue(topic, queue_id)
        if queue is None:
            return []

        def position_of(offset: int) -> int:
            return integer_at(queue.read(offset * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES), 0, 8)

        lo, hi = queue.position // UNIT_SIZE_BYTES, -(-queue.dirty_hi() // UNIT_SIZE_BYTES)
        offset = lo + bisect_left(range(lo, hi), record.position, key=position_of)
        for found in (offset, said.offset):
            if lo <= found < hi and position_of(found) == record.position:
                return [self._unit_at(queue, topic, queue_id, found)]
        return []
