"""What expires of a shipped log: how far, what an error leaves, and what a cut changes."""

from pathlib import Path
from typing import Any

import pytest

from store.errors import FileSystemError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.replicated.shipped_store import ShippedStore
from tests.store.records import BORN, PAGE
from tests.store.shipped_stores import (
    filled,
    found_numbers,
    killed,
    open_store,
    put,
    sync,
    take_away,
)

FILE = 4 * PAGE


def expiring(root: Path, fs: FileSystem | None = None) -> ShippedStore:
    return open_store(root, fs, retention_interval_ms=0, retention_size_bytes=2 * FILE)


def delete_in_part(store: ShippedStore) -> None:
    """Fill it, and let the deletion of what has expired fail behind the first file."""
    ends = filled(store, 300)
    store.dispatch_to(ends[-1])
    sync(store)
    store.maintain()
    work = store.detach_expired(3 * FILE)
    assert work is not None
    with failpoints.armed("fs.unlink=EIO@2+"), pytest.raises(FileSystemError):
        work()


def test_expired_files_go_as_far_as_nobody_needs_them(tmp_path: Path) -> None:
    with expiring(tmp_path / "s") as store:
        ends = filled(store, 300)
        store.maintain()
        assert store.detach_expired(ends[-1]) is None, "nothing is dispatched"
        store.dispatch_to(ends[-1])
        sync(store)
        store.maintain()
        assert store.detach_expired(FILE - 1) is None
        work = store.detach_expired(3 * FILE)
        assert work is not None
        assert store.log.min_position == 3 * FILE
        assert len(list((tmp_path / "s" / "commitlog").iterdir())) == len(store.log.files.files) + 3
        work()
        lo, hi = store.reads.queue_range("orders", 0)
        assert (lo > 0, hi) == (True, 300)
        assert found_numbers(store) == list(range(lo, hi))
        assert not store.reads.messages_by_key("orders", "key0000")
        store.maintain()
        work = store.detach_expired(1 << 60)
        assert work is not None
        work()
        assert store.shipped.end_position - store.log.min_position <= 3 * FILE
    with expiring(tmp_path / "s") as store:
        assert found_numbers(store)[-1] == 299


def test_a_deletion_that_fails_is_made_up_for(tmp_path: Path) -> None:
    with expiring(tmp_path / "s") as store:
        delete_in_part(store)
        again = store.detach_expired(0)
        assert again is not None
        again()
        assert store.detach_expired(0) is None
        names = sorted(path.name for path in (tmp_path / "s" / "commitlog").iterdir())
        assert names[0] == f"{3 * FILE:020d}"


def test_a_log_that_begins_elsewhere_leaves_nothing_of_a_deletion_that_failed(
    tmp_path: Path,
) -> None:
    """No log opens with a gap between its files."""
    with expiring(tmp_path / "s") as store:
        delete_in_part(store)
        store.cut(store.log.min_position)
        store.begin_at(100 * FILE, {(b"orders", 0): 5000})
        with expiring(killed(tmp_path / "s", tmp_path / "image")) as again:
            assert again.log.min_position == 100 * FILE
        assert store.detach_expired(1 << 60) is None


class Replacing:
    """The lock of the derived files; whoever waits for it the nth time finds the log replaced by
    one that begins earlier."""

    def __init__(self, store: ShippedStore, nth: int) -> None:
        self._store, self._own = store, store.engine.dispatcher.lock
        self._left = nth

    def __enter__(self) -> None:
        self._left -= 1
        if self._left == 0:
            store = self._store
            store.cut(store.log.min_position)
            store.begin_at(FILE, {(b"orders", 0): 10})
            for lo in range(10, 40, 3):
                end = put(store, lo, lo + 3, size_bytes=400)
            store.dispatch_to(end)
        self._own.acquire()

    def __exit__(self, *_: object) -> None:
        self._own.release()


def test_an_earlier_log_loses_no_keys_to_the_deletion_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: dict[str, Any] = {"index_entry_count": 8, "index_slot_count": 8}
    with open_store(tmp_path, retention_interval_ms=0, **few, retention_size_bytes=FILE) as store:
        ends = filled(store, 300)
        store.dispatch_to(ends[-1])
        sync(store)
        store.maintain()
        assert store.detach_expired(3 * FILE) is not None
        queue_count = len(list(store.engine.queues))
        monkeypatch.setattr(store.engine.dispatcher, "lock", Replacing(store, queue_count + 1))
        store.delete_expired_derived()
        assert store.log.min_position == FILE
        assert len(store.engine.index.files) > 2
        assert store.reads.messages_by_key("orders", "key0010")


def test_a_file_that_is_written_anew_behind_a_cut_is_as_young_as_it_is(tmp_path: Path) -> None:
    """It was complete before, and may take days to be so again."""
    times = iter(range(BORN, BORN + 10**9, 1000))
    with expiring(tmp_path / "s") as store:
        store.engine.clock = lambda: next(times)
        ends = filled(store, 120)
        store.dispatch_to(ends[-1])
        store.find_expired()
        assert 0 in store.engine.retention.newest_times
        take_away(store, ends[3])
        store.find_expired()
        for lo in range(9, 120, 3):
            end = put(store, lo, lo + 3, size_bytes=400)
        store.dispatch_to(end)
        store.find_expired()
        behind = store.reads.message_at(store.log.files.files[1].position)
        assert store.engine.retention.newest_times[0] == behind.store_unix_ms


def test_files_do_not_expire_beside_a_cut(tmp_path: Path) -> None:
    """What was judged before a cut says nothing about the log after it."""
    with expiring(tmp_path / "s") as store:
        ends = filled(store, 300)
        store.dispatch_to(ends[-1])
        sync(store)
        store.maintain()
        take_away(store, ends[20])
        assert store.detach_expired(1 << 60) is None
