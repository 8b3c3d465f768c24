"""The producer: takes messages, batches them, gives receipts.

Owns the buffer and its limit, and the public calls; must not know to which broker group batches go
(`accumulator`), how they travel or what is done when that fails (`append_stream`). A batch leaves
as soon as the one before it has its receipt, or when it is full; so under light load every message
leaves at once, and under heavy load batches grow by themselves.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog import errors
from quorumlog.arguments import checked, checks_itself, shown, whole_number
from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.close_once import Closing
from quorumlog.cluster.forks import forks
from quorumlog.cluster.retry import Deadline
from quorumlog.pb.log_pb2 import ProducerIncarnation
from quorumlog.produce.accumulator import Accumulator, GroupBacklog
from quorumlog.produce.delivery import Batch, Delivery, Receipts
from quorumlog.produce.options import BATCH_COUNT_LIMIT, ProducerOptions
from quorumlog.produce.outgoing_messages import (
    BATCH_SIZE_BYTES_LIMIT,
    HAS_DELAYED,
    HELD_SIZE_BYTES,
    all_with_wish,
    check_bodies,
    entries_of,
    entry_of,
    form_of,
    with_message_group,
    with_wish,
)
from quorumlog.produce.unasked import Failures, warn, watch
from quorumlog.records.batch import Entry, size_bytes_of, size_bytes_of_all
from quorumlog.records.message import OutgoingMessage
from quorumlog.records.receipt import Receipt

_SUMS: Final = (
    "acked_count", "acked_size_bytes", "failed_count", "duplicates_count", "batches_acked",
    "retried_batches",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counts since the start of the producer; `no_ack_ms_max` is the longest time without a receipt
    while messages were under way."""

    acked_count: int
    acked_size_bytes: int
    failed_count: int
    duplicates_count: int
    batches_acked: int
    retried_batches: int
    in_flight_batches: int
    held_size_bytes: int
    leader_changes: int
    no_ack_ms_max: float


@checked
class Producer(Closing):
    """Sends messages. Made by `client.producer()`; belongs to the event loop it was made in.

    Messages for one queue keep the order in which they were handed over. With `idempotent` (the
    default) a message is stored once, however often it had to be sent. Without it, an append that
    got no answer fails with OutcomeUnknownError at once, and order is kept only with
    `in_flight_max=1`.
    """

    def __init__(self, groups: BrokerGroups, options: ProducerOptions, timeout_ms: int) -> None:
        """`timeout_ms` is for options that have none."""
        super().__init__()
        self._timeout_ms: Final = options.timeout_ms or timeout_ms
        self._options = options
        self.form: Final = form_of(
            options.compression, options.compress_from_size_bytes, options.unique_keys
        )
        """Changes to every message; None: no change."""
        self._groups = groups
        self._accumulator = Accumulator(groups, self._on_sender_ended, self._timeout_ms, options)
        self._is_closed = False
        self._bug: errors.QuorumlogError | None = None
        self._unfinished: dict[Batch, int] = {}
        """In the order of their making, with the number of the first flush that covers each."""
        self._held_size_bytes = 0
        self._room_waiters: deque[asyncio.Event] = deque()
        self._failures = Failures()
        self._leader_changes_before = self._leader_changes()
        watch(self._waiting_count, self._failures, self._unfinished)

    @checks_itself
    async def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        broker_group: str = "",
        delay: float | None = None,
        level: int | None = None,
        deliver_at: float | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> Receipt:
        """Send one message and wait for its receipt.

        The queue is `queue_id`, or chosen by CRC-32 of `key` modulo the number of queues, or round
        robin a batch at a time. `key` (several with one blank between) is indexed for
        `query_by_key`; consumers can filter by `tag`. A str body is sent as UTF-8.

        In a cluster of several broker groups `broker_group` names one of them. Without it a
        `queue_id` is of the first one by name, a key has one of its own, and a message with neither
        goes to any that answers.

        Messages of one `message_group` go to one queue, for as long as the number of queues stays,
        and are consumed in order there (`pop_consumer(fifo=True)`).

        With `delay` (seconds), `level` (1 to 18) or `deliver_at` (Unix seconds) consumers see it
        then, and not before; the receipt says that it is held. `client.cancel_delayed` undoes it.

        With `timeout_ms`, at most that of the producer, the call ends after this time: by
        DeadlineError if the message was certainly not sent, else by OutcomeUnknownError. Such a
        message is a batch of its own.

        Raises UnknownTopicError, TooLargeError, InvalidRequestError, LimitReachedError or
        DeadlineError (nothing was stored), or OutcomeUnknownError. Cancelling the wait does not
        withdraw the message.
        """
        extra, limit = b"", None if timeout_ms is None else self._limit(timeout_ms)
        if delay is not None or level is not None or deliver_at is not None:
            properties, extra = with_wish(properties, delay, level, deliver_at), HAS_DELAYED
        if message_group is not None:
            properties = with_message_group(properties, message_group)
        entry = entry_of(topic, body, key, tag, queue_id, properties, flag, self.form)
        size_bytes = size_bytes_of(entry)
        deadline = None
        if self._room_waiters or not self._has_room(size_bytes):
            deadline = await self._wait_for_room(size_bytes, limit)
        backlog = None if limit or broker_group or extra else self._accumulator.only
        if backlog is not None and forks.own[0] and not self._is_closed:
            route = backlog.sender.clear_route(topic)
            if route is not None:  # The straight way, past the buffer.
                deadline = deadline or Deadline(self._timeout_ms)
                batch = Batch(deadline, self._on_done, group=backlog.router.group)
                backlog.sender.send_single(batch, entry, size_bytes, route.queue_count)
                self._unfinished[batch] = self._failures.next_flush
                self._held_size_bytes += size_bytes
                await batch.waiter()
                return batch.receipt(0)
        return await self._add(entry, size_bytes, broker_group, extra, limit, deadline).receipt()

    @checks_itself
    async def enqueue(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        broker_group: str = "",
        delay: float | None = None,
        level: int | None = None,
        deliver_at: float | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> Delivery:
        """Hand over one message, waiting only while the buffer is full; the way to send in bulk.

        Raises the error of a faulty message at once; later errors are raised by the Delivery, or by
        `flush`.
        """
        extra, limit = b"", None if timeout_ms is None else self._limit(timeout_ms)
        if delay is not None or level is not None or deliver_at is not None:
            properties, extra = with_wish(properties, delay, level, deliver_at), HAS_DELAYED
        if message_group is not None:
            properties = with_message_group(properties, message_group)
        entry = entry_of(topic, body, key, tag, queue_id, properties, flag, self.form)
        size_bytes = size_bytes_of(entry)
        if self._room_waiters or not self._has_room(size_bytes):
            await self._wait_for_room(size_bytes, limit)
        return self._add(entry, size_bytes, broker_group, extra, limit)

    @checks_itself
    def send_nowait(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        broker_group: str = "",
        delay: float | None = None,
        level: int | None = None,
        deliver_at: float | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> Delivery:
        """Hand over one message. Raises BusyError (`client.busy`) while the buffer is full."""
        extra, limit = b"", None if timeout_ms is None else self._limit(timeout_ms)
        if delay is not None or level is not None or deliver_at is not None:
            properties, extra = with_wish(properties, delay, level, deliver_at), HAS_DELAYED
        if message_group is not None:
            properties = with_message_group(properties, message_group)
        entry = entry_of(topic, body, key, tag, queue_id, properties, flag, self.form)
        size_bytes = size_bytes_of(entry)
        if not self._has_room(size_bytes):
            raise self._busy("is full")
        return self._add(entry, size_bytes, broker_group, extra, limit)

    @checks_itself
    async def send_batch(
        self,
        topic: str,
        bodies: Sequence[bytes | str | OutgoingMessage],
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        broker_group: str = "",
        delay: float | None = None,
        level: int | None = None,
        deliver_at: float | None = None,
        timeout_ms: int | None = None,
    ) -> Sequence[Receipt]:
        """Send several messages as one atomic batch: all are stored, in one entry, or none.

        Messages may differ in topic, queue and so on: give an OutgoingMessage instead of a body.
        All go to one broker group: the one named, else the one of the first queue id or key. Raises
        TooLargeError if they do not fit into one entry (4 MiB). With `delay`, `level` or
        `deliver_at` all are delayed, as in `send`.
        """
        check_bodies(bodies)
        extra, limit = b"", None if timeout_ms is None else self._limit(timeout_ms)
        if not bodies:
            return []
        if delay is not None or level is not None or deliver_at is not None:
            properties = with_wish(properties, delay, level, deliver_at)
            bodies, extra = all_with_wish(bodies, delay, level, deliver_at), HAS_DELAYED
        entries = entries_of(bodies, topic, key, tag, queue_id, properties, self.form)
        size_bytes = size_bytes_of_all(entries)
        room = self._groups.home.router.batch_size_bytes_max or BATCH_SIZE_BYTES_LIMIT
        room -= HELD_SIZE_BYTES * len(entries) if extra else 0
        if size_bytes > room or len(entries) > BATCH_COUNT_LIMIT:
            raise errors.TooLargeError(
                f"a batch of {len(entries)} messages and {size_bytes} bytes, the limits are "
                f"{BATCH_COUNT_LIMIT} and {room}; send less at once"
            )
        return await self.send_entries(entries, size_bytes, broker_group, extra, limit=limit)

    @checks_itself
    async def send_entries(
        self,
        entries: list[Entry],
        size_bytes: int,
        broker_group: str,
        extra: bytes = b"",
        deadline: Deadline | None = None,
        limit: Deadline | None = None,
    ) -> Receipts:
        """Send checked messages as `send_batch` does; `extra` are fields of AppendRequest,
        `deadline` is that of a call with earlier steps, and `limit` that of the messages alone."""
        if self._room_waiters or not self._has_room(size_bytes):
            deadline = await self._wait_for_room(size_bytes, limit or deadline)
        self._check_open()
        backlog = self._accumulator.only
        if backlog is None or broker_group:
            backlog = self._accumulator.choose_for_all(entries, broker_group)
        batch = self._put_whole(backlog, extra, entries, size_bytes, deadline, limit)
        await batch.wait()
        return batch.receipts()

    async def flush(self) -> None:
        """Wait until everything handed over so far is acknowledged or has failed.

        Raises the first failure of these that no caller received: none awaited it, or the wait was
        given up. It is raised by each flush under way that waited for it or for one like it, of any
        task, else by the next flush that begins; later ones do not repeat it.
        """
        forks.check()
        with self._failures.flush(self._unfinished):
            await self._wait_for_all()

    async def _wait_for_all(self) -> None:
        self._accumulator.flush(1)
        try:
            for batch in list(self._unfinished):
                await batch.wait()
            await asyncio.sleep(0)  # Failures are noted once those that wait for them have run.
        finally:
            self._accumulator.flush(-1)

    def _waiting_count(self) -> int:
        """Return the messages without a receipt or an error; any thread may ask."""
        waiting = sum(batch.record_count for batch in list(self._unfinished))
        return waiting + len(self._room_waiters)  # A call waits for room with one message or more.

    async def close(self) -> None:
        """Flush, then end. Raises as `flush` does, after it has ended; later sends are refused."""
        self._is_closed = True
        await self.close_once.once(self._flush_and_stop)

    async def _flush_and_stop(self) -> None:
        with self._failures.flush(self._unfinished):  # One that is cancelled leaves it to the next.
            await self._wait_for_all()
            await self._stop()

    async def abort(self) -> None:
        """End at once. Messages without a receipt fail with ClosedError: those that were sent with
        their outcome unknown, those still in the buffer with `not_applied`."""
        self._is_closed = True
        if self.close_once.is_begun:
            await self._stop()  # There is nothing left to flush.
        await self.close_once.once(self._stop)

    async def _stop(self) -> None:
        error = errors.ClosedError(
            "the producer was closed before this message had a receipt; read back what was stored",
            outcome=errors.Outcome.UNKNOWN,
        )
        self._fail_unsent(error)  # First, since the tasks send what waits until they have ended.
        await self._accumulator.stop()
        self._fail_all(error)

    def incarnation_in(self, broker_group: BrokerGroup) -> ProducerIncarnation | None:
        """Return the claim of its name in a broker group; None without a name, or before it sent
        anything there."""
        senders = [backlog.sender for backlog in self._accumulator if backlog.group is broker_group]
        return senders[0].identity.incarnation if senders else None

    def stats(self) -> ProducerStats:
        """Return the counts so far."""
        senders = [backlog.sender for backlog in self._accumulator]
        every = [sender.stats for sender in senders]
        return ProducerStats(
            **{name: sum(getattr(stats, name) for stats in every) for name in _SUMS},
            in_flight_batches=sum(sender.in_flight_count for sender in senders),
            held_size_bytes=self._held_size_bytes,
            leader_changes=self._leader_changes() - self._leader_changes_before,
            no_ack_ms_max=round(max((stats.no_ack_ms_max for stats in every), default=0.0), 3),
        )

    def _leader_changes(self) -> int:
        return sum(group.router.leader_changes for group in self._groups.known())

    # The buffer.

    def _add(
        self,
        entry: Entry,
        size_bytes: int,
        broker_group: str,
        extra: bytes,
        limit: Deadline | None,
        deadline: Deadline | None = None,
    ) -> Delivery:
        """Add a message to an open batch of its kind, or to one of its own if it has a `limit`; the
        caller has checked the room, and a new batch has what is left of its time."""
        self._check_open()
        backlog = self._accumulator.only
        if backlog is None or broker_group:
            backlog = self._accumulator.choose(entry, broker_group)
        if limit is not None:
            whole = self._put_whole(backlog, extra, [entry], size_bytes, None, limit)
            return Delivery(whole, 0)
        options, batch = self._options, backlog.of_kind(extra)
        # The limit of the nodes may be lower than the option.
        room = options.batch_size_bytes_max
        if 0 < backlog.router.batch_size_bytes_max < room:
            room = backlog.router.batch_size_bytes_max
        if batch is not None and batch.size_bytes + size_bytes > room - _growth(batch):
            backlog.close(batch)
            batch = None
        if batch is None:
            batch = backlog.open[extra] = self._new_batch(backlog, extra, deadline)
            backlog.put(batch)
            backlog.sender.wake()
        delivery = batch.add(entry, size_bytes)
        self._held_size_bytes += size_bytes
        if batch.record_count >= options.batch_count_max or batch.size_bytes >= room:
            backlog.close(batch)
        return delivery

    def _new_batch(
        self,
        backlog: GroupBacklog,
        extra: bytes,
        deadline: Deadline | None,
        *,
        is_atomic: bool = False,
    ) -> Batch:
        batch = Batch(
            deadline or Deadline(self._timeout_ms),
            self._on_done,
            is_atomic=is_atomic,
            group=backlog.group.name,
            is_pinned=backlog.is_pinned,
        )
        batch.extra = extra
        self._unfinished[batch] = self._failures.next_flush
        return batch

    def _put_whole(
        self,
        backlog: GroupBacklog,
        extra: bytes,
        entries: list[Entry],
        size_bytes: int,
        deadline: Deadline | None,
        limit: Deadline | None,
    ) -> Batch:
        """Put messages into a batch of their own, behind all that came before. One with a `limit`
        has another travel for it, with the time of the producer: so what was sent within it has an
        outcome for those behind it, also when its callers wait no longer."""
        backlog.close_open()
        batch = travelling = self._new_batch(backlog, extra, deadline, is_atomic=True)
        batch.add_all(entries, size_bytes)
        self._held_size_bytes += size_bytes
        if limit is not None:
            travelling = batch.stand_in()
            timer = asyncio.get_running_loop().call_later(
                limit.remaining_s, self._expire, batch, travelling, limit
            )

            def done(ended: Batch) -> None:
                timer.cancel()
                self._on_done(ended)

            batch.on_done = done
        backlog.put(travelling)
        backlog.sender.wake()
        return batch

    def _expire(self, batch: Batch, travelling: Batch, limit: Deadline) -> None:
        """Give up a batch at its own limit: in doubt, unless it is certain that it was not sent."""
        error, known = travelling.last_error, {"attempts": travelling.attempts}
        for backlog in self._accumulator:
            if backlog.sender.take(lambda waiting: waiting is travelling):
                backlog.sender.stats.failed_count += batch.record_count
                travelling.fail(limit.error("the append", error, **known))
                return
        batch.leave(limit.error_unknown("the append", error, **known))

    def _limit(self, timeout_ms: int) -> Deadline:
        """Return the limit of one call. Raises InvalidRequestError beyond the producer's own."""
        if not 0 < whole_number("timeout_ms", timeout_ms) <= self._timeout_ms:
            wanted = f"use 1 to {self._timeout_ms}, that of the producer"
            raise errors.InvalidRequestError(f"timeout_ms is {shown(timeout_ms)}; {wanted}")
        return Deadline(timeout_ms)

    def _on_done(self, batch: Batch) -> None:
        number = self._unfinished.pop(batch)
        self._held_size_bytes -= batch.size_bytes
        if batch.error is not None:  # After those that wait for it, some of whom were cancelled.
            asyncio.get_running_loop().call_soon(self._failures.note, batch, number)
        if self._room_waiters:
            self._wake_room_waiter()

    def _has_room(self, size_bytes: int) -> bool:
        held = self._held_size_bytes
        return held == 0 or held + size_bytes <= self._options.buffer_size_bytes_max

    async def _wait_for_room(self, size_bytes: int, deadline: Deadline | None = None) -> Deadline:
        """Wait in line for room; return the deadline of the call. Raises BusyError when it passes
        first."""
        deadline = deadline or Deadline(self._timeout_ms)
        line, turn = self._room_waiters, asyncio.Event()
        line.append(turn)  # Until its message has taken its share, so that none comes before it.
        try:
            while line[0] is not turn or not self._has_room(size_bytes):
                self._check_open()
                turn.clear()
                async with asyncio.timeout(max(0.0, deadline.remaining_s)):
                    await turn.wait()
        except TimeoutError:
            raise self._busy(f"was full for {deadline.timeout_ms:.0f} ms") from None
        finally:
            line.remove(turn)
            # The next in line checks the room, once this message has taken its share.
            asyncio.get_running_loop().call_soon(self._wake_room_waiter)
        return deadline

    def _wake_room_waiter(self) -> None:
        if self._room_waiters and self._has_room(1):
            self._room_waiters[0].set()

    def _busy(self, what: str) -> errors.BusyError:
        return errors.BusyError(
            f"the producer's buffer of {self._options.buffer_size_bytes_max} bytes {what}; "
            f"slow down or await enqueue()"
        )

    # Its end.

    def _check_open(self) -> None:
        if not forks.own[0]:
            forks.check()
        if self._bug is not None:
            raise self._bug
        if self._is_closed:
            raise errors.ClosedError("the producer is closed; make another one")

    def _on_sender_ended(self, task: asyncio.Task[None]) -> None:
        """Fail all messages and waiting callers: no batch is sent any more."""
        if task.cancelled():  # Not by this client: as a rule its event loop ends.
            text = "the producer's task was cancelled; read back what was stored"
            self._bug = errors.ClosedError(text, outcome=errors.Outcome.UNKNOWN)
            warn(self._waiting_count)
        else:
            bug = task.exception()
            self._bug = errors.InternalError(
                f"the producer broke ({type(bug).__name__}: {bug}); report this as a bug",
                code="client.internal",
            )
            self._bug.__cause__ = bug
        self._fail_all(self._bug)

    def _fail_all(self, error: errors.QuorumlogError) -> None:
        """Fail what has no receipt: by `error`, or as not sent where that is certain."""
        self._fail_unsent(error)
        self._accumulator.clear()
        for batch in list(self._unfinished):
            if not batch.is_done:
                self._accumulator.home.sender.stats.failed_count += batch.record_count
                batch.fail(error)
        for turn in self._room_waiters:
            turn.set()

    def _fail_unsent(self, error: errors.QuorumlogError) -> None:
        unsent = copy.copy(error)
        unsent.outcome = errors.Outcome.NOT_APPLIED
        if isinstance(error, errors.ClosedError):
            unsent.args = ("the producer ended before it sent this message; use another producer",)
        for backlog in self._accumulator:
            backlog.sender.drop(unsent)


def _growth(batch: Batch) -> int:
    """Return the bytes by which a batch with one message more may grow when it is held."""
    return HELD_SIZE_BYTES * (batch.record_count + 1) if batch.extra else 0
