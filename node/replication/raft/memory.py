"""The `Memory` of a node whose log Raft replicates, for `node.replication.lives`.

Owns the way to its meta file, its log and its core; must not know what peers are told.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from node.replication.lives import Facts
from node.replication.raft.codec import INCARNATION_MAX
from node.replication.raft.storage.log import LedgerLog
from raft.lives import Lives
from raft.messages import Index, Standing
from raft.transitions import Role

if TYPE_CHECKING:
    from node.replication.raft.driver import RaftDriver


class RaftMemory:
    """Implements `node.replication.lives.Memory`."""

    incarnation_max = INCARNATION_MAX

    def __init__(self, log: LedgerLog) -> None:
        self._log = log
        self.driver: RaftDriver | None = None
        """The driver, once it exists."""

    @property
    def life(self) -> int:
        return self._log.node_file.record.life

    def begin(self, life: int) -> None:
        file = self._log.node_file
        file.save(replace(file.record, life=life))

    def facts(self) -> Facts | None:
        record = self._log.node_file.record
        if not record.is_founded:
            return None
        term, _, standing, incarnation = record.hard_state
        last_index = record.acked_last_index(self._log.last_index)
        return Facts(term, last_index, standing, incarnation)

    def become_joining(self, incarnation: int) -> None:
        if self.driver is not None:
            self.driver.lose_memory(incarnation)
            return
        file = self._log.node_file
        standing = file.record.hard_state._replace(
            standing=Standing.JOINING, incarnation=incarnation
        )
        file.save(replace(file.record, hard_state=standing))

    def look(self, lives: Lives) -> None:
        if self.driver is not None:
            lives.look(self.driver.replica.core.state)

    @property
    def is_leading(self) -> bool:
        return self.driver is not None and self.driver.role is Role.LEADER

    @property
    def committed_index(self) -> Index | None:
        driver = self.driver
        return min(driver.commit_index, driver.durable_index) if driver is not None else None
