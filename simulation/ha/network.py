"""Links that delay, hang and break: streams, as TCP gives them, cut at any byte.

Owns bytes under way; must not know what they say. A stream neither loses nor doubles bytes within a
connection, so loss is a break that drops the bytes under way, and doubling is a second connection
of one replica while the first still exists.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.wire import DownParser, UpParser

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.ha.world import HaWorld


class Pipe:
    """One direction of a link."""

    __slots__ = ("last_at", "parser")

    def __init__(self, parser: UpParser | DownParser) -> None:
        self.parser = parser
        self.last_at = 0


class Wire:
    """One connection between the processes of two replicas."""

    __slots__ = ("dialler", "id", "is_broken", "listener", "pipes")

    def __init__(self, link_id: int, dialler: int, listener: int) -> None:
        self.id, self.dialler, self.listener = link_id, dialler, listener
        self.pipes = {
            listener: Pipe(UpParser()),
            dialler: Pipe(DownParser()),
        }
        """Pipes by receiver."""
        self.is_broken = False


class HaNetwork:
    """All connections of a world."""

    def __init__(self, world: HaWorld) -> None:
        self._world = world
        self.wires: dict[int, Wire] = {}
        self.cuts: set[tuple[int, int]] = set()
        """Ordered pairs (sender, receiver) between which no byte arrives."""
        self._next_id = 0

    def dial(self, dialler: int, listener: int) -> None:
        """Connect, if the other end is up and reachable both ways."""
        world = self._world
        pairs = {(dialler, listener), (listener, dialler)}
        if not world.replicas[listener].is_up or pairs & self.cuts:
            return
        self._next_id += 1
        wire = self.wires[self._next_id] = Wire(self._next_id, dialler, listener)
        for end in (listener, dialler):
            at = world.now + self._delay()
            wire.pipes[end].last_at = at
            world.push(at, self._open, wire, end)

    def send(self, link_id: int, sender: int, data: bytes) -> None:
        """Schedule the arrival of bytes at the other end, in order, in two pieces."""
        world = self._world
        wire = self.wires.get(link_id)
        if wire is None or wire.is_broken:
            return
        receiver = wire.listener if sender == wire.dialler else wire.dialler
        pipe = wire.pipes[receiver]
        middle = world.random.randrange(len(data) + 1)
        for piece in (data[:middle], data[middle:]):
            pipe.last_at = max(pipe.last_at, world.now + self._delay())
            world.push(pipe.last_at, self._arrive, wire, sender, receiver, piece)

    def shut(self, wire: Wire) -> None:
        """End a connection; each end learns of it in its own time."""
        if wire.is_broken:
            return
        wire.is_broken = True
        self.wires.pop(wire.id, None)
        for end in (wire.dialler, wire.listener):
            at = self._world.now + self._world.random.choice([1, 20, 800])
            self._world.push(at, self._closed, wire, end)

    def shut_all_of(self, replica_id: int) -> None:
        """End all connections of a process that died."""
        for wire in list(self.wires.values()):
            if replica_id in (wire.dialler, wire.listener):
                self.shut(wire)

    def _open(self, wire: Wire, end: int) -> None:
        replica = self._world.replicas[end]
        if wire.is_broken or not replica.is_up:
            self.shut(wire)
        elif end == wire.dialler:
            replica.run(lambda m: m.dialled(wire.id, wire.listener))
        else:
            replica.run(lambda m: m.accepted(wire.id))

    def _arrive(self, wire: Wire, sender: int, receiver: int, piece: bytes) -> None:
        replica = self._world.replicas[receiver]
        if wire.is_broken or not replica.is_up:
            return
        if (sender, receiver) in self.cuts:
            self.shut(wire)
            return
        for frame in wire.pipes[receiver].parser.feed(piece):
            if replica.is_up:  # The frame before may have crashed it.
                replica.run(partial(HaMachine.received, link_id=wire.id, frame=frame))

    def _closed(self, wire: Wire, end: int) -> None:
        replica = self._world.replicas[end]
        if replica.is_up:
            replica.run(lambda m: m.disconnected(wire.id))

    def _delay(self) -> int:
        random, base = self._world.random, self._world.options.delay_ms
        if not self._world.is_calm and random.random() < 0.02:
            return base * 100  # The link hangs.
        return 1 + int(random.expovariate(1 / base))
