"""The stored log of one replica on real files: what it is, what a leader writes, restarts, a full
disk, and which threads wait for a disk at all."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from node.replication.raft.storage.log import LedgerLog
from node.runtime.identity import IdentityMismatchError
from raft.errors import HardStateNotSavedError
from raft.messages import Configuration, ConfigurationAt, Standing
from raft.ready import EntryKind, HardState
from store.derived.queues.pull import PullStatus
from store.errors import (
    BusyError,
    LayoutError,
    PositionRangeError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.replicated.ledger_store import ReplicaStore
from store.store import Store
from tests.node.ledger_cluster import CONFIG, crash, open_log, sync
from tests.node.ledger_logs import (
    VOTERS,
    data_image,
    delete_to,
    new_log,
    put,
    queue_numbers,
    reopen,
    ship,
)
from tests.store.records import PAGE, batch

# --- What a node is ---


def test_an_empty_disk_founds_or_joins_once(tmp_path: Path) -> None:
    with open_log(tmp_path / "a") as log:
        assert not log.is_founded
        with pytest.raises(AssertionError, match="neither founder"):
            log.load()
        log.found(VOTERS, (4,))
        loaded = log.load()
        assert loaded.configurations == (ConfigurationAt(-1, Configuration(VOTERS, (4,))),)
        assert loaded.hard_state == HardState()
        assert (loaded.last_index, loaded.commit, loaded.applied) == (-1, -1, -1)
    with open_log(tmp_path / "a") as log:
        assert log.is_founded
        assert log.load() == loaded
    with open_log(tmp_path / "b") as log:
        log.join(incarnation=7)
        assert log.load().configurations == ()
    with open_log(tmp_path / "b") as log:
        assert log.load().hard_state == HardState(0, 0, Standing.JOINING, 7)
        assert log.node_file.record.hard_state.incarnation == 7


def test_a_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    new_log(tmp_path).close()
    with pytest.raises(IdentityMismatchError, match="belongs to node '1'") as error:
        open_log(tmp_path, 2)
    assert error.value.code == "node.identity_mismatch"
    with pytest.raises(IdentityMismatchError, match="belongs to cluster"):
        open_log(tmp_path, cluster_id="other")
    open_log(tmp_path).close()


def test_a_log_without_term_and_vote_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, 0, 3)
    log.close()
    for path in tmp_path.glob("raft.*"):
        path.unlink()
    with pytest.raises(LayoutError, match="raft"):
        open_log(tmp_path)


def test_term_and_vote_survive_and_a_full_disk_leaves_the_old_ones(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.save_hard_state(HardState(3, 2))
    with failpoints.armed("fs.write=ENOSPC"), pytest.raises(HardStateNotSavedError):
        log.save_hard_state(HardState(4, 1))
    assert log.load().hard_state == HardState(3, 2)
    with failpoints.armed("fs.open=EIO"), pytest.raises(HardStateNotSavedError):
        log.save_hard_state(HardState(4, 1))
    log.save_hard_state(HardState(5, 0))
    crash(log)
    with open_log(tmp_path) as log:
        assert log.load().hard_state == HardState(5, 0)
        with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError):
            log.save_hard_state(HardState(6, 1))


def test_a_newer_term_that_cannot_be_saved_lets_nobody_have_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.save_hard_state(HardState(2, 1))
    crash(log)
    log = open_log(tmp_path)
    put(log, 0, 3, term=4)
    crash(log)
    full = failpoints.armed("meta_file.before_rename=ENOSPC")
    with full, pytest.raises(OSError, match="failpoint"):
        open_log(tmp_path)
    with open_log(tmp_path) as log:  # Nobody holds the directory.
        assert log.load().hard_state == HardState(4, 0)


# --- Loss of memory (design 4.5) ---


def lose_power(root: Path) -> None:
    """Make the directory look as if the machine had been booted since."""
    assert (root / "abort").exists()
    (root / "boot_id").write_text("another-boot\n")


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_power_loss_with_acks_from_the_page_cache_is_remembered(
    tmp_path: Path, flush: Literal["sync", "async"]
) -> None:
    config = replace(CONFIG, flush=flush)
    log = new_log(tmp_path, config=config)
    log.save_hard_state(HardState(3, 2))
    crash(log)
    with reopen(tmp_path, config=config) as log:
        assert log.load().hard_state == HardState(3, 2), "the machine was up all the time"
    crash(open_log(tmp_path, config=config))
    lose_power(tmp_path)
    expected = HardState(3, 2)
    if flush == "async":
        expected = HardState(3, 2, Standing.RECOVERING, 1)
    # Also when the node now runs with the other flush mode, and crashes again at once.
    log = open_log(tmp_path, config=replace(CONFIG, flush="sync"))
    assert log.load().hard_state == expected
    crash(log)
    with open_log(tmp_path, config=config) as log:
        assert log.load().hard_state == expected


def test_a_crash_before_the_loss_is_saved_does_not_hide_it(tmp_path: Path) -> None:
    config = replace(CONFIG, flush="async")
    crash(new_log(tmp_path, config=config))
    lose_power(tmp_path)
    with failpoints.armed("meta_file.before_rename=EIO"), pytest.raises(OSError, match="failpoint"):
        open_log(tmp_path, config=config)
    with open_log(tmp_path, config=config) as log:
        assert log.load().hard_state.standing is Standing.RECOVERING


# --- A leader's appends ---


def test_readers_see_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        log.append(0, 1, EntryKind.NO_OP, None)
        prepared = log.prepare(batch(0, 3))
        log.append(1, 1, EntryKind.DATA, prepared)
        put(log, 3, 5)
        assert log.store.reads.pull("orders", 0, 0).status is PullStatus.NO_MATCHED_LOGIC_QUEUE
        assert prepared.result is not None
        position = prepared.result.record_positions[0]
        with pytest.raises(PositionRangeError):
            log.store.reads.message_at(position)
        with pytest.raises(PositionRangeError):
            log.store.reads.view(position, 10)
        log.dispatch(1)
        assert log.store.reads.queues() == []
        log.dispatch(2)
        assert queue_numbers(log) == [0, 1, 2]
        assert log.store.reads.message_at(position).body.startswith(b"00000000")
        assert log.store.reads.messages_by_key("orders", "key0003") == []
        log.store.maintain()
        assert queue_numbers(log) == [0, 1, 2], "maintenance dispatches nothing by itself"
        log.dispatch(3)
        log.dispatch(3)
        assert queue_numbers(log) == [0, 1, 2, 3, 4]
        assert [m.queue_offset for m in log.store.reads.messages_by_key("orders", "key0003")] == [3]


# --- Restarts ---


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_keeps_the_tail_and_shows_only_what_was_dispatched(
    tmp_path: Path, is_clean: bool
) -> None:
    log = new_log(tmp_path)
    for lo in range(0, 30, 3):
        put(log, lo, lo + 3)
    log.dispatch(4)
    log.store.maintain()
    log.dispatch(6)  # The mark of the last maintenance does not know of these.
    if is_clean:
        log.close()
    else:
        crash(log)
    with reopen(tmp_path) as log:
        visible = 6 if is_clean else 4
        assert queue_numbers(log) == list(range(3 * visible))
        loaded = log.load()
        assert (loaded.last_index, loaded.commit, loaded.applied) == (9, visible - 1, -1)
        assert put(log, 30, 32, term=2) == 10
    with reopen(tmp_path, applied_index=7) as log:
        assert queue_numbers(log) == list(range(24)), "the state machine has applied these"
        loaded = log.load()
        assert (loaded.last_index, loaded.commit, loaded.applied) == (10, 7, 7)
        assert loaded.runs == ((0, 1), (10, 2))
        log.dispatch(11)
        assert queue_numbers(log) == list(range(32))


def test_a_rebuild_of_the_queues_stops_where_they_were(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for lo in range(0, 90, 3):
        put(log, lo, lo + 3)
    log.dispatch(20)
    log.close()
    for path in (tmp_path / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(b"")
    with reopen(tmp_path) as log:
        assert log.store.recovery.derived_rebuilt
        assert queue_numbers(log) == list(range(60))
        put(log, 90, 91)
        log.dispatch(31)
        assert queue_numbers(log) == list(range(91))


def test_a_replicas_directory_is_not_opened_as_any_other(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, 0, 3)
    log.close()
    with pytest.raises(LayoutError, match="of a cluster's node"):
        Store.open(str(tmp_path), CONFIG, maintain=False)
    with ReplicaStore.open(str(tmp_path), CONFIG) as store:
        assert store.reads.queues() == [], "a reader of the directory sees what was committed"


# --- Configurations ---


def test_configurations_of_the_log_are_found_again(tmp_path: Path) -> None:
    first, second = Configuration(VOTERS, (4,)), Configuration((1, 2, 3, 4))
    log = new_log(tmp_path)
    put(log, 0, 3)
    log.append(1, 1, EntryKind.CONFIGURATION, first)
    put(log, 3, 6)
    log.append(3, 1, EntryKind.CONFIGURATION, second)
    expected = [ConfigurationAt(-1, Configuration(VOTERS)), ConfigurationAt(1, first)]
    assert log.load().configurations == (*expected, ConfigurationAt(3, second))
    crash(log)
    with reopen(tmp_path) as log:
        assert log.load().configurations == (*expected, ConfigurationAt(3, second))
        log.truncate_from(3)
        assert log.load().configurations == tuple(expected)
        put(log, 6, 9, term=2)  # In the place of the second one.
    with reopen(tmp_path) as log:
        assert log.load().configurations == tuple(expected)


def test_a_configuration_that_begins_the_log_is_found_again(tmp_path: Path) -> None:
    """What lies before it was deleted, and a node without it counts votes of the wrong members."""
    changed = Configuration(VOTERS, (4,)), Configuration(VOTERS, (5,))
    log = new_log(tmp_path)
    files = log.store.ledger.files
    put(log, 0, 3)
    while files.files[-1].free_bytes > 2 * PAGE:
        put(log, 3, 6, size_bytes=PAGE // 4)
    while len(files.files) == 1:
        log.append(log.last_index + 1, 1, EntryKind.CONFIGURATION, changed[log.last_index % 2])
    first_index, (before, begun) = log.last_index, log.load().configurations[-2:]
    assert begun.index == first_index
    sync(log)
    log.dispatch(first_index + 1)
    log.store.maintain()
    log.store.expired_position = files.files[1].position
    delete_to(log, first_index)
    log.close()
    with reopen(tmp_path, first_index) as log:
        assert log.store.ledger.first_index == first_index
        assert log.load().configurations == (before, begun)


def test_a_full_disk_takes_a_configuration_only_where_it_was_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another one was cut off: what was noted needs no byte any more."""
    log = new_log(tmp_path)
    put(log, 0, 3)
    with failpoints.armed("fs.write=ENOSPC"), pytest.raises(StoreFullError):
        log.append(1, 1, EntryKind.CONFIGURATION, Configuration(VOTERS, (4,)))
    assert log.last_index == 0, "what could not be noted is not written"
    log.append(1, 1, EntryKind.CONFIGURATION, Configuration(VOTERS, (4,)))
    log.append(2, 1, EntryKind.CONFIGURATION, Configuration(VOTERS))
    assert log.has_room_for(1000, [2, 3])
    log.truncate_from(1)

    def no_byte(record: object) -> int:
        raise StoreFullError("/disk/raft.0", 400, 0)

    with monkeypatch.context() as disk:
        disk.setattr(log.node_file._meta, "save", no_byte)
        assert not log.has_room_for(1000, [4])
        assert log.has_room_for(1000, [2])
        put(log, 3, 6, term=2)
        log.append(2, 2, EntryKind.CONFIGURATION, Configuration(VOTERS, (5,)))
    expected = (
        ConfigurationAt(-1, Configuration(VOTERS)),
        ConfigurationAt(2, Configuration(VOTERS, (5,))),
    )
    assert log.load().configurations == expected
    log.close()
    with reopen(tmp_path) as log:
        assert log.load().configurations == expected


# --- A full disk ---


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
        lo, last_index = put_until_full(log)
        log.append(last_index + 1, 1, EntryKind.NO_OP, None)  # What fits goes on.
        log.dispatch(log.last_index + 1)
        assert queue_numbers(log) == list(range(lo))
        disk.is_full = False
        wait_for_room(log, 10_000)
        put(log, lo, lo + 3, size_bytes=3000)
        assert log.store.counters.store_full_count > 0


def put_until_full(log: LedgerLog) -> tuple[int, int]:
    """Put messages from number 3 on, until the thread that makes files meets the full disk; return
    the next number, and the last index."""
    lo, pause = 3, threading.Event()
    for _ in range(1000):
        before, last_index = data_image(log), log.last_index
        refused: StoreError | None = None
        try:
            put(log, lo, lo + 3, size_bytes=3000)
        except (BusyError, StoreFullError) as error:
            refused = error
        if refused is None:  # A file that was being made when the disk became full.
            lo += 3
            continue
        assert (data_image(log), log.last_index) == (before, last_index)
        if isinstance(refused, StoreFullError):
            return lo, last_index
        pause.wait(0.005)
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
