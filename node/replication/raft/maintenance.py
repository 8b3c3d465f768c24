"""The steps of maintenance in raft mode: checkpoints, and what retention may delete.

Owns the order of changes between memory and disk within a step, so that a state is never ahead of
its log, and a file that a follower or a reader needs stays. Must not know elections or clients.
"""

from collections.abc import Callable

from node.replication.maintenance import MaintenanceThread, say_deleted
from node.replication.raft.storage.log import LedgerLog
from node.runtime.clock import unix_ms
from node.state.checkpoint_files import CheckpointFiles
from node.state.machine import StateMachine
from raft.errors import CompactionRefusedError
from raft.messages import NO_INDEX
from raft.pump.replica import Replica
from raft.rules import snapshot


class RaftSteps:
    """`node.replication.maintenance.MaintenanceSteps` over a ledger and the replica of a Raft
    group."""

    def __init__(
        self,
        log: LedgerLog,
        replica: Replica,
        machine: StateMachine,
        files: CheckpointFiles,
        needed_position: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Bytes at `needed_position` or behind are kept whatever their age: they were promised to a
        reader."""
        self.thread = MaintenanceThread()
        self._log, self._replica = log, replica
        self._machine, self._files = machine, files
        self._needed_position = needed_position

    @property
    def is_checkpoint_urgent(self) -> bool:
        """Whether a snapshot was installed and no checkpoint holds its state yet."""
        return self._log.received.installed is not None

    async def maintain(self) -> None:
        """Sync derived files, judge the disk, find expired files."""
        await self.thread.maintain(self._log.store)

    async def checkpoint(self) -> None:
        """Save the state as of now, if anything was applied since. Durable on return.

        The log must be durable up to there first: a state must not be ahead of its log.
        """
        installed = self._log.received.installed
        if self._machine.applied_index > self._files.applied_index:
            image = self._machine.image()
            if self._log.store.durable_index < image.applied_index:
                await self.thread.synced(self._log.store)
            now_unix_ms = unix_ms()
            await self.thread.on_thread(lambda: self._files.save(image, now_unix_ms))
        if installed is None or self._log.received.installed is not installed:
            return
        if self._files.applied_index >= installed.state_index:
            self._log.received.forget()

    async def delete_expired(self) -> None:
        """Delete files that are due, checkpointed, and needed by no follower."""
        log, replica, limit = self._log, self._replica, self._files.applied_index
        state = replica.core.state
        needed = self._needed_position()
        if needed is not None:
            limit = min(limit, log.store.ledger.last_index_before(needed))
        index = log.store.deletable_index(limit)
        if limit == NO_INDEX or index <= log.base_index:
            return
        try:
            snapshot.snapshot_durable(state, snapshot.meta_at(state, index))
        except CompactionRefusedError:
            return  # Later: a node that joined lately lacks the members of then.
        deletion = log.plan_deletion(min(limit, snapshot.compactable_to(replica.core.state)))
        if deletion is None or not await self.thread.on_thread(deletion.write_start):
            return
        base_index = deletion.start.link.entry_index
        if base_index <= log.base_index:
            return  # The log was replaced by a snapshot meanwhile.
        replica.compact_to(base_index)
        counters = log.store.counters
        for_room_before = counters.deleted_for_room_count
        if not log.store.forget(deletion):
            return
        for_room_count = counters.deleted_for_room_count - for_room_before
        say_deleted(deletion.file_count, for_room_count, first_index=log.base_index + 1)
        await self.thread.on_thread(deletion.remove)
        await self.thread.on_thread(log.store.delete_expired_derived)
