"""A store whose log is replicated: its threads, its room, its maintenance, and what a check says of
it.

What a replica does with it is in tests/node/replication/raft/storage/test_log.py.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store import format as fmt
from store.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    FileSystemError,
    PositionRangeError,
    StoreError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file_queue import InlineFiles, MappedFileQueue
from store.files.meta_file import MetaFile
from store.fsck.plan import plan
from store.fsck.repair import apply
from store.fsck.types import Severity
from store.ledger.entry import KIND_CONFIGURATION, KIND_NO_OP, ChainLink
from store.replicated.ledger_store import ReplicaStore
from tests.patience import PATIENCE_S, wait_for
from tests.store.crash_check import must_not_die
from tests.store.crashes import abandon
from tests.store.fsck_stores import findings, flip, forget_sums, given_sizes
from tests.store.ledger_stores import FILE, open_replica
from tests.store.overwrites import overwrite
from tests.store.records import BORN, PAGE, batch, numbers, small_config

CONFIG = small_config(container="ledger", file_size_bytes=16 * PAGE, disk_reserve_bytes=0)


def open_store(root: Path, **changes: object) -> ReplicaStore:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    return ReplicaStore.open(str(root), config, now_unix_ms=lambda: BORN, on_fatal=must_not_die)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    with open_store(tmp_path) as opened:
        yield opened


def put(store: ReplicaStore, lo: int, hi: int, *, term: int = 1, size_bytes: int = 40) -> int:
    """Append one entry; return its end."""
    prepared = store.prepare(batch(lo, hi, size_bytes=size_bytes))
    return store.append_prepared(prepared, term).end_position


def found_numbers(store: ReplicaStore) -> list[int]:
    return numbers(store.reads.pull("orders", 0, 0, max_count=1000, max_size_bytes=1 << 24).data)


def crash(store: ReplicaStore) -> None:
    abandon(store.engine)


def note_replica(root: Path) -> None:
    """What a node keeps beside the store, as far as the store knows of it."""
    meta = MetaFile(FileSystem(), str(root), "raft")
    meta.load(must_exist=False)
    meta.save({"of": "the node"})


# --- Room ---


def test_a_failed_sync_of_a_reserved_file_is_fatal(tmp_path: Path) -> None:
    causes: list[BaseException] = []
    store = ReplicaStore.open(str(tmp_path), CONFIG, on_fatal=causes.append)
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError) as caught:
        store.has_room(100)
    assert causes == [caught.value]
    with pytest.raises(SyncFailedError):
        store.close()


def test_an_index_file_without_checksums_is_compared_with_the_log(tmp_path: Path) -> None:
    """RocketMQ made it, or an older release; what is found is reported."""
    with open_store(tmp_path, index_slot_count=64, index_entry_count=20) as store:
        end = put(store, 0, 30)
        store.dispatch_to(end)
    forget_sums(tmp_path)
    index = sorted((tmp_path / "index").iterdir())[0]
    flip(index, 8 * (40 + 64 * 4 + 20))
    reports: list[str] = []
    with open_store(tmp_path, index_slot_count=64, index_entry_count=20) as store:
        store.serve_on_loop(reports.append)
        mended_count = store.counters.derived_mended_key_count
        store.mend_unknown()
        assert (mended_count, store.counters.derived_mended_key_count) == (0, 1)
    assert any(index.name in report for report in reports)


def test_a_crash_with_reserved_files_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    end = put(store, 0, 3)
    assert store.has_room(40 * PAGE)
    crash(store)
    data = tmp_path / "dledger-n0" / "data"
    assert len(list(data.iterdir())) > 2
    with open_store(tmp_path) as store:
        assert store.log.max_position == end
        assert len(list(data.iterdir())) == 1
        put(store, 3, 6)


def test_a_cut_behind_reserved_files_leaves_no_gap(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for lo in range(0, 60, 3):
        put(store, lo, lo + 3, size_bytes=4000)
    assert store.has_room(40 * PAGE)
    store.truncate_from(2)
    assert store.ledger.files.reserved_count == 0
    crash(store)
    with open_store(tmp_path) as store:
        assert store.ledger.last_index == 1
        put(store, 6, 9, term=2)


def test_a_file_that_cannot_be_mapped_is_not_reserved(tmp_path: Path) -> None:
    fs = FileSystem()
    files = MappedFileQueue(fs, str(tmp_path), PAGE, InlineFiles(fs, str(tmp_path), PAGE))
    with failpoints.armed("fs.map=EIO"), pytest.raises(FileSystemError):
        files.reserve()
    assert (files.reserved_count, list(tmp_path.iterdir())) == (0, [])
    files.reserve(2)
    assert files.roll().position == 0
    assert files.reserved_count == 1


def test_a_follower_leaves_the_reserve_free(tmp_path: Path) -> None:
    """It writes what its leader sends; term and vote must find room afterwards."""
    free_bytes = FileSystem().free_bytes(str(tmp_path))[0]
    with open_store(tmp_path / "full", disk_reserve_bytes=2 * free_bytes) as store:
        assert not store.has_room(100)
        assert store.ledger.files.reserved_count == 0
    with open_store(tmp_path / "roomy", disk_reserve_bytes=free_bytes // 2) as store:
        assert store.has_room(100)


def test_room_takes_as_many_files_as_it_needs(tmp_path: Path) -> None:
    with open_store(tmp_path, preallocate_file_count=2) as store:
        wait_for("room in files that are made beside", lambda: store.has_room(20 * PAGE))
        assert store.ledger.files.reserved_count == store.log.files.file_count_for(20 * PAGE)


def test_a_batch_is_refused_while_its_file_is_being_made(tmp_path: Path) -> None:
    with open_store(tmp_path, preallocate_file_count=1) as store:
        refused = 0
        pause = threading.Event()
        for lo in range(0, 150, 3):
            while True:
                try:
                    put(store, lo, lo + 3, size_bytes=4000)
                    break
                except BusyError:
                    refused += 1
                    pause.wait(0.001)
        store.dispatch_to(store.log.max_position)
        assert found_numbers(store) == list(range(150))
        assert store.counters.busy_count == refused


# --- The index of the ledger ---


def test_maintenance_makes_the_next_index_file(store: ReplicaStore) -> None:
    index = store.ledger.index
    for _ in range(90):
        store.append_own(KIND_NO_OP, 1, b"")
    store.maintain()
    assert not index.spares
    for _ in range(20):
        store.append_own(KIND_NO_OP, 1, b"")
    store.maintain()
    assert sorted(index.spares) == [128 * 32]
    with failpoints.armed("fs.allocate=ENOSPC@1+"):
        for _ in range(60):
            store.append_own(KIND_NO_OP, 1, b"")
    assert len(index.files.files) == 2
    store.truncate_from(100)
    assert not index.spares
    for _ in range(60):
        store.append_own(KIND_NO_OP, 2, b"")
    assert store.ledger.position_of(159) > 0


def test_index_files_are_made_by_one_thread_at_a_time(store: ReplicaStore) -> None:
    """The maintenance makes files ahead while the writer takes them and cuts."""
    stop, errors = threading.Event(), []

    def keep_up() -> None:
        try:
            while not stop.is_set():
                store.ledger.index.make_spare()
                store.maintain()
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=keep_up)
    thread.start()
    try:
        for number in range(3000):
            store.append_own(KIND_NO_OP, 1 + number // 500, b"")
            if number % 500 == 499:
                store.truncate_from(store.ledger.last_index - 200)
    finally:
        stop.set()
        thread.join()
    assert errors == []
    ledger = store.ledger
    for index in range(ledger.last_index + 1):
        unit = ledger.index.get(index)
        assert unit is not None
        assert unit.position == ledger.header(index).position


# --- Maintenance beside the writer ---


def test_the_age_of_a_file_is_asked_for_until_what_follows_it_is_visible(tmp_path: Path) -> None:
    """Its first record says nothing of its last one, which may be days younger."""
    times = iter(range(BORN, BORN + 10**9, 1000))
    with ReplicaStore.open(str(tmp_path), CONFIG, now_unix_ms=lambda: next(times)) as store:
        ends = [put(store, lo, lo + 3, size_bytes=4000) for lo in range(0, 60, 3)]
        first, second, *_ = store.log.files.files
        last_index = store.ledger.index_at_position(second.position) - 1
        store.dispatch_to(ends[last_index])
        store.find_expired()
        assert store.engine.retention.newest_times == {}
        store.dispatch_to(ends[last_index + 1])
        store.find_expired()
        (message,) = store.reads.messages_by_key("orders", f"key{3 * (last_index + 1):04d}")
        assert store.engine.retention.newest_times == {first.position: message.store_unix_ms}


def test_the_time_of_a_damaged_entry_is_given_to_no_other(store: ReplicaStore) -> None:
    end = put(store, 0, 3)
    store.engine.flush_service.wait(end, 10_000)
    first = store.ledger.files.files[0]
    overwrite(first, 48 + fmt.STORE_TIMESTAMP_AT, b"\x40")  # Far in the future.
    store.ledger.checked.distrust(0, end)
    with pytest.raises(CorruptionError):
        store.find_offsets()


def test_maintenance_and_retention_run_beside_appends_and_cuts(tmp_path: Path) -> None:
    store = open_store(tmp_path, retention_interval_ms=0, retention_size_bytes=2 * 16 * PAGE)
    stop, requested = threading.Event(), threading.Event()
    ready: list[object] = []
    errors: list[BaseException] = []

    def keep_up() -> None:
        try:
            while not stop.is_set():
                store.maintain()
                if ready:
                    deletion = ready.pop()
                    deletion.remove()  # type: ignore[attr-defined]
                    store.delete_expired_derived()
                    requested.clear()
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=keep_up)
    thread.start()
    deleted, lo = 0, 0
    try:
        for number in range(1200):
            put(store, lo, lo + 3, term=1 + number // 100, size_bytes=1000)
            lo += 3
            if number % 10 == 9:
                put(store, 10**6, 10**6 + 2, term=1 + number // 100)
                store.truncate_from(store.ledger.last_index)
            store.dispatch_to(store.log.max_position)
            if not requested.is_set():
                deletion = store.deletion(store.ledger.last_index)
                if deletion is not None and deletion.write_start() and deletion.forget():
                    deleted += deletion.file_count
                    requested.set()
                    ready.append(deletion)
            assert not errors
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert deleted > 10
    (queue,) = store.reads.queues()
    assert queue.max_offset == lo
    assert numbers(store.reads.pull("orders", 0, queue.min_offset).data)[0] == queue.min_offset
    store.close()
    with open_store(tmp_path) as store:
        assert not store.recovery.derived_rebuilt
        assert store.reads.queues()[0].max_offset == lo


def test_offsets_are_asked_for_what_readers_see_only(store: ReplicaStore) -> None:
    ends = [put(store, lo, lo + 3) for lo in range(0, 30, 3)]
    store.dispatch_to(ends[5])
    assert store.next_offsets_at(ends[3]) == {(b"orders", 0): 12}
    assert store.next_offsets_at(0) == {}
    with pytest.raises(AssertionError, match="not dispatched"):
        store.next_offsets_at(ends[6])
    with pytest.raises(PositionRangeError):
        store.reads.message_at(ends[6] + 48)


def test_damage_where_the_newest_store_time_is_keeps_no_replica_from_opening(
    store: ReplicaStore,
) -> None:
    put(store, 0, 3)
    for _ in range(3):
        store.append_own(KIND_CONFIGURATION, 1, bytes(8 * PAGE))
    file = store.ledger.files.files[0]
    store.close()
    overwrite(file, fmt.ENTRY_HEADER_SIZE_BYTES + fmt.BODY_AT, b"!")
    with open_store(Path(store.root)) as again:
        assert again.recovery.store_unix_ms == 0
        with pytest.raises(CorruptionError):
            again.prepare(batch(3, 4))


def test_a_sync_is_refused_only_after_the_end(store: ReplicaStore) -> None:
    put(store, 0, 3)
    answers: list[StoreError | None] = []
    done = threading.Event()

    def on_done(error: StoreError | None) -> None:
        answers.append(error)
        done.set()

    store.request_sync(on_done)
    assert done.wait(PATIENCE_S)
    assert answers == [None]
    assert store.durable_index == 0
    store.close()
    with pytest.raises(ClosedError):
        store.request_sync(answers.append)


# --- What a check says ---


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_tail_that_is_not_committed_is_nothing_to_repair(tmp_path: Path, is_clean: bool) -> None:
    store = open_store(tmp_path)
    note_replica(tmp_path)
    ends = [put(store, lo, lo + 3, size_bytes=2000) for lo in range(0, 60, 3)]
    store.dispatch_to(ends[7])
    store.maintain()
    if is_clean:
        store.close()
    else:
        crash(store)
    problems = findings(tmp_path, given_sizes(CONFIG))
    assert [f for f in problems if f.severity is not Severity.LEFT_OVER] == []


def test_a_repair_shows_nobody_what_was_not_committed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    note_replica(tmp_path)
    ends = [put(store, lo, lo + 3, size_bytes=2000) for lo in range(0, 60, 3)]
    store.dispatch_to(ends[7])
    store.close()
    for path in (tmp_path / "consumequeue" / "orders" / "0").iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    given = given_sizes(CONFIG)
    assert {f.severity for f in findings(tmp_path, given)} == {Severity.DERIVED}
    actions = plan(str(tmp_path), findings(tmp_path, given), given=given)
    apply(str(tmp_path), actions)
    assert findings(tmp_path, given) == []
    with open_store(tmp_path) as store:
        assert store.dispatched_position == ends[7]
        assert found_numbers(store) == list(range(24))
        store.dispatch_to(ends[-1])
        assert found_numbers(store) == list(range(60))


def test_a_pass_over_derived_files_ends_soon_when_it_is_stopped(store: ReplicaStore) -> None:
    end = put(store, 0, 30)
    store.dispatch_to(end)
    scrubber = store.derived_scrubber()
    store.stop_mending()
    with pytest.raises(ClosedError):
        scrubber.step()


# --- Edges: room in the making, a close, a log that is replaced, cuts ---


class _WarmUp:
    """Allocates nothing ahead."""

    def __init__(self, store: ReplicaStore) -> None:
        self.asked: list[int] = []
        self._own = store.engine.warm_up

    def poll(self, position: int) -> bool:
        self.asked.append(position)
        return False


def test_room_that_is_still_being_made_is_none(tmp_path: Path) -> None:
    """Else the caller, which may not wait, would make the file itself."""
    with open_replica(tmp_path) as store:
        store.append_own(KIND_NO_OP, 1, b"x")
        count = len(store.ledger.files.files)
        warm_up = _WarmUp(store)
        store.engine.warm_up = warm_up  # type: ignore[assignment]
        try:
            assert not store.has_room(2 * FILE)
            assert warm_up.asked
            assert len(store.ledger.files.files) == count
            assert store.ledger.files.reserved_count == 0
        finally:
            store.engine.warm_up = warm_up._own


def test_a_closed_store_has_neither_room_nor_records_and_says_why(tmp_path: Path) -> None:
    """Whoever hears that there is no room tries again."""
    with open_replica(tmp_path) as store:
        store.append_own(KIND_NO_OP, 1, b"x")
    with failpoints.armed("fs.open=ENOSPC"), pytest.raises(ClosedError):
        store.has_room(8 * FILE)
    with pytest.raises(ClosedError):
        store.reads.pull("orders", 0, 0, max_count=1, max_size_bytes=100)
    with pytest.raises(ClosedError):
        store.prepare(batch(0, 1))


def test_a_log_that_is_replaced_beside_the_look_at_it_expires_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new log has its files where the old one had them."""
    with open_replica(tmp_path) as store:

        def fill() -> None:
            while len(store.ledger.files.files) < 3:
                end = store.append_prepared(store.prepare(batch(0, 1)), 1).end_position
            store.engine.flush_service.wait(end, 10_000)
            store.dispatch_to(end)
            store.engine.sync_derived()

        def plan(*_: object) -> tuple[int, int]:
            store.restart(0, ChainLink(store.ledger.last_index, 1, 77), {})
            return 1, 0

        fill()
        monkeypatch.setattr(store.engine.retention, "plan", plan)
        store.find_expired()
        fill()
        assert store.deletion(store.ledger.last_index) is None
        monkeypatch.setattr(store.engine.retention, "plan", lambda *_: (1, 0))
        store.find_expired()
        deletion = store.deletion(store.ledger.last_index)
        assert deletion is not None
        assert deletion.file_count == 1


def test_a_cut_lowers_the_mark_to_the_entry_before_it(tmp_path: Path) -> None:
    """A mark above the end of the log would say that durable entries are missing."""
    with open_replica(tmp_path) as store:
        for _ in range(6):
            store.append_own(KIND_NO_OP, 1, b"x")
        store.engine.flush_service.wait(store.ledger.max_position, 10_000)
        store.truncate_from(4)
        assert store.ledger.last_index == 3
        mark = store.engine.mark.mark
        assert (mark.durable_index, mark.durable_position) == (3, store.ledger.max_position)
