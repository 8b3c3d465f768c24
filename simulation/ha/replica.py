"""A replica with a disk that can lose unsynced bytes: the shell of one machine.

Owns the order in which effects are carried out, and the disk after a crash. Must not know rules of
the machine; it reports all events to the referee.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from node.replication.ha.core.effects import HaEffects, Ship
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import (
    EpochStart,
    HaBinding,
    HaError,
    HaStanding,
    ReplicaState,
    check_binding,
)
from node.replication.ha.core.wire import body_check, encode, transfer_head
from simulation.ha.options import RECORD_SIZE_BYTES

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.ha.world import HaWorld


class SimulatedReplica:
    """One id of the group; its process comes and goes, its disk stays or is replaced."""

    def __init__(self, world: HaWorld, replica_id: int) -> None:
        self.world, self.id = world, replica_id
        self.is_up = False
        self.machine: HaMachine
        # The disk.
        self.log = bytearray()
        self.synced = 0
        """Bytes of the log that no crash takes."""
        self.saved_epochs: tuple[EpochStart, ...] = ()
        self.saved = ReplicaState(HaBinding(), HaStanding.FULL, replica_id + 1)
        self.aside: list[tuple[int, bytes]] = []
        # The process.
        self._syncing = 0
        """Number of the sync under way; 0: none."""
        self._sync_number = 0
        self._life = 0

    # `LogView` of the machine.

    min_position = 0
    last_file_start = 0

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        """Return the end of whole records, as `LogView` demands."""
        size_bytes = max(RECORD_SIZE_BYTES, size_bytes_max)
        return min(hi, lo + size_bytes - size_bytes % RECORD_SIZE_BYTES)

    def start(self) -> None:
        """Start the process from the disk."""
        self.is_up = True
        self._life += 1
        self._syncing = 0
        self.synced = len(self.log)
        self.machine = HaMachine(
            self.world.settings,
            self.id,
            self,
            self.saved,
            Epochs(self.saved_epochs),
            self.synced,
            mode=self.world.mode,
        )
        self.world.referee.started(self)
        self._tick(self._life)

    def crash(self) -> None:
        """Lose the process, and all or part of the unsynced bytes."""
        if not self.is_up:
            return
        self.is_up = False
        lost = (len(self.log) - self.synced) // RECORD_SIZE_BYTES
        kept = self.world.random.randrange(lost + 1)
        del self.log[self.synced + kept * RECORD_SIZE_BYTES :]
        self.world.network.shut_all_of(self.id)

    def wipe(self, incarnation: int) -> None:
        """Replace the disk of a replica that is down."""
        assert not self.is_up
        self.log.clear()
        self.synced = 0
        self.saved_epochs = ()
        self.saved = ReplicaState(HaBinding(), HaStanding.JOINING, incarnation)

    def run(self, call: Callable[[HaMachine], HaEffects]) -> None:
        """Give the machine an input and carry out its effects, perhaps with a crash in between."""
        fx = call(self.machine)
        dies = not self.world.is_calm and self.world.random.random() < self.world.options.crash / 80
        steps = (
            self._save,
            self._cut,
            self._save_epochs,
            self._write,
            self._send,
            self._close,
            self._tell,
        )
        last = self.world.random.randrange(len(steps)) if dies else len(steps)
        for step in steps[:last]:
            step(fx)
        if dies:
            self.crash()
            self.world.push(self.world.now + 300, self.world.restart, self.id)

    def append(self, record: int) -> None:
        """Append for a client, if this replica believes itself master."""
        try:
            self.machine.check_append()
        except HaError:
            return
        self.log += record.to_bytes(RECORD_SIZE_BYTES, "big")
        self._sync()
        self.run(lambda m: m.appended_all([(len(self.log), (record, m.state.bound.number))]))

    # Effects, in their order.

    def _save(self, fx: HaEffects) -> None:
        if fx.state is not None:
            check_binding(self.saved.bound, fx.state.bound)
            self.saved = fx.state

    def _cut(self, fx: HaEffects) -> None:
        if fx.cut is not None:
            lo, hi = fx.cut
            assert hi == len(self.log), f"cut [{lo}, {hi}) of a log that ends at {len(self.log)}"
            assert fx.losses[0][1:3] == (lo, hi), f"cut [{lo}, {hi}) with {fx.losses}"
            self.world.referee.cut(self, lo, hi)
            self.aside.append((lo, bytes(self.log[lo:])))
            del self.log[lo:]
            self.synced = min(self.synced, lo)
            self._syncing = 0  # An earlier sync no longer counts.

    def _save_epochs(self, fx: HaEffects) -> None:
        if fx.epochs is not None:
            self.saved_epochs = fx.epochs.entries

    def _write(self, fx: HaEffects) -> None:
        for position, body, _ in fx.write:
            assert position == len(self.log), f"write at {position}, end {len(self.log)}"
            self.log += body
        self._sync()

    def _send(self, fx: HaEffects) -> None:
        for item in fx.send:
            link = item.link
            assert isinstance(link, int)
            if isinstance(item, Ship):
                body = bytes(self.log[item.lo : item.hi])
                head = transfer_head(item.head, len(body))
                data = head + body + body_check(body)
            else:
                data = encode(item.frame)
            self.world.network.send(link, self.id, data)

    def _close(self, fx: HaEffects) -> None:
        for link, reason in fx.close:
            self.world.trace(f"{self.id} closes {link}: {reason}")
            wire = self.world.network.wires.get(link) if isinstance(link, int) else None
            if wire is not None:
                self.world.network.shut(wire)

    def _tell(self, fx: HaEffects) -> None:
        referee = self.world.referee
        for change in fx.role_changes:
            self.world.trace(f"{self.id} is {change}")
            referee.role(self, change)
        for resolved in fx.resolved:
            referee.resolved(self, resolved)
        for loss in fx.losses:
            self.world.trace(f"{self.id}: {loss}")
            referee.loss(self, loss)
        referee.readers(self, fx)

    # The disk's time.

    def _sync(self) -> None:
        if self._syncing or self.synced == len(self.log):
            return
        self._sync_number += 1
        self._syncing = self._sync_number
        options, random = self.world.options, self.world.random
        slow = random.random() < options.slow_sync and not self.world.is_calm
        at = self.world.now + options.sync_ms * (20 if slow else 1)
        self.world.push(at, self._synced, self._syncing, self._life, len(self.log))

    def _synced(self, number: int, life: int, end: int) -> None:
        if not self.is_up or life != self._life or number != self._syncing:
            return
        self._syncing = 0
        self.synced = end
        self._sync()
        self.run(lambda m: m.durable_to(end))

    def _tick(self, life: int) -> None:
        if not self.is_up or life != self._life:
            return
        for peer in self.world.settings.replica_ids:
            if peer != self.id and self.machine.state.up(peer) is None:
                self.world.network.dial(self.id, peer)
        self.world.push(self.world.now + 100, self._tick, life)
        self.run(lambda m: m.tick(self.world.now))
