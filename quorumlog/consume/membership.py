"""A member of a consumer group in one broker group: its heartbeats, and its share of the queues.

A queue has one reader: a member begins with one that the leader grants it, which it does once no
other member names the queue, and one that loses a queue says so as soon as its offset is stored.

Owns that broker group's list of the members; must not know what is done with the queues, nor of
other broker groups. Each keeps a list of members and divides its own queues: a member that cannot
reach a group gets no queues there, and keeps those it has elsewhere. So groups may come and go, and
be seen by some members and not by others, and still every queue has a reader.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.cluster.broker_groups import BrokerGroup
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.consume.reads import QUEUES_OF_CALL_MAX, ReadCalls, ReadFreshness, Reading
from quorumlog.consume.rebalance import Strategy, assign, strategy_name
from quorumlog.consume.starts import Starts
from quorumlog.errors import ClientIdInUseError, ConflictError, Outcome, UnknownProducerError
from quorumlog.pb import common_pb2, consumer_pb2, retry_pb2, transaction_pb2
from quorumlog.records.message import RETRY_PREFIX, Message
from quorumlog.records.queues import Pair, Queue

_log = logging.getLogger("quorumlog.group")
HEARTBEAT_MS_MIN: Final = 50
HEARTBEAT_MS_MAX: Final = 30_000
ABSENT_MS: Final = 2_000  # Interval of checks whether a group has a share of the topics by now.
_NOT_SET: Final = -1  # The stored offset of a queue without one.
ASKS_COUNT: Final = 8  # Heartbeats in the time of one, while a queue that is new is withheld.
ROUNDS_MAX: Final = 8  # Heartbeats in a row while the member's share goes on to change.
AWAY_MS: Final = 2_000  # Timeout of calls to a broker group that is away.

Share = Callable[[BrokerGroup, Sequence[Queue], Deadline], Awaitable[None]]
"""Called with the queues of a broker group that are this member's now, and the limit for that."""


def warn_once(warned: set[str], texts: Iterable[str]) -> None:
    """Log what members of a group do unlike each other, unless it was logged before."""
    for text in texts:
        if text not in warned:
            warned.add(text)
            _log.warning("%s", text)


async def let_in(call: Callable[[], Awaitable[Any]], deadline: Deadline) -> Any:
    """Make the call of a member. Where its client id is in use it is made again until the session
    of that consumer is over: one that closes or crashed is followed by this one. Raises
    ClientIdInUseError."""
    backoff: Backoff | None = None
    while True:
        try:
            return await call()
        except ClientIdInUseError as error:
            if backoff is None:
                rest_ms = error.retry_after_ms + HEARTBEAT_MS_MIN
                if rest_ms > deadline.remaining_ms:
                    raise
                backoff = Backoff(Deadline(rest_ms))
            if backoff.deadline.has_passed:
                raise
        await backoff.pause()


def new_instance() -> int:
    """Return a number by which leaders know a consumer from others with its client id."""
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True)
class Identity:
    """The member's id and its wishes; the same in all broker groups."""

    group: str
    client_id: str
    topics: tuple[str, ...]
    is_broadcasting: bool
    strategy: Strategy
    tags: tuple[str, ...] = ()
    sql: str = ""
    instance: int = field(default_factory=new_instance)


class Membership:
    """The member as one broker group knows it."""

    def __init__(
        self,
        group: BrokerGroup,
        reads: ReadCalls,
        identity: Identity,
        share: Share,
        starts: Starts,
    ) -> None:
        self.group: Final = group
        self.heartbeat_ms = HEARTBEAT_MS_MIN
        self.interval_ms = HEARTBEAT_MS_MIN
        """Time between heartbeats of a member that has its share."""
        self.members: tuple[str, ...] = ()
        """All members that consume in the same way, sorted."""
        self.missing: frozenset[str] = frozenset()
        """Topics that the broker group does not have; none before it was asked."""
        self.is_joined = False
        self.is_known = False
        """Whether the broker group may count this client as a member."""
        self._is_let_in = False
        """Whether a leader let it in: it has joined also where no topic is there to share."""
        self.moved: Sequence[consumer_pb2.GroupOffset] = ()
        """Queues of the last heartbeat in which the group was moved since, with the last move."""
        self.followed_move = 0
        """Highest number of `moved` so far, once all of them are followed."""
        self._generation = 0
        """Of the last answer."""
        self._readers: dict[str, list[str]] = {}
        """Members that read a topic, of topics that not all of them read."""
        self._divided: list[Pair] | None = None
        """The member's queues where the leader divides them; None: each member does."""
        self._warned: set[str] = set()
        self._queues: list[Pair] = []
        """Those of its share that the member reads."""
        self._wanted: list[Pair] = []
        """Those that it does not read yet."""
        self._shared_s = 0.0
        """When its share changed."""
        self._reads = reads
        self._identity = identity
        self._share, self._starts = share, starts

    async def join(self, deadline: Deadline) -> None:
        """Send heartbeats until the leader knows the share that follows from the list of members,
        and read what it grants of that share."""
        own = self._identity
        retry_topic = RETRY_PREFIX + own.group
        topics = own.topics if own.is_broadcasting else (*own.topics, retry_topic)
        queues = await self._reads.group_queues(
            self.group, topics, Reading(ReadFreshness(), deadline)
        )
        self._starts.see(self.group.name, own.topics, queues)
        if not (self.is_known or own.is_broadcasting or self._starts.is_first):
            await self._begin(queues, deadline)
        counts: dict[str, int] = {}
        for queue in queues:
            counts[queue.topic] = counts.get(queue.topic, 0) + 1
        # Left out of the heartbeat: all members of this protocol read the retry topic.
        returned = {topic: counts.pop(topic) for topic in (retry_topic,) if topic in counts}
        self.missing = frozenset(own.topics) - counts.keys()
        for _ in range(ROUNDS_MAX):
            named = sorted(self._queues + self._wanted)
            withheld = set[Pair]()
            if counts:
                withheld = await self._heartbeat(sorted(counts), deadline)
            else:  # No topic to share here; check again later.
                self.members, self._readers, self._divided = (), {}, None
                self.heartbeat_ms = ABSENT_MS
            ours = self._at_most(self._share_of({**counts, **returned}), named)
            granted = set(ours if own.is_broadcasting else named) - withheld
            reads = [queue for queue in ours if queue in granted]
            queues = [Queue(topic, i, self.group.name) for topic, i in reads]
            await self._share(self.group, queues, deadline)
            if own.is_broadcasting:
                break
            self._queues, self._wanted = reads, [one for one in ours if one not in granted]
            if ours == named or not counts:
                break
            self._shared_s = asyncio.get_running_loop().time()
        self.is_joined = True

    async def _begin(self, queues: Sequence[Queue], deadline: Deadline) -> None:
        """Begin the group in the topics of which it has no offset: in one entry for all queues of a
        topic, and before this member is one. So a queue without an offset came later, also
        when other members join at the same time."""
        own, backoff = self._identity, Backoff(deadline)
        reading = Reading(ReadFreshness(), deadline)
        stored = consumer_pb2.FetchOffsetsRequest(group=own.group)
        while True:
            answer = await self.call(stored, deadline)
            begun = {one.topic for one in answer.offsets}
            topics = {queue.topic for queue in queues}.intersection(own.topics) - begun
            if not topics:
                break
            for topic in sorted(topics):
                ours = [queue for queue in queues if queue.topic == topic]
                offsets = await self._starts.offsets(self._reads, ours, reading)
                request = transaction_pb2.CommitConsumedRequest(
                    cluster_id=self.group.router.cluster_id
                )
                request.consumed.group = own.group
                for (_, queue_id), offset in offsets.items():
                    request.consumed.offsets.add(
                        topic=topic, queue_id=queue_id, expected=_NOT_SET, offset=offset
                    )
                with suppress(ConflictError):  # Another member was first: look again.
                    await self.call(request, deadline)
            await backoff.pause()  # Another member's entry may be under way.
        self._starts.begun |= {(self.group.name, queue.topic) for queue in queues}

    def _share_of(self, counts: dict[str, int]) -> list[Pair]:
        """Return this member's queues of some topics, given by their counts of queues."""
        own, ours = self._identity, list[Pair]()
        if self._divided is not None:
            return sorted(queue for queue in self._divided if queue[0] in counts)
        for topic, count in counts.items():
            readers = self._readers.get(topic, self.members)
            members = [own.client_id] if own.is_broadcasting else readers
            name = self.group.name
            if members:
                ours += assign(own.strategy, own.client_id, {topic: count}, members, group=name)
        return sorted(ours)

    def _at_most(self, ours: list[Pair], named: Sequence[Pair]) -> list[Pair]:
        """Return as much of a share as a member may have, first of all what it has already."""
        count = len(ours) - QUEUES_OF_CALL_MAX
        if count <= 0 or self._identity.is_broadcasting:
            return ours
        text = (
            f"group {self._identity.group}: {count} queues{self.group.router.where} have no reader "
            f"until another member joins; a member reads at most {QUEUES_OF_CALL_MAX}"
        )
        warn_once(self._warned, [text])
        has = frozenset(named)
        ours.sort(key=lambda queue: (queue not in has, queue))
        return sorted(ours[:QUEUES_OF_CALL_MAX])

    async def _heartbeat(self, topics: Sequence[str], deadline: Deadline) -> set[Pair]:
        """Return the queues that it reads or wants, and another member reads."""
        own = self._identity
        request = consumer_pb2.HeartbeatRequest(
            group=own.group,
            client_id=own.client_id,
            topics=topics,
            is_broadcasting=own.is_broadcasting,
            cluster_id=self.group.router.cluster_id,
            queues=_ids(self._queues),
            wanted=_ids(self._wanted),
            generation=self._generation,
            followed_move=self.followed_move,
            strategy=strategy_name(own.strategy),
            tags=own.tags,
            sql=own.sql,
            is_new=not self._is_let_in,
            instance=own.instance,
        )
        self.is_known = True

        async def beat() -> Any:
            return await self.call(request, deadline)

        response = await (beat() if self._is_let_in else let_in(beat, deadline))
        self._is_let_in = True
        self.members = tuple(response.client_ids)
        self._readers = {
            row.topic: [self.members[i] for i in row.members] for row in response.readers
        }
        if response.generation != self._generation:
            self._generation, self.followed_move = response.generation, 0
        self.moved = response.moved
        self._divided = None
        if response.is_divided:
            self._divided = [(queue.topic, queue.queue_id) for queue in response.queues]
        warn_once(self._warned, response.warnings)
        wanted_ms = response.heartbeat_ms or HEARTBEAT_MS_MAX
        self.interval_ms = min(max(wanted_ms, HEARTBEAT_MS_MIN), HEARTBEAT_MS_MAX)
        self.heartbeat_ms = self.interval_ms
        if response.withheld:  # Its reader gives it up at its next heartbeat, if it is alive.
            passed_ms = round(1000 * (asyncio.get_running_loop().time() - self._shared_s))
            asks_ms = max(HEARTBEAT_MS_MIN, self.interval_ms // ASKS_COUNT, passed_ms // 4)
            self.heartbeat_ms = min(asks_ms, self.interval_ms)
        return {(queue.topic, queue.queue_id) for queue in response.withheld}

    async def leave(self, deadline: Deadline) -> None:
        """Leave, so that the queues go to others at once."""
        own = self._identity
        request = consumer_pb2.LeaveGroupRequest(
            group=own.group, client_id=own.client_id, instance=own.instance
        )
        # A member that never had a share has little to give back: a short timeout is enough.
        await self.call(request, deadline if self.is_joined else Deadline(AWAY_MS))

    async def call(self, request: object, deadline: Deadline) -> Any:
        """Call the broker group's leader."""
        return await self.group.calls.leader(request, deadline)


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Result of giving messages back."""

    retried_count: int
    dead_count: int
    """Count of messages that became dead letters: tried too often, or rejected."""


class Redeliveries:
    """Gives messages back, to be delivered to the group again later, or as dead letters.

    The calls of one consumer to one broker group, one call at a time, so that the node recognises a
    repetition. A failed call ends the numbering, since the node may have applied one of its
    attempts. The next call starts again under a new id.
    """

    def __init__(self, group: BrokerGroup, consumer_group: str) -> None:
        self._group = group
        self._consumer_group = consumer_group
        self._turn = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        self._producer_id, self._sequence = secrets.randbits(64) | 1, 0

    async def give_back(
        self,
        messages: Sequence[Message],
        *,
        delay_ms: int,
        is_dead: bool,
        attempt_count_max: int,
        offsets: Sequence[consumer_pb2.GroupOffset],
        deadline: Deadline,
    ) -> Redelivery:
        """Move messages and store offsets, in one step. Raises the error of the cluster."""
        request = retry_pb2.RetryLaterRequest(
            group=self._consumer_group,
            attempt_count_max=attempt_count_max,
            cluster_id=self._group.router.cluster_id,
            offsets=offsets,
        )
        for message in messages:
            request.messages.add(
                topic=message.topic,
                queue_id=message.queue_id,
                offset=message.queue_offset,
                delay_ms=delay_ms,
                is_dead=is_dead,
            )
        async with self._turn:
            try:
                response = await self._call(request, deadline)
            except UnknownProducerError as error:
                if error.outcome is not Outcome.NOT_APPLIED:
                    raise
                # The cluster has forgotten the id after a long silence; the call had no effect.
                response = await self._call(request, deadline)
        return Redelivery(response.retried_count, response.dead_count)

    async def _call(
        self, request: retry_pb2.RetryLaterRequest, deadline: Deadline
    ) -> retry_pb2.RetryLaterResponse:
        request.producer_id, request.sequence = self._producer_id, self._sequence
        try:
            response: retry_pb2.RetryLaterResponse = await self._group.calls.leader(
                request, deadline
            )
        except BaseException:  # Cancelled, too.
            self._begin()
            raise
        self._sequence += 1
        return response


def _ids(queues: Iterable[Pair]) -> list[common_pb2.QueueId]:
    return [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in queues]
