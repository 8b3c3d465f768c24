"""One machine of a world: its address, clock, disk and power, and the processes on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from simulation.disk.disk import Disk
from simulation.kernel.clock import MachineClock
from simulation.kernel.hub import Hub
from simulation.kernel.process import Process
from simulation.kernel.threads import SimulatedExecutor
from simulation.network.transport import Network


class Machine:
    """A machine that is on from the beginning."""

    def __init__(self, hub: Hub, network: Network, number: int, root: Path) -> None:
        self.hub: Final = hub
        self.network: Final = network
        self.number: Final = number
        self.name = f"host{number}"
        self.address = f"10.0.0.{number}"
        self.clock = MachineClock(
            hub,
            drift_ppm=hub.random.randrange(-100, 101),
            unix_offset_ns=hub.random.randrange(-(10**9), 10**9),
        )
        self.has_power = True
        self.root: Final = root
        """Where its disk is."""
        self.disk: Final = Disk(hub, root, number)
        self.boot_id = self._draw_boot_id()
        self.processes: list[Process] = []
        network.register(self)

    def run(self, name: str, main: Callable[[], Coroutine[Any, Any, int]]) -> Process:
        """Start a process."""
        assert self.has_power, f"{self.name} has no power"
        process = Process(self.hub, self, f"{self.name}/{name}")
        process.loop.set_default_executor(SimulatedExecutor(self.hub))
        self.processes.append(process)
        process.on_end.append(partial(self._ended, process))
        process.start(main)
        return process

    def _ended(self, process: Process) -> None:
        if process in self.processes:
            self.processes.remove(process)
            self.disk.process_ended(process)

    # --- Power ---

    def lose_power(self) -> None:
        """End all processes, silently; what was not synced may be gone. On the hub."""
        assert self.has_power, f"{self.name} has no power"
        assert self.hub.current is None, "code of a process cannot take the power: use a Trap"
        self.hub.note(f"{self.name} loses its power")
        self.has_power = False
        self._end_all()
        self.disk.lose_power()

    def power_on(self) -> None:
        """Be a machine that has just been booted. No process runs yet."""
        assert not self.has_power, f"{self.name} has power"
        self.has_power = True
        self.boot_id = self._draw_boot_id()
        self.clock.restart()

    def _end_all(self) -> None:
        for process in list(self.processes):
            process.kill()
            self._ended(process)

    def _draw_boot_id(self) -> str:
        return str(uuid.UUID(int=self.hub.random.getrandbits(128), version=4))

    def wipe(self) -> None:
        """Have an empty disk. Its processes end."""
        self._end_all()
        self.disk.wipe()
