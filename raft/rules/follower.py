"""Following: a replica becomes a follower and takes entries from a leader.

Owns the consistency check, truncation at the first real conflict, and the choice of what may be
acked when. Knows nothing of elections beyond the timer it resets.
"""

from __future__ import annotations

from raft.messages import (
    NO_INDEX,
    NO_NODE,
    AppendReply,
    AppendRequest,
    Index,
    InstallSnapshot,
    NodeId,
    Refusal,
    Standing,
    Term,
)
from raft.ready import HardState
from raft.rules.divergence import conflict_of, diverge
from raft.state.state import RaftState
from raft.transitions import Role


def become_follower(state: RaftState, term: Term, leader: NodeId, reason: str) -> None:
    """Follow `leader` (NO_NODE: unknown) in `term`, which is the current one or a higher one.

    The election timer is left as it is (R08), except when a leader steps down: it had none.
    """
    assert term >= state.term, f"term would go back from {state.term} to {term}"
    if term > state.term:
        state.term = term
        state.vote = NO_NODE
        state.touch_hard_state()
    was_leader = state.role is Role.LEADER
    state.set_role(Role.FOLLOWER, leader, reason)
    state.votes.clear()
    if was_leader:
        _forget_leadership(state)
        state.draw_timeout()


def _forget_leadership(state: RaftState) -> None:
    """Drop the state that only a leader has. Callers of reads learn that they were not served."""
    state.progress.clear()
    state.transferee = NO_NODE
    state.own_term_first = NO_INDEX
    state.admission_floor = None
    state.round_ticks.clear()
    for pending in state.reads_pending:
        state.reads_failed.extend(pending.read_ids)
    state.reads_failed.extend(state.reads_waiting)
    state.reads_pending.clear()
    state.reads_waiting.clear()
    state.read_count = 0


def leave_term(state: RaftState, message: AppendRequest | InstallSnapshot) -> None:
    """Leave a term in which two nodes lead: a voter voted twice, so the term cannot be trusted.

    Both leaders step down when they receive the higher term, and their committed entries are
    compared when the next leader sends its log."""
    become_follower(state, state.term + 1, NO_NODE, "two leaders in one term")
    answer_old_leader(state, message)


def is_second_leader(state: RaftState, leader: NodeId) -> bool:
    """Whether `leader` leads in a term in which this node or another one does."""
    return state.role is Role.LEADER or state.leader not in (NO_NODE, leader)


def hear_leader(state: RaftState, leader: NodeId) -> None:
    """Follow the sender of a valid append or snapshot of the current term, and reset the timer."""
    assert state.role is not Role.LEADER, f"node {leader} leads term {state.term}, and this one"
    if state.role is not Role.FOLLOWER:
        become_follower(state, state.term, leader, "leader of this term seen")
    elif state.leader != leader:
        assert state.leader == NO_NODE, f"term {state.term} is led by {state.leader} and {leader}"
        state.leader = leader
        state.note_role("leader of this term seen")
    state.timer_start = state.contact_tick = state.now


def ack(state: RaftState, to: NodeId, match: Index, round_id: int) -> AppendReply:
    return AppendReply(
        state.group,
        state.node_id,
        to,
        state.term,
        match,
        Refusal.NONE,
        NO_INDEX,
        NO_INDEX,
        (),
        round_id,
        state.standing,
        state.incarnation,
    )


def answer_old_leader(state: RaftState, message: AppendRequest | InstallSnapshot) -> None:
    """Tell a deposed leader the current term and change nothing (R07)."""
    reply = ack(state, message.sender, NO_INDEX, message.round)
    state.send(reply._replace(refusal=Refusal.OLD_TERM))


def handle_append(state: RaftState, message: AppendRequest) -> None:
    """Check, store and ack the range of an append of the current term."""
    if state.leader != message.sender and is_second_leader(state, message.sender):
        leave_term(state, message)
        return
    hear_leader(state, message.sender)
    # Mostly the leader continues behind the commit index here: no comparison is needed.
    is_questionable = message.prev_index <= state.commit or state.standing is Standing.DIVERGED
    if is_questionable and stands_aside(state, message):
        return
    if message.admitted and message.admitted == state.incarnation:
        end_doubt(state)
    log = state.log
    prev_index = message.prev_index
    if prev_index < log.base_index:
        # The term there is unknown, so no terms are compared (R09). Committed entries equal the
        # leader's log in any case; acking them lets the leader continue behind them.
        durable_commit = min(state.commit, state.synced)
        state.send(ack(state, message.sender, durable_commit, message.round))
        return
    if prev_index > log.last_index or log.term_of(prev_index) != message.prev_term:
        _refuse(state, message)
        return
    verified = message.hi - 1
    wrote = verified > prev_index and _store(state, message)
    # Only entries that this message verified are known to be the leader's: an own tail beyond may
    # differ (R12).
    commit = message.commit if message.commit < verified else verified
    state.commit = max(state.commit, commit)
    if wrote:
        state.send_promise(ack(state, message.sender, verified, message.round))
    elif verified <= state.synced:
        state.send(ack(state, message.sender, verified, message.round))
    else:
        # One ack at once tells the leader that this node lives (R41), one after the sync that it
        # holds the entries.
        state.send(ack(state, message.sender, state.synced, message.round))
        state.send_promise(ack(state, message.sender, verified, message.round))


def stands_aside(state: RaftState, message: AppendRequest) -> bool:
    """Answer a leader that contradicts entries committed here and store nothing of it (R11).

    Return whether the leader contradicts them."""
    is_apart = state.standing is Standing.DIVERGED or conflict_of(state, message) != NO_INDEX
    if is_apart:
        diverge(state, message.sender)
        state.send(ack(state, message.sender, NO_INDEX, message.round))
    return is_apart


def _refuse(state: RaftState, message: AppendRequest) -> None:
    last, runs = state.log.hint(message.prev_index, count_max=state.config.hint_run_count_max)
    reply = ack(state, message.sender, NO_INDEX, message.round)._replace(
        refusal=Refusal.NO_MATCH,
        refused_prev=message.prev_index,
        hint_last=last,
        hint_runs=runs,
    )
    state.send(reply)


def _store(state: RaftState, message: AppendRequest) -> bool:
    """Take the entries not yet held; return whether there were any.

    Deletes entries only from the first real conflict on, so an older or repeated append never
    shortens the log (R10), and never at or below the commit index (R11)."""
    log = state.log
    lo, hi = message.prev_index + 1, message.hi
    if lo <= log.last_index:
        lo = log.first_conflict(lo, hi, message.runs)
        if lo == hi:
            return False
        if lo <= log.last_index:
            truncate_from(state, lo)
    log.append_runs(lo, hi, message.runs)
    if state.write_lo == NO_INDEX or lo < state.write_lo:
        state.write_lo = lo
    state.is_dirty = True
    if message.configurations:
        added = [entry for entry in message.configurations if entry.index >= lo]
        if added:
            state.configurations.extend(added)
            state.use_configuration()
    return True


def truncate_from(state: RaftState, lo: Index) -> None:
    """Drop the entries from `lo` on, which conflict with the leader's: the caller adds those."""
    assert lo > state.commit, (
        f"asked to drop {lo}, committed through {state.commit}: stop this node"
    )
    assert lo > state.log.base_index, f"asked to drop {lo}, snapshot through {state.log.base_index}"
    state.log.truncate_from(lo)
    state.synced = min(state.synced, lo - 1)
    if state.truncate_from == NO_INDEX or lo < state.truncate_from:
        state.truncate_from = lo
    configurations = state.configurations
    if configurations and configurations[-1].index >= lo:
        # A node that just joined may lose the very entry that brought it its configuration.
        while configurations and configurations[-1].index >= lo:
            configurations.pop()
        state.use_configuration()


def end_doubt(state: RaftState) -> None:
    """Let this node vote and count again: the leader found it caught up since its loss of
    memory."""
    if state.standing is Standing.FULL:
        return
    assert state.standing is not Standing.DIVERGED, "a history that differs stays apart"
    state.standing = Standing.FULL
    state.touch_hard_state()


def lose_memory(state: RaftState, incarnation: int) -> None:
    """Stop voting and counting, since this disk is an old copy of itself (R29).

    `incarnation` is above any under which other nodes knew this node."""
    if state.standing is Standing.DIVERGED:
        return
    if state.role is not Role.FOLLOWER:
        become_follower(state, state.term, NO_NODE, "memory lost")
    state.standing = Standing.JOINING
    state.incarnation = max(incarnation, state.incarnation + 1)
    state.send_now.clear()  # Its promises may be untrue, and messages may be lost.
    state.send_after_sync.clear()
    state.touch_hard_state()


def hard_state_stable(state: RaftState, hard_state: HardState) -> None:
    if hard_state == state.hard_state():
        state.is_hard_state_durable = True
