"""The pull consumer: reads queues from explicit positions, and stores no offsets in the cluster.

Owns iteration, one message or one batch at a time, which the group consumer shares; must not know
of consumer groups. Queues are read ahead side by side; order holds within a queue. A broker group
that is down does not keep the queues of the others from being read.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from quorumlog.arguments import checked
from quorumlog.cluster.broker_groups import BrokerGroup
from quorumlog.cluster.channels import is_cancelled
from quorumlog.cluster.close_once import Closing
from quorumlog.cluster.forks import forks
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.turns import Turns
from quorumlog.consume.in_hand import InHand, Reader
from quorumlog.consume.prefetch import PATIENCE_MS, FetchArguments, Fetcher, FetchOptions, Inbox
from quorumlog.consume.reads import ReadArguments, ReadCalls, Reading, unknown_topic
from quorumlog.consume.starts import START_MS, Starts
from quorumlog.errors import (
    ClosedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    QuorumlogError,
)
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.options import END, Consistency, Position
from quorumlog.records.queues import Pair, Queue, queue_in

QUEUES_MAX = 4_096  # Of one consumer: each queue has a task and a parked call.
LOOK_MS = 5_000  # Interval of looks for queues and broker groups that came later.
_log = logging.getLogger("quorumlog.consumer")


class BatchIterator:
    """Iterates over batches of a consumer: the fast path."""

    def __init__(self, consumer: "Consumption") -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, MessageBatch]:
        return self._next(self._consumer.next_batch())

    async def _next(self, taking: Awaitable[MessageBatch | None]) -> MessageBatch:
        if (batch := await taking) is None:
            raise StopAsyncIteration
        return batch


class MessageIterator:
    """Iterates over messages of a consumer for one task."""

    def __init__(self, consumer: "Consumption") -> None:
        self._consumer = consumer
        self._reader = asyncio.current_task()  # Once: it costs as much as handing a message out.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if forks.is_known:
            forks.check()
        consumer, reader = self._consumer, self._reader
        if time.monotonic() < consumer.turn_s:
            message = consumer.next_ready(reader)
            if message is not None:
                return message
        return await consumer.next_message(reader)


class Consumption(Closing):
    """The common part of both consumers: fetchers, delivery to the program, iteration."""

    def __init__(self, reads: ReadCalls, options: FetchOptions) -> None:
        super().__init__()
        self._reads = reads
        self._options = options
        self._inbox = Inbox(options.held_size_bytes_max, options.held_count_max)
        self._inbox.is_finished = self._is_finished
        self._fetchers: dict[Queue, Fetcher] = {}
        self._handed: dict[Queue, int] = {}  # Offset after the last message handed out.
        self.in_hand: Final = InHand()
        self._current: MessageBatch | None = None  # The batch that is being handed out.
        self._at = 0
        self._turns: Final = Turns()
        self.turn_s = 0.0
        """When the loop is due a turn before the next delivery, by the monotonic clock."""
        self._taking = asyncio.Lock()  # Held while the current batch is replaced.
        self._starting = asyncio.Lock()
        self._beginning: asyncio.Task[None] | None = None
        self._is_started = False

    async def start(self) -> None:
        """Begin to fetch; iterating does it too. Raises ClosedError if it is closed meanwhile.

        Raises UnknownTopicError, InvalidRequestError, or the error that kept all nodes from
        answering.
        """
        async with self._starting:
            if self._is_started:
                return
            self._check_open()
            self._beginning = asyncio.create_task(self._begin())
            try:
                await self._beginning
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                self._check_open()  # Cancelled by `_give_up_starting`.
                raise
            self._is_started = True

    async def _begin(self) -> None:
        """Find the queues to read, and begin to fetch them."""
        raise NotImplementedError

    async def _give_up_starting(self) -> None:
        """End a start that is under way: no fetcher is added from now on."""
        self._inbox.wake()
        if self._beginning is not None:
            self._beginning.cancel()
        async with self._starting:
            pass  # The task in `start` has noticed.

    def __aiter__(self) -> MessageIterator:
        return MessageIterator(self)

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        # The task that asks is the reader, also if another one awaits the answer for it.
        return self.next_message(asyncio.current_task())

    async def next_message(self, reader: Reader) -> Message:
        """Wait for the next message, and hand it out to a reader. Raises StopAsyncIteration."""
        message = self.next_ready(reader) if time.monotonic() < self.turn_s else None
        while message is None:
            if not await self.fill(reader):
                raise StopAsyncIteration
            message = self.next_ready(reader)
        return message

    async def fill(self, reader: Reader) -> bool:
        """Wait until a message can be handed out to a reader; return False when all is read.

        Hands nothing out, so a caller that does not wait any more loses nothing. The delivery
        before counts as processed.
        """
        if not forks.own[0]:
            forks.check()
        self.in_hand.put_down(reader)
        if time.monotonic() >= self.turn_s:
            self.turn_s = await self._turns.give()
        while (spent := self._current) is None or self._at >= len(spent.messages):
            async with self._taking:
                if self._current is not spent:
                    continue  # Another task has replaced the batch: keep that one.
                self._current = None
                taken = await self._next()
                if taken is None:
                    return False
                self._at = 0  # Before the batch is there: another thread looks at both.
                self._current = taken
        return True

    def next_ready(self, reader: Reader) -> Message | None:
        """Hand out the next message of the current batch to a reader; None if none is left.

        Does not wait, and may be called from another thread, by one thread at a time.
        """
        current, at = self._current, self._at
        if current is None or at >= len(messages := current.messages):
            return None
        message, queue = messages[at], current.queue
        in_hand = self.in_hand
        if reader is in_hand.reader:  # As `take`, without a call for each message.
            in_hand.last = queue, message.queue_offset, None, reader
        else:
            in_hand.take(reader, queue, message.queue_offset)
        self._at = at = at + 1
        # The last message takes along the ones that were filtered out behind it.
        is_last = at == len(messages)
        self._handed[queue] = current.next_offset if is_last else message.queue_offset + 1
        return message

    def batches(self) -> BatchIterator:
        """Iterate over batches instead of messages."""
        return BatchIterator(self)

    def next_batch(self) -> Coroutine[Any, Any, MessageBatch | None]:
        """Wait for a batch; None when all is read. The rest of a begun batch comes first."""
        return self.next_batch_of(asyncio.current_task())

    async def next_batch_of(self, reader: Reader) -> MessageBatch | None:
        """Wait for a batch, and hand it out to a reader."""
        batch = self.batch_ready(reader) if time.monotonic() < self.turn_s else None
        while batch is None:
            if not await self.fill(reader):
                return None
            batch = self.batch_ready(reader)
        return batch

    def batch_ready(self, reader: Reader) -> MessageBatch | None:
        """Hand out the rest of the current batch to a reader; None if nothing is left.

        May be called as `next_ready`.
        """
        current, at = self._current, self._at
        if current is None or at >= len(current.messages):
            return None
        batch = _rest(current, at) if at else current
        self.in_hand.take(reader, batch.queue, batch.messages[0].queue_offset, batch)
        self._handed[batch.queue] = batch.next_offset
        self._current = None
        return batch

    def take_back(self, reader: Reader, before: object) -> None:
        """Hand out again what a reader never got, if its newest delivery is not `before`.

        May be called as `next_ready`, by which nothing was handed out since.
        """
        last = self.in_hand.last
        if last is None or last is before or last[3] is not reader:
            return
        queue, offset, batch, _ = last
        if batch is not None:
            self._at, self._current = 0, batch
        elif self._at and (current := self._current) is not None:
            self._at -= current.messages[self._at - 1].queue_offset == offset
        self._handed[queue], self.in_hand.last = offset, None

    def _position(self, queue: Queue) -> int:
        """Return the offset behind what was handed out of a queue, or need not be."""
        handed, fetcher = self._handed[queue], self._fetchers.get(queue)
        return handed if fetcher is None else fetcher.beyond(handed)

    def _check_open(self) -> None:
        forks.check()
        if self.close_once.is_begun:
            raise ClosedError("the consumer is closed; make another one")

    async def _next(self) -> MessageBatch | None:
        self._check_open()
        if not self._is_started:
            await self.start()
        return await self._inbox.get()

    def _is_finished(self) -> bool:
        return self.close_once.is_begun

    def _fetch(self, queue: Queue, offset: int, end_offset: int | None = None) -> None:
        self._check_open()  # A fetcher that starts now would never be stopped.
        assert queue not in self._fetchers, f"{queue} is fetched already"
        self._handed[queue] = offset
        self._fetchers[queue] = Fetcher(
            self._reads, queue, offset, self._options, self._inbox, end_offset=end_offset
        )

    async def _stop_fetching(self, queues: Iterable[Queue], *, keeps_hand: bool = False) -> None:
        """Stop fetching queues; from the call on, no message of them is handed out. `keeps_hand`:
        the last delivery of one still counts when it is processed."""
        queues, stopping = set(queues), []
        for queue in queues:
            fetcher = self._fetchers.pop(queue, None)
            if fetcher is None:
                continue  # A close stops it meanwhile.
            stopping.append(fetcher.stop())
            current = self._current
            if current is not None and current.queue == queue:
                self._current = None
        if not keeps_hand:  # Also if a queue comes back: others may have consumed it.
            self.in_hand.drop(queues)
        await asyncio.gather(*stopping)

    async def _close(self) -> None:
        await self._give_up_starting()
        await self._stop_all()

    async def _stop_all(self) -> None:
        await self._stop_fetching(list(self._fetchers))

    def _on_helper_ended(self, task: "asyncio.Task[None]") -> None:
        """Have the next delivery raise the error that ended a background task."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._inbox.fail(error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self


@dataclass(frozen=True, kw_only=True)
class PullArguments(FetchArguments, ReadArguments):
    """What a program says of how queues are pulled, as `client.pull_consumer` describes it."""

    queues: Sequence[int | Pair] | None = None
    position: Position = "first"
    until: Position | None = None


@dataclass(frozen=True)
class PullConsumerOptions(PullArguments):
    """The arguments of a pull consumer."""

    topic: str


@checked
class PullConsumer(Consumption):
    """Reads queues of one topic from a position on. Made by `client.pull_consumer()`.

    Iterate over it for messages, or over `batches()`. With `until` it ends before that position, at
    the latest where the queues ended when it started. Without it, it waits for more for ever, and
    unless queues are named it also reads those that come later, from their first message on: of a
    topic that grows, and of a new broker group.

    A broker group that is down does not stop the others: the consumer keeps asking it. With
    `until`, once all else is read, it raises the error that kept it from reading the rest.
    """

    def __init__(self, reads: ReadCalls, options: PullConsumerOptions, timeout_ms: int) -> None:
        fetching = options.reading(timeout_ms)
        super().__init__(reads, replace(fetching, freshness=options.freshness))
        topic, queues = options.topic, options.queues
        self.topic = topic
        self._wanted = None if queues is None else [queue_in(topic, queue) for queue in queues]
        self._starts = Starts(options.position)
        self._until = options.until
        self._late: set[asyncio.Task[None]] = set()
        """Tasks of groups that have not answered yet, and the one that looks for what is new."""

    async def _begin(self) -> None:
        freshness = self._options.freshness
        groups = self._reads.asked_groups(freshness)
        if self._wanted is not None:
            named = (self._reads.group_of(queue, freshness) for queue in self._wanted)
            groups = tuple(dict.fromkeys(named))
        self._starts.begin(group.name for group in groups)
        if len(groups) == 1:
            if not await self._begin_in(groups[0]):
                raise unknown_topic(self.topic)
        else:
            self._options = replace(self._options, is_patient=self._until is None)
            self._inbox.defers_errors = True
            try:
                await self._begin_all(groups)
            except BaseException:
                await self._stop_all()
                raise
        if self._until is None and self._wanted is None:
            look = asyncio.create_task(self._look())
            self._late.add(look)
            look.add_done_callback(self._on_attended)

    async def _look(self) -> None:
        """Begin with queues and broker groups that come later."""
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            for group in self._reads.asked_groups(self._options.freshness):
                try:
                    await self._begin_in(group)
                except QuorumlogError as error:
                    if not error.retryable:
                        raise
                    _log.warning("%s: new queues are looked for again: %s", self.topic, error)

    async def _begin_all(self, groups: Sequence[BrokerGroup]) -> None:
        """Begin with the groups that answer; tasks wait for the others in the background."""
        loop = asyncio.get_running_loop()
        patience_s = loop.time() + START_MS / 1000
        tasks = {asyncio.create_task(self._attend(group)) for group in groups}
        self._late = set(tasks)
        while (waiting := [task for task in tasks if not task.done()]) and (
            not self._fetchers or loop.time() < patience_s
        ):
            left_s = max(0.0, patience_s - loop.time()) if self._fetchers else None
            await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        failed = [task.exception() for task in tasks if task.done()]
        errors = [error for error in failed if error is not None]
        fatal = [e for e in errors if not isinstance(e, QuorumlogError) or not e.retryable]
        if fatal or not self._fetchers:
            raise (fatal or errors or [unknown_topic(self.topic)])[0]
        for task in tasks:
            task.add_done_callback(self._on_attended)

    def _on_attended(self, task: "asyncio.Task[None]") -> None:
        self._late.discard(task)
        self._on_helper_ended(task)
        self._inbox.wake()

    async def _attend(self, group: BrokerGroup) -> None:
        """Begin with a group, also one that is down; without `until`, try for ever."""
        while True:
            try:
                await self._begin_in(group)
                return
            except QuorumlogError as error:
                if self._until is not None or not error.retryable:
                    raise
                _log.warning("%s: broker group %s is waited for: %s", self.topic, group.name, error)
            await asyncio.sleep(PATIENCE_MS / 1000)

    async def _begin_in(self, group: BrokerGroup) -> bool:
        """Begin to fetch the queues of one group that are not read; return whether it has the
        topic."""
        reading = Reading(self._options.freshness, Deadline(self._options.timeout_ms))
        there = await self._reads.group_queues(group, [self.topic], reading)
        queues = there
        if self._wanted is not None:
            mine = [q for q in self._wanted if self._reads.group_of(q, reading.freshness) is group]
            if not there and mine:
                raise unknown_topic(self.topic)
            queues = [Queue(q.topic, q.queue_id, group.name) for q in dict.fromkeys(mine)]
            wrong = [queue for queue in queues if queue not in there]
            if wrong:
                text = f"there is no queue {wrong[0]}; use one of the {len(there)} that there are"
                raise InvalidRequestError(text, code="node.unknown_queue")
        self._starts.see(group.name, [self.topic], there)
        queues = [queue for queue in queues if queue not in self._fetchers]
        if len(queues) + len(self._fetchers) > QUEUES_MAX:
            raise InvalidRequestError(f"{self.topic} has more than {QUEUES_MAX} queues; name some")
        ends: dict[Queue, int] = {}
        if self._until is not None:
            ends = await self._ends(queues, self._until, reading)
        offsets = await self._starts.offsets(self._reads, queues, reading)
        for queue in queues:
            if queue not in self._fetchers:
                self._fetch(queue, offsets[queue], ends.get(queue))
        return bool(there)

    async def _ends(
        self, queues: Sequence[Queue], until: Position, reading: Reading
    ) -> dict[Queue, int]:
        """Return the offsets that reading ends before: those of `until`, or where queues end."""
        ends = await self._reads.positions(queues, END, reading)
        if until == END:
            return ends
        wanted = await self._reads.positions(queues, until, reading)
        return {queue: min(end, wanted[queue]) for queue, end in ends.items()}

    def queue_offsets(self) -> dict[Queue, int]:
        """Return the offset of the next message to be handed out, by queue."""
        return {queue: self._position(queue) for queue in self._handed}

    def offsets(self) -> dict[int, int]:
        """Return the offset of the next message to be handed out, by queue id.

        Raises InvalidRequestError when queues of several groups are read: see `queue_offsets`.
        """
        if len({queue.broker_group for queue in self._handed}) > 1:
            text = "queues of several groups have the same numbers; use queue_offsets()"
            raise InvalidRequestError(text)
        return {queue.queue_id: self._position(queue) for queue in self._handed}

    async def seek(self, queue_id: int | Pair, position: Position) -> None:
        """Continue at another position of one queue; its fetched messages are dropped.

        Raises OffsetOutOfRangeError, without any change, for an offset that is not in the queue.
        """
        reading = Reading(self._options.freshness, Deadline(self._options.timeout_ms))
        if not self._is_started:
            await self.start()
        named = queue_in(self.topic, queue_id)
        named = Queue(
            named.topic, named.queue_id, self._reads.group_of(named, reading.freshness).name
        )
        if named not in self._fetchers:
            read = ", ".join(map(str, sorted(self._fetchers)[:20]))
            raise InvalidRequestError(f"{named} is not read by this consumer; use one of {read}")
        offsets = await self._reads.positions([named], position, reading)
        await self._check_there(named, offsets[named], reading)
        end = None
        if self._until is not None:
            end = (await self._ends([named], self._until, reading))[named]
        self._check_open()
        await self._stop_fetching([named])
        self._fetch(named, offsets[named], end)

    async def _check_there(self, queue: Queue, offset: int, reading: Reading) -> None:
        """Raise OffsetOutOfRangeError for an offset outside the queue: fetching would fail all."""
        if reading.freshness.consistency is Consistency.LOCAL:
            return  # A lagging replica may get there later.
        (there,) = await self._reads.queue_offsets([queue], reading)
        if not there.first_offset <= offset <= there.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {queue} is outside of [{there.first_offset}, "
                f"{there.end_offset}]; reading continues where it was",
                first_offset=there.first_offset,
                end_offset=there.end_offset,
            )

    async def _stop_all(self) -> None:
        late, self._late = self._late, set()
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await super()._stop_all()

    def _is_finished(self) -> bool:
        is_read = not self._late and all(fetcher.is_done for fetcher in self._fetchers.values())
        return is_read or super()._is_finished()


def _rest(batch: MessageBatch, at: int) -> MessageBatch:
    """Return the part of a batch from one of its messages on, and what was left out before it."""
    messages = batch.messages[at:]
    return replace(
        batch,
        offset=batch.messages[at - 1].queue_offset + 1,
        messages=messages,
        size_bytes=sum(message.size_bytes for message in messages),
    )
