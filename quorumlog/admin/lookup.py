"""Search for single messages: the history of one, and the sizes of those of a topic.

Owns these calls and their values; must not know how calls find the leader. A message is of one
broker group, which its id does not name: all are asked.
"""

from dataclasses import asdict, dataclass
from typing import Any

from quorumlog.admin.calls import AdminCalls
from quorumlog.arguments import checked
from quorumlog.pb import lookup_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message
from quorumlog.records.values import of_pb


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event in the history of a message.

    `kind`: stored, half, open, committed, rolled back, given up, expired, delayed, consumed (a
    group has passed it), retried or dead. `unix_ms` is 0 for an event that is known from the state
    and not from a record.
    """

    kind: str
    unix_ms: int
    topic: str
    queue_id: int
    offset: int
    message_id: str
    group: str
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The history of a message, in the order of time. `message` is None for one that readers do not
    see yet: half, or delayed. `is_complete` is false when a queue was too long to be searched: give
    messages unique keys."""

    message: Message | None
    events: list[TraceEvent]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class TopicSizes:
    """Sizes of a topic's records, by the mean of their batch, since a leader began to count.

    `buckets`: (upper bound in bytes, count of records below it).
    """

    group: str
    node_id: int
    record_count: int
    size_bytes: int
    since_unix_ms: int
    buckets: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as plain values under stable names."""
        values = asdict(self)
        names = ("below_size_bytes", "record_count")
        values["buckets"] = [dict(zip(names, bucket, strict=True)) for bucket in self.buckets]
        return values


@checked
class LookupAdmin:
    """The part of `Admin` that searches messages."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def trace_message(self, message_id: str) -> Trace:
        """Return the history of a message: stored, delivered, consumed, retried, dead.

        Derived from log and state by each call. Raises NotFoundError.
        """
        request = lookup_pb2.TraceMessageRequest(message_id=message_id)
        answers, _ = await self._calls.each("TraceMessage", request, service="lookup")
        group, answer = next(iter(answers.items()))
        events = [of_pb(TraceEvent, event) for event in answer.events]
        messages = decode_records(answer.record, group=group)
        return Trace(messages[0] if messages else None, events, answer.is_complete)

    async def topic_sizes(self, topic: str) -> list[TopicSizes]:
        """Return the sizes of the messages of a topic, for each broker group."""
        request = lookup_pb2.TopicSizesRequest(topic=topic)
        answers, _ = await self._calls.each("TopicSizes", request, service="lookup")
        return [
            of_pb(
                TopicSizes,
                sizes,
                group=group,
                buckets=tuple((row.below_size_bytes, row.record_count) for row in sizes.buckets),
            )
            for group, sizes in answers.items()
        ]
