"""A pump whose term and vote could not be saved goes on with what the disk holds, and no more."""

from __future__ import annotations

from raft.messages import NO_INDEX
from tests.raft.builders import append, vote_request
from tests.raft.cluster import Cluster


def test_unsynced_term_stays_secret_after_a_failed_write() -> None:
    """Term 1 is written and its sync under way when the write of term 2 fails. Found by the
    simulator."""
    cluster = Cluster()
    node = cluster.nodes[2]
    node.syncs_at_once = False
    cluster.receive(2, vote_request(1, 2, 1))
    node.log.fails_hard_state = True

    cluster.receive(2, vote_request(3, 2, 2))
    cluster.receive(2, append(1, 2, 1, prev=(NO_INDEX, 0)))
    cluster.receive(2, append(1, 2, 0))

    assert node.log.durable_hard_state.term == 0
    assert cluster.sent == [], "term 1 was revealed before its sync"
    cluster.sync(2)
    assert node.log.durable_hard_state.term == 1
    assert {message.term for message in cluster.sent} == {1}
