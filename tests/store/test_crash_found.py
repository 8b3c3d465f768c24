"""What the crash tests found, each reduced to the smallest case that shows it."""

import dataclasses
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.config import StoreConfig
from store.derived.keys.index_file import create_index_file
from store.derived.keys.key_sums import IndexShape, KeySums
from store.derived.sum_files import SumFiles
from store.durability.flush import FlushService
from store.errors import FileSystemError, StoreFullError, SyncFailedError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file_queue import MappedFileQueue
from store.files.warm_up import WarmUp
from store.record.message import encode_message
from store.store import Store
from tests.patience import PATIENCE_S
from tests.store.crash_check import FILE, crash_config, must_not_die, open_store
from tests.store.flush_fakes import RULES, Answers, Clock, FakeLog, never
from tests.store.listing import names
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import PAGE, batch, record


@pytest.mark.parametrize("has_pool", [False, True])
def test_a_round_with_nothing_to_flush_restarts_the_interval(has_pool: bool) -> None:
    """An idle store had its flush thread spinning, which took a whole core."""
    clock = Clock()
    rules = dataclasses.replace(RULES, flush_interval_ms=500)
    service = FlushService(FakeLog(is_free=True), rules, on_fatal=never, monotonic_ns=clock)
    clock.now_ms += 500
    assert service._schedule.wait_ms(clock.now_ms, has_pool) <= 0, "the interval has passed"
    service.run_round()
    assert service._schedule.wait_ms(clock.now_ms, has_pool) == 500


def test_the_log_ends_before_the_first_uncommitted_byte(tmp_path: Path) -> None:
    """A complete file between a buffered one and the last one hid that bytes were missing."""
    queue = MappedFileQueue(FileSystem(), str(tmp_path), PAGE)
    queue.load()
    first = queue.roll()
    first.give_buffer(memoryview(bytearray(PAGE)))
    for _ in range(3):  # The first file is in its buffer, the pool has none for the others.
        queue.files[-1].append(b"x" * PAGE)
        queue.roll()
    assert queue.max_position == 0
    first.commit()
    assert queue.max_position == 3 * PAGE
    queue.sync()
    assert queue.max_position == queue.flushed_position == 3 * PAGE


def test_a_close_waits_for_a_running_round_of_maintenance(tmp_path: Path) -> None:
    """The round found the store closed, took that for a broken invariant and ended the process."""
    fatal: list[BaseException] = []
    store = Store.open(
        str(tmp_path), crash_config(derived_flush_interval_ms=1), on_fatal=fatal.append
    )
    in_round, may_go_on = threading.Event(), threading.Event()
    delete_expired = store.delete_expired

    def wait_in_the_middle() -> int:
        in_round.set()
        assert may_go_on.wait(PATIENCE_S), "the test forgot this round"
        return delete_expired()

    store._retention_ran_ms = -1 << 40  # Due at once.
    store.delete_expired = wait_in_the_middle  # type: ignore[method-assign]
    store.put(record(0))
    assert in_round.wait(PATIENCE_S), "no round began"
    stopping = store.stop_maintenance

    def stop() -> None:
        may_go_on.set()
        stopping()

    store.stop_maintenance = stop  # type: ignore[method-assign]
    store.close()
    assert fatal == []
    Store.open(str(tmp_path), crash_config(), on_fatal=must_not_die).close()


# --- Queues whose records have all expired: only their files know the next offset ---


def store_with_a_silent_queue(root: Path, config: StoreConfig) -> None:
    """The three records of one queue expire, and those of another one go on."""
    with open_store(str(root), config) as store:
        store.put(batch(0, 3, topic="silent"))
        for lo in range(0, 400, 20):
            store.put(batch(lo, lo + 20))
        assert store.delete_expired() > 0
        assert store.queues()[-1] == ("silent", 0, 3, 3)


@pytest.fixture(params=["commit_log", "ledger"])
def retaining(request: pytest.FixtureRequest) -> StoreConfig:
    return crash_config(container=request.param, retention_size_bytes=2 * FILE)


def test_a_rebuild_keeps_the_offsets_of_queues_that_have_no_records(
    tmp_path: Path, retaining: StoreConfig
) -> None:
    """It began them at 0 again, so offsets were given out twice."""
    store_with_a_silent_queue(tmp_path, retaining)
    for path in (tmp_path / "consumequeue" / "orders" / "0").iterdir():
        path.write_bytes(b"\xa5" * path.stat().st_size)
    for name in ("dispatch.before_mark", "dispatch.rebuilt"):  # Two that do not get through.
        with failpoints.armed(f"{name}=EIO"), pytest.raises(OSError, match=name):
            open_store(str(tmp_path), retaining)
    with open_store(str(tmp_path), retaining) as store:
        assert store.recovery.derived_rebuilt
        assert store.queues()[-1] == ("silent", 0, 3, 3)
    with open_store(str(tmp_path), retaining) as store:
        assert not store.recovery.derived_rebuilt
        assert store.put(batch(3, 5, topic="silent")).queue_offsets == [3, 4]
        assert store.queues()[-1] == ("silent", 0, 3, 5)


def test_a_cut_that_was_killed_half_way_keeps_the_offsets(
    tmp_path: Path, retaining: StoreConfig
) -> None:
    """A queue file is shrunk and grown again at each recovery; a kill in between leaves it short.

    Nobody can tell that from damage, so everything is rebuilt.
    """
    store_with_a_silent_queue(tmp_path, retaining)
    (tmp_path / "abort").write_text("1\n")  # As a crash leaves it, so all queues are cut.
    count = 0
    for nth in range(1, 40):
        with failpoints.armed(f"fs.set_size=EIO@{nth}"):
            try:
                store = open_store(str(tmp_path), retaining)
            except FileSystemError:
                count += 1
                continue
        assert store.queues()[-1] == ("silent", 0, 3, 3)
        store.close()
        break
    assert count >= 4, "no cut was interrupted"


def test_retention_deletes_only_what_is_durably_dispatched(
    tmp_path: Path, retaining: StoreConfig
) -> None:
    """A power loss would take the units of records that the log does not have any more."""
    fs = PowerLossFileSystem()
    store = open_store(str(tmp_path / "run"), retaining, fs)
    store.put(batch(0, 3, topic="silent"))
    for lo in range(0, 400, 20):
        store.put(batch(lo, lo + 20))
    assert store.delete_expired() > 0
    for seed in range(5):
        image = tmp_path / f"image{seed}"
        fs.build_image(str(tmp_path / "run"), str(image), Random(seed))
        (image / "boot_id").write_text("another\n")
        with open_store(str(image), retaining) as opened:
            assert opened.queues()[-1] == ("silent", 0, 3, 3)
    store.close()


def test_readers_may_dispatch_beside_retention(tmp_path: Path, retaining: StoreConfig) -> None:
    """A pull between the two halves of a mark made them contradict each other: fatal."""
    with open_store(str(tmp_path), retaining) as store:
        for lo in range(0, 400, 20):
            store.put(batch(lo, lo + 20))
        number = 400
        for name in ("built", "sync_derived"):
            original = getattr(store.engine.dispatcher, name)

            def put_and_read(original: Callable[[], object] = original) -> object:
                nonlocal number
                store.put(record(number))
                number += 1
                store.queues()
                return original()

            setattr(store.engine.dispatcher, name, put_and_read)
        assert store.delete_expired() > 0
        store.maintain()
        del store.engine.dispatcher.built, store.engine.dispatcher.sync_derived


def test_a_late_report_does_not_take_the_mark_back(tmp_path: Path) -> None:
    """Two threads that maintain one store; the slower one had begun earlier."""
    with open_store(str(tmp_path), crash_config()) as store:
        store.put(batch(0, 5))
        store.queues()
        early = store.engine.dispatcher.built()
        store.put(batch(5, 9))
        store.maintain()
        before = store.engine.mark.mark
        store.engine.mark.publish_built(early, early)
        assert store.engine.mark.mark == before


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_a_crash_before_the_first_key_leaves_no_index_to_sync(
    tmp_path: Path, container: str
) -> None:
    """Each later opening failed in its first sync of the index, because there is no directory."""
    config = crash_config(container=container)
    with open_store(str(tmp_path), config) as store:
        store.put(encode_message("orders", 0, b"no key"))
    (tmp_path / "abort").write_text("1\n")
    for _ in range(2):
        with open_store(str(tmp_path), config) as store:
            assert not store.recovery.was_clean
            store.maintain()
            (tmp_path / "abort").rename(tmp_path / "aborted")
            shutil.copyfile(tmp_path / "aborted", tmp_path / "abort")
        (tmp_path / "aborted").rename(tmp_path / "abort")
    assert not (tmp_path / "index").exists()


# --- Failing calls ---


def test_a_full_disk_below_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The free space was asked of the missing directory, so a bare FileNotFoundError came out."""
    with failpoints.armed("fs.list_directory=ENOSPC"), pytest.raises(StoreFullError):
        FileSystem().list_directory(str(tmp_path / "not" / "there"))


def test_a_failure_before_the_callbacks_is_told_to_all_who_wait() -> None:
    """They were out of the queue by then, and one of them waited for ever."""
    answers, causes = Answers(), list[BaseException]()
    log = FakeLog(is_free=True)
    service = FlushService(log, RULES, on_fatal=causes.append)
    service.request(log.append(), answers.callback(1))
    with failpoints.armed("flush.before_tell=EIO"):
        assert not service.run_round()
    assert [type(error) for _, error in answers.got] == [SyncFailedError]
    assert len(causes) == 1


def test_an_index_file_that_cannot_be_read_back_leaves_nothing(tmp_path: Path) -> None:
    """It kept its name and its descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    path = str(tmp_path / "20261121000000000")
    shape, sums = IndexShape(4, 4), SumFiles(str(tmp_path), "keys")
    with failpoints.armed("fs.read=EIO"), pytest.raises(FileSystemError):
        create_index_file(FileSystem(), path, shape, KeySums(sums, "1", shape), None)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_spare_file_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path) -> None:
    """The descriptors of all later spare files leaked."""
    before = len(os.listdir("/proc/self/fd"))
    config = StoreConfig(file_size_bytes=PAGE, preallocate_file_count=3)
    warm_up = WarmUp(FileSystem(), str(tmp_path), config, warm_up=False, on_fatal=never)
    warm_up.start(0)
    assert warm_up.wait_for(lambda: warm_up.ready_count == 3, PATIENCE_S)
    with failpoints.armed("fs.unlink=EIO"), pytest.raises(FileSystemError):
        warm_up.stop()
    assert len(names(tmp_path)) == 1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize("call", ["append", "put", "queues", "maintain", "delete_expired"])
def test_a_failed_sync_is_fatal_whoever_meets_it(tmp_path: Path, call: str, container: str) -> None:
    """Only the flush thread told the owner, so a store went on and closed as if all were well."""
    fatal: list[BaseException] = []
    config = crash_config(container=container, durable_mark_interval_ms=1_000_000)
    store = Store.open(str(tmp_path), config, maintain=False, on_fatal=fatal.append)
    if call != "append":
        store.append(record(0))
    if call in ("maintain", "delete_expired"):
        store.queues()
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: store.append(record(0)),
        "put": lambda: store.put(record(1)),
        "queues": store.queues,
        "maintain": store.maintain,
        "delete_expired": store.delete_expired,
    }
    point = "fs.sync_directory" if call == "queues" else "fs.sync"
    with failpoints.armed(f"{point}=EIO"), pytest.raises(SyncFailedError):
        calls[call]()
    if call == "put":
        with pytest.raises(SyncFailedError):
            store.put(record(2))
    with pytest.raises(SyncFailedError):
        store.close()
    assert [type(cause) for cause in fatal] == [SyncFailedError], "told once"
    with open_store(str(tmp_path), config) as store:
        assert not store.recovery.was_clean


def test_a_close_that_cannot_commit_ends_the_flush_thread(tmp_path: Path) -> None:
    """It went on over closed files."""
    config = crash_config(flush="async", transient_pool=True, commit_interval_ms=1_000_000)
    store = open_store(str(tmp_path), config)
    store.put(record(0))
    with failpoints.armed("fs.write=EIO"), pytest.raises(FileSystemError):
        store.close()
    assert not store.engine.flush_service._thread.is_alive()
    open_store(str(tmp_path), config).close()
