"""Read calls: the choice of a node for each read, and the merge of the answers of groups.

Owns how a consistency becomes a choice of node and a request, and how the answers of several broker
groups are merged; must not know of iteration or consumer groups.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    QuorumlogError,
    UnknownTopicError,
)
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.options import END, FIRST, Consistency, Position, Time, parse_position
from quorumlog.records.queues import Queue

QUEUES_OF_CALL_MAX: Final = 4_096
"""Queues of one call about offsets, and so of a member that stores them: the limit of the nodes."""
_Answer = TypeVar("_Answer")
OUT_OF_RANGE: Final = (log_pb2.PULL_STATUS_OFFSET_TOO_SMALL, log_pb2.PULL_STATUS_OFFSET_TOO_BIG)
_CONSISTENCY: Final = {
    Consistency.LEADER: common_pb2.CONSISTENCY_LEADER,
    Consistency.LINEARIZABLE: common_pb2.CONSISTENCY_LINEARIZABLE,
    Consistency.LOCAL: common_pb2.CONSISTENCY_LOCAL,
}


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The offsets of one queue: [first_offset, end_offset)."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    broker_group: str = ""


@dataclass(frozen=True, slots=True)
class ReadFreshness:
    """The consistency of a read, and the node to ask. A node id means that very replica."""

    consistency: Consistency = Consistency.LEADER
    at_least_index: int | None = None
    node_id: int | None = None

    @property
    def is_any(self) -> bool:
        """Whether any replica may answer, in the name of its group."""
        return self.consistency is Consistency.LOCAL and self.node_id is None

    @classmethod
    def of(
        cls,
        consistency: Consistency | str,
        at_least_index: int | None = None,
        node_id: int | None = None,
    ) -> "ReadFreshness":
        """Check a combination and return it. Raises InvalidRequestError."""
        chosen = Consistency.of(consistency)
        if node_id is not None:
            if chosen is Consistency.LINEARIZABLE:
                raise InvalidRequestError(
                    "one replica alone cannot answer linearizably; leave out node_id"
                )
            chosen = Consistency.LOCAL
        return cls(chosen, at_least_index, node_id)


class Reading(NamedTuple):
    """How fresh the answers of a call are, and until when it makes questions."""

    freshness: ReadFreshness
    deadline: Deadline


@dataclass(frozen=True, kw_only=True)
class ReadArguments:
    """What a program says of the freshness of a read, and of its time: None is the client's."""

    consistency: Consistency | str = Consistency.LEADER
    at_least_index: int | None = None
    node_id: int | None = None
    timeout_ms: int | None = None

    @property
    def freshness(self) -> ReadFreshness:
        """The checked combination. Raises InvalidRequestError."""
        return ReadFreshness.of(self.consistency, self.at_least_index, self.node_id)


@dataclass(frozen=True, kw_only=True)
class SinglePullArguments(ReadArguments):
    """Those of a single pull. 0 as a limit means the node's own."""

    max_count: int = 0
    max_size_bytes: int = 0

    def options(self, timeout_ms: int, **others: Any) -> "PullOptions":
        """Return the options of the pull. `timeout_ms` is for arguments that have none."""
        return PullOptions(
            self.freshness,
            self.max_count,
            self.max_size_bytes,
            timeout_ms=self.timeout_ms or timeout_ms,
            **others,
        )


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Options of a pull. 0 as a limit means the node's own."""

    freshness: ReadFreshness = field(default_factory=ReadFreshness)
    max_count: int = 0
    max_size_bytes: int = 0
    wait_ms: int = 0
    """Longest time that the pull is parked at a node, in addition to `timeout_ms`."""
    timeout_ms: int = 30_000
    tags: tuple[str, ...] = ()
    sql: str = ""
    group: str = ""
    """The consumer group that reads; empty: none."""
    with_entries: bool = False
    verify: bool = False
    """Whether the node compares the records with their checksums again."""


class ReadCalls:
    """Makes reads. All of them may be repeated, so they are, until their deadline."""

    def __init__(self, groups: BrokerGroups) -> None:
        self._groups = groups

    async def pull(self, queue: Queue, offset: int, options: PullOptions) -> MessageBatch:
        """Read messages from `offset` on. Raises CorruptRecordError, UnknownTopicError.

        A second call, within the same time, reports damage to the node, which repairs it.
        """
        topic, queue_id = queue
        if not queue.broker_group:
            queue = Queue(topic, queue_id, self.group_of(queue, options.freshness).name)
        deadline = Deadline(options.timeout_ms + options.wait_ms)
        response = await self.pull_response(queue, offset, options)
        records = response.records
        newest_move = _newest_move(response)
        messages = []
        try:
            if records:
                messages = decode_records(
                    records, topic=topic, broker_group=queue.broker_group, newest_move=newest_move
                )
            if options.tags:  # Nodes filter by a hash of the tag, as RocketMQ does.
                messages = [message for message in messages if message.tag in options.tags]
            elif not options.sql:
                _check_offsets(messages, topic, queue_id, offset, response.next_offset)
        except CorruptRecordError:
            if options.verify or deadline.has_passed:
                raise
            left_ms = deadline.remaining_ms
            again = replace(options, verify=True, wait_ms=0, timeout_ms=left_ms)
            return await self.pull(queue, offset, again)
        return MessageBatch(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            next_offset=response.next_offset if records else max(offset, response.next_offset),
            first_offset=response.min_offset,
            end_offset=response.max_offset,
            applied_index=response.applied_index,
            node_id=response.node_id,
            size_bytes=len(records),
            is_out_of_range=response.status in OUT_OF_RANGE,
            messages=messages,
            queue=queue,
            newest_move=newest_move,
        )

    async def pull_response(
        self, queue: Queue, offset: int, options: PullOptions
    ) -> log_pb2.PullResponse:
        """Read as `pull`, and return the answer without decoding it."""
        freshness, wait_ms = options.freshness, options.wait_ms
        request = log_pb2.PullRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=offset,
            max_count=options.max_count,
            max_size_bytes=options.max_size_bytes,
            wait_ms=wait_ms,
            consistency=_CONSISTENCY[freshness.consistency],
            at_least_index=freshness.at_least_index,
            tags=options.tags,
            cluster_id=self._groups.cluster_id,
            with_entries=options.with_entries,
            verify=options.verify,
            sql=options.sql,
            group=options.group,
        )
        reading = Reading(freshness, Deadline(options.timeout_ms + wait_ms))
        group = self.group_of(queue, freshness)
        response: log_pb2.PullResponse = await self._ask(group, request, reading, wait_ms)
        if freshness.is_any and response.status == log_pb2.PULL_STATUS_OFFSET_TOO_SMALL:
            # The log of that replica begins later; what the leader has is not gone.
            response = await self._ask_leader(group, request, reading.deadline, wait_ms)
        return response

    def group_of(self, queue: Queue, freshness: ReadFreshness) -> BrokerGroup:
        """Return the group of a queue: the one it names, else the one of the node to ask."""
        if queue.broker_group or freshness.node_id is None:
            return self._groups.get(queue.broker_group)
        return self._groups.of_node(freshness.node_id)

    def asked_groups(self, freshness: ReadFreshness) -> tuple[BrokerGroup, ...]:
        """Return the groups that a question for a topic goes to."""
        if freshness.node_id is not None:
            return (self._groups.of_node(freshness.node_id),)
        return self._groups.all

    async def _ask(
        self, group: BrokerGroup, request: Any, reading: Reading, wait_ms: int = 0
    ) -> Any:
        """Ask the node of a group that can answer with the wanted freshness."""
        if reading.freshness.node_id is not None:
            node = group.router.node(reading.freshness.node_id)
            return await group.calls.node(node, request, reading.deadline)
        if not reading.freshness.is_any:
            return await self._led(group, request, reading.deadline, wait_ms)
        try:
            return await group.calls.any(request, reading.deadline)
        except QuorumlogError as error:
            if not isinstance(error, NotFoundError | UnknownTopicError | PermissionDeniedError):
                raise
        # A replica that lags, or whose log begins later, cannot say that there is none, or that a
        # user is none or may not.
        return await self._ask_leader(group, request, reading.deadline, wait_ms)

    async def _ask_leader(
        self, group: BrokerGroup, request: Any, deadline: Deadline, wait_ms: int = 0
    ) -> Any:
        """Repeat a question to any replica that only the leader can answer."""
        repeated = type(request)()
        repeated.CopyFrom(request)
        if not isinstance(request, log_pb2.RouteRequest):  # Each node tells what it knows.
            repeated.consistency = common_pb2.CONSISTENCY_LEADER
        return await self._led(group, repeated, deadline, wait_ms)

    async def _led(
        self, group: BrokerGroup, request: Any, deadline: Deadline, wait_ms: int = 0
    ) -> Any:
        return await group.calls.leader(request, deadline, is_read=True, wait_ms=wait_ms)

    async def _ask_all(
        self, freshness: ReadFreshness, ask: Callable[[BrokerGroup], Awaitable[_Answer]]
    ) -> list[tuple[BrokerGroup, _Answer | QuorumlogError]]:
        """Ask all groups at once. Answers may be QuorumlogErrors; other errors are raised."""
        groups = self.asked_groups(freshness)
        answers = await asyncio.gather(*map(ask, groups), return_exceptions=True)
        checked: list[_Answer | QuorumlogError] = []
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, QuorumlogError):
                raise answer
            checked.append(answer)
        return list(zip(groups, checked, strict=True))

    async def queues(
        self, topic: str, reading: Reading
    ) -> tuple[list[Queue], list[QuorumlogError]]:
        """Return all queues of a topic, asked now, and the errors of groups that did not answer.

        Raises UnknownTopicError if no group has it, and the first error if no queue was found.
        """
        answers = await self._ask_all(
            reading.freshness, lambda group: self.group_queues(group, [topic], reading)
        )
        all_queues: list[Queue] = []
        failed: list[QuorumlogError] = []
        for _, answer in answers:
            if isinstance(answer, QuorumlogError):
                failed.append(answer)
            else:
                all_queues += answer
        if not all_queues:
            raise failed[0] if failed else unknown_topic(topic)
        return all_queues, failed

    async def group_queues(
        self, group: BrokerGroup, topics: Sequence[str], reading: Reading
    ) -> list[Queue]:
        """Return the queues that a group has of these topics, asked now."""
        request = log_pb2.RouteRequest(topics=topics, cluster_id=self._groups.cluster_id)
        response = await self._ask(group, request, reading)
        if reading.freshness.is_any and len(response.topics) < len(set(topics)):
            response = await self._ask_leader(group, request, reading.deadline)
        group.router.learn_topics(response, topics)
        routes = [group.router.topic(topic) for topic in topics]
        return [
            Queue(route.topic, queue_id, group.name)
            for route in routes
            if route is not None
            for queue_id in range(route.queue_count)
        ]

    async def ask_routes(self, topics: Sequence[str], deadline: Deadline) -> None:
        """Have the routers ask for the routes of topics; unknown topics are forgotten.

        Raises the error if no group answered.
        """
        reading = Reading(ReadFreshness(), deadline)
        answers = await self._ask_all(
            reading.freshness, lambda group: self.group_queues(group, topics, reading)
        )
        failed = [answer for _, answer in answers if isinstance(answer, QuorumlogError)]
        if len(failed) == len(answers):
            raise failed[0]

    async def queue_offsets(self, queues: Sequence[Queue], reading: Reading) -> list[QueueOffsets]:
        """Return the range of each queue, in the order asked."""
        by_group: dict[BrokerGroup, list[Queue]] = {}
        for queue in queues:
            by_group.setdefault(self.group_of(queue, reading.freshness), []).append(queue)
        questions = (
            self._offsets_of(group, mine[at : at + QUEUES_OF_CALL_MAX], reading)
            for group, mine in by_group.items()
            for at in range(0, len(mine), QUEUES_OF_CALL_MAX)
        )
        offsets: dict[Queue, QueueOffsets] = {}
        for part in await asyncio.gather(*questions):
            offsets.update(part)
        return [offsets[queue] for queue in queues]

    async def _offsets_of(
        self, group: BrokerGroup, queues: Sequence[Queue], reading: Reading
    ) -> dict[Queue, QueueOffsets]:
        ids = [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in queues]
        request = log_pb2.QueueOffsetsRequest(
            queues=ids,
            consistency=_CONSISTENCY[reading.freshness.consistency],
            at_least_index=reading.freshness.at_least_index,
        )
        response = await self._ask(group, request, reading)
        return {
            queue: QueueOffsets(q.topic, q.queue_id, q.min_offset, q.max_offset, group.name)
            for queue, q in zip(queues, response.queues, strict=True)
        }

    async def offset_by_time(self, queue: Queue, unix_ms: int, reading: Reading) -> int:
        """Return the offset of the first message stored at that time or later."""
        request = log_pb2.OffsetByTimeRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            unix_ms=unix_ms,
            consistency=_CONSISTENCY[reading.freshness.consistency],
        )
        group = self.group_of(queue, reading.freshness)
        response = await self._ask(group, request, reading)
        return int(response.offset)

    async def positions(
        self, queues: Sequence[Queue], position: Position, reading: Reading
    ) -> dict[Queue, int]:
        """Turn one position into an offset of each queue."""
        offsets = await self._positions(queues, position, reading)
        wanted = parse_position(position)
        if reading.freshness.is_any and (wanted == FIRST or isinstance(wanted, Time)):
            there = await self.queue_offsets(queues, reading)
            los = {queue: row.first_offset for queue, row in zip(queues, there, strict=True)}
            # The log of that replica begins there; the leader's may have what comes first.
            unsure = [queue for queue, lo in los.items() if lo and offsets[queue] <= lo]
            led = replace(reading.freshness, consistency=Consistency.LEADER)
            offsets |= await self._positions(unsure, position, reading._replace(freshness=led))
        return offsets

    async def _positions(
        self, queues: Sequence[Queue], position: Position, reading: Reading
    ) -> dict[Queue, int]:
        wanted = parse_position(position)
        if isinstance(wanted, int) and wanted >= 0:
            return dict.fromkeys(queues, wanted)
        if isinstance(wanted, Time):
            return {
                queue: await self.offset_by_time(queue, wanted.unix_ms, reading) for queue in queues
            }
        ranges = await self.queue_offsets(queues, reading)
        if isinstance(wanted, int):
            return {
                queue: max(q.first_offset, q.end_offset + wanted)
                for queue, q in zip(queues, ranges, strict=True)
            }
        assert wanted in (FIRST, END), f"position {wanted!r}"
        return {
            queue: q.first_offset if wanted == FIRST else q.end_offset
            for queue, q in zip(queues, ranges, strict=True)
        }

    async def message(self, message_id: str, reading: Reading) -> Message:
        """Find a message by its id; the groups are asked at once. Raises NotFoundError."""
        request = log_pb2.GetMessageRequest(
            message_id=message_id, consistency=_CONSISTENCY[reading.freshness.consistency]
        )

        async def ask(group: BrokerGroup) -> list[Message]:
            response = await self._ask(group, request, reading)
            return decode_records(
                response.records, broker_group=group.name, newest_move=_newest_move(response)
            )

        tasks = [
            asyncio.ensure_future(ask(group)) for group in self.asked_groups(reading.freshness)
        ]
        failed: QuorumlogError | None = None
        try:
            for answer in asyncio.as_completed(tasks):
                try:
                    if answered := await answer:
                        return answered[0]  # Other groups may be away; this is the message.
                except NotFoundError as error:
                    failed = failed or error
                except QuorumlogError as error:
                    failed = error  # The message may be in that group.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        text = f"no message {message_id}; check the id"
        raise failed or NotFoundError(text, code="node.none")

    async def by_key(self, request: log_pb2.QueryByKeyRequest, reading: Reading) -> list[Message]:
        """Find the newest messages by a key, oldest first, in as many calls as they take.

        The index holds hashes, so other keys of the same hash are left out. Raises the error of a
        group that cannot answer: without it the result would be incomplete.
        """
        request.consistency = _CONSISTENCY[reading.freshness.consistency]
        topic, key, max_count = request.topic, request.key, request.max_count
        answers = await self._ask_all(
            reading.freshness, lambda group: self._ask(group, request, reading)
        )
        unknown = [a for _, a in answers if isinstance(a, UnknownTopicError)]
        parts: list[list[Message]] = []
        for group, answer in answers:
            if isinstance(answer, UnknownTopicError) and len(unknown) < len(answers):
                continue  # A group may have no share of a topic.
            if isinstance(answer, QuorumlogError):
                raise answer
            messages, last = _with_key(answer, topic, key, group), answer
            while len(messages) < max_count and last.HasField("next_position"):
                request.next_position = last.next_position
                request.max_count = max_count - len(messages)
                last = await self._ask(group, request, reading)
                messages = _with_key(last, topic, key, group) + messages
            parts.append(messages)
        merged = list(heapq.merge(*parts, key=lambda message: message.store_unix_ms))
        return merged[-max_count:] if max_count else merged


def unknown_topic(topic: str) -> UnknownTopicError:
    """Return the error for a topic that no group has."""
    text = f"topic {topic!r} does not exist; check the name, or run 'qlog topic create {topic}'"
    return UnknownTopicError(text)


def _newest_move(answer: log_pb2.PullResponse | log_pb2.RecordsResponse) -> int | None:
    return answer.newest_move if answer.HasField("newest_move") else None


def _with_key(
    answer: log_pb2.RecordsResponse, topic: str, key: str, group: BrokerGroup
) -> list[Message]:
    newest_move = _newest_move(answer)
    messages = decode_records(
        answer.records, topic=topic, broker_group=group.name, newest_move=newest_move
    )
    return [m for m in messages if key in m.keys or m.properties.get("UNIQ_KEY") == key]


def _check_offsets(
    messages: list[Message], topic: str, queue_id: int, offset: int, next_offset: int
) -> None:
    """Raise CorruptRecordError for a gap, or for messages of another queue (fault-matrix I11)."""
    if not messages:
        return
    first, last = messages[0], messages[-1]
    count = last.queue_offset - first.queue_offset + 1
    if (
        first.queue_offset != offset
        or count != len(messages)
        or last.queue_offset + 1 != next_offset
        or (first.topic, first.queue_id) != (topic, queue_id)
        or (last.topic, last.queue_id) != (topic, queue_id)
    ):
        raise CorruptRecordError(
            f"asked for {topic}/{queue_id} from offset {offset}, got {len(messages)} messages of "
            f"{first.topic}/{first.queue_id} from {first.queue_offset} to {last.queue_offset}, "
            f"next {next_offset}; read again, and verify that replica's store"
        )
