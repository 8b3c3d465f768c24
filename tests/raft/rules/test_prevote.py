"""Rules R22 and R23: pre-vote, leader stickiness, check-quorum."""

from __future__ import annotations

import pytest

from raft.messages import VoteReply, VoteRequest
from raft.transitions import Role
from tests.raft.builders import append_reply, vote_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led, state_of


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
