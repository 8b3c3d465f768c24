"""A cluster of two versions works, also while its nodes change from one to the other (P9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.raft.plan import Fault
from simulation.raft.runner import Case, run_case
from simulation.raft.versions import without_news
from simulation.raft.world.world import World
from tests.raft.builders import append_reply
from tests.simulation.raft.worlds import calm_options, run_until


@pytest.mark.parametrize("seed", range(4))
def test_nodes_restart_one_at_a_time_into_the_other_version_and_back(seed: int) -> None:
    options = calm_options(seed, is_rolling=True, snapshot_every=12)
    gap = 4 * options.election_us
    options = replace(options, duration_us=12 * gap, event_count_max=30_000)
    plan = tuple(
        Fault((1 + at) * gap, "roll", 1 + at % 5, options.election_us // 4, 0) for at in range(10)
    )
    report = run_case(Case(options, plan))
    assert report.passed, f"{report.code}: {report.detail}"
    assert report.coverage.counts["version_changed"] == 10
    assert report.coverage.counts["append_acked"] > 100


def test_older_follower_with_another_tail_is_brought_into_line() -> None:
    """Its refusals carry no hint: the leader steps back one entry at a time, and gets there."""
    world = World(calm_options(2, voter_count=3, snapshot_every=0), ())
    run_until(world, lambda: len(world.referee.ledger.entries) > 5)
    leader = world.leader()
    assert leader is not None
    others = [node_id for node_id in world.nodes if node_id != leader.node_id]
    links = [world.network.link(leader.node_id, other) for other in others]
    world.network.cut(links)
    for value in range(8):
        leader.replica.propose(2 * (1 << 30) + 2 * value)
    leader.settle()
    run_until(world, lambda: any(world.nodes[other].was_leader for other in others))
    leader.is_old = True

    world.network.heal(links)

    run_until(world, lambda: world.coverage.counts["truncation_of_many"] > 0)
    run_until(world, lambda: leader.applied >= len(world.referee.ledger.entries) - 5)


def test_an_older_version_gets_no_new_fields() -> None:
    reply = append_reply(1, 2, 3, refused_prev=9, hint_last=4, hint_runs=((0, 1),))
    assert without_news(reply) == append_reply(1, 2, 3, refused_prev=9, hint_last=8)
