"""Shared by the calls of pop: waiting receives, deadlines, held queues, notes of what is under way.

Owns these, the wake-ups between them, and the move to the dead letters; must not know any single
call, nor when a message is dead.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Refused
from node.broker.core.context import Context
from node.broker.core.offset_moves import CountedSet
from node.broker.pop.deadlines import Deadlines
from node.broker.pop.handles import PopHandle, columns
from node.broker.pop.take import MessageChooser
from node.broker.pop.takers import Takers
from node.broker.pop.waiting_receives import WaitingReceives
from node.broker.records.delayed import split_records
from node.broker.records.retry import dead_letter
from node.runtime.background import BackgroundTasks
from node.state.state import PERMISSION_ALL
from node.state.tables.pop import InFlightMessage, PopTable, WindowKey
from quorumlog.pb.pop_pb2 import PopSettle
from quorumlog.pb.state_pb2 import Command
from store.derived.queues.pull import PullStatus
from store.errors import CorruptionError, DerivedFileError, StoreError
from store.record.topic_names import dead_letter_topic

RETRY_MS: Final = 1_000
"""Time after which a failed move to the dead letters is tried again."""
HELD_MS: Final = 1_000
"""Time until a held queue is looked at again: a repair from other replicas takes about as long."""
_DEAD_COUNT_MAX: Final = 64
"""Messages of one move to the dead letters."""
_DEAD_SIZE_BYTES_MAX: Final = 1024 * 1024

_log: Final = structlog.get_logger(component="pop")


class HeldQueues:
    """Queues that receives pass over for a moment, because the next messages cannot be read.

    Only the queue with the damage waits, for all groups: its order is kept, nothing of it is
    skipped, and receives of other queues go on. Once it is repaired it is handed out again. One per
    broker. Belongs to the loop's thread.
    """

    def __init__(self, context: Context, lines: WaitingReceives) -> None:
        """`context` has damage repaired; `lines` wakes receives when a queue is free again."""
        self._context: Final = context
        self._lines: Final = lines
        self.reasons: Final = dict[tuple[str, int], str]()
        """Why each held queue, by topic and queue id, is passed over."""
        self._timers: Final = dict[tuple[str, int], asyncio.TimerHandle]()
        self.held_total = 0

    def hold(self, topic: str, queue_id: int, error: CorruptionError | DerivedFileError) -> None:
        """Pass a queue over for a moment."""
        key, loop = (topic, queue_id), asyncio.get_running_loop()
        assert key not in self.reasons, f"{key} is held already"
        self._timers[key] = loop.call_later(HELD_MS / 1000, self._over, topic, queue_id)
        self.reasons[key] = str(error)
        self.held_total += 1
        _log.warning("a queue is held", topic=topic, queue_id=queue_id, reason=str(error))
        self._context.on_damage(error)

    def forget_all(self) -> None:
        """Release all queues: this node leads no longer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.reasons.clear()

    def _over(self, topic: str, queue_id: int) -> None:
        del self.reasons[topic, queue_id], self._timers[topic, queue_id]
        self._lines.on_grown([(topic.encode(), queue_id)])


class UnderWay:
    """Work of one term that is under way and that the state does not show yet.

    The notes only keep the leader from useless or doubtful work: a command that comes too late
    changes nothing (`node.state.tables.pop`). A move to the dead letters is the exception: its
    record stays in the log, so nothing else may be under way for its messages.
    """

    def __init__(self) -> None:
        self.windows: Final = CountedSet[WindowKey]()
        """Windows with messages that are being taken or moved; each once."""
        self.messages: Final = CountedSet[tuple[WindowKey, int]]()
        """Messages that are being acknowledged or hidden."""
        self.dying: Final = CountedSet[tuple[WindowKey, int]]()
        """Messages on their way to the dead letters."""

    def is_ending(self, key: WindowKey, offset: int) -> bool:
        """Whether something is under way for a message."""
        return (key, offset) in self.messages or (key, offset) in self.dying


class PopShared:
    """The objects that the calls of pop share. One per broker."""

    def __init__(
        self, context: Context, own_appends: OwnAppends, on_due: Callable[[WindowKey], None]
    ) -> None:
        self.context: Final = context
        self.own_appends: Final = own_appends
        self.unix_ms: Final = context.unix_ms
        self.taking: Final = MessageChooser(context.store, context.limits)
        self.lines: Final = WaitingReceives(context.limits.pop_waiters_max)
        self.deadlines: Final = Deadlines(context.unix_ms, on_due)
        self.held: Final = HeldQueues(context, self.lines)
        self.takers: Final = Takers(context.limits.pop_window_count_max)
        self.under_way = UnderWay()
        """Replaced with each term."""
        # The rest is for the commands: some 20 bytes a message.
        room = own_appends.entry_size_bytes_max * 3 // 4
        self._dead_size_bytes_max = min(_DEAD_SIZE_BYTES_MAX, room)
        self.dead_total = 0
        self.run: Final = BackgroundTasks("pop: work beside the calls failed", Refused).run

    @property
    def table(self) -> PopTable:
        """The replicated windows; a snapshot replaces them, so they are looked up each time."""
        return self.context.state.table(PopTable)

    async def settle_gone(self, key: WindowKey, messages: Sequence[PopHandle]) -> None:
        """Take messages out of flight that expired from the log."""
        settle = PopSettle(group=key[0], topic=key[1], **columns(messages))
        try:  # What is refused the next leader, or the next deadline, does again.
            with self.under_way.messages.noted([(key, offset) for offset in settle.offsets]):
                await self.own_appends.submit(Command(pop_settle=settle))
        except Refused:
            self.deadlines.note(key, self.unix_ms() + RETRY_MS)
        else:
            self.takers.settled(self.table, key, settle.offsets)
            self.lines.offer(*key)

    async def bury(self, key: WindowKey, messages: Sequence[tuple[int, InFlightMessage]]) -> None:
        """Move the first of these messages of one window to the dead letters.

        The record of a dead letter and the command that takes the message out of flight share one
        entry, so there is never one without the other.

        The caller sees to it that nothing else happens to them. A message that has expired from the
        log is only taken out of flight; one that cannot be read stays in flight, and the others do
        not wait for it. Raises the errors of `OwnAppends.write`, and StoreError if none can be
        read.
        """
        group, topic, queue_id = key
        handles, parts = list[PopHandle](), list[bytes]()
        size_bytes = 0
        unreadable: StoreError | None = None
        for offset, item in messages[:_DEAD_COUNT_MAX]:
            try:
                pulled = self.taking.read(key, offset, 1)
            except StoreError as error:
                unreadable = error
                self.context.note_damage(error)
                continue
            if pulled.status is PullStatus.FOUND:
                record = dead_letter(next(split_records(pulled.data)), group)
                size_bytes += len(record)
                if parts and size_bytes > self._dead_size_bytes_max:
                    break
                parts.append(record)
            handles.append(PopHandle(queue_id, offset, item.generation))
        if unreadable is not None and not handles:
            raise unreadable
        settle = PopSettle(group=group, topic=topic, **columns(handles))
        commands = [Command(pop_settle=settle)]
        name = dead_letter_topic(group)
        if parts and name not in self.context.state.topics:
            put = Command.PutTopic(topic=name, queue_count=1, permission=PERMISSION_ALL)
            commands.insert(0, Command(put_topic=put))
        await self.own_appends.write(b"".join(parts), commands)
        self.dead_total += len(parts)
