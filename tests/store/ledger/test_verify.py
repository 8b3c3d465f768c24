"""The full check: every kind of damage is one finding with its place, and the walk goes on."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.errors import PositionRangeError
from store.files import failpoints
from store.ledger.entry import KIND_NO_OP
from store.ledger.ledger import Ledger
from store.ledger.verify import LedgerFinding, verify_range
from tests.store.ledgers import FILE, data_file, grow, index_file, new_ledger, open_ledger


class Damaged:
    """An open ledger of three files whose bytes on disk are changed under it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        made = new_ledger(root)
        grow(made, Random(1), 2 * FILE + 20_000)
        end = made.max_position
        made.close()
        self.ledger: Ledger = open_ledger(root, end)[0]

    def place(self, index: int) -> tuple[Path, int]:
        position = self.ledger.position_of(index)
        return data_file(self.root, position // FILE * FILE), position % FILE

    def write(self, path: Path, at: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def flip(self, path: Path, at: int) -> None:
        self.write(path, at, bytes([path.read_bytes()[at] ^ 1]))

    def findings(self) -> list[LedgerFinding]:
        return list(verify_range(self.ledger))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Damaged]:
    damaged = Damaged(tmp_path)
    yield damaged
    damaged.ledger.close()


def test_a_good_log_has_no_findings(log: Damaged) -> None:
    assert log.findings() == []
    assert list(verify_range(log.ledger, 5, 20)) == []
    with pytest.raises(PositionRangeError):
        list(verify_range(log.ledger, log.ledger.last_index + 5))


@pytest.mark.parametrize("field_at", [0, 5, 9, 18, 27, 35, 36, 39, 41, 46, 48, 60])
def test_each_damaged_entry_is_one_finding_and_the_next_ones_are_checked(
    log: Damaged, field_at: int
) -> None:
    """The entry behind a damaged one is found, and its own chain is still proven."""
    last, first = log.ledger.last_index_before(FILE), log.ledger.index_at_position(FILE)
    chosen = [2, 3, 7, last, first, first + 4]  # Neighbours, also with a blank between them.
    if field_at in (36, 39):  # Two broken chains in a row would make the third one a suspect.
        chosen = [2, 7, last, first + 4]
    assert all(log.ledger.header(n).size_bytes > 61 for n in chosen)
    places = [log.place(index) for index in chosen]
    for path, at in places:
        log.flip(path, at + field_at)
    found = log.findings()
    assert [f.path for f in found] == [str(path) for path, _ in places], found
    for finding, (_, at) in zip(found, places, strict=True):
        assert at <= finding.at < at + 48
        assert finding.expected != finding.found


def test_a_zeroed_page_is_found_and_the_next_file_is_checked(log: Damaged) -> None:
    log.write(data_file(log.root), 8192, bytes(8192))
    path, at = log.place(log.ledger.index_at_position(FILE + 5000))
    log.flip(path, at + 37)
    found = log.findings()
    assert [f.path for f in found][-1] == str(path)
    assert at <= found[-1].at < at + 48
    assert found[0].path == str(data_file(log.root))
    assert 8192 - 4096 < found[0].at < 16384


def test_a_file_without_any_good_entry_is_told_and_left(log: Damaged) -> None:
    lo, hi = (log.ledger.index_at_position(n * FILE) for n in (1, 2))
    log.write(data_file(log.root, FILE), 0, b"\xaa" * FILE)
    found = log.findings()
    assert [(f.path, f.field) for f in found] == [
        *[(str(data_file(log.root, FILE)), "magic")] * (hi - lo),
        (str(data_file(log.root, 2 * FILE)), "chain CRC"),
    ], "the first entry behind it cannot be proven, and that is said"


def test_blank_tail_and_hole_are_checked(log: Damaged, tmp_path: Path) -> None:
    before = log.ledger.header(log.ledger.index_at_position(FILE) - 1)
    blank_at = before.position + before.size_bytes
    tail_at = log.ledger.max_position - 2 * FILE
    for at in (blank_at + 5, FILE - 1):
        log.flip(data_file(log.root), at)
        found = log.findings()
        assert [(f.path, f.at) for f in found] == [
            (str(data_file(log.root)), blank_at + 4 if at < blank_at + 8 else at)
        ]
        log.flip(data_file(log.root), at)
    for at in (tail_at, FILE - 1):
        log.flip(data_file(log.root, 2 * FILE), at)
        assert [(f.at, f.field) for f in log.findings()] == [(at, "unused byte")]
        assert list(verify_range(log.ledger, check_unwritten=False)) == []
        log.flip(data_file(log.root, 2 * FILE), at)
    log.ledger.reset(100, 5 * FILE + 3000, 1, 99)
    assert log.findings() == []
    log.flip(data_file(log.root, 5 * FILE), 2999)
    assert [(f.at, f.field) for f in log.findings()] == [(2999, "unused byte")]


def test_an_index_that_disagrees_is_named_as_such(log: Damaged) -> None:
    log.flip(index_file(log.root), 7 * 32 + 11)
    found = log.findings()
    assert [(f.path, f.at) for f in found] == [(str(index_file(log.root)), 7 * 32)]
    assert found[0].field == "index unit of entry 7"
    log.flip(index_file(log.root), 7 * 32 + 11)
    while log.ledger.last_index < 130:
        log.ledger.append_entry(KIND_NO_OP, log.ledger.term, b"")
    log.flip(index_file(log.root, 4096), 2 * 32 + 11)
    assert [(f.path, f.at, f.field) for f in log.findings()] == [
        (str(index_file(log.root, 4096)), 2 * 32, "index unit of entry 130")
    ]


def test_a_bad_sector_is_a_finding_and_not_an_error(log: Damaged) -> None:
    with failpoints.census() as passes:
        assert log.findings() == []
    assert passes["fs.read"] > 5
    for nth in range(1, passes["fs.read"] + 1):
        with failpoints.armed(f"fs.read=EIO@{nth}"):
            found = log.findings()
        assert found[0].field == "read"
        assert "Input/output error" in found[0].found
        assert len(found) <= 2, "and perhaps one entry whose link could not be proven"


def test_only_the_range_that_was_asked_for_is_checked(log: Damaged) -> None:
    path, at = log.place(log.ledger.last_index)
    log.flip(path, at + 37)
    last_file = log.ledger.index_at_position(2 * FILE)
    assert list(verify_range(log.ledger, 0, last_file)) == []
    assert len(list(verify_range(log.ledger, last_file))) == 1
    path, at = log.place(last_file - 1)
    log.flip(path, at + 3)
    assert [f.field for f in verify_range(log.ledger, last_file)] != []
    path, at = log.place(0)
    log.flip(path, at + 41)
    assert [f.field for f in verify_range(log.ledger, 0, 5)] != []
    assert list(verify_range(log.ledger, 1, 5)) == []


def test_a_log_that_is_being_written_can_be_checked(log: Damaged) -> None:
    steps = verify_range(log.ledger, check_unwritten=False)
    log.flip(*log.place(2))
    first = next(steps)
    for _ in range(50):
        log.ledger.append_entry(KIND_NO_OP, log.ledger.term, bytes(3000))
    assert first.path == str(data_file(log.root))
    assert list(steps) == []


def test_an_entry_that_nobody_asked_for_is_no_finding_when_the_index_is_mute(log: Damaged) -> None:
    """Without the index the walk reads on behind the range; what it meets there is left out."""
    log.write(index_file(log.root), 19 * 32, bytes(32))
    path, at = log.place(21)
    log.flip(path, at + 37)
    log.write(index_file(log.root), 20 * 32, bytes(32))
    assert [f.field for f in verify_range(log.ledger, 0, 21)] == ["index unit of entry 19"]


def test_a_file_that_takes_several_reads_is_good(
    log: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.ledger.verify._READ_SIZE_BYTES", FILE // 4)
    assert log.findings() == []


def test_the_size_of_the_body_alone_tells_where_the_next_entry_is(log: Damaged) -> None:
    for index in (5, 9):
        path, at = log.place(index)
        log.flip(path, at + 6)
    log.write(index_file(log.root), 5 * 32, bytes(32))
    found = log.findings()
    assert [f.path for f in found] == [str(data_file(log.root))] * 2
    assert at <= found[1].at < at + 48, "the walk went on right behind the first one"


def test_two_neighbours_without_a_place_in_the_index_leave_the_rest_of_their_file(
    log: Damaged,
) -> None:
    first_path, first_at = log.place(5)
    later_path, later_at = log.place(log.ledger.index_at_position(FILE) + 3)
    path, at = log.place(6)
    log.flip(first_path, first_at + 60)
    log.flip(path, at)
    log.write(index_file(log.root), 6 * 32, bytes(32))
    log.flip(later_path, later_at + 3)
    found = log.findings()
    assert found[0].path == str(first_path)
    assert first_at <= found[0].at < at
    assert found[-1].path == str(later_path), "and the next file is checked"


def test_a_size_that_leads_to_a_later_entry_is_not_believed(log: Damaged) -> None:
    sizes = [log.ledger.header(index).size_bytes for index in (5, 6)]
    log.write(index_file(log.root), 5 * 32 + 12, sum(sizes).to_bytes(4, "big"))
    path, at = log.place(5)
    log.flip(path, at + 60)
    assert len(log.findings()) == 1, "the entry behind it is found by its own size"
