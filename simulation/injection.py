"""The injector: does what the fault plan says, and makes all whole again.

Owns how a fault is done to a cluster, and its end. It works between the events of processes.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from node.errors.common import NodeError
from node.replication.ha.admin import HaAdmin
from node.replication.ha.core.types import HaStanding
from node.replication.raft.admin import RaftAdmin
from quorumlog.pb.admin_pb2 import HaPromoteRequest
from raft.errors import RaftError
from simulation.cluster import Cluster, ClusterNode
from simulation.disk.damage import damage
from simulation.disk.faults import CHANGING, ErrorRule, Trap
from simulation.kernel.hub import NS_PER_MS
from simulation.plan import DISK_FAULTS, HARMING, LEADER, OF_SYNCED_RAFT, Fault
from simulation.raft.coverage import Coverage

_AHEAD_MS_MAX = 48 * 3_600_000
"""A clock that is wrong by less than the retention is believed: messages would expire."""
_CALL_GROUPS: Final = (
    CHANGING,
    ("sync",),
    ("sync_directory", "rename", "create", "unlink"),
    ("write", "allocate", "set_size"),
)


class Injector:
    """The faults of one world."""

    def __init__(self, cluster: Cluster, coverage: Coverage) -> None:
        self._cluster, self._coverage = cluster, coverage
        self._hub = cluster.world.hub
        self.harmed: set[ClusterNode] = set()
        """Nodes whose disk lost what it promised."""
        self.done_count = 0
        self.is_over = False

    def plan(self, faults: Sequence[Fault]) -> None:
        """Have the faults strike, from now on."""
        for fault in faults:
            self._hub.after(fault.at_ms * NS_PER_MS, self._strike, fault)

    def heal(self) -> None:
        """End all faults: every machine has power, every node runs, all links are whole."""
        self.is_over = True
        self._cluster.world.network.heal()
        for node in self._cluster.nodes:
            if node.process is not None and node.process.is_alive:
                node.process.slowness = 1.0
                node.process.go_on()
            node.machine.disk.heal()
            self._power_up(node)

    # --- Helpers ---

    def _strike(self, fault: Fault) -> None:
        if self.is_over:
            return
        nodes = self._cluster.nodes
        leader = self._cluster.leader
        victim = leader if fault.victim == LEADER else nodes[fault.victim - 1]
        if victim is None:
            return
        self.done_count += 1
        self._hub.note(f"fault {fault.kind} on {victim.number} for {fault.duration_ms} ms")
        if fault.kind in DISK_FAULTS:
            self._coverage.hit(fault.kind)
        if fault.kind in HARMING:
            self.harmed.add(victim)
        strike: Callable[[ClusterNode, Fault, Random], None] = getattr(self, f"_{fault.kind}")
        strike(victim, fault, Random(fault.number))
        if fault.kind in OF_SYNCED_RAFT:  # It may have ended by that.
            self._later(fault, partial(self._power_up, victim))

    def _later(self, fault: Fault, call: Callable[[], None]) -> None:
        def end() -> None:
            if not self.is_over:
                call()

        self._hub.after(fault.duration_ms * NS_PER_MS, end)

    def _start(self, node: ClusterNode) -> None:
        if node.machine.has_power and not node.is_up:
            node.start()

    def _restart_later(self, fault: Fault, node: ClusterNode) -> None:
        if self.is_over:  # It drained for long.
            self._start(node)
        self._later(fault, partial(self._start, node))

    def _others(self, node: ClusterNode, random: Random) -> list[ClusterNode]:
        others = [other for other in self._cluster.nodes if other is not node]
        return random.sample(others, random.randint(1, len(others)))

    # --- Processes ---

    def _kill(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        if node.is_up:
            node.kill()
            self._coverage.hit("killed")
        self._restart_later(fault, node)

    def _stop(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        process = node.process
        if process is not None and process.is_alive and not process.is_paused:
            self._coverage.hit("stopped")
            process.loop.signal(signal.SIGTERM)
            process.on_end.append(partial(self._restart_later, fault, node))

    def _pause(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        process = node.process
        if process is not None and process.is_alive:
            self._coverage.hit("paused")
            process.pause()
            self._later(fault, process.go_on)

    def _slow_core(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        process = node.process
        if process is not None and process.is_alive:
            self._coverage.hit("slow_core")
            process.slowness = random.choice((4.0, 20.0, 100.0))
            self._later(fault, partial(setattr, process, "slowness", 1.0))

    # --- Power ---

    def _power(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        if node.machine.has_power:
            node.machine.lose_power()
            self._coverage.hit("power_lost")
        self._later(fault, partial(self._power_up, node))

    def _power_all(self, _node: ClusterNode, fault: Fault, _random: Random) -> None:
        for node in self._cluster.nodes:
            self._power(node, fault, _random)
        self._coverage.hit("whole_cluster_restarted")

    def _power_up(self, node: ClusterNode) -> None:
        if not node.machine.has_power:
            node.machine.power_on()
        self._start(node)

    # --- Network ---

    def _cut(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._coverage.hit("cut")
        self._set_cut(node, self._others(node, random), fault, both=True)

    def _cut_one_way(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._coverage.hit("cut_one_way")
        others = self._others(node, random)
        if random.random() < 0.5:
            self._set_cut(node, others, fault, both=False)
        else:
            for other in others:
                self._set_cut(other, [node], fault, both=False)

    def _set_cut(
        self, node: ClusterNode, others: Sequence[ClusterNode], fault: Fault, *, both: bool
    ) -> None:
        network = self._cluster.world.network
        pairs = [(node.machine.address, other.machine.address) for other in others]
        if both:
            pairs += [(target, source) for source, target in pairs]
        for source, target in pairs:
            network.cut(source, target, both=False)

        def end() -> None:
            for source, target in pairs:
                network.direction(source, target).is_cut = False

        self._later(fault, end)

    def _flap(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._coverage.hit("flapped")
        others = self._others(node, random)
        for number in range(random.randint(3, 12)):
            at_ms = number * random.randint(50, 500)
            short = Fault(0, "cut", node.number, random.randint(10, 300), 0)
            self._hub.after(at_ms * NS_PER_MS, self._flap_once, node, others, short)

    def _flap_once(self, node: ClusterNode, others: list[ClusterNode], fault: Fault) -> None:
        if not self.is_over:
            self._set_cut(node, others, fault, both=True)

    def _slow_link(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._coverage.hit("slow_link")
        self._change_links(node, fault, random, latency_ns=random.choice((5, 50, 300)) * NS_PER_MS)

    def _lossy_link(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        self._coverage.hit("lossy_link")
        self._change_links(node, fault, random, loss=random.choice((0.01, 0.1, 0.4)))

    def _change_links(
        self, node: ClusterNode, fault: Fault, random: Random, **values: float
    ) -> None:
        network = self._cluster.world.network
        ways = []
        for other in self._others(node, random):
            for pair in ((node, other), (other, node)):
                ways.append(network.direction(*(side.machine.address for side in pair)))
        before = {name: getattr(network.usual, name) for name in values}
        for way in ways:
            vars(way).update(values)

        def end() -> None:
            for way in ways:
                vars(way).update(before)

        self._later(fault, end)

    # --- Disks ---

    def _die_at_call(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        """End the process at one of its calls, or the power."""

        def end() -> None:
            self._coverage.hit("died_at_call")
            if fault.kind == "power_at_call" and node.machine.has_power:
                node.machine.lose_power()
            else:
                node.kill()
            self._later(fault, partial(self._power_up, node))

        node.machine.disk.faults.traps.append(
            Trap(
                random.choice((1, 2, 5, 20, 100)),
                end=end,
                kinds=random.choice(_CALL_GROUPS),
                is_before=random.random() < 0.5,
            )
        )

    _power_at_call = _die_at_call

    def _disk_slow(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        faults = node.machine.disk.faults
        faults.slowness = random.choice((5.0, 50.0, 500.0))
        self._later(fault, partial(setattr, faults, "slowness", 1.0))

    def _disk_full(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        faults = node.machine.disk.faults
        faults.free_size_bytes = random.choice((0, 4096, 100_000, 500_000))
        self._later(fault, partial(setattr, faults, "free_size_bytes", None))

    def _disk_hang(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        disk = node.machine.disk
        disk.faults.hangs = True
        self._later(fault, disk.release)

    def _calls_fail(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        kinds = random.choice((("read",), ("write", "allocate"), ("create", "rename"), ("map",)))
        rule = ErrorRule(kinds, errno.EIO, share=random.choice((0.01, 0.3, 1)))
        self._add_rule(node, fault, rule)

    def _sync_fails(self, node: ClusterNode, fault: Fault, random: Random) -> None:
        kinds = random.choice((("sync",), ("sync_directory",)))
        self._add_rule(node, fault, ErrorRule(kinds, errno.EIO, count=1))

    def _add_rule(self, node: ClusterNode, fault: Fault, rule: ErrorRule) -> None:
        rules = node.machine.disk.faults.rules
        rules.append(rule)
        self._later(fault, partial(rules.remove, rule))

    def _disk_damage(self, node: ClusterNode, _fault: Fault, random: Random) -> None:
        for _ in range(random.choice((1, 1, 3))):
            done = damage(node.machine.disk, str(node.machine.root / "data"), random)
            if done is not None:
                self._hub.note(f"{node.machine.name} {done.name} at {done.position}")

    def _disk_lies(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        faults = node.machine.disk.faults
        faults.lies = True
        self._later(fault, partial(setattr, faults, "lies", False))

    # --- Clocks and leadership ---

    def _clock_jump(self, node: ClusterNode, _fault: Fault, random: Random) -> None:
        self._coverage.hit("clock_jumped")
        by_ms = random.choice((-3_600_000, -5_000, -50, 50, 5_000, 3_600_000, 90_000_000))
        if node.machine.clock.unix_offset_ns // NS_PER_MS + by_ms < _AHEAD_MS_MAX:
            node.machine.clock.jump(by_ms * NS_PER_MS)
        node.machine.clock.set_drift(random.randrange(-500, 501))

    def _hand_over(self, node: ClusterNode, _fault: Fault, random: Random) -> None:
        """Have the leader hand over to another node, or promote that one in master-slave mode."""
        other = random.choice([other for other in self._cluster.nodes if other is not node])
        own, others = node.admin, other.admin
        is_raft = isinstance(own, RaftAdmin)

        async def hand_over() -> None:
            try:
                if isinstance(own, RaftAdmin):
                    await own.hand_over(other.number, 2_000)
                elif isinstance(others, HaAdmin):
                    await others.ha_promote(HaPromoteRequest(timeout_ms=2_000))
            except (RaftError, NodeError):
                return  # It refused, or was too late: nothing has changed.
            self._coverage.hit("handed_over")

        process = (node if is_raft else other).process
        if node.is_leader and process is not None and process.is_alive:
            loop = process.loop
            loop.call_soon(lambda: loop.create_task(hand_over()))

    def _advise(self, _node: ClusterNode, _fault: Fault, random: Random) -> None:
        """Advise any number to any replicas, as two controllers that lead, or one that forgot."""
        nodes = self._cluster.nodes
        number = max(node.term for node in nodes) + random.choice((-1, 0, 1, 1, 1, 5))
        self._coverage.hit("advised")
        for victim in random.sample(nodes, random.choice((1, 1, 2, 3))):
            victim.advise(number, random.randrange(2))

    def _new_disk(self, node: ClusterNode, fault: Fault, _random: Random) -> None:
        """Replace the disk of a replica while all others have what they promised.

        A master that acks alone would take acked messages along, and report none."""
        are_full = all(
            other is node or other.standing is HaStanding.FULL for other in self._cluster.nodes
        )
        if are_full and self._cluster.settings["replication"] == "sync_master":
            node.machine.wipe()
            self._coverage.hit("new_disk")
            self._restart_later(fault, node)
