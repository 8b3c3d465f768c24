"""Rules R26 to R29: single-step membership changes, learners, and nodes with no memory.

The fault matrix names tests for a joint phase. This core changes one voter at a time instead (see
raft.rules.membership for why), so that old and new majorities meet."""

from __future__ import annotations

import pytest

from raft.errors import BusyError, ChangeInvalidError, ChangeRefusedError, NotLeaderError
from raft.messages import (
    NO_INDEX,
    Configuration,
    ConfigurationAt,
    Standing,
)
from raft.rules import snapshot
from raft.rules.membership import Change, ChangeKind, changed
from raft.transitions import Role
from tests.raft.builders import append, append_reply, payload_of, send
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led, state_of


def test_no_step_changes_two_voters() -> None:
    """Replacing a voter takes two changes; a change that would take one step is not expressible."""
    old = Configuration((1, 2, 3), (4,))
    reachable = {
        changed(old, Change(kind, node)).voters
        for kind in ChangeKind
        for node in range(1, 7)
        if _applies(old, kind, node)
    }
    assert reachable == {(1, 2, 3), (1, 2, 3, 4), (2, 3), (1, 3), (1, 2)}


def _applies(configuration: Configuration, kind: ChangeKind, node: int) -> bool:
    try:
        changed(configuration, Change(kind, node))
    except ChangeRefusedError:
        return False
    return True


def test_joint_survives_restart_and_snapshot() -> None:
    """A change in force, committed or not, is still in force after a restart and in a snapshot."""
    cluster = led(voters=(1, 2, 3, 4, 5))
    cluster.change(1, ChangeKind.REMOVE, 5)
    cluster.deliver()
    cluster.isolate(1)
    cluster.change(1, ChangeKind.REMOVE, 4)
    cluster.reboot(1)
    assert cluster.state(1).voters == (1, 2, 3), "appended and synced, so in force"
    newest = cluster.state(1).configurations[-1].index
    assert newest == 2

    cluster.heal()
    cluster.elect(2)
    cluster.tick_all(2 * HEARTBEAT_TICKS)
    assert cluster.state(1).voters == (1, 2, 3, 4)
    meta = snapshot.meta_at(cluster.nodes[2].core.state, 1)
    assert meta.configuration_at == ConfigurationAt(1, Configuration((1, 2, 3, 4)))
    assert snapshot.meta_at(cluster.nodes[2].core.state, 0).configuration_at.index == NO_INDEX


def test_configuration_survives_compaction(cluster: Cluster) -> None:
    cluster.change(1, ChangeKind.REMOVE, 3)
    cluster.replicate(1, "ab")
    core = cluster.nodes[1].core
    snapshot.snapshot_durable(core.state, snapshot.meta_at(core.state, 3))

    core.compact_to(2)

    assert core.state.configurations == [ConfigurationAt(1, Configuration((1, 2)))]
    assert core.state.log.base_index == 2


def test_compaction_below_a_newer_configuration_keeps_the_one_of_then(cluster: Cluster) -> None:
    """A snapshot there has to say who the members were, and a cut of the newer one goes back."""
    cluster.replicate(1, "ab")
    core = cluster.nodes[1].core
    snapshot.snapshot_durable(core.state, snapshot.meta_at(core.state, 2))
    before = core.state.configurations[-1]
    cluster.change(1, ChangeKind.REMOVE, 3)
    newer = core.state.configurations[-1]
    assert newer.index == 3

    core.compact_to(2)

    assert core.state.configurations == [before, newer]
    assert snapshot.meta_at(core.state, 2).configuration_at == before


def test_learner_never_campaigns() -> None:
    cluster = led(voters=(1, 2, 3), learners=(4,))
    cluster.isolate(4)

    cluster.tick(4, 10 * ELECTION_TICKS)

    assert (cluster.role(4), cluster.state(4).term) == (Role.FOLLOWER, 1)


@pytest.mark.parametrize("is_followed", [False, True])
def test_learner_that_knows_an_uncommitted_configuration_never_campaigns(
    is_followed: bool,
) -> None:
    """It joined just now: the entry that names it is all it has, and there is none before. Or the
    removal of another node follows, before which it was no voter either."""
    members = ConfigurationAt(0, Configuration((1, 2, 3), (4,)))
    learner = state_of([1], term=1)._replace(configurations=(members,))
    cluster = Cluster(learners=(4,), states={4: learner})
    assert cluster.state(4).commit < 0
    assert cluster.state(4).standing is Standing.FULL
    if is_followed:
        removal = ConfigurationAt(1, Configuration((1, 2), (4,)))
        send(cluster, append(1, 4, 1, prev=(0, 1), terms=[1], configurations=(removal,)))
        assert cluster.state(4).voters == (1, 2)

    cluster.tick(4, 10 * ELECTION_TICKS)

    assert (cluster.role(4), cluster.state(4).term) == (Role.FOLLOWER, 1)


def test_a_change_that_nobody_could_wait_for_is_not_appended() -> None:
    cluster = led(waiter_count_max=1)
    cluster.isolate(1)
    cluster.propose(1, "a", waiter="somebody")
    last = cluster.state(1).log.last_index
    with pytest.raises(BusyError, match="waiting proposals"):
        cluster.nodes[1].replica.propose_change(Change(ChangeKind.REMOVE, 3), "another one")
    assert cluster.state(1).log.last_index == last
    assert cluster.state(1).voters == (1, 2, 3)


@pytest.mark.parametrize(("lag", "is_promoted"), [(2, True), (3, False)])
def test_a_learner_may_lag_as_far_as_the_limit_says(lag: int, is_promoted: bool) -> None:
    cluster = led(learners=(4,), promote_lag_entry_count_max=2)
    progress = cluster.state(1).progress[4]
    progress.match = cluster.state(1).log.last_index - lag
    if is_promoted:
        cluster.change(1, ChangeKind.PROMOTE, 4)
        assert cluster.state(1).voters == (1, 2, 3, 4)
    else:
        with pytest.raises(ChangeRefusedError, match="it is 3 entries behind, at most 2"):
            cluster.change(1, ChangeKind.PROMOTE, 4)


def test_a_learner_whose_memory_is_in_doubt_is_not_promoted() -> None:
    """It has all entries, as far as it says; what it promised before is what nobody knows."""
    cluster = led(learners=(4,))
    match = cluster.state(1).log.last_index
    doubtful = append_reply(4, 1, 1, match=match, standing=Standing.RECOVERING, incarnation=1)
    cluster.receive(1, doubtful)
    with pytest.raises(ChangeRefusedError, match="memory is in doubt"):
        cluster.change(1, ChangeKind.PROMOTE, 4)
    assert cluster.state(1).voters == (1, 2, 3)


def test_silent_learner_is_not_promoted(cluster: Cluster) -> None:
    cluster.start_joining(4)
    cluster.change(1, ChangeKind.ADD_LEARNER, 4)
    cluster.deliver()
    cluster.tick_all(3 * HEARTBEAT_TICKS)
    cluster.isolate(4)
    cluster.tick_all(ELECTION_TICKS)

    with pytest.raises(ChangeRefusedError, match="not answered"):
        cluster.change(1, ChangeKind.PROMOTE, 4)


@pytest.mark.parametrize(
    ("kind", "node", "complaint"),
    [
        (ChangeKind.ADD_LEARNER, 2, "member already"),
        (ChangeKind.ADD_LEARNER, 4, "member already"),
        (ChangeKind.ADD_LEARNER, 0, "positive"),
        (ChangeKind.PROMOTE, 2, "only a learner"),
        (ChangeKind.PROMOTE, 9, "only a learner"),
        (ChangeKind.REMOVE, 9, "no member"),
    ],
)
def test_senseless_changes_are_refused(kind: ChangeKind, node: int, complaint: str) -> None:
    with pytest.raises(ChangeInvalidError, match=complaint):
        changed(Configuration((1, 2, 3), (4,)), Change(kind, node))


def test_last_voter_stays() -> None:
    with pytest.raises(ChangeInvalidError, match="last voter"):
        changed(Configuration((1,), (2,)), Change(ChangeKind.REMOVE, 1))


def test_followers_refuse_changes(cluster: Cluster) -> None:
    with pytest.raises(NotLeaderError):
        cluster.change(2, ChangeKind.REMOVE, 3)


@pytest.mark.parametrize("removed", [1, 3])
def test_a_removal_is_final_with_its_own_commit_and_no_earlier_one(removed: int) -> None:
    """Until then the leader leads on, though it is the one, and feeds the node that has to go."""
    cluster = led()
    before, _ = cluster.propose(1, "a")
    cluster.change(1, ChangeKind.REMOVE, removed)
    cluster.drop()
    state = cluster.state(1)
    peers = {node for node in (2, 3) if node in state.voters}

    for node in peers:
        cluster.receive(1, append_reply(node, 1, 1, match=before))
    assert (state.commit, state.role, list(state.progress)) == (before, Role.LEADER, [2, 3])
    for node in peers:
        cluster.receive(1, append_reply(node, 1, 1, match=before + 1))

    assert state.commit == before + 1
    assert state.role is (Role.FOLLOWER if removed == 1 else Role.LEADER)
    assert 3 not in state.progress


def test_removed_node_with_the_newest_log_can_still_be_elected() -> None:
    """Thesis 4.2.2: until its removal is committed the others may be unable to elect anyone
    else."""
    cluster = led(voters=(1, 2))
    cluster.isolate(2)
    cluster.change(1, ChangeKind.REMOVE, 1)
    cluster.reboot(1)
    cluster.heal()
    assert (cluster.state(1).is_voter, cluster.state(2).voters) == (False, (1, 2))

    cluster.tick_all(4 * ELECTION_TICKS)

    assert cluster.leaders() == [2]
    assert cluster.state(2).voters == (2,)
    assert cluster.state(2).commit == cluster.state(2).log.last_index


def test_removed_node_is_told_before_it_is_dropped(cluster: Cluster) -> None:
    cluster.change(1, ChangeKind.REMOVE, 3)
    cluster.deliver()

    assert cluster.state(3).voters == (1, 2)
    assert list(cluster.state(1).progress) == [2]


def test_follower_takes_configurations_from_appends() -> None:
    cluster = Cluster(states={2: state_of([1], term=1)})
    brought = ConfigurationAt(2, Configuration((1, 2, 3), (4,)))
    message = append(1, 2, 1, prev=(0, 1), terms=[1, 1, 1], configurations=(brought,))
    cluster.receive(2, message, payload_of(message))
    assert cluster.state(2).learners == (4,)

    # Repeated, it is not added twice.
    cluster.receive(2, message, payload_of(message))
    assert [entry.index for entry in cluster.state(2).configurations] == [NO_INDEX, 2]
