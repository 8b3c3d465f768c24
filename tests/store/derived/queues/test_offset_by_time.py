"""The offset at a time: both boundaries, all edges, against a plain search of a list."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.derived.queues.consume_queue import ConsumeQueue
from store.derived.queues.offset_by_time import Boundary, offset_by_time
from store.record.check import store_timestamp
from tests.seeds import examples
from tests.store.fakes import Derived, MemoryLog
from tests.store.records import small_config


def build(root: Path, times: list[int]) -> tuple[MemoryLog, ConsumeQueue]:
    log = MemoryLog()
    for unix_ms in times:
        log.unix_ms = unix_ms
        log.add()
    derived = Derived(root, log, small_config(consume_queue_units_per_file=4))
    derived.dispatcher.advance(log.max_position)
    queue = derived.queues.get(b"orders", 0)
    assert queue is not None
    return log, queue


def find(
    log: MemoryLog, queue: ConsumeQueue, unix_ms: int, boundary: Boundary, *, min_position: int = 0
) -> int:
    def timestamp_of(position: int, size_bytes: int) -> int:
        assert position >= min_position, "a deleted record is never read"
        return store_timestamp(log.read(position, size_bytes))

    return offset_by_time(queue, unix_ms, boundary, timestamp_of, min_position=min_position)


def test_deleted_records_are_passed_over(tmp_path: Path) -> None:
    log, queue = build(tmp_path, list(range(0, 1000, 100)))
    kept = log.records[6][0]
    assert find(log, queue, 250, Boundary.LOWER, min_position=kept) == 6
    assert find(log, queue, 250, Boundary.UPPER, min_position=kept) == 0
    assert find(log, queue, 750, Boundary.LOWER, min_position=kept) == 8
    assert find(log, queue, 750, Boundary.UPPER, min_position=kept) == 7
    assert find(log, queue, 0, Boundary.LOWER, min_position=1 << 40) == 10


@settings(max_examples=examples(40))
@given(
    times=st.lists(st.integers(1, 30), min_size=1, max_size=15).map(sorted),
    unix_ms=st.integers(0, 31),
)
def test_boundaries_equal_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], unix_ms: int
) -> None:
    log, queue = build(tmp_path_factory.mktemp("time"), times)
    lower = next((n for n, t in enumerate(times) if t >= unix_ms), len(times))
    upper = max((n for n, t in enumerate(times) if t <= unix_ms), default=0)
    assert find(log, queue, unix_ms, Boundary.LOWER) == lower
    assert find(log, queue, unix_ms, Boundary.UPPER) == upper
