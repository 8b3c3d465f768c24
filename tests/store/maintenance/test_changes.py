"""A plain log that is cut, set aside, replaced or expires, and readers beside it, none of whom dies
or sees damage.

Each order is forced, in one thread: the reader begins within the change, and the files change in
the middle of its first read.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store.derived import guard
from store.derived.guard import DerivedPiece
from store.errors import FileSystemError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.log.shipped_log import ShippedLog
from store.maintenance import scrub
from store.maintenance.scrub import Piece
from store.replicated.shipped_store import ShippedStore
from tests.store.maintenance.test_scrub import damage, pass_of
from tests.store.records import BORN, PAGE
from tests.store.shipped_stores import (
    CONFIG,
    filled,
    found_numbers,
    killed,
    open_store,
    put,
    sync,
    take_away,
)

FILE = 4 * PAGE
CHANGES: dict[str, tuple[str, Callable[[ShippedLog], None]]] = {
    "cut": ("truncate", lambda log: log.cut(0)),
    "set_first_aside": ("set_first_aside", lambda log: log.set_first_aside()),
    "begin_at": ("reset", lambda log: log.begin_at(20 * FILE)),
}
"""The change, and the step of the files in it."""
Beside = Callable[[Callable[[], None]], list[int]]
"""Carries out a change with a reader in it; returns where that has read."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShippedStore]:
    with open_store(tmp_path, retention_interval_ms=0, retention_size_bytes=2 * FILE) as opened:
        ends = filled(opened, 120)
        opened.dispatch_to(ends[-1])
        sync(opened)
        opened.maintain()
        opened.detach_expired(0)
        opened.engine.retention.forget_times()
        yield opened


@pytest.fixture(params=CHANGES)
def beside(
    request: pytest.FixtureRequest, store: ShippedStore, monkeypatch: pytest.MonkeyPatch
) -> Beside:
    step, change = CHANGES[request.param]
    files = store.shipped.files
    own_step, own_read, own_read_any = getattr(files, step), MappedFile.read, MappedFile.read_any

    def run(reader: Callable[[], None]) -> list[int]:
        reads: list[int] = []

        def step_beside(*args: int) -> None:
            def read_later(
                read: Callable[..., bytes], file: MappedFile, lo: int, size_bytes: int
            ) -> bytes:
                if not reads:
                    own_step(*args)
                reads.append(lo)
                return read(file, lo, size_bytes)

            for name, read in (("read", own_read), ("read_any", own_read_any)):
                later = partial(read_later, read)
                monkeypatch.setattr(MappedFile, name, lambda *args, later=later: later(*args))
            reader()
            monkeypatch.undo()
            own_step(*args)

        monkeypatch.setattr(files, step, step_beside)
        change(store.shipped)
        return reads

    return run


def test_retention_expires_nothing(store: ShippedStore, beside: Beside) -> None:
    assert beside(store.find_expired), "nothing was read within the change"
    assert store.detach_expired(1 << 60) is None


def test_a_scrub_finds_no_damage(store: ShippedStore, beside: Beside) -> None:
    scrubber, pieces = store.scrubber(), list[Piece]()
    beside(lambda: pieces.append(scrubber.step()))
    assert pieces == [Piece()]
    assert damage(pass_of(scrubber)) == []


def test_the_pass_over_derived_files_finds_no_damage(store: ShippedStore, beside: Beside) -> None:
    scrubber, pieces = store.derived_scrubber(), list[DerivedPiece]()
    assert beside(lambda: pieces.append(scrubber.step())), "nothing was read within the change"
    assert pieces == [DerivedPiece()]


# --- Between two steps ---


def write_anew(store: ShippedStore, position: int) -> None:
    """Cut, and write records that begin elsewhere than those before."""
    take_away(store, position)
    for lo in range(0, 120, 2):
        end = put(store, lo, lo + 2, size_bytes=333)
    store.dispatch_to(end)
    sync(store)


def test_a_scrub_does_not_go_on_within_a_record_that_is_new(
    store: ShippedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "PIECE_SIZE_BYTES", 2000)
    scrubber = store.scrubber()
    assert 0 < scrubber.step().size_bytes < FILE
    write_anew(store, 0)
    assert scrubber.step() == Piece()
    assert damage(pass_of(scrubber)) == []


def test_the_pass_over_derived_files_does_not_either(
    store: ShippedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "PIECE_SIZE_BYTES", 2000)
    scrubber = store.derived_scrubber()
    first = scrubber.step()
    assert 0 < first.size_bytes < FILE
    write_anew(store, 0)
    assert scrubber.step().wrong_count == 0
    while not (piece := scrubber.step()).ends_pass:
        assert piece.wrong_count == 0


def test_a_file_that_was_written_anew_between_two_rounds_is_as_young_as_it_is(
    store: ShippedStore,
) -> None:
    """Also when it is complete again by the second round."""
    times = iter(range(BORN + 1000, BORN + 10**9, 1000))
    store.find_expired()
    assert store.engine.retention.newest_times[0] == BORN
    store.engine.clock = lambda: next(times)
    write_anew(store, 0)
    store.find_expired()
    assert store.engine.retention.newest_times[0] > BORN


# --- A change that fails half-way ---


def test_a_change_that_failed_is_one_until_it_is_complete(tmp_path: Path) -> None:
    """What is read in between is half of it. A store ends its process then."""
    log = ShippedLog(FileSystem(), str(tmp_path), CONFIG)
    log.files.load()
    log.begin_at(0)
    before = log.changes.number
    with failpoints.armed("fs.unlink=EIO"), pytest.raises(FileSystemError):
        log.begin_at(FILE)
    failed = log.changes.number
    assert not log.changes.is_unchanged(before)
    assert not log.changes.is_unchanged(failed)
    log.begin_at(FILE)
    assert not log.changes.is_unchanged(failed)
    assert log.changes.is_unchanged(log.changes.number)
    log.close()


# --- What expires: how far, what an error leaves, and what a cut changes ---


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
