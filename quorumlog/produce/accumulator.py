"""The ways on which a producer's batches leave: one to each broker group, and who takes which.

Owns the choice of a group for each message, and what is done with batches of a group that gives no
answers; must not know how batches travel (`append_stream`). Messages that name a group or a queue
stay where they belong. A key has a group of its own. All others go to the group that has least to
do. When a group is away, what is waiting for it, is bound to no queue and is surely not in its log
goes to the others; what may be in its log stays until that is known.
"""

import asyncio
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.produce.append_stream import Sender
from quorumlog.produce.delivery import Batch
from quorumlog.records.batch import Entry

AWAY_AFTER_MS: Final = 1_500  # Longer than an election, as a rule.
WATCH_MS: Final = 100


class Lane:
    """The way to one broker group, and the batch that is filled for it."""

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
        self.open: Batch | None = None
        self.is_pinned = False  # Of the batch that is made next.
        self.task: asyncio.Task[None] | None = None
        self._on_ended = on_ended

    def put(self, batch: Batch) -> None:
        """Let a batch wait for its turn."""
        self.sender.waiting.append(batch)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.sender.run())
            self.task.add_done_callback(self._on_ended)

    def close_open(self) -> None:
        """Take no more messages into the open batch."""
        batch, self.open = self.open, None
        if batch is not None:
            batch.is_open = False
            self.sender.wake()


class Lanes:
    """All lanes of a producer, each made when it is first used."""

    def __init__(
        self,
        groups: BrokerGroups,
        on_ended: "Callable[[asyncio.Task[None]], None]",
        timeout_ms: float,
        **options: Any,
    ) -> None:
        """`options` are those of Sender; `on_ended` is told of a sender that broke.

        `timeout_ms`: what a message has; when a part of it is over, there is time for another try.
        """
        self.only: Lane | None = None
        """The one that takes everything; None while there are several groups."""
        self._groups = groups
        self._options = options
        self._away_after_ms = min(AWAY_AFTER_MS, timeout_ms / 4)
        self._on_ended = on_ended
        self._lanes: dict[BrokerGroup, Lane] = {}
        self._free: Lane | None = None  # Whose open batch takes what may go anywhere.
        self._turn = random.randrange(1 << 16)  # Producers must not all begin with the same group.
        self._flushing = 0
        self._watching: asyncio.Task[None] | None = None
        groups.on_change.append(self._follow)
        self._follow()

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    @property
    def home(self) -> Lane:
        """That of the first group by name."""
        return self._lane(self._groups.home)

    def _lane(self, group: BrokerGroup) -> Lane:
        lane = self._lanes.get(group)
        if lane is None:
            sender = Sender(
                group.router,
                group.calls,
                on_stray=lambda batch: self._take_strays(group, batch),
                **self._options,
            )
            sender.is_flushing = self._flushing
            lane = self._lanes[group] = Lane(group, sender, self._on_ended)
        return lane

    def _follow(self) -> None:
        """Look anew which groups there are."""
        groups = self._groups
        self.only = self._lane(groups.all[0]) if groups.is_single else None
        if self.only is not None:
            self.only.is_pinned = False
        elif self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
            self._watching.add_done_callback(self._on_ended)

    def flush(self, change: int) -> None:
        """Count one more, or one less, who waits for everything to leave."""
        self._flushing += change
        for lane in self:
            lane.sender.is_flushing = self._flushing
            lane.sender.wake()

    def clear(self) -> None:
        """Forget what waits; somebody else fails it."""
        for lane in self:
            lane.sender.waiting.clear()
            lane.open = None

    async def stop(self) -> None:
        """End all senders."""
        if self._follow in self._groups.on_change:
            self._groups.on_change.remove(self._follow)
        tasks = [task for task in (self._watching, *(lane.task for lane in self)) if task]
        self._watching = None
        for lane in self:
            lane.task = None
        for task in tasks:
            task.remove_done_callback(self._on_ended)  # It is ended, and has not broken.
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The choice.

    def choose(self, entry: Entry, group: str) -> Lane:
        """Return the lane of a message; its open batch, if it has one, takes the message."""
        topic, queue_id, key = entry[0].name, entry[1], entry[2]
        is_pinned = bool(group) or queue_id is not None
        if is_pinned:
            lane = self._lane(self._groups.get(group))
        elif key is not None:
            lane = self._of_key(key, (topic,))
        else:
            lane = self._freely((topic,))
        if lane.open is not None and lane.open.is_pinned is not is_pinned:
            lane.close_open()  # The order of what meets in one queue is that of the batches.
        lane.is_pinned = is_pinned
        return lane

    def choose_for_all(self, entries: Sequence[Entry], group: str) -> Lane:
        """Return the lane of an atomic batch; it is bound to it if a message names a queue."""
        topics = tuple({entry[0].name for entry in entries})
        is_pinned = bool(group) or any(entry[1] is not None for entry in entries)
        if is_pinned:
            lane = self._lane(self._groups.get(group))
        else:
            lane = self._for_all(entries, topics)
        lane.is_pinned = is_pinned
        return lane

    def _for_all(self, entries: Sequence[Entry], topics: Sequence[str]) -> Lane:
        key = next((entry[2] for entry in entries if entry[2] is not None), None)
        return self._freely(topics) if key is None else self._of_key(key, topics)

    def _having(self, topics: Sequence[str]) -> list[BrokerGroup]:
        """Groups that may have these topics; the first one is to say so if none has."""
        groups = self._groups.all
        having = [g for g in groups if not any(map(g.router.lacks, topics))]
        return having or [groups[0]]

    def _of_key(self, key: str, topics: Sequence[str]) -> Lane:
        """The group of a key; keys of a group that is away are spread over the others meanwhile."""
        having = self._having(topics)
        # The upper half: the lower one says which queue of the group it is.
        number = zlib.crc32(key.encode()) >> 16
        group = having[number % len(having)]
        there = [other for other in having if not other.is_away]
        if group.is_away and there:
            group = there[number // len(having) % len(there)]
        return self._lane(group)

    def _freely(self, topics: Sequence[str]) -> Lane:
        """The group whose batch is being filled, else one with a leader that has least to do."""
        free = self._free
        if free is not None and self._is_filling(free, topics):
            return free
        having = self._having(topics)
        there = [group for group in having if not group.is_away] or having
        self._turn += 1
        at = self._turn % len(there)
        lanes = [self._lane(group) for group in there[at:] + there[:at]]
        self._free = min(lanes, key=lambda lane: (not lane.router.leader_address, lane.sender.load))
        return self._free

    def _is_filling(self, lane: Lane, topics: Sequence[str]) -> bool:
        batch = lane.open
        if batch is None or not batch.is_open or batch.is_pinned or lane.group.is_away:
            return False
        if not lane.router.leader_address or lane.group not in self._groups.all:
            return False
        return not any(map(lane.router.lacks, topics))

    # Moves.

    async def _watch(self) -> None:
        """Find groups that give no answers, and take what waits for them elsewhere."""
        while True:
            await asyncio.sleep(WATCH_MS / 1000)
            for lane in list(self):
                if lane.sender.stuck_ms > self._away_after_ms and lane.group in self._groups.all:
                    self._groups.suspect(lane.group)
                if lane.group.is_away or lane.group not in self._groups.all:
                    self._move(lane)

    def _move(self, lane: Lane) -> None:
        others = [g for g in self._groups.all if g is not lane.group and not g.is_away]

        def may_move(batch: Batch) -> bool:
            topics = batch.topics()
            return not _names_queue(batch) and _can_take(others, batch, topics, topics)

        taken = lane.sender.take_movable(may_move)
        if lane.open in taken:
            lane.open = None
        for batch in taken:
            left = self._place(batch, lane)
            assert left is None, "of a group that is away, and others have all topics"

    def _take_strays(self, group: BrokerGroup, batch: Batch) -> bool:
        """Take away what waits for a group that lacks a topic of it; False: it has to judge."""
        lane = self._lane(group)
        if not self._is_stray(batch, group):
            return False
        waiting = lane.sender.waiting
        kept: list[Batch] = []
        for other in waiting:  # All at once, so that they stay in order.
            if other.wire or not self._is_stray(other, group):
                kept.append(other)
                continue
            if lane.open is other:
                lane.open = None
            left = self._place(other, lane)
            if left is not None:
                kept.append(left)
        waiting.clear()
        waiting.extend(kept)
        lane.sender.wake()
        return True

    def _is_stray(self, batch: Batch, group: BrokerGroup) -> bool:
        topics = batch.topics()
        if batch.is_pinned or not any(map(group.router.lacks, topics)) or _names_queue(batch):
            return False
        others = [g for g in self._groups.all if g is not group]
        return _can_take(others, batch, topics, filter(group.router.lacks, topics))

    def _place(self, batch: Batch, last: Lane) -> Batch | None:
        """Give a batch, or its parts, to other groups than the last one, which cannot take it.

        Return the part that the last one can take: it keeps its place there.
        """
        batch.is_open = False
        if batch.is_atomic:
            lane = self._for_all(batch.entries, tuple(batch.topics()))
            return self._hand_over(batch, lane, last)
        free: dict[str, Lane] = {}
        lanes = []
        for entry in batch.entries:
            topic, key = entry[0].name, entry[2]
            if key is not None:
                lanes.append(self._of_key(key, (topic,)))
                continue
            if topic not in free:
                free[topic] = self._freely((topic,))
            lanes.append(free[topic])
        if len(set(lanes)) == 1:
            return self._hand_over(batch, lanes[0], last)
        parts = batch.split(lanes).items()
        left = [self._hand_over(part, lane, last) for lane, part in parts]
        return next((part for part in left if part is not None), None)

    @staticmethod
    def _hand_over(batch: Batch, lane: Lane, last: Lane) -> Batch | None:
        batch.group = lane.group.name
        if lane is last:
            return batch
        lane.close_open()  # What comes later must not be in a batch that leaves before.
        lane.put(batch)
        lane.sender.wake()
        return None


def _can_take(
    groups: Sequence[BrokerGroup], batch: Batch, topics: Iterable[str], needed: Iterable[str]
) -> bool:
    """Say whether these groups have what is needed of the topics; one has all, if it is atomic."""
    if batch.is_atomic:
        return any(not any(map(group.router.lacks, topics)) for group in groups)
    return all(any(not group.router.lacks(topic) for group in groups) for topic in needed)


def _names_queue(batch: Batch) -> bool:
    """Batches that were made while there was one group are bound to it by their messages only."""
    return any(entry[1] is not None for entry in batch.entries)
