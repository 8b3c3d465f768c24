"""The oldest files are deleted: an error or a crash on the way leaves a log that opens, whole."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import CorruptionError, FileSystemError, LayoutError
from store.files import failpoints
from store.ledger.entry import ChainLink
from store.ledger.ledger import Deletion
from store.replicated.ledger_store import ReplicaStore
from tests.store.fsck_stores import flip
from tests.store.records import numbers
from tests.store.replicated.test_ledger_store import CONFIG, crash, open_store, put

FILE = CONFIG.file_size_bytes
MAINTENANCE = {"retention_interval_ms": 0, "retention_size_bytes": 2 * FILE}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    opened = open_store(tmp_path / "store", **MAINTENANCE)
    fill(opened, 5)
    yield opened
    opened.close()


def fill(store: ReplicaStore, file_count: int) -> None:
    """Append until there are so many more files, and let readers see all of it, durably."""
    hi_position = store.ledger.files.end_position + file_count * FILE
    lo = store.reads.queue_range("orders", 0)[1]
    while store.ledger.files.end_position < hi_position:
        put(store, lo, lo + 1, size_bytes=900)
        lo += 1
    store.dispatch_to(store.log.max_position)
    store.engine.flush_service.wait(store.log.max_position, 10_000)


def take_out(store: ReplicaStore) -> Deletion:
    """Take the files that have to go out of the log."""
    store.engine.sync_derived()
    store.find_expired()
    deletion = store.deletion(store.ledger.last_index)
    assert deletion is not None
    assert deletion.file_count >= 3
    assert deletion.write_start()
    assert deletion.forget()
    return deletion


def take_out_and_fail(store: ReplicaStore, nth: int) -> None:
    """The same, and an error when the `nth` file is deleted."""
    deletion = take_out(store)
    with failpoints.armed(f"fs.unlink=EIO@{nth}"), pytest.raises(FileSystemError):
        deletion.remove()


def data(store: ReplicaStore) -> Path:
    return Path(store.ledger.files.directory)


def on_disk(store: ReplicaStore, kind: str = "data") -> list[int]:
    """Where the files of the ledger begin that are on the disk."""
    return sorted(int(path.name) for path in (data(store).parent / kind).iterdir())


def in_log(store: ReplicaStore) -> list[int]:
    return [file.position for file in store.ledger.files.files]


def kept(store: ReplicaStore) -> list[int]:
    """The records of the log, by number, which is their offset."""
    ledger = store.ledger
    runs = ledger.record_runs(ledger.min_position, ledger.max_position)
    return [number for _, records in runs for number in numbers(records)]


def image_of(store: ReplicaStore) -> Path:
    """A copy of the directory as a kill leaves it now."""
    root = Path(store.root)
    image = root.with_name("image")
    shutil.rmtree(image, ignore_errors=True)
    shutil.copytree(root, image)
    return image


def check_killed(store: ReplicaStore) -> None:
    """What a kill leaves now can be opened, and has all that was not deleted."""
    with open_store(image_of(store), **MAINTENANCE) as again:
        assert on_disk(again) == in_log(again) == in_log(store)
        assert kept(again) == kept(store)
        lo, hi = again.reads.queue_range("orders", 0)
        pulled = again.reads.pull("orders", 0, lo, max_count=1000, max_size_bytes=1 << 24)
        assert numbers(pulled.data) == kept(store) == list(range(lo, hi))


@pytest.mark.parametrize("nth", [1, 3, 4])
def test_a_deletion_that_fails_is_repeated_by_maintenance(store: ReplicaStore, nth: int) -> None:
    """Also when it fails at the index, which comes last."""
    take_out_and_fail(store, nth)
    assert len(on_disk(store)) - len(in_log(store)) == max(0, 4 - nth)
    check_killed(store)
    store.maintain()
    assert on_disk(store) == in_log(store)
    assert on_disk(store, "index")[0] == store.ledger.index.files.min_position > 0
    assert store.reads.queue_range("orders", 0)[0] == kept(store)[0], "of the queues as well"
    check_killed(store)


def test_a_later_deletion_begins_with_what_an_earlier_one_left(store: ReplicaStore) -> None:
    """Behind a gap between its files no log opens."""
    take_out_and_fail(store, 2)
    fill(store, 3)
    take_out_and_fail(store, 1)
    assert on_disk(store) == list(range(FILE, store.ledger.files.end_position, FILE))
    check_killed(store)
    fill(store, 3)
    take_out(store).remove()
    assert on_disk(store) == in_log(store)
    check_killed(store)


@pytest.mark.parametrize("gone", [[], [0], [1], [0, 2], [1, 2]])
def test_a_restart_deletes_whatever_a_deletion_has_left(
    store: ReplicaStore, gone: list[int]
) -> None:
    """Whichever of its unlinks a power loss took back."""
    take_out(store)
    for number in gone:
        (data(store) / f"{number * FILE:020d}").unlink()
    check_killed(store)


def test_a_restart_deletes_no_file_that_is_not_of_the_log(store: ReplicaStore) -> None:
    """Somebody's copy of a file lies between what has expired, under a name as long as those."""
    take_out(store)
    image = image_of(store)
    directory = image / data(store).relative_to(store.root)
    copy, expired = directory / f"{0:016d}.bak", directory / f"{0:020d}"
    expired.rename(copy)
    with open_store(image, **MAINTENANCE) as again:
        assert in_log(again) == in_log(store)
    assert copy.exists()
    assert min(path.name for path in directory.iterdir() if path != copy) == f"{3 * FILE:020d}"


def path_of(store: ReplicaStore, position: int) -> Path:
    return data(store) / f"{position // FILE * FILE:020d}"


FIELDS = {"size": 7, "index": 15, "term": 23, "chain": 39, "body checksum": 43}
"""The last byte of fields of a header, where a flipped bit leaves something that makes sense."""


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("which", [-1, 0])
def test_the_log_begins_behind_nothing_that_is_damaged(
    store: ReplicaStore, field: str, which: int
) -> None:
    """What its first entry must follow is written down then, and would stay wrong for ever."""
    ledger = store.ledger
    position = ledger.position_of(ledger.index_at_position(3 * FILE) + which)
    flip(path_of(store, position), 8 * (position % FILE + FIELDS[field]))
    store.engine.sync_derived()
    store.find_expired()
    with pytest.raises(CorruptionError):
        store.deletion(ledger.last_index)
    flip(path_of(store, position), 8 * (position % FILE + FIELDS[field]))
    take_out(store).remove()
    assert in_log(store)[0] == 3 * FILE
    check_killed(store)


@pytest.mark.parametrize("field", FIELDS)
def test_no_cut_begins_behind_a_damaged_header(store: ReplicaStore, field: str) -> None:
    """The cut would begin within an entry, or what follows it would never chain."""
    ledger = store.ledger
    index = ledger.last_index + 1
    for number in range(2):
        put(store, index + number, index + number + 1)
    position, end_position = ledger.position_of(index), ledger.max_position
    flip(path_of(store, position), 8 * (position % FILE + FIELDS[field]))
    with pytest.raises(CorruptionError):
        ledger.truncate_from(index + 1, commit_index=index)
    assert ledger.max_position == end_position
    flip(path_of(store, position), 8 * (position % FILE + FIELDS[field]))
    ledger.truncate_from(index + 1, commit_index=index)
    assert ledger.last_index == index


def test_no_file_is_deleted_while_the_first_file_is_missing(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, **MAINTENANCE)
    fill(store, 5)
    take_out(store)
    crash(store)
    store.log.close()
    (data(store) / f"{3 * FILE:020d}").unlink()
    left = on_disk(store)
    assert left[:3] == [0, FILE, 2 * FILE]
    with pytest.raises(LayoutError):
        open_store(tmp_path, **MAINTENANCE)
    assert on_disk(store) == left


@pytest.mark.parametrize("fails", [False, True])
def test_a_snapshot_within_a_deletion_leaves_nothing_of_the_old_log(
    store: ReplicaStore, fails: bool
) -> None:
    if fails:
        take_out_and_fail(store, 2)
    else:
        deletion = take_out(store)
    position = store.ledger.files.end_position + 3 * FILE + 1000
    store.restart(position, ChainLink(5000, 9, 77), {(b"orders", 0): 9000})
    assert on_disk(store) == in_log(store) == [position // FILE * FILE]
    if not fails:
        deletion.remove()
    put(store, 9000, 9003, term=9)
    store.dispatch_to(store.log.max_position)
    store.maintain()
    assert on_disk(store) == in_log(store)
    assert store.ledger.first_index == 5001
    check_killed(store)
