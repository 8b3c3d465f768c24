"""The shell speaks to the replica only: each input and report of the core passes through the
pump."""

from __future__ import annotations

from typing import Any

import pytest

from raft.errors import (
    BusyError,
    CompactionRefusedError,
    NotLeaderError,
    RecoveryRefusedError,
    TransferRefusedError,
    TransferringError,
)
from raft.messages import (
    NO_INDEX,
    AppendReply,
    AppendRequest,
    CampaignNow,
    InstallSnapshot,
    Standing,
)
from raft.state.progress import ProgressState
from raft.transitions import Role
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster


def filled(count: int = 4, **settings: Any) -> Cluster:
    """Return a cluster led by node 1 with `count` data entries applied everywhere."""
    cluster = Cluster(**settings)
    cluster.elect(1)
    for value in range(count):
        cluster.propose(1, value)
        cluster.deliver()
    cluster.tick(1, HEARTBEAT_TICKS)
    cluster.deliver()
    return cluster


def test_the_replica_shows_role_term_and_positions() -> None:
    cluster = filled()
    for node, role in ((1, Role.LEADER), (2, Role.FOLLOWER)):
        replica = cluster.nodes[node].replica
        assert (replica.leader, replica.role, replica.term) == (1, role, 1)
        assert (replica.commit, replica.applied) == (4, 4)


def test_applied_is_what_the_shell_reported_and_commit_is_not() -> None:
    cluster = filled()
    cluster.nodes[1].applies_at_once = False
    cluster.propose(1, "late")
    cluster.deliver()
    replica = cluster.nodes[1].replica
    assert (replica.commit, replica.applied) == (5, 4)
    cluster.apply(1)
    assert replica.applied == 5


def test_check_propose_on_a_follower_names_the_leader() -> None:
    cluster = filled()
    with pytest.raises(NotLeaderError) as caught:
        cluster.nodes[2].replica.check_propose()
    assert caught.value.leader_hint == 1


def test_check_propose_agrees_with_propose_and_changes_nothing() -> None:
    """At each limit the check and the proposal raise the same error."""
    cluster = filled(uncommitted_entry_count_max=2, waiter_count_max=2)
    replica = cluster.nodes[1].replica
    cluster.isolate(1)
    for value in "ab":
        before = replica.stats()
        replica.check_propose()
        assert replica.stats() == before
        cluster.propose(1, value, waiter=value)
    for limit in ("waiting proposals", "uncommitted entries"):
        waiter = "w" if limit == "waiting proposals" else None
        with pytest.raises(BusyError, match=limit):
            cluster.propose(1, "c", waiter=waiter)
    with pytest.raises(BusyError):
        replica.check_propose()

    cluster = filled(uncommitted_entry_count_max=1)
    cluster.isolate(1)
    cluster.propose(1, "a")
    with pytest.raises(BusyError, match="uncommitted entries"):
        cluster.nodes[1].replica.check_propose()


def test_check_propose_counts_waiters() -> None:
    cluster = filled(waiter_count_max=1)
    cluster.isolate(1)
    cluster.propose(1, "a", waiter="w")
    with pytest.raises(BusyError, match="waiting proposals"):
        cluster.nodes[1].replica.check_propose()


def test_transfer_order_leaves_with_the_same_turn() -> None:
    cluster = filled()
    replica = cluster.nodes[1].replica
    replica.transfer_leadership(2)
    with pytest.raises(TransferringError):
        replica.check_propose()
    effects = replica.pump()
    assert [type(outgoing.message) for outgoing in effects.send] == [CampaignNow]
    assert effects.send[0].message.to == 2


def test_transfer_is_refused_by_name() -> None:
    cluster = filled()
    with pytest.raises(NotLeaderError):
        cluster.nodes[2].replica.transfer_leadership(1)
    with pytest.raises(TransferRefusedError):
        cluster.nodes[1].replica.transfer_leadership(9)


def test_accepted_loss_is_durable_before_the_node_votes_and_is_reported_once() -> None:
    cluster = filled()
    with pytest.raises(RecoveryRefusedError):
        cluster.nodes[1].replica.accept_loss()
    cluster.crash(1)
    cluster.restart(1, recovering=True)
    replica = cluster.nodes[1].replica
    cluster.nodes[1].syncs_at_once = False
    replica.accept_loss()
    effects = cluster.settle(1)
    assert effects.flush is not None
    assert effects.must_sync
    assert cluster.nodes[1].losses == [cluster.state(1).log.last_index + 1]
    cluster.sync(1)
    assert cluster.nodes[1].log.load().hard_state.standing is Standing.FULL
    cluster.tick(1)
    assert len(cluster.nodes[1].losses) == 1


def test_broken_link_makes_the_leader_probe() -> None:
    cluster = filled()
    assert cluster.state(1).progress[2].state is ProgressState.REPLICATE
    cluster.nodes[1].replica.report_unreachable(2)
    assert cluster.state(1).progress[2].state is ProgressState.PROBE
    cluster.nodes[1].replica.report_unreachable(9)  # Nobody it knows: a link of a removed node.


def snapshot(cluster: Cluster, node: int) -> int:
    """Take a snapshot of all that is applied and cut as far as the followers allow."""
    replica = cluster.nodes[node].replica
    meta = replica.snapshot_meta_at(replica.applied)
    cluster.nodes[node].log.snapshot = meta
    cluster.nodes[node].log.sync()
    with pytest.raises(CompactionRefusedError):
        replica.compact_to(meta.index)
    replica.snapshot_durable(meta)
    limit = replica.compactable_to()
    replica.compact_to(limit)
    cluster.nodes[node].log.cut(limit)
    return limit


def test_log_is_cut_only_behind_a_durable_snapshot() -> None:
    cluster = filled()
    before = cluster.nodes[1].replica.compactable_to()
    assert before == -1
    assert snapshot(cluster, 1) == 4
    assert cluster.state(1).log.base_index == 4


def test_cutting_keeps_what_this_turn_owes() -> None:
    """An append built earlier in the turn still leaves with its bytes."""
    cluster = filled(retained_lag_entry_count_max=0)
    replica = cluster.nodes[1].replica
    meta = replica.snapshot_meta_at(replica.applied)
    cluster.nodes[1].log.snapshot = meta
    cluster.nodes[1].log.sync()
    replica.snapshot_durable(meta)
    replica.propose("new")
    replica.compact_to(meta.index)
    cluster.nodes[1].log.cut(meta.index)
    sent = [outgoing for outgoing in replica.pump().send if outgoing.payload is not None]
    assert [outgoing.message.to for outgoing in sent] == [2, 3]


def test_failed_snapshot_transfer_is_offered_again() -> None:
    cluster = Cluster(retained_lag_entry_count_max=0)
    cluster.elect(1)
    cluster.isolate(3)
    for value in range(4):
        cluster.propose(1, value)
        cluster.deliver()
    snapshot(cluster, 1)
    cluster.heal()
    cluster.tick(1, HEARTBEAT_TICKS)
    cluster.deliver(count=2 * ELECTION_TICKS)
    replica = cluster.nodes[1].replica
    assert [m for m in cluster.sent if isinstance(m, InstallSnapshot)], "no snapshot was offered"
    progress = cluster.state(1).progress[3]
    progress.become_snapshot(progress.match + 1, deadline=1 << 30)
    replica.report_snapshot_failed(3)
    assert progress.state is ProgressState.PROBE


def test_follower_without_room_hears_its_leader_and_takes_nothing() -> None:
    """It answers, so contact and reads go on; what it did not take is offered again."""
    cluster = filled()
    cluster.propose(1, "new")
    message = next(out.message for out in cluster.take(AppendRequest) if out.message.to == 2)
    assert isinstance(message, AppendRequest)
    replica = cluster.nodes[2].replica
    before = cluster.state(2).log.last_index
    cluster.state(2).contact_tick = -1000

    replica.receive_without_room(message)

    (sent,) = replica.pump().send
    assert isinstance(sent.message, AppendReply)
    assert sent.message.match == NO_INDEX
    assert cluster.state(2).log.last_index == before
    assert cluster.state(2).had_leader_contact()
    cluster.tick(1, 2 * HEARTBEAT_TICKS)
    cluster.deliver()
    assert cluster.state(2).log.last_index == before + 1
