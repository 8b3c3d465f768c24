"""Shared by the calls of pop: waiting receives, deadlines, held queues, notes of what is under way.

Owns these and the wake-ups between them; must not know any single call.
"""

from collections.abc import Callable, Iterable
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Refused
from node.broker.core.context import Context
from node.broker.core.leader_work import BackgroundTasks
from node.broker.core.offset_moves import CountedSet
from node.broker.pop.deadlines import Deadlines
from node.broker.pop.held import HeldQueues
from node.broker.pop.take import MessageChooser
from node.broker.pop.takers import Takers
from node.broker.pop.waiting_receives import WaitingReceives
from node.state.tables.pop import PopTable, WindowKey
from quorumlog.pb.pop_pb2 import PopSettle
from quorumlog.pb.state_pb2 import Command

RETRY_MS: Final = 1_000
"""Time after which a failed move to the dead letters is tried again."""


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
        self.run: Final = BackgroundTasks("pop: work beside the calls failed", Refused).run

    @property
    def table(self) -> PopTable:
        """The replicated windows; a snapshot replaces them, so they are looked up each time."""
        return self.context.state.table(PopTable)

    async def settle_gone(self, key: WindowKey, messages: Iterable[tuple[int, int]]) -> None:
        """Take messages (offset, generation) out of flight that expired from the log."""
        group, topic, queue_id = key
        settle = PopSettle(group=group, topic=topic)
        for offset, generation in messages:
            settle.queue_ids.append(queue_id)
            settle.offsets.append(offset)
            settle.generations.append(generation)
        try:  # What is refused the next leader, or the next deadline, does again.
            with self.under_way.messages.noted([(key, offset) for offset in settle.offsets]):
                await self.own_appends.submit(Command(pop_settle=settle))
        except Refused:
            self.deadlines.note(key, self.unix_ms() + RETRY_MS)
        else:
            self.takers.settled(self.table, key, settle.offsets)
            self.lines.offer(*key)
