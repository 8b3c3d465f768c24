"""The steady state's short way has the effects of the general one, on the same inputs.

Two clusters get the same random inputs, one with the short way and one without it; after each input
all that came out and all that is remembered must be equal. The simulator's worlds are compared by
their traces: every message, role and fault in order."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from raft.errors import RaftError
from raft.messages import (
    NO_INDEX,
    NO_TERM,
    AppendReply,
    AppendRequest,
    Configuration,
    ConfigurationAt,
    Refusal,
    Standing,
)
from raft.pump.effects import NO_EFFECTS, Effects
from raft.pump.replica import Replica
from raft.rules import steady, transfer
from raft.rules.membership import Change, ChangeKind
from raft.state.progress import Progress
from raft.state.state import RaftState
from raft.transitions import Role
from simulation.raft.runner import Case, case_of, run_case
from tests.raft.builders import payload_of
from tests.raft.cluster import GROUP, Cluster, led
from tests.raft.memory_log import MemoryLog

SEEDS = range(1, 21)
INPUT_COUNT = 400
NOT_STATE = {"config", "positions", "random", "log", "progress", "term_ceiling", "is_dirty"}
SMALL: dict[str, Any] = {
    "message_entry_count_max": 3,
    "message_size_bytes_max": 250,
    "window_entry_count_max": 6,
    "window_size_bytes_max": 520,
    "apply_entry_count_max": 4,
    "waiter_count_max": 9,
    "uncommitted_entry_count_max": 12,
}


@pytest.fixture
def shortcuts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each part of the short way was gone."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(steady, name)

        def count(*arguments: Any) -> Any:
            answer = function(*arguments)
            counts[name] += answer is not None and answer is not False
            return answer

        return count

    for name in ("may_propose", "offers", "take_ack", "is_next"):
        monkeypatch.setattr(steady, name, counted(name))
    return counts


def memory_of(state: RaftState) -> dict[str, object]:
    """All that a core remembers, as values."""
    values = {name: getattr(state, name) for name in RaftState.__slots__ if name not in NOT_STATE}
    values["reads_pending"] = [(r.round, r.index, r.read_ids) for r in state.reads_pending]
    values["log"] = (state.log.base_index, state.log.last_index, state.log.all_runs())
    values["progress"] = {
        node: {name: getattr(each, name) for name in Progress.__slots__}
        for node, each in state.progress.items()
    }
    return values


def all_of(cluster: Cluster) -> dict[str, object]:
    """All that came out of a cluster and all that its nodes remember."""
    values: dict[str, object] = {"net": cluster.net, "sent": cluster.sent[-20:]}
    for number, node in cluster.nodes.items():
        replica = node.replica
        values[f"node {number}"] = {
            "memory": memory_of(node.state),
            "disk": (node.log.image(), node.log.operations),
            "applied": node.applied,
            "completed": node.completed,
            "reads": (node.reads, node.reads_failed),
            "roles": node.role_changes,
            "tickets": (node.tickets, node.to_apply),
            "pump": (len(replica.proposals), len(replica.flushes), replica.flushes.held_count),
        }
    return values


class Inputs:
    """Random inputs, drawn from what a cluster is like and given to both."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        settings = SMALL if self.random.random() < 0.5 else {}
        self.pair = [Cluster((1, 2, 3), (4,), **settings) for _ in range(2)]
        for cluster in self.pair:
            cluster.elect(1)
        self.numbers = itertools.count()

    def one(self) -> tuple[str, Callable[[Cluster], object]]:
        """Draw an input."""
        random, cluster = self.random, self.pair[0]
        number, node = next(self.numbers), random.choice((1, 2, 3, 4))
        leaders = cluster.leaders()
        at = random.choice(leaders) if leaders else node
        count, kind = random.choice((1, 1, 1, 2, 5)), random.random()
        if kind < 0.30:
            return "propose", lambda c: [self.propose(c, at, (number, n)) for n in range(count)]
        if kind < 0.60:
            return "deliver", lambda c: c.deliver(count=count * 2)
        if kind < 0.74:
            return "sync", lambda c: c.sync(node)
        if kind < 0.82:
            return "tick", lambda c: c.tick(node, random_ticks(number))
        if kind < 0.86:
            return "apply", lambda c: c.apply(node)
        return self.rare(random.random(), number, node, at)

    def rare(
        self, kind: float, number: int, node: int, at: int
    ) -> tuple[str, Callable[[Cluster], object]]:
        other = 1 + node % 4
        if kind < 0.2:
            is_late = self.random.random() < 0.5
            return "late", lambda c: self.set_late(c, node, is_late)
        if kind < 0.35:
            return "read", lambda c: self.attempt(lambda: c.read(at, number))
        if kind < 0.5:
            return "drop", lambda c: c.drop((node, other))
        if kind < 0.6:
            return "double", lambda c: c.net.extend(c.net[:2])
        if kind < 0.7:
            return "cut", lambda c: c.cuts.__ixor__({(node, other)})
        if kind < 0.8:
            return "all", lambda c: (c.heal(), c.tick_all(4))
        if kind < 0.86:
            return "hand over", lambda c: self.attempt(
                lambda: transfer.transfer_leadership(c.nodes[at].replica.core.state, node)
            )
        if kind < 0.92:
            change = self.random.choice(list(ChangeKind))
            return "change", lambda c: self.attempt(lambda: c.change(at, change, node))
        return "crash", lambda c: (c.crash(node), c.restart(node))

    @staticmethod
    def attempt(action: Callable[[], object]) -> None:
        with contextlib.suppress(RaftError):
            action()

    @staticmethod
    def propose(cluster: Cluster, node: int, body: object) -> None:
        replica = cluster.nodes[node].replica
        try:
            replica.check_propose()
            replica.propose(body, body)
        except RaftError:
            return
        if body[1] % 2 == 0:  # type: ignore[index]  # Sometimes several share a turn.
            cluster.settle(node)

    @staticmethod
    def set_late(cluster: Cluster, node: int, is_late: bool) -> None:
        target = cluster.nodes[node]
        target.syncs_at_once = not is_late
        target.applies_at_once = not is_late or node % 2 == 0


def random_ticks(number: int) -> int:
    return 1 + number * 7 % 5


@pytest.mark.parametrize("seed", SEEDS)
def test_both_ways_have_the_same_effects(seed: int, shortcuts: Counter[str]) -> None:
    inputs = Inputs(seed)
    lean, general = inputs.pair
    for number in range(INPUT_COUNT):
        what, act = inputs.one()
        for cluster in (lean, general):
            for node in cluster.nodes.values():
                node.replica.is_lean = cluster is lean
            before = shortcuts.copy()
            act(cluster)
            assert cluster is lean or shortcuts == before, f"the short way is asked for: {what}"
        assert all_of(lean) == all_of(general), f"differs after input {number}: {what}"
    assert lean.sent == general.sent
    gone = {name for name, count in shortcuts.items() if count}
    assert gone == {"may_propose", "offers", "take_ack", "is_next"}


def test_a_simulated_world_is_the_same_without_the_short_way(
    monkeypatch: pytest.MonkeyPatch, shortcuts: Counter[str]
) -> None:
    seeds = range(1, 7)
    lean = [trace_of(case_of(seed, 1000)) for seed in seeds]
    assert min(shortcuts.values()) > 5, f"hardly any short way was gone: {shortcuts}"
    monkeypatch.setattr(Replica, "is_lean", False)
    before = shortcuts.copy()
    for seed in seeds:
        general = trace_of(case_of(seed, 1000))
        assert lean[seed - 1] == general, f"seed {seed} differs"
    assert shortcuts == before, "the short way is not asked for"


def trace_of(case: Case) -> list[str]:
    lines: list[str] = []
    report = run_case(case, lines.append)
    return [*lines, f"{report.digest} {report.event_count} {report.code} {report.detail}"]


# --- What is not the steady state ---


def steady_leader(**settings: Any) -> Cluster:
    """A leader whose followers have all, and are known to."""
    cluster = led((1, 2, 3), **settings)
    for number in range(3):
        cluster.replicate(1, [number])
    return cluster


@pytest.fixture
def cluster() -> Cluster:
    return steady_leader()


def ack(cluster: Cluster, **changes: Any) -> AppendReply:
    state = cluster.state(1)
    usual = AppendReply(
        GROUP, 2, 1, state.term, state.log.last_index, Refusal.NONE, NO_INDEX, NO_INDEX, (),
        state.round, Standing.FULL, 0,
    )  # fmt: skip
    return usual._replace(**changes)


def test_an_ack_of_a_follower_in_step_is_taken(cluster: Cluster) -> None:
    assert steady.take_ack(cluster.state(1), ack(cluster))


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "another"},
        {"sender": 9},
        {"sender": 1},
        {"to": 3},
        {"term": 0},
        {"term": 77},
        {"match": 1000},
        {"refusal": Refusal.NO_MATCH},
        {"refusal": Refusal.OLD_TERM},
        {"round": 1000},
        {"standing": Standing.RECOVERING},
        {"standing": Standing.DIVERGED},
        {"incarnation": 1},
    ],
    ids=str,
)
def test_any_other_reply_goes_the_general_way(cluster: Cluster, changes: dict[str, Any]) -> None:
    before = memory_of(cluster.state(1))
    assert not steady.take_ack(cluster.state(1), ack(cluster, **changes))
    assert memory_of(cluster.state(1)) == before


@pytest.mark.parametrize("field", ["is_paused", "is_counted", "admitted", "transferee", "reads"])
def test_an_ack_that_has_consequences_goes_the_general_way(cluster: Cluster, field: str) -> None:
    state = cluster.state(1)
    progress = state.progress[2]
    round_id = state.round
    if field == "is_paused":
        progress.become_probe()
    elif field == "is_counted":
        progress.is_counted = False
    elif field == "admitted":
        progress.admitted = 1
    elif field == "transferee":
        state.transferee = 2
    else:
        cluster.held = {(1, 2), (1, 3)}
        cluster.read(1, 7)
        round_id = state.round
    before = memory_of(state)
    assert not steady.take_ack(state, ack(cluster, round=round_id))
    assert memory_of(state) == before


def test_a_deposed_leader_takes_no_ack(cluster: Cluster) -> None:
    message = ack(cluster)
    cluster.state(1).role = Role.FOLLOWER
    assert not steady.take_ack(cluster.state(1), message)


def test_an_ack_without_news_needs_no_turn(cluster: Cluster) -> None:
    replica = cluster.nodes[1].replica
    assert not replica.receive(ack(cluster))
    assert replica.pump() is NO_EFFECTS
    cluster.propose(1, "x")
    assert replica.receive(ack(cluster)), "an entry is committed"
    assert replica.pump().apply_hi == cluster.state(1).log.last_index + 1


def following(cluster: Cluster, **changes: Any) -> AppendRequest:
    """What the leader sends next to node 2."""
    state = cluster.state(2)
    last, term = state.log.last_index, state.term
    usual = AppendRequest(
        GROUP, 1, 2, term, last, term, last + 2, ((last + 1, term),), state.commit, 0, (), 0
    )
    return usual._replace(**changes)


def test_entries_next_to_the_tail_are_taken(cluster: Cluster) -> None:
    assert steady.is_next(cluster.state(2), following(cluster))


@pytest.mark.parametrize("case", range(14))
def test_any_other_append_goes_the_general_way(cluster: Cluster, case: int) -> None:
    state = cluster.state(2)
    last, term = state.log.last_index, state.term
    other = ConfigurationAt(last + 1, Configuration((1, 2)))
    changes: list[dict[str, Any]] = [
        {"group": "another"},
        {"sender": 3},
        {"to": 3},
        {"term": term + 1},
        {"prev_index": last - 1, "runs": ((last, term),)},
        {"prev_index": last + 1, "runs": ((last + 2, term),), "hi": last + 3},
        {"prev_term": term - 1},
        {"hi": last + 1, "runs": ()},
        {"runs": ((last + 1, term - 1),)},
        {"runs": ((last + 1, term - 1), (last + 2, term))},
        {"configurations": (other,)},
        {"admitted": 1},
        {"runs": ((last, term),)},
        {"prev_index": NO_INDEX, "prev_term": NO_TERM, "runs": ((0, term),)},
    ]
    assert not steady.is_next(state, following(cluster, **changes[case]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("role", Role.LEADER),
        ("leader", 3),
        ("term", 99),
        ("is_dirty", True),
        ("is_hard_state_durable", False),
        ("snapshot_gate", 3),
        ("standing", Standing.RECOVERING),
        ("standing", Standing.DIVERGED),
    ],
)
def test_a_follower_with_other_work_goes_the_general_way(name: str, value: object) -> None:
    cluster = steady_leader()
    message = following(cluster)
    setattr(cluster.state(2), name, value)
    assert not steady.is_next(cluster.state(2), message)


def test_commits_of_two_appends_of_one_turn_are_applied_together(cluster: Cluster) -> None:
    cluster.held = {(2, 1), (3, 1)}
    for body in "xy":
        cluster.propose(1, body)
        cluster.deliver(link=(1, 2))
    replica, state = cluster.nodes[2].replica, cluster.state(2)
    first = state.handed + 1
    assert first < state.synced, "there are two entries to be handed out"
    for commit in (first, first + 1):
        message = following(cluster, commit=commit)
        replica.receive(message, payload_of(message))
        assert state.handed == commit
    effects = replica.pump()
    assert (effects.apply_lo, effects.apply_hi) == (first, first + 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("is_hard_state_durable", False), ("snapshot_gate", 1), ("own_entries", [None])],
)
def test_a_leader_with_other_work_offers_the_general_way(name: str, value: object) -> None:
    cluster = steady_leader()
    cluster.nodes[1].replica.propose("x")
    setattr(cluster.state(1), name, value)
    assert steady.offers(cluster.state(1)) is None


def test_two_entries_beyond_the_limits_are_offered_by_the_general_way() -> None:
    cluster = steady_leader(message_size_bytes_max=150)
    state = cluster.state(1)
    cluster.nodes[1].replica.propose("a")
    cluster.nodes[1].replica.propose("b")
    before = memory_of(state)
    assert steady.offers(state) is None
    assert memory_of(state) == before


@pytest.mark.parametrize(
    "settings", [{"uncommitted_entry_count_max": 2}, {"uncommitted_size_bytes_max": 150}]
)
def test_entries_that_wait_for_their_commit_are_limited(settings: dict[str, int]) -> None:
    cluster = steady_leader(**settings)
    cluster.held = {(1, 2), (1, 3)}
    cluster.propose(1, "x")
    assert steady.may_propose(cluster.state(1))
    cluster.propose(1, "y")
    assert not steady.may_propose(cluster.state(1))


@pytest.mark.parametrize(
    ("name", "value"), [("role", Role.FOLLOWER), ("transferee", 2), ("term", 99)]
)
def test_only_a_leader_in_office_may_propose(cluster: Cluster, name: str, value: object) -> None:
    assert steady.may_propose(cluster.state(1))
    setattr(cluster.state(1), name, value)
    assert not steady.may_propose(cluster.state(1))


def test_no_entry_overtakes_those_of_the_core(cluster: Cluster) -> None:
    cluster.nodes[1].replica.propose_change(Change(ChangeKind.ADD_LEARNER, 9))
    assert not steady.may_propose(cluster.state(1))


def test_a_log_that_refuses_entries_leaves_the_pump_as_it_was(cluster: Cluster) -> None:
    state = cluster.state(2)
    before = memory_of(state)
    with pytest.raises(RaftError):
        cluster.nodes[2].replica.receive(following(cluster), ())
    assert memory_of(state) == before
    assert isinstance(cluster.nodes[2].log, MemoryLog)
    effects: Effects = cluster.nodes[2].replica.pump()
    assert not effects.send
    assert effects.flush is None
