"""Scrubbing: every byte of what is sealed is read from the disk again, and no damage is missed."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from store.errors import CorruptionError, FileSystemError, PositionRangeError
from store.files.file_system import FileSystem
from store.ledger.ledger import Ledger
from store.ledger.mending.mend import damage_of
from store.ledger.start import LogStart
from store.maintenance.scrub import CommitLogScrubber, LedgerScrubber, Piece, Scrubber
from store.replicated.shipped_store import ShippedStore
from tests.store.ledger_stores import CONFIG, FILE, Wreck, make_wreck
from tests.store.ledgers import image, index_file, open_ledger
from tests.store.overwrites import overwrite
from tests.store.shipped_stores import filled, sync
from tests.store.shipped_stores import open_store as open_shipped

STEP_COUNT_MAX = 1000


def pass_of(scrubber: Scrubber) -> list[Piece]:
    """Step until a pass ends; return its pieces."""
    pieces: list[Piece] = []
    while not (pieces and pieces[-1].ends_pass):
        pieces.append(scrubber.step())
        assert len(pieces) < STEP_COUNT_MAX, "the pass does not end"
    return pieces


def damage(pieces: list[Piece]) -> list[tuple[str, int]]:
    """File and byte of each damaged place."""
    return [(Path(p.damage.path).name, p.damage.at) for p in pieces if p.damage is not None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Wreck:
    return make_wreck(tmp_path_factory.mktemp("scrub"), 5)


@pytest.fixture
def wreck(made: Wreck) -> Wreck:
    return made.renew()


def open_wreck(wreck: Wreck, fs: FileSystem | None = None) -> Ledger:
    return open_ledger(wreck.root, wreck.end_position, fs=fs, config=CONFIG)[0]


@pytest.fixture
def ledger(wreck: Wreck) -> Iterator[Ledger]:
    with closing(open_wreck(wreck)) as opened:
        yield opened


def scrubber(ledger: Ledger) -> LedgerScrubber:
    return LedgerScrubber(ledger, lambda: ledger.max_position)


# --- A ledger ---


def test_a_pass_reads_all_sealed_files_and_names_the_end_of_each(ledger: Ledger) -> None:
    scrub = scrubber(ledger)
    files = scrub.sealed()
    assert len(files) == len(ledger.files.files) - 1 >= 3
    for _ in range(2):
        pieces = pass_of(scrub)
        assert sum(piece.size_bytes for piece in pieces) == scrub.sealed_size_bytes
        assert sum(file.size_bytes for file in files) == scrub.sealed_size_bytes
        assert damage(pieces) == []
        lasts = [piece.last for piece in pieces if piece.last is not None]
        assert lasts == [ledger.link_before(file) for file in ledger.files.files[1:]]


def test_only_what_readers_see_is_read(ledger: Ledger) -> None:
    scrub = LedgerScrubber(ledger, lambda: 2 * FILE)
    assert [file.position for file in scrub.sealed()] == [0, FILE]
    assert sum(piece.size_bytes for piece in pass_of(scrub)) == 2 * FILE
    assert pass_of(LedgerScrubber(ledger, lambda: FILE - 1)) == [Piece(ends_pass=True)]


@pytest.mark.parametrize("seed", range(5))
def test_no_flipped_bit_is_missed(wreck: Wreck, ledger: Ledger, seed: int) -> None:
    """Headers, bodies and blanks, while the ledger is open; the rest of the log is read as well."""
    random, scrub = Random(seed), scrubber(ledger)
    for _ in range(20):
        spots = sorted({random.randrange(file * FILE, (file + 1) * FILE) for file in (0, 2)})
        bits = random.randint(1, 255)
        for position in spots:
            wreck.flip(position, bits)
        pieces = pass_of(scrub)
        names = [name for name, _ in damage(pieces)]
        assert names == [wreck.data(position).name for position in spots], spots
        for piece in pieces:
            if piece.damage is not None:
                assert damage_of(ledger, piece.damage), "whoever repairs must find it, too"
        for position in spots:
            wreck.flip(position, bits)
        assert damage(pass_of(scrub)) == []


def test_trusted_ranges_with_damage_are_not_served(wreck: Wreck, ledger: Ledger) -> None:
    """A process does not compare what it wrote by itself; a scrub makes it."""
    ledger.checked.trusted_position = 0
    spot = next(spot for spot in wreck.spots if spot.position > FILE)
    index = spot.index
    wreck.flip(spot.end - 1)
    damaged = ledger.read_range(index, index + 1, FILE)
    assert damaged != wreck.raw(index, index + 1)
    assert damage(pass_of(scrubber(ledger))) == [(wreck.data(FILE).name, spot.position - FILE + 40)]
    with pytest.raises(CorruptionError):
        ledger.read_range(index, index + 1, FILE)
    assert ledger.read_range(0, 1, FILE) == wreck.raw(0, 1)
    wreck.flip(spot.end - 1)
    assert ledger.read_range(index, index + 1, FILE) == wreck.raw(index, index + 1)


def test_a_file_of_zeros_is_one_damage(wreck: Wreck, ledger: Ledger) -> None:
    wreck.write(FILE, bytes(FILE))
    pieces = pass_of(scrubber(ledger))
    assert damage(pieces) == [(wreck.data(FILE).name, 0)]
    assert pieces[-2].last == ledger.link_before(ledger.files.files[-1])


def test_damage_up_to_the_end_of_the_log_ends_the_pass(wreck: Wreck, ledger: Ledger) -> None:
    for position in range(FILE, wreck.end_position // FILE * FILE + 1, FILE):
        wreck.write(position, bytes(FILE))
    pieces = pass_of(scrubber(ledger))
    assert damage(pieces) == [(wreck.data(FILE).name, 0)]
    assert pieces[-1].ends_pass
    for position in (FILE, 3 * FILE, wreck.end_position - 1):
        assert not ledger.checked.covers(position, position + 1), "nothing of it is served"


class Bad(FileSystem):
    """Cannot read one byte of one file, and notes what is asked of data files."""

    def __init__(self) -> None:
        super().__init__()
        self.position = -1
        self.asked: list[tuple[str, str, int, int]] = []

    def read_at(self, fd: int, path: str, position: int, size_bytes: int) -> bytes:
        start = int(Path(path).name) if Path(path).name.isdecimal() else -1
        self.asked.append(("read", path, position, position + size_bytes))
        if start >= 0 and position <= self.position - start < position + size_bytes:
            raise FileSystemError("read", path, 5)
        return super().read_at(fd, path, position, size_bytes)

    def forget_cached(self, fd: int, path: str, position: int, size_bytes: int) -> None:
        self.asked.append(("forget", path, position, position + size_bytes))
        super().forget_cached(fd, path, position, size_bytes)


def test_a_sector_that_cannot_be_read_is_damage(wreck: Wreck) -> None:
    fs = Bad()
    with closing(open_wreck(wreck, fs)) as ledger:
        fs.position = 2 * FILE + 5000
        pieces = pass_of(scrubber(ledger))
        assert [name for name, _ in damage(pieces)] == [wreck.data(2 * FILE).name]
        fs.position = -1
        assert damage(pass_of(scrubber(ledger))) == []


class OnceWrong(FileSystem):
    """Reads one byte of a data file wrong, once."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position
        self.is_armed = False

    def read_at(self, fd: int, path: str, position: int, size_bytes: int) -> bytes:
        data = super().read_at(fd, path, position, size_bytes)
        directory, name = Path(path).parent.name, Path(path).name
        at = self.position - position - (int(name) if name.isdecimal() else 0)
        if self.is_armed and directory == "data" and 0 <= at < size_bytes:
            self.is_armed = False
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data


def test_a_range_that_is_good_when_read_again_is_no_damage(wreck: Wreck) -> None:
    """A read went wrong once, or the place was repaired in between."""
    fs = OnceWrong(FILE + 20)  # In the first header of a file, where a piece begins.
    with closing(open_wreck(wreck, fs)) as ledger:
        scrub = scrubber(ledger)
        fs.is_armed = True
        pieces = pass_of(scrub)
        assert not fs.is_armed
        assert damage(pieces) == []
        assert sum(piece.size_bytes for piece in pieces) == scrub.sealed_size_bytes


def test_damage_that_reaches_into_the_next_file_is_served_from_neither(
    wreck: Wreck, ledger: Ledger
) -> None:
    ledger.checked.trusted_position = 0
    number = next(n for n, spot in enumerate(wreck.spots) if spot.position == 2 * FILE)
    before, damaged, after = wreck.spots[number - 1 : number + 2]
    wreck.write(before.position, bytes(2 * FILE - before.position))
    wreck.flip(damaged.end - 1)
    assert damage(pass_of(scrubber(ledger))) == [(wreck.data(FILE).name, before.position - FILE)]
    for spot in (before, damaged):
        with pytest.raises(CorruptionError):
            ledger.read_range(spot.index, spot.index + 1, FILE)
    for good in (before.index - 1, after.index):
        assert ledger.read_range(good, good + 1, FILE) == wreck.raw(good, good + 1)


def test_checked_ranges_leave_the_page_cache_before_a_read(wreck: Wreck) -> None:
    fs = Bad()
    with closing(open_wreck(wreck, fs)) as ledger:
        del fs.asked[:]
        pass_of(scrubber(ledger))
        calls = [each for each in fs.asked if Path(each[1]).parent.name == "data"]
        assert {what for what, *_ in calls} == {"read", "forget"}
        forgotten: tuple[str, str, int, int] = ("", "", 0, 0)
        for each in calls:
            if each[0] == "forget":
                forgotten = each
            else:
                assert each[1] == forgotten[1]
                assert forgotten[2] <= each[2] < each[3] <= forgotten[3]
        assert calls[-1][0] == "forget", "nothing stays behind"


def test_a_wrong_index_is_put_right(wreck: Wreck, ledger: Ledger) -> None:
    before = image(wreck.root)
    path = index_file(wreck.root)
    overwrite(path, 3 * 32 + 8, b"\xff\xff")
    assert image(wreck.root) != before
    scrub = scrubber(ledger)
    pieces = pass_of(scrub)
    assert [piece.is_index_mended for piece in pieces].count(True) == 1
    assert damage(pieces) == []
    assert image(wreck.root) == before
    assert not any(piece.is_index_mended for piece in pass_of(scrub))


def test_a_file_that_expires_beside_a_pass_is_left_out(ledger: Ledger) -> None:
    scrub = scrubber(ledger)
    assert scrub.step().size_bytes
    ledger.delete_first()
    ledger.delete_first()
    assert scrub.step() == Piece()
    assert sum(piece.size_bytes for piece in pass_of(scrub)) == scrub.sealed_size_bytes > 0


def test_a_log_that_is_replaced_beside_a_step_is_no_damage(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrub = scrubber(ledger)
    read = ledger.files.file_at

    def replaced(position: int) -> object:
        monkeypatch.setattr(ledger.files, "file_at", read)
        ledger.reset(9001, 64 * FILE, 1, ledger.last_term)
        return read(position)

    monkeypatch.setattr(ledger.files, "file_at", replaced)
    assert scrub.step() == Piece()
    assert pass_of(scrub) == [Piece(ends_pass=True)]


class Moving:
    """Moves the start of a ledger behind its first file right after the nth look at it, as the
    deletion of a file does before the file goes."""

    def __init__(self, patch: pytest.MonkeyPatch, ledger: Ledger, nth: int) -> None:
        self._ledger, self._start = ledger, ledger.start
        self._next = ledger.start_at(ledger.files.files[1])
        self._left = nth
        patch.setattr(Ledger, "start", property(self._get, self._set), raising=False)

    def _get(self, ledger: Ledger) -> LogStart:
        start = self._start
        self._left -= 1
        if self._left == 0:
            ledger._take_start(self._next)
        return start

    def _set(self, _: Ledger, start: LogStart) -> None:
        self._start = start


def test_the_term_of_an_entry_that_expires_beside_the_look_is_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scrubber and reads ask for it on their threads; an assertion would end the node."""
    first, term = ledger.first_index, ledger.term_at(ledger.first_index)
    Moving(monkeypatch, ledger, 1)
    assert ledger.term_at(first) == term
    assert ledger.first_index > first
    with pytest.raises(PositionRangeError):
        ledger.term_at(first)


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_log_whose_start_moves_beside_the_look_has_no_damage(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The place of the old start and the link of the new one do not belong together."""
    error = CorruptionError(ledger.files.files[0].path, 0, "entry", "whole", "damaged")
    Moving(monkeypatch, ledger, nth)
    assert damage_of(ledger, error) == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 0.6, 0.93, 0.999])
def test_a_pass_may_begin_anywhere(ledger: Ledger, share: float) -> None:
    """Also in the middle of a file: or its end would not be read by who is restarted often."""
    scrub = scrubber(ledger)
    scrub.begin_at(share)
    pieces = pass_of(scrub)
    assert damage(pieces) == []
    wanted = (1 - share) * scrub.sealed_size_bytes
    assert abs(sum(piece.size_bytes for piece in pieces) - wanted) < FILE / 2
    assert sum(piece.size_bytes for piece in pass_of(scrub)) == scrub.sealed_size_bytes


def test_a_pass_that_begins_at_damage_begins_with_its_file(wreck: Wreck, ledger: Ledger) -> None:
    wreck.write(FILE, bytes(FILE))
    scrub = scrubber(ledger)
    scrub.begin_at(1.5 * FILE / scrub.sealed_size_bytes)
    assert damage(pass_of(scrub)) == [(wreck.data(FILE).name, 0)]


# --- A plain log ---


def filled_scrubber(store: ShippedStore) -> CommitLogScrubber:
    filled(store, 300, size_bytes=100)
    sync(store)
    return CommitLogScrubber(store.shipped, lambda: store.shipped.end_position)


def test_a_plain_log_is_read_as_far_as_its_checksums_reach(tmp_path: Path) -> None:
    with open_shipped(tmp_path / "store") as store:
        scrub = filled_scrubber(store)
        files = scrub.sealed()
        assert len(files) >= 3
        pieces = pass_of(scrub)
        assert damage(pieces) == []
        assert sum(piece.size_bytes for piece in pieces) == scrub.sealed_size_bytes
        body_at = files[1].read(files[1].position, 4000).index(b"......")
        overwrite(files[1].path, body_at, b"?")
        places = damage(pass_of(scrub))
        assert [name for name, _ in places] == [Path(files[1].path).name]


def test_a_plain_file_that_cannot_be_read_is_damage_and_the_next_one_is_read(
    tmp_path: Path,
) -> None:
    fs = Bad()
    with open_shipped(tmp_path / "store", fs) as store:
        scrub = filled_scrubber(store)
        files = scrub.sealed()
        fs.position = files[0].position + 100
        pieces = pass_of(scrub)
        assert [name for name, _ in damage(pieces)] == [Path(files[0].path).name]
        assert sum(piece.size_bytes for piece in pieces) == scrub.sealed_size_bytes
        fs.position = -1
