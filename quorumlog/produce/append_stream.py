"""The sender: a producer's batches to the leader of a group, in order, one stream at a time.

Owns the order, the window, resending and the producer's identity; must not know what is in the
batches. Rules that keep "exactly once" true:

- Sequences of one identity are sent in order, and a node takes none before its predecessor. So when
  a batch is refused for good, every batch sent after it was refused too.
- Answers come in order. When one is an error, nothing new is sent, the rest of the answers are
  awaited, and then every batch without a receipt is sent again in order.
- A batch whose attempt ended without an answer may be in the log. The batch is sent again under the
  same name only, and never under another. If its time runs out, its outcome is unknown.
- A name is used for other records only if every attempt under it was answered with "not applied";
  otherwise the producer continues under a new identity.
- A batch may be given to another group (`accumulator`) only while the same is true of it.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import grpc

from quorumlog import errors
from quorumlog.cluster.calls import REDIRECTS_AT_ONCE, SUSPECT_AFTER_MS, Calls, has_moved
from quorumlog.cluster.channels import NodeChannel, is_cancelled
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.cluster.routes import Router
from quorumlog.errors import Outcome, QuorumlogError, UnavailableError
from quorumlog.pb import log_pb2
from quorumlog.produce.append_session import AppendSession
from quorumlog.produce.delivery import Batch
from quorumlog.produce.identity import ProducerIdentity

IN_FLIGHT_MAX: Final = 32  # Half of the window in which a node remembers receipts.
OUT_OF_SEQUENCE_MAX: Final = 8  # For the first batch without a receipt; more: the order is lost.
WATCH_INTERVAL_MS: Final = 50

_STREAM_IS_OVER: Final = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.CancelledError,
    asyncio.InvalidStateError,
)


@dataclass(slots=True)
class SenderStats:
    """Counts since the start of the producer."""

    batches_acked: int = 0
    acked_count: int = 0
    acked_size_bytes: int = 0
    failed_count: int = 0
    duplicates_count: int = 0
    retried_batches: int = 0
    sessions: int = 0
    no_ack_ms_max: float = 0.0


class Sender:
    """Sends the batches in `waiting`. `run` is a task of its own; `wake` has it look again."""

    def __init__(
        self,
        router: Router,
        calls: Calls,
        *,
        is_idempotent: bool,
        name: str | None = None,
        in_flight_max: int,
        linger_ms: float,
        on_stray: Callable[[Batch], bool],
    ) -> None:
        """`on_stray` gets a batch with a topic that the group lacks; True: it took the batch."""
        self.waiting: deque[Batch] = deque()
        self.stats = SenderStats()
        self.in_flight_count = 0
        self.is_flushing = 0  # Count of flushes that wait: do not linger.
        self._router = router
        self._calls = calls
        self._is_idempotent = is_idempotent
        self._in_flight_max = in_flight_max
        self._linger_s = linger_ms / 1000
        self._on_stray = on_stray
        self._stuck_since_s: float | None = None  # Since when there was work and no receipt.
        self._wake = asyncio.Event()
        self._next_queue: dict[str, int] = {}
        self._identity = ProducerIdentity(is_idempotent=is_idempotent, name=name)
        self._unacked_since_s: float | None = None

    def wake(self) -> None:
        """Have `run` look again: a batch was added, is full, or must leave now."""
        self._wake.set()

    @property
    def load(self) -> int:
        """Count of batches that are waiting or in flight."""
        return len(self.waiting) + self.in_flight_count

    @property
    def stuck_ms(self) -> float:
        """Milliseconds with work and without a receipt, less the time to linger."""
        since_s = self._stuck_since_s
        return 0 if since_s is None else (time.monotonic() - since_s - self._linger_s) * 1000

    async def run(self) -> None:
        """Send the waiting batches in order, until cancelled."""
        backoff: Backoff | None = None
        failures = 0
        while True:
            while not self.waiting:
                self._unacked_since_s = self._stuck_since_s = None
                await self._wait()
            head = self.waiting[0]
            if self._stuck_since_s is None:
                self._stuck_since_s = time.monotonic()
            if self._unacked_since_s is None:
                self._unacked_since_s = head.created_s
            if head.deadline.has_passed:
                self._give_up_waiting(
                    head.deadline.error(self._what, head.last_error, attempts=head.attempts)
                )
                continue
            try:
                node = await self._router.leader(head.deadline)
                await self._identity.claim(self._calls, self._router.cluster_id, head.deadline)
                session = AppendSession(node)
            except QuorumlogError as error:
                self._give_up_waiting(error)
                continue
            except grpc.aio.UsageError:
                self._router.leader_failed(node.address)  # Its channel was closed meanwhile.
                continue
            self.stats.sessions += 1
            await self._run_session(session)
            error_met = self._settle(session)
            if session.decided_count or backoff is None:
                backoff, failures = Backoff(head.deadline), 0
            if self.waiting:
                failures += 1
                backoff.deadline = self.waiting[0].deadline
                await self._pause(error_met, backoff, failures)

    async def _pause(self, error: QuorumlogError, backoff: Backoff, failures: int) -> None:
        at_once = not error.retryable or isinstance(error, errors.NotLeaderError | UnavailableError)
        if at_once and failures <= REDIRECTS_AT_ONCE:
            return  # The batch was settled, or the leader is searched for anyway.
        await backoff.pause(error.retry_after_ms)

    # One session.

    async def _run_session(self, session: AppendSession) -> None:
        helpers = [
            asyncio.create_task(self._write(session)),
            asyncio.create_task(self._watch(session)),
        ]
        for helper in helpers:  # A failed helper must not leave the reader waiting for ever.
            helper.add_done_callback(lambda _: session.call.cancel())
        try:
            await self._read(session)
        finally:
            session.call.cancel()
            for helper in helpers:
                helper.cancel()
            results = await asyncio.gather(*helpers, return_exceptions=True)
        for result in results:
            # The end of a stream fails its writer; the reader has dealt with that.
            if isinstance(result, BaseException) and not isinstance(result, _STREAM_IS_OVER):
                raise result

    async def _write(self, session: AppendSession) -> None:
        while True:
            while not self._may_send(session):
                await self._wait()
            batch = self.waiting[0]
            if self._linger_s and batch.is_open and not self.is_flushing:
                rest_s = batch.created_s + self._linger_s - time.monotonic()
                if rest_s > 0:
                    await self._wait(rest_s)
                    continue
            if not batch.wire:
                if batch.deadline.has_passed:  # A batch without a name was never sent.
                    self.waiting.popleft()
                    self._fail(batch, batch.deadline.error(self._what, None, attempts=0))
                    continue
                await self._encode(batch, session.node)
            if session.is_draining or not self.waiting or self.waiting[0] is not batch:
                continue
            self.waiting.popleft()
            session.in_flight.append(batch)
            self.in_flight_count = len(session.in_flight)
            if len(session.in_flight) == 1:
                session.progress_s = time.monotonic()
                if self._stuck_since_s is None:  # All was answered before, in this session.
                    self._unacked_since_s = self._stuck_since_s = session.progress_s
            batch.attempts += 1
            self.stats.retried_batches += batch.attempts > 1
            await session.call.write(batch.wire)

    def _may_send(self, session: AppendSession) -> bool:
        is_full = len(session.in_flight) >= self._in_flight_max
        if session.is_draining or not self.waiting or is_full:
            return False
        # A batch that is not full waits for the one before: so batches grow under load.
        return not session.in_flight or not self.waiting[0].is_open

    async def _encode(self, batch: Batch, node: NodeChannel) -> None:
        """Encode a batch, after asking for routes that are missing."""
        asked: set[str] = set()
        while True:  # Messages may be added during the call.
            topics = batch.topics() - asked
            missing = [name for name in topics if self._router.topic(name) is None]
            if not missing:
                break
            await self._ask_routes(missing, batch.deadline, node)
            asked.update(missing)
            if not self.waiting or self.waiting[0] is not batch:
                return  # Another task has taken the batch meanwhile.
        if any(map(self._router.lacks, asked)) and self._on_stray(batch):
            return
        try:
            batch.encode(self._queue_count, self._choose_queue)
        except Exception as bug:  # noqa: BLE001 - it must not fail the other batches.
            self._cannot_encode(batch, bug)
            return
        self._name(batch)

    def _cannot_encode(self, batch: Batch, bug: Exception) -> None:
        """Fail the one message that should have been refused, and send those around it."""
        assert self.waiting[0] is batch, "the first one is encoded"
        self.waiting.popleft()
        if not batch.is_atomic and batch.record_count > 1:
            self.waiting.extendleft(reversed(batch.split(range(batch.record_count)).values()))
            return
        error = errors.InternalError(
            f"a message cannot be encoded ({type(bug).__name__}: {bug}), and was not sent; report "
            f"this as a bug",
            code="client.internal",
            outcome=Outcome.NOT_APPLIED,
        )
        error.__cause__ = bug
        self._fail(batch, error)

    async def _ask_routes(self, topics: list[str], deadline: Deadline, node: NodeChannel) -> None:
        """Learn the queues of topics. An unknown topic gets queue 0, and the leader decides."""
        request = log_pb2.RouteRequest(topics=topics, cluster_id=self._router.cluster_id)
        try:
            response = await self._calls.once(
                node, "log", "Route", request, min(deadline.remaining_s, SUSPECT_AFTER_MS / 1000)
            )
        except QuorumlogError:
            return  # The stream to this node is about to fail, with a better error.
        self._router.learn_topics(response, topics)

    def _queue_count(self, topic: str) -> int:
        route = self._router.topic(topic)
        return max(1, route.queue_count) if route is not None else 1

    def _choose_queue(self, topic: str) -> int:
        """Return the next queue of a topic, round robin, a batch at a time."""
        at = self._next_queue.get(topic)
        if at is None:
            at = secrets.randbelow(1 << 16)  # Many short-lived producers must not all begin at 0.
        self._next_queue[topic] = at + 1
        return at % self._queue_count(topic)

    async def _read(self, session: AppendSession) -> None:
        call, in_flight = session.call, session.in_flight
        while True:
            try:
                response = await call.read()
            except grpc.aio.AioRpcError as error:
                met = errors.from_rpc(error, session.node.address)
                session.is_unsent = errors.is_not_connected(met)
                session.end(met)
                return
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                # The call was cancelled, not this task: by `end`, or when its channel was closed.
                text = f"{session.node.address}: its connection was closed; ask again"
                session.end(UnavailableError(text, outcome=Outcome.UNKNOWN))
                return
            if response is grpc.aio.EOF:
                session.end(await self._end_of_stream(session))
                return
            if not in_flight:
                session.end(errors.InternalError(f"{session.node.address} answered unasked"))
                return
            batch = in_flight.popleft()
            self.in_flight_count = len(in_flight)
            session.progress_s = time.monotonic()
            if response.HasField("error"):
                self._refused(session, batch, errors.from_pb(response.error))
            else:
                self._acked(session, batch, response)
            if session.is_draining and not in_flight:
                return
            self._wake.set()

    async def _end_of_stream(self, session: AppendSession) -> QuorumlogError:
        code, address = await session.call.code(), session.node.address
        if code is grpc.StatusCode.OK:
            return UnavailableError(
                f"{address} ended the stream; ask again", outcome=Outcome.UNKNOWN
            )
        return errors.from_status(code.name, await session.call.details() or "", address)

    async def _watch(self, session: AppendSession) -> None:
        """End a session without answers: its node was paused, cut off, or time is up."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_MS / 1000)
            if not session.in_flight:
                continue
            if session.in_flight[0].deadline.has_passed:
                text = f"{session.node.address} gave no answer in time; see its state and its log"
                session.end(UnavailableError(text, outcome=Outcome.UNKNOWN))
                return
            silent_ms = (time.monotonic() - session.progress_s) * 1000
            if silent_ms > SUSPECT_AFTER_MS:
                if await has_moved(self._router, session.node.address):
                    text = f"{session.node.address} does not answer, and another node leads"
                    session.end(UnavailableError(text, outcome=Outcome.UNKNOWN))
                    return
                session.progress_s += WATCH_INTERVAL_MS / 1000 * 5  # Ask again, but not at once.

    # Answers.

    def _acked(
        self, session: AppendSession, batch: Batch, response: log_pb2.AppendResponse
    ) -> None:
        stats, now_s = self.stats, time.monotonic()
        session.decided_count += 1
        self._router.on_term(response.term)
        stats.batches_acked += 1
        stats.acked_count += batch.record_count
        stats.acked_size_bytes += batch.size_bytes
        stats.duplicates_count += batch.record_count if response.is_duplicate else 0
        since_s = self._unacked_since_s
        if since_s is not None:
            stats.no_ack_ms_max = max(stats.no_ack_ms_max, (now_s - since_s) * 1000)
        busy = session.in_flight or self.waiting
        self._unacked_since_s = self._stuck_since_s = now_s if busy else None
        batch.acknowledge(response)

    def _refused(self, session: AppendSession, batch: Batch, error: QuorumlogError) -> None:
        if error.outcome is Outcome.APPLIED:
            self._fail(batch, error)  # The batch is in the log; its successors are not affected.
            return
        if error.outcome is Outcome.UNKNOWN:
            batch.may_be_applied = True
        is_first = not session.refused
        if is_first and isinstance(error, errors.OutOfSequenceError):
            batch.out_of_sequence_count += 1
        session.refused.append(batch)
        batch.last_error = error
        session.end(error, drain=True)

    def _settle(self, session: AppendSession) -> QuorumlogError:
        """Settle what a session left: send again, under the same or a new name, or fail."""
        error = session.error
        assert error is not None, "a session ends for a reason"
        if isinstance(error, errors.NotLeaderError):
            self._router.on_hint(error.leader_id, error.leader_address, session.node.address)
        elif isinstance(error, UnavailableError):
            self._router.leader_failed(session.node.address)
        for batch in session.in_flight:
            batch.may_be_applied |= not session.is_unsent
            batch.last_error = error
        left = [*session.refused, *session.in_flight]
        session.in_flight.clear()
        self.in_flight_count = 0
        self.waiting.extendleft(reversed(left))
        for batch in left:
            if batch.is_done:
                continue  # An earlier batch failed this one.
            final = self._final_error(batch)
            if final is not None:
                self.waiting.remove(batch)
                session.decided_count += not error.retryable
            if (final is None or self._give_up(batch, final)) and self._is_idempotent:
                # The batch, or its parts, is sent again before all else; the batches behind it are
                # judged by the answers to their next attempt.
                break
        return error

    def _final_error(self, batch: Batch) -> QuorumlogError | None:
        """Return the reason not to send this batch again; None: it is sent again."""
        error = batch.last_error
        assert error is not None, "settled without an error"
        late = batch.deadline.has_passed
        if batch.may_be_applied and (late or not self._is_idempotent):
            return batch.deadline.error_unknown(self._what, error, attempts=batch.attempts)
        if late:
            return batch.deadline.error(self._what, error, attempts=batch.attempts)
        lost = isinstance(error, errors.UnknownProducerError)
        if lost or batch.out_of_sequence_count > OUT_OF_SEQUENCE_MAX:
            batch.out_of_sequence_count = 0
            if batch.may_be_applied:
                return batch.deadline.error_unknown(self._what, error, attempts=batch.attempts)
            self._rename(self._named(), is_new=True)
            return None
        if error.retryable or error.outcome is Outcome.UNKNOWN:
            return None
        if batch.may_be_applied:  # An earlier attempt has no answer yet.
            return batch.deadline.error_unknown(self._what, error, attempts=batch.attempts)
        return error

    def _give_up(self, batch: Batch, error: QuorumlogError) -> bool:
        """Fail a batch for good, and bring those behind it in order again.

        Return whether parts of it are sent again instead.
        """
        named = self._named()
        is_new = batch.may_be_applied or any(other.may_be_applied for other in named)
        if batch.may_be_applied and self._is_idempotent:
            # Whether its successors were applied is unknown for good: their name cannot be asked.
            for other in [other for other in named if other.may_be_applied]:
                self.waiting.remove(other)
                text = f"a batch before it has an unknown outcome ({error.message})"
                self._fail(other, errors.OutcomeUnknownError(text))
        elif batch.wire and not is_new:
            self._identity.go_back(batch.sequence)
        parts: list[Batch] = []
        is_final = batch.may_be_applied or batch.deadline.has_passed or not batch.wire
        labels = () if is_final or batch.is_atomic else batch.labels_of_fault(error)
        if not labels:
            self._fail(batch, error)
        else:  # Only the message at fault shall fail.
            parts = list(batch.split(labels).values())
            for part in parts:
                part.encode(self._queue_count, self._choose_queue)
            self.waiting.extendleft(reversed(parts))
        self._rename(self._named() if self._is_idempotent else parts, is_new=is_new)
        return bool(parts)

    def take_movable(self, may_move: Callable[[Batch], bool]) -> list[Batch]:
        """Remove and return, in order, the batches that are surely not in the log of this group."""
        named = self._named()
        is_clean = not self.in_flight_count and not any(other.may_be_applied for other in named)
        taken = [
            batch
            for batch in self.waiting
            if not batch.is_pinned and (is_clean or not batch.wire) and may_move(batch)
        ]
        for batch in taken:
            self.waiting.remove(batch)
        renamed = [batch for batch in taken if batch.wire]
        for batch in renamed:
            batch.forget_name()
        if renamed and self._is_idempotent:
            self._identity.go_back(named[0].sequence)
            self._rename(self._named(), is_new=False)
        return taken

    @property
    def _what(self) -> str:
        return f"the append{self._router.where}"

    def _named(self) -> list[Batch]:
        """Return the waiting batches with a name: they were sent, or were about to be."""
        return [batch for batch in self.waiting if batch.wire]

    def _rename(self, batches: Iterable[Batch], *, is_new: bool) -> None:
        if is_new:
            self._identity.renew()
        for batch in batches:
            if not batch.is_done and batch.wire:
                batch.may_be_applied = False  # The old name is given up.
                self._name(batch)

    def _name(self, batch: Batch) -> None:
        batch.identify(*self._identity.next_name(), self._router.cluster_id, self._identity.fence)

    def _fail(self, batch: Batch, error: QuorumlogError) -> None:
        self.stats.failed_count += batch.record_count
        batch.fail(error)

    def _give_up_waiting(self, error: QuorumlogError) -> None:
        """Fail the batches whose time is up; all of them if the error is not retryable."""
        is_final = not error.retryable
        while self.waiting and (is_final or self.waiting[0].deadline.has_passed):
            batch = self.waiting.popleft()
            reason = error
            if batch.may_be_applied:
                reason = batch.deadline.error_unknown(self._what, error, attempts=batch.attempts)
            self._give_up(batch, reason)

    async def _wait(self, timeout_s: float | None = None) -> None:
        self._wake.clear()
        if timeout_s is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
