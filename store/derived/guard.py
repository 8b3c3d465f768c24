"""Keeps the derived files true to the log while the store is open.

Owns the way from damage in a queue or an index file to its repair, and the pass that compares all
of them with the log, in log order. Must not know threads, nor when a pass is due.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from store.config import MIB
from store.derived.dispatch import Dispatcher
from store.derived.key_mend import Key, KeyMender
from store.derived.keys.index_files import IndexFiles
from store.derived.log_walk import LogWalk
from store.derived.queues.consume_queues import ConsumeQueues
from store.derived.unit_mend import UnitMender
from store.errors import (
    ClosedError,
    CorruptionError,
    DerivedDamageError,
    DerivedFileError,
    PositionRangeError,
)
from store.ledger.ledger import Ledger
from store.log.commit_log import CommitLog
from store.log.record_log import RecordLog
from store.stats import StoreCounters

PIECE_SIZE_BYTES: Final = MIB
"""Bytes of the log that one step compares, about."""
_REACH_SIZE_BYTES: Final = 16 * MIB
"""Within this many bytes of the log there is a record, or a blank and then a record."""
AT_ONCE_SIZE_BYTES_MAX: Final = MIB
"""Bytes of the log read at once for damage met by a reader on an event loop: some milliseconds."""
_OF_CHANGES: Final = (PositionRangeError, CorruptionError, DerivedFileError)
"""Errors that say nothing where records expire, or are cut, beside the work."""


class DerivedPiece(NamedTuple):
    """Result of one step. `ends_pass`: the next one begins at the start of the log."""

    size_bytes: int = 0
    wrong_count: int = 0
    ends_pass: bool = False


class DerivedGuard:
    """The guard of one store's derived files."""

    def __init__(self, log: RecordLog, dispatcher: Dispatcher, counters: StoreCounters) -> None:
        self._log, self.dispatcher, self._counters = log, dispatcher, counters
        self._queues: Final[ConsumeQueues] = dispatcher.queues
        self._index: Final[IndexFiles] = dispatcher.index
        self.tell: Callable[[str], None] = lambda _: None
        """Gets the reports for operators, on any thread; see `listen`."""
        self._walk = LogWalk(log)
        self.units: Final = UnitMender(log, self._walk, dispatcher, counters, self._told)
        self.keys: Final = KeyMender(log, self._walk, dispatcher, counters, self._told)
        self._queues.compare_with(self.units.on_doubt)
        self._told_topics: set[bytes] = set()
        dispatcher.on_inner_batches = self._on_inner_batches

    def _told(self, what: str) -> None:
        self.tell(what)

    def _on_inner_batches(self, topic: bytes, count: int) -> None:
        self._counters.inner_batch_count += count
        self._tell_of(topic)

    def _tell_of(self, topic: bytes) -> None:
        if topic in self._told_topics:
            return
        self._told_topics.add(topic)
        self._told(
            f"topic {topic.decode()} has inner batches of RocketMQ (queue.type=BatchCQ): its "
            f"records are kept, and cannot be read here"
        )

    def listen(self, tell: Callable[[str], None]) -> None:
        """Send reports for operators to `tell` from now on, and repeat what is known of topics."""
        self.tell = tell
        self._told_topics.clear()
        for topic in sorted(self._queues.inner_batches.topics):
            self._tell_of(topic)

    def stop(self) -> None:
        """Make the walks that read the log for this guard end soon, with a ClosedError."""
        self._walk.is_stopped = True

    # --- At once, and later ---

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let readers in the body wait for the whole repair: a cut cannot come later."""
        size_bytes_max, self.units.at_once_size_bytes_max = self.units.at_once_size_bytes_max, None
        try:
            yield
        finally:
            self.units.at_once_size_bytes_max = size_bytes_max

    def met(self, error: DerivedFileError) -> None:
        """Repair the index file in which a look-up met damage, or raise a retryable error."""
        self._counters.derived_damage_count += 1
        self._told(f"damage was found: {error}")
        if self.units.at_once_size_bytes_max is not None:  # More than that is left to `mend`.
            if isinstance(error, DerivedDamageError):
                raise error
            raise DerivedDamageError(error.path, error.at, error.field) from error
        self.mend(error)

    def mend(self, error: DerivedFileError) -> None:
        """Repair the damage that a reader met, however much of the log has to be read.

        Raises CorruptionError when the log is damaged as well, DerivedFileError when it is of no
        help, StoreFullError, FileSystemError, SyncFailedError, ClosedError.
        """
        if os.path.dirname(error.path) == self._index.directory:
            for file in self._index.files:
                if file.path == error.path:  # Else it is gone.
                    self.keys.mend(file)
            return
        relative = os.path.relpath(error.path, self._queues.directory)
        topic, queue_id, *_ = relative.split(os.sep)
        queue = self._queues.get(topic.encode(), int(queue_id))
        if queue is not None:
            span = error.span if isinstance(error, DerivedDamageError) else None
            lo, hi = span or (queue.min_offset, queue.max_offset)
            self.units.mend(topic.encode(), int(queue_id), lo, hi)

    def check_opened(self) -> None:
        """Check what an opening else has to trust: headers, and the last keys after a crash.

        Damage of the log is left to its readers. Raises DerivedFileError (rebuild), StoreFullError
        or FileSystemError.
        """
        with suppress(CorruptionError):
            for file in self._index.files:
                if file.sums.expected_header() and file.is_header_doubtful():
                    self._counters.derived_damage_count += 1
                    self.keys.mend(file)
            for file in self._index.files[-1:]:
                times = file.begin_unix_ms, file.end_unix_ms
                begin_ms = self.keys.mend_begin(file)
                self.keys.confirm_last(file)
                self.keys.mend_end(file, begin_ms)
                if (file.begin_unix_ms, file.end_unix_ms) != times:  # On the disk, too.
                    file.rewrite_header()

    # --- The pass ---

    def mend_file(self, number: int) -> tuple[int, bool] | None:
        """Compare one index file with its checksums, and with the log where it has none; return its
        size and whether it was wrong. Return None when there are fewer files. Errors as `mend`."""
        files = self._index.files
        if number >= len(files):
            return None
        file = files[number]
        try:
            return file.size_bytes, self.keys.mend(file)
        except ClosedError:
            if file in self._index.files:  # Else it expired meanwhile.
                raise
            return 0, False

    def mend_unknown(self) -> None:
        """Compare the index files without checksums with the log: RocketMQ made them, or an older
        release. Errors as `mend`."""
        for number, file in enumerate(self._index.files):
            if not file.has_slots and not file.sums.expected_header():
                self.mend_file(number)

    def compare(self, position: int, hi: int) -> tuple[int, int]:
        """Compare the units and keys of the log in [position, hi) with queues and index, and repair
        those that differ; return (where the last record ends, how many were wrong).

        `position` is where a record begins, or the end of one. Errors as `mend`.
        """
        units: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
        keys: list[Key] = []
        end, wrong = position, 0
        for said in self._walk.said(position, hi):
            end = said.position + said.size_bytes
            keys += [Key(value, said.position, said.store_unix_ms) for value in said.hashes]
            if not said.has_unit or said.topic in self._queues.inner_batches.topics:
                continue
            key = said.topic, said.queue_id
            first, some = units.setdefault(key, (said.offset, []))
            if said.offset != first + len(some):
                raise DerivedFileError(
                    self._queues.directory, 0, "queue offset", str(first + len(some)), str(said)
                )
            some.append(said.unit)
        for (topic, queue_id), (first, some) in units.items():
            wrong += self.units.compare(topic, queue_id, first, b"".join(some))
        if keys:
            wrong += self.keys.compare(keys)
        return end, wrong


class DerivedScrubber:
    """A position in the log, and the step from there. For one thread; readers and writers go on."""

    def __init__(
        self, guard: DerivedGuard, log: CommitLog | Ledger, visible_position: Callable[[], int]
    ) -> None:
        self._guard, self._log, self._visible_position = guard, log, visible_position
        self._next = 0
        self._number = log.changes.number
        """The number of the log's changes at which the pass began."""
        self._file_number = 0
        """The next index file, once all of the log was compared."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the log that a whole pass reads, at least."""
        return max(0, self._visible_position() - self._log.min_position)

    def begin_at(self, share: float) -> None:
        """Go to the start of the log file at this share (0 to 1) of what a pass reads."""
        assert 0 <= share < 1, f"share {share}"
        self._number = self._log.changes.number
        position = self._log.min_position + int(share * self.size_bytes)
        try:
            self._next = self._log.files.file_at(position).position
        except PositionRangeError:  # The log is empty, or the file expired meanwhile.
            self._next = 0

    def step(self) -> DerivedPiece:
        """Compare the next piece. Errors as `DerivedGuard.mend`; the step after one continues
        with the next file of the log."""
        changes, log = self._log.changes, self._log
        if not changes.is_unchanged(self._number):  # No record need begin at the next place.
            self._number, self._next = changes.number, 0
        number = self._number
        lo = self._next = max(self._next, log.min_position)
        if lo >= self._visible_position():
            return self._step_file()
        try:
            visible = self._visible_position()
            end, wrong = self._guard.compare(lo, min(lo + PIECE_SIZE_BYTES, visible))
            if end == lo:  # A large record, or a blank, or entries without records.
                end, wrong = self._guard.compare(lo, min(lo + _REACH_SIZE_BYTES, visible))
        except BaseException as error:
            is_as_it_was = changes.is_unchanged(number) and lo >= log.min_position
            self._next = self._file_end(lo) if is_as_it_was else 0
            if isinstance(error, _OF_CHANGES) and not is_as_it_was:
                return DerivedPiece()  # Expired, cut or replaced meanwhile.
            raise
        self._next = end if end > lo else self._file_end(lo)
        return DerivedPiece(max(self._next - lo, 0), wrong)

    def _step_file(self) -> DerivedPiece:
        number, self._file_number = self._file_number, self._file_number + 1
        mended = self._guard.mend_file(number)
        if mended is None:
            self._next = self._file_number = 0
            return DerivedPiece(ends_pass=True)
        return DerivedPiece(mended[0], int(mended[1]))

    def _file_end(self, position: int) -> int:
        try:
            return self._log.files.file_at(position).end_position
        except PositionRangeError:
            return 0
