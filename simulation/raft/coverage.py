"""Counters of interesting states: proof that a run reached the states where defects are found.

A counter that stays at zero over many seeds means the simulator no longer reaches that state, so
the list of names is closed: counting an unknown name is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

STATES = (
    "leader_elected",
    "leader_stepped_down",
    "leader_change_during_snapshot",
    "truncation",
    "truncation_of_many",
    "sync_outrun_by_commit",
    "crash_lost_unsynced",
    "crash_undid_truncation",
    "crash_tore_a_write",
    "crash_kept_entries_without_their_term",
    "sync_error",
    "meta_write_failed",
    "snapshot_taken",
    "snapshot_installed",
    "log_cut",
    "follower_behind_log_start",
    "configuration_changed",
    "configuration_truncated",
    "learner_promoted",
    "voter_removed",
    "leader_removed",
    "transfer_started",
    "paused_leader_resumed",
    "node_wiped",
    "node_recovering",
    "doubt_ended",
    "read_served",
    "read_failed",
    "duplicate_in_log",
    "append_unknown",
    "append_not_applied",
    "append_acked",
    "waiter_not_applied",
    "corrupt_payload_refused",
    "whole_cluster_lost_power",
    "majority_lost_memory",
    "needs_operator",
    "loss_reported",
    "loss_accepted",
    "acked_entries_lost",
    "power_lost_again",
    "old_copy_put_back",
    "old_copy_found",
    "proposal_without_room",
    "append_without_room",
)


class Coverage:
    """Counts of one run; can be added up over runs."""

    __slots__ = ("counts",)

    def __init__(self, states: Iterable[str] = STATES) -> None:
        self.counts = Counter(dict.fromkeys(states, 0))

    def hit(self, state: str, count: int = 1) -> None:
        assert state in self.counts, f"unknown state {state!r}"
        self.counts[state] += count

    def missing(self) -> list[str]:
        """Return the states that were never reached."""
        return [state for state, count in self.counts.items() if not count]

    def lines(self) -> list[str]:
        return [f"{state:40} {count}" for state, count in self.counts.items()]
