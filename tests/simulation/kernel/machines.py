"""A machine for tests of the kernel: no disk, no project code."""

from collections.abc import Callable, Coroutine
from typing import Any

from simulation.kernel.clock import MachineClock
from simulation.kernel.hub import NS_PER_S, Hub
from simulation.kernel.process import Process
from simulation.kernel.threads import SimulatedExecutor
from simulation.network.transport import Network


class BareMachine:
    """A machine with a clock and an address."""

    def __init__(self, hub: Hub, network: Network, number: int, drift_ppm: int = 0) -> None:
        self.hub, self.network = hub, network
        self.name, self.address = f"host{number}", f"10.0.0.{number}"
        self.clock = MachineClock(hub, drift_ppm=drift_ppm)
        self.has_power = True
        self.disk, self.boot_id = None, ""
        network.register(self)

    def run(self, main: Callable[[], Coroutine[Any, Any, int]]) -> Process:
        """Start a process."""
        process = Process(self.hub, self, self.name)
        process.loop.set_default_executor(SimulatedExecutor(self.hub))
        process.start(main)
        return process


class BareWorld:
    """A hub, a network and machines."""

    def __init__(self, seed: int = 1) -> None:
        self.hub = Hub(seed)
        self.network = Network(self.hub)
        self.count = 0

    def machine(self, drift_ppm: int = 0) -> BareMachine:
        """Add a machine."""
        self.count += 1
        return BareMachine(self.hub, self.network, self.count, drift_ppm)

    def run_s(self, seconds: float) -> None:
        """Let time pass."""
        self.hub.run(self.hub.now_ns + int(seconds * NS_PER_S))
