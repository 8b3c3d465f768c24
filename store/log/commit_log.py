"""The plain commit log: message records back to back in 1 GiB files, as RocketMQ keeps them.

Owns the append (check, patch, one copy, roll) and the walk over records; must not know callers that
wait for durability, queues or indexes. A RocketMQ store can open the directory. One writer at a
time (the store's put lock); reads and a sync may run beside it.
Sources: storage-formats 1.1 to 1.5, 1.12; RocketMQ CommitLog.
"""

import os
from collections.abc import Iterator
from typing import Final

from store import format as fmt
from store.config import MIB, StoreConfig
from store.errors import CorruptionError, LimitExceededError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource, MappedFileQueue
from store.log.checked import CheckedRanges
from store.log.record_log import AppendResult, EntryRun
from store.log.sequence_lock import SequenceLock
from store.record.check import check_records
from store.record.stamp import Stamped, Stamper

DIRECTORY: Final = "commitlog"
_RUN_SIZE_BYTES: Final = 4 * MIB  # Bytes that are read at once when the log is walked.
_SIZE_BYTES_MAX: Final = 2 * fmt.ENTRY_SIZE_BYTES_MAX
"""Largest size of a record, RocketMQ's included."""


class CommitLog:
    """A `RecordLog` of plain records."""

    has_full_checksums: Final = False
    are_runs_checked: Final = False

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        config: StoreConfig,
        source: FileSource | None = None,
    ) -> None:
        directory = os.path.join(root, DIRECTORY)
        self.files: Final = MappedFileQueue(fs, directory, config.file_size_bytes, source)
        self.sync: Final = self.files.sync
        """Makes all appended bytes durable; returns the position reached. SyncFailedError: stop."""
        self.read, self.view = self.files.read, self.files.view
        self.delete_first, self.close = self.files.delete_first, self.files.close
        self.stamper: Final = Stamper(config)
        self.checked: Final = CheckedRanges()
        self.changes: Final = SequenceLock()
        """Tells whether the open log is, or was, cut or replaced; see `ShippedLog`."""
        # A record must fit into an empty file and leave room for the blank (1.4).
        self._batch_size_bytes_max = min(
            config.batch_size_bytes_max + fmt.RECORD_OVERHEAD_BYTES_MAX,
            config.file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN,
        )
        self._scratch = bytearray(min(self._batch_size_bytes_max, 256 * 1024))
        self._scratch_view = memoryview(self._scratch)

    # --- Positions ---

    @property
    def min_position(self) -> int:
        """First byte that is still kept."""
        return self.files.min_position

    @property
    def max_position(self) -> int:
        """End of the bytes that can be read."""
        return self.files.max_position

    @property
    def flushed_position(self) -> int:
        """Position before which every byte is durable."""
        return self.files.flushed_position

    # --- Writing ---

    def append(self, batch: bytes, *, now_unix_ms: int) -> AppendResult:
        """Check, patch and append encoded records as one batch, all or none.

        The batch never spans two files: the rest of the old one becomes a blank. No byte is durable
        yet. Raises RecordFormatError, LimitExceededError, TopicNameError, StoreFullError,
        FileSystemError or BusyError; nothing was written then.
        """
        size_bytes = len(batch)
        position, fits, (positions, queue_offsets, updates, _) = self._stamp(batch, now_unix_ms)
        last = self.files.files[-1] if fits else self._roll()
        if position + size_bytes + fmt.BLANK_SIZE_BYTES_MIN > last.allocated_position:
            self.files.make_room(size_bytes)
        hit("commit_log.before_append")
        landed = last.append(self._scratch_view[:size_bytes])
        assert landed == position, f"stamped for {position}, landed at {landed}"
        self.stamper.publish(updates)
        hit("commit_log.after_append")
        return AppendResult(
            position,
            position + size_bytes,
            -1,
            positions,
            queue_offsets,
            now_unix_ms,
        )

    def _stamp(self, batch: bytes, now_unix_ms: int) -> tuple[int, bool, Stamped]:
        """Check a batch and patch its copy in the scratch for its place; errors as `append`.

        Return the place, and whether that is in the last file.
        """
        size_bytes, files = len(batch), self.files.files
        fits, position = False, 0
        if files:
            last = files[-1]
            fits = size_bytes + fmt.BLANK_SIZE_BYTES_MIN <= last.free_bytes
            position = last.wrote_position if fits else last.end_position
        if size_bytes > self._batch_size_bytes_max:
            raise LimitExceededError("batch", size_bytes, self._batch_size_bytes_max)
        if size_bytes > len(self._scratch):
            self._scratch = bytearray(self._batch_size_bytes_max)
            self._scratch_view = memoryview(self._scratch)
        scratch = self._scratch
        scratch[0:size_bytes] = batch
        return position, fits, self.stamper.stamp(batch, scratch, 0, position, now_unix_ms)

    def _roll(self) -> MappedFile:
        """Close the last file with a blank and take the next one into use.

        The blank goes in first: if the next file cannot be had, the log simply ends with a full
        file, and the next append asks again.
        """
        files = self.files.files
        if files and files[-1].free_bytes:
            last = files[-1]
            assert last.free_bytes >= fmt.BLANK_SIZE_BYTES_MIN, f"{last.path}: no room for a blank"
            self.files.make_room(last.free_bytes)
            last.finish(fmt.BLANK.pack(last.free_bytes, fmt.MAGIC_BLANK))
        file = self.files.roll()
        self.files.seal_complete()
        return file

    # --- Reading ---

    def check(self, position: int, data: bytes, *, again: bool = False) -> None:
        """Check whole records that were read at `position`, or those not checked before.

        Raises CorruptionError. Header, topic and properties have no checksum here without
        `property_crc`; their damage is found as far as sizes, positions and NULs tell.
        """
        hi = position + len(data)
        lo = position if again else self.checked.first_unchecked(position, hi)
        if lo >= hi:
            return
        generation = self.checked.generation
        # A range ends where a record does, so the rest begins with one.
        result = check_records(data[lo - position :], lo)
        end, problem = lo + result.end, result.problem
        if problem is not None or end != hi:
            self.checked.distrust(end, hi)
            file = self.files.file_at(end)
            at = end - file.position
            if problem is None:
                raise CorruptionError(file.path, at, "record", "a whole one", "a part of one")
            raise CorruptionError(
                file.path, at, problem.field, problem.expected, problem.actual
            ) from problem
        self.checked.add(lo, hi, generation)

    def record_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, whole records back to back) from `lo` up to `hi`, blanks left out.

        Raises CorruptionError where the bytes are no record: nothing is skipped.
        """
        hi = min(hi, self.max_position)
        while lo < hi:
            file = self.files.file_at(lo)
            room = min(hi, file.end_position) - lo
            data = file.read(lo, min(room, _RUN_SIZE_BYTES))
            end, blank = walk(data)
            if end == 0 and not blank and len(data) < room:  # One record larger than a run.
                data = file.read(lo, min(room, self._batch_size_bytes_max))
                end, blank = walk(data)
            if end:
                yield lo, data[:end] if end < len(data) else data
            if blank:
                lo = file.end_position
            elif end:
                lo += end
            else:
                raise CorruptionError(
                    file.path, lo - file.position, "record", "a whole record", data[:8].hex()
                )

    fresh_runs = record_runs

    def stamped(self, lo: int, hi: int) -> None:
        """Return None: nothing is kept in memory."""

    def checked_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield the runs of `record_runs` up to the last whole record, each checked."""
        end = lo
        try:
            for position, data in self.record_runs(lo, hi):
                self.check(position, data)
                yield position, data
                end = position + len(data)
        except CorruptionError:
            if not self._is_cut_off(end, hi):
                raise

    def _is_cut_off(self, at: int, hi: int) -> bool:
        """Whether `hi` cuts off the record at a position, or behind a blank there: the walk takes
        such a record for damage."""
        size_bytes, magic = fmt.BLANK.unpack(self.read(at, fmt.BLANK.size))
        if magic == fmt.MAGIC_BLANK:
            at += size_bytes
        if hi < at + fmt.BLANK.size:
            return True
        size_bytes, magic = fmt.BLANK.unpack(self.read(at, fmt.BLANK.size))
        is_record = magic in (fmt.MAGIC_V1, fmt.MAGIC_V2) and size_bytes <= _SIZE_BYTES_MAX
        return is_record and hi < at + size_bytes

    # --- Entries: there are none ---

    def last_index_before(self, position: int) -> int:
        """Return -1: no entry ends anywhere."""
        return -1

    def end_of(self, index: int) -> int:
        """Return the position behind a byte, which is what an index means to the owner."""
        return index + 1

    def entry_runs(self, records: bytes) -> list[EntryRun]:
        """Return no entries."""
        return []


def walk(data: bytes) -> tuple[int, bool]:
    """Return (end of the last whole record in `data`, whether a blank follows it).

    Looks at sizes and magics only: bytes below the write position were checked when they came in.
    """
    at, hi = 0, len(data)
    unpack = fmt.BLANK.unpack_from
    while hi - at >= fmt.BLANK_SIZE_BYTES_MIN:
        size_bytes, magic = unpack(data, at)
        if magic == fmt.MAGIC_BLANK:
            return at, True
        if magic not in (fmt.MAGIC_V1, fmt.MAGIC_V2) or size_bytes < fmt.RECORD_SIZE_BYTES_MIN:
            return at, False
        if at + size_bytes > hi:
            break
        at += size_bytes
    return at, False
