"""What a store must hold after a crash: the batches that were tried, and the check of a directory.

Owns the content of the test batches (a function of their number, so nobody has to send it), the
history of one directory, and the one checker that all crash tests use. Must not know how the crash
was made. The checker reads the log, the queues and the index by the store's own reads, and
compares the derived files with a rebuild from the log.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import NamedTuple

from store.config import StoreConfig
from store.derived.dispatch import Dispatcher
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.files.file_system import FileSystem
from store.record.message import Message, decode_message, encode_message
from store.store import Store
from tests.store.records import BORN, PAGE, small_config

FILE = 4 * PAGE
RETAINED_FILE_COUNT = 6

RecordId = tuple[int, int]  # Batch, number in the batch.
QueueKey = tuple[str, int]


class BrokenPromiseError(AssertionError):
    """A promise that the directory breaks."""


def crash_config(**changes: object) -> StoreConfig:
    """Tiny files of every kind, so that rolls and retention happen all the time."""
    settings: dict[str, object] = {
        "consume_queue_units_per_file": 20,
        "index_slot_count": 16,
        "index_entry_count": 60,
        "put_lock_timeout_ms": 10_000,
        "flush_timeout_ms": 30_000,
        "allocate_timeout_ms": 30_000,
        # A developer's full disk is not what these tests are about.
        "disk_warn_ratio": 1.0,
        "disk_force_ratio": 1.0,
        "disk_full_ratio": 1.0,
        "disk_reserve_bytes": 0,
    }
    return small_config(**{**settings, **changes})


def temporary_parent() -> str | None:
    """Where crash tests work: memory if there is any, because they sync thousands of times.

    What they prove does not rest on the medium: SIGKILL leaves the page cache alone, and a power
    loss is made by the double.
    """
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# --- The batches ---


class Planned(NamedTuple):
    """One record as it is handed in."""

    topic: str
    queue_id: int
    body: bytes
    tag: str
    keys: tuple[str, str]


@lru_cache(maxsize=8192)
def plan(number: int) -> tuple[Planned, ...]:
    """The records of a batch. The first batches fill a queue that then stays silent for ever."""
    random = Random(number)
    is_big = random.random() < 0.08
    count = 1 if is_big else random.randint(1, 8)
    records = []
    for i in range(count):
        size_bytes = random.randint(3000, FILE - 600) if is_big else random.randint(0, 250)
        topic, queue_id = random.choice(["orders", "refunds", "audit"]), random.randint(0, 1)
        if number < 4 and i == 0:
            topic, queue_id = "silent", 0
        body = b"%08d-%03d|" % (number, i) + random.randbytes(size_bytes)
        keys = (f"k{number}-{i}", f"shared{number % 3}")
        records.append(Planned(topic, queue_id, body, f"tag{i}", keys))
    return tuple(records)


def records_of(number: int) -> list[bytes]:
    """The records of a batch, encoded."""
    return [
        encode_message(
            p.topic,
            p.queue_id,
            p.body,
            {"TAGS": p.tag, "KEYS": " ".join(p.keys)},
            born_unix_ms=BORN + number,
        )
        for p in plan(number)
    ]


def encode(number: int) -> bytes:
    """The batch, ready to be appended."""
    return b"".join(records_of(number))


def identify(message: Message) -> RecordId:
    """Say which record this is. Raises BrokenPromiseError unless it is one of ours in each byte."""
    head = message.body[:13]
    try:
        number, i = int(head[:8]), int(head[9:12])
        planned = plan(number)[i]
    except (ValueError, IndexError):
        raise BrokenPromiseError(f"position {message.position}: a foreign body {head!r}") from None
    content = (message.topic, message.queue_id, message.body, tuple(message.keys))
    if content != (planned.topic, planned.queue_id, planned.body, planned.keys):
        raise BrokenPromiseError(
            f"position {message.position}: record {number}-{i} is not what was written"
        )
    if (message.properties.get("TAGS"), message.born_unix_ms) != (planned.tag, BORN + number):
        raise BrokenPromiseError(
            f"position {message.position}: record {number}-{i} has a changed property"
        )
    return number, i


# --- What must be there ---


class Place(NamedTuple):
    """Where a record was, as the store said when it acknowledged it."""

    position: int
    queue_offset: int


@dataclass
class History:
    """What was tried in one directory, and what must still be there."""

    is_atomic: bool
    """A batch is there as a whole or not at all (ledger). A plain log may keep its beginning."""
    attempted: set[int] = field(default_factory=set)
    must: dict[RecordId, Place] = field(default_factory=dict)
    expired_next: dict[QueueKey, int] = field(default_factory=dict)
    """Offset after the last record of a queue that retention took away."""
    min_position: int = 0
    kept_size_bytes_min: int = 3 * FILE
    """What retention leaves at least; 0 when much of that may not have been durable."""

    def acknowledge(
        self, number: int, positions: Iterable[int], queue_offsets: Iterable[int]
    ) -> None:
        """From now on the batch must be there, at these places."""
        for i, place in enumerate(zip(positions, queue_offsets, strict=True)):
            self.must[number, i] = Place(*place)

    def copy(self) -> "History":
        """A history that goes on by itself."""
        return History(
            self.is_atomic,
            set(self.attempted),
            dict(self.must),
            dict(self.expired_next),
            self.min_position,
            self.kept_size_bytes_min,
        )

    def next_number(self) -> int:
        """The first batch number that was never tried."""
        return max(self.attempted, default=-1) + 1

    def expire(self, min_position: int, max_position: int) -> None:
        """Take note of what retention deleted."""
        if min_position < self.min_position:
            raise BrokenPromiseError(
                f"the log begins at {min_position}, before {self.min_position}"
            )
        if min_position > 0 and max_position - min_position < self.kept_size_bytes_min:
            raise BrokenPromiseError(f"retention left [{min_position}, {max_position})")
        self.min_position = min_position
        for (number, i), place in list(self.must.items()):
            if place.position < min_position:
                del self.must[number, i]
                key = plan(number)[i].topic, plan(number)[i].queue_id
                hi = max(self.expired_next.get(key, 0), place.queue_offset + 1)
                self.expired_next[key] = hi


# --- The check ---


def check_store(store: Store, history: History) -> int:
    """Compare an open store with what must be there; return how many records it holds.

    What it holds now was recovered, so it must be there from now on: the history is updated.
    """
    places = dict(_records(store))
    history.expire(store.log.min_position, store.log.max_position)
    _check_attempts(places, history)
    for record_id, place in history.must.items():
        if places.get(record_id) != place:
            raise BrokenPromiseError(
                f"record {record_id} was acknowledged at {place}, found {places.get(record_id)}; "
                f"the log is [{store.log.min_position}, {store.log.max_position})"
            )
    queues = _check_offsets(places, history)
    _check_reads(store, queues, history)
    history.must = places
    return len(places)


def _records(store: Store) -> Iterator[tuple[RecordId, Place]]:
    seen: set[RecordId] = set()
    last: RecordId = (-1, 0)
    for lo, data in store.log.record_runs(store.log.min_position, store.log.max_position):
        at = 0
        while at < len(data):
            message = decode_message(data, at)
            record_id = identify(message)
            if message.position != lo + at:
                raise BrokenPromiseError(f"record {record_id} at {lo + at} says {message.position}")
            if record_id in seen:
                raise BrokenPromiseError(f"record {record_id} is there twice")
            seen.add(record_id)
            if record_id < last:
                raise BrokenPromiseError(f"record {record_id} follows {last}")
            last = record_id
            yield record_id, Place(message.position, message.queue_offset)
            at += message.size_bytes


def _check_attempts(found: dict[RecordId, Place], history: History) -> None:
    counts: dict[int, int] = {}
    for number, i in found:
        if number not in history.attempted:
            raise BrokenPromiseError(f"batch {number} is there and was never tried")
        if i != counts.get(number, 0):
            raise BrokenPromiseError(f"record {number}-{i} is there without the ones before it")
        counts[number] = i + 1
    if history.is_atomic:
        for number, count in counts.items():
            if count != len(plan(number)):
                raise BrokenPromiseError(
                    f"{count} of {len(plan(number))} records of batch {number}"
                )


def _check_offsets(
    found: dict[RecordId, Place], history: History
) -> dict[QueueKey, list[tuple[int, RecordId]]]:
    """Check that the offsets of each queue have no hole and no double; return them."""
    queues: dict[QueueKey, list[tuple[int, RecordId]]] = {}
    for (number, i), place in found.items():
        planned = plan(number)[i]
        queues.setdefault((planned.topic, planned.queue_id), []).append(
            (place.queue_offset, (number, i))
        )
    for key, units in queues.items():
        lo = history.expired_next.get(key, 0)
        offsets = [offset for offset, _ in units]
        if offsets != list(range(lo, lo + len(offsets))):
            raise BrokenPromiseError(f"queue {key} goes on from {lo} with the offsets {offsets}")
    return queues


def _check_reads(
    store: Store, queues: dict[QueueKey, list[tuple[int, RecordId]]], history: History
) -> None:
    ranges = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in store.queues()}
    for key in {*queues, *history.expired_next, *ranges}:
        units = queues.get(key, [])
        hi = units[-1][0] + 1 if units else history.expired_next.get(key, 0)
        lo = units[0][0] if units else hi
        if ranges.get(key) != (lo, hi):
            raise BrokenPromiseError(
                f"queue {key} has {ranges.get(key)}, its records have {(lo, hi)}"
            )
        if _pulled(store, key, lo, hi) != units:
            raise BrokenPromiseError(f"queue {key} does not give its records")
    for units in queues.values():
        for _, (number, i) in units[:: max(1, len(units) // 8)]:
            planned = plan(number)[i]
            by_key = store.messages_by_key(planned.topic, planned.keys[0])
            if [identify(message) for message in by_key] != [(number, i)]:
                raise BrokenPromiseError(f"key {planned.keys[0]} finds {len(by_key)} records")


def _pulled(store: Store, key: QueueKey, lo: int, hi: int) -> list[tuple[int, RecordId]]:
    units: list[tuple[int, RecordId]] = []
    while lo < hi:
        result = store.pull(key[0], key[1], lo, max_count=13)
        if result.next_offset <= lo:
            raise BrokenPromiseError(f"queue {key} stops at {lo} of {hi}: {result.status}")
        at = 0
        while at < len(result.data):
            message = decode_message(result.data, at)
            units.append((message.queue_offset, identify(message)))
            at += message.size_bytes
        lo = result.next_offset
    return units


def check_derived(store: Store, directory: str) -> None:
    """Compare queues and index with new ones, built from the log into `directory`."""
    store.queues()  # Dispatches what the opening left.
    queues = ConsumeQueues(FileSystem(), directory, store.config)
    index = IndexFiles(FileSystem(), directory, store.config)
    try:
        Dispatcher(store.log, queues, index).rebuild()
        for own in store.engine.queues:
            new = queues.get(own.topic.encode(), own.queue_id)
            if new is None:
                if own.min_offset != own.max_offset:
                    raise BrokenPromiseError(f"{own.directory}: a rebuild does not have this queue")
                continue
            if (own.min_offset, own.max_offset) != (new.min_offset, new.max_offset):
                raise BrokenPromiseError(
                    f"{own.directory}: [{own.min_offset}, {own.max_offset}), a rebuild has "
                    f"[{new.min_offset}, {new.max_offset})"
                )
            lo, hi = own.min_offset, own.max_offset
            if own.read_units(lo, hi) != new.read_units(lo, hi):
                raise BrokenPromiseError(f"{own.directory}: other units than a rebuild")
        missing = {(q.topic, q.queue_id) for q in queues}
        missing -= {(q.topic, q.queue_id) for q in store.engine.queues}
        if missing:
            raise BrokenPromiseError(f"a rebuild has queues {missing} more")
        _compare_index(store, index)
    finally:
        queues.close()
        index.close()
        shutil.rmtree(directory)


def _compare_index(store: Store, index: IndexFiles) -> None:
    keys = {
        (p.topic, key) for n, i in dict(_records(store)) for p in [plan(n)[i]] for key in p.keys
    }
    for topic, key in keys:
        both = [
            [
                step.position
                for step in files.lookup(topic, key, begin_unix_ms=0, end_unix_ms=1 << 62)
                if step.is_candidate and step.position >= store.log.min_position
            ]
            for files in (store.engine.index, index)
        ]
        if both[0] != both[1]:
            raise BrokenPromiseError(f"key {topic}#{key}: {both[0]}, a rebuild says {both[1]}")


def must_not_die(cause: BaseException) -> None:
    """An `on_fatal` for stores that have no reason to die."""
    raise AssertionError("the store wanted to end the process") from cause


def open_store(root: str, config: StoreConfig, fs: FileSystem | None = None) -> Store:
    """Open without the maintenance thread."""
    return Store.open(root, config, fs=fs, maintain=False, on_fatal=must_not_die)


def check_directory(root: str, config: StoreConfig, history: History) -> tuple[int, int]:
    """Open a directory, check everything, close it; return (records, bytes that were cut)."""
    with open_store(root, config) as store:
        count = check_store(store, history)
        check_derived(store, f"{root}-rebuilt")
        return count, store.recovery.cut_size_bytes
