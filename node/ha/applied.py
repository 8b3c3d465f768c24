"""The replicated state of a master-slave replica: what it begins with, and what a cut does to it.

Owns the state machine over a log without entries, its checkpoints, and images of it for replicas
whose log does not reach back far enough. Must not know links or roles. An index is the position of
the end of a batch less one, so `applied_index` is the readers' limit less one. A checkpoint and an
image name the epoch of their last byte: with their position that identifies the log below, so one
that belongs to a history that was cut off is never used. The loop's thread, except where said.
"""

from collections.abc import Callable

from node.checkpoint_files import CheckpointFiles
from node.ha.log import CutFile, HaLog
from node.limits import Limits
from node.state_machine import StateMachine
from store.file_system import FileSystem


class Checkpoint:
    """A copy of the state at one moment."""

    position: int
    """Do not save it before `HaLog.durable` is here or behind."""

    def save(self) -> None:
        """Write it; durable on return. On the maintenance thread. Raises as `CheckpointFiles.save`:
        a full disk postpones it, SyncFailedError: stop."""
        raise NotImplementedError


class AppliedState:
    """One per replica."""

    machine: StateMachine
    """For the broker; `restore` replaces its `state`, so look that up each time."""
    files: CheckpointFiles

    def __init__(self, log: HaLog, fs: FileSystem, limits: Limits) -> None:
        """Load the newest checkpoint that fits the log, and apply what readers saw already."""
        raise NotImplementedError

    @property
    def applied(self) -> int:
        """The state has everything before this position; 0 while it waits for an image."""
        raise NotImplementedError

    @property
    def is_missing(self) -> bool:
        """The log does not reach back far enough to build the state: it needs an image.

        Until it has one, do not promote this replica, and serve no calls from its state. Its log
        goes on and its acks are true.
        """
        raise NotImplementedError

    @property
    def wants_image(self) -> bool:
        """An image has to be fetched from the master: missing, and none is on its way in."""
        raise NotImplementedError

    def apply(self, confirm: int) -> None:
        """Let readers see the log up to here, and take the commands in it over.

        Raises StoreFullError or FileSystemError: call it again later. Anything else: stop.
        """
        raise NotImplementedError

    def cut(self, lo: int, hi: int, epoch: int) -> CutFile:
        """Do the effect `Cut`: `HaLog.cut`, and the state as it was at `lo` or before."""
        raise NotImplementedError

    # --- Images ---

    def make_image(self) -> Callable[[], bytes]:
        """Return the work that makes an image of this moment, for the maintenance thread.

        Of a master, or of any replica that has its state. Raises PositionRangeError on that thread
        when files were deleted meanwhile: take another.
        """
        raise NotImplementedError

    def take_image(self, data: bytes) -> None:
        """Take an image that was asked for: an empty log begins where it says.

        It becomes the state once the log reaches it, if it is of the same history then. Raises
        HaProtocolError for bytes that are none; StoreFullError or FileSystemError: ask again later.
        """
        raise NotImplementedError

    # --- Checkpoints ---

    def checkpoint(self) -> Checkpoint | None:
        """Return a copy of the state to be saved; None if nothing changed since the last one."""
        raise NotImplementedError

    @property
    def checkpoint_position(self) -> int:
        """Up to where the newest checkpoint that fits the log goes: what no deletion may pass."""
        raise NotImplementedError
