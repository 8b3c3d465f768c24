"""Builds the consume queues and the key index from the log.

Owns the walk over new records, the mark up to which they are built, and the rebuild; must not know
where the mark is kept nor how far it may go (the store layer does). The loop is the hottest of the
store next to the append: no object per record, one write per queue and round, and the bytes behind
the body (topic and properties, mostly equal from record to record) are parsed once and looked up
from then on. The look-up also proves the lengths of the record, since its key has exactly the
bytes between body and end.

Sources: RocketMQ ReputMessageService, CommitLogDispatcherBuildConsumeQueue and -BuildIndex;
storage-formats 2.4, 2.5. Deviation: a corrupt record stops the dispatch (there it is skipped,
11.7), and the mark moves only after everything before it is built (2.3).
"""

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from store import format as fmt
from store.config import MIB
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.derived.queues.consume_queues import ConsumeQueues, QueueKey
from store.errors import (
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
    QueueOrderError,
    RecordFormatError,
)
from store.files import failpoints
from store.files.failpoints import hit
from store.log.record_log import RecordLog, StampedEntry
from store.record.check import store_timestamp
from store.record.columns import NO_KEY, fields, is_column, uniform_count
from store.record.inner_batches import is_inner_batch
from store.record.message import record_layout
from store.record.tail import Pending, TailReader
from store.record.units import UnitRun, pack_units

ROUND_SIZE_BYTES: Final = 8 * MIB  # Log bytes between two writes to the same queue.
ADVANCE_SIZE_BYTES: Final = 64 * MIB

# Size, magic, queue id, queue offset, physical offset, sys flag, store time, body size; with IPv4
# hosts. With IPv6 hosts the last two are elsewhere.
_HEAD: Final = struct.Struct(">iI4xi4xqqi16xq20xi")
_UNIFORM_TRIES: Final = 2  # Failed searches for uniform records after which a run is walked singly.
_iter_units: Final = fmt.CONSUME_QUEUE_UNIT.iter_unpack
_new_tuple: Final = tuple.__new__  # Makes a named tuple in one step.
assert _HEAD.size == fmt.BODY_AT
# The loop inlines the number. Unknown bits are ignored: a record that has them has one unit.
assert fmt.SYS_FLAG_ANY_V6 | fmt.SYS_FLAG_TRANSACTION_MASK | fmt.SYS_FLAG_INNER_BATCH == 0xBC

Progress = Callable[[int, int], None]  # (bytes of the log that are built, bytes in all).


class Built(NamedTuple):
    """How far the derived files are built, and how much is in them.

    `item_count`: the next offsets of all queues and the entries of all index files, added up. The
    sum depends on the position alone as long as no index file expires, so it tells files that lost
    something from files that never had it.
    """

    position: int
    item_count: int


class DispatchedUnit(NamedTuple):
    """One record of a queue: its offset there, and where it lies in the log.

    `data` is the record if it is available and was checked, else empty.
    """

    offset: int
    position: int
    size_bytes: int
    data: bytes = b""


class Dispatcher:
    """The dispatcher of one store. `advance`, `truncate` and `rebuild` exclude each other.

    Reads of the queues and the index, and one `sync_derived`, may run beside them.
    Invariant: every record that ends at or before `dispatched_position` is built.
    """

    def __init__(
        self,
        log: RecordLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        *,
        dispatched_position: int = 0,
    ) -> None:
        """Take files that were recovered up to `dispatched_position`, or are new (0)."""
        self._log = log
        self.queues: Final = queues
        self.index: Final = index
        self.lock: Final = threading.RLock()
        """Held while derived files change. Reentrant: its holder may repair one meanwhile."""
        self.dispatched_position = dispatched_position
        """Position before which every record is in the derived files, perhaps not durably. For
        others to read only."""
        self._walked_position = 0  # End of the last good record of the running round.
        self._ahead_count = 0  # Items behind the mark: of a round that failed half-way.
        self._tails = TailReader()
        # Of the running round: (topic, queue id, its topic's dict, its list in it), and keys.
        self._touched: list[tuple[bytes, int, Pending, list[int]]] = []
        self._hashes: list[int] = []
        self._positions: list[int] = []
        self._store_unix_ms: list[int] = []
        self._inner_batches: dict[bytes, int] = {}  # Count of records by topic.
        self.on_inner_batches: Callable[[bytes, int], None] = lambda _topic, _count: None
        """Called with a topic that has inner batches, and the count of its records passed over."""
        self._watched_topic: bytes | None = None
        self._watched: list[DispatchedUnit] = []
        self._watched_records: dict[int, bytes] = {}
        """Records of the watched topic in the running round, by position."""

    # --- Watching ---

    def watch(self, topic: bytes) -> None:
        """Remember from now on the records of a topic that are built, for `take_watched`."""
        self._watched_topic = topic

    def take_watched(self) -> list[DispatchedUnit]:
        """Return the records of the watched topic that were built since the last call, in order.

        For one caller, on the thread that builds, after each `advance`: the caller need not read
        the queue's files. Each record is returned once.
        """
        watched, self._watched = self._watched, []
        return watched

    # --- Building ---

    def advance(self, hi_position: int, *, max_bytes: int = ADVANCE_SIZE_BYTES) -> int:
        """Build the records before `hi_position`; return the position up to which they are built.

        `hi_position` is the end of a record, an entry or a file. Stops early once `max_bytes` of
        the log, rounded up to a run, are done: call it again. Raises CorruptionError for a bad
        record, after building all before it; QueueOrderError or DerivedFileError when the derived
        files do not fit the log (rebuild); StoreFullError or FileSystemError (repeat the call).
        A repetition never builds anything twice.
        """
        with self.lock:
            lo = self.dispatched_position
            if lo < hi_position <= lo + max_bytes and not self.queues.inner_batches.topics:
                stamped = self._log.stamped(lo, hi_position)
                if stamped is not None:  # Nearly always on a leader.
                    self._build_stamped(stamped, hi_position)
                    return hi_position
            return self._advance(hi_position, max_bytes)

    def _advance(self, hi_position: int, max_bytes: int) -> int:
        lo = self.dispatched_position
        hi = min(hi_position, self._log.max_position)
        if lo >= hi:
            return lo
        if lo < self._log.min_position:  # The log lost records that were not built.
            raise PositionRangeError("position", lo, self._log.min_position, hi)
        self._walked_position = lo
        try:
            for position, data in self._log.fresh_runs(lo, hi):
                self._walked_position = walked = self._walk(position, data)
                if walked - self.dispatched_position >= ROUND_SIZE_BYTES:
                    self._build()
                if walked - lo >= max_bytes:
                    break
            else:
                self._walked_position = hi  # Blanks and headers behind the last record count too.
        except CorruptionError:
            self._build()  # The good records are served; the mark stops at the bad one.
            raise
        except BaseException:
            self._clear_round()
            raise
        self._build()
        return self.dispatched_position

    def _walk(self, base: int, data: bytes) -> int:
        """Collect the units and keys of the records in `data`, whose first byte is at `base`.

        Return the position behind them."""
        tails, unpack = self._tails.known, _HEAD.unpack_from
        watched, at, hi = self._watched_topic, 0, len(data)
        tries = _UNIFORM_TRIES
        while at < hi:
            if hi - at < 91:
                raise self._stop(data, at, base)
            size_bytes, magic, queue_id, queue_offset, position, flags, unix_ms, body_size_bytes = (
                unpack(data, at)
            )
            end = at + size_bytes
            if magic != 0xDAA320A7 or flags & 0xBC or position != base + at or end > hi:
                at = self._walk_slowly(base, data, at)
                continue
            tail_bytes = data[at + 88 + body_size_bytes : end]
            # Here and below without a call: once a record.
            tail = tails[tail_bytes] if tail_bytes in tails else self._tails.read(tail_bytes)
            if tail is None:
                raise self._stop(data, at, base)
            topic, pending, tags_code, hashes = tail
            if queue_id in pending:
                units = pending[queue_id]
            else:
                if queue_id < 0:
                    raise self._stop(data, at, base)
                units = pending[queue_id] = []
                self._touched.append((topic, queue_id, pending, units))
            if topic == watched:
                if self._log.are_runs_checked:  # Else its reader compares it with its checksums.
                    self._watched_records[position] = data[at:end]
            elif tries and data[at : at + 8] == data[end : end + 8]:
                key = self._tails.key_span(tail_bytes) if hashes else NO_KEY
                if key or not hashes:
                    place = at, queue_offset, position, size_bytes, tags_code
                    count = _collect_uniform(data, place, body_size_bytes, key, units)
                    if count:
                        next_at = at + count * size_bytes
                        if key:
                            self._collect_keys(data, (at, next_at, size_bytes), tail_bytes, key)
                        at = next_at
                        continue
                tries -= 1
            units += (queue_offset, position, size_bytes, tags_code)
            for key_hash in hashes:
                self._hashes.append(key_hash)
                self._positions.append(position)
                self._store_unix_ms.append(unix_ms)
            at = end
        return base + hi

    def _collect_keys(
        self, data: bytes, run: tuple[int, int, int], tail_bytes: bytes, key: range
    ) -> None:
        """Collect the keys of uniform records: `run` is (first, end, size), `key` where the key
        lies in `tail_bytes`, those of the first one."""
        lo, hi, size_bytes = run
        key_lo = lo + size_bytes - len(tail_bytes) + key.start
        keys = fields(data, key_lo, len(key), size_bytes, hi)
        self._hashes += self._tails.key_hashes(tail_bytes, keys)
        _, _, _, _, position, _, unix_ms, _ = _HEAD.unpack_from(data, lo)
        count = (hi - lo) // size_bytes
        self._positions += range(position, position + count * size_bytes, size_bytes)
        # The records of one batch are stored at one time.
        times_at = lo + fmt.STORE_TIMESTAMP_AT
        if is_column(data, times_at, size_bytes, count, "q", repeat(unix_ms, count)):
            self._store_unix_ms += repeat(unix_ms, count)
        else:
            self._store_unix_ms += [store_timestamp(data, at) for at in range(lo, hi, size_bytes)]

    def _walk_slowly(self, base: int, data: bytes, at: int) -> int:
        """Collect a record that is not plain (V2, IPv6, with flags) and return its end."""
        tail = self._tails.read_record(data, at)
        size_bytes, _, queue_id, queue_offset, position, flags, _, _ = _HEAD.unpack_from(data, at)
        if tail is None or position != base + at or queue_id < 0:
            raise self._stop(data, at, base)
        topic, pending, tags_code, hashes = tail
        transaction = flags & fmt.SYS_FLAG_TRANSACTION_MASK
        if transaction == fmt.TRANSACTION_ROLLBACK:
            return at + int(size_bytes)
        if flags & fmt.SYS_FLAG_INNER_BATCH and is_inner_batch(data, at):
            self._inner_batches[topic] = self._inner_batches.get(topic, 0) + 1
        elif transaction != fmt.TRANSACTION_PREPARED:
            units = pending.get(queue_id)
            if units is None:
                units = pending[queue_id] = []
                self._touched.append((topic, queue_id, pending, units))
            units += (queue_offset, position, size_bytes, tags_code)
        self._hashes += hashes
        self._positions += [position] * len(hashes)
        self._store_unix_ms += [store_timestamp(data, at)] * len(hashes)
        return at + int(size_bytes)

    def _build(self) -> None:
        """Write the units and keys that the round collected, then move the mark."""
        runs: list[UnitRun] = []
        watched: list[DispatchedUnit] = []
        passed_over = self._inner_batches
        try:
            for topic in passed_over:
                self.queues.inner_batches.add(topic)
            for topic, queue_id, _, collected in self._touched:
                if topic in self.queues.inner_batches.topics:  # Offsets count messages there.
                    passed_over[topic] = passed_over.get(topic, 0) + len(collected) // 4
                    continue
                offsets = collected[0::4]
                expected = range(offsets[0], offsets[0] + len(offsets))
                if offsets != list(expected):
                    gap = next(n for n, o in zip(expected, offsets, strict=True) if n != o)
                    offset = offsets[gap - offsets[0]]
                    raise QueueOrderError(topic.decode("ascii"), queue_id, gap, offset)
                del collected[0::4]
                if topic == self._watched_topic:
                    places = zip(offsets, collected[0::3], collected[1::3], strict=True)
                    at_hand = self._watched_records
                    for n, at, size_bytes in places:
                        record = at_hand[at] if at in at_hand else b""  # noqa: SIM401 - No call.
                        watched += (_new_tuple(DispatchedUnit, (n, at, size_bytes, record)),)
                runs.append((topic, queue_id, offsets[0], pack_units(collected)))
            self._write(runs, self._hashes, self._positions, self._store_unix_ms)
        finally:
            self._clear_round()
        self._move_mark(self._walked_position, watched)
        for topic, count in passed_over.items():
            self.on_inner_batches(topic, count)

    def _build_stamped(self, entries: Sequence[StampedEntry], hi: int) -> None:
        """Write the units and keys of entries that end at `hi`, as their stamping told them."""
        runs: list[UnitRun] = []
        key_hashes, key_positions, store_unix_ms = list[int](), list[int](), list[int]()
        watched, watched_topic = list[DispatchedUnit](), self._watched_topic
        for entry in entries:
            units = entry.units
            assert units is not None, f"entry at {entry.position} was not stamped here"
            runs += units.runs
            if units.key_hashes:
                key_hashes += units.key_hashes
                key_positions += units.key_positions
                store_unix_ms += [units.store_unix_ms] * len(units.key_hashes)
            for topic, _, offset, packed in units.runs:
                if topic == watched_topic:
                    watched += _watched_of(entry, offset, packed)
        if entries[1:]:
            runs = _joined(runs)
        self._write(runs, key_hashes, key_positions, store_unix_ms)
        self._move_mark(hi, watched)

    def _write(
        self,
        runs: Iterable[UnitRun],
        key_hashes: list[int],
        key_positions: list[int],
        store_unix_ms: list[int],
    ) -> None:
        """Write units and keys of records behind the mark; the caller moves the mark."""
        keys_before = self.index.entry_count if key_hashes else 0
        queues = self.queues
        try:
            if failpoints.is_on:
                hit("dispatch.before_queues")
            for topic, queue_id, offset, units in runs:
                count = queues.append(topic, queue_id, offset, units)  # Nearly always that is all.
                if not count:
                    may_begin_late = self._log.min_position > 0
                    count = queues.put(
                        topic,
                        queue_id,
                        first_offset=offset,
                        units=units,
                        may_begin_late=may_begin_late,
                    )
                self._ahead_count += count
            if failpoints.is_on:
                hit("dispatch.before_index")
            if key_hashes:
                self.index.put_many(key_hashes, key_positions, store_unix_ms)
        except BaseException:
            if key_hashes:
                self._ahead_count += self.index.entry_count - keys_before
            raise

    def _move_mark(self, position: int, watched: list[DispatchedUnit]) -> None:
        if failpoints.is_on:
            hit("dispatch.before_mark")
        assert position >= self.dispatched_position, "the mark moves back"
        self.dispatched_position = position
        self._watched += watched
        self._ahead_count = 0

    def _clear_round(self) -> None:
        for _, _, pending, _ in self._touched:
            pending.clear()
        self._inner_batches, self._watched_records = {}, {}
        self._touched, self._hashes, self._positions, self._store_unix_ms = [], [], [], []

    def _stop(self, data: bytes, at: int, base: int) -> CorruptionError:
        """End the round before the record at `at`; return the error that says what is wrong."""
        self._walked_position = base + at
        field, expected, actual = "record", "a record", data[at : at + 8].hex()
        try:
            with memoryview(data) as view:
                layout = record_layout(view, at)
            _, _, queue_id, _, position, _, _, _ = _HEAD.unpack_from(data, at)
            if position != base + at:
                field, expected, actual = "physical offset", str(base + at), str(position)
                at += fmt.PHYSICAL_OFFSET_AT
            elif queue_id < 0:
                field, expected, actual = "queue id", "0 or more", str(queue_id)
                at += fmt.QUEUE_ID_AT
            else:
                topic = data[layout.topic_at : layout.topic_hi]
                field, expected, actual = "topic", "a topic name", repr(topic)
                at = layout.topic_at
        except RecordFormatError as error:
            at, field, expected, actual = error.at, error.field, error.expected, error.actual
        return CorruptionError("the log", base + at, field, expected, actual)

    def tail_offsets(self, hi_position: int) -> dict[QueueKey, int]:
        """Return the next offset of each queue that has records which are not built yet.

        The records are those before `hi_position`. Builds nothing. Errors as `advance`, but for
        full disks.
        """
        tails: dict[QueueKey, int] = {}
        with self.lock:
            try:
                for position, data in self._log.fresh_runs(self.dispatched_position, hi_position):
                    self._walk(position, data)
                for topic, queue_id, _, collected in self._touched:
                    tails[topic, queue_id] = collected[-4] + 1
            finally:
                self._clear_round()
        return tails

    # --- Durability ---

    def built(self) -> Built:
        """Return position and item count that belong together."""
        with self.lock:
            count = sum(queue.max_offset for queue in self.queues) + self.index.entry_count
            return Built(self.dispatched_position, count - self._ahead_count)

    def sync_derived(self) -> Built:
        """Make the derived files durable; return the position and item count that are durable.

        May run beside `advance`. Raises SyncFailedError: stop.
        """
        built = self.built()  # Before the sync, which may miss what comes later.
        self._sync_files()
        return built

    def _sync_files(self) -> None:
        self.queues.sync()
        self.index.sync()

    # --- Cutting and rebuilding ---

    def truncate(self, position: int) -> None:
        """Forget the records at and after `position`, durably, as the log is cut there.

        The caller has first made a checkpoint of at most `position` durable. Raises FileSystemError
        or SyncFailedError; repeat it then.
        """
        with self.lock:
            # Items that a failed round left behind the mark go too: they could not be counted.
            self.dispatched_position = position = min(self.dispatched_position, position)
            self.queues.truncate(position)
            self.index.truncate(position)
            self._ahead_count = 0

    def restart(self, position: int, next_offsets: dict[QueueKey, int]) -> None:
        """Replace the derived files by those of a log that begins at `position`, durably.

        `next_offsets` are those of all queues there. A crash in between leaves a mark that makes
        `ConsumeQueues.recover` ask for a rebuild, which finds the same offsets. Errors as
        `rebuild`.
        """
        with self.lock:
            self.queues.begin_rebuild(position, next_offsets)
            self.index.drop()
            self.dispatched_position, self._ahead_count = position, 0
            self.queues.restore_silent_queues()
            self._sync_files()
            hit("dispatch.restarted")
            self.queues.complete_rebuild()

    def delete_expired(self) -> None:
        """Delete derived files of records that the log no longer has; may run beside all others.

        The lock is held for one queue at a time, so that a building thread waits for one only. The
        log may be replaced in between. So its start is read again under the lock, where `restart`
        cannot have filled the queues.
        Raises the first FileSystemError, after all other files were tried; repeat it then.
        """
        failed: FileSystemError | None = None
        for queue in self.queues:
            try:
                with self.lock:
                    self.queues.delete_expired_of(queue, self._log.min_position)
            except FileSystemError as error:
                failed = failed or error
            except (DerivedFileError, CorruptionError, PositionRangeError):
                pass  # The files stay until a read or a pass, which meets the same, repairs them.
        with self.lock:
            self.index.delete_expired(self._log.min_position)
        if failed is not None:
            raise failed

    def rebuild(self, progress: Progress | None = None, *, hi_position: int | None = None) -> int:
        """Drop all derived files and build them from the log's start; return the position reached.

        Builds up to `hi_position` (by default all of the log), at least up to where they were built
        before, so that a checkpoint stays true; all of it is durable on return. A crash in between
        leaves a mark that makes `ConsumeQueues.recover` ask for a rebuild again.
        `progress(built_size_bytes, total_size_bytes)` is called after each part. Raises as
        `advance`, and SyncFailedError: stop.
        """
        with self.lock:
            hi = self._log.max_position
            if hi_position is not None:
                hi = min(hi, max(hi_position, self.dispatched_position))
            self._build_all(hi, progress)
            if self.queues.has_of_inner_batches():  # A topic of these began with other records.
                self._build_all(hi, progress)
            self.queues.restore_silent_queues()
            self._sync_files()
            hit("dispatch.rebuilt")
            self.queues.complete_rebuild()
            return self.dispatched_position

    def _build_all(self, hi: int, progress: Progress | None) -> None:
        self.queues.begin_rebuild(hi)
        self.index.drop()
        self._ahead_count = 0
        lo = self.dispatched_position = self._log.min_position
        while self.dispatched_position < hi:
            before = self.dispatched_position
            self._advance(hi, ADVANCE_SIZE_BYTES)
            assert self.dispatched_position > before, f"no progress at {before}"
            if progress is not None:
                progress(self.dispatched_position - lo, hi - lo)


def _collect_uniform(
    data: bytes,
    first: tuple[int, int, int, int, int],
    body_size_bytes: int,
    key: range,
    units: list[int],
) -> int:
    """Add a run of records uniform with the first one to its queue's units; return their count.

    Return 0 when there is no such run: the loop then reads each record. `first` is the byte of the
    first record in `data`, and its unit; `key` is where its only key lies behind its body."""
    at, offset, position, size_bytes, tags_code = first
    tail_at = fmt.BODY_AT + body_size_bytes
    key_at = range(tail_at + key.start, tail_at + key.stop) if key else NO_KEY
    count = uniform_count(data, at, size_bytes, tail_at, key_at)
    offsets = range(offset, offset + count)
    positions = range(position, position + count * size_bytes, size_bytes)
    if count == 1 or not (
        is_column(data, at + fmt.QUEUE_OFFSET_AT, size_bytes, count, "q", offsets)
        and is_column(data, at + fmt.PHYSICAL_OFFSET_AT, size_bytes, count, "q", positions)
    ):
        return 0
    new = [size_bytes] * (4 * count)
    new[0::4], new[1::4], new[3::4] = offsets, positions, [tags_code] * count
    units += new
    return count


def _watched_of(entry: StampedEntry, offset: int, packed: bytes) -> list[DispatchedUnit]:
    """Return the records of a run of units, with their bytes."""
    units, base, data = list[DispatchedUnit](), entry.position, entry.data
    for position, size_bytes, _ in _iter_units(packed):
        record = data[position - base : position - base + size_bytes]
        units += (_new_tuple(DispatchedUnit, (offset, position, size_bytes, record)),)
        offset += 1
    return units


def _joined(runs: list[UnitRun]) -> list[UnitRun]:
    """Return one run for each queue, in the order of their first ones. QueueOrderError for a gap:
    the stamper gives offsets in a row."""
    units: dict[QueueKey, list[bytes]] = {}
    first_offsets: dict[QueueKey, int] = {}
    next_offsets: dict[QueueKey, int] = {}
    for topic, queue_id, offset, packed in runs:
        key = topic, queue_id
        if key not in units:
            units[key], first_offsets[key] = [packed], offset
        elif offset == next_offsets[key]:
            units[key] += (packed,)
        else:
            raise QueueOrderError(topic.decode("ascii"), queue_id, next_offsets[key], offset)
        next_offsets[key] = offset + len(packed) // UNIT_SIZE_BYTES
    return [
        (*key, first_offsets[key], parts[0] if len(parts) == 1 else b"".join(parts))
        for key, parts in units.items()
    ]
