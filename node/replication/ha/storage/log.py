"""The log of one replica of a master-slave group: `LogView`, and the work of the effects on it.

Owns the translation between the machine's words (positions, epochs, bindings) and the store's, and
the initial state of a restart. Must not know links, roles or the event loop. One thread, the
loop's, calls everything here unless a docstring says otherwise; only rare calls wait for a disk:
the binding, epochs, a cut, a beginning and `open`.
"""

import contextlib
import secrets
from collections.abc import Callable
from typing import Final, Self, Unpack

from node.replication.ha.core.effects import LossReport
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import (
    EpochStart,
    HaBinding,
    HaError,
    HaSettings,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.storage.epoch_file import BindingFile, EpochFile
from node.replication.ha.storage.losses import LossFile, LostEnd
from node.replication.ha.storage.replica_file import open_replica_file
from node.runtime.clock import unix_ms
from node.state.appends import Prepared
from node.state.state import COMMAND_TOPIC
from store.config import StoreConfig
from store.engine import Around, Closing
from store.errors import RecordFormatError, StoreError
from store.files.file_system import FileSystem
from store.log.cut_file import CutFile
from store.log.record_log import AppendResult
from store.log.shipped_log import CheckedRaw, PreparedBatch
from store.opening import Recovery
from store.record.message import record_layout
from store.record.stamp import QueueKey
from store.record.topic_names import is_reserved
from store.replicated.shipped_store import ShippedStore

KEPT_FOR_SLAVE_SIZE_BYTES: Final = 1 << 30
"""How far a slave may be behind and still keep expired files from being deleted: about as much as
the entries that are kept for a follower in raft mode."""
_LAST_OF_BATCH: Final = COMMAND_TOPIC.encode()
"""Topic of the last record of an idempotent batch."""


class ImageNeededError(HaError):
    """The empty log cannot begin at these bytes without an image of the sender. Nothing changed."""

    code, status = "ha.image_needed", "FAILED_PRECONDITION"
    text = (
        "the log is empty and its first bytes would be those at {position}; an image of the "
        "master's state is fetched first"
    )
    position: int


class HaLog(Closing):
    """Implements `node.replication.ha.core.effects.HaLogView`."""

    def __init__(
        self, store: ShippedStore, fs: FileSystem, binding: BindingFile, state: ReplicaState | None
    ) -> None:
        """Only `open` calls this."""
        self.store: Final = store
        """For readers: pull, queues, messages."""
        self._log: Final = store.shipped
        self.binding: Final = binding
        self._epoch_file: Final = EpochFile(fs, store.root)
        self.losses: Final = LossFile(fs, store.root)
        self.is_new = state is None
        """Whether this replica was never saved: whether it founds or joins is not decided."""
        self.replica = state or ReplicaState(
            HaBinding(), HaStanding.JOINING, secrets.randbits(63) + 1
        )
        """As stored. On a new disk it is JOINING: `save_state` it as FULL to found a group."""
        self._epochs = Epochs()
        self.may_begin = self.end == 0
        """Whether the empty log has the queue offsets that belong to its first byte."""

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig,
        *,
        cluster_id: str,
        node_id: int,
        group: HaSettings,
        **around: Unpack[Around],
    ) -> Self:
        """Open the directory of a replica, made if necessary, and cut a torn tail.

        Raises as `Store.open`, and IdentityMismatchError (another cluster's or node's directory),
        GroupChangedError, LossFileError, LayoutError or CorruptionError of the replica's own files.
        """
        assert config.container == "commit_log", f"container {config.container}"
        assert config.flush == "sync", "an ack says synced"
        fs = around["fs"] = around.get("fs") or FileSystem()
        binding = BindingFile(fs, root)
        states: list[ReplicaState | None] = []

        def before_running(recovery: Recovery) -> None:
            has_log = recovery.end_position > 0
            open_replica_file(
                fs, root, cluster_id=cluster_id, node_id=node_id, group=group, must_exist=has_log
            )
            states.append(binding.load(must_exist=has_log))

        store = ShippedStore.open(root, config, before_running=before_running, **around)
        try:
            log = cls(store, fs, binding, states[0])
            log._drop_half_batch(store.recovery)
            log._load_epochs()
        except BaseException:
            store.close()
            raise
        return log

    def _drop_half_batch(self, recovery: Recovery) -> None:
        """Cut bytes that a killed process had written and not synced: they were not promised.

        The last batch may be there in part, and a master that begins with it would take the rest of
        it, sent again, for a whole one. After a power loss the mark may be older than the promises,
        so whole batches stay.
        """
        good_position = max(recovery.known_good_position, self.min_position)
        if recovery.same_boot and not recovery.was_clean and good_position < self.end:
            self.store.cut(good_position)
            self.may_begin = good_position == 0
        self.store.mark_durable()

    def _load_epochs(self) -> None:
        """Load the epochs, without those whose first bytes a crash has lost."""
        epochs = self._epoch_file.load()
        if epochs.trim(self.end):
            self._epoch_file.save(epochs)
        self._epochs = epochs

    # --- Facts ---

    @property
    def min_position(self) -> int:
        """First byte that is still kept."""
        return self._log.min_position

    @property
    def end(self) -> int:
        """The end of the log."""
        return self._log.end_position

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty."""
        return self.end <= self.min_position

    @property
    def epochs(self) -> Epochs:
        """A copy of the stored epochs. None is of missing bytes, except while those are written."""
        return Epochs(self._epochs.entries)

    def epoch_at(self, position: int) -> EpochStart:
        """Return the epoch of the byte at a position."""
        return self._epochs.at(position)

    def ship_end(self, lo: int, hi: int, size_bytes_max: int) -> int:
        """Return the end of a transfer; see `LogView.ship_end`. Ends with an idempotent batch,
        where there is one: a replica that becomes master behind half of one would take the rest for
        a new batch."""
        return self._log.ship_end(lo, hi, size_bytes_max, _LAST_OF_BATCH)

    # --- The master's appends ---

    def prepare(self, batch: bytes) -> Prepared:
        """Do everything of an append of encoded records that can fail. Writes nothing.

        The next write, if any, must be the `append` of the result. Raises RecordFormatError,
        LimitExceededError, TopicNameError (bad input), StoreFullError, FileSystemError or BusyError
        (try again later).
        """
        prepared = self.store.prepare(batch)
        return Prepared(prepared, self._log.stamper.next_offsets)

    def append(self, prepared: Prepared) -> AppendResult:
        """Append the newest result of `prepare`; never fails. Not durable yet."""
        content = prepared.content
        assert isinstance(content, PreparedBatch), f"prepared as {content!r}"
        prepared.result = result = self.store.append_prepared(content)
        return result

    # --- Raw bytes of another replica ---

    def check_raw(self, position: int, body: bytes | memoryview) -> CheckedRaw:
        """Check the bytes of a transfer before the machine gets it. Nothing is written.

        They must be whole records or a blank, of one file, with right CRC and position. Raises
        HaProtocolError (close the link), or ImageNeededError: the log is empty and does not begin
        there: fetch an image from that peer, `AppliedState.take_image`.
        """
        is_here = position == self.end
        if self.is_empty and not (is_here and self.may_begin):
            raise ImageNeededError(position)
        if not is_here:
            raise HaProtocolError(f"transfer at {position}, the log ends at {self.end}")
        try:
            return self._log.check_raw(position, bytes(body))
        except RecordFormatError as error:
            raise HaProtocolError(f"transfer at {position}: {error}") from error

    # --- Cutting and beginning ---

    def cut(self, lo: int, hi: int, epoch: int, on_aside: Callable[[CutFile], None]) -> None:
        """Move [lo, hi), the end of the log, into a file aside, and cut the log. Durable on return.

        Call `AppliedState.cut` instead, which does this and restores the state. `epoch` is the last
        of the cut bytes (`LossReport.epoch`). `on_aside` is called between the two. Waits for the
        disk. Raises StoreFullError or FileSystemError, also of `on_aside` (nothing was cut: repeat
        it before any other call), SyncFailedError: stop.
        """
        on_aside(self.store.set_aside(lo, hi, epoch))
        self.store.cut(lo)
        self.may_begin = lo == 0

    def count_loss(self, report: LossReport) -> LostEnd:
        """Count the messages of a loss, without those of the system, while the bytes are still
        here; -1 for bytes that are not, whose count is unknown."""
        lo, hi = report.lo, min(report.hi, self.end)
        record_count = acked_record_count = -1
        if hi > lo:
            with contextlib.suppress(StoreError):  # Damaged bytes are set aside all the same.
                ends = self._message_ends(lo, hi)
                record_count = len(ends)
                acked_record_count = sum(end <= report.acked_hi for end in ends)
        return LostEnd(
            unix_ms=unix_ms(),
            epoch=report.epoch,
            lo=report.lo,
            hi=report.hi,
            acked_hi=report.acked_hi,
            is_exact=report.is_exact,
            record_count=record_count,
            acked_record_count=acked_record_count,
            file="",
        )

    def _message_ends(self, lo: int, hi: int) -> list[int]:
        ends = []
        for position, data in self._log.record_runs(lo, hi):
            view, at = memoryview(data), 0
            while at < len(view):
                layout = record_layout(view, at)
                at += layout.size_bytes
                if not is_reserved(bytes(view[layout.topic_at : layout.topic_hi]).decode()):
                    ends.append(position + at)
        return ends

    def set_all_aside(self) -> None:
        """Set the whole log aside: its sender has deleted the bytes that follow. Then call
        `begin_at`.

        The log is kept until `delete_aside` of its files, except for the last file, which stays in
        `cut/`. Readers must see all of it. Waits for the disk. Raises StoreFullError or
        FileSystemError (nothing has changed), SyncFailedError: stop.
        """
        self.store.set_all_aside(self._epochs.last.number)
        self.may_begin = False

    def begin_at(self, position: int, next_offsets: dict[QueueKey, int]) -> None:
        """Let the empty log begin at the start of a file; `AppliedState.take_image` calls it."""
        self.store.begin_at(position, next_offsets)
        self.may_begin = True

    # --- Promises ---

    def save_state(self, state: ReplicaState) -> None:
        """Replace the replica's state; durable on return. Raises as `BindingFile.save`."""
        self.binding.save(state)
        self.replica, self.is_new = state, False

    def save_epochs(self, epochs: Epochs) -> None:
        """Replace the epochs; durable on return. Raises as `EpochFile.save`."""
        self._epoch_file.save(epochs)
        self._epochs = Epochs(epochs.entries)

    # --- Closing ---

    def close(self) -> None:
        """Make everything durable and release the directory. Raises as `Store.close`."""
        self.store.close()
