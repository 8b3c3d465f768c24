"""Rule R45: what a restart brings back. The broker's part (dedupe, offsets) is tested with it."""

from __future__ import annotations

import pytest

from tests.raft.cluster import HEARTBEAT_TICKS, Cluster, state_of


def test_applied_state_is_never_ahead_of_the_durable_log(cluster: Cluster) -> None:
    cluster.nodes[2].syncs_at_once = False
    cluster.replicate(1, "ab")
    cluster.tick_all(HEARTBEAT_TICKS)

    assert cluster.state(2).commit == 2
    assert cluster.nodes[2].applied == []
    assert cluster.state(2).handed <= cluster.nodes[2].log.durable_last_index
    cluster.sync(2)
    assert cluster.nodes[2].applied == ["a", "b"]


def test_commit_hint_above_the_log_is_lowered() -> None:
    cluster = Cluster(states={2: state_of([1, 1], commit=99)})
    assert cluster.state(2).commit == 1


def test_applied_beyond_the_log_is_refused() -> None:
    with pytest.raises(AssertionError, match="ahead of the log"):
        Cluster(states={2: state_of([1, 1])._replace(applied=5)})


def test_log_with_a_term_the_hard_state_never_saw_is_refused() -> None:
    """Term and vote were lost while the log was kept (D10)."""
    with pytest.raises(AssertionError, match="never saw"):
        Cluster(states={2: state_of([1, 5], term=3)})
