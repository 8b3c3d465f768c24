"""The machine of a process, as the kernel sees it.

Owns what a process and its loop need of a machine. Must not know what a network or a disk is.
"""

from __future__ import annotations

from typing import Any, Protocol

from simulation.kernel.clock import MachineClock


class Machine(Protocol):
    """What the machine of a process has."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def clock(self) -> MachineClock: ...
    @property
    def has_power(self) -> bool: ...
    @property
    def network(self) -> Any: ...
    @property
    def disk(self) -> Any: ...
    @property
    def boot_id(self) -> str: ...
