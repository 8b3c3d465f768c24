"""The injector: turns the fault plan into events.

Owns the effect and the end of each kind of fault. Must not draw the plan. The injector keeps the
conditions of the system's promises: with acks from the page cache no more than a minority may lose
its memory, and a disk may be replaced only while the other voters can still form a quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from raft.errors import RaftError
from raft.messages import NodeId, Standing
from raft.quorum import quorum_size
from raft.rules import transfer
from raft.rules.membership import Change, ChangeKind
from simulation.raft.options import TICK_US
from simulation.raft.plan import LEADER, Fault
from simulation.raft.world.network import SimulatedLink
from simulation.raft.world.process import Status

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process
    from simulation.raft.world.world import World

NODE_COUNT_MAX = 8
BACKUP_COUNT_MAX = 3
_RECOVERY_ELECTIONS = 8
"""Number of time-outs to wait for a leader after all nodes have lost power."""
_NOT_WITH_TOTAL_LOSS = (
    "wipe",
    "old_disk",
    "add_node",
    "promote",
    "remove",
)
"""Faults not injected with an unbounded loss: the remaining data must be kept, by the same
nodes."""


class Injector:
    """Carries out one plan in one world."""

    __slots__ = ("_cuts", "_plan", "_random", "_world", "injected", "is_over")

    def __init__(self, world: World, plan: Sequence[Fault]) -> None:
        self._world = world
        self._plan = plan
        self._random = Random(world.options.seed ^ 0xFA17)
        self._cuts: list[list[SimulatedLink]] = []
        """Cuts in force, to be healed when faults end."""
        self.is_over = False
        self.injected = 0

    def schedule(self) -> None:
        for fault in self._plan:
            self._world.push(fault.at_us, self._strike, fault, None, None)

    def _strike(self, fault: Fault, _b: object, _c: object) -> None:
        if self.is_over:
            return
        world = self._world
        node = world.leader() if fault.node == LEADER else world.nodes.get(fault.node)
        if node is None:
            return
        if world.trace is not None:
            world.note(f"fault {fault.kind} on {node} number={fault.number}")
        if world.options.total_loss and fault.kind in _NOT_WITH_TOTAL_LOSS:
            return
        self.injected += 1
        strike: Callable[[Process, Fault], None] = getattr(self, f"_do_{fault.kind}")
        strike(node, fault)

    def _after(self, fault: Fault, action: Callable[[], None]) -> None:
        """Run an action when the fault ends, unless all faults have ended before."""
        world = self._world
        world.push(world.now + fault.duration_us, self._end, action, None, None)

    def _end(self, action: Callable[[], None], _b: object, _c: object) -> None:
        if not self.is_over:
            action()

    # Processes.

    def _restart_after(self, fault: Fault, node: Process) -> None:
        def restart() -> None:
            if node.status is Status.DOWN:
                node.start()

        self._after(fault, restart)

    def _do_kill(self, node: Process, fault: Fault) -> None:
        if node.status is not Status.DOWN:
            node.kill()
            self._restart_after(fault, node)

    def _do_power(self, node: Process, fault: Fault) -> None:
        if node.status is not Status.DOWN and self._may_forget(node):
            node.power_off(self._random)
            self._restart_after(fault, node)

    def _do_power_all(self, _node: Process, fault: Fault) -> None:
        world = self._world
        if world.options.page_cache and not world.options.total_loss:
            return
        world.coverage.hit("whole_cluster_lost_power")
        if world.options.total_loss:
            world.coverage.hit("majority_lost_memory")
        for node in list(world.nodes.values()):
            self._do_power(node, fault)

    def _do_relapse(self, node: Process, fault: Fault) -> None:
        """Power off all nodes, then one of them again under the leader that is elected after it.

        The entries that this node acked in between are on the leader only, since the others were
        cut off; from some moment after its return it can reach only these others."""
        if self._world.options.total_loss:
            self._do_power_all(node, fault._replace(duration_us=TICK_US))
            self._wait_for_recovery(fault, _RECOVERY_ELECTIONS)

    def _wait_for_recovery(self, fault: Fault, elections: int) -> None:
        world, leader = self._world, self._world.leader()
        if leader is not None and leader.replica.core.state.admission_floor is not None:
            self._relapse(fault, leader)
        elif elections:
            again = fault._replace(duration_us=world.options.election_us)
            self._after(again, lambda: self._wait_for_recovery(fault, elections - 1))

    def _relapse(self, fault: Fault, leader: Process) -> None:
        world, options = self._world, self._world.options
        others = [v for v in leader.replica.core.state.voters if v != leader.node_id]
        if not others:
            return
        at = fault.number % len(others)
        others = others[at:] + others[:at]
        forgetful, behind = world.nodes[others[0]], others[quorum_size(len(others) + 1) - 1 :]
        forgets = fault._replace(duration_us=options.election_us)
        contact_us = (2 + options.heartbeat_ticks) * TICK_US
        alone_us = forgets.duration_us + contact_us + (fault.number >> 8 & 15) * options.delay_us
        alone = fault._replace(duration_us=alone_us)
        lasting = fault._replace(duration_us=4 * options.election_us)

        def forget() -> None:
            if leader.is_up and leader.replica.core.state.admission_floor is not None:
                world.coverage.hit("power_lost_again")
            self._do_power(forgetful, fault._replace(duration_us=TICK_US))

        self._cut(alone, self._crossing(behind))
        self._after(forgets, forget)
        self._after(alone, lambda: self._cut(lasting, self._crossing([others[0], *behind])))

    def _crossing(self, side: Sequence[NodeId]) -> list[tuple[NodeId, NodeId]]:
        return [(a, b) for a, b in self._pairs() if (a in side) != (b in side)]

    def _may_forget(self, node: Process) -> bool:
        """Whether a node may lose memory: acks from the page cache survive a minority's loss."""
        options = self._world.options
        return not options.page_cache or options.total_loss or self._is_dispensable(node)

    def _is_dispensable(self, node: Process) -> bool:
        """Whether every configuration in any log has a quorum in full memory without `node`."""
        world = self._world
        for holder in world.nodes.values():
            found = holder.disk.memory
            listed = [entry.body for entry in found.entries if entry.kind == 2]
            if found.base_configuration is not None:
                listed.append(found.base_configuration.configuration)
            for configuration in listed:
                voters = configuration.voters  # type: ignore[attr-defined]
                full = [
                    voter
                    for voter in voters
                    if voter != node.node_id and self._is_trusted(world.nodes.get(voter))
                ]
                if len(full) < quorum_size(len(voters)):
                    return False
        return True

    @staticmethod
    def _is_trusted(node: Process | None) -> bool:
        if node is None:
            return False
        disk = node.disk
        standing = disk.durable.hard_state.standing
        return standing is disk.memory.hard_state.standing is Standing.FULL and not node.is_copy

    def _do_pause(self, node: Process, fault: Fault) -> None:
        if node.status is Status.UP:
            node.pause()
            self._after(fault, node.resume)

    def _do_wipe(self, node: Process, fault: Fault) -> None:
        if node.status is not Status.DOWN and self._is_dispensable(node):
            node.wipe()
            self._world.coverage.hit("node_wiped")
            self._restart_after(fault, node)

    def _do_backup(self, node: Process, _fault: Fault) -> None:
        node.backups = [*node.backups[1 - BACKUP_COUNT_MAX :], node.disk.durable.copy()]

    def _do_old_disk(self, node: Process, fault: Fault) -> None:
        """Restore the disk of an earlier time."""
        backups = node.backups
        if node.status is Status.DOWN or not backups or not self._is_dispensable(node):
            return
        backup = backups[fault.number % len(backups)]
        is_full = backup.hard_state.standing is Standing.FULL
        if not is_full or node.disk.memory.hard_state.standing is not Standing.FULL:
            return
        node.put_back(backup)
        self._world.coverage.hit("old_copy_put_back")
        self._restart_after(fault, node)

    # Clocks.

    def _do_clock_rate(self, node: Process, fault: Fault) -> None:
        node.tick_us = self._world.options.tick_us((fault.number % 101) / 100)

    def _do_clock_jump(self, node: Process, fault: Fault) -> None:
        if self._world.options.are_clocks_bounded:
            return
        for _ in range(fault.number % (2 * self._world.options.election_ticks_max)):
            if node.status is Status.UP:
                node.replica.tick()
                node.settle()

    def _do_stall(self, _node: Process, fault: Fault) -> None:
        """Cut the leader off while its clock is slow: only reads that ask a quorum stay correct.

        Check-quorum, which would end this leadership, counts the leader's own slow ticks."""
        leader = self._world.leader()
        if leader is None or self._world.options.are_clocks_bounded:
            return
        leader.tick_us = 6 * TICK_US
        longer = fault._replace(duration_us=2 * fault.duration_us)
        self._cut(longer, [pair for pair in self._pairs() if leader.node_id in pair])
        self._after(longer, partial(setattr, leader, "tick_us", TICK_US))

    # Disks.

    def _do_slow_disk(self, node: Process, fault: Fault) -> None:
        node.sync_factor = 10 + fault.number % 40
        self._after(fault, partial(setattr, node, "sync_factor", 1))

    def _do_sync_error(self, node: Process, _fault: Fault) -> None:
        node.sync_fails = self._may_forget(node)

    def stop_after_sync_error(self, node: Process) -> None:
        """End the process after a failed sync: the content of its disk is unknown."""
        world = self._world
        world.coverage.hit("sync_error")
        if not self._may_forget(node):
            node.kill()
        else:
            node.power_off(self._random)
        fault = Fault(world.now, "sync_error", node.node_id, world.options.election_us, 0)
        self._restart_after(fault, node)

    def _do_full_disk(self, node: Process, fault: Fault) -> None:
        node.disk.is_full = True
        self._after(fault, partial(setattr, node.disk, "is_full", False))

    def _do_meta_error(self, node: Process, fault: Fault) -> None:
        node.disk.meta_errors = fault.number & 0xFF

    # Links.

    def _cut(self, fault: Fault, pairs: Sequence[tuple[NodeId, NodeId]]) -> None:
        network = self._world.network
        links = [network.link(sender, receiver) for sender, receiver in pairs]
        network.cut(links)
        self._cuts.append(links)

        def heal() -> None:
            self._cuts.remove(links)
            network.heal(links)

        self._after(fault, heal)

    def _pairs(self) -> list[tuple[NodeId, NodeId]]:
        ids = self._world.members()
        return [(a, b) for a in ids for b in ids if a != b]

    def _do_isolate(self, node: Process, fault: Fault) -> None:
        self._cut(fault, [pair for pair in self._pairs() if node.node_id in pair])

    def _do_split(self, _node: Process, fault: Fault) -> None:
        mask = fault.number
        crossing = [(a, b) for a, b in self._pairs() if (mask >> a & 1) != (mask >> b & 1)]
        self._cut(fault, crossing)

    def _do_one_way(self, node: Process, fault: Fault) -> None:
        """Cut all messages from the node, all messages to it, or one direction of one link."""
        kind = fault.number % 3
        other = self._world.members()[fault.number // 3 % len(self._world.nodes)]
        if kind == 2:
            self._cut(fault, [pair for pair in self._pairs() if pair == (node.node_id, other)])
        else:
            self._cut(fault, [pair for pair in self._pairs() if pair[kind] == node.node_id])

    def _do_random_links(self, _node: Process, fault: Fault) -> None:
        pairs = [pair for at, pair in enumerate(self._pairs()) if fault.number >> at % 16 & 1]
        self._cut(fault, pairs)

    def _do_ring(self, _node: Process, fault: Fault) -> None:
        """Leave only neighbours connected; an odd number opens the ring into a chain."""
        ids = self._world.members()
        count = len(ids)
        near = {(ids[at], ids[(at + 1) % count]) for at in range(count - fault.number % 2)}
        self._cut(fault, [(a, b) for a, b in self._pairs() if not {(a, b), (b, a)} & near])

    def _do_swizzle(self, _node: Process, fault: Fault) -> None:
        """Cut the links of some nodes in turn; heal them in another order."""
        world = self._world
        for at, node_id in enumerate(world.members()):
            if fault.number >> at & 1:
                own = [pair for pair in self._pairs() if node_id in pair]
                length = fault.duration_us * (1 + (fault.number >> at + 4 & 3))
                part = fault._replace(duration_us=length)
                delay = at * (fault.duration_us // 4)
                world.push(world.now + delay, self._end, partial(self._cut, part, own), None, None)

    def _do_clog(self, node: Process, fault: Fault) -> None:
        for sender, receiver in self._pairs():
            if sender == node.node_id and fault.number >> receiver & 1:
                link = self._world.network.link(sender, receiver)
                link.clogged_until = self._world.now + fault.duration_us

    def _do_reset(self, node: Process, fault: Fault) -> None:
        for sender, receiver in self._pairs():
            if node.node_id in (sender, receiver) and fault.number >> receiver & 1:
                self._world.network.reset(self._world.network.link(sender, receiver))

    # Operators.

    def _do_transfer(self, _node: Process, fault: Fault) -> None:
        leader = self._world.leader()
        if leader is None:
            return
        members = self._world.members()
        try:
            transfer.transfer_leadership(
                leader.replica.core.state, members[fault.number % len(members)]
            )
        except RaftError:
            return
        self._world.coverage.hit("transfer_started")
        leader.settle()

    def _change(self, change: Change) -> bool:
        leader = self._world.leader()
        if leader is None:
            return False
        # Entries committed earlier in this turn are judged by the voters of that time.
        leader.end_turn()
        try:
            leader.replica.propose_change(change)
        except RaftError:
            return False
        self._world.coverage.hit("configuration_changed")
        if change.kind is ChangeKind.REMOVE and change.node == leader.node_id:
            self._world.coverage.hit("leader_removed")
        leader.settle()
        return True

    def _do_add_node(self, _node: Process, _fault: Fault) -> None:
        world = self._world
        node_id = max(world.nodes) + 1
        if node_id > NODE_COUNT_MAX:
            return
        if self._change(Change(ChangeKind.ADD_LEARNER, node_id)):
            world.add_node(node_id, world.empty_disk())

    def _do_promote(self, _node: Process, fault: Fault) -> None:
        leader = self._world.leader()
        if leader is None:
            return
        state = leader.replica.core.state
        if not state.learners:
            return
        node = state.learners[fault.number % len(state.learners)]
        # The leader may not know yet that the learner has just lost its memory.
        if self._has_full_quorum([*state.voters, node]) and self._change(
            Change(ChangeKind.PROMOTE, node)
        ):
            self._world.coverage.hit("learner_promoted")

    def _do_remove(self, node: Process, _fault: Fault) -> None:
        """Remove a voter, unless the others could not form a quorum in full memory."""
        leader = self._world.leader()
        if leader is None:
            return
        voters = leader.replica.core.state.voters
        rest = [voter for voter in voters if voter != node.node_id]
        if not rest or not self._has_full_quorum(rest):
            return
        if self._change(Change(ChangeKind.REMOVE, node.node_id)):
            self._world.coverage.hit("voter_removed")

    def _has_full_quorum(self, voters: list[NodeId]) -> bool:
        full = [voter for voter in voters if self._is_trusted(self._world.nodes.get(voter))]
        return len(full) >= quorum_size(len(voters))

    # The end.

    def end(self) -> None:
        """Stop all faults and heal all cuts; a stopped process stays stopped."""
        self.is_over = True
        network = self._world.network
        for links in self._cuts:
            network.heal(links)
        self._cuts.clear()
        network.calm()
        for node in self._world.nodes.values():
            node.tick_us = TICK_US
            node.sync_factor = 1
            node.sync_fails = False
            node.disk.meta_errors = 0
            node.disk.is_full = False
