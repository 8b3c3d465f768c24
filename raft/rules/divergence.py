"""Histories that contradict each other: what a node does that has more committed than its leader.

Owns how such a contradiction is seen and what follows. A leader holds everything that is committed
(Raft paper 5.4.3), so a correct cluster never comes here: it takes voters that forgot what they had
promised and that nobody could tell of it, such as an old copy of a disk beside a node that was
down. Then two histories were acked, and no rule can choose between them. So nothing that is
committed is cut or overwritten: the node keeps its log, stands aside for good, and says so by name.
"""

from __future__ import annotations

from raft.messages import (
    NO_INDEX,
    AppendRequest,
    Index,
    NodeId,
    SnapshotMeta,
    Standing,
    VoteRequest,
)
from raft.state.log_view import UNKNOWN_TERM
from raft.state.state import State


def conflict_of(state: State, message: AppendRequest) -> Index:
    """Return the first entry committed here that differs in the leader's log; NO_INDEX for none.

    Terms are compared where both are known; a leader that agrees costs a few comparisons."""
    log, prev_index = state.log, message.prev_index
    if prev_index >= state.commit:
        if prev_index > state.commit or log.term_of(prev_index) == message.prev_term:
            return NO_INDEX
        return prev_index
    if prev_index >= log.base_index and log.term_of(prev_index) != message.prev_term:
        return prev_index
    lo, hi = max(prev_index + 1, log.base_index), min(message.hi, state.commit + 1)
    if lo >= hi:
        return NO_INDEX
    runs = message.runs
    at = max(n for n in range(len(runs)) if runs[n][0] <= lo)
    found = log.first_conflict(lo, hi, ((lo, runs[at][1]), *runs[at + 1 :]))
    return found if found < hi else NO_INDEX


def snapshot_conflicts(state: State, meta: SnapshotMeta) -> bool:
    """Return whether a snapshot stands for another entry than the one committed here."""
    known = state.log.term_of(meta.index)
    return meta.index <= state.commit and known not in (UNKNOWN_TERM, meta.term)


def diverge(state: State, leader: NodeId) -> None:
    """Stand aside for good: `leader` contradicts what is committed here."""
    state.divergent_peers.add(leader)
    if state.standing is Standing.DIVERGED:
        return
    state.standing = Standing.DIVERGED
    # What was acked to that leader before it was seen to contradict counts no more.
    state.incarnation += 1
    state.touch_hard_state()
    state.note_role("history conflict")


def contradicts(state: State, message: VoteRequest) -> bool:
    """Return whether a candidate whose log is newer by its term lacks what is committed here.

    A log with an entry of a newer term holds everything that was committed before that term."""
    return not message.recovery and message.last_index < state.commit
