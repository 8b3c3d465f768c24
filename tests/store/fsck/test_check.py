"""A check finds nothing in what stores write, reads any layout, and changes no byte."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from store import format as fmt
from store.config import StoreConfig
from store.errors import LayoutError, LockedError
from store.fsck.check import Check, verify
from store.fsck.files import ReadOnlyFileSystem
from store.fsck.layout import GivenSettings, detect
from store.fsck.types import Finding, Part, Severity, no_progress
from store.record.message import encode_message
from tests.store.fsck_stores import (
    Clock,
    contents,
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
