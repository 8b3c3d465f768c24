"""Rules R37 and R38: what the caller of a proposal is told."""

from __future__ import annotations

from raft.pump.effects import Resolution
from raft.pump.pending_proposals import PendingProposals
from raft.state.log_view import LogView
from tests.raft.builders import append_reply
from tests.raft.cluster import ELECTION_TICKS, HEARTBEAT_TICKS, Cluster, config_of, led


def outcomes(cluster: Cluster, node: int = 1) -> list[tuple[object, Resolution]]:
    return [(done.waiter, done.resolution) for done in cluster.nodes[node].completed]


def test_committed_proposal_is_reported_with_its_place(cluster: Cluster) -> None:
    index, term = cluster.propose(1, "a", waiter="w")
    cluster.deliver()

    done = cluster.nodes[1].completed[0]
    assert (done.waiter, done.index, done.term) == ("w", index, term)
    assert done.resolution is Resolution.COMMITTED


def test_deposed_proposal_that_survives_is_reported_committed(cluster: Cluster) -> None:
    cluster.propose(1, "a", waiter="w")
    cluster.deliver(link=(1, 2))
    cluster.isolate(1)
    cluster.elect(2)
    cluster.heal()

    cluster.tick_all(3 * HEARTBEAT_TICKS)

    assert outcomes(cluster) == [("w", Resolution.COMMITTED)]


def test_reelected_leader_still_answers(cluster: Cluster) -> None:
    cluster.isolate(1)
    cluster.propose(1, "a", waiter="w")
    cluster.tick(1, 2 * ELECTION_TICKS)
    cluster.heal()
    cluster.elect(1)
    assert outcomes(cluster) == [("w", Resolution.COMMITTED)]


def test_a_deposed_leader_that_cannot_save_its_term_lets_nobody_wait(cluster: Cluster) -> None:
    """It starts again from its disk: what comes of the proposal is for others to tell."""
    cluster.isolate(1)
    cluster.propose(1, "a", waiter="w")
    cluster.nodes[1].log.fails_hard_state = True

    cluster.receive(1, append_reply(2, 1, 5))

    assert outcomes(cluster) == [("w", Resolution.UNKNOWN)]
    assert len(cluster.nodes[1].replica.proposals) == 0


def test_the_end_of_a_lost_leadership_gives_up_nobody_of_the_next_one() -> None:
    """The node leads again when the time is over in which the waiters of before get an answer."""
    cluster = led(waiter_grace_ticks=4 * ELECTION_TICKS)
    cluster.isolate(1)
    cluster.propose(1, "a", waiter="before")
    cluster.receive(1, append_reply(2, 1, 5))
    cluster.heal()
    cluster.elect(1)
    assert outcomes(cluster) == [("before", Resolution.COMMITTED)]
    cluster.isolate(1)
    cluster.propose(1, "b", waiter="now")

    term, match = cluster.state(1).term, cluster.state(1).commit
    for _ in range(4 * ELECTION_TICKS):
        cluster.tick(1)
        cluster.receive(1, append_reply(2, 1, term, match=match))
    assert len(outcomes(cluster)) == 1
    cluster.receive(1, append_reply(2, 1, term, match=match + 1))

    assert outcomes(cluster)[1:] == [("now", Resolution.COMMITTED)]


def test_second_proposal_at_an_index_gives_the_first_up() -> None:
    cluster = led(waiter_grace_ticks=10_000)
    cluster.isolate(1)
    cluster.propose(1, "first", waiter="w1")
    state = cluster.state(1)
    cluster.receive(1, append_reply(2, 1, 5))
    replica = cluster.nodes[1].replica
    replica.proposals.register(state.log.last_index, 9, "w2")
    cluster.settle(1)
    assert outcomes(cluster) == [("w1", Resolution.UNKNOWN)]


def test_stopping_leaves_nobody_waiting(cluster: Cluster) -> None:
    cluster.isolate(1)
    for waiter in ("a", None, "b"):
        cluster.propose(1, waiter, waiter=waiter)

    left = cluster.nodes[1].replica.stop()

    assert [(done.waiter, done.resolution) for done in left] == [
        ("a", Resolution.UNKNOWN),
        ("b", Resolution.UNKNOWN),
    ]


# --- The table of those who wait: each gets one answer, also at the edge of what decides it ---


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
