"""The table of role changes: all that happen are in it, and the diagram is drawn from it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from raft.messages import NO_NODE
from raft.transitions import TRANSITIONS, Role, mermaid
from tests.raft.builders import append, append_reply, campaign_now, vote_reply, vote_request
from tests.raft.cluster import ELECTION_TICKS, Cluster, led, state_of


def test_role_outside_the_table_stops_the_node() -> None:
    cluster = Cluster()
    with pytest.raises(AssertionError, match="FOLLOWER -> LEADER"):
        cluster.state(1).set_role(Role.LEADER, 1, "vote quorum")
    with pytest.raises(AssertionError, match="'boredom' is not in the table"):
        cluster.state(1).set_role(Role.PRE_CANDIDATE, NO_NODE, "boredom")


def reach(old: Role, reason: str) -> Cluster:
    """Bring node 1 to `old` and make `reason` happen to it."""
    if reason == "own removal committed":
        return _removed_leader()
    cluster = Cluster(voters=(1, 2, 3), states={1: state_of([1], term=1)})
    if old is not Role.FOLLOWER:
        cluster.tick(1, ELECTION_TICKS + 1)
    if old in (Role.CANDIDATE, Role.LEADER):
        cluster.receive(1, vote_reply(2, 1, 1, vote_term=2, pre=True))
    if old is Role.LEADER:
        cluster.receive(1, vote_reply(2, 1, 2))
    assert cluster.role(1) is old
    cluster.nodes[1].role_changes.clear()
    term = cluster.state(1).term
    is_pre = old is Role.PRE_CANDIDATE
    if reason == "higher term seen":
        cluster.receive(1, append_reply(2, 1, term + 1))
    elif reason == "election timeout":
        cluster.tick(1, 2 * ELECTION_TICKS)
    elif reason == "asked to take over":
        cluster.receive(1, campaign_now(2, 1, term))
    elif reason == "vote granted":
        cluster.state(1).vote = NO_NODE
        cluster.receive(1, vote_request(2, 1, term, last=(9, 1)))
    elif reason == "two leaders in one term":
        if old is Role.FOLLOWER:
            cluster.receive(1, append(2, 1, term, prev=(0, 1)))
        cluster.receive(1, append(3, 1, term, prev=(0, 1)))
    elif reason == "memory lost":
        cluster.nodes[1].replica.lose_memory(7)
        cluster.settle(1)
    elif reason == "leader of this term seen":
        cluster.receive(1, append(2, 1, term, prev=(0, 1)))
    elif reason == "refused by a quorum":
        for sender in (2, 3):
            wanted = term + 1 if is_pre else term
            message = vote_reply(sender, 1, term, vote_term=wanted, granted=False, pre=is_pre)
            cluster.receive(1, message)
    elif reason == "pre-vote quorum":
        cluster.receive(1, vote_reply(2, 1, term, vote_term=term + 1, pre=True))
    elif reason == "vote quorum":
        cluster.receive(1, vote_reply(2, 1, term))
    elif reason == "no contact with a quorum":
        cluster.tick(1, 2 * ELECTION_TICKS)
    elif reason == "no longer entitled to campaign":
        cluster.state(1).is_voter = False
        cluster.tick(1, 2 * ELECTION_TICKS)
    return cluster


def _removed_leader() -> Cluster:
    from raft.rules.membership import ChangeKind

    cluster = led()
    cluster.change(1, ChangeKind.REMOVE, 1)
    cluster.nodes[1].role_changes.clear()
    cluster.deliver()
    return cluster


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [(old, new, reason) for (old, new), listed in TRANSITIONS.items() for reason in listed],
)
def test_every_line_of_the_table_can_happen(old: Role, new: Role, reason: str) -> None:
    cluster = reach(old, reason)
    first = next(c for c in cluster.nodes[1].role_changes if c.reason == reason)
    assert first.role is new


def test_module_prints_the_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(RuntimeWarning):
        runpy.run_module("raft.transitions", run_name="__main__")
    assert capsys.readouterr().out == mermaid() + "\n"


def test_the_diagram_in_the_architecture_is_the_one_drawn_from_the_table() -> None:
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = text.partition("```mermaid\n")[2].partition("\n```")[0]
    assert drawn == mermaid(), "paste what `python -m raft.transitions` prints"
