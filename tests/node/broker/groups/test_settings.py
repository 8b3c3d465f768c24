"""Settings of consumer groups: what a command changes, what is refused, and how they are kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.errors.common import BadRequestError, LimitReachedError
from node.state.image import decode_image, encode_image
from node.state.state import State
from node.state.tables.dead_letters import DeadLettersTable
from node.state.tables.group_settings import DEFAULT, GroupSettingsTable, SubscriptionSettings
from node.state.tables.table import TableImage
from quorumlog.pb.common_pb2 import Delays, TopicNames
from quorumlog.pb.common_pb2 import GroupSettings as SettingsPb
from quorumlog.pb.state_pb2 import Command
from store.errors import CorruptionError
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile
from tests.node.checkpoints import loaded, saved
from tests.node.commands import (
    SMALL_LIMITS,
    commit,
    delete_group,
    delete_topic,
    put_topic,
    state_after,
)

LONGEST_MS = 259_200_000
ALL = SubscriptionSettings(3, (1_000, LONGEST_MS), False, False, True, frozenset({"a", "b"}))


def put_group(group: str, **settings: Any) -> Command:
    return Command(put_group=Command.PutGroup(group=group, settings=SettingsPb(**settings)))


def of(state: State, group: str) -> SubscriptionSettings:
    return state.table(GroupSettingsTable).of(group)


def state_with_all() -> State:
    return state_after(
        put_topic("a"),
        put_topic("b"),
        put_group(
            "readers",
            retry_count_max=3,
            retry_delays=Delays(delay_ms=[1_000, LONGEST_MS]),
            is_consume_enabled=False,
            is_broadcast_enabled=False,
            is_orderly=True,
            forbidden_topics=TopicNames(topics=["b", "a"]),
        ),
        commit("others", ("a", 0, 7)),
    )


def test_only_what_is_set_changes_and_the_group_is_made() -> None:
    state = state_after(
        put_group("readers", retry_count_max=3), put_group("readers", is_orderly=True)
    )
    assert of(state, "readers") == DEFAULT._replace(retry_count_max=3, is_orderly=True)
    assert state.groups == {"readers": {}}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (put_group("g", retry_count_max=10_001), BadRequestError),
        (put_group("g", retry_delays=Delays(delay_ms=[0])), BadRequestError),
        (put_group("g", retry_delays=Delays(delay_ms=[LONGEST_MS + 1])), BadRequestError),
        (put_group("g", retry_delays=Delays(delay_ms=[1] * 65)), LimitReachedError),
        (
            put_group("g", forbidden_topics=TopicNames(topics=[f"t{i}" for i in range(257)])),
            LimitReachedError,
        ),
    ],
)
def test_settings_out_of_bounds_change_nothing(command: Command, kind: type[Exception]) -> None:
    state = State(SMALL_LIMITS)
    assert type(state.apply_command(command, 0)) is kind
    assert state.groups == {}
    assert of(state, "g") == DEFAULT


def test_settings_do_not_make_more_groups_than_there_may_be() -> None:
    state = state_after(*(put_group(name, is_orderly=True) for name in "xyz"))
    assert type(state.apply_command(put_group("one more"), 0)) is LimitReachedError


def test_a_deleted_topic_or_group_is_forgotten_here_too() -> None:
    state = state_with_all()
    state.apply_command(delete_topic("a"), 0)
    assert of(state, "readers") == ALL._replace(forbidden_topics=frozenset({"b"}))
    before = state.image()
    state.apply_command(delete_group("readers"), 0)
    assert of(state, "readers") == DEFAULT
    assert state.image() != before


def test_the_checkpoint_is_the_table_that_rocketmq_keeps(tmp_path: Path) -> None:
    saved(tmp_path, state_with_all().image())
    document = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert document["forbiddenTable"] == {"readers": {"a": 4, "b": 4}}
    row = document["subscriptionGroupTable"]["readers"]
    assert (row["retryMaxTimes"], row["consumeEnable"]) == (3, False)
    assert (row["consumeBroadcastEnable"], row["consumeMessageOrderly"]) == (False, True)
    assert row["groupRetryPolicy"] == {
        "type": "CUSTOMIZED",
        "customizedRetryPolicy": {"next": [1_000, 5_000, 1_000, LONGEST_MS]},
    }
    assert document["subscriptionGroupTable"]["others"]["retryMaxTimes"] == 16


@pytest.mark.parametrize("row", [[], [["is_orderly", True]], None, 3])
def test_malformed_settings_are_refused_by_name(row: Any) -> None:
    with pytest.raises(TypeError, match="not the settings of a group"):
        GroupSettingsTable(SMALL_LIMITS, TableImage(1, {"readers": row}))


def test_the_topics_of_a_group_have_room_and_go_with_it() -> None:
    state = state_after(*(put_topic(name, 4) for name in "abcd"))
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


def test_a_state_of_a_newer_version_is_refused_and_never_cut(tmp_path: Path) -> None:
    image = state_with_all().image()
    newer = image._replace(tables={**image.tables, "someday": TableImage(1, {})})
    with pytest.raises(CorruptionError, match="someday"):
        decode_image(encode_image(newer))
    row: dict[str, Any] = {"readers": {"retry_count_max": 3, "of_tomorrow": 1}}
    newer = image._replace(tables={"group_settings": TableImage(1, row)})
    with pytest.raises(CorruptionError, match="of_tomorrow"):
        decode_image(encode_image(newer))

    saved(tmp_path, image)
    manifest = MetaFile(FileSystem(), str(tmp_path / "config"), "stateCheckpoint")
    content: Any = manifest.load(must_exist=True)
    content["files"]["someday.json"] = [1, 2, 3]
    manifest.save(content)
    with pytest.raises(CorruptionError, match="someday"):
        loaded(tmp_path)


def test_marks_of_dead_letters_are_runs() -> None:
    state = state_after(commit("readers"), resent(3, 1), resent(2), resent(7, 9))
    marks = state.table(DeadLettersTable)
    assert [offset for offset in range(12) if marks.is_resent("readers", offset)] == [1, 2, 3, 7, 9]
    assert marks.content() == {"resent": {"readers": [[1, 4], [7, 8], [9, 10]]}}
    assert not marks.is_resent("others", 1)

    assert state.apply_command(resent(8, lo=3), 0) is None
    assert marks.content() == {"resent": {"readers": [[3, 4], [7, 10]]}, "expired": {"readers": 3}}
    limits = replace(SMALL_LIMITS, resent_range_count_max=2)
    full = State(limits, state.image())
    assert type(full.apply_command(resent(20), 0)) is LimitReachedError
    assert full.apply_command(resent(10), 0) is None
    assert state.apply_command(delete_group("readers"), 0) is None
    assert marks.content() == {"resent": {}}
    assert state.apply_command(resent(5), 0) is None
    assert marks.content() == {"resent": {}}


def resent(*offsets: int, lo: int = 0) -> Command:
    mark = Command.MarkResent(group="readers", offsets=offsets, min_offset=lo)
    return Command(mark_resent=mark)
