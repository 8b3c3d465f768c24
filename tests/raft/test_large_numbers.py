"""Rule R5: a cluster whose indexes and terms are near the borders of 32 and 64 bits goes on."""

from __future__ import annotations

import pytest

from raft.messages import Configuration, ConfigurationAt, SnapshotMeta
from raft.ready import HardState, InitialState
from tests.raft.cluster import HEARTBEAT_TICKS, Cluster
from tests.raft.rules.test_snapshot import take_snapshot

MEMBERS = ConfigurationAt(2, Configuration((1, 2, 3)))


def aged(base: int, last: int) -> InitialState:
    """Return the state of a node with entries (base, last], all numbers of which are large."""
    return InitialState(
        hard_state=HardState(base),
        base_index=base,
        base_term=base - 1,
        last_index=last,
        runs=((base + 1, base),) if last > base else (),
        configurations=(MEMBERS,),
        applied=base,
        snapshot=SnapshotMeta(base, base - 1, MEMBERS),
    )


@pytest.mark.parametrize("large", [(1 << bits) + at for bits in (31, 32, 62) for at in (-1, 0, 1)])
def test_elections_appends_and_snapshots_across_a_border(large: int) -> None:
    """Node 2 has less than node 1, node 3 needs a snapshot."""
    base = large - 2
    states = {1: aged(base, base + 2), 2: aged(base, base + 1), 3: aged(base, base)}
    cluster = Cluster(states=states)
    cluster.isolate(3)
    cluster.elect(1)
    state = cluster.state(1)
    assert (state.term, state.own_term_first, state.commit) == (large - 1, large + 1, large + 1)
    for body in "abc":
        assert cluster.propose(1, body)[1] == large - 1
    cluster.deliver()
    cluster.tick_all(HEARTBEAT_TICKS)
    take_snapshot(cluster, 1)
    cluster.heal()
    cluster.propose(1, "d")
    cluster.tick_all(6 * HEARTBEAT_TICKS)

    for node in (1, 2, 3):
        after = cluster.state(node)
        assert (after.commit, after.applied, after.log.last_index) == (large + 5,) * 3
        assert after.log.last_term == large - 1
    assert cluster.state(3).log.base_index == large + 4
    cluster.crash(1)
    cluster.elect(2)
    assert cluster.state(2).term > large - 1
    assert cluster.state(3).commit == large + 6
