"""Damage at rest and full disks: noticed, never served, never counted, repaired (D5 to D7, D13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft.messages import NO_INDEX, Configuration, ConfigurationAt, SnapshotMeta, Standing
from raft.ready import EntryKind, HardState, bootstrap_state
from simulation.raft.coverage import Coverage
from simulation.raft.disk.damage import (
    DamagedError,
    SimulatedDamage,
    damaged_range,
    flipped,
    is_chain,
    widened,
)
from simulation.raft.disk.disk import Disk
from simulation.raft.disk.image import chain_of
from simulation.raft.world import atlas
from simulation.raft.world.network import Network
from simulation.raft.world.process import Status
from simulation.raft.world.repair import RepairReply, RepairRequest, answer
from simulation.raft.world.world import World
from tests.simulation.raft.worlds import calm_options, run_for, run_until

COUNT = 12
KNOWN = 8


def stored(*, known: int = KNOWN) -> Disk:
    """Return a disk with entries 0 to 11, synced, of which it knows 0 to 8 as committed."""
    disk = Disk(bootstrap_state((1, 2, 3)), Coverage(), checks_payload=True)
    for index in range(COUNT):
        disk.append(index, 2, EntryKind.DATA, 100 + index)
    disk.save_hard_state(HardState(2))
    if known >= 0:
        disk.save_hint(known)
    disk.sync_done(disk.sync_id())
    return disk


def stored_over_an_old_tail(lo: int) -> Disk:
    """Return such a disk that once held other entries from `lo` on."""
    disk = Disk(bootstrap_state((1, 2, 3)), Coverage(), checks_payload=True)
    for index in range(COUNT):
        disk.append(index, 1, EntryKind.DATA, 100 + index if index < lo else 900 + index)
    disk.truncate_from(lo)
    for index in range(lo, COUNT):
        disk.append(index, 2, EntryKind.DATA, 100 + index)
    disk.save_hard_state(HardState(2))
    disk.save_hint(KNOWN)
    disk.sync_done(disk.sync_id())
    return disk


@pytest.mark.parametrize("number", range(48))
def test_each_flipped_bit_of_an_entry_is_noticed(number: int) -> None:
    """Body, term and digest, sixteen bits each: by a read and by the walk of a start."""
    disk = stored()
    disk.damage(4, is_stale=False, number=number)

    with pytest.raises(DamagedError):
        disk.read_raw(3, 6)
    assert disk.read_raw(0, 4) == disk.memory.entries[:4]
    found = damaged_range(disk.memory, disk.bad)
    assert found is not None
    assert (found.lo, found.hi) == (4, 5)
    entries = disk.memory.entries
    assert is_chain(entries[4:5], found)
    assert not is_chain([flipped(entries[4], number)], found)


@pytest.mark.parametrize("index", [0, 3, KNOWN])
def test_range_is_bounded_by_what_is_whole(index: int) -> None:
    disk = stored()
    for lost in range(index, min(index + 2, KNOWN + 1)):
        disk.damage(lost, is_stale=True, number=0)
    found = damaged_range(disk.memory, disk.bad)
    assert found is not None
    assert (found.lo, found.hi) == (index, min(index + 2, KNOWN + 1))
    assert is_chain(disk.memory.entries[found.lo : found.hi], found)


def test_old_sectors_that_chain_are_found_by_widening() -> None:
    """They follow what is before them: only what comes behind tells, and peers know where."""
    disk = stored_over_an_old_tail(3)
    for index in (3, 4):
        disk.damage(index, is_stale=True, number=0)
    found = damaged_range(disk.memory, disk.bad)
    assert found is not None
    assert found.lo == 5, "entries 3 and 4 look whole"
    true = disk.memory.entries
    assert not is_chain(true[found.lo : found.hi], found)

    wider = widened(disk.memory, disk.bad, found, 3)

    assert is_chain(true[wider.lo : wider.hi], wider)


def test_old_sector_at_the_end_of_what_is_committed_is_found() -> None:
    """It chains, and what is behind it is gone; the digest beside the commit index tells."""
    disk = stored_over_an_old_tail(KNOWN)
    disk.damage(KNOWN, is_stale=True, number=0)
    disk.damage(KNOWN + 1, is_stale=False, number=0)
    disk.cut_damaged_tail()
    found = damaged_range(disk.memory, disk.bad)
    assert found is not None
    assert (found.lo, found.hi) == (KNOWN, KNOWN + 1)


def test_damage_above_what_is_known_as_committed_is_cut_and_leaves_doubt() -> None:
    disk = stored()
    disk.damage(KNOWN + 2, is_stale=False, number=0)
    assert disk.is_tail_damaged()

    lost = disk.cut_damaged_tail()

    assert lost is not None
    assert lost.last_index == COUNT - 1
    assert disk.durable.last_index == disk.memory.last_index == KNOWN + 1
    found = disk.load().hard_state
    assert (found.standing, found.incarnation) == (Standing.RECOVERING, 1)
    assert disk.cut_damaged_tail() is None


def test_damage_at_or_below_what_is_known_as_committed_is_never_cut() -> None:
    disk = stored()
    disk.damage(KNOWN, is_stale=False, number=0)
    assert disk.cut_damaged_tail() is None
    assert disk.memory.last_index == COUNT - 1
    assert disk.load().hard_state.standing is Standing.FULL


def test_fetched_snapshot_keeps_what_follows_it_and_raises_the_term() -> None:
    configuration = ConfigurationAt(NO_INDEX, Configuration((1, 2, 3)))
    disk = stored()
    disk.damage(2, is_stale=False, number=0)
    chain = disk.memory.chain_at(6)
    assert chain is not None
    disk.mend_by_snapshot(SnapshotMeta(6, 2, configuration), chain)
    assert (disk.memory.base_index, disk.memory.last_index) == (6, COUNT - 1)
    assert not disk.bad

    disk = stored()
    disk.damage(2, is_stale=False, number=0)
    disk.mend_by_snapshot(SnapshotMeta(40, 7, configuration), 12345)
    found = disk.load()
    assert (found.base_index, found.last_index) == (40, 40)
    assert (found.hard_state.term, found.hard_state.vote) == (7, 0)


def running(seed: int = 3, **changes: object) -> World:
    """Return three nodes that have been serving for a while, and note each commit on disk."""
    settings = {"voter_count": 3, "snapshot_every": 0, "hint_every": 1} | changes
    options = calm_options(seed, **settings)
    world = World(replace(options, disk_kinds=("bit_flip",)), ())
    run_until(world, lambda: len(world.referee.ledger.entries) > 20)
    return world


def restart(world: World, node_id: int) -> None:
    node = world.nodes[node_id]
    node.kill()
    node.start()


def test_damaged_node_has_no_core_until_a_peer_heals_it() -> None:
    world = running()
    follower = next(node for node in world.nodes.values() if not node.was_leader)
    others = [node_id for node_id in world.nodes if node_id != follower.node_id]
    links = [world.network.link(follower.node_id, other) for other in others]
    links += [world.network.link(other, follower.node_id) for other in others]
    world.network.cut(links)
    follower.disk.damage(4, is_stale=False, number=1)
    restart(world, follower.node_id)
    run_for(world, 5)
    assert follower.status is Status.REPAIRING, "nobody could have healed it"

    world.network.heal(links)
    run_until(world, lambda: follower.is_up)

    assert not follower.disk.bad
    assert world.coverage.counts["range_fetched"] == 1
    run_until(world, lambda: follower.applied >= len(world.referee.ledger.entries) - 5)


def test_answer_that_proves_nothing_is_refused() -> None:
    """A good answer mends; one with another entry in it changes nothing."""
    world = running()
    follower = next(node for node in world.nodes.values() if not node.was_leader)
    peer = next(node for node in world.nodes.values() if node is not follower)
    true = follower.disk.memory.entries[4]
    follower.disk.damage(4, is_stale=False, number=1)
    restart(world, follower.node_id)
    repair = follower.repair
    assert repair is not None
    wanted = damaged_range(follower.disk.memory, follower.disk.bad)
    assert wanted is not None
    reply = RepairReply(peer.node_id, follower.node_id, wanted, None, 0)

    repair.take(reply, [flipped(true, 0)])
    repair.take(reply._replace(wanted=wanted._replace(hi=wanted.hi + 1)), [true])
    world.network.cut(list(world.network.links.values()))  # The honest answers do not arrive.
    run_for(world, 0.2)
    assert follower.disk.bad

    repair.take(reply, [true])
    run_for(world, 0.5)
    assert follower.is_up


def test_snapshot_that_ends_within_the_damage_is_a_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer has cut part of what is asked for: its snapshot is sent, the rest comes next."""
    world = running(snapshot_every=12, retained_lag_entry_count_max=0)
    peer = next(iter(world.nodes.values()))
    run_until(world, lambda: peer.disk.durable.base_index > 0)
    base, snapshot = peer.disk.durable.base_index, peer.disk.durable.snapshot
    assert snapshot is not None
    sent: list[object] = []
    monkeypatch.setattr(Network, "send", lambda _, outgoing: sent.append(outgoing.message))

    for lo, hi in ((base, snapshot.index + 3), (snapshot.index + 1, snapshot.index + 3)):
        answer(peer, RepairRequest(2, peer.node_id, SimulatedDamage(lo, hi, 1, 2)))

    assert [reply.snapshot for reply in sent if isinstance(reply, RepairReply)] == [snapshot]


def test_node_asks_for_more_than_looks_damaged() -> None:
    """An old entry that chains to the one before hides behind the whole one that follows it."""
    world = running()
    follower = next(node for node in world.nodes.values() if not node.was_leader)
    true = follower.disk.memory.entries[4]
    digest = chain_of(true.previous_chain, true.term, true.kind, 12345678)
    follower.disk.former[4] = true._replace(body=12345678, chain=digest)
    follower.disk.damage(4, is_stale=True, number=0)
    restart(world, follower.node_id)
    found = damaged_range(follower.disk.memory, follower.disk.bad)
    assert found is not None
    assert found.lo == 5

    run_until(world, lambda: follower.is_up)

    assert not follower.disk.bad


def test_running_node_ends_at_the_read_and_comes_back() -> None:
    """A leader that has to send what is damaged sends nothing of it (I14, judged at each send)."""
    world = running()
    leader = world.leader()
    assert leader is not None
    other = next(node for node in world.nodes.values() if node is not leader)
    other.wipe()
    leader.disk.damage(5, is_stale=False, number=2)

    other.start()
    run_until(world, lambda: world.coverage.counts["damage_found_by_read"] == 1)

    run_until(world, lambda: leader.is_up and not leader.disk.bad)
    assert leader.replica.core.state.standing is Standing.FULL, "it knew the entry as committed"


def test_nodes_damaged_in_different_places_heal_each_other() -> None:
    world = running()
    for node_id in world.nodes:
        world.nodes[node_id].disk.damage(3 + node_id, is_stale=False, number=node_id)
        restart(world, node_id)
    assert not any(node.is_up for node in world.nodes.values())

    run_until(world, lambda: all(node.is_up for node in world.nodes.values()))
    before = len(world.referee.ledger.entries)
    run_until(world, lambda: len(world.referee.ledger.entries) > before)


def test_every_copy_damaged_is_a_safe_stop() -> None:
    """The rule of the atlas broken on purpose: nobody serves, nobody invents."""
    world = running()
    for node_id in world.nodes:
        world.nodes[node_id].disk.damage(5, is_stale=False, number=node_id)
        restart(world, node_id)
    before = len(world.referee.ledger.entries)

    run_for(world, 40)

    assert all(node.status is Status.REPAIRING for node in world.nodes.values())
    assert len(world.referee.ledger.entries) == before


def test_atlas_withholds_the_last_copy() -> None:
    world = running()
    for node in world.nodes.values():
        node.replica.pump()
        number = 5 << 1  # Even: counted from the start of the log.
        atlas.strike(world, node, number, is_stale=False)
    assert sum(5 in node.disk.bad for node in world.nodes.values()) == 2
    assert world.coverage.counts["damage_withheld"] == 1


def test_node_that_had_to_drop_its_tail_is_in_doubt_until_it_caught_up() -> None:
    world = running(hint_every=0)
    follower = next(node for node in world.nodes.values() if not node.was_leader)
    follower.disk.damage(6, is_stale=False, number=0)
    restart(world, follower.node_id)
    state = follower.replica.core.state
    assert (state.log.last_index, state.standing) == (5, Standing.RECOVERING)

    run_until(world, lambda: state.standing is Standing.FULL)

    assert state.log.last_index > 6


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
