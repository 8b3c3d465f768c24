"""The offset at a time: all edges, against a plain search of a list."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.store import Store
from tests.seeds import examples
from tests.store.records import batch, messages, small_config


def build(root: Path, times: list[int]) -> Store:
    clock = [times[0]]
    config = small_config(consume_queue_units_per_file=4)
    store = Store.open(str(root), config, maintain=False, now_unix_ms=lambda: clock[-1])
    for n, unix_ms in enumerate(times):
        clock.append(unix_ms)
        store.append(batch(n, n + 1))
    return store


def test_deleted_records_are_passed_over(tmp_path: Path) -> None:
    with build(tmp_path, list(range(0, 1000, 100))) as store:
        store.queues()  # Sees all that was appended.
        kept = messages(store.records_at("orders", 0, [6]))[0].position
        store.origin = lambda _: kept
        assert store.offset_by_time("orders", 0, 250) == 6
        assert store.offset_by_time("orders", 0, 750) == 8
        kept = store.log.max_position
        assert store.offset_by_time("orders", 0, 0) == 10


@settings(max_examples=examples(40))
@given(
    times=st.lists(st.integers(1, 30), min_size=1, max_size=15).map(sorted),
    unix_ms=st.integers(0, 31),
)
def test_times_equal_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], unix_ms: int
) -> None:
    first = next((n for n, t in enumerate(times) if t >= unix_ms), len(times))
    with build(tmp_path_factory.mktemp("time"), times) as store:
        assert store.offset_by_time("orders", 0, unix_ms) == first
