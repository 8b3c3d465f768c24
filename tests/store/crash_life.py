"""Random lives of a store in which a call fails, the process is killed, or the power goes.

Owns the one life of all crash tests and the three faults that happen in it. A failure of a call or
a step is a failpoint. A kill leaves the directory as it is at a point, a power loss what was
durable there; both come at any point of a life or of the recovery from one, those first that none
of the lives before was at. What is left is opened, compared with what was promised, used further,
and opened again.

    python -m tests.store.crash_life kill ledger '[0, 1, 2]'
    python -m tests.store.crash_life commit_log inline '["fs.sync=EIO@3"]'

live once with each seed, or with each failpoint, and print the counts of each.

    python -m tests.store.crash_life write ledger DIRECTORY

writes until it is killed.
"""

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import pytest

from store import opening
from store.config import StoreConfig
from store.durability import identity
from store.errors import FileSystemError, Outcome, StoreError, StoreFullError, SyncFailedError
from store.files import failpoints
from store.files.spare_descriptors import SPARE
from store.store import Store
from tests.store.crash_check import (
    FILE,
    RETAINED_FILE_COUNT,
    BrokenPromiseError,
    History,
    Place,
    check_derived,
    check_directory,
    check_store,
    crash_config,
    encode,
    identify,
    open_store,
    temporary_parent,
)
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import messages

Container = Literal["commit_log", "ledger"]
Variant = Literal["inline", "threads", "pool"]
Loss = Literal["kill", "power"]

OPERATION_COUNT = 70
IMAGE_COUNT_MAX = 5  # Of a life, beside those at points that had none.
DAMAGE_SHARE = 0.2  # Of the images, for another loss in a rebuild.
FAULT_SEED = 1
PASSES_PER_IMAGE = 300  # One pass in so many is a loss, and each point that has had none.
# Between a roll and its entry nothing can fail, and the ledger relies on that: a failure there ends
# the process. The point is for kills.
INFALLIBLE = "ledger.before_append"


class Batch(NamedTuple):
    """Where a batch is, as the store said."""

    end_position: int
    positions: list[int]
    queue_offsets: list[int]


def lost_config(random: Random, container: Container) -> StoreConfig:
    """The flush thread acts only when it is asked: what is durable follows from the seed."""
    mode = random.choice(["sync", "async", "async", "pool"])
    return crash_config(
        container=container,
        flush="sync" if mode == "sync" else "async",
        transient_pool=mode == "pool" and container == "commit_log",
        transient_pool_size=2,
        flush_interval_ms=1_000_000,
        commit_interval_ms=1_000_000,
        durable_mark_interval_ms=random.choice([0, 1000]),
        retention_size_bytes=RETAINED_FILE_COUNT * FILE,
        preallocate_file_count=random.choice([0, 0, 2]),
        warm_up=random.random() < 0.5,
    )


def fault_config(container: Container, variant: Variant) -> StoreConfig:
    """Nothing happens by a timer, so that the n-th pass is the same one each time.

    With threads it is not: there a case hits something else each time.
    """
    return crash_config(
        container=container,
        flush="async" if variant == "pool" else "sync",
        transient_pool=variant == "pool",
        transient_pool_size=2,
        flush_interval_ms=1 if variant == "pool" else 1_000_000,
        commit_interval_ms=1 if variant == "pool" else 1_000_000,
        commit_least_pages=0,
        durable_mark_interval_ms=0,
        derived_flush_interval_ms=1,
        retention_size_bytes=3 * FILE,
        retention_interval_ms=0,
        preallocate_file_count=0 if variant == "inline" else 2,
        warm_up=variant != "inline",
    )


@dataclass
class Image:
    """What a loss left of a directory, and what had been promised until then."""

    root: Path
    history: History
    point: str


@dataclass
class Life:
    """A random life of one store; after errors that are not final it goes on."""

    parent: Path
    config: StoreConfig
    random: Random
    fs: PowerLossFileSystem = field(default_factory=PowerLossFileSystem)
    fault: str = ""
    """The failpoint that is armed. Without one, each error ends the life."""
    maintain: bool = False
    images: list[Image] = field(default_factory=list)
    waiting: dict[int, Batch] = field(default_factory=dict)
    """Batches that are acknowledged, and may not be durable or not be committed yet."""
    doubtful: dict[int, int] = field(default_factory=dict)
    """Batches whose put failed with an unknown outcome, and from where on they may be."""
    store: Store | None = None
    errors: list[BaseException] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)
    number: int = 0
    put_after_error_count: int = 0

    def __post_init__(self) -> None:
        self.history = History(self.config.container == "ledger")

    @property
    def root(self) -> str:
        return str(self.parent / "run")

    def live(self) -> None:
        """Work, close and reopen; the last store is left open."""
        self.open()
        for _ in range(OPERATION_COUNT):
            match self.random.choices("pwmdrc", [60, 8, 8, 4, 8, 3])[0]:
                case "p":
                    self.put()
                case "w":
                    self.wait_durable()
                case "m":
                    self.attempt(lambda store: store.maintain())
                case "d":
                    self.attempt(lambda store: store.delete_expired())
                case "r":
                    self.attempt(lambda store: store.queues())
                    self.attempt(lambda store: store.messages_by_key("orders", "k1-0"))
                case "c":
                    self.close()
                    self.open()

    def open(self) -> None:
        """Open, again if need be: what failed once does not fail twice."""
        for _ in range(3):
            try:
                self.store = Store.open(
                    self.root,
                    self.config,
                    fs=self.fs,
                    maintain=self.maintain,
                    on_fatal=self.fatal.append,
                )
            except (StoreError, OSError) as error:
                self.note(error)
                continue
            self.attempt(self.settle)
            self.doubtful.clear()
            return
        raise BrokenPromiseError(f"three openings failed: {self.errors}")

    def attempt(self, call: Callable[[Store], object]) -> bool:
        """Do one thing unless the process would be gone; return whether it worked."""
        if self.store is None or self.fatal:
            return False
        try:
            call(self.store)
        except (StoreError, OSError) as error:
            self.note(error)
            if isinstance(error, SyncFailedError) and not self.fatal:
                raise BrokenPromiseError("a failed sync was not fatal") from error
            return False
        except BrokenPromiseError:
            raise
        except AssertionError:
            if not (self.fault.startswith(INFALLIBLE) and self.fatal):
                raise
            return False
        return True

    def note(self, error: StoreError | OSError) -> None:
        """Only errors by name may come out; a failing step that is no call fails as it is told."""
        is_step = "failpoint" in str(error) and "failpoint fs." not in str(error)
        if isinstance(error, OSError) and not is_step:
            raise BrokenPromiseError(f"a bare error came out: {error!r}") from error
        if not self.fault:
            raise error
        self.errors.append(error)

    def put(self) -> None:
        number, self.number = self.number, self.number + 1
        self.history.attempted.add(number)
        error_count = len(self.errors)
        lo = self.store.log.files.wrote_position if self.store else 0

        def put(store: Store) -> None:
            result = store.put(encode(number))
            self.waiting[number] = Batch(
                result.end_position, result.record_positions, result.queue_offsets
            )
            if self.config.flush == "sync":
                self.keep_promises()

        if self.attempt(put):
            self.put_after_error_count += error_count > 0
            if self.fatal and not self.config.warm_up:
                raise BrokenPromiseError(f"an acknowledgement after {self.fatal}")
        elif len(self.errors) > error_count:
            error = self.errors[-1]
            if isinstance(error, StoreError) and error.outcome is Outcome.NOT_APPLIED:
                self.history.attempted.discard(number)
            else:
                self.doubtful[number] = lo
                self.attempt(self.settle)

    def settle(self, store: Store) -> None:
        """Find out which batches of unknown outcome are there; retention would hide it later."""
        lo = min(self.doubtful.values(), default=store.log.max_position)
        for _, data in store.log.record_runs(lo, store.log.max_position):
            for message in messages(data):
                number, i = identify(message)
                if number in self.doubtful:
                    place = Place(message.position, message.queue_offset)
                    self.history.must[number, i] = place

    def wait_durable(self) -> None:
        if self.attempt(lambda store: store.wait_durable(store.log.files.wrote_position)):
            self.keep_promises()
            self.attempt(self.settle)

    def keep_promises(self) -> None:
        """From now on all that is waiting has to be there."""
        for number, batch in self.waiting.items():
            self.history.acknowledge(number, batch.positions, batch.queue_offsets)
        self.waiting = {}

    def close(self) -> None:
        store, was_fatal = self.store, bool(self.fatal)
        assert store is not None
        try:
            store.close()
            if was_fatal:
                raise BrokenPromiseError(f"a clean close after {self.fatal}")
            self.keep_promises()
        except (StoreError, OSError) as error:
            self.note(error)
        self.store = None
        # What was in a write buffer may have been committed, or not.
        self.doubtful.update({n: batch.positions[0] for n, batch in self.waiting.items()})
        self.waiting = {}
        self.check_fatal()

    def check_fatal(self) -> None:
        """The owner is told once, and of a sync or of what the failing step raised."""
        if len(self.fatal) > 1:
            raise BrokenPromiseError(f"told {len(self.fatal)} times: {self.fatal}")
        for cause in self.fatal:
            is_step = isinstance(cause, OSError) and "failpoint fs." not in str(cause)
            is_step |= self.fault.startswith(INFALLIBLE) and isinstance(cause, AssertionError)
            # A mark would fall behind what was promised, a write buffer what was acknowledged.
            is_write = isinstance(cause, FileSystemError | StoreFullError) and (
                self.config.transient_pool or os.path.basename(cause.path) == "marks"
            )
            if not (isinstance(cause, SyncFailedError) or is_step or is_write):
                raise BrokenPromiseError(f"the process ends because of {cause!r}") from cause
        self.fatal.clear()

    def abandon(self) -> None:
        """End the threads of a store that broke a promise."""
        if self.store is not None:
            with contextlib.suppress(StoreError, OSError):
                self.store.close()

    # --- Losses ---

    def lose(self, loss: Loss, point: str = "the end") -> None:
        """Keep what a kill or a power loss would leave now."""
        history = self.history.copy()
        if self.store is not None:
            end = self.kept_end_position(self.store, loss)
            for number, batch in self.waiting.items():
                if batch.end_position <= end:
                    history.acknowledge(number, batch.positions, batch.queue_offsets)
        image = self.parent / f"image{len(self.images)}"
        self.images.append(Image(image, history, point))
        build_image(self.fs, self.root, image, loss, self.random)
        # On the warm-up thread, appends go on meanwhile.
        history.attempted |= self.history.attempted

    def kept_end_position(self, store: Store, loss: Loss) -> int:
        """Return the end of what must survive: a kill takes what is in write buffers."""
        if loss == "kill":
            return store.log.files.max_position
        return store.engine.flush_service.durable_position


def build_image(
    fs: PowerLossFileSystem, root: str, image: Path, loss: Loss, random: Random
) -> None:
    """Write into a new directory what a loss now leaves of `root`."""
    if loss == "power":
        fs.build_image(root, str(image), Random(random.random()))
    else:
        fs.copy(root, str(image))


class Losses:
    """All losses of one kind in the lives of one process, and what they hit."""

    def __init__(self, loss: Loss, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.loss, self.counts = loss, Counter[str]()
        self._kernel_boot_id, self._boot_count = directory / "kernel_boot_id", 0
        self._patch = patch
        patch.setattr(identity, "_KERNEL_BOOT_ID", str(self._kernel_boot_id))
        patch.setattr(opening, "is_in_memory", lambda root: False)
        self.boot()

    def boot(self) -> None:
        """Draw the boot id anew; a process that is killed starts under the same one."""
        if self.loss == "power" or not self._boot_count:
            self._boot_count += 1
            self._kernel_boot_id.write_text(f"boot-{self._boot_count}\n")

    def live(self, life: Life) -> None:
        """Live, with a loss now and then, and one at the end."""

        def lose(point: str) -> bool:
            is_due = len(life.images) < IMAGE_COUNT_MAX or not self.counts[f"at {point}"]
            if is_due and Path(life.root).exists():
                life.lose(self.loss, point)
                return True
            return False

        if life.config.flush == "async":
            life.history.kept_size_bytes_min = 0
        try:
            with self.at_points(life.random, lose):
                life.live()
            life.lose(self.loss)
            life.check_fatal()
        finally:
            life.abandon()

    @contextlib.contextmanager
    def at_points(self, random: Random, lose: Callable[[str], bool]) -> Iterator[None]:
        """Have `lose` called at points that are passed meanwhile; it returns whether it did."""

        def hit(point: str) -> None:
            self.counts[f"passed {point}"] += 1
            is_due = not self.counts[f"at {point}"] or random.random() < 1 / PASSES_PER_IMAGE
            self.counts[f"at {point}"] += is_due and lose(point)

        with self._patch.context() as patch:
            patch.setattr(failpoints, "_hit_slowly", hit)
            patch.setattr(failpoints, "is_on", True)
            yield

    def check(self, life: Life, image: Image) -> None:
        """Open what a loss left, in the middle of which the next may come, and use it."""
        self.boot()
        fs, random = PowerLossFileSystem(), life.random
        if random.random() < DAMAGE_SHARE:
            damage_derived(image.root, random)
        fs.adopt(str(image.root))
        again, history = Path(f"{image.root}-again"), image.history.copy()

        def lose(point: str) -> bool:
            if again.exists():
                return False
            build_image(fs, str(image.root), again, self.loss, random)
            # On the warm-up thread, the batch of `go_on` may be put meanwhile.
            history.attempted.update(image.history.attempted)
            return True

        with contextlib.ExitStack() as stack:
            with self.at_points(random, lose):
                store = stack.enter_context(open_store(str(image.root), life.config, fs))
            self.counts["records"] += check_store(store, image.history)
            check_derived(store, f"{image.root}-rebuilt")
            self.counts["cut"] += store.recovery.cut_size_bytes > 0
            self.counts["rebuilt"] += store.recovery.derived_rebuilt
            go_on(store, image.history)
        with open_store(str(image.root), life.config) as store:
            assert store.recovery.was_clean
            check_store(store, image.history)
            check_derived(store, f"{image.root}-rebuilt")
        self.counts["images"] += 1
        if again.exists():
            self.boot()
            with open_store(str(again), life.config) as store:
                check_store(store, history)
                check_derived(store, f"{again}-rebuilt")
                go_on(store, history)
                check_store(store, history)
            self.counts["nested"] += 1


def damage_derived(root: Path, random: Random) -> None:
    """Make the next opening rebuild queues and index.

    Not by a queue whose records have all expired: nothing else knows its offsets.
    """
    files = [path for path in root.glob("consumequeue/[aor]*/*/*") if path.is_file()]
    if files:  # Else the loss came before the first dispatch.
        path = random.choice(sorted(files))
        path.write_bytes(b"\xa5" * path.stat().st_size)


def go_on(store: Store, history: History) -> None:
    """Put one more batch: offsets and positions go on where the records end."""
    number = history.next_number()
    history.attempted.add(number)
    result = store.put(encode(number))
    store.wait_durable(result.end_position)  # Else it may be in a write buffer.
    history.acknowledge(number, result.record_positions, result.queue_offsets)


def lives_with_losses(loss: Loss, container: Container, seeds: list[int]) -> list[Counter[str]]:
    """Live once with each seed, and look at all that the losses left; return the counts."""
    counts_by_seed = []
    with (
        tempfile.TemporaryDirectory(prefix="quorumlog-loss-", dir=temporary_parent()) as parent,
        pytest.MonkeyPatch.context() as patch,
    ):
        losses = Losses(loss, Path(parent), patch)
        for seed in seeds:
            work, random, before = Path(parent) / str(seed), Random(seed), losses.counts.copy()
            life = Life(work, lost_config(random, container), random)
            losses.live(life)
            for image in life.images:
                try:
                    losses.check(life, image)
                except (AssertionError, StoreError) as error:
                    error.add_note(f"seed {seed}, {loss} at {image.point!r}, {life.config}")
                    raise
            losses.counts["dropped pages"] += life.fs.dropped_page_count
            losses.counts["dropped names"] += life.fs.dropped_name_count
            shutil.rmtree(work)
            counts_by_seed.append(losses.counts - before)
    return counts_by_seed


# --- Failing calls and steps ---


def fault_life(parent: Path, container: Container, variant: Variant, fault: str = "") -> Life:
    """A life that is the same one each time, as far as its variant has no threads."""
    life = Life(
        parent,
        fault_config(container, variant),
        Random(FAULT_SEED),
        fault=fault,
        maintain=variant != "inline",
    )
    life.history.kept_size_bytes_min = FILE
    return life


def run_case(parent: Path, container: Container, variant: Variant, fault: str) -> Life:
    """Live with one fault; check the directory and what is left in the process."""
    life = fault_life(parent, container, variant, fault)
    SPARE.fill()  # Else they are opened with the first directory that is synced.
    before = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    failpoints.arm(fault)
    try:
        life.live()
        life.close()
    except BaseException:
        life.abandon()
        raise
    finally:
        failpoints.disarm_all()
    check_directory(life.root, life.config, life.history)
    after = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    if after != before:
        raise BrokenPromiseError(f"left open: {before} became {after}")
    return life


def census(parent: Path, container: Container, variant: Variant) -> dict[str, int]:
    """Count the passes of a whole life that goes well."""
    life = fault_life(parent, container, variant)
    with failpoints.census() as counts:
        life.live()
        life.close()
    assert life.history.must, "nothing was acknowledged"
    return counts


def lives_with_faults(
    container: Container, variant: Variant, faults: list[str]
) -> list[tuple[int, list[str]]]:
    """Live once with each fault; return how often a put succeeded after an error, and the names of
    all errors."""
    outcomes = []
    for fault in faults:
        with tempfile.TemporaryDirectory(prefix="quorumlog-fault-", dir=temporary_parent()) as root:
            try:
                life = run_case(Path(root), container, variant, fault)
            except BaseException as error:
                error.add_note(f"with {fault}, {container}, {variant}")
                raise
        outcomes.append((life.put_after_error_count, [type(e).__name__ for e in life.errors]))
    return outcomes


# --- A process of its own ---


def write(container: Container, root: str) -> None:
    """Put batches for ever, and print where each one is once it is acknowledged."""
    with open_store(root, crash_config(container=container, preallocate_file_count=2)) as store:
        for number in itertools.count():
            result = store.put(encode(number))
            print(json.dumps([number, result.record_positions, result.queue_offsets]), flush=True)
            if number % 10 == 0:
                store.maintain()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])  # type: ignore[arg-type]
    arguments: list[Any] = [*sys.argv[1:3], json.loads(sys.argv[3])]
    live = lives_with_losses if arguments[0] in ("kill", "power") else lives_with_faults
    print(json.dumps(live(*arguments)))
