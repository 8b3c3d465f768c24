"""Files held open at the ends of queues: few of them, never a deleted one, and the same bytes."""

from pathlib import Path
from random import Random

import pytest

from store.derived.queues.consume_queue import TAIL_FILES_MAX, TailFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.errors import StoreFullError
from store.files.descriptor_cache import DescriptorCache
from store.files.failpoints import armed
from store.files.file_system import FileSystem
from tests.store.derived.queues.test_consume_queue import SIZE, units
from tests.store.fakes import CountingFileSystem, queue_of, tree
from tests.store.records import small_config


def make(root: Path, fs: FileSystem, *, limit: int) -> ConsumeQueues:
    config = small_config(consume_queue_units_per_file=10)
    queues = ConsumeQueues(fs, str(root), config, open_files_max=limit)
    queues.recover(0, is_clean=True)
    return queues


def add(queues: ConsumeQueues, queue_id: int, lo: int, hi: int) -> bool:
    """Add units as the dispatcher does; return whether that was the short way."""
    if queues.append(b"t", queue_id, lo, units(lo, hi)):
        return True
    queues.put(b"t", queue_id, first_offset=lo, units=units(lo, hi), may_begin_late=False)
    return False


@pytest.mark.parametrize("limit", [1, 8, 512])
def test_queues_hold_the_same_whether_files_are_held_or_not(tmp_path: Path, limit: int) -> None:
    fs, random = CountingFileSystem(), Random(limit)
    queues = make(tmp_path / "a", fs, limit=limit)
    other = make(tmp_path / "b", FileSystem(), limit=512)
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
    queues = make(tmp_path, FileSystem(), limit=512)
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
    queues = make(tmp_path, FileSystem(), limit=512)
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
    queues = make(tmp_path, FileSystem(), limit=512)
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
