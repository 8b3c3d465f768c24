"""The rolling set of index files: names, the roll, idempotence, expiry, failures, threads."""

import threading
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.config import StoreConfig
from store.derived.keys import index_file, index_files
from store.derived.keys.index_file import IndexFile, key_hash
from store.derived.keys.index_files import IndexFiles
from store.derived.keys.key_sums import KeySums
from store.errors import DerivedFileError, StoreError, StoreFullError
from store.files.failpoints import armed, census
from store.files.file_system import FileSystem
from tests.seeds import examples
from tests.store.fakes import FIRST_UNIX_MS
from tests.store.records import small_config

NOW = FIRST_UNIX_MS
PER_FILE = 9


def config(entries: int = PER_FILE + 1) -> StoreConfig:
    return small_config(index_slot_count=8, index_entry_count=entries)


def make(
    root: Path, *, entries: int = PER_FILE + 1, position: int = 0, is_clean: bool = True
) -> IndexFiles:
    index = IndexFiles(FileSystem(), str(root), config(entries), clock=lambda: NOW)
    index.recover(position, is_clean=is_clean)
    return index


@pytest.fixture
def index(tmp_path: Path) -> IndexFiles:
    return make(tmp_path)


def put(index: IndexFiles, lo: int, hi: int, *, keys_per_record: int = 1) -> None:
    """Put the records [lo, hi): record n is at 10 * n, its keys are "n.0", "n.1" and so on."""
    names = [(n, k) for n in range(lo, hi) for k in range(keys_per_record)]
    index.put_many(
        [key_hash("orders", f"{n}.{k}") for n, k in names],
        [n * 10 for n, _ in names],
        [NOW + n * 1000 for n, _ in names],
    )


def find(index: IndexFiles, n: int, key: int = 0) -> list[int]:
    return candidates(index, "orders", f"{n}.{key}", begin_unix_ms=0, end_unix_ms=1 << 62)


def candidates(index: IndexFiles, topic: str, key: str, **bounds: int) -> list[int]:
    steps = index.lookup(topic, key, **bounds)
    return [step.position for step in steps if step.is_candidate][::-1]


def names(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "index").iterdir())


def test_a_file_takes_space_as_its_entries_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_GROW_BYTES", 1 << 16)
    index = make(tmp_path, entries=1_000_000)
    put(index, 0, 10)
    path = tmp_path / "index" / names(tmp_path)[0]
    assert path.stat().st_size == index.files[0].size_bytes > 20_000_000
    assert path.stat().st_blocks * 512 < 1 << 18
    put(index, 10, 6_000)
    assert 120_000 < path.stat().st_blocks * 512 < 1 << 19
    with armed("fs.allocate=ENOSPC@1+"), pytest.raises(StoreFullError):
        put(index, 6_000, 12_000)
    assert find(index, 5_999) == [59_990]
    put(index, 6_000, 12_000)
    index.close()
    reopened = make(tmp_path, entries=1_000_000, position=90_000, is_clean=False)
    assert find(reopened, 8_999) == [89_990]
    assert find(reopened, 9_000) == []


def test_files_are_named_by_local_time_and_unique_within_one_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    try:
        put(make(tmp_path), 0, 3 * PER_FILE)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    # 2023-11-14 22:13:20 UTC is 01:13:20 on the next day three hours east of it.
    assert names(tmp_path) == [f"20231115011320{ms:03d}" for ms in range(3)]


def test_a_clock_that_goes_back_keeps_the_order_of_names(tmp_path: Path) -> None:
    times = iter([NOW, NOW - 3_600_000, NOW - 1, NOW + 5000])
    index = IndexFiles(FileSystem(), str(tmp_path), config(), clock=lambda: next(times))
    put(index, 0, 4 * PER_FILE)
    order = [Path(file.path).name for file in index.files]
    assert order == sorted(order) == names(tmp_path)
    assert [file.begin_position for file in index.files] == [0, 90, 180, 270]


def test_a_new_file_starts_with_the_end_of_the_one_before(index: IndexFiles) -> None:
    put(index, 0, PER_FILE)
    with armed("fs.map=EIO"), pytest.raises(StoreError):
        put(index, PER_FILE, PER_FILE + 1)
    fresh = index.files[1]
    assert (fresh.begin_position, fresh.end_position) == (80, 80)
    assert fresh.begin_unix_ms == NOW + 8000
    put(index, PER_FILE, PER_FILE + 1)
    assert (fresh.begin_position, fresh.end_position, fresh.begin_unix_ms) == (90, 90, NOW + 9000)


def test_files_outside_of_the_time_are_passed_over(index: IndexFiles) -> None:
    put(index, 0, 3 * PER_FILE)
    assert candidates(index, "orders", "3.0", begin_unix_ms=NOW, end_unix_ms=NOW + 3000) == [30]
    assert (
        candidates(index, "orders", "3.0", begin_unix_ms=NOW + 5000, end_unix_ms=NOW + 6000) == []
    )
    index.files[0].close()
    late = {"begin_unix_ms": NOW + 9000, "end_unix_ms": 1 << 62}
    assert candidates(index, "orders", "20.0", **late) == [200], "the closed file was not asked"


def test_expired_files_are_deleted_but_never_the_last(index: IndexFiles, tmp_path: Path) -> None:
    put(index, 0, 25)
    assert index.delete_expired(80) == 0, "the last record of the first file begins there"
    assert index.delete_expired(81) == 1
    assert find(index, 3) == []
    assert find(index, 9) == [90]
    assert index.delete_expired(1 << 40) == 1
    assert len(names(tmp_path)) == 1
    put(index, 25, 40)
    assert find(index, 39) == [390]


def test_lookup_beside_a_deletion_finds_what_is_left(
    index: IndexFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted file is closed a moment before it is off the list."""
    put(index, 0, 25)
    delete, answers, errors = IndexFile.delete, list[list[int]](), list[StoreError]()

    def look() -> None:
        try:
            answers.append(find(index, 3) + find(index, 9))
        except StoreError as error:
            errors.append(error)

    reader = threading.Thread(target=look)

    def delete_slowly(self: IndexFile) -> None:
        delete(self)
        reader.start()
        reader.join(0.2)

    monkeypatch.setattr(IndexFile, "delete", delete_slowly)
    assert index.delete_expired(81) == 1
    reader.join()
    assert (answers, errors) == ([[90]], [])


def test_files_in_the_wrong_order_are_damage(tmp_path: Path) -> None:
    put(make(tmp_path), 0, 25)
    first, second, _ = (tmp_path / "index" / name for name in names(tmp_path))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    with pytest.raises(DerivedFileError, match="begin position"):
        make(tmp_path, position=250)


def test_drop_deletes_what_could_not_be_opened(index: IndexFiles, tmp_path: Path) -> None:
    put(index, 0, 12)
    (tmp_path / "index" / "20000101000000000").write_bytes(b"short")
    index.drop()
    assert names(tmp_path) == []
    put(index, 0, 3)
    assert find(index, 2) == [20]


def test_sync_covers_every_file_once(index: IndexFiles) -> None:
    put(index, 0, 25)
    with census() as counts:
        index.sync()
        index.sync()
    del counts["sum_files.write"]  # Checksums are never synced.
    assert counts == {"fs.sync": 3, "fs.sync_directory": 1}
    put(index, 25, 26)
    with census() as counts:
        index.sync()
    assert counts == {"fs.sync": 1}


def test_each_call_that_fails_once_is_made_good_by_a_retry(tmp_path: Path) -> None:
    counted = make(tmp_path / "census")
    put(counted, 0, 5)
    with census() as counts:
        put(counted, 5, 25)
    points = [(name, nth) for name, count in counts.items() for nth in range(1, count + 1)]
    failed = 0
    for number, (name, nth) in enumerate(points):
        actions = ["EIO", "ENOSPC"] if name.startswith("fs.") else ["EIO"]
        for action in actions:
            root = tmp_path / f"{number}{action}"
            index = make(root)
            put(index, 0, 5)
            with armed(f"{name}={action}@{nth}"):
                try:
                    put(index, 5, 25)
                except (StoreError, OSError):
                    failed += 1
                else:
                    pytest.fail(f"{name}@{nth} was not passed")
            for n in range(5):
                assert find(index, n) == [n * 10]
            put(index, 5, 25)
            assert [find(index, n) for n in range(25)] == [[n * 10] for n in range(25)]
            again = make(root, position=250, is_clean=False)
            assert [find(again, n) for n in range(25)] == [[n * 10] for n in range(25)]
    assert failed >= 16


@pytest.mark.parametrize("keys_per_record", [2, 4, 20])
def test_a_record_whose_keys_were_split_by_a_failure_gets_the_rest(
    index: IndexFiles, keys_per_record: int
) -> None:
    with armed("index_files.roll=EIO@2"), pytest.raises(OSError, match="failpoint"):
        put(index, 0, 12, keys_per_record=keys_per_record)
    put(index, 0, 12, keys_per_record=keys_per_record)
    for n in range(12):
        for key in range(keys_per_record):
            assert find(index, n, key) == [n * 10]
    assert sum(file.count - 1 for file in index.files) == 12 * keys_per_record


def test_after_a_crash_everything_is_synced_again(tmp_path: Path) -> None:
    """Also complete files: they may be in the page cache only, and so may their names."""
    put(make(tmp_path), 0, 25)
    for is_clean in (True, False):
        index = make(tmp_path, position=250, is_clean=is_clean)
        with census() as counts:
            index.sync()
        counts.pop("sum_files.write", None)  # Checksums are never synced.
        assert counts == ({} if is_clean else {"fs.sync": 3, "fs.sync_directory": 1})


@settings(max_examples=examples(20))
@given(
    entries=st.integers(2, 12),
    rounds=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(0, 9), max_size=4))),
            st.sampled_from(["go on", "reopen", "crash", "truncate", "repeat"]),
        ),
        max_size=8,
    ),
)
def test_an_index_behaves_as_a_dict_of_lists(
    tmp_path_factory: pytest.TempPathFactory,
    entries: int,
    rounds: list[tuple[list[tuple[int, list[int]]], str]],
) -> None:
    root = tmp_path_factory.mktemp("index")
    index = make(root, entries=entries)
    model: dict[int, list[int]] = {}
    position = 0
    for records, action in rounds:
        hashes: list[int] = []
        positions: list[int] = []
        for step, keys in records:
            for key in keys:
                hashes.append(key_hash("t", str(key)))
                positions.append(position)
                if position not in model.setdefault(key, []):
                    model[key].append(position)
            position += step
        for _ in range(2 if action == "repeat" else 1):
            index.put_many(hashes, positions, [NOW] * len(hashes))
        if action == "truncate":
            position -= min(position, 3)
            index.truncate(position)
            model = {key: [p for p in found if p < position] for key, found in model.items()}
        elif action in ("reopen", "crash"):
            index.close()
            index = make(root, entries=entries, position=position, is_clean=action == "reopen")
        for key in range(10):
            hits = candidates(index, "t", str(key), begin_unix_ms=0, end_unix_ms=1 << 62)
            assert hits == model.get(key, [])


class _Between:
    """A format whose every write into a file has a look before it and one after it."""

    def __init__(self, packed: Struct, look: Callable[[], None]) -> None:
        self._packed, self._look = packed, look

    def pack_into(self, *what: Any) -> None:
        self._look()
        self._packed.pack_into(*what)
        self._look()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packed, name)


def test_a_look_up_between_two_steps_of_a_put_misses_nothing_that_was_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry, slot, checksum, header, the roll to the next file, and the end of the one before."""
    index, put_count, looks, points = make(tmp_path, entries=300), 250, 0, set[str]()
    put(index, 0, put_count)

    def look(point: str = "write") -> None:
        nonlocal looks
        points.add(point)
        looks += 1
        # Of the first block, of the last one, and what shares slots with the keys being put.
        for n in (0, 7, put_count - 5, put_count - 1):
            assert find(index, n) == [n * 10], f"record {n} at {point}"

    def around(owner: type, name: str) -> None:
        step = getattr(owner, name)

        def done(*what: Any, **options: Any) -> Any:
            look(f"before {name}")
            result = step(*what, **options)
            look(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, done)

    for name in ("_ENTRY", "_SLOT"):
        monkeypatch.setattr(index_file, name, _Between(getattr(index_file, name), look))
    steps = ((KeySums, "put"), (KeySums, "save"), (IndexFile, "_write_header"), (IndexFile, "seal"))
    for owner, name in steps:
        around(owner, name)
    for module in (index_file, index_files):
        monkeypatch.setattr(module, "hit", look)
    for lo in range(put_count, 320, 5):
        put(index, lo, lo + 5)
        put_count = lo + 5
    assert len(index.files) == 2
    assert looks > 4 * 70, "every entry and every slot is written by itself"
    expected = {f"{when} {name}" for _, name in steps for when in ("before", "after")}
    assert points == expected | {"write", "index_file.before_header", "index_files.roll"}


@pytest.mark.parametrize("step", ["_slot", "_entry", "_read"])
def test_puts_between_two_steps_of_a_look_up_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also when they complete a block, and the file, that the look-up is reading."""
    index, put_count = make(tmp_path, entries=300), 250
    put(index, 0, put_count)
    original, is_looking = getattr(IndexFile, step), False

    def after_puts(self: IndexFile, *what: Any) -> Any:
        nonlocal put_count, is_looking
        if is_looking:
            is_looking = False
            put(index, put_count, put_count + 5)
            put_count += 5
        return original(self, *what)

    monkeypatch.setattr(IndexFile, step, after_puts)
    for n in range(40):
        is_looking = True
        assert find(index, n) == [n * 10]
        assert not is_looking
    assert put_count == 450
    assert [find(index, n) for n in range(put_count)] == [[n * 10] for n in range(put_count)]
    assert len(index.files) == 2


def test_a_look_up_whose_map_is_closed_under_it_reads_the_file(index: IndexFiles) -> None:
    """What a look-up holds that began to read before the end of the file."""
    put(index, 0, 5)
    mapped = index.files[0]._map
    assert mapped is not None
    mapped.close()
    assert [find(index, n) for n in range(5)] == [[n * 10] for n in range(5)]
