"""The replicated windows of pop: what commands do to them, and that images keep all of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from node.errors.common import LimitReachedError, UnknownQueueError, UnknownTopicError
from node.errors.pop import PopConflictError
from node.state.image import decode_image, encode_image
from node.state.state import State
from node.state.tables.pop import InFlightMessage, PopTable
from quorumlog.pb.pop_pb2 import PopHide, PopSettle, PopTake
from quorumlog.pb.state_pb2 import Command
from store.errors import CorruptionError
from tests.node.checkpoints import loaded, reloaded, saved
from tests.node.commands import (
    SMALL_LIMITS,
    commit,
    delete_group,
    delete_topic,
    put_topic,
    state_after,
)

LIMITS = replace(
    SMALL_LIMITS, pop_window_count_max=4, pop_in_flight_count_max=6, pop_attempt_count_max=2
)


def taken(
    generation: int,
    *new: int,
    expected: int = -1,
    next_offset: int = 0,
    again: tuple[tuple[int, int], ...] = (),
    waiting: tuple[int, ...] = (),
    queue_id: int = 0,
    topic: str = "a",
    group: str = "g",
    attempt_id: str = "",
) -> Command:
    queue = PopTake.Queue(
        queue_id=queue_id,
        expected_offset=expected,
        next_offset=next_offset or max((*new, *waiting), default=expected - 1) + 1,
        offsets=new,
        message_groups=[7] * len(new),
        waiting_offsets=waiting,
        waiting_message_groups=[7] * len(waiting),
        again_offsets=[offset for offset, _ in again],
        again_generations=[before for _, before in again],
    )
    return Command(
        pop_take=PopTake(
            group=group,
            topic=topic,
            generation=generation,
            visible_unix_ms=generation + 100,
            attempt_id=attempt_id,
            queues=[queue],
        )
    )


def settled(*rows: tuple[int, int], topic: str = "a") -> Command:
    settle = PopSettle(group="g", topic=topic)
    for offset, generation in rows:
        settle.queue_ids.append(0)
        settle.offsets.append(offset)
        settle.generations.append(generation)
    return Command(pop_settle=settle)


def hidden(offset: int, generation: int, visible_unix_ms: int) -> Command:
    hide = PopHide(group="g", topic="a", visible_unix_ms=visible_unix_ms)
    hide.queue_ids.append(0)
    hide.offsets.append(offset)
    hide.generations.append(generation)
    return Command(pop_hide=hide)


def made(*commands: Command) -> State:
    return state_after(put_topic("a", 2), put_topic("b", 2), *commands, limits=LIMITS)


def items(state: State) -> dict[int, InFlightMessage]:
    window = state.table(PopTable).windows.get(("g", "a", 0))
    return {} if window is None else window.items


def test_a_take_a_second_one_and_what_is_done_move_the_offset_of_the_group() -> None:
    state = made(taken(1, 3, 5, waiting=(4,), next_offset=7))
    assert list(items(state).items()) == [
        (3, InFlightMessage(1, 1, 101, 7)),
        (4, InFlightMessage(0, 0, 0, 7)),
        (5, InFlightMessage(1, 1, 101, 7)),
    ], "by offset, whether handed out or waiting"
    assert state.groups == {"g": {"a": {0: 3}}}
    assert state.apply_command(taken(2, 7, expected=7, again=((3, 1), (4, 0))), 0) is None
    assert items(state)[3] == InFlightMessage(2, 2, 102, 7)
    assert items(state)[4] == InFlightMessage(1, 2, 102, 7)
    assert state.apply_command(settled((3, 1), (5, 1), (4, 2)), 0) is None
    assert list(items(state)) == [3, 7], "the first handle was stale"
    assert state.apply_command(settled((3, 2)), 0) is None
    assert state.groups == {"g": {"a": {0: 7}}}
    assert state.apply_command(settled((7, 2), (9, 2)), 0) is None
    assert (state.table(PopTable).windows, state.groups) == ({}, {"g": {"a": {0: 8}}})
    take = taken(3, expected=8, next_offset=9, again=((3, 2),))
    assert state.apply_command(take, 0) is None, "passes one over, and 3 is done"
    assert (state.table(PopTable).windows, state.groups) == ({}, {"g": {"a": {0: 9}}})


def test_only_the_delivery_that_is_named_is_hidden() -> None:
    state = made(taken(1, 0), hidden(0, 1, 500), hidden(0, 9, 700), hidden(3, 1, 700))
    assert items(state) == {0: InFlightMessage(1, 1, 500, 7)}


def test_the_earliest_moment_of_a_window_stays_with_a_later_take() -> None:
    """What comes back is looked for from then on: too late would hold the first one back."""
    state = made(taken(1, 0), taken(50, 1, expected=1))
    assert [item.visible_unix_ms for item in items(state).values()] == [101, 150]
    assert state.table(PopTable).windows["g", "a", 0].earliest_unix_ms == 101


def test_a_take_that_comes_too_late_changes_nothing() -> None:
    state = made(taken(1, 0, 1))
    for late in (taken(2, 1, expected=-1), taken(2, 3, expected=3)):
        assert isinstance(state.apply_command(late, 0), PopConflictError)
    assert state.apply_command(taken(2, expected=2, next_offset=2, again=((0, 1),)), 0) is None
    late = taken(3, 2, expected=2, again=((0, 1),))
    assert isinstance(state.apply_command(late, 0), PopConflictError), "taken by another"
    assert list(items(state)) == [0, 1]


def test_limits_and_names_are_checked() -> None:
    state = made(taken(1, 0, 1, 2))
    for command, refusal in (
        (taken(1, 0, topic="x"), UnknownTopicError),
        (taken(1, 0, queue_id=2), UnknownQueueError),
        (taken(2, 3, 4, expected=3), LimitReachedError),
        (taken(2, 0, 1, 2, 3, topic="b"), LimitReachedError),
    ):
        assert isinstance(state.apply_command(command, 0), refusal)
    assert list(state.table(PopTable).windows) == [("g", "a", 0)]
    assert state.apply_command(taken(2, 0, 1, 2, topic="b"), 0) is None, "exactly 6 in all"
    assert state.table(PopTable).in_flight_count == 6
    full = made(*(taken(1, 0, group=name) for name in "gh"), commit("i", ("a", 0, 1)))
    assert isinstance(full.apply_command(taken(1, 0, group="j"), 0), LimitReachedError), "groups"
    assert len(full.table(PopTable).windows) == 2


def test_stored_offsets_and_deletions_end_what_is_in_flight() -> None:
    state = made(taken(1, 0), taken(1, 0, queue_id=1), taken(1, 0, topic="b"))
    assert state.apply_command(commit("g", ("a", 0, 0)), 0) is None
    assert list(state.table(PopTable).windows) == [("g", "a", 1), ("g", "b", 0)]
    assert state.apply_command(delete_topic("a"), 0) is None
    assert list(state.table(PopTable).windows) == [("g", "b", 0)]
    assert state.apply_command(delete_group("g"), 0) is None
    assert (state.table(PopTable).windows, state.table(PopTable).in_flight_count) == ({}, 0)
    assert state.apply_command(settled((0, 1), topic="b"), 0) is None, "it comes too late"


def test_the_last_attempts_that_had_a_name_are_remembered() -> None:
    state = made(taken(1, 0, attempt_id="x"), taken(2, 1, expected=1, attempt_id="y"))
    assert state.apply_command(taken(3, 2, expected=2, attempt_id="z"), 0) is None
    assert state.table(PopTable).windows["g", "a", 0].attempts == {"y": 2, "z": 3}
    for generation, attempt_id in ((4, "y"), (5, "x")):
        again = ((generation - 4, generation - 3),)
        take = taken(generation, expected=3, next_offset=3, again=again, attempt_id=attempt_id)
        assert state.apply_command(take, 0) is None
    attempts = state.table(PopTable).windows["g", "a", 0].attempts
    assert attempts == {"y": 4, "x": 5}, "one that is repeated is the newest"


@pytest.mark.parametrize("is_from_file", [False, True])
def test_an_image_after_a_restore_copies_only_windows_that_changed(
    is_from_file: bool, tmp_path: Path
) -> None:
    image = made(*(taken(1, 0, 1, queue_id=queue_id) for queue_id in (1, 0))).image()
    image = reloaded(tmp_path, image) if is_from_file else decode_image(encode_image(image))
    before = encode_image(image)
    restored = image.tables["pop"].content["windows"]
    state = State(LIMITS, image)
    first = state.table(PopTable).content()["windows"]
    assert isinstance(restored, dict)
    assert isinstance(first, dict)
    assert restored.keys() == first.keys() == {"a@g 0", "a@g 1"}
    assert all(first[name] is restored[name] for name in first)
    assert state.apply_command(taken(2, 2, expected=2), 0) is None
    second = state.table(PopTable).content()["windows"]
    assert isinstance(second, dict)
    assert second["a@g 1"] is first["a@g 1"]
    assert second["a@g 0"] != first["a@g 0"]
    assert state.apply_command(settled((0, 1), (1, 1), (2, 2)), 0) is None
    assert state.table(PopTable).content()["windows"] == {"a@g 1": restored["a@g 1"]}
    assert encode_image(image) == before, "the image that it was restored from is as it was"


def test_the_file_has_a_line_for_each_message(tmp_path: Path) -> None:
    saved(tmp_path, made(taken(1, 3, attempt_id="x")).image())
    document = json.loads((tmp_path / "config" / "popInFlight.json").read_text())
    assert document["inFlight"] == {
        "a@g": {"0": {"nextOffset": 4, "messages": ["3 1 1 101 7"], "attempts": {"x": 1}}}
    }


def test_an_image_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    image = made(taken(1, 3)).image()
    newer = image.tables["pop"]._replace(content={**image.tables["pop"].content, "format": 3})
    with pytest.raises(ValueError, match="format 3, this version reads 2"):
        State(LIMITS, image._replace(tables={"pop": newer}))
    saved(tmp_path, image._replace(tables={"pop": newer}))
    path = tmp_path / "config" / "popInFlight.json"
    path.write_text(path.read_text().replace("a@g", "a@h"))
    with pytest.raises(CorruptionError):
        loaded(tmp_path)
