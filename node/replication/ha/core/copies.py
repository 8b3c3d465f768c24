"""The copies of a log: the replicas that hold its bytes.

Owns the count of copies (per replica, never per link), and the admission of a replica with a new
disk into the count. Must not know frames or links.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.replication.ha.core.types import HaSettings


class Copies:
    """Acked positions of the replicas that count, under one epoch of this master."""

    def __init__(self, settings: HaSettings, epoch_start: int) -> None:
        self._copies = settings.copies
        self.epoch_start = epoch_start
        self._acks: dict[int, int] = {}

    def on_ack(self, replica_id: int, position: int) -> None:
        """Note an ack of a replica that is bound to this epoch and counts.

        Below the start of the epoch an ack proves nothing yet: the replica would rank its log by an
        older epoch at the next fence, and its copy could lose there (like the copy of an old term
        that Raft does not count, either).
        """
        if position >= self.epoch_start:
            self._acks[replica_id] = max(position, self._acks.get(replica_id, 0))

    def forget(self, replica_id: int) -> None:
        """Count a replica no more, since its disk is new."""
        self._acks.pop(replica_id, None)

    def position(self, durable: int) -> int:
        """Return the position up to which k copies are synced, including the master's own."""
        if len(self._acks) + 1 < self._copies:
            return 0
        others = sorted(self._acks.values(), reverse=True)
        return min([durable, *others[: self._copies - 1]])

    def holders(self, position: int) -> list[int]:
        """Return the other replicas that hold everything below `position` synced."""
        return sorted(replica for replica, ack in self._acks.items() if ack >= position)

    def acked(self, replica_id: int) -> int | None:
        """Return the position up to which a counted replica has synced this epoch; None before its
        start."""
        return self._acks.get(replica_id)


@dataclass(slots=True, eq=False)
class CopyAdmission:
    """The admission of one replica with a new disk into the count (fault-matrix H11).

    It may have bound a higher number before it lost its disk, and a candidate may still hold that
    promise. So every other replica has to confirm this epoch *after* the new disk was seen: a
    candidate is bound to its own number and would answer with that.
    """

    incarnation: int
    missing: set[int]
    """Replicas that have not confirmed the epoch, asked after this admission began. The replica may
    count once none is left and it holds everything."""
    is_sent: bool = False
