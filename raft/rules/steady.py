"""The steady state: one leader in one term, and every follower takes what comes next.

Owns the short way through three rules that a running cluster follows all the time: a leader offers
what was proposed, a follower takes it, the leader counts the ack. Each of them asks in one test
whether the general rules (replication, follower, leader) would do just this. If they would do
anything else, it changes nothing and says so, and its caller goes the general way.

The same rules stand here a second time, since one append at a time costs as much as the number of
steps between two messages. What is here must have the same effects, message by message and byte by
byte: tests/raft/pump/test_steady.py compares both ways on the same inputs, the simulator runs
this one, and `simulation/raft/mutants.txt` breaks it.
"""

from __future__ import annotations

from typing import Final

from raft.messages import NO_INDEX, NO_NODE, AppendReply, AppendRequest, Refusal, Standing
from raft.rules.leader import is_leader, maybe_commit
from raft.state.progress import ProgressState
from raft.state.state import RaftState
from raft.transitions import Role

_new: Final = tuple.__new__  # One call; the constructor of a named tuple is two.


def may_propose(state: RaftState) -> bool:
    """Whether `leader.propose` of one entry would succeed and change nothing else."""
    log = state.log
    held = log.last_index - state.commit
    if (
        state.role is not Role.LEADER
        or log.last_term != state.term
        or state.transferee != NO_NODE
        or state.own_entries
        or held >= state.config.uncommitted_entry_count_max
    ):
        return False
    if not held:
        return True
    position_of = state.positions.position_of
    size_bytes = position_of(state.written + 1) - position_of(state.commit + 1)
    return size_bytes < state.config.uncommitted_size_bytes_max


def propose(state: RaftState) -> None:
    """Do what `leader.propose` of one entry does, after `may_propose`."""
    log = state.log
    if log.last_index > log.base_index:  # As `LogView.append` of an entry of the last term.
        log.last_index += 1
    else:
        log.append(state.term, 1)
    state.written = log.last_index
    state.is_broadcast_due = True


def offers(state: RaftState) -> list[AppendRequest] | None:
    """Do what `replication.broadcast` does if each follower gets all new entries, or nothing.

    Return the messages, in its order; None, with nothing changed, for anything else. Entries of
    this leader's own term only, without a configuration, and within the limit of one message and of
    the window together. No other message waits."""
    if not state.is_hard_state_durable or state.snapshot_gate != NO_INDEX or state.own_entries:
        return None
    term, commit, written = state.term, state.commit, state.written
    hi, position_of = written + 1, state.positions.position_of
    own_first, newest = state.own_term_first, state.configurations[-1].index
    base_index, match = state.log.base_index, hi  # No follower has `hi`.
    messages: list[AppendRequest] = []
    for node in state.progress:
        progress = state.progress[node]
        if progress.state is not ProgressState.REPLICATE:
            if progress.state is ProgressState.PROBE and not progress.is_paused:
                return None
            continue
        lo = progress.next
        if lo > written or progress.is_divergent:
            continue
        if lo <= own_first or lo <= newest or lo <= base_index or progress.match < base_index:
            return None
        # One entry alone in flight may have any size.
        if progress.match != match and progress.match < written - 1:
            match = progress.match
            if hi - match - 1 > state.steady_entry_count_max:
                return None
            if position_of(hi) - position_of(match + 1) > state.steady_size_bytes_max:
                return None
        sent = (
            state.group,
            state.node_id,
            node,
            term,
            lo - 1,
            term,
            hi,
            ((lo, term),),
            commit,
            state.round,
            (),
            progress.admitted,
            None,
        )
        messages += (_new(AppendRequest, sent),)  # A call less than `append`.
    for message in messages:
        progress = state.progress[message.to]
        progress.next, progress.commit_sent = hi, commit
    state.is_broadcast_due = False
    return messages


def take_ack(state: RaftState, message: AppendReply) -> bool:
    """Do what `RaftCore.step` does with the ack of a follower that gets all new entries.

    Return False, with nothing changed, for any other reply. May commit, and so end a leadership."""
    if message.sender not in state.progress:
        return False
    progress = state.progress[message.sender]
    match, round_id = message.match, message.round
    if (
        message.term != state.term
        or state.role is not Role.LEADER
        or progress.state is not ProgressState.REPLICATE
        or not progress.is_counted
        or progress.admitted
        or message.incarnation != progress.incarnation
        or message.standing is not Standing.FULL
        or message.refusal is not Refusal.NONE
        or match > state.log.last_index
        or round_id > state.round
        or (round_id > progress.round and state.reads_pending)
        or state.transferee != NO_NODE
        or message.to != state.node_id
        or message.group != state.group
    ):
        return False
    progress.contact_tick = state.now
    if round_id > progress.round:  # noqa: PLR1730  A call less.
        progress.round = round_id
    if match > progress.match:
        progress.match = match
        if progress.next <= match:
            progress.next = match + 1
    if match > state.commit:
        maybe_commit(state)
        if not is_leader(state):  # Its own removal was committed.
            return True
    if progress.next <= state.written:
        state.is_broadcast_due = True
    return True


def is_next(state: RaftState, message: AppendRequest) -> bool:
    """Whether an append brings what follows the end of this log, and no other news than a commit.

    Entries of the current term behind one of the current term, from the leader of that term, to a
    follower in full standing with no other work: the general rules compare nothing then."""
    log, term, prev_index = state.log, message.term, message.prev_index
    return (
        term == state.term
        and message.sender == state.leader
        and state.role is Role.FOLLOWER
        and prev_index == log.last_index
        and message.prev_term == term == log.last_term
        and message.hi > prev_index + 1
        and message.runs == ((prev_index + 1, term),)
        and not message.configurations
        and not message.admitted
        and not state.is_dirty
        and state.is_hard_state_durable
        and state.snapshot_gate == NO_INDEX
        and state.standing is Standing.FULL
        and message.to == state.node_id
        and message.group == state.group
    )


def take(state: RaftState, message: AppendRequest) -> AppendReply:
    """Do what `follower.handle_append` does, after `is_next`; return the ack, which is a promise.

    The caller writes the entries before it does anything else."""
    last = message.hi - 1
    state.timer_start = state.contact_tick = state.now
    log = state.log
    if log.last_index > log.base_index:  # As `LogView.append` of entries of the last term.
        log.last_index = last
    else:
        log.append(message.term, last - message.prev_index)
    # Only entries that this message verified are known to be the leader's (R12).
    commit = message.commit if message.commit < last else last
    if commit > state.commit:  # noqa: PLR1730  A call less.
        state.commit = commit
    ack = (
        state.group,
        state.node_id,
        message.sender,
        message.term,
        last,
        Refusal.NONE,
        NO_INDEX,
        NO_INDEX,
        (),
        message.round,
        state.standing,
        state.incarnation,
    )
    return _new(AppendReply, ack)
