"""The set of all queues: many of them, few descriptors, little memory, and what is durable when."""

import os
import threading
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from store.derived.queues.consume_queue import TAIL_FILES_MAX, ConsumeQueue, TailFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.errors import (
    DerivedFileError,
    PositionRangeError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files.descriptor_cache import DescriptorCache
from store.files.failpoints import armed, census
from store.files.file_system import FileSystem
from tests.store.derived.queues.test_consume_queue import SIZE, environment, units
from tests.store.fakes import CountingFileSystem, queue_of, tree
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import small_config


def make(
    root: Path,
    *,
    position: int = 0,
    is_clean: bool = True,
    limit: int = 512,
    fs: FileSystem | None = None,
) -> ConsumeQueues:
    config = small_config(consume_queue_units_per_file=10)
    queues = ConsumeQueues(fs or FileSystem(), str(root), config, open_files_max=limit)
    queues.recover(position, is_clean=is_clean)
    return queues


def put(queues: ConsumeQueues, topic: bytes, queue_id: int, lo: int, hi: int) -> int:
    return queues.put(topic, queue_id, first_offset=lo, units=units(lo, hi), may_begin_late=False)


def test_queues_are_made_when_something_is_put(tmp_path: Path) -> None:
    queues = make(tmp_path)
    assert queues.get(b"a", 0) is None
    assert list(queues) == []
    put(queues, b"a", 0, 0, 3)
    put(queues, b"a", (1 << 31) - 1, 0, 4)
    put(queues, b"%RETRY%g", 0, 0, 5)
    assert queues.next_offsets() == {(b"a", 0): 3, (b"a", (1 << 31) - 1): 4, (b"%RETRY%g", 0): 5}
    assert max(q.built_position for q in queues) == 5 * SIZE
    assert len(list(queues)) == 3
    again = make(tmp_path, position=1 << 40)
    assert again.next_offsets() == queues.next_offsets()
    assert queue_of(again, b"a", (1 << 31) - 1).read_units(0, 4) == units(0, 4)


def test_other_names_in_the_directory_are_passed_over(tmp_path: Path) -> None:
    put(make(tmp_path), b"a", 0, 0, 3)
    base = tmp_path / "consumequeue"
    (base / "notes.txt").write_text("x")
    for name in ("a/x", "a/-1", "a/01", "empty/3"):
        (base / name).mkdir(parents=True)
    assert make(tmp_path, position=1000).next_offsets() == {(b"a", 0): 3}


def test_a_set_of_many_queues_keeps_few_files_open(tmp_path: Path) -> None:
    queues = make(tmp_path, limit=8)
    for n in range(100):
        put(queues, b"t", n, 0, 11)
    before = len(os.listdir("/proc/self/fd"))
    assert len(queues.descriptors) == 8
    for n in range(100):
        assert queue_of(queues, b"t", n).read_units(0, 11) == units(0, 11)
    queues.sync()
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(list(make(tmp_path, position=1 << 40, limit=8))) == 100


def test_a_queue_takes_little_memory(tmp_path: Path) -> None:
    shared = environment(tmp_path)
    tracemalloc.start()
    try:
        kept = [ConsumeQueue(shared, "orders", n) for n in range(1000)]
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size_bytes / len(kept) < 300


def test_sync_covers_what_is_dirty_and_nothing_else(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for n in range(3):
        put(queues, b"t", n, 0, 25)
    assert len(queues.dirty) == 3
    with census() as counts:
        queues.sync()
        queues.sync()
    assert counts["fs.sync"] == 9
    # Each queue's own directory, and once what is above all of them: topic, queues, root.
    assert counts["fs.sync_directory"] == 3 + 3
    put(queues, b"t", 1, 25, 26)
    with census() as counts:
        queues.sync()
    assert counts["fs.sync"] == 1, "only the file that was written"
    assert "fs.sync_directory" not in counts
    assert len(queues.dirty) == 0


def test_a_put_beside_a_sync_stays_dirty(tmp_path: Path) -> None:
    queues = make(tmp_path)
    put(queues, b"t", 0, 0, 3)

    class Interleaved(FileSystem):
        def sync(self, fd: int, path: str) -> None:
            super().sync(fd, path)
            put(queues, b"t", 0, 3, 5)

    queues._environment.fs = Interleaved()
    queues.sync()
    assert len(queues.dirty) == 1
    assert queue_of(queues, b"t").synced_offset == 3


def test_a_failed_sync_leaves_all_dirty(tmp_path: Path) -> None:
    queues = make(tmp_path)
    for n in range(3):
        put(queues, b"t", n, 0, 3)
    with armed("fs.sync=EIO@2"), pytest.raises(SyncFailedError):
        queues.sync()
    assert len(queues.dirty) == 3


@pytest.mark.parametrize(("keep", "sync_count"), [(0, 1), (4, 1), (10, 0), (24, 1), (25, 0)])
def test_a_cut_is_durable_on_return(tmp_path: Path, keep: int, sync_count: int) -> None:
    queues = make(tmp_path)
    put(queues, b"t", 0, 0, 25)
    queues.sync()
    with census() as counts:
        queues.truncate(keep * SIZE)
    assert counts.get("fs.sync", 0) == sync_count
    assert counts.get("fs.sync_directory", 0) == (1 if keep < 20 else 0), "files were deleted"


def test_after_a_crash_everything_is_synced_again(tmp_path: Path) -> None:
    """The units may be in the page cache only, and so may the names of their files."""
    put(make(tmp_path), b"t", 0, 0, 25)
    for is_clean in (True, False):
        queues = make(tmp_path, position=25 * SIZE, is_clean=is_clean)
        with census() as counts:
            queues.sync()
        expected = {} if is_clean else {"fs.sync": 3, "fs.sync_directory": 4}  # Up to the root.
        assert {name: counts[name] for name in counts if "sync" in name} == expected


def test_each_call_of_a_cut_that_fails_once_is_made_good(tmp_path: Path) -> None:
    def prepare(root: Path) -> ConsumeQueues:
        queues = make(root)
        for n in range(2):
            put(queues, b"t", n, 0, 35)
        return queues

    counted = prepare(tmp_path / "census")
    with census() as counts:
        counted.truncate(15 * SIZE)
    expected = tree(tmp_path / "census")
    assert counts["fs.set_size"] == 4
    assert counts["fs.unlink"] == 4
    for name, count in counts.items():
        for nth in range(1, count + 1):
            root = tmp_path / f"{name}{nth}"
            queues = prepare(root)
            with armed(f"{name}=EIO@{nth}"), pytest.raises((StoreError, OSError)):
                queues.truncate(15 * SIZE)
            queues.truncate(15 * SIZE)
            assert queues.next_offsets() == {(b"t", 0): 15, (b"t", 1): 15}
            assert tree(root) == expected
            for n in range(2):
                put(queues, b"t", n, 15, 20)
                assert make(root, position=1 << 40).next_offsets()[b"t", n] == 20


def test_a_rebuild_leaves_no_deleted_file_open(tmp_path: Path) -> None:
    """Its room on the disk would not be free."""
    fs = CountingFileSystem()
    config = small_config(consume_queue_units_per_file=10)
    queues = ConsumeQueues(fs, str(tmp_path), config, open_files_max=512)
    queues.recover(0, is_clean=True)
    put(queues, b"orders", 0, 0, 25)
    assert queues.append(b"orders", 0, 25, units(25, 27)) == 2, "into a file that is held from now"
    assert len(queues.descriptors) > 0
    queues.begin_rebuild(1 << 62, {})
    assert len(queues.descriptors) == 0
    assert not fs.open_fds


def test_a_topic_that_got_inner_batches_leaves_no_directory(tmp_path: Path) -> None:
    """RocketMQ would load it as a queue; what somebody else put there stays."""
    queues = make(tmp_path)
    for topic in (b"batches", b"others", b"orders"):
        put(queues, topic, 0, 0, 3)
    (tmp_path / "consumequeue/others/notes").write_text("keep")
    queues.inner_batches.add(b"batches")
    queues.inner_batches.add(b"others")
    queues.begin_rebuild(1 << 62)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("consumequeue/*/*")}
    assert names == {"consumequeue/orders/0", "consumequeue/others/notes"}
    assert not (tmp_path / "consumequeue/batches").exists()


def test_silent_queues_go_on_but_for_topics_of_inner_batches(tmp_path: Path) -> None:
    queues = make(tmp_path)
    queues.inner_batches.add(b"batches")
    offsets = {(b"batches", 0): 7, (b"orders", 0): 4, (b"orders", 12): 25}
    queues.begin_rebuild(1 << 62, offsets)
    put(queues, b"orders", 0, 0, 2)
    queues.restore_silent_queues()
    assert queues.next_offsets() == {(b"orders", 0): 2, (b"orders", 12): 25}


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_in_a_rebuild_is_noticed(tmp_path: Path, seed: int) -> None:
    """The mark is on the disk before the first file is gone."""
    random, fs, root = Random(seed), PowerLossFileSystem(), tmp_path / "now"
    root.mkdir()
    queues = ConsumeQueues(fs, str(root), small_config(consume_queue_units_per_file=10))
    for n in range(3):
        put(queues, b"t", n, 0, 25)
    queues.sync()
    with armed("fs.unlink=EIO@5"), pytest.raises(StoreError):
        queues.begin_rebuild(1 << 62)
    fs.build_image(str(root), str(tmp_path / "image"), random)
    with pytest.raises(DerivedFileError):
        make(tmp_path / "image", position=25 * SIZE, is_clean=False)


def test_reads_beside_puts_see_whole_units_only(tmp_path: Path) -> None:
    queues = make(tmp_path, limit=2)
    put(queues, b"t", 0, 0, 1)
    stop, wrong, passes = threading.Event(), [], [0]

    def look() -> None:
        queue = queue_of(queues, b"t")
        while not stop.is_set():
            hi = queue.max_offset
            try:
                if queue.read_units(max(0, hi - 30), hi) != units(max(0, hi - 30), hi):
                    wrong.append(hi)
            except PositionRangeError:
                wrong.append(-hi)
            passes[0] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        lo = 1
        while (passes[0] < 50 or lo < 500) and lo < 20_000:
            put(queues, b"t", 0, lo, lo + 3)
            put(queues, b"u", lo % 5, queues.next_offsets().get((b"u", lo % 5), 0), lo + 3)
            lo += 3
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert passes[0] >= 50


# --- Files held open at the ends: few of them, never a deleted one, and the same bytes ---


def add(queues: ConsumeQueues, queue_id: int, lo: int, hi: int) -> bool:
    """Add units as the dispatcher does; return whether that was the short way."""
    if queues.append(b"t", queue_id, lo, units(lo, hi)):
        return True
    queues.put(b"t", queue_id, first_offset=lo, units=units(lo, hi), may_begin_late=False)
    return False


@pytest.mark.parametrize("limit", [1, 8, 512])
def test_queues_hold_the_same_whether_files_are_held_or_not(tmp_path: Path, limit: int) -> None:
    fs, random = CountingFileSystem(), Random(limit)
    queues = make(tmp_path / "a", fs=fs, limit=limit)
    other = make(tmp_path / "b", fs=FileSystem(), limit=512)
    held, next_offsets, short_count = queues._environment.tail_files.held, [0] * 6, 0
    for _ in range(400):
        queue_id, count = random.randrange(6), random.choice((1, 1, 1, 2, 9, 12))
        lo = next_offsets[queue_id]
        next_offsets[queue_id] = hi = lo + count
        short_count += add(queues, queue_id, lo, hi)
        other.put(b"t", queue_id, first_offset=lo, units=units(lo, hi), may_begin_late=False)
        assert len(held) <= limit // 4
        assert queues.next_offsets() == other.next_offsets()
    assert (short_count > 100) == (limit > 1)
    assert queues.take_grown() == {(b"t", queue_id) for queue_id in range(6)}
    queues.sync()
    queues.close()
    assert fs.open_fds == set(), "files that were held are closed as well"
    other.close()
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_file_that_was_deleted_gets_no_unit(tmp_path: Path) -> None:
    queues = make(tmp_path, fs=FileSystem(), limit=512)
    add(queues, 0, 0, 12)
    assert add(queues, 0, 12, 15), "the second file is held"
    queues.truncate(5 * SIZE)  # The second file is gone.
    assert add(queues, 0, 5, 8)
    add(queues, 0, 8, 14)
    assert add(queues, 0, 14, 17)
    assert queue_of(queues, b"t").read_units(0, 17) == units(0, 17)
    queues.close()
    assert len(list((tmp_path / "consumequeue" / "t" / "0").iterdir())) == 2


def test_units_that_are_not_the_next_ones_are_left_to_put(tmp_path: Path) -> None:
    queues = make(tmp_path, fs=FileSystem(), limit=512)
    assert queues.append(b"t", 0, 0, units(0, 1)) == 0, "there is no queue"
    add(queues, 0, 0, 5)
    before = tree(tmp_path)
    assert queues.append(b"t", 0, 6, units(6, 7)) == 0, "a gap"
    assert queues.append(b"t", 0, 4, units(4, 6)) == 0, "one is there already"
    assert queues.append(b"t", 0, 5, units(4, 5)) == 0, "a record before the last one"
    assert queues.append(b"t", 0, 5, units(5, 11)) == 0, "the next file"
    assert tree(tmp_path) == before
    assert queues.append(b"t", 0, 5, units(5, 10)) == 5
    queues.close()


def test_a_unit_that_could_not_be_written_is_written_again(tmp_path: Path) -> None:
    queues = make(tmp_path, fs=FileSystem(), limit=512)
    add(queues, 0, 0, 5)
    queues.sync()
    with armed("fs.write=short"), pytest.raises(StoreFullError):
        queues.append(b"t", 0, 5, units(5, 8))
    assert queues.next_offsets() == {(b"t", 0): 5}
    queue = queue_of(queues, b"t")
    assert queue in queues.dirty, "a part of it may be in the file"
    assert queues.append(b"t", 0, 5, units(5, 8)) == 3
    assert queue.read_units(0, 8) == units(0, 8)
    queues.close()


def test_no_more_than_the_limit_is_ever_held(tmp_path: Path) -> None:
    descriptors = DescriptorCache(FileSystem(), 10_000)
    tails = TailFiles(descriptors)
    path = tmp_path / "file"
    path.touch()
    for number in range(TAIL_FILES_MAX + 5):
        assert tails.hold(number, str(path), 0) is not None
    assert list(tails.held) == list(range(5, TAIL_FILES_MAX + 5)), "the oldest are let go"
    file = tails.held[5].file
    assert file.holds == TAIL_FILES_MAX
    tails.release_all()
    assert file.holds == 0
    descriptors.close()
