"""Consume, transform, produce, exactly once: outputs and offsets in one atomic entry.

Owns the inputs and outputs of one such transaction, and the offsets that it expects to be stored;
must not know how batches travel. The leader stores the entry only if the stored offsets are the
expected ones, so of two consumers that have read the same messages one is refused, with its
outputs. A transaction stays within one broker group: an entry is in one log.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

from quorumlog.arguments import checked, checks_itself
from quorumlog.cluster.broker_groups import BrokerGroups
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.group import GroupConsumer
from quorumlog.consume.moves import UNKNOWN, Known, moved_conflict
from quorumlog.consume.reads import ReadCalls, ReadFreshness, Reading
from quorumlog.errors import (
    ConflictError,
    InvalidRequestError,
    Outcome,
    OutcomeUnknownError,
    QuorumlogError,
)
from quorumlog.pb import common_pb2, consumer_pb2, log_pb2, transaction_pb2
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.produce.producer import Producer
from quorumlog.records.batch import Entry, size_bytes_of
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.queues import Queue
from quorumlog.records.receipt import Receipt

_NOT_SET: Final = -1

Stored = dict[Queue, Known]
"""Stored offsets of one consumer group, as far as this client knows them; -1: none is stored."""


class _Range(NamedTuple):
    """What was consumed of a queue: [lo, hi), and the offset of the first message of it. A filter
    left out those before it, so another one may have stored an offset up to it."""

    lo: int
    first: int
    hi: int


@checked
class ConsumeTransaction:
    """A transaction, made by `client.transaction(group)`. No call is made before its end.

    Use it with `async with`: leaving it stores everything, or nothing if the body raised.
    """

    def __init__(
        self,
        groups: BrokerGroups,
        reads: ReadCalls,
        producer: Producer,
        consumer_group: str,
        stored: Stored,
        consumers: Sequence[GroupConsumer],
        timeout_ms: int,
    ) -> None:
        """`stored` is what the client knows of the group, `consumers` its members here."""
        self._groups, self._reads, self._producer = groups, reads, producer
        self._consumer_group = consumer_group
        self._stored, self._consumers = stored, consumers
        self._timeout_ms = timeout_ms
        self._entries: list[Entry] = []
        self._consumed: dict[Queue, _Range] = {}
        self._newest_moves: dict[Queue, int] = {}
        """The last move before each queue was read, as far as it is known; 0: none."""
        self._is_done = False
        self.receipts: Sequence[Receipt] = ()
        """Receipts of the outputs, once they are stored."""

    @checks_itself
    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> None:
        """Add a message to the outputs; arguments as of `Producer.send`."""
        self._check_open()
        form = self._producer.form
        self._entries.append(entry_of(topic, body, key, tag, queue_id, properties, flag, form))

    def consumed(self, what: Message | MessageBatch) -> None:
        """Add a message, or all of a batch, to the inputs that this transaction has processed.

        The messages of a queue must come in order, without a gap; a consumer with tags or a filter
        hands over the batches, which know what was left out. Raises InvalidRequestError, also for a
        message of another broker group than those before. A message that was not read by a pull, a
        consumer, by key or by id does not say when it was read: its commit raises ConflictError if
        a tool ever moved the group in its queue.
        """
        self._check_open()
        if isinstance(what, MessageBatch):
            queue, begin, hi = what.queue, what.offset, what.next_offset
            first = what.messages[0].queue_offset if what.messages else hi
        else:
            queue = Queue(what.topic, what.queue_id, what.broker_group)
            begin, first, hi = what.queue_offset, what.queue_offset, what.queue_offset + 1
        for other in self._consumed:
            if other.broker_group != queue.broker_group:
                raise InvalidRequestError(
                    f"{queue} is of broker group {queue.broker_group!r} and {other} of "
                    f"{other.broker_group!r}; a transaction is of one of them: use one for each",
                    code="client.other_group",
                )
        lo, first, expected = self._consumed.get(queue, _Range(begin, first, begin))
        if begin != expected:
            raise InvalidRequestError(
                f"offset {begin} of {queue} after {expected - 1}; hand messages over in their "
                f"order, and batches where a filter leaves some out"
            )
        self._consumed[queue] = _Range(lo, first, hi)
        newest = what.newest_move or 0  # Not known: a move may have come since they were read.
        self._newest_moves[queue] = min(self._newest_moves.get(queue, newest), newest)

    def _check_open(self) -> None:
        if self._is_done:
            raise InvalidRequestError("the transaction has ended; begin another one")

    async def commit(self) -> None:
        """Store outputs and offsets, or neither; leaving `async with` does it.

        Raises ConflictError when another consumer has moved an offset: the outputs are not stored,
        and the results of these messages must be discarded. Raises OutcomeUnknownError when time
        ran out before the outcome was known.
        """
        self._check_open()
        self._is_done = True
        if not self._consumed:
            if self._entries:
                raise InvalidRequestError("nothing was consumed; say so, or use a producer")
            return
        deadline = Deadline(self._timeout_ms)
        self._check_in_hand()
        try:
            consumed = await self._offsets(deadline)
            if self._entries:
                await self._send(consumed, deadline)
            else:
                await self._commit_alone(consumed, deadline)
        except BaseException as error:
            for queue in self._consumed:
                self._stored.pop(queue, None)  # The stored offset is unknown now.
            if isinstance(error, ConflictError):
                await self._read_again(error)
            raise
        for queue, (*_, hi) in self._consumed.items():
            self._stored[queue] = self._stored.get(queue, UNKNOWN)._replace(offset=hi)

    async def _send(self, consumed: transaction_pb2.ConsumedOffsets, deadline: Deadline) -> None:
        extra = log_pb2.AppendRequest(consumed=consumed).SerializeToString()
        size_bytes = sum(map(size_bytes_of, self._entries))
        group = next(iter(self._consumed)).broker_group
        self.receipts = await self._producer.send_entries(
            self._entries, size_bytes, group, extra, deadline
        )

    async def _commit_alone(
        self, consumed: transaction_pb2.ConsumedOffsets, deadline: Deadline
    ) -> None:
        group = self._groups.get(next(iter(self._consumed)).broker_group)
        request = transaction_pb2.CommitConsumedRequest(
            consumed=consumed, cluster_id=group.router.cluster_id
        )
        try:
            await group.calls.leader(request, deadline)
        except ConflictError as conflict:
            if conflict.outcome is Outcome.NOT_APPLIED:
                raise
            # The conflict may be with its own first attempt.
            try:
                stored = await self._fetch_stored(list(self._consumed), deadline)
            except QuorumlogError as error:
                raise OutcomeUnknownError(
                    f"it is unknown whether the offsets are stored ({error.message}); read them "
                    f"before these messages are processed again",
                    attempts=conflict.attempts,
                ) from error
            if any(stored[queue].offset != hi for queue, (*_, hi) in self._consumed.items()):
                raise

    async def _read_again(self, conflict: ConflictError) -> None:
        """Have the group's consumers here go where the group is, as the caller has to."""
        try:
            for consumer in self._consumers:
                if not consumer.is_closed:
                    await consumer.moves.read_again(self._consumed)
        except QuorumlogError as error:
            conflict.add_note(f"the consumer does not read again from there: {error.message}")

    # Stored offsets.

    def _check_in_hand(self) -> None:
        """Raise ConflictError for messages from before a move that their consumer has followed."""
        offsets_behind = {queue: hi for queue, (*_, hi) in self._consumed.items()}
        for consumer in self._consumers:
            if held := consumer.moves.held(offsets_behind):
                raise moved_conflict(held)

    async def _offsets(self, deadline: Deadline) -> transaction_pb2.ConsumedOffsets:
        """Return the offsets to store, each with the one that is expected to be stored now."""
        views = self._stored
        unsure = [q for q, (lo, *_) in self._consumed.items() if views.get(q, UNKNOWN).offset != lo]
        if unsure:
            views.update(await self._fetch_stored(unsure, deadline))
        for queue, newest in self._newest_moves.items():
            if (views[queue].move or 0) > newest:
                raise ConflictError(
                    f"group {self._consumer_group}: a tool moved {queue} to {views[queue].offset} "
                    f"after these messages were read, or they do not say when; forget what was "
                    f"made of them, read again with a consumer, pull, query_by_key or get_message"
                )
        offsets = transaction_pb2.ConsumedOffsets(group=self._consumer_group)
        for queue, (lo, first, hi) in self._consumed.items():
            stored, move, _ = self._stored[queue]
            if stored > first:
                raise ConflictError(
                    f"group {self._consumer_group}: offset {first} of {queue} was consumed "
                    f"already, the next one is {stored}; forget what was made of it and read again"
                )
            if _NOT_SET < stored < lo:
                await self._check_gap(queue, stored, lo, deadline)
            offsets.offsets.add(
                topic=queue.topic, queue_id=queue.queue_id, expected=stored, offset=hi, move=move
            )
        return offsets

    async def _check_gap(self, queue: Queue, stored: int, lo: int, deadline: Deadline) -> None:
        """Raise InvalidRequestError unless all messages between the two offsets have expired."""
        (there,) = await self._reads.queue_offsets([queue], Reading(ReadFreshness(), deadline))
        if there.first_offset < lo:
            raise InvalidRequestError(
                f"{queue}: the next offset is {stored} and the first one consumed {lo}; say what "
                f"became of those between, in this transaction or one before"
            )

    async def _fetch_stored(self, queues: Sequence[Queue], deadline: Deadline) -> Stored:
        group = self._groups.get(queues[0].broker_group)
        ids = [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in queues]
        request = consumer_pb2.FetchOffsetsRequest(group=self._consumer_group, queues=ids)
        response = await group.calls.leader(request, deadline, is_read=True)
        return {q: Known.of(row) for q, row in zip(queues, response.offsets, strict=True)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        if error is None:
            if not self._is_done:
                await self.commit()
        else:
            self._is_done = True
