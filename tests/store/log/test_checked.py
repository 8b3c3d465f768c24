"""What was checked is remembered, and old damage is met when it is read."""

import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import format as fmt
from store.errors import CorruptionError
from store.log import checked
from store.log.checked import CheckedRanges
from tests.patience import PATIENCE_S
from tests.store.fsck_stores import Clock, open_store
from tests.store.overwrites import overwrite
from tests.store.records import batch, numbers, small_config


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
