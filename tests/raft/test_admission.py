"""A node whose memory is in doubt is admitted when it holds what it may once have acked."""

from __future__ import annotations

from raft.messages import Standing
from tests.raft.cluster import Cluster


def test_no_admission_before_the_target_is_reached() -> None:
    """It gets one entry per append, and stays in doubt until the leader's commit index of then."""
    cluster = Cluster(message_entry_count_max=1, window_entry_count_max=1)
    cluster.elect(1)
    for value in range(6):
        cluster.propose(1, value)
        cluster.deliver()
    cluster.tick(1, 2)
    cluster.deliver()
    target = cluster.state(1).commit
    cluster.crash(3)
    # Its disk lost everything, as a page cache may; what it acked was on the other two as well.
    cluster.nodes[3].log.entries.clear()
    cluster.nodes[3].log.sync()
    cluster.restart(3, recovering=True)
    state = cluster.state(3)
    assert (state.log.last_index, state.standing) == (-1, Standing.RECOVERING)

    in_doubt = set()
    for _ in range(200):
        if not cluster.deliver(count=1):
            cluster.tick(1)
        if cluster.state(3).standing is Standing.FULL:
            break
        in_doubt.add(cluster.state(3).log.last_index)

    assert cluster.state(3).standing is Standing.FULL
    assert cluster.state(3).log.last_index >= target
    assert in_doubt >= set(range(target)), "it was admitted before it held all of it"
