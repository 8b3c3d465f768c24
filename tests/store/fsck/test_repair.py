"""A repair does what its plan says, loses what that says and no more, and can be repeated."""

import shutil
from pathlib import Path
from random import Random

import pytest

from store.config import StoreConfig
from store.errors import FileSystemError, LockedError, StoreFullError, SyncFailedError
from store.files import failpoints
from store.fsck.plan import loses, plan
from store.fsck.repair import apply
from store.fsck.types import (
    Action,
    ActionKind,
    LossRefusedError,
    LostQueue,
    Severity,
    StalePlanError,
)
from tests.store.fsck_stores import (
    Clock,
    contents,
    crashed_with_tail,
    damage_record,
    files_of,
    fill,
    findings,
    flip,
    fsck_config,
    given_sizes,
    log_files,
    open_store,
    tree,
)
from tests.store.records import PAGE

ALL = {
    "topic0": [n for n in range(60) if n // 2 % 2 == 0],
    "topic1": [n for n in range(60) if n // 2 % 2 == 1],
}


def make_plan(root: Path, config: StoreConfig) -> list[Action]:
    given = given_sizes(config)
    return plan(str(root), findings(root, given), given=given)


def repair(root: Path, config: StoreConfig) -> list[Action]:
    """Plan and apply; afterwards nothing is wrong."""
    actions = make_plan(root, config)
    apply(str(root), actions, accept_loss=True)
    left = [f for f in findings(root, given_sizes(config)) if f.severity is not Severity.UNKNOWN]
    assert left == [], [str(a) for a in actions]
    return actions


def kinds(actions: list[Action]) -> list[ActionKind]:
    return [action.kind for action in actions]


# --- Nothing is lost ---


def test_a_good_store_needs_nothing(root: Path, config: StoreConfig) -> None:
    assert make_plan(root, config) == []
    before = tree(root)
    apply(str(root), [])
    assert tree(root) == before


@pytest.mark.parametrize(
    "name",
    [
        "consumequeue/topic0/0/00000000000000000160",
        "consumequeue/topic1/0/00000000000000000000",
        "index",
        "ledger index",
        "checkpoint",
        "marks",
    ],
)
def test_derived_files_are_built_anew(root: Path, config: StoreConfig, name: str) -> None:
    if name == "ledger index" and config.container == "commit_log":
        return
    if name == "index":
        name = next(n for n in files_of(root) if n.startswith("index/"))
    elif name == "ledger index":
        name = "dledger-n0/index/00000000000000000000"
    good = (root / name).read_bytes()
    (root / name).write_bytes(b"\xff" * 100 + good[100:])
    actions = repair(root, config)
    assert loses(actions) is None
    assert ActionKind.CUT_LOG not in kinds(actions)
    if name.startswith(("consumequeue", "dledger")):
        assert (root / name).read_bytes() == good
    if name != "marks":
        kept = [p for p in (root / "damaged").iterdir() if name.replace("/", "_") in p.name]
        assert kept[0].read_bytes().startswith(b"\xff" * 100)
    assert contents(root, config) == ALL


def test_lost_marks_are_made_anew_after_a_full_check(root: Path, config: StoreConfig) -> None:
    (root / "marks").unlink()
    assert [(f.path, f.field, f.severity) for f in findings(root)] == [
        ("marks", "file", Severity.REPAIRABLE)
    ]
    assert kinds(repair(root, config)) == [ActionKind.RECREATE_MARKS]
    assert contents(root, config) == ALL


def test_left_overs_go_and_strange_files_stay(root: Path, config: StoreConfig) -> None:
    log = Path(log_files(root)[0]).parent
    (root / log / "00000000000000999424.allocating").write_bytes(b"x")
    (root / "notes.txt").write_bytes(b"mine")
    assert kinds(repair(root, config)) == [ActionKind.REMOVE]
    assert not list((root / log).glob("*.allocating"))
    assert (root / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("extra", [-40, 17])
def test_a_log_file_gets_its_size_back(root: Path, config: StoreConfig, extra: int) -> None:
    last = root / log_files(root)[-1]
    good = last.read_bytes()
    last.write_bytes(good[:extra] if extra < 0 else good + b"z" * extra)
    assert kinds(repair(root, config)) == [ActionKind.REWRITE_FILE]
    assert last.read_bytes() == good
    if extra > 0:
        assert [p.read_bytes() for p in (root / "damaged").iterdir()] == [b"z" * extra]
    assert contents(root, config) == ALL


def test_a_damaged_blank_is_written_again(root: Path, config: StoreConfig) -> None:
    first = root / log_files(root)[0]
    good = first.read_bytes()
    magic = b"\xff\xff\xff\xff" if config.container == "ledger" else b"\xcb\xd4\x31\x94"
    at = good.rindex(magic) + (4 if config.container == "ledger" else -4)
    flip(first, at * 8 + 3)
    assert [(f.path, f.at, f.field, f.severity) for f in findings(root)] == [
        (log_files(root)[0], at, "blank size", Severity.REPAIRABLE)
    ]
    assert kinds(repair(root, config)) == [ActionKind.REWRITE_FILE]
    assert first.read_bytes() == good
    assert contents(root, config) == ALL


def test_a_torn_tail_is_cut_without_a_loss(tmp_path: Path, config: StoreConfig) -> None:
    root, durable, end = crashed_with_tail(tmp_path, config)
    assert durable < (root / log_files(root)[0]).read_bytes().index(b"%08d" % 20) < end
    damage_record(root, 20)
    actions = make_plan(root, config)
    assert loses(actions) is None
    apply(str(root), actions)
    assert findings(root, given_sizes(config)) == []
    assert (root / "abort").exists(), "a repair is no clean end of the last run"
    with open_store(root, config) as store:
        assert store.log.max_position == durable
        assert not store.recovery.was_clean


def test_a_damaged_start_is_proven_by_the_first_entry(tmp_path: Path) -> None:
    config, clock = fsck_config("ledger"), Clock()
    with open_store(tmp_path, config, clock) as store:
        fill(store, clock, 0, 120)
        for _ in range(2):
            store.maintain()
            store.log.delete_first()
        store.engine.queues.correct_min_offsets(store.log.min_position)
    good = contents(tmp_path, config)
    for parity in (0, 1):
        copy = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"copy{parity}")))
        flip(copy / "dledger-n0" / f"start.{parity}", 8 * 60)
        if parity == 1:  # The newer one: the start that is left is of a file that is gone.
            assert kinds(make_plan(copy, config)) == [ActionKind.REFETCH]
        else:
            assert kinds(repair(copy, config)) == [ActionKind.RECREATE_START]
            assert contents(copy, config) == good


def test_a_lost_start_cannot_be_repaired_here(tmp_path: Path) -> None:
    config, clock = fsck_config("ledger"), Clock()
    with open_store(tmp_path, config, clock) as store:
        fill(store, clock, 0, 120)
        store.maintain()
        store.log.delete_first()
    for path in (tmp_path / "dledger-n0").glob("start.*"):
        path.write_bytes(b"nothing")
    before = tree(tmp_path)
    actions = make_plan(tmp_path, config)
    assert kinds(actions) == [ActionKind.REFETCH]
    apply(str(tmp_path), actions, accept_loss=True)
    assert tree(tmp_path) == before


# --- Something is lost ---


def test_damage_needs_consent_and_loses_what_the_plan_says(root: Path, config: StoreConfig) -> None:
    name = damage_record(root, 22)  # The 12th of topic1, and with the 13th one batch.
    before = tree(root)
    actions = make_plan(root, config)
    loss = loses(actions)
    assert loss is not None
    with pytest.raises(LossRefusedError) as refused:
        apply(str(root), actions)
    assert refused.value.lo_position == loss.lo_position
    assert tree(root) == before
    apply(str(root), actions, accept_loss=True)
    assert findings(root, given_sizes(config)) == []
    assert loss.queues == (LostQueue("topic0", 0, 12, 30), LostQueue("topic1", 0, 10, 30))
    readable = 37 if config.container == "commit_log" else 36
    assert loss.record_count == readable
    if config.container == "ledger":
        assert (loss.lo_index, loss.hi_index) == (11, 30)
    else:
        assert (loss.lo_index, loss.hi_index) == (-1, -1)
    kept = {topic: numbers[: 12 if topic == "topic0" else 10] for topic, numbers in ALL.items()}
    assert contents(root, config) == kept
    # Every byte that went is in damaged/, by file and position.
    log = [file for file in before if file.startswith(("commitlog/", "dledger-n0/data/"))]
    for file in log:
        lo = max(loss.lo_position, int(Path(file).name))
        if lo < int(Path(file).name) + PAGE:
            aside = root / "damaged" / f"{file.replace('/', '_')}-{lo}"
            assert aside.read_bytes() == before[file][lo - int(Path(file).name) :]
    assert name in log


def test_a_missing_file_cuts_the_log_before_it(root: Path, config: StoreConfig) -> None:
    (root / log_files(root)[1]).unlink()
    actions = repair(root, config)
    loss = loses(actions)
    assert loss is not None
    assert len(log_files(root)) <= 1
    kept = contents(root, config)
    for queue in loss.queues:
        assert kept[queue.topic] == ALL[queue.topic][: queue.lo_offset]
        assert queue.hi_offset == 30


def test_new_appends_go_on_after_a_cut(root: Path, config: StoreConfig) -> None:
    damage_record(root, 22)
    repair(root, config)
    clock = Clock()
    clock.unix_ms += 100_000
    with open_store(root, config, clock) as store:
        fill(store, clock, 60, 80)
    assert findings(root, given_sizes(config)) == []
    assert len(contents(root, config)["topic0"]) == 12 + 10


def test_a_plan_for_other_bytes_is_refused(root: Path, config: StoreConfig) -> None:
    name = damage_record(root, 22)
    actions = make_plan(root, config)
    position = next(a.position for a in actions if a.kind is ActionKind.CUT_LOG)
    flip(root / name, (position % PAGE + 100) * 8)
    before = tree(root)
    with pytest.raises(StalePlanError, match="verify again"):
        apply(str(root), actions, accept_loss=True)
    assert tree(root) == before


def test_a_directory_in_use_is_not_repaired(root: Path, config: StoreConfig) -> None:
    damage_record(root, 22)
    actions = make_plan(root, config)
    other = root.with_name("other")
    with open_store(other, config), pytest.raises(LockedError):
        apply(str(other), actions, accept_loss=True)
    assert not (other / "damaged").exists()


# --- Repeating ---


def many_faults(root: Path) -> None:
    """One fault of each part at once."""
    damage_record(root, 40)
    (root / "checkpoint").write_bytes(b"\xff" * 4096)
    flip(root / "consumequeue/topic0/0/00000000000000000000", 8 * 30)
    flip(root / next(n for n in files_of(root) if n.startswith("index/")), 8 * 50)
    flip(root / "marks", 8 * 20)
    (root / "checkpoint.allocating").write_bytes(b"x")
    if (root / "dledger-n0").exists():
        flip(root / "dledger-n0/index/00000000000000000000", 8 * 40)


@pytest.mark.parametrize("tries", [3, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.parametrize("point", ["fs.rename", "fs.unlink", "fs.write", "fs.sync", "fs.open"])
def test_a_repair_that_breaks_off_can_be_repeated(
    root: Path, config: StoreConfig, tmp_path: Path, point: str, tries: int
) -> None:
    """After each failing call: the same plan again gives what one run without it gives."""
    many_faults(root)
    actions = make_plan(root, config)
    assert len(actions) >= 6
    whole = Path(shutil.copytree(root, tmp_path / "whole"))
    with failpoints.census() as passes:
        apply(str(whole), actions, accept_loss=True)
    once = tree(whole)
    apply(str(whole), actions, accept_loss=True)
    assert tree(whole) == once, "twice is once"
    assert make_plan(whole, config) == []
    wanted = without_evidence(once)
    count = passes[point]
    assert count > 5
    for nth in range(1, count + 1, max(1, count // tries)):
        copy = Path(shutil.copytree(root, tmp_path / f"{nth}"))
        with failpoints.armed(f"{point}=EIO@{nth}"):
            try:
                apply(str(copy), actions, accept_loss=True)
            except (FileSystemError, SyncFailedError, StoreFullError):
                pass
        apply(str(copy), actions, accept_loss=True)
        assert without_evidence(tree(copy)) == wanted, f"{point} number {nth}"
        evidence = {k for k in tree(whole) if k.startswith("damaged/")}
        assert evidence <= set(tree(copy))
        shutil.rmtree(copy)
    assert contents(whole, config)


def without_evidence(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.startswith("damaged/")}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))]
)
def test_any_damage_is_repaired_to_a_prefix(
    made: dict[str, Path], config: StoreConfig, tmp_path: Path, seed: int
) -> None:
    """Whatever is done to one or two files: clean afterwards, and what is left is a prefix."""
    random = Random(seed * 1000 + len(config.container))
    prefix_count = whole_count = 0
    for number in range(25):
        root = Path(shutil.copytree(made[config.container], tmp_path / f"{number}"))
        for _ in range(random.choice([1, 2])):
            spoil(root, random)
        actions = make_plan(root, config)
        loss = loses(actions)
        apply(str(root), actions, accept_loss=True)
        left = findings(root, given_sizes(config))
        assert [f for f in left if f.severity is not Severity.UNKNOWN] == [], (number, left)
        kept = contents(root, config)
        for topic, numbers in ALL.items():
            if kept[topic] and kept[topic][0] == numbers[0]:
                assert kept[topic] == numbers[: len(kept[topic])], number
                prefix_count += 1
            if loss is None and ActionKind.CUT_LOG not in kinds(actions):
                # What a missing first file of a plain log takes away looks like retention.
                assert kept[topic] in (numbers, numbers[-len(kept[topic]) :], []), number
                whole_count += 1
        shutil.rmtree(root)
    assert min(prefix_count, whole_count) >= 10, "most damage leaves something to compare"


def spoil(root: Path, random: Random) -> None:
    """Do something to one file, or exchange two."""
    names = files_of(root)
    path = root / random.choice(names)
    data = path.read_bytes()
    at = random.randrange(len(data) + 1)
    match random.randrange(7):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(data[:at])
        case 2:
            path.write_bytes(data[:at] + random.randbytes(len(data) - at))
        case 3:
            path.write_bytes(data[:at] + bytes(min(100, len(data) - at)) + data[at + 100 :])
        case 4:
            path.write_bytes(data + random.randbytes(20))
        case 5 if data:
            flip(path, random.randrange(len(data)) * 8 + random.randrange(8))
        case _:
            other = root / random.choice(names)
            if other.exists():
                theirs = other.read_bytes()
                other.write_bytes(data)
                path.write_bytes(theirs)
