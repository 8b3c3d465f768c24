"""The `Memory` of a replica of a master-slave group, for `node.replication.lives`.

Owns the way to its log, its binding and its machine; must not know what peers are told. Epochs
stand for terms and positions for indexes: bytes that a slave has acked under an epoch are cut only
under a later one. The readers' limit is no mark here, as an async master may lose such bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.peers.lives_codec import NUMBER_MAX
from node.replication.ha.core.types import HaRole, HaStanding
from node.replication.ha.storage.log import HaLog
from node.replication.lives import Facts
from raft.lives import NO_LIFE, Known, Lives
from raft.messages import NO_INDEX, Index
from raft.messages import Standing as RaftStanding

if TYPE_CHECKING:
    from node.replication.ha.driver import HaDriver


class HaMemory:
    """Implements `node.replication.lives.Memory`."""

    incarnation_max = NUMBER_MAX
    """A new disk draws any number."""

    def __init__(self, log: HaLog) -> None:
        self._log = log
        self.driver: HaDriver | None = None
        """The driver, once it exists."""

    @property
    def life(self) -> int:
        return self._log.binding.life

    def begin(self, life: int) -> None:
        self._log.binding.begin(life)

    def facts(self) -> Facts | None:
        log = self._log
        if log.is_new:
            return None
        bound, standing, incarnation, _ = log.replica
        is_joining = standing is HaStanding.JOINING
        raft_standing = RaftStanding.JOINING if is_joining else RaftStanding.FULL
        return Facts(bound.number, log.end, raft_standing, incarnation)

    def become_joining(self, incarnation: int) -> None:
        if self.driver is not None:
            self.driver.input(lambda machine: machine.lose_memory(incarnation))
            return
        log = self._log
        log.save_state(log.replica._replace(standing=HaStanding.JOINING, incarnation=incarnation))

    def look(self, lives: Lives) -> None:
        if self.driver is None:
            return
        state = self.driver.machine.state
        epoch = state.bound.number
        if state.role is not HaRole.MASTER:
            up = state.up(state.bound.master_id)
            if up is not None and up.is_master:
                lives.note_term(up.peer, epoch)
            return
        for link in state.downs():
            if link.promise is not None:
                acked = state.copies.acked(link.peer)
                position = NO_INDEX if acked is None else acked
                incarnation = link.promise.incarnation
                view = Known(NO_LIFE, 0, incarnation, epoch, epoch, position, NO_INDEX)
                lives.note(link.peer, view)

    @property
    def is_leading(self) -> bool:
        """Always False: lives travel in handshakes only, since the stream is RocketMQ's."""
        return False

    @property
    def committed_index(self) -> Index | None:
        return None
