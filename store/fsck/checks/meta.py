"""Checks the small files of a store directory: marks, checkpoint, the ledger's start, stray files.

Owns the values that they may have, given the log; must not read the log itself. Sources:
storage-formats 0.3, 4.1 to 4.3; fault-matrix S06, S12, D10; `store.durability.durable_mark`,
`store.files.meta_file`.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.derived.keys.index_files import DIRECTORY as INDEX_DIRECTORY
from store.derived.queues.consume_queues import DIRECTORY as QUEUE_DIRECTORY
from store.derived.sum_files import DIRECTORY as SUMS_DIRECTORY
from store.durability import checkpoint, durable_mark
from store.durability.durable_mark import Mark
from store.durability.identity import (
    ABORT_NAME,
    BOOT_ID_NAME,
    LOCK_NAME,
    LastRun,
    RunMarker,
    boot_id_problem,
)
from store.errors import CorruptionError, LayoutError
from store.files.file_system import FileSystem
from store.files.meta_file import read_generations
from store.files.staging import ASIDE_DIRECTORY, STAGING_DIRECTORY
from store.fsck.checks.log import NOWHERE, Bad
from store.fsck.files import Place, odd_file, read_small, small_reader
from store.fsck.layout import Layout
from store.fsck.types import Finding, Part, Severity, finding_of
from store.ledger import start as ledger_start
from store.ledger.entry import ChainLink
from store.ledger.start import LOG_FROM_ZERO, LogStart, StartFile
from store.ledger.start import NAME as START_NAME
from store.log.commit_log import DIRECTORY as COMMIT_LOG_DIRECTORY
from store.log.cut_file import DIRECTORY as CUT_DIRECTORY
from store.opening import (
    REPLICA_META_NAME,
    SHIPPED_META_NAME,
    is_replica_directory,
    known_good_position,
)

DAMAGED_DIRECTORY: Final = "damaged"
# RocketMQ's files beside the parts that we have (0.3): left alone.
ROCKETMQ_NAMES: Final = frozenset(
    {
        "abort.bak",  # Every start of a broker leaves one.
        "config",
        "consumequeue_ext",
        "batchconsumequeue",
        "epochFileCheckpoint",
        "epochFileCheckpoint.bak",
        "brokerIdentity",
        "brokerIdentity-temp",
        "timerwheel",
        "timerlog",
        "compaction",
    }
)
OUR_NAMES: Final = frozenset(
    {
        COMMIT_LOG_DIRECTORY,
        QUEUE_DIRECTORY,
        INDEX_DIRECTORY,
        SUMS_DIRECTORY,
        durable_mark.FILE_NAME,
        checkpoint.FILE_NAME,
        ABORT_NAME,
        ASIDE_DIRECTORY,
        BOOT_ID_NAME,
        LOCK_NAME,
        STAGING_DIRECTORY,
        DAMAGED_DIRECTORY,
        f"{REPLICA_META_NAME}.0",
        f"{REPLICA_META_NAME}.1",
        f"{SHIPPED_META_NAME}.0",
        f"{SHIPPED_META_NAME}.1",
        CUT_DIRECTORY,
    }
)


@dataclass(frozen=True, slots=True)
class Trust:
    """State known before the log is read. `mark` is None when it is missing or damaged."""

    mark: Mark | None
    last_run: LastRun
    known_good_position: int
    """Position up to which the log must be whole; NOWHERE without marks: all of it then."""
    required_position: int
    """Position up to which derived files must be built; NOWHERE: to the end of the log."""
    is_replica: bool
    """Whether the log's end may be uncommitted: derived files hold dispatched records only."""

    @property
    def is_clean(self) -> bool:
        """Whether opening has no repair to do."""
        return self.last_run.was_clean or self.mark is None


class DerivedScope(NamedTuple):
    """The directory, and the log that its derived files are compared with."""

    place: Place
    config: StoreConfig
    min_position: int
    trust: Trust
    bad: list[Bad]
    """Bad bytes of the log so far: records there, and their offsets and keys, are not known."""

    def is_bad(self, position: int) -> bool:
        """Whether a position lies in bad bytes."""
        return any(bad.lo <= position < bad.hi for bad in self.bad)


def read_trust(fs: FileSystem, root: str, *, log_is_empty: bool) -> tuple[Trust, list[Finding]]:
    """Read marks and run markers. Errors become findings, and no position is trusted then."""
    last_run = RunMarker(fs, root).last_run()
    mark, findings = read_marks(fs, root, log_is_empty=log_is_empty)
    is_replica = is_replica_directory(root)
    if mark is None:
        return Trust(None, last_run, NOWHERE, NOWHERE, is_replica), findings
    required = mark.dispatched_position
    if last_run.page_cache_lost:
        required = mark.dispatched_durable_position
    if last_run.was_clean and not is_replica:
        required = NOWHERE
    known_good = known_good_position(mark, last_run)
    return Trust(mark, last_run, known_good, required, is_replica), findings


def read_marks(
    fs: FileSystem, root: str, *, log_is_empty: bool
) -> tuple[Mark | None, list[Finding]]:
    """Return the newest good mark and the findings in the file, byte for byte."""
    name = durable_mark.FILE_NAME
    path = os.path.join(root, name)
    if not os.path.exists(path):
        if log_is_empty:
            return Mark(), []
        return None, [_mark_finding(0, "file", "the marks of the log beside it", "missing")]
    findings: list[Finding] = []
    size_bytes = durable_mark.FILE_SIZE_BYTES
    data, actual_size = read_small(fs, path, size_bytes)
    if actual_size != size_bytes:
        at = min(actual_size, size_bytes)
        findings.append(_mark_finding(at, "file size", str(size_bytes), str(actual_size)))
    slots = []
    for at in durable_mark.SLOT_AT:
        slot = durable_mark.decode_slot(data, at)
        if slot is None:
            hi = at + durable_mark.SLOT_SIZE_BYTES
            findings.append(_mark_finding(at, "slot", "a good checksum", data[at:hi].hex()))
        else:
            slots.append(slot)
        lo = at + durable_mark.SLOT_SIZE_BYTES
        rest = data[lo : at + size_bytes // 2]
        if rest.strip(b"\0"):
            dirty = lo + len(rest) - len(rest.lstrip(b"\0"))
            findings.append(_mark_finding(dirty, "unused byte", "0", str(data[dirty])))
    if not slots:
        return (Mark() if log_is_empty else None), findings
    return max(slots, key=lambda slot: slot[0])[1], findings


def _mark_finding(at: int, field: str, expected: str, actual: str) -> Finding:
    name = durable_mark.FILE_NAME
    return Finding(name, at, field, expected, actual, Severity.REPAIRABLE, Part.MARKS)


def check_mark(
    trust: Trust, *, end_position: int, index_at: dict[int, int] | None, last_index: int
) -> Iterator[Finding]:
    """Compare the mark with the log. `index_at`: the entries that end where it points, if known.

    A log that ends before the mark is damage of the log, and is found there.
    """
    mark = trust.mark
    if mark is None:
        return
    if mark.durable_index > last_index:
        expected = f"at most {last_index}, the last entry"
        yield _mark_finding(0, "durable index", expected, str(mark.durable_index))
    elif index_at is not None and mark.durable_position in index_at:
        wanted = index_at[mark.durable_position]
        if mark.durable_index != wanted:
            yield _mark_finding(0, "durable index", str(wanted), str(mark.durable_index))
    for field, value in (
        ("dispatched position", mark.dispatched_position),
        ("durably dispatched position", mark.dispatched_durable_position),
    ):
        if value > max(end_position, mark.durable_position):
            yield _mark_finding(0, field, f"at most {end_position}", str(value))
    expected_position = mark.dispatched_position if trust.is_replica else end_position
    if trust.last_run.was_clean and mark.dispatched_durable_position < expected_position:
        actual = str(mark.dispatched_durable_position)
        yield _mark_finding(0, "durably dispatched position", str(expected_position), actual)


def check_checkpoint(fs: FileSystem, root: str, newest_unix_ms: int) -> Iterator[Finding]:
    """Compare the checkpoint with the log: no time may be later than its newest record.

    `newest_unix_ms` is 0 when the log holds no record: then times are not compared with it.
    """
    name = checkpoint.FILE_NAME
    path = os.path.join(root, name)
    if not os.path.exists(path):
        return
    data, size_bytes = read_small(fs, path, fmt.CHECKPOINT_SIZE_BYTES)

    def finding(at: int, field: str, expected: str, actual: str) -> Finding:
        return Finding(name, at, field, expected, actual, Severity.DERIVED, Part.CHECKPOINT)

    if size_bytes != fmt.CHECKPOINT_SIZE_BYTES:
        at, expected = min(size_bytes, fmt.CHECKPOINT_SIZE_BYTES), str(fmt.CHECKPOINT_SIZE_BYTES)
        yield finding(at, "file size", expected, str(size_bytes))
    if len(data) < fmt.CHECKPOINT.size:
        return
    names = (
        "physicMsgTimestamp",
        "logicsMsgTimestamp",
        "indexMsgTimestamp",
        "masterFlushedOffset",
        "confirmPhyOffset",
    )
    for number, value in enumerate(fmt.CHECKPOINT.unpack_from(data)):
        is_time = number < 3
        if value < 0 or (is_time and 0 < newest_unix_ms < value):
            expected = f"0 to {newest_unix_ms}" if is_time and newest_unix_ms else "0 or more"
            yield finding(number * 8, names[number], expected, str(value))
    rest = data[fmt.CHECKPOINT.size :]
    if rest.strip(b"\0"):
        at = fmt.CHECKPOINT.size + len(rest) - len(rest.lstrip(b"\0"))
        yield finding(at, "unused byte", "0", str(data[at]))


def read_starts(
    fs: FileSystem, root: str, directory: str
) -> tuple[list[LogStart], list[Finding], bool]:
    """Return starts of a ledger, the findings in their files, and whether a reset is unfinished.

    More than one start, best first, when the files are not trusted: the first entry has to prove
    one of them. After an unfinished reset an opening drops the old files.
    """
    generations = read_generations(f"{directory}/{START_NAME}", small_reader(fs, root))
    findings = [_start_finding(start.problem) for start in generations if start.problem]
    try:
        start, is_resetting = StartFile(fs, os.path.join(root, directory)).load()
    except CorruptionError as error:
        findings = findings or [_start_finding(error, os.path.relpath(error.path, root))]
    except LayoutError as error:
        missing = CorruptionError(error.path, 0, "file", error.expected, error.actual)
        findings.append(_start_finding(missing, os.path.relpath(error.path, root)))
    else:
        return [start], findings, is_resetting
    rows = [[start.payload.get(name) for name in ledger_start.FIELDS] for start in generations]
    starts = [
        LogStart(row[0], row[1], ChainLink(*row[2:]))
        for row in reversed(rows)
        if all(isinstance(value, int) for value in row)
    ]
    return [*starts, LOG_FROM_ZERO], findings, False


def _start_finding(error: CorruptionError, path: str = "") -> Finding:
    return finding_of(error, Severity.REPAIRABLE, Part.START, path)


def check_boot_id(fs: FileSystem, root: str) -> Iterator[Finding]:
    """Check the file `boot_id`, if there is one."""
    path = os.path.join(root, BOOT_ID_NAME)
    problem = boot_id_problem(read_small(fs, path)[0]) if os.path.isfile(path) else None
    if problem is not None:
        yield Finding(BOOT_ID_NAME, 0, *problem, Severity.REPAIRABLE, Part.NODE)


def stray_files(
    fs: FileSystem, root: str, layout: Layout, owner_names: re.Pattern[str]
) -> Iterator[Finding]:
    """Name the files in the root, or beside a ledger's data, that neither store nor owner makes."""
    for name in fs.list_directory(os.path.join(root, STAGING_DIRECTORY)):
        yield odd_file(f"{STAGING_DIRECTORY}/{name}", Part.DIRECTORY)
    for name in fs.list_directory(root):
        is_ours = name in OUR_NAMES | ROCKETMQ_NAMES or name in layout.containers
        if not is_ours and not owner_names.fullmatch(name):
            yield odd_file(name, Part.DIRECTORY)
    if layout.config.container != "ledger":
        return
    directory = layout.ledger_directory
    names = {
        "data",
        "index",
        "snapshot",
        "currterm",
        "currterm.bak",
        "checkpoint",
        "checkpoint.bak",
        STAGING_DIRECTORY,
        f"{START_NAME}.0",
        f"{START_NAME}.1",
    }
    for name in fs.list_directory(os.path.join(root, directory, STAGING_DIRECTORY)):
        yield odd_file(f"{directory}/{STAGING_DIRECTORY}/{name}", Part.DIRECTORY)
    for name in fs.list_directory(os.path.join(root, directory)):
        if name not in names:
            yield odd_file(f"{directory}/{name}", Part.DIRECTORY)
