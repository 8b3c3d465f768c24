"""Readers beside a plain log that is cut, set aside or replaced: none of them dies or sees damage.

Each order is forced, in one thread: the reader begins within the change, and the files change in
the middle of its first read.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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
from tests.store.shipped_stores import CONFIG, filled, open_store, put, sync, take_away

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
