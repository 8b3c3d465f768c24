"""Callers that wait for an entry: each gets one answer, also at the edge of what decides it."""

from raft.pump.effects import Resolution
from raft.pump.pending_proposals import PendingProposals
from raft.state.log_view import LogView
from tests.raft.cluster import Cluster, config_of


def test_a_snapshot_answers_those_up_to_its_last_entry() -> None:
    waiters = PendingProposals(config_of(1))
    for index in (4, 5, 6):
        waiters.register(index, 1, f"caller {index}")
    waiters.overtaken(5)
    answered = waiters.take()
    assert [(at.waiter, at.resolution) for at in answered] == [
        ("caller 4", Resolution.UNKNOWN),
        ("caller 5", Resolution.UNKNOWN),
    ]
    assert len(waiters) == 1


def test_an_entry_of_another_term_at_the_index_is_an_answer() -> None:
    waiters, log = PendingProposals(config_of(1)), LogView()
    log.append(1, 2)
    log.append(3, 1)
    waiters.register(1, 1, "kept")
    waiters.register(2, 2, "replaced")
    waiters.complete(0, 3, log)
    assert [at.resolution for at in waiters.take()] == [
        Resolution.COMMITTED,
        Resolution.NOT_APPLIED,
    ]


def test_an_entry_that_nobody_waits_for_has_no_outcome(cluster: Cluster) -> None:
    cluster.propose(1, "alone")
    cluster.propose(1, "awaited", waiter="caller")
    cluster.deliver()
    assert [(at.waiter, at.index) for at in cluster.nodes[1].completed] == [("caller", 2)]
