"""A store of a shipped log: what readers see, what a cut takes away, where an empty log begins."""

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.derived.queues.consume_queue import ConsumeQueue
from store.errors import (
    CorruptionError,
    FileSystemError,
    LayoutError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.log import cut_file
from store.log.cut_file import CUT_FILES_KEPT_MAX, list_cut_files, read_cut_file, read_cut_header
from store.maintenance.retention import DiskState
from store.replicated.shipped_store import ShippedStore
from store.store import Store
from tests.patience import PATIENCE_S
from tests.store.overwrites import overwrite
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import BORN, PAGE, batch
from tests.store.shipped_stores import (
    CONFIG,
    filled,
    found_numbers,
    killed,
    log_bytes,
    on_disk,
    open_store,
    put,
    ship,
    sync,
    take_away,
)

FILE = 4 * PAGE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShippedStore]:
    with open_store(tmp_path / "s") as opened:
        yield opened


# --- What readers see ---


def test_records_that_replaced_others_are_read_from_where_they_begin(tmp_path: Path) -> None:
    """Old bytes of before a start are checked once; where those ended, no new record begins."""
    with open_store(tmp_path / "s") as store:
        ends = filled(store, 300)
        sync(store)
        store.dispatch_to(ends[-1])
    with open_store(tmp_path / "s") as store:
        assert store.shipped.checked.trusted_position > ends[9]
        store.shipped.check(0, store.log.read(0, ends[8]))
        store.cut(ends[3])
        put(store, 9, 30, size_bytes=333)
        store.dispatch_to(store.shipped.end_position)
        assert found_numbers(store) == [*range(30)]


def test_readers_stop_where_they_are_told(store: ShippedStore, tmp_path: Path) -> None:
    ends = filled(store, 60)
    assert found_numbers(store) == []
    store.dispatch_to(ends[4])
    assert found_numbers(store) == list(range(12))
    assert store.reads.messages_by_key("orders", "key0011")
    assert not store.reads.messages_by_key("orders", "key0012")
    store.dispatch_to(ends[2])  # A new master begins low: nothing is taken back.
    assert found_numbers(store) == list(range(12))
    store.maintain()
    image = killed(tmp_path / "s", tmp_path / "image")
    with open_store(image) as again:
        assert found_numbers(again) == list(range(12)), "not to the end of the log"
        again.dispatch_to(ends[-1])
        assert found_numbers(again) == list(range(60))


def test_a_slave_that_becomes_master_goes_on_with_the_offsets(
    store: ShippedStore, tmp_path: Path
) -> None:
    """Also behind records that no reader has seen."""
    ends = filled(store, 60)
    put(store, 0, 4, queue_id=3)
    with open_store(tmp_path / "slave") as slave:
        slave.prepare(batch(0, 1))  # Knows of no queue yet.
        ship(store, slave)
        slave.dispatch_to(ends[3])
        prepared = slave.prepare(batch(60, 62) + batch(4, 5, queue_id=3))
        assert prepared.queue_offsets == [60, 61, 4]
        slave.append_prepared(prepared)
        ship(slave, store)  # The old master follows it.
        assert store.prepare(batch(62, 63)).queue_offsets == [62]
        store.dispatch_to(store.shipped.end_position)
        assert found_numbers(store) == list(range(62))


def test_a_damaged_store_time_is_given_to_no_record(tmp_path: Path) -> None:
    """The time of the newest record is the least that the next one gets."""
    with open_store(tmp_path / "s", property_crc=True) as store:
        put(store, 0, 1, queue_id=3)
        filled(store, 90)
        store.dispatch_to(store.shipped.end_position)
        sync(store)
    first = tmp_path / "s" / "commitlog" / f"{0:020d}"
    overwrite(first, fmt.STORE_TIMESTAMP_AT, b"\x40")  # Far in the future.
    with open_store(tmp_path / "s", property_crc=True) as store:
        prepared = store.prepare(batch(90, 91, property_crc=True))
        assert prepared.store_unix_ms == BORN
        with pytest.raises(CorruptionError):
            store.reads.pull("orders", 3, 0)


def test_store_times_do_not_step_back_behind_another_replica(
    store: ShippedStore, tmp_path: Path
) -> None:
    store.engine.clock = lambda: 5_000_000
    filled(store, 9)
    with open_store(tmp_path / "slave") as slave:
        ship(store, slave)
        slave.engine.clock = lambda: 4_000_000
        assert slave.prepare(batch(9, 10)).store_unix_ms == 5_000_000
    with open_store(tmp_path / "slave") as slave:
        slave.engine.clock = lambda: 4_000_000
        assert slave.prepare(batch(9, 10)).store_unix_ms == 5_000_000, "found in the tail"
        slave.dispatch_to(slave.shipped.end_position)
    with open_store(tmp_path / "slave") as slave:
        slave.engine.clock = lambda: 4_000_000
        assert slave.prepare(batch(9, 10)).store_unix_ms == 5_000_000, "found in the log"


def test_store_times_do_not_step_back_behind_a_torn_tail(
    store: ShippedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.engine.clock = lambda: BORN + 9
    end = filled(store, 9)[-1]
    store.dispatch_to(end)
    image = killed(tmp_path / "s", tmp_path / "image")
    overwrite(image / "commitlog" / f"{0:020d}", end, log_bytes(store)[:100])
    monkeypatch.delattr(ConsumeQueue, "read_units")  # No unit of a queue is read.
    with open_store(image) as again:
        assert again.recovery.cut_size_bytes
        assert again.prepare(batch(9, 10)).store_unix_ms == BORN + 9


# --- Cuts ---


@pytest.mark.parametrize("dispatched", [0, 5, 30, 40])
@pytest.mark.parametrize("kept", [0, 1, 10, 29, 30, 39])
def test_a_cut_takes_log_queues_and_index_and_sets_the_bytes_aside(
    store: ShippedStore, tmp_path: Path, dispatched: int, kept: int
) -> None:
    ends = filled(store, 120)
    before = log_bytes(store)
    assert len(store.log.files.files) > 3
    store.dispatch_to(ends[dispatched])
    sync(store)
    store.maintain()
    path = take_away(store, ends[kept], epoch=7)
    seen = 3 * min(kept, dispatched)
    for _ in range(2):
        assert store.shipped.end_position == store.durable_position == ends[kept]
        assert log_bytes(store) == before[: ends[kept]]
        assert on_disk(tmp_path / "s").rstrip(b"\0") == before[: ends[kept]].rstrip(b"\0")
        assert found_numbers(store) == list(range(seen))
        assert not store.reads.messages_by_key("orders", f"key{seen:04d}")
        fs = FileSystem()
        assert b"".join(data for _, data in read_cut_file(fs, path)) == before[ends[kept] :]
        header, _ = read_cut_header(fs, path)
        assert (header.epoch, header.lo, header.hi) == (7, ends[kept], ends[-1])
        # Other records take the place.
        prepared = store.prepare(batch(900, 903))
        assert prepared.position == ends[kept] or kept == 0 or prepared.position % FILE == 0
        assert prepared.queue_offsets == [3 * kept, 3 * kept + 1, 3 * kept + 2]
        store.close()
        store = open_store(tmp_path / "s")
    store.append_prepared(store.prepare(batch(900, 903)))
    store.dispatch_to(store.shipped.end_position)
    assert found_numbers(store) == [*range(3 * kept), 900, 901, 902]
    store.close()


def test_a_follower_of_a_new_master_is_the_same_again(store: ShippedStore, tmp_path: Path) -> None:
    ends = filled(store, 90)
    with open_store(tmp_path / "slave") as slave:
        ship(store, slave, ends[10])
        slave.dispatch_to(ends[10])
        for lo in range(500, 530, 3):
            put(slave, lo, lo + 3, size_bytes=700)
        store.dispatch_to(ends[-1])
        take_away(store, ends[10])
        ship(slave, store)
        assert log_bytes(store) == log_bytes(slave)
        store.dispatch_to(store.shipped.end_position)
        assert found_numbers(store) == [*range(30), *range(500, 530)]
        assert store.engine.dispatcher.built().item_count > 0


def test_a_full_disk_stops_a_cut_before_it_begins(store: ShippedStore, tmp_path: Path) -> None:
    ends = filled(store, 60)
    store.dispatch_to(ends[-1])
    before = on_disk(tmp_path / "s")
    for failpoint in ("fs.write=ENOSPC", "fs.write=short", "fs.open=ENOSPC", "fs.rename=EIO"):
        with failpoints.armed(failpoint), pytest.raises((StoreFullError, FileSystemError)):
            take_away(store, ends[5])
        assert on_disk(tmp_path / "s") == before
        assert found_numbers(store) == list(range(60))
        assert list_cut_files(FileSystem(), str(tmp_path / "s")) == []
    take_away(store, ends[5])
    assert found_numbers(store) == list(range(15))


def test_an_error_in_the_middle_of_a_cut_ends_the_process(tmp_path: Path) -> None:
    """And the next one finds a whole log, and may cut again."""
    causes: list[BaseException] = []
    for number, (failpoint, lo) in enumerate(
        [("mapped_file.truncate=EIO", 5), ("fs.sync=EIO@2", 5), ("fs.unlink=EIO", 5)]
    ):
        root = tmp_path / str(number)
        store = ShippedStore.open(str(root), CONFIG, on_fatal=causes.append)
        ends = filled(store, 90)
        store.dispatch_to(ends[-1])
        before = log_bytes(store)
        sync(store)
        store.set_aside(ends[lo], ends[-1], 1)
        with failpoints.armed(failpoint), pytest.raises(SyncFailedError):
            store.cut(ends[lo])
        image = killed(root, tmp_path / f"image-{number}")
        with pytest.raises(StoreError):
            store.close()
        with open_store(image) as again:
            end = again.shipped.end_position
            assert ends[lo] <= end <= ends[-1]
            assert log_bytes(again) == before[:end]
            if end > ends[lo]:
                take_away(again, ends[lo])
            again.dispatch_to(ends[lo])
            assert found_numbers(again) == list(range(3 * lo))
    assert len(causes) == 3


def test_positions_from_before_a_cut_are_not_saved_after_it(tmp_path: Path) -> None:
    """The maintenance syncs derived files on its thread while the loop cuts below them."""

    class Slow(FileSystem):
        """Holds the first sync of a queue until it may go on."""

        def __init__(self) -> None:
            self.is_in, self.may_go_on = threading.Event(), threading.Event()
            self.is_armed = False

        def sync(self, fd: int, path: str) -> None:
            if self.is_armed and "consumequeue" in path:
                self.is_armed = False
                self.is_in.set()
                assert self.may_go_on.wait(PATIENCE_S)
            super().sync(fd, path)

    fs = Slow()
    store = open_store(tmp_path / "s", fs)
    ends = filled(store, 60)
    store.dispatch_to(ends[-1])
    sync(store)
    fs.is_armed = True
    maintain = threading.Thread(target=store.maintain)
    maintain.start()
    assert fs.is_in.wait(PATIENCE_S)
    cut = threading.Thread(target=store.cut, args=(ends[5],))
    cut.start()
    # The cut has either lowered the mark (and must not be undone) or waits for the maintenance.
    while not store.engine.derived_lock.locked() and cut.is_alive():
        pass
    fs.may_go_on.set()
    maintain.join(PATIENCE_S)
    cut.join(PATIENCE_S)
    mark = store.engine.mark.mark
    assert max(mark.dispatched_position, mark.dispatched_durable_position) <= ends[5]
    image = killed(tmp_path / "s", tmp_path / "image")
    store.close()
    with open_store(image) as again:
        assert found_numbers(again) == list(range(15))


# --- What was set aside ---


def test_damage_of_a_file_that_was_set_aside_is_told(store: ShippedStore, tmp_path: Path) -> None:
    ends = filled(store, 60)
    path = Path(take_away(store, ends[5]))
    fs, whole = FileSystem(), path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole + b"x", b"X" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError):
            read_cut_header(fs, str(path))
        (cut,) = list_cut_files(fs, str(tmp_path / "s"))
        assert (cut.epoch, cut.lo, cut.hi) == (1, ends[5], ends[-1]), "as its name says"
    for at in (10, 30, 45, 47, 48, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptionError):
            list(read_cut_file(fs, str(path)))
    path.write_bytes(whole)
    assert list(read_cut_file(fs, str(path)))


def test_only_so_many_are_kept(store: ShippedStore, tmp_path: Path) -> None:
    times = iter(range(1_000, 2_000))
    store.engine.clock = lambda: next(times)
    end = filled(store, 9)[-1]
    for epoch in range(CUT_FILES_KEPT_MAX + 3):
        put(store, 0, 3)
        take_away(store, end, epoch)
    kept = list_cut_files(FileSystem(), str(tmp_path / "s"))
    assert [cut.epoch for cut in kept] == list(range(3, CUT_FILES_KEPT_MAX + 3))


def test_half_a_file_never_has_the_name(store: ShippedStore, tmp_path: Path) -> None:
    ends = filled(store, 60)
    directory = tmp_path / "s" / cut_file.DIRECTORY
    with failpoints.armed("cut_file.before_rename=EIO"), pytest.raises(OSError, match="failpoint"):
        store.set_aside(ends[5], ends[-1], 1)
    assert [path.suffix for path in directory.iterdir()] == [".allocating"]
    take_away(store, ends[5])
    assert [path.suffix for path in directory.iterdir()] == [".cut"]


def test_files_that_retention_took_are_deleted_before_all_is_set_aside(store: ShippedStore) -> None:
    """A crash must find no gap behind them."""
    ends = filled(store, 90)
    store.dispatch_to(ends[-1])
    sync(store)
    files = store.shipped.files
    detached = files.detach_first(2)
    store.set_all_aside(1)
    assert not files.has_detached
    assert not any(Path(file.path).exists() for file in detached)
    assert store.shipped.end_position == store.shipped.files.files[-1].position


# --- Where an empty log begins ---


def test_an_empty_log_begins_where_another_one_does(store: ShippedStore, tmp_path: Path) -> None:
    """The first files of the master are gone: its offsets there go on, also of silent queues."""
    put(store, 0, 5, queue_id=7)
    ends = filled(store, 240)
    store.dispatch_to(ends[-1])
    sync(store)
    begin = 2 * FILE
    offsets = store.next_offsets_at(begin)
    assert offsets[b"orders", 7] == 5
    while store.log.min_position < begin:
        store.log.delete_first()
    for number in range(2):
        with open_store(tmp_path / f"slave{number}") as slave:
            if number:  # It had a log, and nothing in common.
                filled(slave, 30)
                slave.dispatch_to(slave.shipped.end_position)
                take_away(slave, 0)
            slave.begin_at(begin, offsets)
            assert (slave.log.min_position, slave.durable_position) == (begin, begin)
            assert slave.reads.queue_range("orders", 7) == (5, 5)
            ship(store, slave)
            assert log_bytes(slave) == log_bytes(store)
            slave.dispatch_to(slave.shipped.end_position)
            lo, hi = slave.reads.queue_range("orders", 0)
            assert (lo, hi) == (offsets[b"orders", 0], 240)
            assert found_numbers(slave) == list(range(lo, hi))
        with open_store(tmp_path / f"slave{number}") as slave:
            assert slave.reads.queue_range("orders", 7) == (5, 5)
            assert found_numbers(slave) == list(range(lo, hi))


def test_a_log_that_began_elsewhere_is_missed_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark says so when `begin_at` returns, not only after the next sync of the log."""
    has_begun = threading.Event()
    with open_store(tmp_path / "s") as store:
        run_round = store.engine.flush_service.run_round

        def run_later(*, thorough: bool = False) -> bool:
            assert has_begun.wait(PATIENCE_S)
            return run_round(thorough=thorough)

        monkeypatch.setattr(store.engine.flush_service, "run_round", run_later)
        store.begin_at(3 * FILE, {})
        image = killed(tmp_path / "s", tmp_path / "image")
        has_begun.set()
    for file in (image / "commitlog").iterdir():
        file.unlink()
    (image / "boot_id").write_text("another-boot\n")
    with pytest.raises(CorruptionError, match="log end"):
        open_store(image)


def test_a_beginning_and_its_offsets_outlive_a_power_loss(tmp_path: Path) -> None:
    disk, root, image = PowerLossFileSystem(), tmp_path / "s", tmp_path / "image"
    with open_store(root, disk) as store:
        store.begin_at(3 * FILE, {(b"orders", 0): 77})
        disk.build_image(str(root), str(image), Random(0), lambda path: 0.0)
    (image / "boot_id").write_text("another-boot\n")
    with open_store(image) as again:
        assert again.shipped.end_position == 3 * FILE
        assert again.prepare(batch(77, 78)).queue_offsets == [77]


def test_a_failed_sync_of_a_new_file_is_fatal(tmp_path: Path) -> None:
    causes: list[BaseException] = []
    store = ShippedStore.open(str(tmp_path / "s"), CONFIG, on_fatal=causes.append)
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError) as caught:
        store.prepare(batch(0, 1))
    assert causes == [caught.value]
    with pytest.raises(SyncFailedError):
        store.close()


@pytest.mark.parametrize("step", ["before_begin", "before_offsets"])
def test_a_beginning_that_was_broken_off_is_begun_again(tmp_path: Path, step: str) -> None:
    causes: list[BaseException] = []
    root = tmp_path / "s"
    store = ShippedStore.open(str(root), CONFIG, on_fatal=causes.append)
    filled(store, 30)
    take_away(store, 0)
    with failpoints.armed(f"shipped_store.{step}=EIO"), pytest.raises(SyncFailedError):
        store.begin_at(3 * FILE, {(b"orders", 0): 77})
    assert len(causes) == 1
    image = killed(root, tmp_path / "image")
    with pytest.raises(StoreError):
        store.close()
    with open_store(image) as again:
        assert again.shipped.end_position <= again.log.min_position
        again.begin_at(5 * FILE, {(b"orders", 0): 99})
        assert put(again, 99, 102) > 5 * FILE
        again.dispatch_to(again.shipped.end_position)
        assert found_numbers(again) == [99, 100, 101]


# --- Whose directory it is ---


def test_a_directory_of_another_kind_is_not_opened(tmp_path: Path) -> None:
    open_store(tmp_path / "s").close()
    (tmp_path / "s" / "haReplica.0").write_bytes(b"of the node")
    with pytest.raises(LayoutError, match="a store of its own"):
        Store.open(str(tmp_path / "s"), CONFIG)
    open_store(tmp_path / "s").close()
    (tmp_path / "s" / "raft.0").write_bytes(b"of the node")
    with pytest.raises(LayoutError, match="master-slave"):
        open_store(tmp_path / "s")


def test_a_log_whose_files_are_gone_is_no_empty_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        filled(store, 30)
        sync(store)
    for file in (tmp_path / "s" / "commitlog").iterdir():
        file.unlink()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="log end"):
            open_store(tmp_path / "s")


def test_a_full_disk_refuses_an_append_before_anything_is_written(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put(store, 0, 3)
        end = store.shipped.end_position
        store.engine.retention.state = DiskState.FULL
        with pytest.raises(StoreFullError):
            store.prepare(batch(3, 6))
        assert store.shipped.end_position == end
        assert store.counters.store_full_count == 1
        store.engine.retention.state = DiskState.OK
        put(store, 3, 6)


def test_an_append_is_no_older_than_what_another_replica_wrote(tmp_path: Path) -> None:
    """Store times rise along the log, whatever the clocks of two masters say."""
    with open_store(tmp_path / "a") as source, open_store(tmp_path / "b") as target:
        put(source, 0, 3)
        ship(source, target)
        target.find_offsets()
        source.engine.clock = lambda: BORN + 90_000
        put(source, 3, 6)
        ship(source, target)
        prepared = target.prepare(batch(6, 9))
        assert prepared.store_unix_ms == BORN + 90_000
