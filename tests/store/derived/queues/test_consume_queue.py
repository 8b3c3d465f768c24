"""One consume queue: its bytes, the order of its offsets, cutting, expiry and recovery."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import format as fmt
from store.derived.queues.consume_queue import ConsumeQueue, QueueEnvironment
from store.derived.sum_files import SumFiles
from store.errors import (
    DerivedFileError,
    FileSystemError,
    PositionRangeError,
    QueueOrderError,
    StoreFullError,
)
from store.files import failpoints
from store.files.descriptor_cache import DescriptorCache
from store.files.file_system import FileSystem
from store.files.staging import staged_path
from store.record.message import decode_message
from tests.seeds import examples
from tests.store.vectors import RECORD, UNIT

SIZE = 100


def environment(root: Path, units_per_file: int = 10) -> QueueEnvironment:
    fs = FileSystem()
    return QueueEnvironment(
        fs, str(root), units_per_file, DescriptorCache(fs, 512), SumFiles(str(root), "units")
    )


def make(root: Path, units_per_file: int = 10) -> ConsumeQueue:
    return ConsumeQueue(environment(root, units_per_file), "orders", 0)


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    return make(tmp_path)


def units(lo: int, hi: int, *, shift: int = 0) -> bytes:
    """Units of the offsets [lo, hi): records of SIZE bytes back to back from `shift` on."""
    return b"".join(fmt.CONSUME_QUEUE_UNIT.pack(shift + n * SIZE, SIZE, n) for n in range(lo, hi))


def put(queue: ConsumeQueue, lo: int, hi: int) -> int:
    return queue.put(lo, units(lo, hi), may_begin_late=True)


def reopened(root: Path, hi_position: int, *, is_clean: bool = True) -> ConsumeQueue:
    queue = make(root)
    queue.recover(hi_position, is_clean=is_clean)
    return queue


def path(root: Path, file_lo: int = 0) -> Path:
    return root / "orders" / "0" / f"{file_lo * 20:020d}"


# --- Bytes ---


def test_the_unit_of_a_record_has_the_published_bytes(tmp_path: Path) -> None:
    message = decode_message(RECORD)
    unit = fmt.CONSUME_QUEUE_UNIT.pack(message.position, message.size_bytes, message.tags_code)
    assert unit == UNIT
    queue = make(tmp_path)
    queue.put(0, units(0, 7), may_begin_late=False)
    queue.put(7, UNIT, may_begin_late=False)
    assert path(tmp_path).read_bytes()[140:160] == UNIT, "queue offset 7 is at byte 140"
    assert queue.unit(7) == (1024, 134, 2598919)


def test_a_file_made_elsewhere_is_read(tmp_path: Path) -> None:
    path(tmp_path).parent.mkdir(parents=True)
    path(tmp_path).write_bytes((units(0, 7) + UNIT).ljust(200, b"\0"))
    queue = reopened(tmp_path, 1 << 40)
    assert queue.max_offset == 8
    assert queue.built_position == 1024 + 134
    assert queue.read_units(7, 8) == UNIT


def test_offset_300000_is_the_first_of_the_second_file(tmp_path: Path) -> None:
    queue = make(tmp_path, 300_000)
    queue.put(299_999, units(299_999, 300_001), may_begin_late=True)
    files = sorted(p.name for p in (tmp_path / "orders" / "0").iterdir())
    assert files == ["00000000000000000000", "00000000000006000000"]
    second = path(tmp_path, 300_000)
    assert second.stat().st_size == 6_000_000
    assert second.read_bytes()[:20] == units(300_000, 300_001)
    assert second.stat().st_blocks * 512 < 100_000, "the rest is a hole"


def test_a_queue_that_begins_late_has_fillers(queue: ConsumeQueue, tmp_path: Path) -> None:
    for failpoint in ("fs.open=EIO", "fs.write=EIO"):
        with failpoints.armed(failpoint), pytest.raises(FileSystemError):
            put(queue, 13, 15)
    put(queue, 13, 15)
    filler = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    assert path(tmp_path, 10).read_bytes() == filler * 3 + units(13, 15) + bytes(100)
    assert (queue.min_offset, queue.max_offset) == (13, 15)


def test_the_largest_numbers_fit(tmp_path: Path) -> None:
    position, offset = (1 << 62) - 1, 1 << 58
    queue = ConsumeQueue(environment(tmp_path), "orders", (1 << 31) - 1)
    unit = fmt.CONSUME_QUEUE_UNIT.pack(position, (1 << 31) - 2, -(1 << 63))
    queue.put(offset, unit, may_begin_late=True)
    assert queue.unit(offset) == (position, (1 << 31) - 2, -(1 << 63))
    again = ConsumeQueue(environment(tmp_path), "orders", (1 << 31) - 1)
    again.recover((1 << 62), is_clean=True)
    assert (again.min_offset, again.max_offset) == (offset, offset + 1)
    assert again.built_position == position + (1 << 31) - 2


def test_a_put_that_overlaps_what_is_built_appends_only_the_rest(queue: ConsumeQueue) -> None:
    put(queue, 0, 12)
    assert put(queue, 10, 15) == 3
    assert put(queue, 0, 15) == 0, "a repetition changes nothing"
    assert (queue.max_offset, queue.read_units(0, 15)) == (15, units(0, 15))


def test_a_unit_that_was_written_again_is_in_the_next_sync(queue: ConsumeQueue) -> None:
    put(queue, 0, 25)
    queue.sync_units()
    queue.rewrite(3, units(3, 4))
    with failpoints.census() as calls:
        queue.sync_units()
    assert calls["fs.sync"] == 3, "all three files, of which the first was written"


# --- Order ---


def test_a_gap_is_refused_and_nothing_is_written(queue: ConsumeQueue, tmp_path: Path) -> None:
    put(queue, 0, 5)
    before = path(tmp_path).read_bytes()
    with pytest.raises(QueueOrderError) as caught:
        put(queue, 6, 8)
    assert (caught.value.expected_offset, caught.value.found_offset) == (5, 6)
    assert path(tmp_path).read_bytes() == before
    assert queue.max_offset == 5


def test_a_new_queue_begins_at_0_while_the_log_is_whole(queue: ConsumeQueue) -> None:
    with pytest.raises(QueueOrderError):
        queue.put(1, units(1, 2), may_begin_late=False)
    assert not queue.has_files
    with pytest.raises(QueueOrderError):
        queue.put(-1, units(1, 2), may_begin_late=True)


def test_another_unit_at_a_built_offset_is_damage(queue: ConsumeQueue, tmp_path: Path) -> None:
    put(queue, 0, 12)
    with pytest.raises(DerivedFileError) as caught:
        queue.put(10, units(10, 13, shift=7), may_begin_late=False)
    assert caught.value.path == str(path(tmp_path, 10))
    assert caught.value.at == 0
    assert queue.max_offset == 12


def test_a_record_before_the_built_position_is_damage(queue: ConsumeQueue) -> None:
    put(queue, 0, 3)
    with pytest.raises(DerivedFileError, match="position 300 or later"):
        queue.put(3, fmt.CONSUME_QUEUE_UNIT.pack(299, SIZE, 0), may_begin_late=False)
    assert queue.max_offset == 3


def test_reads_outside_of_the_queue_are_refused(queue: ConsumeQueue) -> None:
    put(queue, 3, 14)
    for lo, hi in ((2, 4), (13, 15), (14, 15), (5, 4)):
        with pytest.raises(PositionRangeError):
            queue.read_units(lo, hi)
    assert queue.read_units(14, 14) == b""
    assert queue.read_units(3, 14) == units(3, 14)


# --- Cutting and expiry ---


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 19, 20, 24, 25])
@pytest.mark.parametrize("way", ["truncate", "crash"])
def test_units_that_were_cut_are_zeros(tmp_path: Path, way: str, keep: int) -> None:
    queue = make(tmp_path)
    put(queue, 0, 25)
    if way == "truncate":
        queue.truncate(keep * SIZE)
    else:
        queue = reopened(tmp_path, keep * SIZE, is_clean=False)
    assert queue.max_offset == keep
    assert queue.built_position == keep * SIZE
    data = b"".join(p.read_bytes() for p in sorted((tmp_path / "orders" / "0").iterdir()))
    assert data.rstrip(b"\0") == units(0, keep).rstrip(b"\0")
    again = reopened(tmp_path, 1 << 40)
    assert (again.min_offset, again.max_offset) == (0, keep)
    assert put(again, keep, 30) == 30 - keep
    assert again.read_units(0, 30) == units(0, 30)


def test_a_cut_also_zeros_what_a_failed_put_left(queue: ConsumeQueue, tmp_path: Path) -> None:
    """The units were there, nobody counted them, and a cut had nothing to do."""
    put(queue, 0, 5)
    with failpoints.armed("fs.rename=ENOSPC"), pytest.raises(StoreFullError):
        put(queue, 5, 15)
    queue.truncate(5 * SIZE)
    assert queue.max_offset == 5
    again = reopened(tmp_path, 1 << 40)
    assert (again.min_offset, again.max_offset) == (0, 5)
    assert path(tmp_path).read_bytes() == units(0, 5).ljust(200, b"\0")


def test_an_emptied_queue_keeps_its_next_offset(queue: ConsumeQueue, tmp_path: Path) -> None:
    put(queue, 13, 25)
    queue.truncate(0)
    assert (queue.min_offset, queue.max_offset) == (13, 13)
    again = reopened(tmp_path, 1 << 40)
    assert (again.min_offset, again.max_offset, again.built_position) == (13, 13, 0)
    with pytest.raises(QueueOrderError):
        put(again, 14, 15)
    assert put(again, 13, 15) == 2


def test_expired_files_are_deleted_but_never_the_last(queue: ConsumeQueue, tmp_path: Path) -> None:
    put(queue, 0, 35)
    assert queue.delete_expired(1900) == 1, "the second file's last record begins at 1900"
    assert queue.delete_expired(1900) == 0
    assert queue.min_offset == 19
    assert not path(tmp_path, 0).exists()
    assert queue.delete_expired(1 << 40) == 2
    assert [p.name for p in path(tmp_path).parent.iterdir()] == [path(tmp_path, 30).name]
    assert (queue.min_offset, queue.max_offset) == (35, 35)
    again = reopened(tmp_path, 1 << 40)
    assert (again.min_offset, again.max_offset) == (30, 35)
    assert put(queue, 35, 36) == 1


# --- Recovery ---


@settings(max_examples=examples(60))
@given(data=st.data())
def test_damaged_last_units_never_pass_as_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever lies from some unit on, the queue is cut within it, or says that it is damaged."""
    root = tmp_path_factory.mktemp("queue")
    count = data.draw(st.integers(1, 29))
    put(make(root), 0, count)
    first = data.draw(st.integers(max(0, count - 8), count - 1))
    file_lo = first // 10 * 10
    content = bytearray(path(root, file_lo).read_bytes())
    lo = (first - file_lo) * 20
    noise = data.draw(st.binary(min_size=1, max_size=len(content) - lo))
    content[lo : lo + len(noise)] = noise
    path(root, file_lo).write_bytes(content)
    try:
        again = reopened(root, first * SIZE, is_clean=False)
    except DerivedFileError:
        return
    kept = again.read_units(0, again.max_offset)
    assert kept[: first * 20] == units(0, first)
    for position, _, _ in fmt.CONSUME_QUEUE_UNIT.iter_unpack(kept):
        assert position < first * SIZE


def test_a_missing_file_in_the_middle_is_damage(tmp_path: Path) -> None:
    put(make(tmp_path), 0, 25)
    path(tmp_path, 10).unlink()
    with pytest.raises(DerivedFileError, match="file name"):
        reopened(tmp_path, 25 * SIZE)


def test_left_overs_of_a_creation_are_removed(tmp_path: Path) -> None:
    put(make(tmp_path), 0, 10)
    name = path(tmp_path, 10).name
    left = Path(staged_path(str(tmp_path), name, part="0-"))
    queue = reopened(tmp_path, 10 * SIZE)
    left.write_bytes(b"half")
    put(queue, 10, 11)
    assert not left.exists()


def test_fillers_alone_are_no_records(tmp_path: Path) -> None:
    """RocketMQ takes them as records up to 2 GiB and skips all later ones (2.1, hazard)."""
    put(make(tmp_path), 13, 14)
    data = path(tmp_path, 10).read_bytes()
    path(tmp_path, 10).write_bytes(data[:60].ljust(200, b"\0"))
    queue = reopened(tmp_path, 1 << 40)
    assert (queue.min_offset, queue.max_offset, queue.built_position) == (13, 13, 0)
    assert put(queue, 13, 14) == 1


# --- Model ---


class Model:
    """What a queue should hold, as a plain list."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.units: list[tuple[int, int, int]] = []
        self.end_position = 1000

    def make(self, count: int, sizes: list[int]) -> bytes:
        made = []
        for n in range(count):
            size = 91 + sizes[n % len(sizes)]
            made.append((self.end_position, size, size * 31))
            self.end_position += size + sizes[n % len(sizes)] % 7
        self.units += made
        return b"".join(struct.pack(">qiq", *unit) for unit in made)


@settings(max_examples=examples(60))
@given(
    first=st.integers(0, 25),
    per_file=st.integers(1, 9),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "again", "truncate", "expire", "reopen", "crash"]),
            st.integers(0, 30),
            st.lists(st.integers(0, 500), min_size=1, max_size=3),
        ),
        max_size=12,
    ),
)
def test_a_queue_behaves_as_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    first: int,
    per_file: int,
    steps: list[tuple[str, int, list[int]]],
) -> None:
    root = tmp_path_factory.mktemp("queue")
    queue, model = make(root, per_file), Model(first)
    minimum = first
    for action, number, sizes in steps:
        end = model.first + len(model.units)
        if action == "put" and number:
            queue.put(end, model.make(number, sizes), may_begin_late=True)
        elif action == "again" and model.units:
            lo = max(0, len(model.units) - number - 1)
            hi = lo + 1 + sizes[0] % (len(model.units) - lo)
            again = b"".join(struct.pack(">qiq", *unit) for unit in model.units[lo:hi])
            new_count = number % 5 if hi == len(model.units) else 0
            again += model.make(new_count, sizes)
            assert queue.put(model.first + lo, again, may_begin_late=False) == new_count
        elif action == "truncate" and model.units:
            lo = max(minimum - model.first, len(model.units) - number)
            if lo < len(model.units):
                queue.truncate(model.units[lo][0])
                model.end_position = model.units[lo][0]
                del model.units[lo:]
        elif action == "expire" and number < len(model.units):
            queue.delete_expired(model.units[number][0])
            minimum = max(minimum, model.first + number)
        elif action in ("reopen", "crash"):
            position = (
                model.units[minimum - model.first][0]
                if len(model.units) > (minimum - model.first)
                else model.end_position
            )
            queue = make(root, per_file)
            queue.recover(model.end_position, is_clean=action == "reopen")
            queue.correct_min_offset(position)
        kept = model.units[minimum - model.first :]
        end = model.first + len(model.units)
        if not queue.has_files:
            assert not model.units
            continue
        assert (queue.min_offset, queue.max_offset) == (minimum, end)
        units = list(fmt.CONSUME_QUEUE_UNIT.iter_unpack(queue.read_units(minimum, end)))
        assert units == kept
        if kept:
            assert queue.built_position == kept[-1][0] + kept[-1][1]
