"""Rules R06 to R08: what a higher and a lower term in a message do, what resets the timer."""

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
    vote_request,
)
from tests.raft.cluster import ELECTION_TICKS, Cluster, config_of, state_of

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


# --- Rule R08: what resets the election timer, and what must not ---


ELAPSED = 5
TERM = 5

RESETTING: dict[str, Message] = {
    "granted vote": vote_request(3, 1, TERM + 1, last=(2, 2)),
    "append that matches": append(3, 1, TERM, prev=(2, 2)),
    "append with entries": append(3, 1, TERM, prev=(2, 2), terms=[5]),
    "append that does not match": append(3, 1, TERM, prev=(9, 4)),
    "snapshot": install(3, 1, TERM, META),
}
IDLE: dict[str, Message] = {
    "refused vote, old log": vote_request(3, 1, TERM + 1, last=(0, 1)),
    "refused vote, old term": vote_request(3, 1, TERM - 1, last=(9, 4)),
    "granted pre-vote": vote_request(3, 1, TERM + 1, last=(2, 2), pre=True),
    "refused pre-vote": vote_request(3, 1, TERM + 1, last=(0, 1), pre=True),
    "append of an old term": append(3, 1, TERM - 1, prev=(2, 2)),
    "snapshot of an old term": install(3, 1, TERM - 1, META),
    "stray ack": append_reply(3, 1, TERM, match=2),
    "ack of a higher term": append_reply(3, 1, TERM + 1, match=2),
    "stray vote": vote_reply(3, 1, TERM),
    "refused vote of a higher term": vote_reply(3, 1, TERM + 2, vote_term=TERM, granted=False),
    "campaign order of an old term": campaign_now(3, 1, TERM - 1),
}


def deliver_late(message: Message) -> int:
    """Hand `message` to a follower ELAPSED ticks after start; return when its timer started."""
    cluster = Cluster(states={1: state_of([1, 2, 2], term=TERM)})
    cluster.tick(1, ELAPSED)
    has_entries = message in (RESETTING["append with entries"],)
    payload = payload_of(message) if has_entries else None  # type: ignore[arg-type]
    cluster.receive(1, message, payload)
    assert cluster.role(1) is Role.FOLLOWER
    return cluster.state(1).timer_start


@pytest.mark.parametrize("kind", list(RESETTING))
def test_only_three_things_reset_timer(kind: str) -> None:
    """A granted vote, an append and a snapshot of the current term. A mismatch is a valid
    append."""
    assert deliver_late(RESETTING[kind]) == ELAPSED


@pytest.mark.parametrize("kind", list(IDLE))
def test_idle_messages_do_not_reset_timer(kind: str) -> None:
    assert deliver_late(IDLE[kind]) == 0


def test_time_out_is_drawn_from_the_configured_range() -> None:
    drawn: set[int] = set()
    cluster = Cluster(voters=(1, 2, 3))
    for extra in range(ELECTION_TICKS + 3):
        cluster.extra[1] = extra
        cluster.start(1, state_of([]))
        drawn.add(cluster.state(1).timeout_ticks)
    assert drawn == set(range(ELECTION_TICKS, 2 * ELECTION_TICKS + 1))


def test_time_out_is_redrawn_at_each_campaign() -> None:
    """Else two nodes that tie once would tie for ever (R25)."""
    cluster = Cluster()
    state = cluster.state(1)
    draws: list[tuple[int, int]] = []

    class Counting(type(state.random)):  # type: ignore[misc]
        def randint(self, a: int, b: int) -> int:
            draws.append((a, b))
            return a + len(draws)

    state.random = Counting(1)
    cluster.tick(1, 3 * ELECTION_TICKS)
    assert len(draws) >= 2
    assert state.timeout_ticks == ELECTION_TICKS + len(draws)


def test_a_leader_stepping_down_gets_a_whole_time_out(cluster: Cluster) -> None:
    cluster.tick_all(4 * ELECTION_TICKS)
    assert cluster.role(1) is Role.LEADER

    cluster.receive(1, append_reply(2, 1, 9))

    state = cluster.state(1)
    assert (state.role, state.timer_start) == (Role.FOLLOWER, state.now)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"heartbeat_ticks": 10}, "heartbeat_ticks"),
        ({"heartbeat_ticks": 0}, "heartbeat_ticks"),
        ({"election_ticks_max": 10}, "lock step"),
        ({"group": ""}, "group"),
        ({"node_id": 0}, "node_id"),
        ({"read_count_max": 0}, "read_count_max"),
        ({"transfer_lag_entry_count_max": -1}, "transfer_lag"),
        ({"clock_drift_percent_max": 100}, "clock_drift"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        config_of(1, **settings)
