"""The pull consumer: reads queues from explicit positions, and remembers nothing elsewhere.

Owns iteration, one message or one batch at a time, which the group consumer shares; must not know
of groups. Queues are read ahead side by side; order holds within a queue.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

from quorumlog.errors import ClosedError, InvalidRequestError
from quorumlog.fetching import Fetcher, FetchOptions, Inbox, Queue
from quorumlog.message import Message, MessageBatch
from quorumlog.options import Position
from quorumlog.reads import Reads
from quorumlog.retry import Deadline

QUEUES_MAX = 4_096  # Of one consumer: each has a task and a parked call.


class BatchIterator:
    """Iterates over batches of a consumer: the fast path."""

    def __init__(self, consumer: "Consumption") -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageBatch:
        batch = await self._consumer.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class Consumption:
    """What both consumers share: fetchers, what was handed out, iteration."""

    def __init__(self, reads: Reads, options: FetchOptions) -> None:
        Deadline(options.timeout_ms)  # Checks it.
        if options.prefetch < 1:
            raise InvalidRequestError(f"prefetch is {options.prefetch}; use 1 or more")
        self._reads = reads
        self._options = options
        self._inbox = Inbox()
        self._inbox.is_finished = self._is_finished
        self._fetchers: dict[Queue, Fetcher] = {}
        self._handed: dict[Queue, int] = {}  # After the last message that was handed out.
        # Where what was handed out last began; it is processed when the next is asked for.
        self._in_hand: tuple[Queue, int] | None = None
        self._current: MessageBatch | None = None  # Of which messages are handed out one by one.
        self._at = 0
        self._is_started = False
        self._is_closed = False

    async def start(self) -> None:
        """Begin to fetch; iterating does it too."""
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        current = self._current
        if current is None or self._at >= len(current.messages):
            self._current = None
            current = await self._next()
            if current is None:
                raise StopAsyncIteration
            self._current, self._at = current, 0
        message = current.messages[self._at]
        self._at += 1
        self.hand_out(current, self._at - 1, self._at)
        return message

    def batches(self) -> BatchIterator:
        """Iterate over batches instead of messages."""
        return BatchIterator(self)

    async def next_batch(self) -> MessageBatch | None:
        """Wait for a batch; None when all is read. What is left of a begun one comes first."""
        batch = await self.take()
        if batch is not None:
            self.hand_out(batch, 0, len(batch.messages))
        return batch

    def hand_out(self, batch: MessageBatch, lo: int, hi: int) -> None:
        """Note that messages [lo, hi) of a batch are handed out, and so all before processed."""
        messages, queue = batch.messages, (batch.topic, batch.queue_id)
        self._in_hand = (queue, messages[lo].queue_offset)
        # The last one takes along those that were filtered out behind it.
        is_last = hi == len(messages)
        self._handed[queue] = batch.next_offset if is_last else messages[hi - 1].queue_offset + 1

    async def take(self) -> MessageBatch | None:
        """As `next_batch`, for those who call `hand_out` themselves."""
        current, self._current = self._current, None
        if current is not None and self._at < len(current.messages):
            messages = current.messages[self._at :]
            return _rest(current, messages)
        return await self._next()

    async def _next(self) -> MessageBatch | None:
        if self._is_closed:
            raise ClosedError("the consumer is closed; make another one")
        if not self._is_started:
            await self.start()
        self._in_hand = None
        return await self._inbox.get()

    def _is_finished(self) -> bool:
        return self._is_closed

    def _fetch(self, queue: Queue, offset: int, end_offset: int | None = None) -> None:
        assert queue not in self._fetchers, f"{queue} is fetched already"
        self._handed[queue] = offset
        self._fetchers[queue] = Fetcher(
            self._reads, queue, offset, self._options, self._inbox, end_offset=end_offset
        )

    async def _stop_fetching(self, queue: Queue) -> None:
        fetcher = self._fetchers.pop(queue)
        await fetcher.stop()
        current = self._current
        if current is not None and (current.topic, current.queue_id) == queue:
            self._current = None

    @property
    def is_closed(self) -> bool:
        """Say whether it was closed."""
        return self._is_closed

    async def close(self) -> None:
        """End it. Iterating raises ClosedError from now on."""
        self._is_closed = True
        self._inbox.wake()
        for queue in list(self._fetchers):
            await self._stop_fetching(queue)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class PullConsumer(Consumption):
    """Reads queues of one topic from a position on. Made by `client.pull_consumer()`.

    Iterate over it for messages, or over `batches()`. With `until="end"` it ends where the queues
    ended when it started; else it waits for more for ever. A queue that is added to the topic later
    is not read.
    """

    def __init__(
        self,
        reads: Reads,
        topic: str,
        options: FetchOptions,
        *,
        queues: Sequence[int] | None,
        position: Position,
        until: Literal["end"] | None,
    ) -> None:
        super().__init__(reads, options)
        if until not in (None, "end"):
            raise InvalidRequestError(f"until is {until!r}; use 'end' or None")
        self.topic = topic
        self._queue_ids = queues
        self._position = position
        self._until = until

    async def start(self) -> None:
        """Find the queues and their positions, and begin to fetch.

        Raises UnknownTopicError, InvalidRequestError, or DeadlineError when no node could answer.
        """
        if self._is_started:
            return
        deadline, freshness = Deadline(self._options.timeout_ms), self._options.freshness
        routes = await self._reads.topics([self.topic], freshness, deadline)
        count = routes[self.topic].queue_count
        queue_ids = range(count) if self._queue_ids is None else self._queue_ids
        wrong = [queue_id for queue_id in queue_ids if not 0 <= queue_id < count]
        if wrong or len(queue_ids) > QUEUES_MAX:
            raise InvalidRequestError(
                f"{self.topic} has no queue {wrong[0] if wrong else QUEUES_MAX}; it has {count}"
            )
        queues = [(self.topic, queue_id) for queue_id in dict.fromkeys(queue_ids)]
        ends: dict[Queue, int] = {}
        if self._until:
            ends = await self._reads.positions(queues, "end", freshness, deadline)
        offsets = await self._reads.positions(queues, self._position, freshness, deadline)
        self._is_started = True
        for queue in queues:
            self._fetch(queue, offsets[queue], ends.get(queue))

    def offsets(self) -> dict[int, int]:
        """Return the offset of the next message to be handed out, by queue id."""
        return {queue_id: offset for (_, queue_id), offset in self._handed.items()}

    async def seek(self, queue_id: int, position: Position) -> None:
        """Go on from another position of one queue. What was fetched of it is forgotten."""
        if not self._is_started:
            await self.start()
        queue = (self.topic, queue_id)
        if queue not in self._fetchers:
            raise InvalidRequestError(f"queue {queue_id} is not read by this consumer")
        deadline, freshness = Deadline(self._options.timeout_ms), self._options.freshness
        offsets = await self._reads.positions([queue], position, freshness, deadline)
        end = None
        if self._until:
            end = (await self._reads.positions([queue], "end", freshness, deadline))[queue]
        await self._stop_fetching(queue)
        self._fetch(queue, offsets[queue], end)

    def _is_finished(self) -> bool:
        return self._is_closed or all(fetcher.is_done for fetcher in self._fetchers.values())


def _rest(batch: MessageBatch, messages: list[Message]) -> MessageBatch:
    size_bytes = sum(message.size_bytes for message in messages)
    return replace(
        batch,
        first_offset=messages[0].queue_offset,
        messages=messages,
        size_bytes=size_bytes,
    )
