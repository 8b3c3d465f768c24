"""Progress of one follower as its leader knows it, and the three ways to feed it.

PROBE: the common prefix is not known; one small append at a time, the next one on a reply or at the
next heartbeat. REPLICATE: it is known; appends are pipelined within a window of entries and bytes.
SNAPSHOT: the follower needs entries that the log no longer has; only heartbeats go out. Every state
leads back to PROBE when something is lost (fault-matrix R33).

The window is not counted up and down: the entries in flight are by definition [match + 1, next), so
the count cannot leak and is zero exactly when everything sent is acked (R35).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from raft.messages import NO_INDEX, Index, NodeId, Round

NO_TARGET: Index = -2
"""No admission target yet. Below NO_INDEX, which is a target that an empty log meets."""

UNHEARD = -1
"""Incarnation of a follower that has not answered this leader yet."""


class ProgressState(IntEnum):
    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


@dataclass(slots=True, eq=False)
class Progress:
    """One follower or learner as seen by the leader of the current term."""

    node: NodeId
    next: Index
    """First entry to send. Invariant: next > match."""
    contact_tick: int
    """Tick of the last reply in this term; starts as now, which gives a new leader one time-out to
    get replies."""
    state: ProgressState = ProgressState.PROBE
    match: Index = NO_INDEX
    """Last index known to be equal and durable there. Never goes back within an incarnation."""
    is_paused: bool = False
    """PROBE only: whether a probe is out; the next one waits for a reply or a heartbeat."""
    commit_sent: Index = NO_INDEX
    """Highest commit index sent; decides whether an idle follower must be told."""
    round: Round = 0
    """Newest confirmation round that the follower echoed."""
    incarnation: int = UNHEARD
    is_counted: bool = True
    """Whether the follower counts for commit, check-quorum and reads: not while its memory is in
    doubt."""
    is_divergent: bool = False
    """Whether its committed entries contradict this leader's log: heartbeats only."""
    admission_target: Index = NO_TARGET
    """While its memory is in doubt: the match from which on it is as good as any follower."""
    admitted: int = 0
    """The incarnation found caught up, told in every append. 0: none."""
    snapshot_index: Index = NO_INDEX
    snapshot_deadline: int = 0

    @property
    def first_unacked(self) -> Index:
        """First entry that may have been sent and is not acked."""
        return self.next if self.state is ProgressState.PROBE else self.match + 1

    def become_probe(self) -> None:
        """Start again right behind the known match, since messages may be lost."""
        self.state = ProgressState.PROBE
        self.next = self.match + 1
        self.is_paused = False

    def become_replicate(self) -> None:
        assert self.next > self.match, f"next {self.next} not above match {self.match}"
        self.state = ProgressState.REPLICATE
        self.is_paused = False

    def become_snapshot(self, index: Index, *, deadline: int) -> None:
        assert index > self.match, f"snapshot at {index} for a follower at {self.match}"
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = index
        self.snapshot_deadline = deadline

    def restart(self, incarnation: int) -> None:
        """Forget everything known of a follower that lost its memory since its last ack."""
        self.incarnation = incarnation
        self.match = NO_INDEX
        self.next = max(self.next, 0)
        self.state = ProgressState.PROBE
        self.is_paused = False
        self.round = 0
        self.is_counted = False
        self.is_divergent = False
        self.admission_target = NO_TARGET
        self.admitted = 0

    def refuse_at(self, refused_prev: Index, agreement: Index) -> None:
        """Move next back after a refusal: at least one step, never below match + 1 (R34)."""
        assert refused_prev > self.match, f"refusal at {refused_prev} is below match {self.match}"
        self.state = ProgressState.PROBE
        self.next = max(self.match + 1, min(agreement + 1, refused_prev))
        self.is_paused = False
