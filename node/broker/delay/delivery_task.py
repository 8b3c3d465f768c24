"""Delivers held messages when they are due: a task of the leader.

Owns the soft state of one leadership (what is held and when it is due, what is being taken) and the
task that works it off. Must not know clients. A delivery is one entry with the messages and with
the command that takes them, so the next leader finds both or neither; this node takes no message
twice, because it notes those under way. Times are the leader's wall clock: where that jumps back,
or the next leader's is behind, messages come later, and never before their time by it.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.broker.delay.deliveries import DelayedDelivery, Deliveries
from node.broker.delay.due_index import Due, DueIndex
from node.errors.common import NodeError, OutcomeUnknownError
from node.errors.delay import DelayedGoneError
from node.runtime.background import BackgroundTasks
from node.state.held import HOLDERS, NUMBERS
from node.state.tables.delay import QUEUE_COUNT, DelayTable
from quorumlog.pb.state_pb2 import Command
from raft.messages import NO_INDEX
from store import format as fmt
from store.errors import Outcome, StoreError
from store.record.stamp import QueueKey

_UNITS_AT_ONCE: Final = 2_000
"""Units of a queue read before other tasks get their turn: about 2 ms."""
_READS_AT_ONCE: Final = 4
"""Reads of `_UNITS_AT_ONCE` units before messages that are due are delivered."""
_KEYS_AT_ONCE: Final = 2_000
"""Messages brought into order before other tasks get their turn: about 1 ms."""
LOOK_MS_MAX: Final = 250
"""Interval of looks at the clock while something is held: the clock may jump."""
PAUSE_MS: Final = 20
"""Pause between two deliveries that are not full: an entry with three messages costs as much as one
with a hundred, and a delay of 20 ms does no harm."""
RETRY_MS: Final = 100
"""Pause after a delivery that could not be written: a full disk, or too much under way."""
UNREADABLE_RETRY_MS: Final = 2_000
"""Pause before a message that could not be read is tried again; a repair may be under way."""
HOLDING_QUEUES: Final = frozenset(NUMBERS)
"""Queues of delayed messages; when one of them grows, the task wants to know."""
_COMMAND_PART: Final = 4
"""An entry divided by this is the room for the command of a delivery: some 10 bytes a message."""

_log: Final = structlog.get_logger(component="delay")


class Leadership:
    """Soft state of one leadership. Forgotten as a whole."""

    def __init__(self) -> None:
        self.index = DueIndex()
        self.next_offsets = [0] * QUEUE_COUNT
        """First offset to read of each queue; all before it are indexed, being taken, or gone."""
        self.grown: set[int] = set(range(QUEUE_COUNT))
        """Queues that may have more."""
        self.taking: set[tuple[int, int]] = set()
        """Messages of entries that are written and not decided, deliveries and cancels."""
        self.cancels: dict[tuple[int, int], asyncio.Task[NodeError | StoreError | None]] = {}
        """Cancels under way; all callers that ask for the same one get the same answer."""
        self.in_flight_count = 0
        """Deliveries that are written and not decided."""
        self.wake = asyncio.Event()
        self.is_loading = True
        """Whether held messages are still being read. Delivery waits for it, to be in order."""
        self.next_delivery_s = 0.0
        """Time of the loop's clock until which messages are gathered."""
        self.is_paused = False
        """Whether a delivery could not be written: none is tried for a moment."""
        self.tasks = BackgroundTasks("the delivery of delayed messages failed")


class DeliveryTask:
    """The LeaderWork of delayed messages. One per broker."""

    def __init__(self, context: Context, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._own_appends = own_appends
        limits = context.limits
        entry_size_bytes_max = own_appends.entry_size_bytes_max
        room = entry_size_bytes_max - entry_size_bytes_max // _COMMAND_PART
        size_bytes_max = min(limits.delivery_size_bytes_max, room)
        self._deliveries = Deliveries(context, size_bytes_max)
        self.leadership: Leadership | None = None
        self.delivered_total = self.missing_total = self.cancelled_total = 0
        self.lateness_ms_total = 0
        """Lateness of all delivered messages, added up."""
        self._trouble = ""
        """The text that was logged last."""
        self.failed_total = 0
        """Deliveries that could not be written and were tried again."""

    # --- Life ---

    def begin(self) -> None:
        """See `LeaderWork.begin`."""
        leadership = self.leadership = Leadership()
        for queue, gone in enumerate(self._context.state.table(DelayTable).queues):
            leadership.next_offsets[queue] = gone.floor
        leadership.tasks.run(self._run(leadership))

    def end(self) -> None:
        """See `LeaderWork.end`. Entries under way are decided all the same."""
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.tasks.cancel()

    def look(self) -> None:
        """Look at the clock now. For tests, which have their own clock."""
        if self.leadership is not None:
            self.leadership.next_delivery_s = 0.0
            self.leadership.wake.set()

    def on_grown(self, keys: Iterable[QueueKey]) -> None:
        """Note the queues among these that hold delayed messages, and wake the task."""
        leadership = self.leadership
        numbers = {NUMBERS[key] for key in keys if key in NUMBERS}
        if leadership is not None and numbers:
            leadership.grown |= numbers
            leadership.wake.set()

    # --- The task ---

    async def _run(self, leadership: Leadership) -> None:
        """Work until this leadership is over, giving other tasks their turn every few ms."""
        while leadership is self.leadership:
            leadership.wake.clear()
            try:
                await self._step(leadership)
            except StoreError as error:
                self._context.note_damage(error)
                _log.warning("held messages cannot be read", error=str(error))
                await asyncio.sleep(UNREADABLE_RETRY_MS / 1000)

    async def _step(self, leadership: Leadership) -> None:
        for _ in range(_READS_AT_ONCE):  # A steady inflow must not stop deliveries.
            if not self._read_some(leadership):
                leadership.is_loading = False
                break
            await asyncio.sleep(0)
        if leadership.is_loading:
            return
        now_ms = self._context.unix_ms()
        while leadership.index.advance(now_ms, _KEYS_AT_ONCE):  # noqa: ASYNC110  In portions.
            await asyncio.sleep(0)
        if self._deliver(leadership, now_ms):
            await asyncio.sleep(0)
        elif not leadership.grown:
            await self._wait(leadership, now_ms)

    async def _wait(self, leadership: Leadership, now_ms: int) -> None:
        limit = self._context.limits.delivery_in_flight_count_max
        look_ms = leadership.index.next_look_unix_ms()
        is_full = leadership.in_flight_count >= limit
        if look_ms is None or is_full or leadership.is_paused:
            await leadership.wake.wait()
            return
        gather_ms = (leadership.next_delivery_s - asyncio.get_running_loop().time()) * 1000
        pause_ms = max(min(look_ms - now_ms, LOOK_MS_MAX), gather_ms, 1)
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await leadership.wake.wait()
        except TimeoutError:
            pass

    def _read_some(self, leadership: Leadership) -> bool:
        """Take some more held messages into the index; return whether there may be more."""
        if not leadership.grown:
            return False
        queue = min(leadership.grown)
        topic, queue_id = HOLDERS[queue]
        store, gone = self._context.store, self._context.state.table(DelayTable).queues[queue]
        first, end = store.queue_range(topic, queue_id)
        lo = min(gone.next_left(leadership.next_offsets[queue]), end)  # No unit of a gone one.
        if lo < first:  # Only damage that no replica could repair does this.
            hi = min(first, lo + _UNITS_AT_ONCE)
            for offset in range(lo, hi):  # Due at once, so that the loss is reported.
                if offset not in gone:
                    leadership.index.add(Due(0, queue, offset))
            leadership.next_offsets[queue] = hi
            return True
        hi = min(end, lo + _UNITS_AT_ONCE)
        units = store.units(topic, queue_id, lo, hi) if lo < hi else b""
        if hi == end:
            leadership.grown.discard(queue)
        add, is_fresh = leadership.index.add, lo < hi and not gone.has_any(lo, hi)
        for offset, (_, _, due_unix_ms) in enumerate(fmt.CONSUME_QUEUE_UNIT.iter_unpack(units), lo):
            if is_fresh or offset not in gone:
                add(Due(due_unix_ms, queue, offset))
        leadership.next_offsets[queue] = hi
        return bool(leadership.grown)

    # --- Entries ---

    def _deliver(self, leadership: Leadership, now_ms: int) -> bool:
        """Write one entry of due messages; return whether anything was due and may be written."""
        limits = self._context.limits
        now_s = asyncio.get_running_loop().time()
        is_full = leadership.in_flight_count >= limits.delivery_in_flight_count_max
        if is_full or leadership.is_paused or now_s < leadership.next_delivery_s:
            return False
        dues = leadership.index.take(now_ms, limits.delivery_count_max)
        if not dues:
            return False
        if len(dues) < limits.delivery_count_max:
            leadership.next_delivery_s = now_s + PAUSE_MS / 1000
        # A message taken by a cancel comes back if that fails, so it may be in the index twice.
        taking = leadership.taking
        unique = {due[1:]: due for due in dues if due[1:] not in taking}
        try:
            delivery = self._deliveries.of(list(unique.values()), self._context.state, now_ms)
        except StoreError:
            for due in unique.values():
                leadership.index.add(due)
            raise
        for due in delivery.left:
            leadership.index.add(due)
        for due in delivery.unreadable:
            later_ms = now_ms + UNREADABLE_RETRY_MS
            leadership.index.add(due._replace(due_unix_ms=later_ms))
        if delivery.taken:
            taking.update(due[1:] for due in delivery.taken)
            leadership.in_flight_count += 1
            leadership.tasks.run(self._write(leadership, delivery))
        return True

    async def _write(self, leadership: Leadership, delivery: DelayedDelivery) -> None:
        taken = delivery.taken
        is_known = True
        try:
            await self._own_appends.write(delivery.records, [delivery.command])
        except (NodeError, StoreError) as error:
            self.failed_total += 1
            is_known = error.outcome is Outcome.NOT_APPLIED
            if str(error) != self._trouble:  # Log it once, and not ten times a second.
                self._trouble = str(error)
                _log.warning("a delivery was not written", count=len(taken), error=str(error))
            if is_known:
                leadership.is_paused = True
                await asyncio.sleep(RETRY_MS / 1000)
                leadership.is_paused = False
                for due in taken:
                    leadership.index.add(due)
        else:
            self._trouble = ""
            now_ms = self._context.unix_ms()
            self.delivered_total += len(taken) - delivery.missing_count
            self.missing_total += delivery.missing_count
            self.lateness_ms_total += sum(max(0, now_ms - due.due_unix_ms) for due in taken)
        if is_known:  # If unknown, the messages stay taken: the next state decides.
            leadership.taking.difference_update(due[1:] for due in taken)
        leadership.in_flight_count -= 1
        leadership.wake.set()

    # --- Cancels ---

    async def cancel(self, due: Due) -> None:
        """Take a held message, and deliver it to nowhere.

        Raises DelayedGoneError while it is being delivered, and as `OwnAppends.write`. Cancelling
        the call does not withdraw the entry.
        """
        leadership = self.leadership
        assert leadership is not None, "the leader's work begins before its calls"
        message = due[1:]
        task = leadership.cancels.get(message)
        if task is None:
            if message in leadership.taking:
                raise DelayedGoneError(*message)
            leadership.taking.add(message)
            command = Command.CancelDelayed(queue=due.queue, offset=due.offset)
            task = leadership.tasks.run(self._write_cancel(leadership, due, command))
            leadership.cancels[message] = task
        try:
            error = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # The caller was cancelled, and not the task.
            raise OutcomeUnknownError(NO_INDEX, self._context.driver.term) from None
        if error is not None:
            raise error

    async def _write_cancel(
        self, leadership: Leadership, due: Due, command: Command.CancelDelayed
    ) -> NodeError | StoreError | None:
        try:
            await self._own_appends.write(b"", [Command(cancel_delayed=command)])
        except (NodeError, StoreError) as error:
            if error.outcome is Outcome.NOT_APPLIED:
                leadership.taking.discard(due[1:])
                leadership.index.add(due)
                leadership.wake.set()
                del leadership.cancels[due[1:]]
            return error
        leadership.taking.discard(due[1:])
        del leadership.cancels[due[1:]]
        self.cancelled_total += 1
        return None
