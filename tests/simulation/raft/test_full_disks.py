"""Full disks: what has no room is refused, and taken once there is room (D13)."""

from __future__ import annotations

from simulation.raft.world.world import World
from tests.simulation.raft.worlds import calm_options, run_for, run_until


def running(**changes: object) -> World:
    """Return three nodes that have been serving for a while."""
    world = World(calm_options(3, voter_count=3, snapshot_every=0, **changes), ())
    run_until(world, lambda: len(world.referee.ledger.entries) > 20)
    return world


def test_full_disk_refuses_proposals_and_takes_them_again() -> None:
    world = running()
    for node in world.nodes.values():
        node.disk.is_full = True
    run_for(world, 1)  # What was under way ends.
    end = len(world.referee.ledger.queue)
    run_for(world, 5)
    assert len(world.referee.ledger.queue) == end
    assert world.coverage.counts["proposal_without_room"] > 0

    for node in world.nodes.values():
        node.disk.is_full = False

    run_until(world, lambda: len(world.referee.ledger.queue) > end + 5)


def test_follower_with_a_full_disk_keeps_hearing_its_leader() -> None:
    """No election, reads go on; it catches up when there is room."""
    world = running(read_share=0.6)
    leader = world.leader()
    assert leader is not None
    term = leader.seen_term
    full = [node for node in world.nodes.values() if node is not leader]
    for node in full:
        node.disk.is_full = True
    run_for(world, 10)
    assert world.leader() is leader
    assert leader.seen_term == term
    assert world.coverage.counts["append_without_room"] > 0
    read = world.coverage.counts["read_served"]
    end = len(world.referee.ledger.entries)
    run_until(world, lambda: world.coverage.counts["read_served"] > read)
    assert len(world.referee.ledger.entries) == end, "nobody acked what it could not write"

    full[0].disk.is_full = False

    run_until(world, lambda: len(world.referee.ledger.entries) > end + 5)
