"""What a node does whose committed log a leader contradicts: it keeps all, and stands aside."""

from __future__ import annotations

import pytest

from raft.ceiling import TERM_END
from raft.errors import ForeignChainError, RecoveryRefusedError, TermJumpError
from raft.messages import (
    NO_INDEX,
    AppendReply,
    AppendRequest,
    Configuration,
    ConfigurationAt,
    Refusal,
    SnapshotMeta,
    Standing,
    VoteReply,
)
from raft.ready import InitialState
from raft.rules import recovery
from raft.rules.membership import ChangeKind
from tests.raft.builders import append, append_reply, install, send, vote_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led, state_of


def rich(*, commit: int = 3, base: int = NO_INDEX) -> Cluster:
    """Return a cluster whose node 2 holds four entries, committed through `commit`."""
    initial = state_of([1, 2, 2, 2], term=2, commit=commit)
    if base > NO_INDEX:
        initial = cut(initial, base)
    return Cluster(states={2: initial})


def cut(initial: InitialState, base: int) -> InitialState:
    runs = ((base + 1, 2),) if base < initial.last_index else ()
    return initial._replace(base_index=base, base_term=2, runs=runs, applied=base)


def last_ack(cluster: Cluster) -> AppendReply:
    reply = cluster.sent[-1]
    assert isinstance(reply, AppendReply)
    return reply


@pytest.mark.parametrize(
    ("base", "prev", "terms"),
    [
        (NO_INDEX, (0, 1), [3]),  # An entry differs.
        (NO_INDEX, (1, 2), [2, 3]),  # A later one of the message does.
        (NO_INDEX, (2, 1), []),  # The entry before differs.
        (NO_INDEX, (3, 1), [3]),  # The last committed one does.
        (NO_INDEX, (-1, 0), [1, 3, 3]),
        (2, (0, 1), [1, 1, 3]),  # What was cut is not known, what is left differs.
        (2, (0, 1), [1, 1, 1]),  # The last one that was cut is known by its term.
        (2, (2, 1), [3]),
    ],
)
def test_a_leader_without_what_is_committed_here(
    base: int, prev: tuple[int, int], terms: list[int]
) -> None:
    cluster = rich(base=base)
    before = cluster.nodes[2].log.terms()
    send(cluster, append(1, 2, 5, prev=prev, terms=terms, commit=9))

    reply = last_ack(cluster)
    assert (reply.match, reply.standing, reply.incarnation) == (NO_INDEX, Standing.DIVERGED, 1)
    assert cluster.nodes[2].log.terms() == before
    assert cluster.state(2).commit == 3
    assert cluster.state(2).divergent_peers == {1}
    assert cluster.nodes[2].log.hard_state.standing is Standing.DIVERGED, "it is durable"


@pytest.mark.parametrize(
    ("commit", "base", "prev", "terms"),
    [
        (3, NO_INDEX, (1, 2), [2, 2, 3]),  # All that is committed is the same.
        (3, NO_INDEX, (3, 2), [3]),
        (3, NO_INDEX, (-1, 0), [1, 2, 2, 2, 3]),
        (1, NO_INDEX, (1, 2), [3]),  # What differs is not committed.
        (1, NO_INDEX, (2, 3), [3]),
        (3, 2, (0, 1), [1, 2, 2, 3]),
        (3, 3, (0, 1), [1, 2, 2, 3]),
        (3, 2, (0, 1), [1]),  # Ends where only entries were that are cut.
    ],
)
def test_a_leader_that_has_all_of_it_is_obeyed(
    commit: int, base: int, prev: tuple[int, int], terms: list[int]
) -> None:
    cluster = rich(commit=commit, base=base)
    send(cluster, append(1, 2, 5, prev=prev, terms=terms))

    assert last_ack(cluster).standing is Standing.FULL
    assert not cluster.state(2).divergent_peers


def snapshot(index: int, term: int) -> SnapshotMeta:
    return SnapshotMeta(index, term, ConfigurationAt(NO_INDEX, Configuration((1, 2, 3))))


def test_a_node_that_stands_aside_takes_no_snapshot_at_all() -> None:
    cluster = rich()
    send(cluster, append(1, 2, 5, prev=(0, 1), terms=[3]))

    cluster.receive(2, install(1, 2, 5, snapshot(20, 5)), ())

    assert cluster.nodes[2].log.terms() == [1, 2, 2, 2]
    assert last_ack(cluster).match == NO_INDEX


@pytest.mark.parametrize(
    ("term", "standing", "match"), [(1, Standing.DIVERGED, NO_INDEX), (2, Standing.FULL, 3)]
)
def test_a_snapshot_is_acked_unless_it_is_of_another_history(
    term: int, standing: Standing, match: int
) -> None:
    cluster = rich()

    cluster.receive(2, install(1, 2, 5, snapshot(2, term)), ())

    assert (last_ack(cluster).standing, last_ack(cluster).match) == (standing, match)
    assert cluster.nodes[2].log.terms() == [1, 2, 2, 2]


def stood_aside() -> Cluster:
    cluster = rich()
    send(cluster, append(1, 2, 5, prev=(0, 1), terms=[3]))
    cluster.sent.clear()
    return cluster


def test_a_divergent_node_takes_part_in_no_election() -> None:
    cluster = stood_aside()
    for _ in range(2):
        cluster.receive(2, vote_request(3, 2, 6, last=(9, 5), pre=True, transfer=True))
        cluster.tick(2, 3 * ELECTION_TICKS)
        cluster.receive(2, vote_request(3, 2, 7, last=(9, 5)))
        cluster.tick(2, 3 * ELECTION_TICKS)
        cluster.reboot(2)

    replies = [m for m in cluster.sent if isinstance(m, VoteReply)]
    assert len(replies) == 4
    assert not any(reply.granted for reply in replies)
    assert replies[1].refusal is Refusal.HISTORY_CONFLICT
    assert replies == [m for m in cluster.sent if m.sender == 2], "it never campaigns"


def test_no_admission_and_no_accepted_loss_ends_it() -> None:
    cluster = stood_aside()
    request = append(1, 2, 5, prev=(-1, 0))._replace(admitted=1)

    cluster.receive(2, request)
    with pytest.raises(RecoveryRefusedError):
        recovery.accept_loss(cluster.nodes[2].replica.core.state)
    cluster.nodes[2].replica.lose_memory(9)
    cluster.settle(2)

    assert cluster.state(2).standing is Standing.DIVERGED


def test_a_candidate_with_a_longer_log_gets_a_vote() -> None:
    cluster = rich()

    cluster.receive(2, vote_request(3, 2, 6, last=(4, 5)))

    assert cluster.state(2).vote == 3


def test_a_candidate_hears_of_it() -> None:
    cluster = Cluster()
    cluster.tick(1, 2 * ELECTION_TICKS)

    refused = vote_reply(2, 1, 0, vote_term=1, granted=False, pre=True)
    cluster.receive(1, refused._replace(refusal=Refusal.HISTORY_CONFLICT))

    assert cluster.state(1).divergent_peers == {2}
    assert not cluster.state(1).standing_refusals
    cluster.tick(1, 2 * ELECTION_TICKS)
    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))
    assert cluster.state(1).divergent_peers == set(), "it says so no more"


def divergent_ack(round_id: int = 0, *, incarnation: int = 1) -> AppendReply:
    return append_reply(
        3, 1, 1, match=NO_INDEX, standing=Standing.DIVERGED, incarnation=incarnation
    )._replace(round=round_id)


def test_a_leader_counts_it_for_nothing_and_sends_heartbeats_only(cluster: Cluster) -> None:
    cluster.deliver()
    cluster.isolate(2)
    cluster.receive(1, divergent_ack())
    cluster.propose(1, "a")
    cluster.read(1, 5)
    cluster.drop()
    cluster.sent.clear()

    cluster.tick(1, HEARTBEAT_TICKS + 1)
    cluster.receive(1, divergent_ack(round_id=cluster.state(1).round))

    to_it = cluster.appends_to(3)
    assert to_it
    assert all(message.hi == message.prev_index + 1 == 0 for message in to_it)
    assert cluster.state(1).divergent_peers == {3}
    assert not cluster.nodes[1].reads
    cluster.tick(1, 2 * ELECTION_TICKS)
    assert cluster.leaders() == []


def test_another_disk_under_the_number_ends_it_for_the_leader(cluster: Cluster) -> None:
    cluster.deliver()
    cluster.receive(1, divergent_ack())

    cluster.receive(1, append_reply(3, 1, 1, standing=Standing.JOINING, incarnation=9))
    cluster.receive(1, append_reply(3, 1, 1, match=0, standing=Standing.FULL, incarnation=9))

    assert not cluster.state(1).progress[3].is_divergent
    assert cluster.state(1).divergent_peers == set()


def test_a_removed_node_is_no_divergent_peer_any_more(cluster: Cluster) -> None:
    """A voter that refused it never leads, so nobody else would tell it."""
    cluster.deliver()
    for node in (1, 2):
        cluster.state(node).divergent_peers.add(3)

    cluster.change(1, ChangeKind.REMOVE, 3)
    cluster.deliver()

    assert [cluster.state(node).divergent_peers for node in (1, 2)] == [set(), set()]


# --- Two histories of one term, which the terms of their entries cannot tell apart ---


def restarted() -> Cluster:
    """Return a cluster whose node 1 led term 1, and has forgotten that."""
    cluster = led()
    cluster.replicate(1, "abc")
    cluster.reboot(1)
    cluster.sent.clear()
    return cluster


def history_of_another_leader(*, has_node_1: bool) -> Cluster:
    """Return a cluster in which node 3 leads term 1, and has just sent a heartbeat."""
    other = Cluster()
    other.isolate(1)
    other.elect(3)
    other.propose(3, "x")
    other.deliver()
    other.heal()
    other.tick(3, HEARTBEAT_TICKS)
    if has_node_1:
        other.deliver()
        other.tick(3, HEARTBEAT_TICKS)
    return other


@pytest.mark.parametrize("has_node_1", [True, False])
def test_the_leader_of_another_history_of_the_same_term(has_node_1: bool) -> None:
    """With the entries to be acked, and with nothing but the end of its log."""
    cluster = restarted()
    other = history_of_another_leader(has_node_1=has_node_1)
    [message, payload] = other.take(AppendRequest, to=1)[-1]
    assert isinstance(message, AppendRequest)
    assert (message.term, message.prev_index, message.hi) == (1, 1 if has_node_1 else -1, 2)

    with pytest.raises(ForeignChainError):
        cluster.receive(1, message, payload)
    assert not cluster.sent, "the connection is dropped, as if bytes had been changed on the way"
    cluster.receive(1, message, payload)

    reply = last_ack(cluster)
    assert (reply.match, reply.standing) == (NO_INDEX, Standing.DIVERGED)
    assert cluster.nodes[1].log.bodies() == ["a", "b", "c"]
    assert cluster.state(1).divergent_peers == {3}


@pytest.mark.parametrize("node", [1, 2])
def test_a_deposed_leader_of_another_history_decides_nothing(node: int) -> None:
    """Else the word of one that is cut off takes out who has everything, the leader included."""
    cluster = restarted()
    cluster.elect(2)
    cluster.deliver()
    other = history_of_another_leader(has_node_1=True)
    [message, payload] = other.take(AppendRequest, to=1)[-1]
    assert isinstance(message, AppendRequest)
    term = cluster.state(node).term
    assert message.term < term
    cluster.sent.clear()

    for _ in range(2):
        cluster.receive(node, message._replace(to=node), payload)

    assert (last_ack(cluster).refusal, last_ack(cluster).term) == (Refusal.OLD_TERM, term)
    assert last_ack(cluster).standing is Standing.FULL
    assert cluster.state(node).divergent_peers == set()


def test_an_absurd_term_of_another_history_changes_nothing() -> None:
    cluster = restarted()
    other = history_of_another_leader(has_node_1=True)
    [message, payload] = other.take(AppendRequest, to=1)[-1]
    assert isinstance(message, AppendRequest)

    for _ in range(3):
        with pytest.raises(TermJumpError):
            cluster.receive(1, message._replace(term=TERM_END - 1), payload)

    assert cluster.state(1).standing is Standing.FULL
    assert cluster.state(1).term == 1


def test_entries_equal_in_both_histories_are_acked() -> None:
    cluster = restarted()
    other = history_of_another_leader(has_node_1=False)
    [message, payload] = other.take(AppendRequest, to=1)[-1]
    assert isinstance(message, AppendRequest)
    assert isinstance(payload, tuple)

    cluster.receive(1, message._replace(hi=1), payload[:1])

    assert (last_ack(cluster).match, last_ack(cluster).standing) == (0, Standing.FULL)
