"""The promises that must hold for every seed (fault-matrix 2: I1, I7, I13, I15, I19).

Owns the ground truth, collected from outside of the machines; must not know their rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.replication.ha.core.effects import HaEffects, HaRoleChange, LossReport, Resolved
from node.replication.ha.core.types import AckMode, HaRole, HaStanding
from simulation.ha.options import RECORD_SIZE_BYTES
from store.errors import Outcome

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.ha.replica import SimulatedReplica
    from simulation.ha.world import HaWorld


class ViolationError(Exception):
    """A promise was broken."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


def record_at(log: bytes | bytearray, end: int) -> int:
    """Return the record that ends at `end`; 0 if the log is shorter."""
    if end > len(log):
        return 0
    return int.from_bytes(log[end - RECORD_SIZE_BYTES : end], "big")


class HaReferee:
    """Watches one world."""

    def __init__(self, world: HaWorld) -> None:
        self._world = world
        options = world.options
        self._is_pure_sync = options.mode is AckMode.SYNC and not options.switches_mode
        self._owners: dict[int, tuple[int, int]] = {}
        self._served: dict[int, bytes] = {}
        """By epoch: the log with which its master began to serve."""
        self.safe: dict[int, int] = {}
        """Records acked as synced on k replicas, by the position of their end."""
        self.cached: dict[int, tuple[int, int]] = {}
        """Epoch and end of records acked by the master alone, by record."""
        self._read: dict[int, int] = {}
        self._confirms: dict[int, int] = {}
        self._cuts: dict[int, set[int]] = {}
        self.lost: set[int] = set()
        self.acked = 0
        self.promotions = 0
        self.cut_count = 0

    def started(self, replica: SimulatedReplica) -> None:
        self._confirms[replica.id] = 0

    def role(self, replica: SimulatedReplica, change: HaRoleChange) -> None:
        """Check I1, I7 and I19 when a master begins to serve."""
        if change.role is not HaRole.MASTER:
            return
        bound = replica.saved.bound
        owner = self._owners.setdefault(bound.number, (bound.master_id, bound.nonce))
        if owner != (replica.id, bound.nonce) or bound.number in self._served:
            raise ViolationError("I1", f"epoch {bound.number} of {owner} served by {replica.id}")
        self.promotions += 1
        self._served[bound.number] = bytes(replica.log)
        if any(number > bound.number for number in self._served):
            return  # Began after a newer one and cannot ack: its gaps are harmless.
        self._check_contains(replica.log, self.safe, "I7", f"master {replica.id}")
        if self._is_pure_sync:
            self._check_contains(replica.log, self._read, "I7.read", f"master {replica.id}")
        # An older suffix may come back, if the master that lost it died with its epoch.
        self.lost = {r for r, (_, end) in self.cached.items() if record_at(replica.log, end) != r}
        kept: dict[int, int] = {}
        for record, (number, end) in self.cached.items():
            if record not in self.lost:
                kept[number] = max(end, kept.get(number, 0))
        for record in sorted(self.lost):
            number, end = self.cached[record]
            if end < kept.get(number, 0):
                raise ViolationError("I19", f"a hole: {end} of {number} is lost, more is not")

    def resolved(self, replica: SimulatedReplica, resolved: Resolved) -> None:
        """Check that an ack is true, and that no log contradicts it."""
        if resolved.outcome is not Outcome.APPLIED:
            return
        assert isinstance(resolved.waiter, tuple)
        record, number = resolved.waiter
        end = resolved.end
        self.acked += 1
        newer = [log for n, log in self._served.items() if n > number]
        if resolved.mode is AckMode.ASYNC:
            if end > replica.synced:
                raise ViolationError("I7.sync", f"{record} is acked and not synced")
            self.cached[record] = number, end
            if any(record_at(log, end) != record for log in newer):
                self.lost.add(record)
            return
        world = self._world
        copies = [
            r.id for r in world.replicas if r.synced >= end and record_at(r.log, end) == record
        ]
        if len(copies) < world.options.copies and not world.options.wipes:
            raise ViolationError("I7.copies", f"{record} is acked and synced on {copies} only")
        if self.safe.setdefault(end, record) != record:
            raise ViolationError("I7.twice", f"{record} and {self.safe[end]} are acked at {end}")
        if any(record_at(log, end) != record for log in newer):
            raise ViolationError("I7.fenced", f"{record} is acked in {number}, a newer lacks it")

    def readers(self, replica: SimulatedReplica, fx: HaEffects) -> None:
        """Check that readers see only bytes that exist and are committed."""
        if fx.confirm is None:
            return
        before, now = self._confirms[replica.id], fx.confirm
        self._confirms[replica.id] = now
        if now > len(replica.log):
            raise ViolationError("I8", f"{replica.id} serves to {now} of {len(replica.log)}")
        if now < before and not fx.losses:
            raise ViolationError("I11", f"{replica.id} reads to {now} after {before}")
        if self._is_pure_sync:
            for end in range(before + RECORD_SIZE_BYTES, now + 1, RECORD_SIZE_BYTES):
                record = record_at(replica.log, end)
                if self._read.setdefault(end, record) != record:
                    raise ViolationError("I11", f"{replica.id} reads another record at {end}")

    def cut(self, replica: SimulatedReplica, lo: int, hi: int) -> None:
        """Check that no record acked by k, or read in sync mode, is cut."""
        self.cut_count += 1
        if self._is_pure_sync and lo < self._confirms[replica.id]:
            raise ViolationError("I7.cut", f"{replica.id} cuts {lo}, below its readers' limit")
        ends: set[int] = set()
        for end in range(lo + RECORD_SIZE_BYTES, hi + 1, RECORD_SIZE_BYTES):
            record = record_at(replica.log, end)
            if self.safe.get(end) == record:
                raise ViolationError("I7.cut", f"{replica.id} cuts {record}, acked by k")
            if record in self.cached:
                ends.add(end)
        self._cuts[replica.id] = ends

    def loss(self, replica: SimulatedReplica, report: LossReport) -> None:
        """Check I19: the reported loss is the actual one."""
        if report.hi <= report.lo:
            raise ViolationError("I19.report", f"{report} is empty")
        if report.lo < len(replica.log):
            raise ViolationError("I19.report", f"{report} is no suffix of {len(replica.log)}")
        if not report.is_exact:
            return
        acked = self._cuts[replica.id]
        served = len(self._served[report.epoch])
        first = max(report.lo, served) + RECORD_SIZE_BYTES
        reported = set(range(first, report.acked_hi + 1, RECORD_SIZE_BYTES))
        measured = {end for end in acked if end >= first}
        if measured != reported and not self._world.options.switches_mode:
            raise ViolationError("I19.count", f"{report}, measured {sorted(measured)}")

    def at_rest(self, replicas: list[SimulatedReplica]) -> str:
        """Return why the world is not at rest; empty: all logs are equal (I13)."""
        first = replicas[0]
        for replica in replicas:
            if replica.saved.standing is not HaStanding.FULL:
                return f"{replica.id} does not count yet"
            if replica.log != first.log or replica.saved_epochs != first.saved_epochs:
                return f"{replica.id} and {first.id} differ"
            if replica.machine.confirm != len(replica.log):
                return f"{replica.id} serves to {replica.machine.confirm} of {len(replica.log)}"
        self._check_contains(first.log, self.safe, "I7.final", "the group")
        gone = {r for r, (_, end) in self.cached.items() if record_at(first.log, end) != r}
        if gone != self.lost:
            raise ViolationError("I19.final", f"{sorted(gone ^ self.lost)}")
        return ""

    @staticmethod
    def _check_contains(log: bytearray, records: dict[int, int], code: str, name: str) -> None:
        for end, record in records.items():
            if record_at(log, end) != record:
                raise ViolationError(code, f"{name} lacks {record} at {end}")
