"""Times after a fault: to fail over, to catch up, to restore a lost disk.

Owns the three. A host that comes back has several nodes, which share its network and its disk.
"""

from typing import Final

from planning.capacity.calibration import Calibration
from planning.capacity.demand import Demand
from planning.capacity.figure import CapacityFigure, amount, figures, number
from planning.capacity.hosts import HostLayout
from planning.capacity.traffic import FRAME_RATIO, MessageSizes

_ELECTION_ROUND_TRIPS: Final = 3
"""Pre-vote, vote, and the entry that the new leader writes first."""


def time_figures(
    demand: Demand, sizes: MessageSizes, calibration: Calibration, layout: HostLayout
) -> list[CapacityFigure]:
    """Return the times with their formulas."""
    incoming = demand.peak_msgs_per_s / layout.group_count * sizes.log
    rate, words = catch_up_rate(demand, calibration, layout)
    retained = layout.disk[0].value
    assert retained is not None, "what is retained is always known"
    backlog = incoming * demand.outage_s
    spare = rate - incoming
    remaining = f"({amount(rate, 'B/s')} - {amount(incoming, 'B/s')} that come meanwhile)"
    backup_s = retained / calibration.disk_read_bytes_per_s
    backup_s += retained / calibration.rebuild_bytes_per_s
    return figures(
        "time",
        **_failover(demand, calibration),
        catch_up_bytes_per_s=(rate, words),
        catch_up_s=(
            backlog / spare if spare > 0 else None,
            f"{amount(demand.outage_s, 's')} away, {amount(backlog, 'B')} / {remaining}",
        ),
        restore_s=(
            retained / spare if spare > 0 else None,
            f"whole log of a lost disk, {amount(retained, 'B')} / {remaining}",
        ),
        restore_backup_s=(
            backup_s,
            f"{amount(retained, 'B')} / {amount(calibration.disk_read_bytes_per_s, 'B/s')} to copy "
            f"+ / {amount(calibration.rebuild_bytes_per_s, 'B/s')} to check and build queues",
        ),
    )


def _failover(demand: Demand, calibration: Calibration) -> dict[str, tuple[float | None, str]]:
    if demand.copies < 2:
        words = "there is no other node; until this one is started again"
        return dict.fromkeys(("failover_s", "failover_s_max"), (None, words))
    election_s = _ELECTION_ROUND_TRIPS * demand.round_trip_ms / 1e3
    words = f"{_ELECTION_ROUND_TRIPS} round trips of {number(demand.round_trip_ms)} ms"
    return {
        name: (
            value + election_s,
            f"{amount(value, 's')} from the death of a leader to the next ack ({which}) + {words}",
        )
        for name, value, which in (
            ("failover_s", calibration.failover_s, "median"),
            ("failover_s_max", calibration.failover_s_max, "largest"),
        )
    }


def catch_up_rate(
    demand: Demand, calibration: Calibration, layout: HostLayout
) -> tuple[float, str]:
    """Return the log bytes a second of one node that catches up, and the formula in words."""
    nodes = -(-layout.group_count * demand.copies // layout.host_count)
    choices = {
        f"a follower takes {amount(calibration.catch_up_bytes_per_s, 'B/s')}": (
            calibration.catch_up_bytes_per_s
        ),
        f"network {amount(demand.host.network_bytes_per_s, 'B/s')} / {nodes} nodes of a host / "
        f"{FRAME_RATIO:.4g} for frames": demand.host.network_bytes_per_s / nodes / FRAME_RATIO,
        f"disk {amount(calibration.disk_write_bytes_per_s, 'B/s')} / {nodes} nodes of a host / 2, "
        "for files are filled with zeros ahead": calibration.disk_write_bytes_per_s / nodes / 2,
    }
    words = min(choices, key=choices.__getitem__)
    return choices[words], words
