"""Immutable status of one replica for metrics, health checks and the command line."""

from __future__ import annotations

from typing import NamedTuple

from raft.messages import Index, NodeId, Standing, Term
from raft.state.progress import ProgressState
from raft.state.state import RaftState
from raft.transitions import Role


class ProgressStats(NamedTuple):
    node: NodeId
    state: ProgressState
    match: Index
    next: Index
    is_counted: bool
    in_flight_size_bytes: int


class RaftStats(NamedTuple):
    node_id: NodeId
    role: Role
    term: Term
    leader: NodeId
    standing: Standing
    first_index: Index
    last_index: Index
    synced: Index
    commit: Index
    applied: Index
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    progress: tuple[ProgressStats, ...]
    uncommitted_entry_count: int
    read_count: int
    divergent_peers: tuple[NodeId, ...]


def stats_of(state: RaftState) -> RaftStats:
    """Return the status of a replica. Costs a few microseconds; not for the hot path."""
    position_of = state.positions.position_of
    rows = []
    for progress in state.progress.values():
        lo = max(progress.match, state.log.base_index) + 1
        size_bytes = position_of(progress.next) - position_of(lo) if progress.next > lo else 0
        rows.append(
            ProgressStats(
                progress.node,
                progress.state,
                progress.match,
                progress.next,
                progress.is_counted,
                size_bytes,
            )
        )
    return RaftStats(
        state.node_id,
        state.role,
        state.term,
        state.leader,
        state.standing,
        state.log.base_index + 1,
        state.log.last_index,
        state.synced,
        state.commit,
        state.applied,
        state.voters,
        state.learners,
        tuple(rows),
        state.log.last_index - state.commit,
        state.read_count,
        tuple(sorted(state.divergent_peers)),
    )
