"""Abilities of this machine that scenarios on hosts need, found out by doing what they do.

Owns one short trial for each ability, which makes the thing and removes it, in namespaces of its
own where that is possible; and the table of the results. No version or file counts as a proof.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.disks import Disks
from chaos.errors import ChaosError, NotPossibleHereError

from hosts.limits import ProcessLimits, device_of
from hosts.namespaces import UNSHARE, command, run_name

_AHEAD_S: Final = 1_000_000
_DISK_SIZE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Ability:
    """One ability, whether it is there, and for what."""

    name: str
    used_for: str
    is_there: bool
    detail: str
    """How it was tried, or why it is not there."""


def _namespaces() -> str:
    command(*UNSHARE, "true")
    return "own mounts and an own network"


def _switch() -> str:
    words = "ip tuntap add dev probe mode tap && ip link set probe up"
    command(*UNSHARE, "sh", "-c", words)
    return "a TAP device was made"


def _clocks() -> str:
    offset = str(_AHEAD_S)
    words = ("unshare", "--time", "--monotonic", offset, "--boottime", offset, "--")
    seen = float(command(*words, sys.executable, "-c", "import time; print(time.monotonic())"))
    here = float(command(sys.executable, "-c", "import time; print(time.monotonic())"))
    if seen - here < _AHEAD_S / 2:
        raise NotPossibleHereError("a process that was started in it has the time of the others")
    return f"a clock of elapsed time was {_AHEAD_S:,} s ahead"


def _with_process(limit: Callable[[ProcessLimits], None]) -> None:
    """Set a limit on a process that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with closing(ProcessLimits(run_name(os.getpid()), process.pid)) as limits:
                limit(limits)
        finally:
            process.kill()


def _slow_cores() -> str:
    _with_process(lambda limits: limits.core_share(0.2))
    return "a control group took a fifth of a core"


def _slow_disks() -> str:
    """Try it in this module as a program, which has mounts of its own."""
    suites = str(Path(__file__).resolve().parents[1])
    words = (*UNSHARE, "env", f"PYTHONPATH={suites}", sys.executable, "-P", "-m")
    return command(*words, "hosts.abilities").strip()


def _limit_a_disk() -> str:
    with tempfile.TemporaryDirectory() as made:
        mounted = Path(made) / "mounted"
        with closing(Disks()) as disks:
            disks.mount(mounted, _DISK_SIZE_BYTES, Path(made) / "disk")
            device = device_of(mounted)
            _with_process(lambda limits: limits.writes_per_s(device, 20))
    return f"a control group took 20 writes a second to ext4 on loop device {device}"


_PROBES: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "namespaces": ("all scenarios", _namespaces),
    "switch": ("all scenarios", _switch),
    "clocks": ("hosts with other clocks", _clocks),
    "slow-disks": ("disks of hosts, one of them slow", _slow_disks),
    "slow-cores": ("one slow core", _slow_cores),
}


def find_abilities(*names: str) -> dict[str, Ability]:
    """Try these abilities, by default all, and return them by name."""
    abilities = {}
    for name in names or _PROBES:
        used_for, probe = _PROBES[name]
        try:
            abilities[name] = Ability(name, used_for, True, probe())
        except (ChaosError, NotPossibleHereError, OSError) as error:
            why = error.why if isinstance(error, ChaosError) else str(error)
            abilities[name] = Ability(name, used_for, False, why)
    return abilities


def demand_abilities(names: Iterable[str]) -> None:
    """Try these abilities. Raises NotPossibleHereError for one that is not there."""
    for name in names:
        ability = find_abilities(name)[name]
        if not ability.is_there:
            raise NotPossibleHereError(f"no {name}: {ability.detail}")


def abilities_table(abilities: Mapping[str, Ability]) -> str:
    """Return the abilities as text."""
    lines = [f"{'ability':<14} {'here':<5} {'used for':<34} detail"]
    lines += [
        f"{a.name:<14} {'yes' if a.is_there else 'no':<5} {a.used_for:<34} {a.detail}"
        for a in abilities.values()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{_limit_a_disk()}\n")
