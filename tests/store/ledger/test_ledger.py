"""The ledger: what an append writes, and what readers see."""

import itertools
import struct
from pathlib import Path
from random import Random

import pytest

from store import format as fmt
from store.errors import (
    CorruptionError,
    FileSystemError,
    LimitExceededError,
    PositionRangeError,
    RecordFormatError,
    StoreFullError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.ledger.entry import KIND_DATA, KIND_NO_OP
from store.ledger.ledger import Ledger
from store.record.message import decode_message, encode_message
from tests.store.ledger.whole import check_whole
from tests.store.ledgers import (
    CONFIG,
    FILE,
    add,
    data_file,
    grow,
    image,
    index_file,
    new_ledger,
    open_ledger,
    read_as_dledger,
    ship,
)
from tests.store.overwrites import flip, overwrite
from tests.store.records import BORN, batch, numbers, record, small_config
from tests.store.reference_crc import reference_crc32c
from tests.store.vectors import RECORD

GOLDEN = RECORD[:28] + struct.pack(">q", 48) + RECORD[36:]
GOLDEN_UNIT = bytes.fromhex("00000001 0000000000000000 000000B6 0000000000000000 0000000000000001")


def golden_entry() -> bytes:
    head = struct.pack(">iiqqqi", 1, 182, 0, 1, 0, 0)
    body = struct.pack(">Ii", reference_crc32c(GOLDEN), 134)
    chain = struct.pack(">I", reference_crc32c(bytes(4) + head + bytes(4) + body))
    return head + chain + body + GOLDEN


def content(ledger: Ledger) -> list[int]:
    runs = ledger.record_runs(ledger.min_position, ledger.max_position)
    return list(itertools.chain.from_iterable(numbers(data) for _, data in runs))


# --- Bytes ---


def test_the_golden_record_lands_byte_for_byte(tmp_path: Path) -> None:
    """storage-formats 12: record at entry position + 48, entry size 182, index unit."""
    config = small_config(container="ledger", file_size_bytes=FILE, store_host=("127.0.0.1", 10911))
    ledger = new_ledger(tmp_path, config)
    ledger.stamper.next_offsets[(b"TopicTest", 3)] = 7
    message = encode_message(
        "TopicTest", 3, b"Hello RocketMQ", {"KEYS": "key1", "TAGS": "TagA"},
        born_unix_ms=1_700_000_000_000, born_host=("127.0.0.1", 50000),
    )  # fmt: skip
    result = ledger.append(message, now_unix_ms=1_700_000_000_123)
    assert (result.position, result.end_position, result.entry_index) == (0, 182, 0)
    assert (result.record_positions, result.queue_offsets) == ([48], [7])
    ledger.close()
    stored = data_file(tmp_path).read_bytes()
    assert stored == golden_entry().ljust(FILE, b"\0")
    assert index_file(tmp_path).read_bytes()[:64] == GOLDEN_UNIT + bytes(32)


def test_golden_bytes_are_read_back(tmp_path: Path) -> None:
    for path, data, size_bytes in (
        (data_file(tmp_path), golden_entry(), FILE),
        (index_file(tmp_path), GOLDEN_UNIT, 4096),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.ljust(size_bytes, b"\0"))
    ledger, report = open_ledger(tmp_path, 182)
    assert (report.entry_count, report.cut_size_bytes, report.rewritten_unit_count) == (1, 0, 0)
    assert ledger.index.get(0) == (0, 182, 1)
    entry = ledger.entry(0)
    assert (entry.term, entry.kind, entry.position, entry.body) == (1, 0, 0, GOLDEN)
    assert decode_message(entry.body).position == 48
    assert list(ledger.record_runs(0, 182)) == [(48, GOLDEN)]


def test_a_reader_of_dledger_reads_our_files(ledger: Ledger, tmp_path: Path) -> None:
    grow(ledger, Random(1), 3 * FILE)
    expected = [ledger.entry(n) for n in range(ledger.last_index + 1)]
    ledger.close()
    entries = read_as_dledger(tmp_path)
    assert len(entries) == len(expected) > 50
    assert len({e.kind for e in expected}) == 3
    for theirs, ours in zip(entries, expected, strict=True):
        assert (theirs.index, theirs.term, theirs.pos) == (
            ours.entry_index,
            ours.term,
            ours.position,
        )
        assert (theirs.channel, theirs.body) == (ours.kind, ours.body)
        if ours.kind == KIND_DATA:
            assert decode_message(theirs.body).position == theirs.pos + 48


# --- Placement ---


def test_a_file_ends_with_a_blank_whose_every_byte_is_determined(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    while ledger.max_position < FILE:
        end = add(ledger)
        last_in_file = ledger.position_of(ledger.last_index)
    before = ledger.header(ledger.last_index - 1)
    lo = before.position + before.size_bytes
    assert (last_in_file, end) == (FILE, FILE + before.size_bytes)
    blank = data_file(tmp_path).read_bytes()[lo:]
    assert blank == struct.pack(">ii", -1, FILE - lo) + bytes(FILE - lo - 8)
    assert content(ledger) == list(range(3 * (ledger.last_index + 1)))


def test_a_sync_between_a_blank_and_its_entry_ends_before_the_blank(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on another thread than the writer; the mark must name the end of an entry."""
    seals, seal = list[tuple[int, int]](), ledger.files.seal_complete

    def sync_and_seal() -> None:
        seals.append((ledger.sync(), ledger.end_of(ledger.last_index)))
        seal()

    monkeypatch.setattr(ledger.files, "seal_complete", sync_and_seal)
    while ledger.max_position < FILE:
        end = add(ledger)
    ((synced, last_end),) = seals
    assert synced == last_end < FILE
    assert ledger.sync() == end


@pytest.mark.parametrize(("spare", "position"), [(8, 0), (7, FILE)])
def test_an_entry_needs_room_for_a_blank_behind_it(
    ledger: Ledger, spare: int, position: int
) -> None:
    ledger.append_entry(KIND_NO_OP, 1, b"")
    result = ledger.append_entry(KIND_NO_OP, 1, bytes(FILE - 48 - 48 - spare))
    if position:
        assert ledger.position_of(1) == FILE
    else:
        assert (result.position, result.end_position) == (48, FILE - 8)
        assert ledger.append_entry(KIND_NO_OP, 1, b"").position == FILE


def test_an_entry_that_can_never_fit_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LimitExceededError, match=f"the limit is {FILE - 8}"):
        ledger.append_entry(KIND_NO_OP, 1, bytes(FILE - 48 - 7))
    assert ledger.append_entry(KIND_NO_OP, 1, bytes(FILE - 48 - 8)).position == 0


def test_a_refused_batch_writes_nothing_not_even_a_blank(ledger: Ledger, tmp_path: Path) -> None:
    add(ledger, 3, records=100)
    before = image(tmp_path)
    with pytest.raises(RecordFormatError):
        ledger.append(batch(300, 500) + record(500)[:-1], now_unix_ms=BORN)
    assert image(tmp_path) == before
    add(ledger, records=200)
    assert content(ledger) == list(range(500))
    assert ledger.position_of(3) == FILE


@pytest.mark.parametrize("call", ["allocate=ENOSPC", "map=EIO", "rename=EIO", "open=EMFILE"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failed_roll_leaves_no_trace_and_the_log_goes_on_later(
    ledger: Ledger, tmp_path: Path, call: str, nth: int
) -> None:
    """The first new file is the index's, the second one the data's."""
    add(ledger, CONFIG.ledger_index_units_per_file, records=1)
    end, before = ledger.max_position, image(tmp_path)
    with failpoints.armed(f"fs.{call}@{nth}+"):
        for _ in range(3):
            with pytest.raises(StoreFullError if "ENOSPC" in call else FileSystemError):
                ledger.append_entry(KIND_NO_OP, 1, bytes(FILE - end - 48))
        assert content(ledger) == list(range(128)), "reads go on"
    assert ledger.max_position == end
    after = image(tmp_path)
    assert {k: v for k, v in after.items() if k in before} == before, "no blank without an entry"
    assert not any(after[k].strip(b"\0") or k.startswith("data") for k in set(after) - set(before))
    result = ledger.append_entry(KIND_NO_OP, 1, bytes(60))
    assert result.position == end, "a smaller entry goes where every replica expects it"
    assert ledger.append_entry(KIND_NO_OP, 1, bytes(FILE - end - 48)).position == FILE
    add(ledger)
    assert content(ledger) == list(range(131))


# --- Room ---


def test_what_was_prepared_is_appended_whatever_the_disk_says_then(tmp_path: Path) -> None:
    """Also behind an opening, in the next data file, and in the next file of the index."""
    ledger = new_ledger(tmp_path)
    ledger.append_entry(KIND_NO_OP, 1, b"")
    ledger.close()
    ledger = new_ledger(tmp_path)
    for size_bytes in (FILE - 1000, 2000, *[0] * 130):
        prepared = ledger.prepare(KIND_NO_OP, bytes(size_bytes))
        with failpoints.armed("fs.allocate=ENOSPC@1+;fs.map=EIO@1+;fs.open=EMFILE@1+"):
            ledger.append_prepared(prepared, 1)
    assert [ledger.position_of(index) for index in (0, 1, 2)] == [0, 48, FILE]
    assert len(ledger.index.files.files) == 2
    check_whole(ledger)


def test_room_at_hand_is_that_of_the_data_and_of_the_index(ledger: Ledger) -> None:
    assert not ledger.has_room_at_hand(48)
    for _ in range(2):
        ledger.append_entry(KIND_NO_OP, 1, b"")
    left = FILE - fmt.BLANK_SIZE_BYTES_MIN - ledger.max_position
    assert ledger.has_room_at_hand(125 * 48)
    assert (ledger.files.file_count_for(left), ledger.files.file_count_for(left + 1)) == (0, 2)
    for _ in range(126):
        ledger.append_entry(KIND_NO_OP, 1, b"")
    assert not ledger.has_room_at_hand(48), "the last file of the index is full"
    with failpoints.armed("fs.allocate=ENOSPC@1+"), pytest.raises(StoreFullError):
        ledger.prepare(KIND_NO_OP, b"", has_room=ledger.has_room_at_hand(48))
    assert ledger.append_entry(KIND_NO_OP, 1, b"").position == 128 * 48


def test_reserved_room_is_enough_for_the_smallest_entries(ledger: Ledger) -> None:
    for _ in range(127):
        ledger.append_entry(KIND_NO_OP, 1, b"")
    ledger.reserve(2 * 48, ledger.files.file_count_for(2 * 48))
    with failpoints.armed("fs.allocate=ENOSPC@1+"):
        for _ in range(2):
            ledger.append_entry(KIND_NO_OP, 1, b"")
    assert ledger.last_index == 128


def test_files_of_the_index_that_are_full_are_unmapped_however_many_units_come_at_once(
    ledger: Ledger,
) -> None:
    """A bad sector under a map is a signal; a read that fails is an error."""
    index, at = ledger.index, 0
    while len(index.files.files) < 4:
        index.prepare(at, 5)
        index.put(at, bytes(5 * 32))
        index.files.sync()
        at += 5
    index.prepare(at, 5)
    with failpoints.armed("fs.read=EIO@1+"):
        for file in index.files.files[:-1]:
            with pytest.raises(FileSystemError):
                index.get(file.position // 32)
        assert index.get(index.files.files[-1].position // 32) is None, "it is mapped"


# --- Look-ups ---


@pytest.mark.parametrize("index_is", ["good", "zero", "lying"])
def test_lookups_agree_with_the_entries_whatever_the_index_says(
    ledger: Ledger, index_is: str
) -> None:
    grow(ledger, Random(4), 2 * FILE + 20_000)
    last = ledger.last_index
    entries = [ledger.entry(n) for n in range(last + 1)]
    if index_is != "good":
        for file in ledger.index.files.files:
            size = file.wrote_position - file.position
            units = bytearray(Path(file.path).read_bytes()[:size])
            for at in range(0, size, 32):
                wrong = entries[(at // 32 * 7) % len(entries)].position  # Of some other entry.
                struct.pack_into(">q", units, at + 4, wrong)
            overwrite(file, 0, bytes(size) if index_is == "zero" else bytes(units))
    for index in (0, 1, last // 2, last - 1, last):
        assert ledger.entry(index) == entries[index]
        assert ledger.position_of(index) == entries[index].position
        assert ledger.term_at(index) == entries[index].term
        assert ledger.chain_crc_at(index) == entries[index].chain_crc
    ends = [e.position + 48 + len(e.body) for e in entries]
    random = Random(5)
    points = [random.randrange(ledger.max_position) for _ in range(30)]
    points += [FILE - 1, FILE, *itertools.chain.from_iterable((e - 1, e) for e in ends[-40:-1])]
    for position in points:
        assert ledger.index_at_position(position) == next(
            n for n, end in enumerate(ends) if position < end
        )
        assert ledger.last_index_before(position) == sum(end <= position for end in ends) - 1
    assert ledger.last_index_before(ledger.max_position) == last
    for lo in range(0, last, 5):
        entry_range = ledger.range_of(lo, lo + 9, 4000)
        assert lo < entry_range.hi_index <= lo + 9
        limit = max(4000, ends[lo] - entries[lo].position)
        assert entry_range.size_bytes <= min(limit, FILE - entry_range.position % FILE)
        assert entry_range.position == entries[lo].position
        assert entry_range.position + entry_range.size_bytes == ends[entry_range.hi_index - 1]


def test_missing_entries_are_refused_by_name(ledger: Ledger) -> None:
    with pytest.raises(PositionRangeError, match=r"index 0 is outside of \[0, 0\)"):
        ledger.entry(0)
    end = add(ledger)
    for index in (-1, 1):
        with pytest.raises(PositionRangeError):
            ledger.position_of(index)
    for position in (-1, end):
        with pytest.raises(PositionRangeError):
            ledger.index_at_position(position)
    with pytest.raises(PositionRangeError):
        ledger.read(end - 1, 2)
    with pytest.raises(PositionRangeError):
        ledger.view(end, 1)
    assert (ledger.term_at(-1), ledger.chain_crc_at(-1)) == (0, 0)
    assert (ledger.first_index, ledger.last_index, ledger.last_term) == (0, 0, 1)


@pytest.mark.parametrize("large", [(1 << bits) + at for bits in (31, 32, 62) for at in (-1, 0, 1)])
def test_large_indexes_positions_and_terms_are_as_good_as_small_ones(
    tmp_path: Path, large: int
) -> None:
    """R5: a log that begins just before a border is written, read, shipped and opened across it."""

    def begun(root: Path) -> Ledger:
        ledger = new_ledger(root)
        ledger.reset(large - 1, large - 100, 0xDEADBEEF, large - 1)
        ledger.term = large - 1
        return ledger

    ledger, follower = begun(tmp_path / "leader"), begun(tmp_path / "follower")
    add(ledger, 3)
    ledger.term = large
    grow(ledger, Random(large), large + 2 * FILE)
    ship(ledger, follower)
    assert image(tmp_path / "follower") == image(tmp_path / "leader")
    follower.close()
    headers = [ledger.header(index) for index in range(large - 1, ledger.last_index + 1)]
    assert [header.entry_index for header in headers] == list(
        range(large - 1, large - 1 + len(headers))
    )
    assert [header.term for header in headers[:3]] == [large - 1] * 3
    assert headers[3].term >= large
    assert headers[0].position >= large - 100
    records, runs = content(ledger), ledger.term_runs()
    ledger.sync()
    ledger.close()
    ledger, report = open_ledger(tmp_path / "leader", headers[-1].position)
    assert report.cut_size_bytes == 0
    assert [ledger.header(at.entry_index) for at in headers] == headers
    assert (content(ledger), ledger.term_runs()) == (records, runs)
    ledger.truncate_from(large + 1, commit_index=large)
    assert (ledger.last_index, ledger.last_term) == (large, large - 1)


def test_terms_are_known_by_run_and_never_go_down(ledger: Ledger) -> None:
    for term in (1, 1, 1, 4, 4, 9):
        ledger.append_entry(KIND_NO_OP, term, b"")
    assert ledger.term_runs() == [(0, 1), (3, 4), (5, 9)]
    with pytest.raises(AssertionError, match="term 8 after 9"):
        ledger.append_entry(KIND_NO_OP, 8, b"")
    ledger.truncate_from(4, commit_index=3)
    assert ledger.term_runs() == [(0, 1), (3, 4)]


def test_damage_is_found_when_an_entry_is_read(ledger: Ledger) -> None:
    add(ledger, 3)
    position = ledger.position_of(1)
    for at, field in (
        (3, "header"),
        (5, "size"),
        (20, "chain CRC"),
        (37, "chain CRC"),
        (100, "body CRC"),
    ):
        flip(ledger.files.files[0], position + at, 1)
        with pytest.raises(CorruptionError) as caught:
            ledger.entry(1)
        assert caught.value.field == field
        assert caught.value.path == ledger.files.files[0].path
        flip(ledger.files.files[0], position + at, 1)
    assert ledger.entry(1).entry_index == 1


# --- Records ---


def test_records_are_walked_from_any_record_to_any_position(ledger: Ledger) -> None:
    grow(ledger, Random(6), FILE + 9000)
    starts: list[tuple[int, int]] = []  # Record start and end, in log order.
    entry_starts = []
    for index in range(ledger.last_index + 1):
        entry = ledger.entry(index)
        entry_starts += [entry.position, entry.position + 48 + len(entry.body)]
        at = 0
        while entry.kind == KIND_DATA and at < len(entry.body):
            size_bytes = int.from_bytes(entry.body[at : at + 4], "big")
            lo = entry.position + 48 + at
            starts.append((lo, lo + size_bytes))
            at += size_bytes
    random = Random(7)
    edges = [lo for lo, _ in starts] + [hi for _, hi in starts] + entry_starts
    for _ in range(300):
        lo = random.choice(edges)
        hi = random.choice([random.choice(edges), random.randrange(ledger.max_position + 100)])
        places = []
        for position, data in ledger.record_runs(lo, hi):
            at = 0
            while at < len(data):
                message = decode_message(data, at)
                assert message.position == position + at
                places.append((position + at, position + at + message.size_bytes))
                at += message.size_bytes
        assert places == [(a, b) for a, b in starts if lo <= a and b <= hi]


def test_damaged_records_are_never_walked(ledger: Ledger) -> None:
    add(ledger, 3)
    position = ledger.position_of(1)
    flip(ledger.files.files[0], position + 60, 4)
    runs = ledger.record_runs(0, ledger.max_position)
    assert numbers(next(runs)[1]) == [0, 1, 2]
    with pytest.raises(CorruptionError, match="body CRC"):
        next(runs)
    flip(ledger.files.files[0], position + 9, 4)
    with pytest.raises(CorruptionError, match="index"):
        list(ledger.record_runs(0, ledger.max_position))


def test_an_entry_larger_than_a_read_is_walked(tmp_path: Path) -> None:
    config = small_config(container="ledger", file_size_bytes=16 << 20)
    ledger = new_ledger(tmp_path, config)
    big = encode_message("t", 0, b"b" * (4 * 1024 * 1024 - 48 - 91 - 1))
    for _ in range(2):
        ledger.append(big, now_unix_ms=BORN)
    assert [len(data) for _, data in ledger.record_runs(0, ledger.max_position)] == [len(big)] * 2
    with pytest.raises(LimitExceededError, match="entry has 4194305 bytes"):
        ledger.append_entry(KIND_NO_OP, 1, bytes(4 * 1024 * 1024 - 47))
    ledger.close()
    ledger, report = open_ledger(tmp_path, config=config)
    assert (report.entry_count, ledger.last_index) == (2, 1)


# --- Durability ---


def test_durable_positions_are_ends_of_whole_entries(
    ledger: Ledger,
) -> None:
    assert (ledger.flushed_position, ledger.durable_index) == (0, -1)
    end = add(ledger, 3)
    assert (ledger.flushed_position, ledger.durable_index) == (0, -1)
    assert ledger.sync() == end == ledger.flushed_position
    assert ledger.durable_index == 2
    last = add(ledger, 1, records=300)  # Fits into the first file.
    assert last < FILE
    add(ledger, 1, records=300)  # Does not, so a blank follows.
    ledger.files.files[0].sync()
    with ledger.files._sync_lock:
        ledger.files.flushed_position = FILE  # As seen while a sync of both files runs.
    assert (ledger.flushed_position, ledger.durable_index) == (last, 3)
    add(ledger, 1, records=300)
    assert add(ledger, 1, records=300) > 2 * FILE, "a second blank"
    assert (ledger.flushed_position, ledger.durable_index) == (last, 3)
    assert ledger.sync() == ledger.max_position
    assert ledger.durable_index == 6


def test_the_index_is_synced_once_a_data_file_is_complete(tmp_path: Path) -> None:
    synced: list[str] = []

    class Recording(FileSystem):
        def sync(self, fd: int, path: str) -> None:
            synced.append(Path(path).parent.name)
            super().sync(fd, path)

    ledger, _ = open_ledger(tmp_path, fs=Recording())
    add(ledger)
    synced.clear()
    add(ledger)
    ledger.sync()
    assert synced == ["data"]
    while ledger.max_position < FILE:
        add(ledger, records=50)
    synced.clear()
    ledger.sync()
    assert synced == ["data", "data", "index"]
