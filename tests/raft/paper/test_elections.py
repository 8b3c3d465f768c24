"""One test per claim about elections. "Paper" is Ongaro and Ousterhout 2014, "thesis" Ongaro
2014."""

from __future__ import annotations

from raft.messages import NO_NODE, AppendRequest, VoteReply, VoteRequest
from raft.transitions import Role
from tests.raft.builders import append, vote_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, state_of


def test_servers_start_as_followers() -> None:
    """Paper 5.2: when servers start up, they begin as followers."""
    cluster = Cluster(states={1: state_of([1, 2], term=3, vote=1)})
    assert {cluster.role(node) for node in cluster.nodes} == {Role.FOLLOWER}


def test_follower_that_hears_a_leader_stays_follower() -> None:
    """Paper 5.2: a server remains a follower as long as it receives valid RPCs from a leader."""
    cluster = Cluster()
    for _ in range(5 * ELECTION_TICKS):
        cluster.tick(1)
        cluster.receive(1, append(2, 1, 1))
    assert cluster.role(1) is Role.FOLLOWER


def test_silence_starts_an_election() -> None:
    """Paper 5.2: over the election time-out without communication the follower begins an
    election."""
    cluster = Cluster()
    cluster.tick(1, cluster.state(1).timeout_ticks - 1)
    assert cluster.role(1) is Role.FOLLOWER
    cluster.tick(1)
    assert cluster.role(1) is Role.PRE_CANDIDATE


def test_candidate_raises_its_term_votes_for_itself_and_asks_everyone() -> None:
    """Paper 5.2: it increments its term, votes for itself and issues RequestVote in parallel."""
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    cluster.tick(1, ELECTION_TICKS + 1)
    cluster.sent.clear()
    for voter in (2, 3):
        cluster.receive(1, vote_reply(voter, 1, 0, vote_term=1, pre=True))
    state = cluster.state(1)
    assert (state.role, state.term, state.vote) == (Role.CANDIDATE, 1, 1)
    assert [m.to for m in cluster.sent if isinstance(m, VoteRequest)] == [2, 3, 4, 5]


def test_majority_of_votes_wins() -> None:
    """Paper 5.2: a candidate wins with votes from a majority of the full cluster."""
    for count, needed in ((3, 1), (5, 2), (7, 3)):
        cluster = Cluster(voters=range(1, count + 1))
        cluster.tick(1, ELECTION_TICKS + 1)
        for voter in range(2, needed + 2):
            cluster.receive(1, vote_reply(voter, 1, 0, vote_term=1, pre=True))
        for voter in range(2, needed + 1):
            cluster.receive(1, vote_reply(voter, 1, 1))
        assert cluster.role(1) is Role.CANDIDATE
        cluster.receive(1, vote_reply(needed + 1, 1, 1))
        assert cluster.role(1) is Role.LEADER


def test_a_voter_grants_a_single_vote_per_term() -> None:
    """Paper 5.2: each server votes for at most one candidate in a term, first come first served."""
    cluster = Cluster()
    cluster.receive(1, vote_request(2, 1, 1))
    cluster.receive(1, vote_request(3, 1, 1))
    answers = [(m.to, m.granted) for m in cluster.sent if isinstance(m, VoteReply)]
    assert answers == [(2, True), (3, False)]


def test_new_leader_speaks_at_once() -> None:
    """Paper 5.2: once it wins, it sends heartbeats to all to establish its authority."""
    cluster = Cluster()
    cluster.tick(1, ELECTION_TICKS + 1)
    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))
    cluster.sent.clear()
    cluster.receive(1, vote_reply(2, 1, 1))
    assert [m.to for m in cluster.sent if isinstance(m, AppendRequest)] == [2, 3]


def test_candidate_yields_to_a_leader_of_its_term() -> None:
    """Paper 5.2: a candidate that hears from a leader whose term is at least its own steps back."""
    cluster = Cluster()
    cluster.tick(1, ELECTION_TICKS + 1)
    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))
    cluster.receive(1, append(3, 1, 1))
    assert (cluster.role(1), cluster.state(1).leader) == (Role.FOLLOWER, 3)


def test_candidate_ignores_a_leader_of_an_older_term() -> None:
    """Paper 5.2: if the term in the RPC is smaller, the candidate rejects it and goes on."""
    cluster = Cluster(states={1: state_of([], term=4)})
    cluster.tick(1, ELECTION_TICKS + 1)
    cluster.receive(1, vote_reply(2, 1, 4, vote_term=5, pre=True))
    cluster.receive(1, append(3, 1, 4))
    assert (cluster.role(1), cluster.state(1).leader) == (Role.CANDIDATE, NO_NODE)


def test_split_vote_leads_to_a_new_election_in_a_new_term() -> None:
    """Paper 5.2: with no majority each candidate times out and starts over in a higher term."""
    cluster = Cluster(voters=(1, 2, 3, 4))
    cluster.tick(1, ELECTION_TICKS + 1)
    for voter in (3, 4):
        cluster.receive(1, vote_reply(voter, 1, 0, vote_term=1, pre=True))
    cluster.receive(1, vote_reply(3, 1, 1))
    cluster.tick(1, 2 * ELECTION_TICKS)
    for voter in (3, 4):
        cluster.receive(1, vote_reply(voter, 1, 1, vote_term=2, pre=True))
    assert (cluster.role(1), cluster.state(1).term) == (Role.CANDIDATE, 2)


def test_current_terms_spread() -> None:
    """Paper 5.1: a server with the smaller term takes the larger one; a stale leader steps down."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.receive(1, append(2, 1, 8))
    assert (cluster.role(1), cluster.state(1).term) == (Role.FOLLOWER, 8)


def test_stale_terms_are_rejected() -> None:
    """Paper 5.1: a request with a stale term number is rejected."""
    cluster = Cluster(states={1: state_of([], term=5)})
    cluster.receive(1, vote_request(2, 1, 4))
    reply = cluster.sent[-1]
    assert isinstance(reply, VoteReply)
    assert (reply.granted, reply.term) == (False, 5)


def test_voter_denies_a_candidate_with_an_older_log() -> None:
    """Paper 5.4.1: the voter denies its vote if its own log is more up-to-date."""
    cluster = Cluster(states={1: state_of([1, 2, 2])})
    for last, granted in (((9, 1), False), ((1, 2), False), ((2, 2), True)):
        cluster.start(1, state_of([1, 2, 2]))
        cluster.receive(1, vote_request(2, 1, 5, last=last))
        reply = cluster.sent[-1]
        assert isinstance(reply, VoteReply)
        assert reply.granted is granted


def test_removed_servers_cannot_disrupt() -> None:
    """Paper 6, thesis 4.2.3: within the minimum time-out of hearing a leader, RequestVote is
    ignored."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.receive(2, vote_request(9, 2, 7, last=(99, 6)))
    assert cluster.state(2).term == 1


def test_pre_vote_asks_before_raising_the_term() -> None:
    """Thesis 9.6: a candidate increments its term only if a majority would vote for it."""
    cluster = Cluster()
    cluster.isolate(1)
    cluster.tick(1, 20 * ELECTION_TICKS)
    assert cluster.state(1).term == 0


def test_leader_steps_down_without_a_majority() -> None:
    """Thesis 6.2: a leader steps down if an election time-out passes without a round to a
    majority."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(1, ELECTION_TICKS + HEARTBEAT_TICKS)
    assert cluster.role(1) is Role.FOLLOWER


def test_leadership_transfer() -> None:
    """Thesis 3.10: the target catches up, is told to time out, and the old leader steps down."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.nodes[1].core.transfer_leadership(2)
    cluster.settle(1)
    cluster.deliver()
    assert (cluster.leaders(), cluster.role(1)) == ([2], Role.FOLLOWER)
