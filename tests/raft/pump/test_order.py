"""The order of the pump's work, also when one turn brings several inputs."""

from __future__ import annotations

import pytest

from raft.errors import CompactionRefusedError
from raft.messages import AppendRequest, Configuration, ConfigurationAt, Refusal
from raft.rules import snapshot
from raft.rules.membership import Change, ChangeKind
from tests.raft.builders import append, append_reply, payload_of, send, vote_reply
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led


def test_hard_state_truncation_write_and_sync_in_this_order(cluster: Cluster) -> None:
    cluster.isolate(1)
    cluster.propose(1, "lost")
    log = cluster.nodes[1].log
    log.operations.clear()
    send(cluster, append(2, 1, 3, prev=(0, 1), terms=[2, 3]))

    assert log.operations == ["hard_state 3/0", "truncate 1", "write 1..2", "sync"]


def test_own_entry_of_the_same_turn_is_written_before_it_is_cut_off(cluster: Cluster) -> None:
    """A change is proposed and, before the turn ends, a new leader replaces it."""
    replica = cluster.nodes[1].replica
    replica.propose_change(Change(ChangeKind.REMOVE, 3))
    message = append(2, 1, 3, prev=(0, 1), terms=[3])

    replica.receive(message, payload_of(message))
    cluster.settle(1)

    assert cluster.nodes[1].log.terms() == [1, 3]
    assert cluster.state(1).voters == (1, 2, 3)


def test_appends_of_the_same_turn_are_read_before_they_are_cut_off(cluster: Cluster) -> None:
    cluster.isolate(3)
    for body in "abc":
        cluster.propose(1, body)
    cluster.drop()
    replica = cluster.nodes[1].replica
    refusal = append_reply(
        2, 1, 1, refusal=Refusal.NO_MATCH, refused_prev=3, hint_last=0, hint_runs=((0, 1),)
    )
    replica.receive(refusal)
    message = append(2, 1, 3, prev=(0, 1), terms=[3])

    replica.receive(message, payload_of(message))
    cluster.settle(1)

    sent = [o for o in cluster.net if isinstance(o.message, AppendRequest)]
    assert [o.message.hi for o in sent if isinstance(o.message, AppendRequest)] == [4]
    bodies = [entry.body for entry in sent[0].payload]  # type: ignore[attr-defined]
    assert bodies == ["a", "b", "c"]


def test_no_op_of_the_same_turn_precedes_proposals() -> None:
    cluster = Cluster()
    cluster.tick(1, ELECTION_TICKS + 1)
    cluster.receive(1, vote_reply(2, 1, 0, vote_term=1, pre=True))
    replica = cluster.nodes[1].replica
    replica.receive(vote_reply(2, 1, 1))

    assert replica.propose("first") == (1, 1)
    cluster.settle(1)

    assert [entry.body for entry in cluster.nodes[1].log.entries] == [None, "first"]


def test_sync_flag_tells_what_the_page_cache_may_not_hold() -> None:
    cluster = Cluster(voters=(1,))
    replica = cluster.nodes[1].replica
    for _ in range(ELECTION_TICKS + 1):
        replica.tick()
    vote = replica.pump()
    assert (vote.flush, vote.must_sync) == (1, True)
    replica.on_durable(1)
    no_op = replica.pump()
    assert (no_op.flush, no_op.must_sync) == (2, False)


def test_a_sync_report_covers_earlier_tickets() -> None:
    cluster = led(voters=(1,))
    cluster.nodes[1].syncs_at_once = False
    for body in "abc":
        cluster.propose(1, body)
    assert len(cluster.nodes[1].replica.flushes) == 3

    cluster.nodes[1].replica.on_durable(cluster.nodes[1].tickets[-1])
    cluster.settle(1)

    assert cluster.nodes[1].applied == ["a", "b", "c"]
    cluster.nodes[1].replica.on_durable(cluster.nodes[1].tickets[0])
    assert len(cluster.nodes[1].replica.flushes) == 0


def test_ticket_never_given_out_is_our_bug() -> None:
    cluster = Cluster()
    with pytest.raises(AssertionError, match="never given out"):
        cluster.nodes[1].replica.on_durable(5)


def test_joiner_may_lose_the_entry_that_told_it_of_the_cluster() -> None:
    cluster = Cluster()
    cluster.start_joining(4)
    brought = ConfigurationAt(1, Configuration((1, 2, 3), (4,)))
    send(cluster, append(1, 4, 1, terms=[1, 1], configurations=(brought,), commit=0))
    assert cluster.state(4).learners == (4,)
    with pytest.raises(CompactionRefusedError):
        snapshot.meta_at(cluster.nodes[4].core.state, 0)

    send(cluster, append(2, 4, 2, prev=(0, 1), terms=[2]))

    assert (cluster.state(4).voters, cluster.state(4).learners) == ((), ())
    cluster.tick(4, 5 * HEARTBEAT_TICKS * ELECTION_TICKS)
    assert cluster.state(4).term == 2

    # Nor is there a configuration to lose when the entry before goes as well.
    send(cluster, append(3, 4, 3, prev=(0, 1), terms=[3]))
    assert cluster.nodes[4].log.terms() == [1, 3]
    assert cluster.state(4).voters == ()
