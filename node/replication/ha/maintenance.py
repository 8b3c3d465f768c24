"""The steps of maintenance in master-slave mode: checkpoints, retention, images of the state.

Owns the order of changes between memory and disk within a step. Must not know roles beyond what a
slave still needs of the log.
"""

from functools import partial

from node.replication.ha.applied import AppliedState
from node.replication.ha.driver import HaDriver
from node.replication.ha.storage.log import KEPT_FOR_SLAVE_SIZE_BYTES, HaLog
from node.replication.maintenance import MaintenanceThread, say_deleted
from node.state.held import needed_position
from store.errors import PositionRangeError


class HaSteps:
    """`node.replication.maintenance.MaintenanceSteps` of a replica of a master-slave group."""

    is_checkpoint_urgent = False

    def __init__(self, log: HaLog, applied: AppliedState, driver: HaDriver) -> None:
        self.thread = MaintenanceThread()
        self._log, self._applied, self._driver = log, applied, driver

    async def maintain(self) -> None:
        """Sync derived files, judge the disk, find expired files."""
        await self.thread.maintain(self._log.store)

    async def checkpoint(self) -> None:
        """Save the state as of now, if anything was applied since. Durable on return."""
        checkpoint = self._applied.checkpoint()
        if checkpoint is None:
            return
        if self._log.store.durable_position < checkpoint.position:
            await self.thread.synced(self._log.store)
        await self.thread.on_thread(partial(self._applied.save, checkpoint))
        # The replica is whole: its former log, set aside, is not needed any more.
        await self.thread.on_thread(self._log.store.shipped.files.delete_aside)

    async def delete_expired(self) -> None:
        """Delete files that are due, checkpointed, no longer being shipped, and without a message
        that is still to be delivered."""
        floor = self._log.end - KEPT_FOR_SLAVE_SIZE_BYTES
        needed = self._driver.inbound.needed_position(floor)
        held = needed_position(self._log.store.reads, self._applied.machine.state)
        if held is not None:
            needed = min(needed, held)
        counters = self._log.store.counters
        before, for_room_before = counters.deleted_file_count, counters.deleted_for_room_count
        work = self._log.store.detach_expired(min(self._applied.checkpoint_position, needed))
        if work is not None:
            say_deleted(
                counters.deleted_file_count - before,
                counters.deleted_for_room_count - for_room_before,
                first_position=self._log.min_position,
            )
            self._driver.inbound.drop_left_behind()
            await self.thread.on_thread(work)

    async def make_image(self) -> bytes:
        """Return an image of the state as of now, for another replica. Raises ShuttingDownError."""
        while True:
            try:
                return await self.thread.on_thread(self._applied.make_image())
            except PositionRangeError:  # Files were deleted meanwhile.
                continue
