"""A voter that is told that its disk is an old copy: fed like any other, trusted with nothing."""

from __future__ import annotations

from raft.messages import NO_NODE, AppendReply, Refusal, Standing, VoteReply
from raft.ready import HardState
from raft.transitions import Role
from tests.raft.builders import append, vote_request
from tests.raft.cluster import ELECTION_TICKS, Cluster, state_of

INCARNATION = 7


def told(cluster: Cluster, node: int) -> None:
    cluster.nodes[node].replica.lose_memory(INCARNATION)
    cluster.settle(node)


def test_an_old_copy_is_durable_and_neither_votes_nor_campaigns() -> None:
    cluster = Cluster()
    told(cluster, 2)
    for _ in range(2):
        assert cluster.state(2).standing is Standing.JOINING
        assert cluster.state(2).incarnation == INCARNATION
        cluster.receive(2, vote_request(1, 2, 5, last=(9, 4)))
        cluster.tick(2, 3 * ELECTION_TICKS)
        cluster.reboot(2)

    assert [m.refusal for m in cluster.sent if isinstance(m, VoteReply)] == [
        Refusal.NO_STANDING,
        Refusal.NO_STANDING,
    ]
    assert all(isinstance(m, VoteReply) for m in cluster.sent)


def test_notice_that_could_not_be_saved_is_saved_with_whatever_comes_next() -> None:
    """Else a later term would be on the old copy, and nobody would take it for one."""
    cluster = Cluster()
    log = cluster.nodes[2].log
    log.fails_hard_state = True
    told(cluster, 2)
    assert log.hard_state.standing is Standing.FULL
    cluster.receive(2, vote_request(1, 2, 5, last=(9, 4)))
    assert log.hard_state.standing is Standing.FULL
    assert log.hard_state.term < 5

    log.fails_hard_state = False
    cluster.receive(2, vote_request(1, 2, 5, last=(9, 4)))
    assert log.hard_state == HardState(5, NO_NODE, Standing.JOINING, INCARNATION)
    assert [m.refusal for m in cluster.sent if isinstance(m, VoteReply)] == [Refusal.NO_STANDING]


def test_notice_that_could_not_be_saved_is_a_secret_until_it_is() -> None:
    """Else the others hear of an incarnation that a restart forgets."""
    cluster = Cluster(states={2: state_of([1], term=3)})
    log = cluster.nodes[2].log
    log.fails_hard_state = True
    told(cluster, 2)
    cluster.receive(2, append(1, 2, 3, prev=(0, 1)))
    assert (log.hard_state.standing, cluster.sent) == (Standing.FULL, [])

    log.fails_hard_state = False
    cluster.receive(2, append(1, 2, 3, prev=(0, 1)))

    assert log.durable_hard_state == HardState(3, NO_NODE, Standing.JOINING, INCARNATION)
    assert {m.incarnation for m in cluster.sent if isinstance(m, AppendReply)} == {INCARNATION}


def test_a_leader_steps_down(cluster: Cluster) -> None:
    cluster.read(1, 9)
    told(cluster, 1)
    assert cluster.role(1) is Role.FOLLOWER
    assert cluster.nodes[1].reads_failed == [9]


def test_a_promise_of_this_turn_is_not_made() -> None:
    """It does not even wait for a sync yet."""
    cluster = Cluster()
    core = cluster.nodes[2].replica.core
    core.step(vote_request(3, 2, 4, last=(9, 1)))
    told(cluster, 2)
    cluster.sync(2)
    assert cluster.sent == []
