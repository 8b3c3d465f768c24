"""The metrics of a node whose log Raft replicates; `node.metrics` puts them beside all others."""

from typing import Any, Final

from node.monitoring.metric import Table, counter, gauge
from node.replication.raft.digests.checks import StateChecks
from node.replication.raft.driver import RaftDriver
from node.replication.raft.repair import LiveRepair
from raft.pump.replica import Replica

RAFT: Final[Table[Replica]] = {
    "divergent_peers": gauge("Nodes whose committed log contradicts this one's.",
        lambda r: len(r.core.state.divergent_peers)),
    "uncommitted_entries": gauge("Entries above the commit index.",
        lambda r: r.core.state.log.last_index - r.core.state.commit),
    "waiting_appends": gauge("Appends whose caller waits for the commit.",
        lambda r: len(r.proposals)),
    "waiting_reads": gauge("Linearizable reads that wait for a quorum.",
        lambda r: r.core.state.read_count),
    "held_messages": gauge("Answers to peers that wait for a sync.",
        lambda r: r.flushes.held_count),
    "held_messages_dropped": counter("Answers to peers dropped over the limit.",
        lambda r: r.flushes.held_dropped),
    "follower_match_index": gauge("Leader only: last entry a node has.",
        lambda r: {str(n): p.match for n, p in r.core.state.progress.items()}, "node_id"),
    "follower_in_flight_bytes": gauge("Leader only: sent, not acked.",
        lambda r: {str(n): r.core.state.in_flight_size_bytes(p)
                   for n, p in r.core.state.progress.items()}, "node_id"),
}  # fmt: skip
"""The pump and the core of Raft."""
RAFT_DRIVER: Final[Table[RaftDriver]] = {
    "appends_without_room": counter("Appends of the leader dropped: no room on the disk.",
        lambda d: d.dropped_for_room_count),
    "apply_retries": counter("Committed entries not shown: no room for queues.",
        lambda d: d.apply_retry_count),
}  # fmt: skip
"""The shell of Raft."""
STATE_CHECKS: Final[Table[StateChecks]] = {
    "state_fenced": gauge("1 while the state is not a majority's: nothing is served.",
        lambda c: bool(c.fence.reason)),
    "state_checks_equal": counter("Digests of the state equal to that of a majority.",
        lambda c: c.equal_count),
    "state_checks_differing": counter("Digests of the state that differed from it.",
        lambda c: c.differing_count),
    "state_checks_undecided": counter("Leader only: states differ, no majority agrees.",
        lambda c: c.undecided_count),
    "state_checks_passed_over": counter("Digests not compared: no time, another build.",
        lambda c: c.passed_over_count),
    "state_digest_seconds": gauge("Time that the last digest of the state took.",
        lambda c: c.duration_s),
}  # fmt: skip
"""The comparison of the replicas' states."""
REPAIR: Final[Table[LiveRepair]] = {
    "repairs_waiting": gauge("Damaged places that are being repaired from peers.",
        lambda r: r.waiting_count),
    "repaired_entries": counter("Entries of the log that were repaired from peers.",
        lambda r: r.repaired_entry_count),
}  # fmt: skip
"""Repairs of the log while the node runs."""
METRICS: Final[Table[Any]] = {**RAFT, **RAFT_DRIVER, **STATE_CHECKS, **REPAIR}
