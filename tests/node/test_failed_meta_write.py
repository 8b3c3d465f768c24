"""A pump whose term and vote could not be saved goes on with what the disk holds, and no more."""

from __future__ import annotations

from raft.messages import NO_INDEX, Configuration, ConfigurationAt, SnapshotMeta
from tests.raft.builders import append, install, payload_of, vote_request
from tests.raft.cluster import Cluster, state_of


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


def _meta() -> SnapshotMeta:
    return SnapshotMeta(2, 3, ConfigurationAt(NO_INDEX, Configuration((1, 2, 3))))


def test_snapshot_that_could_not_be_installed_commits_nothing() -> None:
    """The core has stepped the snapshot when its new term cannot be saved; the log keeps entries
    that conflict with it, and they must not pass for applied. Found by the simulator."""
    cluster = Cluster(states={2: state_of([1, 2, 2], term=2)})
    node = cluster.nodes[2]
    node.log.fails_hard_state = True

    cluster.receive(2, install(3, 2, 3, _meta()))

    assert node.log.terms() == [1, 2, 2]
    state = cluster.state(2)
    assert (state.term, state.commit, state.applied) == (2, NO_INDEX, NO_INDEX)


def test_unsynced_entries_are_not_taken_for_synced_with_the_snapshot_that_failed() -> None:
    cluster = Cluster(states={2: state_of([1], term=2)})
    node = cluster.nodes[2]
    node.syncs_at_once = False
    message = append(1, 2, 2, prev=(0, 1), terms=[2, 2])
    cluster.receive(2, message, payload_of(message))
    node.log.fails_hard_state = True

    cluster.receive(2, install(3, 2, 3, _meta()))

    assert cluster.state(2).synced == 0
    cluster.sync(2)
    assert cluster.state(2).synced == 2


def test_installed_snapshot_stays_secret_until_its_sync() -> None:
    """The snapshot is installed, its sync under way, when the write of the next term fails."""
    cluster = Cluster(states={2: state_of([1, 2, 2], term=3)})
    node = cluster.nodes[2]
    node.syncs_at_once = False
    cluster.receive(2, install(3, 2, 3, _meta()))
    node.log.fails_hard_state = True
    cluster.receive(2, vote_request(1, 2, 4, last=(5, 3), transfer=True))

    cluster.receive(2, append(3, 2, 3, prev=(0, 1), commit=2))

    assert cluster.sent == [], "an ack for the snapshot left before its sync"
    cluster.sync(2)
    assert cluster.sent != []
