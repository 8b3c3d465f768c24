"""The costs of a load: processor time, bytes given to the disk, bytes over the loopback device.

Owns the counters of the system that are read before and after. Must not know what runs.

The kernel counts bytes to the disk when pages become dirty, mapped files too; on tmpfs it counts
none. The loopback device is one for the whole machine.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import psutil

_LOOPBACK: Final = "lo"


class Cost(NamedTuple):
    """The costs of one load."""

    cpu_s: float
    written_size_bytes: int
    loopback_size_bytes: int

    def per_million(self, count: int) -> dict[str, float]:
        """Return the costs of a million messages, under stable keys; empty if there were none."""
        if count == 0:
            return {}
        share = 1e6 / count
        return {
            "cpu_s_per_million": round(self.cpu_s * share, 2),
            "written_gb_per_million": round(self.written_size_bytes * share / 1e9, 3),
            "loopback_gb_per_million": round(self.loopback_size_bytes * share / 1e9, 3),
        }


class Meter:
    """Reads the counters of some processes and of this one."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """Begin to count."""
        self._processes = [psutil.Process(pid) for pid in {*pids.values(), os.getpid()}]
        self._began = self._read()

    def _read(self) -> Cost:
        cpu_s, written = 0.0, 0
        for process in self._processes:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            written += process.io_counters().write_bytes
        loopback = psutil.net_io_counters(pernic=True).get(_LOOPBACK)
        return Cost(cpu_s, written, loopback.bytes_sent if loopback is not None else 0)

    def read(self) -> Cost:
        """Return the costs since the meter was made."""
        now, then = self._read(), self._began
        return Cost(
            now.cpu_s - then.cpu_s,
            now.written_size_bytes - then.written_size_bytes,
            now.loopback_size_bytes - then.loopback_size_bytes,
        )
