"""How often a state of interest was reached. A long run that never reached one fails.

Owns the names: what is counted has to be listed here, so that a zero is noticed.
"""

from collections import Counter
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


class Coverage:
    """The counters of one or of many worlds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def hit(self, name: str) -> None:
        """Count a state."""
        self.note(name, 1)

    def add(self, other: "Coverage") -> None:
        """Add the counts of another world."""
        self.counts.update(other.counts)

    def note(self, name: str, count: int) -> None:
        """Count a state that was reached `count` times."""
        assert name in SOMETIMES, f"{name} is not listed in coverage.py"
        self.counts[name] += count

    def missing(self) -> list[str]:
        """Return what was never reached."""
        return [name for name in SOMETIMES if not self.counts[name]]
