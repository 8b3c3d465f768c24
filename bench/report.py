"""The conditions beside the figures of every benchmark of the cluster: machine, directory, shares.

Owns how a sample of latencies becomes a few numbers, and how a place on disk is named. Must not
know what is measured.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from bench import limits
from store.files.mounts import is_in_memory

_HISTOGRAM_BARS = 12
_HISTOGRAM_STEP_MS_MIN = 100
_LIMIT_COPY_CHUNK_SIZE_BYTES = 100 * 1024
_LIMIT_COPY_SIZE_BYTES = 64 << 20
_LIMIT_SYNC_COUNT = 200


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of an ordered sample lies; None of an empty one."""
    assert 0.0 <= share <= 1.0, f"share {share}"
    if not ordered:
        return None
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def latency(values_ms: Sequence[float]) -> dict[str, Any]:
    """Return count, median, tail and extremes of a sample in milliseconds; null without values."""
    ordered = sorted(values_ms)

    def at(share: float) -> float | None:
        value = percentile(ordered, share)
        return None if value is None else round(value, 3)

    return {
        "count": len(ordered),
        "p50_ms": at(0.5),
        "p90_ms": at(0.9),
        "p99_ms": at(0.99),
        "max_ms": at(1.0),
    }


def histogram(values_ms: Sequence[float]) -> list[dict[str, Any]]:
    """Return counts in at most a dozen equal, round steps of 100 ms or more: [{lo_ms, hi_ms,
    count}, ...]."""
    if not values_ms:
        return []
    lo, hi = min(values_ms), max(values_ms)
    width = next(
        step * 10**power
        for power in range(10)
        for step in (1, 2, 5)
        if step * 10**power >= max(_HISTOGRAM_STEP_MS_MIN, (hi - lo) / (_HISTOGRAM_BARS - 1))
    )
    first, last = int(lo // width), int(hi // width)
    counts = [0] * (last - first + 1)
    for value in values_ms:
        counts[int(value // width) - first] += 1
    return [
        {"lo_ms": (first + n) * width, "hi_ms": (first + n + 1) * width, "count": count}
        for n, count in enumerate(counts)
    ]


def machine() -> dict[str, Any]:
    """Return the machine as far as it explains figures, without its name."""
    return {
        "cpu": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


class CpuClock:
    """Processor time of processes of this machine, by name; this process is the driver."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._began = self._read()

    def _read(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: time.user + time.system for name, time in times.items()}

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Return the processor time of each process, in all and per message of `count`."""
        spent = {name: now - self._began[name] for name, now in self._read().items()}
        return [
            {
                "process": name,
                "cpu_s": round(seconds, 2),
                "us_per_msg": round(seconds / count * 1e6, 2) if count else None,
            }
            for name, seconds in spent.items()
        ]


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def directory_kind(directory: str) -> str:
    """Return `tmpfs` or `disk`, the kind of the mount that holds a directory."""
    return "tmpfs" if is_in_memory(directory) else "disk"


def machine_limits(directory: str) -> dict[str, Any]:
    """Measure the limits of the machine in that directory, without any of our code; under 1 s."""
    copied = limits.copy_bytes_per_second(
        directory, _LIMIT_COPY_CHUNK_SIZE_BYTES, _LIMIT_COPY_SIZE_BYTES
    )
    return {
        "copy_mb_per_s": round(copied / 1e6, 1),
        "syncs_per_s": round(limits.syncs_per_second(directory, _LIMIT_SYNC_COUNT), 1),
    }
