"""The faults of a disk at the moment: errors, slowness, hangs, no space, and traps.

Owns the rules and which call each strikes. The injector sets them; `simulation.disk.disk` asks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from simulation.kernel.hub import NS_PER_MS, NS_PER_US

CHANGING: Final = (
    "create",
    "write",
    "allocate",
    "set_size",
    "sync",
    "sync_directory",
    "rename",
    "unlink",
    "make_directory",
    "remove_directory",
)
"""The kinds of calls between which the end of a process or of the power makes a difference."""
KINDS: Final = (*CHANGING, "open", "read", "list", "map")
"""All kinds of calls."""


@dataclass
class ErrorRule:
    """Calls that fail. A write, an allocation or a directory operation then had no effect; a
    failed sync drops the pages that it was to write, as Linux does."""

    kinds: tuple[str, ...]
    errno_value: int = errno.EIO
    share: float = 1.0
    count: int = -1
    """How many more calls fail; -1 for all until the rule is removed."""


@dataclass
class Trap:
    """The end of something at one call: its process is killed, or its machine loses its power."""

    count: int
    """Which call from now on: 1 is the next."""
    end: Callable[[], None]
    """Called on the hub; the code that made the call does not go on."""
    kinds: tuple[str, ...] = CHANGING
    is_before: bool = True
    """Whether the call has no effect any more."""


class DiskFaults:
    """The faults of one disk."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.rules: list[ErrorRule] = []
        self.traps: list[Trap] = []
        self.slowness = 1.0
        """How many times longer than usual each call takes."""
        self.hangs = False
        """Whether syncs that begin now wait until it is False again."""
        self.lies = False
        """Whether the disk acknowledges syncs of which it drops a page."""
        self.free_size_bytes: int | None = None
        """Room that is left; None: as much as one wants."""

    def clear(self) -> None:
        """Have the disk work again."""
        self.rules.clear()
        self.traps.clear()
        self.slowness, self.hangs, self.lies, self.free_size_bytes = 1.0, False, False, None

    @property
    def any(self) -> bool:
        """Whether a call has to be looked at."""
        return bool(self.rules or self.traps)

    def check(self, kind: str, path: str) -> None:
        """Raise the OSError with which a call fails."""
        for rule in self.rules:
            if kind not in rule.kinds or rule.count == 0:
                continue
            if rule.share < 1 and self._random.random() >= rule.share:
                continue
            rule.count -= rule.count > 0
            raise OSError(rule.errno_value, os.strerror(rule.errno_value), path)

    def trap_of(self, kind: str, *, is_before: bool) -> Trap | None:
        """Return the trap that a call has sprung."""
        for trap in self.traps:
            if trap.is_before != is_before or kind not in trap.kinds:
                continue
            trap.count -= 1
            if trap.count == 0:
                self.traps.remove(trap)
                return trap
        return None

    def take_room(self, size_bytes: int, path: str) -> int:
        """Take room for bytes that a file grows by; return how many of them there is room for."""
        free = self.free_size_bytes
        if free is None or size_bytes <= 0:
            return size_bytes
        taken = min(free, size_bytes)
        self.free_size_bytes = free - taken
        return taken

    def give_room(self, size_bytes: int) -> None:
        """Take back the room of a file that is gone."""
        if self.free_size_bytes is not None:
            self.free_size_bytes += size_bytes

    # --- Time ---

    def sync_ns(self) -> int:
        """Draw how long a sync takes: some 0.2 ms, one in 50 some ms, one in 1,000 some 50 ms."""
        random = self._random
        lot = random.randrange(1000)
        if lot == 0:
            base = random.randrange(20 * NS_PER_MS, 100 * NS_PER_MS)
        elif lot <= 20:
            base = random.randrange(1 * NS_PER_MS, 10 * NS_PER_MS)
        else:
            base = random.randrange(80 * NS_PER_US, 400 * NS_PER_US)
        return int(base * self.slowness)

    def call_ns(self) -> int:
        """Draw how long a call takes that waits for no disk."""
        return int(self._random.randrange(2 * NS_PER_US, 30 * NS_PER_US) * self.slowness)
