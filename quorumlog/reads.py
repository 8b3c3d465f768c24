"""Single reads: a pull, offsets of queues, positions, messages by id or key.

Owns how a consistency becomes a choice of node and a request; must not know of iteration or groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.batch import decode_records
from quorumlog.calls import Calls
from quorumlog.errors import CorruptRecordError, InvalidRequestError, UnknownTopicError
from quorumlog.message import Message, MessageBatch
from quorumlog.options import END, FIRST, Consistency, Position, Time, parse_position
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.retry import Deadline
from quorumlog.routing import Router, TopicRoute

_CONSISTENCY: Final = {
    Consistency.LEADER: common_pb2.CONSISTENCY_LEADER,
    Consistency.LINEARIZABLE: common_pb2.CONSISTENCY_LINEARIZABLE,
    Consistency.LOCAL: common_pb2.CONSISTENCY_LOCAL,
}


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """What one queue holds: offsets [min_offset, max_offset)."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh a read must be, and of whom it is asked. A node id means that very replica."""

    consistency: Consistency = Consistency.LEADER
    at_least_index: int | None = None
    node_id: int | None = None

    @classmethod
    def of(
        cls,
        consistency: Consistency | str,
        at_least_index: int | None = None,
        node_id: int | None = None,
    ) -> "Freshness":
        """Check a combination. Raises InvalidRequestError."""
        chosen = Consistency.of(consistency)
        if node_id is not None:
            if chosen is Consistency.LINEARIZABLE:
                raise InvalidRequestError(
                    "one replica cannot answer linearizably by itself; leave out node_id"
                )
            chosen = Consistency.LOCAL
        if at_least_index is not None and at_least_index < 0:
            raise InvalidRequestError(f"at_least_index is {at_least_index}; use that of a receipt")
        return cls(chosen, at_least_index, node_id)


class Reads:
    """Makes reads. All of them may be repeated, so they are, until their deadline."""

    def __init__(self, router: Router, calls: Calls) -> None:
        self._router = router
        self._calls = calls

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        freshness: Freshness,
        *,
        max_count: int,
        max_size_bytes: int,
        wait_ms: int,
        tags: Sequence[str],
        timeout_ms: int,
    ) -> MessageBatch:
        """Read what is at `offset` and after it. Raises CorruptRecordError, UnknownTopicError."""
        request = log_pb2.PullRequest(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            max_count=max_count,
            max_size_bytes=max_size_bytes,
            wait_ms=wait_ms,
            consistency=_CONSISTENCY[freshness.consistency],
            tags=tags,
            cluster_id=self._router.cluster_id,
        )
        if freshness.at_least_index is not None:
            request.at_least_index = freshness.at_least_index
        deadline = Deadline(timeout_ms + wait_ms)
        response = await self.ask("Pull", request, freshness, deadline, wait_ms)
        records = response.records
        messages = decode_records(records, topic=topic) if records else []
        if tags:  # Nodes filter by a hash of the tag, as RocketMQ does.
            messages = [message for message in messages if message.tag in tags]
        else:
            _check_offsets(messages, topic, queue_id, offset, response.next_offset)
        return MessageBatch(
            topic=topic,
            queue_id=queue_id,
            first_offset=offset,
            next_offset=response.next_offset if records else max(offset, response.next_offset),
            min_offset=response.min_offset,
            max_offset=response.max_offset,
            applied_index=response.applied_index,
            node_id=response.node_id,
            size_bytes=len(records),
            is_out_of_range=response.status
            in (log_pb2.PULL_STATUS_OFFSET_TOO_SMALL, log_pb2.PULL_STATUS_OFFSET_TOO_BIG),
            messages=messages,
        )

    async def ask(
        self,
        method: str,
        request: Any,
        freshness: Freshness,
        deadline: Deadline,
        wait_ms: int = 0,
    ) -> Any:
        """Ask the node that can answer as freshly as wanted."""
        if freshness.node_id is not None:
            node = self._router.node(freshness.node_id)
            return await self._calls.node(node, "log", method, request, deadline)
        if freshness.consistency is Consistency.LOCAL:
            return await self._calls.any("log", method, request, deadline)
        return await self._calls.leader(
            "log", method, request, deadline, is_repeatable=True, wait_ms=wait_ms
        )

    async def topics(
        self, names: Sequence[str], freshness: Freshness, deadline: Deadline
    ) -> dict[str, TopicRoute]:
        """Return the routes of topics, asked now. Raises UnknownTopicError if one has none."""
        await self.ask_routes(names, deadline, freshness)
        routes = {name: self._router.topic(name) for name in names}
        known = {name: route for name, route in routes.items() if route is not None}
        for name in names:
            if name not in known:
                raise UnknownTopicError(
                    f"topic {name!r} does not exist; run 'qlog topic create {name}'"
                )
        return known

    async def ask_routes(
        self, names: Sequence[str], deadline: Deadline, freshness: Freshness | None = None
    ) -> None:
        """Have the router learn where topics are; those that do not exist are forgotten."""
        request = log_pb2.RouteRequest(topics=names, cluster_id=self._router.cluster_id)
        response = await self.ask("Route", request, freshness or Freshness(), deadline)
        self._router.learn_topics(response, names)

    async def queue_offsets(
        self, queues: Sequence[tuple[str, int]], freshness: Freshness, deadline: Deadline
    ) -> list[QueueOffsets]:
        """Return the range of each queue, in the order asked."""
        ids = [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in queues]
        request = log_pb2.QueueOffsetsRequest(
            queues=ids, consistency=_CONSISTENCY[freshness.consistency]
        )
        response = await self.ask("QueueOffsets", request, freshness, deadline)
        return [
            QueueOffsets(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in response.queues
        ]

    async def offset_by_time(
        self, topic: str, queue_id: int, unix_ms: int, freshness: Freshness, deadline: Deadline
    ) -> int:
        """Return the offset of the first message stored at that time or later."""
        request = log_pb2.OffsetByTimeRequest(
            topic=topic,
            queue_id=queue_id,
            unix_ms=unix_ms,
            consistency=_CONSISTENCY[freshness.consistency],
        )
        response = await self.ask("OffsetByTime", request, freshness, deadline)
        return int(response.offset)

    async def positions(
        self,
        queues: Sequence[tuple[str, int]],
        position: Position,
        freshness: Freshness,
        deadline: Deadline,
    ) -> dict[tuple[str, int], int]:
        """Turn one position into an offset of each queue."""
        wanted = parse_position(position)
        if isinstance(wanted, int):
            return dict.fromkeys(queues, wanted)
        if isinstance(wanted, Time):
            return {
                (topic, queue_id): await self.offset_by_time(
                    topic, queue_id, wanted.unix_ms, freshness, deadline
                )
                for topic, queue_id in queues
            }
        assert wanted in (FIRST, END), f"position {wanted!r}"
        found = await self.queue_offsets(queues, freshness, deadline)
        return {
            (q.topic, q.queue_id): q.min_offset if wanted == FIRST else q.max_offset for q in found
        }

    async def message(
        self, message_id: str, freshness: Freshness, deadline: Deadline
    ) -> list[Message]:
        """Find a message by its id."""
        request = log_pb2.GetMessageRequest(
            message_id=message_id, consistency=_CONSISTENCY[freshness.consistency]
        )
        response = await self.ask("GetMessage", request, freshness, deadline)
        return decode_records(response.records)

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        lo_unix_ms: int,
        hi_unix_ms: int,
        max_count: int,
        freshness: Freshness,
        deadline: Deadline,
    ) -> list[Message]:
        """Find messages by a key. The index knows hashes, so what only collides is left out."""
        request = log_pb2.QueryByKeyRequest(
            topic=topic,
            key=key,
            lo_unix_ms=lo_unix_ms,
            hi_unix_ms=hi_unix_ms,
            max_count=max_count,
            consistency=_CONSISTENCY[freshness.consistency],
        )
        response = await self.ask("QueryByKey", request, freshness, deadline)
        found = decode_records(response.records, topic=topic)
        return [
            message
            for message in found
            if key in message.keys or message.properties.get("UNIQ_KEY") == key
        ]


def _check_offsets(
    messages: list[Message], topic: str, queue_id: int, offset: int, next_offset: int
) -> None:
    """What a reader gets has no hole and nothing of another queue (fault-matrix I11)."""
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
