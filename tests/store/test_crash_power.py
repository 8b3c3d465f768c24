"""Power losses of the whole store, at any call that changes a file, also within a recovery."""

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.durability import identity
from store.errors import CorruptionError, StoreError
from tests.store.crash_check import (
    FILE,
    BrokenPromiseError,
    History,
    check_derived,
    check_store,
    crash_config,
    open_store,
    temporary_parent,
)
from tests.store.power_lives import (
    Container,
    Image,
    Life,
    Machine,
    check_image,
    go_on,
    power_config,
)
from tests.store.power_loss import PowerLossFileSystem
from tests.two_processes import in_two_processes

SEED_COUNT = 25  # Of each of four kinds.


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(identity, "_KERNEL_BOOT_ID", str(tmp_path / "kernel_boot_id"))
    return Machine(tmp_path / "kernel_boot_id")


@pytest.fixture
def parent() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-power-", dir=temporary_parent()))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.long
@pytest.mark.parametrize("mark_interval_ms", [0, 1000])
@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_durable_records_survive_any_power_loss(
    container: Container, mark_interval_ms: int
) -> None:
    lives = in_two_processes(
        "tests.store.power_lives", container, mark_interval_ms, cases=range(SEED_COUNT)
    )
    counts: Counter[str] = Counter()
    for life in lives:
        counts.update(life)
    print(f"{container} {mark_interval_ms}: {counts}")
    assert counts["images"] > 4 * SEED_COUNT
    assert counts["nested"] > SEED_COUNT
    assert counts["records"] > 50 * counts["images"]
    assert min(counts["cut"], counts["rebuilt"]) > 0, "no image had anything to recover"
    assert min(counts["dropped pages"], counts["dropped names"]) > 50, "nothing was lost"
    assert all(counts[f"before {c}"] for c in ("write_at", "sync", "sync_directory", "rename"))


# --- The test is tested ---


class LyingDisk(PowerLossFileSystem):
    """Says that file data are durable, and does nothing."""

    def sync(self, fd: int, path: str) -> None:
        pass


class ForgetfulDirectories(PowerLossFileSystem):
    """Says that names are durable, and does nothing."""

    def sync_directory(self, path: str) -> None:
        pass


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize(
    "kind", [LyingDisk, pytest.param(ForgetfulDirectories, marks=pytest.mark.long)]
)
def test_a_disk_that_does_not_sync_is_found(
    parent: Path, machine: Machine, container: Container, kind: type[PowerLossFileSystem]
) -> None:
    loss_count = 0
    for seed in range(10):
        random, work = Random(seed), parent / str(seed)
        config = power_config(random, container, 0)
        life = Life(work, config, random, kind(), History(container == "ledger"))
        life.live()
        life.lose_power()
        life.end()
        with contextlib.suppress(StopIteration):
            try:
                check_image(life, life.images[-1], machine, Counter())
            except (BrokenPromiseError, StoreError):
                loss_count += 1
    assert loss_count >= 3


# --- D4: some files are newer than others ---


def unsynced_life(parent: Path, container: Container) -> Life:
    """Records of which a few are durable, many dispatched durably, and the log not synced since."""
    config = crash_config(
        container=container, flush="async", flush_interval_ms=1_000_000, flush_least_pages=1 << 20
    )
    fs = PowerLossFileSystem()
    life = Life(parent, config, Random(4), fs, History(container == "ledger"))
    life.reopen()
    store = life.store
    assert store is not None
    for number in range(4):
        life.put(store, number)
    store.wait_durable(store.log.max_position)
    life.note_all_durable()
    number = 4
    while store.log.max_position < FILE - 3000:  # A roll would make the first file durable.
        life.put(store, number)
        number += 1
    store.maintain()
    assert (
        store.engine.mark.mark.dispatched_durable_position
        > store.engine.mark.mark.durable_position
        > 0
    )
    return life


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize("newer", ["everything else", "log"])
def test_the_log_and_the_rest_are_of_different_age(
    parent: Path, machine: Machine, container: Container, newer: str
) -> None:
    """D4: a mark, queues and an index from after the log's end are lowered; older ones catch up."""
    life = unsynced_life(parent, container)
    image = Image(parent / "image", life.history.copy(), newer)

    def share(path: str) -> float:
        is_log = Path(path).parent.name in ("commitlog", "data")
        return float(is_log == (newer == "log"))

    life.fs.build_image(life.root, str(image.root), Random(0), share)
    assert life.store is not None
    max_position, durable = (
        life.store.log.max_position,
        life.store.engine.flush_service.durable_position,
    )
    life.end()
    machine.boot()
    with open_store(str(image.root), life.config) as store:
        end = store.log.max_position
        assert end == (max_position if newer == "log" else durable)
        mark = store.engine.mark.mark
        assert max(mark.dispatched_position, mark.durable_position) <= end
        check_store(store, image.history)
        check_derived(store, str(parent / "rebuilt"))
        go_on(store, image.history)
    with open_store(str(image.root), life.config) as store:
        check_store(store, image.history)


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_a_log_that_is_older_than_its_durable_mark_is_refused(
    parent: Path, machine: Machine, container: Container
) -> None:
    """D9, D18: a log restored from an old copy beside marks that know better."""
    life = unsynced_life(parent, container)
    store = life.store
    assert store is not None
    log = Path(store.log.files.files[-1].path)
    store.wait_durable(store.log.max_position)
    old = log.read_bytes()
    life.put(store, 100)  # Into the same file, or the old copy would be as good as the new one.
    assert Path(store.log.files.files[-1].path) == log
    life.end()
    whole = log.read_bytes()
    log.write_bytes(old)
    machine.boot()
    with pytest.raises(CorruptionError):
        open_store(life.root, life.config)
    assert log.read_bytes() == old, "evidence is kept"
    log.write_bytes(whole)
    with open_store(life.root, life.config) as store:
        life.note_all_durable()
        check_store(store, life.history)
