"""A node whose memory is in doubt is admitted when it holds what it may once have acked."""

from __future__ import annotations

from raft.messages import NO_INDEX, Standing
from raft.ready import joining_state, recovering_state
from raft.rules.membership import ChangeKind
from tests.raft.builders import append_reply
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led


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
