"""The load: clients that write, read and follow, each recording its answers.

Owns the loop of each kind of client. Must not know faults: an error is recorded with its outcome,
and the client continues. Queues of the topic: 0 and 1 are for idempotent producers, 2 for a plain
one, 3 is a register: its value is the last message, its version that message's offset.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import quorumlog
from chaos.body import body_of, value_of
from chaos.losses import MessagePlace
from chaos.recorder import Recorder, now_ns
from checkers.history import (
    AppendCall,
    HistoryDurability,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Seen,
    Value,
)
from quorumlog.errors import QuorumlogError
from quorumlog.records.options import Durability

IDEMPOTENT_QUEUES: Final = (0, 1)
PLAIN_QUEUE: Final = 2
REGISTER_QUEUE: Final = 3
LOG_QUEUES: Final = (*IDEMPOTENT_QUEUES, PLAIN_QUEUE)
QUEUE_COUNT: Final = 4
WINDOW_COUNT: Final = 20
READ_COUNT_MAX: Final = 64
_DURABILITY: Final = {
    Durability.QUORUM_DISK: HistoryDurability.QUORUM_DURABLE,
    Durability.COPIES_DISK: HistoryDurability.QUORUM_DURABLE,  # Two or three of five: as safe.
    Durability.QUORUM_MEMORY: HistoryDurability.REPLICATED,
    Durability.LEADER_DISK: HistoryDurability.APPENDED,
}
PATIENT_MS: Final = 20_000
SHORT_MS: Final = 4_000
_Answer = TypeVar("_Answer")
PAUSE_S: Final = 0.02
"""Pause between calls of one client: the machine is for the nodes."""


def queue_name(queue_id: int) -> str:
    """Return the name of a queue in the history."""
    return f"q{queue_id}"


class Clients:
    """State shared by all clients of one scenario."""

    def __init__(
        self, client: quorumlog.Client, topic: str, recorder: Recorder, *, pause_s: float
    ) -> None:
        self.client, self.topic, self.recorder = client, topic, recorder
        self.pause_s = pause_s
        self.is_stopping = False
        self.acked_count = 0
        self.read_count = 0
        self.last_index = -1
        self.highest_term = 0
        self.first_ack_of_term: dict[int, int] = {}
        """Time of the first receipt of each term."""
        self.acked_values: dict[int, set[str]] = {queue: set() for queue in range(QUEUE_COUNT)}
        self.places: dict[Value, MessagePlace] = {}
        """Place of each acked message, by its receipt."""
        self.group_seen: set[str] = set()
        self._changed = asyncio.Event()

    def on_receipt(self, queue: int, value: str, receipt: quorumlog.Receipt) -> None:
        """Count an ack."""
        self.acked_count += 1
        self.acked_values[queue].add(value)
        name, offset = queue_name(queue), receipt.queue_offset
        is_copied = receipt.durability is not Durability.LEADER_DISK
        self.places[value] = MessagePlace(
            receipt.term, receipt.log_position, name, offset, is_copied, receipt.is_duplicate
        )
        self.last_index = max(self.last_index, receipt.index)
        if receipt.term > self.highest_term:
            self.highest_term = receipt.term
            self.first_ack_of_term[receipt.term] = now_ns()
            self.recorder.note("ack", f"first receipt of term {receipt.term}")
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition that an ack makes true; the caller has the deadline."""
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    async def repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat one step until the end."""
        while not self.is_stopping:
            await step()
            await asyncio.sleep(self.pause_s)

    async def answer(self, call: Operation, work: Awaitable[_Answer]) -> _Answer | None:
        """Return the answer to a read; record an error, and return None."""
        try:
            return await work
        except QuorumlogError as error:
            self.recorder.failed(call, error)
            return None


class LoadWriter:
    """A producer that sends a window of messages and waits for all their receipts."""

    def __init__(self, clients: Clients, queue: int, name: str, *, is_idempotent: bool) -> None:
        self._clients, self._queue, self._name = clients, queue, name
        self._is_idempotent = is_idempotent
        self._process = clients.recorder.new_process()
        self._producer = self._make()
        self._sent_count = 0

    def _make(self) -> quorumlog.Producer:
        return self._clients.client.producer(
            idempotent=self._is_idempotent,
            timeout_ms=PATIENT_MS if self._is_idempotent else SHORT_MS,
        )

    async def run(self) -> None:
        """Write until the end."""
        await self._clients.repeat(self._step)
        await self._producer.abort()

    async def _step(self) -> None:
        # A plain producer sends one message at a time: it may send a lost batch only once.
        count = WINDOW_COUNT if self._is_idempotent else 1
        sent, recorder = [], self._clients.recorder
        for _ in range(count):
            self._sent_count += 1
            value = f"{self._name}-{self._sent_count}"
            request = AppendCall(value, self._process if self._is_idempotent else None)
            call = recorder.begin(self._process, Kind.APPEND, queue_name(self._queue), request)
            try:
                delivery = await self._producer.enqueue(
                    self._clients.topic, body_of(value), queue_id=self._queue
                )
            except QuorumlogError as error:
                self._failed(call, error)
                break
            sent.append((call, value, delivery))
        for call, value, delivery in sent:
            try:
                receipt = await delivery
            except QuorumlogError as error:
                self._failed(call, error)
                continue
            self._clients.on_receipt(self._queue, value, receipt)
            recorder.done(
                call._replace(process=self._process),
                HistoryReceipt(receipt.queue_offset, _DURABILITY[receipt.durability]),
                node=receipt.synced_by[0] if receipt.synced_by else 0,
                term=receipt.term,
            )

    def _failed(self, call: Operation, error: QuorumlogError) -> None:
        call = call._replace(process=self._process)
        self._process = self._clients.recorder.failed(call, error)
        if self._producer.is_closed:
            self._producer = self._make()


class RegisterWriter:
    """Puts values into the register, one call at a time."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients, self._name = clients, name
        self._process = clients.recorder.new_process()
        self._producer = clients.client.producer(timeout_ms=PATIENT_MS)
        self._count = 0

    async def run(self) -> None:
        """Put until the end."""
        await self._clients.repeat(self._step)
        await self._producer.abort()

    async def _step(self) -> None:
        self._count += 1
        value = f"{self._name}-{self._count}"
        recorder = self._clients.recorder
        call = recorder.begin(self._process, Kind.PUT, queue_name(REGISTER_QUEUE), value)
        try:
            receipt = await self._producer.send(
                self._clients.topic, body_of(value), queue_id=REGISTER_QUEUE
            )
        except QuorumlogError as error:
            self._process = recorder.failed(call, error)
            return
        self._clients.on_receipt(REGISTER_QUEUE, value, receipt)
        recorder.done(call, receipt.queue_offset, term=receipt.term)


class Reader:
    """A client that reads in steps; an error is recorded, and the next step follows."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._recorder = clients, clients.recorder
        self._process = clients.recorder.new_process()

    async def run(self) -> None:
        """Read until the end."""
        await self._clients.repeat(self._step)

    async def _step(self) -> None:
        raise NotImplementedError


class RegisterReader(Reader):
    """Gets the register: the end of its queue, linearizably, and the message before it."""

    async def _step(self) -> None:
        call = self._recorder.begin(self._process, Kind.GET, queue_name(REGISTER_QUEUE))
        seen = await self._clients.answer(call, self._get())
        if seen is not None:
            self._clients.read_count += 1
            self._recorder.done(call, seen)

    async def _get(self) -> Seen:
        client, topic = self._clients.client, self._clients.topic
        while True:
            ends = await client.queue_offsets(topic, [REGISTER_QUEUE], consistency="linearizable")
            end = ends[0].end_offset
            if end == 0:
                return Seen(None, -1)
            batch = await client.pull(
                topic,
                REGISTER_QUEUE,
                end - 1,
                max_count=1,
                consistency="linearizable",
                timeout_ms=SHORT_MS,
            )
            # The next master may lack the message that an async master showed as the last one.
            if batch.messages:
                return Seen(value_of(batch.messages[0].body), end - 1)


class TailClient(Reader):
    """Asks for the ends of the queues, and reads near them, both linearizably."""

    _turn = 0

    async def _step(self) -> None:
        clients, recorder = self._clients, self._recorder
        client, topic = clients.client, clients.topic
        self._turn += 1
        queue = LOG_QUEUES[self._turn % len(LOG_QUEUES)]
        call = recorder.begin(self._process, Kind.TAIL, queue_name(queue))
        ends = client.queue_offsets(topic, [queue], consistency="linearizable")
        ranges = await clients.answer(call, ends)
        if ranges is None:
            return
        end = ranges[0].end_offset
        recorder.done(call, end)
        lo = max(0, end - READ_COUNT_MAX // 2)
        request = ReadCall(lo, READ_COUNT_MAX)
        call = recorder.begin(self._process, Kind.READ, queue_name(queue), request)
        batch = await clients.answer(
            call,
            client.pull(
                topic,
                queue,
                lo,
                max_count=READ_COUNT_MAX,
                consistency="linearizable",
                timeout_ms=SHORT_MS,
            ),
        )
        if batch is not None:
            clients.read_count += len(batch.messages)
            recorder.done(call, Records(_pairs(batch)), node=batch.node_id)


class Poller(Reader):
    """Follows one queue from its beginning on, at the leader or at any node that answers."""

    def __init__(self, clients: Clients, queue: int) -> None:
        super().__init__(clients)
        self._queue, self._next = queue, 0

    async def _step(self) -> None:
        clients, request = self._clients, ReadCall(self._next, 0)
        call = self._recorder.begin(self._process, Kind.POLL, queue_name(self._queue), request)
        pull = clients.client.pull(
            clients.topic, self._queue, self._next, wait_ms=200, timeout_ms=SHORT_MS
        )
        batch = await clients.answer(call, pull)
        if batch is not None and batch.messages:
            clients.read_count += len(batch.messages)
            result = Records(_pairs(batch))
            self._recorder.done(call, result, node=batch.node_id)
            self._next = result.records[-1][0] + 1


async def follow_in_group(clients: Clients, group: str) -> None:
    """Consume as a member of a group, until cancelled: one that cannot continue is replaced.

    Between them, members see everything at least once."""
    while True:  # Until all is read, also once the load has stopped.
        member = clients.client.group_consumer(group, clients.topic)
        try:
            async with member:
                async for batch in member.batches():
                    clients.group_seen.update(value_of(body) for body in batch.bodies())
        except QuorumlogError as error:
            clients.recorder.errors[error.code] += 1
            await asyncio.sleep(clients.pause_s)


def _pairs(batch: quorumlog.MessageBatch) -> tuple[tuple[int, str], ...]:
    return tuple((message.queue_offset, value_of(message.body)) for message in batch.messages)
