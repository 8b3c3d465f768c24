"""The world: one thread, one heap of (time, sequence, action), one seed.

Owns time, the order of events and the parts of a run; must not know the work of the parts. Times
are whole microseconds. Each part draws from a random stream of its own, so that taking a fault out
of the plan changes as little of the rest as possible. No part depends on the hash of a string or
the order of a set: the same seed gives the same trace digest in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeAlias

from checkers.history import Operation
from raft.errors import Outcome
from raft.messages import NodeId
from raft.pump.effects import Outgoing
from raft.ready import InitialState, bootstrap_state, joining_state
from simulation.raft.coverage import Coverage
from simulation.raft.options import SimulatorOptions
from simulation.raft.plan import Fault
from simulation.raft.world.injector import Injector
from simulation.raft.world.network import Network, SimulatedLink
from simulation.raft.world.process import Process
from simulation.raft.world.referee import Referee
from simulation.raft.world.workload import Cells, SimulatedClient, SimulatedReads

Action: TypeAlias = Callable[[Any, Any, Any], None]
_SYNC_DELAY_COUNT = 64
_SYNC_ELECTIONS_MAX = 3


class World:
    """One run in progress."""

    __slots__ = (
        "_empty_disks",
        "_heap",
        "_sequence",
        "_sync_delays",
        "_values",
        "acked_end",
        "apply_us",
        "batch_turns",
        "cells",
        "checks_payload",
        "clients",
        "coverage",
        "digest",
        "disk_random",
        "event_count",
        "history",
        "injector",
        "is_calm",
        "loss_us",
        "network",
        "nodes",
        "now",
        "options",
        "process_numbers",
        "reachable",
        "reads",
        "referee",
        "shell_bits",
        "trace",
    )

    def __init__(
        self,
        options: SimulatorOptions,
        plan: Sequence[Fault],
        *,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options
        self.trace = trace
        """Receiver of one line per event when a run is replayed; None costs no time."""
        self.now = 0
        self.event_count = 0
        self.digest = 0
        self._heap: list[tuple[int, int, Action, Any, Any, Any]] = []
        self._sequence = 0
        seed = options.seed
        self.disk_random = Random(seed ^ 0xD15C)
        self._sync_delays = [
            1 + int(self.disk_random.expovariate(1 / options.sync_us))
            for _ in range(_SYNC_DELAY_COUNT)
        ]
        self.shell_bits = Random(seed ^ 0x5E11).getrandbits
        self.batch_turns = options.batch_turns
        self.apply_us = options.apply_us
        self.checks_payload = options.corruption > 0
        self.coverage = Coverage()
        self.history: list[Operation] = []
        self.reachable: list[NodeId] = []
        """Nodes that clients try; all but in the liveness phase."""
        self.is_calm = False
        """Whether the liveness phase has begun: faults have ended."""
        self.acked_end = 0
        self.loss_us = -1
        """Time of the last loss of committed entries; -1: none."""
        self.process_numbers = 0
        self._values = 0
        self._empty_disks = 0
        self.reads = SimulatedReads()
        self.cells = Cells()
        self.nodes: dict[NodeId, Process] = {}
        self.referee = Referee(self.nodes, self.coverage, page_cache=options.page_cache)
        self.network = Network(self, options, Random(seed ^ 0x11E7))
        self.network.deliver_to = self._deliver
        self.injector = Injector(self, plan)
        voters = tuple(range(1, options.voter_count + 1))
        for node_id in voters:
            self.add_node(node_id, bootstrap_state(voters))
        self.clients = [SimulatedClient(self, number) for number in range(options.client_count)]
        self.injector.schedule()

    # Events.

    def push(self, at_us: int, action: Action, a: Any, b: Any, c: Any) -> None:
        """Schedule `action(a, b, c)`; events of one time keep the order of their pushing."""
        self._sequence += 1
        heappush(self._heap, (at_us, self._sequence, action, a, b, c))

    def run(self, *, until_us: int, event_count_max: int) -> None:
        """Run events until a time, or until their total count reaches a limit."""
        heap = self._heap
        digest, count = self.digest, self.event_count
        try:
            while heap and count < event_count_max:
                now, sequence, action, a, b, c = heap[0]
                if now > until_us:
                    break
                heappop(heap)
                self.now = now
                count += 1
                # The digest covers time and birth order of every event: every difference between
                # two runs shows in the events they schedule.
                digest = hash((digest, now, sequence))
                action(a, b, c)
        finally:
            self.digest, self.event_count = digest, count

    def final_digest(self) -> int:
        """Return a digest of the whole run and of the final state of every node."""
        states = [
            (node.node_id, node.seen_term, node.seen_commit, node.disk.memory.last_index)
            for node in self.nodes.values()
        ]
        chain = self.referee.ledger.entries[-1].chain if self.referee.ledger.entries else 0
        return hash((self.digest, self.event_count, tuple(states), chain, len(self.history)))

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:>10} {line}")

    # Parts.

    def add_node(self, node_id: NodeId, initial: InitialState) -> Process:
        """Create and start a process; its links appear with its first message."""
        node = Process(self, node_id, initial)
        self.nodes[node_id] = node
        self.reachable.append(node_id)
        return node

    def empty_disk(self) -> InitialState:
        """Return the state of an empty disk, distinguished from every earlier one by its number."""
        # The number leaves room for the power losses of a disk during its life.
        return joining_state(incarnation=self.new_incarnation())

    def new_incarnation(self) -> int:
        """Return a number for a node that begins without memory, above all earlier ones."""
        self._empty_disks += 1
        return 1000 * self._empty_disks

    def members(self) -> list[NodeId]:
        """Return all existing nodes, in order."""
        return list(self.nodes)

    def leader(self) -> Process | None:
        """Return the running leader of the highest term, if any."""
        found: Process | None = None
        for node in self.nodes.values():
            if node.is_up and node.was_leader and (not found or node.seen_term > found.seen_term):
                found = node
        return found

    def _deliver(self, link: SimulatedLink, outgoing: Outgoing) -> None:
        node = self.nodes.get(link.receiver)
        if node is not None:
            node.receive(link, outgoing)

    def report_unreachable(self, sender: NodeId, receiver: NodeId) -> None:
        """Let the shell of `sender` notice a broken link a moment later."""
        node = self.nodes.get(sender)
        if node is not None:
            self.push(self.now + 1000, self._unreachable, node, receiver, node.epoch)

    def _unreachable(self, node: Process, receiver: NodeId, epoch: int) -> None:
        if node.epoch == epoch and node.is_up:
            node.replica.core.report_unreachable(receiver)
            node.settle()

    def calm(self) -> None:
        """Begin the liveness phase: all faults end, and every operation is fast."""
        self.is_calm = True
        self.injector.end()
        self._sync_delays = [100] * _SYNC_DELAY_COUNT
        self.apply_us = 0

    def sync_delay(self, factor: int) -> int:
        """Return the duration of a sync that begins now; even a sick disk ends it at some time."""
        delay = self._sync_delays[self.shell_bits(6)] * factor
        return min(delay, _SYNC_ELECTIONS_MAX * self.options.election_us)

    # State shared by the clients.

    def new_value(self) -> int:
        self._values += 1
        return self._values

    def new_process_number(self) -> int:
        self.process_numbers += 1
        return self.process_numbers

    def count_append(self, outcome: Outcome, offset: int) -> None:
        """Note the end of an append."""
        if outcome is Outcome.APPLIED:
            self.acked_end = max(self.acked_end, offset + 1)
            self.coverage.hit("append_acked")
        elif outcome is Outcome.UNKNOWN:
            self.coverage.hit("append_unknown")
        else:
            self.coverage.hit("append_not_applied")
