"""Rules R13 to R16: what a leader may count."""

from __future__ import annotations

import pytest

from raft.errors import PeerProtocolError
from tests.raft.builders import append, append_reply, send
from tests.raft.cluster import Cluster, state_of


@pytest.mark.parametrize("is_lean", [True, False])
def test_match_never_goes_back(is_lean: bool) -> None:
    cluster = Cluster()
    cluster.nodes[1].replica.is_lean = is_lean
    cluster.elect(1)
    cluster.replicate(1, "abc")
    assert cluster.state(1).progress[2].match == 3

    cluster.receive(1, append_reply(2, 1, 1, match=1))

    assert cluster.state(1).progress[2].match == 3


def test_ack_beyond_the_log_is_a_protocol_error(cluster: Cluster) -> None:
    with pytest.raises(PeerProtocolError, match="acked 99"):
        cluster.receive(1, append_reply(2, 1, 1, match=99))

    assert cluster.state(1).progress[2].match == 0


def test_late_sync_report_for_overwritten_entry() -> None:
    """The core ignores a report that names another term."""
    cluster = Cluster(states={2: state_of([1], term=5)})
    cluster.nodes[2].syncs_at_once = False
    core = cluster.nodes[2].core
    send(cluster, append(1, 2, 5, prev=(0, 1), terms=[5, 5]))
    send(cluster, append(3, 2, 6, prev=(0, 1), terms=[6]))
    assert core.state.synced == 0

    core.stable_to(1, 5)
    assert core.state.synced == 0
    core.stable_to(2, 5)
    assert core.state.synced == 0
    core.stable_to(1, 6)
    assert core.state.synced == 1
