"""One key index file: its bytes, chains, header, sealing and recovery."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.derived.keys.index_file import IndexFile, create_index_file
from store.derived.keys.key_sums import IndexShape, KeySums
from store.derived.sum_files import SumFiles
from store.errors import ClosedError, DerivedFileError
from store.files.failpoints import armed
from store.files.file_system import FileSystem
from store.record.message import java_hash, positive_hash, tags_code
from tests.seeds import examples
from tests.store.overwrites import overwrite
from tests.store.vectors import HASHES

NOW = 1_700_000_000_123
ALWAYS = {"begin_unix_ms": 0, "end_unix_ms": 1 << 62, "hi_position": (1 << 63) - 1}


def make(root: Path, *, slots: int = 8, entries: int = 20, name: str = "1") -> IndexFile:
    shape, path = IndexShape(slots, entries), str(root / name)
    return create_index_file(FileSystem(), path, shape, no_sums(path, shape), None)


def no_sums(path: str, shape: IndexShape) -> KeySums:
    """Checksums of which none is known."""
    return KeySums(SumFiles(f"{path}.sums", "keys"), "1", shape)


def reopen(file: IndexFile) -> IndexFile:
    file.close()
    return open_file(file.path, IndexShape(file.slot_count, file.entry_count))


def open_file(path: str, shape: IndexShape) -> IndexFile:
    fs = FileSystem()
    return IndexFile(fs, path, fs.open(path), shape, no_sums(path, shape))


def put(file: IndexFile, *keys: tuple[int, int, int]) -> int:
    """Put (hash, position, store time) triples; return how many fitted."""
    columns = [list(column) for column in zip(*keys, strict=True)] or [[], [], []]
    return file.put(*columns, lo=0)


def candidates(file: IndexFile, hash_value: int, **bounds: int) -> list[int]:
    return [step.position for step in file.lookup(hash_value, **bounds) if step.is_candidate]


def content(file: IndexFile) -> bytes:
    return Path(file.path).read_bytes()


# --- Bytes ---


@pytest.mark.parametrize(("text", "java", "code", "index", "slot"), HASHES)
def test_hashes_have_the_published_values(
    text: str, java: int, code: str, index: int, slot: int
) -> None:
    assert java_hash(text) == java
    assert struct.pack(">q", tags_code(text)).hex().upper() == code
    assert positive_hash(java) == index
    assert positive_hash(java) % 5_000_000 == slot


def test_the_default_file_has_the_published_size() -> None:
    assert IndexShape(5_000_000, 20_000_000).size_bytes == 420_000_040


def test_entries_slots_and_header_are_where_rocketmq_has_them(tmp_path: Path) -> None:
    file = make(tmp_path, slots=8, entries=5)
    put(file, (1655984460, 1024, NOW), (4, 2048, NOW + 2500), (12, 2048, NOW + 2500))
    data = content(file)
    assert len(data) == 40 + 8 * 4 + 5 * 20
    header = struct.pack(">qqqqii", NOW, NOW + 2500, 1024, 2048, 1, 4)
    assert data[:40] == header
    assert data[40:72] == struct.pack(">8i", 0, 0, 0, 0, 3, 0, 0, 0), "1655984460 % 8 is 4"
    assert data[72:92] == bytes(20), "entry 0 is never used"
    assert data[92:112] == struct.pack(">iqii", 1655984460, 1024, 0, 0)
    assert data[112:132] == struct.pack(">iqii", 4, 2048, 2, 1)
    assert data[132:152] == struct.pack(">iqii", 12, 2048, 2, 2)


def test_a_file_made_elsewhere_is_read(tmp_path: Path) -> None:
    slots = struct.pack(">8i", 0, 0, 0, 0, 2, 0, 0, 0)
    entries = bytes(20) + struct.pack(">iqii", 4, 100, 0, 0) + struct.pack(">iqii", 4, 300, 7, 1)
    header = struct.pack(">qqqqii", NOW, NOW + 7000, 100, 300, 1, 3)
    path = tmp_path / "1"
    path.write_bytes(header + slots + entries + bytes(40))
    file = open_file(str(path), IndexShape(8, 5))
    file.check()
    assert candidates(file, 4, **ALWAYS) == [300, 100]
    assert candidates(file, 12, **ALWAYS) == [], "same slot, other hash"
    put(file, (4, 400, NOW + 8000))
    assert candidates(file, 4, **ALWAYS) == [400, 300, 100]


def test_the_largest_numbers_fit(tmp_path: Path) -> None:
    file = make(tmp_path)
    put(file, ((1 << 31) - 1, 1 << 62, NOW), ((1 << 31) - 1, (1 << 62) + 1, NOW + (1 << 45)))
    assert candidates(file, (1 << 31) - 1, **ALWAYS) == [(1 << 62) + 1, 1 << 62]
    assert content(file)[40 + 32 + 2 * 20 + 12 :][:4] == b"\x7f\xff\xff\xff", "seconds are capped"


def test_a_time_before_the_first_counts_as_the_first(tmp_path: Path) -> None:
    file = make(tmp_path)
    put(file, (1, 10, NOW), (1, 20, NOW - 60_000))
    assert candidates(file, 1, begin_unix_ms=NOW, end_unix_ms=NOW, hi_position=99) == [20, 10]
    assert file.end_unix_ms == NOW


# --- Putting and looking up ---


def test_a_time_range_misses_no_record_by_rounding(tmp_path: Path) -> None:
    """RocketMQ keeps whole seconds and would not find the record that was stored at 1999 ms."""
    file = make(tmp_path)
    put(file, (1, 10, 1000), (1, 20, 1999), (1, 30, 5500))
    assert 20 in candidates(file, 1, begin_unix_ms=1999, end_unix_ms=1999, hi_position=99)
    assert candidates(file, 1, begin_unix_ms=5500, end_unix_ms=9000, hi_position=99) == [30]
    assert candidates(file, 1, begin_unix_ms=0, end_unix_ms=3000, hi_position=99) == [20, 10]
    assert candidates(file, 1, begin_unix_ms=0, end_unix_ms=9000, hi_position=30) == [20, 10]


def test_a_sealed_file_is_read_without_a_map(tmp_path: Path) -> None:
    file = make(tmp_path)
    put(file, (1, 10, NOW), (9, 20, NOW))
    file.seal()
    assert candidates(file, 1, **ALWAYS) == [10]
    with armed("fs.read=EIO"), pytest.raises(Exception, match="read of"):
        candidates(file, 1, **ALWAYS)
    file.close()
    with pytest.raises(ClosedError):
        candidates(file, 1, **ALWAYS)


# --- Recovery ---


@settings(max_examples=examples(50))
@given(
    keys=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=19),
    keep=st.integers(0, 70),
    wreck=st.binary(max_size=32),
    count=st.integers(0, 5),
)
def test_recovery_rebuilds_slots_and_header_from_the_entries(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[tuple[int, int]],
    keep: int,
    wreck: bytes,
    count: int,
) -> None:
    """A file whose slots are anything equals one that was only given the keys that are kept."""
    root = tmp_path_factory.mktemp("index")
    position, triples = 5, []
    for value, step in keys:
        position += step
        triples.append((value, position, NOW + position * 10))
    file = make(root)
    put(file, *triples)
    overwrite(file.path, 40, wreck)
    file = reopen(file)
    file.count = min(file.entry_count, file.count + count)  # A header newer than its entries.
    file.recover(keep, is_cached=False)
    kept = [triple for triple in triples if triple[1] < keep]
    assert file.count == 1 + len(kept)
    file = reopen(file)
    file.check() if kept else None
    for value in range(21):
        expected = sorted({p for v, p, _ in kept if v == value}, reverse=True)
        assert candidates(file, value, **ALWAYS) == expected
    if kept:
        expected_file = make(root, name="2")
        put(expected_file, *kept)
        assert content(file)[40:] == content(expected_file)[40:]
        assert file.used_slot_count == expected_file.used_slot_count
        assert file.end_position == expected_file.end_position
        assert 0 <= file.end_unix_ms - expected_file.end_unix_ms < 1000


@pytest.mark.parametrize("keep", [0, 3, 7, 12])
@pytest.mark.parametrize("counted", [7, 12])
@pytest.mark.parametrize("is_half_put", [False, True])
def test_a_file_of_a_killed_process_gives_back_entries_without_a_look_at_the_others(
    tmp_path: Path, keep: int, counted: int, is_half_put: bool
) -> None:
    triples = [(n * 7 % 5, 100 + n, NOW) for n in range(12)]
    file, expected = make(tmp_path, name="1"), make(tmp_path, name="2")
    put(file, *triples[:counted])
    header, slots = content(file)[:40], content(file)[40:72]
    put(file, *triples[counted:])
    data = bytearray(content(file))
    data[:40] = header  # Killed before the header counts the last entries,
    if is_half_put:
        data[40:72] = slots  # or before a slot leads to the first one of them,
        data[72 + (counted + 2) * 20 :] = bytes(len(data) - 72 - (counted + 2) * 20)
    Path(file.path).write_bytes(data)
    file = reopen(file)
    file.recover(100 + keep, is_cached=True)
    assert not file.are_slots_proven
    put(expected, *triples[: min(keep, counted)])
    if keep:
        assert content(file)[40:] == content(expected)[40:]
        assert file.used_slot_count == expected.used_slot_count
    data[44] ^= 1  # A slot that does not lead to its entry: all are built again.
    Path(file.path).write_bytes(data)
    file = reopen(file)
    file.recover(100, is_cached=True)
    assert file.are_slots_proven


def look_up(file: IndexFile) -> None:
    candidates(file, 1, **ALWAYS)


def recover(file: IndexFile) -> None:
    file.recover(1 << 40, is_cached=False)


THIRD, LAST = 40 + 32 + 3 * 20, 40 + 32 + 5 * 20


@pytest.mark.parametrize(
    ("look", "at", "data", "field"),
    [
        (look_up, LAST + 16, struct.pack(">i", 5), "previous entry"),
        (look_up, LAST + 16, struct.pack(">i", -1), "previous entry"),
        (look_up, 40 + 4, struct.pack(">i", 20), "slot"),
        (recover, THIRD + 4, struct.pack(">q", 5), "entry"),
        (recover, THIRD, struct.pack(">i", -1), "entry"),
        (recover, THIRD + 16, struct.pack(">i", 1), "entry"),
        (IndexFile.check, 24, b"\1", "last position"),
        (IndexFile.check, 31, bytes([104 ^ 1]), "last position"),
        (IndexFile.check, 36, b"\1", "entry count"),
        (IndexFile.check, 39, b"\7", "last position"),
        (IndexFile.check, 39, b"\2", "last position"),
    ],
)
def test_what_does_not_fit_the_entries_is_damage(
    tmp_path: Path, look: Callable[[IndexFile], None], at: int, data: bytes, field: str
) -> None:
    """A chain that leads elsewhere, entries that cannot be, and a header of another file."""
    file = make(tmp_path)
    put(file, *[(1, 100 + n, NOW) for n in range(5)])
    overwrite(file.path, at, data)
    with pytest.raises(DerivedFileError, match=field):
        look(reopen(file))
