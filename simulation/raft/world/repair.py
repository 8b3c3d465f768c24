"""Repair of a node whose log is damaged, before its core runs again.

Owns the request of a node to its peers, the answer of a peer, and the check of an answer. Until
the log is whole up to the known commit index there is no core: no vote, no ack, no read. Must
not know the cause of the damage. A damaged peer answers as well, from the parts of its log that are
whole, so that nodes damaged in different places heal each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raft.messages import NodeId, SnapshotMeta
from raft.pump.effects import Outgoing
from simulation.raft.disk.damage import (
    DamagedError,
    SimulatedDamage,
    damaged_range,
    is_chain,
    widened,
)
from simulation.raft.disk.image import DirectoryEntry

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process

_WIDENINGS = 10
"""Rounds until a node asks for the bare damage again; the widest round asks for 511 more."""


class RepairRequest(NamedTuple):
    """Request for exactly these entries, or a snapshot behind them."""

    sender: NodeId
    to: NodeId
    wanted: SimulatedDamage


class RepairReply(NamedTuple):
    """Answer with the entries as the payload; without entries it is the snapshot."""

    sender: NodeId
    to: NodeId
    wanted: SimulatedDamage
    snapshot: SnapshotMeta | None
    snapshot_chain: int


KINDS = (RepairRequest, RepairReply)


class SimulatedRepair:
    """The repair of one process in one life."""

    __slots__ = ("_attempts", "_damage", "_is_writing", "_process", "_wanted")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._damage: SimulatedDamage | None = None
        self._wanted: SimulatedDamage | None = None
        self._attempts = 0
        self._is_writing = False

    def go_on(self) -> None:
        """Drop damage above the known commit index, then fetch the damaged entries below."""
        process = self._process
        disk = process.disk
        lost = disk.cut_damaged_tail()
        if lost is not None:
            process.ghosts.append(lost)  # Its acks of these entries were true then.
            process.world.coverage.hit("damaged_tail_cut")
        disk.believe_tail()
        self._is_writing = False
        self._attempts = 0
        self._damage = damaged_range(disk.memory, disk.bad)
        if self._damage is not None:
            self._ask(process.epoch, None, None)
            return
        assert not disk.bad, f"whole, but {disk.bad} read otherwise"
        process.run()

    def _ask(self, epoch: int, _b: object, _c: object) -> None:
        """Ask all nodes; ask again later, and for more, until one of them has the range."""
        process = self._process
        if epoch != process.epoch or process.repair is not self:
            return
        world = process.world
        world.push(world.now + world.options.election_us // 2, self._ask, epoch, None, None)
        if self._is_writing or self._damage is None:
            return
        disk = process.disk
        # More entries may have been damaged since.
        self._damage = damaged_range(disk.memory, disk.bad) or self._damage
        more = (1 << self._attempts % _WIDENINGS) - 1
        self._attempts += 1
        self._wanted = widened(disk.memory, disk.bad, self._damage, more)
        for peer in world.members():
            if peer != process.node_id:
                request = RepairRequest(process.node_id, peer, self._wanted)
                world.network.send(Outgoing(request, None))  # type: ignore[arg-type]

    def take(self, reply: RepairReply, payload: object) -> None:
        """Believe an answer to the last request if its digests prove it, and write it."""
        if self._is_writing or reply.wanted != self._wanted:
            return
        process = self._process
        world = process.world
        if reply.snapshot is None:
            assert isinstance(payload, list), f"payload {payload!r}"
            if not is_chain(payload, reply.wanted):
                world.coverage.hit("corrupt_payload_refused")
                return
        self._is_writing = True
        at = world.now + world.sync_delay(process.sync_factor)
        world.push(at, self._written, process.epoch, reply, payload)

    def _written(self, epoch: int, reply: RepairReply, payload: list[DirectoryEntry]) -> None:
        process = self._process
        if epoch != process.epoch:
            return
        if reply.snapshot is None:
            process.disk.mend(payload)
            process.world.coverage.hit("range_fetched")
        else:
            process.disk.mend_by_snapshot(reply.snapshot, reply.snapshot_chain)
            process.world.coverage.hit("repaired_by_snapshot")
        self.go_on()


def answer(process: Process, request: RepairRequest) -> None:
    """Send the requested entries, if they are whole here and proven at both ends."""
    disk = process.disk
    wanted = request.wanted
    image = disk.memory
    sender, to = process.node_id, request.sender
    reply = RepairReply(sender, to, wanted, None, 0)
    if image.base_index < wanted.lo and wanted.hi <= image.last_index + 1:
        lo = wanted.lo - image.base_index - 1
        try:
            entries = disk.checked(image.entries[lo : lo + wanted.hi - wanted.lo])
        except DamagedError:
            if process.is_up:
                raise
            return  # This node is being repaired itself.
        if is_chain(entries, wanted):
            process.world.network.send(Outgoing(reply, entries))  # type: ignore[arg-type]
        return
    snapshot = disk.durable.snapshot
    # A snapshot may end within the range: the rest, which may begin this log, is requested next.
    if snapshot is not None and snapshot.index >= wanted.lo:
        chain = disk.durable.snapshot_chain
        reply = reply._replace(snapshot=snapshot, snapshot_chain=chain)
        process.world.network.send(Outgoing(reply, None))  # type: ignore[arg-type]
