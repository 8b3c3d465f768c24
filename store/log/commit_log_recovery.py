"""Finds the end of a plain commit log after a stop of any kind, and cuts a torn tail.

Owns the difference between a torn tail (above what was known to be good: cut) and corruption (below
it: reported, never cut). Must not know queues and indexes. Deviation: RocketMQ leaves the bytes
beyond a cut in place; here they are zeroed and synced first, so they can never revive.
Sources: storage-formats 4.5 to 4.7; fault-matrix S05, S07, S16.
"""

from typing import Final, NamedTuple

from store.config import MIB
from store.errors import CorruptionError, TailNotCutError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from store.record.check import check_records

_READ_SIZE_BYTES: Final = 4 * MIB


class RecoveryReport(NamedTuple):
    """Result of a recovery. `cut_size_bytes`: from the end to the last byte that was not 0.

    `store_unix_ms`: store time of the last record, 0 without one.
    """

    lo: int
    end_position: int
    record_count: int
    store_unix_ms: int
    cut_size_bytes: int
    cut_reason: str


class _FileEnd(NamedTuple):
    position: int
    record_count: int = 0
    store_unix_ms: int = 0
    reason: str = ""  # Why the walk stopped before the end of the file; empty when it did not.
    field: str = ""
    expected: str = ""
    actual: str = ""


def recover_commit_log(
    fs: FileSystem,
    log: CommitLog,
    known_good_position: int,
    *,
    synced_position: int | None = None,
    may_cut: bool = True,
) -> RecoveryReport:
    """Walk the log from the start of the file that holds `known_good_position`, and cut the tail.

    Everything before `known_good_position` was once known to be whole (synced, or dispatched in
    this boot). Raises CorruptionError, having changed nothing, when it is not any more; without
    `may_cut` TailNotCutError when there is something to cut. What was accepted from
    `synced_position` on (None: since the beginning of the walk) is written again
    (`MappedFile.rewrite`); of a log that must not be changed nothing is. Running it twice gives the
    same bytes.
    """
    files = log.files.files
    if not files:
        if known_good_position:
            raise _corruption(log, _FileEnd(0), known_good_position)
        return RecoveryReport(0, 0, 0, 0, 0, "")
    first = len(files) - 1
    while first > 0 and files[first].position >= known_good_position:
        first -= 1
    count, end, unix_ms = 0, files[first].position, 0
    stop: _FileEnd | None = None
    for number in range(first, len(files)):
        stop = _walk_file(files[number])
        count += stop.record_count
        unix_ms = stop.store_unix_ms or unix_ms
        end = stop.position
        if stop.reason:
            break
    assert stop is not None
    if end < known_good_position:
        raise _corruption(log, stop, known_good_position)
    dirty_hi = log.files.dirty_hi(end)
    if not may_cut and dirty_hi > end:
        raise TailNotCutError(log.files.directory, end, dirty_hi - end)
    hit("commit_log.before_cut")
    log.files.truncate(end, dirty_hi)
    if may_cut:
        synced = files[first].position if synced_position is None else synced_position
        log.files.rewrite(max(synced, log.files.min_position), end)
    cut_size_bytes = dirty_hi - end
    reason = stop.reason if cut_size_bytes else ""
    return RecoveryReport(files[first].position, end, count, unix_ms, cut_size_bytes, reason)


def _corruption(log: CommitLog, stop: _FileEnd, known_good_position: int) -> CorruptionError:
    if not stop.reason:  # Every file is whole, but there are too few of them.
        path = log.files.directory
        expected = f"bytes up to {known_good_position}"
        return CorruptionError(path, stop.position, "log end", expected, str(stop.position))
    file = log.files.file_at(stop.position)
    at = stop.position - file.position
    return CorruptionError(file.path, at, stop.field, stop.expected, stop.actual)


def _walk_file(file: MappedFile) -> _FileEnd:
    """Find the end of the good records of one file; a blank ends it at the end of the file."""
    position, count, unix_ms = file.position, 0, 0
    size_bytes = _READ_SIZE_BYTES
    while position < file.end_position:
        room = file.end_position - position
        data = file.read(position, min(room, size_bytes))
        checked = check_records(data, position)
        count += checked.record_count
        unix_ms = checked.last_store_unix_ms or unix_ms
        position += checked.end
        if checked.blank_size_bytes:
            left = file.end_position - position
            if checked.blank_size_bytes != left:
                what = ("blank size", str(left), str(checked.blank_size_bytes))
                return _FileEnd(position, count, unix_ms, "wrong blank", *what)
            return _FileEnd(file.end_position, count, unix_ms)
        if checked.problem is not None:
            problem = checked.problem
            what = problem.field, problem.expected, problem.actual
            return _FileEnd(position, count, unix_ms, str(problem), *what)
        if checked.end == 0:
            if len(data) == room:
                what = ("record", "whole", "cut short")
                return _FileEnd(position, count, unix_ms, "record cut short", *what)
            size_bytes *= 2  # One record is larger than a read.
        else:
            size_bytes = _READ_SIZE_BYTES
    return _FileEnd(position, count, unix_ms)
