"""Rule R25: elections end, also with unlucky time-outs."""

from __future__ import annotations

from random import Random

import pytest

from tests.raft.cluster import ELECTION_TICKS, Cluster


def leader_with_followers(cluster: Cluster) -> int:
    """Return the leader that a majority follows, or 0."""
    for leader in cluster.leaders():
        term = cluster.state(leader).term
        followers = [
            node
            for node in cluster.nodes
            if cluster.state(node).leader == leader and cluster.state(node).term == term
        ]
        if len(followers) > len(cluster.nodes) // 2:
            return leader
    return 0


@pytest.mark.parametrize("seed", range(20))
def test_split_votes_resolve(seed: int) -> None:
    """Even when all nodes begin in step, redrawn time-outs break the tie soon (R25)."""
    cluster = Cluster(voters=range(1, 6))
    for node in cluster.nodes:
        cluster.state(node).random = Random(seed * 100 + node)
        cluster.state(node).timeout_ticks = ELECTION_TICKS

    rounds = 0
    while not leader_with_followers(cluster):
        for node in cluster.nodes:
            cluster.tick(node)
        cluster.deliver()
        rounds += 1
        assert rounds < 20 * ELECTION_TICKS, "nodes lock step"
