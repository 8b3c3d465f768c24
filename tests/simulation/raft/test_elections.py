"""Rules R24 and R25: elections end, also with broken links and unlucky time-outs."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from raft.transitions import Role
from tests.raft.cluster import ELECTION_TICKS, Cluster


def seeded_cluster(seed: int, count: int) -> Cluster:
    cluster = Cluster(voters=range(1, count + 1))
    for node in cluster.nodes:
        state = cluster.state(node)
        state.random = Random(seed * 100 + node)
        state.draw_timeout()
    return cluster


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


def cut_all_but(cluster: Cluster, links: set[tuple[int, int]]) -> None:
    for a, b in combinations(sorted(cluster.nodes), 2):
        if (a, b) not in links:
            cluster.cuts |= {(a, b), (b, a)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", ["chain", "ring", "star", "one-way", "bridge"])
def test_partial_connectivity_settles(shape: str, seed: int) -> None:
    """With pre-vote and check-quorum one leader is found and stays."""
    cluster = seeded_cluster(seed, 5)
    if shape == "chain":
        cut_all_but(cluster, {(1, 2), (2, 3), (3, 4), (4, 5)})
    elif shape == "ring":
        cut_all_but(cluster, {(1, 2), (2, 3), (3, 4), (4, 5), (1, 5)})
    elif shape == "star":
        cut_all_but(cluster, {(1, 3), (2, 3), (3, 4), (3, 5)})
    elif shape == "one-way":
        cluster.cuts = {(1, 2), (3, 4), (5, 1)}
    else:
        cut_all_but(cluster, {(1, 2), (2, 3), (1, 3), (3, 4), (3, 5), (4, 5)})

    for _ in range(60):
        cluster.tick_all(ELECTION_TICKS)
        if leader_with_followers(cluster):
            break
    settled = leader_with_followers(cluster)
    assert settled, f"{shape}: no leader with a majority"
    committed = cluster.state(settled).commit
    term = cluster.state(settled).term

    cluster.tick_all(20 * ELECTION_TICKS)

    assert leader_with_followers(cluster) == settled
    assert cluster.state(settled).term == term, "no election after it settled"
    cluster.propose(settled, "served")
    cluster.deliver()
    assert cluster.state(settled).commit > committed


@pytest.mark.parametrize("seed", range(20))
def test_split_votes_resolve(seed: int) -> None:
    """Even when all nodes begin in step, redrawn time-outs break the tie soon (R25)."""
    cluster = seeded_cluster(seed, 5)
    for node in cluster.nodes:
        cluster.state(node).timeout_ticks = ELECTION_TICKS

    rounds = 0
    while not leader_with_followers(cluster):
        for node in cluster.nodes:
            cluster.tick(node)
        cluster.deliver()
        rounds += 1
        assert rounds < 20 * ELECTION_TICKS, "nodes lock step"
    assert cluster.role(leader_with_followers(cluster)) is Role.LEADER
