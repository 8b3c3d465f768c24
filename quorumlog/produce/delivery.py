"""Messages on their way: batches, deliveries and receipts.

Owns a batch from its first message to its receipt or error; must not know how it travels. A message
costs one object here, its Delivery. All fields of a receipt are derived from the one answer to its
batch, when the caller reads the receipt.
"""

import asyncio
import copy
import enum
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, overload

from quorumlog.cluster.retry import Deadline
from quorumlog.errors import InternalError, InvalidRequestError, Outcome, QuorumlogError
from quorumlog.pb import log_pb2
from quorumlog.records.batch import (
    Entry,
    Place,
    encode_entries,
    encode_single,
    key_queue,
    message_id,
    size_bytes_of,
)
from quorumlog.records.options import Durability
from quorumlog.records.receipt import AppendStages, Receipt

_DURABILITY: Final = (
    Durability.UNSPECIFIED,
    Durability.QUORUM_MEMORY,
    Durability.QUORUM_DISK,
    Durability.LEADER_DISK,
    Durability.COPIES_DISK,
)
UNKNOWN_QUEUE: Final = "node.unknown_queue"
OF_ONE_MESSAGE: Final = frozenset(
    {
        "node.bad_request",
        "node.delay_too_long",
        "node.limit_exceeded",
        "store.bad_topic",
        "store.limit_exceeded",
        "store.record_format",
    }
)
"""Codes with which a node refuses a batch because of one of its messages."""


class Verdict(enum.Enum):
    """The node's word on one message of a batch that it refused."""

    DESCRIBED = enum.auto()
    """The error is about this message."""
    SAME_FAULT = enum.auto()
    GOOD = enum.auto()


_RECORDS_FIELD: Final = b"\x0a"  # Of AppendRequest: number 1, bytes.


class Batch:
    """Messages that travel together and become one entry of the log: all of them or none."""

    __slots__ = (
        "_parts", "_parts_open", "_placed", "_placing", "_response", "_waiters", "attempts",
        "created_s", "deadline", "done_s", "entries", "error", "extra", "group", "is_atomic",
        "is_done", "is_open", "is_pinned", "last_error", "may_be_applied", "notices", "on_done",
        "out_of_sequence_count", "places", "producer_id", "record_count", "records", "request",
        "sent_unix_ms", "sequence", "size_bytes", "sizes",
    )  # fmt: skip

    def __init__(
        self,
        deadline: Deadline,
        on_done: "Callable[[Batch], None]",
        *,
        is_atomic: bool = False,
        group: str = "",
        is_pinned: bool = False,
    ) -> None:
        self.deadline = deadline
        self.on_done = on_done
        self.is_atomic = is_atomic  # Must stay one entry, also after a refusal.
        self.is_open = not is_atomic  # More messages may be added.
        self.group = group  # The broker group that it goes to.
        self.is_pinned = is_pinned  # Must stay in `group`: a message names it, or a queue of it.
        self.extra = b""  # More serialised fields of the AppendRequest: the kind of the batch.
        self.entries: list[Entry] = []
        self.record_count = 0
        self.size_bytes = 0
        self.created_s = time.monotonic()
        self.sent_unix_ms = 0
        # Once encoded.
        self.records = b""  # Empty: not encoded, or done.
        self.request = b""  # The rest of the AppendRequest, serialised.
        self.sizes: list[int] = []
        self.places: list[Place] = []
        self.producer_id = 0
        self.sequence = 0
        # Once sent.
        self.attempts = 0
        self.may_be_applied = False  # An attempt had no answer. Unset only with a new name.
        self.out_of_sequence_count = 0
        self.last_error: QuorumlogError | None = None  # The error of the last attempt.
        # Once done.
        self.is_done = False
        self.done_s = 0.0
        self.error: QuorumlogError | None = None
        self.notices: set[int] = set()  # Failed messages whose error a caller received.
        self._response: log_pb2.AppendResponse | None = None
        self._placed: list[tuple[int, int]] = []  # Queue offset and position of the first messages,
        self._placing: Iterator[tuple[int, int]] | None = None  # and the source of the rest.
        self._waiters: list[asyncio.Future[None]] = []
        self._parts: list[tuple[Batch, int]] | None = None
        self._parts_open = 0

    def add(self, entry: Entry, size_bytes: int) -> "Delivery":
        assert self.is_open or self.is_atomic, "a message for a batch that has left"
        self.entries.append(entry)
        delivery = Delivery(self, self.record_count)
        self.record_count += 1
        self.size_bytes += size_bytes
        return delivery

    def add_all(self, entries: list[Entry], size_bytes: int) -> None:
        """Add messages that have no deliveries of their own."""
        assert self.is_atomic, "messages without a delivery are those of an atomic batch"
        self.entries += entries
        self.record_count += len(entries)
        self.size_bytes += size_bytes

    def topics(self) -> set[str]:
        return {topic.name for topic in {entry[0] for entry in self.entries}}

    def encode(self, queue_count: Callable[[str], int], next_queue: Callable[[str], int]) -> None:
        """Close the batch, choose the queues that were left open, and encode the records."""
        assert not self.records, "a batch is encoded once"
        self.is_open = False
        self.sent_unix_ms = time.time_ns() // 1_000_000
        chosen: dict[str, int] = {}  # One queue a batch and topic, so that batches stay few.

        def place_of(topic: str, queue_id: int | None, key: str | None) -> Place:
            if queue_id is None and key is not None:
                queue_id = key_queue(key, queue_count(topic))
            elif queue_id is None:
                queue_id = chosen.get(topic)
                if queue_id is None:
                    queue_id = chosen[topic] = next_queue(topic)
            return topic, queue_id

        encoded = encode_entries(self.entries, place_of, born_unix_ms=self.sent_unix_ms)
        self.sizes, self.places = encoded.sizes, encoded.places
        assert sum(self.sizes) == self.size_bytes, f"{sum(self.sizes)} != {self.size_bytes}"
        self.records = b"".join(encoded.pieces)

    def encode_single(self, entry: Entry, queue_id: int, size_bytes: int) -> None:
        """Take one message, close the batch, and encode its record; for a batch that is new."""
        self.is_open = False
        self.sent_unix_ms = time.time_ns() // 1_000_000
        self.entries, self.record_count, self.size_bytes = [entry], 1, size_bytes
        self.sizes, self.places = [size_bytes], [(entry[0].name, queue_id)]
        self.records = encode_single(entry, queue_id, self.sent_unix_ms)

    def identify(
        self,
        producer_id: int,
        sequence: int,
        cluster_id: str,
        fields: bytes = b"",
        timeout_ms: int = 0,
    ) -> None:
        """Set the name by which the cluster tells a repeated batch from a new one.

        `timeout_ms` is the time that the node has; 0: what is left of the deadline.
        """
        self.producer_id, self.sequence = producer_id, sequence
        rest = log_pb2.AppendRequest(
            record_count=self.record_count,
            producer_id=producer_id,
            sequence=sequence,
            timeout_ms=timeout_ms or self.deadline.remaining_ms,
            cluster_id=cluster_id,
        )
        # Serialised messages may be joined, so the records need not be copied into this one.
        self.request = rest.SerializeToString() + self.extra + fields

    def whole_request(self) -> bytes:
        """Return the serialised AppendRequest with its records, for gRPC."""
        return b"".join((_RECORDS_FIELD, _varint(self.size_bytes), self.records, self.request))

    def forget_name(self) -> None:
        """Return to the state before encoding; no attempt under the old name is in the log."""
        assert not self.may_be_applied, "it may be in the log under its name"
        self.records = self.request = b""

    def labels_of_fault(self, error: QuorumlogError) -> Sequence[Hashable]:
        """Return a label for each message, to split a batch that the node refused permanently until
        the message at fault is alone; empty: all messages are at fault.

        Where the node names the messages at fault, a label is a Verdict. A topic is refused with
        all of its messages. Any other fault of a single message is searched by queue if a queue is
        unknown, and else by halves.
        """
        if named := error.faulty_records:
            verdicts = [Verdict.GOOD] * self.record_count
            for i in named:
                verdicts[i] = Verdict.SAME_FAULT
            verdicts[min(named)] = Verdict.DESCRIBED
            return verdicts
        topics = [entry[0].name for entry in self.entries]
        if len(set(topics)) > 1:
            return topics
        if error.code == UNKNOWN_QUEUE:
            queue_ids = [entry[1] for entry in self.entries]
            return queue_ids if len(set(queue_ids)) > 1 else ()
        if error.code not in OF_ONE_MESSAGE or self.record_count < 2:
            return ()
        return [2 * i >= self.record_count for i in range(self.record_count)]

    def split(self, labels: Sequence[Hashable]) -> "dict[Any, Batch]":
        """Make a batch of each label, a label a message; this one is done when all of them are."""
        assert self._parts is None, "it is split already"
        assert not self.is_atomic, "all or none"
        parts: dict[Any, Batch] = {}
        self._parts = []
        for entry, label in zip(self.entries, labels, strict=True):
            part = parts.get(label)
            if part is None:
                part = parts[label] = Batch(
                    self.deadline, self._on_part_done, group=self.group, is_pinned=self.is_pinned
                )
                part.created_s, part.attempts = self.created_s, self.attempts
                part.extra = self.extra
            self._parts.append((part, part.record_count))
            part.add(entry, size_bytes_of(entry))
        self._parts_open = len(parts)
        self.entries, self.records, self.request = [], b"", b""
        for part in parts.values():
            part.is_open = False
        return parts

    def stand_in(self) -> "Batch":
        """Return a batch that travels in place of this one, and ends it, unless it is left."""
        part = Batch(
            self.deadline,
            self._on_part_done,
            is_atomic=True,
            group=self.group,
            is_pinned=self.is_pinned,
        )
        part.extra = self.extra
        part.add_all(self.entries, self.size_bytes)
        self._parts, self._parts_open = [(part, i) for i in range(self.record_count)], 1
        self.entries = []
        return part

    def leave(self, error: QuorumlogError) -> None:
        """End without the batch that stands in, which goes on: those behind it need its outcome."""
        assert self._parts is not None, "nothing stands in"
        self._parts[0][0].on_done = lambda _: None
        self._parts, self.error = None, error
        self._finish()

    def _on_part_done(self, part: "Batch") -> None:
        self._parts_open -= 1
        if self.error is None:
            self.error = part.error
        if self._parts_open == 0:
            self._finish()

    def acknowledge(self, response: log_pb2.AppendResponse) -> None:
        """Record the answer of the leader: the batch is in the log."""
        if response.record_count != self.record_count:
            self.fail(
                InternalError(
                    f"{self.record_count} records were sent, {response.record_count} acknowledged; "
                    f"read back what was stored, and check the version of the node",
                    outcome=Outcome.APPLIED,
                )
            )
            return
        self._response = response
        self._finish()

    def fail(self, error: QuorumlogError) -> None:
        """End the batch without a receipt."""
        if self._parts is not None:
            for part in {part for part, _ in self._parts if not part.is_done}:
                part.fail(error)  # The last part ends this batch.
            return
        error.attempts = self.attempts
        self.error = error
        self._finish()

    def _finish(self) -> None:
        assert not self.is_done, "a batch ends once"
        self.is_done, self.is_open = True, False
        self.done_s = time.monotonic()
        self.entries, self.records, self.request = [], b"", b""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.on_done(self)

    def waiter(self) -> "asyncio.Future[None]":
        """Return a future that ends with the batch, which is not done; it may be cancelled."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def wait(self) -> None:
        """Wait until the batch is done, also without success. Cancelling ends only the wait."""
        if not self.is_done:
            await self.waiter()

    def untold_errors(self, count: int | None = None) -> Iterator[QuorumlogError]:
        """Yield the error of each failed message that no caller received, among the first ones or
        all."""
        if self.error is not None:
            rest = (i for i in range(self.record_count)[:count] if i not in self.notices)
            yield from filter(None, map(self._error_of, rest))

    def _error_of(self, i: int) -> QuorumlogError | None:
        if self._parts is None:
            return self.error
        part, i = self._parts[i]
        return part._error_of(i)

    def receipt(self, i: int) -> Receipt:
        """Return the receipt of message `i`; raise the error if there is none. No flush raises it
        then: the caller has it."""
        assert self.is_done, "not done"
        if self.error is not None and (error := self._error_of(i)) is not None:
            self.notices.add(i)
            raise copy.copy(error)  # Each waiter gets a traceback of its own.
        if self._parts is not None:
            part, i = self._parts[i]
            return part.receipt(i)
        response = self._response
        assert response is not None, "done, without an answer or an error"
        if self.record_count == 1 and not response.positions:
            queues = response.queues
            queue_offset, position = queues[0].first_offset if queues else -1, response.position
        else:
            queue_offset, position = self._place_of(response, i)
        topic, queue_id = self.places[i]
        durability = response.durability if 0 <= response.durability < len(_DURABILITY) else 0
        return Receipt(
            message_id=message_id(response.store_host, position),
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            log_position=position,
            index=response.index,
            term=response.term,
            durability=_DURABILITY[durability],
            synced_by=tuple(response.synced_by),
            attempts=self.attempts,
            sent_unix_ms=self.sent_unix_ms,
            store_unix_ms=response.store_unix_ms,
            duration_ms=round((self.done_s - self.created_s) * 1000, 3),
            commit_us=response.commit_us,
            is_duplicate=response.is_duplicate,
            broker_group=self.group,
            due_unix_ms=response.due_unix_ms[i] if response.due_unix_ms else 0,
            stages=_stages_of(response) if response.HasField("stages") else None,
        )

    def receipts(self) -> "Receipts":
        """Return the receipts of all messages; raise the error, of all, if the batch failed."""
        if self.error is not None:
            self.notices.update(range(self.record_count))
            raise copy.copy(self.error)
        return Receipts(self)

    def _place_of(self, response: log_pb2.AppendResponse, i: int) -> tuple[int, int]:
        """Return queue offset and position of message `i`."""
        if self._placing is None:
            self._placing = self._place(response)
        placed = self._placed
        if i >= len(placed):
            placed += islice(self._placing, i + 1 - len(placed))
        return placed[i]

    def _place(self, response: log_pb2.AppendResponse) -> Iterator[tuple[int, int]]:
        """Yield queue offset and position of each record.

        Records lie back to back, and take the offsets of their queue in order. Delayed ones have no
        offset yet (-1), and lie at the positions of the answer.
        """
        if response.positions:
            yield from ((-1, position) for position in response.positions)
            return
        offsets = {(q.topic, q.queue_id): q.first_offset for q in response.queues}
        position = response.position
        for place, size_bytes in zip(self.places, self.sizes, strict=True):
            offset = offsets.get(place, -1)
            yield offset, position
            offsets[place] = offset + 1
            position += size_bytes


class Receipts(Sequence[Receipt]):
    """The receipts of an acknowledged batch; each is made when it is first read."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch) -> None:
        assert batch.is_done, "not done"
        assert batch.error is None, "no receipts of what failed"
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.record_count

    @overload
    def __getitem__(self, at: int) -> Receipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...
    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        numbers = range(self._batch.record_count)[at]
        if isinstance(numbers, range):
            return [self._batch.receipt(i) for i in numbers]
        return self._batch.receipt(numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # A batch belongs to its producer: copy the values.

    def __repr__(self) -> str:
        return f"<{len(self)} receipts, index {self[0].index}>"


class Delivery:
    """A message on its way. Await it for the receipt, or for the typed error if it failed.

    A delivery may be awaited many times, at any time, or not at all: `producer.flush()` raises for
    failures that no caller received. Cancelling the wait does not withdraw the message.
    """

    __slots__ = ("_batch", "_i")

    def __init__(self, batch: Batch, i: int) -> None:
        self._batch = batch
        self._i = i

    @property
    def is_done(self) -> bool:
        """Whether there is a receipt or an error."""
        return self._batch.is_done

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self.receipt().__await__()

    async def receipt(self) -> Receipt:
        """Wait for the receipt. Raises the error if the message failed."""
        await self._batch.wait()
        return self._batch.receipt(self._i)

    def result(self) -> Receipt:
        """Return the receipt or raise the error. Raises InvalidRequestError unless `is_done`."""
        if not self._batch.is_done:
            raise InvalidRequestError("the message is still on its way; await its receipt()")
        return self._batch.receipt(self._i)


def _stages_of(response: log_pb2.AppendResponse) -> AppendStages:
    stages = response.stages
    return AppendStages(stages.queued_us, stages.sent_us, stages.quorum_us, stages.applied_us)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
