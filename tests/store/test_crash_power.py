"""Power losses of the whole store, at any call that changes a file, also in the middle of recovery.

Histories, moments and images follow from the seed of each test. Every image is opened under
another boot id, compared with what was durable at that moment, used further, and opened again.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from store import identity
from store.config import StoreConfig
from store.errors import CorruptionError, StoreError
from store.store import Store
from tests.store.crash_check import (
    FILE,
    RETAINED_FILE_COUNT,
    BrokenPromiseError,
    History,
    check_derived,
    check_store,
    crash_config,
    encode,
    open_store,
    temporary_parent,
)
from tests.store.power_loss import PowerLossFileSystem

Container = Literal["commit_log", "ledger"]
SEED_COUNT = 25  # Of each of four kinds.
OPERATION_COUNT = 70
IMAGE_COUNT_MAX = 5
CALLS_PER_IMAGE = 100  # One call in so many is a power loss.


class Machine:
    """What a boot draws anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self.boot()

    def boot(self) -> None:
        self._count += 1
        self._path.write_text(f"boot-{self._count}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(identity, "_KERNEL_BOOT_ID", str(tmp_path / "kernel_boot_id"))
    return Machine(tmp_path / "kernel_boot_id")


@pytest.fixture
def parent() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-power-", dir=temporary_parent()))
    yield directory
    shutil.rmtree(directory)


def power_config(random: Random, container: Container, mark_interval_ms: int) -> StoreConfig:
    """The flush thread acts only when it is asked: what is durable follows from the seed."""
    return crash_config(
        container=container,
        flush=random.choice(["sync", "async", "async"]),
        flush_interval_ms=1_000_000,
        durable_mark_interval_ms=mark_interval_ms,
        retention_size_bytes=RETAINED_FILE_COUNT * FILE,
        preallocate_file_count=random.choice([0, 0, 2]),
        warm_up=random.random() < 0.5,
    )


@dataclass
class Image:
    """One power loss: what was left, and what had been promised until then."""

    root: Path
    history: History
    call: str


@dataclass
class Life:
    """A random life of one store on a file system that keeps an eye on it."""

    parent: Path
    config: StoreConfig
    random: Random
    fs: PowerLossFileSystem
    history: History
    images: list[Image] = field(default_factory=list)
    waiting: dict[int, tuple[int, list[int], list[int]]] = field(default_factory=dict)
    store: Store | None = None
    call_count: int = 0

    @property
    def root(self) -> str:
        return str(self.parent / "run")

    def before_call(self, name: str) -> None:
        """Be the moment of a power loss, now and then."""
        self.call_count += 1
        is_time = self.random.random() < 1 / CALLS_PER_IMAGE and Path(self.root).exists()
        if is_time and len(self.images) < IMAGE_COUNT_MAX:
            self.lose_power(name)

    def lose_power(self, call: str = "") -> None:
        history = self.history.copy()
        if self.store is not None:
            durable = self.store._flush.durable_position
            for number, (end, positions, offsets) in self.waiting.items():
                if end <= durable:
                    history.acknowledge(number, positions, offsets)
        image = self.parent / f"image{len(self.images)}"
        self.images.append(Image(image, history, call))
        self.fs.build_image(self.root, str(image), Random(self.random.random()))
        # On the warm-up thread, appends go on meanwhile.
        history.attempted |= self.history.attempted

    def live(self) -> None:
        """Work, close and reopen; the last store is left open."""
        number = 0
        self._open()
        for _ in range(OPERATION_COUNT):
            store = self.store
            assert store is not None
            match self.random.choices("pwmdrc", [60, 8, 8, 4, 8, 3])[0]:
                case "p":
                    self._put(store, number)
                    number += 1
                case "w":
                    if self.waiting:
                        store.wait_durable(max(end for end, _, _ in self.waiting.values()))
                        self._all_durable()
                case "m":
                    store.maintain()
                case "d":
                    store.delete_expired()
                case "r":
                    store.queues()
                case "c":
                    store.close()
                    self._all_durable()
                    self.store = None
                    self._open()

    def _open(self) -> None:
        self.store = open_store(self.root, self.config, self.fs)

    def _put(self, store: Store, number: int) -> None:
        self.history.attempted.add(number)
        result = store.put(encode(number))
        where = result.end_position, result.record_positions, result.queue_offsets
        if self.config.flush == "sync":
            self.history.acknowledge(number, *where[1:])
        else:
            self.waiting[number] = where

    def _all_durable(self) -> None:
        for number, (_, positions, offsets) in self.waiting.items():
            self.history.acknowledge(number, positions, offsets)
        self.waiting = {}

    def end(self) -> None:
        """Let go of the store whose power is gone."""
        self.fs.before_call = lambda name: None
        if self.store is not None:
            self.store.close()


@dataclass
class Counts:
    """What the images went through."""

    images: int = 0
    nested: int = 0
    cut: int = 0
    rebuilt: int = 0
    records: int = 0
    dropped_pages: int = 0
    dropped_names: int = 0
    calls: set[str] = field(default_factory=set)


def live_and_lose_power(
    parent: Path, seed: int, container: Container, mark_interval_ms: int
) -> Life:
    random = Random(seed)
    config = power_config(random, container, mark_interval_ms)
    history = History(container == "ledger")
    if config.flush == "async":
        history.kept_size_bytes_min = 0
    life = Life(parent, config, random, PowerLossFileSystem(), history)
    life.fs.before_call = life.before_call
    try:
        life.live()
        life.lose_power("the end")
    finally:
        life.end()
    return life


def check_image(life: Life, image: Image, machine: Machine, counts: Counts) -> None:
    """Open what a power loss left, in the middle of which the power may go again, and use it."""
    machine.boot()
    fs, random = PowerLossFileSystem(), life.random
    fs.adopt(str(image.root))
    second, nested = Path(f"{image.root}-again"), image.history.copy()
    call_count, stop_at = 0, random.choice([0, random.randint(1, 30), random.randint(1, 120)])

    def before_call(name: str) -> None:
        nonlocal call_count
        call_count += 1
        if call_count == stop_at:
            fs.build_image(str(image.root), str(second), Random(random.random()))
            # On the warm-up thread, the batch of `go_on` may be put meanwhile.
            nested.attempted |= image.history.attempted

    fs.before_call = before_call
    with open_store(str(image.root), life.config, fs) as store:
        fs.before_call = lambda name: None
        counts.records += check_store(store, image.history)
        check_derived(store, f"{image.root}-rebuilt")
        counts.cut += store.recovery.cut_size_bytes > 0
        counts.rebuilt += store.recovery.derived_rebuilt
        go_on(store, image.history)
    with open_store(str(image.root), life.config) as store:
        assert store.recovery.was_clean
        check_store(store, image.history)
        check_derived(store, f"{image.root}-rebuilt")
    counts.images += 1
    counts.calls.add(image.call)
    if second.exists():
        machine.boot()
        with open_store(str(second), life.config) as store:
            check_store(store, nested)
            check_derived(store, f"{second}-rebuilt")
            go_on(store, nested)
            check_store(store, nested)
        counts.nested += 1


def go_on(store: Store, history: History) -> None:
    """Put one more batch: offsets and positions go on where the records end."""
    number = history.next_number()
    history.attempted.add(number)
    result = store.put(encode(number))
    history.acknowledge(number, result.record_positions, result.queue_offsets)


@pytest.mark.slow
@pytest.mark.parametrize("mark_interval_ms", [0, 1000])
@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_what_was_durable_survives_any_power_loss(
    parent: Path, machine: Machine, container: Container, mark_interval_ms: int
) -> None:
    counts = Counts()
    for seed in range(SEED_COUNT):
        work = parent / str(seed)
        life = live_and_lose_power(work, seed, container, mark_interval_ms)
        for image in life.images:
            try:
                check_image(life, image, machine, counts)
            except (AssertionError, StoreError) as error:
                error.add_note(f"seed {seed}, power lost before {image.call!r}")
                raise
        counts.dropped_pages += life.fs.dropped_page_count
        counts.dropped_names += life.fs.dropped_name_count
        shutil.rmtree(work)
    print(f"{container} {mark_interval_ms}: {counts}")
    assert counts.images > 4 * SEED_COUNT
    assert counts.nested > SEED_COUNT
    assert counts.records > 50 * counts.images
    assert min(counts.cut, counts.rebuilt) > 0, "no image had anything to recover"
    assert min(counts.dropped_pages, counts.dropped_names) > 50, "the power losses lost nothing"
    assert counts.calls >= {"write_at", "sync", "sync_directory", "rename"}


# --- The test is tested ---


class LyingDisk(PowerLossFileSystem):
    """Says that file data are durable, and does nothing."""

    def sync(self, fd: int, path: str) -> None:
        pass


class ForgetfulDirectories(PowerLossFileSystem):
    """Says that names are durable, and does nothing."""

    def sync_directory(self, path: str) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize("kind", [LyingDisk, ForgetfulDirectories])
def test_a_disk_that_does_not_sync_is_found(
    parent: Path, machine: Machine, container: Container, kind: type[PowerLossFileSystem]
) -> None:
    found = 0
    for seed in range(10):
        random, work = Random(seed), parent / str(seed)
        config = power_config(random, container, 0)
        life = Life(work, config, random, kind(), History(container == "ledger"))
        life.live()
        life.lose_power()
        life.end()
        with contextlib.suppress(StopIteration):
            try:
                check_image(life, life.images[-1], machine, Counts())
            except (BrokenPromiseError, StoreError):
                found += 1
    assert found >= 3


# --- D4: some files are newer than others ---


def unsynced_life(parent: Path, container: Container) -> Life:
    """Records of which a few are durable, many dispatched durably, and the log not synced since."""
    config = crash_config(
        container=container, flush="async", flush_interval_ms=1_000_000, flush_least_pages=1 << 20
    )
    fs = PowerLossFileSystem()
    life = Life(parent, config, Random(4), fs, History(container == "ledger"))
    life._open()
    store = life.store
    assert store is not None
    for number in range(4):
        life._put(store, number)
    store.wait_durable(store.log.max_position)
    life._all_durable()
    number = 4
    while store.log.max_position < FILE - 3000:  # A roll would make the first file durable.
        life._put(store, number)
        number += 1
    store.maintain()
    assert store._mark.mark.dispatched_durable_position > store._mark.mark.durable_position > 0
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
    max_position, durable = life.store.log.max_position, life.store._flush.durable_position
    life.end()
    machine.boot()
    with open_store(str(image.root), life.config) as store:
        end = store.log.max_position
        assert end == (max_position if newer == "log" else durable)
        mark = store._mark.mark
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
    life._put(store, 100)  # Into the same file, or the old copy would be as good as the new one.
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
        life._all_durable()
        check_store(store, life.history)
