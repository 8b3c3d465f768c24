"""Rule R44: a cluster of one takes no short cut."""

from __future__ import annotations

from tests.raft.cluster import ELECTION_TICKS, Cluster, led


def test_single_node_keeps_what_it_acked_over_power_loss() -> None:
    cluster = led(voters=(1,))
    cluster.propose(1, "a")
    cluster.nodes[1].syncs_at_once = False
    cluster.propose(1, "never acked")

    cluster.reboot(1)
    cluster.elect(1)

    assert cluster.nodes[1].applied == ["a"]
    assert cluster.state(1).term == 2


def test_single_node_with_learner_reveals_no_term_before_its_sync() -> None:
    cluster = Cluster(voters=(1,), learners=(2,))
    cluster.nodes[1].syncs_at_once = False
    cluster.tick(1, ELECTION_TICKS + 1)
    assert cluster.sent == []

    cluster.sync(1)
    cluster.deliver()

    assert cluster.state(2).leader == 1
