"""The result of a simulation: samples over time, sums, and the times to fail over.

Owns the values and their rows. Must not know how they came about.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at one moment. `event`: what has just happened; empty between events."""

    at_s: float
    event: str
    acked_share: float
    """Of the messages that clients offer."""
    leaderless_count: int
    no_quorum_count: int
    behind_count: int
    """Copies that are there and lack log."""
    down_count: int
    hot_ratio: float
    """Most leaders of a host over the mean of the hosts that may lead."""
    repair_bytes_per_s: float

    def row(self) -> dict[str, Any]:
        """Return the sample under stable keys."""
        return {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


@dataclass(slots=True)
class FleetReport:
    """The sums of a run. Bytes missed = bytes received + still behind + forgotten."""

    offered_count: float = 0.0
    acked_count: float = 0.0
    missed_size_bytes: float = 0.0
    """Log that copies came to lack: written while they were away, and whole logs of lost disks."""
    forgotten_size_bytes: float = 0.0
    """Log that copies still lacked when their host was lost."""
    repair_sent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Bytes that each host sent to copies that lacked them."""
    repair_received: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failovers_s: list[float] = field(default_factory=list)
    """From the loss of each leader to the next one, waiting for a quorum included."""
    hand_over_count: int = 0
    replaced_count: int = 0
    """Copies of lost hosts that were placed on others."""
    unplaced_count: int = 0
    """Copies of lost hosts that are on no other at the end: none had room, or time was short."""
    lost_count: int = 0
    """Groups of which no copy with the whole log is left."""
    samples: list[FleetSample] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return the sums under stable keys."""
        ordered = sorted(self.failovers_s)
        return {
            "acked_share": round(self.acked_count / self.offered_count, 6),
            "acked_share_min": round(min(one.acked_share for one in self.samples), 4),
            "failover_count": len(ordered),
            "failover_p50_s": _at(ordered, 0.5),
            "failover_p99_s": _at(ordered, 0.99),
            "failover_max_s": _at(ordered, 1.0),
            "repair_size_bytes": round(sum(self.repair_received.values())),
            "repair_bytes_per_s_max": round(max(one.repair_bytes_per_s for one in self.samples)),
            "hand_over_count": self.hand_over_count,
            "replaced_count": self.replaced_count,
            "unplaced_count": self.unplaced_count,
            "lost_count": self.lost_count,
            "no_quorum_count_max": max(one.no_quorum_count for one in self.samples),
            "hot_ratio_max": round(max(one.hot_ratio for one in self.samples), 3),
            "hot_ratio_end": round(self.samples[-1].hot_ratio, 3),
        }


def _at(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3)
