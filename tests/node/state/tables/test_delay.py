"""Progress of delayed messages: a set that only grows, the same on every replica."""

import json
from itertools import count as count_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors.common import BadRequestError
from node.errors.delay import DelayedGoneError
from node.state.registry import TABLES, decode_table, encode_table
from node.state.state import State
from node.state.tables.delay import DelayTable
from node.state.tables.offset_set import CHUNK_OFFSETS, OffsetSet, decode_runs, encode_runs
from node.state.tables.table import NOTHING, TableImage
from quorumlog.pb.state_pb2 import Command
from store.errors import CorruptionError
from tests.node.commands import SMALL_LIMITS, state_after

KIND = next(kind for kind in TABLES if kind.name == "delay")


def take(queue: int, *offsets: int) -> Command:
    row = Command.DelayedOffsets(queue=queue, runs=encode_runs(offsets))
    return Command(take_delayed=Command.TakeDelayed(queues=[row]))


def cancel(queue: int, offset: int) -> Command:
    return Command(cancel_delayed=Command.CancelDelayed(queue=queue, offset=offset))


# Around the ends of chunks, where a mistake would be.
OFFSETS = st.one_of(
    st.integers(0, 40),
    st.integers(CHUNK_OFFSETS - 5, CHUNK_OFFSETS + 5),
    st.integers(3 * CHUNK_OFFSETS - 2, 3 * CHUNK_OFFSETS + 2),
)
RANGES = st.tuples(OFFSETS, st.sampled_from([1, 1, 2, 7, CHUNK_OFFSETS, 2 * CHUNK_OFFSETS + 3]))


@given(st.lists(RANGES, max_size=12))
def test_the_set_is_a_set(ranges: list[tuple[int, int]]) -> None:
    gone, model = OffsetSet(), set[int]()
    for lo, count in ranges:
        hi = lo + count
        overlaps = not model.isdisjoint(range(lo, hi))
        assert gone.has_any(lo, hi) == overlaps
        if not overlaps:
            gone.add(lo, hi)
            model.update(range(lo, hi))
        floor = next(n for n in range(len(model) + 1) if n not in model)
        assert (gone.floor, gone.count) == (floor, len(model))
    probes = {n for lo, count in ranges for n in (lo - 1, lo, lo + count - 1, lo + count)}
    for offset in probes - {-1}:
        assert (offset in gone) == (offset in model)
        assert gone.next_left(offset) == next(n for n in count_from(offset) if n not in model)
    again = OffsetSet.of(json.loads(json.dumps(gone.content())))
    assert again.content() == gone.content()
    assert all((n in again) == (n in model) for n in probes - {-1})


@given(st.permutations(range(7)), st.integers(0, 7))
def test_full_chunks_are_kept_as_runs(numbers: list[int], count: int) -> None:
    gone = OffsetSet()
    for number in numbers[:count]:
        gone.add(number * CHUNK_OFFSETS, (number + 1) * CHUNK_OFFSETS)
    floor = next(n for n in range(8) if n not in numbers[:count])
    assert gone.floor == floor * CHUNK_OFFSETS
    los = [n for n in numbers[:count] if n > floor and n - 1 not in numbers[:count]]
    assert [lo for lo, _ in gone.content()["full"]] == sorted(los)
    again = OffsetSet.of(json.loads(json.dumps(gone.content())))
    for number in range(8):
        first = number * CHUNK_OFFSETS
        is_in = number in numbers[:count]
        assert {first in gone, first + 99 in again, again.has_any(first, first + 2)} == {is_in}


def test_a_late_offset_costs_little_beside_many_done() -> None:
    gone = OffsetSet()
    gone.add(1, 20_000 * CHUNK_OFFSETS)
    assert len(json.dumps(gone.content())) < 2_000
    gone.add(0, 1)
    assert gone.content() == OffsetSet.below(20_000 * CHUNK_OFFSETS).content()


@given(st.sets(OFFSETS, min_size=1))
def test_runs_say_which_offsets_are_meant(offsets: set[int]) -> None:
    runs = decode_runs(encode_runs(sorted(offsets)))
    assert runs is not None
    assert [n for lo, hi in runs for n in range(lo, hi)] == sorted(offsets)


@pytest.mark.parametrize("flat", [[], [1], [1, 0], [0, 1, 0, 1]])
def test_runs_that_nobody_makes_are_refused(flat: list[int]) -> None:
    assert decode_runs(flat) is None


def test_an_image_costs_only_what_changed() -> None:
    gone = OffsetSet()
    gone.add(1, 3)
    gone.add(CHUNK_OFFSETS + 1, CHUNK_OFFSETS + 2)
    first = gone.content()
    gone.add(CHUNK_OFFSETS + 2, CHUNK_OFFSETS + 3)
    second = gone.content()
    assert second["chunks"]["0"] is first["chunks"]["0"]
    assert (first["chunks"]["1"], second["chunks"]["1"]) == ("2", "6")


def test_a_delayed_message_is_taken_once() -> None:
    state = state_after(take(0, 3, 4, 9), take(5, 3), cancel(0, 5))
    before = state.image()
    for command in (take(0, 8, 9), take(0, 4), take(0, 5), cancel(0, 9), cancel(0, 5)):
        assert isinstance(state.apply_command(command, 0), DelayedGoneError)
    assert state.image()._replace(refused_count=0) == before
    assert state.apply_command(cancel(5, 9), 0) is None


@pytest.mark.parametrize(
    "command",
    [
        take(19, 1),
        cancel(19, 1),
        Command(cancel_delayed=Command.CancelDelayed(queue=1, offset=-1)),
        Command(take_delayed=Command.TakeDelayed(queues=[Command.DelayedOffsets(queue=1)])),
        Command(take_delayed=Command.TakeDelayed(queues=2 * [*take(1, 1).take_delayed.queues])),
    ],
)
def test_commands_that_nobody_writes_are_refused(command: Command) -> None:
    assert isinstance(State(SMALL_LIMITS).apply_command(command, 0), BadRequestError)


def test_a_cancel_is_remembered_for_a_while() -> None:
    count = SMALL_LIMITS.cancelled_delayed_count_max
    part = state_after(*(cancel(2, n) for n in range(count + 1))).table(DelayTable)
    assert not part.was_cancelled(2, 0)
    assert part.was_cancelled(2, 1)
    assert part.was_cancelled(2, count)


def test_the_file_has_the_table_that_rocketmq_writes() -> None:
    state = state_after(take(1, *range(10)), take(5, 0), take(0, 1), cancel(2, 1))
    image = state.image().tables["delay"]
    text = encode_table(KIND, image, 1_700_000_000_000)
    version = '"dataVersion": {\n\t\t"counter": 4,\n\t\t"stateVersion": 0,\n\t\t"timestamp": 17'
    assert version in text
    assert '"offsetTable": {\n\t\t1: 10,\n\t\t2: 0,\n\t\t5: 1\n\t}' in text
    assert decode_table(KIND, text) == image


@pytest.mark.parametrize("table", ["{1:10,2:0,18:5}", '{"1":10,"2":0,"18":5}'])
def test_a_file_of_rocketmq_is_read(table: str) -> None:
    version = '{"counter":3,"stateVersion":0,"timestamp":1}'
    image = decode_table(KIND, f'{{"dataVersion":{version},"offsetTable":{table}}}')
    assert image.version == 3
    part = DelayTable(SMALL_LIMITS, image)
    assert [part.queues[level].floor for level in (1, 2, 18)] == [10, 0, 5]
    assert part.queues[1].count == 10


def test_another_format_is_an_error_and_not_dropped() -> None:
    content: Any = {**state_after(take(1, 1)).image().tables["delay"].content, "format": 1}
    with pytest.raises(CorruptionError, match="format of delayed"):
        DelayTable(SMALL_LIMITS, TableImage(1, content))


def test_damaged_bits_are_an_error() -> None:
    content = {"floor": 0, "count": 1, "chunks": {"0": "1" + "0" * 2000}, "full": []}
    with pytest.raises(ValueError, match="chunk 0"):
        OffsetSet.of(content)


def test_an_empty_delay_table_is_in_no_image() -> None:
    assert "delay" not in State(SMALL_LIMITS).image().tables
    assert DelayTable(SMALL_LIMITS, NOTHING).queues[0].floor == 0


def test_all_below_a_floor_is_what_was_added_one_by_one() -> None:
    for floor in (1, 5, CHUNK_OFFSETS - 1, CHUNK_OFFSETS, CHUNK_OFFSETS + 3):
        added = OffsetSet()
        added.add(0, floor)
        full_set = OffsetSet.below(floor)
        assert full_set.content() == added.content()
        full_set.add(floor, floor + 1)
        added.add(floor, floor + 1)
        assert full_set.content() == added.content()
