"""The store as a whole, in both containers: append, crash, reopen, read by every way there is."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store import format as fmt
from store.config import StoreConfig
from store.derived.dispatch import Built
from store.derived.queues.consume_queue import ConsumeQueue
from store.derived.queues.pull import PullStatus
from store.durability.durable_mark import Mark
from store.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    FlushTimeoutError,
    LayoutError,
    PositionRangeError,
    RecordFormatError,
    StoreFullError,
)
from store.files import failpoints
from store.ledger.ledger import Ledger
from store.ledger.records import may_begin_at
from store.record.message import encode_message, tags_code
from store.store import Store
from tests.patience import PATIENCE_S
from tests.store.crash_check import must_not_die
from tests.store.crashes import abandon
from tests.store.fsck_stores import Clock, open_store
from tests.store.overwrites import overwrite
from tests.store.records import (
    BORN,
    PAGE,
    batch,
    damage,
    messages,
    numbers,
    record,
    small_config,
)


@pytest.fixture(params=["commit_log", "ledger"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return small_config(container=request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, config: StoreConfig, clock: Clock) -> Iterator[Store]:
    with open_store(tmp_path, config, clock) as opened:
        yield opened


def read_all(store: Store, topic: str = "orders", queue_id: int = 0) -> list[int]:
    offsets: list[int] = []
    offset = 0
    while True:
        result = store.pull(topic, queue_id, offset, max_count=7)
        if not result.record_count:
            assert result.status in (
                PullStatus.OFFSET_OVERFLOW_ONE,
                PullStatus.NO_MATCHED_LOGIC_QUEUE,
                PullStatus.NO_MESSAGE_IN_QUEUE,
            )
            return offsets
        offsets += numbers(result.data)
        offset = result.next_offset


def crash(store: Store) -> None:
    """Leave the store as SIGKILL would: nothing is finished, the lock is free."""
    store.stop_maintenance()
    abandon(store.engine)


def test_a_round_of_the_flush_syncs_the_mark_behind_its_answers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss takes one interval at most."""
    synced, sync = [], store.engine.fs.sync

    def sync_and_note(fd: int, path: str) -> None:
        synced.append(Path(path).name)
        sync(fd, path)

    monkeypatch.setattr(store.engine.fs, "sync", sync_and_note)
    store.put(batch(0, 1))
    store.engine.flush_service.stop()
    assert "marks" in synced


@pytest.mark.parametrize("beside", ["key", "time"])
def test_a_limit_of_a_key_query_counts_what_matches(
    store: Store, clock: Clock, beside: str
) -> None:
    """The index knows hashes and whole seconds; these are candidates, and not found."""
    clock.unix_ms = BORN
    store.put(encode_message("orders", 0, b"wanted", {"KEYS": "Aa"}))
    clock.unix_ms += 100
    for _ in range(70):
        store.put(encode_message("orders", 0, b"x", {"KEYS": "BB" if beside == "key" else "Aa"}))
    hi_unix_ms = BORN + (1000 if beside == "key" else 50)
    messages = store.messages_by_key("orders", "Aa", hi_unix_ms=hi_unix_ms, max_count=1)
    assert [message.body for message in messages] == [b"wanted"]


def test_records_are_read_by_offset_id_key_and_time(store: Store, clock: Clock) -> None:
    results = []
    for lo in range(0, 200, 10):
        clock.unix_ms = BORN + lo * 1000
        results.append(store.put(batch(lo, lo + 10)))
    assert read_all(store) == list(range(200))
    assert [q[1:] for q in store.queues()] == [(0, 0, 200)]

    messages = store.messages_by_key("orders", "key0042")
    assert [m.body[:8] for m in messages] == [b"00000042"]
    assert messages[0].queue_offset == 42
    assert messages[0].position == results[4].record_positions[2]
    assert store.messages_by_key("orders", "key9999") == []
    assert store.messages_by_key("orders", "key0042", hi_unix_ms=BORN) == []

    assert store.offset_by_time("orders", 0, 0) == 0
    assert store.offset_by_time("orders", 0, BORN + 50_000) == 50
    assert store.offset_by_time("orders", 0, BORN + 50_001) == 60
    assert store.offset_by_time("orders", 0, BORN + 10**9) == 200
    assert store.offset_by_time("nothing", 0, 0) == 0


def test_a_tag_filter_returns_what_the_hash_lets_through(store: Store) -> None:
    store.put(batch(0, 30))
    result = store.pull("orders", 0, 0, max_count=30, tags=frozenset({tags_code("tag1")}))
    assert numbers(result.data) == list(range(1, 30, 3))
    assert result.next_offset == 30


def test_positions_that_are_no_record_are_refused(store: Store) -> None:
    result = store.put(batch(0, 3))
    for position in (-1, result.record_positions[0] + 1, result.end_position, 1 << 40):
        with pytest.raises(PositionRangeError):
            store.message_at(position)
    assert store.message_at(result.record_positions[1]).queue_offset == 1


def test_a_view_is_valid_beyond_close(tmp_path: Path, config: StoreConfig) -> None:
    with open_store(tmp_path, config) as store:
        result = store.put(record(7))
        size_bytes = len(record(7))
        view = store.view(result.record_positions[0], size_bytes)
        assert store.stats().gauges.hold_count == 1
    assert numbers(bytes(view.data)) == [7]
    view.release()


def test_reopening_continues_every_queue(tmp_path: Path, config: StoreConfig) -> None:
    for session in range(4):
        with open_store(tmp_path, config) as store:
            assert store.recovery.was_clean
            assert store.recovery.dispatched_size_bytes == 0
            lo = session * 90
            assert store.put(batch(lo, lo + 90)).queue_offsets == list(range(lo, lo + 90))
            assert read_all(store) == list(range(lo + 90))


@pytest.mark.parametrize("was_durable", [True, False])
def test_a_torn_tail_is_cut_and_reported(
    tmp_path: Path, config: StoreConfig, was_durable: bool
) -> None:
    """Without anything durable the marks say as little as those of a log that RocketMQ wrote, and
    this one is ours."""
    if not was_durable:
        config = replace(
            config, flush="async", flush_interval_ms=1_000_000, flush_least_pages=1 << 20
        )
    store = open_store(tmp_path, config)
    store.put(batch(0, 20))
    assert (store.engine.mark.mark == Mark()) is not was_durable
    end, file = store.log.max_position, store.log.files.files[-1]
    with open(file.path, "r+b") as data:
        data.seek(end)
        data.write(b"\xff" * 100)
    copy = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-killed"))
    crash(store)
    with open_store(copy, config) as store:
        assert not store.recovery.was_clean
        assert store.recovery.same_boot
        assert store.recovery.cut_size_bytes == 100
        assert store.recovery.cut_reason
        assert store.recovery.end_position == end
        assert read_all(store) == list(range(20))
        assert store.put(batch(20, 21)).queue_offsets == [20]
    with open_store(copy, config) as store:
        assert read_all(store) == list(range(21))


def test_lost_marks_refuse_to_open(tmp_path: Path, config: StoreConfig) -> None:
    with open_store(tmp_path, config) as store:
        store.put(batch(0, 5))
    (tmp_path / "marks").unlink()
    with pytest.raises(LayoutError, match="marks"):
        open_store(tmp_path, config)


@pytest.mark.parametrize("how", ["garbage", "zeros", "zero tail", "missing"])
@pytest.mark.parametrize("what", ["consumequeue", "index"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_derived_files_are_rebuilt(
    tmp_path: Path, config: StoreConfig, what: str, how: str, is_clean: bool
) -> None:
    store = open_store(tmp_path, config)
    store.put(batch(0, 60))
    store.put(batch(60, 120))
    store.maintain()
    if is_clean:
        store.close()
    else:
        crash(store)
    for path in sorted((tmp_path / what).rglob("0*" if what == "consumequeue" else "2*"))[-1:]:
        size_bytes = path.stat().st_size
        if how == "missing":
            path.unlink()
        elif how == "garbage":
            path.write_bytes(b"\xa5" * size_bytes)
        else:
            kept = path.read_bytes()[: 100 if how == "zero tail" else 0]
            path.write_bytes(kept.ljust(size_bytes, b"\0"))
    with open_store(tmp_path, config) as store:
        assert store.recovery.derived_rebuilt
        assert read_all(store) == list(range(120))
        assert len(store.messages_by_key("orders", "key0100")) == 1
        assert store.put(batch(120, 121)).queue_offsets == [120]


def test_a_closed_store_refuses_everything_by_name(tmp_path: Path, config: StoreConfig) -> None:
    store = open_store(tmp_path, config)
    position = store.put(record(0)).record_positions[0]
    store.close()
    store.close()
    for call in (
        lambda: store.append(record(1)),
        lambda: store.pull("orders", 0, 0),
        lambda: store.message_at(position),
        lambda: store.view(position, 1),
        store.queues,
    ):
        with pytest.raises(ClosedError):
            call()


def test_bad_input_writes_nothing_and_is_counted(store: Store) -> None:
    store.put(batch(0, 3))
    end = store.log.max_position
    with pytest.raises(RecordFormatError):
        store.put(batch(3, 5)[:-1])
    assert store.log.max_position == end
    stats = store.stats()
    assert (stats.counters["put_failed_count"], stats.counters["put_count"]) == (1, 1)
    store.put(batch(3, 5))
    assert read_all(store) == list(range(5))


def test_a_full_disk_stops_appends_and_not_reads(store: Store) -> None:
    store.put(batch(0, 10))
    with failpoints.armed("fs.allocate=ENOSPC@1+"):
        written = put_until_full(store, 10)
        assert read_all(store) == list(range(written))
    store.put(batch(written, written + 10))
    assert read_all(store) == list(range(written + 10))


def put_until_full(store: Store, written: int) -> int:
    for lo in range(written, 1000, 10):
        try:
            store.put(batch(lo, lo + 10))
        except StoreFullError:
            return lo
    raise AssertionError("the disk was never full")


def test_a_put_that_is_not_synced_in_time_says_unknown(tmp_path: Path) -> None:
    config = small_config(flush="sync", flush_timeout_ms=0)
    with open_store(tmp_path, config) as store:
        outcomes = set()
        for number in range(50):
            try:
                store.put(record(number))
                outcomes.add("durable")
            except FlushTimeoutError as error:
                outcomes.add(error.outcome.value)
        assert "unknown" in outcomes
        assert read_all(store) == list(range(50)), "they are stored all the same"


def test_many_writers_share_syncs_and_keep_the_order_of_their_queue(store: Store) -> None:
    failures: list[BaseException] = []

    def write(queue_id: int) -> None:
        try:
            for number in range(30):
                result = store.put(record(number, queue_id=queue_id))
                assert result.queue_offsets == [number]
        except BaseException as error:  # noqa: BLE001  Raised by the assertion below.
            failures.append(error)

    threads = [threading.Thread(target=write, args=(queue_id,)) for queue_id in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for queue_id in range(8):
        assert read_all(store, queue_id=queue_id) == list(range(30))
    stats = store.stats()
    assert stats.counters["put_count"] >= stats.sync_count > 0


@pytest.mark.parametrize("kind", ["blocking", "spin"])
def test_a_taken_put_lock_is_busy_after_its_time(tmp_path: Path, kind: str) -> None:
    config = small_config(put_lock=kind, put_lock_timeout_ms=1)
    with open_store(tmp_path, config) as store:
        with store._put_lock, pytest.raises(BusyError):
            store.append(record(0))
        store.append(record(0))
        assert store.stats().counters["busy_count"] == 1


def test_retention_deletes_whole_files_and_moves_every_start(
    tmp_path: Path, clock: Clock, config: StoreConfig
) -> None:
    config = replace(config, index_slot_count=16, index_entry_count=60)  # So that some go, too.
    with open_store(tmp_path, config, clock) as store:
        for lo in range(0, 600, 30):
            store.put(batch(lo, lo + 30))
            clock.unix_ms += 3_600_000
        before = len(store.log.files.files)
        assert store.delete_expired() == 0
        clock.unix_ms += 60 * 3_600_000
        deleted = store.delete_expired()
        assert 0 < deleted < before
        assert store.log.min_position == deleted * 4 * PAGE
        info = store.queues()[0]
        assert info.min_offset > 0
        result = store.pull("orders", 0, 0)
        assert result.status is PullStatus.OFFSET_TOO_SMALL
        assert result.next_offset == info.min_offset
        result = store.pull("orders", 0, info.min_offset, max_count=1000)
        assert numbers(result.data)[0] == info.min_offset
        assert store.messages_by_key("orders", "key0000") == []
        copy = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-killed"))
    with open_store(copy, config, clock) as store:
        assert not store.recovery.derived_rebuilt, "what was deleted is not missed after a crash"
    with open_store(tmp_path, config, clock) as store:
        assert store.queues() == [info]
        assert store.put(batch(600, 601)).queue_offsets == [600]


def test_a_clock_that_steps_back_does_not_turn_the_log_around(store: Store, clock: Clock) -> None:
    store.put(record(0))
    clock.unix_ms -= 10_000
    store.put(record(1))
    store.close()
    with open_store(Path(store.root), store.config, clock) as again:
        again.put(record(2))
        times = [m.store_unix_ms for m in messages(again.pull("orders", 0, 0).data)]
        assert times == [BORN, BORN, BORN]


@pytest.mark.parametrize("stop", ["close", "crash", "torn tail"])
def test_an_open_knows_the_store_time_and_reads_no_queue_for_it(
    tmp_path: Path, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    for number in range(9):
        clock.unix_ms += 1_000
        store.put(record(number, queue_id=number))
    newest_unix_ms, end = clock.unix_ms, store.log.max_position
    file = store.log.files.file_at(end - 1)
    image = tmp_path
    if stop == "close":
        store.close()
    else:
        image = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-killed"))
    if stop == "torn tail":
        path = image / Path(file.path).relative_to(tmp_path)
        overwrite(path, end, path.read_bytes()[:100])
    clock.unix_ms -= 10_000
    monkeypatch.delattr(ConsumeQueue, "read_units")  # No unit of a queue is read.
    with open_store(image, store.config, clock) as again:
        assert bool(again.recovery.cut_size_bytes) == (stop == "torn tail")
        assert again.put(record(99)).store_unix_ms == newest_unix_ms


def test_the_transient_pool_serves_reads_once_committed(tmp_path: Path) -> None:
    config = small_config(
        transient_pool=True, transient_pool_size=2, flush="async", commit_interval_ms=1
    )
    with open_store(tmp_path, config) as store:
        for lo in range(0, 400, 20):
            store.put(batch(lo, lo + 20))
        store.wait_durable(store.log.files.wrote_position)
        assert read_all(store) == list(range(400))
    with open_store(tmp_path, config) as store:
        assert read_all(store) == list(range(400))


def test_the_background_thread_keeps_the_derived_files_up(tmp_path: Path) -> None:
    config = small_config(derived_flush_interval_ms=1)
    dispatched = threading.Event()
    with Store.open(str(tmp_path), config, on_fatal=must_not_die) as store:
        store.put(batch(0, 50))
        original = store.engine.mark.publish_built

        def watch(built: Built, durable: Built) -> None:
            original(built, durable)
            if durable.position == store.log.max_position:
                dispatched.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.engine.mark, "publish_built", watch)
            assert dispatched.wait(PATIENCE_S)


def test_a_queue_has_a_range_and_an_unwritten_one_is_empty(store: Store) -> None:
    store.append(batch(0, 3))
    assert store.queue_range("orders", 0) == (0, 3), "what was appended before is seen"
    assert store.queue_range("orders", 1) == (0, 0)


def test_queues_that_grew_are_told_once(store: Store) -> None:
    store.append(batch(0, 3) + batch(3, 4, queue_id=2))
    store.maintain()
    assert store.take_grown() == {(b"orders", 0), (b"orders", 2)}
    assert store.take_grown() == set()
    store.append(batch(4, 5))
    store.maintain()
    assert store.take_grown() == {(b"orders", 0)}


def test_a_disk_that_damages_what_was_checked_is_met_by_a_reader_that_says_so(
    tmp_path: Path, store: Store
) -> None:
    store.append(batch(0, 4))
    store.append(batch(4, 9))
    damage(tmp_path, store.pull("orders", 0, 4, max_count=1).data)
    assert store.pull("orders", 0, 0).record_count == 9, "no byte is checked twice unasked"
    assert store.pull("orders", 0, 0, max_count=4, verify=True).record_count == 4
    for verify in (True, False):  # From then on each reader meets it.
        with pytest.raises(CorruptionError, match="body CRC"):
            store.pull("orders", 0, 0, verify=verify)


def test_a_key_whose_record_lost_its_head_is_damage_and_not_a_missing_message(
    tmp_path: Path, store: Store
) -> None:
    store.append(batch(0, 4))
    assert store.messages_by_key("orders", "key0002")
    record_before = store.pull("orders", 0, 2, max_count=1).data
    damage(tmp_path, record_before, fmt.INT32.size)
    with pytest.raises(CorruptionError, match=r"expected the one in the index|body CRC"):
        store.messages_by_key("orders", "key0002")
    (position,) = [m.position for m in messages(record_before)]
    with pytest.raises(CorruptionError if isinstance(store.log, Ledger) else PositionRangeError):
        store.message_at(position)


@pytest.mark.parametrize("step_bytes", [1, 50, fmt.BODY_AT])
def test_a_position_of_no_record_costs_no_check_and_no_long_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    result, *_ = [store.append(batch(lo, lo + 20)) for lo in (0, 20, 40, 60)]
    read, checked, size_bytes = store.log.read, list[int](), list[int]()

    def counted(position: int, count: int) -> bytes:
        size_bytes.append(count)
        return read(position, count)

    monkeypatch.setattr(store.log, "read", counted)
    monkeypatch.setattr("store.ledger.ledger.check_range", lambda *a: checked.append(a[1]))
    with pytest.raises(PositionRangeError):
        store.message_at(result.record_positions[-1] + step_bytes)
    assert not checked, "entries were compared with their checksums"
    assert sum(size_bytes) <= PAGE + 2 * (result.end_position - result.position)


@pytest.mark.parametrize("before_at", [None, 0, 2, 4])
def test_a_record_that_lost_its_head_behind_another_one_is_damage(
    tmp_path: Path, store: Store, before_at: int | None
) -> None:
    """Also where the size before it is wrong but possible (byte 2), and leads past it."""
    store.append(batch(0, 60))
    before, record_there = [store.pull("orders", 0, n, max_count=1).data for n in (3, 4)]
    damage(tmp_path, record_there, fmt.INT32.size)
    if before_at is not None:
        damage(tmp_path, before, before_at)
    (position,) = [m.position for m in messages(record_there)]
    with pytest.raises(CorruptionError if isinstance(store.log, Ledger) else PositionRangeError):
        store.message_at(position)
    with pytest.raises(PositionRangeError):
        store.message_at(position + 300)


def test_records_begin_where_the_sizes_before_them_say(tmp_path: Path) -> None:
    """At every place: near the beginning of a record, and far behind that of a large one."""
    with open_store(tmp_path, small_config(container="ledger", file_size_bytes=64 * PAGE)) as store:
        ledger = store.log
        assert isinstance(ledger, Ledger)
        sizes_bytes = [40, 40, 20_000, 8, 35_000, 40, 17_000]
        results = [
            store.append(b"".join(record(0, size_bytes=size) for size in sizes_bytes))
            for _ in range(2)
        ]
        begins = {position for result in results for position in result.record_positions}
        places = {*range(0, results[-1].end_position, 61), *begins}
        places |= {begin + n for begin in begins for n in (-1, 1, 4, 8, 28, 36, 55, 56, 57)}
        assert {place for place in places if may_begin_at(ledger, place)} == begins
