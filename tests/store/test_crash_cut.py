"""Damage to the files of a whole store: flipped bits, files and sectors that are wrong.

Below the durable mark nothing is ever cut: the store refuses to open, or a read and the full check
see it. Torn tails are tests of the two logs.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from store.config import StoreConfig
from store.errors import (
    CorruptionError,
    DerivedFileError,
    LayoutError,
    RecordFormatError,
    StoreError,
)
from store.ledger.ledger import Ledger
from store.store import Store
from tests.store.crash_check import (
    FILE,
    History,
    check_derived,
    check_store,
    crash_config,
    encode,
    open_store,
    temporary_parent,
)
from tests.store.ledger.whole import damage_of
from tests.store.records import PAGE, messages, record

Container = Literal["commit_log", "ledger"]
SECTOR = 512


@pytest.fixture(scope="module")
def parent() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-cut-", dir=temporary_parent()))
    yield directory
    shutil.rmtree(directory)


def replace_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def log_files(root: Path) -> list[Path]:
    directory = root / "commitlog" if (root / "commitlog").exists() else root / "dledger-n0/data"
    return sorted(directory.iterdir())


# --- D5: bits flip in a ledger ---


@dataclass
class Sealed:
    """A ledger of two files of 64 KiB that was closed: every byte is below the durable mark."""

    root: Path
    config: StoreConfig
    files: list[Path]
    served: dict[tuple[str, int], bytes]
    """What all pulls gave, by queue."""
    end_position: int


def pull_all(store: Store) -> dict[tuple[str, int], bytes]:
    data_by_queue = {}
    for topic, queue_id, lo, hi in store.queues():
        data, offset = b"", lo
        while offset < hi:
            result = store.pull(topic, queue_id, offset, max_count=100)
            assert result.next_offset > offset, f"{topic}/{queue_id} stops: {result.status}"
            data, offset = data + result.data, result.next_offset
        data_by_queue[topic, queue_id] = data
    return data_by_queue


def decode_all(store: Store) -> int:
    return sum(len(messages(data)) for data in pull_all(store).values())


@pytest.fixture(scope="module")
def sealed(parent: Path) -> Sealed:
    root = parent / "sealed"
    config = crash_config(container="ledger", file_size_bytes=16 * PAGE)
    with open_store(str(root), config) as store:
        number = 0
        while store.log.max_position < 24 * PAGE:
            store.append(encode(number))
            number += 1
        served, end = pull_all(store), store.log.max_position
    return Sealed(root, config, log_files(root), served, end)


def open_or_refuse(root: Path, config: StoreConfig) -> Store | StoreError:
    try:
        return open_store(str(root), config)
    except (LayoutError, CorruptionError) as error:
        return error


def flips(sealed: Sealed, count: int) -> Iterator[tuple[Path, int, bytes]]:
    """Files with one flipped bit each: (file, byte, what it was)."""
    random = Random(5)
    for number in range(count):
        path = sealed.files[number % 2]
        at, bit = random.randrange(16 * PAGE), random.randrange(8)
        original = path.read_bytes()
        data = bytearray(original)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        yield path, at, original
        path.write_bytes(original)


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.long)])
def test_a_flipped_bit_is_detected_and_never_served(
    sealed: Sealed, parent: Path, count: int
) -> None:
    """I14: an opening or the full check finds it; a pull gives the bytes that were put, or an error
    by name."""
    seen: Counter[str] = Counter()
    work = parent / "flipped"
    for path, at, original in flips(sealed, count):
        replace_tree(sealed.root, work)
        is_written = int(path.name) + at < sealed.end_position
        store = open_or_refuse(work, sealed.config)
        if not isinstance(store, Store):
            seen["open"] += 1
            assert path.name in str(store)
            assert (work / path.relative_to(sealed.root)).read_bytes() != original, "evidence"
            assert is_written
            continue
        assert isinstance(store.log, Ledger)
        if is_written:
            damage = damage_of(store.log)
            assert damage is not None, f"{path.name} byte {at} is not found"
            assert damage.path.endswith(path.name)
            seen["check"] += 1
        else:  # Behind the end of the log: what a torn tail looks like.
            assert store.recovery.cut_size_bytes > 0, f"{path.name} byte {at}"
            seen["cut"] += 1
        try:
            with store:
                assert pull_all(store) == sealed.served, f"{path.name} byte {at} is served"
        except StoreError:
            seen["refused"] += 1
    assert min(seen[way] for way in ("open", "check", "cut")) > count // 12, seen
    assert seen["open"] + seen["refused"] > count // 3


# --- D9: files and sectors that are wrong ---


@dataclass
class Whole:
    """A closed store of several log files."""

    root: Path
    config: StoreConfig
    history: History


@pytest.fixture(scope="module", params=["commit_log", "ledger"])
def whole(request: pytest.FixtureRequest, parent: Path) -> Whole:
    container: Container = request.param
    root, config = parent / f"whole-{container}", crash_config(container=container)
    history = History(container == "ledger")
    with open_store(str(root), config) as store:
        number = 0
        # The last file is filled well into its second page, so that pages of it can be damaged.
        while store.log.max_position < 4 * FILE + 3 * PAGE:
            history.attempted.add(number)
            result = store.put(encode(number))
            history.acknowledge(number, result.record_positions, result.queue_offsets)
            number += 1
        assert len(store.log.files.files) == 5
    return Whole(root, config, history)


def page(at: int, content: bytes) -> Callable[[bytes], bytes]:
    """Return what puts other content to a page."""
    return lambda data: data[: at * PAGE] + content + data[at * PAGE + len(content) :]


WRONG: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "one byte short": lambda data: data[:-1],
    "a page short": lambda data: data[:-PAGE],
    "one byte long": lambda data: data + b"\0",
    "doubled": lambda data: data + data,
    "zero page": page(1, bytes(PAGE)),
    "zero sector": page(1, bytes(SECTOR)),
    "page landed elsewhere": lambda data: page(0, data[PAGE : 2 * PAGE])(data),
    "all zero": lambda data: bytes(len(data)),
}


def damage(root: Path, number: int, wrong: Callable[[bytes], bytes | None]) -> Path:
    path = log_files(root)[number]
    data = wrong(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_wrong_log_file_is_refused_by_name_or_never_served(
    parent: Path, whole: Whole, kind: str, number: int
) -> None:
    work = parent / "wrong"
    replace_tree(whole.root, work)
    path = damage(work, number, WRONG[kind])
    before = {p: p.read_bytes() for p in log_files(work) if p.stat().st_size}
    store = open_or_refuse(work, whole.config)
    if kind == "missing" and number == 0 and whole.config.container == "commit_log":
        # A plain log without its first file looks like one that retention shortened.
        assert isinstance(store, Store)
        with store:
            assert store.log.min_position == int(log_files(work)[0].name) > 0
        return
    if not isinstance(store, Store):
        assert str(path.parent) in str(store), "the directory if there is no file to name"
        after = {p: p.read_bytes() for p in log_files(work) if p.stat().st_size}
        assert after == before, "evidence is kept"
        return
    with store:  # The damage is where an opening does not look.
        assert 0 <= number < 4, "the last file is read whole"
        assert kind in ("zero page", "zero sector", "page landed elsewhere", "all zero")
        # A body is checked by whoever decodes it, as in RocketMQ.
        with pytest.raises((CorruptionError, DerivedFileError, RecordFormatError)):
            decode_all(store)
        if isinstance(store.log, Ledger):
            first_damage = damage_of(store.log)
            assert first_damage is not None
            assert first_damage.path == str(path)


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_an_old_copy_of_a_sector_is_seen(parent: Path, container: Container) -> None:
    """A write that the disk lost although it had said that it was durable."""
    config, refused = crash_config(container=container), 0
    for at in range(0, 4 * PAGE, SECTOR):
        root = parent / f"sector-{container}-{at}"
        with open_store(str(root), config) as store:
            store.put(record(0))
            old = log_files(root)[0].read_bytes()
            number = 1
            while store.log.max_position < 3 * PAGE:
                store.put(record(number))
                number += 1
            end = store.log.max_position
        path = log_files(root)[0]
        data = path.read_bytes()
        path.write_bytes(data[:at] + old[at : at + SECTOR] + data[at + SECTOR :])
        if at + SECTOR <= end:
            with pytest.raises(CorruptionError):
                open_store(str(root), config)
            refused += 1
        elif at >= end:
            open_store(str(root), config).close()
    assert refused >= 20


def test_marks_of_an_older_copy_are_no_harm_and_lost_ones_are_refused(
    parent: Path, whole: Whole
) -> None:
    work = parent / "marks"
    replace_tree(whole.root, work)
    marks = work / "marks"
    good = marks.read_bytes()
    for data in (b"", bytes(len(good)), good[:30] + b"\xff" * (len(good) - 30)):
        marks.write_bytes(data)
        with pytest.raises(CorruptionError) as caught:
            open_store(str(work), whole.config)
        assert caught.value.path == str(marks)
    marks.write_bytes(good)
    with open_store(str(work), whole.config) as store:
        check_store(store, whole.history.copy())
        older = marks.read_bytes()
        number = whole.history.next_number()
        store.put(encode(number))
    marks.write_bytes(older)
    with open_store(str(work), whole.config) as store:
        history = whole.history.copy()
        history.attempted.add(number)
        check_store(store, history)
        assert (number, 0) in history.must
        check_derived(store, f"{work}-rebuilt")
        assert decode_all(store) == len(history.must)
