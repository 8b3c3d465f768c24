"""Rules R01 to R05, R22 and R23: what a vote promises, and to whom it is given; pre-vote, leader
stickiness, check-quorum."""

from __future__ import annotations

import pytest

from raft.messages import Refusal, VoteReply, VoteRequest
from raft.state.log_view import LogView
from raft.transitions import Role
from tests.raft.builders import append, append_reply, vote_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led, state_of


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


def test_failed_meta_write_stops_a_campaign() -> None:
    cluster = Cluster()
    cluster.nodes[1].log.fails_hard_state = True
    cluster.tick(1, ELECTION_TICKS + 1)

    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))

    assert cluster.role(1) is Role.FOLLOWER
    assert cluster.state(1).term == 0
    assert not any(isinstance(m, VoteRequest) and not m.pre for m in cluster.sent)


def test_repeated_request_does_not_reset_the_timer_again() -> None:
    cluster = Cluster()
    cluster.receive(2, vote_request(1, 2, 1))
    cluster.tick(2, 5)
    started = cluster.state(2).timer_start

    cluster.receive(2, vote_request(1, 2, 1))

    assert cluster.state(2).timer_start == started == 0


def test_a_later_refusal_does_not_take_a_grant_back() -> None:
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    start_campaign(cluster, 1)
    cluster.receive(1, vote_reply(2, 1, 1))

    cluster.receive(1, vote_reply(2, 1, 1, granted=False))
    cluster.receive(1, vote_reply(3, 1, 1))

    assert cluster.role(1) is Role.LEADER


def test_pre_vote_grant_is_no_vote() -> None:
    cluster = Cluster()
    start_campaign(cluster, 1)

    cluster.receive(1, vote_reply(2, 1, 1, vote_term=1, pre=True))
    cluster.receive(1, vote_reply(2, 1, 1, vote_term=2, pre=True))

    assert cluster.role(1) is Role.CANDIDATE


@pytest.mark.parametrize("term_order", [-1, 0, 1])
@pytest.mark.parametrize("index_order", [-1, 0, 1])
def test_log_comparison_table(term_order: int, index_order: int) -> None:
    """All nine orders of (candidate's last term, candidate's last index) against the voter's."""
    expected = (term_order, index_order) >= (0, 0)
    cluster = Cluster(states={2: state_of([1, 3, 3, 3], term=3)})

    cluster.receive(2, vote_request(1, 2, 9, last=(3 + index_order, 3 + term_order)))

    assert [m.granted for m in replies(cluster)] == [expected]
    own = LogView(last_index=3, runs=[(0, 1), (1, 3)])
    assert own.is_up_to_date(3 + index_order, 3 + term_order) is expected


def test_no_vote_in_a_term_whose_leader_is_known(cluster: Cluster) -> None:
    """Its candidate would only disturb: the term has its leader."""
    cluster.tick(2, 3)

    cluster.receive(2, vote_request(3, 2, 1, last=(9, 1)))

    assert not replies(cluster)[-1].granted
    assert cluster.state(2).leader == 1


def test_a_request_of_an_old_term_is_refused_with_the_newer_one() -> None:
    cluster = Cluster(states={1: state_of([], term=5)})

    cluster.receive(1, vote_request(2, 1, 4))

    assert [(m.granted, m.term) for m in replies(cluster)] == [(False, 5)]


# --- Rules R22 and R23 ---


def last_reply(cluster: Cluster) -> VoteReply:
    return [m for m in cluster.sent if isinstance(m, VoteReply)][-1]


def test_pre_vote_request_changes_neither_term_nor_vote() -> None:
    cluster = Cluster(states={2: state_of([1], term=3, vote=1)})

    cluster.receive(2, vote_request(3, 2, 9, last=(5, 2), pre=True))

    assert last_reply(cluster).granted
    assert (cluster.state(2).term, cluster.state(2).vote) == (3, 1)
    assert cluster.nodes[2].log.hard_state[:2] == (3, 1)


def test_pre_vote_is_granted_to_several() -> None:
    cluster = Cluster()

    for sender in (2, 3):
        cluster.receive(1, vote_request(sender, 1, 1, pre=True))
        assert last_reply(cluster).granted


def test_granted_once_the_leader_was_silent_for_the_minimum_time(cluster: Cluster) -> None:
    cluster.tick(2, ELECTION_TICKS - 1)
    cluster.receive(2, vote_request(3, 2, 2, last=(0, 1), pre=True))
    assert not last_reply(cluster).granted

    cluster.tick(2)
    cluster.receive(2, vote_request(3, 2, 2, last=(0, 1), pre=True))
    assert last_reply(cluster).granted


def test_refusal_teaches_the_term() -> None:
    """A node that missed elections catches up with the term and can campaign for the next."""
    cluster = Cluster(states={2: state_of([1], term=8)})
    cluster.tick(1, ELECTION_TICKS + 1)

    cluster.receive(1, vote_reply(2, 1, 8, vote_term=1, granted=False, pre=True))

    assert (cluster.role(1), cluster.state(1).term) == (Role.FOLLOWER, 8)


def test_late_pre_vote_grant_means_nothing_to_a_follower(cluster: Cluster) -> None:
    before = len(cluster.sent)

    cluster.receive(2, vote_reply(3, 2, 1, vote_term=2, pre=True))

    assert (cluster.role(2), len(cluster.sent)) == (Role.FOLLOWER, before)


@pytest.mark.parametrize("vote_term", [1, 3])
def test_pre_vote_grant_for_another_term_does_not_count(vote_term: int) -> None:
    """Of a campaign before this one: it may come late, and with the term of its sender."""
    cluster = Cluster(states={1: state_of([1], term=1)})
    cluster.tick(1, ELECTION_TICKS + 1)
    assert (cluster.role(1), cluster.state(1).term) == (Role.PRE_CANDIDATE, 1)

    cluster.receive(1, vote_reply(2, 1, 1, vote_term=vote_term, pre=True))
    assert cluster.role(1) is Role.PRE_CANDIDATE
    cluster.receive(1, vote_reply(2, 1, 1, vote_term=2, pre=True))

    assert (cluster.role(1), cluster.state(1).term) == (Role.CANDIDATE, 2)


def test_check_quorum_is_content_with_a_majority(cluster: Cluster) -> None:
    cluster.isolate(3)

    cluster.tick_all(10 * ELECTION_TICKS)

    assert cluster.leaders() == [1]


def test_replies_of_learners_do_not_keep_a_leader_in_office() -> None:
    cluster = led(voters=(1, 2, 3), learners=(4, 5))
    cluster.isolate(2)
    cluster.isolate(3)

    cluster.tick_all(2 * ELECTION_TICKS)

    assert cluster.role(1) is Role.FOLLOWER


@pytest.mark.parametrize("silent", [1, ELECTION_TICKS - 1])
def test_a_late_reply_keeps_the_leader(cluster: Cluster, silent: int) -> None:
    cluster.isolate(1)
    cluster.tick(1, silent)
    cluster.receive(1, append_reply(2, 1, 1, match=0))

    cluster.tick(1, ELECTION_TICKS - HEARTBEAT_TICKS)

    assert cluster.role(1) is Role.LEADER


def pre_votes(cluster: Cluster) -> int:
    return sum(isinstance(m, VoteRequest) and m.pre for m in cluster.sent)


def test_the_first_founder_asks_until_the_others_listen() -> None:
    cluster = Cluster()
    cluster.tick(1, HEARTBEAT_TICKS, has_met_all=True)
    cluster.drop()
    assert cluster.role(1) is Role.PRE_CANDIDATE

    cluster.tick(1, HEARTBEAT_TICKS, has_met_all=True)
    cluster.deliver()

    assert (cluster.role(1), cluster.state(1).term) == (Role.LEADER, 1)


def test_a_founder_that_nobody_hears_asks_as_seldom_as_others_soon() -> None:
    cluster = Cluster()
    cluster.tick(1, ELECTION_TICKS, has_met_all=True)
    early = pre_votes(cluster)
    assert early == 2 * ((ELECTION_TICKS - 1) // HEARTBEAT_TICKS)

    cluster.tick(1, ELECTION_TICKS - HEARTBEAT_TICKS, has_met_all=True)

    assert pre_votes(cluster) == early


@pytest.mark.parametrize(
    ("node", "term", "has_met_all"), [(1, 0, False), (1, 1, True), (2, 0, True), (3, 0, True)]
)
def test_every_other_node_waits_for_its_time_out(node: int, term: int, has_met_all: bool) -> None:
    cluster = Cluster(states={node: state_of([1] * term, term=term)})
    cluster.tick(node, cluster.state(node).timeout_ticks - 1, has_met_all=has_met_all)
    assert cluster.role(node) is Role.FOLLOWER

    cluster.tick(node, has_met_all=has_met_all)
    assert cluster.role(node) is Role.PRE_CANDIDATE
