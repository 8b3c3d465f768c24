"""The plain commit log: what an append writes, what any stop leaves of it, and old damage that a
read meets."""

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import format as fmt
from store.config import StoreConfig
from store.errors import (
    CorruptionError,
    LimitExceededError,
    RecordFormatError,
    StoreError,
)
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.log import checked, commit_log_recovery
from store.log.checked import CheckedRanges
from store.log.commit_log import CommitLog, walk
from store.log.commit_log_recovery import RecoveryReport, recover_commit_log
from store.record.message import encode_message
from tests.patience import PATIENCE_S
from tests.seeds import examples
from tests.store.fsck_stores import Clock, open_store
from tests.store.overwrites import overwrite
from tests.store.records import BORN, PAGE, batch, numbers, record, small_config
from tests.store.written_ranges import WrittenRanges

FILE = 4 * PAGE
CONFIG = small_config()


def open_log(
    root: Path, known_good: int = 0, fs: FileSystem | None = None
) -> tuple[CommitLog, RecoveryReport]:
    """Open and recover, and put the queue offsets back as the store does from the queues."""
    fs = fs or FileSystem()
    log = CommitLog(fs, str(root), CONFIG)
    log.files.load()
    try:
        report = recover_commit_log(fs, log, known_good)
    except StoreError:
        log.close()
        raise
    log.stamper.next_offsets[(b"orders", 0)] = len(content(log))
    return log, report


def content(log: CommitLog) -> list[int]:
    runs = log.record_runs(log.min_position, log.max_position)
    return list(itertools.chain.from_iterable(numbers(data) for _, data in runs))


def append(log: CommitLog, lo: int, hi: int, size_bytes: int = 40) -> int:
    return log.append(batch(lo, hi, size_bytes=size_bytes), now_unix_ms=BORN).end_position


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    opened, _ = open_log(tmp_path)
    yield opened
    opened.close()


def test_the_golden_record_lands_byte_for_byte(tmp_path: Path) -> None:
    log = CommitLog(FileSystem(), str(tmp_path), small_config(store_host=("127.0.0.1", 10911)))
    log.files.load()
    golden = encode_message(
        "TopicTest", 3, b"Hello RocketMQ", {"KEYS": "key1", "TAGS": "TagA"},
        born_unix_ms=1_700_000_000_000, born_host=("127.0.0.1", 50000),
        store_unix_ms=1_700_000_000_123, store_host=("127.0.0.1", 10911),
    )  # fmt: skip
    log.append(golden, now_unix_ms=1_700_000_000_123)
    log.close()
    stored = (tmp_path / "commitlog" / fmt.file_name(0)).read_bytes()
    assert stored[:134] == golden
    assert stored[134:] == bytes(FILE - 134)


def test_a_file_ends_with_a_blank_that_says_how_long_it_is(log: CommitLog, tmp_path: Path) -> None:
    record_size_bytes = len(record(0))
    fit = (FILE - fmt.BLANK_SIZE_BYTES_MIN) // record_size_bytes
    assert append(log, 0, fit) == fit * record_size_bytes
    assert append(log, fit, fit + 1) == FILE + record_size_bytes
    left = FILE - fit * record_size_bytes
    first = (tmp_path / "commitlog" / fmt.file_name(0)).read_bytes()
    assert first[fit * record_size_bytes :][:8] == fmt.BLANK.pack(left, fmt.MAGIC_BLANK)
    assert content(log) == list(range(fit + 1))


@pytest.mark.parametrize("spare", [7, 8])
def test_a_record_needs_room_for_a_blank_behind_it(log: CommitLog, spare: int) -> None:
    overhead = len(encode_message("t", 0, b""))
    exact = encode_message("t", 0, b"x" * (FILE - overhead - spare))
    if spare < fmt.BLANK_SIZE_BYTES_MIN:
        with pytest.raises(LimitExceededError, match="batch has"):
            log.append(exact, now_unix_ms=BORN)
        assert log.max_position == 0
    else:
        result = log.append(exact, now_unix_ms=BORN)
        assert (result.position, result.end_position) == (0, FILE - 8)
        assert append(log, 0, 1) > FILE


def test_a_batch_never_spans_two_files(log: CommitLog) -> None:
    half = FILE // 2 // len(record(0)) + 5
    append(log, 0, half)
    result = log.append(batch(half, 2 * half), now_unix_ms=BORN)
    assert result.position == FILE
    assert result.queue_offsets == list(range(half, 2 * half))
    assert content(log) == list(range(2 * half))


def test_a_refused_batch_writes_nothing_not_even_a_blank(log: CommitLog, tmp_path: Path) -> None:
    append(log, 0, 60)
    path = tmp_path / "commitlog" / fmt.file_name(0)
    before = path.read_bytes()
    bad = batch(60, 120) + record(120)[:-1]
    with pytest.raises(RecordFormatError):
        log.append(bad, now_unix_ms=BORN)
    assert path.read_bytes() == before
    assert len(log.files.files) == 1
    append(log, 60, 120)
    assert content(log) == list(range(120))


def test_a_record_larger_than_the_run_buffer_is_walked(tmp_path: Path) -> None:
    log = CommitLog(
        FileSystem(), str(tmp_path), StoreConfig(file_size_bytes=16 << 20, warm_up=False)
    )
    log.files.load()
    big = encode_message("t", 0, b"b" * (4 << 20))
    for _ in range(2):
        log.append(big, now_unix_ms=BORN)
    runs = list(log.record_runs(0, log.max_position))
    assert [(at, len(data)) for at, data in runs] == [(0, len(big)), (len(big), len(big))]


def test_a_walk_over_damage_raises_and_never_skips(log: CommitLog) -> None:
    append(log, 0, 3)
    record_size_bytes = len(record(0))
    overwrite(log.files.files[0], record_size_bytes + 4, b"\0")  # The second record's magic.
    runs = log.record_runs(0, log.max_position)
    assert next(runs)[0] == 0
    with pytest.raises(CorruptionError) as caught:
        next(runs)
    assert caught.value.at == record_size_bytes


def test_a_checked_walk_leaves_out_a_record_that_its_end_cuts_off(log: CommitLog) -> None:
    ends = [append(log, n, n + 1) for n in range(2)]
    log.checked.trusted_position = ends[-1]
    for hi in range(ends[0], ends[1] + 1):
        runs = [numbers(data) for _, data in log.checked_runs(0, hi)]
        assert runs == ([[0, 1]] if hi == ends[1] else [[0]]), f"up to {hi} of {ends}"


@pytest.mark.parametrize("field", ["magic", "body"])
def test_damage_is_not_taken_for_a_record_that_is_cut_off(log: CommitLog, field: str) -> None:
    """Where the walk ends right behind what tells them apart: what derived files are repaired from
    must not pass over damage."""
    end = append(log, 0, 1)
    at, hi = (4, fmt.BLANK.size) if field == "magic" else (100, end)
    log.checked.trusted_position = end
    log.files.files[0]._open_target()[at] ^= 1
    with pytest.raises(CorruptionError) as caught:
        list(log.checked_runs(0, hi))
    assert (caught.value.at, caught.value.field) == (
        (0, "record") if field == "magic" else (0, "body CRC")
    )


def test_a_missing_file_below_the_known_good_position_is_corruption(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    ends = [append(log, n * 50, n * 50 + 50) for n in range(6)]
    log.close()
    files = sorted((tmp_path / "commitlog").iterdir())
    files[-1].unlink()
    with pytest.raises(CorruptionError, match="log end"):
        open_log(tmp_path, ends[-1])


def test_recovery_twice_is_once(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    ends = [append(log, 10 * n, 10 * n + 5, size_bytes=20) for n in range(5)]
    log.close()
    path = tmp_path / "commitlog" / fmt.file_name(0)
    path.write_bytes(path.read_bytes()[: ends[3] + 7] + b"\xff" * (FILE - ends[3] - 7))
    images = []
    for _ in range(2):
        log, report = open_log(tmp_path, ends[1])
        log.close()
        images.append((path.read_bytes(), report.end_position))
    assert images[0] == images[1]
    assert images[0][1] == ends[3]


def test_old_bytes_do_not_revive_after_two_crashes(tmp_path: Path) -> None:
    """A torn record is cut, a record of its size replaces it, and the old rest lines up behind."""
    log, _ = open_log(tmp_path)
    ends = [append(log, n, n + 1) for n in range(6)]
    log.close()
    path = tmp_path / "commitlog" / fmt.file_name(0)
    torn = bytearray(path.read_bytes())
    torn[ends[2] + 100] ^= 1  # Record 3 is torn, 4 and 5 behind it are whole.
    path.write_bytes(torn)
    log, report = open_log(tmp_path, ends[2])
    assert report.cut_size_bytes == ends[5] - ends[2]
    append(log, 30, 31)
    log.close()
    log, _ = open_log(tmp_path, ends[2])
    assert content(log) == [0, 1, 2, 30], "4 and 5 would line up here if they were still there"


def test_a_stale_record_that_lines_up_is_not_taken(tmp_path: Path) -> None:
    """RocketMQ issue 10666: a valid record from elsewhere in the log lies right at the end."""
    log, _ = open_log(tmp_path)
    ends = [append(log, n, n + 1) for n in range(4)]
    log.close()
    path = tmp_path / "commitlog" / fmt.file_name(0)
    data = bytearray(path.read_bytes())
    data[ends[3] : ends[3] + ends[0]] = data[0 : ends[0]]
    path.write_bytes(data)
    log, report = open_log(tmp_path, ends[3])
    assert content(log) == [0, 1, 2, 3]
    assert "physical offset" in report.cut_reason


@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(10, 900)), min_size=1, max_size=25),
    garbage=st.binary(max_size=200),
)
def test_any_history_reopens_to_itself(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], garbage: bytes
) -> None:
    root = tmp_path_factory.mktemp("log")
    log, _ = open_log(root)
    lo = end = 0
    for count, size_bytes in sizes:
        end = append(log, lo, lo + count, size_bytes=size_bytes)
        lo += count
    assert content(log) == list(range(lo))
    last = log.files.files[-1]
    room = last.end_position - end
    overwrite(last, end - last.position, garbage[:room])
    log.close()
    log, report = open_log(root, end)
    assert content(log) == list(range(lo))
    assert report.end_position == end


def test_bytes_that_no_sync_has_proven_are_written_again(tmp_path: Path) -> None:
    """S02: pages of a failed sync are clean in the page cache, and not on the disk."""
    log, _ = open_log(tmp_path)
    ends = [append(log, lo, lo + 20, size_bytes=200) for lo in range(0, 200, 20)]
    paths = [Path(file.path) for file in log.files.files]
    log.close()
    assert len(paths) > 2
    before = [path.read_bytes() for path in paths]
    fs = WrittenRanges()
    log = CommitLog(fs, str(tmp_path), CONFIG)
    log.files.load()
    recover_commit_log(fs, log, ends[3], synced_position=ends[2])
    log.close()
    last = ends[2] // FILE
    written: dict[str, list[tuple[int, int]]] = {}
    for name, lo, hi in fs.ranges:
        written.setdefault(name, []).append((lo, hi))
    assert written[paths[last].name][0] == (ends[2] % FILE, FILE)
    assert written[paths[-1].name][0] == (0, ends[-1] % FILE)
    assert not {path.name for path in paths[:last]} & set(written)
    assert [path.read_bytes() for path in paths] == before
    assert fs.ranges_at_sync[-1] == len(fs.ranges), "and synced"


def test_foreign_log_is_not_written(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    append(log, 0, 20)
    log.close()
    fs = WrittenRanges()
    log = CommitLog(fs, str(tmp_path), CONFIG)
    log.files.load()
    recover_commit_log(fs, log, 0, may_cut=False)
    log.close()
    assert fs.ranges == []


def test_records_larger_than_a_read_are_found_and_a_cut_short_one_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk looks at more where no record is whole, and never at the same bytes again."""
    log, _ = open_log(tmp_path)
    ends = [append(log, n, n + 1, size_bytes=2000) for n in range(6)]
    log.close()
    read, reads = MappedFile.read, []

    def counted(file: MappedFile, position: int, size_bytes: int) -> bytes:
        reads.append(position)
        assert len(reads) < 100, "the walk does not get on"
        return read(file, position, size_bytes)

    monkeypatch.setattr(commit_log_recovery, "_READ_SIZE_BYTES", 600)
    monkeypatch.setattr(MappedFile, "read", counted)
    log, report = open_log(tmp_path)
    assert (report.record_count, report.end_position) == (6, ends[-1])
    last = log.files.files[-1]
    overwrite(last, ends[-2] - last.position, fmt.BLANK.pack(FILE - 1, fmt.MAGIC_V1))
    log.close()
    reads.clear()
    log, report = open_log(tmp_path)
    assert (report.record_count, report.end_position) == (5, ends[-2])


def test_the_smallest_blank_ends_a_file(log: CommitLog) -> None:
    end = append(log, 0, 1)
    whole = log.read(0, end)
    assert walk(whole + fmt.BLANK.pack(fmt.BLANK_SIZE_BYTES_MIN, fmt.MAGIC_BLANK)) == (end, True)


# --- What was checked is remembered ---


def add(ranges: CheckedRanges, lo: int, hi: int) -> None:
    """Note what was checked just now."""
    ranges.add(lo, hi, ranges.generation)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "forget", "distrust", "cut"]),
            st.integers(0, 60),
            st.integers(1, 12),
        ),
        max_size=25,
    ),
    st.integers(0, 70),
)
def test_ranges_equal_a_set_of_positions(changes: list[tuple[str, int, int]], trusted: int) -> None:
    """What is written behind a cut is trusted; only damage ends that, up to where it ends."""
    ranges = CheckedRanges()
    assert ranges.covers(5, 10), "a new log: everything was written since"
    ranges.trusted_position = trusted
    model = set[int]()
    for change, lo, size_bytes in changes:
        hi = lo + size_bytes
        if change == "add":
            add(ranges, lo, hi)
            model |= set(range(lo, hi))
        elif change == "cut":
            ranges.cut(lo)
            model, trusted = {at for at in model if at < lo}, min(trusted, lo)
        else:
            getattr(ranges, change)(lo, hi)
            if change == "distrust" and trusted < hi:
                model, trusted = model | set(range(trusted, lo)), hi
            model -= set(range(lo, hi))
        edges = ranges._edges
        assert edges == sorted(set(edges)), "disjoint, and neighbours are one"
    for lo in range(75):
        for hi in range(lo + 1, 76):
            assert ranges.covers(lo, hi) == model.issuperset(range(lo, min(hi, trusted)))
    assert ranges.covers(100, 10**9)


def test_the_number_of_ranges_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "RANGE_COUNT_MAX", 4)
    ranges = CheckedRanges()
    ranges.trusted_position = 1000
    for lo in range(0, 100, 10):
        add(ranges, lo, lo + 5)
        assert ranges.covers(lo, lo + 5)
        assert len(ranges._edges) <= 2 * 4 + 2


CHANGES: list[Callable[[CheckedRanges], None]] = [
    lambda ranges: ranges.distrust(20, 30),
    lambda ranges: ranges.forget(20, 30),
    lambda ranges: ranges.cut(15),
]


@pytest.mark.parametrize("change", CHANGES, ids=["distrust", "forget", "cut"])
def test_reads_before_a_damage_was_found_are_not_noted(
    change: Callable[[CheckedRanges], None],
) -> None:
    ranges = CheckedRanges()
    ranges.trusted_position = 100
    generation = ranges.generation
    change(ranges)
    ranges.trusted_position = 100
    ranges.add(10, 40, generation)
    assert not ranges.covers(22, 25)
    add(ranges, 10, 40)
    assert ranges.covers(22, 25)


@pytest.mark.parametrize("change", CHANGES, ids=["distrust", "forget", "cut"])
def test_damage_that_is_found_while_something_is_noted_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[CheckedRanges], None]
) -> None:
    """Readers, the scrubber and repairs are threads."""
    ranges = CheckedRanges()
    ranges.trusted_position = 100
    add(ranges, 20, 30)
    thread = threading.Thread(target=change, args=(ranges,))

    def search_slowly(edges: list[int], position: int) -> int:
        monkeypatch.setattr(checked, "bisect_right", bisect_right)
        thread.start()
        thread.join(0.1)  # It must not get through; if it does, what it did is overwritten.
        return bisect_right(edges, position)

    monkeypatch.setattr(checked, "bisect_right", search_slowly)
    add(ranges, 50, 60)
    thread.join(PATIENCE_S)
    ranges.trusted_position = 100
    assert not ranges.covers(22, 25)


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_the_store_time_of_a_damaged_record_leads_nobody_past_messages(
    tmp_path: Path, container: str
) -> None:
    config = small_config(container=container, property_crc=True)

    clock, positions = Clock(), []
    with open_store(tmp_path, config, clock) as store:
        for number in range(200):
            clock.unix_ms += 1
            positions += store.put(batch(number, number + 1, property_crc=True)).record_positions
        assert positions[99] < store.log.files.files[-1].position, "the last one is always checked"
        path = Path(store.log.files.file_at(positions[99]).path)
        wanted = store.message_at(positions[100]).store_unix_ms
        assert store.offset_by_time("orders", 0, wanted) == 100
    at = positions[99] % config.file_size_bytes + fmt.STORE_TIMESTAMP_AT
    overwrite(path, at, b"\x40")  # Far in the future.
    with open_store(tmp_path, config) as store, pytest.raises(CorruptionError):
        store.offset_by_time("orders", 0, wanted)


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
@pytest.mark.parametrize("way", ["pull", "key", "position", "view"])
def test_old_damage_is_an_error_and_not_a_message(tmp_path: Path, container: str, way: str) -> None:
    config = small_config(container=container)
    with open_store(tmp_path, config) as store:
        results = [store.put(batch(lo, lo + 20)) for lo in range(0, 400, 20)]
        path = Path(store.log.files.files[0].path)
    content = bytearray(path.read_bytes())
    position = results[1].record_positions[3]
    content[position + 100] ^= 1  # In the body of record 23.
    path.write_bytes(content)
    with open_store(tmp_path, config) as store:
        assert numbers(store.pull("orders", 0, 300, max_count=50).data) == list(range(300, 350))
        ways: dict[str, Callable[[], object]] = {
            "pull": lambda: store.pull("orders", 0, 10, max_count=50),
            "key": lambda: store.messages_by_key("orders", "key0023"),
            "position": lambda: store.message_at(position),
            "view": lambda: store.view(position, results[1].record_positions[4] - position),
        }
        with pytest.raises(CorruptionError) as caught:
            ways[way]()
        assert caught.value.path == str(path)
        assert position - 48 - 160 * 3 <= caught.value.at <= position + 160
    content[position + 100] ^= 1
    path.write_bytes(content)
    with open_store(tmp_path, config) as store:
        assert numbers(store.pull("orders", 0, 10, max_count=50).data) == list(range(10, 60))
