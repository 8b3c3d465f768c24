"""A cluster whose nodes run on hosts, one each, with what may fail around them.

Owns the parts of one cluster and their complete repair, as `chaos/cluster.py` does for processes of
one host. Must not know scenarios or load.
"""

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.disks import Disks
from chaos.profile import Profile
from chaos.target import Target

from deploy.local import LocalCluster
from deploy.local_nodes import NodeHost
from hosts.fabric.network import HostNetwork
from hosts.limits import ProcessLimits, device_of

DISK_SIZE_BYTES: Final = 512 << 20


@dataclass(frozen=True, slots=True)
class HostProfile(Profile):
    """The hosts that a scenario needs, which are its own."""

    is_own: bool = True
    needs: tuple[str, ...] = ()
    """Abilities of the machine, by name."""
    clock_offsets_s: tuple[int, ...] = ()
    """How far the clock of each host is ahead; those that are missing: 0."""
    has_disks: bool = False
    """Whether each node has a disk of its own."""


class HostTarget(Target):
    """Nodes on the hosts of a network. Node N runs on host N."""

    def __init__(
        self, directory: Path, profile: HostProfile, network: HostNetwork, run: str
    ) -> None:
        """`run` is the name of the run."""
        self.network: Final = network
        self._run = run
        self._limits: dict[int, ProcessLimits] = {}
        with ExitStack() as stack:
            stack.enter_context(network)
            hosts = network.hosts.values()
            local = LocalCluster.create(
                directory,
                profile.node_count,
                flush=profile.flush,
                # A replica of the name server outside of loopback needs a password, and Raft needs
                # no name server.
                settings={**profile.node_settings(), "nameserver_listen": "off"},
                hosts=[NodeHost(h.name, h.console_name, h.launcher) for h in hosts],
            )
            stack.callback(shutil.rmtree, directory)
            super().__init__(local, local.bootstrap, profile)
            disks = Disks()
            stack.callback(disks.close)
            for node in self.node_ids if profile.has_disks else ():
                image = directory / f"node-{node}.disk"
                disks.mount(self.data_directory(node), DISK_SIZE_BYTES, image)
            self._stack = stack.pop_all()

    def slow_core(self, node: int, share: float) -> None:
        """Let a node have this share of one core. Raises NotPossibleHereError."""
        self._limits_of(node).core_share(share)

    def slow_disk(self, node: int, writes_per_s: int) -> None:
        """Let a node write so often to its disk. Raises NotPossibleHereError."""
        self._limits_of(node).writes_per_s(device_of(self.data_directory(node)), writes_per_s)

    def throttled_count(self, node: int) -> int:
        """Return the periods in which a slow core was used up."""
        return self._limits_of(node).throttled_count()

    def lift_limits(self) -> None:
        """Give cores and disks their speed back."""
        while self._limits:
            self._limits.popitem()[1].close()

    def heal(self) -> None:
        """End every fault, and start stopped nodes. Does not wait."""
        self.network.heal()
        self.lift_limits()
        super().heal()

    def close(self) -> list[str]:
        """Stop all; return the problems of the nodes' ends. The directory stays."""
        self.network.heal()
        self.lift_limits()
        return super().close()

    def remove(self) -> None:
        """Delete the files, the disks and the network, too."""
        self._stack.close()

    def _limits_of(self, node: int) -> ProcessLimits:
        if node not in self._limits:
            self._limits[node] = ProcessLimits(self._run, self.pid(node))
        return self._limits[node]
