"""The warm-up thread: files ready before they are needed, and nothing left behind."""

import errno
import itertools
import mmap
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from store.config import StoreConfig
from store.errors import (
    BusyError,
    ClosedError,
    FileSystemError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints, page_memory
from store.files.file_system import FileSystem
from store.files.mapped_file import prepare_file
from store.files.mapped_file_queue import MappedFileQueue
from store.files.staging import STAGING_DIRECTORY
from store.files.warm_up import WarmUp
from store.stats import StoreCounters
from tests.patience import PATIENCE_S
from tests.store.flush_fakes import Fatal
from tests.store.listing import names

SIZE = 8192
DEADLINE_MS = PATIENCE_S * 1000


class GatedFileSystem(FileSystem):
    """Allocations wait for the test when `is_open` is cleared; `allocate_errors` fail in turn."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.began = threading.Semaphore(0)
        self.allocated = threading.Semaphore(0)
        self.allocate_errors: list[StoreError] = []
        self.written: set[str] = set()

    def allocate(self, fd: int, path: str, size_bytes: int, position: int = 0) -> None:
        self.began.release()
        assert self.is_open.wait(PATIENCE_S), "the test forgot the gate"
        if self.allocate_errors:
            raise self.allocate_errors.pop(0)
        super().allocate(fd, path, size_bytes, position)
        self.allocated.release()

    def warm(self, fd: int, path: str, position: int, size_bytes: int) -> None:
        self.written.add(Path(path).name)
        super().warm(fd, path, position, size_bytes)


class Warmed:
    """A warm-up thread on a directory."""

    def __init__(
        self,
        path: Path,
        *,
        file_count: int = 2,
        timeout_ms: int = DEADLINE_MS,
        warm_up: bool = True,
        lock_memory: bool = False,
        reserve_bytes: int = 0,
        **more: Any,
    ) -> None:
        self.path, self.fs, self.fatal = path, GatedFileSystem(), Fatal()
        self.counters = StoreCounters()
        config = StoreConfig(
            file_size_bytes=SIZE,
            preallocate_file_count=file_count,
            allocate_timeout_ms=timeout_ms,
            lock_memory=lock_memory,
            disk_reserve_bytes=reserve_bytes,
        )
        self.source = WarmUp(
            self.fs,
            str(path),
            config,
            warm_up=warm_up,
            on_fatal=self.fatal,
            counters=self.counters,
            **more,
        )

    def await_ready(self, count: int) -> None:
        assert self.source.wait_for(lambda: self.source.ready_count == count, PATIENCE_S)

    def await_rest(self) -> None:
        assert self.source.wait_for(lambda: self.source.is_resting, PATIENCE_S)

    def names(self) -> list[str]:
        return names(self.path)


def name(number: int, *, is_temporary: bool = False) -> str:
    return f"{STAGING_DIRECTORY}/" * is_temporary + f"{number * SIZE:020d}"


def test_files_are_ready_ahead_and_not_in_the_directory_listing_of_the_log(tmp_path: Path) -> None:
    warmed = Warmed(tmp_path)
    warmed.source.start(0)
    warmed.await_ready(2)
    assert warmed.names() == [name(0, is_temporary=True), name(1, is_temporary=True)]
    file = warmed.source.take(0)
    assert file.path == str(tmp_path / name(0))
    assert Path(file.path).read_bytes() == bytes(SIZE)
    warmed.await_ready(2)
    assert warmed.names() == [name(0), name(1, is_temporary=True), name(2, is_temporary=True)]
    warmed.source.stop()
    assert warmed.names() == [name(0)], "what was not taken is removed"
    file.close()
    assert warmed.fatal.causes == []


def test_a_file_behind_a_ready_one_is_made_slowly_until_the_log_needs_it(tmp_path: Path) -> None:
    """Three nodes roll at the same position; zeroing at full pace delayed appends by 60 ms."""
    seconds = itertools.count()
    warmed = Warmed(tmp_path, monotonic_ns=lambda: next(seconds) * 1_000_000_000_000)
    warmed.source.start(0)
    assert warmed.source.wait_for(lambda: warmed.source.is_pausing, PATIENCE_S)
    assert (warmed.source.ready_count, warmed.fs.written) == (1, {f"{tmp_path.name}-{name(0)}"})
    for number in range(2):  # The pause of the second file is hours long by that clock.
        assert warmed.source.wait_for(lambda: warmed.source.ready_count == 1, PATIENCE_S)
        warmed.source.take(number * SIZE).close()
    warmed.source.stop()


def test_a_file_that_somebody_waits_for_is_not_warmed(tmp_path: Path) -> None:
    """Warming a GiB takes longer than a taker would wait on a slow disk."""
    warmed = Warmed(tmp_path, file_count=1)
    warmed.fs.is_open.clear()
    warmed.source.start(0)
    assert warmed.fs.began.acquire(timeout=PATIENCE_S)
    taker = threading.Thread(target=lambda: warmed.source.take(0).close())
    taker.start()
    assert warmed.source.wait_for(lambda: warmed.source.waiting_for is not None, PATIENCE_S)
    warmed.fs.is_open.set()
    taker.join(PATIENCE_S)
    warmed.await_ready(1)
    warmed.source.stop()
    assert warmed.fs.written == {f"{tmp_path.name}-{name(1)}"}, "nobody waits for the second one"


def test_a_taker_that_waits_too_long_is_told_busy_and_may_come_again(tmp_path: Path) -> None:
    warmed = Warmed(tmp_path, timeout_ms=1)
    warmed.fs.is_open.clear()
    warmed.source.start()
    with pytest.raises(BusyError, match="allocation of the next log file is busy since 1 ms"):
        warmed.source.take(0)
    warmed.fs.is_open.set()
    warmed.await_ready(2)
    warmed.source.take(0).close()
    warmed.source.stop()


def test_a_full_disk_is_told_to_the_taker_and_tried_again_at_the_next_take(tmp_path: Path) -> None:
    warmed = Warmed(tmp_path, file_count=1)
    full = StoreFullError("here", 10, 5)
    warmed.fs.allocate_errors = [full, full, full]
    warmed.source.start(0)
    warmed.await_rest()
    assert warmed.counters.prepare_failed_count == 1
    for _ in range(2):
        with pytest.raises(StoreFullError):
            warmed.source.take(0)
    assert warmed.names() == []
    warmed.source.take(0).close()
    warmed.await_ready(1)
    warmed.source.stop()
    assert (warmed.counters.prepare_failed_count, warmed.fatal.causes) == (3, [])


def test_a_failure_ahead_does_not_concern_the_taker_of_a_ready_file(tmp_path: Path) -> None:
    warmed = Warmed(tmp_path, file_count=2)
    warmed.source.start(0)
    warmed.await_ready(2)
    warmed.fs.allocate_errors = [StoreFullError("here", 10, 5)] * 2
    warmed.source.take(0).close()
    warmed.await_rest()
    warmed.source.take(SIZE).close()
    warmed.await_rest()
    warmed.source.take(2 * SIZE).close()
    warmed.source.stop()
    assert warmed.counters.prepare_failed_count == 2


def test_the_reserve_is_not_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed = Warmed(tmp_path, reserve_bytes=5 * SIZE)
    free = {"bytes": 6 * SIZE - 1}
    monkeypatch.setattr(warmed.fs, "free_bytes", lambda _: (free["bytes"], 100 * SIZE))
    warmed.source.start(0)
    with pytest.raises(StoreFullError) as caught:
        warmed.source.take(0)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (6 * SIZE, 6 * SIZE - 1)
    assert warmed.names() == []
    free["bytes"] = 6 * SIZE
    warmed.source.take(0).close()
    warmed.source.stop()


def _written_bytes() -> int:
    """What this process made dirty so far, in whole pages, as the kernel counts it."""
    rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(rows["write_bytes"])


def test_a_sync_writes_what_was_appended_and_not_what_was_zeroed_with_it(tmp_path: Path) -> None:
    """Linux keeps what was zeroed by one call together, and writes it together."""
    size_bytes, append_size_bytes, count = 48 << 20, 1_000, 50
    prepared = prepare_file(FileSystem(), str(tmp_path), size_bytes, size_bytes, warm_up=True)
    assert prepared is not None
    file = prepared.publish()
    try:
        # Far back: the kernel read ahead more and more.
        file.set_positions(file.end_position - (1 << 20))
        before = _written_bytes()
        for _ in range(count):
            file.append(b"x" * append_size_bytes)
            file.sync()
        page_count = (_written_bytes() - before) // mmap.PAGESIZE
    finally:
        file.close()
    # Two pages each at most; some more for what other threads of the tests may write.
    assert page_count < 20 * count, f"{page_count} pages for {count} appends"


@pytest.mark.parametrize("position", [0, 3 * SIZE, 50 * SIZE])
def test_another_position_discards_what_was_prepared(tmp_path: Path, position: int) -> None:
    warmed = Warmed(tmp_path)
    warmed.source.start(4 * SIZE)
    warmed.await_ready(2)
    file = warmed.source.take(position)
    warmed.await_ready(2)
    number = position // SIZE
    following = [name(number + n, is_temporary=True) for n in (1, 2)]
    assert warmed.names() == sorted([name(number), *following])
    warmed.source.stop()
    file.close()


@pytest.mark.parametrize("warm_up", [False, True])
def test_a_file_in_the_making_for_a_position_that_was_left_is_dropped(
    tmp_path: Path, warm_up: bool
) -> None:
    warmed = Warmed(tmp_path, file_count=1, timeout_ms=0, warm_up=warm_up)
    warmed.fs.is_open.clear()
    warmed.source.start(7 * SIZE)
    assert warmed.fs.began.acquire(timeout=PATIENCE_S)
    with pytest.raises(BusyError):
        warmed.source.take(2 * SIZE)
    warmed.fs.is_open.set()
    warmed.await_ready(1)
    assert warmed.names() == [name(2, is_temporary=True)]
    warmed.source.stop()


def test_a_publication_that_fails_can_be_repeated(tmp_path: Path) -> None:
    warmed = Warmed(tmp_path)
    warmed.source.start(0)
    warmed.await_ready(2)
    with failpoints.armed("fs.rename=EIO"), pytest.raises(FileSystemError):
        warmed.source.take(0)
    file = warmed.source.take(0)
    assert file.position == 0
    warmed.source.stop()
    assert warmed.names() == [name(0)]
    file.close()


@pytest.mark.parametrize("cause", [SyncFailedError("disk", errno.EIO), AssertionError("bug")])
def test_a_failed_sync_or_assertion_is_final(tmp_path: Path, cause: BaseException) -> None:
    warmed = Warmed(tmp_path)

    def fail(fd: int, path: str, size_bytes: int, position: int = 0) -> None:
        raise cause

    warmed.fs.allocate = fail  # type: ignore[method-assign]
    warmed.source.start()
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            warmed.source.take(0)
    assert warmed.fatal.called.wait(PATIENCE_S)
    assert warmed.fatal.causes == [cause]
    assert warmed.names() == []
    warmed.source.stop()


def test_stop_refuses_takers_and_ends_a_file_in_the_making(tmp_path: Path) -> None:
    warmed = Warmed(tmp_path)
    warmed.fs.is_open.clear()
    warmed.source.start()
    results: list[BaseException] = []

    def take() -> None:
        try:
            warmed.source.take(0)
        except StoreError as error:
            results.append(error)

    taker = threading.Thread(target=take)
    taker.start()
    assert warmed.fs.began.acquire(timeout=PATIENCE_S)
    stopper = threading.Thread(target=warmed.source.stop)
    stopper.start()
    taker.join(PATIENCE_S)
    assert isinstance(results[0], ClosedError)
    warmed.fs.is_open.set()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert warmed.names() == []
    with pytest.raises(ClosedError):
        warmed.source.take(0)
    warmed.source.stop()


def test_stop_without_start() -> None:
    Warmed(Path("nowhere")).source.stop()


def test_before_the_start_a_file_is_made_where_it_is_asked_for(tmp_path: Path) -> None:
    """An opening that finishes a reset rolls, and knows only then where the log ends."""
    warmed = Warmed(tmp_path, timeout_ms=0)
    queue = MappedFileQueue(warmed.fs, str(tmp_path), SIZE, warmed.source)
    queue.load()
    queue.reset(3 * SIZE)
    assert warmed.names() == [name(3)]
    warmed.source.start(queue.end_position)
    warmed.await_ready(2)
    queue.files[-1].append(bytes(SIZE))
    assert queue.roll().position == 4 * SIZE
    warmed.source.stop()


# --- Who may not wait ---


def test_polling_for_a_file_never_waits_and_names_what_is_wrong(tmp_path: Path) -> None:
    warm_up = Warmed(tmp_path, file_count=1, timeout_ms=0, warm_up=False).source
    with failpoints.armed("fs.allocate=ENOSPC@1+"):
        warm_up.start()
        with pytest.raises(StoreFullError):
            poll_until(warm_up, 0)
    poll_until(warm_up, 0)
    poll_until(warm_up, 7 * SIZE)  # The log went elsewhere.
    file = warm_up.take(7 * SIZE)
    assert file.position == 7 * SIZE
    file.close()
    warm_up.stop()
    with pytest.raises(ClosedError):
        warm_up.poll(8 * SIZE)


class SlowWrites(FileSystem):
    """Writes wait until they may go on."""

    def __init__(self) -> None:
        self.count = 0
        self.may_go_on = threading.Event()

    def warm(self, fd: int, path: str, position: int, size_bytes: int) -> None:
        self.count += 1
        assert self.may_go_on.wait(PATIENCE_S)
        super().warm(fd, path, position, size_bytes)


def test_a_file_that_is_polled_for_is_not_warmed_to_its_end(tmp_path: Path) -> None:
    fs = SlowWrites()
    config = StoreConfig(file_size_bytes=8 << 20, preallocate_file_count=1, allocate_timeout_ms=0)
    warm_up = WarmUp(fs, str(tmp_path), config, warm_up=True, on_fatal=Fatal())
    warm_up.start(8 << 20)
    assert not warm_up.poll(8 << 20)
    fs.may_go_on.set()
    poll_until(warm_up, 8 << 20)
    assert fs.count <= 1, "one write of a MiB was under way"
    warm_up.stop()


def poll_until(warm_up: WarmUp, position: int) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if warm_up.poll(position):
            return
        pause.wait(0.002)
    raise AssertionError(f"no file at {position}")


# --- Memory ---


def test_locking_is_tried_for_each_file_and_counted_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    locked = threading.Semaphore(0)

    def refuse(mapped: mmap.mmap, size_bytes: int) -> bool:
        calls.append(size_bytes)
        locked.release()
        return False

    monkeypatch.setattr(page_memory, "lock_memory", refuse)
    warmed = Warmed(tmp_path, lock_memory=True)
    warmed.source.start()
    files = [warmed.source.take(0), warmed.source.take(SIZE)]
    for _ in files:
        assert locked.acquire(timeout=PATIENCE_S)
    warmed.source.stop()
    assert (calls, warmed.counters.memory_lock_failed_count) == ([SIZE, SIZE], 2)
    assert warmed.fatal.causes == []
    assert files[0].append(b"x") == 0, "the store works without"
    for file in files:
        file.close()


_LIMITED = """
import mmap, os, resource
from store.files import page_memory
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
if os.geteuid() == 0:
    os.setuid(65534)  # Root may lock as much as it likes.
small, large = mmap.mmap(-1, 4096), mmap.mmap(-1, 40 << 20)
print(*(page_memory.lock_memory(one, len(one)) for one in (small, large)))
large[:3] = b"abc"
"""


def test_the_kernel_refuses_to_lock_more_than_the_limit() -> None:
    """Really, in a process without privileges and with a limit of 1 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_advice_works_on_memory_of_ours() -> None:
    with mmap.mmap(-1, 3 << 20) as mapped:
        assert page_memory.will_need(mapped)
        mapped[:3] = b"abc"
        page_memory.populate(mapped)
        assert mapped[:4] == b"abc\0"
