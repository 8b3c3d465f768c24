"""Every error the store raises, with what it means for the caller.

Owns the names, codes and texts; must not know the code that raises them. Each class says what
happened, with numbers, and what to do. All of them pickle. A class is a dataclass, which
`StoreError` makes of it: its fields are the values of the constructor, and `text` has their names.
"""

import enum
import os
from dataclasses import dataclass
from typing import ClassVar, dataclass_transform


class Outcome(enum.Enum):
    """Effect of a failed call: what happened to the work that it was asked to do."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


@dataclass_transform(eq_default=False)
class StoreError(Exception):
    """Root of all store errors.

    `code` is stable text for machines, `retryable` says whether the same call may succeed later,
    `outcome` says what is known about the effect, `text` is what `str` fills with the fields.
    """

    code: str = "store.error"
    retryable: bool = False
    outcome: Outcome = Outcome.NOT_APPLIED
    text: ClassVar[str] = ""
    remedy = ""
    """Stands for the end of the text on a command line, if there is a better one."""
    faulty_records: tuple[int, ...] = ()
    """Records of a refused batch with this fault, by number from 0, if that was found out."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # Also values given by name, and defaults.

    def __str__(self) -> str:
        return self.text.format_map(vars(self))


class RecordFormatError(StoreError):
    """A record handed in for appending is malformed. No byte was written.

    `at` is the byte in the batch where the offending field starts.
    """

    code = "store.record_format"
    text = (
        "byte {at} of the batch: {field} is {actual}, expected {expected}; encode the record "
        "again, nothing was written"
    )
    at: int
    field: str
    expected: str
    actual: str


class LimitExceededError(StoreError):
    """A value is larger than its named limit. No byte was written."""

    code = "store.limit_exceeded"
    text = (
        "{what} has {size_bytes} bytes, the limit is {limit_bytes}; send less at once or raise the "
        "limit, nothing was written"
    )
    what: str
    size_bytes: int
    limit_bytes: int


class TopicNameError(StoreError):
    """A topic name breaks the naming rule. No byte was written. Source: storage-formats 1.5."""

    code = "store.bad_topic"
    text = (
        "topic {topic!r} is refused: {reason}; use 1 to 127 of letters, digits, '%', '|', '_' and "
        "'-'"
    )
    topic: str
    reason: str


class StoreFullError(StoreError):
    """The disk has no room for the next file. No byte was written; reads go on.

    The store recovers automatically once space is there again.
    """

    code, retryable = "store.full", True
    text = (
        "{path} needs {needed_bytes} bytes, {free_bytes} are free on its disk; free space or "
        "shorten retention, appends resume by themselves"
    )
    path: str
    needed_bytes: int
    free_bytes: int
    is_limited: bool = False
    """Whether a quota or the limit of file sizes refuses the bytes, not the disk."""
    reserve_bytes: int = 0
    """Part of `needed_bytes` that only has to stay free."""

    def __str__(self) -> str:
        if self.reserve_bytes:
            return (
                f"{self.path} needs {self.needed_bytes} bytes, as disk_reserve_bytes keeps "
                f"{self.reserve_bytes} of them free, and {self.free_bytes} are free on its disk; "
                f"free space, shorten retention or, on a small disk, lower disk_reserve_bytes, "
                f"appends resume by themselves"
            )
        if not self.is_limited:
            return super().__str__()
        return (
            f"{self.path} needs {self.needed_bytes} bytes, and a limit refuses them although "
            f"{self.free_bytes} are free on its disk; raise the quota, or the limit of file sizes "
            f"('ulimit -f'), appends resume by themselves"
        )


class FileSystemError(StoreError):
    """A file-system call failed, other than a sync or a full disk. `operation` names the call."""

    code, retryable = "store.file_system", True
    operation: str
    path: str
    errno_value: int

    def __str__(self) -> str:
        return (
            f"{self.operation} of {self.path} failed: {os.strerror(self.errno_value)}; "
            f"check the disk and the permissions, then try again"
        )


class SyncFailedError(StoreError):
    """fdatasync failed, so what the disk holds is unknown. The process must stop and recover.

    Never retry: the kernel may already have dropped the dirty pages and would then report success.
    """

    code, outcome = "store.sync_failed", Outcome.UNKNOWN
    path: str
    errno_value: int

    def __str__(self) -> str:
        return (
            f"{self.path}: sync failed ({os.strerror(self.errno_value)}); nothing after the last "
            f"good sync is acknowledged, restart to recover from the log"
        )


class FlushTimeoutError(StoreError):
    """The record is stored, its sync did not finish in time: its durability is unknown."""

    code, retryable, outcome = "store.flush_timeout", True, Outcome.UNKNOWN
    text = (
        "position {position} was not synced within {timeout_ms} ms (synced up to "
        "{flushed_position}); it is stored and may still become durable, ask again"
    )
    position: int
    flushed_position: int
    timeout_ms: int


class BusyError(StoreError):
    """A bounded queue or lock is taken. No byte was written; try again after a pause."""

    code, retryable = "store.busy", True
    what: str
    waited_ms: int

    def __str__(self) -> str:
        since = f" since {self.waited_ms} ms" if self.waited_ms else ""
        return f"{self.what} is busy{since}; nothing was written, slow down"


class ClosedError(StoreError):
    """The store, or the file under it, was closed or deleted before the call."""

    code = "store.closed"
    text = "{what} is closed; open it again before use"
    what: str


class LockedError(StoreError):
    """Another process holds the directory. Source: storage-formats 4.3, fault-matrix S17."""

    code = "store.locked"
    text = "{path} is locked by {holder}; stop that process or use another directory"
    path: str
    holder: str


class LayoutError(StoreError):
    """The directory is not what this configuration can open (missing, extra or odd-sized files).

    No file was changed.
    """

    code = "store.layout"
    text = (
        "{path}: expected {expected}, found {actual}; check the configured sizes, then run 'qlog "
        "store verify' on the directory"
    )
    path: str
    expected: str
    actual: str


class TailNotCutError(StoreError):
    """A log that another program wrote ends with bytes that are no record; no cut was asked for.

    No file was changed. `position`: where the last whole record ends.
    """

    code = "store.tail_not_cut"
    text = (
        "{path}: no store of ours has opened this directory, and its log has {size_bytes} B behind "
        "position {position} that are no whole record; 'qlog store repair' shows what a cut would "
        "remove, with --apply it keeps a copy in damaged/ and cuts"
    )
    path: str
    position: int
    size_bytes: int


class CorruptionError(StoreError):
    """Bytes that were known to be good are not any more: never cut, never served. Retried while
    another replica gives them.

    `path` and `at` (byte in that file) name the place; `field` what was checked.
    """

    code = "store.corruption"
    text = "{path} byte {at}: {field} is {actual}, expected {expected}; {remedy}"
    path: str
    at: int
    field: str
    expected: str
    actual: str
    remedy: str = "refetch the range from a replica, or see 'qlog store repair --help'"

    def note_repair(self) -> None:
        """Have the caller ask again: the node fetches these bytes from another replica."""
        self.retryable, self.remedy = True, "another replica has it, try again in a moment"


class ForeignEntryError(StoreError):
    """Raw entries that a peer shipped do not continue this log. No byte was written.

    `index` is the entry's, as counted here; `at` is the byte in the shipped bytes.
    """

    code = "store.foreign_entry"
    text = (
        "entry {index} at byte {at} of what a peer sent: {field} is {actual}, expected {expected}; "
        "drop the connection and fetch it again"
    )
    index: int
    at: int
    field: str
    expected: str
    actual: str


class SnapshotNeededError(StoreError):
    """The beginning of the ledger is damaged, so its entries cannot be fetched one by one."""

    code = "store.snapshot_needed"
    text = (
        "{path}: {reason}; what the first entry must follow is unknown, replace the ledger by a "
        "snapshot of another replica"
    )
    path: str
    reason: str


class DamageWiderError(StoreError):
    """The fetched entries are good, but the entry behind the damaged range does not follow them.

    So that entry is damaged, too: `hi_index` and `end_position` say how far. No byte was written.
    """

    code, retryable = "store.damage_wider", True
    text = (
        "the entry behind the damaged range does not follow the fetched ones; fetch from entry "
        "{lo_index} on, up to {hi_index} and position {end_position}"
    )
    lo_index: int
    hi_index: int
    end_position: int


class PositionRangeError(StoreError):
    """A position or index outside of the log's range was asked for."""

    code = "store.out_of_range"
    text = "{what} {asked} is outside of [{lo}, {hi}); ask within it"
    what: str
    asked: int
    lo: int
    hi: int


class NoBeginningError(PositionRangeError):
    """A position within an entry or a record of the log was asked for, where nothing begins."""

    code = "store.no_beginning"
    text = "nothing begins at position {asked}: {what} has [{lo}, {hi}); ask for position {lo}"


class QueueOrderError(StoreError):
    """A consume queue was asked to take an offset that is not its next one.

    Deviation: RocketMQ only logs this and appends at the wrong place (storage-formats 2.3, 11.4).
    """

    code = "store.queue_order"
    text = (
        "{topic}/{queue_id} expects offset {expected_offset}, the log says {found_offset}; the "
        "derived files do not belong to this log, rebuild them"
    )
    topic: str
    queue_id: int
    expected_offset: int
    found_offset: int


class InnerBatchError(StoreError):
    """A topic whose records are inner batches of RocketMQ (`queue.type=BatchCQ`) cannot be used.

    The records are kept in the log, and have no queue here: they cannot be read, and none appended.
    """

    code = "store.inner_batch"
    text = (
        "{topic}/{queue_id} offset {offset}: RocketMQ wrote inner batches to this topic "
        "(queue.type=BatchCQ), which are kept and cannot be read here; read the topic with "
        "RocketMQ's own store, which loads this directory, or use another topic"
    )
    topic: str
    queue_id: int
    offset: int


class DerivedFileError(StoreError):
    """A consume queue or an index file is damaged, or belongs to another log. The log is sound.

    `path` and `at` (byte in that file) name the place. Rebuild the derived files from the log.
    """

    code = "store.derived_file"
    text = (
        "{path} byte {at}: {field} is {actual}, expected {expected}; the file is derived from the "
        "log, rebuild it"
    )
    path: str
    at: int
    field: str
    expected: str
    actual: str


class DerivedDamageError(DerivedFileError):
    """A read met damage in a derived file, which is being repaired from the log; ask again soon.

    `span`: the offsets [lo, hi) of the units in question, or None for the file as a whole.
    """

    code, retryable = "store.derived_damage", True
    text = (
        "{path} byte {at}: {field} is not what was written; it is repaired from the log, try again "
        "in a moment"
    )

    def __init__(self, path: str, at: int, field: str, span: tuple[int, int] | None = None) -> None:
        super().__init__(path, at, field, "as it was written", "something else")
        self.args = path, at, field, span
        self.span = span
