"""A life of a store, a fault in it, and what must hold: no promise is broken, no error is bare.

The faults are a kill, a power loss (both also in the recovery from one), and the failure of each
file-system call and of each step that has a failpoint, once each. A census of a life says how often
each point is passed; each case fails one pass.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.errors import CorruptionError, StoreError
from store.store import Store
from tests.store.crash_check import (
    FILE,
    BrokenPromiseError,
    History,
    check_derived,
    check_directory,
    check_store,
    crash_config,
    open_store,
    temporary_parent,
)
from tests.store.crash_life import (
    Container,
    Image,
    Life,
    Loss,
    Losses,
    Variant,
    census,
    go_on,
    lost_config,
    run_case,
)
from tests.store.power_loss import PowerLossFileSystem
from tests.two_processes import in_two_processes

REPOSITORY = Path(__file__).parents[2]
CONTAINERS = ("commit_log", "ledger")
LOSSES = ("kill", "power")
SEED_COUNT = 30  # Of each kind of loss and of store.
PASS_COUNT_MAX = 8  # Of each point: the first ones, and some of the later ones.
WRITING = ("fs.write", "fs.allocate")
SYNCING = ("fs.sync", "fs.sync_directory")
GROWING = (*WRITING, *SYNCING, "fs.make_directory", "fs.open", "fs.rename", "fs.set_size")
"""Calls that a full disk may refuse. Elsewhere ENOSPC is any error, as EIO is."""
CASE_COUNT_MIN = {"EIO": 100, "ENOSPC": 40, "short": 8}
NEVER_FAIL = ("mapped_file_queue.seal", "meta_file.after_rename")
"""Points beside what cannot fail, or ends the process: for kills only."""


@pytest.fixture
def parent() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-crash-", dir=temporary_parent()))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("container", CONTAINERS)
def test_what_was_promised_survives_any_loss(container: Container, loss: Loss) -> None:
    counts: Counter[str] = Counter()
    lives = in_two_processes("tests.store.crash_life", loss, container, cases=range(SEED_COUNT))
    for life in lives:
        counts.update(life)
    print(f"{container} {loss}: {counts}")
    points = {name.removeprefix("passed ") for name in counts if name.startswith("passed ")}
    assert len(points) > 25
    assert [point for point in sorted(points) if not counts[f"at {point}"]] == []
    assert counts["images"] > 4 * SEED_COUNT
    assert counts["nested"] > SEED_COUNT
    assert counts["records"] > 50 * counts["images"]
    assert min(counts["cut"], counts["rebuilt"]) > 0, "no image had anything to recover"
    if loss == "power":
        assert min(counts["dropped pages"], counts["dropped names"]) > 50, "nothing was lost"


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_process_that_is_killed_has_kept_what_it_acknowledged(
    parent: Path, container: Container
) -> None:
    """A real SIGKILL, at any byte: the page cache has what the process had written."""
    root, history = str(parent / "store"), History(container == "ledger")
    command = [sys.executable, "-m", "tests.store.crash_life", "write", container, root]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            number, positions, queue_offsets = json.loads(line)
            history.acknowledge(number, positions, queue_offsets)
            if number == 60:
                process.kill()
    assert process.returncode == -signal.SIGKILL
    history.attempted.update(range(number + 2))  # One more may have been on its way.
    assert number >= 60
    check_directory(root, crash_config(container=container), history)


def choose_passes(count: int, random: Random) -> list[int]:
    if count <= PASS_COUNT_MAX:
        return list(range(1, count + 1))
    half = PASS_COUNT_MAX // 2
    return [*range(1, half + 1), *sorted(random.sample(range(half + 1, count + 1), half))]


@pytest.mark.long
@pytest.mark.parametrize("action", ["EIO", "ENOSPC", "short"])
@pytest.mark.parametrize(
    ("container", "variant"),
    [("commit_log", "inline"), ("ledger", "inline"), ("commit_log", "pool"), ("ledger", "threads")],
)
def test_each_call_fails_once(
    parent: Path, container: Container, variant: Variant, action: str
) -> None:
    counts = census(parent / "census", container, variant)
    for name in NEVER_FAIL:
        counts.pop(name, None)
    random = Random(7)
    assert {"fs.sync", "fs.write", "fs.unlink", "fs.rename", *WRITING} <= counts.keys()
    named = {"EIO": counts.keys(), "ENOSPC": counts.keys() & set(GROWING), "short": WRITING}
    names = sorted(named[action])
    cases = [(name, nth) for name in names for nth in choose_passes(counts[name], random)]
    faults = [f"{name}={action}@{nth}" for name, nth in cases]
    lives = in_two_processes("tests.store.crash_life", container, variant, cases=faults)
    outcomes: Counter[str] = Counter()
    for (name, nth), (put_count, errors) in zip(cases, lives, strict=True):
        outcomes[", ".join(sorted(set(errors))) or "-"] += 1
        if name in SYNCING and variant == "inline":
            assert "SyncFailedError" in errors, f"{name}={action}@{nth}"
        if errors and variant == "inline" and nth == 1 and name != "identity.lock":
            assert put_count or name in SYNCING, f"{name}={action}: nothing goes on"
    print(f"{container} {variant} {action}: {len(cases)} cases, {dict(outcomes)}")
    assert len(cases) >= CASE_COUNT_MIN[action]


# --- D4: some files are newer than others ---


def unsynced_life(parent: Path, container: Container) -> Life:
    """Records of which a few are durable, many dispatched durably, and the log not synced since."""
    config = crash_config(
        container=container, flush="async", flush_interval_ms=1_000_000, flush_least_pages=1 << 20
    )
    life = Life(parent, config, Random(4))
    life.open()
    assert life.store is not None
    for _ in range(4):
        life.put()
    life.wait_durable()
    while life.store.log.max_position < FILE - 3000:  # A roll would make the first file durable.
        life.put()
    life.store.maintain()
    mark = life.store.engine.mark.mark
    assert mark.dispatched_durable_position > mark.durable_position > 0
    return life


@pytest.fixture
def power(parent: Path, monkeypatch: pytest.MonkeyPatch) -> Losses:
    return Losses("power", parent, monkeypatch)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    ("newer", "is_damaged"), [("everything else", False), ("everything else", True), ("log", False)]
)
def test_the_log_and_the_rest_are_of_different_age(
    parent: Path, power: Losses, container: Container, newer: str, is_damaged: bool
) -> None:
    """D4: a mark, queues and an index from after the log's end are lowered; older ones catch up.

    A lowered mark does not hide that a queue has lost its last units: they are built again.
    """
    life = unsynced_life(parent, container)
    image = Image(parent / "image", life.history.copy(), newer)

    def share(path: str) -> float:
        is_log = Path(path).parent.name in ("commitlog", "data")
        return float(is_log == (newer == "log"))

    life.fs.build_image(life.root, str(image.root), Random(0), share)
    assert life.store is not None
    end_position = {
        "log": life.store.log.max_position,
        "everything else": life.store.engine.flush_service.durable_position,
    }
    life.close()
    if is_damaged:
        for queue in sorted(image.root.glob("consumequeue/*/*")):
            max(queue.iterdir()).write_bytes(bytes(20 * UNIT_SIZE_BYTES))
    power.boot()
    with open_store(str(image.root), life.config) as store:
        assert store.recovery.derived_rebuilt == is_damaged
        end = store.log.max_position
        assert end == end_position[newer]
        mark = store.engine.mark.mark
        assert max(mark.dispatched_position, mark.durable_position) <= end
        check_store(store, image.history)
        check_derived(store, str(parent / "rebuilt"))
        go_on(store, image.history)
    check_directory(str(image.root), life.config, image.history)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_log_that_is_older_than_its_durable_mark_is_refused(
    parent: Path, power: Losses, container: Container
) -> None:
    """D9, D18: a log restored from an old copy beside marks that know better."""
    life = unsynced_life(parent, container)
    assert life.store is not None
    log = Path(life.store.log.files.files[-1].path)
    life.wait_durable()
    old = log.read_bytes()
    life.put()  # Into the same file, or the old copy would be as good as the new one.
    assert Path(life.store.log.files.files[-1].path) == log
    life.close()
    whole = log.read_bytes()
    log.write_bytes(old)
    power.boot()
    with pytest.raises(CorruptionError):
        open_store(life.root, life.config)
    assert log.read_bytes() == old, "evidence is kept"
    log.write_bytes(whole)
    check_directory(life.root, life.config, life.history)


# --- The test is tested ---


class LyingDisk(PowerLossFileSystem):
    """Says that file data are durable, and does nothing."""

    def sync(self, fd: int, path: str) -> None:
        pass


class ForgetfulDirectories(PowerLossFileSystem):
    """Says that names are durable, and does nothing."""

    def sync_directory(self, path: str) -> None:
        pass


class EarlyCommit(Life):
    """Takes what is in a write buffer as committed."""

    def kept_end_position(self, store: Store, loss: Loss) -> int:
        return store.log.files.wrote_position


@pytest.mark.parametrize(
    ("loss", "container", "disk", "kind"),
    [
        ("power", "commit_log", LyingDisk, Life),
        ("power", "ledger", LyingDisk, Life),
        ("power", "commit_log", ForgetfulDirectories, Life),
        pytest.param("power", "ledger", ForgetfulDirectories, Life, marks=pytest.mark.long),
        ("kill", "commit_log", PowerLossFileSystem, EarlyCommit),
        *((loss, c, PowerLossFileSystem, Life) for loss in LOSSES for c in CONTAINERS),
    ],
)
def test_a_store_that_promises_too_early_is_found_and_no_other(
    parent: Path,
    monkeypatch: pytest.MonkeyPatch,
    loss: Loss,
    container: Container,
    disk: type[PowerLossFileSystem],
    kind: type[Life],
) -> None:
    losses, loss_count = Losses(loss, parent, monkeypatch), 0
    for seed in range(10):
        random = Random(seed)
        life = kind(parent / str(seed), lost_config(random, container), random, disk())
        life.live()
        life.lose(loss)
        life.close()
        try:
            losses.check(life, life.images[-1])
        except (BrokenPromiseError, StoreError):
            loss_count += 1
    is_sound = (disk, kind) == (PowerLossFileSystem, Life)
    assert loss_count == 0 if is_sound else loss_count >= (2 if loss == "power" else 1)


@pytest.mark.parametrize("forge", ["foreign", "double", "hole", "moved"])
def test_the_checker_finds_what_must_not_be(parent: Path, forge: str) -> None:
    """A history that does not fit a good directory stands for a directory that lost or made up."""
    life = Life(parent, crash_config(retention_size_bytes=3 * FILE), Random(2))
    life.history.kept_size_bytes_min = FILE
    life.live()
    assert life.attempt(lambda store: store.delete_expired())
    life.close()
    history = life.history
    check_directory(life.root, life.config, history)
    if forge == "foreign":
        history.attempted.discard(max(n for n, _ in history.must))
    elif forge == "double":
        history.must[0, 99] = history.must[min(history.must)]
    elif forge == "hole":
        history.expired_next[next(iter(history.expired_next))] += 1
    else:
        record_id = max(history.must)
        place = history.must[record_id]
        history.must[record_id] = place._replace(queue_offset=place.queue_offset + 1)
    with pytest.raises(BrokenPromiseError):
        check_directory(life.root, life.config, history)


@pytest.mark.parametrize(
    ("broken", "behaviour", "fault", "message"),
    [
        (
            "files.file_system.FileSystem._translate",
            lambda *args: args[-1],
            "fs.allocate=ENOSPC@3",
            "bare error",
        ),
        (
            "durability.checkpoint.Checkpoint.close",
            lambda self: None,
            "fs.allocate=ENOSPC@3",
            "left open",
        ),
        (
            "engine.FirstCause.__call__",
            lambda self, cause: None,
            "fs.sync_directory=EIO@13",
            "was not fatal",
        ),
    ],
)
def test_a_store_that_hides_a_failure_is_found(
    parent: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    behaviour: object,
    fault: str,
    message: str,
) -> None:
    monkeypatch.setattr(f"store.{broken}", behaviour)
    with pytest.raises(BrokenPromiseError, match=message):
        run_case(parent, "commit_log", "inline", fault)
