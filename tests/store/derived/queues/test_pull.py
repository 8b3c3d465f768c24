"""Pull: statuses, limits, the filter, ranges over gaps and file ends, and damage that is seen; the
offset at a time."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import format as fmt
from store.derived.queues.pull import (
    PULL_READ_COUNT_MAX,
    SCAN_COUNT_MAX,
    PullResult,
    PullStatus,
    pull,
    read_at,
)
from store.errors import DerivedDamageError, FileSystemError, PositionRangeError
from store.files.failpoints import armed
from store.record.message import tags_code
from tests.seeds import examples
from tests.store.fakes import Derived, MemoryLog, queue_of
from tests.store.records import messages, small_config

MIB = 1 << 20


def derive(root: Path, log: MemoryLog, *, units_per_file: int = 50) -> Derived:
    config = small_config(consume_queue_units_per_file=units_per_file)
    derived = Derived(root, log, config, durable_position=log.first_position)
    derived.dispatcher.advance(log.max_position)
    return derived


def offsets(result: PullResult) -> list[int]:
    """Decode the data: every byte belongs to a record."""
    collected = [message.queue_offset for message in messages(result.data)]
    assert len(collected) == result.record_count
    return collected


def filled(root: Path, count: int = 20, queues: int = 1, **how: int) -> tuple[MemoryLog, Derived]:
    log = MemoryLog(**how)
    for n in range(count):
        log.add(queue_id=n % queues, body=b"x" * (n % 50), properties={"TAGS": f"tag{n % 3}"})
    return log, derive(root, log)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (4, PullStatus.OFFSET_TOO_SMALL, 5),
        (-1, PullStatus.OFFSET_TOO_SMALL, 5),
        (5, PullStatus.FOUND, 20),
        (19, PullStatus.FOUND, 20),
        (20, PullStatus.OFFSET_OVERFLOW_ONE, 20),
        (21, PullStatus.OFFSET_OVERFLOW_BADLY, 20),
        (1 << 62, PullStatus.OFFSET_OVERFLOW_BADLY, 20),
    ],
)
def test_statuses(tmp_path: Path, offset: int, status: PullStatus, next_offset: int) -> None:
    log, derived = filled(tmp_path)
    derived.queues.correct_min_offsets(log.records[5][0])
    result = pull(log, queue_of(derived.queues), offset, 100, MIB)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (5, 20)
    assert bool(result.data) == (status is PullStatus.FOUND)


def test_statuses_without_a_record(tmp_path: Path) -> None:
    log, derived = filled(tmp_path)
    assert pull(log, None, 5, 1, 1).status is PullStatus.NO_MATCHED_LOGIC_QUEUE
    queue_of(derived.queues).truncate(0)
    result = pull(log, queue_of(derived.queues), 5, 1, 1)
    assert (result.status, result.next_offset) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_limits(tmp_path: Path) -> None:
    log, derived = filled(tmp_path)
    queue = queue_of(derived.queues)
    sizes = [size_bytes for _, size_bytes in log.records]
    assert offsets(pull(log, queue, 2, 1, 0)) == [2], "one record at least, however large"
    assert offsets(pull(log, queue, 2, 5, sum(sizes[2:5]))) == [2, 3, 4]
    assert offsets(pull(log, queue, 2, 5, sum(sizes[2:5]) - 1)) == [2, 3]
    assert offsets(pull(log, queue, 2, 2, MIB)) == [2, 3]


class CountingLog(MemoryLog):
    read_count = read_size_bytes = 0

    def read(self, position: int, size_bytes: int) -> bytes:
        self.read_count += 1
        self.read_size_bytes += size_bytes
        return super().read(position, size_bytes)


@pytest.mark.parametrize("tags", [None, {tags_code("a")}])
@pytest.mark.parametrize("gap", [17_000, 16_000])
def test_one_pull_of_scattered_records_reads_so_much_and_no_more(
    tmp_path: Path, gap: int, tags: set[int] | None
) -> None:
    log = CountingLog()
    for _ in range(700):
        log.add(queue_id=0, body=b"", properties={"TAGS": "a"})
        log.add(queue_id=1, body=bytes(gap))
    queue = queue_of(derive(tmp_path, log).queues)
    collected, pulls = list[int](), 0
    while len(collected) < 700:
        log.read_count = log.read_size_bytes = 0
        result = pull(log, queue, len(collected), 700, MIB, tags)
        assert 0 < log.read_count <= PULL_READ_COUNT_MAX
        assert log.read_size_bytes < 9 * MIB + 17_000
        collected += offsets(result)
        assert result.next_offset == len(collected)
        pulls += 1
    assert collected == list(range(700))
    assert pulls > 1, "the limits were not reached"


@pytest.mark.parametrize("max_count", [1, 2, 100])
def test_the_filter_compares_tags_codes(tmp_path: Path, max_count: int) -> None:
    log, derived = filled(tmp_path, 40, 2)
    queue = queue_of(derived.queues)
    wanted = {tags_code("tag1"), tags_code("none")}
    collected, offset = [], 0
    while offset < queue.max_offset:
        result = pull(log, queue, offset, max_count, MIB, wanted)
        assert result.next_offset > offset
        collected += offsets(result)
        offset = result.next_offset
    assert collected == [n // 2 for n in range(0, 40, 2) if n % 3 == 1]


def test_a_filter_that_matches_nothing_says_where_to_go_on(tmp_path: Path) -> None:
    log, derived = filled(tmp_path, SCAN_COUNT_MAX + 10)
    result = pull(log, queue_of(derived.queues), 5, 10, MIB, {12345})
    assert result.status is PullStatus.NO_MATCHED_MESSAGE
    assert result.next_offset == SCAN_COUNT_MAX + 5
    result = pull(log, queue_of(derived.queues), result.next_offset, 10, MIB, {12345})
    assert result.next_offset == SCAN_COUNT_MAX + 10


def test_records_that_were_deleted_meanwhile(tmp_path: Path) -> None:
    log, derived = filled(tmp_path)
    log.min_position = log.records[7][0]  # The queue does not know it yet.
    result = pull(log, queue_of(derived.queues), 3, 10, MIB)
    assert (result.status, result.next_offset) == (PullStatus.MESSAGE_WAS_REMOVING, 7)
    assert offsets(pull(log, queue_of(derived.queues), 7, 3, MIB)) == [7, 8, 9]


# A unit that points elsewhere, has another size, or belongs to another record of the log.
@pytest.mark.parametrize("wrong", ["position", "size", "other", "zero", "log"])
def test_a_unit_that_lies_is_damage(tmp_path: Path, wrong: str) -> None:
    log, derived = filled(tmp_path, 40, 2)
    path = tmp_path / "consumequeue/orders/0/00000000000000000000"
    data = bytearray(path.read_bytes())
    position, size_bytes, code = fmt.CONSUME_QUEUE_UNIT.unpack_from(data, 5 * 20)
    units = {
        "position": (position + 1, size_bytes, code),
        "size": (position, size_bytes - 1, code),
        "other": (*log.records[3], code),
        "zero": (0, 0, 0),
    }
    if wrong == "log":
        log.data[position + 27] ^= 1
    else:
        fmt.CONSUME_QUEUE_UNIT.pack_into(data, 5 * 20, *units[wrong])
        path.write_bytes(data)
    if wrong != "log":  # All units of the block have one checksum.
        with pytest.raises(DerivedDamageError, match="offsets 0 to 19"):
            pull(log, queue_of(derived.queues), 0, 5, MIB)
        queue_of(derived.queues).sums.open(20)  # As of a directory without checksums.
    assert offsets(pull(log, queue_of(derived.queues), 0, 5, MIB)) == [0, 1, 2, 3, 4]
    for offset in (0, 5):
        with pytest.raises(DerivedDamageError, match="offset 5"):
            pull(log, queue_of(derived.queues), offset, 10, MIB)
    assert offsets(pull(log, queue_of(derived.queues), 6, 2, MIB)) == [6, 7]


def test_an_error_of_the_disk_is_no_status(tmp_path: Path) -> None:
    log, derived = filled(tmp_path)
    with armed("fs.read=EIO"), pytest.raises(FileSystemError):
        pull(log, queue_of(derived.queues), 0, 5, MIB)
    assert offsets(pull(log, queue_of(derived.queues), 0, 5, MIB)) == [0, 1, 2, 3, 4]


@settings(max_examples=examples(50))
@given(
    records=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), min_size=1, max_size=40),
    gap=st.sampled_from([0, 48, 20_000]),
    max_count=st.integers(1, 10),
    max_bytes=st.integers(0, 2000) | st.just(MIB),
)
def test_pulls_one_after_the_other_give_every_record_once(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[int, int]],
    gap: int,
    max_count: int,
    max_bytes: int,
) -> None:
    log = MemoryLog(file_size_bytes=32768 if gap > 100 else 2048, gap_size_bytes=gap)
    expected: dict[int, bytes] = {}
    for queue_id, size in records:
        log.add(queue_id=queue_id, body=b"x" * size)
        expected[queue_id] = expected.get(queue_id, b"") + log.read(*log.records[-1])
    derived = derive(tmp_path_factory.mktemp("pull"), log, units_per_file=7)
    for queue_id, data in expected.items():
        queue, offset, pulled = queue_of(derived.queues, queue_id=queue_id), 0, b""
        while offset < queue.max_offset:
            result = pull(log, queue, offset, max_count, max_bytes)
            assert result.status is PullStatus.FOUND
            assert 1 <= result.record_count <= max_count
            assert len(result.data) <= max_bytes or result.record_count == 1
            assert (result.min_offset, result.max_offset) == (0, queue.max_offset)
            assert result.next_offset == offset + result.record_count
            pulled += result.data
            offset = result.next_offset
        assert pulled == data


@pytest.mark.parametrize("gap", [0, 48])
def test_single_records_are_read_by_their_offsets(tmp_path: Path, gap: int) -> None:
    log = MemoryLog(file_size_bytes=2048, gap_size_bytes=gap)
    for n in range(900):
        log.add(body=b"%d" % n)
    queue = queue_of(derive(tmp_path, log).queues)
    for wanted in ([0], [5, 6, 7], [1, 3, 700, 899], list(range(0, 900, 3))):
        records = messages(read_at(log, queue, wanted))
        assert [(m.queue_offset, m.body) for m in records] == [(n, b"%d" % n) for n in wanted]
    with pytest.raises(PositionRangeError):
        read_at(log, queue, [3, 900])
