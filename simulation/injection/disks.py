"""Disk faults of nodes, as a fault plan names them: how each is done, and its end.

`simulation.injection.injector` calls them for its victims, and tells how a node that died comes
back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from simulation.disk.damage import damage
from simulation.disk.faults import CHANGING, ErrorRule, Trap
from simulation.kernel.hub import NS_PER_MS
from simulation.plan import HARMING, OF_SYNCED_RAFT

if TYPE_CHECKING:
    from simulation.cluster import ClusterNode
    from simulation.plan import Fault

_CALL_GROUPS: Final = (
    CHANGING,
    ("sync",),
    ("sync_directory", "rename", "create", "unlink"),
    ("write", "allocate", "set_size"),
)


class DiskInjector:
    """How the disk faults of one world are done."""

    def __init__(
        self,
        count: Callable[[str], None],
        start_later: Callable[[ClusterNode, int], None],
        harmed: set[ClusterNode],
    ) -> None:
        """`start_later` has a node run again, with power, after a number of ms; `harmed` gets the
        nodes whose disks are harmed."""
        self._count, self._start_later, self._harmed = count, start_later, harmed

    def strike(self, kind: str, node: ClusterNode, fault: Fault, random: Random) -> None:
        """Do a fault of a kind of `DISK_FAULTS` to a node, and end it after its time; a node that
        ended by it runs again then."""
        self._count(kind)
        if kind in HARMING:
            self._harmed.add(node)
        call: Callable[[ClusterNode, Fault, Random], None] = getattr(self, f"_{kind}")
        call(node, fault, random)
        if kind in OF_SYNCED_RAFT:
            self._start_later(node, fault.duration_ms)

    def _later(self, node: ClusterNode, fault: Fault, call: Callable[[], None]) -> None:
        node.machine.hub.after(fault.duration_ms * NS_PER_MS, call)

    # --- Ends at a call ---

    def _die_at_call(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._set_trap(node, fault, random, with_power=False)

    def _power_at_call(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._set_trap(node, fault, random, with_power=True)

    def _set_trap(
        self, node: ClusterNode, fault: Fault, random: Random, *, with_power: bool
    ) -> None:
        traps = node.machine.disk.faults.traps

        def end() -> None:
            self._count("died_at_call")
            if with_power and node.machine.has_power:
                node.machine.lose_power()
            else:
                node.kill()
            self._start_later(node, fault.duration_ms)

        traps.append(
            Trap(
                random.choice((1, 2, 5, 20, 100)),
                end=end,
                kinds=random.choice(_CALL_GROUPS),
                is_before=random.random() < 0.5,
            )
        )

    # --- Slow, full, failing ---

    def _disk_slow(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        faults = node.machine.disk.faults
        faults.slowness = random.choice((5.0, 50.0, 500.0))
        self._later(node, fault, partial(setattr, faults, "slowness", 1.0))

    def _disk_full(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        faults = node.machine.disk.faults
        faults.free_size_bytes = random.choice((0, 4096, 100_000, 500_000))
        self._later(node, fault, partial(setattr, faults, "free_size_bytes", None))

    def _disk_hang(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        disk = node.machine.disk
        disk.faults.hangs = True
        self._later(node, fault, disk.release)

    def _calls_fail(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        kinds = random.choice((("read",), ("write", "allocate"), ("create", "rename"), ("map",)))
        self._add_rule(
            node, fault, ErrorRule(kinds, errno.EIO, share=random.choice((0.01, 0.3, 1)))
        )

    def _sync_fails(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        kinds = random.choice((("sync",), ("sync_directory",)))
        self._add_rule(node, fault, ErrorRule(kinds, errno.EIO, count=1))

    def _add_rule(self, node: ClusterNode, fault: Fault, rule: ErrorRule) -> None:
        rules = node.machine.disk.faults.rules
        rules.append(rule)

        def end() -> None:
            if rule in rules:
                rules.remove(rule)

        self._later(node, fault, end)

    # --- Harm ---

    def _disk_damage(self, node: ClusterNode, _fault: Fault, random: Random) -> None:
        for _ in range(random.choice((1, 1, 3))):
            done = damage(node.machine.disk, str(node.machine.root / "data"), random)
            if done is not None:
                node.machine.hub.note(f"{node.machine.name} {done.name} at {done.position}")

    def _disk_lies(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        faults = node.machine.disk.faults
        faults.lies = True
        self._later(node, fault, partial(setattr, faults, "lies", False))
