"""Epochs in the directory: they rise by bounded jumps, end by name, and nonsense is forgotten."""

import json
from dataclasses import replace
from typing import Any

import pytest

from node.nameserver.directory.controller import FailoverWatch, elect_command
from node.nameserver.directory.directory import (
    Command,
    Directory,
    forget_group_command,
    unregister_command,
)
from node.nameserver.directory.fields import INTEGER_MAX
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import Binding, LogEnd
from node.nameserver.watch import sights
from node.replication.ha.core.ceiling import EPOCH_JUMP_MAX
from tests.node.nameserver.brokers import (
    NOW_MS,
    accepted,
    alter,
    elect,
    ha_directory,
    ha_master,
    ha_report,
    raft_leader,
    raft_report,
    refused,
)

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
