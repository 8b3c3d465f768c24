"""The check of a range of entries: every kind of damage has its place, and nothing else is read."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.errors import CorruptionError, PositionRangeError
from store.files import failpoints
from store.ledger.entry import KIND_NO_OP
from store.ledger.ledger import Ledger
from store.ledger.verify import check_range
from tests.store.ledger.whole import check_whole, damage_of
from tests.store.ledgers import FILE, data_file, grow, index_file, new_ledger, open_ledger
from tests.store.overwrites import flip, overwrite


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

    def damage(self) -> tuple[str, int, str] | None:
        """The file, the byte and the field of the first damage."""
        problem = damage_of(self.ledger)
        return None if problem is None else (problem.path, problem.at, problem.field)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Damaged]:
    damaged = Damaged(tmp_path)
    yield damaged
    damaged.ledger.close()


def test_a_good_log_has_no_damage(log: Damaged) -> None:
    check_whole(log.ledger)
    check_range(log.ledger, 5, 20)
    with pytest.raises(PositionRangeError):
        check_range(log.ledger, log.ledger.last_index + 5, log.ledger.last_index + 6)


@pytest.mark.parametrize("field_at", [0, 5, 9, 18, 27, 35, 36, 39, 41, 46, 48, 60])
def test_each_damaged_entry_is_found_where_it_is(log: Damaged, field_at: int) -> None:
    last, first = log.ledger.last_index_before(FILE), log.ledger.index_at_position(FILE)
    for index in (2, last, first, log.ledger.last_index):  # Also beside a blank.
        assert log.ledger.header(index).size_bytes > 61
        path, at = log.place(index)
        flip(path, at + field_at)
        problem = damage_of(log.ledger)
        assert problem is not None
        assert problem.path == str(path)
        assert at <= problem.at < at + 48
        assert problem.expected != problem.actual
        flip(path, at + field_at)
    check_whole(log.ledger)


def test_blank_tail_and_hole_are_checked(log: Damaged) -> None:
    first = str(data_file(log.root))
    before = log.ledger.header(log.ledger.index_at_position(FILE) - 1)
    blank_at = before.position + before.size_bytes
    tail_at = log.ledger.max_position - 2 * FILE
    for at in (blank_at + 5, FILE - 1):
        flip(data_file(log.root), at)
        problem = log.damage()
        assert problem is not None
        assert problem[:2] == (first, blank_at + 4 if at < blank_at + 8 else at)
        flip(data_file(log.root), at)
    for at in (tail_at, FILE - 1):
        flip(data_file(log.root, 2 * FILE), at)
        assert log.damage() == (str(data_file(log.root, 2 * FILE)), at, "unused byte")
        flip(data_file(log.root, 2 * FILE), at)
    log.ledger.reset(100, 5 * FILE + 3000, 1, 99)
    assert log.damage() is None
    flip(data_file(log.root, 5 * FILE), 2999)
    assert log.damage() == (str(data_file(log.root, 5 * FILE)), 2999, "unused byte")


def test_an_index_that_disagrees_is_named_as_such(log: Damaged) -> None:
    first = str(index_file(log.root))
    flip(index_file(log.root), 7 * 32 + 11)
    assert log.damage() == (first, 7 * 32, "index unit of entry 7")
    flip(index_file(log.root), 7 * 32 + 11)
    while log.ledger.last_index < 130:
        log.ledger.append_entry(KIND_NO_OP, log.ledger.term, b"")
    flip(index_file(log.root, 4096), 2 * 32 + 11)
    second = str(index_file(log.root, 4096))
    assert log.damage() == (second, 2 * 32, "index unit of entry 130")


def test_a_bad_sector_is_damage(log: Damaged) -> None:
    last = log.ledger.last_index + 1
    with failpoints.census() as passes:
        check_range(log.ledger, 0, last)
    assert passes["fs.read"] > 5
    for nth in range(1, passes["fs.read"] + 1):
        with failpoints.armed(f"fs.read=EIO@{nth}"), pytest.raises(CorruptionError) as caught:
            check_range(log.ledger, 0, last)
        assert caught.value.field == "read"
        assert "Input/output error" in caught.value.actual


def test_only_the_range_that_was_asked_for_is_checked(log: Damaged) -> None:
    ledger = log.ledger
    path, at = log.place(ledger.last_index)
    flip(path, at + 37)
    last_file, end = ledger.index_at_position(2 * FILE), ledger.last_index + 1
    check_range(ledger, 0, last_file)
    with pytest.raises(CorruptionError):
        check_range(ledger, last_file, end)
    path, at = log.place(0)
    flip(path, at + 41)
    check_range(ledger, 1, 5)
    with pytest.raises(CorruptionError):
        check_range(ledger, 0, 5)


def test_an_entry_that_was_not_asked_for_is_no_damage_when_the_index_is_mute(log: Damaged) -> None:
    """Without the index the check reads on behind the range; what it meets there is left out."""
    path, at = log.place(21)
    flip(path, at + 37)
    overwrite(index_file(log.root), 20 * 32, bytes(32))
    with pytest.raises(CorruptionError) as caught:
        check_range(log.ledger, 0, 21)
    assert caught.value.field == "index unit of entry 20"
    check_range(log.ledger, 0, 20)


def test_a_file_that_takes_several_reads_is_good(
    log: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.ledger.verify.READ_SIZE_BYTES", FILE // 4)
    check_whole(log.ledger)
