"""Recovery of a ledger: torn tails, two crashes in a row, the index, power loss, bounds."""

import struct
from pathlib import Path
from random import Random

import pytest

from store.errors import CorruptionError, LayoutError, StoreError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.ledger.entry import KIND_NO_OP, ChainLink, Entry
from store.ledger.ledger import Ledger
from store.ledger.recovery import recover_ledger
from tests.store.entries import encode_entry
from tests.store.ledger.whole import check_whole
from tests.store.ledgers import (
    CONFIG,
    FILE,
    add,
    copy_ledger,
    data_file,
    grow,
    image,
    index_file,
    new_ledger,
    open_ledger,
)
from tests.store.overwrites import flip, overwrite
from tests.store.power_loss import PowerLossFileSystem
from tests.store.written_ranges import WrittenRanges


def entries(ledger: Ledger) -> list[Entry]:
    return [ledger.entry(n) for n in range(ledger.first_index, ledger.last_index + 1)]


# --- Torn tails ---


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_cut_at_every_byte(ledger: Ledger, tmp_path: Path, fill: int) -> None:
    """S08: after a cut at any byte of the last three batches, whole batches remain and no more."""
    ends = [add(ledger, records=2, size_bytes=10) for _ in range(6)]
    ledger.close()
    path, whole = data_file(tmp_path), data_file(tmp_path).read_bytes()
    for cut in range(ends[2], ends[5] + 1):
        tail = bytes([fill]) * min(200, FILE - cut)
        path.write_bytes((whole[:cut] + tail).ljust(FILE, b"\0"))
        ledger, report = open_ledger(tmp_path, ends[2])
        good = max(end for end in ends if end <= cut)
        assert ledger.max_position == good == report.end_position == ledger.flushed_position
        assert ledger.last_index == ends.index(good)
        assert report.first_cut_index == (
            -1 if report.cut_size_bytes == 0 else ledger.last_index + 1
        )
        ledger.close()
        assert path.read_bytes() == whole[:good].ljust(FILE, b"\0"), f"cut at {cut}"


def test_bytes_that_no_sync_has_proven_are_written_again(ledger: Ledger, tmp_path: Path) -> None:
    """S02: after a sync that failed the page cache holds pages as clean that the disk lacks. A sync
    succeeds then and writes nothing, so what the recovery accepts has to be written."""
    ends = [add(ledger) for _ in range(6)]
    ledger.close()
    fs, before = WrittenRanges(), data_file(tmp_path).read_bytes()
    ledger, _ = recover_ledger(
        fs, str(tmp_path), CONFIG, durable_position=ends[3], synced_position=ends[2]
    )
    ledger.close()
    assert (data_file(tmp_path).name, ends[2], ends[5]) in fs.ranges
    assert fs.ranges_at_sync[-1] == len(fs.ranges), "and synced"
    assert data_file(tmp_path).read_bytes() == before


def test_old_bytes_do_not_revive_after_two_crashes(ledger: Ledger, tmp_path: Path) -> None:
    """S07: a torn batch is cut, one of its size replaces it, and the old rest would line up."""
    ends = [add(ledger) for _ in range(6)]
    ledger.close()
    path = data_file(tmp_path)
    torn = bytearray(path.read_bytes())
    torn[ends[2] + 100] ^= 1  # Entry 3 is torn, 4 and 5 behind it are whole.
    path.write_bytes(torn)
    ledger, report = open_ledger(tmp_path, ends[2])
    assert report.cut_size_bytes == ends[5] - ends[2]
    assert path.read_bytes() == bytes(torn[: ends[2]]) + bytes(FILE - ends[2])
    ledger.stamper.next_offsets[(b"orders", 0)] = 9
    assert add(ledger) == ends[3]
    replaced = entries(ledger)
    ledger.close()
    ledger, report = open_ledger(tmp_path, ends[2])
    assert entries(ledger) == replaced
    assert report.cut_size_bytes == 0


def test_a_torn_entry_takes_the_files_behind_it_with_it(ledger: Ledger, tmp_path: Path) -> None:
    grow(ledger, Random(1), 3 * FILE + 500)
    index = ledger.index_at_position(FILE + 9000)
    at = ledger.position_of(index)
    ledger.close()
    path = data_file(tmp_path, FILE)
    flip(path, at - FILE + 50)
    ledger, report = open_ledger(tmp_path, at)
    assert (ledger.max_position, ledger.last_index, report.first_cut_index) == (
        at,
        index - 1,
        index,
    )
    assert [p.name for p in sorted(path.parent.iterdir())] == [f"{0:020d}", f"{FILE:020d}"]
    check_whole(ledger)


def test_a_blank_without_an_entry_behind_it_is_taken_back(ledger: Ledger, tmp_path: Path) -> None:
    """A crash right between the blank and the entry that did not fit."""
    grow(ledger, Random(2), FILE + 1)
    last = ledger.header(ledger.last_index - 1)
    end = last.position + last.size_bytes
    ledger.close()
    data_file(tmp_path, FILE).write_bytes(bytes(FILE))
    ledger, report = open_ledger(tmp_path, end)
    assert (ledger.max_position, ledger.last_index) == (end, last.entry_index)
    assert report.cut_size_bytes > 0
    assert ledger.append_entry(KIND_NO_OP, ledger.term, b"").position == end


class FewReads(FileSystem):
    """Refuses to read for ever."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def read_at(self, fd: int, path: str, at: int, size_bytes: int) -> bytes:
        self.left -= 1
        assert self.left > 0, "the opening does not come to an end"
        return super().read_at(fd, path, at, size_bytes)


@pytest.mark.parametrize("spare", [8, 30, 47])
def test_a_file_whose_end_was_not_filled_yet_ends_the_log(tmp_path: Path, spare: int) -> None:
    """Too little is left for another entry, and the blank was never written."""
    ledger = new_ledger(tmp_path)
    ledger.append_entry(KIND_NO_OP, 1, bytes(FILE - 48 - spare))
    ledger.close()
    ledger, report = open_ledger(tmp_path, FILE - spare, fs=FewReads(100))
    assert (ledger.max_position, report.cut_size_bytes) == (FILE - spare, 0)
    assert ledger.append_entry(KIND_NO_OP, 1, b"").position == FILE


@pytest.mark.parametrize("seed", range(12))
def test_truncate_then_crash(tmp_path: Path, seed: int) -> None:
    """S09: once a cut returned, no power loss brings an old entry back."""
    random = Random(seed)
    fs = PowerLossFileSystem()
    ledger, _ = open_ledger(tmp_path / "run", fs=fs)
    grow(ledger, random, random.randrange(1000, 3 * FILE))
    if random.random() < 0.7:
        ledger.sync()
    cut = random.randrange(ledger.last_index + 1)
    ledger.truncate_from(cut, commit_index=cut - 1)
    kept = entries(ledger)
    ledger.term += 1
    if random.random() < 0.7:
        grow(ledger, random, ledger.max_position + random.randrange(1, FILE))
    after = entries(ledger)
    synced = ledger.sync() if random.random() < 0.5 else ledger.flushed_position
    durable = ledger.durable_index
    fs.build_image(str(tmp_path / "run"), str(tmp_path / "image"), random)
    ledger.close()
    ledger, _ = open_ledger(tmp_path / "image", synced)
    recovered = entries(ledger)
    assert len(recovered) >= max(len(kept), durable + 1)
    assert recovered == after[: len(recovered)]
    check_whole(ledger)


@pytest.mark.parametrize("seed", range(25))
def test_power_loss_keeps_all_that_was_synced(tmp_path: Path, seed: int) -> None:
    """Appends, syncs, retention and a reset; whatever of the rest survives, what was synced is."""
    random = Random(seed)
    fs = PowerLossFileSystem()
    ledger, _ = open_ledger(tmp_path / "run", fs=fs)
    synced, durable = 0, -1
    for _ in range(random.randint(1, 25)):
        grow(ledger, random, ledger.max_position + random.randrange(1, FILE // 3))
        choice = random.random()
        if choice < 0.4:
            synced, durable = ledger.sync(), ledger.durable_index
        elif choice < 0.5:
            ledger.delete_first()
        elif choice < 0.53:
            index = ledger.last_index + random.randrange(2, 50)
            position = ledger.max_position + random.randrange(9999, 99999)
            ledger.reset(index, position, random.getrandbits(32), ledger.term)
            synced, durable = position, index - 1
    expected = {entry.entry_index: entry for entry in entries(ledger)}
    first = ledger.first_index
    fs.build_image(str(tmp_path / "run"), str(tmp_path / "image"), random)
    ledger.close()
    ledger, _ = open_ledger(tmp_path / "image", synced)
    assert ledger.first_index == first
    assert ledger.last_index >= durable
    assert ledger.flushed_position == ledger.max_position >= synced
    assert entries(ledger) == [expected[n] for n in range(first, ledger.last_index + 1)]
    check_whole(ledger)
    add(ledger)


# --- Where it begins ---


def test_only_files_from_the_mark_on_are_read(ledger: Ledger, tmp_path: Path) -> None:
    grow(ledger, Random(4), 6 * FILE + 5000)
    runs, tail = ledger.term_runs(), ledger.tail
    ledger.close()
    for mark, lo in ((tail.end_position, 6), (5 * FILE - 40, 4), (FILE, 1), (0, 0), (None, 4)):
        ledger, report = open_ledger(tmp_path, mark)
        assert report.scanned_from_position == lo * FILE
        assert report.scanned_size_bytes == tail.end_position - lo * FILE
        assert (ledger.tail, ledger.term_runs()) == (tail, runs), "older terms are looked up"
        assert len(runs) > 10
        ledger.close()


@pytest.mark.parametrize("what", ["first entry", "entry before", "unit before"])
def test_the_walk_begins_earlier_where_a_file_does_not_prove_what_is_before_it(
    ledger: Ledger, tmp_path: Path, what: str
) -> None:
    grow(ledger, Random(5), 4 * FILE + 5000)
    first = ledger.index_at_position(4 * FILE)
    before = ledger.header(first - 1)
    tail = ledger.tail
    ledger.close()
    if what == "unit before":
        path = next(
            p for p in sorted(index_file(tmp_path).parent.iterdir())
            if int(p.name) <= (first - 1) * 32 < int(p.name) + 4096
        )  # fmt: skip
        at = (first - 1) * 32 - int(path.name) + 20
    elif what == "entry before":
        path, at = data_file(tmp_path, 3 * FILE), before.position - 3 * FILE + 37
    else:
        path, at = data_file(tmp_path, 4 * FILE), 37
    flip(path, at)
    ledger, report = open_ledger(tmp_path, 3 * FILE - 40 if what != "unit before" else 4 * FILE + 9)
    if what == "unit before":
        assert report.scanned_from_position == 3 * FILE
        assert (ledger.tail, report.rewritten_unit_count) == (
            tail,
            tail.link.entry_index + 2 - first,
        )
        assert ledger.index.get(first - 1) is not None
    elif what == "entry before":
        assert ledger.last_index == first - 2
    else:
        assert ledger.last_index == first - 1


# --- The index ---


@pytest.mark.parametrize("damage", ["gone", "zero", "garbage", "odd size", "gap", "short", "late"])
@pytest.mark.parametrize("is_mark_known", [True, False])
def test_the_index_is_rebuilt_from_the_data(
    ledger: Ledger, tmp_path: Path, damage: str, is_mark_known: bool
) -> None:
    """Also when the walk would begin far behind what is missing."""
    grow(ledger, Random(6), 5 * FILE)
    while ledger.last_index < 450:
        ledger.append_entry(KIND_NO_OP, ledger.term, b"")
    end, last = ledger.max_position, ledger.last_index
    assert len(ledger.index.files.files) > 3
    ledger.close()
    good = image(tmp_path)
    paths = sorted(index_file(tmp_path).parent.iterdir())
    for number, path in enumerate(paths):
        if (
            damage == "gone"
            or (damage, number) in (("gap", 1), ("late", 0))
            or (damage == "short" and number >= 2)
        ):
            path.unlink()
        elif damage == "zero":
            path.write_bytes(bytes(4096))
        elif damage == "garbage":
            path.write_bytes(Random(number).randbytes(4096))
        elif damage == "odd size":
            path.write_bytes(path.read_bytes()[:-1])
    ledger, report = open_ledger(tmp_path, end if is_mark_known else 0)
    assert 0 < report.rewritten_unit_count <= last + 1
    assert [e.entry_index for e in entries(ledger)] == list(range(last + 1))
    assert (report.cut_size_bytes, ledger.max_position) == (0, end)
    ledger.close()
    assert image(tmp_path) == good


def test_the_units_of_the_oldest_entries_are_rebuilt_too(ledger: Ledger, tmp_path: Path) -> None:
    """The first data file holds two entries, and the index has a unit of the second one alone."""
    ledger.reset(127, 0, 0, 1)
    for _ in range(3):
        ledger.append_entry(KIND_NO_OP, 1, bytes(FILE // 3))
    end = ledger.max_position
    assert ledger.position_of(129) == FILE
    ledger.close()
    good = image(tmp_path)
    index_file(tmp_path).unlink()
    ledger, report = open_ledger(tmp_path, end)
    assert (report.scanned_from_position, report.rewritten_unit_count) == (0, 3)
    ledger.close()
    assert image(tmp_path) == good


def test_rewritten_index_units_are_durable(tmp_path: Path) -> None:
    fs = PowerLossFileSystem()
    ledger, _ = open_ledger(tmp_path / "run", fs=fs)
    add(ledger, 300)
    ledger.sync()
    ledger.close()
    for path in index_file(tmp_path / "run").parent.iterdir():
        path.write_bytes(bytes(4096))
    ledger, report = open_ledger(tmp_path / "run", 0, fs=fs)
    assert report.rewritten_unit_count == 300
    for seed in range(5):
        fs.build_image(str(tmp_path / "run"), str(tmp_path / f"{seed}"), Random(seed))
        assert image(tmp_path / f"{seed}") == image(tmp_path / "run")


def test_index_units_are_rewritten_from_the_first_difference_on(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    for _ in range(300):
        ledger.append_entry(KIND_NO_OP, 1, b"")
    ledger.close()
    good, path = image(tmp_path), index_file(tmp_path, 4096)
    flip(path, 10 * 32 + 30)
    index_file(tmp_path, 8192).write_bytes(b"\1" * 4096)
    ledger, report = open_ledger(tmp_path, 0)
    assert report.rewritten_unit_count == 300 - 138
    ledger.close()
    assert image(tmp_path) == good


def test_units_behind_the_end_are_removed(ledger: Ledger, tmp_path: Path) -> None:
    add(ledger, 300)
    at = ledger.position_of(100)
    ledger.close()
    short = new_ledger(tmp_path / "short")
    add(short, 100)
    short.close()
    path = data_file(tmp_path)
    for later in sorted(path.parent.iterdir())[at // FILE + 1 :]:
        later.unlink()
    path = data_file(tmp_path, at // FILE * FILE)
    path.write_bytes(path.read_bytes()[: at % FILE].ljust(FILE, b"\0"))
    ledger, report = open_ledger(tmp_path, at)
    assert (ledger.last_index, report.rewritten_unit_count, report.cut_size_bytes) == (99, 0, 0)
    ledger.close()
    assert image(tmp_path) == image(tmp_path / "short") | {}


# --- Refusals ---


def test_files_of_another_size_or_with_a_gap_are_refused_unchanged(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    grow(ledger, Random(7), 4 * FILE)
    ledger.close()
    path, before = data_file(tmp_path, FILE), image(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(LayoutError, match=f"expected {FILE} bytes, found {FILE - 1}"):
        open_ledger(tmp_path)
    path.unlink()
    with pytest.raises(LayoutError, match="expected the next file"):
        open_ledger(tmp_path)
    path.write_bytes(good)
    assert image(tmp_path) == before


def test_each_file_system_call_of_an_open_may_fail_once(tmp_path: Path) -> None:
    """The open is refused by name, and the next one finds what the first would have found."""
    source = tmp_path / "source"
    ledger = new_ledger(source)
    grow(ledger, Random(8), 3 * FILE + 100)
    ledger.delete_first()
    at = ledger.position_of(ledger.last_index - 20)
    ledger.close()
    path = data_file(source, at // FILE * FILE)
    flip(path, at % FILE + 45)
    index_file(source, 4096).write_bytes(bytes(4096))
    copy_ledger(source, tmp_path / "good")
    with failpoints.census() as passes:
        ledger, expected = open_ledger(tmp_path / "good", at)
        ledger.close()
    good = image(tmp_path / "good")
    calls = [(k, n) for k, v in passes.items() if k.startswith("fs.") for n in range(1, v + 1)]
    assert len(calls) > 30
    for name, nth in calls:
        root = tmp_path / f"{name}{nth}"
        copy_ledger(source, root)
        with failpoints.armed(f"{name}=EIO@{nth}"):
            try:
                open_ledger(root, at)[0].close()
            except StoreError:
                pass
        ledger, report = open_ledger(root, at)
        assert (report.end_position, report.last_index) == (at, expected.last_index)
        ledger.close()
        assert image(root) == good, f"{name} failed at pass {nth}"


# --- S05 and S16: what is above the durable mark may be cut, what is below it never is ---


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A log of five entries in one file, and where each begins; the last element is the end."""
    root = tmp_path_factory.mktemp("five")
    ledger = new_ledger(root)
    begins = [0, *(add(ledger, records=2) for _ in range(5))]
    ledger.close()
    return root, begins


DAMAGE = {  # Field: (byte of the entry, what is written there).
    "magic": (0, b"\0\0\0\0"),
    "size": (4, b"\0\0\1\0"),
    "index": (8, struct.pack(">q", 9)),
    "term": (16, struct.pack(">q", -1)),
    "position": (24, struct.pack(">q", 17)),
    "kind": (32, b"\0\0\0\7"),
    "chain CRC": (36, b"ABCD"),
    "body CRC": (60, b"flip"),
}


@pytest.mark.parametrize("field", DAMAGE)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_torn_tail_vs_corruption(
    tmp_path: Path, five: tuple[Path, list[int]], number: int, field: str
) -> None:
    """S05, D7: the same damage is a torn tail above the mark and corruption below it."""
    source, begins = five
    copy_ledger(source, tmp_path)
    path, at = data_file(tmp_path), begins[number]
    good = path.read_bytes()
    offset, wrong = DAMAGE[field]
    bad = good[: at + offset] + wrong + good[at + offset + len(wrong) :]
    path.write_bytes(bad)
    before = image(tmp_path)
    for mark in (begins[number] + 1, begins[number + 1]):
        with pytest.raises(CorruptionError) as caught:
            open_ledger(tmp_path, mark)
        error = caught.value
        assert (error.path, error.field) == (str(path), field)
        assert at <= error.at < at + 48
        assert error.expected != error.actual
        assert image(tmp_path) == before, "the evidence is kept"
    ledger, report = open_ledger(tmp_path, at)
    assert (ledger.last_index, ledger.max_position) == (number - 1, at)
    assert (report.first_cut_index, report.cut_size_bytes) == (number, begins[-1] - at)
    assert field in report.cut_reason
    ledger.close()
    assert path.read_bytes() == good[:at] + bytes(FILE - at)


def test_damage_in_a_blank_is_corruption_below_the_mark_and_a_tail_above(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path / "a")
    grow(ledger, Random(1), FILE + 1)
    last = ledger.last_index
    before = ledger.header(last - 1)
    lo = before.position + before.size_bytes
    ledger.close()
    path = data_file(tmp_path / "a")
    for at, field in ((lo, "magic"), (lo + 5, "blank size"), (lo + 9, "pad"), (FILE - 1, "pad")):
        target = tmp_path / f"{at}"
        copy_ledger(tmp_path / "a", target)
        bad = bytearray(path.read_bytes())
        bad[at] ^= 0x40
        data_file(target).write_bytes(bad)
        with pytest.raises(CorruptionError) as caught:
            open_ledger(target, lo + 1)
        assert (caught.value.path, caught.value.field) == (str(data_file(target)), field)
        assert caught.value.at == (lo + 4 if field == "blank size" else at if at > lo else lo)
        ledger, report = open_ledger(target, lo)
        assert (ledger.max_position, report.first_cut_index) == (lo, last)
        assert len(ledger.files.files) == 1
        ledger.close()


def test_too_few_bytes_are_corruption_too(tmp_path: Path, five: tuple[Path, list[int]]) -> None:
    copy_ledger(five[0], tmp_path)
    end = five[1][-1]
    with pytest.raises(CorruptionError, match="magic is 0, expected 1"):
        open_ledger(tmp_path, end + 1)
    for path in (tmp_path / "dledger-n0" / "data").iterdir():
        path.unlink()
    with pytest.raises(CorruptionError, match=r"log end .*expected bytes up to 1"):
        open_ledger(tmp_path, 1)
    ledger, _ = open_ledger(tmp_path, 0)
    assert ledger.last_index == -1


def _revive(ledger: Ledger, old: bytes) -> None:
    """Put old bytes right behind the end, as if they had never been zeroed."""
    last = ledger.files.files[-1]
    at = ledger.max_position - last.position
    overwrite(last, at, old)


def test_a_stale_entry_that_lines_up_never_chains(ledger: Ledger, tmp_path: Path) -> None:
    """Index, term, position and both sizes fit; only the history is another one."""
    ledger.append_entry(KIND_NO_OP, 1, b"aaaa")
    ledger.append_entry(KIND_NO_OP, 1, b"bbbb")
    old = ledger.read_range(1, 2, FILE)
    ledger.truncate_from(0, commit_index=-1)
    ledger.append_entry(KIND_NO_OP, 1, b"AAAA")
    _revive(ledger, old)
    ledger.close()
    ledger, report = open_ledger(tmp_path, 0)
    assert (ledger.last_index, report.cut_size_bytes) == (0, 52)
    assert "chain CRC" in report.cut_reason
    link = ChainLink(0, 1, ledger.tail.link.chain_crc)
    _revive(ledger, encode_entry(KIND_NO_OP, link, ledger.max_position, b"bbbb"))
    ledger.close()
    ledger, _ = open_ledger(tmp_path, 0)
    assert ledger.last_index == 1, "the test can tell: with the right chain it is taken"


@pytest.mark.parametrize("tail", [b"", b"\0\0\0\1", b"\xff" * 300, b"\xff\xff\xff\xff\0\0\1\0"])
@pytest.mark.parametrize("keep", [0, 7, 47, 48, 200])
def test_twice_is_once(
    tmp_path: Path, five: tuple[Path, list[int]], tail: bytes, keep: int
) -> None:
    """S16: the first recovery does all there is to do."""
    source, begins = five
    copy_ledger(source, tmp_path)
    path = data_file(tmp_path)
    path.write_bytes((path.read_bytes()[: begins[3] + keep] + tail).ljust(FILE, b"\0"))
    ledger, first = open_ledger(tmp_path, begins[2])
    ledger.close()
    once = image(tmp_path)
    ledger, second = open_ledger(tmp_path, begins[2])
    ledger.close()
    assert image(tmp_path) == once
    assert (first.end_position, second.end_position) == (begins[3], begins[3])
    assert (second.cut_size_bytes, second.first_cut_index, second.cut_reason) == (0, -1, "")
    assert second.rewritten_unit_count == 0
    assert once[f"data/{0:020d}"] == path.read_bytes()[: begins[3]].ljust(FILE, b"\0")
