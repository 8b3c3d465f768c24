"""The sender: a producer's batches to the leader of a group, in order, one stream at a time.

Owns the order, the window, resending and the producer's identity; must not know what is in the
batches. Rules that keep "exactly once" true:

- Sequences of one identity are sent in order, and a node takes none before its predecessor. So when
  a node refuses a batch permanently, it refused every batch sent after it too.
- Answers come in order. When one is an error, nothing new is sent, the rest of the answers are
  awaited, and then every batch without a receipt is sent again in order.
- A batch whose attempt ended without an answer may be in the log. The batch is sent again under the
  same name only, and never under another. If its time runs out, its outcome is unknown.
- A name is used for other records only if every attempt under it was answered with "not applied";
  otherwise the producer continues under a new identity.
- A batch may be given to another group (`accumulator`) only while the same is true of it.
"""

import asyncio
import copy
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import grpc

from quorumlog import errors
from quorumlog.cluster.calls import REDIRECTS_AT_ONCE, SUSPECT_AFTER_MS, Calls, has_moved
from quorumlog.cluster.channels import NodeChannel
from quorumlog.cluster.framed.connection import CALLS_MAX
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.cluster.routes import Router, TopicRoute
from quorumlog.errors import Outcome, QuorumlogError, UnavailableError
from quorumlog.pb import log_pb2
from quorumlog.produce.append_session import AppendSession, FramedSession, GrpcSession, fits
from quorumlog.produce.delivery import Batch, Verdict
from quorumlog.produce.options import ProducerOptions
from quorumlog.records.batch import Entry, key_queue

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
    no_ack_ms_max: float = 0.0


class ProducerIdentity:
    """The names of batches: the id of a producer in one broker group, and the number of each batch.

    A node remembers names, so the same batch under the same name is stored once. Numbers begin at 0
    and have no gap; of id 0 repetitions are not recognised. A producer that the program has given a
    name claims it once: its earlier holder is refused from then on, and so is this producer after a
    later claim.
    """

    def __init__(
        self, *, is_idempotent: bool, name: str | None = None, with_stages: bool = False
    ) -> None:
        self._is_idempotent = is_idempotent
        self._wish = log_pb2.AppendRequest(with_stages=with_stages).SerializeToString()
        self._name = name
        self.incarnation: log_pb2.ProducerIncarnation | None = None
        """The claim of the name; None without a name, or before the claim."""
        self.fields = self._wish
        """Fields of AppendRequest, serialised: the claim of the name, and what receipts tell."""
        self.renew()

    def renew(self) -> None:
        """Continue under a new id: repetitions of earlier batches are not recognised any more."""
        self._producer_id = secrets.randbits(64) | 1 if self._is_idempotent else 0
        self._next_sequence = 0

    def next_name(self) -> tuple[int, int]:
        """Return the id, and a number that was not given to another batch."""
        sequence = self._next_sequence
        self._next_sequence += self._is_idempotent
        return self._producer_id, sequence

    def go_back(self, sequence: int) -> None:
        """Give this number and those after it again: no batch under them was applied."""
        assert sequence <= self._next_sequence, f"{sequence} was not given yet"
        self._next_sequence = sequence

    async def claim(self, calls: Calls, cluster_id: str, deadline: Deadline) -> None:
        """Claim the name, if there is one, on the first call. Raises the error of the leader.

        A repetition after a lost answer fences the first claim, under which no batch was sent.
        """
        if self._name is None or self.incarnation is not None:
            return
        request = log_pb2.ClaimProducerRequest(name=self._name, cluster_id=cluster_id)
        try:
            answer = await calls.leader(request, deadline)
        except QuorumlogError as error:
            error.outcome = Outcome.NOT_APPLIED  # The outcome of the messages: none was sent yet.
            raise
        self.incarnation = log_pb2.ProducerIncarnation(name=self._name, number=answer.number)
        claim = log_pb2.AppendRequest(incarnation=self.incarnation)
        self.fields = claim.SerializeToString() + self._wish


class Sender:
    """Sends the batches in `waiting`. `run` is a task of its own; `wake` has it look again."""

    def __init__(
        self,
        router: Router,
        calls: Calls,
        options: ProducerOptions,
        on_stray: Callable[[Batch], bool],
    ) -> None:
        """`on_stray` gets a batch with a topic that the group lacks; True: it took the batch."""
        self.waiting: deque[Batch] = deque()
        self.stats = SenderStats()
        self.in_flight_count = 0
        self.is_flushing = 0  # Count of flushes that wait: do not linger.
        self._router = router
        self._calls = calls
        self._is_idempotent = options.idempotent
        self._in_flight_max = options.in_flight_max
        self._linger_s = options.linger_ms / 1000
        self._on_stray = on_stray
        self._stuck_since_s: float | None = None  # Since when there was work and no receipt.
        self._wake = asyncio.Event()
        self.wake: Final = self._wake.set
        """Has `run` look again: a batch was added, is full, or must leave now."""
        self._next_queue: dict[str, int] = {}
        self.identity: Final = ProducerIdentity(
            is_idempotent=options.idempotent, name=options.name, with_stages=options.with_stages
        )
        self._unacked_since_s: float | None = None
        self._direct: FramedSession | None = None  # Takes single messages without a detour.
        self._last_count = 0  # Messages of the batch that was acknowledged last.

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
                await self.identity.claim(self._calls, self._router.cluster_id, head.deadline)
            except QuorumlogError as error:
                is_late = isinstance(error, errors.DeadlineError) and not error.cause
                if head.last_error is not None and is_late:
                    # It says more than the last search.
                    error = head.deadline.error(self._what, head.last_error, attempts=head.attempts)
                self._give_up_waiting(error)
                continue
            session, error_met = await self._session(node, head)
            if session is not None:
                await self._run_session(session)
                error_met = self._settle(session)
            if error_met is None:
                continue  # It was retired for another.
            if backoff is None or (session is not None and session.decided_count):
                backoff, failures = Backoff(head.deadline), 0
            if self.waiting:
                failures += 1
                backoff.deadline = self.waiting[0].deadline
                # The batch was settled, or the leader is searched for anyway.
                is_searched = isinstance(error_met, errors.NotLeaderError | UnavailableError)
                is_settled = is_searched or not error_met.retryable
                if not is_settled or failures > REDIRECTS_AT_ONCE:
                    await backoff.pause(error_met.retry_after_ms)

    # One session.

    async def _session(
        self, node: NodeChannel, head: Batch
    ) -> tuple[AppendSession | None, QuorumlogError | None]:
        """Open a stream to a node, of frames if that can be; else return the reason."""
        try:
            if node.framed is not None and all(map(fits, self._named()[:1])):
                connection = await node.framed.connected()
                if connection is not None:
                    return FramedSession(node, connection, self._answered), None
            return GrpcSession(node, self._answered), None
        except QuorumlogError as error:  # A framed port is required, and not there.
            if isinstance(error, UnavailableError):
                self._router.leader_failed(node.address)
            head.last_error = final = error
            if error.retryable:
                final = head.deadline.error(self._what, error, attempts=head.attempts)
            self._give_up_waiting(final)
            return None, error
        except grpc.aio.UsageError:
            self._router.leader_failed(node.address)  # Its channel was closed meanwhile.
            return None, None

    async def _run_session(self, session: AppendSession) -> None:
        helpers = [
            asyncio.create_task(self._write(session)),
            asyncio.create_task(self._watch(session)),
        ]
        for helper in helpers:  # A failed helper must not leave the reader waiting for ever.
            helper.add_done_callback(lambda _: session.stop())
        if isinstance(session, FramedSession) and not self._linger_s:
            self._direct = session
        try:
            await session.run()
        finally:
            self._direct = None
            session.stop()
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
                if not self.load:  # Another group has what was waiting, or its time was up.
                    self._unacked_since_s = self._stuck_since_s = None
                await self._wait()
            batch = self.waiting[0]
            if self._linger_s and batch.is_open and not self.is_flushing:
                rest_s = batch.created_s + self._linger_s - time.monotonic()
                if rest_s > 0:
                    await self._wait(rest_s)
                    continue
            if not batch.records:
                if batch.deadline.has_passed:  # A batch without a name was never sent.
                    self.waiting.popleft()
                    self._fail(batch, batch.deadline.error(self._what, None, attempts=0))
                    continue
                await self._encode(batch, session.node)
            if batch.records and not session.takes(batch):
                session.retire()
            await session.wait_for_room()
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
            await session.send(batch)

    def _may_send(self, session: AppendSession) -> bool:
        is_full = len(session.in_flight) >= self._in_flight_max
        if session.is_draining or not self.waiting or is_full:
            return False
        # A batch that is not full waits for the one before: so batches grow under load.
        return not session.in_flight or not self.waiting[0].is_open

    async def _encode(self, batch: Batch, node: NodeChannel) -> None:
        """Encode a batch, after asking for routes that are missing."""
        asked_for: set[str] = set()
        while True:  # Messages may be added during the call.
            topics = batch.topics() - asked_for
            missing = [name for name in topics if self._router.topic(name) is None]
            if not missing:
                break
            await self._ask_routes(missing, batch.deadline, node)
            asked_for.update(missing)
            if not self.waiting or self.waiting[0] is not batch:
                return  # Another task has taken the batch meanwhile.
        if any(map(self._router.lacks, asked_for)) and self._on_stray(batch):
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
                node, request, min(deadline.remaining_s, SUSPECT_AFTER_MS / 1000)
            )
        except QuorumlogError:
            return  # The stream to this node is about to fail, with a better error.
        self._router.learn_topics(response, topics)

    def _queue_count(self, topic: str) -> int:
        route = self._router.topic(topic)
        return max(1, route.queue_count) if route is not None else 1

    def _choose_queue(self, topic: str) -> int:
        """Return the next queue of a topic, round robin, a batch at a time."""
        return self._next_turn(topic) % self._queue_count(topic)

    def _next_turn(self, topic: str) -> int:
        at = self._next_queue.get(topic)
        if at is None:
            at = secrets.randbelow(1 << 16)  # Many short-lived producers must not all begin at 0.
        self._next_queue[topic] = at + 1
        return at

    def _answered(self, session: AppendSession, response: log_pb2.AppendResponse) -> None:
        """Take the answer to the first batch in flight."""
        in_flight = session.in_flight
        batch = in_flight.popleft()
        self.in_flight_count = len(in_flight)
        session.progress_s = now_s = time.monotonic()
        if response.HasField("error"):
            self._refused(session, batch, errors.from_pb(response.error))
        else:
            self._acked(session, batch, response, now_s)
        if self.waiting:
            self._wake.set()

    def _prefer_frames(self, session: AppendSession) -> None:
        """Connect to the framed port of a node that gets appends over gRPC, and move there."""
        framed = session.node.framed
        if framed is None or not isinstance(session, GrpcSession):
            return
        if not framed.is_ready:
            framed.begin()
        elif not session.in_flight:  # Otherwise the next batch has it retired.
            session.retire()

    async def _watch(self, session: AppendSession) -> None:
        """End a session without answers: its node was paused, cut off, or time is up."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_MS / 1000)
            self._prefer_frames(session)
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
                    if session.node.framed is not None:
                        session.node.framed.close_silent()
                    return
                session.progress_s += WATCH_INTERVAL_MS / 1000 * 5  # Ask again, but not at once.

    # The direct way of single messages.

    def clear_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if a single message may go straight to the socket, now.

        It may when a stream of frames is open with nothing in flight and nothing waiting, the
        topic is known, and the last batch was a single message, too: callers that send many at once
        are better off with the batch that is collected until their turn of the loop is over.
        """
        direct = self._direct
        if (
            direct is None
            or self._last_count != 1
            or self.waiting
            or direct.in_flight
            or direct.is_draining
            or not direct.connection.is_writable
            or len(direct.connection.calls) >= CALLS_MAX
            or direct.connection.waiters
        ):
            return None
        return self._router.topic(topic)

    def send_single(self, batch: Batch, entry: Entry, size_bytes: int, queue_count: int) -> None:
        """Send a new batch of one message at once; `clear_route` found the topic."""
        direct, queue_id, key = self._direct, entry[1], entry[2]
        assert direct is not None, "clear_route was asked"
        if queue_id is None:
            queue_count = queue_count or 1
            if key is not None:
                queue_id = key_queue(key, queue_count)
            else:
                queue_id = self._next_turn(entry[0].name) % queue_count
        batch.encode_single(entry, queue_id, size_bytes)
        identity, timeout_ms = self.identity, int(batch.deadline.timeout_ms) or 1
        producer_id, sequence = identity.next_name()
        cluster_id = self._router.cluster_id
        batch.identify(producer_id, sequence, cluster_id, identity.fields, timeout_ms)
        direct.in_flight.append(batch)
        self.in_flight_count = batch.attempts = 1
        direct.progress_s = batch.created_s
        if self._stuck_since_s is None:
            self._unacked_since_s = self._stuck_since_s = batch.created_s
        direct.send_nowait(batch, timeout_ms)

    # Answers.

    def _acked(
        self,
        session: AppendSession,
        batch: Batch,
        response: log_pb2.AppendResponse,
        now_s: float,
    ) -> None:
        stats = self.stats
        session.decided_count += 1
        self._router.on_term(response.term)
        stats.batches_acked += 1
        self._last_count = batch.record_count
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
        if batch.record_count < 2 or max(error.faulty_records, default=0) >= batch.record_count:
            error.faulty_records = ()  # Nothing to tell apart, or no numbers of this batch.
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

    def _settle(self, session: AppendSession) -> QuorumlogError | None:
        """Settle what a session left: send again, under the same or a new name, or fail.

        Return the reason of its end; None: it was retired, and left nothing.
        """
        error = session.error
        if error is None:
            assert session.is_draining, "a session ends for a reason"
            assert not session.in_flight, f"{len(session.in_flight)} batches have no answer"
            return None
        if isinstance(error, errors.NotLeaderError):
            self._router.on_hint(error.leader_id, error.leader_address, session.node.address)
        elif isinstance(error, UnavailableError):
            self._router.leader_failed(session.node.address)
        if session.is_unsent and not error.retryable and not session.in_flight and self.waiting:
            # The node refused the stream while its first batch waited for routes: it meets that.
            session.in_flight.append(self.waiting.popleft())
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
        late, deadline = batch.deadline.has_passed, batch.deadline
        doubtful = deadline.error_unknown(self._what, error, attempts=batch.attempts)
        if batch.may_be_applied and (late or not self._is_idempotent):
            return doubtful
        if late:
            return deadline.error(self._what, error, attempts=batch.attempts)
        lost = isinstance(error, errors.UnknownProducerError)
        if lost or batch.out_of_sequence_count > OUT_OF_SEQUENCE_MAX:
            batch.out_of_sequence_count = 0
            if batch.may_be_applied:
                return doubtful
            self._rename(self._named(), is_new=True)
            return None
        self._router.full_disks.note(error)
        if error.retryable or error.outcome is Outcome.UNKNOWN:
            return None
        return doubtful if batch.may_be_applied else error  # An earlier attempt has no answer yet.

    def _give_up(self, batch: Batch, error: QuorumlogError) -> bool:
        """Fail a batch permanently, and bring those behind it in order again.

        Return whether parts of it are sent again instead.
        """
        named = self._named()
        is_new = batch.may_be_applied or any(other.may_be_applied for other in named)
        if batch.may_be_applied and self._is_idempotent:
            # The outcome of its successors stays unknown: no later attempt can resolve their name.
            for other in [other for other in named if other.may_be_applied]:
                self.waiting.remove(other)
                text = f"a batch before it has an unknown outcome ({error.message})"
                self._fail(other, errors.OutcomeUnknownError(text))
        elif batch.records and not is_new:
            self.identity.go_back(batch.sequence)
        parts: list[Batch] = []
        is_final = batch.may_be_applied or batch.deadline.has_passed or not batch.records
        labels = () if is_final or batch.is_atomic else batch.labels_of_fault(error)
        if not labels:
            self._fail(batch, error)
        else:  # Only the message at fault shall fail.
            for label, part in batch.split(labels).items():
                if isinstance(label, Verdict) and label is not Verdict.GOOD:
                    self._fail(part, _of_one_message(error, label))
                else:
                    parts.append(part)
                    part.encode(self._queue_count, self._choose_queue)
            self.waiting.extendleft(reversed(parts))
        self._rename(self._named() if self._is_idempotent else parts, is_new=is_new)
        return bool(parts)

    def take(self, is_meant: Callable[[Batch], bool]) -> list[Batch]:
        """Remove and return, in order, the batches that are surely not in the log of this group."""
        named = self._named()
        is_clean = not self.in_flight_count and not any(other.may_be_applied for other in named)
        taken = [
            batch for batch in self.waiting if (is_clean or not batch.records) and is_meant(batch)
        ]
        moved = set(taken)
        kept = [batch for batch in self.waiting if batch not in moved]
        self.waiting.clear()
        self.waiting.extend(kept)
        renamed = [batch for batch in taken if batch.records]
        for batch in renamed:
            batch.forget_name()
        if renamed and self._is_idempotent:
            self.identity.go_back(named[0].sequence)
            self._rename(self._named(), is_new=False)
        return taken

    def drop(self, error: QuorumlogError) -> None:
        """Fail the waiting batches that are surely not in the log. The others stay."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self.waiting.extend(batch for batch in waiting if batch.may_be_applied)
        for batch in waiting:
            if not batch.may_be_applied and not batch.is_done:
                self._fail(batch, error)

    @property
    def _what(self) -> str:
        return f"the append{self._router.where}"

    def _named(self) -> list[Batch]:
        """Return the waiting batches with a name: they were sent, or were about to be, so they are
        before all others."""
        return [*takewhile(lambda batch: batch.records, self.waiting)]

    def _rename(self, batches: Iterable[Batch], *, is_new: bool) -> None:
        if is_new:
            self.identity.renew()
        for batch in batches:
            if not batch.is_done and batch.records:
                batch.may_be_applied = False  # The old name is given up.
                self._name(batch)

    def _name(self, batch: Batch) -> None:
        batch.identify(*self.identity.next_name(), self._router.cluster_id, self.identity.fields)

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


def _of_one_message(error: QuorumlogError, verdict: Verdict) -> QuorumlogError:
    """Return the error of messages of a batch, from that of the batch."""
    own_error = copy.copy(error)
    own_error.faulty_records = ()
    if verdict is Verdict.SAME_FAULT:
        first = min(error.faulty_records)
        own_error.args = (f"refused like message {first} of its batch: {error.message}",)
    return own_error
