"""Three real nodes that are told to stop: leadership passes on once, and nobody hands it round."""

from pathlib import Path

import pytest

from deploy.local import LocalCluster
from tests.patience import wait_for

HANDED_OVER = "handed leadership over"
SETTINGS = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB", "election_min_ms": 300}


@pytest.mark.long
def test_a_stop_of_the_leader_leaves_no_gap_of_an_election(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path / "c", 3, settings=SETTINGS) as cluster:
        leader = cluster.leader_id()
        cluster.stop(leader)
        assert cluster.exit_code(leader) == 0
        wait_for("another leader", lambda: cluster.leader_id() not in (0, leader))
        assert HANDED_OVER in cluster.log_path(leader).read_text()
        cluster.start(leader)
        cluster.wait_ready(node_ids=cluster.node_ids)
        before = hand_over_count(cluster)
        assert cluster.stop() == []
        # All at once: who drains takes nothing over, else they hand it round until they have ended.
        assert hand_over_count(cluster) - before <= 2


def hand_over_count(cluster: LocalCluster) -> int:
    return sum(cluster.log_path(n).read_text().count(HANDED_OVER) for n in cluster.node_ids)
