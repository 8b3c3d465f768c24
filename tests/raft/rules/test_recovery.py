"""Design 4.5: nodes whose memory is in doubt neither vote nor count until they hold what they may
once have acked."""

from __future__ import annotations

from typing import Any

import pytest

from raft.messages import NO_INDEX, NO_NODE, AppendReply, Refusal, Standing, VoteReply
from raft.ready import HardState, joining_state, recovering_state
from raft.rules import recovery
from raft.rules.membership import ChangeKind
from raft.transitions import Role
from tests.raft.builders import append, append_reply, vote_request
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


# --- Admission: when it holds what it may once have acked ---


def test_no_admission_before_the_target_is_reached() -> None:
    """It gets one entry per append, and stays in doubt until the leader's commit index of then."""
    cluster = led(message_entry_count_max=1, window_entry_count_max=1)
    for value in range(6):
        cluster.replicate(1, [value])
    cluster.beat(1, 2)
    target = cluster.state(1).commit
    cluster.crash(3)
    # Its disk lost everything, as a page cache may; what it acked was on the other two as well.
    cluster.nodes[3].log.entries.clear()
    cluster.nodes[3].log.sync()
    cluster.restart(3, recovering=True)
    state = cluster.state(3)
    assert (state.log.last_index, state.standing) == (-1, Standing.RECOVERING)

    in_doubt = set()
    for _ in range(200):
        if not cluster.deliver(count=1):
            cluster.tick(1)
        if cluster.state(3).standing is Standing.FULL:
            break
        in_doubt.add(cluster.state(3).log.last_index)

    assert cluster.state(3).standing is Standing.FULL
    assert cluster.state(3).log.last_index >= target
    assert in_doubt >= set(range(target)), "it was admitted before it held all of it"


def joined_learner() -> Cluster:
    """Return a cluster whose learner 4 came with an empty disk and has caught up."""
    cluster = led(learners=(4,))
    cluster.crash(4)
    cluster.start(4, joining_state(incarnation=100))
    for value in range(3):
        cluster.replicate(1, [value])
    cluster.beat(1, 2 * HEARTBEAT_TICKS)
    assert cluster.state(4).standing is Standing.FULL
    assert cluster.state(1).progress[4].match == cluster.state(1).log.last_index
    return cluster


def test_second_empty_disk_with_a_higher_number_is_known_as_another_one() -> None:
    """Nothing the first disk acked is believed of the second, which is filled from the start."""
    cluster = joined_learner()
    cluster.crash(4)
    cluster.start(4, joining_state(incarnation=101))
    old_ack = append_reply(4, 1, 1, match=3, incarnation=100)
    cluster.tick(1, HEARTBEAT_TICKS)
    cluster.deliver(link=(1, 4))
    cluster.deliver(link=(4, 1), count=1)
    progress = cluster.state(1).progress[4]
    assert (progress.incarnation, progress.match, progress.is_counted) == (101, NO_INDEX, False)

    cluster.receive(1, old_ack)
    assert progress.match == NO_INDEX, "an ack of the disk that is no more"

    cluster.beat(1, 2 * HEARTBEAT_TICKS)
    assert cluster.state(4).log.last_index == cluster.state(1).log.last_index
    assert cluster.state(4).standing is Standing.FULL


def test_second_empty_disk_with_the_same_number_is_taken_for_the_first() -> None:
    """Why the number must rise: the leader goes on believing acks of entries that are gone."""
    cluster = joined_learner()
    cluster.crash(4)
    cluster.start(4, joining_state(incarnation=100))
    believed = cluster.state(1).progress[4].match

    cluster.beat(1)

    assert cluster.state(1).progress[4].match == believed
    assert cluster.state(4).log.last_index < believed


def test_losses_of_power_count_on_from_the_number_of_the_disk() -> None:
    once = recovering_state(joining_state(incarnation=100)).hard_state
    assert (once.standing, once.incarnation) == (Standing.JOINING, 101)


def test_wiped_voter_is_not_trusted_while_its_removal_may_still_be_undone(cluster: Cluster) -> None:
    """Else it would be a voter again, with a full standing, when the removal gets lost (R29)."""
    cluster.replicate(1, ["a"])
    cluster.reboot(3, wiped=True)
    cluster.tick_all(4 * ELECTION_TICKS)
    assert cluster.leaders() == [1]
    assert cluster.state(3).log.last_index == cluster.state(1).log.last_index, "it is fed"

    cluster.isolate(2)
    cluster.change(1, ChangeKind.REMOVE, 3)
    cluster.deliver()
    cluster.beat(1, 2 * HEARTBEAT_TICKS)

    assert cluster.state(1).voters == (1, 2), "in force, but not committed"
    assert cluster.state(1).commit < cluster.state(1).configurations[-1].index
    assert cluster.state(3).standing is Standing.JOINING


# --- A voter whose disk is an old copy: fed like any other, trusted with nothing ---


INCARNATION = 7


def told(cluster: Cluster, node: int) -> None:
    cluster.nodes[node].replica.lose_memory(INCARNATION)
    cluster.settle(node)


def test_an_old_copy_is_durable_and_neither_votes_nor_campaigns() -> None:
    cluster = Cluster()
    told(cluster, 2)
    for _ in range(2):
        assert cluster.state(2).standing is Standing.JOINING
        assert cluster.state(2).incarnation == INCARNATION
        cluster.receive(2, vote_request(1, 2, 5, last=(9, 4)))
        cluster.tick(2, 3 * ELECTION_TICKS)
        cluster.reboot(2)

    assert [m.refusal for m in cluster.sent if isinstance(m, VoteReply)] == [
        Refusal.NO_STANDING,
        Refusal.NO_STANDING,
    ]
    assert all(isinstance(m, VoteReply) for m in cluster.sent)


def test_notice_that_could_not_be_saved_is_saved_with_whatever_comes_next() -> None:
    """Else a later term would be on the old copy, and nobody would take it for one."""
    cluster = Cluster()
    log = cluster.nodes[2].log
    log.fails_hard_state = True
    told(cluster, 2)
    assert log.hard_state.standing is Standing.FULL
    cluster.receive(2, vote_request(1, 2, 5, last=(9, 4)))
    assert log.hard_state.standing is Standing.FULL
    assert log.hard_state.term < 5

    log.fails_hard_state = False
    cluster.receive(2, vote_request(1, 2, 5, last=(9, 4)))
    assert log.hard_state == HardState(5, NO_NODE, Standing.JOINING, INCARNATION)
    assert [m.refusal for m in cluster.sent if isinstance(m, VoteReply)] == [Refusal.NO_STANDING]


def test_notice_that_could_not_be_saved_is_a_secret_until_it_is() -> None:
    """Else the others hear of an incarnation that a restart forgets."""
    cluster = Cluster(states={2: state_of([1], term=3)})
    log = cluster.nodes[2].log
    log.fails_hard_state = True
    told(cluster, 2)
    cluster.receive(2, append(1, 2, 3, prev=(0, 1)))
    assert (log.hard_state.standing, cluster.sent) == (Standing.FULL, [])

    log.fails_hard_state = False
    cluster.receive(2, append(1, 2, 3, prev=(0, 1)))

    assert log.durable_hard_state == HardState(3, NO_NODE, Standing.JOINING, INCARNATION)
    assert {m.incarnation for m in cluster.sent if isinstance(m, AppendReply)} == {INCARNATION}


def test_a_leader_steps_down(cluster: Cluster) -> None:
    cluster.read(1, 9)
    told(cluster, 1)
    assert cluster.role(1) is Role.FOLLOWER
    assert cluster.nodes[1].reads_failed == [9]


def test_a_promise_of_this_turn_is_not_made() -> None:
    """It does not even wait for a sync yet."""
    cluster = Cluster()
    core = cluster.nodes[2].replica.core
    core.step(vote_request(3, 2, 4, last=(9, 1)))
    told(cluster, 2)
    cluster.sync(2)
    assert cluster.sent == []
