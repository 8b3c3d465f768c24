"""What each command does to the replicated state, and where it stops."""

import pytest

from node.errors.common import (
    BadRequestError,
    LimitReachedError,
    NodeError,
    UnknownCommandError,
    UnknownGroupError,
    UnknownQueueError,
    UnknownTopicError,
)
from node.state.state import COMMAND_TOPIC, Member, State
from node.state.tables.topic_types import TopicSettings
from quorumlog.pb.state_pb2 import Command
from tests.node.commands import (
    SMALL_LIMITS,
    commit,
    delete_group,
    delete_topic,
    producer_batch,
    put_member,
    put_topic,
    state_after,
)


def refuse(state: State, command: Command, kind: type[NodeError]) -> NodeError:
    """Apply a command that must be refused and must change nothing but the count of refusals."""
    before = state.image()
    refusal = state.apply_command(command, 9_999)
    assert type(refusal) is kind
    after = state.image()
    assert after.refused_count == before.refused_count + 1
    assert after._replace(refused_count=before.refused_count) == before
    return refusal


# --- Topics ---


def test_a_topic_is_made_and_grows_and_never_shrinks() -> None:
    state = state_after(put_topic("a", 2), put_topic("a", 4, 4))
    assert state.topics == {"a": TopicSettings(4, 4)}
    assert "can only grow" in str(refuse(state, put_topic("a", 3), BadRequestError))
    assert state.image().versions.topics == 2


def test_topics_have_limits() -> None:
    state = state_after(*(put_topic(name, 3) for name in "abcd"))
    refuse(state, put_topic("e", 1), LimitReachedError)
    refuse(state, put_topic("a", 9), LimitReachedError)
    assert state.apply_command(put_topic("a", 7), 0) is None, "exactly 16 in all"
    refuse(state, put_topic("b", 4), LimitReachedError)
    assert state.apply_command(delete_topic("a"), 0) is None
    assert state.apply_command(put_topic("e", 7), 0) is None, "what was deleted is free again"


def test_a_deleted_topic_is_gone_with_its_offsets() -> None:
    offsets = commit("g", ("a", 0, 5), ("b", 1, 6))
    state = state_after(put_topic("a"), put_topic("b"), offsets, delete_topic("a"))
    assert set(state.topics) == {"b"}
    assert state.groups == {"g": {"b": {1: 6}}}
    assert state.offset_count == 1
    refuse(state, delete_topic("a"), UnknownTopicError)


def test_system_topics_are_there_without_a_command() -> None:
    state = State(SMALL_LIMITS)
    assert state.topic(COMMAND_TOPIC) == TopicSettings(1, 4)
    assert state.topic("a") is None
    refuse(state, delete_topic(COMMAND_TOPIC), UnknownTopicError)


# --- Groups ---


def test_offsets_are_stored_all_or_none() -> None:
    state = state_after(put_topic("a"), commit("g", ("a", 0, 5), ("a", 1, 7)))
    assert state.groups == {"g": {"a": {0: 5, 1: 7}}}
    refuse(state, commit("g", ("a", 0, 9), ("x", 0, 1)), UnknownTopicError)
    refuse(state, commit("g", ("a", 0, 9), ("a", 4, 1)), UnknownQueueError)
    refuse(state, commit("g", ("a", 0, 9), ("a", -1, 1)), UnknownQueueError)
    refuse(state, commit("g", ("a", 0, 9), ("a", 1, -1)), BadRequestError)
    assert state.apply_command(commit("g", ("a", 1, 3)), 0) is None, "an offset may go back"
    assert state.groups == {"g": {"a": {0: 5, 1: 3}}}


def test_groups_and_offsets_have_limits() -> None:
    topics = [put_topic("a", 8), put_topic("b", 8)]
    state = state_after(*topics, *(commit(g, ("a", 0, 1)) for g in "xyz"))
    refuse(state, commit("w", ("a", 0, 1)), LimitReachedError)
    six = [("a", q, 1) for q in range(6)]
    assert state.apply_command(commit("x", *six), 0) is None
    refuse(state, commit("x", ("a", 6, 1)), LimitReachedError)
    assert state.apply_command(commit("y", ("a", 1, 1), ("a", 2, 1)), 0) is None
    refuse(state, commit("z", ("a", 1, 1)), LimitReachedError)
    assert state.apply_command(commit("z", ("a", 0, 2)), 0) is None, "nothing new: no limit"
    assert state.apply_command(delete_group("x"), 0) is None
    assert state.apply_command(commit("z", ("a", 1, 1)), 0) is None


def test_a_deleted_group_is_gone() -> None:
    state = state_after(put_topic("a"), commit("g", ("a", 0, 5)), delete_group("g"))
    assert state.groups == {}
    assert state.offset_count == 0
    refuse(state, delete_group("g"), UnknownGroupError)


# --- Producers ---


def test_a_window_of_positions_is_kept_per_producer() -> None:
    state = State(SMALL_LIMITS)
    for sequence in range(6):
        assert state.apply_command(producer_batch(7, sequence), 1000 + sequence) is None
    producer = state.producers[7]
    assert (producer.first_kept, producer.last_sequence) == (2, 5)
    assert [producer.position_of(s) for s in range(6)] == [None, None, 1002, 1003, 1004, 1005]


def test_the_producer_silent_for_longest_is_forgotten() -> None:
    state = state_after(*(producer_batch(i, 0) for i in (1, 2, 3)), producer_batch(1, 1))
    assert state.apply_command(producer_batch(4, 0), 500) is None
    assert list(state.producers) == [3, 1, 4]


def test_a_sequence_that_does_not_follow_is_counted_and_the_newest_wins() -> None:
    state = state_after(producer_batch(7, 0), producer_batch(7, 1))
    assert state.apply_command(producer_batch(7, 1), 777) is not None
    assert state.producers[7].position_of(1) == 100
    assert state.apply_command(producer_batch(7, 5), 888) is not None
    assert (state.producers[7].first_kept, state.producers[7].last_sequence) == (5, 5)
    assert state.refused_count == 2


# --- Members ---


def test_addresses_are_replaced_and_removed() -> None:
    state = state_after(put_member(1, "h:1", "h:2"), put_member(2, "h:3"), put_member(1, "h:5"))
    assert state.members == {1: Member("h:5", ""), 2: Member("h:3", "")}
    refuse(state, put_member(3, "h:7"), LimitReachedError)
    before = state.image()
    assert state.apply_command(put_member(1, ""), 0) is None
    assert set(state.members) == {2}
    assert state.image().versions.members == before.versions.members + 1, "it is to be saved"


# --- All ---


def test_a_command_of_a_newer_version_stops_the_node() -> None:
    with pytest.raises(UnknownCommandError, match="upgrade this node"):
        State(SMALL_LIMITS).apply_command(Command(), 4096)


def test_successive_images_share_unchanged_parts() -> None:
    state = state_after(
        put_topic("a"),
        put_topic("b"),
        commit("g", ("a", 0, 5)),
        commit("h", ("b", 0, 5)),
        producer_batch(7, 0),
        producer_batch(8, 0),
    )
    first = state.image()
    for command in (commit("g", ("a", 0, 6)), producer_batch(7, 1)):
        assert state.apply_command(command, 900) is None
    second = state.image()
    assert second.groups["h"] is first.groups["h"]
    assert (first.groups["g"], second.groups["g"]) == ({"a": {0: 5}}, {"a": {0: 6}})
    assert second.producers == ((8, 0, (500,)), (7, 1, (400, 900)))
    assert state.apply_command(delete_topic("b"), 900) is None
    assert state.apply_command(delete_group("g"), 900) is None
    assert state.image().groups == {"h": {}}
    assert second.groups == {"g": {"a": {0: 6}}, "h": {"b": {0: 5}}}
    assert State(SMALL_LIMITS, second).image() == second
