"""The accumulator of a producer: open batches, one to each broker group, and the choice of a group.

Owns the choice of a group for each message, and the batches of a group that gives no answers; must
not know how batches travel (`append_stream`). Messages that name a group or a queue go there. A key
has a group of its own. All other messages go to the group with the least load. When a group is
away, waiting batches that name no queue and are surely not in its log go to the other groups; a
batch that may be in its log stays until that is known.
"""

import asyncio
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.produce.append_stream import Sender
from quorumlog.produce.delivery import Batch
from quorumlog.produce.options import ProducerOptions
from quorumlog.records.batch import Entry

AWAY_AFTER_MS: Final = 1_500  # Longer than an election, as a rule.
AWAY_AFTER_LEAST_MS: Final = 500
"""However short the time-out of a message is: a healthy group may take this long for a batch, and
all producers of the client leave a group that is away."""
WATCH_MS: Final = 100


class GroupBacklog:
    """The sender of one broker group, and the batches that are being filled for it: one of each
    kind (`Batch.extra`), so that plain and delayed messages in turn make few batches."""

    __slots__ = ("_on_ended", "group", "is_pinned", "open", "router", "sender", "task")

    def __init__(
        self,
        group: BrokerGroup,
        sender: Sender,
        on_ended: "Callable[[asyncio.Task[None]], None]",
    ) -> None:
        self.group = group
        self.router = group.router
        self.sender = sender
        self.open: dict[bytes, Batch] = {}
        """The newest batch of each kind; it may be closed, or with another group by now."""
        self.is_pinned = False  # Of the batch that is made next.
        self.task: asyncio.Task[None] | None = None
        self._on_ended = on_ended

    def put(self, batch: Batch) -> None:
        self.sender.waiting.append(batch)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.sender.run())
            self.task.add_done_callback(self._on_ended)

    def of_kind(self, extra: bytes) -> Batch | None:
        """Return the batch that takes the next message of a kind; None: it needs another one."""
        batch = self.open.get(extra)
        return batch if batch is not None and batch.is_open else None

    def close(self, batch: Batch) -> None:
        batch.is_open = False
        self.sender.wake()

    def close_open(self) -> None:
        for batch in self.open.values():
            self.close(batch)
        self.open.clear()


class Accumulator:
    """The backlogs of a producer, each made when it is first used."""

    def __init__(
        self,
        groups: BrokerGroups,
        on_ended: "Callable[[asyncio.Task[None]], None]",
        timeout_ms: float,
        options: ProducerOptions,
    ) -> None:
        """`on_ended` is called when a sender ends by an error.

        `timeout_ms` is the one of a message; a group is away after a part of it, in time for
        another try, if it is long enough for that.
        """
        self.only: GroupBacklog | None = None
        """The backlog that takes everything; None while there are several groups."""
        self._groups = groups
        self._options = options
        self._away_after_ms = max(AWAY_AFTER_LEAST_MS, min(AWAY_AFTER_MS, timeout_ms / 4))
        self._on_ended = on_ended
        self._backlogs: dict[BrokerGroup, GroupBacklog] = {}
        # Its open batch takes messages without key and queue.
        self._free: GroupBacklog | None = None
        self._turn = random.randrange(1 << 16)  # Producers must not all begin with the same group.
        self._flushing = 0
        self._watching: asyncio.Task[None] | None = None
        groups.on_change.append(self._follow)
        self._follow()

    def __iter__(self) -> Iterator[GroupBacklog]:
        return iter(self._backlogs.values())

    @property
    def home(self) -> GroupBacklog:
        """The backlog of the first group by name."""
        return self._backlog(self._groups.home)

    def _backlog(self, group: BrokerGroup) -> GroupBacklog:
        backlog = self._backlogs.get(group)
        if backlog is None:
            sender = Sender(
                group.router,
                group.calls,
                self._options,
                lambda batch: self._take_strays(group, batch),
            )
            sender.is_flushing = self._flushing
            backlog = self._backlogs[group] = GroupBacklog(group, sender, self._on_ended)
        return backlog

    def _follow(self) -> None:
        """Adapt to a change of the list of groups."""
        groups = self._groups
        if self.only is not None:  # It may name queues, and messages behind them may move.
            self.only.close_open()
        self.only = self._backlog(groups.all[0]) if groups.is_single else None
        if self.only is not None:
            self.only.close_open()
            self.only.is_pinned = False
        elif self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
            self._watching.add_done_callback(self._on_ended)

    def flush(self, change: int) -> None:
        """Add to the count of callers that wait for everything to leave."""
        self._flushing += change
        for backlog in self:
            backlog.sender.is_flushing = self._flushing
            backlog.sender.wake()

    def clear(self) -> None:
        """Drop the waiting batches; the producer fails them."""
        for backlog in self:
            backlog.sender.waiting.clear()
            backlog.open.clear()

    async def stop(self) -> None:
        if self._follow in self._groups.on_change:
            self._groups.on_change.remove(self._follow)
        tasks = [task for task in (self._watching, *(backlog.task for backlog in self)) if task]
        self._watching = None
        for backlog in self:
            backlog.task = None
        for task in tasks:
            task.remove_done_callback(self._on_ended)  # This end is wanted.
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The choice.

    def choose(self, entry: Entry, group: str) -> GroupBacklog:
        """Return the backlog of a message; its open batch, if it has one, takes the message."""
        topic, queue_id, key = entry[0].name, entry[1], entry[2]
        is_pinned = bool(group) or queue_id is not None
        if is_pinned:
            backlog = self._backlog(self._groups.get(group))
        elif key is not None:
            backlog = self._of_key(key, (topic,))
        else:
            backlog = self._freely((topic,))
        if any(batch.is_pinned is not is_pinned for batch in backlog.open.values()):
            backlog.close_open()  # Batches keep the order of messages in one queue.
        backlog.is_pinned = is_pinned
        return backlog

    def choose_for_all(self, entries: Sequence[Entry], group: str) -> GroupBacklog:
        """Return the backlog of an atomic batch; it is bound to it if a message names a queue."""
        topics = tuple({entry[0].name for entry in entries})
        is_pinned = bool(group) or any(entry[1] is not None for entry in entries)
        if is_pinned:
            backlog = self._backlog(self._groups.get(group))
        else:
            backlog = self._for_all(entries, topics)
        backlog.is_pinned = is_pinned
        return backlog

    def _for_all(self, entries: Sequence[Entry], topics: Sequence[str]) -> GroupBacklog:
        key = next((entry[2] for entry in entries if entry[2] is not None), None)
        return self._freely(topics) if key is None else self._of_key(key, topics)

    def _having(self, topics: Sequence[str]) -> list[BrokerGroup]:
        """Return the groups that may have these topics; if none has, the first, to refuse them."""
        groups = self._groups.all
        having = [g for g in groups if not any(map(g.router.lacks, topics))]
        return having or [groups[0]]

    def _of_key(self, key: str, topics: Sequence[str]) -> GroupBacklog:
        """Return the backlog of a key; keys of a group that is away go to the others meanwhile."""
        having = self._having(topics)
        # The upper half: the lower half chooses the queue of the group.
        number = zlib.crc32(key.encode()) >> 16
        group = having[number % len(having)]
        there = [other for other in having if not other.is_away]
        if group.is_away and there:
            group = there[number // len(having) % len(there)]
        return self._backlog(group)

    def _freely(self, topics: Sequence[str]) -> GroupBacklog:
        """Return the backlog that is being filled, else one with a leader and the least load."""
        free = self._free
        if free is not None and self._is_filling(free, topics):
            return free
        having = self._having(topics)
        there = [group for group in having if not group.is_away] or having
        self._turn += 1
        at = self._turn % len(there)
        backlogs = [self._backlog(group) for group in there[at:] + there[:at]]
        self._free = min(
            backlogs, key=lambda backlog: (not backlog.router.leader_address, backlog.sender.load)
        )
        return self._free

    def _is_filling(self, backlog: GroupBacklog, topics: Sequence[str]) -> bool:
        is_open = any(batch.is_open and not batch.is_pinned for batch in backlog.open.values())
        if not is_open or backlog.group.is_away:
            return False
        if not backlog.router.leader_address or backlog.group not in self._groups.all:
            return False
        return not any(map(backlog.router.lacks, topics))

    # Moves to other groups.

    async def _watch(self) -> None:
        """Find groups that give no answers, and move their waiting batches to others."""
        while True:
            await asyncio.sleep(WATCH_MS / 1000)
            for backlog in list(self):
                if (
                    backlog.sender.stuck_ms > self._away_after_ms
                    and backlog.group in self._groups.all
                ):
                    self._groups.suspect(backlog.group)
                if backlog.group.is_away or backlog.group not in self._groups.all:
                    self._move(backlog)

    def _move(self, backlog: GroupBacklog) -> None:
        others = [g for g in self._groups.all if g is not backlog.group and not g.is_away]
        if not others:
            return

        def may_move(batch: Batch) -> bool:
            topics, is_bound = batch.topics(), batch.is_pinned or _names_queue(batch)
            return not is_bound and _can_take(others, batch, topics, topics)

        taken = backlog.sender.take(may_move)
        for batch in taken:
            left = self._place(batch, backlog)
            assert left is None, "of a group that is away, and others have all topics"

    def _take_strays(self, group: BrokerGroup, batch: Batch) -> bool:
        """Move waiting batches with a topic that a group lacks; return whether `batch` is one."""
        backlog = self._backlog(group)
        if not self._is_stray(batch, group):
            return False
        waiting = backlog.sender.waiting
        kept: list[Batch] = []
        for other in waiting:  # All at once, so that they stay in order.
            if other.records or not self._is_stray(other, group):
                kept.append(other)
                continue
            left = self._place(other, backlog)
            if left is not None:
                kept.append(left)
        waiting.clear()
        waiting.extend(kept)
        backlog.sender.wake()
        return True

    def _is_stray(self, batch: Batch, group: BrokerGroup) -> bool:
        topics = batch.topics()
        if batch.is_pinned or not any(map(group.router.lacks, topics)) or _names_queue(batch):
            return False
        others = [g for g in self._groups.all if g is not group]
        return _can_take(others, batch, topics, filter(group.router.lacks, topics))

    def _place(self, batch: Batch, last: GroupBacklog) -> Batch | None:
        """Give a batch, or its parts, to other groups than the last one, which cannot take it.

        Return the part that the last one can take: it keeps its place there.
        """
        batch.is_open = False
        if batch.is_atomic:
            backlog = self._for_all(batch.entries, tuple(batch.topics()))
            return self._hand_over(batch, backlog, last)
        free: dict[str, GroupBacklog] = {}
        backlogs = []
        for entry in batch.entries:
            topic, key = entry[0].name, entry[2]
            if key is not None:
                backlogs.append(self._of_key(key, (topic,)))
                continue
            if topic not in free:
                free[topic] = self._freely((topic,))
            backlogs.append(free[topic])
        if len(set(backlogs)) == 1:
            return self._hand_over(batch, backlogs[0], last)
        parts = batch.split(backlogs).items()
        left = [self._hand_over(part, backlog, last) for backlog, part in parts]
        return next((part for part in left if part is not None), None)

    @staticmethod
    def _hand_over(batch: Batch, backlog: GroupBacklog, last: GroupBacklog) -> Batch | None:
        batch.group = backlog.group.name
        if backlog is last:
            return batch
        backlog.close_open()  # Later messages must not be in a batch that leaves before.
        backlog.put(batch)
        backlog.sender.wake()
        return None


def _can_take(
    groups: Sequence[BrokerGroup], batch: Batch, topics: Iterable[str], needed: Iterable[str]
) -> bool:
    """Whether these groups have the needed topics; one must have all if the batch is atomic."""
    if batch.is_atomic:
        return any(not any(map(group.router.lacks, topics)) for group in groups)
    return all(any(not group.router.lacks(topic) for group in groups) for topic in needed)


def _names_queue(batch: Batch) -> bool:
    """Whether a message names a queue: this binds a batch of the time with one group to it."""
    return any(entry[1] is not None for entry in batch.entries)
