"""Sending from the leader to one follower: content and time.

Owns the choice of range, the window and the probe. Reads byte positions through one callback, so
sizes are bounded without ever holding a payload. Knows nothing of replies: see leader."""

from __future__ import annotations

from raft.messages import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    ConfigurationAt,
    Index,
    InstallSnapshot,
)
from raft.state.log_view import UNKNOWN_TERM
from raft.state.progress import Progress, ProgressState
from raft.state.state import RaftState


def range_hi(state: RaftState, lo: Index, hi: Index, size_bytes_max: int) -> Index:
    """Return the largest end such that [lo, end) has at most `size_bytes_max` bytes; may be
    `lo`."""
    position_of = state.positions.position_of
    limit = position_of(lo) + size_bytes_max
    if position_of(hi) <= limit:
        return hi
    fits, above = lo, hi
    while above - fits > 1:
        middle = (fits + above) // 2
        if position_of(middle) <= limit:
            fits = middle
        else:
            above = middle
    return fits


def broadcast(state: RaftState) -> None:
    """Send to every follower as much as its window allows."""
    state.is_broadcast_due = False
    for progress in state.progress.values():
        if progress.state is not ProgressState.REPLICATE or progress.next <= state.written:
            feed(state, progress)


def feed(state: RaftState, progress: Progress) -> None:
    """Send the next entries, a probe or a snapshot, as the state of the follower allows."""
    if progress.is_divergent:
        return
    kind = progress.state
    if kind is ProgressState.REPLICATE:
        while progress.next <= state.written:
            hi = _window_hi(state, progress)
            if hi <= progress.next or not _send_range(state, progress, hi):
                return
    elif kind is ProgressState.PROBE and not progress.is_paused:
        hi = lo = progress.next
        if lo > state.log.base_index and lo <= state.written:
            hi = min(state.written + 1, lo + state.config.message_entry_count_max)
            hi = range_hi(state, lo, hi, state.config.probe_size_bytes_max)
        if _send_range(state, progress, hi):
            progress.is_paused = True


def _window_hi(state: RaftState, progress: Progress) -> Index:
    """Return the end of the next range in REPLICATE; `progress.next` when the window is full.

    At least one entry may always be in flight, however large.
    """
    config = state.config
    lo = progress.next
    if lo <= state.log.base_index:
        return lo + 1  # Only a snapshot can help; `_send_range` detects it.
    acked = max(progress.match, state.log.base_index) + 1
    hi = min(
        state.written + 1,
        lo + config.message_entry_count_max,
        acked + config.window_entry_count_max,
    )
    if hi <= lo:
        return lo
    used = state.positions.position_of(lo) - state.positions.position_of(acked)
    room = config.window_size_bytes_max - used
    if room <= 0:
        return lo
    hi = range_hi(state, lo, hi, min(room, config.message_size_bytes_max))
    if hi > lo:
        return hi
    # The first entry alone is larger than the room: it travels alone when nothing is in flight, or
    # when only the size of a message, not the window, is in its way.
    return lo + 1 if used == 0 or room >= config.message_size_bytes_max else lo


def _send_range(state: RaftState, progress: Progress, hi: Index) -> bool:
    """Send [progress.next, hi), or a snapshot if the log lacks the entry before; return whether the
    range was sent."""
    log = state.log
    prev_index = progress.next - 1
    prev_term = log.term_of(prev_index)
    if prev_term == UNKNOWN_TERM:
        _send_snapshot(state, progress)
        return False
    lo = progress.next
    if hi > lo:
        hi = log.clip_runs(lo, hi, count_max=state.config.message_run_count_max)
        runs = log.runs_of(lo, hi)
        configurations = _configurations_of(state, lo, hi)
    else:
        runs = ()
        configurations = ()
    progress.commit_sent = state.commit
    state.send(
        AppendRequest(
            state.group,
            state.node_id,
            progress.node,
            state.term,
            prev_index,
            prev_term,
            hi,
            runs,
            state.commit,
            state.round,
            configurations,
            progress.admitted,
        )
    )
    if progress.state is ProgressState.REPLICATE:
        progress.next = hi
    return True


def _configurations_of(state: RaftState, lo: Index, hi: Index) -> tuple[ConfigurationAt, ...]:
    newest = state.configurations[-1].index
    if newest < lo:
        return ()
    return tuple(entry for entry in state.configurations if lo <= entry.index < hi)


def heartbeat(state: RaftState, progress: Progress) -> None:
    """Send a sign of life with commit index and round, and detect lost entries.

    The check on the entry before `next` makes a follower that misses entries refuse. A follower
    whose place in the log is unknown gets a check on the empty prefix, which always holds.
    """
    if progress.state is ProgressState.PROBE and not progress.is_divergent:
        progress.is_paused = False
        feed(state, progress)
        if progress.is_paused:
            return
    elif progress.state is ProgressState.REPLICATE:
        if progress.next <= state.written:
            before = progress.next
            feed(state, progress)
            if progress.next > before:
                return
        if _is_replicating(progress) and _send_range(state, progress, progress.next):
            return
    elif state.now >= progress.snapshot_deadline:
        progress.become_probe()
    progress.commit_sent = NO_INDEX
    state.send(
        AppendRequest(
            state.group,
            state.node_id,
            progress.node,
            state.term,
            NO_INDEX,
            NO_TERM,
            0,
            (),
            state.commit,
            state.round,
            (),
            progress.admitted,
        )
    )


def _send_snapshot(state: RaftState, progress: Progress) -> None:
    """Offer the newest durable snapshot to a follower with recent contact; else do nothing."""
    meta = state.snapshot
    assert meta is not None, "the log was cut without a snapshot"
    assert meta.index >= state.log.base_index, f"snapshot {meta.index} below {state.log.base_index}"
    if not state.has_contact(progress):
        return
    deadline = state.now + state.config.snapshot_ticks_max
    progress.become_snapshot(meta.index, deadline=deadline)
    state.send(
        InstallSnapshot(state.group, state.node_id, progress.node, state.term, meta, state.round)
    )


def _is_replicating(progress: Progress) -> bool:
    """Whether the state is REPLICATE. A call, not a comparison, since feeding may change it."""
    return progress.state is ProgressState.REPLICATE
