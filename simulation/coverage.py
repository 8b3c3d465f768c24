"""How often a state of interest was reached. A long run that never reached one fails.

Owns the names: what is counted has to be listed here, so that a zero is noticed.
"""

from typing import Final

from simulation.plan import DISK_FAULTS

SOMETIMES: Final = (
    # Faults that were done.
    "killed",
    "stopped",
    "paused",
    "power_lost",
    "cut",
    "cut_one_way",
    "flapped",
    "slow_link",
    "lossy_link",
    "clock_jumped",
    "slow_core",
    "handed_over",
    "advised",
    "new_disk",
    *DISK_FAULTS,
    "died_at_call",
    # What the cluster went through.
    "leader_changed",
    "loss_reported",
    "append_acked",
    "append_not_applied",
    "append_unknown",
    "stored_once_sent_twice",
    "read",
    "followed",
    "group_read",
    "whole_cluster_restarted",
    "snapshot_received",
    "log_rolled",
)
