"""Write buffers: borrowed at a roll, committed in order, given back clean."""

from pathlib import Path

import pytest

from store.config import StoreConfig
from store.derived.dispatch import Dispatcher
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.durability.flush import FlushService
from store.errors import FlushTimeoutError, PositionRangeError
from store.files import failpoints, page_memory
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import InlineFiles, MappedFileQueue
from store.files.transient_pool import PooledFiles, TransientPool
from store.log.commit_log import CommitLog
from store.stats import StoreCounters
from tests.store.records import BORN, batch, small_config

SIZE = 8192
FS = FileSystem()


class PooledQueue:
    """A queue whose files get write buffers."""

    def __init__(self, path: Path, buffer_count: int = 2) -> None:
        self.counters = StoreCounters()
        self.pool = TransientPool(buffer_count, SIZE, lock_memory=False, counters=self.counters)
        self.files = PooledFiles(self.pool, InlineFiles(FS, str(path), SIZE), self.counters)
        self.queue = MappedFileQueue(FS, str(path), SIZE, self.files)
        self.files.attach(self.queue)
        self.queue.load()

    def append(self, data: bytes) -> None:
        files = self.queue.files
        last = files[-1] if files and files[-1].free_bytes else self.queue.roll()
        last.append(data)

    def close(self) -> None:
        self.files.detach_all()
        self.queue.close()
        self.pool.close()


def on_disk(path: Path) -> bytes:
    return b"".join(entry.read_bytes() for entry in sorted(path.iterdir()))


def test_readers_and_disk_see_only_what_was_committed(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path)
    log.append(b"abc")
    assert (log.queue.wrote_position, log.queue.max_position) == (3, 0)
    with pytest.raises(PositionRangeError):
        log.queue.read(0, 3)
    assert on_disk(tmp_path) == bytes(SIZE)
    assert log.files.commit() == 3 == log.queue.max_position
    assert log.queue.read(0, 3) == b"abc"
    log.append(b"de")
    assert log.queue.max_position == 3
    log.close()
    assert on_disk(tmp_path)[:5] == b"abcde"


def test_a_complete_file_gives_its_buffer_back(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path, buffer_count=2)
    log.append(b"1" * SIZE)
    log.append(b"2" * 10)
    assert log.pool.free_count == 0
    assert log.queue.max_position == 0, "the second file does not hide the first one's lag"
    assert log.files.commit() == SIZE + 10
    assert log.pool.free_count == 1
    log.append(b"3" * (SIZE - 10))
    log.append(b"4")
    assert (log.pool.free_count, log.counters.pool_empty_count) == (0, 0)
    assert log.queue.max_position == SIZE + 10
    log.close()
    assert on_disk(tmp_path) == b"1" * SIZE + b"2" * 10 + b"3" * (SIZE - 10) + b"4".ljust(
        SIZE, b"\0"
    )


def test_a_buffer_is_zero_when_it_is_used_again(tmp_path: Path) -> None:
    """The rest of a file after its blank must be zeros, not the bytes of an older file."""
    log = PooledQueue(tmp_path, buffer_count=1)
    log.append(b"x" * SIZE)
    log.files.commit()
    log.append(b"")
    log.queue.files[-1].finish(b"blank")
    log.files.commit()
    assert log.counters.pool_empty_count == 0
    assert on_disk(tmp_path)[SIZE:] == b"blank".ljust(SIZE, b"\0")
    log.close()


def test_without_a_free_buffer_a_file_uses_its_map(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path, buffer_count=1)
    log.append(b"1" * SIZE)
    assert log.queue.max_position == 0
    log.append(b"2")
    assert log.counters.pool_empty_count == 1
    assert on_disk(tmp_path)[SIZE : SIZE + 1] == b"2"
    assert log.queue.max_position == 0, "no byte before a readable one may be missing"
    assert log.queue.sync() == 0
    assert log.files.commit() == SIZE + 1 == log.queue.max_position == log.queue.sync()
    assert on_disk(tmp_path)[: SIZE + 1] == b"1" * SIZE + b"2"
    log.close()


def test_a_timed_flush_between_commits_syncs_what_is_committed(tmp_path: Path) -> None:
    """The log ends before the last file's end while an older file has uncommitted bytes."""
    log = PooledQueue(tmp_path, buffer_count=1)
    config = StoreConfig(file_size_bytes=SIZE, flush_interval_ms=0, commit_interval_ms=10**9)
    fatal: list[BaseException] = []
    service = FlushService(log.queue, config, on_fatal=fatal.append, committer=log.files)
    log.append(b"1" * 10)
    log.files.commit()
    log.append(b"1" * (SIZE - 10))
    log.append(b"2")
    assert service.run_round()
    assert (log.queue.flushed_position, fatal) == (10, [])
    service.stop()
    assert log.queue.flushed_position == SIZE + 1
    log.close()


def test_a_roll_that_fails_gives_its_buffer_back(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path, buffer_count=2)
    log.append(b"1" * SIZE)
    log.files.take(SIZE).delete()
    assert log.pool.free_count == 0
    log.files.commit()
    log.append(b"2")
    assert log.files.commit() == SIZE + 1
    assert log.pool.free_count == 1
    log.close()


@pytest.mark.parametrize("has_pool", [True, False])
def test_a_commit_and_a_dispatch_at_any_moment_of_a_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pool: bool
) -> None:
    """Other threads commit and dispatch between any two steps: nothing ends inside a blank."""
    config, root = small_config(), str(tmp_path)
    pool = TransientPool(2, config.file_size_bytes, lock_memory=False)
    directory = str(tmp_path / "commitlog")
    pooled = PooledFiles(pool, InlineFiles(FS, directory, config.file_size_bytes))
    log = CommitLog(FS, root, config, pooled if has_pool else None)
    log.files.load()
    pooled.attach(log.files)
    queues, index = ConsumeQueues(FS, root, config), IndexFiles(FS, root, config)
    dispatcher = Dispatcher(log, queues, index)
    slot = MappedFile.__dict__["wrote_position"]

    def move(file: MappedFile, position: int) -> None:
        slot.__set__(file, position)
        if file in log.files.files:
            pooled.commit()
            dispatcher.advance(log.max_position)

    monkeypatch.setattr(MappedFile, "wrote_position", property(slot.__get__, move))
    for number in range(200):
        log.append(batch(number, number + 1), now_unix_ms=BORN)
    pooled.commit()
    assert len(log.files.files) > 1, "nothing rolled"
    assert dispatcher.advance(log.max_position) == log.max_position
    assert queues.next_offsets() == {(b"orders", 0): 200}
    pooled.detach_all()
    for part in (queues, index, log, pool):
        part.close()


def test_detached_files_use_their_maps_and_can_be_cut(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path)
    log.append(b"abcdef")
    with pytest.raises(AssertionError, match="never cut"):
        log.queue.truncate(3)
    log.files.detach_all()
    assert log.queue.max_position == 6
    log.queue.truncate(3)
    log.append(b"XY")
    assert (log.queue.max_position, log.queue.read(0, 5)) == (5, b"abcXY")
    log.close()


def test_a_flush_commits_first_and_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path)
    config = StoreConfig(file_size_bytes=SIZE, flush="async", flush_interval_ms=10**9)
    fatal: list[BaseException] = []
    service = FlushService(log.queue, config, on_fatal=fatal.append, committer=log.files)
    log.append(b"1" * SIZE)
    log.append(b"23")
    with pytest.raises(FlushTimeoutError):
        service.wait(SIZE + 2, 0)
    assert log.queue.max_position == 0, "nobody runs the rounds yet"
    service.start()
    assert service.wait(SIZE + 2, 30_000) == SIZE + 2
    log.append(b"4")
    service.stop()
    assert log.queue.flushed_position == SIZE + 3
    assert fatal == []
    log.close()


def test_a_commit_that_fails_is_fatal_for_the_flush(tmp_path: Path) -> None:
    log = PooledQueue(tmp_path)
    config = StoreConfig(file_size_bytes=SIZE, flush="async")
    fatal: list[BaseException] = []
    service = FlushService(log.queue, config, on_fatal=fatal.append, committer=log.files)
    log.append(b"abc")
    with failpoints.armed("fs.write=EIO"):
        assert not service.run_round(thorough=True)
    assert "write" in str(fatal[0])
    assert log.queue.flushed_position == 0
    log.close()


def test_buffers_are_counted() -> None:
    pool = TransientPool(2, SIZE, lock_memory=False)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    assert pool.borrow() is None
    with pytest.raises(AssertionError, match="2 buffers are still in use"):
        pool.close()
    first[:3] = b"abc"
    pool.give_back(first)
    assert (pool.free_count, pool.borrow()) == (1, None), "not before it is clean"
    pool.clean()
    again = pool.borrow()
    assert again is first
    assert bytes(again) == bytes(SIZE)
    pool.give_back(again)
    pool.give_back(second)
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give_back(second)


def test_memory_that_cannot_be_locked_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = StoreCounters()
    monkeypatch.setattr(page_memory, "lock_memory", lambda *_: False)
    pool = TransientPool(3, SIZE, lock_memory=True, counters=counters)
    assert (pool.free_count, counters.memory_lock_failed_count) == (3, 3)
    pool.close()
