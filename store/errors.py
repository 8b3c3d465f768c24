"""Every error the store raises, with what it means for the caller.

Owns the names, codes and texts; must not know the code that raises them. Each class says what
happened, with numbers, and what to do. All of them pickle: the constructor hands its positional
values to `super().__init__` and the text is built in `__str__`.
"""

import enum
import os


class Outcome(enum.Enum):
    """Effect of a failed call: what happened to the work that it was asked to do."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class StoreError(Exception):
    """Root of all store errors.

    `code` is stable text for machines, `retryable` says whether the same call may succeed later,
    `outcome` says what is known about the effect.
    """

    code: str = "store.error"
    retryable: bool = False
    outcome: Outcome = Outcome.NOT_APPLIED
    faulty_records: tuple[int, ...] = ()
    """Records of a refused batch with this fault, by number from 0, if that was found out."""


class RecordFormatError(StoreError):
    """A record handed in for appending is malformed. No byte was written.

    `at` is the byte in the batch where the offending field starts.
    """

    code = "store.record_format"

    def __init__(self, at: int, field: str, expected: str, actual: str) -> None:
        super().__init__(at, field, expected, actual)
        self.at, self.field, self.expected, self.actual = at, field, expected, actual

    def __str__(self) -> str:
        return (
            f"byte {self.at} of the batch: {self.field} is {self.actual}, expected "
            f"{self.expected}; encode the record again, nothing was written"
        )


class LimitExceededError(StoreError):
    """A value is larger than its named limit. No byte was written."""

    code = "store.limit_exceeded"

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)
        self.what, self.size_bytes, self.limit_bytes = what, size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size_bytes} bytes, the limit is {self.limit_bytes}; "
            f"send less at once or raise the limit, nothing was written"
        )


class TopicNameError(StoreError):
    """A topic name breaks the naming rule. No byte was written. Source: storage-formats 1.5."""

    code = "store.bad_topic"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic, self.reason = topic, reason

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} is refused: {self.reason}; "
            f"use 1 to 127 of letters, digits, '%', '|', '_' and '-'"
        )


class StoreFullError(StoreError):
    """The disk has no room for the next file. No byte was written; reads go on.

    The store recovers automatically once space is there again.
    """

    code, retryable = "store.full", True

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(path, needed_bytes, free_bytes)
        self.path, self.needed_bytes, self.free_bytes = path, needed_bytes, free_bytes

    def __str__(self) -> str:
        return (
            f"{self.path} needs {self.needed_bytes} bytes, {self.free_bytes} are free on its disk; "
            f"free space or shorten retention, appends resume by themselves"
        )


class FileSystemError(StoreError):
    """A file-system call failed, other than a sync or a full disk. `operation` names the call."""

    code, retryable = "store.file_system", True

    def __init__(self, operation: str, path: str, errno_value: int) -> None:
        super().__init__(operation, path, errno_value)
        self.operation, self.path, self.errno_value = operation, path, errno_value

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

    def __init__(self, path: str, errno_value: int) -> None:
        super().__init__(path, errno_value)
        self.path, self.errno_value = path, errno_value

    def __str__(self) -> str:
        return (
            f"{self.path}: sync failed ({os.strerror(self.errno_value)}); nothing after the last "
            f"good sync is acknowledged, restart to recover from the log"
        )


class FlushTimeoutError(StoreError):
    """The record is stored, its sync did not finish in time: its durability is unknown."""

    code, retryable, outcome = "store.flush_timeout", True, Outcome.UNKNOWN

    def __init__(self, position: int, flushed_position: int, timeout_ms: int) -> None:
        super().__init__(position, flushed_position, timeout_ms)
        self.position, self.flushed_position = position, flushed_position
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"position {self.position} was not synced within {self.timeout_ms} ms (synced up to "
            f"{self.flushed_position}); it is stored and may still become durable, ask again"
        )


class BusyError(StoreError):
    """A bounded queue or lock is taken. No byte was written; try again after a pause."""

    code, retryable = "store.busy", True

    def __init__(self, what: str, waited_ms: int) -> None:
        super().__init__(what, waited_ms)
        self.what, self.waited_ms = what, waited_ms

    def __str__(self) -> str:
        since = f" since {self.waited_ms} ms" if self.waited_ms else ""
        return f"{self.what} is busy{since}; nothing was written, slow down"


class ClosedError(StoreError):
    """The store, or the file under it, was closed or deleted before the call."""

    code = "store.closed"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed; open it again before use"


class LockedError(StoreError):
    """Another process holds the directory. Source: storage-formats 4.3, fault-matrix S17."""

    code = "store.locked"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        return f"{self.path} is locked by {self.holder}; stop that process or use another directory"


class LayoutError(StoreError):
    """The directory is not what this configuration can open (missing, extra or odd-sized files).

    No file was changed.
    """

    code = "store.layout"

    def __init__(self, path: str, expected: str, actual: str) -> None:
        super().__init__(path, expected, actual)
        self.path, self.expected, self.actual = path, expected, actual

    def __str__(self) -> str:
        return (
            f"{self.path}: expected {self.expected}, found {self.actual}; "
            f"check the configured sizes, then run 'qlog store verify' on the directory"
        )


class TailNotCutError(StoreError):
    """A log that another program wrote ends with bytes that are no record; no cut was asked for.

    No file was changed. `position`: where the last whole record ends.
    """

    code = "store.tail_not_cut"

    def __init__(self, path: str, position: int, size_bytes: int) -> None:
        super().__init__(path, position, size_bytes)
        self.path, self.position, self.size_bytes = path, position, size_bytes

    def __str__(self) -> str:
        return (
            f"{self.path}: no store of ours has opened this directory, and its log has "
            f"{self.size_bytes} B behind position {self.position} that are no whole record; "
            "'qlog store repair' shows what a cut would remove, with --apply it keeps a copy in "
            "damaged/ and cuts"
        )


class CorruptionError(StoreError):
    """Bytes that were known to be good are not any more. Never cut, never served.

    `path` and `at` (byte in that file) name the place; `field` what was checked.
    """

    code = "store.corruption"

    def __init__(self, path: str, at: int, field: str, expected: str, actual: str) -> None:
        super().__init__(path, at, field, expected, actual)
        self.path, self.at, self.field = path, at, field
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return (
            f"{self.path} byte {self.at}: {self.field} is {self.actual}, expected {self.expected}; "
            f"refetch the range from a replica, or see 'qlog store repair --help'"
        )


class ForeignEntryError(StoreError):
    """Raw entries that a peer shipped do not continue this log. No byte was written.

    `index` is the entry's, as counted here; `at` is the byte in the shipped bytes.
    """

    code = "store.foreign_entry"

    def __init__(self, index: int, at: int, field: str, expected: str, actual: str) -> None:
        super().__init__(index, at, field, expected, actual)
        self.index, self.at, self.field = index, at, field
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return (
            f"entry {self.index} at byte {self.at} of what a peer sent: {self.field} is "
            f"{self.actual}, expected {self.expected}; drop the connection and fetch it again"
        )


class SnapshotNeededError(StoreError):
    """The beginning of the ledger is damaged, so its entries cannot be fetched one by one."""

    code = "store.snapshot_needed"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}; what the first entry must follow is unknown, "
            f"replace the ledger by a snapshot of another replica"
        )


class DamageWiderError(StoreError):
    """The fetched entries are good, but the entry behind the damaged range does not follow them.

    So that entry is damaged, too: `hi_index` and `end_position` say how far. No byte was written.
    """

    code, retryable = "store.damage_wider", True

    def __init__(self, lo_index: int, hi_index: int, end_position: int) -> None:
        super().__init__(lo_index, hi_index, end_position)
        self.lo_index, self.hi_index, self.end_position = lo_index, hi_index, end_position

    def __str__(self) -> str:
        return (
            f"the entry behind the damaged range does not follow the fetched ones; fetch from "
            f"entry {self.lo_index} on, up to {self.hi_index} and position {self.end_position}"
        )


class PositionRangeError(StoreError):
    """A position or index outside of the log's range was asked for."""

    code = "store.out_of_range"

    def __init__(self, what: str, asked: int, lo: int, hi: int) -> None:
        super().__init__(what, asked, lo, hi)
        self.what, self.asked, self.lo, self.hi = what, asked, lo, hi

    def __str__(self) -> str:
        return f"{self.what} {self.asked} is outside of [{self.lo}, {self.hi}); ask within it"


class QueueOrderError(StoreError):
    """A consume queue was asked to take an offset that is not its next one.

    Deviation: RocketMQ only logs this and appends at the wrong place (storage-formats 2.3, 11.4).
    """

    code = "store.queue_order"

    def __init__(self, topic: str, queue_id: int, expected_offset: int, found_offset: int) -> None:
        super().__init__(topic, queue_id, expected_offset, found_offset)
        self.topic, self.queue_id = topic, queue_id
        self.expected_offset, self.found_offset = expected_offset, found_offset

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.queue_id} expects offset {self.expected_offset}, the log says "
            f"{self.found_offset}; the derived files do not belong to this log, rebuild them"
        )


class InnerBatchError(StoreError):
    """A topic whose records are inner batches of RocketMQ (`queue.type=BatchCQ`) cannot be used.

    The records are kept in the log, and have no queue here: they cannot be read, and none appended.
    """

    code = "store.inner_batch"

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        super().__init__(topic, queue_id, offset)
        self.topic, self.queue_id, self.offset = topic, queue_id, offset

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.queue_id} offset {self.offset}: RocketMQ wrote inner batches to "
            f"this topic (queue.type=BatchCQ), which are kept and cannot be read here; read the "
            f"topic with RocketMQ's own store, which loads this directory, or use another topic"
        )


class DerivedFileError(StoreError):
    """A consume queue or an index file is damaged, or belongs to another log. The log is sound.

    `path` and `at` (byte in that file) name the place. Rebuild the derived files from the log.
    """

    code = "store.derived_file"

    def __init__(self, path: str, at: int, field: str, expected: str, actual: str) -> None:
        super().__init__(path, at, field, expected, actual)
        self.path, self.at, self.field = path, at, field
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return (
            f"{self.path} byte {self.at}: {self.field} is {self.actual}, expected {self.expected}; "
            f"the file is derived from the log, rebuild it"
        )


class DerivedDamageError(DerivedFileError):
    """A read met damage in a derived file, which is being repaired from the log; ask again soon.

    `span`: the offsets [lo, hi) of the units in question, or None for the file as a whole.
    """

    code, retryable = "store.derived_damage", True

    def __init__(self, path: str, at: int, field: str, span: tuple[int, int] | None = None) -> None:
        super().__init__(path, at, field, "as it was written", "something else")
        self.args = path, at, field, span
        self.span = span

    def __str__(self) -> str:
        return (
            f"{self.path} byte {self.at}: {self.field} is not what was written; it is repaired "
            f"from the log, try again in a moment"
        )
