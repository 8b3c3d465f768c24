"""Limits on one process of a run: its share of a core, and its writes to a disk.

Owns the control groups, of the first kind of hierarchy and of the unified one. Control groups stay
when their processes are gone, so they carry the name of the run. Must not know what the process is.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from chaos.errors import NotPossibleHereError

from hosts.namespaces import stale_in

ROOT: Final = Path("/sys/fs/cgroup")
PERIOD_US: Final = 100_000
_IS_UNIFIED: Final = "cgroup.controllers"
_CONTROLLERS: Final = ("cpu", "blkio")


def parents() -> list[Path]:
    """Return the directories in which control groups of runs are made."""
    if (ROOT / _IS_UNIFIED).exists():
        return [ROOT]
    return [ROOT / name for name in _CONTROLLERS if (ROOT / name).is_dir()]


def remove_stale() -> list[str]:
    """Remove the control groups of runs that have ended; return what could not be removed."""
    left = []
    for group in stale_in(parents()):
        try:
            for child in group.iterdir():
                if child.is_dir():
                    child.rmdir()
            group.rmdir()
        except OSError as error:
            left.append(f"{group}: {error}")
    return left


def device_of(path: Path) -> str:
    """Return the device under a path, as MAJOR:MINOR."""
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


class ProcessLimits:
    """The limits of one process, until `close`."""

    def __init__(self, name: str, pid: int) -> None:
        """`name` is that of the run, or begins with it and a slash."""
        self._name, self._pid = name, pid
        self._made: list[Path] = []

    def core_share(self, share: float) -> None:
        """Let the process have this share of one core. Raises NotPossibleHereError."""
        quota_us = int(share * PERIOD_US)
        if (ROOT / _IS_UNIFIED).exists():
            self._write("cpu", "cpu.max", f"{quota_us} {PERIOD_US}")
            return
        self._write("cpu", "cpu.cfs_period_us", str(PERIOD_US))
        self._write("cpu", "cpu.cfs_quota_us", str(quota_us))

    def writes_per_s(self, device: str, count: int) -> None:
        """Let the process write so often to a device. Raises NotPossibleHereError."""
        if (ROOT / _IS_UNIFIED).exists():
            self._write("io", "io.max", f"{device} wiops={count}")
            return
        self._write("blkio", "blkio.throttle.write_iops_device", f"{device} {count}")

    def throttled_count(self) -> int:
        """Return how many periods the process had used up its share of a core before their end."""
        for group in self._made:
            with contextlib.suppress(FileNotFoundError):
                words = (group / "cpu.stat").read_text("ascii").split()
                return int(words[words.index("nr_throttled") + 1])
        return 0

    def close(self) -> None:
        """Take the limits away."""
        while self._made:
            group = self._made.pop()
            for pid in (group / "cgroup.procs").read_text("ascii").split():
                with contextlib.suppress(ProcessLookupError):
                    (group.parent.parent / "cgroup.procs").write_text(pid, "ascii")
            group.rmdir()
            with contextlib.suppress(OSError):  # Another process of the run is limited as well.
                group.parent.rmdir()

    def _write(self, controller: str, file: str, value: str) -> None:
        is_unified = (ROOT / _IS_UNIFIED).exists()
        parent = ROOT if is_unified else ROOT / controller
        group = parent / self._name / str(self._pid)
        try:
            group.parent.mkdir(exist_ok=True)
            if is_unified:
                for one in (parent, group.parent):
                    (one / "cgroup.subtree_control").write_text(f"+{controller}", "ascii")
            if group not in self._made:
                group.mkdir()
                self._made.append(group)
                (group / "cgroup.procs").write_text(str(self._pid), "ascii")
            (group / file).write_text(value, "ascii")
        except OSError as error:
            raise NotPossibleHereError(f"no control group for {controller}: {error}") from error
