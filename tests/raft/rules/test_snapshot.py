"""Rules R30 to R32: snapshots are whole, never older than what is there, and come before any
cut."""

from __future__ import annotations

from typing import Any

import pytest

from raft.errors import CompactionRefusedError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    AppendReply,
    Configuration,
    ConfigurationAt,
    InstallSnapshot,
    SnapshotMeta,
)
from raft.rules import snapshot
from raft.state.progress import ProgressState
from tests.raft.builders import append, install
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, led, state_of

MEMBERS = ConfigurationAt(4, Configuration((1, 2, 3), (8,)))


def meta(index: int, term: int) -> SnapshotMeta:
    return SnapshotMeta(index, term, MEMBERS)


def take_snapshot(cluster: Cluster, node: int) -> None:
    """Let a node snapshot what it has applied and cut its log there."""
    log, replica = cluster.nodes[node].log, cluster.nodes[node].replica
    taken = snapshot.meta_at(replica.core.state, replica.applied)
    log.snapshot = taken
    log.sync()
    snapshot.snapshot_durable(replica.core.state, taken)
    replica.compact_to(taken.index)
    log.cut(taken.index)


def lagging_cluster(**settings: Any) -> Cluster:
    """Return a cluster in which node 3 needs entries that the leader no longer has."""
    cluster = led(**settings)
    cluster.isolate(3)
    cluster.replicate(1, "abcd")
    cluster.tick_all(HEARTBEAT_TICKS)
    take_snapshot(cluster, 1)
    cluster.heal()
    return cluster


def acks(cluster: Cluster) -> list[int]:
    return [m.match for m in cluster.sent if isinstance(m, AppendReply)]


def test_install_replaces_state_log_and_membership() -> None:
    cluster = Cluster(states={2: state_of([1, 1], term=3)})

    cluster.receive(2, install(1, 2, 3, meta(7, 2)))

    state = cluster.state(2)
    assert (state.log.base_index, state.log.last_index, state.log.last_term) == (7, 7, 2)
    assert (state.commit, state.applied, state.synced) == (7, 7, 7)
    assert (state.voters, state.learners) == ((1, 2, 3), (8,))
    assert cluster.nodes[2].applied == ["state through 7"]
    assert acks(cluster) == [7]


def test_a_snapshot_of_a_second_leader_ends_the_term() -> None:
    """One of the two has lost a vote: neither may lead on, and nothing is taken of the second."""
    cluster = Cluster(states={2: state_of([1, 1], term=3)})
    cluster.receive(2, append(1, 2, 3, prev=(1, 1)))

    cluster.receive(2, install(3, 2, 3, meta(7, 2)))

    state = cluster.state(2)
    assert (state.term, state.leader, state.vote) == (4, NO_NODE, NO_NODE)
    assert (state.log.base_index, state.log.last_index) == (NO_INDEX, 1)


def test_answers_leave_at_once_when_the_snapshot_is_durable() -> None:
    """Nothing new has to be written before: the sync of the snapshot itself opens the gate."""
    cluster = Cluster(states={2: state_of([1, 1], term=3)})
    cluster.receive(2, install(1, 2, 3, meta(7, 2)))
    assert cluster.state(2).snapshot_gate == NO_INDEX
    cluster.nodes[2].syncs_at_once = False
    cluster.sent.clear()

    cluster.receive(2, append(1, 2, 3, prev=(7, 2), round_id=5))

    assert acks(cluster) == [7], "a heartbeat is answered without a sync"


def test_two_in_a_row() -> None:
    cluster = Cluster(states={2: state_of([1, 1], term=3)})
    cluster.nodes[2].syncs_at_once = False

    cluster.receive(2, install(1, 2, 3, meta(7, 2)))
    cluster.receive(2, install(1, 2, 3, meta(9, 3)))
    cluster.receive(2, install(1, 2, 3, meta(7, 2)))
    cluster.sync(2, through=1)
    assert 9 not in acks(cluster), "the sync of the first says nothing of the second"
    cluster.sync(2)

    assert (cluster.state(2).log.base_index, cluster.state(2).commit) == (9, 9)
    assert max(acks(cluster)) == 9


def test_no_snapshot_for_a_silent_follower() -> None:
    """Streaming a state to nobody costs the leader; heartbeats find out when it is back."""
    cluster = lagging_cluster()
    cluster.isolate(3)

    cluster.tick_all(5 * ELECTION_TICKS)

    assert not any(isinstance(m, InstallSnapshot) for m in cluster.sent)
    assert cluster.leaders() == [1]


def test_failed_and_overdue_transfers_lead_back_to_probe() -> None:
    cluster = lagging_cluster()
    progress = cluster.state(1).progress[3]

    def is_in(state: ProgressState) -> bool:
        return progress.state is state

    def lose_snapshots() -> None:
        for _ in range(8):
            cluster.tick(1)
            while progress.state is not ProgressState.SNAPSHOT and cluster.deliver(count=1):
                pass
        cluster.take(InstallSnapshot)

    lose_snapshots()
    assert is_in(ProgressState.SNAPSHOT)
    cluster.nodes[1].replica.core.report_snapshot_failed(3)
    assert is_in(ProgressState.PROBE)

    lose_snapshots()
    assert is_in(ProgressState.SNAPSHOT)
    progress.snapshot_deadline = cluster.state(1).now
    cluster.isolate(3)
    cluster.tick(1, HEARTBEAT_TICKS)
    assert is_in(ProgressState.PROBE)


def test_dedupe_and_members_travel_with_snapshot() -> None:
    """Index, term and membership are in the meta; the deduplication table is part of the state."""
    cluster = lagging_cluster()
    cluster.tick_all(4 * HEARTBEAT_TICKS)

    sent = next(m for m in cluster.sent if isinstance(m, InstallSnapshot))
    assert sent.meta == SnapshotMeta(4, 1, ConfigurationAt(NO_INDEX, Configuration((1, 2, 3))))
    assert cluster.nodes[3].log.snapshot_state == "state through 4"
    cluster.reboot(3)
    assert cluster.state(3).voters == (1, 2, 3)
    assert cluster.state(3).log.base_index == 4


def test_no_cut_before_snapshot_is_durable(cluster: Cluster) -> None:
    cluster.replicate(1, "abc")
    replica = cluster.nodes[1].replica

    with pytest.raises(CompactionRefusedError, match="allowed through -1"):
        replica.compact_to(1)
    assert snapshot.compactable_to(replica.core.state) == NO_INDEX
    snapshot.snapshot_durable(replica.core.state, snapshot.meta_at(replica.core.state, 2))
    with pytest.raises(CompactionRefusedError, match="allowed through 2"):
        replica.compact_to(3)
    replica.compact_to(2)
    assert cluster.state(1).log.base_index == 2


def test_log_is_kept_for_a_slow_follower_within_limits() -> None:
    cluster = led(retained_lag_entry_count_max=5)
    cluster.isolate(3)
    cluster.replicate(1, range(4))
    core = cluster.nodes[1].core
    snapshot.snapshot_durable(core.state, snapshot.meta_at(core.state, 4))
    assert snapshot.compactable_to(core.state) == 0, "node 3 holds entry 0 only and is 4 behind"

    cluster.replicate(1, range(4))
    assert snapshot.compactable_to(core.state) == 4, (
        "8 behind is beyond the limit: it will get a snapshot"
    )


def test_snapshot_answers_waiters_it_covers_with_unknown(cluster: Cluster) -> None:
    cluster.isolate(1)
    cluster.propose(1, "a", waiter="w")

    cluster.receive(1, install(2, 1, 5, meta(7, 5)))

    assert [(done.waiter, done.resolution.value) for done in cluster.nodes[1].completed] == [
        ("w", "unknown")
    ]
