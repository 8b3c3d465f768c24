"""Damage below the mark: found with its bounds, refetched, and byte for byte as it was.

A wreck is a closed store of five small files beside an intact copy, which plays the peer.
"""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from store.errors import (
    CorruptionError,
    DamageWiderError,
    ForeignEntryError,
    LayoutError,
    LockedError,
    SnapshotNeededError,
    StoreError,
)
from store.files import failpoints
from store.format import (
    BLANK_SIZE_BYTES_MIN,
    ENTRY_BLANK,
    ENTRY_MAGIC_BLANK,
    ENTRY_SIZE_BYTES_MAX,
)
from store.fsck.check import Check
from store.fsck.layout import GivenSettings
from store.fsck.types import no_progress
from store.ledger.entry import KIND_NO_OP, ChainLink, whole_entry
from store.ledger.mending.damage import DamagedRange, DamageWalk, Goal
from store.ledger.mending.fetched import KEPT_COUNT_MAX, RepairReport
from store.ledger.walk import EntryBoundary
from store.replicated.repair import RepairSession, find_damage
from tests.seeds import some_of
from tests.store.entries import encode_entry
from tests.store.ledger_stores import (
    CONFIG,
    FILE,
    Spot,
    Wreck,
    fetch,
    make_restarted,
    make_wreck,
    open_store,
    peer,
)
from tests.store.ledgers import image, open_ledger
from tests.store.overwrites import overwrite
from tests.store.power_loss import SECTOR, PowerLossFileSystem


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Wreck:
    return make_wreck(tmp_path_factory.mktemp("wreck"))


@pytest.fixture
def wreck(made: Wreck) -> Wreck:
    """A wreck that is whole at first."""
    return made.renew()


def check_repaired(wreck: Wreck) -> None:
    """It is equal to the intact one, and opens as if nothing had been."""
    assert wreck.find() == []
    with open_store(wreck.root) as store:
        assert store.recovery.cut_size_bytes == 0
        assert store.recovery.end_position == wreck.end_position
    assert wreck.is_equal()


def entry_at(wreck: Wreck, position: int) -> Spot | None:
    return next((s for s in wreck.spots if s.position <= position < s.end), None)


def test_a_whole_ledger_has_no_damage(wreck: Wreck) -> None:
    before = image(wreck.root)
    assert wreck.find() == []
    assert image(wreck.root) == before
    assert find_damage(str(wreck.root / "not-there"), CONFIG) == []


def test_any_flipped_byte_is_found_and_repaired(wreck: Wreck) -> None:
    random = Random(5)
    header_bytes = [s.position + random.randrange(48) for s in wreck.spots]
    middle = wreck.spots[len(wreck.spots) // 2].position
    positions = random.sample(range(wreck.end_position), 60) + header_bytes
    positions += range(middle, middle + 48)
    for position in positions:
        wreck.flip(position, 1 << random.randrange(8))
        repaired = wreck.repair()
        assert len(repaired) == 1, f"byte {position}"
        damaged, spot = repaired[0], entry_at(wreck, position)
        if spot is None:  # In a blank.
            assert damaged.lo_index == damaged.hi_index
        else:
            assert (damaged.lo_index, damaged.hi_index) == (spot.index, spot.index + 1)
            assert damaged.position <= spot.position < spot.end <= damaged.end_position
        assert wreck.is_equal(), f"byte {position}"
    check_repaired(wreck)


@pytest.mark.parametrize(
    "fill", [b"\0", *(pytest.param(one, marks=pytest.mark.long) for one in (b"\xff", b"\x01"))]
)
def test_any_lost_sector_is_repaired(wreck: Wreck, fill: bytes) -> None:
    for position in range(0, wreck.end_position // SECTOR * SECTOR, SECTOR):
        wreck.write(position, fill * SECTOR)
        repaired = wreck.repair()
        assert len(repaired) <= 1
        assert wreck.is_equal(), f"sector {position}: {repaired}"
        wreck.heal()
    check_repaired(wreck)


def lose_file(wreck: Wreck, number: int) -> None:
    wreck.data(number * FILE).unlink()


def zero_file(wreck: Wreck, number: int) -> None:
    wreck.write(number * FILE, bytes(FILE))


def cut_file(wreck: Wreck, number: int) -> None:
    with wreck.data(number * FILE).open("r+b") as file:
        file.truncate(FILE // 3)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("harm", [lose_file, zero_file, cut_file])
def test_a_lost_file_is_made_again(
    wreck: Wreck, harm: Callable[[Wreck, int], None], number: int
) -> None:
    harm(wreck, number)
    if number == 4:  # Of older files an opening sees only names and sizes.
        with pytest.raises((CorruptionError, LayoutError)):
            open_ledger(wreck.root, wreck.end_position, config=CONFIG)
    repaired = wreck.repair()
    assert len(repaired) == 1
    assert repaired[0].position <= number * FILE + FILE // 3
    assert (repaired[0].after is None) == (number == 4)
    check_repaired(wreck)


def test_all_data_files_are_lost(wreck: Wreck) -> None:
    shutil.rmtree(wreck.data(0).parent)
    repaired = wreck.repair()
    assert [(d.lo_index, d.hi_index) for d in repaired] == [(0, len(wreck.spots))]
    check_repaired(wreck)


@pytest.mark.parametrize("seed", some_of(range(30), 4))
def test_damage_at_many_places_and_no_index(wreck: Wreck, seed: int) -> None:
    random = Random(seed)
    for _ in range(random.randint(2, 6)):
        position = random.randrange(wreck.end_position)
        if random.random() < 0.5:
            wreck.flip(position, random.randint(1, 255))
        else:
            size_bytes = min(random.randint(1, 700), FILE - position % FILE)
            wreck.write(position, random.randbytes(size_bytes))
    if random.random() < 0.3:
        wreck.data(random.randrange(4) * FILE).unlink(missing_ok=True)
    index = wreck.root / "dledger-n0" / "index"
    if random.random() < 0.5:
        shutil.rmtree(index)
    elif random.random() < 0.5:
        for path in index.iterdir():
            path.write_bytes(random.randbytes(path.stat().st_size))
    repaired = wreck.repair(piece_size_bytes=random.choice([1, 500, 100_000]))
    assert repaired
    for one, other in itertools.pairwise(repaired):
        assert one.end_position < other.position, "ranges next to each other are one"
    with open_store(wreck.root):
        pass
    assert data_of(wreck.root) == data_of(wreck.intact)
    assert wreck.find() == []


def repair(root: str, damaged: DamagedRange, raw_entries: bytes) -> RepairReport:
    with RepairSession(root, CONFIG, damaged) as session:
        session.add(raw_entries)
        return session.finish()


def data_of(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in image(root).items() if name.startswith("data/")}


def test_the_blank_at_a_file_end_needs_no_peer(wreck: Wreck) -> None:
    last = next(s for s in wreck.spots if entry_at(wreck, s.end) is None)
    wreck.write(last.end, b"\xa5" * (FILE - last.end))
    [damaged] = wreck.find()
    assert damaged[:4] == (last.index + 1, last.index + 1, last.end, FILE)
    assert repair(str(wreck.root), damaged, b"").entry_count == 0
    check_repaired(wreck)


def test_a_blank_that_any_entry_would_have_fitted_into_is_damage() -> None:
    """Each of its bytes is as it must be, but nobody writes one so early."""
    room, start = ENTRY_SIZE_BYTES_MAX + BLANK_SIZE_BYTES_MIN, ChainLink(-1, 0, 0)

    def reason(file_size_bytes: int) -> str:
        data = ENTRY_BLANK.pack(ENTRY_MAGIC_BLANK, file_size_bytes).ljust(file_size_bytes, b"\0")
        goal = Goal(file_size_bytes, -1)
        walk = DamageWalk(lambda at, size: data[at : at + size], file_size_bytes, goal)
        problem = walk.next_run(EntryBoundary(0, start)).problem
        return "" if problem is None else f"{problem.field}: {problem.expected}"

    assert reason(room) == ""
    assert reason(room + 1) == f"blank: {room} bytes at most"


def test_entries_next_to_each_other_are_one_range(wreck: Wreck) -> None:
    lo, hi = wreck.spots[6], wreck.spots[9]
    wreck.flip(lo.position + 60)  # A body, a header and a body.
    wreck.flip(wreck.spots[7].position + 20)
    wreck.flip(wreck.spots[8].position + 60)
    wreck.flip(wreck.spots[15].position)
    ranges = wreck.find()
    assert [(d.lo_index, d.hi_index) for d in ranges] == [(6, 9), (15, 16)]
    damaged = ranges[0]
    assert (damaged.position, damaged.end_position) == (lo.position, hi.position)
    assert damaged.before.entry_index == 5
    assert damaged.after is not None
    assert damaged.after.entry_index == 9
    assert damaged.reason.startswith("body CRC is")
    wreck.repair()
    check_repaired(wreck)


def test_entries_above_the_mark_are_not_damage(wreck: Wreck) -> None:
    """What was never durable is a torn tail: the opening cuts it."""
    overwrite(wreck.data(wreck.end_position), wreck.end_position % FILE, b"\x01" * 100)
    assert wreck.find() == []
    with open_store(wreck.root) as store:
        assert store.recovery.cut_size_bytes == 100


def test_the_start_is_damaged(wreck: Wreck) -> None:
    ledger, _ = open_ledger(wreck.root, wreck.end_position, config=CONFIG)
    assert ledger.delete_first() == FILE
    ledger.close()
    start = wreck.root / "dledger-n0" / "start.0"  # The newer of the two that a first save makes.
    whole = start.read_bytes()
    start.write_bytes(whole[:-3] + b"???")
    with pytest.raises(SnapshotNeededError, match="start"):
        wreck.find()
    start.write_bytes(whole)
    first = next(s for s in wreck.spots if s.position == FILE)
    wreck.flip(first.position)
    assert [d[:3] for d in wreck.find()] == [(first.index, first.index + 1, FILE)]
    wreck.repair()
    assert wreck.find() == []
    wreck.heal()


@pytest.mark.parametrize("position", [5 * FILE + 1234, 6 * FILE - 30])
def test_a_log_that_began_behind_a_snapshot(tmp_path: Path, position: int) -> None:
    wreck = make_restarted(tmp_path, position)
    assert wreck.find() == []
    first, last = wreck.spots[0], wreck.spots[-1]
    assert first.index == 100
    for spot in (first, wreck.spots[5], last):
        wreck.flip(spot.position + 9)
    repaired = wreck.repair(piece_size_bytes=1)
    assert (repaired[0].lo_index, repaired[0].before_position) == (100, -1)
    assert repaired[0].before == ChainLink(99, 3, 0x12345678)
    assert [d.after is None for d in repaired] == [False, False, True]
    assert wreck.find() == []
    assert wreck.is_equal()
    wreck.data(position).unlink()
    [damaged] = wreck.repair()
    assert (damaged.lo_index, damaged.position) == (100, position)
    assert wreck.find() == []
    assert wreck.is_equal()


def test_files_with_other_names_are_no_part_of_the_log(wreck: Wreck) -> None:
    """Names as long as ours, and numbers that are shorter."""
    data = wreck.data(0).parent
    for name in ("x" * 20, "12345", "0" * 19 + "x"):
        (data / name).write_bytes(b"somebody's")
    assert wreck.find() == []
    for name in ("x" * 20, "12345", "0" * 19 + "x"):
        (data / name).unlink()


def test_an_open_store_and_foreign_files_are_refused(wreck: Wreck) -> None:
    with open_store(wreck.root), pytest.raises(LockedError):
        wreck.find()
    odd = wreck.data(0).with_name(f"{FILE // 2:020d}")
    odd.write_bytes(bytes(FILE))
    with pytest.raises(LayoutError):
        wreck.find()
    odd.unlink()


@pytest.mark.parametrize("seed", some_of(range(8)))
def test_a_check_of_the_store_names_the_same_ranges(wreck: Wreck, seed: int) -> None:
    random = Random(seed)
    for _ in range(3):
        wreck.flip(random.randrange(wreck.end_position), random.randint(1, 255))
    if seed % 3 == 0:
        wreck.data(random.randrange(5) * FILE).unlink()
    check = Check(str(wreck.root), GivenSettings(file_size_bytes=FILE))
    assert list(check.run(no_progress))
    assert check.damaged_ranges() == wreck.find()


# --- What a peer sends ---


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def test_wrong_bytes_are_refused_and_nothing_is_written(wreck: Wreck) -> None:
    for spot in wreck.spots[6:9]:
        wreck.flip(spot.position + 50)
    [damaged] = wreck.find()
    root, before = str(wreck.root), image(wreck.root)
    good, more, fewer = wreck.raw(6, 9), wreck.raw(6, 10), wreck.raw(6, 8)
    other = [wreck.raw(5, 9), wreck.raw(7, 9)]
    for raw in [
        *(flipped(good, at) for at in range(0, len(good), 7)),
        *other,
        more,
        fewer,
        good[:-1],
        good + b"\0",
        b"",
        bytes(len(good)),
    ]:
        with pytest.raises(ForeignEntryError):
            repair(root, damaged, raw)
    assert image(wreck.root) == before
    repair(root, damaged, good)
    repair(root, damaged, good)
    check_repaired(wreck)


def forge(damaged: DamagedRange, position: int, term: int) -> bytes:
    """An entry that could stand there, and never did."""
    before = damaged.before._replace(term=term)
    size_bytes = damaged.end_position - position
    return encode_entry(KIND_NO_OP, before, position, bytes(size_bytes - 48))


@pytest.mark.parametrize("term", [0, 99])
def test_another_history_is_refused(wreck: Wreck, term: int) -> None:
    """Its entry is whole and follows the one before, but not the ones that we have behind."""
    wreck.flip(wreck.spots[8].position + 50)
    [damaged] = wreck.find()
    before = image(wreck.root)
    raw = forge(damaged, damaged.position, damaged.before.term + term)
    with RepairSession(str(wreck.root), CONFIG, damaged) as session:
        session.add(raw)
        with pytest.raises(DamageWiderError) as caught:
            session.finish()
        assert caught.value.lo_index == session.next_index == 9
        assert session.damaged.end_position == wreck.end_position
        assert not session.is_complete
    assert image(wreck.root) == before
    lower = damaged.before._replace(term=damaged.before.term - 1)
    raw = encode_entry(KIND_NO_OP, lower, damaged.position, b"")
    with pytest.raises(ForeignEntryError, match="term"):
        repair(str(wreck.root), damaged, raw)


def test_stale_entries_behind_the_damage_are_fetched_too(wreck: Wreck) -> None:
    """A lost write left the entries of another history, whole in themselves."""
    at, position = 8, wreck.spots[8].position
    stale, link = b"", ChainLink(at - 1, 0, 12345)  # Not the chain of what is before.
    for spot in wreck.spots[at : at + 3]:
        link = link._replace(term=spot.term)
        entry = encode_entry(KIND_NO_OP, link, spot.position, bytes(spot.size_bytes - 48))
        link = ChainLink(spot.index, 0, int.from_bytes(entry[36:40], "big"))
        stale += entry
    assert position // FILE == (position + len(stale)) // FILE
    wreck.write(position, stale)
    repaired = wreck.repair()
    assert [d.lo_index for d in repaired] == [at, at + 3]
    check_repaired(wreck)


@pytest.mark.parametrize("index", [3, 1_000_000])
def test_entries_that_cannot_be_so_few_or_so_many_bytes_later_end_no_damage(
    wreck: Wreck, index: int
) -> None:
    """Whole in themselves, each followed by the next: of another history, by their indexes."""
    wreck.flip(wreck.spots[8].position + 8)
    link = ChainLink(index - 1, wreck.spots[8].term, 12345)
    for spot in wreck.spots[9:11]:
        data, link = whole_entry(
            bytes(spot.size_bytes - 48), KIND_NO_OP, link, link.term, spot.position
        )
        wreck.write(spot.position, data)
    assert [(d.lo_index, d.hi_index) for d in wreck.repair()] == [(8, 11)]
    check_repaired(wreck)


def test_damaged_bytes_are_kept_aside(wreck: Wreck) -> None:
    root, kept = str(wreck.root), wreck.root / "damaged"
    for count in range(KEPT_COUNT_MAX + 3):
        spot = wreck.spots[4 + count % 3]
        wreck.flip(spot.position + 50)
        [damaged] = wreck.find()
        data = wreck.data(spot.position).read_bytes()[spot.position % FILE : spot.end % FILE]
        raw = wreck.raw(spot.index, spot.index + 1)
        report = repair(root, damaged, raw)
        assert Path(report.kept_path).read_bytes() == data
        assert (report.entry_count, report.last_index) == (1, spot.index)
        assert report.size_bytes == len(raw)
        assert len(list(kept.iterdir())) == min(count + 1, KEPT_COUNT_MAX)
    check_repaired(wreck)


# --- Failures in the middle ---


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_each_call_fails_once(wreck: Wreck, every: int) -> None:
    """A repair that stops anywhere leaves damage that is found again, and never more of it."""

    def harm() -> None:
        wreck.heal()
        wreck.data(2 * FILE).unlink()
        wreck.flip(wreck.spots[3].position + 8)
        (wreck.root / "dledger-n0" / "index" / f"{0:020d}").write_bytes(bytes(128 * 32))

    harm()
    with failpoints.census() as counts:
        wreck.repair()
    harm()
    lost = wreck.find()
    case_count = 0
    for name in sorted(name for name in counts if name.startswith(("fs.", "ledger_repair."))):
        for nth in range(1, counts[name] + 1, every):
            harm()
            with failpoints.armed(f"{name}=EIO@{nth}"):
                try:
                    for damaged in lost:
                        with (
                            peer(wreck.intact, CONFIG) as source,
                            RepairSession(str(wreck.root), CONFIG, damaged) as session,
                        ):
                            fetch(session, source)
                except (StoreError, OSError):
                    case_count += 1
            for damaged in wreck.find():
                assert any(
                    old.position <= damaged.position and damaged.end_position <= old.end_position
                    for old in lost
                ), f"{name}@{nth}: {damaged} is new"
            wreck.repair()
            assert wreck.find() == [], f"{name}@{nth}"
            with open_store(wreck.root) as store:
                assert store.recovery.end_position == wreck.end_position
            assert wreck.is_equal(), f"{name}@{nth}"
    assert case_count > 25
    assert {"ledger_repair.write", "ledger_repair.sync", "ledger_repair.keep"} <= counts.keys()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_a_power_loss_at_any_call(wreck: Wreck, tmp_path: Path, seed: int) -> None:
    """What a power loss leaves of a repair is damaged where it was before, or nowhere."""
    random, images = Random(seed), list[Path]()
    wreck.data(2 * FILE).unlink()
    wreck.flip(wreck.spots[3].position + 8)
    lost, fs = wreck.find(), PowerLossFileSystem()
    fs.adopt(str(wreck.root))

    def before_call(_: str) -> None:
        images.append(tmp_path / f"image{len(images)}")
        fs.build_image(str(wreck.root), str(images[-1]), Random(random.random()))

    fs.before_call = before_call
    with peer(wreck.intact, CONFIG) as source:
        for damaged in lost:
            with RepairSession(str(wreck.root), CONFIG, damaged, fs=fs) as session:
                fetch(session, source)
    fs.before_call = lambda _: None
    assert len(images) > 20
    for root in [*images, wreck.root]:
        left = replace(wreck, root=root)
        for damaged in left.find():
            assert any(
                old.position <= damaged.position and damaged.end_position <= old.end_position
                for old in lost
            )
        left.repair()
        check_repaired(left)
