"""Demands and calibrations that tests of the capacity share."""

from typing import Any

from planning.capacity.calibration import AppendPoint, Calibration
from planning.capacity.demand import Demand


def demand(**changes: Any) -> Demand:
    """A demand that fits onto a few hosts."""
    values: dict[str, Any] = {
        "peak_msgs_per_s": 10_000.0,
        "average_msgs_per_s": 5_000.0,
        "body_size_bytes": 1024,
        "retention_s": 3_600.0,
        "batch_count": 50,
    }
    return Demand(**{**values, **changes})


def calibration(**changes: Any) -> Calibration:
    """Round figures: 100 us a batch, 1 us a message, 1 ns a byte, half of it on the leader."""
    points = tuple(
        AppendPoint(count, size, 1e6 / us, us / 2e6, us / 1e6)
        for count, size in ((1, 1_000), (100, 100), (100, 1_000), (10, 100_000))
        for us in (100 + count + count * size / 1_000,)
    )
    values: dict[str, Any] = {
        "source": "a test",
        "is_measured": True,
        "appends": points,
        "read_cpu_s": 1e-6,
        "sync_s": 1e-3,
        "disk_write_bytes_per_s": 5e9,
        "disk_read_bytes_per_s": 500e6,
        "catch_up_bytes_per_s": 100e6,
        "rebuild_bytes_per_s": 200e6,
        "failover_s": 1.0,
        "failover_s_max": 2.0,
        "node_memory_size_bytes": 100 << 20,
    }
    return Calibration(**{**values, **changes})
