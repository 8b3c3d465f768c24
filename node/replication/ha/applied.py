"""The replicated state of a master-slave replica: its source at a start, and its fate at a cut.

Owns the state machine over a log without entries, its checkpoints, and images of it for replicas
whose log does not reach back far enough. Must not know links or roles. An index is the position of
the end of a batch less one, so `applied_index` is the readers' limit less one. A checkpoint and an
image name the epoch of their last byte: with their position that identifies the log below, so one
that belongs to a history that was cut off is never used.
"""

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from node.config.limits import Limits
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import EpochStart
from node.replication.ha.storage.image import LogImage, decode, encode
from node.replication.ha.storage.log import HaLog
from node.runtime.clock import unix_ms
from node.state.checkpoint_files import CheckpointFiles, History
from node.state.machine import StateMachine
from node.state.state import StateImage
from store.errors import FileSystemError, PositionRangeError, StoreFullError
from store.files.file_system import FileSystem
from store.log.cut_file import CutFile


class StateCheckpoint(NamedTuple):
    """A copy of the state at one moment, and the epoch of its last byte."""

    state: StateImage
    epoch: EpochStart

    @property
    def position(self) -> int:
        """Position of the copy. Do not save it before `HaLog.durable` is at or behind it."""
        return self.state.applied_index + 1


class AppliedState:
    """The state of one replica. On the loop's thread, except for `save` and the work of
    `make_image`."""

    def __init__(self, log: HaLog, fs: FileSystem, limits: Limits) -> None:
        """Load the newest checkpoint that fits the log, and apply what readers have seen already.

        Raises as `CheckpointFiles.load` and as `apply`.
        """
        self._log = log
        self.files: Final = CheckpointFiles(fs, log.store.root)
        state, history = self.files.load(), self.files.history
        self._saved = StateCheckpoint(state, EpochStart(*history)) if state and history else None
        """The newest generation on the disk, of any history."""
        self._pending: LogImage | None = None
        """The image that becomes the state once the log reaches it."""
        self.is_missing = False
        """Whether the log does not reach back far enough to build the state, so that it needs an
        image.

        Until the image is there, do not promote this replica, and serve no calls from its state.
        Its log goes on and its acks are true.
        """
        self.machine: Final = StateMachine(log.store.reads, limits, None)
        """For the broker; a cut replaces its `state`, so look that up each time."""
        self.machine.listen(log.store.engine.dispatcher)
        self._begin()

    @property
    def applied(self) -> int:
        """Position up to which the state has applied everything; 0 while the state is missing."""
        return self.machine.applied_index + 1

    def apply(self, confirm: int) -> None:
        """Show readers the log up to `confirm`, and apply the commands in it.

        Raises StoreFullError or FileSystemError: call it again later. Any other error: stop.
        """
        self._log.store.dispatch_to(confirm)
        if self.is_missing:
            self._log.store.engine.dispatcher.take_watched()  # Read again once there is a state.
            if not self._install():
                return
        self.machine.apply(self.applied, self._log.store.dispatched_position)

    def cut(
        self, lo: int, hi: int, epoch: int, on_aside: Callable[[CutFile], None] = lambda _: None
    ) -> None:
        """Carry out the effect `Cut`: `HaLog.cut`, and restore the state as of `lo` or before."""
        self._log.cut(lo, hi, epoch, on_aside)
        if self.is_missing or self.applied > lo:
            # Commands that cannot be read now are applied later by `apply`.
            with contextlib.suppress(StoreFullError, FileSystemError):
                self._begin()
        else:
            self.machine.forget_ahead()

    # --- Source of the state ---

    def _begin(self) -> None:
        """Build the state from the newest checkpoint of this log, or from the log alone."""
        log, saved = self._log, self._saved
        checkpoint = saved if saved is not None and self._fits(saved) else None
        begin = checkpoint.position if checkpoint is not None else 0
        self.is_missing = begin < log.min_position
        if self.is_missing or checkpoint is None:
            self.machine.go_back(None)
        else:
            self.machine.go_back(checkpoint.state)
            # Readers saw it; after a power loss the queues may be behind.
            log.store.dispatch_to(begin)
        if not self.is_missing:
            self.machine.apply(self.applied, log.store.dispatched_position)

    def _fits(self, checkpoint: StateCheckpoint) -> bool:
        """Whether the log holds the bytes that this state was made of."""
        position, log = checkpoint.position, self._log
        if position == 0:
            return True
        return position <= log.end and checkpoint.epoch == log.epoch_at(position - 1)

    # --- Images ---

    @property
    def wants_image(self) -> bool:
        """Whether to fetch an image from the master: the state is missing, and no image is pending,
        or the log went on with another epoch than that of the image."""
        pending, epochs = self._pending, self._log.epochs
        if not self.is_missing or pending is None:
            return self.is_missing
        if epochs.last.number < pending.epoch.number:
            return False  # The log has not reached that epoch.
        return epochs.at(pending.position - 1) != pending.epoch

    def _install(self) -> bool:
        """Make the pending image the state, once it fits; return whether there is a state now."""
        pending, log = self._pending, self._log
        seen = log.store.dispatched_position
        if pending is None or seen < max(pending.position, log.min_position):
            return False
        self._pending = None
        is_here = log.min_position <= pending.position
        if not is_here or not self._fits(StateCheckpoint(pending.state, pending.epoch)):
            return False
        self.machine.go_back(pending.state)
        self.is_missing = False
        return True

    def make_image(self) -> Callable[[], bytes]:
        """Return the work that makes an image of this moment, for the maintenance thread.

        Possible on a master, and on any replica that has its state. Raises PositionRangeError on
        that thread when files were deleted meanwhile: make another image.
        """
        assert not self.is_missing, "a state that is missing has no image"
        log = self._log
        now, begin = self._now(), log.min_position

        def make() -> bytes:
            next_offsets = log.store.next_offsets_at(begin)
            if log.min_position != begin:  # Deleted meanwhile: offsets were counted from there.
                raise PositionRangeError("image", begin, log.min_position, log.end)
            return encode(LogImage(begin, next_offsets, now.epoch, now.state))

        return make

    def take_image(self, data: bytes, is_behind: Callable[[int], bool] = lambda _: False) -> None:
        """Take a requested image: an empty log begins where the image says.

        So does a log of which `is_behind(begin)` says that its master has deleted the bytes that
        follow: it is set aside as a whole. The image becomes the state once the log reaches it, if
        it is of the same history then. Raises HaProtocolError for bytes that are no image;
        StoreFullError or FileSystemError: ask for another one later; SyncFailedError: stop.
        """
        image, log = decode(data), self._log
        if not log.is_empty and is_behind(image.begin):
            seen = log.store.dispatched_position
            if seen < log.end:
                raise HaProtocolError(f"readers see {seen} of {log.end} so far")
            log.set_all_aside()
        if log.is_empty:
            if image.begin != log.end or self.is_missing or not log.may_begin:
                log.begin_at(image.begin, image.next_offsets)
            self._begin()
        self._pending = image if self.is_missing else None
        self.apply(log.store.dispatched_position)

    # --- Checkpoints ---

    def checkpoint(self) -> StateCheckpoint | None:
        """Return a copy of the state to save; None if nothing changed since the last checkpoint."""
        if self.is_missing or self.applied == self.checkpoint_position:
            return None
        return self._now()

    def save(self, checkpoint: StateCheckpoint) -> None:
        """Write a checkpoint; durable on return. On the maintenance thread. Raises as
        `CheckpointFiles.save`: a full disk postpones it, SyncFailedError: stop."""
        self.files.save(checkpoint.state, unix_ms(), History(*checkpoint.epoch))
        self._saved = checkpoint

    @property
    def checkpoint_position(self) -> int:
        """Position of the newest checkpoint that fits the log; deletions stay below it."""
        saved = self._saved
        return saved.position if saved is not None and self._fits(saved) else 0

    def _now(self) -> StateCheckpoint:
        return StateCheckpoint(self.machine.image(), self._log.epoch_at(self.applied - 1))
