"""Snapshots: when the log may be cut, and how a follower takes a snapshot.

Owns the rules; the state itself never passes through the core. The shell hands a received snapshot
to the core only when it is complete and verified, and installs it when `Ready` says so."""

from __future__ import annotations

from raft.errors import CompactionRefusedError
from raft.messages import NO_INDEX, Index, InstallSnapshot, SnapshotMeta, Standing
from raft.rules.divergence import diverge, snapshot_conflicts
from raft.rules.follower import ack, hear_leader, is_second_leader, leave_term
from raft.state.progress import ProgressState
from raft.state.state import RaftState


def handle_install(state: RaftState, message: InstallSnapshot) -> None:
    """Take a snapshot of the current term's leader, if it is newer than the commit index.

    Newer state is never replaced. The log stays when it holds (index, term): then the snapshot only
    tells that everything up to there is committed (Raft paper 7)."""
    if is_second_leader(state, message.sender):
        leave_term(state, message)
        return
    hear_leader(state, message.sender)
    meta = message.meta
    if state.standing is Standing.DIVERGED or snapshot_conflicts(state, meta):
        diverge(state, message.sender)
        state.send(ack(state, message.sender, NO_INDEX, message.round))
        return
    if meta.index <= state.commit:
        durable_commit = min(state.commit, state.synced)
        state.send(ack(state, message.sender, durable_commit, message.round))
        if durable_commit < meta.index:
            state.send_promise(ack(state, message.sender, meta.index, message.round))
        return
    if state.log.term_of(meta.index) == meta.term:
        state.commit = meta.index
        state.send_promise(ack(state, message.sender, meta.index, message.round))
        return
    assert state.write_lo == NO_INDEX, "take the Ready of the last append before a snapshot"
    state.log.reset(meta.index, meta.term)
    state.commit = state.applied = state.handed = state.synced = meta.index
    state.snapshot = state.snapshot_taken = meta
    state.snapshot_gate = meta.index
    state.truncate_from = NO_INDEX
    state.configurations = [meta.configuration_at]
    state.use_configuration()
    state.send_promise(ack(state, message.sender, meta.index, message.round))


def snapshot_durable(state: RaftState, meta: SnapshotMeta) -> None:
    """Note a local snapshot that is on disk: synced, renamed, directory synced.

    An older snapshot than the known one changes nothing."""
    assert meta.index <= state.applied, f"snapshot at {meta.index}, applied through {state.applied}"
    if state.snapshot is None or meta.index > state.snapshot.index:
        state.snapshot = meta


def meta_at(state: RaftState, index: Index) -> SnapshotMeta:
    """Return term and membership as of `index`, for a snapshot the shell is about to take there.

    Raises CompactionRefusedError on a node that does not know the members at that index.
    """
    assert state.log.base_index <= index <= state.applied, f"{index} is not applied or compacted"
    in_force = [entry for entry in state.configurations if entry.index <= index]
    if not in_force:
        # A node that joined lately: the log up to here does not yet name the members.
        raise CompactionRefusedError(index, state.log.base_index)
    return SnapshotMeta(index, state.log.term_of(index), in_force[-1])


def compactable_to(state: RaftState) -> Index:
    """Return the index through which the log may be cut without harm to a close follower.

    A durable snapshot covers the log up to there; base_index if none does. A follower further
    behind than `retained_lag_entry_count_max` gets a snapshot instead."""
    base = state.log.base_index
    if state.snapshot is None:
        return base
    limit = min(state.snapshot.index, state.applied)
    for progress in state.progress.values():
        needed = progress.match
        if progress.state is ProgressState.SNAPSHOT:
            needed = max(needed, progress.snapshot_index)
        if state.log.last_index - needed <= state.config.retained_lag_entry_count_max:
            limit = min(limit, needed)
    return max(base, limit)


def compact_to(state: RaftState, index: Index) -> None:
    """Cut the log through `index`. Raises CompactionRefusedError without a durable snapshot
    (R32)."""
    limit = state.log.base_index
    if state.snapshot is not None:
        limit = max(limit, min(state.snapshot.index, state.applied, state.synced))
    if index > limit:
        raise CompactionRefusedError(index, limit)
    state.log.compact_to(index)
    newest_below = [entry for entry in state.configurations if entry.index <= index][-1:]
    newer = [entry for entry in state.configurations if entry.index > index]
    state.configurations = newest_below + newer
