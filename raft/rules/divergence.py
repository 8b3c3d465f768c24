"""Histories that contradict each other: a node has more committed than its leader.

Owns how such a contradiction is detected and what follows. A leader holds everything that is
committed (Raft paper 5.4.3), so this happens only if voters forgot their promises and no node could
detect it, as with an old copy of a disk beside a node that was down. Then two histories were acked,
and no rule can choose between them. Therefore committed entries are never cut or overwritten: the
node keeps its log, stands aside permanently, and reports the nodes that contradict it.
"""

from __future__ import annotations

from raft.errors import ForeignChainError
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
from raft.state.state import RaftState


def conflict_of(state: RaftState, message: AppendRequest) -> Index:
    """Return the first entry committed here that differs in the leader's log; NO_INDEX for none.

    Compares terms where both are known; a leader that agrees costs a few comparisons."""
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
    conflict = log.first_conflict(lo, hi, ((lo, runs[at][1]), *runs[at + 1 :]))
    return conflict if conflict < hi else NO_INDEX


def snapshot_conflicts(state: RaftState, meta: SnapshotMeta) -> bool:
    """Whether a snapshot stands for another entry than the one committed here."""
    own_term = state.log.term_of(meta.index)
    return meta.index <= state.commit and own_term not in (UNKNOWN_TERM, meta.term)


def diverge(state: RaftState, leader: NodeId) -> None:
    """Stand aside permanently: `leader` contradicts entries committed here, or the shell found that
    its log differs from this one where the terms are equal."""
    state.divergent_peers.add(leader)
    if state.standing is Standing.DIVERGED:
        return
    state.standing = Standing.DIVERGED
    # Acks sent to that leader before the contradiction was detected no longer count.
    state.incarnation += 1
    state.touch_hard_state()
    state.note_role("history conflict")


def contradicts(state: RaftState, message: VoteRequest) -> bool:
    """Whether a candidate whose log is newer by its term lacks entries committed here.

    A log with an entry of a newer term holds everything that was committed before that term."""
    return not message.recovery and message.last_index < state.commit


def check_same_chain(peer: NodeId, index: Index, here: int, there: int) -> None:
    """Raise ForeignChainError unless the chains through an entry of one term are equal."""
    if here != there:
        detail = f"the log through entry {index} is {there:08X} there and {here:08X} here"
        raise ForeignChainError(peer, detail, index, there)
