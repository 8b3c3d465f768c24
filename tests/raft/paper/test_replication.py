"""One test per claim about logs, commitment, membership, snapshots and reads."""

from __future__ import annotations

import pytest

from raft.errors import ChangeRefusedError, NotLeaderError
from raft.messages import AppendReply, Refusal
from raft.ready import ReadConfirmed
from raft.rules.membership import Change, ChangeKind
from raft.transitions import Role
from tests.raft.builders import append, append_reply, payload_of
from tests.raft.cluster import HEARTBEAT_TICKS, Cluster, state_of
from tests.raft.rules.test_commit import make_leader
from tests.raft.rules.test_snapshot import lagging_cluster


def test_only_the_leader_takes_requests() -> None:
    """Paper 5.1, 8: a follower redirects the client to the leader."""
    cluster = Cluster()
    cluster.elect(1)
    with pytest.raises(NotLeaderError) as caught:
        cluster.propose(2, "x")
    assert caught.value.leader_hint == 1


def test_entry_is_committed_once_a_majority_holds_it() -> None:
    """Paper 5.3: committed once the leader that created it has replicated it on a majority."""
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.drop()
    cluster.receive(1, append_reply(2, 1, 1, match=1))
    assert cluster.state(1).commit == 0
    cluster.receive(1, append_reply(3, 1, 1, match=1))
    assert cluster.state(1).commit == 1


def test_commit_covers_everything_before() -> None:
    """Paper 5.3: this also commits all preceding entries, also those of earlier leaders."""
    cluster = Cluster(states={node: state_of([1, 1, 2], term=2) for node in (1, 2, 3)})
    cluster.elect(1)
    assert cluster.state(1).commit == 3


def test_followers_apply_what_they_learn_is_committed() -> None:
    """Paper 5.3: once a follower learns that an entry is committed it applies it, in log order."""
    cluster = Cluster()
    cluster.elect(1)
    for body in "abc":
        cluster.propose(1, body)
    cluster.deliver()
    cluster.tick_all(HEARTBEAT_TICKS)
    assert cluster.nodes[3].applied == ["a", "b", "c"]


def test_leader_retries_until_all_store_all() -> None:
    """Paper 5.3: it retries appends, also after it answered the client, until all followers store
    all."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, "x", waiter="w")
    cluster.deliver()
    assert [done.waiter for done in cluster.nodes[1].completed] == ["w"]
    cluster.heal()
    cluster.tick_all(2 * HEARTBEAT_TICKS)
    assert cluster.nodes[3].log.bodies() == ["x"]


def test_append_needs_the_entry_before() -> None:
    """Paper 5.3: without an entry of that index and term the follower refuses the new entries."""
    cluster = Cluster(states={2: state_of([1, 1])})
    for prev in ((1, 2), (5, 1)):
        message = append(1, 2, 3, prev=prev, terms=[3])
        cluster.receive(2, message, payload_of(message))
        reply = cluster.sent[-1]
        assert isinstance(reply, AppendReply)
        assert reply.refusal is Refusal.NO_MATCH
    assert cluster.nodes[2].log.terms() == [1, 1]


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", list(FIGURE_7))
def test_leader_makes_followers_logs_its_own(case: str) -> None:
    """Paper 5.3, figure 7: whatever a follower's log is, conflicts are replaced by the leader's."""
    leader_log = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    cluster = Cluster(
        states={
            1: state_of(leader_log, term=7),
            2: state_of(FIGURE_7[case], term=7),
            3: state_of(leader_log, term=7),
        }
    )
    cluster.cuts = {(2, 1)}
    cluster.elect(1)
    cluster.heal()
    cluster.tick_all(3 * HEARTBEAT_TICKS)
    assert cluster.nodes[2].log.terms() == [*leader_log, 8]


def test_leader_never_overwrites_its_own_log() -> None:
    """Paper 5.3, leader append-only: a leader only appends."""
    cluster = Cluster(states={1: state_of([1, 2, 2], term=4)})
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.deliver()
    assert cluster.nodes[1].log.terms()[:3] == [1, 2, 2]
    assert not any(name.startswith("truncate") for name in cluster.nodes[1].log.operations)


def test_old_terms_are_not_committed_by_counting() -> None:
    """Paper 5.4.2: only entries of the leader's current term are committed by counting replicas."""
    cluster = Cluster(states={1: state_of([1, 2], term=8)})
    make_leader(cluster, 1)
    state = cluster.state(1)
    cluster.receive(1, append_reply(2, 1, state.term, match=1))
    assert state.commit == -1
    cluster.receive(1, append_reply(2, 1, state.term, match=2))
    assert state.commit == 2


def test_repeated_requests_are_harmless() -> None:
    """Paper 5.5: RPCs are idempotent; a follower ignores entries already in its log."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.net += list(cluster.net)
    cluster.deliver()
    assert cluster.nodes[2].log.bodies() == ["x"]


def test_new_leader_commits_a_no_op_first() -> None:
    """Paper 8, thesis 6.4: it commits a blank entry at the start of its term."""
    cluster = Cluster()
    cluster.elect(1)
    entry = cluster.nodes[2].log.entries[0]
    assert (entry.kind.name, entry.body, cluster.state(1).commit) == ("NO_OP", None, 0)


def test_leader_may_commit_before_its_own_disk() -> None:
    """Thesis 10.2.1: it writes its disk in parallel and counts itself only when the write is
    done."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.nodes[1].syncs_at_once = False
    cluster.propose(1, "x")
    assert [m.hi for m in cluster.appends_to(2)][-1] == 2, "sent before the sync"
    cluster.deliver(link=(1, 2))
    cluster.deliver(link=(2, 1))
    assert cluster.state(1).commit == 0
    cluster.sync(1)
    assert cluster.state(1).commit == 1


def test_appends_are_pipelined() -> None:
    """Thesis 10.2.2: the next append is sent without waiting for the answer to the last."""
    cluster = Cluster()
    cluster.elect(1)
    for body in "ab":
        cluster.propose(1, body)
    assert [m.prev_index for m in cluster.appends_to(2)][-2:] == [0, 1]


def test_configuration_is_used_as_soon_as_it_is_in_the_log() -> None:
    """Thesis 4.1: a server uses the latest configuration in its log, committed or not."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.nodes[1].replica.propose_change(Change(ChangeKind.REMOVE, 3))
    cluster.settle(1)
    assert (cluster.state(1).voters, cluster.state(1).commit) == ((1, 2), 0)


def test_next_change_waits_for_the_commit_of_the_last() -> None:
    """Thesis 4.1: the leader may start another change once the configuration entry is committed."""
    cluster = Cluster(voters=(1, 2, 3, 4, 5))
    cluster.elect(1)
    cluster.nodes[1].replica.propose_change(Change(ChangeKind.REMOVE, 5))
    with pytest.raises(ChangeRefusedError):
        cluster.nodes[1].replica.propose_change(Change(ChangeKind.REMOVE, 4))


def test_new_server_catches_up_without_a_vote() -> None:
    """Thesis 4.2.1: a new server joins as a non-voting member and is promoted when caught up."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.start_joining(4)
    cluster.nodes[1].replica.propose_change(Change(ChangeKind.ADD_LEARNER, 4))
    cluster.settle(1)
    assert cluster.state(1).voters == (1, 2, 3)
    cluster.deliver()
    cluster.nodes[1].replica.propose_change(Change(ChangeKind.PROMOTE, 4))
    assert cluster.state(1).voters == (1, 2, 3, 4)


def test_leader_that_removes_itself_steps_down_when_committed() -> None:
    """Thesis 4.2.2: it steps down once the new configuration is committed, not counting itself."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.nodes[1].replica.propose_change(Change(ChangeKind.REMOVE, 1))
    cluster.settle(1)
    assert cluster.role(1) is Role.LEADER
    cluster.deliver()
    assert cluster.role(1) is Role.FOLLOWER


def test_lagging_follower_gets_a_snapshot() -> None:
    """Paper 7: the leader sends a snapshot when it has discarded the next entry to send."""
    cluster = lagging_cluster()
    cluster.tick_all(4 * HEARTBEAT_TICKS)
    assert cluster.state(3).log.base_index == 4


def test_read_index() -> None:
    """Thesis 6.4: remember the commit index, confirm leadership with a round, serve once
    applied."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.deliver()
    cluster.read(1, 7)
    assert cluster.nodes[1].reads == []
    cluster.deliver()
    assert cluster.nodes[1].reads == [ReadConfirmed(7, 1)]
