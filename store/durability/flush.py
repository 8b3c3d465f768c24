"""The flush thread: which requests are durable, and when the log is synced.

Owns the only thread that syncs the log, the group commit and the timed flush; must not know what a
record or an entry is. One sync serves all requests made before it began; a request made during a
sync is served by the next one, without any artificial delay. A failed sync is final (fault-matrix
S02): no request is answered "durable" after it and the sync is never tried again, because the
kernel may already have dropped the pages. Sources: RocketMQ GroupCommitService,
FlushRealTimeService, CommitRealTimeService; storage-formats 5.2 to 5.4.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from store.config import StoreConfig
from store.durability.flush_schedule import FlushSchedule
from store.errors import (
    BusyError,
    ClosedError,
    FlushTimeoutError,
    PositionRangeError,
    StoreError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.failpoints import hit
from store.stats import StoreCounters

FLUSH_REQUEST_COUNT_MAX: Final = 65_536  # About 10 MB of requests; a sync would have to hang first.
_FINAL_ROUND_COUNT_MAX: Final = 10  # As RocketMQ's shutdown; one is enough once appends stopped.
_NS_PER_MS: Final = 1_000_000

Callback = Callable[[StoreError | None], None]


class SyncTarget(Protocol):
    """The log that is synced. Every `RecordLog` is one."""

    @property
    def max_position(self) -> int:
        """End of the bytes that a sync would make durable."""
        ...

    @property
    def flushed_position(self) -> int:
        """Position before which every byte is durable."""
        ...

    def sync(self) -> int:
        """Make all committed bytes durable; return the position reached. Raises SyncFailedError."""
        ...


class Committer(Protocol):
    """The mover of bytes from write buffers into the page cache (transient pool)."""

    @property
    def wrote_position(self) -> int:
        """End of the bytes that were appended, committed or not."""
        ...

    def commit(self) -> int:
        """Copy all appended bytes into the page cache; return the position reached."""
        ...


class _Request:
    __slots__ = ("callback", "position")

    def __init__(self, position: int, callback: Callback) -> None:
        self.position = position
        self.callback = callback


class FlushService:
    """The flush service of one store. `start` before use, `stop` before the log is closed.

    Invariant: a request is resolved exactly once: with None after a sync that began after the
    request's bytes were written, or with an error.
    """

    def __init__(
        self,
        log: SyncTarget,
        config: StoreConfig,
        *,
        on_fatal: Callable[[BaseException], None],
        committer: Committer | None = None,
        on_synced: Callable[[int], None] = lambda position: None,
        on_settled: Callable[[int], object] = lambda now_ms: None,
        counters: StoreCounters | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Call the sinks of a round on its thread.

        `on_synced(position)`: the log is durable up to there, and no request is answered yet.
        `on_settled(now_ms)`, for slow work: all were answered, or time has passed (monotonic ms).
        """
        self._log, self._committer = log, committer
        self._on_synced, self._on_settled = on_synced, on_settled
        self._counters = counters or StoreCounters()
        self._on_fatal, self._monotonic_ns = on_fatal, monotonic_ns
        self._schedule = FlushSchedule(config, self._now_ms())
        self.request_count_max = FLUSH_REQUEST_COUNT_MAX
        self._thread = threading.Thread(target=self._run, name="store-flush", daemon=True)
        self._round_lock = threading.Lock()  # Held while a round, or a truncation, runs.
        # Guards all below. Never held during a call to the log, a sink or a callback.
        self._condition = threading.Condition(threading.Lock())
        self._pending: list[_Request] = []  # Wait for a sync.
        self._refused: list[_Request] = []  # Their bytes were cut; the flush thread answers them.
        self._sync_wanted = False  # A sync was asked for since the last round began.
        self._stopping = False
        self.failure: SyncFailedError | None = None
        """The error after which no sync runs any more; None without one. Once set, final."""
        self._stopped = False
        # Moved within a round or a truncation only. Behind the log's own watermark while the sink
        # is being told, so that no ack overtakes the durable mark.
        self.durable_position = log.flushed_position
        """Position before which all bytes are durable, and the sink knows. Only a cut lowers it."""
        self._sync_began_ns: int | None = None

    # --- Asking ---

    def wait(self, position: int, timeout_ms: int) -> int:
        """Block until every byte before `position` is durable; return the durable position.

        For callers with a thread of their own. Raises FlushTimeoutError (the bytes are stored,
        whether they are durable is unknown), SyncFailedError (the process must stop), BusyError
        (too many wait), ClosedError, or PositionRangeError for bytes that were never appended or
        were cut meanwhile. Source: RocketMQ CommitLog#handleDiskFlush.
        """
        if position <= self.durable_position and self.failure is None:
            return self.durable_position
        done = threading.Event()
        errors: list[StoreError | None] = []

        def on_done(error: StoreError | None) -> None:
            errors.append(error)
            done.set()

        request = self._enqueue(position, on_done)
        if not done.wait(timeout_ms / 1000):
            self._withdraw(request, timeout_ms)
            done.wait()  # The request is being resolved: the answer is known, so give it.
        match errors[0]:
            case None:
                return self.durable_position
            case SyncFailedError() as failure:
                raise _copy_of(failure) from failure
            case error:
                raise error

    def request(self, position: int, callback: Callback) -> None:
        """Ask to be told when everything before `position` is durable. Does not block.

        `callback(None)` or `callback(error)` is called exactly once, on the flush thread, all of
        one round together; it must not block and not raise. Errors are those of `wait`, except the
        timeout; BusyError, ClosedError, PositionRangeError and SyncFailedError are raised here when
        they are known at once, and the callback is then never called.
        """
        self._enqueue(position, callback)

    def request_all(self, callback: Callback, hi: int | None = None) -> None:
        """As `request`, for everything that was appended before the call and not cut since.

        A cut does not refuse this request: the bytes that are left are asked for again. The
        callback then gets None, a SyncFailedError or a ClosedError.
        """
        end = self._log.max_position
        position = end if hi is None else min(hi, end)

        def on_done(error: StoreError | None) -> None:
            if not isinstance(error, PositionRangeError):
                callback(error)
                return
            try:
                self.request_all(callback, position)
            except StoreError as refused:
                callback(refused)

        self._enqueue(position, on_done)

    def sync_here(self) -> bool:
        """Sync all appended bytes on the caller's thread; False if a sync runs or requests wait.

        For a caller that found a sync cheaper than the way to the flush thread and back, which is
        two switches of threads. All of them are durable on a return of True. Raises SyncFailedError
        after the owner was told: stop.
        """
        if self._pending or self._refused or self.failure is not None or self._stopping:
            return False
        if not self._round_lock.acquire(blocking=False):
            return False
        try:
            self._commit_and_sync(wanted=True)
            if failpoints.is_on:
                hit("flush.before_tell")
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._round_lock.release()
        return True

    def check_room(self) -> None:
        """Raise BusyError, SyncFailedError or ClosedError if a request would be refused now.

        Call it before an append, while refusing still means that nothing was written.
        """
        with self._condition:
            self._check_open()

    def _enqueue(self, position: int, callback: Callback) -> _Request:
        end = self._committer.wrote_position if self._committer else self._log.max_position
        if position > end:
            raise PositionRangeError("position", position, 0, end + 1)
        request = _Request(position, callback)
        with self._condition:
            self._check_open()
            self._pending.append(request)
            if not self._sync_wanted:
                self._sync_wanted = True
                self._condition.notify()
        return request

    def _check_open(self) -> None:
        if self.failure is not None:
            raise _copy_of(self.failure) from self.failure
        if self._stopping:
            raise ClosedError("the flush service")
        if len(self._pending) >= self.request_count_max:
            raise BusyError(f"the flush queue ({self.request_count_max} wait)", 0)

    def _withdraw(self, request: _Request, timeout_ms: int) -> None:
        """Take a request out of the queue and raise its error; return if it is being resolved."""
        with self._condition:
            if request in self._pending:
                self._pending.remove(request)
                self._counters.flush_timeout_count += 1
                raise FlushTimeoutError(request.position, self.durable_position, timeout_ms)
            if request in self._refused:
                self._refused.remove(request)
                raise self._cut_error(request.position)

    def _cut_error(self, position: int) -> PositionRangeError:
        return PositionRangeError("position", position, 0, self._log.max_position + 1)

    # --- Watching ---

    @property
    def pending_count(self) -> int:
        """Count of the requests that wait."""
        return len(self._pending)

    def sync_running_ms(self) -> int:
        """Return how long the present sync of the log runs, 0 without one; for operators."""
        began_ns = self._sync_began_ns
        return 0 if began_ns is None else (self._monotonic_ns() - began_ns) // _NS_PER_MS

    def _now_ms(self) -> int:
        return self._monotonic_ns() // _NS_PER_MS

    # --- Life ---

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Sync all appended bytes, answer all requests, end the thread and join it.

        Everything is durable on return. Raises SyncFailedError when it is not; the store was then
        not closed cleanly. May be called twice.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is None:
            self._finish()
        elif self._thread is not threading.current_thread():
            self._thread.join()
        if self.failure is not None:
            raise _copy_of(self.failure) from self.failure

    @contextmanager
    def truncation(self, position: int) -> Iterator[None]:
        """Cut the log at `position` in the body: no sync and no durable mark runs beside it.

        A request for bytes beyond the cut gets PositionRangeError afterwards. Waits for the sync
        that runs. When the body raises, no request is refused.
        """
        with self._round_lock:
            yield
            self.durable_position = min(self.durable_position, self._log.flushed_position)
            with self._condition:
                self._refused += [r for r in self._pending if r.position > position]
                self._pending = [r for r in self._pending if r.position <= position]
                self._sync_wanted = True
                self._condition.notify()

    # --- The thread ---

    def _run(self) -> None:
        while self._wait_for_work():
            if not self.run_round():
                return
        self._finish()

    def _wait_for_work(self) -> bool:
        """Block until a round is due; return False when the service is to stop."""
        with self._condition:
            # A round that began before a cut may have taken the wish for a sync, not the refused.
            while not (self._sync_wanted or self._refused or self._stopping):
                wait_ms = self._schedule.wait_ms(self._now_ms(), self._committer is not None)
                if wait_ms <= 0:
                    break
                self._condition.wait(wait_ms / 1000)
            return not self._stopping

    def run_round(self, *, thorough: bool = False) -> bool:
        """Commit, sync and answer once, as far as it is due; return False after a failure.

        The thread calls it; tests without the thread may. `thorough` takes all that there is.
        """
        if self.failure is not None:
            return False  # A second sync could report success for pages that are lost.
        try:
            with self._condition:
                refused, self._refused = self._refused, []
            for request in refused:
                self._tell([request], self._cut_error(request.position))
            with self._round_lock:
                with self._condition:
                    wanted, self._sync_wanted = self._sync_wanted or thorough, False
                self._commit_and_sync(wanted)
                hit("flush.before_tell")  # While they are still pending, so that a failure tells.
                done = self._take_done()
            self._tell(done, None)
            self._schedule.settled(self._now_ms())
            self._on_settled(self._now_ms())
        except BaseException as error:  # noqa: BLE001  No ack may follow any error.
            self._fail(error)
        return self.failure is None

    def _commit_and_sync(self, wanted: bool) -> None:
        log, now_ns = self._log, self._monotonic_ns()
        now_ms = now_ns // _NS_PER_MS
        if self._committer is not None:
            uncommitted = self._committer.wrote_position, log.max_position
            if self._schedule.is_commit_due(now_ms, *uncommitted) or wanted:
                self._committer.commit()
        flushed, end = log.flushed_position, log.max_position
        # Asked even when there is nothing to flush: the asking restarts the interval.
        is_due = self._schedule.is_flush_due(now_ms, end, flushed)
        if flushed < end and (is_due or wanted):
            began_ns = now_ns if self._committer is None else self._monotonic_ns()
            self._sync_began_ns = began_ns
            try:
                before, flushed = flushed, log.sync()
            finally:
                self._sync_began_ns = None
            assert flushed >= end, f"synced up to {flushed}, {end} was committed before"
            duration_us = (self._monotonic_ns() - began_ns) // 1000
            counters = self._counters
            counters.sync_bytes += flushed - before
            counters.sync_latencies.note(duration_us)
            if failpoints.is_on:
                hit("flush.after_sync")
        if flushed != self.durable_position:
            self._on_synced(flushed)
            self.durable_position = flushed

    def _take_done(self) -> list[_Request]:
        """Take the requests with durable bytes out of the queue; called within the round."""
        flushed = self.durable_position
        with self._condition:
            done = [r for r in self._pending if r.position <= flushed]
            if done:
                self._pending = [r for r in self._pending if r.position > flushed]
                self._counters.flush_request_count += len(done)
        return done

    def _tell(self, requests: Iterable[_Request], error: StoreError | None) -> None:
        """Call every callback, also when one of them raises; raise the first such error then."""
        raised: BaseException | None = None
        for request in requests:
            try:
                request.callback(error)
            except BaseException as callback_error:  # noqa: BLE001  The others must be called too.
                raised = raised or callback_error
        if raised is not None:
            raise raised

    def _fail(self, cause: BaseException) -> None:
        """Make the failure final: each request gets SyncFailedError, then the owner is called."""
        failure = cause
        if not isinstance(failure, SyncFailedError):
            failure = SyncFailedError("the flush thread", errno.EIO)
            failure.__cause__ = cause
        with self._condition:
            if self.failure is not None:
                return
            self.failure = failure
            pending = self._pending + self._refused
            self._pending, self._refused = [], []
        try:
            self._tell(pending, failure)
        except BaseException as error:  # noqa: BLE001  The first cause is what ends the process.
            cause.add_note(f"a callback raised as well: {error!r}")
        self._on_fatal(cause)

    def _finish(self) -> None:
        """Sync the rest and answer all requests; no request is accepted any more."""
        if self._stopped:
            return
        for _ in range(_FINAL_ROUND_COUNT_MAX):
            if not self.run_round(thorough=True):
                return
            if not self._pending and self._log.flushed_position == self._log.max_position:
                break
        self._stopped = True
        with self._condition:
            left, self._pending = self._pending + self._refused, []
            self._refused = []
        if left:
            self._tell(left, ClosedError("the flush service"))


def _copy_of(failure: SyncFailedError) -> SyncFailedError:
    """Return a new error for each raise: one object raised in two threads mixes their traces."""
    return SyncFailedError(failure.path, failure.errno_value)
