"""A plain log that is shipped: what is written in two steps, and what of another replica is taken.

What a store does with it is in test_shipped_store.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import format as fmt
from store.errors import CorruptionError, RecordFormatError, StoreError, StoreFullError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from store.log.shipped_log import ShippedLog
from store.record.message import encode_message
from store.replicated.shipped_store import ShippedStore
from tests.store.files.test_new_names import LazySource, NoLuck
from tests.store.overwrites import flip
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import BORN, PAGE, batch, record
from tests.store.shipped_stores import (
    CONFIG,
    LAST,
    filled,
    killed,
    log_bytes,
    on_disk,
    open_store,
    put,
    ship,
    sync,
)

FILE = 4 * PAGE


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ShippedStore]:
    with open_store(tmp_path / "master") as store:
        yield store


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[ShippedStore]:
    with open_store(tmp_path / "slave") as store:
        yield store


# --- Appends in two steps ---


def test_the_bytes_are_those_of_any_plain_log(master: ShippedStore, tmp_path: Path) -> None:
    """Blanks at file ends included: a RocketMQ store can open the directory."""
    plain = CommitLog(FileSystem(), str(tmp_path / "plain"), CONFIG)
    plain.files.load()
    for lo in range(0, 300, 7):
        data = batch(lo, lo + 7, size_bytes=lo)
        expected = plain.append(data, now_unix_ms=BORN)
        assert master.append_prepared(master.prepare(data)) == expected
    assert len(master.log.files.files) > 4
    plain.close()
    assert on_disk(tmp_path / "master") == on_disk(tmp_path / "plain")


def test_preparing_writes_nothing_also_at_the_end_of_a_file(
    master: ShippedStore, tmp_path: Path
) -> None:
    end = put(master, 0, 3, size_bytes=4000)
    before = on_disk(tmp_path / "master")
    prepared = master.prepare(batch(3, 5, size_bytes=3000))
    assert prepared.position == FILE
    assert master.log.max_position == end
    assert on_disk(tmp_path / "master")[:FILE] == before, "no blank yet"
    small = master.prepare(batch(3, 4))  # The large one was given up.
    assert small.position == end
    with pytest.raises(AssertionError, match="prepared since"):
        master.append_prepared(prepared)
    assert master.append_prepared(small).position == end


def test_a_full_disk_is_an_error_before_anything_is_written(
    master: ShippedStore, slave: ShippedStore, tmp_path: Path
) -> None:
    end = put(master, 0, 3, size_bytes=4000)
    ship(master, slave)
    before = on_disk(tmp_path / "master")
    with failpoints.armed("fs.allocate=ENOSPC@1+"):
        with pytest.raises(StoreFullError):
            master.prepare(batch(3, 5, size_bytes=3000))
        assert not master.has_room(6000)
        assert not slave.has_room(10 * FILE)
    assert on_disk(tmp_path / "master") == before
    assert put(master, 3, 5, size_bytes=3000) > FILE > end
    ship(master, slave)
    assert log_bytes(slave) == log_bytes(master)


def test_an_append_takes_the_file_that_is_at_hand(master: ShippedStore) -> None:
    put(master, 0, 3, size_bytes=4000)
    prepared = master.prepare(batch(3, 5, size_bytes=3000))
    with failpoints.armed("fs.allocate=ENOSPC@1+;fs.open=ENOSPC@1+;fs.map=ENOSPC@1+"):
        master.append_prepared(prepared)


def test_a_sync_never_ends_within_a_blank(
    master: ShippedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else somebody would be told that the log goes on in the middle of it."""
    lo = put(master, 0, 3, size_bytes=4000)
    seen, append = set(), MappedFile.append

    def watched(file: MappedFile, data: bytes | memoryview) -> int:
        position = append(file, data)
        seen.add(file.committed_position)  # What a sync on another thread would find.
        return position

    monkeypatch.setattr(MappedFile, "append", watched)
    hi = put(master, 3, 5, size_bytes=3000)
    assert seen <= {lo, FILE, hi}
    assert {FILE, hi} <= seen


# --- Raw bytes ---


@pytest.mark.parametrize("limit", [1, 700, 3000, 1 << 20])
def test_a_shipped_log_is_the_same_in_every_byte(
    master: ShippedStore, slave: ShippedStore, limit: int
) -> None:
    for lo in range(0, 300, 7):
        put(master, lo, lo + 7, size_bytes=lo)
    ship(master, slave, limit=limit)
    assert len(slave.log.files.files) > 4
    assert log_bytes(slave) == log_bytes(master)
    sync(slave)
    assert slave.durable_position == master.log.max_position


def test_a_transfer_is_whole_records_of_one_file(master: ShippedStore) -> None:
    ends = [0, *(put(master, lo, lo + 1, size_bytes=3000) for lo in range(9))]
    log, hi = master.shipped, master.log.max_position
    blank = next(end for end in ends if end % FILE and end + 3200 > FILE)
    assert log.ship_end(0, hi, 1 << 20, LAST) == FILE
    assert log.ship_end(0, ends[2], 1 << 20, LAST) == ends[2], "no more than was asked for"
    assert log.ship_end(blank, hi, 1, LAST) == FILE, "a blank alone"
    assert log.ship_end(blank, FILE, 1 << 20, LAST) == FILE
    assert log.ship_end(ends[1], hi, 1, LAST) in ends


def test_a_transfer_ends_with_a_batch_where_there_is_one(master: ShippedStore) -> None:
    """A replica that has half of an idempotent batch could become master behind it."""
    ends = []
    for lo in range(0, 30, 5):
        last = encode_message("last", 0, b"", born_unix_ms=BORN)
        prepared = master.prepare(batch(lo, lo + 5) + last)
        ends.append(master.append_prepared(prepared).end_position)
    log, hi = master.shipped, ends[-1]
    step = ends[0]
    assert log.ship_end(0, hi, 1, LAST) == ends[0]
    assert log.ship_end(0, hi, step, LAST) == ends[0]
    assert log.ship_end(0, hi, 2 * step - 1, LAST) == ends[0]
    assert log.ship_end(0, hi, 2 * step, LAST) == ends[1]
    assert log.ship_end(ends[0], hi, 100, LAST) == ends[1]
    assert log.ship_end(ends[4], hi, 100, LAST) == ends[5]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def closed(data: bytes, claimed_size_bytes: int) -> bytes:
    """Add a blank that claims a size, and zeros up to the end of the file."""
    return (data + fmt.BLANK.pack(claimed_size_bytes, fmt.MAGIC_BLANK)).ljust(FILE, b"\0")


def test_bytes_that_are_no_records_of_this_place_are_refused(
    master: ShippedStore, slave: ShippedStore
) -> None:
    put(master, 0, 5)
    good = log_bytes(master)
    whole = closed(good, FILE - len(good))
    fields = (0, 3, 4, 9, fmt.PHYSICAL_OFFSET_AT + 7, fmt.BODY_AT + 3, fmt.BODY_LENGTH_AT + 3)
    damaged = [
        b"",
        good[:-1],
        *(flipped(good, at) for at in fields),
        good[: fmt.QUEUE_ID_AT] + fmt.INT32.pack(-1) + good[fmt.QUEUE_ID_AT + 4 :],
        good + b"stray",
        good + bytes(200),
        good + bytes(5 * PAGE),
        closed(good, 77),
        flipped(whole, FILE - 1),
        good + fmt.BLANK.pack(8, fmt.MAGIC_BLANK),
    ]
    for data in damaged:
        with pytest.raises(RecordFormatError):
            slave.shipped.check_raw(0, data)
    assert slave.log.max_position == 0
    for data in (good, whole):
        assert slave.shipped.check_raw(0, data).data == data


def test_records_behind_which_no_blank_fits_are_refused(slave: ShippedStore) -> None:
    """The next append would have to close that file."""
    body = FILE - 7 - (len(record(0, size_bytes=8)) - 8)
    data = bytearray(record(0, size_bytes=body))
    assert len(data) == FILE - 7
    with pytest.raises(RecordFormatError, match="blank"):
        slave.shipped.check_raw(0, bytes(data))


def test_bytes_of_another_place_are_refused(slave: ShippedStore, master: ShippedStore) -> None:
    end = put(master, 0, 5)
    put(master, 5, 9)
    data = master.shipped.read_raw(end, master.log.max_position)
    slave.shipped.check_raw(end, data)
    with pytest.raises(RecordFormatError, match="physical offset"):
        slave.shipped.check_raw(end + 1, data)
    with pytest.raises(RecordFormatError, match="one file"):
        slave.shipped.check_raw(FILE - 8, data)


def test_damaged_bytes_of_an_earlier_process_are_not_shipped(
    master: ShippedStore, tmp_path: Path
) -> None:
    filled(master, 60, size_bytes=1000)
    sync(master)
    image = killed(tmp_path / "master", tmp_path / "image")
    first = next(iter(sorted((image / "commitlog").iterdir())))
    flip(first, 500)
    with open_store(image) as store:
        log = store.shipped
        hi = log.ship_end(0, log.end_position, 3000, LAST)
        with pytest.raises(CorruptionError):
            log.read_raw(0, hi)
        assert log.read_raw(hi, log.ship_end(hi, log.end_position, 3000, LAST))
        blank = log.ship_end(0, FILE, FILE, LAST)
        assert blank == FILE
        end = log.read(0, FILE).rindex(fmt.BLANK.pack(0, fmt.MAGIC_BLANK)[4:]) - 4
        assert log.read_raw(end, FILE), "a blank has nothing to check"


def test_garbage_is_found_when_it_is_read_and_not_before(tmp_path: Path) -> None:
    """The machine asks for the end of a transfer in the middle of its turn."""
    with open_store(tmp_path / "s") as store:
        filled(store, 60, size_bytes=1000)
        sync(store)
        image = killed(tmp_path / "s", tmp_path / "image")
    for at in (0, 4, fmt.SYS_FLAG_AT, fmt.BODY_LENGTH_AT):
        first = next(iter(sorted((image / "commitlog").iterdir())))
        data = bytearray(first.read_bytes())
        data[at : at + 4] = b"\xff\xff\xff\xff"
        first.write_bytes(data)
        with open_store(image) as store:
            log = store.shipped
            hi = log.ship_end(0, log.end_position, 2000, LAST)
            assert 0 < hi <= FILE
            with pytest.raises(StoreError):
                log.read_raw(0, hi)


# --- A log that begins elsewhere ---


def test_the_file_that_a_log_begins_with_is_durable_on_return(tmp_path: Path) -> None:
    """Else a power loss could leave queues of a log that has no file."""
    fs, root = PowerLossFileSystem(), tmp_path / "run"
    source = LazySource(fs, str(root / "commitlog"), FILE)
    log = ShippedLog(fs, str(root), CONFIG, source)
    log.files.load()
    log.begin_at(3 * FILE)
    assert (log.min_position, log.end_position) == (3 * FILE, 3 * FILE)
    log.close()
    fs.build_image(str(root), str(tmp_path / "image"), NoLuck())
    assert [path.name for path in (tmp_path / "image/commitlog").iterdir()] == [f"{3 * FILE:020d}"]
