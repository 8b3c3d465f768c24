"""The shell speaks to the replica only: each input and report of the core passes through the
pump."""

from __future__ import annotations

from typing import Any

import pytest

from raft.errors import (
    BusyError,
    NotLeaderError,
    RecoveryRefusedError,
)
from raft.messages import (
    Standing,
)
from raft.pump.replica import Replica
from raft.rules import recovery, snapshot
from tests.raft.cluster import Cluster, led
from tests.raft.memory_log import ENTRY_SIZE_BYTES


def filled(count: int = 4, **settings: Any) -> Cluster:
    """Return a cluster led by node 1 with `count` data entries applied everywhere."""
    cluster = led(**settings)
    for value in range(count):
        cluster.replicate(1, [value])
    cluster.beat(1)
    return cluster


def test_check_propose_on_a_follower_names_the_leader() -> None:
    cluster = filled()
    with pytest.raises(NotLeaderError) as caught:
        cluster.nodes[2].replica.check_propose()
    assert caught.value.leader_hint == 1


def facts(replica: Replica) -> tuple[object, ...]:
    return replica.core.state.log.last_index, replica.core.has_ready(), len(replica.proposals)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"waiter_count_max": 2}, "waiting proposals: 2 held, limit 2"),
        ({"uncommitted_entry_count_max": 2}, "uncommitted entries: 2 held, limit 2"),
        ({"uncommitted_size_bytes_max": 2 * ENTRY_SIZE_BYTES}, "uncommitted bytes: 200 held"),
    ],
)
def test_check_propose_agrees_with_propose_and_changes_nothing(
    limit: dict[str, int], words: str
) -> None:
    """At each limit the check and the proposal raise the same error."""
    cluster = filled(**limit)
    replica = cluster.nodes[1].replica
    cluster.isolate(1)
    for value in "ab":
        before = facts(replica)
        replica.check_propose()
        assert facts(replica) == before
        cluster.propose(1, value, waiter=value)
    last = cluster.nodes[1].log.last_index
    with pytest.raises(BusyError, match=words):
        cluster.propose(1, "c", waiter="c")
    with pytest.raises(BusyError, match=words):
        replica.check_propose()
    assert cluster.nodes[1].log.last_index == last
    if "waiter_count_max" in limit:
        cluster.propose(1, "nobody waits for this")


def test_accepted_loss_is_durable_before_the_node_votes_and_is_reported_once() -> None:
    cluster = filled()
    with pytest.raises(RecoveryRefusedError, match="standing is full"):
        recovery.accept_loss(cluster.nodes[1].replica.core.state)
    cluster.reboot(1, recovering=True)
    replica = cluster.nodes[1].replica
    cluster.nodes[1].syncs_at_once = False
    recovery.accept_loss(replica.core.state)
    effects = cluster.settle(1)
    assert effects.flush is not None
    assert effects.must_sync
    assert cluster.nodes[1].losses == [cluster.state(1).log.last_index + 1]
    cluster.sync(1)
    assert cluster.nodes[1].log.load().hard_state.standing is Standing.FULL
    cluster.tick(1)
    assert len(cluster.nodes[1].losses) == 1


def test_cutting_keeps_what_this_turn_owes() -> None:
    """An append built earlier in the turn still leaves with its bytes."""
    cluster = filled(retained_lag_entry_count_max=0)
    replica = cluster.nodes[1].replica
    meta = snapshot.meta_at(replica.core.state, replica.applied)
    cluster.nodes[1].log.snapshot = meta
    cluster.nodes[1].log.sync()
    snapshot.snapshot_durable(replica.core.state, meta)
    replica.propose("new")
    replica.compact_to(meta.index)
    cluster.nodes[1].log.cut(meta.index)
    sent = [outgoing for outgoing in replica.pump().send if outgoing.payload is not None]
    assert [outgoing.message.to for outgoing in sent] == [2, 3]
