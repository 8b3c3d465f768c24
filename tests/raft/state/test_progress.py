"""Rules R33 to R35: how a leader feeds a follower, and that nothing gets stuck or leaks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.messages import NO_INDEX, InstallSnapshot, Refusal
from raft.rules import snapshot
from raft.state.log_view import LogView
from raft.state.progress import Progress, ProgressState
from tests.raft.builders import append_reply
from tests.raft.cluster import HEARTBEAT_TICKS, Cluster, led, state_of
from tests.raft.memory_log import ENTRY_SIZE_BYTES, runs_of
from tests.seeds import examples


def flying_cluster(count: int, **limits: Any) -> Cluster:
    """Return a cluster with `count` proposals whose appends to node 2 are in flight."""
    cluster = led(**limits)
    cluster.isolate(3)
    for at in range(count):
        cluster.propose(1, at)
    return cluster


@pytest.mark.parametrize("state", list(ProgressState))
def test_follower_that_lost_its_memory_is_probed(state: ProgressState) -> None:
    """Whatever was on its way to it before: not until a snapshot's time is up, not blindly."""
    progress = Progress(2, 5, 0)
    progress.match, progress.round, progress.admitted, progress.is_paused = 3, 9, 4, True
    progress.state = state

    progress.restart(incarnation=7)

    assert (progress.state, progress.is_paused) == (ProgressState.PROBE, False)
    assert (progress.match, progress.round, progress.admitted) == (NO_INDEX, 0, 0)
    assert (progress.incarnation, progress.is_counted) == (7, False)


@pytest.mark.parametrize(
    ("state", "first"),
    [(ProgressState.PROBE, 7), (ProgressState.REPLICATE, 4), (ProgressState.SNAPSHOT, 4)],
)
def test_what_a_follower_may_have_got_and_not_acked_begins_there(
    state: ProgressState, first: int
) -> None:
    """A probe is sent from `next`; everything else that was sent is behind the match."""
    progress = Progress(2, 7, 0)
    progress.match, progress.state = 3, state
    assert progress.first_unacked == first


def right_below_a_compacted_log() -> tuple[Cluster, Progress]:
    """A leader whose log begins behind entry 3, the next one of node 3."""
    cluster = led()
    cluster.isolate(3)
    cluster.replicate(1, "abcd")
    core = cluster.nodes[1].core
    snapshot.snapshot_durable(core.state, snapshot.meta_at(core.state, 3))
    core.compact_to(3)
    cluster.nodes[1].log.cut(3)
    progress = core.state.progress[3]
    progress.become_probe()
    progress.next = 3
    progress.become_replicate()
    return cluster, progress


def test_a_follower_right_below_a_compacted_log_gets_a_snapshot() -> None:
    """Its next entry is the last one that is gone: nothing of it can be measured any more."""
    cluster, progress = right_below_a_compacted_log()

    cluster.propose(1, "e")

    assert progress.state is ProgressState.SNAPSHOT


def test_a_probed_follower_right_below_a_compacted_log_gets_a_snapshot() -> None:
    cluster, progress = right_below_a_compacted_log()
    progress.become_probe()
    progress.next = cluster.state(1).log.base_index

    cluster.tick(1, HEARTBEAT_TICKS)

    assert progress.state is ProgressState.SNAPSHOT


def test_a_heartbeat_that_finds_a_compacted_log_sends_the_snapshot_once() -> None:
    cluster, progress = right_below_a_compacted_log()
    cluster.sent.clear()

    cluster.tick(1, HEARTBEAT_TICKS)

    assert progress.state is ProgressState.SNAPSHOT
    assert len([m for m in cluster.sent if isinstance(m, InstallSnapshot)]) == 1


def test_an_answer_that_confirms_nothing_new_leaves_a_follower_probed() -> None:
    """The ack of a heartbeat: what the follower holds is as unknown as before."""
    cluster = flying_cluster(4)
    state = cluster.state(1)
    progress = state.progress[3]
    progress.become_probe()
    progress.next = state.log.last_index

    states = []
    for match in (progress.match, progress.next - 1):
        cluster.receive(1, append_reply(3, 1, state.term, match=match))
        states.append(progress.state)

    assert states == [ProgressState.PROBE, ProgressState.REPLICATE]


@pytest.mark.parametrize("state", [ProgressState.REPLICATE, ProgressState.SNAPSHOT])
def test_broken_link_leads_to_probe(state: ProgressState) -> None:
    cluster = flying_cluster(3)
    replica = cluster.nodes[1].replica
    progress = cluster.state(1).progress[2]
    if state is ProgressState.SNAPSHOT:
        progress.become_snapshot(2, deadline=99)

    replica.core.report_unreachable(9)  # Nobody it knows: a link of a removed node.
    replica.core.report_unreachable(2)

    assert (progress.state, progress.next) == (ProgressState.PROBE, progress.match + 1)


@pytest.mark.parametrize("match", [NO_INDEX, 3, 7])
@pytest.mark.parametrize("refused_prev", [8, 9, 15])
@pytest.mark.parametrize("agreement", [NO_INDEX, 2, 7, 14, 99])
def test_hint_makes_progress_and_respects_match(
    match: int, refused_prev: int, agreement: int
) -> None:
    progress = Progress(2, refused_prev + 1, 0)
    progress.match = match

    progress.refuse_at(refused_prev, agreement)

    assert match + 1 <= progress.next <= refused_prev
    assert progress.state is ProgressState.PROBE


@given(
    st.lists(st.integers(1, 9), max_size=30).map(sorted),
    st.lists(st.integers(1, 9), max_size=30).map(sorted),
    st.integers(1, 4),
)
@settings(max_examples=examples(200), deadline=None)
def test_backing_up_takes_few_steps(leader: list[int], follower: list[int], count_max: int) -> None:
    """From any two logs the common prefix is found in at most one refusal per hinted run."""
    own = LogView(last_index=len(leader) - 1, runs=runs_of(leader))
    other = LogView(last_index=len(follower) - 1, runs=runs_of(follower))
    progress = Progress(2, len(leader), 0)
    refusals = 0
    while True:
        prev = progress.next - 1
        if prev <= other.last_index and other.term_of(prev) == own.term_of(prev):
            break
        hint_last, hint_runs = other.hint(prev, count_max=count_max)
        progress.refuse_at(prev, own.agreement(hint_last, hint_runs))
        refusals += 1
    assert refusals <= 1 + len(set(follower)) // count_max
    assert refusals <= 1 or count_max < len(set(follower))


def test_stale_refusals_are_ignored(cluster: Cluster) -> None:
    cluster.replicate(1, range(5))
    progress = cluster.state(1).progress[2]
    assert (progress.match, progress.next) == (5, 6)

    cluster.receive(1, append_reply(2, 1, 1, refusal=Refusal.NO_MATCH, refused_prev=3, hint_last=0))
    assert (progress.state, progress.next) == (ProgressState.REPLICATE, 6)
    progress.state = ProgressState.PROBE
    cluster.receive(1, append_reply(2, 1, 1, refusal=Refusal.NO_MATCH, refused_prev=9, hint_last=0))
    assert progress.next == 6


def in_flight(cluster: Cluster, node: int) -> int:
    state = cluster.state(1)
    return state.in_flight_size_bytes(state.progress[node])


def test_accounting_returns_to_zero() -> None:
    cluster = flying_cluster(5)
    assert in_flight(cluster, 2) == 5 * ENTRY_SIZE_BYTES
    assert cluster.state(1).log.last_index - cluster.state(1).commit == 5

    # Refused, lost and repeated messages must not leave a trace.
    copies = list(cluster.net)
    cluster.receive(
        1,
        append_reply(
            2, 1, 1, refusal=Refusal.NO_MATCH, refused_prev=5, hint_last=0, hint_runs=((0, 1),)
        ),
    )
    cluster.net += copies
    cluster.heal()
    cluster.deliver()
    cluster.tick_all(2 * HEARTBEAT_TICKS)

    replica, state = cluster.nodes[1].replica, cluster.state(1)
    assert [in_flight(cluster, node) for node in (2, 3)] == [0, 0]
    assert state.log.last_index == state.commit
    assert (len(replica.proposals), len(replica.flushes), replica.flushes.held_count) == (0, 0, 0)
    assert state.read_count == 0


def test_window_bounds_bytes() -> None:
    limit = 10 * ENTRY_SIZE_BYTES
    cluster = flying_cluster(50, window_size_bytes_max=limit, message_size_bytes_max=limit)
    assert in_flight(cluster, 2) == limit

    while cluster.deliver(count=1):
        assert in_flight(cluster, 2) <= limit
    assert cluster.state(1).progress[2].match == 50


@pytest.mark.parametrize(
    "limits",
    [
        {"message_size_bytes_max": 1},
        {"message_entry_count_max": 1},
        {"message_size_bytes_max": 250},
        {"window_size_bytes_max": 1, "message_size_bytes_max": 1},
        {"probe_size_bytes_max": 0},
        {"message_run_count_max": 1},
    ],
)
def test_page_sizes_do_not_change_results(limits: dict[str, Any]) -> None:
    states = {
        1: state_of([1, 2, 3, 4, 5, 6], term=6),
        2: state_of([1, 2, 2, 2, 2, 2, 2, 2], term=6),
    }
    cluster = led(states=states, **limits)
    cluster.replicate(1, range(5))
    cluster.tick_all(2 * HEARTBEAT_TICKS)

    expected = [1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7]
    assert [cluster.nodes[node].log.terms() for node in (1, 2, 3)] == [expected] * 3


def test_messages_keep_to_their_limits() -> None:
    cluster = Cluster(
        states={1: state_of(list(range(1, 41)), term=40)},
        message_entry_count_max=8,
        message_run_count_max=3,
        message_size_bytes_max=5 * ENTRY_SIZE_BYTES,
    )
    cluster.elect(1)

    for message in cluster.appends_to(2):
        assert message.hi - message.prev_index - 1 <= 5
        assert len(message.runs) <= 3
    assert cluster.nodes[2].log.last_index == 40
