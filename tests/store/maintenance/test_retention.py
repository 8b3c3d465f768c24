"""Retention: which files go, when the disk is full, and that no clock deletes live data."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.config import StoreConfig
from store.errors import CorruptionError, FileSystemError, StoreFullError, SyncFailedError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.maintenance.retention import (
    DELETE_COUNT_MAX,
    DiskState,
    DiskUsage,
    FileAge,
    Retention,
    RetentionPolicy,
    ages_ms,
)
from store.stats import StoreCounters

FS = FileSystem()
SIZE = 8192
HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_700_000_000_000
YEAR_2000, YEAR_2100 = 946_684_800_000, 4_102_444_800_000
EMPTY_DISK = DiskUsage(1_000_000, 1_000_000)


def policy(**changes: float | None) -> RetentionPolicy:
    settings: dict[str, float | None] = {
        "retention_ms": 72 * HOUR,
        "retention_size_bytes": 0,
        "file_size_bytes": 100,
        "warn_ratio": 0.75,
        "force_ratio": None,
        "full_ratio": 0.90,
        "reserve_bytes": 50,
    }
    return RetentionPolicy(**{**settings, **changes})  # type: ignore[arg-type]


def files(newest: Sequence[int | None], deletable: int | None = None) -> list[FileAge]:
    """Files of 100 bytes; the first `deletable` (default: all) may go."""
    limit = len(newest) if deletable is None else deletable
    return [FileAge(100, unix_ms, n < limit) for n, unix_ms in enumerate(newest)]


def usage(used_ratio: float, total_bytes: int = 100_000) -> DiskUsage:
    return DiskUsage(round(total_bytes * (1 - used_ratio)), total_bytes)


def expired_count(found: list[FileAge], now: int = NOW, **changes: float | None) -> int:
    """How many of them go while there is room on the disk."""
    return policy(**changes).files_to_delete(found, now, EMPTY_DISK).file_count


# --- By age ---


def test_expired_files_go_oldest_first_and_never_the_last() -> None:
    hourly = [NOW - hours * HOUR for hours in range(78, 2, -1)]  # Newest record of each file.
    assert expired_count(files(hourly)) == 7
    assert expired_count(files(hourly), NOW - 2 * HOUR) == 5
    assert expired_count(files(hourly[-1:]), NOW + 99 * DAY) == 0
    assert expired_count([]) == 0


def test_the_age_is_exact_at_the_border() -> None:
    newest = [NOW - hours * HOUR for hours in range(72, 5, -6)]
    assert expired_count(files(newest)) == 1
    assert expired_count(files(newest), NOW - 1) == 0


def test_at_most_ten_go_a_round_and_none_without_a_limit_by_age() -> None:
    newest = [NOW - hours * HOUR for hours in range(200, -1, -1)]
    assert expired_count(files(newest)) == DELETE_COUNT_MAX == 10
    assert expired_count(files(newest), retention_ms=0) == 0


def test_a_file_of_unknown_age_is_as_young_as_the_next_one() -> None:
    newest: list[int | None] = [NOW - hours * HOUR for hours in range(76, -1, -4)]
    newest[0] = None
    assert ages_ms(newest, NOW, 72 * HOUR)[:2] == [72 * HOUR, 72 * HOUR]
    assert ages_ms([None, None], NOW, 72 * HOUR) == [0, 0]


# --- Clocks ---

HOURLY = [NOW - hours * HOUR for hours in range(70, -1, -1)]  # Nothing has expired.


def test_a_clock_in_the_year_2100_deletes_no_live_data() -> None:
    """C1: the jump counts as a quarter of the retention, and not as 74 years."""
    assert expired_count(files(HOURLY)) == 0
    young = files(HOURLY[-50:])
    assert expired_count(young, YEAR_2100) == 0
    # Records of the jumped clock, in the last file and in whole files after it.
    for later in ([YEAR_2100], [YEAR_2100 + n * HOUR for n in range(4)]):
        after = files([*HOURLY[-50:-1], *later])
        assert expired_count(after, later[-1]) == 0
    # And back in the right year: ages go on from there.
    back = files([*HOURLY[-40:], YEAR_2100, NOW + HOUR, NOW + 2 * HOUR])
    assert expired_count(back, NOW + 2 * HOUR) == 0


def test_a_clock_in_the_year_2000_deletes_no_live_data() -> None:
    assert expired_count(files(HOURLY), YEAR_2000) == 0
    stamped_2000 = [YEAR_2000 + n * HOUR for n in range(5)]
    assert expired_count(files(stamped_2000)) == 0, "4 + 18 hours"
    back = files([*HOURLY[-45:], *stamped_2000, NOW, NOW + HOUR])
    assert expired_count(back, NOW + HOUR) == 0


@given(
    st.lists(st.integers(0, YEAR_2100 * 2), min_size=1, max_size=12),
    st.integers(0, YEAR_2100 * 2),
    st.integers(1, 100 * DAY),
)
def test_ages_grow_towards_the_oldest_and_no_step_counts_too_much(
    newest: list[int], now: int, retention_ms: int
) -> None:
    ages = ages_ms(newest, now, retention_ms)
    steps = [a - b for a, b in zip(ages, [*ages[1:], 0], strict=True)]
    assert all(0 <= step <= retention_ms for step in steps)
    honest = [later - earlier for earlier, later in zip(newest, [*newest[1:], now], strict=True)]
    assert all(step <= max(0, truth) for step, truth in zip(steps, honest, strict=True))


def test_a_step_up_to_the_retention_is_believed_and_a_longer_one_is_not() -> None:
    newest = [NOW - hours * HOUR for hours in (10, 5, 0)]
    for step, ages in ((60, [70, 65, 60]), (72, [82, 77, 72]), (73, [28, 23, 18])):
        assert ages_ms(newest, NOW + step * HOUR, 72 * HOUR) == [age * HOUR for age in ages]


def test_a_store_that_runs_through_a_pause_deletes_in_time() -> None:
    newest = [NOW - hours * HOUR for hours in (10, 5, 0)]
    for hour in range(100):
        kept = expired_count(files(newest), NOW + hour * HOUR)
        newest = newest[kept:]
        assert len(newest) == 3 - (hour >= 62) - (hour >= 67)


def test_the_price_of_the_rule_is_four_files() -> None:
    """A log that writes one file a month keeps four more than the retention of 72 hours asks."""
    monthly = [NOW - days * DAY for days in range(300, -1, -30)]
    assert expired_count(files(monthly)) == len(monthly) - 4


# --- By size and by disk ---


def test_by_size() -> None:
    young = files([NOW] * 10)
    for size_bytes, count in ((1000, 0), (999, 1), (250, 8), (1, 9)):
        assert expired_count(young, retention_size_bytes=size_bytes) == count


@pytest.mark.parametrize(
    ("used_ratio", "state"),
    [
        (0.0, DiskState.OK),
        (0.74, DiskState.OK),
        (0.75, DiskState.WARN),
        (0.85, DiskState.FORCE),
        (0.90, DiskState.FULL),
        (1.0, DiskState.FULL),
    ],
)
def test_watermarks(used_ratio: float, state: DiskState) -> None:
    assert policy(force_ratio=0.85).disk_state(usage(used_ratio)) is state
    kept = DiskState.WARN if state is DiskState.FORCE else state
    assert policy().disk_state(usage(used_ratio)) is kept, "without the rule there is no such mark"
    assert policy().disk_state(DiskUsage(0, 0)) is DiskState.FULL


def test_blocks_reserved_for_root_are_neither_free_nor_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of 1,000 blocks 300 are used, and 80 of the 700 others are there for this process."""
    statistics = os.statvfs_result((4096, 512, 1000, 700, 80, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: statistics)
    disk = DiskUsage(*FS.free_bytes(str(tmp_path)))
    assert disk == DiskUsage(80 * 512, 380 * 512)
    assert disk.used_ratio == pytest.approx(300 / 380), "as df has it, not 92 %"
    assert policy().disk_state(disk) is DiskState.WARN


def test_no_file_is_deleted_for_room_unless_asked_for() -> None:
    """Others may fill the volume: what has not expired stays, down to the last free byte."""
    half_expired = files([NOW - hours * HOUR for hours in range(78, 2, -1)])
    for free_bytes in (14_750, 9_000, 49, 0):
        expired = policy().files_to_delete(half_expired, NOW, DiskUsage(free_bytes, 100_000))
        assert expired == (7, 0), "those that have expired go as always"
        young = files([NOW] * 30)
        assert policy().files_to_delete(young, NOW, DiskUsage(free_bytes, 100_000)) == (0, 0)
        assert policy(retention_ms=0).files_to_delete(
            half_expired, NOW, DiskUsage(free_bytes, 100_000)
        ) == (0, 0)


def test_from_the_force_mark_on_young_files_go_but_no_more_than_needed() -> None:
    young, forced = files([NOW] * 30), policy(force_ratio=0.85)
    assert forced.files_to_delete(young, NOW, usage(0.84)) == (0, 0)
    assert forced.files_to_delete(young, NOW, DiskUsage(14_750, 100_000)) == (3, 3)
    assert forced.files_to_delete(young, NOW, usage(0.99)).file_count == DELETE_COUNT_MAX
    assert forced.files_to_delete(young[:4], NOW, usage(0.99)).file_count == 3


def test_each_deletion_is_counted_under_its_rule() -> None:
    """Expired files make room as well, so fewer go before their time."""
    forced = policy(force_ratio=0.85)
    two_expired = files([NOW - 80 * HOUR + n * 6 * HOUR for n in range(12)])
    assert forced.files_to_delete(two_expired, NOW, DiskUsage(14_550, 100_000)) == (5, 3)
    assert forced.files_to_delete(two_expired, NOW, DiskUsage(14_950, 100_000)) == (2, 0)
    too_large = policy(force_ratio=0.85, retention_size_bytes=800)
    assert too_large.files_to_delete(two_expired, NOW, DiskUsage(14_550, 100_000)) == (5, 1)


def test_reserve() -> None:
    """S11: when the disk begins to count as full, one more file and meta space are still there."""
    rules = policy(warn_ratio=0.97, full_ratio=0.99)
    total = 100_000
    last_writable = min(
        free
        for free in range(total)
        if rules.disk_state(DiskUsage(free, total)) is not DiskState.FULL
    )
    assert last_writable - 1 >= rules.file_size_bytes
    small = policy(warn_ratio=0.97, force_ratio=0.98, full_ratio=1.0)
    for spare, needed in ((0, 150), (1, 50)):
        assert small.needed_free_bytes(EMPTY_DISK, spare) == needed
        assert small.disk_state(DiskUsage(needed, total), spare) is not DiskState.FULL
        assert small.disk_state(DiskUsage(needed - 1, total), spare) is DiskState.FULL
    # Below the reserve, force deletion makes room for it although all ratios are fine.
    young = files([NOW] * 30)
    assert small.files_to_delete(young, NOW, DiskUsage(149, total)).file_count == 10
    roomy = policy(warn_ratio=0.99, force_ratio=1.0, full_ratio=1.0)
    assert roomy.files_to_delete(young, NOW, DiskUsage(49, total)).file_count == 2


def test_the_settings_of_the_store_make_the_policy() -> None:
    made = RetentionPolicy.from_config(StoreConfig())
    assert (made.retention_ms, made.file_size_bytes) == (72 * HOUR, 1 << 30)
    assert made.needed_free_bytes(EMPTY_DISK, 0) == (1 << 30) + (64 << 20)
    assert (made.warn_ratio, made.force_ratio, made.full_ratio) == (0.75, None, 0.90)
    assert RetentionPolicy.from_config(StoreConfig(delete_when_full=True)).force_ratio == 0.85


# --- On a log ---


class RetainedQueue:
    """A queue of files whose ages the test sets, with its retention."""

    def __init__(self, path: Path, file_count: int, **changes: float | None) -> None:
        self.queue = MappedFileQueue(FS, str(path), SIZE)
        self.queue.load()
        for _ in range(file_count):
            self.queue.roll().append(b"x" * SIZE)
        self.queue.sync()
        self.newest: dict[int, int] = {}
        self.asked: list[int] = []
        self.unreadable: dict[int, CorruptionError] = {}
        self.counters = StoreCounters()
        self.needed_from = 1 << 60
        self.retention = Retention(
            policy(file_size_bytes=SIZE, **changes),
            self.queue,
            lambda: self.queue.files,
            self.newest_unix_ms,
            path=str(path),
            deletable_position=lambda: self.needed_from,
            spare_file_count=lambda: 0,
            counters=self.counters,
        )

    def newest_unix_ms(self, file: MappedFile) -> int | None:
        self.asked.append(file.position // SIZE)
        if file.position // SIZE in self.unreadable:
            raise self.unreadable[file.position // SIZE]
        return self.newest.get(file.position // SIZE, NOW)


def test_a_round_deletes_durably_and_asks_for_each_age_once(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 8)
    log.newest = {n: NOW - (7 - n) * 12 * HOUR for n in range(8)}
    done = log.retention.run_once(NOW, EMPTY_DISK)
    assert (done.deleted_file_count, done.freed_bytes, done.state) == (2, 2 * SIZE, DiskState.OK)
    assert sorted(p.name for p in tmp_path.iterdir())[0] == f"{2 * SIZE:020d}"
    assert log.asked == list(range(8))
    log.asked.clear()
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 0
    assert log.asked == [7], "only the file that grows"
    assert log.counters.deleted_file_count == 2
    log.queue.close()


def test_the_file_that_grows_is_a_step_of_its_own(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 2)
    log.newest = {0: NOW - 80 * HOUR, 1: NOW - 80 * HOUR}
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 0, "one step of 80 hours"
    log.newest[1] = NOW - 40 * HOUR
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 1
    log.queue.close()


def test_a_file_whose_time_cannot_be_read_is_reported(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 3, retention_size_bytes=2 * SIZE)
    error = CorruptionError("file", 0, "store time", "a time", "none")
    log.unreadable = {0: error}
    done = log.retention.run_once(NOW, EMPTY_DISK)
    assert (done.deleted_file_count, done.error) == (1, error)
    assert log.retention.run_once(NOW, EMPTY_DISK).error is None
    log.queue.close()


def test_files_that_are_needed_or_not_durable_stay(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 4, retention_size_bytes=1)
    log.needed_from = 2 * SIZE - 1
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 1
    log.needed_from = 1 << 60
    log.queue.roll().append(b"y" * SIZE)
    log.queue.roll().append(b"y")
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 3
    assert log.queue.min_position == 4 * SIZE == log.queue.flushed_position
    log.queue.sync()
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 1
    log.queue.close()


def test_a_full_disk_refuses_appends_reads_go_on_and_it_recovers_by_itself(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 2)
    log.retention.check_writable()
    log.needed_from = 0
    assert log.retention.run_once(NOW, usage(0.95)).state is DiskState.FULL
    with pytest.raises(StoreFullError, match="appends resume by themselves") as caught:
        log.retention.check_writable()
    ratio = log.retention.policy.full_ratio
    by_ratio = int(log.retention.usage.total_bytes * (1 - ratio)) + 1
    assert caught.value.free_bytes == 5000 < caught.value.needed_bytes == by_ratio
    assert log.counters.store_full_count == 0, "whoever is refused counts it, and counts it once"
    assert log.queue.read(0, 1) == b"x"
    assert log.retention.run_once(NOW, usage(0.5)).state is DiskState.OK
    log.retention.check_writable()
    log.queue.close()


def test_room_freed_by_a_round_counts_at_once(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 5, force_ratio=0.85)
    done = log.retention.run_once(NOW, DiskUsage(9_000, 100_000))
    assert (done.deleted_file_count, done.state) == (1, DiskState.WARN)
    assert log.counters.deleted_for_room_count == 1
    log.retention.check_writable()
    log.queue.close()


def test_a_full_disk_goes_on_as_files_expire(tmp_path: Path) -> None:
    """Not one hour earlier, and without anybody's help."""
    log = RetainedQueue(tmp_path, 5)
    log.newest = {n: NOW - (5 - n) * HOUR for n in range(5)}
    disk = DiskUsage(9_000, 100_000)
    for hours in (0, 60, 66):
        done = log.retention.run_once(NOW + hours * HOUR, disk)
        assert (done.deleted_file_count, done.state) == (0, DiskState.FULL)
        with pytest.raises(StoreFullError):
            log.retention.check_writable()
    done = log.retention.run_once(NOW + 67 * HOUR, disk)
    assert (done.deleted_file_count, done.state) == (1, DiskState.WARN)
    assert log.counters.deleted_for_room_count == 0
    log.retention.check_writable()
    log.queue.close()


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 4, retention_size_bytes=1)
    with failpoints.armed("fs.unlink=EACCES@2"):
        done = log.retention.run_once(NOW, EMPTY_DISK)
    assert done.deleted_file_count == 1
    assert isinstance(done.error, FileSystemError)
    assert done.error.operation == "unlink"
    assert log.retention.run_once(NOW, EMPTY_DISK).deleted_file_count == 2
    log.queue.close()


def test_a_failed_directory_sync_is_raised(tmp_path: Path) -> None:
    log = RetainedQueue(tmp_path, 4, retention_size_bytes=1)
    with failpoints.armed("fs.sync_directory=EIO"), pytest.raises(SyncFailedError):
        log.retention.run_once(NOW, EMPTY_DISK)
    log.queue.close()
