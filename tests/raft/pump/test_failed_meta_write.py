"""A pump whose term and vote could not be saved goes on with what the disk holds, and no more."""

from __future__ import annotations

import pytest

from raft.messages import NO_INDEX, NO_NODE, Configuration, ConfigurationAt, SnapshotMeta
from raft.rules import read_index
from raft.transitions import Role
from tests.raft.builders import append, append_reply, install, send, vote_request
from tests.raft.cluster import Cluster, led, state_of


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
    send(cluster, append(1, 2, 2, prev=(0, 1), terms=[2, 2]))
    node.log.fails_hard_state = True

    cluster.receive(2, install(3, 2, 3, _meta()))

    assert cluster.state(2).synced == 0
    cluster.sync(2)
    assert cluster.state(2).synced == 2


@pytest.mark.parametrize("term", [2, 3])
def test_installed_snapshot_stays_secret_until_its_sync(term: int) -> None:
    """The snapshot is installed, its sync under way, when the write of the next term fails.

    From term 2 on there was a sync before, for the leader's term, which ends in between."""
    cluster = Cluster(states={2: state_of([1, 2, 2], term=term)})
    node = cluster.nodes[2]
    node.syncs_at_once = False
    cluster.receive(2, append(3, 2, 3, prev=(0, 1)))
    cluster.receive(2, install(3, 2, 3, _meta()))
    assert len(node.tickets) == (2 if term == 2 else 1)
    if term == 2:
        cluster.sync(2, through=node.tickets[0])
    cluster.sent.clear()
    node.log.fails_hard_state = True
    cluster.receive(2, vote_request(1, 2, 4, last=(5, 3), transfer=True))

    cluster.receive(2, append(3, 2, 3, prev=(0, 1), commit=2))

    assert cluster.sent == [], "an ack for the snapshot left before its sync"
    cluster.sync(2)
    assert cluster.sent != []


@pytest.mark.parametrize("stage", ["waiting", "pending", "confirmed"])
def test_reads_of_a_deposed_leader_fail_when_the_new_term_cannot_be_saved(stage: str) -> None:
    """Else their callers, and whoever acts for the leader, would wait for a word that never comes.

    A read that has its quorum in the very turn of the failure is not told apart."""
    cluster = led()
    node = cluster.nodes[1]
    if stage == "waiting":
        read_index.read_index(node.replica.core.state, 7)
    else:
        cluster.read(1, 7)
    if stage == "confirmed":
        round_id = cluster.state(1).round
        node.replica.receive(append_reply(2, 1, 1, match=0, round_id=round_id))
    node.log.fails_hard_state = True
    cluster.receive(1, vote_request(2, 1, 2, last=(9, 1), transfer=True))

    assert (node.reads, node.reads_failed) == ([], [7])
    last = node.role_changes[-1]
    assert (last.role, last.term, last.leader) == (Role.FOLLOWER, 1, NO_NODE)
    assert cluster.state(1).role is Role.FOLLOWER
