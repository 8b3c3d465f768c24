"""A cluster that is only partly connected elects a leader and keeps it (fault-matrix R24)."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from checkers.history import Kind
from raft.errors import Outcome
from simulation.raft.world.liveness import NeedsOperatorError, live_on
from simulation.raft.world.world import World
from tests.simulation.raft.worlds import calm_options, run_until

ELECTIONS = 20
"""Election time-outs to settle in, and to stay settled for."""

ALL = range(1, 6)
Pairs = set[tuple[int, int]]


def both(*pairs: tuple[int, int]) -> Pairs:
    return set(pairs) | {(b, a) for a, b in pairs}


FULL = {(a, b) for a in ALL for b in ALL if a != b}
CHAIN = both((1, 2), (2, 3), (3, 4), (4, 5))
RING = CHAIN | both((5, 1))
BRIDGE = both((1, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5))
STAR = both((1, 2), (1, 3), (1, 4), (1, 5))
DEAF = {(a, b) for a, b in FULL if b != 2}
MUTE = {(a, b) for a, b in FULL if a != 2}
HALF_LINK = FULL - {(1, 2), (2, 3), (3, 4), (4, 5), (5, 1)}
NO_TRIANGLE = FULL - both((1, 3))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]
)
@pytest.mark.parametrize(
    "connected",
    [CHAIN, RING, BRIDGE, STAR, DEAF, MUTE, HALF_LINK, NO_TRIANGLE],
    ids=["chain", "ring", "bridge", "star", "deaf", "mute", "half_link", "no_triangle"],
)
@pytest.mark.parametrize("starts_whole", [True, False])
def test_partial_connectivity_settles(connected: Pairs, seed: int, starts_whole: bool) -> None:
    """From a cold start, or from a whole cluster that already has a leader."""
    options = calm_options(seed)
    world = World(options, ())
    span = ELECTIONS * options.election_us
    if starts_whole:
        world.run(until_us=span, event_count_max=10**6)
        world.now = span
    began = world.now
    world.network.cut([world.network.link(a, b) for a, b in sorted(FULL - connected)])

    world.run(until_us=began + span, event_count_max=10**6)
    leader = world.leader()
    assert leader is not None, "no leader"
    settled = (leader.node_id, leader.seen_term)
    done = len(world.history)
    world.run(until_us=began + 2 * span, event_count_max=10**6)

    leader = world.leader()
    assert leader is not None
    assert (leader.node_id, leader.seen_term) == settled, "leadership went on changing"
    acked = [
        operation
        for operation in world.history[done:]
        if operation.kind is Kind.APPEND and operation.outcome is Outcome.APPLIED
    ]
    assert len(acked) >= 3, "the leader serves nobody"
    assert max(node.seen_term for node in world.nodes.values()) == settled[1]


@pytest.mark.parametrize("is_in_doubt", [True, False])
def test_a_cluster_that_needs_its_operator_is_told_apart_from_one_that_is_stuck(
    is_in_doubt: bool,
) -> None:
    """Of three voters one has an empty disk; with another one in doubt nobody can be elected."""
    world = World(calm_options(5, voter_count=3, page_cache=True), ())
    run_until(world, lambda: len(world.referee.ledger.entries) > 20)
    empty, other, _ = world.nodes.values()
    empty.wipe()
    if is_in_doubt:
        other.power_off(world.disk_random)
    with pytest.raises(NeedsOperatorError) if is_in_doubt else nullcontext():
        live_on(world)
