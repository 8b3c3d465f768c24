"""The durable mark: never ahead of the data, never lost, exact after a kill (S06)."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.config import StoreConfig
from store.durability.durable_mark import FILE_NAME, UNKNOWN_COUNT, DurableMark, Mark, decode_slot
from store.durability.flush import FlushService
from store.errors import CorruptionError, LayoutError, StoreError, SyncFailedError
from store.files import failpoints
from store.files.checksum import crc32c
from store.files.file_system import FileSystem
from store.files.mapped_file_queue import MappedFileQueue
from tests.store.fakes import CountingFileSystem
from tests.store.power_loss import PAGE, PowerLossFileSystem

FS = FileSystem()
SLOT_AT = (0, 4096)
SLOT_SIZE_BYTES = 68
CONFIG = StoreConfig(file_size_bytes=4 * PAGE)


def publish(mark: DurableMark, position: int, now_ms: int = 0) -> None:
    mark.publish(Mark(position, position // 10, position // 2, position // 4), now_ms)


def reopen(path: Path, *, log_is_empty: bool = False) -> Mark:
    mark = DurableMark.open(FS, str(path), interval_ms=1000, log_is_empty=log_is_empty)
    mark.close()
    return mark.mark


def damage(path: Path, at: int, count: int = 1) -> None:
    data = bytearray((path / FILE_NAME).read_bytes())
    for n in range(at, at + count):
        data[n] ^= 0x5A
    (path / FILE_NAME).write_bytes(data)


class SteppedFileSystem(PowerLossFileSystem):
    """Calls `on_step` before and after each write and sync, where the power may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.on_step: Callable[[], None] = lambda: None

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        self.on_step()
        super().write_at(fd, path, position, data)
        self.on_step()

    def sync(self, fd: int, path: str) -> None:
        self.on_step()
        super().sync(fd, path)
        self.on_step()


class MarkedLog:
    """A log of files with a flush service and a durable mark, over the power-loss double."""

    def __init__(self, directory: Path, interval_ms: int, random: Random) -> None:
        self.fs = SteppedFileSystem()
        self.run, self.images, self.random = directory / "run", directory, random
        self.queue = MappedFileQueue(self.fs, str(self.run), 4 * PAGE)
        self.queue.load()
        self.mark = DurableMark.open(
            self.fs, str(self.run), interval_ms=interval_ms, log_is_empty=True
        )
        self.now_ms = 0
        self.service = FlushService(
            self.queue,
            CONFIG,
            on_fatal=self.on_fatal,
            on_synced=self.publish,
            on_settled=self.mark.maybe_sync,
            monotonic_ns=self.monotonic_ns,
        )
        self.expected = bytearray()
        self.acked_position = 0
        self.flushed_before_round = 0
        self.image_count = 0
        self.marks_seen: set[int] = set()

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def on_fatal(self, cause: BaseException) -> None:
        raise cause

    def publish(self, position: int) -> None:
        self.mark.publish(Mark(position, position // 10, position, position), self.now_ms)

    def append(self) -> None:
        data = self.random.randbytes(self.random.choice([10, 100, PAGE, 2 * PAGE]))
        while data:
            files = self.queue.files
            last = files[-1] if files and files[-1].free_bytes else self.queue.roll()
            part, data = data[: last.free_bytes], data[last.free_bytes :]
            last.append(part)
            self.expected += part

    def flush(self) -> None:
        self.flushed_before_round = self.service.durable_position

        def told(error: StoreError | None) -> None:
            assert error is None
            self.acked_position = max(self.acked_position, end)

        end = self.queue.max_position
        self.service.request(end, told)
        self.service.run_round()

    def truncate(self) -> None:
        position = self.random.randint(0, self.queue.max_position)
        self.flushed_before_round = self.acked_position = min(self.acked_position, position)
        with self.service.truncation(position):
            self.mark.lower(position, position // 10)
            self.queue.truncate(position)
        del self.expected[position:]

    def lose_power(self) -> tuple[Mark, bytes]:
        """Return mark and log as a start after a power loss at this moment finds them."""
        self.image_count += 1
        image = self.images / f"image{self.image_count}"
        self.fs.build_image(str(self.run), str(image), self.random)
        mark = reopen(image)
        names = sorted(n for n in os.listdir(image) if n.isdecimal())
        return mark, b"".join((image / name).read_bytes() for name in names)

    def check_image(self) -> Mark:
        mark, data = self.lose_power()
        position = mark.durable_position
        is_ahead = data[:position] != self.expected[:position]  # Compared here: a diff takes long.
        assert not is_ahead, "the mark is ahead of the data"
        self.marks_seen.add(position)
        return mark

    def close(self) -> None:
        self.service.stop()
        self.mark.close()
        self.queue.close()


def play(log: MarkedLog, step_count: int, check: Callable[[], object]) -> None:
    """Append, flush and cut at random; the power fails now and then, at any write or sync."""
    random = log.random

    def on_step() -> None:
        if random.random() < 0.15:
            check()

    log.fs.on_step = on_step
    log.append()
    for _ in range(step_count):
        log.now_ms += random.choice([0, 10, 600])
        step = random.choices([log.append, log.flush, log.truncate], [5, 5, 1])[0]
        step()
        if random.random() < 0.2:
            check()
    log.fs.on_step = lambda: None
    log.close()


@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_mark_never_ahead_of_data(tmp_path: Path, seed: int, interval_ms: int) -> None:
    log = MarkedLog(tmp_path, interval_ms, Random(seed))
    play(log, 25, log.check_image)
    assert log.image_count > 5, "the power must have failed"
    assert len(log.marks_seen) > 2, "and at different marks"
    assert log.fs.dropped_page_count > 0, "and bytes must have been lost"


@pytest.mark.parametrize("seed", range(5))
def test_only_last_batch_is_ambiguous(tmp_path: Path, seed: int) -> None:
    """With interval 0 the mark covers all that was acked, and all syncs but the last."""
    log = MarkedLog(tmp_path, 0, Random(seed))

    def check() -> None:
        mark = log.check_image()
        assert mark.durable_position >= log.acked_position, "an acked batch is ambiguous"
        assert mark.durable_position >= min(log.flushed_before_round, len(log.expected))

    play(log, 25, check)
    assert log.image_count > 5


@pytest.mark.parametrize("at", [0, 20, 51])
def test_a_damaged_slot_leaves_the_other(tmp_path: Path, at: int) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=0, log_is_empty=True)
    for position in (100, 200, 300):
        publish(mark, position)
    mark.close()
    original = (tmp_path / FILE_NAME).read_bytes()
    positions = []
    for slot_at in SLOT_AT:
        damage(tmp_path, slot_at + at)
        positions.append(reopen(tmp_path).durable_position)
        (tmp_path / FILE_NAME).write_bytes(original)
    assert sorted(positions) == [200, 300]
    assert reopen(tmp_path).durable_position == 300


def test_both_slots_damaged_is_a_named_error_with_a_log_and_a_fresh_start_without(
    tmp_path: Path,
) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=0, log_is_empty=True)
    publish(mark, 100)
    mark.close()
    for slot_at in SLOT_AT:
        damage(tmp_path, slot_at, SLOT_SIZE_BYTES)
    with pytest.raises(CorruptionError, match="durable mark is none with a good checksum"):
        reopen(tmp_path)
    assert reopen(tmp_path, log_is_empty=True) == Mark()
    assert reopen(tmp_path) == Mark()


def test_a_missing_file_beside_a_log_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="no such file"):
        reopen(tmp_path)
    made = DurableMark.create(FS, str(tmp_path), Mark(50, 5, 40, 40), interval_ms=0)
    made.close()
    assert reopen(tmp_path) == Mark(50, 5, 40, 40)


def test_the_slot_that_was_synced_last_is_never_written(tmp_path: Path) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=1000, log_is_empty=True)
    publish(mark, 100)
    assert mark.maybe_sync(0)
    synced = (tmp_path / FILE_NAME).read_bytes()
    for position in range(200, 1000, 100):
        publish(mark, position)
        now = (tmp_path / FILE_NAME).read_bytes()
        assert reopen_copy(tmp_path).durable_position == position, "as a killed process leaves it"
        kept = [
            now[at : at + SLOT_SIZE_BYTES] == synced[at : at + SLOT_SIZE_BYTES] for at in SLOT_AT
        ]
        assert kept.count(True) == 1
        damage(tmp_path, SLOT_AT[1 - kept.index(True)], SLOT_SIZE_BYTES)
        assert reopen_copy(tmp_path).durable_position == 100
        (tmp_path / FILE_NAME).write_bytes(now)


def reopen_copy(path: Path) -> Mark:
    """Read the marks of a store that is open, from a copy."""
    copy = path / f"copy{len(os.listdir(path))}"
    copy.mkdir()
    (copy / FILE_NAME).write_bytes((path / FILE_NAME).read_bytes())
    return reopen(copy)


def test_the_mark_is_synced_once_an_interval_and_at_close(tmp_path: Path) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=1000, log_is_empty=True)
    with failpoints.census() as calls:
        publish(mark, 10, 5000)
        assert mark.maybe_sync(5000)
        publish(mark, 20, 5001)
        assert not mark.maybe_sync(5999)
        assert mark.maybe_sync(6000)
        assert not mark.maybe_sync(9000), "nothing new"
        publish(mark, 20, 9000)
        assert not mark.maybe_sync(9000), "the same again is nothing new"
        publish(mark, 30, 9000)
        mark.close()
    assert calls["fs.sync"] == 3
    assert calls["durable_mark.write"] == 3


def test_a_slot_whose_fields_contradict_each_other_is_none() -> None:
    """Its checksum is right, so no disk did it: an opening must not trip over it."""

    def slot(*fields: int) -> bytes:
        body = struct.pack(">IIqqqqqqq", 0x514C4D31, 0, 5, *fields)
        return body + struct.pack(">I", crc32c(body))

    assert decode_slot(slot(100, 9, 50, 40, -1, -1), 0) == (5, Mark(100, 9, 50, 40))
    for fields in ((-1, 9, 50, 40), (100, -2, 50, 40), (100, 9, 50, -1), (100, 9, 40, 50)):
        assert decode_slot(slot(*fields, -1, -1), 0) is None


@pytest.mark.parametrize("field", range(4))
def test_no_field_falls_without_a_cut(tmp_path: Path, field: int) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=0, log_is_empty=True)
    values = [100, 10, 50, 40]
    mark.publish(Mark(*values), now_ms=0)
    values[field] -= 1
    with pytest.raises(AssertionError, match="the mark falls"):
        mark.publish(Mark(*values), now_ms=0)
    assert mark.mark[:4] == (100, 10, 50, 40)


def test_a_cut_lowers_both_slots_durably(tmp_path: Path) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=1000, log_is_empty=True)
    publish(mark, 1000)
    publish(mark, 2000)
    with failpoints.census() as calls:
        mark.lower(300, 4)
    assert calls["fs.sync"] == 2
    mark.close()
    expected = Mark(300, 4, 300, 300)
    for slot_at in SLOT_AT:
        original = (tmp_path / FILE_NAME).read_bytes()
        assert original[slot_at + 4 : slot_at + 8] == bytes(4), "reserved for a later version"
        damage(tmp_path, slot_at)
        assert reopen(tmp_path) == expected
        (tmp_path / FILE_NAME).write_bytes(original)


def test_a_cut_below_what_was_dispatched_leaves_its_counts_unknown() -> None:
    mark = Mark(400, 9, 300, 200, 7, 5)
    assert mark.cut_to(300, 4) == Mark(300, 4, 300, 200, 7, 5)
    assert mark.cut_to(299, 4) == Mark(299, 4, 299, 200, UNKNOWN_COUNT, 5)
    assert mark.cut_to(199, 4) == Mark(199, 4, 199, 199, UNKNOWN_COUNT, UNKNOWN_COUNT)


def test_a_mark_left_by_a_kill_is_synced_before_the_next_slot(tmp_path: Path) -> None:
    DurableMark.open(FS, str(tmp_path), interval_ms=1000, log_is_empty=True).close()
    with failpoints.census() as calls:
        DurableMark.open(FS, str(tmp_path), interval_ms=1000, log_is_empty=False)
    assert calls["fs.sync"] == 1


@pytest.mark.parametrize("count", [1, 2])
def test_the_slot_that_an_opening_found_is_not_written_next(tmp_path: Path, count: int) -> None:
    """A power loss in the midst of that write would leave an older mark only."""
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=0, log_is_empty=True)
    for n in range(1, count + 1):
        publish(mark, n * 100)
    mark.close()
    data = (tmp_path / FILE_NAME).read_bytes()
    newest = max(SLOT_AT, key=lambda at: decode_slot(data, at) or (0, Mark()))
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=1000, log_is_empty=False)
    publish(mark, 900)
    slot = decode_slot((tmp_path / FILE_NAME).read_bytes(), newest)
    assert slot is not None
    assert slot[1].durable_position == count * 100


def test_a_sync_that_reached_nothing_new_writes_no_mark(tmp_path: Path) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=0, log_is_empty=True)
    with failpoints.census() as calls:
        for position, index in ((100, 9), (100, 9), (90, 8), (120, 9), (120, 10)):
            mark.raise_durable(position, index)
    assert calls["durable_mark.write"] == calls["fs.sync"] == 3
    assert mark.mark == Mark(120, 10)


def test_a_failed_sync_of_the_mark_is_raised(tmp_path: Path) -> None:
    mark = DurableMark.open(FS, str(tmp_path), interval_ms=0, log_is_empty=True)
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError):
        publish(mark, 100)


def test_a_creation_that_fails_leaves_no_marks(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    for failpoint in ("fs.write=ENOSPC", "fs.sync=EIO", "fs.rename=EIO"):
        with failpoints.armed(failpoint), pytest.raises(StoreError):
            DurableMark.open(fs, str(tmp_path), interval_ms=1000, log_is_empty=True)
        assert not (tmp_path / FILE_NAME).exists()
        assert not fs.open_fds
    assert reopen(tmp_path, log_is_empty=True) == Mark()
