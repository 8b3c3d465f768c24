"""The stored log on a full disk, and which threads wait for a disk at all."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from node.replication.raft.storage.log import LedgerLog
from raft.ready import EntryKind
from store.errors import StoreError, StoreFullError
from store.files import failpoints
from store.files.file_system import FileSystem
from tests.node.ledger_cluster import CONFIG, sync
from tests.node.ledger_logs import data_image, new_log, put, queue_numbers, ship
from tests.store.records import batch

# --- A full disk ---


class FullDisk(FileSystem):
    """A disk that refuses to allocate, and may look full."""

    def __init__(self) -> None:
        self.is_full = False
        self.free_ratio = 0.5

    def allocate(self, fd: int, path: str, size_bytes: int, position: int = 0) -> None:
        if self.is_full:
            raise StoreFullError(path, size_bytes, 0)
        super().allocate(fd, path, size_bytes, position)

    def free_bytes(self, path: str) -> tuple[int, int]:
        return int((1 << 40) * self.free_ratio), 1 << 40


@pytest.mark.parametrize("preallocate_file_count", [0, 1])
def test_a_full_disk_refuses_before_anything_is_written_and_recovers(
    tmp_path: Path, preallocate_file_count: int
) -> None:
    disk = FullDisk()
    config = replace(CONFIG, preallocate_file_count=preallocate_file_count)
    with new_log(tmp_path, fs=disk, config=config) as log:
        wait_for_room(log, 9000)
        put(log, 0, 3, size_bytes=3000)
        log.dispatch(1)  # Makes the first files of queue and index.
        wait_for_room(log, 70_000)  # The next file is there.
        disk.is_full = True
        lo = 3
        while log.has_room(10_000):
            put(log, lo, lo + 3, size_bytes=3000)
            lo += 3
        before, last_index = data_image(log), log.last_index
        refuse_to_prepare(log, lo)
        assert (data_image(log), log.last_index) == (before, last_index)
        log.append(last_index + 1, 1, EntryKind.NO_OP, None)  # What fits goes on.
        log.dispatch(log.last_index + 1)
        assert queue_numbers(log) == list(range(lo))
        disk.is_full = False
        wait_for_room(log, 10_000)
        put(log, lo, lo + 3, size_bytes=3000)
        assert log.store.counters.store_full_count > 0


def refuse_to_prepare(log: LedgerLog, lo: int) -> None:
    """The reason reaches the caller, once the thread that makes files has tried."""
    deadline = threading.Event()
    for _ in range(1000):
        with pytest.raises(StoreError) as refused:
            log.prepare(batch(lo, lo + 3, size_bytes=3000))
        if isinstance(refused.value, StoreFullError):
            return
        assert refused.value.code == "store.busy"
        deadline.wait(0.005)
    raise AssertionError("the full disk was never named")


def wait_for_room(log: LedgerLog, size_bytes: int) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if log.has_room(size_bytes):
            return
        pause.wait(0.005)
    raise AssertionError(f"no room for {size_bytes} bytes")


def test_the_watermark_refuses_batches_and_not_raw_entries(tmp_path: Path) -> None:
    disk = FullDisk()
    config = replace(CONFIG, retention_interval_ms=0)
    leader = new_log(tmp_path / "a")
    put(leader, 0, 3)
    with new_log(tmp_path / "b", 2, fs=disk, config=config) as log:
        disk.free_ratio = 0.01
        log.store.maintain()
        assert log.has_room(1000)
        ship(leader, log, 0, 1)
        with pytest.raises(StoreFullError):
            log.prepare(batch(3, 6))
        disk.free_ratio = 0.5
        log.store.maintain()
        log.prepare(batch(3, 6))
    leader.close()


def test_queues_that_cannot_grow_are_built_later(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        put(log, 0, 3)
        with failpoints.armed("fs.set_size=ENOSPC@1+"), pytest.raises(StoreFullError):
            log.dispatch(1)
        assert log.store.reads.queues() == []
        log.dispatch(1)
        assert queue_numbers(log) == [0, 1, 2]


# --- Threads ---


class WatchedDisk(FileSystem):
    """Notes which threads wait for the disk."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def sync(self, fd: int, path: str) -> None:
        self.calls.append((threading.current_thread().name, path))
        super().sync(fd, path)

    def sync_directory(self, path: str) -> None:
        self.calls.append((threading.current_thread().name, path))
        super().sync_directory(path)


def test_the_loop_waits_for_no_disk_in_ordinary_operation(tmp_path: Path) -> None:
    disk = WatchedDisk()
    config = replace(CONFIG, preallocate_file_count=2, index_slot_count=50_000)
    config = replace(config, index_entry_count=50_000, ledger_index_units_per_file=1280)
    log = new_log(tmp_path, fs=disk, config=config)
    wait_for_room(log, 30_000)
    put(log, 0, 3)
    log.dispatch(1)  # The first key makes the first index file, once.
    del disk.calls[:]
    for lo in range(3, 900, 3):
        wait_for_room(log, 30_000)
        put(log, lo, lo + 3, queue_id=lo // 30, size_bytes=3000)
        log.dispatch(log.last_index + 1)
        if lo % 60 == 0:
            sync(log)
    assert len(log.store.ledger.files.files) > 20
    mine = [path for name, path in disk.calls if name == threading.current_thread().name]
    assert mine == []
    assert {name for name, _ in disk.calls} == {"store-flush", "store-warm-up"}
    log.close()


def test_the_name_of_a_file_is_durable_before_what_is_in_it(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = new_log(tmp_path, fs=disk, config=replace(CONFIG, preallocate_file_count=1))
    for lo in range(0, 60, 3):
        wait_for_room(log, 10_000)
        put(log, lo, lo + 3, size_bytes=3000)
    del disk.calls[:]
    sync(log)
    data = log.store.ledger.files.directory
    paths = [path for name, path in disk.calls if name == "store-flush"]
    assert paths[0] == data
    assert paths[1].startswith(data + "/0")
    log.close()
