"""The directory: what is accepted and refused, its limits, that it is deterministic, and its
epochs: they rise by bounded jumps, end by name, and nonsense is forgotten."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.nameserver.directory.controller import FailoverWatch, elect_command
from node.nameserver.directory.directory import (
    COMMAND_SIZE_BYTES_MAX,
    Command,
    Directory,
    encoded_command,
    forget_group_command,
    put_pair_command,
    read_back_command,
    unregister_command,
)
from node.nameserver.directory.fields import INTEGER_MAX, CommandRefused
from node.nameserver.directory.groups import NO_MASTER
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import Binding, LogEnd, TopicQueues
from node.nameserver.directory.routes import route
from node.nameserver.watch import sights
from node.replication.ha.core.ceiling import EPOCH_JUMP_MAX
from tests.node.nameserver.brokers import (
    NOW_MS,
    ORDERS,
    accepted,
    alter,
    elect,
    ha_directory,
    ha_master,
    ha_report,
    raft_leader,
    raft_report,
    refused,
    send,
    state_of,
)


def test_a_stale_leader_does_not_take_a_raft_group_back() -> None:
    directory = Directory()
    accepted(directory, raft_leader(1, 4))
    accepted(directory, raft_leader(2, 5))
    refusal = refused(directory, raft_leader(1, 4), "stale_epoch")
    assert refusal.values == {"master_id": 2, "master_epoch": 5}
    refused(directory, raft_leader(1, 5), "epoch_taken")
    accepted(directory, raft_report(1, epoch=5))
    assert directory.groups["raft"].master_id == 2
    accepted(directory, raft_report(2, epoch=5))
    assert directory.groups["raft"].master_id == NO_MASTER, "it stepped down"
    refused(directory, raft_leader(1, 4), "stale_epoch")


def test_topics_come_from_the_master_and_once() -> None:
    directory = Directory()
    accepted(directory, raft_report(2, topics=ORDERS, topics_version=(9, 9)))
    assert not directory.groups["raft"].topics
    response = accepted(directory, raft_leader(1, 4, topics=None))
    assert response.values["needs_topics"] is True
    assert accepted(directory, raft_leader(1, 4)).values["needs_topics"] is False
    response = accepted(directory, raft_leader(1, 4, topics=None))
    assert response.values["needs_topics"] is False
    assert directory.groups["raft"].topics == ORDERS


def test_a_broker_registers_beats_in_its_own_process_and_is_unknown_before() -> None:
    directory = Directory()
    late = raft_report(1, start_ms=20, now_ms=NOW_MS - 99, epoch=7, log_end=LogEnd(7, 5))
    beat = late.heartbeat()
    refused(directory, beat, "unknown_broker")
    accepted(directory, raft_report(2))
    refused(directory, beat, "unknown_broker")
    accepted(directory, raft_report(1, start_ms=20))
    refused(directory, raft_report(1, start_ms=10), "stale_process")
    refused(directory, {**beat, "start_ms": 10}, "stale_process")
    refused(directory, unregister_command("raft", 1, 10), "stale_process")
    accepted(directory, beat)
    broker = directory.groups["raft"].brokers[1]
    assert (broker.last_seen_ms, broker.epoch, broker.log_end) == (NOW_MS, 7, LogEnd(7, 5))


def test_a_dead_broker_leaves_the_routes_without_any_commit() -> None:
    directory = Directory()
    accepted(directory, raft_leader(1, 4))
    accepted(directory, raft_report(2, now_ms=NOW_MS + 20_000))
    (share,) = route(directory, "orders", NOW_MS + 20_000).shares
    assert [broker.broker_id for broker in share.brokers] == [1, 2]
    assert (share.master_id, share.queues.permission) == (1, 6)
    (share,) = route(directory, "orders", NOW_MS + 30_000).shares
    assert [broker.broker_id for broker in share.brokers] == [2]
    assert (share.master_id, share.queues.permission) == (NO_MASTER, 4)
    assert route(directory, "orders", NOW_MS + 60_000).shares == ()


def test_a_route_merges_all_groups_that_serve_the_topic() -> None:
    directory = Directory()
    accepted(directory, raft_leader(1, 4, "b"))
    accepted(directory, raft_leader(0, 4, "a", topics={"orders": TopicQueues(8, 8, 6)}))
    accepted(directory, raft_report(1, "a"))
    accepted(directory, raft_leader(1, 4, "other", topics={"bills": TopicQueues(1, 1, 6)}))
    accepted(directory, put_pair_command("ORDER_TOPIC_CONFIG", "orders", "a:8;b:4"))
    topic_route = route(directory, "orders", NOW_MS)
    counts = [(share.group, share.queues.write_queue_count) for share in topic_route.shares]
    assert counts == [("a", 8), ("b", 4)]
    shown: Any = topic_route.rocketmq_json()
    assert shown["orderTopicConf"] == "a:8;b:4"
    assert shown["brokerDatas"][0]["brokerAddrs"] == {"0": "a:10000", "1": "a:10001"}
    assert shown["queueDatas"][1] == {
        "brokerName": "b",
        "perm": 6,
        "readQueueNums": 4,
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert route(directory, "nobody", NOW_MS).rocketmq_json()["brokerDatas"] == []


def test_pairs_change_unconditionally_or_by_compare_and_set() -> None:
    directory = Directory()
    pair = put_pair_command("ns", "k", "1")
    refused(directory, {**pair, "expected": "0"}, "changed")
    accepted(directory, {**pair, "expected": None})
    refused(directory, {**pair, "expected": None}, "changed")
    accepted(directory, put_pair_command("ns", "k", "2"))
    delete: Command = {"op": "delete_pair", "namespace": "ns", "key": "k"}
    refused(directory, {**delete, "expected": "1"}, "changed")
    accepted(directory, {**delete, "expected": "2"})
    refused(directory, delete, "unknown_key")
    assert directory.pairs == {}


def test_fields_of_later_builds_are_ignored_and_malformed_ones_are_named() -> None:
    directory = Directory()
    pair = put_pair_command("ns", "k", "1")
    accepted(directory, {**pair, "later": {"self": 1}})
    for name, wrong in (("namespace", ""), ("value", "\n"), ("expected", 0), ("self", 1)):
        assert name in refused(directory, {**pair, name: wrong}, "malformed").detail
    accepted(directory, {**raft_leader(1, 4).command(), "later": 1, "self": 1})
    refused(directory, {"op": "_register"}, "unknown_command")


def test_every_limit_refuses_by_name() -> None:
    directory = Directory(
        DirectoryLimits(1, 1, topics_size_bytes_max=100, pairs_size_bytes_max=100)
    )
    accepted(directory, raft_leader(1, 1))
    refused(directory, raft_leader(1, 1, "other"), "too_many_groups")
    refused(directory, raft_report(2), "too_many_brokers")
    many = {f"t{number}": TopicQueues(1, 1, 6) for number in range(3)}
    refused(directory, raft_leader(1, 1, topics=many), "state_full")
    refused(directory, put_pair_command("ns", "k", "v" * 100), "state_full")
    refused(directory, put_pair_command("ns", "k" * 256, "v"), "malformed")
    accepted(directory, raft_leader(1, 1, topics={}))
    accepted(directory, put_pair_command("ns", "k", "v"))
    assert directory.size_bytes == 52
    assert directory.apply(b" " * (COMMAND_SIZE_BYTES_MAX + 1)).reason == "too_large"


def test_a_command_that_is_sent_twice_is_done_once() -> None:
    directory = Directory(DirectoryLimits(result_count_max=2))
    first = send(directory, put_pair_command("ns", "k", "1"), "a")
    assert send(directory, put_pair_command("ns", "k", "2"), "a") == first
    assert directory.pairs == {"ns": {"k": "1"}}
    refusal = send(directory, {"op": "delete_pair", "namespace": "ns", "key": "x"}, "b")
    assert send(directory, read_back_command(), "a") == first
    assert send(directory, read_back_command(), "b") == refusal
    send(directory, put_pair_command("ns", "k", "3"), "c")
    assert send(directory, read_back_command(), "a").reason == "not_found"


def test_epochs_are_compare_and_set() -> None:
    directory = ha_directory()
    refused(directory, elect(2, 2, (0, 3)), "changed")
    refused(directory, elect(2, 2, (1, 2)), "changed")
    refused(directory, elect(1, 2, (1, 3)), "epoch_taken")
    refused(directory, elect(2, 9, (1, 3)), "unknown_broker")
    accepted(directory, elect(2, 2, (1, 3)))
    refused(directory, ha_master(2, 5, bindings={}), "epoch_unbound")
    accepted(directory, ha_master(2, 2, "x"))
    assert directory.groups["ha"].master_id == 2
    refused(directory, ha_master(1, 1), "stale_epoch")
    accepted(directory, raft_leader(1, 1))
    refused(directory, {**elect(9, 1, (1, 0)), "group": "raft"}, "wrong_group")


def test_in_sync_sets_are_compare_and_set() -> None:
    directory = ha_directory()
    refused(directory, alter(1, [1, 2], (1, 2)), "changed")
    refused(directory, alter(2, [1, 2], (1, 3)), "not_master")
    refused(directory, alter(1, [2, 3], (1, 3)), "without_master")
    refused(directory, alter(1, [1, 7], (1, 3)), "unknown_broker")
    refused(directory, alter(1, [1, 2, 3], (1, 3)), "unchanged")
    refused(directory, alter(1, [1], (1, 3)), "too_few_copies")
    response = accepted(directory, alter(1, [1, 3], (1, 3)))
    assert response.values == {"in_sync_version": 4}
    accepted(directory, elect(2, 3, (1, 4)))
    refused(directory, alter(1, [1, 2], (2, 4)), "not_master")
    directory = Directory()
    accepted(directory, ha_report(2))
    accepted(directory, ha_master(1))
    accepted(directory, alter(1, [1], (1, 0)))  # It starts alone, and lets others in.
    accepted(directory, alter(1, [1, 2], (1, 1)))
    refused(directory, alter(1, [1], (1, 2)), "too_few_copies")


def test_the_first_binding_of_an_epoch_number_stays() -> None:
    directory = ha_directory()
    response = accepted(
        directory, ha_report(3, epoch=1, bindings={1: Binding(3, "n3")}, now_ms=NOW_MS + 1)
    )
    assert response.values["conflicts"] == [1]
    assert directory.groups["ha"].epochs == {1: Binding(1, "n1")}


def test_old_bindings_are_dropped_and_their_numbers_stay_used() -> None:
    directory = Directory(DirectoryLimits(epoch_count_max=2))
    accepted(directory, ha_master(1, 5, bindings={5: Binding(1, "n1"), 3: Binding(1, "o")}))
    accepted(directory, elect(6, 1, (5, 0)))
    assert sorted(directory.groups["ha"].epochs) == [5, 6]
    refused(directory, elect(3, 1, (6, 0)), "epoch_too_low")
    accepted(directory, unregister_command("ha", 1, 1))
    group = directory.groups["ha"]
    assert (group.epoch_highest, group.brokers) == (6, {}), "an empty group keeps its numbers"


def test_everything_is_rebuilt_from_broker_reports() -> None:
    directory = ha_directory()
    accepted(directory, raft_leader(1, 7))
    accepted(directory, elect(2, 2, (1, 3)))
    bindings = {1: Binding(1, "n1"), 2: Binding(2, "x")}
    accepted(directory, ha_master(2, 2, "x", bindings=bindings))
    accepted(directory, alter(2, [2, 3], (2, 3)))
    reports = [
        raft_leader(1, 7),
        ha_report(3, log_end=LogEnd(1, 90)),
        ha_master(2, 2, "x", bindings=bindings, in_sync=(2, 3), in_sync_version=4),
        ha_report(1, epoch=1, bindings={1: Binding(1, "n1")}, log_end=LogEnd(1, 100)),
    ]
    for again in reports:
        send(directory, again)
    empty = Directory()
    for again in reports:
        accepted(empty, again)
    assert state_of(empty) == state_of(directory)


_small = st.integers(0, 3)
_bindings = st.dictionaries(
    st.integers(1, 4), st.builds(Binding, _small, st.sampled_from("ab")), max_size=3
)
_reports = st.builds(
    ha_report,
    _small,
    role=st.sampled_from(["master", "slave"]),
    epoch=st.integers(0, 5),
    start_ms=_small,
    now_ms=st.integers(NOW_MS, NOW_MS + 50_000),
    bindings=_bindings,
    copy_count=st.integers(1, 2),
    topics=st.sampled_from([None, ORDERS, {}]),
).map(lambda report: report.command())
_expected = st.tuples(st.integers(0, 5), _small)
_commands: st.SearchStrategy[Any] = st.one_of(
    _reports,
    st.builds(raft_leader, _small, _small, st.sampled_from("ab")).map(lambda r: r.command()),
    st.builds(elect, st.integers(0, 7), _small, _expected, st.sampled_from("ab")),
    st.builds(alter, _small, st.lists(_small, max_size=3), _expected),
    st.builds(unregister_command, st.sampled_from(("raft", "ha")), _small, _small),
    st.builds(put_pair_command, st.sampled_from("ab"), st.sampled_from("ab"), st.text(max_size=3)),
)


@given(st.lists(_commands, max_size=25), st.integers(0, 25))
def test_replicas_stay_equal_whoever_restores_a_snapshot(commands: list[Any], cut: int) -> None:
    limits = DirectoryLimits(epoch_count_max=3, result_count_max=5)
    first, second = Directory(limits), Directory(limits)
    for number, command in enumerate(commands):
        if number == cut:
            second = Directory(limits)
            second.restore(json.loads(json.dumps(first.snapshot())))
        encoded = encoded_command(command, f"k{number}")
        assert first.apply(encoded) == second.apply(encoded)
        assert first == second


@given(st.lists(_commands, max_size=40))
def test_an_epoch_number_never_changes_its_owner(commands: list[Any]) -> None:
    directory = Directory()
    owners: dict[int, Binding] = {}
    highest = 0
    for command in commands:
        before = state_of(directory)
        result = send(directory, command)
        assert result.is_accepted or state_of(directory) == before
        if (group := directory.groups.get("ha")) is None:
            continue
        assert group.epoch_highest >= highest
        highest = group.epoch_highest
        for number, binding in group.epochs.items():
            assert owners.setdefault(number, binding) == binding


def test_a_snapshot_that_makes_no_sense_changes_nothing() -> None:
    directory = ha_directory()
    before = directory.snapshot()
    damages: dict[str, Any] = {"version": 2, "groups": [1], "pairs": {"n": 1}, "results": {"k": 1}}
    for name, damage in damages.items():
        with pytest.raises(CommandRefused):
            directory.restore({**before, name: damage})
    assert directory.snapshot() == before


# --- Epochs ---


LIMITS = DirectoryLimits()
JUMP = LIMITS.epoch_jump_max


def beat(group: str, broker_id: int, epoch: int) -> Command:
    return ha_report(broker_id, group=group, epoch=epoch).heartbeat()


def test_the_room_for_elections_is_never_named_away() -> None:
    """Whatever the first report says, a billion elections are left."""
    assert LIMITS.epoch_first_max + JUMP < LIMITS.epoch_max - 10**9
    assert LIMITS.epoch_max + 1 < INTEGER_MAX
    assert LIMITS.epoch_lead_max < EPOCH_JUMP_MAX, "replicas take what is given out"


@pytest.mark.parametrize("number", [INTEGER_MAX, LIMITS.epoch_first_max + 1])
def test_the_first_report_of_a_group_may_be_high_and_not_absurd(number: int) -> None:
    directory = Directory()
    accepted(directory, ha_report(3))
    bound = ha_report(2, bindings={number: Binding(2, "n")})
    for report in (ha_report(2, epoch=number), bound, ha_master(2, number)):
        refused(directory, report, "epoch_too_high")
    if number == INTEGER_MAX:
        refused(directory, raft_leader(1, number), "epoch_too_high")
    accepted(directory, raft_leader(1, LIMITS.term_max))
    refused(directory, beat("ha", 3, number), "epoch_too_high")
    accepted(directory, ha_master(2, LIMITS.epoch_first_max))
    accepted(directory, elect_command(directory.groups["ha"], 3, "n"))


@pytest.mark.parametrize("number", [INTEGER_MAX, 1 + JUMP + 1])
def test_epochs_rise_by_bounded_jumps(number: int) -> None:
    directory = ha_directory()
    refusal = refused(directory, ha_report(2, epoch=number), "epoch_too_high")
    assert refusal.values == {"epoch_highest": 1}
    refused(directory, beat("ha", 2, number), "epoch_too_high")
    refused(directory, ha_master(2, number), "epoch_too_high")
    refused(directory, ha_report(2, bindings={number: Binding(2, "n")}), "epoch_too_high")
    is_last = number > LIMITS.epoch_max
    refused(directory, elect(number, 2, (1, 3)), "epoch_exhausted" if is_last else "epoch_too_high")
    accepted(directory, beat("ha", 2, 1 + JUMP))
    accepted(directory, raft_leader(1, 4))
    far = raft_report(2, epoch=4 + LIMITS.term_jump_max + 1)
    refused(directory, far, "epoch_too_high")


def test_a_node_that_slept_may_be_the_first_after_everything_was_lost() -> None:
    """Rule C1, in any order: the others have long had higher epochs."""
    directory = Directory()
    accepted(directory, ha_report(3, epoch=2, bindings={2: Binding(1, "o")}))
    accepted(directory, ha_master(1, JUMP))
    assert directory.groups["ha"].master_id == 1


def test_when_nobody_of_a_group_is_there_what_was_known_bounds_nobody() -> None:
    """Its nodes were given other epochs while the directory was away."""
    directory = ha_directory()
    accepted(directory, raft_leader(1, 4))
    for group, nodes in (("ha", (1, 2, 3)), ("raft", (1,))):
        for node in nodes:
            accepted(directory, unregister_command(group, node, 1))
    accepted(directory, ha_master(2, LIMITS.epoch_first_max))
    accepted(directory, raft_leader(1, LIMITS.term_max))


def test_the_end_of_the_epochs_is_an_end_by_name() -> None:
    limits = replace(LIMITS, epoch_max=3)
    directory = Directory(limits)
    accepted(directory, ha_report(2, epoch=3))
    accepted(directory, ha_master(1, 3))
    refused(directory, elect(4, 2, (3, 0)), "epoch_exhausted")
    (sight,) = sights(directory, NOW_MS)
    assert sight.stuck == "epoch 3 is the last one"
    later = FailoverWatch().commands(directory, NOW_MS + 5_000, "n")
    assert later == [], "nothing that could only be refused is proposed"


def test_versions_of_in_sync_sets_are_bounded_too() -> None:
    """One above the largest integer could be made, and never be read again from a dump."""
    directory = ha_directory()
    wild = ha_master(1, in_sync=(1, 2, 3), in_sync_version=INTEGER_MAX)
    refused(directory, wild, "version_too_high")
    limits = replace(LIMITS, epoch_max=7)
    small = Directory(limits)
    accepted(small, ha_report(2))
    accepted(small, ha_master(1, in_sync=(1,), in_sync_version=7))
    refused(small, alter(1, [1, 2], (1, 7)), "version_exhausted")
    Directory(limits).restore(json.loads(json.dumps(small.snapshot())))
    refused(directory, ha_report(2, copy_count=17), "malformed")


@pytest.mark.parametrize("kind", ["ha", "raft"])
@pytest.mark.parametrize("number", [INTEGER_MAX, 10 * LIMITS.epoch_lead_max])
def test_a_poisoned_dump_has_a_way_back(kind: str, number: int) -> None:
    """A stranger named an absurd epoch once, in a directory of before there were bounds."""
    directory = ha_directory()
    accepted(directory, raft_leader(1, 4))
    snapshot: Any = directory.snapshot()
    group = snapshot["groups"][kind]
    group["epoch_highest"] = group["master_epoch"] = number
    directory.restore(json.loads(json.dumps(snapshot)))
    stuck = {sight.name: sight.stuck for sight in sights(directory, NOW_MS)}
    assert "far above all" in stuck[kind]
    commands = FailoverWatch().commands(directory, NOW_MS, "n")
    assert commands == [forget_group_command(kind, number)]
    refused(directory, forget_group_command(kind, number - 1), "changed")
    accepted(directory, commands[0])
    refused(directory, beat(kind, 1, 1), "unknown_broker")
    for report in (ha_report(2), ha_report(3), ha_master(1), raft_leader(1, 4)):
        accepted(directory, replace(report, log_end=LogEnd(1, 90)))  # They register again.
    assert FailoverWatch().commands(directory, NOW_MS, "n") == []
    assert not any(sight.stuck for sight in sights(directory, NOW_MS))
    assert (directory.groups["ha"].master_id, directory.groups["raft"].master_id) == (1, 1)


def test_a_sound_group_is_not_forgotten() -> None:
    directory = ha_directory()
    refused(directory, forget_group_command("ha", 1), "founded")
    for number in range(2, 40):
        accepted(directory, elect(number, 2, (number - 1, 3)))
    refused(directory, forget_group_command("ha", 39), "founded")


def test_two_groups_are_never_at_one_address() -> None:
    directory = ha_directory()
    taken = directory.groups["ha"].brokers[2].address
    refused(directory, raft_leader(7, 1, "far", address=taken), "address_taken")
    accepted(directory, unregister_command("ha", 2, 1))
    accepted(directory, raft_leader(7, 1, "far", address=taken))


def test_an_empty_group_gives_its_name_and_place_up() -> None:
    """An empty group keeps its numbers, and neither its name nor its place for ever."""
    directory = Directory(replace(LIMITS, group_count_max=2))
    for name in ("a", "b"):
        accepted(directory, ha_master(1, group=name, cluster="forged"))
        accepted(directory, unregister_command(name, 1, 1))
    assert sorted(directory.groups) == ["a", "b"]
    accepted(directory, raft_leader(1, 1, "b"))
    assert (directory.groups["b"].kind, directory.groups["b"].cluster) == ("raft", "c")
    accepted(directory, raft_leader(2, 1, "c"))
    assert sorted(directory.groups) == ["b", "c"]
    refused(directory, raft_leader(3, 1, "d"), "too_many_groups")
