"""Failures in the middle of building, cutting and expiring the files derived from the log."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.config import StoreConfig
from store.errors import FileSystemError
from store.files import failpoints
from store.files.file_system import FileSystem
from tests.store.crash_check import FILE, crash_config, open_store
from tests.store.overwrites import flip
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import batch
from tests.store.shipped_stores import killed


@pytest.fixture(params=["commit_log", "ledger"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return crash_config(container=request.param, retention_size_bytes=2 * FILE)


class FailingUnlink(FileSystem):
    """Fails the next unlink of a path that has `part`, as often as asked."""

    def __init__(self, part: str) -> None:
        self.part, self.left = part, 0

    def unlink(self, path: str) -> None:
        if self.part in path and self.left:
            self.left -= 1
            raise FileSystemError("unlink", path, 5)
        super().unlink(path)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_units_of_a_round_that_failed_are_not_counted(
    tmp_path: Path, config: StoreConfig, nth: int
) -> None:
    """On a full disk some queues got their units and the mark counted them: a crash then cost a
    rebuild of everything, on a full disk."""
    root = tmp_path / "run"
    with open_store(str(root), config) as store:
        store.put(batch(0, 3) + batch(3, 6, topic="refunds"))
        store.maintain()
        store.put(batch(6, 9) + batch(9, 12, topic="refunds") + batch(12, 15, topic="audit"))
        with failpoints.armed(f"fs.write=ENOSPC@{nth}"):
            store.maintain()
        assert store.counters.dispatch_failed_count == 1
        image = killed(root, tmp_path / "image")
        store.maintain()
        assert [q[3] for q in store.queues()] == [3, 6, 6]
        after = killed(root, tmp_path / "after")
    for found in (image, after):
        with open_store(str(found), config) as store:
            assert not store.recovery.derived_rebuilt
            assert [q[3] for q in store.queues()] == [3, 6, 6]


def fill(put: Callable[[bytes], object]) -> None:
    for lo in range(0, 400, 20):
        put(batch(lo, lo + 20))


@pytest.mark.parametrize("part", ["consumequeue", "/index/"])
def test_a_derived_file_that_could_not_expire_goes_in_the_next_round(
    tmp_path: Path, config: StoreConfig, part: str
) -> None:
    """It stayed until the next file of the log expired, and kept others from expiring, too."""
    fs = FailingUnlink(part)
    with open_store(str(tmp_path), config, fs) as store:
        store.put(batch(0, 60, topic="audit"))
        fill(store.put)
        store.queues()
        before = {part: count(tmp_path, part) for part in ("consumequeue", "index")}
        fs.left = 1
        with pytest.raises(FileSystemError):
            store.delete_expired()
        other = "index" if part == "consumequeue" else "consumequeue"
        assert count(tmp_path, other) < before[other]
        assert store.delete_expired() == 0, "the log has nothing more to delete"
        assert count(tmp_path, part.strip("/")) < before[part.strip("/")]
        lo = store.queues()[0][2]
        assert store.queues()[0] == ("audit", 0, 60, 60)
        assert lo == 60
        left = sorted(p.name for p in (tmp_path / "consumequeue" / "audit" / "0").iterdir())
        assert left == [fmt.file_name(40 * fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES)]


def count(root: Path, part: str) -> int:
    return sum(path.is_file() for path in (root / part).rglob("*"))


def test_index_files_that_expired_do_not_come_back_to_be_counted(
    tmp_path: Path, config: StoreConfig
) -> None:
    """After a power loss they did, and everything was built anew."""
    fs, config = PowerLossFileSystem(), replace(config, durable_mark_interval_ms=0)
    store = open_store(str(tmp_path / "run"), config, fs)
    fill(store.put)
    store.queues()
    before = count(tmp_path / "run", "index")
    assert store.delete_expired() > 0
    assert count(tmp_path / "run", "index") < before
    for seed in range(8):
        image = tmp_path / f"image{seed}"
        fs.build_image(str(tmp_path / "run"), str(image), Random(seed))
        (image / "boot_id").write_text("another\n")
        with open_store(str(image), config) as opened:
            assert not opened.recovery.derived_rebuilt
    store.close()


def test_damage_in_an_old_file_does_not_end_retention(tmp_path: Path) -> None:
    """Its time could not be read: an opening ended in a fatal error each time, for ever."""
    config = crash_config(container="ledger", retention_ms=3_600_000)
    now = 1_700_000_000_000
    with open_store(str(tmp_path), config) as store:
        store._clock = lambda: now
        fill(store.put)
        file_count = len(store.log.files.files)
    path = tmp_path / "dledger-n0" / "data" / fmt.file_name(2 * FILE)
    flip(path, 100)  # In the first entry.
    with open_store(str(tmp_path), config) as store:
        store._clock = lambda: now + 1000
        assert store.delete_expired() == 0
        store.maintain()
        store._clock = lambda: now + 3_600_000
        assert store.delete_expired() == min(10, file_count - 1)


def test_names_that_a_killed_store_did_not_sync_are_synced_by_the_next_one(
    tmp_path: Path, config: StoreConfig
) -> None:
    """The directories were there, so nobody made them durable any more."""
    synced: list[str] = []

    class Noting(FileSystem):
        def sync_directory(self, path: str) -> None:
            synced.append(path)
            super().sync_directory(path)

    with open_store(str(tmp_path / "run"), config) as store:
        store.put(batch(0, 3))
        store.queues()
        root = killed(tmp_path / "run", tmp_path / "killed")
    with open_store(str(root), config, Noting()) as store:
        synced.clear()
        store.maintain()
        queues = f"{root}/consumequeue"
        assert {f"{queues}/orders/0", f"{queues}/orders", queues, str(root)} <= set(synced)


def test_a_new_beginning_forgets_a_round_that_failed(tmp_path: Path) -> None:
    """Its units were taken off the count of files that do not have them."""
    with open_store(str(tmp_path), crash_config()) as store:
        store.put(batch(0, 3) + batch(3, 6, topic="refunds"))
        with failpoints.armed("fs.write=ENOSPC@2"):
            store.queues()
        assert store.counters.dispatch_failed_count == 1
        dispatcher = store.engine.dispatcher
        assert dispatcher.built() == (0, 0)
        dispatcher.restart(0, {(b"orders", 0): 7})
        assert dispatcher.built() == (0, 7)
        dispatcher.restart(0, {})
