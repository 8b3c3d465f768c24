"""Prefetching: one task a queue pulls ahead, one inbox hands the batches out in fair order.

Owns the tasks and the bound on what they hold; must not know of groups or of stored offsets.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from quorumlog.errors import OffsetOutOfRangeError, QuorumlogError
from quorumlog.message import MessageBatch
from quorumlog.options import Consistency
from quorumlog.queues import Queue
from quorumlog.reads import Freshness, Reads
from quorumlog.retry import Backoff, Deadline

HELD_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024  # All queues of a consumer; each may exceed it once.
WAIT_MS: Final = 5_000  # How long a pull may be parked at a node.
BATCH_SIZE_BYTES_MAX: Final = 1024 * 1024
PREFETCH_DEFAULT: Final = 2
BEYOND_END_GRACE_MS: Final = 5_000
PATIENCE_MS: Final = 1_000

_log = logging.getLogger("quorumlog.consumer")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How queues are read. `is_patient`: wait for a cluster, or a group of it, that is down.
    `skips_expired`: go on behind messages that expired. Otherwise these are errors."""

    freshness: Freshness = field(default_factory=Freshness)
    tags: tuple[str, ...] = ()
    batch_size_bytes_max: int = BATCH_SIZE_BYTES_MAX
    batch_count_max: int = 0
    prefetch: int = PREFETCH_DEFAULT
    wait_ms: int = WAIT_MS
    timeout_ms: int = 30_000
    is_patient: bool = False
    skips_expired: bool = False


class Inbox:
    """Batches that were fetched, in the order of their arrival, and how the fetching ended."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Fetcher, MessageBatch]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._error: Exception | None = None
        self.held_size_bytes = 0
        self.defers_errors = False  # What may pass by itself is raised when all else is read.
        self.is_finished: Callable[[], bool] = lambda: False

    def put(self, fetcher: "Fetcher", batch: MessageBatch) -> None:
        """Take a batch from a fetcher."""
        self._ready.append((fetcher, batch))
        self.held_size_bytes += batch.size_bytes
        if self.held_size_bytes >= HELD_SIZE_BYTES_MAX:
            self._room.clear()
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Have the consumer raise this once it took what is ready."""
        if self._error is None:
            self._error = error
        self._changed.set()

    def wake(self) -> None:
        """Have the consumer look again whether all is finished."""
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Wait while too much is held."""
        await self._room.wait()

    async def get(self) -> MessageBatch | None:
        """Wait for the next batch; None when everything is finished. Raises what went wrong."""
        while not self._ready:
            error, is_finished = self._error, self.is_finished()
            if error is not None and (is_finished or not self._is_deferred(error)):
                raise error  # Again if asked again: what is missing does not come any more.
            if is_finished:
                return None
            self._changed.clear()
            await self._changed.wait()
        fetcher, batch = self._ready.popleft()
        self._release(fetcher, batch)
        return batch

    def _is_deferred(self, error: Exception) -> bool:
        return self.defers_errors and isinstance(error, QuorumlogError) and error.retryable

    def drop(self, fetcher: "Fetcher") -> None:
        """Forget what a fetcher has put; it was stopped."""
        kept: deque[tuple[Fetcher, MessageBatch]] = deque()
        for owner, batch in self._ready:
            if owner is fetcher:
                self._release(owner, batch)
            else:
                kept.append((owner, batch))
        self._ready = kept

    def _release(self, fetcher: "Fetcher", batch: MessageBatch) -> None:
        self.held_size_bytes -= batch.size_bytes
        if self.held_size_bytes < HELD_SIZE_BYTES_MAX:
            self._room.set()
        fetcher.credits.release()


class Fetcher:
    """Reads one queue from an offset on, up to `end_offset` if there is one."""

    def __init__(
        self,
        reads: Reads,
        queue: Queue,
        offset: int,
        options: FetchOptions,
        inbox: Inbox,
        *,
        end_offset: int | None = None,
    ) -> None:
        self.queue = queue
        self.offset = offset  # The next to fetch; what is ready in the inbox lies below.
        self.credits = asyncio.Semaphore(options.prefetch)
        self.is_done = False
        self._reads = reads
        self._options = options
        self._inbox = inbox
        self._end_offset = end_offset
        self._is_waiting = end_offset is None
        """Whether the node is to wait for messages; up to an end they are there, or it lags."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it and forget what it fetched."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._inbox.drop(self)

    async def _run(self) -> None:
        try:
            await self._fetch()
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer raises it.
            self._inbox.fail(error)
        finally:
            self.is_done = True
            self._inbox.wake()

    async def _fetch(self) -> None:
        while self._end_offset is None or self.offset < self._end_offset:
            await self._inbox.wait_for_room()
            await self.credits.acquire()
            batch = await self._pull()
            self._is_waiting = self._end_offset is None or batch.next_offset == self.offset
            self.offset = batch.next_offset
            batch = self._up_to_end(batch)
            if batch.messages:
                self._inbox.put(self, batch)
            else:
                self.credits.release()

    async def _pull(self) -> MessageBatch:
        """Pull until there is an answer that is in range."""
        backoff: Backoff | None = None
        while True:
            batch = await self._pull_once()
            if not batch.is_out_of_range:
                return batch
            if self.offset < batch.min_offset:
                if not self._options.skips_expired:
                    raise self._out_of_range(batch)
                _log.warning(
                    "%s: messages from offset %d to %d expired before they were read",
                    self.queue,
                    self.offset,
                    batch.min_offset - 1,
                )
                self.offset = batch.min_offset
                continue
            # Another node may not have come that far yet.
            if backoff is None:
                backoff = Backoff(Deadline(BEYOND_END_GRACE_MS))
            is_local = self._options.freshness.consistency is Consistency.LOCAL
            if backoff.deadline.has_passed and not is_local:
                raise self._out_of_range(batch)
            await asyncio.sleep(max(0.02, backoff.next_s()))

    async def _pull_once(self) -> MessageBatch:
        options = self._options
        while True:
            try:
                return await self._reads.pull(
                    self.queue,
                    self.offset,
                    options.freshness,
                    max_count=options.batch_count_max,
                    max_size_bytes=options.batch_size_bytes_max,
                    wait_ms=options.wait_ms if self._is_waiting else 0,
                    tags=options.tags,
                    timeout_ms=options.timeout_ms,
                )
            except QuorumlogError as error:
                if not (options.is_patient and error.retryable):
                    raise
                _log.warning("%s cannot be read, and is tried again: %s", self.queue, error)
            await asyncio.sleep(PATIENCE_MS / 1000)

    def _up_to_end(self, batch: MessageBatch) -> MessageBatch:
        end = self._end_offset
        if end is None or batch.next_offset <= end:
            return batch
        messages = [message for message in batch.messages if message.queue_offset < end]
        return replace(batch, messages=messages, next_offset=end)

    def _out_of_range(self, batch: MessageBatch) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {self.offset} of {self.queue} is outside of [{batch.min_offset}, "
            f"{batch.max_offset}]; begin at 'first' or 'end'",
            min_offset=batch.min_offset,
            max_offset=batch.max_offset,
        )
