"""Terms that no elections explain: refused before anything changes, in every kind of message; and
what a node does that stands at the end of the range."""

from __future__ import annotations

import pickle

import pytest

from raft.ceiling import TERM_END, TERM_JUMP_MAX, TERM_WINDOW_TICKS, Ceiling
from raft.core import check_term
from raft.errors import PeerProtocolError, TermJumpError
from raft.messages import Message, Refusal
from raft.ready import HardState, InitialState, bootstrap_state, joining_state
from raft.transitions import Role
from tests.raft.builders import (
    META,
    append,
    append_reply,
    campaign_now,
    install,
    messages_of,
    vote_request,
)
from tests.raft.cluster import ELECTION_TICKS, Cluster, led


def messages(term: int) -> dict[str, Message]:
    """Every kind of message, from node 3, in this term; requests for votes of each kind."""
    return messages_of(term) | {
        "vote request of a hand-over": vote_request(3, 1, term, last=(50, 8), transfer=True),
        "pre-vote": vote_request(3, 1, term, last=(50, 8), pre=True),
    }


def aged(term: int) -> InitialState:
    return bootstrap_state((1, 2, 3))._replace(hard_state=HardState(term))


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.LEADER])
@pytest.mark.parametrize("term", [TERM_JUMP_MAX + 3, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("kind", list(messages(1)))
def test_an_absurd_term_is_refused_before_anything_changes(
    kind: str, term: int, role: Role
) -> None:
    cluster = Cluster()
    cluster.elect(1 if role is Role.LEADER else 2)
    state = cluster.state(1)
    before = (state.term, state.vote, state.role, state.leader, state.hard_state_taken)

    message = messages(term)[kind]
    with pytest.raises(TermJumpError) as caught:
        cluster.nodes[1].replica.receive(message)

    assert (caught.value.peer, caught.value.term) == (3, message.term)
    assert caught.value.limit == TERM_JUMP_MAX, "the term of the start and one jump"
    assert (state.term, state.vote, state.role, state.leader, state.hard_state_taken) == before
    assert not cluster.nodes[1].replica.core.has_ready(), "nothing to store, nothing to send"


def test_a_shell_hears_of_an_absurd_term_before_it_gathers_a_snapshot() -> None:
    cluster = Cluster()
    cluster.elect(2)
    state, replica = cluster.state(1), cluster.nodes[1].replica
    before = (state.term, state.vote, state.role, state.leader)

    with pytest.raises(TermJumpError):
        check_term(replica.core.state, install(3, 1, TERM_JUMP_MAX + 3, META))
    check_term(replica.core.state, install(3, 1, state.term + 1, META))

    assert (state.term, state.vote, state.role, state.leader) == before, "it was only asked"


def test_a_jump_that_is_allowed_is_followed_by_the_others_and_elects(cluster: Cluster) -> None:
    high = TERM_JUMP_MAX - 1000
    cluster.receive(2, append_reply(3, 2, high, refusal=Refusal.OLD_TERM))
    assert cluster.state(2).term == high
    cluster.tick_all(8 * ELECTION_TICKS)
    cluster.deliver()
    leaders = [node for node in (1, 2, 3) if cluster.role(node) is Role.LEADER]
    assert len(leaders) == 1, "the others follow to where the message brought one of them"
    assert high < cluster.state(leaders[0]).term < TERM_JUMP_MAX


def test_a_jump_to_the_very_bound_costs_one_window_at_most(cluster: Cluster) -> None:
    """Node 2 is brought so far that the others refuse its next campaign, once."""
    cluster.receive(2, append_reply(3, 2, TERM_JUMP_MAX, refusal=Refusal.OLD_TERM))
    for node in (1, 3):
        with pytest.raises(TermJumpError):
            cluster.nodes[node].replica.receive(vote_request(2, node, TERM_JUMP_MAX + 1))
        pass_a_window(cluster, node)
        assert cluster.state(node).term_ceiling.limit == 2 * TERM_JUMP_MAX


def pass_a_window(cluster: Cluster, node: int) -> None:
    """One window of a node alone. It hears a leader of its own term, so it does not campaign."""
    core = cluster.nodes[node].replica.core
    for _ in range(TERM_WINDOW_TICKS):
        core.state.timer_start = core.state.now
        core.tick()


def test_steps_of_the_allowed_size_get_one_jump_for_each_window() -> None:
    cluster = Cluster()
    replica = cluster.nodes[1].replica
    taken = 0
    for window in range(1, 6):
        for _ in range(1000):
            top = cluster.state(1).term_ceiling.limit
            try:
                replica.receive(append_reply(3, 1, top, refusal=Refusal.OLD_TERM))
                replica.receive(append_reply(3, 1, top + 1, refusal=Refusal.OLD_TERM))
            except TermJumpError:
                taken += 1
        assert cluster.state(1).term <= window * TERM_JUMP_MAX
        pass_a_window(cluster, 1)
    assert taken == 5000
    windows = TERM_END // TERM_JUMP_MAX
    assert windows * TERM_WINDOW_TICKS * 0.025 / (365 * 86_400) > 4000, "years to the end"


def test_a_node_that_the_others_left_behind_follows_after_as_many_windows() -> None:
    """They were led there step by step; it slept, or joins with an empty disk."""
    far = 3 * TERM_JUMP_MAX + 8
    for found in (aged(7), joining_state()):
        cluster = Cluster(states={1: aged(7), 2: aged(7), 3: found})
        for _ in range(3):
            with pytest.raises(TermJumpError):
                cluster.nodes[3].replica.receive(append(1, 3, far))
            assert cluster.state(3).term == found.hard_state.term
            pass_a_window(cluster, 3)
        cluster.receive(3, append(1, 3, far))
        assert cluster.state(3).term == far


def test_a_quiet_window_begins_from_the_term_held() -> None:
    ceiling = Ceiling(10, jump_max=100, window=50, end=1000, now=7)
    assert (ceiling.limit, ceiling.renew_at) == (110, 57)
    assert not ceiling.refuses(110)
    assert ceiling.refuses(111)
    ceiling.renew(11, now=57)
    assert (ceiling.limit, ceiling.renew_at) == (210, 107)
    ceiling.renew(11, now=107)
    assert ceiling.limit == 111


def test_no_bound_reaches_the_end() -> None:
    ceiling = Ceiling(950, jump_max=100, window=50, end=1000, now=0)
    assert ceiling.limit == 999
    assert ceiling.refuses(1000)
    ceiling.renew(999, now=50)
    assert ceiling.limit == 999


def test_no_node_campaigns_for_the_end_and_the_last_term_works() -> None:
    cluster = led(states={node: aged(TERM_END - 2) for node in (1, 2, 3)})
    assert cluster.state(1).term == TERM_END - 1
    cluster.replicate(1, ["a"])
    assert cluster.state(1).commit == 1
    cluster.receive(2, campaign_now(1, 2, TERM_END - 1))
    assert cluster.role(2) is Role.FOLLOWER
    cluster.crash(1)
    cluster.tick_all(10 * ELECTION_TICKS)
    for node in (2, 3):
        assert (cluster.role(node), cluster.state(node).term) == (Role.FOLLOWER, TERM_END - 1)


def test_an_echo_of_a_round_that_never_began_confirms_no_read(cluster: Cluster) -> None:
    state = cluster.state(1)
    with pytest.raises(PeerProtocolError, match="echoes round"):
        cluster.nodes[1].replica.receive(append_reply(2, 1, state.term, round_id=state.round + 1))
    cluster.drop()
    cluster.read(1, 7)
    assert cluster.nodes[1].reads == []


def test_the_error_says_what_to_look_at_and_pickles() -> None:
    error = pickle.loads(pickle.dumps(TermJumpError(3, 1 << 62, 99)))
    assert (error.peer, error.term, error.limit) == (3, 1 << 62, 99)
    assert "term 4611686018427387904 is too far ahead, at most 99 is taken" in str(error)
    assert "peer port" in str(error)
    assert error.code == "raft.term_jump"
