"""Prefetching: one task a queue pulls ahead, one inbox hands the batches out in fair order.

Owns the tasks and the limit of the data they hold; must not know of groups or of stored offsets.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.consume.reads import PullOptions, ReadCalls
from quorumlog.errors import OffsetOutOfRangeError, QuorumlogError
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.options import Consistency
from quorumlog.records.queues import Queue

HELD_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024  # All queues of a consumer; each may exceed it once.
HELD_COUNT_MAX: Final = 100_000  # Messages, in the same way: each costs more than bytes.
WAIT_MS: Final = 5_000  # Longest time that a pull is parked at a node.
PULLS_MAX: Final = 1_024
"""Pulls of a consumer under way in a broker group: the calls that one client has room for there are
fewer than the queues of a large member, and its heartbeats must not wait behind parked pulls."""
WAIT_SHARED_MS: Final = 1_000  # Longest time that one is parked while another waits for its turn.
BATCH_SIZE_BYTES_MAX: Final = 1024 * 1024
PREFETCH_DEFAULT: Final = 2
BEYOND_END_GRACE_MS: Final = 5_000
PATIENCE_MS: Final = 1_000

TRAIL_COUNT_MAX: Final = 256
"""Batches of which a fetcher remembers the last message: as far back it finds the end of a log that
was cut. Beyond them it begins again at the first message."""

_log = logging.getLogger("quorumlog.consumer")


@dataclass(frozen=True, kw_only=True)
class FetchArguments:
    """What a program says of messages that are read ahead. The time may be the client's."""

    tags: Sequence[str] = ()
    sql: str = ""
    batch_size_bytes_max: int = BATCH_SIZE_BYTES_MAX
    batch_count_max: int = 0
    prefetch: int = PREFETCH_DEFAULT
    timeout_ms: int | None = None

    def reading(self, timeout_ms: int) -> "FetchOptions":
        """Return the options of reading. `timeout_ms` is for arguments that have none."""
        return FetchOptions(
            tags=tuple(self.tags),
            sql=self.sql,
            max_size_bytes=self.batch_size_bytes_max,
            max_count=self.batch_count_max,
            prefetch=self.prefetch,
            timeout_ms=self.timeout_ms or timeout_ms,
        )


@dataclass(frozen=True, slots=True)
class FetchOptions(PullOptions):
    """Options of reading queues. `is_patient`: wait for a cluster, or a group of it, that is down.
    `skips_expired`: continue behind messages that expired. Otherwise these are errors."""

    max_size_bytes: int = BATCH_SIZE_BYTES_MAX
    wait_ms: int = WAIT_MS
    prefetch: int = PREFETCH_DEFAULT
    is_patient: bool = False
    skips_expired: bool = False
    held_size_bytes_max: int = HELD_SIZE_BYTES_MAX
    held_count_max: int = HELD_COUNT_MAX


class Inbox:
    """Fetched batches in the order of their arrival, and the error that ended the fetching."""

    def __init__(
        self,
        size_bytes_max: int = HELD_SIZE_BYTES_MAX,
        count_max: int = HELD_COUNT_MAX,
    ) -> None:
        self._size_bytes_max, self._count_max = size_bytes_max, count_max
        self._ready: deque[tuple[Fetcher, MessageBatch]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.pulls = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(PULLS_MAX))
        """Turns of pulls, by broker group."""
        self._error: Exception | None = None
        self.held_size_bytes = self.held_count = 0
        self.defers_errors = False  # Raise a retryable error only when all else is read.
        self.is_finished: Callable[[], bool] = lambda: False

    def wake(self) -> None:
        """Have the consumer check again whether all is finished."""
        self._changed.set()

    def put(self, fetcher: "Fetcher", batch: MessageBatch) -> None:
        """Add a batch of a fetcher. After an error that is not deferred it is dropped, and the
        fetcher gets no credit for another one: with traffic in other queues the error would never
        be raised."""
        if self._error is not None and not self._is_deferred(self._error):
            return
        self._ready.append((fetcher, batch))
        self.held_size_bytes += batch.size_bytes
        self.held_count += len(batch.messages)
        if self._is_full():
            self._room.clear()
        self._changed.set()

    def _is_full(self) -> bool:
        is_large = self.held_size_bytes >= self._size_bytes_max
        return is_large or self.held_count >= self._count_max

    def fail(self, error: Exception, *, at_once: bool = False) -> None:
        """Have the consumer raise the first of these errors after the batches that are ready, or
        `at_once`."""
        if self._error is None or (at_once and self._is_deferred(self._error)):
            self._error = error
        if at_once:
            self._ready.clear()
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Wait while the held batches exceed a limit."""
        await self._room.wait()

    async def get(self) -> MessageBatch | None:
        """Wait for the next batch; None when everything is finished. Raises the error of `fail`."""
        while not self._ready:
            error, is_finished = self._error, self.is_finished()
            if error is not None and (is_finished or not self._is_deferred(error)):
                raise error  # Also for the next calls: the data stays missing.
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
        """Drop the batches of a fetcher that was stopped."""
        kept: deque[tuple[Fetcher, MessageBatch]] = deque()
        for owner, batch in self._ready:
            if owner is fetcher:
                self._release(owner, batch)
            else:
                kept.append((owner, batch))
        self._ready = kept

    def _release(self, fetcher: "Fetcher", batch: MessageBatch) -> None:
        self.held_size_bytes -= batch.size_bytes
        self.held_count -= len(batch.messages)
        if not self._is_full():
            self._room.set()
        fetcher.credits.release()


def _mark(message: Message) -> tuple[int, int, int]:
    return message.queue_offset, message.log_position, message.store_unix_ms


class Fetcher:
    """Reads one queue from an offset on, up to `end_offset` if there is one."""

    def __init__(
        self,
        reads: ReadCalls,
        queue: Queue,
        offset: int,
        options: FetchOptions,
        inbox: Inbox,
        *,
        end_offset: int | None = None,
    ) -> None:
        self.queue = queue
        self.offset = offset  # The next to fetch; batches in the inbox lie below.
        self.credits = asyncio.Semaphore(options.prefetch)
        self.is_done = False
        self._reads = reads
        self._options = options
        self._at_once: Final = replace(options, wait_ms=0)
        self._search: Final = replace(self._at_once, max_count=1, tags=(), sql="")
        """Of the search for a message that was read, which ignores the filters."""
        self._inbox = inbox
        self._end_offset = end_offset
        self._node_id = 0  # The node of the last batch.
        self._trail: deque[tuple[int, int, int]] = deque(maxlen=TRAIL_COUNT_MAX)
        """The last messages of the batches that were read: offset, and place in the log. All
        replicas have a message at the same place, so another node that has it there, with the same
        store time, has the same log up to it. A node without it has lost the end, as an async
        master may."""
        self._skipped = (offset, offset)
        """The last messages that were all filtered out: the first offset, and the one behind."""
        self._is_waiting = end_offset is None
        """Whether a pull waits for messages; up to an end they are there, or the node lags."""
        self._task = asyncio.create_task(self._run())

    def beyond(self, offset: int) -> int:
        """Return the offset behind the messages from an offset on that were filtered out."""
        lo, hi = self._skipped
        return hi if offset == lo else offset

    def stop(self) -> Awaitable[object]:
        """Stop fetching, and drop the fetched batches from the inbox at once. Await it to
        know that nothing runs any more."""
        self._task.cancel()
        self._inbox.drop(self)
        return asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._fetch()
        except Exception as error:  # noqa: BLE001 - the consumer raises it, of any kind.
            self._inbox.fail(error)
        finally:
            self.is_done = True
            self._inbox.wake()

    async def _fetch(self) -> None:
        while self._end_offset is None or self.offset < self._end_offset:
            await self._inbox.wait_for_room()
            await self.credits.acquire()
            batch = await self._pull()
            self._node_id = batch.node_id
            self._trail.extend(map(_mark, batch.messages[-1:]))
            self._is_waiting = self._end_offset is None or batch.next_offset == self.offset
            if not batch.messages and batch.next_offset > self.offset:
                lo, hi = self._skipped
                self._skipped = (lo if hi == self.offset else self.offset, batch.next_offset)
            if batch.messages and self.offset == self._skipped[1]:
                batch = replace(batch, offset=self._skipped[0])
            self.offset = batch.next_offset
            batch = self._up_to_end(batch)
            if batch.messages:
                self._inbox.put(self, batch)
            else:
                self.credits.release()

    async def _pull(self) -> MessageBatch:
        """Pull until an answer is in range."""
        backoff: Backoff | None = None
        while True:
            options = self._options if self._is_waiting else self._at_once
            batch = await self._pull_once(self.offset, options)
            if batch.node_id != self._node_id and await self._went_back(batch):
                continue
            if not batch.is_out_of_range:
                return batch
            if self.offset < batch.first_offset:
                if not self._options.skips_expired:
                    raise self._out_of_range(batch)
                _log.warning(
                    "%s: messages from offset %d to %d expired before they were read",
                    self.queue,
                    self.offset,
                    batch.first_offset - 1,
                )
                self.offset = batch.first_offset
                continue
            # The node may lag behind the one that served before.
            if backoff is None:
                backoff = Backoff(Deadline(BEYOND_END_GRACE_MS))
            is_local = self._options.freshness.consistency is Consistency.LOCAL
            if backoff.deadline.has_passed and not is_local:
                raise self._out_of_range(batch)
            await asyncio.sleep(max(0.02, backoff.next_s()))

    async def _went_back(self, batch: MessageBatch) -> bool:
        """Search the last read message on a node that did not serve before; if it is missing, go
        back.

        Return whether the offset went back. The offset that a group stored is then behind the end,
        too, and is stored again as reading continues. Local reads are exempt: a lagging replica
        still gets the missing messages.
        """
        trail, is_lost = self._trail, False
        is_local = self._options.freshness.consistency is Consistency.LOCAL
        while not is_local and trail and trail[-1][0] >= batch.first_offset:
            there = await self._pull_once(trail[-1][0], self._search)
            if there.messages and _mark(there.messages[0]) == trail[-1]:
                break
            is_lost = True
            trail.pop()
        self._node_id = batch.node_id
        if not is_lost:
            return False
        end = trail[-1][0] + 1 if trail else batch.first_offset
        _log.warning(
            "%s: node %d does not have what was read up to offset %d before, the end of that log "
            "is lost; reading goes on from offset %d",
            self.queue,
            batch.node_id,
            self.offset - 1,
            end,
        )
        self.offset = end
        self._skipped = (end, end)
        return True

    async def _pull_once(self, offset: int, options: FetchOptions) -> MessageBatch:
        pulls = self._inbox.pulls[self.queue.broker_group]
        short_ms = min(options.wait_ms, WAIT_SHARED_MS)
        while True:
            try:
                async with pulls:
                    pull = replace(options, wait_ms=short_ms) if pulls.locked() else options
                    return await self._reads.pull(self.queue, offset, pull)
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
            f"offset {self.offset} of {self.queue} is outside of [{batch.first_offset}, "
            f"{batch.end_offset}]; begin at 'first' or 'end'",
            first_offset=batch.first_offset,
            end_offset=batch.end_offset,
        )
