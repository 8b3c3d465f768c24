"""Leadership: take office, append, process acks, commit, send heartbeats, step down.

Owns the commit rule (own-term entries only, counted on durable copies only) and the check that a
quorum still answers. Sending is in replication, reads in read_index, hand-over in transfer."""

from __future__ import annotations

from raft.errors import BusyError, NotLeaderError, PeerProtocolError, TransferringError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    AppendReply,
    Configuration,
    ConfigurationAt,
    Index,
    Refusal,
    Term,
)
from raft.quorum import quorum_value
from raft.ready import EntryKind, OwnEntry
from raft.rules import membership, read_index, recovery, replication, transfer
from raft.rules.follower import become_follower
from raft.rules.membership import Change
from raft.state.progress import Progress, ProgressState
from raft.state.state import NEVER, RaftState
from raft.transitions import Role


def become_leader(state: RaftState) -> None:
    """Take office with no knowledge of the followers' logs, and append a no-op.

    Only entries of the own term are ever committed by counting, so without the no-op an idle leader
    would never commit inherited entries. Source: Raft thesis 6.4, Raft paper 8.
    """
    state.set_role(Role.LEADER, state.node_id, "vote quorum")
    state.votes.clear()
    last = state.log.last_index
    state.own_term_first = last + 1
    state.written = last
    state.heartbeat_tick = state.now
    state.is_campaign_ordered = False
    state.preferred_next_tick = state.now + state.config.election_ticks_max
    state.progress = {
        node: Progress(node, last + 1, state.now)
        for node in sorted(state.voters + state.learners)
        if node != state.node_id
    }
    if state.is_recovery_campaign:
        recovery.win_recovery_election(state)
    _append_own(state, EntryKind.NO_OP, None)


def _append_own(state: RaftState, kind: EntryKind, configuration: Configuration | None) -> Index:
    """Append an entry of the core itself; it is sent once the shell has written it."""
    state.log.append(state.term, 1)
    index = state.log.last_index
    state.own_entries.append(OwnEntry(index, state.term, kind, configuration))
    state.is_dirty = True
    return index


def propose(state: RaftState, count: int) -> tuple[Index, Term]:
    """Reserve indexes for data. Raises NotLeaderError, TransferringError, BusyError."""
    check_can_append(state, count)
    assert not state.own_entries, "take the Ready with the no-op or configuration entry first"
    index = state.log.last_index + 1
    state.log.append(state.term, count)
    state.written = state.log.last_index
    state.is_broadcast_due = True
    return index, state.term


def check_can_append(state: RaftState, count: int) -> None:
    """Raise the error that `propose` would raise now; change nothing."""
    if count < 1:
        raise ValueError(f"count must be at least 1, is {count}")
    if state.role is not Role.LEADER:
        raise NotLeaderError(state.leader)
    if state.transferee != NO_NODE:
        raise TransferringError(state.transferee)
    config = state.config
    held = state.log.last_index - state.commit
    if held + count > config.uncommitted_entry_count_max:
        raise BusyError("uncommitted entries", held, config.uncommitted_entry_count_max)
    if held:
        position_of = state.positions.position_of
        held = position_of(state.written + 1) - position_of(state.commit + 1)
        if held >= config.uncommitted_size_bytes_max:
            raise BusyError("uncommitted bytes", held, config.uncommitted_size_bytes_max)


def check_change(state: RaftState, change: Change) -> Configuration:
    """Return the configuration that `propose_change` would append, or raise what it would raise."""
    check_can_append(state, 1)
    return membership.check_change(state, change)


def propose_change(state: RaftState, change: Change) -> tuple[Index, Term]:
    """Append a configuration. Raises the errors of `propose`, and ChangeRefusedError."""
    configuration = check_change(state, change)
    index = _append_own(state, EntryKind.CONFIGURATION, configuration)
    membership.adopt(state, ConfigurationAt(index, configuration))
    return index, state.term


def written(state: RaftState) -> None:
    """Note that the shell has written all own entries, and send them."""
    state.written = state.log.last_index
    state.is_broadcast_due = True


def is_leader(state: RaftState) -> bool:
    """Whether this node leads. A call, not a comparison, since committing may change the role."""
    return state.role is Role.LEADER


def handle_append_reply(state: RaftState, message: AppendReply) -> None:
    """Process an ack or refusal of the current term."""
    if state.role is not Role.LEADER:
        return
    if message.refusal is Refusal.OLD_TERM:
        # The refusal answers an append of an earlier leadership of this node. Rounds begin again
        # at a restart, so the echoed round could confirm a read of today (R19).
        return
    progress = state.progress.get(message.sender)
    if progress is None:
        return
    match = message.match
    if match > state.log.last_index:
        raise PeerProtocolError(message.sender, f"acked {match}, log ends {state.log.last_index}")
    if message.round > state.round:
        # A round above the newest one would confirm every later read.
        raise PeerProtocolError(message.sender, f"echoes round {message.round} of {state.round}")
    was_counted = progress.is_counted
    if not recovery.admit_reply(state, progress, message):
        return
    progress.contact_tick = state.now
    if message.round > progress.round:
        progress.round = message.round
        if state.reads_pending:
            read_index.confirm(state)
    if message.refusal is Refusal.NO_MATCH:
        _handle_refusal(state, progress, message)
        return
    is_news = match > progress.match
    if is_news:
        progress.match = match
        if progress.next <= match:
            progress.next = match + 1
    if progress.state is ProgressState.PROBE:
        if match >= progress.next - 1:
            progress.become_replicate()
    elif progress.state is ProgressState.SNAPSHOT and match >= progress.snapshot_index:
        progress.become_probe()
        progress.become_replicate()
    if progress.is_counted and (match > state.commit or not was_counted):
        maybe_commit(state)
    if not is_leader(state):  # A removed leader steps down with the commit of its removal.
        return
    if recovery.is_admissible(state, progress, message):
        progress.admitted = message.incarnation
        replication.heartbeat(state, progress)
    if state.transferee == progress.node:
        transfer.order_if_caught_up(state, progress)
    if progress.state is ProgressState.REPLICATE and progress.next <= state.written:
        state.is_broadcast_due = True


def _handle_refusal(state: RaftState, progress: Progress, message: AppendReply) -> None:
    """Back up to where the logs can agree; ignore a refusal of an append that is already
    settled."""
    refused = message.refused_prev
    if progress.state is ProgressState.SNAPSHOT or refused <= progress.match:
        return
    if progress.state is ProgressState.PROBE and refused != progress.next - 1:
        return
    progress.refuse_at(refused, state.log.agreement(message.hint_last, message.hint_runs))
    replication.feed(state, progress)


def maybe_commit(state: RaftState) -> None:
    """Advance the commit index to the last index durable on a quorum, if of the own term
    (R13)."""
    node_id, progress, synced = state.node_id, state.progress, state.synced
    if state.voters != (node_id,):
        for node in progress:
            if progress[node].match > state.commit:
                break
        else:  # Mostly the own sync ends first.
            return
    values: list[Index] = []
    for voter in state.voters:  # The own disk is one voter, not a privileged one (R15).
        if voter == node_id:
            values += (synced,)
        else:
            values += (progress[voter].match if progress[voter].is_counted else NO_INDEX,)
    index = quorum_value(values)
    if index <= state.commit or index < state.own_term_first:
        return
    log = state.log
    term = log.last_term if index == log.last_index else log.term_of(index)
    assert term == state.term, f"{index} is not of term {state.term}"
    before, state.commit = state.commit, index
    if before < state.configurations[-1].index <= index:
        _on_configuration_committed(state)


def _on_configuration_committed(state: RaftState) -> None:
    """Drop nodes whose removal is committed; step down if this node is one of them."""
    members = state.voters + state.learners
    for node in [node for node in state.progress if node not in members]:
        del state.progress[node]
    if not state.is_voter:
        transfer.order_best(state)
        become_follower(state, state.term, NO_NODE, "own removal committed")


def tick(state: RaftState) -> None:
    """Process one tick of a leader: heartbeats, commit news, check-quorum, hand-over time-out."""
    if state.transferee != NO_NODE and state.now >= state.transfer_deadline:
        transfer.abandon(state)
    if state.now - state.heartbeat_tick < state.config.heartbeat_ticks:
        for progress in state.progress.values():
            if (
                progress.commit_sent < state.commit
                and progress.state is ProgressState.REPLICATE
                and not state.own_entries
            ):
                replication.heartbeat(state, progress)
        return
    state.heartbeat_tick = state.now
    if not _hears_quorum(state):
        become_follower(state, state.term, NO_NODE, "no contact with a quorum")
        return
    if state.config.lease_reads:
        read_index.begin_round(state)
    for progress in state.progress.values():
        replication.heartbeat(state, progress)
    transfer.maybe_prefer(state)


def _hears_quorum(state: RaftState) -> bool:
    """Whether a quorum replied within one minimum election time-out (R23)."""
    contacts = []
    for voter in state.voters:
        if voter == state.node_id:
            contacts.append(state.now)
        else:
            progress = state.progress[voter]
            contacts.append(progress.contact_tick if progress.is_counted else NEVER)
    return state.now - quorum_value(contacts) < state.config.election_ticks_min
