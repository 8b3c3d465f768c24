"""Rules R06 and R07: what a higher and a lower term in a message do."""

from __future__ import annotations

import pytest

from raft.messages import NO_INDEX, NO_NODE, AppendReply, Message, Refusal
from raft.transitions import Role
from tests.raft.builders import (
    META,
    append,
    append_reply,
    campaign_now,
    install,
    messages_of,
    payload_of,
    vote_reply,
)
from tests.raft.cluster import ELECTION_TICKS, Cluster, state_of

HIGH = 9

HIGHER = messages_of(HIGH)


def cluster_with(role: Role) -> Cluster:
    """Return a cluster whose node 1 has this role in a low term and hears no leader."""
    cluster = Cluster()
    if role is Role.LEADER:
        cluster.elect(1)
    elif role is Role.FOLLOWER:
        cluster.elect(2)
        cluster.state(1).contact_tick = -1000
    else:
        cluster.tick(1, ELECTION_TICKS + 1)
        if role is Role.CANDIDATE:
            cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))
    assert cluster.role(1) is role
    return cluster


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("kind", list(HIGHER))
def test_higher_term_in_every_message_kind(kind: str, role: Role) -> None:
    cluster = cluster_with(role)

    cluster.receive(1, HIGHER[kind])

    state = cluster.state(1)
    if kind == "vote request" and role is Role.LEADER:
        # The one exception, leader stickiness (R22): a leader does not help a campaign.
        assert (state.role, state.term) == (Role.LEADER, 1)
        return
    if kind == "campaign now":
        # Follower of the new term for a moment, then sent into the next one by its leader.
        assert Role.FOLLOWER in [change.role for change in cluster.nodes[1].role_changes]
        assert (state.role, state.term) == (Role.CANDIDATE, HIGH + 1)
        return
    assert state.term == HIGH
    assert state.role is Role.FOLLOWER
    assert state.vote == (3 if kind == "vote request" else NO_NODE)
    assert state.leader == (3 if kind in ("append", "snapshot") else NO_NODE)


LOWER: dict[str, Message] = {
    "append": append(3, 1, 1, prev=(0, 1), terms=[1, 1], commit=2),
    "truncating append": append(3, 1, 1, terms=[1], commit=0),
    "heartbeat": append(3, 1, 1, prev=(0, 1), commit=0),
    "snapshot": install(3, 1, 1, META),
}


@pytest.mark.parametrize("kind", list(LOWER))
def test_old_leader_requests_change_nothing(kind: str) -> None:
    cluster = Cluster(states={1: state_of([1, 2, 2], term=5, vote=2)})
    cluster.tick(1, 4)
    state = cluster.state(1)
    before = (state.log.all_runs(), state.timer_start, state.commit, state.contact_tick)

    message = LOWER[kind]
    payload = payload_of(message) if kind != "snapshot" else None  # type: ignore[arg-type]
    cluster.receive(1, message, payload)

    assert before == (state.log.all_runs(), state.timer_start, state.commit, state.contact_tick)
    assert (state.term, state.vote, state.leader) == (5, 2, NO_NODE)
    assert cluster.nodes[1].log.terms() == [1, 2, 2]
    reply = cluster.sent[-1]
    assert isinstance(reply, AppendReply)
    assert (reply.term, reply.refusal, reply.match) == (5, Refusal.OLD_TERM, NO_INDEX)


@pytest.mark.parametrize(
    "message",
    [vote_reply(3, 1, 0), append_reply(3, 1, 0, match=0), campaign_now(3, 1, 0)],
)
def test_old_replies_are_dropped_in_silence(message: Message) -> None:
    cluster = Cluster()
    cluster.elect(2)
    before = (cluster.role(1), cluster.state(1).term, len(cluster.sent))

    cluster.receive(1, message)

    assert before == (cluster.role(1), cluster.state(1).term, len(cluster.sent))
