"""A cluster of whole nodes in a world: settings, start, end and state of each.

Owns what a node's process is: the life of `node.lifecycle` with settings for a small world. Judges
ask it what a node knows; they never change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn

from node import lifecycle
from node.config.settings import Settings
from node.contract import Driver
from node.node import Node
from node.replication.admin_parts import NodeCalls
from node.replication.ha.core.types import HaSettings
from node.replication.ha.driver import HaDriver
from node.runtime.fail_stop import FailStop
from raft.transitions import Role
from simulation.kernel.process import Process
from simulation.machines.machine import Machine
from simulation.world import World

CLIENT_PORT: Final = 7000
PEER_PORT: Final = 7001
FRAMED_PORT: Final = 7002
SMALL: Final[Mapping[str, Any]] = {
    "cluster_id": "world",
    "file_size_bytes": 1 << 16,
    "batch_size_bytes_max": 1 << 14,
    "disk_reserve_bytes": 0,
    "disk_full_ratio": 1.0,
    "http_listen": "off",
}
"""Settings with which files roll and batches meet their limit in a short life."""

SMALL_GROUP: Final = HaSettings(
    "", (), window_size_bytes=1 << 14, transfer_size_bytes=1 << 11, heartbeat_ms=300,
    silence_ms=1_500,
)  # fmt: skip
"""Fields of a master-slave group that no setting has: a lost peer is noticed within a fault."""


class ClusterNode:
    """One node of a cluster, over all its processes."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        self.cluster: Final = cluster
        self.machine: Final = machine
        self.number: Final = machine.number
        self.process: Process | None = None
        self.node: Node | None = None
        """The node in the present process."""
        self.processes: list[Process] = []
        """All its processes, oldest first."""
        self.more: dict[str, Any] = {}
        """Settings of this node alone."""

    @property
    def data(self) -> Path:
        """Its directory."""
        return self.machine.root / "data"

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start its process."""
        assert not self.is_up, f"node {self.number} runs"
        self.process = self.machine.run(f"node{self.number}", self._live)
        self.processes.append(self.process)

    def _live(self) -> Any:
        settings = self.cluster.settings_of(self)
        life = lifecycle._Life(settings, {}, FailStop(settings.directory, self._exit))
        self.node = life._node
        return life.run()

    def _exit(self, code: int) -> NoReturn:
        assert self.process is not None
        self.process.exit(code)
        raise AssertionError("code of an ended process went on")

    def kill(self) -> None:
        """End its process at once."""
        if self.process is not None:
            self.process.kill()

    @property
    def admin(self) -> NodeCalls | None:
        """What serves its administrators, once it has that."""
        return getattr(self.node, "admin", None) if self.is_up else None

    @property
    def driver(self) -> Driver | None:
        """The driver of its replica, once it has one."""
        replication = getattr(self.node, "replication", None) if self.is_up else None
        return replication.driver if replication is not None else None

    @property
    def is_leader(self) -> bool:
        """Whether it leads, by its own account."""
        driver = self.driver
        return driver is not None and driver.role is Role.LEADER

    @property
    def term(self) -> int:
        """Its term or epoch, by its own account; 0: it has no replica."""
        return self.driver.term if self.driver is not None else 0

    @property
    def standing(self) -> Enum | None:
        """What it has of what it promised, by its own account; None: it has no replica."""
        replication = getattr(self.node, "replication", None) if self.is_up else None
        return replication.status().standing if replication is not None else None

    def advise(self, number: int, nonce: int) -> None:
        """Hand its replica of a master-slave group the advice of a controller: be the master."""
        driver, process = self.driver, self.process
        if isinstance(driver, HaDriver) and process is not None:
            process.loop.call_soon(driver.advise, number, self.number, nonce)


class Cluster:
    """The nodes of one group."""

    def __init__(self, world: World, count: int, **settings: Any) -> None:
        """Put `count` nodes on machines of their own; start none. The first one is the first
        master of a master-slave group."""
        self.world: Final = world
        self.settings: Final = {**SMALL, **settings}
        self.nodes: Final = [ClusterNode(self, world.add_machine()) for _ in range(count)]
        if settings.get("replication", "raft") != "raft":
            world.put(HaSettings.__new__, "__defaults__", SMALL_GROUP[2:])
            for node in self.nodes[1:]:
                node.more["replication"] = "slave"

    def settings_of(self, node: ClusterNode) -> Settings:
        """Return the settings of a node."""
        at = node.machine.address
        peers = {
            other.number: {
                "address": f"{other.machine.address}:{CLIENT_PORT}",
                "peer_address": f"{other.machine.address}:{PEER_PORT}",
            }
            for other in self.nodes
        }
        values: dict[str, Any] = {
            "node_id": node.number,
            "directory": node.data,
            "listen": f"{at}:{CLIENT_PORT}",
            "peer_listen": f"{at}:{PEER_PORT}",
            "listen_framed": f"{at}:{FRAMED_PORT}",
            "peers": peers,
            **self.settings,
            **node.more,
        }
        return Settings(**values)

    def start(self) -> None:
        """Start all nodes."""
        for one in self.nodes:
            one.start()

    @property
    def leader(self) -> ClusterNode | None:
        """The node that leads in the newest term; None: there is none."""
        leaders = [one for one in self.nodes if one.is_leader]
        return max(leaders, key=lambda node: node.term, default=None)

    @property
    def servers(self) -> list[str]:
        """The addresses that a client is given."""
        return [f"{one.machine.address}:{CLIENT_PORT}" for one in self.nodes]
