"""The warm-up thread: has the next files ready before the log needs them.

Owns the files that exist and are not in the log yet; must not know what goes into them. A file of
1 GiB takes a second to allocate and zero, and no append should wait for that. Source: RocketMQ
AllocateMappedFileService, DefaultMappedFile#warmMappedFile; storage-formats 5.6.

A prepared file keeps its temporary name until it is taken; only then it is renamed and the
directory is synced. Measured on ext4: 0.1 to 0.4 ms once per file (worst of 60: 6 ms). The gain: a
directory never shows a file beyond the end of the log, nor a gap when prepared files are dropped;
what a crash leaves of them is swept by the next `MappedFileQueue.load`. Deviation: RocketMQ's next
file has its final name at once.

While another file is ready, the thread writes a tenth of the time. Three nodes roll at the same
position, and each zeroes 64 MiB then: at full pace appends on two cores waited 20 to 60 ms.

A log that is not through the first half of its first file has no files ahead: a small log takes
little of the disk. A file of at most `FIRST_SIZE_BYTES` is no such file.

Errors: a full disk or a failed call goes to the taker that waits for that very file; without one it
is only counted. In both cases the thread lives, and the next take tries again. Any other error (a
failed sync, an assertion) is final and goes to `on_fatal`.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from store.config import StoreConfig
from store.errors import (
    BusyError,
    ClosedError,
    FileSystemError,
    StoreFullError,
    SyncFailedError,
)
from store.files.file_system import FileSystem
from store.files.mapped_file import (
    MappedFile,
    PreparedFile,
    create_file,
    first_size_bytes,
    prepare_file,
)
from store.stats import StoreCounters

_NS_PER_S: Final = 1_000_000_000
_PAUSE_PER_WORK: Final = 9
"""Length of the pause after a piece of a file that the log does not need next, in lengths of the
piece."""


class WarmUp:
    """A `FileSource` with one thread. `start` it once the log is open, `stop` before the lock goes.

    Invariant: the prepared files are consecutive, the first one at the position wanted next.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        config: StoreConfig,
        *,
        warm_up: bool,
        on_fatal: Callable[[BaseException], None],
        makes_names_durable: bool = True,
        counters: StoreCounters | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Keep `preallocate_file_count` files ready, 1 or more; 0 needs no thread: use InlineFiles.
        `disk_reserve_bytes` are left for the files beside the log.

        With `makes_names_durable` False the taker syncs the directory itself.
        """
        assert config.preallocate_file_count > 0, f"file count {config.preallocate_file_count}"
        self._fs, self._directory, self._file_size_bytes = fs, directory, config.file_size_bytes
        self._file_count, self._warm_up = config.preallocate_file_count, warm_up
        self._timeout_ms, self._on_fatal = config.allocate_timeout_ms, on_fatal
        self._reserve_bytes = config.disk_reserve_bytes
        self._grows = first_size_bytes(0, config.file_size_bytes) < config.file_size_bytes
        self._lock_memory, self._counters = config.lock_memory, counters or StoreCounters()
        self._makes_names_durable = makes_names_durable
        self._monotonic_ns = monotonic_ns
        self._thread = threading.Thread(target=self._run, name="store-warm-up", daemon=True)
        # Guards all below. Never held during a call to the file system, except for discarding.
        self._condition = threading.Condition(threading.Lock())
        self._ready: deque[PreparedFile] = deque()
        self._next_position: int | None = None  # The first one that is not taken; None = unknown.
        self.is_small = False
        """Whether the log is not through the first half of a first file that grows: it needs no
        other file next."""
        self.is_resting = False
        """Whether the last attempt failed; the next take tries again."""
        self.is_pausing = False
        """Whether the thread pauses between two pieces of a file that is not needed next."""
        self.waiting_for: int | None = None
        """Position of the file that a take waits for."""
        self._error: StoreFullError | FileSystemError | None = None  # For the taker that waits.
        self._last_error: StoreFullError | FileSystemError | None = None  # For the next poll.
        self._polled_for: int | None = None  # Position of a poll that found no file ready.
        self._to_lock: list[MappedFile] = []
        self._failure: BaseException | None = None
        self._stopping = False

    # --- Taking ---

    def take(self, position: int) -> MappedFile:
        """Return the file that starts at `position`, durable under its final name.

        Files prepared for other positions are discarded: the log was cut or reset. Waits at most
        the configured time. Raises BusyError then; StoreFullError or FileSystemError from making
        this file; SyncFailedError or ClosedError. The log has not changed in any case.

        Before `start` the file is made here: an opening that finishes a reset needs one, and the
        thread needs to know the log's end. The file may use the reserve, or no node could start.
        """
        if self._thread.ident is None:
            return create_file(
                self._fs, self._directory, position, self._file_size_bytes, warm_up=False
            )
        with self._condition:
            self._aim_at(position)
            self._wait_until_ready(position)
            prepared = self._ready.popleft()
            self._next_position = position + self._file_size_bytes
        file: MappedFile | None = None
        try:
            file = prepared.publish(is_durable=self._makes_names_durable)
        finally:
            # Only now: making the next file keeps the disk busy, and the rename would wait for it.
            with self._condition:
                if file is not None and self._lock_memory:
                    self._to_lock.append(file)
                self._condition.notify_all()
        return file

    def grow(self, file: MappedFile, hi_position: int) -> None:
        """Have blocks in the first file; from its second half on the next files are made."""
        file.grow(hi_position, self._reserve_bytes)
        with self._condition:
            if self._lock_memory:
                self._to_lock.append(file)
            if 2 * (file.allocated_position - file.position) > self._file_size_bytes:
                self.is_small = False
            self._condition.notify_all()

    def poll(self, position: int) -> bool:
        """Have the file at `position` made unless it is ready; return whether `take` is immediate.

        For an event loop, which must not wait. Raises the StoreFullError or FileSystemError of the
        last attempt, once each; SyncFailedError or ClosedError.
        """
        with self._condition:
            self._check_open()
            if self._ready and self._next_position == position:
                return True
            error = self._last_error if self._next_position == position else None
            self._last_error, self._polled_for = None, position
            self._aim_at(position)
            self._condition.notify_all()
            if error is not None:
                raise error
            return bool(self._ready)

    def _aim_at(self, position: int) -> None:
        """Make `position` the next one, and let the thread try again if it rests."""
        if self._next_position != position:
            self._discard()
            self._next_position = position
        self.is_small = position == 0 and self._grows
        self.is_resting, self._error = False, None
        if not self._ready:
            self._condition.notify_all()

    def _wait_until_ready(self, position: int) -> None:
        deadline_ns = self._monotonic_ns() + self._timeout_ms * (_NS_PER_S // 1000)
        self.waiting_for = position
        self._condition.notify_all()
        try:
            while True:
                self._check_open()
                if self._ready:
                    assert self._ready[0].position == position, f"wanted {position}"
                    return
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                left_ns = deadline_ns - self._monotonic_ns()
                if left_ns <= 0:
                    raise BusyError("the allocation of the next log file", self._timeout_ms)
                self._condition.wait(left_ns / _NS_PER_S)
        finally:
            self.waiting_for = None

    def _check_open(self) -> None:
        if self._failure is not None:
            if isinstance(self._failure, SyncFailedError):
                raise SyncFailedError(*self._failure.args) from self._failure
            raise SyncFailedError("the warm-up thread", errno.EIO) from self._failure
        if self._stopping:
            raise ClosedError("the warm-up thread")

    def _discard(self) -> None:
        with ExitStack() as discards:  # The last one first, and all of them.
            while self._ready:
                discards.callback(self._ready.popleft().discard)

    # --- Life ---

    @property
    def ready_count(self) -> int:
        """Count of the files that are ready: the spare files of fault-matrix S11."""
        return len(self._ready)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition over the attributes holds; return whether it does. A change
        is seen at once, so a caller that needs the exact moment does not poll."""
        with self._condition:
            return self._condition.wait_for(condition, timeout_s)

    def start(self, next_position: int | None = None) -> None:
        """Start the thread; with `next_position` it prepares files from there on at once."""
        with self._condition:
            self._next_position = next_position
            self.is_small = self._grows and next_position in (0, self._file_size_bytes)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, join it and remove the files that were not taken. May be called twice."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._condition:
            self._discard()

    # --- The thread ---

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001  Any error here is final.
            with self._condition:
                self._failure = error
                self._condition.notify_all()
            self._on_fatal(error)

    def _step(self) -> bool:
        """Wait for work and do one piece of it; return False when the thread is to end."""
        with self._condition:
            while not (self._stopping or self._to_lock or self._wanted() is not None):
                self._condition.wait()
            if self._stopping:
                return False
            to_lock, self._to_lock = self._to_lock, []
            position = self._wanted()
        for file in to_lock:
            self._lock_file(file)
        if position is not None:
            self._make(position)
        return True

    def _wanted(self) -> int | None:
        """Return the position of the next file to make; None if all are ready or one failed."""
        if self._next_position is None or self.is_resting:
            return None
        count = self._file_count
        if self.is_small:
            count = 1 if self._next_position == 0 else 0
        if len(self._ready) >= count:
            return None
        return self._next_position + len(self._ready) * self._file_size_bytes

    def _make(self, position: int) -> None:
        prepared: PreparedFile | None = None
        failed: StoreFullError | FileSystemError | None = None
        worked_since_ns = self._monotonic_ns()

        def pace() -> None:
            nonlocal worked_since_ns
            self._pause(position, self._monotonic_ns() - worked_since_ns)
            worked_since_ns = self._monotonic_ns()

        try:
            needed_bytes = first_size_bytes(position, self._file_size_bytes)
            self._fs.check_room(self._directory, needed_bytes, self._reserve_bytes)
            prepared = prepare_file(
                self._fs,
                self._directory,
                position,
                self._file_size_bytes,
                warm_up=self._warm_up,
                is_cancelled=lambda: self._stopping or self._wanted() != position,
                is_urgent=lambda: position in (self.waiting_for, self._polled_for),
                pace=pace,
            )
        except (StoreFullError, FileSystemError) as error:
            failed = error
        with self._condition:
            wanted = self._wanted() == position and not self._stopping
            if prepared is not None and wanted:
                self._ready.append(prepared)
            elif prepared is not None:
                prepared.discard()  # The log went elsewhere meanwhile.
            if failed is not None and wanted:
                self._counters.prepare_failed_count += 1
                self.is_resting = True
                self._last_error = failed
                self._error = failed if self.waiting_for == position else None
            self._condition.notify_all()

    def _pause(self, position: int, worked_ns: int) -> None:
        """Leave processor and disk to the appends, unless the log needs this file next."""
        with self._condition:
            self.is_pausing = True
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: not self._ready or self._stopping or self._wanted() != position,
                worked_ns * _PAUSE_PER_WORK / _NS_PER_S,
            )
            self.is_pausing = False

    def _lock_file(self, file: MappedFile) -> None:
        try:
            locked = file.lock_memory()
        except ClosedError:  # Deleted before its turn came.
            return
        if not locked:
            self._counters.memory_lock_failed_count += 1
