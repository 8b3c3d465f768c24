"""Cuts, retention and snapshots of a ledger, and every file-system call of them failing once."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.errors import (
    CorruptionError,
    FileSystemError,
    LayoutError,
    PositionRangeError,
    StoreError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile
from store.ledger.entry import KIND_NO_OP
from store.ledger.ledger import Ledger
from store.ledger.start import FIELDS
from tests.store.ledger.whole import check_whole
from tests.store.ledgers import (
    FILE,
    add,
    append_raw,
    data_file,
    grow,
    image,
    index_file,
    new_ledger,
    open_ledger,
    ship,
)
from tests.store.overwrites import flip
from tests.store.records import BORN, batch


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "dledger-n0" / "data").iterdir())


# --- Truncation ---


@pytest.mark.parametrize("cut", [0, 1, 9, -1, -2, -20])
def test_a_cut_leaves_the_bytes_of_a_log_that_never_had_more(tmp_path: Path, cut: int) -> None:
    ledger, shorter = new_ledger(tmp_path / "a"), new_ledger(tmp_path / "b")
    grow(ledger, Random(1), 3 * FILE)
    index = cut % (ledger.last_index + 1)
    if index:
        raw_hi = index
        while shorter.last_index < raw_hi - 1:
            append_raw(shorter, ledger.read_range(shorter.last_index + 1, raw_hi, FILE))
    ledger.sync()
    ledger.truncate_from(index, commit_index=index - 1)
    assert ledger.tail == shorter.tail
    assert ledger.term_runs() == shorter.term_runs()
    assert ledger.flushed_position == ledger.max_position, "durable on return"
    mine, other = image(tmp_path / "a"), image(tmp_path / "b")
    for path, data in mine.items():  # A first file stays when all is cut.
        assert data == other.get(path, bytes(len(data))), path
    shorter.term = ledger.term
    grow(shorter, Random(2), shorter.max_position + FILE)
    while ledger.last_index < shorter.last_index:
        lo = ledger.last_index + 1
        append_raw(ledger, shorter.read_range(lo, shorter.last_index + 1, FILE))
    assert image(tmp_path / "a") == image(tmp_path / "b")


def test_committed_entries_are_never_cut(ledger: Ledger) -> None:
    add(ledger, 5)
    with pytest.raises(AssertionError, match="cut from 3, committed up to 3"):
        ledger.truncate_from(3, commit_index=3)
    assert ledger.last_index == 4
    ledger.truncate_from(5, commit_index=3)
    assert ledger.last_index == 4


@pytest.mark.parametrize("then", ["append", "append raw", "the same cut", "another cut"])
def test_a_cut_that_was_stopped_is_finished_before_anything_else(tmp_path: Path, then: str) -> None:
    ledger = new_ledger(tmp_path)
    add(ledger, 20)
    end = ledger.position_of(5)
    raw = ledger.read_range(5, 6, FILE)
    with failpoints.armed("fs.write=EIO@1+"):
        with pytest.raises(FileSystemError):
            ledger.truncate_from(5, commit_index=4)
        assert ledger.last_index == 4, "gone for readers"
        assert not ledger.has_room_at_hand(48), "nothing goes there before it is finished"
        with pytest.raises(PositionRangeError):
            ledger.read(end, 48)
        with pytest.raises(PositionRangeError):
            ledger.view(end, 48)
        with pytest.raises(FileSystemError):
            add(ledger)
        assert data_file(tmp_path).read_bytes()[end : end + 4] == b"\0\0\0\1", "not zeroed yet"
    match then:
        case "append":
            ledger.append_entry(KIND_NO_OP, 1, bytes(len(raw) - 48))
        case "append raw":
            append_raw(ledger, raw)
        case "the same cut":
            ledger.truncate_from(5, commit_index=4)
        case _:
            ledger.truncate_from(4, commit_index=3)
            end = ledger.max_position
    end += len(raw) if then.startswith("append") else 0
    assert ledger.max_position == end
    assert data_file(tmp_path).read_bytes()[end:] == bytes(FILE - end)
    rest = index_file(tmp_path).read_bytes()[(ledger.last_index + 1) * 32 :]
    assert rest == bytes(len(rest))


def test_room_at_hand_is_never_that_of_a_file_that_was_cut_off(ledger: Ledger) -> None:
    for size_bytes in (FILE - 1000, 2000, 0):
        ledger.append_entry(KIND_NO_OP, 1, bytes(size_bytes))
    assert ledger.position_of(1) == FILE
    assert ledger.has_room_at_hand(2000)

    ledger.truncate_from(1, commit_index=0)

    assert not ledger.has_room_at_hand(2000)
    assert ledger.append_entry(KIND_NO_OP, 1, bytes(2000)).position == FILE


# --- Retention ---


def test_retention_moves_the_first_index_and_the_first_entry_stays_checked(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert ledger.delete_first() == 0
    grow(ledger, Random(3), 5 * FILE)
    entries = [ledger.entry(n) for n in range(ledger.last_index + 1)]
    assert ledger.delete_first() == FILE
    assert ledger.delete_first() == FILE
    first = ledger.first_index
    assert ledger.position_of(first) == 2 * FILE == ledger.min_position
    assert names(tmp_path) == [fmt.file_name(n * FILE) for n in range(2, 6)]
    with pytest.raises(PositionRangeError):
        ledger.entry(first - 1)
    expected = [entries[first + n].term for n in range(-1, 3)]
    assert [ledger.term_at(first + n) for n in range(-1, 3)] == expected
    assert ledger.chain_crc_at(first - 1) == entries[first - 1].chain_crc
    runs = ledger.term_runs()
    assert runs[0] == (first, entries[first].term)
    ledger.close()
    ledger, report = open_ledger(tmp_path)
    assert report.entry_count == len(entries) - first
    assert ledger.term_runs() == runs
    assert [ledger.entry(n) for n in range(first, len(entries))] == entries[first:]
    check_whole(ledger)
    ledger.close()
    # The term: nothing but the chain from the deleted entry covers it here.
    flip(data_file(tmp_path, 2 * FILE), 16 + 7)
    with pytest.raises(CorruptionError, match=r"term|chain CRC"):
        open_ledger(tmp_path, 2 * FILE + 1)


def test_the_last_file_with_an_entry_is_never_deleted(ledger: Ledger, tmp_path: Path) -> None:
    grow(ledger, Random(4), FILE + 100)
    assert ledger.delete_first() == FILE
    assert ledger.delete_first() == 0
    assert names(tmp_path) == [fmt.file_name(FILE)]


@pytest.mark.parametrize("how", ["cut", "torn"])
def test_a_log_that_lost_all_behind_retention_goes_on_where_others_expect_it(
    ledger: Ledger, tmp_path: Path, how: str
) -> None:
    """The next entry fits behind the last deleted one, so that is where all replicas put it."""
    grow(ledger, Random(4), FILE + 100)
    first = ledger.last_index
    before, chain_crc = ledger.header(first - 1), ledger.chain_crc_at(first - 1)
    assert ledger.delete_first() == FILE
    if how == "cut":
        ledger.truncate_from(first, commit_index=first - 1)
    else:
        ledger.close()
        data_file(tmp_path, FILE).write_bytes(b"torn".ljust(FILE, b"\1"))
        ledger, report = open_ledger(tmp_path)
        assert (report.first_cut_index, report.last_index) == (first, first - 1)
        ledger.term = before.term
    end = before.position + before.size_bytes
    assert ledger.max_position == ledger.flushed_position == end
    assert (ledger.first_index, ledger.tail.link.chain_crc) == (first, chain_crc)
    assert ledger.append_entry(KIND_NO_OP, before.term, b"").position == end
    ledger.sync()
    ledger.close()
    ledger, _ = open_ledger(tmp_path, end)
    check_whole(ledger)
    assert ledger.last_index == first


def test_a_cut_behind_retention_keeps_what_is_before_it(ledger: Ledger, tmp_path: Path) -> None:
    """The log begins in a file that is gone; only a cut of its very first entry goes back there."""
    grow(ledger, Random(4), 2 * FILE + 3000)
    ledger.delete_first()
    cut = ledger.last_index - 2
    kept = [ledger.entry(n) for n in range(ledger.first_index, cut)]
    assert kept, "there is something to keep"

    ledger.truncate_from(cut, commit_index=cut - 1)

    assert ledger.last_index == cut - 1
    assert [ledger.entry(n) for n in range(ledger.first_index, cut)] == kept
    ledger.sync()
    ledger.close()
    ledger, _ = open_ledger(tmp_path, kept[-1].position)
    assert [ledger.entry(n) for n in range(ledger.first_index, cut)] == kept


def _delete_in_steps(ledger: Ledger) -> None:
    deletion = ledger.deletion(1)
    assert deletion.write_start()
    assert deletion.forget()
    deletion.remove()


@pytest.mark.parametrize("delete", [Ledger.delete_first, _delete_in_steps])
def test_retention_deletes_index_files_that_nobody_needs(
    ledger: Ledger, tmp_path: Path, delete: Callable[[Ledger], object]
) -> None:
    while ledger.max_position < 2 * FILE + 9000:
        ledger.append_entry(KIND_NO_OP, 1, bytes(150))
    for _ in range(2):
        delete(ledger)
        kept = [int(path.name) for path in sorted(index_file(tmp_path).parent.iterdir())]
        assert kept[0] > 4096
        assert kept[0] <= ledger.first_index * 32 < kept[0] + 4096
        for index in (ledger.first_index, ledger.last_index):
            assert ledger.index.get(index) is not None


@pytest.mark.parametrize("at", [3, 11, 15, 20, 39])
def test_a_file_stays_while_the_next_one_does_not_begin_with_its_entry(
    ledger: Ledger, tmp_path: Path, at: int
) -> None:
    """Its magic, its index, its term or its chain: the start of the log would be a wrong one."""
    grow(ledger, Random(5), 2 * FILE)
    following = ledger.files.files[1]
    flip(following, at, 1)
    for delete in (Ledger.delete_first, _delete_in_steps):
        with pytest.raises(CorruptionError) as caught:
            delete(ledger)
        assert caught.value.path == following.path
    assert (ledger.first_index, names(tmp_path)[0]) == (0, fmt.file_name(0))
    flip(following, at, 1)
    assert ledger.delete_first() == FILE


def test_an_opening_deletes_what_was_the_logs_and_nothing_else(tmp_path: Path) -> None:
    """A crash left a file below the start, and others have left names that are shorter."""
    ledger = new_ledger(tmp_path)
    grow(ledger, Random(5), 2 * FILE)
    expired = data_file(tmp_path).read_bytes()
    ledger.delete_first()
    ledger.close()
    data_file(tmp_path).write_bytes(expired)
    other = data_file(tmp_path).with_name("000")
    other.write_bytes(b"somebody's")
    open_ledger(tmp_path)[0].close()
    assert not data_file(tmp_path).exists()
    assert other.read_bytes() == b"somebody's"


def test_a_log_whose_first_files_or_start_are_missing_is_refused(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    grow(ledger, Random(5), 3 * FILE)
    ledger.delete_first()
    ledger.close()
    start = sorted((tmp_path / "dledger-n0").glob("start.*"))
    kept = [path.read_bytes() for path in start]
    for path in start:
        path.unlink()
    with pytest.raises(LayoutError, match=f"{fmt.file_name(0)} as the first file"):
        open_ledger(tmp_path)
    for path, data in zip(start, kept, strict=True):
        path.write_bytes(data)
    data_file(tmp_path, FILE).unlink()
    with pytest.raises(LayoutError, match=f"{fmt.file_name(FILE)} as the first file"):
        open_ledger(tmp_path)
    for path in data_file(tmp_path).parent.iterdir():
        path.unlink()
    with pytest.raises(LayoutError, match=f"{fmt.file_name(FILE)} as the first file"):
        open_ledger(tmp_path)


def test_a_start_that_is_no_number_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    grow(ledger, Random(5), 2 * FILE)
    ledger.delete_first()
    ledger.close()
    directory = tmp_path / "dledger-n0"
    start = MetaFile(FileSystem(), str(directory), "start")
    good = start.load(must_exist=True)
    assert good is not None
    for name in FIELDS:
        for wrong in ("7", None, -2):
            start.save({**good, name: wrong})
            with pytest.raises(CorruptionError, match=f"start: {name}"):
                open_ledger(tmp_path)
    start.save(good)
    open_ledger(tmp_path)[0].close()


# --- Snapshots ---


@pytest.mark.parametrize("wanted", [FILE + 5000, 2 * FILE - 1])
def test_a_log_that_starts_behind_a_snapshot_goes_on_like_the_leaders(
    tmp_path: Path, wanted: int
) -> None:
    """Also when the position lies in the middle of a file, or in the blank at its end."""
    leader, follower = new_ledger(tmp_path / "a"), new_ledger(tmp_path / "b")
    grow(leader, Random(6), 3 * FILE)
    grow(follower, Random(7), FILE + 700)  # Another history, which the snapshot replaces.
    index = leader.last_index_before(wanted)
    snapshot = leader.header(index)
    end = snapshot.position + snapshot.size_bytes
    follower.reset(index + 1, end, snapshot.chain_crc, snapshot.term)
    assert (follower.first_index, follower.last_index, follower.max_position) == (
        index + 1,
        index,
        end,
    )
    assert (follower.last_term, follower.durable_index) == (snapshot.term, index)
    assert (follower.flushed_position, follower.term_runs()) == (end, [])
    ship(leader, follower)
    check_whole(follower)
    mine, other = image(tmp_path / "b"), image(tmp_path / "a")
    for path, data in mine.items():
        if path.startswith("data"):
            lo = max(0, end - int(path[-20:]))
            assert data == bytes(lo) + other[path][lo:], path
    follower.close()
    follower, report = open_ledger(tmp_path / "b", leader.max_position)
    assert (follower.tail, follower.first_index) == (leader.tail, index + 1)
    assert report.cut_size_bytes == report.rewritten_unit_count == 0
    assert follower.index_at_position(end) == index + 1
    assert follower.term_runs() == [
        run for run in [(index + 1, leader.term_at(index + 1)), *leader.term_runs()]
        if run[0] > index
    ][: len(follower.term_runs())]  # fmt: skip


def test_an_empty_log_behind_a_snapshot_remembers_what_comes_next(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    add(ledger, 3)
    ledger.reset(1000, 7 * FILE + 123, 0xABCDEF01, 9)
    for _ in range(2):
        assert (ledger.first_index, ledger.last_index, ledger.last_term) == (1000, 999, 9)
        assert (ledger.tail.link.chain_crc, ledger.max_position) == (0xABCDEF01, 7 * FILE + 123)
        ledger.close()
        ledger, _ = open_ledger(tmp_path, 7 * FILE + 123)
    assert ledger.append_entry(KIND_NO_OP, 9, b"").entry_index == 1000
    assert ledger.term_runs() == [(1000, 9)]


def test_a_log_that_is_replaced_right_behind_a_roll_goes_on_in_files_of_its_own(
    ledger: Ledger,
) -> None:
    """The file that was appended to last ended where the first entry of the new log goes."""
    while ledger.max_position < FILE:
        add(ledger)
    ledger.reset(100, FILE - 60, 7, 1)
    assert add(ledger) > FILE
    assert ledger.position_of(100) == FILE
    check_whole(ledger)


def test_a_replaced_log_of_which_any_files_are_left_is_opened(tmp_path: Path) -> None:
    """After a power loss any of the files may be there that were being deleted."""
    ledger = new_ledger(tmp_path)
    grow(ledger, Random(8), 3 * FILE)
    with failpoints.armed("ledger.before_reset=EIO"), pytest.raises(OSError, match="before_reset"):
        ledger.reset(40, FILE + 77, 5, 60)
    ledger.close()
    data_file(tmp_path, FILE).unlink()
    ledger, _ = open_ledger(tmp_path)
    assert (ledger.first_index, ledger.max_position) == (40, FILE + 77)
    assert names(tmp_path) == [fmt.file_name(FILE)]


# --- Failing calls ---

Step = tuple[str, Callable[[Ledger], object], Callable[[Ledger], bool]]


def _append(number: int, records: int, last_index: int) -> Step:
    def run(ledger: Ledger) -> None:
        ledger.term = 2
        ledger.stamper.next_offsets[(b"orders", 0)] = number
        ledger.append(batch(number, number + records, size_bytes=300), now_unix_ms=BORN)

    return f"append {last_index}", run, lambda ledger: ledger.last_index >= last_index


def _cut_all(ledger: Ledger) -> None:
    ledger.truncate_from(ledger.first_index, commit_index=ledger.first_index - 1)


def _steps() -> list[Step]:
    """What to do, and how to see on a reopened log that it need not be done again."""
    sync: Step = ("sync", Ledger.sync, lambda ledger: False)
    return [
        *[_append(100 * n, 60, n) for n in range(6)],
        sync,
        (
            "truncate",
            lambda ledger: ledger.truncate_from(3, commit_index=2),
            lambda ledger: ledger.last_index <= 2,
        ),
        *[_append(1000 + 100 * n, 50, n) for n in range(3, 9)],
        ("delete", Ledger.delete_first, lambda ledger: ledger.first_index > 0),
        ("cut all", _cut_all, lambda ledger: ledger.last_index < ledger.first_index),
        *[_append(3000 + 100 * n, 30, n) for n in range(4, 9)],
        (
            "reset",
            lambda ledger: ledger.reset(150, 5 * FILE - 3000, 77, 2),
            lambda ledger: ledger.first_index == 150,
        ),
        *[_append(2000 + 100 * n, 40, n) for n in range(150, 156)],
        sync,
    ]


def _work(root: Path) -> Ledger:
    """Do all the steps; a failing one is repeated, after a failed sync on a reopened log."""
    ledger: Ledger | None = None
    for _, run, is_done in _steps():
        for _attempt in range(4):
            try:
                if ledger is None:
                    ledger = open_ledger(root)[0]
                    if is_done(ledger):
                        break
                run(ledger)
                break
            except SyncFailedError:
                if ledger is not None:
                    ledger.close()
                ledger = None
            except StoreError:
                continue
        else:
            pytest.fail("four attempts")
    assert ledger is not None
    return ledger


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, int]]:
    root = tmp_path_factory.mktemp("reference")
    with failpoints.census() as passes:
        ledger = _work(root)
        ledger.close()
    return image(root), {k: v for k, v in passes.items() if k.startswith("fs.")}


POINTS = (
    "open allocate map read write sync sync_directory rename unlink make_directory list_directory"
)


@pytest.mark.parametrize("is_each", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [f"fs.{point}" for point in POINTS.split()])
def test_each_file_system_call_may_fail_once(
    tmp_path: Path, reference: tuple[dict[str, bytes], dict[str, int]], name: str, is_each: bool
) -> None:
    """The log is the same in the end, and whole at once: a failed step leaves nothing half done."""
    expected, passes = reference
    assert passes[name] > 0
    step = 1 if is_each else max(1, passes[name] // 10)
    for nth in range(1, passes[name] + 1, step):
        root = tmp_path / str(nth)
        root.mkdir()
        with failpoints.armed(f"{name}=EIO@{nth}"):
            ledger = _work(root)
        check_whole(ledger)
        ledger.close()
        assert image(root) == expected, f"{name} failed at pass {nth}"


def test_the_failing_calls_are_all_there_are(
    reference: tuple[dict[str, bytes], dict[str, int]],
) -> None:
    assert {f"fs.{point}" for point in POINTS.split()} == set(reference[1])


@pytest.mark.parametrize("point", ["ledger.before_cut", "ledger.before_reset"])
def test_a_change_that_an_open_finds_unfinished_is_finished(tmp_path: Path, point: str) -> None:
    ledger = new_ledger(tmp_path)
    grow(ledger, Random(8), 2 * FILE)
    change = partial(ledger.truncate_from, 10, commit_index=9)
    if point == "ledger.before_reset":
        change = partial(ledger.reset, 40, FILE + 77, 5, 60)
    with failpoints.armed(f"{point}=EIO"), pytest.raises(OSError, match=point):
        change()
    ledger.close()
    ledger, _ = open_ledger(tmp_path)
    if point == "ledger.before_reset":
        assert (ledger.first_index, ledger.last_index, ledger.max_position) == (40, 39, FILE + 77)
        assert names(tmp_path) == [fmt.file_name(FILE)]
        ledger.append_entry(KIND_NO_OP, 60, b"")
    else:
        assert ledger.last_index > 10, "a cut that nobody was told of may be as if never begun"
    check_whole(ledger)
