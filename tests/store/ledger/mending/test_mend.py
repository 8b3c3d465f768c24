"""Damage in a ledger that is open: readers meet it, and it is repaired under them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from store.errors import (
    ClosedError,
    CorruptionError,
    DamageWiderError,
    FileSystemError,
    ForeignEntryError,
    PositionRangeError,
    SyncFailedError,
)
from store.files import failpoints
from store.ledger.entry import KIND_NO_OP, ChainLink, whole_entry
from store.ledger.ledger import Ledger
from store.ledger.mending import fetched as ledger_fetched
from store.ledger.mending import mend as ledger_mend
from store.ledger.mending.damage import DamagedRange
from store.ledger.mending.mend import damage_of
from store.ledger.walk import EntryBoundary
from store.log.record_log import AppendResult
from store.replicated.ledger_store import ReplicaStore
from tests.store.crash_check import must_not_die
from tests.store.entries import encode_entry
from tests.store.ledger import whole
from tests.store.ledger_stores import CONFIG, FILE, Wreck, make_wreck, open_replica
from tests.store.ledgers import image
from tests.store.overwrites import overwrite


@dataclass
class Open:
    """A store that is open, above a wreck that is damaged beneath it."""

    wreck: Wreck
    store: ReplicaStore
    ledger: Ledger

    def read_all(self) -> CorruptionError | None:
        """Do what a peer or a consumer does, in all of the log, up to the first error."""
        try:
            for index in range(self.ledger.first_index, self.ledger.last_index + 1):
                self.ledger.entry(index)
        except CorruptionError as error:
            return error
        return None

    def repair(self) -> int:
        """Read, fetch and repair until nothing is damaged; return how many ranges were."""
        for count in range(20):
            error = self.read_all()
            if error is None:
                return count
            ranges = self.store.damage_of(error)
            assert ranges, f"{error} named no range"
            lo, hi = ranges[0].lo_index, ranges[0].hi_index
            while True:
                try:
                    self.fix(lo, hi, self.wreck.raw(lo, hi))
                    break
                except DamageWiderError as wider:
                    hi = wider.hi_index
        raise AssertionError("it does not end")

    def append(self, data: bytes) -> AppendResult:
        return self.store.append_prepared(self.store.prepare(data), self.ledger.term)

    def fix(self, lo_index: int, hi_index: int, raw: bytes) -> None:
        self.store.repair_range(lo_index, hi_index, raw)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Wreck:
    return make_wreck(tmp_path_factory.mktemp("mend"), 3)


@pytest.fixture
def opened(made: Wreck) -> Iterator[Open]:
    with open_replica(made.renew().root) as store:
        ledger = store.log
        assert isinstance(ledger, Ledger)
        ledger.term = ledger.last_term
        yield Open(made, store, ledger)
    assert made.find() == []


def check_whole(opened: Open) -> None:
    whole.check_whole(opened.ledger)
    expected, mended = image(opened.wreck.intact), image(opened.wreck.root)
    assert {n: d for n, d in mended.items() if n in expected} == expected


@pytest.mark.parametrize("seed", range(24))
def test_damage_under_a_reader_is_repaired(opened: Open, seed: int) -> None:
    random, wreck = Random(seed), opened.wreck
    for _ in range(random.randint(1, 4)):
        spot = random.choice(wreck.spots)
        at = random.choice([random.randrange(48), random.randrange(spot.size_bytes)])
        wreck.flip(spot.position + at, random.randint(1, 255))
    if seed % 3 == 0:
        wreck.write(random.randrange(4) * FILE, bytes(FILE))
    assert opened.repair() > 0
    check_whole(opened)


def test_repaired_ranges_are_checked_again(opened: Open) -> None:
    ledger, spot = opened.ledger, opened.wreck.spots[3]
    ledger.check(spot.position, bytes(spot.size_bytes))
    assert ledger.checked.covers(spot.position, spot.end)
    opened.wreck.flip(spot.position + 50)
    opened.fix(3, 4, opened.wreck.raw(3, 4))
    assert not ledger.checked.covers(spot.position, spot.end)
    ledger.check(spot.position, bytes(spot.size_bytes))


def test_wrong_entries_are_refused_and_nothing_is_written(opened: Open) -> None:
    wreck, spot = opened.wreck, opened.wreck.spots[5]
    wreck.flip(spot.position + 50)
    before, good = image(wreck.root), wreck.raw(5, 6)
    wrong = [b"", good[:-1], wreck.raw(4, 5), wreck.raw(5, 7), bytes(len(good))]
    wrong += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good))]
    for raw in wrong:
        with pytest.raises(ForeignEntryError):
            opened.fix(5, 6, raw)
    for lo, hi in [(-1, 1), (5, len(wreck.spots) + 1), (6, 5)]:
        with pytest.raises(PositionRangeError):
            opened.fix(lo, hi, good)
    assert image(wreck.root) == before
    opened.fix(5, 6, good)
    check_whole(opened)


def test_entries_that_fit_the_one_before_and_not_the_one_behind_are_refused(opened: Open) -> None:
    """Another leader's entry of the same size: whole, well chained, and not the one of this log.
    Only what lies behind tells, and the end of the log where nothing does."""
    wreck, ledger = opened.wreck, opened.ledger
    last = ledger.last_index
    for index in (5, last):
        spot, entry = wreck.spots[index], ledger.entry(index)
        body = bytes([entry.body[0] ^ 1]) + bytes(entry.body[1:])
        before = ChainLink(index - 1, entry.term, ledger.entry(index - 1).chain_crc)
        other = encode_entry(entry.kind, before, spot.position, body)
        assert len(other) == len(wreck.raw(index, index + 1))
        wreck.flip(spot.position + 50)
        damaged = image(wreck.root)
        with pytest.raises((ForeignEntryError, DamageWiderError)):
            opened.fix(index, index + 1, other)
        assert image(wreck.root) == damaged, "nothing was written"
        opened.fix(index, index + 1, wreck.raw(index, index + 1))
    check_whole(opened)


def test_the_blank_of_a_file_is_written_again(opened: Open) -> None:
    """No entry lies in it, so nothing has to be fetched; what was there is kept aside."""
    wreck = opened.wreck
    before = next(
        spot
        for spot, following in pairwise(wreck.spots)
        if following.position // FILE > spot.position // FILE
    )
    size_bytes = FILE - before.end % FILE
    wreck.write(before.end, b"\xa5" * size_bytes)

    report = opened.store.repair_range(before.index + 1, before.index + 1, b"")

    assert report.entry_count == 0
    assert Path(report.kept_path).read_bytes() == b"\xa5" * size_bytes
    check_whole(opened)
    assert image(wreck.root) == image(wreck.intact)


def test_damaged_bytes_are_kept_aside(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more of it than the limit says; the oldest goes first."""
    monkeypatch.setattr(ledger_fetched, "KEPT_COUNT_MAX", 2)
    wreck, kept = opened.wreck, opened.wreck.root / "damaged"
    pairs = pairwise(wreck.spots)
    in_files = [spot.index for before, spot in pairs if before.end == spot.position]
    for count, index in enumerate(in_files[:3], 1):
        spot = wreck.spots[index]
        wreck.flip(spot.position + 50)
        damaged = wreck.data(spot.position).read_bytes()[spot.position % FILE :][: spot.size_bytes]
        report = opened.store.repair_range(index, index + 1, wreck.raw(index, index + 1))
        assert Path(report.kept_path).read_bytes() == damaged
        assert len(list(kept.iterdir())) == min(count, 2)
    before = sorted(kept.iterdir())
    spot = wreck.spots[in_files[0]]
    wreck.write(spot.position, bytes(spot.size_bytes))
    report = opened.store.repair_range(
        spot.index, spot.index + 1, wreck.raw(spot.index, spot.index + 1)
    )
    assert (report.kept_path, sorted(kept.iterdir())) == ("", before), "zeros are not"
    check_whole(opened)


def test_a_range_without_an_end_is_covered_when_its_last_byte_is() -> None:
    before = ChainLink(3, 1, 7)
    damaged = DamagedRange(4, 9, 100, 1000, before, 50, None, "all of it")
    assert ledger_fetched.covers(damaged, EntryBoundary(1000, ChainLink(8, 1, 0)))
    assert ledger_fetched.covers(damaged, EntryBoundary(1200, ChainLink(9, 1, 0)))
    assert not ledger_fetched.covers(damaged, EntryBoundary(999, ChainLink(8, 1, 0)))
    assert not ledger_fetched.covers(damaged, EntryBoundary(1000, ChainLink(7, 1, 0)))


def test_entries_behind_the_last_known_one_are_taken_up_to_the_end_of_the_range() -> None:
    """Its position counts where nothing good lies behind: the last index is a lower bound."""
    link, end, raw = ChainLink(3, 1, 7), 100, b""
    for _ in range(3):
        data, link = whole_entry(bytes(52), KIND_NO_OP, link, 1, end)
        raw, end = raw + data, end + len(data)
    start = EntryBoundary(100, ChainLink(3, 1, 7))
    damaged = DamagedRange(4, 5, 100, 400, start.link, 50, None, "all of it")
    for size_bytes in (100, 200, 300):
        checked = ledger_fetched.check_fetched(raw[:size_bytes], start, damaged, FILE)
        assert checked.hi_index == 4 + size_bytes // 100
    with pytest.raises(ForeignEntryError, match="position"):
        ledger_fetched.check_fetched(raw, start, damaged._replace(end_position=300), FILE)


def test_a_repair_that_cannot_be_read_back_is_an_error_and_is_repeated(opened: Open) -> None:
    spot = opened.wreck.spots[3]
    raw = opened.wreck.raw(3, 4)
    opened.wreck.flip(spot.position + 50)
    with failpoints.census() as counts:
        opened.fix(3, 4, raw)
    opened.wreck.flip(spot.position + 50)
    with failpoints.armed(f"fs.read=EIO@{counts['fs.read']}+"):
        with pytest.raises(CorruptionError) as caught:
            opened.fix(3, 4, raw)
        assert caught.value.field == "read"
    opened.fix(3, 4, raw)
    check_whole(opened)


def test_units_of_entries_that_are_gone_are_put_nowhere(ledger: Ledger, tmp_path: Path) -> None:
    """The log was replaced beside whoever compared its index with its entries."""
    for _ in range(3):
        ledger.append_entry(KIND_NO_OP, 1, b"")
    units = ledger.index.files.read(0, 3 * 32)
    assert not ledger_mend.mend_index(ledger, 0, units)
    ledger.reset(200, 8 * FILE, 7, 1)
    before = image(tmp_path)
    for index in (0, 127, 198, 200):
        assert not ledger_mend.mend_index(ledger, index, units)
    assert image(tmp_path) == before


def test_a_repair_that_fails_half_way_is_repeated(opened: Open) -> None:
    wreck = opened.wreck
    lo, hi = 2, len(wreck.spots)
    with failpoints.census() as counts:
        opened.fix(lo, hi, wreck.raw(lo, hi))
    assert counts["ledger_mend.write"] > 5
    for nth in range(1, counts["fs.write"] + 1):
        for spot in wreck.spots[lo:hi:2]:
            wreck.flip(spot.position + 48)
        with failpoints.armed(f"fs.write=EIO@{nth}"), pytest.raises(FileSystemError):
            opened.fix(lo, hi, wreck.raw(lo, hi))
        opened.fix(lo, hi, wreck.raw(lo, hi))
        check_whole(opened)


def test_damage_of_other_files_is_none(opened: Open, tmp_path: Path) -> None:
    for path in (str(tmp_path / f"{0:020d}"), f"{opened.ledger.files.directory}/{99 * FILE:020d}"):
        assert damage_of(opened.ledger, CorruptionError(path, 0, "x", "1", "2")) == []
    path = f"{opened.ledger.files.directory}/{FILE:020d}"
    assert damage_of(opened.ledger, CorruptionError(path, 0, "x", "1", "2")) == []
    path = f"{opened.ledger.files.directory}/no-data-file"
    assert damage_of(opened.ledger, CorruptionError(path, 0, "x", "1", "2")) == []


def test_damaged_bytes_are_never_served(opened: Open) -> None:
    """Neither to a peer nor to a reader; what lies beside them is."""
    ledger, wreck, last = opened.ledger, opened.wreck, opened.ledger.last_index + 1
    spot = wreck.spots[6]
    assert spot.end < ledger.checked.trusted_position, "it was walked by the opening"
    wreck.flip(spot.position + 50)
    whole = 1 << 20
    reads: list[Callable[[int, int], object]] = [
        lambda lo, hi: ledger.read_range(lo, hi, whole),
        ledger.read_entries,
        lambda lo, hi: ledger.check(wreck.spots[lo].position, bytes(wreck.spots[lo].size_bytes)),
    ]
    for read in reads:
        with pytest.raises(CorruptionError) as caught:
            read(6, 7)
        [damaged] = opened.store.damage_of(caught.value)
        assert (damaged.lo_index, damaged.hi_index) == (6, 7)
        read(5, 6)
        read(7, 8)
    with pytest.raises(CorruptionError):
        ledger.read_entries(0, last)
    opened.fix(6, 7, wreck.raw(6, 7))
    assert ledger.read_entries(0, last) == wreck.raw(0, last)


def test_a_failed_sync_of_a_repair_is_fatal(made: Wreck) -> None:
    fatal: list[BaseException] = []
    store = ReplicaStore.open(str(made.renew().root), made.config, on_fatal=fatal.append)
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError):
        store.repair_range(3, 4, made.raw(3, 4))
    assert [type(error) for error in fatal] == [SyncFailedError]
    with pytest.raises(SyncFailedError):
        store.close()
    with pytest.raises(ClosedError):
        store.repair_range(3, 4, made.raw(3, 4))


# --- A replicated store ---


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[ReplicaStore]:
    """Twenty entries, of which readers see ten."""
    with ReplicaStore.open(str(tmp_path), CONFIG, on_fatal=must_not_die) as store:
        for _ in range(20):
            store.append_own(KIND_NO_OP, 1, bytes(500))
        store.dispatch_to(store.ledger.end_of(9))
        yield store


def spoil(store: ReplicaStore, index: int) -> bytes:
    """Damage an entry on disk; return what it was."""
    raw, position = store.ledger.read_entries(index, index + 1), store.ledger.position_of(index)
    file = store.ledger.files.file_at(position)
    overwrite(file.path, position - file.position + 60, b"\xa5")
    return raw


def test_only_what_is_never_cut_is_repaired(replica: ReplicaStore) -> None:
    """The rest may be cut beside the repair, which would put old bytes where new ones belong."""
    raw = spoil(replica, 10)
    with pytest.raises(PositionRangeError):
        replica.repair_range(10, 11, raw)
    replica.dispatch_to(replica.ledger.end_of(19))
    assert replica.repair_range(10, 11, raw).entry_count == 1
    whole.check_whole(replica.ledger)


def test_a_log_that_is_replaced_beside_its_repair_is_left_alone(
    replica: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, end = spoil(replica, 3), replica.ledger.end_of(19)
    error = CorruptionError(replica.ledger.files.files[0].path, 0, "body CRC", "1", "2")
    assert [d.lo_index for d in replica.damage_of(error)] == [3]
    keep_aside = ledger_fetched.keep_aside

    def restart(*arguments: Any) -> str:
        kept = keep_aside(*arguments)
        replica.restart(end, ChainLink(19, 1, 77), {})
        return kept

    monkeypatch.setattr(ledger_mend, "keep_aside", restart)
    with pytest.raises(PositionRangeError):
        replica.repair_range(3, 4, raw)
    whole.check_whole(replica.ledger)
    for file in replica.ledger.files.files:
        assert not any(Path(file.path).read_bytes())
    assert replica.damage_of(error) == []
