"""Random lives of a store that lose power at any call that changes a file, also in a recovery.

Histories, moments and images follow from the seed. Every image is opened under another boot id,
compared with what was durable at that moment, used further, and opened again.

    python -m tests.store.power_lives ledger 1000 '[0, 1, 2]'

does all of that with three seeds and an interval of the durable mark; prints the counts of each.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from store import opening
from store.config import StoreConfig
from store.durability import identity
from store.errors import StoreError
from store.store import Store
from tests.store.crash_check import (
    FILE,
    RETAINED_FILE_COUNT,
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
            durable = self.store.engine.flush_service.durable_position
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
        self.reopen()
        for _ in range(OPERATION_COUNT):
            store = self.store
            assert store is not None
            match self.random.choices("pwmdrc", [60, 8, 8, 4, 8, 3])[0]:
                case "p":
                    self.put(store, number)
                    number += 1
                case "w":
                    if self.waiting:
                        store.wait_durable(max(end for end, _, _ in self.waiting.values()))
                        self.note_all_durable()
                case "m":
                    store.maintain()
                case "d":
                    store.delete_expired()
                case "r":
                    store.queues()
                case "c":
                    store.close()
                    self.note_all_durable()
                    self.store = None
                    self.reopen()

    def reopen(self) -> None:
        self.store = open_store(self.root, self.config, self.fs)

    def put(self, store: Store, number: int) -> None:
        self.history.attempted.add(number)
        result = store.put(encode(number))
        where = result.end_position, result.record_positions, result.queue_offsets
        if self.config.flush == "sync":
            self.history.acknowledge(number, *where[1:])
        else:
            self.waiting[number] = where

    def note_all_durable(self) -> None:
        for number, (_, positions, offsets) in self.waiting.items():
            self.history.acknowledge(number, positions, offsets)
        self.waiting = {}

    def end(self) -> None:
        """Let go of the store whose power is gone."""
        self.fs.before_call = lambda name: None
        if self.store is not None:
            self.store.close()


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


def check_image(life: Life, image: Image, machine: Machine, counts: Counter[str]) -> None:
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
        counts["records"] += check_store(store, image.history)
        check_derived(store, f"{image.root}-rebuilt")
        counts["cut"] += store.recovery.cut_size_bytes > 0
        counts["rebuilt"] += store.recovery.derived_rebuilt
        go_on(store, image.history)
    with open_store(str(image.root), life.config) as store:
        assert store.recovery.was_clean
        check_store(store, image.history)
        check_derived(store, f"{image.root}-rebuilt")
    counts["images"] += 1
    counts[f"before {image.call}"] += 1
    if second.exists():
        machine.boot()
        with open_store(str(second), life.config) as store:
            check_store(store, nested)
            check_derived(store, f"{second}-rebuilt")
            go_on(store, nested)
            check_store(store, nested)
        counts["nested"] += 1


def go_on(store: Store, history: History) -> None:
    """Put one more batch: offsets and positions go on where the records end."""
    number = history.next_number()
    history.attempted.add(number)
    result = store.put(encode(number))
    history.acknowledge(number, result.record_positions, result.queue_offsets)


def main(container: Container, mark_interval_ms: int, seeds: list[int]) -> list[Counter[str]]:
    """Live once with each seed, and look at all that the power losses left; return the counts."""
    counts_by_seed = []
    with (
        tempfile.TemporaryDirectory(prefix="quorumlog-power-", dir=temporary_parent()) as parent,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(identity, "_KERNEL_BOOT_ID", f"{parent}/kernel_boot_id")
        patch.setattr(opening, "is_in_memory", lambda root: False)
        machine = Machine(Path(parent) / "kernel_boot_id")
        for seed in seeds:
            work, counts = Path(parent) / str(seed), Counter[str]()
            life = live_and_lose_power(work, seed, container, mark_interval_ms)
            for image in life.images:
                try:
                    check_image(life, image, machine, counts)
                except (AssertionError, StoreError) as error:
                    error.add_note(f"seed {seed}, power lost before {image.call!r}")
                    raise
            counts["dropped pages"] += life.fs.dropped_page_count
            counts["dropped names"] += life.fs.dropped_name_count
            shutil.rmtree(work)
            counts_by_seed.append(counts)
    return counts_by_seed


if __name__ == "__main__":
    given = json.loads(sys.argv[3])
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), given)))  # type: ignore[arg-type]
