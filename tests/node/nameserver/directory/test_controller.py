"""What the controller decides: fail-over, expiry, and the in-sync set."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node.nameserver.directory.controller import (
    CATCH_UP_MS_MAX,
    FENCE_GRACE_MS,
    FailoverWatch,
    ReplicaAck,
    change_in_sync,
    elect_command,
    expired,
    propose_master,
)
from node.nameserver.directory.directory import Command, Directory
from node.nameserver.directory.reports import Binding, LogEnd
from tests.node.nameserver.brokers import (
    NOW_MS,
    accepted,
    alter,
    ha_directory,
    ha_master,
    ha_report,
    raft_leader,
    refused,
)

SILENCE_MS = 3_000
LATER = NOW_MS + SILENCE_MS + 1


def _beat(directory: Directory, broker_id: int, now_ms: int, log_end: LogEnd) -> None:
    report = ha_report(broker_id, now_ms=now_ms, epoch=1, log_end=log_end)
    accepted(directory, report.heartbeat())


def _proposal(directory: Directory, now_ms: int) -> Command | None:
    return propose_master(directory.groups["ha"], now_ms, SILENCE_MS, "x")


def test_a_master_that_beats_silent_brokers_and_a_missing_epoch_propose_nothing() -> None:
    directory, fresh = ha_directory(), Directory()
    assert _proposal(directory, NOW_MS + SILENCE_MS) is None
    assert _proposal(directory, LATER) is None
    accepted(fresh, ha_report(1))
    assert _proposal(fresh, NOW_MS) is None


def test_the_longest_log_becomes_the_master_one_in_sync_before_all_others() -> None:
    directory = ha_directory()
    _beat(directory, 2, LATER, LogEnd(1, 95))
    _beat(directory, 3, LATER, LogEnd(1, 99))
    longest: Any = _proposal(directory, LATER)
    assert (longest["number"], longest["master_id"], longest["nonce"]) == (2, 3, "x")
    accepted(directory, alter(1, [1, 2], (1, 3)))
    command: Any = _proposal(directory, LATER)
    assert command["master_id"] == 2
    accepted(directory, command)
    refused(directory, elect_command(directory.groups["ha"], 9, "y"), "unknown_broker")


def _proposed() -> tuple[Directory, FailoverWatch]:
    """A directory in which broker 2 was proposed at LATER and may be fencing."""
    directory, watch = ha_directory(), FailoverWatch()
    _beat(directory, 2, LATER, LogEnd(1, 95))
    _beat(directory, 3, LATER, LogEnd(1, 90))
    (first,) = watch.commands(directory, LATER, "x")
    accepted(directory, first)
    return directory, watch


def test_a_fail_over_is_proposed_once_and_again_after_the_grace() -> None:
    directory, watch = _proposed()
    assert watch.commands(directory, LATER + 1, "y") == []
    assert watch.commands(directory, LATER + FENCE_GRACE_MS, "y") == []
    after = LATER + FENCE_GRACE_MS + 1
    _beat(directory, 3, after, LogEnd(1, 90))
    (second,) = watch.commands(directory, after + 1, "y")
    assert (second["number"], second["master_id"]) == (3, 3)
    accepted(directory, second)
    bindings = {3: Binding(3, "y")}
    accepted(directory, ha_master(3, 3, "y", bindings=bindings, now_ms=after + 2))
    assert watch.commands(directory, after + 3, "z") == []


def test_a_clock_that_was_set_back_makes_nobody_wait_longer() -> None:
    directory, watch = _proposed()
    watch.commands(directory, LATER + 3_600_000, "y")  # The wait is noted an hour ahead.
    _beat(directory, 3, LATER + 1, LogEnd(1, 90))
    assert watch.commands(directory, LATER + 1, "y") == []  # It begins again, and is no longer.
    (second,) = watch.commands(directory, LATER + 1 + FENCE_GRACE_MS, "y")
    assert second["master_id"] == 3


def test_a_dead_broker_is_removed_within_thirty_seconds() -> None:
    directory, watch = Directory(), FailoverWatch()
    accepted(directory, raft_leader(1, 4))
    assert expired(directory, NOW_MS + 20_000) == []
    (command,) = watch.commands(directory, NOW_MS + 29_000, "x")
    accepted(directory, command)
    assert not directory.groups
    assert watch.commands(directory, NOW_MS + 29_000, "x") == []


def _wish(directory: Directory, replicas: dict[int, ReplicaAck], now_ms: int) -> Any:
    return change_in_sync(
        directory.groups["ha"],
        1,
        replicas,
        confirmed_position=90,
        epoch_start_position=50,
        now_ms=now_ms,
    )


def test_a_lagging_replica_leaves_and_a_caught_up_one_joins() -> None:
    directory = ha_directory()
    later = NOW_MS + CATCH_UP_MS_MAX + 1
    level, old = ReplicaAck(95, later), ReplicaAck(80, NOW_MS)
    assert _wish(directory, {2: level, 3: level}, later) is None
    command = _wish(directory, {2: level, 3: old}, later)
    assert command["members"] == [1, 2]
    accepted(directory, command)
    assert _wish(directory, {2: level, 3: ReplicaAck(89, later)}, later) is None
    assert _wish(directory, {2: level, 3: level}, later)["members"] == [1, 2, 3]


def test_a_set_keeps_the_copies_of_an_ack_and_an_old_master_changes_none() -> None:
    directory = ha_directory()
    command = _wish(directory, {}, NOW_MS)
    assert command["members"] == [1, 2]
    accepted(directory, command)
    assert _wish(directory, {}, NOW_MS) is None
    directory = ha_directory()
    accepted(directory, elect_command(directory.groups["ha"], 2, "x"))
    assert _wish(directory, {}, NOW_MS) is None


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9_000), st.integers(0, 120)), max_size=12),
    st.integers(0, 12_000),
)
def test_proposals_of_the_controller_are_accepted(
    beats: list[tuple[int, int, int]], now: int
) -> None:
    directory = ha_directory()
    for broker_id, at_ms, position in beats:
        _beat(directory, broker_id, NOW_MS + at_ms, LogEnd(1, position))
    highest = directory.groups["ha"].epoch_highest
    for command in FailoverWatch().commands(directory, NOW_MS + now, "x"):
        accepted(directory, command)
        assert command["number"] == highest + 1
    replicas = {2: ReplicaAck(95, NOW_MS), 3: ReplicaAck(10, NOW_MS)}
    if (wish := _wish(directory, replicas, NOW_MS + now)) is not None:
        accepted(directory, wish)
