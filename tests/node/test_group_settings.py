"""Settings of consumer groups: what a command changes, what is refused, and how they are kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.checkpoint_files import CheckpointFiles
from node.errors import BadRequestError, LimitReachedError
from node.parts.group_settings import DEFAULT, GroupSettings, GroupSettingsPart
from node.state import State
from node.state_image import decode_image, encode_image
from quorumlog.pb.common_pb2 import Delays, TopicNames
from quorumlog.pb.common_pb2 import GroupSettings as SettingsPb
from quorumlog.pb.state_pb2 import Command
from store.file_system import FileSystem
from tests.node.commands import SMALL_LIMITS, commit, delete_group, delete_topic, put_topic

ALL = GroupSettings(3, (1_000, 60_000), False, False, True, frozenset({"a", "b"}))


def put_group(group: str, **settings: Any) -> Command:
    return Command(put_group=Command.PutGroup(group=group, settings=SettingsPb(**settings)))


def of(state: State, group: str) -> GroupSettings:
    return state.part(GroupSettingsPart).of(group)


def opened(root: Path) -> CheckpointFiles:
    files = CheckpointFiles(FileSystem(), str(root))
    files.load()
    return files


def state_with_all() -> State:
    state = State(SMALL_LIMITS)
    for command in (
        put_topic("a"),
        put_topic("b"),
        put_group(
            "readers",
            retry_count_max=3,
            retry_delays=Delays(delay_ms=[1_000, 60_000]),
            is_consume_enabled=False,
            is_broadcast_enabled=False,
            is_orderly=True,
            forbidden_topics=TopicNames(topics=["b", "a"]),
        ),
        commit("others", ("a", 0, 7)),
    ):
        assert state.apply_command(command, 0) is None
    return state


def test_a_group_that_nobody_configured_has_the_defaults() -> None:
    assert of(State(SMALL_LIMITS), "readers") == DEFAULT


def test_only_what_is_set_changes_and_the_group_is_made() -> None:
    state = State(SMALL_LIMITS)
    assert state.apply_command(put_group("readers", retry_count_max=3), 0) is None
    assert state.apply_command(put_group("readers", is_orderly=True), 1) is None
    assert of(state, "readers") == DEFAULT._replace(retry_count_max=3, is_orderly=True)
    assert state.groups == {"readers": {}}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (put_group("g", retry_count_max=10_001), BadRequestError),
        (put_group("g", retry_delays=Delays(delay_ms=[0])), BadRequestError),
        (put_group("g", retry_delays=Delays(delay_ms=[259_200_001])), BadRequestError),
        (put_group("g", retry_delays=Delays(delay_ms=[1] * 65)), LimitReachedError),
        (
            put_group("g", forbidden_topics=TopicNames(topics=[f"t{i}" for i in range(257)])),
            LimitReachedError,
        ),
    ],
)
def test_what_is_out_of_bounds_changes_nothing(command: Command, kind: type[Exception]) -> None:
    state = State(SMALL_LIMITS)
    assert type(state.apply_command(command, 0)) is kind
    assert state.groups == {}
    assert of(state, "g") == DEFAULT


def test_settings_do_not_make_more_groups_than_there_may_be() -> None:
    state = State(SMALL_LIMITS)
    for name in "xyz":
        assert state.apply_command(put_group(name, is_orderly=True), 0) is None
    assert type(state.apply_command(put_group("one more"), 0)) is LimitReachedError


def test_a_deleted_topic_or_group_is_forgotten_here_too() -> None:
    state = state_with_all()
    state.apply_command(delete_topic("a"), 0)
    assert of(state, "readers") == ALL._replace(forbidden_topics=frozenset({"b"}))
    state.apply_command(delete_group("readers"), 0)
    assert of(state, "readers") == DEFAULT


def test_a_snapshot_and_a_checkpoint_give_them_again(tmp_path: Path) -> None:
    image = state_with_all().image()
    again = State(SMALL_LIMITS, decode_image(encode_image(image)))
    assert of(again, "readers") == ALL
    assert encode_image(again.image()) == encode_image(image)

    opened(tmp_path).save(image, 1_700_000_000_000)
    loaded = CheckpointFiles(FileSystem(), str(tmp_path)).load()
    assert loaded == image


def test_the_checkpoint_is_the_table_that_rocketmq_keeps(tmp_path: Path) -> None:
    opened(tmp_path).save(state_with_all().image(), 1)
    document = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert document["forbiddenTable"] == {"readers": {"a": 4, "b": 4}}
    row = document["subscriptionGroupTable"]["readers"]
    assert (row["retryMaxTimes"], row["consumeEnable"]) == (3, False)
    assert (row["consumeBroadcastEnable"], row["consumeMessageOrderly"]) == (False, True)
    assert row["groupRetryPolicy"] == {
        "type": "CUSTOMIZED",
        "customizedRetryPolicy": {"next": [1_000, 5_000, 1_000, 60_000]},
    }
    assert document["subscriptionGroupTable"]["others"]["retryMaxTimes"] == 16


def test_a_change_of_settings_alone_is_saved(tmp_path: Path) -> None:
    state, files = state_with_all(), opened(tmp_path)
    files.save(state.image(), 1)
    state.apply_command(put_group("others", retry_count_max=1), 5)
    files.save(state.image(), 2)
    assert CheckpointFiles(FileSystem(), str(tmp_path)).load() == state.image()


def test_the_topics_of_a_group_have_room_and_go_with_it() -> None:
    state = State(SMALL_LIMITS)
    for name in "abcd":
        assert state.apply_command(put_topic(name, 4), 0) is None
    assert type(state.apply_command(put_topic("e", 1), 0)) is LimitReachedError
    for command in (
        commit("readers", ("a", 0, 1)),
        put_topic("%RETRY%readers", 1),
        put_topic("%DLQ%readers", 1),
        commit("readers", ("%RETRY%readers", 0, 1)),
    ):
        assert state.apply_command(command, 0) is None
    assert state.queue_total_count == 18
    assert state.apply_command(delete_group("readers"), 0) is None
    assert sorted(state.topics) == ["a", "b", "c", "d"]
    assert (state.queue_total_count, state.offset_count) == (16, 0)
