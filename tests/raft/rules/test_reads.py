"""Rules R18, R19, R21: which reads are confirmed, and by what."""

from __future__ import annotations

import pytest

from raft.errors import BusyError
from raft.messages import NO_NODE, AppendRequest, VoteReply
from raft.ready import ReadConfirmed
from raft.rules import read_index, transfer
from raft.transitions import Role
from tests.raft.builders import append_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, config_of, led


def test_a_read_that_waits_for_the_first_commit_waits_for_no_sync_of_the_leader() -> None:
    """Two followers commit the no-op, which the leader itself can hand out only later."""
    cluster = Cluster()
    cluster.tick(1, ELECTION_TICKS + 1)
    while cluster.role(1) is not Role.CANDIDATE:
        assert cluster.deliver(count=1) == 1
    cluster.nodes[1].syncs_at_once = False
    while cluster.role(1) is not Role.LEADER:
        assert cluster.deliver(count=1) == 1
    cluster.read(1, 7)
    assert cluster.nodes[1].reads == []

    cluster.deliver()

    assert (cluster.state(1).commit, cluster.state(1).synced) == (0, -1)
    assert cluster.nodes[1].reads == [ReadConfirmed(7, 0)]


def test_echo_of_an_earlier_leadership_confirms_nothing(cluster: Cluster) -> None:
    """Node 1 led, restarted and leads again. A late append of its first term is answered in the
    second one, with a round of then, which is higher than any that has begun since."""
    for read_id in range(5):
        cluster.read(1, read_id)
        late = cluster.take(AppendRequest)
        for outgoing in late:
            cluster.receive(outgoing.message.to, outgoing.message, outgoing.payload)
        cluster.deliver()
    cluster.reboot(1)
    cluster.elect(1)
    for outgoing in late:
        cluster.receive(outgoing.message.to, outgoing.message, outgoing.payload)
    cluster.deliver()
    cluster.isolate(1)

    cluster.read(1, 7)

    assert 7 not in [read.read_id for read in cluster.nodes[1].reads]


def test_echo_of_a_node_without_memory_confirms_nothing(cluster: Cluster) -> None:
    """Node 1 leads for itself only: 2 was elected with the vote of 3 and acked another entry. Then
    3 lost its disk and with it that vote; what it says now to node 1 proves no leadership."""
    cluster.isolate(1)
    cluster.elect(2)
    cluster.replicate(2, ["acked by the leader of today"])
    assert cluster.state(2).commit == 2
    cluster.crash(3)
    cluster.isolate(2)
    cluster.cuts -= {(1, 3), (3, 1)}
    cluster.restart(3, wiped=True)
    cluster.beat(1)
    assert cluster.role(1) is Role.LEADER
    assert not cluster.state(1).progress[3].is_counted

    cluster.read(1, 7)
    cluster.beat(1)

    assert cluster.state(1).progress[3].round == cluster.state(1).round, "it echoed the round"
    assert cluster.nodes[1].reads == []


def test_reads_of_one_turn_share_a_round(cluster: Cluster) -> None:
    before = len(cluster.sent)
    for read_id in range(100):
        read_index.read_index(cluster.nodes[1].replica.core.state, read_id)
    cluster.settle(1)

    assert len(cluster.sent) - before == 2
    cluster.deliver()
    assert [read.read_id for read in cluster.nodes[1].reads] == list(range(100))


def test_lost_round_is_repeated_by_the_heartbeat(cluster: Cluster) -> None:
    cluster.read(1, 7)
    cluster.drop()

    cluster.beat(1)

    assert [read.read_id for read in cluster.nodes[1].reads] == [7]


def test_reads_are_bounded() -> None:
    cluster = led(read_count_max=3)
    cluster.isolate(1)
    for read_id in range(3):
        cluster.read(1, read_id)

    with pytest.raises(BusyError, match="3 held, limit 3"):
        cluster.read(1, 3)


def test_uncounted_and_foreign_echoes_do_not_confirm() -> None:
    cluster = led(voters=(1, 2, 3), learners=(4,))
    cluster.read(1, 7)
    cluster.drop()
    round_id = cluster.state(1).round

    cluster.receive(1, append_reply(4, 1, 1, match=0, round_id=round_id))
    cluster.receive(1, append_reply(9, 1, 1, match=0, round_id=round_id))
    assert cluster.nodes[1].reads == []

    cluster.receive(1, append_reply(3, 1, 1, match=0, round_id=round_id))
    assert [read.read_id for read in cluster.nodes[1].reads] == [7]


def test_single_voter_confirms_by_itself() -> None:
    cluster = led(voters=(1,))

    cluster.read(1, 7)

    assert cluster.nodes[1].reads == [ReadConfirmed(7, 0)]


def test_lease_mode_is_opt_in() -> None:
    assert not config_of(1).lease_reads
    with pytest.raises(ValueError, match="clock_drift_percent_max"):
        config_of(1, lease_reads=True)

    cluster = led()
    cluster.tick_all(5)
    cluster.isolate(1)
    cluster.read(1, 7)
    assert cluster.nodes[1].reads == [], "without leases every read needs a round"


def leased_cluster(drift: int = 10) -> Cluster:
    cluster = Cluster(lease_reads=True, clock_drift_percent_max=drift)
    for node in (1, 2, 3):
        cluster.tick(node, ELECTION_TICKS)
        cluster.drop()
    cluster.elect(1)
    cluster.tick_all(HEARTBEAT_TICKS)
    return cluster


@pytest.mark.parametrize(("drift", "ticks"), [(0, 9), (10, 8), (50, 6)])
def test_lease_ends_before_anyone_else_can_lead(drift: int, ticks: int) -> None:
    cluster = leased_cluster(drift)
    cluster.isolate(1)
    state = cluster.state(1)
    began = state.round_ticks[-1][1]
    read_ticks, served = [], []
    for read_id in range(2 * ELECTION_TICKS):
        if cluster.role(1) is Role.LEADER:
            cluster.read(1, read_id)
            read_ticks.append(state.now - began)
            if read_id in [read.read_id for read in cluster.nodes[1].reads]:
                served.append(state.now - began)
        cluster.tick(1)
    assert served == [tick for tick in read_ticks if tick < ticks]
    assert served, "it had a lease"
    assert read_ticks[-1] >= ticks, "it was asked when that was over"


def test_lease_is_over_when_ticks_of_the_others_come_right_behind() -> None:
    """A tick is a moment, not a duration: a follower that ticks right after it heard the leader
    counts a whole time-out when almost one tick less has passed."""
    cluster = leased_cluster(0)
    cluster.beat(1)
    began = cluster.state(1).round_ticks[-1][1]
    assert cluster.state(1).now == began
    cluster.state(2).timeout_ticks = ELECTION_TICKS
    cluster.isolate(1)
    for _ in range(ELECTION_TICKS - 1):
        cluster.tick(3)
        cluster.tick(2)
        cluster.deliver()
        cluster.tick(1)
    cluster.tick(3)
    cluster.tick(2)
    cluster.deliver()
    cluster.replicate(2, ["acked by the new leader"])
    assert cluster.state(2).commit > cluster.state(1).commit
    assert cluster.role(1) is Role.LEADER, "the old one does not know yet"

    cluster.read(1, 7)

    assert cluster.nodes[1].reads == []


def test_hand_over_ends_leases_for_the_term() -> None:
    cluster = leased_cluster()
    transfer.transfer_leadership(cluster.nodes[1].core.state, 2)
    cluster.settle(1)
    cluster.drop()

    cluster.read(1, 7)

    assert cluster.nodes[1].reads == []


def test_leases_are_back_in_the_term_after_a_hand_over() -> None:
    cluster = leased_cluster()
    transfer.transfer_leadership(cluster.nodes[1].core.state, 2)
    cluster.settle(1)
    cluster.deliver()
    assert cluster.role(2) is Role.LEADER
    cluster.elect(1)
    cluster.beat(1)
    cluster.isolate(1)

    cluster.read(1, 7)

    assert [read.read_id for read in cluster.nodes[1].reads] == [7]


@pytest.mark.parametrize("pre", [True, False])
def test_restarted_node_keeps_its_promise_of_silence(pre: bool) -> None:
    """It may have promised a leader not to vote, and does not remember when (R22)."""
    cluster = Cluster(lease_reads=True, clock_drift_percent_max=10)
    cluster.reboot(2)
    cluster.tick(2, ELECTION_TICKS - 1)
    cluster.receive(2, vote_request(3, 2, 1, pre=pre))
    assert (cluster.state(2).term, cluster.state(2).vote) == (0, NO_NODE)

    cluster.tick(2)
    cluster.receive(2, vote_request(3, 2, 1, pre=pre))

    assert [m.granted for m in cluster.sent if isinstance(m, VoteReply)] == [False, True]
