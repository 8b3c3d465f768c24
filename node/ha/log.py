"""The log of one replica of a master-slave group: `LogView`, and what the effects want done.

Owns the translation between the machine's words (positions, epochs, bindings) and the store's, and
what a restart begins with. Must not know links, roles or the event loop. One thread, the loop's,
calls everything here unless a docstring says otherwise; nothing here waits for a disk, except for
what is rare: the binding, epochs, a cut, a beginning and `open`.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

from node.ha.epoch_file import ReplicaState
from node.ha.epochs import Epochs
from node.ha.types import EpochStart, HaError, Settings
from store.config import StoreConfig
from store.errors import StoreError
from store.fatal import end_process
from store.file_system import FileSystem
from store.log import AppendResult
from store.opening import Progress, no_progress
from store.stamp import QueueKey
from store.store import Store, unix_ms


class GroupChangedError(HaError):
    """The group was founded with other replicas or another number of copies. Nothing changed."""

    code, status = "ha.group_changed", "FAILED_PRECONDITION"


class ImageNeededError(HaError):
    """The empty log cannot begin at these bytes without an image of the sender. Nothing changed."""

    code, status = "ha.image_needed", "FAILED_PRECONDITION"


class CutFile(NamedTuple):
    """Bytes of the log that were cut off and set aside."""

    path: str
    epoch: int
    lo: int
    hi: int
    cut_unix_ms: int


class Prepared:
    """A batch of encoded records that was checked and has room; `HaLog.prepare` makes it."""

    result: AppendResult | None
    """Where it landed, once it was appended."""

    @property
    def end(self) -> int:
        """The end of the log once it is appended."""
        raise NotImplementedError

    @property
    def record_count(self) -> int:
        """How many records there are."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        """Size of the records."""
        raise NotImplementedError

    @property
    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        """What each queue, (topic, queue id), would get: (first offset, count)."""
        raise NotImplementedError


class HaLog:
    """Implements `node.ha.effects.LogView`, and `node.sync_requests.SyncedLog`."""

    store: Store
    """For readers: pull, queues, messages."""
    replica: ReplicaState
    """As stored. On a new disk it is JOINING: `save_state` it as FULL to found a group."""
    is_new: bool
    """Nothing was ever saved of this replica: whether it founds or joins is not decided."""
    epochs: Epochs
    """As stored; do not change it. Never of bytes that are not there."""

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig,
        *,
        cluster_id: str,
        node_id: int,
        group: Settings,
        fs: FileSystem | None = None,
        now_unix_ms: Callable[[], int] = unix_ms,
        on_fatal: Callable[[BaseException], None] = end_process,
        progress: Progress = no_progress,
    ) -> Self:
        """Open the directory of a replica, made if need be, and cut a torn tail.

        Raises as `Store.open`, and IdentityMismatchError (another cluster's or node's directory),
        GroupChangedError, LayoutError or CorruptionError of what a replica must not forget.
        """
        raise NotImplementedError

    # --- What there is ---

    @property
    def min_position(self) -> int:
        """First byte that is still kept."""
        raise NotImplementedError

    @property
    def last_file_start(self) -> int:
        """Where the last file begins."""
        raise NotImplementedError

    @property
    def end(self) -> int:
        """The end of the log."""
        raise NotImplementedError

    @property
    def durable(self) -> int:
        """Everything before it is synced; always true, also after cuts. Any thread.

        At start it is `end`. After `sync_here` or the callback of `request_sync`, tell the machine
        `durable_to(log.durable)`.
        """
        raise NotImplementedError

    @property
    def dispatched(self) -> int:
        """Readers see everything before it."""
        raise NotImplementedError

    def epoch_at(self, position: int) -> EpochStart:
        """Return the epoch of the byte at a position."""
        raise NotImplementedError

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        """Be part of `LogView`."""
        raise NotImplementedError

    def read(self, lo: int, hi: int) -> bytes:
        """Copy the bytes of one transfer, which `ship_end` made.

        Bytes from before this process are compared with their checksums first. Raises
        CorruptionError: do not send, close the link.
        """
        raise NotImplementedError

    # --- The master's appends ---

    def prepare(self, batch: bytes) -> Prepared:
        """Do all of an append of encoded records that can fail. Nothing is written.

        `append` of the result follows before any other write, or nothing. Raises
        RecordFormatError, LimitExceededError, TopicNameError (bad input), StoreFullError,
        FileSystemError or BusyError (try again later).
        """
        raise NotImplementedError

    def append(self, prepared: Prepared) -> AppendResult:
        """Append what `prepare` returned last; never fails. Not durable yet."""
        raise NotImplementedError

    def become_master(self) -> None:
        """Find out the next queue offsets. The first `prepare` would do it otherwise."""
        raise NotImplementedError

    # --- Raw bytes of another replica ---

    def has_room(self, size_bytes: int) -> bool:
        """Say whether records or raw bytes of so many in all could be written without an error.

        Never waits; asking makes the store prepare the next file. Ask before a transfer is handed
        to the machine; while it says no, stop reading from that link.
        """
        raise NotImplementedError

    def check_raw(self, position: int, body: bytes | memoryview) -> None:
        """Check the bytes of a transfer before the machine gets it. Nothing is written.

        Whole records or a blank, of one file, CRC, and each record's own position. Raises
        HaProtocolError (close the link), or ImageNeededError: the log is empty and does not begin
        there: fetch an image from that peer, `AppliedState.take_image`.
        """
        raise NotImplementedError

    def write_raw(self, position: int, body: bytes | memoryview) -> None:
        """Append what `check_raw` accepted, at the end of the log; `has_room` said yes."""
        raise NotImplementedError

    # --- Cutting ---

    def cut(self, lo: int, hi: int, epoch: int) -> CutFile:
        """Move [lo, hi), the end of the log, into a file aside, and cut the log. Durable on return.

        Call `AppliedState.cut` instead, which does this and what the state needs. `epoch` is the
        last of what is cut (`LossReport.epoch`). Waits for the disk. Raises StoreFullError or
        FileSystemError (nothing was cut: repeat it before anything else), SyncFailedError: stop.
        """
        raise NotImplementedError

    def cut_files(self) -> list[CutFile]:
        """Return what was set aside and is still there, oldest first."""
        raise NotImplementedError

    # --- What must not be forgotten ---

    def save_state(self, state: ReplicaState) -> None:
        """Replace the replica's state; durable on return. Raises as `BindingFile.save`."""
        raise NotImplementedError

    def save_epochs(self, epochs: Epochs) -> None:
        """Replace the epochs; durable on return. Raises as `EpochFile.save`."""
        raise NotImplementedError

    # --- Durability and readers ---

    def sync_here(self) -> bool:
        """Sync everything written so far on the caller's thread; False if it has to be requested.

        Raises SyncFailedError: stop.
        """
        raise NotImplementedError

    def request_sync(self, callback: Callable[[StoreError | None], None]) -> None:
        """Have everything written so far synced; `callback(error or None)` on the flush thread.

        Cuts in between need no care. An error means: stop.
        """
        raise NotImplementedError

    def dispatch(self, position: int) -> None:
        """Let readers see the log up to a position; `AppliedState.apply` calls it.

        Raises StoreFullError or FileSystemError when a queue cannot grow: call it again later.
        Anything else: stop.
        """
        raise NotImplementedError

    # --- Upkeep ---

    def maintain(self) -> None:
        """Sync derived files, judge the disk, find out what expired. On the maintenance thread."""
        raise NotImplementedError

    def detach_expired(self, limit_position: int) -> Callable[[], None] | None:
        """Take expired files that end at or before a limit out of the log, in memory only.

        Returns the work that deletes them, for the maintenance thread; None if there are none. The
        limit: `AppliedState.checkpoint_position`, and the next byte of each slave that streams and
        is no more than `KEPT_FOR_SLAVE_SIZE_BYTES` behind. Links of slaves farther behind: close.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Make everything durable and release the directory. Raises as `Store.close`."""
        raise NotImplementedError
