"""Opens a store directory: the order of recovery, and what each part may trust.

Owns the decision what survived the last stop, from the run marker, the boot id and the durable
mark. Must not know appends and reads. No byte is written to the log before its end is known.

1. lock, 2. how the last run ended, 3. log: find its end, cut a torn tail, 4. derived files: cut
them to what is known to be built, then dispatch the rest of the log again, 5. mark as running.
Sources: storage-formats 4.4 to 4.6; design 4.5.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from store import format as fmt
from store.config import StoreConfig
from store.derived.dispatch import Dispatcher
from store.derived.guard import DerivedGuard
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.durability.durable_mark import UNKNOWN_COUNT, DurableMark, Mark
from store.durability.identity import LastRun
from store.errors import DerivedFileError, LayoutError, QueueOrderError, StoreError
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource, InlineFiles
from store.files.mounts import is_in_memory
from store.files.transient_pool import PooledFiles, TransientPool
from store.files.warm_up import WarmUp
from store.ledger.ledger import Ledger
from store.ledger.recovery import recover_ledger
from store.log.commit_log import CommitLog
from store.log.commit_log_recovery import recover_commit_log
from store.record.check import store_timestamp
from store.stats import StoreCounters

LogT_co = TypeVar("LogT_co", bound=CommitLog | Ledger, covariant=True)
"""Class of the log of a store."""
PlainT = TypeVar("PlainT", bound=CommitLog)

Progress = Callable[[str, int, int], None]
"""Called with (what, bytes done, bytes in all) during long steps of an opening."""
_TIME_SCAN_SIZE_BYTES: Final = 8 << 20  # Holds one record of any size.

REPLICA_META_NAME: Final = "raft"
"""The meta file by which a directory is known as a replica's; the node owns its content."""
SHIPPED_META_NAME: Final = "haReplica"
"""The same for a replica of a master-slave group."""
_OWNERS: Final = {
    REPLICA_META_NAME: "the directory of a cluster's node",
    SHIPPED_META_NAME: "the directory of a replica of a master-slave group",
}


def no_progress(what: str, done: int, total: int) -> None:
    """Do nothing: a `Progress` without a listener."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Findings and actions of an opening. Positions and sizes in bytes of the log."""

    was_clean: bool
    same_boot: bool
    known_good_position: int
    """Position up to which the log was known to be whole before the opening."""
    end_position: int
    store_unix_ms: int
    """Store time of the log's last record; 0 without one, or where that is damaged."""
    scanned_size_bytes: int
    cut_size_bytes: int
    cut_reason: str
    dispatched_size_bytes: int
    """Bytes of the log that had to be dispatched again."""
    derived_rebuilt: bool
    """Whether queues and index were rebuilt from the start of the log."""
    was_adopted: bool = False
    """Whether another program wrote the directory, RocketMQ for one, and it belongs to us now."""


class Directory(NamedTuple):
    """A directory whose log is to be opened, and what the run before left."""

    fs: FileSystem
    root: str
    config: StoreConfig
    source: FileSource | None
    mark: Mark
    last_run: LastRun

    @property
    def known_good_position(self) -> int:
        """Position up to which the log must be whole: synced, or dispatched in this boot."""
        return known_good_position(self.mark, self.last_run)

    @property
    def synced_position(self) -> int | None:
        """Position up to which a sync has proven the log; None if no mark tells."""
        return self.mark.durable_position if self.mark != Mark() else None


@dataclass(frozen=True, slots=True)
class OpenedLog(Generic[LogT_co]):
    """The log, cut to its good end, and what is known of it."""

    log: LogT_co
    store_unix_ms: int
    scanned_size_bytes: int
    cut_size_bytes: int
    cut_reason: str
    was_adopted: bool = False
    """See Recovery."""


OpenLog = Callable[[Directory], OpenedLog[LogT_co]]
"""Opens the log of a directory and cuts its torn tail; see `open_log`."""


def is_replica_directory(root: str) -> bool:
    """Whether the end of the log in a directory may be unconfirmed."""
    return any(map(partial(_is_there, root), _OWNERS))


def _is_there(root: str, meta_name: str) -> bool:
    return any(os.path.exists(os.path.join(root, f"{meta_name}.{n}")) for n in (0, 1))


def check_owner(root: str, *, meta_name: str) -> None:
    """Raise LayoutError for a replica's directory that is to be opened as any other.

    `meta_name`: the meta file of the kind of node that opens it, empty for a store of its own. Any
    other kind would show unconfirmed records to readers, and mark them as dispatched permanently.
    """
    for name, owner in _OWNERS.items():
        if name != meta_name and _is_there(root, name):
            raise LayoutError(
                os.path.join(root, name), _OWNERS.get(meta_name, "a store of its own"), owner
            )


def known_good_position(mark: Mark, last_run: LastRun) -> int:
    """Return the position up to which the log must be whole: synced, or dispatched in this boot."""
    if last_run.same_boot:
        return max(mark.durable_position, mark.dispatched_position)
    return mark.durable_position


def log_directory(root: str, config: StoreConfig) -> str:
    """Return the directory of the log's data files."""
    if config.container == "ledger":
        return os.path.join(root, f"dledger-{config.self_id}", "data")
    return os.path.join(root, "commitlog")


def open_log(directory: Directory) -> OpenedLog[CommitLog | Ledger]:
    """Open the log of either container and cut its torn tail.

    Raises CorruptionError for damage in what was known to be good, and TailNotCutError for the torn
    tail of a log that RocketMQ wrote; nothing is changed then.
    """
    if directory.config.container == "ledger":
        return open_ledger(directory)
    return open_plain_log(CommitLog, directory)


def open_ledger(directory: Directory) -> OpenedLog[Ledger]:
    """Open the log of the container `ledger`; see `open_log`."""
    fs, root, config, source, _, _ = directory
    assert config.container == "ledger", f"container {config.container}"
    ledger, report = recover_ledger(
        fs,
        root,
        config,
        source=source,
        durable_position=directory.known_good_position,
        synced_position=directory.synced_position,
    )
    ledger.checked.trusted_position = report.scanned_from_position
    unix_ms = 0
    # The scrubber and readers report damage. It keeps no replica from opening.
    with suppress(StoreError):
        unix_ms = ledger.newest_store_unix_ms()
    cut = (report.cut_size_bytes, report.cut_reason)
    return OpenedLog(ledger, unix_ms, report.scanned_size_bytes, *cut)


def open_plain_log(kind: type[PlainT], directory: Directory) -> OpenedLog[PlainT]:
    """Open the log of the container `commit_log` as one of class `kind`; see `open_log`."""
    fs, root, config, source, mark, last_run = directory
    assert config.container == "commit_log", f"container {config.container}"
    is_adopting = mark == Mark() and _is_foreign(fs, root, config, last_run)
    log = kind(fs, root, config, source)
    log.files.load()
    try:
        report = recover_commit_log(
            fs,
            log,
            directory.known_good_position,
            synced_position=directory.synced_position,
            may_cut=not is_adopting,
        )
    except BaseException:
        log.close()
        raise
    log.checked.trusted_position = report.lo
    cut = (report.cut_size_bytes, report.cut_reason)
    scanned_size_bytes = report.end_position - report.lo
    return OpenedLog(log, report.store_unix_ms, scanned_size_bytes, *cut, is_adopting)


def open_derived(
    queues: ConsumeQueues,
    index: IndexFiles,
    opened: OpenedLog[CommitLog | Ledger],
    marks: DurableMark,
    last_run: LastRun,
    progress: Progress,
    counters: StoreCounters,
    *,
    is_replica: bool,
) -> tuple[DerivedGuard, int, bool]:
    """Bring queues and index up to the log's end, or to what a replica knows as confirmed.

    Return (their guard, bytes of the log dispatched again, whether everything was rebuilt).
    Derived files are never trusted over the log: a damaged one is repaired or rebuilt. A mark that
    is ahead of the log is lowered, once its count has proven the files.
    """
    log, mark, end = opened.log, marks.mark, opened.log.max_position
    # What was built since the last sync is built again: its checksums may not have been written.
    lo, item_count = mark.dispatched_durable_position, mark.dispatched_durable_item_count
    # Up to the dispatched position the log was confirmed once.
    hi = min(mark.dispatched_position, end) if is_replica else end
    hi = max(hi, log.min_position)
    # Records are gone that may never have been built, or another program built.
    is_rebuilt = opened.was_adopted or lo < log.min_position
    # A rebuild must find the files as they are: they tell the offsets of silent queues.
    if not is_rebuilt:
        try:
            queues.recover(lo, is_clean=last_run.was_clean)
            is_cached = not last_run.page_cache_lost
            index.recover(lo, is_clean=last_run.was_clean, is_cached=is_cached)
            if item_count != UNKNOWN_COUNT:
                built = Dispatcher(log, queues, index).built()
                is_rebuilt = item_count != built.item_count
            else:  # A queue that lost its last units would look like a shorter one.
                is_rebuilt = last_run.page_cache_lost and lo > log.min_position
        except DerivedFileError:
            is_rebuilt = True
    if end < max(mark.durable_position, mark.dispatched_position):
        marks.lower(end, log.last_index_before(end))
    is_ahead, lo = lo > end, min(lo, end)
    dispatcher = Dispatcher(log, queues, index, dispatched_position=lo)
    guard = DerivedGuard(log, dispatcher, counters)
    try:
        if not is_rebuilt:
            if is_ahead:
                queues.recover(lo, is_clean=False)
                index.truncate(lo)
            queues.correct_min_offsets(log.min_position)
            guard.check_opened()
            _catch_up(dispatcher, hi, progress)
    except (DerivedFileError, QueueOrderError):
        is_rebuilt = True
    if is_rebuilt:
        lo = log.min_position
        dispatcher.rebuild(lambda done, total: progress("rebuild", done, total), hi_position=hi)
    return guard, dispatcher.dispatched_position - lo, is_rebuilt


def _catch_up(dispatcher: Dispatcher, hi: int, progress: Progress) -> None:
    while dispatcher.dispatched_position < hi:
        dispatcher.advance(hi)
        progress("dispatch", dispatcher.dispatched_position, hi)


def make_files(
    fs: FileSystem,
    root: str,
    config: StoreConfig,
    counters: StoreCounters,
    on_fatal: Callable[[BaseException], None],
    *,
    makes_names_durable: bool,
) -> tuple[FileSource, WarmUp | None, PooledFiles | None]:
    """Return the source of the log's next files, and its special parts as far as configured."""
    directory = log_directory(root, config)
    # In memory there are no extents to convert, and zeros would be written twice.
    writes_zeros = config.warm_up and not is_in_memory(root)
    source: FileSource
    warm_up = None
    if config.preallocate_file_count:
        source = warm_up = WarmUp(
            fs,
            directory,
            config,
            warm_up=writes_zeros,
            on_fatal=on_fatal,
            makes_names_durable=makes_names_durable,
            counters=counters,
        )
    else:
        source = InlineFiles(
            fs,
            directory,
            config.file_size_bytes,
            warm_up=writes_zeros,
            reserve_bytes=config.disk_reserve_bytes,
        )
    if not config.transient_pool:
        return source, warm_up, None
    pool = TransientPool(
        config.transient_pool_size,
        config.file_size_bytes,
        lock_memory=config.lock_memory,
        counters=counters,
    )
    pooled = PooledFiles(pool, source, counters)
    return pooled, warm_up, pooled


def newest_unix_ms(log: CommitLog | Ledger, file: MappedFile, hi_position: int) -> int | None:
    """Return a store time no record of a complete file is newer than, for retention.

    The first record behind the file has it: None as long as that is not visible. For the last file,
    its own first record must do. Reads no byte from `hi_position` on. Any thread. Raises
    CorruptionError or FileSystemError.
    """
    lo = file.end_position
    if lo >= hi_position and lo >= log.files.end_position:
        lo = file.position
    lo = max(lo, log.min_position)
    if lo >= hi_position:
        return None
    hi = min(lo + _TIME_SCAN_SIZE_BYTES, hi_position)
    for position, data in log.record_runs(lo, hi):
        assert position >= lo, f"a run at {position}, asked from {lo}"
        log.check(position, data[: fmt.INT32.unpack_from(data)[0]])
        return store_timestamp(data)
    return None


def _is_foreign(fs: FileSystem, root: str, config: StoreConfig, last_run: LastRun) -> bool:
    """Whether a plain log lies here that no store of ours has opened to the end.

    RocketMQ wrote the log, or an adoption was interrupted; then the marks do not count. `boot_id`
    is ours, comes before the first append, and RocketMQ does not know it.
    """
    if config.container != "commit_log" or last_run.was_ever_opened or is_replica_directory(root):
        return False
    return _has_log(fs, root, config)


def _has_log(fs: FileSystem, root: str, config: StoreConfig) -> bool:
    return any(name.isdecimal() for name in fs.list_directory(log_directory(root, config)))


def open_marks(
    fs: FileSystem, root: str, config: StoreConfig, last_run: LastRun | None = None
) -> DurableMark:
    """Open the durable mark. Raises LayoutError when it is missing beside a log of ours.

    With the `last_run` of a store that RocketMQ wrote the mark is made: no byte is known good then.
    """
    is_adopting = last_run is not None and _is_foreign(fs, root, config, last_run)
    return DurableMark.open(
        fs,
        root,
        interval_ms=config.durable_mark_interval_ms,
        log_is_empty=is_adopting or not _has_log(fs, root, config),
    )
