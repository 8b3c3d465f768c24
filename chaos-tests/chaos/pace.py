"""Share of this machine that other processes take while a scenario runs.

Owns the measure: the work of all cores, without that of this run, its nodes and its proxies. The
work of nodes is never counted as a slow machine: otherwise a node that wastes time would excuse
itself. Must not know the waits it is used for.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import psutil

IDLE_SHARE_MIN: Final = 0.15
"""With a larger share of the cores idle no process waits for one, whatever others do."""
STRANGE_SHARE_MAX: Final = 0.9


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of processor time up to a moment."""

    at_s: float
    busy_s: float
    """Busy time of all cores and all processes."""
    idle_s: float
    own_s: float
    """Time of this process and all its children, including ended ones."""
    given_s: Mapping[int, float] = field(default_factory=dict)
    """Time of nodes that another command has started, by process: ended ones are missing."""

    @classmethod
    def take(cls, pids: Iterable[int] = ()) -> "Sample":
        """Return a sample of now; `pids` belong to this run, but are no children of this
        process."""
        cpu = psutil.cpu_times()
        idle_s = cpu.idle + getattr(cpu, "iowait", 0.0)
        # Guests are counted among users as well; stolen time belongs to other machines.
        busy_s = cpu.user + cpu.system + sum(
            getattr(cpu, name, 0.0) for name in ("nice", "irq", "softirq", "steal")
        )  # fmt: skip
        me = psutil.Process()
        own = {me.pid, *(child.pid for child in me.children(recursive=True))}
        own_s, given_s = _used_s(own), _used_s(set(pids) - own)
        return cls(time.monotonic(), busy_s, idle_s, sum(own_s.values()), given_s)


def slowness_between(before: Sample, after: Sample) -> float:
    """Return the factor by which work takes longer than on an unshared machine; 1 at least."""
    all_s = after.busy_s - before.busy_s + after.idle_s - before.idle_s
    if all_s <= 0:
        return 1.0
    if (after.idle_s - before.idle_s) / all_s > IDLE_SHARE_MIN:
        return 1.0
    ours_s = after.own_s - before.own_s
    # A killed process subtracts nothing: the time it used before is not part of this interval.
    ours_s += sum(used_s - before.given_s.get(pid, 0.0) for pid, used_s in after.given_s.items())
    strange_s = (after.busy_s - before.busy_s) - ours_s
    return 1.0 / (1.0 - min(STRANGE_SHARE_MAX, max(0.0, strange_s / all_s)))


class Pace:
    """The pace since this object was made."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        """Begin now; `pids` are of nodes that another command has started."""
        self._pids = tuple(pids)
        self._before = Sample.take(self._pids)

    @property
    def slowness(self) -> float:
        """Slowness from the start up to now."""
        return slowness_between(self._before, Sample.take(self._pids))


def _used_s(pids: Iterable[int]) -> dict[int, float]:
    by_pid = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            by_pid[pid] = times.user + times.system + times.children_user + times.children_system
    return by_pid
