"""Changes of membership: one node each, a learner first, never before an own-term commit.

Single-step changes, not joint consensus (Raft thesis 4.1 against 4.3). Why: old and new voter sets
differ by at most one node, so any majority of one meets any majority of the other, and the joint
phase that R26 and R27 of the fault matrix speak of has nothing left to protect. This module checks
the conditions that single-step changes need instead: no change while another is not committed, and
none before the leader has committed an entry of its own term (the bug of 2015: two leaders with two
changes from one base). The price is that replacing k nodes takes 2k changes, each of which leaves a
working cluster.

A configuration is in force as soon as it is appended and goes away if its entry is truncated. This
module owns the rules; the list of configurations in the log is in `state`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from raft.errors import ChangeInvalidError, ChangeRefusedError
from raft.messages import NO_NODE, Configuration, ConfigurationAt, NodeId
from raft.state.progress import UNHEARD, Progress
from raft.state.state import RaftState


class ChangeKind(Enum):
    ADD_LEARNER = "add_learner"
    PROMOTE = "promote"
    REMOVE = "remove"


class Change(NamedTuple):
    """One step of membership. PROMOTE makes a caught-up learner a voter."""

    kind: ChangeKind
    node: NodeId


def changed(configuration: Configuration, change: Change) -> Configuration:
    """Return the configuration after `change`. Raises ChangeInvalidError if it does not apply."""
    voters, learners = set(configuration.voters), set(configuration.learners)
    node = change.node
    if node <= NO_NODE:
        raise ChangeInvalidError(node, "node ids are positive")
    if change.kind is ChangeKind.ADD_LEARNER:
        if node in voters or node in learners:
            raise ChangeInvalidError(node, "it is a member already")
        learners.add(node)
    elif change.kind is ChangeKind.PROMOTE:
        if node not in learners:
            raise ChangeInvalidError(
                node, "only a learner can be promoted; add it as a learner first"
            )
        learners.remove(node)
        voters.add(node)
    else:
        if node not in voters and node not in learners:
            raise ChangeInvalidError(node, "it is no member")
        voters.discard(node)
        learners.discard(node)
        if not voters:
            raise ChangeInvalidError(
                node, "it is the last voter; the cluster would never serve again"
            )
    assert len(voters ^ set(configuration.voters)) <= 1, (
        "a change of two voters has no overlap proof"
    )
    return Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


def check_change(state: RaftState, change: Change) -> Configuration:
    """Return the configuration a leader would append. Raises ChangeRefusedError with the reason."""
    if state.commit < state.own_term_first:
        raise ChangeRefusedError(
            change.node, "this leader has not committed in its term yet; retry"
        )
    newest = state.configurations[-1]
    if newest.index > state.commit:
        raise ChangeRefusedError(
            change.node, f"the change at index {newest.index} is not committed"
        )
    configuration = changed(newest.configuration, change)
    if change.kind is ChangeKind.PROMOTE:
        _check_caught_up(state, state.progress[change.node])
    return configuration


def _check_caught_up(state: RaftState, progress: Progress) -> None:
    node = progress.node
    lag = state.log.last_index - progress.match
    limit = state.config.promote_lag_entry_count_max
    if progress.incarnation == UNHEARD:
        raise ChangeRefusedError(node, "it has not answered this leader yet")
    if not progress.is_counted:
        raise ChangeRefusedError(node, "its memory is in doubt until it has caught up")
    if lag > limit:
        raise ChangeRefusedError(node, f"it is {lag} entries behind, at most {limit} allowed")
    if not state.has_contact(progress):
        raise ChangeRefusedError(node, "it has not answered within an election time-out")


def adopt(state: RaftState, configuration_at: ConfigurationAt) -> None:
    """Put an appended configuration into force on the leader and start feeding a new member.

    A removed member is fed until its removal is committed, so that it learns of the removal.
    """
    state.configurations.append(configuration_at)
    state.use_configuration()
    for node in state.voters + state.learners:
        if node != state.node_id and node not in state.progress:
            state.progress[node] = Progress(node, configuration_at.index, state.now)
