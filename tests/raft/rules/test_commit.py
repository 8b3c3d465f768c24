"""Rules R13 to R16: what a leader may count."""

from __future__ import annotations

import pytest

from raft.errors import PeerProtocolError
from raft.messages import NO_INDEX, AppendReply
from raft.transitions import Role
from tests.raft.builders import append, append_reply, payload_of, vote_reply
from tests.raft.cluster import ELECTION_TICKS, Cluster, state_of


def make_leader(cluster: Cluster, node: int) -> None:
    """Let a node win an election without its peers hearing anything."""
    cluster.tick(node, 2 * ELECTION_TICKS)
    for pre in (True, False):
        for voter in cluster.state(node).voters:
            term = cluster.state(node).term
            if voter != node:
                wanted = term + 1 if pre else term
                cluster.receive(node, vote_reply(voter, node, term, vote_term=wanted, pre=pre))
    assert cluster.role(node) is Role.LEADER
    cluster.drop()


def test_ack_of_previous_leadership_ignored() -> None:
    cluster = Cluster(voters=(1, 2, 3))
    cluster.elect(1)
    cluster.nodes[2].syncs_at_once = False
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.sync(2)
    late = [outgoing.message for outgoing in cluster.take(AppendReply, to=1)]
    assert [m.match for m in late if isinstance(m, AppendReply)][-1:] == [1]

    # The leader is deposed and leads again in a later term.
    cluster.receive(1, append_reply(3, 1, 5))
    cluster.drop()
    make_leader(cluster, 1)
    term = cluster.state(1).term
    assert term == 6

    for message in late:
        cluster.receive(1, message)

    assert cluster.state(1).progress[2].match == NO_INDEX
    assert cluster.state(1).commit == 0


@pytest.mark.parametrize("is_lean", [True, False])
def test_match_never_goes_back(is_lean: bool) -> None:
    cluster = Cluster()
    cluster.nodes[1].replica.is_lean = is_lean
    cluster.elect(1)
    for body in "abc":
        cluster.propose(1, body)
    cluster.deliver()
    assert cluster.state(1).progress[2].match == 3

    cluster.receive(1, append_reply(2, 1, 1, match=1))

    assert cluster.state(1).progress[2].match == 3


def test_ack_beyond_the_log_is_a_protocol_error() -> None:
    cluster = Cluster()
    cluster.elect(1)

    with pytest.raises(PeerProtocolError, match="acked 99"):
        cluster.receive(1, append_reply(2, 1, 1, match=99))

    assert cluster.state(1).progress[2].match == 0


def test_late_sync_report_for_overwritten_entry() -> None:
    """The core ignores a report that names another term."""
    cluster = Cluster(states={2: state_of([1], term=5)})
    cluster.nodes[2].syncs_at_once = False
    core = cluster.nodes[2].core
    first = append(1, 2, 5, prev=(0, 1), terms=[5, 5])
    cluster.receive(2, first, payload_of(first))
    second = append(3, 2, 6, prev=(0, 1), terms=[6])
    cluster.receive(2, second, payload_of(second))
    assert core.state.synced == 0

    core.stable_to(1, 5)
    assert core.state.synced == 0
    core.stable_to(2, 5)
    assert core.state.synced == 0
    core.stable_to(1, 6)
    assert core.state.synced == 1


def test_sync_of_the_first_of_two_equal_writes_counts_for_neither() -> None:
    """(index, term) is written, cut, and written again: the first sync proves nothing of it
    (ABA)."""
    cluster = Cluster(voters=(1, 2, 3, 4, 5), states={})
    cluster.start(2, state_of([1], voters=(1, 2, 3, 4, 5), term=5))
    node = cluster.nodes[2]
    node.syncs_at_once = False
    for message in (
        append(1, 2, 5, prev=(0, 1), terms=[5]),
        append(3, 2, 6, prev=(0, 1), terms=[6]),
        append(4, 2, 7, prev=(0, 1), terms=[5]),
    ):
        cluster.receive(2, message, payload_of(message))
    assert node.tickets == [1, 2, 3]

    cluster.sync(2, through=1)
    assert cluster.state(2).synced == 0
    cluster.sync(2, through=2)
    assert cluster.state(2).synced == 0
    cluster.sync(2, through=3)
    assert cluster.state(2).synced == 1
    acks = [m for m in cluster.sent if isinstance(m, AppendReply) and m.match == 1]
    assert [(m.to, m.term) for m in acks] == [(4, 7)], "promises of terms 5 and 6 are dropped"
