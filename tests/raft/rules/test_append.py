"""Rules R09 to R16: what a follower accepts, keeps, drops and commits; what a leader may count."""

from __future__ import annotations

import pytest

from raft.errors import PeerProtocolError
from raft.messages import NO_INDEX, AppendReply, AppendRequest, Refusal, Standing
from raft.ready import InitialState
from raft.rules.follower import truncate_from
from tests.raft.builders import append, append_reply, payload_of, send
from tests.raft.cluster import Cluster, state_of


def follower(terms: list[int], *, term: int = 5, commit: int = NO_INDEX) -> Cluster:
    return Cluster(states={2: state_of(terms, term=term, commit=commit)})


def receive(cluster: Cluster, message: AppendRequest) -> AppendReply:
    """Hand an append to node 2 and return its last answer."""
    cluster.receive(2, message, payload_of(message))
    reply = cluster.sent[-1]
    assert isinstance(reply, AppendReply)
    return reply


def compacted(base: tuple[int, int], count: int = 2) -> InitialState:
    """Return a log of `count` entries of term 3 behind a snapshot at `base`."""
    whole = state_of([1], term=5)
    return whole._replace(
        base_index=base[0],
        base_term=base[1],
        last_index=base[0] + count,
        runs=((base[0] + 1, 3),),
        applied=base[0],
        commit=base[0],
    )


def test_prev_below_compaction_is_not_zero() -> None:
    cluster = Cluster(states={2: compacted((9, 2))})
    # A forged or confused sender claims term 0 at a compacted index, where nothing is known.
    reply = receive(cluster, append(1, 2, 5, prev=(4, 0), terms=[2, 2, 2, 2, 2, 5, 5, 5, 5]))

    assert cluster.state(2).log.last_index == 11
    assert cluster.nodes[2].log.terms() == [3, 3]
    assert (reply.refusal, reply.match) == (Refusal.NONE, 9), "says what is committed, no more"


def test_prev_at_the_compaction_point_is_compared() -> None:
    cluster = Cluster(states={2: compacted((9, 2))})

    assert receive(cluster, append(1, 2, 5, prev=(9, 2), terms=[3])).match == 10
    reply = receive(cluster, append(1, 2, 5, prev=(9, 1), terms=[5]))
    assert reply.standing is Standing.DIVERGED, "what a snapshot covers is committed"
    assert reply.match == NO_INDEX


@pytest.mark.parametrize("prev", [(2, 1), (2, 4), (3, 3), (9, 3)])
def test_append_without_matching_prev_is_refused(prev: tuple[int, int]) -> None:
    cluster = follower([1, 1, 3])

    reply = receive(cluster, append(1, 2, 5, prev=prev, terms=[5], commit=9))

    assert (reply.refusal, reply.refused_prev) == (Refusal.NO_MATCH, prev[0])
    assert (cluster.state(2).log.last_index, cluster.state(2).commit) == (2, NO_INDEX)


def test_refusal_is_bounded() -> None:
    cluster = follower(list(range(1, 21)), term=30)

    reply = receive(cluster, append(1, 2, 30, prev=(19, 25)))

    assert len(reply.hint_runs) == 8
    assert reply.hint_runs[-1] == (19, 20)


def test_a_new_leader_hears_of_the_sync_of_what_an_earlier_one_sent() -> None:
    """Nothing is written for the new leader, and its ack has to wait for the disk all the same."""
    cluster = follower([1])
    cluster.nodes[2].syncs_at_once = False
    for leader, term in ((1, 5), (3, 6)):
        send(cluster, append(leader, 2, term, prev=(0, 1), terms=[5]))
    assert not any(isinstance(m, AppendReply) and m.match == 1 for m in cluster.sent)

    cluster.sync(2)

    reply = cluster.sent[-1]
    assert isinstance(reply, AppendReply)
    assert (reply.to, reply.term, reply.match) == (3, 6, 1)


def test_conflict_is_cut_at_the_first_difference() -> None:
    cluster = follower([1, 2, 2, 3, 3])

    reply = receive(cluster, append(1, 2, 5, prev=(0, 1), terms=[2, 2, 4, 5]))

    assert cluster.nodes[2].log.terms() == [1, 2, 2, 4, 5]
    assert "truncate 3" in cluster.nodes[2].log.operations
    assert "write 3..4" in cluster.nodes[2].log.operations
    assert reply.match == 4


def test_only_missing_entries_are_written() -> None:
    cluster = follower([1, 2])

    receive(cluster, append(1, 2, 5, prev=(-1, 0), terms=[1, 2, 5]))

    assert cluster.nodes[2].log.operations[-2:] == ["write 2..2", "sync"]


def test_truncating_committed_stops_node() -> None:
    """R11: the second guard, behind the comparison with the leader."""
    cluster = follower([1, 2, 2], commit=1)

    with pytest.raises(AssertionError, match="asked to drop 1, committed through 1"):
        truncate_from(cluster.state(2), 1)


def test_commit_bounded_by_verified_index() -> None:
    """An own tail beyond what the message verified may differ from the leader's log."""
    cluster = follower([1, 2, 2, 2])

    receive(cluster, append(1, 2, 5, prev=(0, 1), commit=9))
    assert cluster.state(2).commit == 0
    receive(cluster, append(1, 2, 5, prev=(0, 1), terms=[2], commit=9))
    assert cluster.state(2).commit == 1
    receive(cluster, append(1, 2, 5, prev=(1, 2), terms=[5], commit=1))
    assert cluster.state(2).commit == 1
    receive(cluster, append(1, 2, 5, prev=(-1, 0), commit=9))
    assert cluster.state(2).commit == 1, "a check on the empty prefix verifies nothing"


def test_commit_never_goes_back() -> None:
    cluster = follower([1, 2, 2], commit=2)

    receive(cluster, append(1, 2, 5, prev=(2, 2), commit=0))

    assert cluster.state(2).commit == 2


@pytest.mark.parametrize(
    "change",
    [
        {"hi": 0},
        {"runs": ()},
        {"runs": ((2, 5),)},
        {"runs": ((1, 5), (1, 6))},
        {"runs": ((1, 5), (2, 4))},
        {"runs": ((1, 5), (2, 5))},
        {"runs": ((1, 6),)},
        {"runs": ((1, 4), (7, 5))},
        {"prev_term": 5, "runs": ((1, 4),)},
        {"prev_index": -2},
    ],
)
def test_impossible_append_is_a_protocol_error(change: dict[str, object]) -> None:
    cluster = follower([1])
    message = append(1, 2, 5, prev=(0, 1), terms=[5, 5])
    message = message._replace(**change)  # type: ignore[arg-type]

    with pytest.raises(PeerProtocolError):
        cluster.nodes[2].core.step(message)

    assert (cluster.state(2).leader, cluster.state(2).log.last_index) == (0, 0)


def test_payload_must_cover_the_range() -> None:
    cluster = follower([1])
    message = append(1, 2, 5, prev=(0, 1), terms=[5, 5])

    for payload in (None, (payload_of(message) or ())[:1]):
        with pytest.raises(PeerProtocolError):
            cluster.receive(2, message, payload)

    assert cluster.state(2).log.last_index == 0


# --- Rules R13 to R16: what a leader may count ---


@pytest.mark.parametrize("is_lean", [True, False])
def test_match_never_goes_back(is_lean: bool) -> None:
    cluster = Cluster()
    cluster.nodes[1].replica.is_lean = is_lean
    cluster.elect(1)
    cluster.replicate(1, "abc")
    assert cluster.state(1).progress[2].match == 3

    cluster.receive(1, append_reply(2, 1, 1, match=1))

    assert cluster.state(1).progress[2].match == 3


def test_ack_beyond_the_log_is_a_protocol_error(cluster: Cluster) -> None:
    with pytest.raises(PeerProtocolError, match="acked 99"):
        cluster.receive(1, append_reply(2, 1, 1, match=99))

    assert cluster.state(1).progress[2].match == 0


def test_late_sync_report_for_overwritten_entry() -> None:
    """The core ignores a report that names another term."""
    cluster = Cluster(states={2: state_of([1], term=5)})
    cluster.nodes[2].syncs_at_once = False
    core = cluster.nodes[2].core
    send(cluster, append(1, 2, 5, prev=(0, 1), terms=[5, 5]))
    send(cluster, append(3, 2, 6, prev=(0, 1), terms=[6]))
    assert core.state.synced == 0

    core.stable_to(1, 5)
    assert core.state.synced == 0
    core.stable_to(2, 5)
    assert core.state.synced == 0
    core.stable_to(1, 6)
    assert core.state.synced == 1
