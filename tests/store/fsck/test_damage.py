"""Any damage of any file gives a finding that names the file, a byte near it, and how bad it is."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.config import StoreConfig
from store.errors import FileSystemError
from store.fsck.check import Check
from store.fsck.files import ReadOnlyFileSystem
from store.fsck.types import Finding, Part, Severity, no_progress
from tests.store.fsck_stores import (
    Clock,
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
