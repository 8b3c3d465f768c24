"""Design 4.5: nodes whose unsynced writes may be gone neither vote nor count until they caught
up."""

from __future__ import annotations

from typing import Any

import pytest

from raft.messages import NO_INDEX, Refusal, Standing
from raft.ready import recovering_state
from raft.rules import recovery
from raft.transitions import Role
from tests.raft.builders import append_reply
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led, state_of


def async_cluster(count: int = 3, **settings: Any) -> Cluster:
    """Return a cluster that acks from the page cache: entries are reported durable, not synced."""
    return led(voters=range(1, count + 1), **settings)


def lose_power(cluster: Cluster, node: int, *, keep: int) -> None:
    """Cut a node's power: entries from index `keep` on were acked from the cache and are gone."""
    target = cluster.nodes[node]
    cluster.crash(node, keep_unsynced=True)
    if target.log.last_index >= keep:
        target.log.truncate_from(keep)
        target.log.sync()


def test_each_loss_of_power_is_a_new_incarnation() -> None:
    once = recovering_state(state_of([1], term=3, vote=2))
    twice = recovering_state(once)
    assert once.hard_state == (3, 2, Standing.RECOVERING, 1)
    assert twice.hard_state == (3, 2, Standing.RECOVERING, 2)


def test_standing_survives_a_restart_within_the_same_boot() -> None:
    cluster = Cluster(states={2: recovering_state(state_of([1, 1]))})
    cluster.reboot(2)
    assert cluster.state(2).standing is Standing.RECOVERING


@pytest.mark.parametrize("last", ["own_sync", "ack"])
def test_a_copy_in_doubt_completes_no_quorum_whoever_comes_last(last: str) -> None:
    cluster = async_cluster(5)
    cluster.nodes[1].syncs_at_once = False
    cluster.propose(1, "a")
    cluster.drop()
    doubt = append_reply(3, 1, 1, match=1, standing=Standing.RECOVERING, incarnation=1)
    cluster.receive(1, doubt)
    assert cluster.state(1).progress[3].match == 1

    if last == "own_sync":
        cluster.receive(1, append_reply(2, 1, 1, match=1))
        cluster.sync(1)
    else:
        cluster.sync(1)
        cluster.receive(1, append_reply(2, 1, 1, match=1))

    assert cluster.state(1).commit == 0, "two copies of five"
    cluster.receive(1, append_reply(4, 1, 1, match=1))
    assert cluster.state(1).commit == 1


def test_the_refusal_that_tells_of_a_loss_tells_also_where_to_go_on() -> None:
    """It answers an older append than the newest one on its way."""
    cluster = async_cluster()
    cluster.replicate(1, "abcd")
    cluster.isolate(3)
    cluster.receive(
        1,
        append_reply(
            3,
            1,
            1,
            refusal=Refusal.NO_MATCH,
            refused_prev=3,
            hint_last=1,
            hint_runs=((0, 1),),
            standing=Standing.RECOVERING,
            incarnation=1,
        ),
    )
    assert (cluster.state(1).progress[3].match, cluster.state(1).progress[3].next) == (NO_INDEX, 2)


def test_ack_given_before_the_loss_is_not_believed_after_it() -> None:
    """Five nodes: the late ack of node 3 would complete a quorum with a copy that is gone."""
    cluster = async_cluster(5)
    for node in (2, 4, 5):
        cluster.isolate(node)
    cluster.propose(1, "a")
    cluster.deliver(link=(1, 3))
    late = cluster.take(object, to=1)
    assert len(late) == 1
    lose_power(cluster, 3, keep=1)
    cluster.restart(3, recovering=True)
    cluster.tick(1, HEARTBEAT_TICKS)
    cluster.deliver(count=2)
    assert cluster.state(1).progress[3].incarnation == 1
    cluster.drop()

    cluster.receive(1, late[0].message)
    assert cluster.state(1).progress[3].match < 1

    cluster.receive(1, append_reply(2, 1, 1, match=1))
    assert cluster.state(1).commit == 0


def test_no_admission_before_an_own_term_commit() -> None:
    """Until then the new leader's commit index may be lower than what a quorum once acked."""
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    cluster.tick(1, ELECTION_TICKS + 1)
    while cluster.role(1) is not Role.LEADER:
        assert cluster.deliver(count=1) == 1
    cluster.drop()
    doubt = {"standing": Standing.RECOVERING, "incarnation": 1}

    cluster.receive(1, append_reply(5, 1, 1, match=0, **doubt))  # type: ignore[arg-type]
    assert cluster.state(1).progress[5].admitted == 0

    for node in (2, 3):
        cluster.receive(1, append_reply(node, 1, 1, match=0))
    assert cluster.state(1).commit == 0
    cluster.receive(1, append_reply(5, 1, 1, match=0, **doubt))  # type: ignore[arg-type]
    assert cluster.state(1).progress[5].admitted == 1


def power_loss_of_all(keeps: dict[int, int], **settings: Any) -> Cluster:
    cluster = async_cluster(len(keeps), **settings)
    cluster.replicate(1, "abcd")
    cluster.tick_all(HEARTBEAT_TICKS)
    for node, keep in keeps.items():
        lose_power(cluster, node, keep=keep)
        cluster.nodes[node].applied.clear()
    return cluster


def test_power_lost_again_under_the_leader_of_a_recovery_election() -> None:
    """What that leader began with is all there is only until it commits more: node 3 acked with it
    what node 1 never got, and must not count before it has that again."""
    cluster = power_loss_of_all({1: 2, 2: 4, 3: 3}, message_entry_count_max=1)
    for node in (1, 2, 3):
        cluster.restart(node, recovering=True)
    cluster.tick_all(6 * ELECTION_TICKS)
    assert cluster.leaders() == [2]
    cluster.isolate(1)
    cluster.replicate(2, "xyz")
    acked = cluster.state(2).commit
    assert acked == cluster.state(2).log.last_index
    lose_power(cluster, 3, keep=acked - 2)
    cluster.restart(3, recovering=True)
    progress = cluster.state(2).progress[3]

    cluster.tick(2, HEARTBEAT_TICKS)
    while progress.incarnation < 2 or progress.match == NO_INDEX:
        assert cluster.deliver(count=1) == 1
    assert cluster.state(2).own_term_first <= progress.match < acked
    assert cluster.deliver(count=1) == 1  # What the leader sent upon that ack.
    cluster.crash(2)
    cluster.drop()
    cluster.heal()
    cluster.tick_all(10 * ELECTION_TICKS)
    assert cluster.leaders() == [], "neither of the two has all that was acked"

    cluster.restart(2)
    cluster.tick_all(6 * ELECTION_TICKS)
    assert cluster.leaders() == [2]
    assert [cluster.nodes[node].applied for node in (1, 2, 3)] == [list("abcxyz")] * 3
    assert [cluster.state(node).standing for node in (1, 2, 3)] == [Standing.FULL] * 3


def test_loss_may_reach_below_the_end_of_a_tail_that_was_replaced() -> None:
    """Nodes 1 and 3 acked an entry of term 2 at index 2 and lost it. Node 2 never got it, and its
    tail of term 1, which nobody acked, is longer: it wins, and must not count from its end."""
    short, long = state_of([1, 1], term=2, commit=1), state_of([1, 1, 1, 1], term=2, commit=1)
    cluster = Cluster(
        states={1: recovering_state(short), 2: long, 3: recovering_state(short)},
    )

    cluster.tick_all(6 * ELECTION_TICKS)

    assert cluster.leaders() == [2]
    assert cluster.nodes[2].losses == [2]


def test_accepted_loss_counts_from_the_commit_index_if_a_newer_term_may_be_lost() -> None:
    recovering = recovering_state(state_of([1, 1, 1, 1], term=2, commit=1))
    cluster = Cluster(states={1: recovering})
    recovery.accept_loss(cluster.nodes[1].replica.core.state)
    cluster.settle(1)
    assert cluster.nodes[1].losses == [2]


def test_check_quorum_does_not_count_nodes_in_doubt() -> None:
    cluster = async_cluster()
    cluster.isolate(2)
    for _ in range(2 * ELECTION_TICKS):
        cluster.tick(1)
        cluster.drop()
        if cluster.role(1) is Role.LEADER:
            doubt = append_reply(3, 1, 1, standing=Standing.JOINING, incarnation=1)
            cluster.receive(1, doubt)

    assert cluster.role(1) is Role.FOLLOWER
