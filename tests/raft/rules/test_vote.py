"""Rules R01 to R05: what a vote promises, and to whom it is given."""

from __future__ import annotations

import itertools

import pytest

from raft.messages import Refusal, VoteReply, VoteRequest
from raft.state.log_view import LogView
from raft.transitions import Role
from tests.raft.builders import append, vote_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, Cluster, state_of


def replies(cluster: Cluster) -> list[VoteReply]:
    return [m for m in cluster.sent if isinstance(m, VoteReply)]


def start_campaign(cluster: Cluster, node: int) -> None:
    """Bring a node to CANDIDATE with its own vote durable and its requests lost."""
    cluster.tick(node, 2 * ELECTION_TICKS)
    term = cluster.state(node).term
    for voter in cluster.state(node).voters:
        if voter != node and cluster.role(node) is Role.PRE_CANDIDATE:
            cluster.receive(node, vote_reply(voter, node, term, vote_term=term + 1, pre=True))
    assert cluster.role(node) is Role.CANDIDATE
    cluster.drop()


def test_vote_is_durable_before_reply() -> None:
    cluster = Cluster()
    cluster.nodes[2].syncs_at_once = False

    cluster.receive(2, vote_request(1, 2, 1))

    assert cluster.state(2).vote == 1
    assert replies(cluster) == []
    cluster.sync(2)
    assert cluster.nodes[2].log.durable_hard_state[:2] == (1, 1)
    assert [reply.granted for reply in replies(cluster)] == [True]


def test_vote_in_a_known_term_is_durable_before_reply() -> None:
    """The term was on the disk before; the vote alone is new."""
    cluster = Cluster(states={2: state_of([1], term=5)})
    cluster.nodes[2].syncs_at_once = False

    cluster.receive(2, vote_request(1, 2, 5, last=(0, 1)))

    assert cluster.state(2).vote == 1
    assert replies(cluster) == []
    cluster.sync(2)
    assert cluster.nodes[2].log.durable_hard_state[:2] == (5, 1)
    assert [reply.granted for reply in replies(cluster)] == [True]


def test_own_vote_does_not_count_when_an_older_hard_state_is_durable() -> None:
    """The sync that ends wrote what was so before the campaign."""
    cluster = Cluster(voters=(1, 2))
    node = cluster.nodes[1]
    cluster.receive(1, append(2, 1, 3))
    before = node.core.state.hard_state()
    start_campaign(cluster, 1)
    state = node.core.state
    state.votes.clear()
    state.is_hard_state_durable = False

    node.core.hard_state_stable(before)

    assert state.votes == {}, "nothing says that its vote for itself is on the disk"
    node.core.hard_state_stable(state.hard_state())
    assert state.votes == {1: True}


def test_refusal_of_a_new_term_waits_for_the_term_to_be_durable() -> None:
    """A refusal reveals the term, too."""
    cluster = Cluster(states={2: state_of([1, 2], term=2)})
    cluster.nodes[2].syncs_at_once = False

    cluster.receive(2, vote_request(1, 2, 5, last=(0, 1)))

    assert cluster.state(2).term == 5
    assert replies(cluster) == []
    cluster.sync(2)
    assert [reply.refusal for reply in replies(cluster)] == [Refusal.OLD_LOG]


def test_candidate_persists_before_asking() -> None:
    cluster = Cluster()
    node = cluster.nodes[1]
    node.syncs_at_once = False
    cluster.tick(1, ELECTION_TICKS + 1)
    cluster.sent.clear()

    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))

    assert cluster.role(1) is Role.CANDIDATE
    assert cluster.sent == []
    assert cluster.state(1).votes == {}, "its own vote is not durable, so it does not count"
    cluster.sync(1)
    assert node.log.durable_hard_state[:2] == (1, 1)
    requests = [m for m in cluster.sent if isinstance(m, VoteRequest)]
    assert [(m.to, m.pre, m.vote_term) for m in requests] == [(2, False, 1), (3, False, 1)]
    assert cluster.state(1).votes == {1: True}


def test_failed_meta_write_refuses_vote() -> None:
    cluster = Cluster()
    node = cluster.nodes[2]
    node.log.fails_hard_state = True

    cluster.receive(2, vote_request(1, 2, 7))

    assert (cluster.state(2).term, cluster.state(2).vote) == (0, 0)
    assert cluster.sent == []
    assert node.replica.stats().hard_state_write_failures == 1
    node.log.fails_hard_state = False
    cluster.receive(2, vote_request(3, 2, 7))
    assert [(m.to, m.granted) for m in replies(cluster)] == [(3, True)]


def test_failed_meta_write_stops_a_campaign() -> None:
    cluster = Cluster()
    cluster.nodes[1].log.fails_hard_state = True
    cluster.tick(1, ELECTION_TICKS + 1)

    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))

    assert cluster.role(1) is Role.FOLLOWER
    assert cluster.state(1).term == 0
    assert not any(isinstance(m, VoteRequest) and not m.pre for m in cluster.sent)


def test_failed_meta_write_of_a_leader_keeps_its_log() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "kept", waiter="w")
    cluster.deliver()
    log = cluster.nodes[1].log
    before = log.terms()
    log.fails_hard_state = True

    cluster.receive(1, vote_reply(2, 1, 9, granted=False))

    state = cluster.state(1)
    assert (state.role, state.term, log.terms()) == (Role.FOLLOWER, 1, before)
    assert state.log.last_index == log.last_index
    log.fails_hard_state = False
    cluster.elect(2)
    cluster.propose(2, "after")
    cluster.deliver()
    cluster.tick_all(3)
    assert cluster.nodes[1].applied == ["kept", "after"]


def test_repeated_request_same_answer() -> None:
    cluster = Cluster()

    for sender in (1, 1, 3, 1):
        cluster.receive(2, vote_request(sender, 2, 1))

    assert [(m.to, m.granted) for m in replies(cluster)] == [
        (1, True),
        (1, True),
        (3, False),
        (1, True),
    ]
    assert cluster.state(2).vote == 1


def test_repeated_request_does_not_reset_the_timer_again() -> None:
    cluster = Cluster()
    cluster.receive(2, vote_request(1, 2, 1))
    cluster.tick(2, 5)
    started = cluster.state(2).timer_start

    cluster.receive(2, vote_request(1, 2, 1))

    assert cluster.state(2).timer_start == started == 0


def test_vote_survives_a_crash() -> None:
    cluster = Cluster()
    cluster.receive(2, vote_request(1, 2, 1))
    cluster.crash(2)
    cluster.restart(2)

    cluster.receive(2, vote_request(3, 2, 1))

    assert [(m.to, m.granted) for m in replies(cluster)] == [(1, True), (3, False)]


def test_duplicate_grants_count_once() -> None:
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    start_campaign(cluster, 1)

    for _ in range(3):
        cluster.receive(1, vote_reply(2, 1, 1))
    assert cluster.role(1) is Role.CANDIDATE

    cluster.receive(1, vote_reply(3, 1, 1))
    assert cluster.role(1) is Role.LEADER


def test_a_later_refusal_does_not_take_a_grant_back() -> None:
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    start_campaign(cluster, 1)
    cluster.receive(1, vote_reply(2, 1, 1))

    cluster.receive(1, vote_reply(2, 1, 1, granted=False))
    cluster.receive(1, vote_reply(3, 1, 1))

    assert cluster.role(1) is Role.LEADER


def test_grant_from_old_term_ignored() -> None:
    cluster = Cluster()
    start_campaign(cluster, 1)
    cluster.tick(1, 2 * ELECTION_TICKS)
    cluster.receive(1, vote_reply(2, 1, 1, vote_term=2, pre=True))
    assert (cluster.role(1), cluster.state(1).term) == (Role.CANDIDATE, 2)

    cluster.receive(1, vote_reply(2, 1, 1))
    cluster.receive(1, vote_reply(3, 1, 1))
    assert cluster.role(1) is Role.CANDIDATE
    # The header may carry the newer term while the grant is for the older election.
    cluster.receive(1, vote_reply(2, 1, 2, vote_term=1))
    assert cluster.role(1) is Role.CANDIDATE

    cluster.receive(1, vote_reply(2, 1, 2))
    assert cluster.role(1) is Role.LEADER


def test_pre_vote_grant_is_no_vote() -> None:
    cluster = Cluster()
    start_campaign(cluster, 1)

    cluster.receive(1, vote_reply(2, 1, 1, vote_term=1, pre=True))
    cluster.receive(1, vote_reply(2, 1, 1, vote_term=2, pre=True))

    assert cluster.role(1) is Role.CANDIDATE


TERM_ORDERS = (-1, 0, 1)


@pytest.mark.parametrize(
    ("term_order", "index_order"), list(itertools.product(TERM_ORDERS, TERM_ORDERS))
)
def test_log_comparison_table(term_order: int, index_order: int) -> None:
    """All nine orders of (candidate's last term, candidate's last index) against the voter's."""
    expected = {
        (-1, -1): False,
        (-1, 0): False,
        (-1, 1): False,
        (0, -1): False,
        (0, 0): True,
        (0, 1): True,
        (1, -1): True,
        (1, 0): True,
        (1, 1): True,
    }[term_order, index_order]
    cluster = Cluster(states={2: state_of([1, 3, 3, 3], term=3)})

    cluster.receive(2, vote_request(1, 2, 9, last=(3 + index_order, 3 + term_order)))

    assert [m.granted for m in replies(cluster)] == [expected]
    own = LogView(last_index=3, runs=[(0, 1), (1, 3)])
    assert own.is_up_to_date(3 + index_order, 3 + term_order) is expected


def test_no_vote_in_a_term_whose_leader_is_known() -> None:
    """Its candidate would only disturb: the term has its leader."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.tick(2, 3)

    cluster.receive(2, vote_request(3, 2, 1, last=(9, 1)))

    assert not replies(cluster)[-1].granted
    assert cluster.state(2).leader == 1
