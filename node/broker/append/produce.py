"""Appends: from a client's batch to its receipt.

Owns the checks of a batch, the bounds of what is under way, and the answer to each caller. Must not
know how entries are replicated. There is no task and no coroutine per batch: an append is one
object that the driver's future calls back. Above the bounds appends are parked, first come first
served, so that the batches of a producer stay in order.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from node.broker.append.attached import NOTHING_ATTACHED, AttachedCommands, OnDecided
from node.broker.append.faulty_records import faulty_records
from node.broker.append.receipts import COMMAND_QUEUE, AppendReceipts, QueueRanges
from node.broker.append.repeats import messages_digest
from node.broker.append.sequences import InFlightBatches, Sequences
from node.broker.append.sizes import Sizes
from node.broker.append.topic_rates import TopicMeters
from node.broker.core.context import Context, noted
from node.config.limits import COMMAND_SIZE_BYTES_MAX, DEAD_LETTER_SIZE_BYTES_MAX
from node.errors.common import (
    AppendTimeoutError,
    BadRequestError,
    BatchUndecidedError,
    BusyError,
    DrainingError,
    NodeError,
    OutcomeUnknownError,
    OutOfSequenceError,
    ReservedTopicError,
    ShuttingDownError,
    UnknownProducerError,
)
from node.runtime.room import Room
from node.state.appends import Committed, Prepared
from node.state.command_records import CommandEncoder
from node.state.state import State
from node.state.tables.topic_rates import TopicRatesTable
from node.users.calling import Calling
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse, ProducerIncarnation
from raft import errors as raft_errors
from raft.errors import RaftError
from raft.messages import NO_INDEX
from store import format as fmt
from store.errors import LimitExceededError, Outcome, RecordFormatError, StoreError
from store.record.stamp import QueueKey
from store.record.topic_names import is_reserved
from store.stats import Latencies

Refused = (NodeError, StoreError, RaftError)
_WRITABLE_MAX = 16_384
"""Limit of the queues that are known to be writable."""


def batch_size_bytes_max(context: Context) -> int:
    """Return the size of the largest batch a client may send.

    A stored batch must also fit into an entry of the broker's own, with a dead letter's additions.
    """
    return own_size_bytes_max(context) - DEAD_LETTER_SIZE_BYTES_MAX


def own_size_bytes_max(context: Context) -> int:
    """Return the size of the broker's largest own batch: an entry less header and our command."""
    config = context.store.config
    entry = min(
        config.batch_size_bytes_max,
        fmt.ENTRY_SIZE_BYTES_MAX,
        config.file_size_bytes - fmt.BLANK_SIZE_BYTES_MIN,
    )
    return entry - fmt.ENTRY_HEADER_SIZE_BYTES - COMMAND_SIZE_BYTES_MAX


class Alone(NamedTuple):
    """A record of a batch that is appended alone, in its place, if the batch is refused."""

    records: bytes
    future: "asyncio.Future[AppendResponse]"


class _Append:
    """One batch and its callers."""

    __slots__ = (
        "alone",
        "attached_commands",
        "calling",
        "digest",
        "divided",
        "future",
        "host",
        "incarnation",
        "on_decided",
        "parked_ns",
        "produce",
        "producer_batches",
        "producer_id",
        "queued_us",
        "queues",
        "record_count",
        "records",
        "repeats",
        "sequence",
        "size_bytes",
        "timeout_ms",
        "timer",
        "with_stages",
    )

    def __init__(
        self,
        produce: "Produce",
        request: AppendRequest,
        records: bytes,
        future: "asyncio.Future[AppendResponse]",
        attached_commands: AttachedCommands,
        alone: Sequence[Alone] = (),
        calling: Calling | None = None,
    ) -> None:
        limit_ms, timeout_ms = produce.context.limits.append_timeout_ms, request.timeout_ms
        self.produce = produce
        self.records = records
        self.attached_commands = attached_commands
        self.size_bytes = len(records)
        self.record_count = request.record_count
        self.incarnation = request.incarnation if request.HasField("incarnation") else None
        self.producer_id = request.producer_id
        self.sequence = request.sequence
        self.timeout_ms = timeout_ms if 0 < timeout_ms < limit_ms else limit_ms
        self.future = future
        self.repeats: list[_Append] | None = None
        """Those that came under the same number while this one was under way."""
        self.digest = b""
        """Of the messages, once the number is known to be used."""
        self.queues: QueueRanges = {}
        self.host = ""
        """Whose share it takes while it is parked."""
        self.with_stages = request.with_stages
        self.parked_ns = self.queued_us = 0
        """When it began to wait for room, and for how long it did."""
        self.producer_batches: InFlightBatches[_Append] | None = None
        self.on_decided: OnDecided | None = None
        """Of the feature, once its check passed."""
        self.timer: asyncio.TimerHandle | None = None
        self.calling = calling
        """Whose right to publish is checked here; None: it was checked, or users are off."""
        self.alone = alone
        self.divided: deque[Alone] | None = None
        """Records that are still to be appended, once the batch was refused while it was parked."""

    def check(self, prepared: Prepared) -> None:
        """Refuse a batch by what it touches; nothing is written yet."""
        produce, attached_commands = self.produce, self.attached_commands
        self.queues = queues = prepared.queues
        command_count = (self.producer_id != 0) + attached_commands.command_count
        state, writable, visible_count = produce.context.machine.state, produce.writable, 0
        version = state.versions["topics"]
        if state is not produce.writable_state or version != produce.writable_version:
            writable.clear()
            produce.writable_state, produce.writable_version = state, version
            produce.topic_rates.table = state.table(TopicRatesTable)
        for key in queues:
            count = queues[key][1]
            visible_count += count
            if key not in writable and (key != COMMAND_QUEUE or count != command_count):
                produce.check_queue(key, attached_commands.system_queues)
        record_count = len(prepared.content.queue_offsets)
        message_count = record_count - command_count
        if message_count != self.record_count:
            raise BadRequestError(
                "record_count", f"{message_count}, as in records", f"{self.record_count}"
            )
        if visible_count != record_count:
            raise BadRequestError("records", "no prepared or rolled back ones", "some")
        if self.incarnation is not None:
            produce.check_incarnation(self.incarnation)
        if self.calling is not None:
            self.calling.publish(queues, self.size_bytes, self.record_count)
        if attached_commands is not NOTHING_ATTACHED:
            self.on_decided = attached_commands.check(prepared)
        elif produce.topic_rates.table.by_topic:
            counts = ((key[0], queues[key][1]) for key in queues)
            produce.topic_rates.take(counts, self.size_bytes, self.record_count)

    def on_timeout(self) -> None:
        self.produce.on_timeout(self)


class Produce:
    """The appends under way and those parked. One per broker."""

    def __init__(
        self, context: Context, check_incarnation: Callable[[ProducerIncarnation], None]
    ) -> None:
        """`check_incarnation` refuses a batch of a named producer that has lost its name."""
        self.context: Final = context
        self.check_incarnation: Final = check_incarnation
        self._loop = asyncio.get_running_loop()
        self._encoder = CommandEncoder(context.store.config.store_host)
        self._sequences: Sequences[_Append] = Sequences(context)
        self._receipts = AppendReceipts(context)
        limits = context.limits
        self._room = Room("waiting appends", limits.parked_append_count_max)
        self.parked_bytes: Final = Room(
            "bytes of waiting appends", limits.parked_append_size_bytes_max
        )
        self.queued: Final = Latencies()
        """Of those that waited for room, until they were written or given up."""
        self.parked: Final[OrderedDict[_Append, None]] = OrderedDict()
        """Appends that wait for room, the oldest first. A caller that gives up is removed at once:
        the others may wait without end while nothing is decided."""
        self._parked_numbers: Final = dict[tuple[int, int], _Append]()
        """Those of producers, by producer id and sequence: a repeat waits with the first."""
        self.writable: Final = set[QueueKey]()
        """Queues of clients that were found writable, as long as no topic changes."""
        self.writable_state: State | None = None
        """The state that was asked, at `writable_version`; a snapshot replaces it."""
        self.writable_version = -1
        self.topic_rates: Final = TopicMeters(context.state, context.clock_ms)
        self.sizes: Final = Sizes(context.limits.topic_count_max)
        self.batch_size_bytes_max: Final = batch_size_bytes_max(context)
        self.own_size_bytes_max: Final = own_size_bytes_max(context)
        self.is_draining = False
        """Whether new appends are refused. Those under way are finished."""
        self.in_flight_count = self.in_flight_size_bytes = 0
        self.records_total = self.size_bytes_total = 0
        """Acknowledged by this process, duplicates not counted."""
        self.duplicates_total = self.failed_total = self.busy_total = self.timeouts_total = 0

    # --- Beginning ---

    def append(
        self,
        request: AppendRequest,
        attached_commands: AttachedCommands = NOTHING_ATTACHED,
        records: bytes | None = None,
        alone: Sequence[Alone] = (),
        calling: Calling | None = None,
    ) -> "asyncio.Future[AppendResponse]":
        """Append a batch; the future resolves with its receipt or fails, and never raises here.

        `records` are those of the request where it does not hold them itself. Cancelling the future
        does not withdraw the batch. If the batch is refused because of one record, the future is
        cancelled and those `alone` are appended in order, before all that came later. `calling`
        must have the right to publish to their topics when their place is known.
        """
        future: asyncio.Future[AppendResponse] = self._loop.create_future()
        try:
            self._begin(request, future, attached_commands, records, alone, calling)
        except Refused as error:
            if not alone or not _is_of_one_record(error):
                self._fail(future, error)
                return future
            future.cancel()
            for one in alone:
                try:
                    how = AppendRequest(record_count=1)
                    self._begin(how, one.future, NOTHING_ATTACHED, one.records, calling=calling)
                except Refused as refusal:
                    self._fail(one.future, refusal)
        return future

    def refuse(self, error: Exception) -> "asyncio.Future[AppendResponse]":
        """Return a failed future for a batch that a feature refused; nothing was written."""
        future: asyncio.Future[AppendResponse] = self._loop.create_future()
        self._fail(future, error)
        return future

    def _begin(
        self,
        request: AppendRequest,
        future: "asyncio.Future[AppendResponse]",
        attached_commands: AttachedCommands,
        records: bytes | None,
        alone: Sequence[Alone] = (),
        calling: Calling | None = None,
    ) -> None:
        context = self.context
        cluster_id = request.cluster_id
        if cluster_id and cluster_id != context.identity.cluster_id:
            context.check_cluster(cluster_id)
        if context.is_stopped or not context.driver.is_ready:
            if self.is_draining:
                raise context.with_leader(DrainingError())
            context.check_leads()
        if records is None:
            records = request.records
        if not records:
            raise BadRequestError("records", "at least one record", "empty")
        append = _Append(self, request, records, future, attached_commands, alone, calling)
        size_bytes, limit = append.size_bytes, self.batch_size_bytes_max
        if attached_commands.moves_stored or size_bytes <= limit:
            # Commands are in the entry, and not in what has to fit into one again.
            size_bytes += len(attached_commands.commands)
            limit = self.own_size_bytes_max
        if size_bytes > limit:
            raise LimitExceededError("batch", size_bytes, limit)
        if append.producer_id and self._is_known(append):
            return
        if self.is_draining:
            raise context.with_leader(DrainingError())
        must_wait = self.in_flight_count > 0 and not self._has_room(append)
        if must_wait or self.parked or not self._propose(append):
            self._park(append)
        append.timer = self._loop.call_later(append.timeout_ms / 1000, append.on_timeout)

    def known(
        self, producer_id: int, sequence: int, record_count: int, asked: bytes
    ) -> "asyncio.Future[AppendResponse] | None":
        """Return the first answer to a batch that is known already; None for a new one.

        For a feature that looks at the state before it makes the batch: what the state refuses now
        may be the effect of that very batch. Raises Refused, also where another count of
        records or other things were `asked`.
        """
        if not producer_id:
            return None
        future: asyncio.Future[AppendResponse] = self._loop.create_future()
        request = AppendRequest(
            producer_id=producer_id, sequence=sequence, record_count=record_count
        )
        append = _Append(self, request, b"", future, AttachedCommands(asked=asked))
        return future if self._is_known(append) else None

    def _is_known(self, append: _Append) -> bool:
        """Answer a batch that is stored, under way or parked already; return whether it is.

        Raises as `Sequences.find`, but nothing about batches before it while some are parked: they
        may be among these, and `_resume_one` looks again.
        """
        number = append.producer_id, append.sequence
        first: _Append | int | None = self._parked_numbers.get(number)
        if first is None or first is append:
            try:
                first = self._sequences.find(*number)
            except (OutOfSequenceError, UnknownProducerError):
                if not self.parked or append in self.parked:
                    raise
                return False
        if first is not None:
            self._answer_known(append, first)
        return first is not None

    def _answer_known(self, append: _Append, first: _Append | int) -> None:
        """Answer a batch whose number is under way or parked, or in the log at a position.

        Raises SequenceReusedError if it is not the batch that is there.
        """
        if append.records:  # No longer needed: a batch under way may be decided much later.
            if not append.attached_commands.moves_stored:  # Else settings made them, too.
                append.digest = messages_digest(append.records)
            append.records = b""
        if isinstance(first, int):
            response = self._receipts.of_duplicate(
                append.producer_id,
                append.sequence,
                first,
                append.record_count,
                append.digest,
                append.attached_commands.asked,
            )
            self.duplicates_total += 1
            if not append.future.done():
                append.future.set_result(response)
            return
        # It waits for the one with its number, at most for its own time.
        repeats = first.repeats = first.repeats or []
        limit = self.context.limits.producer_window_count
        if len(repeats) >= limit:
            raise BatchUndecidedError(append.producer_id, append.sequence, limit)
        repeats.append(append)
        timer = self._loop.call_later(append.timeout_ms / 1000, append.on_timeout)

        def leave(_future: "asyncio.Future[AppendResponse]") -> None:
            timer.cancel()
            repeats.remove(append)

        append.future.add_done_callback(leave)

    # --- Queues ---

    def check_queue(self, key: QueueKey, system_queues: frozenset[QueueKey]) -> None:
        """Raise unless a batch may touch a queue, which is not known to be writable."""
        name = key[0].decode("ascii")
        if is_reserved(name):
            if key not in system_queues:
                raise ReservedTopicError(name)
            return
        self.context.writable(name, key[1])
        if len(self.writable) >= _WRITABLE_MAX:
            self.writable.clear()
        self.writable.add(key)

    # --- Bounds ---

    def _has_room(self, append: _Append) -> bool:
        limits = self.context.limits
        size_bytes = self.in_flight_size_bytes + append.size_bytes
        is_within = (
            size_bytes <= limits.in_flight_size_bytes_max
            and self.in_flight_count < limits.in_flight_count_max
        )
        return is_within or self.in_flight_count == 0

    def _park(self, append: _Append) -> None:
        """Park a batch behind those that wait for room already. Raises BusyError."""
        append.host = self._room.take()
        try:
            self.parked_bytes.take(append.size_bytes)
        except BusyError:
            self._room.give_back(append.host)
            raise
        self.parked[append] = None
        append.parked_ns = time.perf_counter_ns()
        if append.producer_id:
            self._parked_numbers[append.producer_id, append.sequence] = append

    def _unpark(self, append: _Append) -> None:
        append.queued_us = (time.perf_counter_ns() - append.parked_ns) // 1000
        self.queued.note(append.queued_us)
        del self.parked[append]
        self._parked_numbers.pop((append.producer_id, append.sequence), None)
        self._room.give_back(append.host)
        self.parked_bytes.give_back(append.host, append.size_bytes)

    def _resume(self) -> None:
        """Propose parked batches, in order, as far as there is room."""
        while self.parked:
            append = next(iter(self.parked))
            is_cancelled = append.future.done() and append.divided is None and not append.repeats
            if not is_cancelled and not (self._has_room(append) and self._resume_one(append)):
                return
            self._unpark(append)

    def _resume_one(self, append: _Append) -> bool:
        """Propose a parked batch, or fail it; return whether it need not stay parked."""
        try:
            if append.divided is None:
                if append.producer_id and self._is_known(append):
                    assert not append.repeats, "the number was stored while it was parked"
                    _cancel(append.timer)
                    return True
                return self._propose(append)
        except Refused as error:
            if not append.alone or not _is_of_one_record(error):
                _cancel(append.timer)
                self._fail_all(append, error)
                return True
            append.future.cancel()
            append.divided = deque(append.alone)
        return self._propose_divided(append, append.divided)

    def _propose_divided(self, append: _Append, left: deque[Alone]) -> bool:
        """Propose records of a parked batch that was refused, as far as there is room; return
        whether none is left."""
        while left:
            request = AppendRequest(record_count=1, timeout_ms=append.timeout_ms)
            one = left[0]
            single = _Append(
                self, request, one.records, one.future, NOTHING_ATTACHED, calling=append.calling
            )
            try:
                if not self._has_room(single) or not self._propose(single):
                    return False
                single.timer = self._loop.call_later(single.timeout_ms / 1000, single.on_timeout)
            except Refused as error:
                self._fail(single.future, error)
            left.popleft()
        _cancel(append.timer)
        return True

    def fail_parked(self) -> None:
        """Fail all parked batches: this node stopped leading, or stops."""
        for append in list(self.parked):
            self._unpark(append)
            _cancel(append.timer)
            self._fail_all(append, self.context.why_not())

    # --- Under way ---

    def _propose(self, append: _Append) -> bool:
        """Hand a batch to the log; return whether the log took it. Raises Refused.

        A log that is full of undecided entries does not take it.
        """
        records, attached_commands = append.records, append.attached_commands
        if attached_commands is not NOTHING_ATTACHED:
            records += attached_commands.commands
        if append.producer_id:
            if self.in_flight_count:
                self._sequences.check_room(append.producer_id)
            records += self._encoder.encode_producer_batch(
                append.producer_id,
                append.sequence,
                append.record_count,
                0 if self.context.receipts.has_entries else len(records),
                attached_commands.asked,
            )
        try:
            decided = self.context.driver.append(records, append.check)
        except raft_errors.BusyError:
            if self.in_flight_count == 0:
                raise
            return False
        except (RecordFormatError, LimitExceededError) as error:
            check = self.context.store.log.stamper.check_record
            error.faulty_records = faulty_records(append.records, error, check)
            raise
        append.records = b""  # The log has a copy.
        self.in_flight_count += 1
        self.in_flight_size_bytes += append.size_bytes
        if append.producer_id:
            append.producer_batches = self._sequences.begin(
                append.producer_id, append.sequence, append
            )
        decided.add_done_callback(partial(self._on_decided, append))
        return True

    def _on_decided(self, append: _Append, decided: "asyncio.Future[Committed]") -> None:
        """Tell all callers of an entry its outcome, and resume parked batches."""
        self.in_flight_count -= 1
        self.in_flight_size_bytes -= append.size_bytes
        if append.timer is not None:
            append.timer.cancel()
        if append.producer_batches is not None:
            self._sequences.end(append.producer_id, append.sequence, append.producer_batches)
        committed: Committed | None = None
        error: Exception | None = None
        try:
            committed = decided.result()
        except asyncio.CancelledError:
            error = ShuttingDownError()
        except Exception as failure:  # noqa: BLE001  Whatever failed it, its callers hear of it.
            error = failure
        if append.on_decided is not None:
            append.on_decided(committed)
        if committed is not None:
            self._tell(append, committed)
        else:
            assert error is not None, "neither committed nor failed"
            if isinstance(error, ShuttingDownError):  # Would say that nothing was begun.
                error = OutcomeUnknownError(NO_INDEX, self.context.driver.term)
            self._fail_all(append, error)
        if self.parked:
            self._resume()

    def _tell(self, append: _Append, committed: Committed) -> None:
        self.records_total += append.record_count
        self.size_bytes_total += append.size_bytes
        self.sizes.note(append.queues, append.record_count, append.size_bytes)
        if not append.future.done():
            response = self._receipts.of_commit(committed, append.queues, append.record_count)
            if append.attached_commands is not NOTHING_ATTACHED:
                append.attached_commands.describe(response, committed)
            if append.with_stages:
                self._add_stages(response, append)
            append.future.set_result(response)
        for repeat in append.repeats or ():
            try:  # The command record comes last.
                self._answer_known(repeat, committed.result.record_positions[-1])
            except Refused as refusal:
                self._fail(repeat.future, refusal)

    def _add_stages(self, response: AppendResponse, append: _Append) -> None:
        run = self.context.driver.append_times.of(response.index)
        if run is not None:
            response.stages.queued_us = append.queued_us
            response.stages.sent_us = run.sent_us
            response.stages.quorum_us = run.quorum_us
            response.stages.applied_us = run.applied_us

    def on_timeout(self, append: _Append) -> None:
        """Fail a caller whose time is over. A batch under way stays under way."""
        append.timer = None  # The timer refers to the append, which must not outlive its caller.
        if append in self.parked:
            self._unpark(append)
            limit = self.context.limits.in_flight_size_bytes_max
            self._fail_all(append, BusyError("in-flight bytes", self.in_flight_size_bytes, limit))
        else:
            self.timeouts_total += 1
            error, caller = AppendTimeoutError(append.timeout_ms), append.future
            error.decided = append.future = self._loop.create_future()
            error.decided.add_done_callback(noted)  # Most callers do not ask.
            self._fail(caller, error)

    def _fail_all(self, append: _Append, error: Exception) -> None:
        for one in (append, *(append.repeats or ()), *(append.divided or ())):
            self._fail(one.future, error)

    def _fail(self, future: "asyncio.Future[AppendResponse]", error: Exception) -> None:
        error = self.context.translate(error)
        self.failed_total += 1
        self.busy_total += isinstance(error, BusyError)
        if not future.done():
            future.set_exception(error)


def _is_of_one_record(error: BaseException) -> bool:
    """Whether a refusal may be about one record: nothing was written, and the same batch would be
    refused again."""
    outcome, is_retryable = getattr(error, "outcome", None), getattr(error, "retryable", True)
    return outcome is Outcome.NOT_APPLIED and not is_retryable


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
