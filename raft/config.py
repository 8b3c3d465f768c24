"""Every setting the core obeys: time-outs in ticks and a limit for each queue and message.

Owns meaning, default and legal range; knows nothing of files or the environment. The core has no
clock: the shell calls `tick()` every `tick_interval_ms`, and all times here count ticks.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.messages import NO_NODE, NodeId


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Settings of one replica. Immutable; a wrong value raises ValueError by name."""

    group: str
    """Identity of the cluster. A message of another group is a protocol violation."""
    node_id: NodeId
    """This replica. Positive, unique, never used again for another disk."""

    tick_interval_ms: int = 25
    """How often the shell ticks. Only documentation for the core."""
    heartbeat_ticks: int = 3
    """Largest interval at which a leader sends to every member (75 ms)."""
    election_ticks_min: int = 20
    """A node neither campaigns nor grants a vote within this time of a leader's message (500 ms).
    A leader without replies from a quorum for this long steps down."""
    election_ticks_max: int = 40
    """Upper end of the random time-out (1000 ms), inclusive; redrawn at each election."""

    message_size_bytes_max: int = 1 << 20
    """Payload of one append. An entry larger than this is sent in an append of its own."""
    message_entry_count_max: int = 4096
    """Entries of one append."""
    message_run_count_max: int = 64
    """Term runs of one append. Bounds its header when the log has many short terms."""
    probe_size_bytes_max: int = 16 << 10
    """Payload of a probe. Small, since a dead follower is probed at every heartbeat."""
    window_size_bytes_max: int = 8 << 20
    """Bytes sent to one follower and not yet acked. 8 MiB is 40 ms at 200 MB/s."""
    window_entry_count_max: int = 16384
    """Entries sent to one follower and not yet acked."""
    hint_run_count_max: int = 8
    """Term runs in a refusal: a divergence of up to this many terms is found in one round trip."""

    uncommitted_size_bytes_max: int = 64 << 20
    """Bytes in the leader's log above the commit index before proposals get BusyError."""
    uncommitted_entry_count_max: int = 65536
    """Entries in the leader's log above the commit index before proposals get BusyError."""
    read_count_max: int = 4096
    """Linearizable reads waiting for confirmation before BusyError."""
    apply_entry_count_max: int = 4096
    """Entries handed out for apply and not yet reported applied."""
    held_message_count_max: int = 4096
    """Messages that wait for a sync in the pump; further ones are dropped, as a network may."""
    waiter_count_max: int = 65536
    """Proposals whose callers wait in the pump before BusyError."""
    waiter_grace_ticks: int = 80
    """After losing leadership, waiters wait this long for a definite outcome, then get
    "unknown"."""

    snapshot_ticks_max: int = 2400
    """A snapshot transfer without progress or end for this time (60 s) is given up, and the peer
    is probed."""
    promote_lag_entry_count_max: int = 1024
    """A learner this close behind the leader's last entry may become a voter."""
    retained_lag_entry_count_max: int = 1 << 20
    """The log is kept for a follower at most this far behind; one further back gets a snapshot."""

    transfer_lag_entry_count_max: int = 1000
    """A hand-over to a node further behind is refused (DLedger maxLeadershipTransferWaitIndex)."""
    preferred_leader: NodeId = NO_NODE
    """The node that should lead while it is healthy and caught up. NO_NODE: any voter."""
    preferred_retry_ticks: int = 400
    """Pause between attempts to hand over to the preferred leader (10 s)."""

    lease_reads: bool = False
    """Whether reads are served from a quorum's recent replies without a round. Trusts clocks; off
    by default.

    The shell must then deliver each tick of a monotonic clock that also runs while the process is
    stopped, late ticks before any other input."""
    clock_drift_percent_max: int | None = None
    """How much faster one node's ticks may run than another's. None: lease reads are refused."""

    def __post_init__(self) -> None:
        if not self.group:
            raise ValueError("group must not be empty")
        if self.node_id <= NO_NODE:
            raise ValueError(f"node_id must be positive, not {self.node_id}")
        if not 1 <= self.heartbeat_ticks < self.election_ticks_min:
            raise ValueError("heartbeat_ticks must be at least 1 and below election_ticks_min")
        if self.election_ticks_max <= self.election_ticks_min:
            raise ValueError(
                "election_ticks_max must exceed election_ticks_min: equal nodes lock step"
            )
        if self.lease_reads and self.clock_drift_percent_max is None:
            raise ValueError(
                "lease_reads needs clock_drift_percent_max; leave leases off if unknown"
            )
        drift = self.clock_drift_percent_max
        if drift is not None and not 0 <= drift < 100:
            raise ValueError(f"clock_drift_percent_max must be within 0..99, not {drift}")
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith(("_max", "_ticks")) and value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, is {value}")
        for name in (
            "message_size_bytes_max",
            "message_entry_count_max",
            "message_run_count_max",
            "window_size_bytes_max",
            "window_entry_count_max",
            "hint_run_count_max",
            "uncommitted_size_bytes_max",
            "uncommitted_entry_count_max",
            "read_count_max",
            "apply_entry_count_max",
            "held_message_count_max",
            "waiter_count_max",
            "snapshot_ticks_max",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
