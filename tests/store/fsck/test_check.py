"""A check finds nothing in what stores write, reads any layout, and changes no byte; of any damage
it names the file, a byte near it, and how bad it is."""

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.config import StoreConfig
from store.errors import FileSystemError, LayoutError, LockedError
from store.fsck.check import Check, verify
from store.fsck.files import ReadOnlyFileSystem
from store.fsck.layout import GivenSettings, detect
from store.fsck.types import Finding, Part, Severity, no_progress
from store.record.message import encode_message
from tests.store.fsck_stores import (
    Clock,
    contents,
    crashed_with_tail,
    files_of,
    fill,
    findings,
    flip,
    fsck_config,
    given_sizes,
    log_files,
    make_store,
    open_store,
    tree,
)
from tests.store.records import PAGE

# --- Nothing to find ---


@pytest.mark.parametrize("property_crc", [False, True])
def test_a_closed_store_is_clean_and_its_sizes_are_found(
    tmp_path: Path, config: StoreConfig, property_crc: bool
) -> None:
    config = fsck_config(config.container, property_crc=property_crc)
    make_store(tmp_path, config)
    assert findings(tmp_path) == []
    sizes = detect(ReadOnlyFileSystem(), str(tmp_path))
    names = "container file_size_bytes consume_queue_units_per_file index_slot_count"
    for name in [*names.split(), "index_entry_count"]:
        assert getattr(sizes.config, name) == getattr(config, name)
        assert sizes.source[name] == "files"
    if config.container == "commit_log":
        assert sizes.config.property_crc is property_crc
    else:
        assert sizes.config.ledger_index_units_per_file == config.ledger_index_units_per_file


def test_an_empty_store_is_clean(tmp_path: Path, config: StoreConfig) -> None:
    open_store(tmp_path, config).close()
    assert findings(tmp_path) == []


def test_a_store_that_deleted_old_files_is_clean(tmp_path: Path, config: StoreConfig) -> None:
    clock = Clock()
    with open_store(tmp_path, config, clock) as store:
        fill(store, clock, 0, 90)
        store.maintain()
        assert store.log.delete_first() > 0
        store.engine.queues.correct_min_offsets(store.log.min_position)
        store.engine.dispatcher.delete_expired()
        fill(store, clock, 90, 120)
    assert findings(tmp_path) == []
    assert len(contents(tmp_path, config)["topic0"]) < 60
    assert findings(tmp_path) == [], "opened and closed again"


def test_all_kinds_of_records_are_clean(tmp_path: Path, config: StoreConfig) -> None:
    config = fsck_config(config.container, file_size_bytes=8 * PAGE)
    flags = (0, fmt.TRANSACTION_PREPARED, fmt.TRANSACTION_COMMIT, fmt.TRANSACTION_ROLLBACK)
    with open_store(tmp_path, config) as store:
        for number in range(40):
            properties = {"UNIQ_KEY": f"u{number}", "KEYS": "a bb ccc", "TAGS": "größe"}
            store.put(
                encode_message(
                    "%RETRY%" + "long" * 40 if number % 3 else "plain",
                    number % 2,
                    b"body" * number,
                    properties if number % 5 else None,
                    sys_flag=flags[number % 4],
                    born_host=("::1", 7) if number % 7 == 0 else ("127.0.0.1", 7),
                )
            )
    assert findings(tmp_path) == []


def test_more_than_a_read_is_checked_in_little_memory(tmp_path: Path) -> None:
    config = fsck_config("commit_log", file_size_bytes=32 << 20, index_entry_count=5000)
    body = bytes(200_000)
    with open_store(tmp_path, config) as store:
        for number in range(400):
            store.append(encode_message("big", 0, body, {"KEYS": f"k{number}"}))
    assert sum(p.stat().st_size for p in (tmp_path / "commitlog").iterdir()) >= 80 << 20
    tracemalloc.start()
    try:
        assert findings(tmp_path) == []
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


# --- Nothing is touched ---


def stamps(root: Path) -> dict[str, tuple[int, int]]:
    paths = [root, *root.rglob("*")]
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in paths}


def test_a_check_changes_nothing(root: Path) -> None:
    flip(root / log_files(root)[0], 900)
    (root / "lock").unlink()
    (root / "checkpoint").unlink()
    before, times = tree(root), stamps(root)
    assert findings(root)
    assert tree(root) == before
    assert stamps(root) == times


def test_the_read_only_file_system_refuses_every_change(tmp_path: Path) -> None:
    fs, path = ReadOnlyFileSystem(), str(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"data")
    fd = fs.open(path)
    changes: list[Callable[[], object]] = [
        lambda: fs.open(path, create=True),
        lambda: fs.write_at(fd, path, 0, b"x"),
        lambda: fs.warm(fd, path, 0, 4),
        lambda: fs.set_size(fd, path, 1),
        lambda: fs.allocate(fd, path, 9),
        lambda: fs.map(fd, path, 4),
        lambda: fs.sync(fd, path),
        lambda: fs.sync_directory(str(tmp_path)),
        lambda: fs.rename(path, path + "2"),
        lambda: fs.unlink(path),
        lambda: fs.make_directory(path + "d"),
    ]
    for change in changes:
        with pytest.raises(AssertionError):
            change()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"x", 0)
    fs.close(fd)


def test_a_directory_in_use_is_refused(tmp_path: Path, config: StoreConfig) -> None:
    with open_store(tmp_path, config), pytest.raises(LockedError, match=str(os.getpid())):
        findings(tmp_path)
    assert findings(tmp_path) == []


def test_a_store_that_opens_during_a_check_makes_it_worthless(
    root: Path, config: StoreConfig
) -> None:
    check = Check(str(root)).run(no_progress)
    with open_store(root, config), pytest.raises(LockedError):
        list(check)


# --- Layouts ---


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="no directory"):
        list(verify(str(tmp_path / "nothing")))
    with pytest.raises(LayoutError, match="a log"):
        list(verify(str(tmp_path)))


def test_two_logs_have_to_be_chosen_from(root: Path, config: StoreConfig) -> None:
    (root / "commitlog").mkdir(exist_ok=True)
    (root / "dledger-n0" / "data").mkdir(exist_ok=True, parents=True)
    with pytest.raises(LayoutError, match="one log"):
        findings(root)
    assert findings(root, GivenSettings(container=config.container)) == []


def test_sizes_can_be_given(root: Path, config: StoreConfig) -> None:
    assert findings(root, given_sizes(config)) == []
    wrong = GivenSettings(file_size_bytes=2 * PAGE, container=config.container)
    assert any(f.field == "file size" for f in findings(root, wrong))
    with pytest.raises(LayoutError, match="4096"):
        findings(root, GivenSettings(file_size_bytes=5))


@pytest.mark.parametrize("at", [16, 24, 36])
def test_a_damaged_header_does_not_hide_the_shape_of_the_index(
    tmp_path: Path, config: StoreConfig, at: int
) -> None:
    make_store(tmp_path, config, 8)
    [path] = (tmp_path / "index").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:at] + b"\x7f" + data[at + 1 :])
    detected = detect(ReadOnlyFileSystem(), str(tmp_path)).config
    assert (detected.index_slot_count, detected.index_entry_count) == (5, 12)


def test_the_sizes_of_rocketmq_are_known_by_the_size_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "index").mkdir()
    with (tmp_path / "index" / "20240101000000000").open("wb") as file:
        file.truncate(420_000_040)
    config = detect(ReadOnlyFileSystem(), str(tmp_path)).config
    assert (config.index_slot_count, config.index_entry_count) == (5_000_000, 20_000_000)


def test_a_finding_says_what_was_found() -> None:
    finding = Finding("a/b", 7, "size", "1", "2", Severity.DERIVED, Part.QUEUE)
    assert str(finding) == "a/b byte 7: size is 2, expected 1 (derived)"


# --- Damage ---


def names_place(found: list[Finding], name: str, at: int, near: int = 600) -> bool:
    return any(f.path == name and abs(f.at - at) <= near for f in found)


Damage = Callable[[bytes, Random], tuple[bytes, int]]
"""Bytes of a file -> damaged bytes, and the byte where that begins to show."""


def zero_page(data: bytes, random: Random) -> tuple[bytes, int]:
    used = max(1, len(data.rstrip(b"\0")))
    lo = random.randrange(used) // 512 * 512
    bad = data[:lo] + bytes(len(data[lo : lo + 512])) + data[lo + 512 :]
    pairs = zip(data, bad, strict=True)
    return bad, next((n for n, (one, other) in enumerate(pairs) if one != other), lo)


def garbage_tail(data: bytes, random: Random) -> tuple[bytes, int]:
    lo = random.randrange(len(data))
    return data[:lo] + random.randbytes(len(data) - lo), lo


def cut(data: bytes, random: Random) -> tuple[bytes, int]:
    lo = random.randrange(len(data))
    return data[:lo], lo


def grow(data: bytes, random: Random) -> tuple[bytes, int]:
    return data + bytes(random.choice([1, 20, PAGE])), len(data)


def one_bit(data: bytes, random: Random) -> tuple[bytes, int]:
    at = random.randrange(max(1, len(data.rstrip(b"\0"))))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :], at


DAMAGES: dict[str, Damage] = {
    "zero page": zero_page,
    "garbage tail": garbage_tail,
    "cut": cut,
    "grow": grow,
    "one bit": one_bit,
}


def is_excluded(name: str, damage: str) -> bool:
    """What the formats leave open; see the module `store.fsck.check`."""
    if name == "checkpoint":  # Its times may be older.
        return damage in ("one bit", "zero page")
    is_plain_log = name.startswith("commitlog/")  # Header fields and blanks: test_bits.
    return damage == "one bit" and is_plain_log


@pytest.mark.parametrize("tries", [3, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_file_is_named(
    root: Path, config: StoreConfig, damage: str, tries: int
) -> None:
    random, tried = Random(damage), 0
    given = given_sizes(config)
    for name in files_of(root):
        path, data = root / name, (root / name).read_bytes()
        if is_excluded(name, damage):
            continue
        for _ in range(tries):
            bad, at = DAMAGES[damage](data, random)
            if bad == data:
                continue
            path.write_bytes(bad)
            problems = findings(root, given)
            near = PAGE if damage == "cut" else 600  # A cut in zeros shows at the size only.
            assert names_place(problems, name, at, near), (name, at, problems[:3])
            tried += 1
        path.write_bytes(data)
    assert tried > 6 * tries
    assert findings(root) == []


def test_a_deleted_file_is_named(root: Path, config: StoreConfig) -> None:
    allowed = {"checkpoint"}  # Opening makes it anew.
    if config.container == "commit_log":
        allowed.add(log_files(root)[0])  # Looks like retention; see the module `store.fsck.check`.
    for name in set(files_of(root)) - allowed:
        data = (root / name).read_bytes()
        (root / name).unlink()
        problems = findings(root, given_sizes(config))
        directory = os.path.dirname(name) or name
        assert any(f.path.startswith(directory) for f in problems), name
        (root / name).write_bytes(data)


def test_swapped_files_are_named(root: Path, config: StoreConfig) -> None:
    queue = "consumequeue/topic{}/0/00000000000000000000"
    names = [n for n in files_of(root) if n.startswith("index/")]
    pairs = [tuple(log_files(root)[:2]), (queue.format(0), queue.format(1)), tuple(names[:2])]
    for one, other in pairs:
        first, second = (root / one).read_bytes(), (root / other).read_bytes()
        (root / one).write_bytes(second)
        (root / other).write_bytes(first)
        paths = {f.path for f in findings(root, given_sizes(config))}
        assert {one, other} <= paths
        (root / one).write_bytes(first)
        (root / other).write_bytes(second)


def test_a_stale_copy_of_any_file_is_named(tmp_path: Path, config: StoreConfig) -> None:
    root, clock = tmp_path / "store", Clock()
    with open_store(root, config, clock) as store:
        fill(store, clock, 0, 38)
    old = tree(root)
    with open_store(root, config, clock) as store:
        fill(store, clock, 38, 60)
    new, tried = tree(root), 0
    for name in set(old) & set(new):
        if old[name] == new[name] or name == "checkpoint":  # An older checkpoint is no fault.
            continue
        (root / name).write_bytes(old[name])
        problems = findings(root)
        assert any(f.path == name for f in problems), (name, problems[:3])
        (root / name).write_bytes(new[name])
        tried += 1
    assert tried >= 5


def test_stray_files_are_named_and_are_no_damage(root: Path) -> None:
    log = os.path.dirname(log_files(root)[0])
    strays = {
        f"{log}/00000000000000016384.allocating": Severity.LEFT_OVER,
        f"{log}/notes.txt": Severity.UNKNOWN,
        "checkpoint.allocating": Severity.LEFT_OVER,
        "consumequeue/file": Severity.UNKNOWN,
        "consumequeue/topic0/0/x": Severity.UNKNOWN,
        "consumequeue/topic0/zero": Severity.UNKNOWN,
        "index/1": Severity.UNKNOWN,
        "other": Severity.UNKNOWN,
    }
    for name in strays:
        (root / name).write_bytes(b"x")
    (root / "config").mkdir()
    assert {f.path: f.severity for f in findings(root)} == strays


class BadSector(ReadOnlyFileSystem):
    """One page of one file cannot be read."""

    def __init__(self, path: Path, at: int) -> None:
        self.path, self.at = str(path), at

    def read_at(self, fd: int, path: str, position: int, size_bytes: int) -> bytes:
        if path == self.path and position < self.at + PAGE and self.at < position + size_bytes:
            raise FileSystemError("read", path, errno.EIO)
        return super().read_at(fd, path, position, size_bytes)


def test_an_unreadable_page_is_named(
    tmp_path: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = fsck_config(config.container, file_size_bytes=4 * PAGE)
    make_store(tmp_path, config, 100)
    for name in [log_files(tmp_path)[0], "consumequeue/topic0/0/00000000000000000000", "marks"]:
        at = PAGE if name in log_files(tmp_path) else 0
        bad = BadSector(tmp_path / name, at)
        monkeypatch.setattr("store.fsck.check.ReadOnlyFileSystem", lambda bad=bad: bad)
        problems = findings(tmp_path, given_sizes(config))
        assert names_place(problems, name, at), (name, problems[:3])
        if at:
            log = {f.field: f.severity for f in problems if f.part is Part.LOG}
            assert log.pop("page") is Severity.REPAIRABLE
            assert set(log.values()) == {Severity.DAMAGE}
    monkeypatch.undo()
    assert findings(tmp_path) == []


# --- How bad it is ---


def test_a_torn_tail_is_told_from_damage(tmp_path: Path, config: StoreConfig) -> None:
    root, durable, end = crashed_with_tail(tmp_path, config)
    name = log_files(root)[0]
    data = (root / name).read_bytes()
    assert findings(root) == []
    for at in range(durable - 120, end):
        (root / name).write_bytes(data[:at].ljust(len(data), b"\0"))
        log = [f for f in findings(root) if f.part is Part.LOG]
        if not data[at:].strip(b"\0") or (at >= durable and not data[durable:at].strip(b"\0")):
            assert log == []  # Those were zeros before, or the tail is gone as a whole.
            continue
        expected = Severity.DAMAGE if at < durable else Severity.TORN_TAIL
        assert {f.severity for f in log} == {expected}, (at, log)
        assert all(f.position <= at for f in log)


def test_damage_in_the_middle_hides_nothing_behind_it(root: Path, config: StoreConfig) -> None:
    name = log_files(root)[0]
    at = (root / name).read_bytes().index(b"%08d" % 4)
    flip(root / name, at * 8)
    check = Check(str(root))
    problems = list(check.run(no_progress))
    assert [(f.severity, f.part) for f in problems] == [(Severity.DAMAGE, Part.LOG)], problems
    assert problems[0].path == name
    assert abs(problems[0].at - at) < 300
    lost_count = 1 if config.container == "commit_log" else 2  # An entry is a batch of two.
    assert check.container.record_count == 60 - lost_count
    # A second one, in a derived file, about a record behind the damage.
    flip(root / "consumequeue/topic1/0/00000000000000000160", 8)
    assert {f.part for f in findings(root)} == {Part.LOG, Part.QUEUE}


def test_a_log_shorter_than_its_mark_is_damage(root: Path, config: StoreConfig) -> None:
    last = log_files(root)[-1]
    (root / last).write_bytes(bytes(PAGE))
    problems = [f for f in findings(root) if f.part is Part.LOG]
    # The blank of a ledger proves that there was an entry behind it.
    field = "log end" if config.container == "commit_log" else "blank"
    assert [(f.field, f.severity) for f in problems] == [(field, Severity.DAMAGE)]
