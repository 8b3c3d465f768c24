"""Linearizable reads: prove leadership after the read arrived, then serve at the commit index that
was current at the start of the proof.

Owns the queue of reads and the confirmation rounds (Raft thesis 6.4). A round is a number that
every append carries and every reply echoes; a read is confirmed by a quorum of echoes of a round
begun after the read came in, so an old reply can never confirm a new read (fault-matrix R19). All
reads of one turn share a round. Lease reads skip the round; they trust the drift bound of the
clocks and are off unless configured."""

from __future__ import annotations

from raft.errors import BusyError, NotLeaderError
from raft.quorum import quorum_value
from raft.ready import ReadConfirmed
from raft.rules.replication import heartbeat
from raft.state.progress import Progress
from raft.state.state import PendingReads, RaftState
from raft.transitions import Role

ROUNDS_IN_FLIGHT_MAX = 4
"""Rounds begun and not confirmed. More would only add traffic: later reads wait for the next
round."""


def read_index(state: RaftState, read_id: int) -> None:
    """Queue one read; the answer comes in `Ready.reads` or `Ready.reads_failed`.

    `read_id` is only handed back; the proof uses a round of its own. Raises NotLeaderError or
    BusyError."""
    if state.role is not Role.LEADER:
        raise NotLeaderError(state.leader)
    limit = state.config.read_count_max
    if state.read_count >= limit:
        raise BusyError("reads waiting for confirmation", state.read_count, limit)
    if state.config.lease_reads and is_startable(state, waiting=1) and _has_lease(state):
        state.reads_ready.append(ReadConfirmed(read_id, state.commit))
    else:
        state.reads_waiting.append(read_id)
        state.read_count += 1
    state.is_dirty = True


def is_startable(state: RaftState, *, waiting: int) -> bool:
    """Whether `waiting` reads can begin a round: only after a commit of the own term (R18).

    Before that the commit index may lag behind entries that an earlier leader acked.
    """
    return (
        waiting > 0
        and state.role is Role.LEADER
        and state.commit >= state.own_term_first
        and len(state.reads_pending) < ROUNDS_IN_FLIGHT_MAX
    )


def begin_round(state: RaftState) -> None:
    """Count a new round; with leases remember the tick at which it began."""
    state.round += 1
    if state.config.lease_reads:
        state.round_ticks.append((state.round, state.now))


def start_round(state: RaftState) -> None:
    """Give the waiting reads an index and ask a quorum whether this node still leads."""
    begin_round(state)
    state.reads_pending.append(PendingReads(state.round, state.commit, state.reads_waiting))
    state.reads_waiting = []
    for voter in state.voters:
        progress = state.progress.get(voter)
        if progress is not None:
            heartbeat(state, progress)
    confirm(state)


def _confirmed_round(state: RaftState) -> int:
    """Return the newest round that a quorum of voters has echoed."""
    return quorum_value(
        [
            state.round if voter == state.node_id else _echoed(state.progress[voter])
            for voter in state.voters
        ]
    )


def _echoed(progress: Progress) -> int:
    return progress.round if progress.is_counted else 0


def confirm(state: RaftState) -> None:
    """Release the reads whose round a quorum has echoed."""
    if not state.reads_pending:
        return
    confirmed = _confirmed_round(state)
    while state.reads_pending and state.reads_pending[0].round <= confirmed:
        pending = state.reads_pending.popleft()
        for read_id in pending.read_ids:
            state.reads_ready.append(ReadConfirmed(read_id, pending.index))
        state.read_count -= len(pending.read_ids)
        state.is_dirty = True


def _has_lease(state: RaftState) -> bool:
    """Whether no other leader can exist yet, if clocks drift no more than configured.

    A quorum that answered a round begun at tick t grants no vote before t plus the minimum election
    time-out of its own clock. A tick is a moment and not a duration: n ticks of theirs may take
    hardly more than n - 1 intervals, and n ticks of ours almost n + 1. A hand-over breaks that
    promise, so it ends leases for the whole term."""
    drift = state.config.clock_drift_percent_max
    if drift is None or state.is_campaign_ordered:
        return False
    if state.voters == (state.node_id,):
        return True
    confirmed = _confirmed_round(state)
    began = max(
        (tick for round_id, tick in state.round_ticks if round_id <= confirmed), default=None
    )
    if began is None:
        return False
    ours, theirs = state.now - began + 1, state.config.election_ticks_min - 1
    return ours * (100 + drift) <= theirs * 100
